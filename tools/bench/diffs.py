"""superopt-diff on what other optimisers make of models: how many of their edits get a verdict, which planted faults are found.

python -m tools.zoo export --small                       # small transformers and CNNs, as torch.onnx writes them
python -m tools.bench.diffs zoo_models/small_*.onnx [--peers onnxruntime,onnxslim] [--faults 5] [--work DIR]

An edit is a region in which the two models differ. The tools come with the extra ``bench``.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from rich.console import Console
from rich.table import Table

from modeldiff.compare import Equality, ModelComparison, compare_models
from mugraph.onnx import ModelError
from rewriter.reference import InputError
from tools.bench.peers import PeerFailed
from tools.bench.peers import run as run_peer

PEERS = ("onnxruntime", "onnxslim", "onnxsim", "onnxscript")
NAMED, WITHIN = "named", "within its region"
SWAPS = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Add",
    "Div": "Mul",
    "Relu": "Neg",
    "Sigmoid": "Tanh",
    "Tanh": "Sigmoid",
    "Sqrt": "Abs",
}
"""Operators and what a planted fault makes of them."""


def optimised(peer: str, source: Path, target: Path) -> None:
    """Writes what a peer makes of a model. Raises PeerFailed."""
    if peer != "onnxruntime":
        run_peer(Path(sys.executable), peer, source, target)
        return
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(target)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def planted(model: onnx.ModelProto, seed: int) -> str | None:
    """Makes one node of a model wrong; the name of its first result, or ``None`` where there is no such node."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [
        n for n in model.graph.node if n.op_type in SWAPS or (n.op_type in ("MatMul", "Conv", "Gemm") and n.input[1] in weights)
    ]
    if not nodes:
        return None
    node = random.Random(seed).choice(nodes)
    if node.op_type in SWAPS:
        node.op_type = SWAPS[node.op_type]
    else:
        array = numpy_helper.to_array(weights[node.input[1]]).copy()
        array.flat[array.size // 2] += 0.1
        name = f"{node.input[1]}/planted"
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        node.input[1] = name
    return str(node.output[0])


def finds(comparison: ModelComparison, name: str) -> str:
    """What a comparison says of a result that is wrong: `NAMED`, `WITHIN` the one region that differs where its node has no
    counterpart, ``elsewhere``, or ``missed``."""
    if comparison.verdict is not Equality.DIFFERENT:
        return "missed"
    after = comparison.pairing.after
    different = [region for region in comparison.regions if region.differences]
    if [after.name(difference.after) for region in different for difference in region.differences] == [name]:
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
    rows = Table("tool", "models", "edits", *map(str, Equality), "with a verdict", "faults named", "region named", "seconds")
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
        planted = tally.faults.total()
        faults = f"{tally.faults[NAMED]} of {planted}", f"{tally.faults[NAMED] + tally.faults[WITHIN]} of {planted}"
        edits, share = str(tally.verdicts.total()), f"{tally.decided:.1%}"
        rows.add_row(peer, str(tally.models), edits, *counts, share, *faults, f"{tally.seconds:.0f}")
    return rows


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--peers", default=",".join(PEERS), show_default=True)
@click.option("--faults", default=3, show_default=True, help="Planted in what each peer writes.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/diffs"), show_default=True)
@click.option("--budget", default=30.0, show_default=True, help="Seconds for proofs of one comparison.")
def main(models: tuple[Path, ...], peers: str, faults: int, work: Path, budget: float) -> None:
    """Prints a line for each model and peer, with why edits are undecided or different, and a table by peer."""
    work.mkdir(parents=True, exist_ok=True)
    tallies = {peer: PeerTally() for peer in peers.split(",")}
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
            for seed in range(faults if comparison.verdict is not Equality.UNDECIDED else 0):  # what does not run has no faults
                if (fault := _planted_and_found(source, target, work / "planted.onnx", seed)) is None:
                    continue
                name, found, lines = fault
                tally.faults[found] += 1
                for line in lines if found not in (NAMED, WITHIN) else ():
                    print(f"    fault {seed} in '{name}' is {found}: {line}", flush=True)
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


def _planted_and_found(source: Path, target: Path, path: Path, seed: int) -> tuple[str, str, list[str]] | None:
    """The result that was made wrong, what came of that, and what the comparison says; ``None`` where nothing can be planted."""
    model = onnx.load(target)
    name = planted(model, seed)
    if name is None:
        return None
    onnx.save(model, path)
    comparison = compare_models(source, path, seconds=0)
    return name, finds(comparison, name), [str(comparison.verdict), *_open_points(comparison)]


if __name__ == "__main__":
    main()
