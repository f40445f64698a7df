"""``onnx-superopt``: what the command is given, and how its process ends. What it does then is in :mod:`rewriter.cli.running`."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from mugraph.lines import in_a_line
from mugraph.starting import INTERRUPTED_EXIT
from rewriter.cli.flags import GroupedCommand, GroupedOption, flags
from rewriter.run.clock import process_seconds
from rewriter.run.options import Options
from rules_db.late import LateModule

__all__ = ["main", "run"]

_running = LateModule("rewriter.cli.running")  # who asks for help needs nothing of it


@click.command(cls=GroupedCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write; default MODEL.superopt.onnx.",
    cls=GroupedOption,
    group="What is written",
)
@flags(Options)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write the summary to a file.",
    cls=GroupedOption,
    group="What is told",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Write a page about the run, with both graphs.",
    cls=GroupedOption,
    group="What is told",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Write nothing; rebuild the compiled kernels that MODEL holds and compare them. Exit code 0: all equal, "
    "1: some different, 2: some cannot be compared.",
    cls=GroupedOption,
    group="Custom kernels",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Log every decision on standard error.", cls=GroupedOption, group="What is told"
)
@click.version_option(package_name="onnx-superopt")
@click.pass_obj
def main(
    began: float | None,
    /,
    model: Path,
    output: Path | None,
    json_file: Path | None,
    report: Path | None,
    verify: bool,
    verbose: bool,
    **written: Any,
) -> None:
    """Writes an equivalent, faster MODEL, or the original where nothing is better."""
    _running.run_command(_running.CommandWords(model, output, json_file, report, verify, verbose, written, began))


def run() -> None:
    """The command as a process of its own, whose budget began with it and ends with it.

    An interrupt at whatever moment is no failure. What the run has made is not taken apart, which takes a second on a
    busy machine: all files are closed by now.
    """
    try:
        code = main(obj=time.monotonic() - process_seconds(), standalone_mode=False) or 0
    except click.ClickException as problem:
        click.echo(f"onnx-superopt: {in_a_line(problem.format_message())}", err=True)
        code = problem.exit_code
    except click.Abort:
        code = INTERRUPTED_EXIT
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
