"""superopt-diff on what other optimisers make of models: how many of their edits get a verdict, which planted faults are found.

python -m tools.bench.diffs model.onnx... [--peers onnxruntime,onnxslim] [--faults 5] [--work DIR]
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

import click
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from modeldiff.compare import Equality, ModelComparison, compare_models
from mugraph.onnx import ModelError
from rewriter.reference import InputError
from tools.bench.peers import PeerFailed
from tools.bench.peers import run as run_peer

PEERS = ("onnxruntime", "onnxslim", "onnxsim", "onnxscript")
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
    """Whether a comparison names the result that is wrong: ``named``, ``seen`` at another node, or ``missed``."""
    if comparison.verdict is not Equality.DIFFERENT:
        return "missed"
    after = comparison.pairing.after
    found = [after.name(difference.after) for region in comparison.regions for difference in region.differences]
    return "named" if found == [name] else "seen"


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--peers", default=",".join(PEERS), show_default=True)
@click.option("--faults", default=3, show_default=True, help="Planted in what each peer writes.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/diffs"), show_default=True)
@click.option("--budget", default=30.0, show_default=True, help="Seconds for proofs of one comparison.")
def main(models: tuple[Path, ...], peers: str, faults: int, work: Path, budget: float) -> None:
    """Prints a line for each model and peer, and totals."""
    work.mkdir(parents=True, exist_ok=True)
    edits, faulty = Counter[str](), Counter[str]()
    for source in models:
        for peer in peers.split(","):
            target = work / f"{source.stem}.{peer}.onnx"
            try:
                if not target.exists():
                    optimised(peer, source, target)
                began = time.perf_counter()
                comparison = compare_models(source, target, seconds=budget)
            except (PeerFailed, InputError, ModelError) as problem:
                print(f"{source.stem:24} {peer:12} failed: {problem}", flush=True)
                edits["failed"] += 1
                continue
            verdicts = Counter(str(region.verdict) for region in comparison.regions)
            edits.update(verdicts)
            listed = ", ".join(f"{verdicts[str(v)]} {v}" for v in Equality if verdicts[str(v)]) or "no changes"
            seconds = time.perf_counter() - began
            print(f"{source.stem:24} {peer:12} {comparison.verdict:14} {seconds:5.1f} s  {listed}", flush=True)
            for seed in range(faults):
                faulty[_planted_and_found(source, target, work / "planted.onnx", seed)] += 1
    total = sum(edits.values())
    decided = total - edits["failed"] - edits[str(Equality.UNDECIDED)]
    print(f"edits: {dict(edits)}; with a verdict: {decided} of {total} = {decided / max(total, 1):.1%}")
    print(f"planted faults: {dict(faulty)}")


def _planted_and_found(source: Path, target: Path, path: Path, seed: int) -> str:
    model = onnx.load(target)
    name = planted(model, seed)
    if name is None:
        return "nowhere to plant"
    onnx.save(model, path)
    return finds(compare_models(source, path, seconds=0), name)


if __name__ == "__main__":
    main()
