"""Files that are written whole or not at all, and folders for work in progress.

What is in the making is locked by its writer for as long as that lives, so that what a killed process left behind can be told
from what another one is writing, whatever process ids repeat. It is removed by the next one that writes the same file, or asks
for a folder.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

__all__ = ["Draft", "Scratch", "destination", "is_device", "is_one_file", "replacing", "same_file"]

_DRAFT = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)
_SCRATCH = "superopt-scratch-"


def destination(path: str | Path) -> Path:
    """The file that writing to a path changes: links are followed. Raises OSError for links in a circle."""
    try:
        return Path(path).resolve()
    except RuntimeError:  # what pathlib raised before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def is_device(path: str | Path) -> bool:
    """Whether a path stands for what is written to and never replaced: a device, a pipe, a socket."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to one file that exists, through links of either kind and other spellings too."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def is_one_file(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to one file, which need not exist; a device takes whatever is written there."""
    return not is_device(one) and (same_file(one, other) or os.path.realpath(one) == os.path.realpath(other))


class Draft:
    """A file in the making, beside the one that it is to be; a context manager that removes what became no file by then.

    Args:
        target: the file that it is to be, where no link is followed (:func:`destination`). Drafts of it that a killed process
            left are removed.

    Attributes:
        path: where it is meanwhile.
        file: to write to.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, target: Path) -> None:
        with suppress(OSError):
            _remove_dead_drafts(target)
        self.target = target
        while True:
            self.path = target.parent / f".{target.name}.{secrets.token_hex(8)}.tmp"
            self.file = self.path.open("x+b")
            with suppress(OSError):  # a file system without locks
                _lock(self.file.fileno(), wait=True)
            if self.path.exists():  # it was not taken for a dead one before it was locked
                break
            self.file.close()

    def replace(self, *, is_lasting: bool = True) -> None:
        """It becomes the target, in the place of the file of that name, whose permissions it takes over.

        Args:
            is_lasting: its bytes are on the disk before it takes the place, lest a power failure leave neither.
        """
        self.file.flush()
        with suppress(OSError):
            os.chmod(self.path, stat.S_IMODE(self.target.stat().st_mode))
        if is_lasting:
            os.fsync(self.file.fileno())
        if sys.platform == "win32":  # where open files cannot be renamed
            self.file.close()
        os.replace(self.path, self.target)
        self.file.close()  # not before it has its name: the lock keeps others from removing it

    def settle(self, final: Path, *, is_lasting: bool = True) -> bool:
        """It becomes ``final`` unless there is such a file.

        Returns:
            whether it did; where not, it is still a draft.
        """
        self.file.flush()
        if is_lasting:
            os.fsync(self.file.fileno())
        try:
            os.link(self.path, final)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if os.path.lexists(final):
                return False
            self.file.close()
            os.rename(self.path, final)
            return True
        self.discard()
        return True

    def discard(self) -> None:
        """Removes what is left of it."""
        if sys.platform == "win32":
            self.file.close()
        with suppress(OSError):
            self.path.unlink()
        self.file.close()

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.discard()


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of the one at a path when it is left; devices are written to as they are.

    Raises:
        OSError: it cannot be written; what stood there is untouched.
    """
    if is_device(path):
        with open(path, "wb") as device:
            yield device
        return
    with Draft(destination(path)) as draft:
        yield draft.file
        draft.replace()


def _remove_dead_drafts(target: Path) -> None:
    """Removes the drafts of a file whose writers are dead."""
    for path in target.parent.iterdir():
        match = _DRAFT.fullmatch(path.name)
        if match is not None and match["target"] == target.name:
            with suppress(OSError), _locked(path, wait=False):
                path.unlink()


class Scratch:
    """A folder for work in progress, in the directory for temporary files; a context manager that removes it.

    The folders of killed processes are removed when one is made.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            _remove_dead_folders()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_SCRATCH))
            self._lock = ExitStack()
            with suppress(OSError):
                self._lock.enter_context(_locked(self.path, wait=True))
            if self.path.exists():  # it was not taken for a dead one before it was locked
                break

    def close(self) -> None:
        """Removes it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _remove_dead_folders() -> None:
    """Removes the folders for work in progress that the user's killed processes left."""
    for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(OSError), _locked(path, wait=False):
            if path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path)


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds the lock of a file or folder.

    Raises:
        OSError: it is not there, or the system or its file system has no locks; without ``wait``, where another has it locked.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _lock(descriptor, wait=wait)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    """Locks an open file or folder until it is closed. Raises OSError as :func:`_locked`."""
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
