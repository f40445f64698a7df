"""``superopt-diff``: the command line around :func:`modeldiff.compare.compare_models`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from modeldiff.compare import Equality, ModelComparison, compare_models
from modeldiff.limits import RUN_SECONDS
from modeldiff.telling import as_json, as_page, in_brief, region_lines, sentence, tested_on
from mugraph.console import FOLDED, FiniteRange, result_console, run_click, shown
from mugraph.files import is_one_file
from mugraph.onnx.parse import files_of
from rewriter.cli.progress import log_to, watched
from rewriter.run.faults import FAULT_EXIT, USER_ERRORS
from rewriter.run.parse import parse_shapes
from rules_db.files import check_writable, write_text

__all__ = ["command", "main"]

_EXITS = {Equality.PROVED: 0, Equality.TESTED: 0, Equality.DIFFERENT: 1, Equality.UNDECIDED: FAULT_EXIT}
_SHOWN = 20
"""Changes that are printed, those that differ first."""
_COLOURS = {Equality.PROVED: "green", Equality.TESTED: "green", Equality.UNDECIDED: "yellow", Equality.DIFFERENT: "red"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--input", "shapes", multiple=True, metavar="NAME=2x128", help="Size of an input for testing; repeatable.")
@click.option("--tolerance", type=FiniteRange(min=0), help="Relative error below which tensors are equal; default: by type.")
@click.option("--budget", type=FiniteRange(min=0), default=60.0, show_default=True, help="Seconds in which proofs are begun.")
@click.option(
    "--run-limit",
    type=FiniteRange(min=0, min_open=True),
    default=RUN_SECONDS,
    show_default=True,
    help="Seconds that a run in onnxruntime may take: a Loop need not end.",
)
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE.html", help="Write a page with both graphs.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the whole comparison to a file.")
@click.option("-v", "--verbose", is_flag=True, help="Log what goes on.")
@click.version_option(package_name="onnx-superopt")
def command(
    before: Path,
    after: Path,
    shapes: tuple[str, ...],
    tolerance: float | None,
    budget: float,
    run_limit: float,
    report: Path | None,
    json_file: Path | None,
    verbose: bool,
) -> None:
    """Says of two models, whoever made them, what differs, and whether that is proved equal, tested equal or different.

    Exit code 0: proved or tested equal; 1: they differ; 2: bad input; 3: undecided.
    """
    aside = Console(stderr=True)
    if verbose:
        log_to(aside)
    if report is not None and json_file is not None and is_one_file(report, json_file):
        raise click.UsageError(f"--json and --report name one file, {report}; name two")
    for file in filter(None, (report, json_file)):
        check_writable(file, [*files_of(before), *files_of(after)] if file.exists() else ())
    with watched(aside) as tell:
        comparison = compare_models(
            before,
            after,
            parse_shapes(shapes),
            tolerance=tolerance,
            seconds=budget,
            run_seconds=run_limit,
            progress=tell,
        )
        if report is not None:
            tell("writing the report")
            write_text(report, as_page(comparison))
    if json_file is not None:
        write_text(json_file, json.dumps(as_json(comparison), indent=2) + "\n")
    _print(comparison, result_console(highlight=False, soft_wrap=True))
    sys.exit(_EXITS[comparison.verdict])


def _print(comparison: ModelComparison, console: Console) -> None:
    weight = list(Equality)
    regions = sorted(comparison.regions, key=lambda region: -weight.index(region.verdict))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("change", overflow="fold", max_width=FOLDED)
    table.add_column("verdict")
    for region in regions[:_SHOWN]:
        table.add_row(shown(in_brief(comparison, region)), f"[{_COLOURS[region.verdict]}]{region.verdict}[/]")
    if regions:
        console.print(table)
    if len(regions) > _SHOWN:
        console.print(f"[dim]{len(regions) - _SHOWN} more changes are in the files of --json and --report[/]")
    for region in regions:
        for line in region_lines(comparison, region) if region.differences or region.verdict is Equality.UNDECIDED else ():
            said = shown(line.removeprefix(f"{region.verdict}: "))
            console.print(f"[{_COLOURS[region.verdict]}]{region.verdict}[/]: {said}")
    for output in comparison.outputs:
        if output.run is not None:
            console.print(f"[dim]output {shown(output.name)}: {output.run.relative_l2:.1e} apart in onnxruntime[/]")
    for note in filter(None, (tested_on(comparison), *comparison.notes)):
        console.print(f"[dim]note: {shown(note)}[/]")
    console.print(f"[{_COLOURS[comparison.verdict]}]{shown(sentence(comparison))}[/]")


def main() -> None:
    """The console script: one line and exit code 2 for whatever the user can put right."""
    run_click(command, "superopt-diff", USER_ERRORS)
