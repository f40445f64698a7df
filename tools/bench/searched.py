"""Kernels that a search found beside those that lowering builds, timed on one GPU.

    python -m tools.bench.searched cases FILE --models MODEL...      on any machine: the subprograms that are predicted to gain
    python -m tools.bench.searched programs FILE                     likewise: the programs of the Mirage paper, gain or not
    python -m tools.bench.searched run FILE --json RESULTS           on the GPU machine: compiles, checks, times, prints the table

``cases`` takes the subprograms of models of which the searched kernels are predicted to be better by 5 % or more
(``tools.bench.mugraphs --only beside``), and keeps the kernels of both sides. ``run`` compiles each under the schedules that look
best, compares it with its body in double precision, and times it; a side takes the sum of its kernels' times. RESULTS is written
after each case, and a run goes on where an earlier one stopped. Nothing but Triton and the CUDA driver is needed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import kernel_from_json, kernel_to_json
from mugraph.onnx import load
from mugraph.ops import traits_of
from mugraph.ops.traits import Movement
from rewriter.cost.devices import DEVICES, Device, get_device
from rewriter.cost.schedules import ranked
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.measure.inputs import kernel_inputs, reference_of
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.measure.trials import NotMeasured, best_of, compiled_trials
from rewriter.kernels.proposals import KernelProposals
from rewriter.kernels.triton.compile import Compiler
from rewriter.search.candidate import Candidate
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.search import KernelSearch, search
from rules_db.trust.interpreted import kernel_of_rule
from tools.bench.gpu import kernel_of_program
from tools.bench.mugraphs import SearchedBeside, beside, goal_of
from tools.mirage import MirageProgram
from tools.mirage import programs as mirage_programs

__all__ = ["cases_of", "main", "results_table", "timed_side"]

_SIDES = ("lowered", "searched")


def cases_of(path: Path, seconds: float, device: str) -> Iterator[dict[str, Any]]:
    """The subprograms of a model that are predicted to gain, with the kernels of both sides.

    Args:
        seconds: for the search of each.
    """
    for one in beside(path, seconds, device):
        if one.is_better:
            yield _case(path.stem, one)


def _case(model: str, one: SearchedBeside) -> dict[str, Any]:
    sides = {name: _side(candidate) for name, candidate in zip(_SIDES, (one.lowered, one.searched), strict=True)}
    return {"model": model, "subprogram": one.title, "sizes": dict(one.found.goal.sizes), **sides}


def program_case(program: MirageProgram, seconds: float, device: str) -> dict[str, Any]:
    """A program of the paper as a whole: the kernel that lowering builds, and the best of those that a search found by itself.

    Args:
        seconds: for the search.

    Raises:
        NotFusable: lowering has no kernel of the program, or the search found none.
    """
    goal, found = goal_of(program), get_device(device)
    outcome = search(goal, KernelSearch(EnumerationLimits(11, seconds=seconds)))
    known = KernelProposals(lambda: outcome.rules).known(load(program.model()).graph)
    kernels = [kernel for kernel in (kernel_of_rule(direction.rule) for direction, _ in known) if kernel is not None]
    if not kernels:
        raise NotFusable(f"{program.label}: the search found no kernel of the whole program")
    rivals = [kernel_of_program(program, found)[0]], kernels
    sides = {name: _best_kernel(side, found) for name, side in zip(_SIDES, rivals, strict=True)}
    return {"model": program.label, "subprogram": goal.name, "sizes": dict(goal.sizes), **sides}


def _best_kernel(kernels: Sequence[Kernel], device: Device) -> dict[str, Any]:
    """The kernel with the best of all schedules by the model, as a side."""
    priced = [(ranked(kernel, device, most=1)[0][0], number, kernel) for number, kernel in enumerate(kernels)]
    microseconds, _, best = min(priced)
    return {"predicted": microseconds, "kernels": [kernel_to_json(best)], "others": []}


def _side(candidate: Candidate) -> dict[str, Any]:
    """A candidate's kernels, as often as they are launched, and what else it runs."""
    graph = candidate.executed.graph
    nodes = [node for node in graph.nodes() if not graph.tables.constant[node.values[0]]]
    kernels = [kernel_to_json(kernel_of(node.attrs)) for node in nodes if node.op == KERNEL]
    others = [node.op for node in nodes if node.op != KERNEL and traits_of(node.op).movement is not Movement.VIEW]
    return {"predicted": candidate.cost, "kernels": kernels, "others": others}


