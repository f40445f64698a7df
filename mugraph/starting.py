"""What is there first: how a command begins, packages whose names are imported when they are needed, rare garbage collections.

A command that has begun is ended by an interrupt without a word, so that its console script imports this and little else.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

__all__ = ["INTERRUPTED_EXIT", "end_at_once", "late_names", "rare_collections", "start_command"]

INTERRUPTED_EXIT = 130
"""Exit code of a command that was interrupted, as shells have it: 128 and the signal's number."""

_ALLOCATIONS = 50_000
"""Objects made between two collections."""


def end_at_once(*_: object) -> None:
    """What an interrupt does while a command is imported: it ends the process, where it would be raised.

    Nothing is there yet that is to be cleared up. NumPy's code in C that imports NumPy prints what is raised meanwhile and raises
    another error, of which it is no cause.
    """
    os._exit(INTERRUPTED_EXIT)


def start_command(module: str, name: str, *, collects_rarely: bool = False) -> None:
    """As :func:`mugraph.interrupts.run_command`, which is imported once an interrupt ends the process without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    import_module("mugraph.interrupts").run_command(module, name, collects_rarely=collects_rarely)


def late_names(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package whose names are taken from its modules when they are first asked for.

    A stub beside the package tells type checkers of them.

    Args:
        package: its name.
        modules: of the package, each with the names that are taken from it.
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(homes[name]), name)

    return get


@contextmanager
def rare_collections() -> Iterator[None]:
    """Spares the garbage collector what is there, and most of its looks at what is made meanwhile.

    Terms, rules and candidates are many objects that are hardly ever in cycles.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
