"""Files that are written together: all of them come to stay, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from mugraph.onnx.weights import CHUNK, ModelError

__all__ = ["FileSet"]


class FileSet:
    """Writes files of one model: either all come to stay, or none is left behind and replaced ones are as before.

    To be entered; they stay if :meth:`keep` is called before it is left.

    Args:
        folder: where they are written.
        target: the model's file, of which errors speak.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self.target = folder, target
        self.made: list[Path] = []
        self.kept = False
        self.count = 0

    def __enter__(self) -> FileSet:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if self.kept:
            return
        for path in self.made:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            reason = problem.strerror or str(problem)
            raise ModelError(f"{self.target} cannot be written: {reason}; make room or choose another output") from problem

    def keep(self) -> None:
        """Says that all files are there."""
        self.kept = True

    def write(self, chunks: Iterable[bytes], observe: Callable[[bytes], None] = lambda chunk: None) -> Path:
        """Writes a temporary file in the folder."""
        temporary = self.folder / f".{self.target.name}.{os.getpid()}.{self.count}.tmp"
        self.count += 1
        with temporary.open("xb") as file:
            self.made.append(temporary)
            for chunk in chunks:
                for start in range(0, len(chunk), CHUNK):
                    piece = chunk[start : start + CHUNK]
                    observe(piece)
                    file.write(piece)
        return temporary

    def move(self, temporary: Path, final: Path) -> None:
        """Gives a temporary file its name; it replaces a file of that name."""
        existed = final.exists()
        temporary.replace(final)
        self.made.remove(temporary)
        if not existed:
            self.made.append(final)

    def link(self, source: Path, final: Path) -> None:
        """Makes ``final`` the file ``source``, or a copy of it."""
        if final.exists():
            return
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            final.hardlink_to(source.resolve())
        except OSError:  # another device, or a file system without links
            with source.open("rb") as file:
                self.move(self.write(iter(lambda: file.read(CHUNK), b"")), final)
        else:
            self.made.append(final)
