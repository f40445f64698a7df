"""Modules that are imported when something of them is first asked for: a run that needs none of it starts sooner."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

from mugraph.deadline import heed

__all__ = ["LateModule", "import_ahead", "import_within"]


class LateModule:
    """Stands for a module, which is imported when an attribute of it is first asked for.

    Args:
        name: of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def import_ahead(*names: str) -> None:
    """Begins to import modules, while who will need them waits for something else.

    What cannot be imported fails where it is needed.
    """
    threading.Thread(target=_import_all, args=(names,), daemon=True).start()


def _import_all(names: tuple[str, ...]) -> None:
    with suppress(ImportError):
        for name in names:
            import_module(name)


def import_within(*names: str) -> None:
    """Imports modules one after the other, in time that is heeded.

    Raises:
        BudgetSpent: it is over before one of them.
        KeyboardInterrupt: also where that became the cause of another exception, as before Python 3.12 it does in a class.
    """
    for name in names:
        heed()
        try:
            import_module(name)
        except RuntimeError as problem:
            if isinstance(problem.__cause__, KeyboardInterrupt):
                raise problem.__cause__ from None
            raise
