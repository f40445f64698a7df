"""What the command writes, beside what it reads: it replaces none of its own inputs, and no result by another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mugraph.files import is_one_file
from mugraph.onnx.parse import files_of
from rewriter.reference import InputError
from rewriter.run.task import default_output
from rules_db.files import check_writable

__all__ = ["check_targets"]

_READING = {"data": "--data", "rules": "--rules", "costs": "--costs"}
"""Fields of the options whose words may be files, to their flags."""


def check_targets(model: Path, output: Path | None, told: Mapping[str, Path | None], written: Mapping[str, Any]) -> None:
    """Checks the files that a run writes before it begins.

    Args:
        output: as it was given.
        told: flags to the files that are written beside it.
        written: what the flags of options were given, by field.

    Raises:
        InputError, ModelError, StoreError: a file cannot be written, is one of those that the run reads, or another result.
    """
    result = output or (default_output(model, bool(written["in_place"])) if model.name else model)  # the root is no model
    files = {flag: file for flag, file in told.items() if file is not None}
    for flag, file in files.items():
        if file.is_dir() or not file.absolute().parent.is_dir():
            raise InputError(f"{flag} {file}: cannot be written there; name a file in an existing directory")
        if any(is_one_file(file, other) for other in (model, result)):
            raise InputError(f"{flag} {file}: this is a model; name another file")
        if file.is_file() and any(is_one_file(file, weights) for weights in files_of(model)):
            raise InputError(f"{flag} {file}: it holds weights of {model}; name another file")
        check_writable(file)
    for flag, file in {"-o": result, **files}.items():
        for other, read in _read(written):
            if is_one_file(file, read):
                raise InputError(f"{flag} {file}: {other} reads this file; name another one")
    if len(files) > 1 and is_one_file(*files.values()):
        raise InputError(f"{' and '.join(files)} name one file; name two")


def _read(written: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The files that options name, with their flags."""
    for field, flag in _READING.items():
        words = written[field]
        for word in words if isinstance(words, tuple | list) else [words]:
            if word is not None and Path(word).is_file():
                yield flag, Path(word)
