"""Commands on consoles: tables have their full width where they go to a file or a pipe, errors are one line."""

from __future__ import annotations

import math
import sys
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape

from mugraph.interrupts import USER_EXIT
from mugraph.lines import in_a_line
from mugraph.starting import INTERRUPTED_EXIT

__all__ = ["FOLDED", "UNBOUNDED", "FiniteRange", "result_console", "run_click", "shown"]

UNBOUNDED = 10_000
"""Columns of what is no terminal: no table is cut there."""
FOLDED = 120
"""Columns of a cell of a table from which on it is folded, also there: a line as long as a rule is not read."""


class FiniteRange(click.FloatRange):
    """Numbers in a range; ``nan``, which is within none, and ``inf`` are no such."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def result_console(**settings: Any) -> Console:
    """The console for results; settings are :class:`rich.console.Console`'s."""
    console = Console(**settings)
    return console if console.is_terminal else Console(**settings, width=UNBOUNDED)


def shown(text: str) -> str:
    """A text of others in a line, for a console that takes markup."""
    return escape(in_a_line(text))


def run_click(command: click.Command, name: str, problems: tuple[type[Exception], ...]) -> NoReturn:
    """Runs a command and ends the process with its exit code.

    Args:
        name: of the command, in front of what is told on standard error.
        problems: exceptions that its user can put right: one line.
    """
    try:
        sys.exit(command.main(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as problem:
        print(problem.format_message())
        sys.exit(0)
    except click.Abort:
        sys.exit(INTERRUPTED_EXIT)
    except click.ClickException as problem:
        said = _said(problem, name)
    except problems as problem:
        said = str(problem)
    print(f"{name}: {in_a_line(said)}", file=sys.stderr)
    sys.exit(USER_EXIT)


def _said(problem: click.ClickException, name: str) -> str:
    """What click says of a problem and, of what names no way out, where the commands and operands are told."""
    said, context = problem.format_message(), getattr(problem, "ctx", None)
    if context is None or not (isinstance(problem, click.MissingParameter) or said.startswith("No such command")):
        return said
    asked = f"{name} {context.info_name}" if context.parent is not None else name
    return f"{said.removesuffix('.')}; '{asked} --help' tells what there is"
