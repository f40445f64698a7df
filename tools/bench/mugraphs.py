"""The figures of the search for kernels: ``python -m tools.bench.mugraphs [--only SECTION]``.

Sections, each runnable alone: ``table5``, RMSNorm and product with 5 to 11 block operators, with pruning and without (as table
5 of the Mirage paper); ``programs``, the paper's programs and MHA decoding from their plain ONNX form; ``beside``, what the
search finds for the subprograms of ``--models`` beside what lowering builds of them, predicted by the model of schedules;
``family``, what the rules of ``--rules``, found in another model of the family, cost when kernels are proposed for ``--models``.
Searches of the first two run in a process of their own each, on one core; seconds are the processor's.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mugraph.blocks.operator import KERNEL
from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.ops.interp import infer_types
from mugraph.starting import rare_collections
from mugraph.terms.shape import concrete
from mugraph.terms.term import substitute
from rewriter.cost.devices import DEVICES
from rewriter.cost.model import CostModel
from rewriter.cost.store import ProfileStore
from rewriter.kernels.proposals import PROVIDER, KernelProposals
from rewriter.search.candidate import Candidate
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rulegen.mugraphs.enumerate import EnumerationLimits, enumerate_values
from rulegen.mugraphs.goals import Goal, GoalProgram
from rulegen.mugraphs.lax import SubprogramBounds, goals_of
from rulegen.mugraphs.mining import mine_kernels
from rulegen.mugraphs.search import FoundKernels, KernelSearch, search
from rules_db.entries import KernelOutline, outlines_of
from rules_db.library import open_presumed
from rules_db.trust.certificate import Evidence, Trust
from rules_db.trust.rule import Rule
from tools.mirage import MirageProgram, plain_model, programs

_OPERATORS = range(5, 12)
_MOST_VALUES = 2_000_000
_MOST_SECONDS = 600.0


def goal_of(program: MirageProgram) -> Goal:
    """A program of the paper as one goal."""
    (goal,) = goals_of(load(program.model()).graph, SubprogramBounds())
    return goal


def _measured(label: str, operators: int, pruned: bool, kernels: bool) -> dict[str, Any]:
    """The figures of one search, in this process."""
    (program,) = [program for program in programs() if program.label == label]
    goal = goal_of(program)
    began = time.process_time()
    limits = EnumerationLimits(operators, _MOST_VALUES, _MOST_SECONDS, pruned)
    figures: dict[str, Any] = {}
    if kernels:
        outcome = search(goal, KernelSearch(limits))
        proved = sum(rule.certificate.evidence is Evidence.PROVED for rule in outcome.rules)
        figures = {"operators": outcome.operators, "values": outcome.states, "found": outcome.results, "proved": proved}
        figures["stopped"] = outcome.note
    else:
        found = enumerate_values(GoalProgram(goal), limits)
        figures = {"values": len(found.values), "found": len(found.results), "stopped": found.stopped}
    figures["seconds"] = time.process_time() - began
    figures["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def _fresh(*arguments: object) -> dict[str, Any]:
    """The figures of one search in a new process."""
    command = [sys.executable, "-m", "tools.bench.mugraphs", "--one", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _cell(figures: dict[str, Any]) -> str:
    stopped = f", stopped after {figures['stopped']}" if figures["stopped"] else ""
    return f"{figures['seconds']:.1f} s, {figures['megabytes']:.0f} MB, {figures['values']:,}, {figures['found']:,}{stopped}"


def table5(most: int) -> Table:
    """Processor time, peak memory, values made and values that compute the goal, by the most operators."""
    table = Table("operators", "pruned", "not pruned", title="RMSNorm + product: time, memory, values, values that are the goal")
    for operators in _OPERATORS:
        without = _cell(_fresh("RMSNorm+MatMul:1", operators, 0, 0)) if operators <= most else ""
        table.add_row(str(operators), _cell(_fresh("RMSNorm+MatMul:1", operators, 1, 0)), without)
    return table


def paper_programs(operators: int) -> Table:
    """The programs of the paper, each as one goal."""
    table = Table("program", "operators", "values", "found", "proved kernels", "s", "MB", "note")
    for program in programs():
        if program.batch == 1:
            f = _fresh(program.label, operators, 1, 1)
            counts = (f["operators"], f["values"], f["found"], f["proved"])
            table.add_row(program.name, *(f"{n:,}" for n in counts), f"{f['seconds']:.1f}", f"{f['megabytes']:.0f}", f["stopped"])
    return table


@dataclass(frozen=True, slots=True)
class SearchedBeside:
    """A subprogram as it stands, with what lowering builds, and with what a search found, too; at predicted prices."""

    found: FoundKernels
    plain: Candidate
    lowered: Candidate
    searched: Candidate

    @property
    def is_better(self) -> bool:
        """Whether what was searched is predicted to be better by 5 % or more."""
        return self.searched.cost < 0.95 * self.lowered.cost

    @property
    def title(self) -> str:
        return "; ".join(map(str, self.found.goal.roots))


def beside(path: Path, seconds: float, device: str) -> Iterator[SearchedBeside]:
    """What a search finds for the subprograms of a model that have kernels of both kinds."""
    how = KernelSearch(EnumerationLimits(11, seconds=seconds))
    for found in mine_kernels({path.stem: load(path).graph}, SubprogramBounds(), how):
        goal = found.goal
        inputs = {name: type_.at(goal.sizes) for name, type_ in goal.types.items()}
        if found.rules and all(concrete(type_.shape) for type_ in inputs.values()):
            body = tuple(substitute(root, {}, dims=dict(goal.sizes)) for root in goal.roots)
            types = infer_types(body, inputs)
            graph = load(plain_model(goal.name, inputs, body, [types[root] for root in body])).graph
            plain, lowered = _best(graph, (), device)
            yield SearchedBeside(found, plain, lowered, _best(graph, found.rules, device)[1])


def _best(graph: Graph, rules: Sequence[Rule | KernelOutline], device: str) -> tuple[Candidate, Candidate]:
    """A graph as it stands, and with the best kernels in turn."""
    costs = CostModel(ProfileStore(None, "predicted"), 20, {}, PROVIDER, -math.inf, DEVICES[device])
    matches = Matches.of((), RangeOracle({}), costs.provider, costs.opset)
    moves = Moves(matches, Prices(costs, matches.fusions))
    start = moves.start(graph)
    return start, min([start, *KernelProposals(lambda: rules).children(moves, start)], key=lambda candidate: candidate.cost)


def beside_table(models: Sequence[Path], seconds: float, device: str) -> Table:
    """By model: subprograms, those of which the search has the better kernel by 5 % or more, and these one by one."""
    table = Table("model", "subprogram", "plain, µs", "lowered, µs", "searched, µs", title=f"predicted for {device}")
    for path in models:
        every = list(beside(path, seconds, device))
        better = [one for one in every if one.is_better]
        table.add_row(path.stem, f"{len(every)} subprograms, {len(better)} better by 5 % or more", "", "", "")
        for one in better:
            times = (f"{each.cost:.2f}" for each in (one.plain, one.lowered, one.searched))
            table.add_row("", escape(one.title), *times)
    return table


def _proposed(path: Path, rules: Path | None, device: str) -> tuple[int, float, float, float]:
    """How many rules are read, the processor seconds of that and of proposing kernels, and the best predicted microseconds."""
    graph = load(path).graph
    begun = time.process_time()
    with rare_collections():  # as the command has
        found = [] if rules is None else outlines_of(open_presumed(str(rules), Trust.TESTED, print).naming(KERNEL))
        read = time.process_time()
        _, best = _best(graph, found, device)
    return len(found), read - begun, time.process_time() - read, best.cost


def family_table(models: Sequence[Path], rules: Path, device: str) -> Table:
    """By model: what rules that were checked before cost, each figure of a new process; the best is predicted."""
    open_presumed(str(rules), Trust.TESTED, print)
    table = Table(
        "model", "rules", "read, s", "propose, s", "without, s", "best, µs", "without, µs", title=f"predicted for {device}"
    )
    for path in models:
        figures = []
        for given in (None, rules):
            with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
                figures.append(fresh.submit(_proposed, path, given, device).result())
        (_, _, without, plain), (count, read, propose, best) = figures
        table.add_row(path.stem, str(count), f"{read:.2f}", f"{propose:.2f}", f"{without:.2f}", f"{best:.1f}", f"{plain:.1f}")
    return table


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("table5", "programs", "beside", "family"))
    parser.add_argument("--models", nargs="*", type=Path, default=[], help="for beside and family")
    parser.add_argument("--rules", type=Path, help="for family: what 'rulegen mine --kernels' found")
    parser.add_argument("--seconds", type=float, default=5.0, help="for a subprogram of these")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--unpruned", type=int, default=max(_OPERATORS), help="most operators without pruning")
    parser.add_argument("--operators", type=int, default=max(_OPERATORS), help="of the paper's programs, at most")
    parser.add_argument("--one", nargs=4, metavar=("PROGRAM", "OPERATORS", "PRUNED", "KERNELS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        label, operators, pruned, kernels = options.one
        print(json.dumps(_measured(label, int(operators), pruned == "1", kernels == "1")))
        return
    console = Console(soft_wrap=True)
    if options.only in (None, "table5"):
        console.print(table5(options.unpruned))
    if options.only in (None, "programs"):
        console.print(paper_programs(options.operators))
    if options.only in (None, "beside") and options.models:
        console.print(beside_table(options.models, options.seconds, options.device))
    if options.only in (None, "family") and options.models and options.rules is not None:
        console.print(family_table(options.models, options.rules, options.device))


if __name__ == "__main__":
    main(sys.argv[1:])
