"""The same model over and over, from caches in any state and with any budget: the worst and the best of what was written.

    python -m tools.bench.repeats MODELS --work DIR --runs 10 --budget 15 --budget 30 --budget 60 --json FILE

MODELS is a folder as of `tools.bench.gpu_models`. Each run is a process of the command, whose cache is drawn: empty, the one that
the model's earlier runs left, or the one that runs of other models left; so is its budget. Then all files that were written,
the original, the original once more and perhaps torch take turns as captured CUDA graphs in one set of rounds, so that what one
run wrote is compared with what another did and not with what that run measured of itself. A run that kept the original counts as
the original's time. Torch compiles before all runs, which nothing disturbs then. Caches stay in DIR/caches:
``python -m tools.ship.known`` makes what ships of them.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import onnx
from rich.console import Console
from rich.table import Table

from mugraph.onnx import load
from mugraph.terms.shape import shape_at
from rewriter.reference import bind_sizes, compare, random_inputs
from rewriter.run.timings import Timing, paired
from rewriter.runtime_env import environment
from tools.bench.gpu_models import AGAIN, BASELINE, chosen_models, open_torch, poisoned, take_turns
from tools.bench.gpu_runners import (
    CLOCKS,
    TORCH_MODES,
    Array,
    OnnxSpec,
    Remote,
    RunnerFailed,
    Spec,
    count_kernels,
    one_line,
    open_all,
)
from tools.bench.models import superopt
from tools.zoo.skeletons import fill, read_skeleton

EMPTY, OWN, OTHERS = "empty", "own", "others"
"""States of a cache: nothing in it, what the model's earlier runs left, what runs of other models left."""

TIMED = 6
"""How many random inputs are timed on."""


@dataclass(frozen=True, slots=True)
class RepeatedRun:
    """One run of the command.

    Attributes:
        cache: One of `EMPTY`, `OWN` and `OTHERS`.
        budget: Seconds.
        seconds: Of the whole command.
        improved: Whether it wrote another model.
        kernels: Custom kernels in what it wrote.
        message: What the command said.
        stages: Seconds by stage.
        tried: What came of each candidate that was tried end to end, in words.
    """

    cache: str
    budget: int
    seconds: float
    improved: bool
    kernels: int
    message: str
    stages: Mapping[str, float]
    tried: Sequence[str]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A model's runs, and each file beside the original in the same rounds.

    Attributes:
        runs: One an attempt, in order.
        timings: Of what each wrote; ``None`` where the original was kept.
        aa: The original beside itself.
        torch: Mode of torch to its timing beside the original.
        differs: Largest relative error of an output of what was written, against the original's.
        problems: What failed, by what it is.
    """

    model: str
    runs: Sequence[RepeatedRun]
    timings: Sequence[Timing | None]
    aa: Timing | None
    torch: Mapping[str, Timing]
    differs: float
    problems: Mapping[str, str]

    @property
    def ratios(self) -> list[float]:
        """Time over the original's, run by run."""
        return [1.0 if timing is None else timing.ratio for timing in self.timings]


def draw(generator: random.Random, count: int, budgets: Sequence[int], first: bool) -> list[tuple[str, int]]:
    """States of the cache and budgets of ``count`` runs: the first from an empty cache, the others from any.

    Args:
        first: whether no other model has run before, so that there is no cache of others.
    """
    states = [EMPTY, OWN] if first else [EMPTY, OWN, OTHERS]
    return [(generator.choice(states) if at else EMPTY, generator.choice(list(budgets))) for at in range(count)]