def timed_side(side: Mapping[str, Any], device: str, compiler: Compiler, timer: KernelTimer, most: int) -> dict[str, Any]:
    """Microseconds and greatest error of the kernels of a side, or why there are none."""
    if side["others"]:
        return {"problem": f"runs {', '.join(side['others'])} of the runtime, too"}
    total, error, schedules = 0.0, 0.0, []
    for kernel in map(kernel_from_json, side["kernels"]):
        try:
            best = best_of(timer.measure(kernel, _trials(kernel, device, compiler, most), {}, _references(kernel)))
        except (NotMeasured, InvalidBlock) as problem:
            return {"problem": str(problem)}
        assert best.microseconds is not None
        total, error = total + best.microseconds, max(error, best.error)
        schedules.append([str(schedule) for schedule in best.schedules])
    return {"microseconds": total, "error": error, "schedules": schedules}


def _trials(kernel: Kernel, device: str, compiler: Compiler, most: int) -> Any:
    found = get_device(device)
    return compiled_trials(kernel, found, compiler, Architecture(found.architecture), {}, most)


def _references(kernel: Kernel) -> Any:
    return reference_of(kernel, kernel_inputs(kernel, {}))


def results_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Each case as predicted and as measured; the last line counts what is better by 5 % or more, and in how many models."""
    table = Table(
        "model", "subprogram", "predicted, µs", "measured, µs", "lowered / searched", "errors", title="lowered, searched"
    )
    better: list[str] = []
    measured = 0
    for case in results:
        sides = [case[name] for name in _SIDES]
        predicted = ", ".join(f"{side['predicted']:.2f}" for side in sides)
        problems = [f"{name}: {side['problem']}" for name, side in zip(_SIDES, sides, strict=True) if "problem" in side]
        row = [case["model"], escape(case["subprogram"]), predicted]
        if problems:
            table.add_row(*row, escape("; ".join(problems)), "", "")
            continue
        measured += 1
        ratio = sides[0]["microseconds"] / sides[1]["microseconds"]
        if ratio >= 1 / 0.95:
            better.append(case["model"])
        times = ", ".join(f"{side['microseconds']:.2f}" for side in sides)
        table.add_row(*row, times, f"{ratio:.2f}", ", ".join(f"{side['error']:.1e}" for side in sides))
    counted = f"{len(better)} of {measured} measured are better by 5 % or more, in {len(set(better))} models"
    table.add_row("all", counted, "", "", "", "")
    return table


@click.group(help=__doc__.split("\n")[0])
def main() -> None:
    pass


_device = click.option("--device", type=click.Choice(list(DEVICES)), default="h200", show_default=True)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--models", "models", multiple=True, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--seconds", default=2.0, show_default=True, help="For the search of each subprogram.")
@_device
def cases(file: Path, models: Sequence[Path], seconds: float, device: str) -> None:
    """Writes the cases of models, one a line; those of models that FILE has already stay."""
    known = _lines(file)
    for path in models:
        if path.stem not in {case["model"] for case in known}:
            found = list(cases_of(path, seconds, device))
            known += found
            print(f"{path.stem}: {len(found)} cases", flush=True)
            file.write_text("".join(json.dumps(case) + "\n" for case in known), encoding="utf-8")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="NAME:BATCH", help="Only these programs; all of batch 1 unless given.")
@click.option("--seconds", default=60.0, show_default=True, help="For the search of each program.")
@_device
def programs(file: Path, only: Sequence[str], seconds: float, device: str) -> None:
    """Writes the paper's programs with the best searched kernels beside the lowering's; names those that have none."""
    done = []
    for program in mirage_programs():
        if program.label in only or (not only and program.batch == 1):
            try:
                done.append(program_case(program, seconds, device))
            except NotFusable as problem:
                print(problem, flush=True)
                continue
            file.write_text("".join(json.dumps(case) + "\n" for case in done), encoding="utf-8")
            prices = ", ".join(f"{done[-1][side]['predicted']:.2f}" for side in _SIDES)
            print(f"{program.label}: {prices} µs predicted", flush=True)


@main.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "results", required=True, type=click.Path(path_type=Path), help="Where results are kept.")
@click.option("--most", default=24, show_default=True, help="Schedules of each kernel.")
@click.option("--seconds", default=math.inf, help="No case is begun after so long.")
@click.option("--workers", type=int, help="Processes that compile; one a core unless given.")
@_device
def run(file: Path, results: Path, most: int, seconds: float, workers: int | None, device: str) -> None:
    """Times the cases and prints the table."""
    done, ends = _lines(results), time.monotonic() + seconds
    known = {(case["model"], case["subprogram"]) for case in done}
    with Compiler(workers=workers) as compiler, KernelTimer() as timer:
        for case in _lines(file):
            if (case["model"], case["subprogram"]) in known or time.monotonic() > ends:
                continue
            for name in _SIDES:
                case[name] |= timed_side(case[name], device, compiler, timer, most)
            done.append(case)
            results.write_text("".join(json.dumps(each) + "\n" for each in done), encoding="utf-8")
    Console(soft_wrap=True).print(results_table(done))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
