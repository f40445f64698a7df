"""``onnx-superopt``: the command line around :func:`rewriter.run.optimize.optimize`."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from mugraph.console import result_console
from mugraph.files import Scratch, is_device, same_file
from mugraph.interrupts import INTERRUPTED_EXIT
from rewriter.cli.flags import GroupedCommand, GroupedOption, flags, values_of_flags
from rewriter.cli.progress import log_to, watched
from rewriter.cli.summary import print_explanations, print_summary
from rewriter.cli.targets import check_targets
from rewriter.cli.verify import print_verdicts
from rewriter.report.of_run import main_graph, run_page
from rewriter.run.clock import process_seconds
from rewriter.run.faults import FAULT_EXIT, USER_ERRORS, Fault, raises_faults
from rewriter.run.optimize import optimize
from rewriter.run.options import Options
from rewriter.run.target import may_have_kernels
from rules_db.files import write_text

__all__ = ["main", "run"]


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
    spent: float | None,
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
    console = result_console(stderr=output is not None and is_device(output) and same_file(output, "/dev/stdout"))
    try:
        if verify:
            sys.exit(print_verdicts(model, console))
        check_targets(model, output, {"--json": json_file, "--report": report}, written)
        options, aside = Options(**values_of_flags(Options, written)), Console(stderr=True)
        if verbose:
            log_to(aside)
        end = options.budget if options.keeps_to_budget else None
        with watched(aside, end, spent or 0.0) as tell, Scratch() as scratch:
            before = None if report is None else main_graph(model)
            if report is not None and options.kernels_folder is None and may_have_kernels(options):
                options = replace(options, kernels_folder=scratch.path / "kernels")
            outcome = optimize(model, output, options, tell, spent or 0.0)
            if report is not None and before is not None:
                tell("writing the report")
                folder = options.kernels_folder or scratch.path
                write_text(report, run_page(outcome, before, main_graph(Path(outcome.output)) or before, options.rules, folder))
        if json_file is not None:
            write_text(json_file, outcome.to_json() + "\n")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except USER_ERRORS as problem:
        click.echo(f"onnx-superopt: {problem}", err=True)
        sys.exit(2)
    except OSError as problem:  # no room for temporary files, say
        name = problem.filename or tempfile.gettempdir()
        click.echo(f"onnx-superopt: {name}: {problem.strerror}; free space, or set TMPDIR to another directory", err=True)
        sys.exit(2)
    except Exception as problem:  # before the model was read, or while the original was written
        if raises_faults(bool(written["debug"])):
            raise
        click.echo(f"onnx-superopt: {Fault.of(problem, 'running')}; nothing was written", err=True)
        sys.exit(FAULT_EXIT)
    if outcome.explanations:
        print_explanations(outcome.explanations, console)
    print_summary(outcome, console)
    if outcome.fault is not None:
        click.echo(f"onnx-superopt: {outcome.fault}; the original was written", err=True)
        sys.exit(FAULT_EXIT)


def run() -> None:
    """The command as a process of its own, whose budget began with it and ends with it.

    An interrupt at whatever moment is no failure. What the run has made is not taken apart, which takes a second on a
    busy machine: all files are closed by now.
    """
    try:
        code = main(obj=process_seconds(), standalone_mode=False) or 0
    except click.ClickException as problem:
        click.echo(f"onnx-superopt: {problem.format_message()}", err=True)
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