def run_all(
    name: str, source: Path, plan: Sequence[tuple[str, int]], caches: Path, arguments: Sequence[str]
) -> list[RepeatedRun]:
    """Runs the command as planned; results are SOURCE.NUMBER.onnx. Caches of runs from an empty one are kept by number."""
    own, others = caches / f"{name}.own", caches / "others"
    runs = []
    for number, (state, budget) in enumerate(plan):
        cache = {EMPTY: caches / f"{name}.{number}", OWN: own, OTHERS: caches / f"{name}.{number}"}[state]
        if state == OTHERS and others.exists():
            shutil.copytree(others, cache)
        written = source.with_suffix(f".{number}.onnx")
        try:
            made = superopt(["--budget", str(budget), *arguments], cache, twice=False)(source, written)
            summary = (made.details or {})["summary"]
            stages = {stage: round(seconds, 1) for stage, seconds in summary["seconds"].items()}
            tried = [candidate["fate"] for candidate in summary["tried"]]
            kernels = count_kernels(onnx.load(written, load_external_data=False))[0]
            runs.append(
                RepeatedRun(
                    state, budget, round(made.seconds, 1), summary["improved"], kernels, summary["message"], stages, tried
                )
            )
        except Exception as problem:  # one run must not lose the others
            runs.append(RepeatedRun(state, budget, math.nan, False, 0, one_line(problem), {}, []))
        if not own.exists() and cache.exists():
            shutil.copytree(cache, own)
    if own.exists():
        shutil.rmtree(others, ignore_errors=True)
        shutil.copytree(own, others)
    return runs


def time_all(
    name: str,
    source: Path,
    runs: Sequence[RepeatedRun],
    torch: Mapping[str, Remote | RunnerFailed],
    provider: str,
    rounds: int,
    block: float,
) -> Repeated:
    """Times what all runs wrote, the original twice, and torch, in turns on the same inputs."""
    model = load(source)
    sizes = bind_sizes(model, {})[0]
    feeds = [random_inputs(model, sizes, seed) for seed in range(TIMED)]
    types = [type_ for value in model.graph.outputs if (type_ := model.graph.type(value)) is not None]
    shapes = [shape_at(type_, sizes) for type_ in types]
    outputs = [poisoned(shape, type_.dtype.numpy()) for shape, type_ in zip(shapes, types, strict=True) if shape is not None]
    written = {str(n): source.with_suffix(f".{n}.onnx") for n, run in enumerate(runs) if run.improved}
    specs: dict[str, Spec] = {
        key: OnnxSpec(path, provider, feeds[0], outputs, CLOCKS[0])
        for key, path in {BASELINE: source, AGAIN: source, **written}.items()
    }
    problems: dict[str, str] = {}
    with ExitStack() as stack:
        runners: dict[str, Remote] = {}
        for key, remote in {**open_all(specs, 120, 4), **torch}.items():
            if isinstance(remote, Remote):
                stack.callback(remote.close)
                runners[key] = remote
                if remote.note:
                    problems[key] = remote.note
            else:
                problems[key] = str(remote)
        differs = _differences(runners, feeds[0], written)
        times, failed = take_turns(runners, feeds, rounds, block)
        problems |= failed
    against = {key: paired(times[BASELINE], times[key]) for key in times if key != BASELINE} if BASELINE in times else {}
    return Repeated(
        name,
        runs,
        [against.get(str(number)) if run.improved else None for number, run in enumerate(runs)],
        against.get(AGAIN),
        {mode: against[mode] for mode in torch if mode in against},
        differs,
        problems,
    )


def _differences(runners: Mapping[str, Remote], feed: Mapping[str, Array], written: Mapping[str, Path]) -> float:
    """Largest relative L2 error of an output of a file that was written, against the original's in its own precision."""
    outputs: dict[str, list[Array]] = {}
    for key in (BASELINE, *written):
        if key in runners:
            runners[key].ask("load", feed)
            outputs[key] = runners[key].ask("outputs")
    wanted = outputs.pop(BASELINE)
    errors = [compare(a, w).relative_l2 for found in outputs.values() for a, w in zip(found, wanted, strict=True)]
    return max(errors, default=0.0)


