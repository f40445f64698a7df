"""Encoder layers of a transformer on the processor, with and without custom kernels.

python -m tools.bench.cpu_kernels prepare FOLDER   # writes the model, and the same with kernels
python -m tools.bench.cpu_kernels run FOLDER       # times both, in turns, on one thread and on two, with their errors

On one thread the processor time of that thread counts, so that other work on the machine matters little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import load, to_bytes
from rewriter.cost import DEVICES, CostModel, ProfileStore
from rewriter.kernels.custom_cpu import CpuKernels
from rewriter.kernels.within import kernels_of
from rewriter.runtime import register
from rewriter.runtime_env import environment
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle

__all__ = ["encoder", "opened", "paired"]

_ROUNDS, _SECONDS = 60, 12.0


def encoder(layers: int = 2, hidden: int = 768, heads: int = 12, inner: int = 3072, seed: int = 0) -> onnx.ModelProto:
    """BERT's layers as exporters write them, over ``[batch, sequence, hidden]`` and a mask that is added to the scores."""
    rng, weights, nodes = np.random.default_rng(seed), list[TensorProto](), []
    size = hidden // heads

    def weight(shape: tuple[int, ...], mean: float = 0.0) -> str:
        array = (mean + rng.standard_normal(shape) * (0.02 if len(shape) > 1 else 0.1)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{len(weights)}"))
        return str(weights[-1].name)

    def constant(value: object, dtype: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(weights)}"))
        return str(weights[-1].name)

    def node(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, list(inputs), [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def linear(x: str, rows: int, columns: int) -> str:
        return node("Add", node("MatMul", x, weight((rows, columns))), weight((columns,)))

    def split(x: str, perm: list[int]) -> str:
        return node("Transpose", node("Reshape", x, constant([0, 0, heads, size], np.int64)), perm=perm)

    def norm(x: str) -> str:
        return node("LayerNormalization", x, weight((hidden,), 1.0), weight((hidden,)), axis=-1, epsilon=1e-12)

    x = "x"
    for _ in range(layers):
        q, k, v = (split(linear(x, hidden, hidden), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = node("Add", node("Div", node("MatMul", q, k), constant(size**0.5)), "mask")
        context = node("Transpose", node("MatMul", node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        merged = node("Reshape", context, constant([0, 0, hidden], np.int64))
        x = norm(node("Add", linear(merged, hidden, hidden), x))
        wide = linear(x, hidden, inner)
        erf = node("Add", node("Erf", node("Div", wide, constant(2**0.5))), constant(1.0))
        x = norm(node("Add", linear(node("Mul", node("Mul", wide, erf), constant(0.5)), inner, hidden), x))
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", hidden]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1, 1, "sequence"]),
        ],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "sequence", hidden])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def opened(path: Path, threads: int) -> ort.InferenceSession:
    """A session that runs kernels."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    register(options, cpu_only=True)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def paired(
    sessions: Mapping[str, ort.InferenceSession],
    feed: Mapping[str, np.ndarray],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Milliseconds of models, in turns: the least of many runs each, since what disturbs a run only adds to its time."""
    best, until = dict.fromkeys(sessions, float("inf")), time.monotonic() + _SECONDS
    for _ in range(_ROUNDS):
        for name, session in sessions.items():
            for _ in range(2):
                start = clock()
                session.run(None, feed)
                best[name] = min(best[name], (clock() - start) * 1e3)
        if time.monotonic() > until:
            break
    return best


@click.group()
def main() -> None:
    """Encoder layers on the processor, with and without custom kernels."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seconds", default=120.0)
@click.option("--layers", default=2)
@click.option("--hidden", default=768)
@click.option("--sequence", default=128)
def prepare(folder: Path, seconds: float, layers: int, hidden: int, sequence: int) -> None:
    """Writes the model, and the same with the kernels that are the cheapest by what was measured of kernels and nodes."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(encoder(layers=layers, hidden=hidden, heads=hidden // 64, inner=4 * hidden), folder / "original.onnx")
    model, sizes = load(folder / "original.onnx"), {"batch": 1, "sequence": sequence}
    deadline = time.monotonic() + seconds
    store = ProfileStore(folder / "profile.sqlite", environment("cpu"))
    kernels = CpuKernels(DEVICES["cpu"], store, sizes, ())
    matches = Matches.of((), RangeOracle({}), "cpu", model.opset)
    chosen = None
    while True:
        costs = CostModel(store, model.opset, sizes, deadline=deadline, told_by=model.graph, speedup=kernels.speedup)
        moves = Moves(matches, Prices(costs, matches.fusions))
        start = moves.start(model.graph)
        learned = costs.measure((model.graph, node) for node in model.graph.nodes())
        found = [start, *kernels.children(moves, start)]
        chosen = min(found, key=lambda candidate: candidate.cost)
        print(f"{start.cost:.0f} -> {chosen.cost:.0f} us predicted, {len(kernels_of(chosen.graph))} kernels", flush=True)
        if time.monotonic() > deadline or not (kernels.tune(chosen.graph, deadline) or learned):
            break
    for problem in kernels.compile(chosen.graph):
        print(problem)
    (folder / "kernels.onnx").write_bytes(to_bytes(model, chosen.graph, kernels.programs))
    kernels.close()
    store.close()


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--sequence", default=128)
def run(folder: Path, sequence: int) -> None:
    """Prints a table of milliseconds and ratios."""
    models = {name: folder / f"{name}.onnx" for name in ("original", "kernels")}
    hidden = onnx.load(models["original"]).graph.input[0].type.tensor_type.shape.dim[2].dim_value
    rng = np.random.default_rng(1)
    print("| threads | batch x sequence | original ms | again | with kernels | original / kernels | largest difference |")
    print("|---|---|---|---|---|---|---|")
    for threads in (1, 2):
        for batch, length in ((1, sequence), (1, 32), (4, sequence)):
            feed = {
                "x": rng.standard_normal((batch, length, hidden), np.float32),
                "mask": np.zeros((batch, 1, 1, length), np.float32),
            }
            sessions = {name: opened(path, threads) for name, path in models.items()}
            one, other = (session.run(None, feed)[0] for session in sessions.values())
            best = paired(
                {**sessions, "again": sessions["original"]}, feed, time.thread_time if threads == 1 else time.perf_counter
            )
            a, b = best["original"], best["kernels"]
            print(
                f"| {threads} | {batch}x{length} | {a:.2f} | {best['again']:.2f} | {b:.2f} | {a / b:.2f} "
                f"| {np.max(np.abs(one - other)):.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
