"""``python -m tools.fuzz`` attacks the optimiser. Exit code 1: a defect was found."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from tools.fuzz import files, runs
from tools.fuzz.conformance import MODES, cases, examine_case, names
from tools.fuzz.console import attack, shared_options
from tools.fuzz.kernels import kernels_command
from tools.fuzz.kills import kills_command
from tools.fuzz.models import attack as random_models
from tools.fuzz.rules import rules_command, stores_command, texts_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attacks the optimiser with models and files that nobody chose."""


for _command in (kernels_command, kills_command, rules_command, stores_command, texts_command):
    main.add_command(_command)


@main.command()
@click.option(
    "--mode",
    type=click.Choice(MODES),
    multiple=True,
    default=MODES,
    help="Budget 0, cleaning up only, or a run that measures nothing.",
)
@click.option("--share", default=1, show_default=True, help="Run one of so many cases.")
@shared_options
def conformance(mode: tuple[str, ...], share: int, **options: Any) -> None:
    """Runs ONNX's conformance cases."""
    attack("conformance", [name for one in mode for name in names(one, share)], examine_case, **options)


@main.command()
@click.option("--count", default=400, show_default=True, help="How many models.")
@click.option("--seed", default=0, show_default=True, help="Seed of the models.")
@click.option("--clean", is_flag=True, help="Clean up only: outputs must be the same bit for bit.")
@shared_options
def models(count: int, seed: int, clean: bool, **options: Any) -> None:
    """Makes random models and compares what the optimiser writes with them."""
    numbers = random_models.names(seed, count, clean)
    attack("models", numbers, random_models.examine_number, originals=random_models.run_original, **options)


@main.command("files")
@click.option("--count", default=400, show_default=True, help="How many files.")
@click.option("--seed", default=0, show_default=True, help="Seed of the files.")
@shared_options
def files_command(count: int, seed: int, **options: Any) -> None:
    """Damages files of models and runs the command on them."""
    cases()  # loaded once, for all processes
    attack("files", files.names(seed, count), files.examine_file, originals=files.run_original, **options)


@main.command("runs")
@click.option("--count", default=200, show_default=True, help="How many runs.")
@click.option("--seed", default=0, show_default=True, help="Seed of the runs.")
@shared_options
def runs_command(count: int, seed: int, **options: Any) -> None:
    """Runs the command with random budgets on shared caches; interrupts some."""
    with tempfile.TemporaryDirectory(prefix="fuzz-caches-") as caches:
        attack("runs", runs.names(seed, count), partial(runs.examine_run, Path(caches)), **options)


if __name__ == "__main__":
    main()
