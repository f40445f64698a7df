"""The functions of a block graph."""

from __future__ import annotations

from enum import Enum

__all__ = ["FunctionRole"]


class FunctionRole(Enum):
    """The part of a block graph that a function computes; the value is the end of its name."""

    WHOLE = ""
    PART = "_part"
    COMBINE = "_combine"
