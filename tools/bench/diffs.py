"""superopt-diff on what other optimisers make of models: how many of their edits get a verdict, which planted faults are found.

python -m tools.zoo export --small                       # small transformers and CNNs, as torch.onnx writes them
python -m tools.bench.diffs zoo_models/small_*.onnx [--peers onnxruntime,onnxslim] [--faults 5] [--work DIR]

An edit is a region in which the two models differ. The tools come with the extra ``bench``.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import click
import numpy as np
import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from modeldiff.compare import Equality, ModelComparison, compare_models
from mugraph.onnx import ModelError, load
from rewriter import optimize
from rewriter.reference import InputError, bind_sizes, compare, random_inputs
from rewriter.runtime_env import RuntimeFailure, new_session
from tools.bench.diff_faults import KINDS, planted
from tools.bench.peers import PeerFailed
from tools.bench.peers import run as run_peer

OURS = "onnx-superopt"
PEERS = ("onnxruntime", "onnxslim", "onnxsim", "onnxscript", OURS)
NAMED, WITHIN, UNDECIDED, EQUAL, NONE = "named", "within its region", "undecided", "called equal", "none on any input"
_LONG = 400
"""A size beyond the place from which on a fault shows."""
_APART = 1e-5
"""Relative error from which on outputs differ."""


def optimised(peer: str, source: Path, target: Path) -> None:
    """Writes what a peer makes of a model. Raises PeerFailed."""
    if peer == OURS:
        optimize(source, target, deterministic=True, device="cpu")
        return
    if peer != "onnxruntime":
        run_peer(Path(sys.executable), peer, source, target)
        return
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(target)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def finds(comparison: ModelComparison, name: str) -> str:
    """What a comparison says of a result that is wrong: `NAMED`, also by the nodes that read another value in its place; `WITHIN`
    the one region that differs where its node has no counterpart, ``elsewhere``, `UNDECIDED` or `EQUAL`."""
    if comparison.verdict is not Equality.DIFFERENT:
        return UNDECIDED if comparison.verdict is Equality.UNDECIDED else EQUAL
    after, before = comparison.pairing.after, comparison.pairing.before
    different = [region for region in comparison.regions if region.differences]
    if not different:  # it does not run on some inputs
        return "elsewhere"
    pairs = [(difference.after, difference.before) for region in different for difference in region.differences]
    sides = [
        [None if value is None else side.name(value) for value in values]
        for side, values in zip((after, before), zip(*pairs, strict=True), strict=True)
    ]
    if [name] in sides:
        return NAMED
    makers = [None if value is None else after.maker(value) for value, _ in pairs]
    if all(node is not None and name in map(after.name, node.inputs) for node in makers):
        return NAMED
    results = [{after.name(value) for node in region.after for value in node.values} for region in different]
    return WITHIN if len(results) == 1 and name in results[0] else "elsewhere"


@dataclass(slots=True)
class PeerTally:
    """What comparing models with what a tool made of them came to.

    Attributes:
        models: how many were compared.
        verdicts: of the edits, how many have each.
        faults: that were planted, how many were named, seen or missed.
        failed: models of which the tool made none, or that cannot be compared, with why.
        seconds: that the comparisons took.
    """

    models: int = 0
    verdicts: Counter[Equality] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def decided(self) -> float:
        """Of the edits, the share that have a verdict; of none, all."""
        total = self.verdicts.total()
        return 1 - self.verdicts[Equality.UNDECIDED] / total if total else 1.0


def table(tallies: Mapping[str, PeerTally]) -> Table:
    """One row for each tool, and one for all of them."""
    heads = "with a verdict", "faults named", "region named", UNDECIDED, EQUAL, "seconds"
    rows = Table("tool", "models", "edits", *map(str, Equality), *heads)
    for column in rows.columns[1:]:
        column.justify = "right"
    everything = PeerTally()
    for tally in tallies.values():
        everything.models += tally.models
        everything.verdicts += tally.verdicts
        everything.faults += tally.faults
        everything.seconds += tally.seconds
    for peer, tally in {**tallies, "all": everything}.items():
        counts = (str(tally.verdicts[verdict]) for verdict in Equality)
        total = tally.faults.total() - tally.faults[NONE]
        faults = [f"{tally.faults[NAMED]} of {total}", f"{tally.faults[NAMED] + tally.faults[WITHIN]} of {total}"]
        faults += [str(tally.faults[fate]) for fate in (UNDECIDED, EQUAL)]
        edits, share = str(tally.verdicts.total()), f"{tally.decided:.1%}"
        rows.add_row(peer, str(tally.models), edits, *counts, share, *faults, f"{tally.seconds:.0f}")
    return rows


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--peers", default=",".join(PEERS), show_default=True)
@click.option("--faults", default=3, show_default=True, help="Planted in what each peer writes, of other kinds each time.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/diffs"), show_default=True)
@click.option("--budget", default=30.0, show_default=True, help="Seconds for proofs of one comparison.")
def main(models: tuple[Path, ...], peers: str, faults: int, work: Path, budget: float) -> None:
    """Prints a line for each model and peer, with why edits are undecided or different, and a table by peer."""
    work.mkdir(parents=True, exist_ok=True)
    tallies = {peer: PeerTally() for peer in peers.split(",")}
    kinds = cycle(KINDS)
    for source in models:
        for peer, tally in tallies.items():
            target = work / f"{source.stem}.{peer}.onnx"
            try:
                if not target.exists():
                    optimised(peer, source, target)
                began = time.perf_counter()
                comparison = compare_models(source, target, seconds=budget)
            except (PeerFailed, InputError, ModelError) as problem:
                tally.failed[source.stem] = str(problem)
                print(f"{source.stem:24} {peer:12} failed: {problem}", flush=True)
                continue
            seconds = time.perf_counter() - began
            verdicts = Counter(region.verdict for region in comparison.regions)
            tally.models, tally.seconds = tally.models + 1, tally.seconds + seconds
            tally.verdicts += verdicts
            listed = ", ".join(f"{verdicts[v]} {v}" for v in Equality if verdicts[v]) or "no changes"
            print(f"{source.stem:24} {peer:12} {comparison.verdict:14} {seconds:5.1f} s  {listed}", flush=True)
            for line in _open_points(comparison):
                print(f"    {line}", flush=True)
            planting = islice(kinds, len(KINDS)) if comparison.verdict is not Equality.UNDECIDED else ()
            found = (_planted_and_found(source, target, work / "planted.onnx", kind) for kind in planting)
            for fault in islice(filter(None, found), faults):  # what does not run has none
                tally.faults[fault.found] += 1
                print(f"    fault: {fault.kind} at '{fault.name}': {fault.found}", flush=True)
                for line in fault.lines if fault.found not in (NAMED, WITHIN) else ():
                    print(f"        {line}", flush=True)
    Console(width=160).print(table(tallies))


def _open_points(comparison: ModelComparison) -> Iterator[str]:
    """What keeps edits from being equal."""
    after = comparison.pairing.after
    for region in comparison.regions:
        if region.verdict is Equality.UNDECIDED:
            nodes = ", ".join(after.label(node) for node in region.after[:3])
            why = "; ".join(region.reasons) or "nothing is known to equal what they compute"
            yield f"undecided: {len(region.before)} nodes before, {len(region.after)} after ({nodes}): {why}"
        for difference in region.differences:
            yield f"different at '{after.name(difference.after)}': {difference.words}"
    yield from comparison.notes


@dataclass(frozen=True, slots=True)
class _PlantedFault:
    """A fault that was planted.

    Attributes:
        name: of the result that was made wrong.
        found: what came of it.
        lines: what the comparison says.
    """

    kind: str
    name: str
    found: str
    lines: tuple[str, ...]


def _planted_and_found(source: Path, target: Path, path: Path, kind: str) -> _PlantedFault | None:
    """Plants a fault and looks for it; ``None`` where there is no place for one, or nothing that runs comes of it."""
    model = onnx.load(target)
    name = planted(model, kind, seed=0)
    if name is None:
        return None
    onnx.save(model, path)
    try:
        is_one = differs(target, path)
        comparison = compare_models(source, path, seconds=0)
    except (ModelError, InputError, RuntimeFailure):
        return None
    found = finds(comparison, name)
    return _PlantedFault(
        kind, name, NONE if found == EQUAL and not is_one else found, (str(comparison.verdict), *_open_points(comparison))
    )


def differs(right: Path, wrong: Path) -> bool:
    """Whether onnxruntime gives other outputs for two models, on inputs of several seeds, scales and sizes.

    Raises:
        RuntimeFailure: it does not run them on any.
    """
    model = load(right)
    sizes, _ = bind_sizes(model, {})
    longer = [{**sizes, name: _LONG} for name in sizes]
    feeds = [random_inputs(model, chosen, seed, scale) for seed, scale, chosen in ((31, 1.0, sizes), (32, 100.0, sizes))]
    feeds += [random_inputs(model, chosen, 33) for chosen in longer]
    sessions = [new_session(path, spinning=False) for path in (right, wrong)]
    ran = 0
    for feed in feeds:
        try:
            first, second = (session.run(None, feed) for session in sessions)
        except RuntimeFailure:
            continue
        ran += 1
        if any(not compare(np.asarray(b), np.asarray(a)).relative_l2 <= _APART for a, b in zip(first, second, strict=True)):
            return True
    if not ran:
        raise RuntimeFailure("neither model runs on any input")
    return False


if __name__ == "__main__":
    main()
