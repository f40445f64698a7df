"""Files of rules, caches and reports: where they are kept, and how they are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from errno import EISDIR
from pathlib import Path

__all__ = ["StoreError", "cache_folder", "check_writable", "write_text"]


class StoreError(Exception):
    """A rule database or file cannot be used; one line that names it and the way out."""


def cache_folder() -> Path:
    """``$ONNX_SUPEROPT_CACHE`` or the user's cache directory."""
    base = os.environ.get("ONNX_SUPEROPT_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "onnx-superopt")
    return Path(base).expanduser()


def write_text(path: str | Path, text: str) -> None:
    """Writes a file whole or not at all. Raises StoreError where that cannot be."""
    path, name = Path(path), None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.chmod(name, 0o644)
        os.replace(name, path)
        name = None
    except OSError as problem:
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None
    finally:
        if name is not None:
            os.unlink(name)


def check_writable(path: str | Path) -> None:
    """Raises StoreError where :func:`write_text` would: to be asked before long work."""
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as problem:
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None