def table_of(results: Sequence[Repeated]) -> Table:
    """One row a model: the original in milliseconds, times over it of the best, the median and the worst run, and of torch."""
    table = Table(title="time over the original's", title_justify="left")
    for column in (
        "model",
        "ms",
        "A/A",
        "runs",
        "undecided",
        "best",
        "median",
        "worst",
        "best / worst",
        "s, most",
        "differs",
        "torch",
    ):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for result in results:
        ratios = sorted(result.ratios)
        table.add_row(
            result.model,
            f"{result.aa.original:.3f}" if result.aa else "",
            f"{result.aa.ratio:.3f}" if result.aa else "",
            str(len(ratios)),
            str(sum(not run.improved for run in result.runs)),
            f"{ratios[0]:.3f}",
            f"{statistics.median(ratios):.3f}",
            f"{ratios[-1]:.3f}",
            f"{ratios[0] / ratios[-1]:.3f}",
            f"{max(run.seconds for run in result.runs):.1f}",
            f"{result.differs:.1e}",
            ", ".join(f"{mode} {timing.ratio:.3f}" for mode, timing in result.torch.items()),
        )
    return table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where models and caches are kept.")
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--only", multiple=True, help="A model of MODELS; repeatable. Default: all.")
@click.option("--runs", default=10, show_default=True, help="Runs of each model.")
@click.option(
    "--budget", "budgets", multiple=True, type=int, default=(15, 30, 60), show_default=True, help="Seconds; repeatable."
)
@click.option("--seed", default=0, show_default=True, help="Of the states and budgets that are drawn.")
@click.option("--option", "options", multiple=True, help="Another argument of onnx-superopt; repeatable.")
@click.option("--torch", "modes", multiple=True, type=click.Choice(list(TORCH_MODES)), help="torch beside them; repeatable.")
@click.option("--torch-seconds", default=240.0, show_default=True, help="Time limit of a torch process until it is compiled.")
@click.option("--torch-jobs", default=1, show_default=True, help="Models that torch compiles at a time, before any run.")
@click.option("--rounds", default=30, show_default=True, help="Rounds of timing.")
@click.option("--block", default=15.0, show_default=True, help="Milliseconds of replays that each file gets in a round.")
@click.option("--seconds", default=math.inf, help="No model is begun after so long.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Written anew after each model.")
def main(
    models: Path,
    work: Path,
    provider: str,
    only: tuple[str, ...],
    runs: int,
    budgets: tuple[int, ...],
    seed: int,
    options: tuple[str, ...],
    modes: tuple[str, ...],
    torch_seconds: float,
    torch_jobs: int,
    rounds: int,
    block: float,
    seconds: float,
    json_file: Path | None,
) -> None:
    """Runs onnx-superopt on the models in MODELS again and again, and compares what was written."""
    console, began = Console(width=200), time.monotonic()
    caches = work / "caches"
    results: list[Repeated] = []
    names = chosen_models(models, only)
    torch = open_torch(models, names, modes, provider, CLOCKS[0], torch_seconds, torch_jobs) if modes else {}
    for name in names:
        if time.monotonic() - began > seconds:
            console.print(f"{name}: not begun: out of time")
            continue
        folder = work / name
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / f"{name}.onnx"
        if (models / f"{name}.onnx").exists():
            shutil.copyfile(models / f"{name}.onnx", source)
        else:
            onnx.save(fill(read_skeleton(models / f"{name}.skeleton")), source)
        plan = draw(random.Random(f"{seed} {name}"), runs, budgets, not (caches / "others").exists())
        done = run_all(name, source, plan, caches, ["--provider", provider, *options])
        results.append(time_all(name, source, done, {mode: torch.pop((name, mode)) for mode in modes}, provider, rounds, block))
        for number, run in enumerate(done):
            timing = results[-1].timings[number]
            told = "original" if timing is None else f"{timing.ratio:.3f} [{timing.low:.3f}, {timing.high:.3f}]"
            console.print(
                f"{name} {number}: {run.cache}, {run.budget} s, took {run.seconds} s: {told}, {run.kernels} kernels; "
                f"{run.message} {' | '.join(run.tried)} {', '.join(f'{stage} {second}' for stage, second in run.stages.items())}"
            )
        for key, problem in results[-1].problems.items():
            console.print(f"{name} {key}: {problem}")
        if json_file is not None:
            record = {"environment": environment(provider), "models": [_plain(result) for result in results]}
            json_file.write_text(json.dumps(record, indent=1))
    for remote in torch.values():
        if isinstance(remote, Remote):
            remote.close()
    if results:
        console.print(table_of(results))


def _plain(result: Repeated) -> dict[str, Any]:
    record = asdict(result)
    for timing in (*record["timings"], record["aa"], *record["torch"].values()):
        if timing is not None:
            del timing["ratios"]
    return record


if __name__ == "__main__":
    main()
