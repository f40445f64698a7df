"""Modules of others that are imported when something of them is first asked for: a run that needs none of it starts sooner."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["LateModule"]


class LateModule:
    """Stands for a module, which is imported when an attribute of it is first asked for.

    Args:
        name: of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
