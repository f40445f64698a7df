"""``python -m tools.fuzz`` attacks the optimiser. Exit code 1: a defect was found."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from rewriter.cost import DEVICES, default_device
from rewriter.runtime import RuntimeLibraryError, library_path
from rewriter.runtime_env import environment
from tools.fuzz import files, runs
from tools.fuzz.conformance import MODES, cases, examine_case, names
from tools.fuzz.console import attack, shared_options
from tools.fuzz.diffs import diffs_command
from tools.fuzz.kernels import kernels_command
from tools.fuzz.kills import kills_command
from tools.fuzz.models import attack as random_models
from tools.fuzz.rules import rules_command, stores_command, texts_command
from tools.fuzz.running import CannotRun
from tools.fuzz.sessions import self_test


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Attacks the optimiser with models and files that nobody chose."""


for _command in (diffs_command, kernels_command, kills_command, rules_command, stores_command, texts_command):
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
@click.option("--cpu-kernels", is_flag=True, help="With custom kernels in C, which run through the library.")
@click.option("--device", help="With custom kernels for this GPU, which are compiled; their bodies run on the CPU.")
@click.option("--interpret", is_flag=True, help="Interpret the kernels for --device and compare them with their bodies.")
@click.option(
    "--provider",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: with custom kernels for the GPU of this machine, or for --device, which run there through the library.",
)
@shared_options
def models(
    count: int,
    seed: int,
    clean: bool,
    cpu_kernels: bool,
    device: str | None,
    interpret: bool,
    provider: str,
    only: str | None,
    **options: Any,
) -> None:
    """Makes random models and compares what the optimiser writes with them."""
    asked = _mode(clean, cpu_kernels, device, interpret, provider)
    mode = asked if only is None else random_models.Mode.of(only.split()[2:])
    if mode.provider not in (None, random_models.INTERPRETER):
        words, fenced = _seen(mode.provider)
        click.echo(words)
        mode = replace(mode, memory="fenced" if fenced else None)
        options["memory"] += _LIBRARIES if mode.provider == "cuda" else 0
    attack(
        "models",
        random_models.names(seed, count, mode),
        random_models.examine_number,
        originals=random_models.run_original,
        only=only,
        **options,
    )


_LIBRARIES = 12 << 10
"""MiB that CUDA's libraries may have resident beside a case."""


def _mode(clean: bool, cpu_kernels: bool, device: str | None, interpret: bool, provider: str) -> random_models.Mode:
    """What options ask for. Raises UsageError where they contradict each other."""
    if clean + cpu_kernels + (device is not None or provider == "cuda") > 1:
        raise click.UsageError("--clean, --cpu-kernels, and --device or --provider cuda exclude each other")
    if device is not None and (device not in DEVICES or DEVICES[device].provider != "cuda"):
        raise click.UsageError(f"--device {device}: no such GPU; known are {', '.join(DEVICES)}")
    if interpret and (device is None or provider != "cpu"):
        raise click.UsageError("--interpret wants the --device that kernels are for, and no provider")
    if clean or cpu_kernels:
        return random_models.Mode("clean") if clean else random_models.Mode("c", "cpu")
    if provider == "cuda":
        return random_models.Mode(device or default_device("cuda", environment("cuda")).name, "cuda")
    return random_models.Mode(device or "cpu", random_models.INTERPRETER if interpret else None)


def _seen(provider: str) -> tuple[str, bool]:
    """What was seen of a provider, and whether memory is fenced there. Raises ClickException where nothing runs there."""
    try:
        library_path()
        return self_test(provider)
    except (CannotRun, RuntimeLibraryError) as problem:
        raise click.ClickException(str(problem)) from None


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
