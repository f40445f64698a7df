"""Architectures of GPUs for which kernels are compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DEFAULT_ARCHITECTURES", "LEAST_ARCHITECTURE", "Architecture", "parse_architectures"]

LEAST_ARCHITECTURE = 80
"""Triton's kernels need its matrix units."""
_FIRST_OVERLAPPING = 90
"""The first architecture with ``griddepcontrol``."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A target of compilation: a cubin of an architecture such as 90, or PTX that drivers compile for later ones."""

    number: int
    is_ptx: bool = False

    def __str__(self) -> str:
        return f"compute_{self.number}" if self.is_ptx else f"sm_{self.number}"

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may start while the one before it still runs."""
        return self.number >= _FIRST_OVERLAPPING and not self.is_ptx


DEFAULT_ARCHITECTURES = (Architecture(80), Architecture(90), Architecture(80, is_ptx=True))


def parse_architectures(text: str) -> tuple[Architecture, ...]:
    """Reads ``sm_80,sm_90,compute_80``.

    Raises:
        ValueError: another name, or an architecture before sm_80, whose matrix units Triton's kernels need.
    """
    architectures = []
    for name in text.split(","):
        match = re.fullmatch(r"(sm|compute)_(\d{2,3})", name.strip())
        if match is None or int(match[2]) < LEAST_ARCHITECTURE:
            raise ValueError(f"'{name.strip()}' is no architecture; give for example sm_80,sm_90, and compute_80 for PTX")
        architectures.append(Architecture(int(match[2]), match[1] == "compute"))
    return tuple(dict.fromkeys(architectures))
