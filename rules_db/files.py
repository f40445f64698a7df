"""Files of rules, caches and reports: where they are kept, and how they are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from errno import EISDIR
from pathlib import Path

from mugraph.files import destination, is_device, replacing, same_file

__all__ = ["DATABASE_START", "StoreError", "cache_folder", "check_writable", "is_text", "write_text"]

DATABASE_START = b"SQLite format 3\0"
"""What a database in a file begins with."""


class StoreError(Exception):
    """A rule database or file cannot be used; one line that names it and the way out."""


def cache_folder() -> Path:
    """``$ONNX_SUPEROPT_CACHE`` or the user's cache directory; for a user without home directory a place where nothing is kept."""
    base = os.environ.get("ONNX_SUPEROPT_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/onnx-superopt"
    try:
        return Path(base).expanduser()
    except RuntimeError:
        return Path(os.devnull) / "onnx-superopt"


def is_text(url: str | Path) -> bool:
    """Whether a path or URL is one of rules as text: by its ending, so that it is known before there is a file.

    Raises:
        StoreError: it is a database all the same, which would be read, or written over, as what it is not.
    """
    if not str(url).endswith(".rules"):
        return False
    try:
        with open(url, "rb") as file:
            is_database = file.read(len(DATABASE_START)) == DATABASE_START
    except OSError:
        return True
    if is_database:
        raise StoreError(f"{url}: this is a database, and .rules is the ending of text; rename it, to rules.sqlite for example")
    return True


def write_text(path: str | Path, text: str) -> None:
    """Writes a file whole or not at all. Raises StoreError where that cannot be."""
    try:
        with replacing(path) as file:
            file.write(text.encode("utf-8"))
    except OSError as problem:
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None


def check_writable(path: str | Path, read: Iterable[str | Path] = ()) -> None:
    """Raises StoreError where :func:`write_text` would, or would replace a file that is read: to be asked before long work.

    Standard output has a path of its own, so that the name that stands for it elsewhere is meant for no file.

    Args:
        read: the files that are read.
    """
    if str(path) == "-":
        raise StoreError("-: no file is written of that name; give another path, or /dev/stdout for standard output")
    if not is_device(path) and any(same_file(path, other) for other in read):
        raise StoreError(f"{path}: this file is read, too; give another path")
    try:
        if Path(path).is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not is_device(path):
            tempfile.TemporaryFile(dir=destination(path).parent).close()
    except OSError as problem:
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None
