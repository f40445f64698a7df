"""What ``onnx-superopt`` does once its words are read: a run of :mod:`rewriter.run.optimize`, and what is told of it."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from mugraph.console import result_console
from mugraph.files import Scratch, is_device, same_file
from mugraph.lines import in_a_line
from mugraph.starting import INTERRUPTED_EXIT
from rewriter.cli.flags import values_of_flags
from rewriter.cli.progress import log_to, watched
from rewriter.cli.summary import print_explanations, print_summary
from rewriter.cli.targets import check_targets
from rewriter.run.faults import FAULT_EXIT, USER_ERRORS, Fault, raises_faults
from rewriter.run.optimize import optimize
from rewriter.run.options import Options
from rewriter.run.outcome import Outcome
from rewriter.run.target import may_have_kernels
from rules_db.files import write_text
from rules_db.late import LateModule

__all__ = ["CommandWords", "run_command"]

_verify, _of_run = LateModule("rewriter.cli.verify"), LateModule("rewriter.report.of_run")  # few runs ask for them


@dataclass(frozen=True, slots=True)
class CommandWords:
    """The words of the command.

    Attributes:
        model, output: the files; ``None`` for the usual output.
        json_file, report: files to write beside it; ``None`` for none.
        verify: rebuild kernels instead.
        verbose: log decisions.
        written: what the flags of options were given, by field.
        began: the instant of :func:`time.monotonic` at which the budget began; ``None`` for when the run does.
    """

    model: Path
    output: Path | None
    json_file: Path | None
    report: Path | None
    verify: bool
    verbose: bool
    written: Mapping[str, Any]
    began: float | None = None

    @property
    def spent(self) -> float:
        """Seconds of the budget that are over by now: what is imported and read first takes of it, too."""
        return 0.0 if self.began is None else time.monotonic() - self.began


def run_command(words: CommandWords) -> None:
    """Does what was asked for. Where it fails the process ends with one line and an exit code."""
    console = result_console(
        stderr=words.output is not None and is_device(words.output) and same_file(words.output, "/dev/stdout")
    )
    try:
        if words.verify:
            sys.exit(_verify.print_verdicts(words.model, console))
        check_targets(words.model, words.output, {"--json": words.json_file, "--report": words.report}, words.written)
        options, aside = Options(**values_of_flags(Options, words.written)), Console(stderr=True)
        if words.verbose:
            log_to(aside)
        end = options.budget if options.keeps_to_budget else None
        with watched(aside, end, words.spent) as tell, Scratch() as scratch:
            if words.report is None:
                outcome = optimize(words.model, words.output, options, tell, words.spent)
            else:
                outcome = _reported(words, words.report, options, tell, scratch.path)
        if words.json_file is not None:
            write_text(words.json_file, outcome.to_json() + "\n")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except USER_ERRORS as problem:
        _tell(str(problem))
        sys.exit(2)
    except OSError as problem:  # no room for temporary files, say
        name = problem.filename or tempfile.gettempdir()
        _tell(f"{name}: {problem.strerror}; free space, or set TMPDIR to another directory")
        sys.exit(2)
    except Exception as problem:  # before the model was read, or while the original was written
        if raises_faults(bool(words.written["debug"])):
            raise
        _tell(f"{Fault.of(problem, 'running')}; nothing was written")
        sys.exit(FAULT_EXIT)
    if outcome.explanations:
        print_explanations(outcome.explanations, console)
    print_summary(outcome, console)
    if outcome.fault is not None:
        _tell(f"{outcome.fault}; the original was written")
        sys.exit(FAULT_EXIT)


def _tell(problem: str) -> None:
    """Says in one line on standard error what is wrong."""
    click.echo(f"onnx-superopt: {in_a_line(problem)}", err=True)


def _reported(words: CommandWords, report: Path, options: Options, tell: Callable[[str], None], folder: Path) -> Outcome:
    """A run with a page about it, whose libraries no other run needs.

    Args:
        folder: for what lasts as long as the run.
    """
    since = time.monotonic()
    before = _of_run.main_graph(words.model)
    after = 0.0 if before is None else _of_run.page_seconds(before) + time.monotonic() - since
    if options.kernels_folder is None and may_have_kernels(options):
        options = replace(options, kernels_folder=folder / "kernels")
    outcome = optimize(words.model, words.output, options, tell, words.spent, after)
    if before is not None:
        tell("writing the report")
        result = _of_run.main_graph(Path(outcome.output)) or before
        write_text(report, _of_run.run_page(outcome, before, result, options.rules, options.kernels_folder or folder))
    return outcome
