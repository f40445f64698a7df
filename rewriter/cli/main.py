"""``onnx-superopt``: the command line around :func:`rewriter.run.optimize.optimize`."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from mugraph.onnx import ModelError
from rewriter.cli.summary import print_explanations, print_summary
from rewriter.cost import DEVICES, ProfileError
from rewriter.kernels.triton.compile import Architecture, parse_architectures
from rewriter.reference import InputError
from rewriter.run.optimize import optimize
from rewriter.runtime import RuntimeLibraryError
from rewriter.runtime_env import ProviderError
from rewriter.search.strategy import BACKTRACKING, STRATEGIES
from rules_db.files import StoreError

__all__ = ["main", "parse_shapes"]


def parse_shapes(items: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Reads ``NAME=2x128`` items. Raises InputError for one that is not of that form."""
    shapes: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, _, text = item.rpartition("=")
        sizes = [part for part in text.split("x") if part]
        if not name or not all(part.isdecimal() and len(part) < 19 for part in sizes):
            raise InputError(f"--input {item}: write NAME=2x128, sizes joined by 'x' (NAME= for a scalar)")
        shapes[name] = tuple(map(int, sizes))
    return shapes


def _data(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as problem:
        raise InputError(f"--data {path}: not a readable .npz file of the model's inputs ({problem})") from None


def _architectures(names: str | None) -> tuple[Architecture, ...] | None:
    try:
        return None if names is None else parse_architectures(names)
    except ValueError as problem:
        raise InputError(f"--arch: {problem}") from None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write; default MODEL.superopt.onnx.")
@click.option("--provider", type=click.Choice(["cpu", "cuda", "auto"]), default="auto", show_default=True)
@click.option("--input", "inputs", multiple=True, metavar="NAME=2x128", help="Size of an input for measuring; repeatable.")
@click.option("--data", "data", multiple=True, type=click.Path(path_type=Path), help="An .npz file of real inputs to test with.")
@click.option("--rules", metavar="URL", help="Rule database or .rules file; default: the rules that the package ships.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For search and measurement; 0 writes the plain round trip.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(min=1.0),
    default=1.05,
    show_default=True,
    help="Explore candidates up to this factor of the best cost.",
)
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Candidates measured end to end.")
@click.option("--inputs-may-be-infinite", is_flag=True, help="Do not assume that model inputs are finite numbers.")
@click.option("--no-assume-attended", is_flag=True, help="Do not assume that masks let every position attend to something.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the summary to a file.")
@click.option("--explain", is_flag=False, flag_value="all", metavar="[RULE|NODE]", help="Say why rules did not fire.")
@click.option("--costs", type=click.Path(path_type=Path), metavar="FILE", help="Optimise for the device of this cost table.")
@click.option("--device", metavar="NAME", help=f"Optimise for a device by its roofline: {', '.join(DEVICES)}.")
@click.option("--deterministic", is_flag=True, help="Measure nothing: equal arguments write equal bytes.")
@click.option(
    "--strategy", type=click.Choice(list(STRATEGIES)), default=BACKTRACKING.name, show_default=True, help="How to search."
)
@click.option("--no-layer-reuse", is_flag=True, help="Search every one of equal layers instead of one for all.")
@click.option("--kernels/--no-kernels", default=True, show_default=True, help="Custom kernels, where the model is for a GPU.")
@click.option("--arch", metavar="sm_80,sm_90", help="Compile custom kernels for these; default: the device's own, and PTX.")
@click.option("--keep-kernels", type=click.Path(path_type=Path), metavar="DIR", help="Write source and picture of each kernel.")
@click.option("--no-verdict-cache", is_flag=True, help="Search and measure again, whatever was remembered.")
@click.version_option(package_name="onnx-superopt")
def main(
    model: Path,
    output: Path | None,
    provider: str,
    inputs: tuple[str, ...],
    data: tuple[Path, ...],
    rules: str | None,
    budget: float,
    alpha: float,
    top: int,
    inputs_may_be_infinite: bool,
    no_assume_attended: bool,
    json_file: Path | None,
    explain: str | None,
    costs: Path | None,
    device: str | None,
    deterministic: bool,
    strategy: str,
    no_layer_reuse: bool,
    kernels: bool,
    arch: str | None,
    keep_kernels: Path | None,
    no_verdict_cache: bool,
) -> None:
    """Writes an equivalent, faster MODEL, or the original where nothing is better."""
    console = Console(stderr=False)
    try:
        if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
            raise InputError(f"--json {json_file}: cannot be written there; name a file in an existing directory")
        with Console(stderr=True).status("starting") as status:
            outcome = optimize(
                model,
                output,
                provider=provider,
                shapes=parse_shapes(inputs),
                data=[_data(path) for path in data],
                rules=rules,
                budget=budget,
                alpha=alpha,
                top=top,
                assume_finite=not inputs_may_be_infinite,
                assume_attended=not no_assume_attended,
                explain=explain,
                use_verdicts=not no_verdict_cache,
                costs=costs,
                device=device,
                deterministic=deterministic,
                strategy=strategy,
                reuse_layers=not no_layer_reuse,
                kernels=kernels,
                architectures=_architectures(arch),
                kernels_folder=keep_kernels,
                progress=status.update,
            )
        if json_file is not None:
            try:
                json_file.write_text(outcome.to_json() + "\n")
            except OSError as problem:
                raise InputError(f"--json {json_file}: cannot be written ({problem.strerror})") from None
    except (ModelError, InputError, ProviderError, ProfileError, StoreError, RuntimeLibraryError) as problem:
        click.echo(f"onnx-superopt: {problem}", err=True)
        sys.exit(2)
    except OSError as problem:  # no room for temporary files, say
        name = problem.filename or tempfile.gettempdir()
        click.echo(f"onnx-superopt: {name}: {problem.strerror}; free space, or set TMPDIR to another directory", err=True)
        sys.exit(2)
    if outcome.explanations:
        print_explanations(outcome.explanations, console)
    print_summary(outcome, console)


if __name__ == "__main__":
    main()
