"""The files of one model, written together."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import IO, Protocol

from mugraph.deadline import heed
from mugraph.files import Draft
from mugraph.onnx.weights import CHUNK, ModelError, read_piece

if sys.platform == "linux":
    import fcntl

__all__ = ["FileSet", "content_digest", "unwritable"]

_CLONE = 0x40049409
"""Linux's FICLONE."""


_SMALL = 1 << 16
"""Bytes of chunks that are put together before they are written."""
_FOLLOWED = 1 << 24
"""Bytes of a file from which on threads follow while it is written."""
_SYNCED = 1 << 25
"""Bytes that are written before they are brought to the disk beside those that follow."""


class _Digest(Protocol):
    """Of :mod:`hashlib`."""

    def update(self, data: bytes | memoryview, /) -> object: ...


class FileSet:
    """Writes the files of a model: drafts of all of them first, then each gets its name, the model last.

    To be entered. A failure while drafts are written leaves nothing behind. What has its name stays, whatever happens then: from
    that moment another model may use it.

    Args:
        target: the model's file, of which errors speak.
        is_lasting: they are to outlive a power failure.

    Attributes:
        buffer: for a piece of a file that is copied.
    """

    def __init__(self, target: Path, *, is_lasting: bool = True) -> None:
        self.target, self.is_lasting = target, is_lasting
        self.buffer = bytearray(CHUNK)
        self._drafts = ExitStack()

    def __enter__(self) -> FileSet:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        self._drafts.close()
        if isinstance(problem, OSError):
            raise unwritable(self.target, problem) from problem

    def write(self, chunks: Iterable[bytes | memoryview], final: Path | None = None, content: _Digest | None = None) -> Draft:
        """Writes a draft. What is on its way to the disk, or hashed, is so beside what follows it.

        Args:
            chunks: each is written before the next is asked for.
            final: the file that it is to be; the model's by default.
            content: takes all that is written, in the end.
        """
        draft = self._drafts.enter_context(Draft(self.target if final is None else final))
        with _Followers(draft, content, is_lasting=self.is_lasting) as followers:
            written, small, descriptor = 0, bytearray(), draft.file.fileno()
            for chunk in chunks:
                heed()
                if len(small) + len(chunk) <= _SMALL:
                    small += chunk
                    continue
                _write(descriptor, memoryview(small))
                for start in range(0, len(chunk), CHUNK):
                    heed()
                    _write(descriptor, memoryview(chunk)[start : start + CHUNK])
                    followers.follow(written + len(small) + min(start + CHUNK, len(chunk)))
                written += len(small) + len(chunk)
                small = bytearray()
            _write(descriptor, memoryview(small))
            followers.finish(written + len(small))
        return draft

    def replace(self, draft: Draft) -> None:
        """Gives a draft its name; it replaces a file of that name."""
        draft.replace(is_lasting=self.is_lasting)

    def settle(self, draft: Draft, final: Path) -> None:
        """Gives a draft a name; where a file has that name and the same content, it stands for the draft.

        Raises:
            ModelError: a file has that name and another content.
        """
        if not draft.settle(final, is_lasting=self.is_lasting) and content_digest(final) != content_digest(draft.path):
            raise ModelError(f"{self.target} cannot be written: {final} is another file; move that away or choose another output")

    def copy(self, source: Path, final: Path) -> None:
        """Makes ``final`` a copy of ``source``, which shares its blocks where the file system can do that.

        It is never the same file: onnx loads no data from files that have a second name, as the user's would have for a run, and
        for good where a run is killed.
        """
        if final.exists():
            return
        final.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as file:
            draft = self._drafts.enter_context(Draft(final))
            if not _shares_blocks(file, draft.file):
                for piece in iter(partial(file.read, CHUNK), b""):
                    heed()
                    draft.file.write(piece)
            draft.file.flush()
            self.settle(draft, final)


def _write(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


class _Followers:
    """Threads that follow a draft while it is written: one hashes it, one has it brought to the disk.

    A context manager that ends them. A failure to bring it to the disk is for whoever does that in the end to tell.

    Args:
        content: takes all that is written; ``None`` where nobody asks for that.
        is_lasting: it is to be brought to the disk.
    """

    def __init__(self, draft: Draft, content: _Digest | None, *, is_lasting: bool) -> None:
        self._hashing = None if content is None else _Follower(draft.path, partial(_hash, content))
        self._syncing = _Follower(draft.path, _sync) if is_lasting and sys.platform == "linux" else None

    def __enter__(self) -> _Followers:
        return self

    def __exit__(self, *_: object) -> None:
        for follower in (self._hashing, self._syncing):
            if follower is not None:
                follower.close()

    def follow(self, written: int) -> None:
        """So many bytes are written by now."""
        if written < _FOLLOWED:
            return
        if self._hashing is not None:
            self._hashing.follow(written)
        if self._syncing is not None and written >= self._syncing.given + _SYNCED and self._syncing.is_idle():
            self._syncing.follow(written)

    def finish(self, written: int) -> None:
        """That were all; returns when they are hashed."""
        if self._hashing is not None:
            self._hashing.finish(written)


class _Follower:
    """A thread that follows a file while it is written.

    Args:
        step: does what there is to do with the file and so many more bytes of it.

    Attributes:
        given: the bytes that it has got, or will get to.
    """

    def __init__(self, path: Path, step: Callable[[FileIO, int], object]) -> None:
        self.given, self._path, self._step = 0, path, step
        self._file: FileIO | None = None
        self._thread = ThreadPoolExecutor(1)
        self._steps: list[Future[object]] = []

    def is_idle(self) -> bool:
        """Whether it has got to the end of what it was given."""
        return all(step.done() for step in self._steps)

    def follow(self, written: int) -> None:
        """Has it go on up to there. Raises OSError where the file cannot be opened."""
        self._steps.append(self._thread.submit(self._step, self._opened(), written - self.given))
        self.given = written

    def finish(self, written: int) -> None:
        """Returns when it has got to there, without a thread if it was given nothing before. Raises what it raised."""
        if not self._steps:
            self._step(self._opened(), written)
            return
        self.follow(written)
        for step in self._steps:
            step.result()

    def _opened(self) -> FileIO:
        self._file = self._file or self._path.open("rb", buffering=0)
        return self._file

    def close(self) -> None:
        """Has it go no further."""
        self._thread.shutdown(cancel_futures=True)
        if self._file is not None:
            self._file.close()


def _hash(content: _Digest, file: FileIO, count: int) -> None:
    buffer = bytearray(min(count, CHUNK))
    while count:
        piece = read_piece(file, count, buffer)
        if not piece:
            raise OSError(errno.EIO, "a file that is being written became shorter")
        content.update(piece)
        count -= len(piece)


def _sync(file: FileIO, _: int) -> None:
    if sys.platform == "linux":
        os.fdatasync(file.fileno())


def _shares_blocks(source: IO[bytes], copy: IO[bytes]) -> bool:
    """Makes an empty file share all blocks of another until one of them is written to; whether the file system could."""
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(copy.fileno(), _CLONE, source.fileno())
    except OSError:
        return False
    return True


def content_digest(path: Path) -> str:
    """Of a file's content; empty where there is no such file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def unwritable(target: Path, problem: OSError) -> ModelError:
    """The error that a model cannot be written, to be raised."""
    reason = problem.strerror or str(problem)
    return ModelError(f"{target} cannot be written: {reason}; make room or choose another output")
