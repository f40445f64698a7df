"""Values of options read from the words of a command line."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rewriter.kernels.architecture import Architecture, parse_architectures
from rewriter.reference import InputError
from rules_db.late import LateModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LateModule("numpy")

__all__ = ["load_data", "parse_arch", "parse_shapes"]


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Reads ``NAME=2x128`` items. Raises InputError for one that is not of that form."""
    shapes: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, _, text = item.rpartition("=")
        sizes = [part for part in text.split("x") if part]
        if not name or not all(part.isdecimal() and len(part) < 19 for part in sizes):
            raise InputError(f"--input {item}: write NAME=2x128, sizes joined by 'x' (NAME= for a scalar)")
        shapes[name] = tuple(map(int, sizes))
    return shapes


def load_data(paths: Sequence[Path]) -> tuple[dict[str, np.ndarray], ...]:
    """The inputs in ``.npz`` files. Raises InputError for a file that is none."""
    return tuple(map(_load_inputs, paths))


def _load_inputs(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as problem:
        reason = getattr(problem, "strerror", None) or "numpy.savez writes such files"
        raise InputError(f"--data {path}: not a readable .npz file of the model's inputs ({reason})") from None


def parse_arch(names: str | None) -> tuple[Architecture, ...] | None:
    """Reads ``sm_80,compute_80``. Raises InputError for what is no architecture."""
    try:
        return None if names is None else parse_architectures(names)
    except ValueError as problem:
        raise InputError(f"--arch: {problem}") from None
