"""``superopt-costs``: the measured costs as files: fill, list, export, import and merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from mugraph.console import FiniteRange, result_console, run_click, shown
from mugraph.lines import counted
from rewriter.cli.flags import flags, values_of_flags
from rewriter.cli.progress import watched
from rewriter.cost import CostTable, ProfileError, ProfileStore, merge_tables, read_table, write_table
from rewriter.cost.store import default_profile_path
from rewriter.run.faults import USER_ERRORS
from rewriter.run.options import Options
from rewriter.runtime_env import environment
from rules_db.late import LateModule

__all__ = ["main"]

_filling = LateModule("rewriter.cli.filling")  # no other command searches


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onnx-superopt")
def cli() -> None:
    """Measured operator costs: fill a cache, share it as a table, use it with 'onnx-superopt --costs'."""


def _out() -> Console:
    return result_console(highlight=False, soft_wrap=True)


def _provider_of(name: str) -> str:
    """The provider that an environment ends with."""
    return name.rsplit("| ", 1)[-1]


@cli.command("list")
def list_command() -> None:
    """Lists the environments whose costs are known here."""
    store = ProfileStore(default_profile_path(), "")
    table = Table("environment", "costs")
    for name, count in store.environments().items():
        table.add_row(shown(name), f"{count:,}")
    store.close()
    _out().print(table)


@cli.command("fill")
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags(Options, only=("provider", "shapes"))
@click.option("--rules", metavar="URL", help="Rules whose results are measured too; default: the shipped rules.")
@click.option("--budget", type=FiniteRange(min=1), default=120.0, show_default=True, help="Seconds for each model.")
def fill_command(models: tuple[Path, ...], rules: str | None, budget: float, **written: Any) -> None:
    """Measures the operators that models have.

    Those of MODELS, and those that rewriting them leads to.
    """
    lines = _filling.fill(models, rules, budget, Options(**values_of_flags(Options, written)))
    for path in models:
        with watched(Console(stderr=True), budget) as tell:
            tell(f"measuring the operators of {path}")
            line = next(lines)
        _out().print(shown(line))


@cli.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--environment", "name", help="Which one, as 'list' shows it; default: this machine's CPU.")
def export_command(file: Path, name: str | None) -> None:
    """Writes the costs of one environment as a table."""
    name = name or environment("cpu")
    store = ProfileStore(default_profile_path(), name)
    costs, schedules = dict(store.costs), dict(store.schedules)
    store.close()
    if not costs:
        raise ProfileError(f"no costs are known of '{name}'; 'superopt-costs list' shows the environments")
    version = next((p.removeprefix("onnxruntime ") for p in name.split(" | ") if p.startswith("onnxruntime ")), ort.__version__)
    write_table(CostTable(name, version, _provider_of(name), costs, schedules), file)
    _out().print(f"{counted(len(costs), 'cost')} of {shown(name)} in {shown(str(file))}")


@cli.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def import_command(files: tuple[Path, ...]) -> None:
    """Enters tables into the cache, each under its own environment."""
    for table in [read_table(file) for file in files]:
        store = ProfileStore(default_profile_path(), table.environment)
        for signature, microseconds in table.costs.items():
            before = store.get(signature)
            if before is None or microseconds < before:
                store.put(signature, microseconds)
                if signature in table.schedules:
                    store.put_schedules(signature, table.schedules[signature])
        store.close()
        _out().print(f"{counted(len(table.costs), 'cost')} of {shown(table.environment)}")


@cli.command("merge")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The table to write.")
def merge_command(files: tuple[Path, ...], output: Path) -> None:
    """Merges tables of one environment; the smaller of two times stays."""
    merged = merge_tables([read_table(file) for file in files])
    write_table(merged, output)
    _out().print(f"{counted(len(merged.costs), 'cost')} of {shown(merged.environment)} in {shown(str(output))}")


def main() -> None:
    """The console script: one line and exit code 2 for whatever the user can put right."""
    run_click(cli, "superopt-costs", USER_ERRORS)
