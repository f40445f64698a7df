"""The files of one model, written together."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO

from mugraph.deadline import heed
from mugraph.files import Draft
from mugraph.onnx.weights import CHUNK, ModelError

if sys.platform == "linux":
    import fcntl

__all__ = ["FileSet", "content_digest", "unwritable"]

_CLONE = 0x40049409
"""Linux's FICLONE."""


def _ignore(_: memoryview) -> None:
    return None


class FileSet:
    """Writes the files of a model: drafts of all of them first, then each gets its name, the model last.

    To be entered. A failure while drafts are written leaves nothing behind. What has its name stays, whatever happens then: from
    that moment another model may use it.

    Args:
        target: the model's file, of which errors speak.
        is_lasting: they are to outlive a power failure.
    """

    def __init__(self, target: Path, *, is_lasting: bool = True) -> None:
        self.target, self.is_lasting = target, is_lasting
        self._drafts = ExitStack()

    def __enter__(self) -> FileSet:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        self._drafts.close()
        if isinstance(problem, OSError):
            raise unwritable(self.target, problem) from problem

    def write(
        self, chunks: Iterable[bytes], final: Path | None = None, observe: Callable[[memoryview], object] = _ignore
    ) -> Draft:
        """Writes a draft.

        Args:
            final: the file that it is to be; the model's by default.
            observe: sees all that is written.
        """
        draft = self._drafts.enter_context(Draft(self.target if final is None else final))
        for chunk in chunks:
            for start in range(0, len(chunk), CHUNK):
                heed()
                piece = memoryview(chunk)[start : start + CHUNK]
                observe(piece)
                draft.file.write(piece)
        draft.file.flush()
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
