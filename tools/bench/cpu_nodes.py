"""Kernels in C on the CPU, one thread, beside onnxruntime's nodes for the same body.

    python -m tools.bench.cpu_nodes                      all of them, on this processor's widest vectors
    python -m tools.bench.cpu_nodes --only softmax --level x86-64-v3

Each is made from a term by ``lower``, under the fastest of the schedules that a run tries, and called as the run-time library
calls it. onnxruntime runs a model of standard operators with all of its optimisations, which make single nodes of some of them
(Gelu, SkipLayerNormalization); its inputs and outputs are bound. What is compared takes turns. A time is the least of the rounds
in microseconds of the thread's processor, of which what a call from Python takes is taken off on both sides; a ratio is the
median of those within a round. Errors are relative (L2) against float64.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
import numpy as np
import onnx
import onnxruntime
from onnx import helper
from rich.console import Console
from rich.table import Table

from mugraph.blocks.block import Kernel
from mugraph.blocks.interp import evaluate_body
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.domains import Real
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import parse_term
from rewriter.cost.schedules.cpu import cpu_schedules
from rewriter.kernels.c import generate
from rewriter.kernels.c.calling import BoundKernel, opened, prepared
from rewriter.kernels.c.compile import LEVELS, Level, build, level_of_processor
from rewriter.kernels.fuse.lower import lower

__all__ = ["CASES", "NodeCase"]


@dataclass(frozen=True)
class NodeCase:
    """A body as terms by output, and as ONNX text with the same inputs and outputs."""

    name: str
    inputs: dict[str, tuple[int, ...]]
    terms: dict[str, str]
    graph: str
    outputs: dict[str, tuple[int, ...]]


_X = (128, 768)
_Q = (1, 12, 128, 64)
_KEYS = "Transpose[perm=(1,0)](k)"
_ROTATED = "Concat[axis=-1](Neg(Split[axis=-1,sizes=(32,32)].1(q)), Split[axis=-1,sizes=(32,32)].0(q))"


def _attention(heads: int, length: int, size: int) -> NodeCase:
    """Lengths are those of texts, of ViT's patches, and of Swin's windows, of which each has its heads."""
    shape = (1, heads, length, size)
    return NodeCase(
        f"attention {heads}×{length}×{size}",
        dict.fromkeys("qkv", shape),
        {"y": f"MatMul(Softmax[axis=-1](Mul(MatMul(q, {_KEYS}), 0.125)), v)"},
        "f = Constant <value_float = 0.125> () t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) m = Mul (s, f) "
        "p = Softmax (m) y = MatMul (p, v)",
        {"y": shape},
    )


CASES = (
    NodeCase(
        "LayerNorm 128×768",
        {"x": _X, "scale": (768,), "bias": (768,)},
        {"y": "LayerNormalization[axis=-1,epsilon=0.00001](x, scale, bias)"},
        "y = LayerNormalization <axis = -1, epsilon = 0.00001> (x, scale, bias)",
        {"y": _X},
    ),
    NodeCase(
        "RMSNorm 128×768",
        {"x": _X, "scale": (768,)},
        {"y": "RMSNormalization[axis=-1,epsilon=0.00001](x, scale)"},
        "p = Constant <value_float = 2.0> () e = Constant <value_float = 0.00001> () a = Constant <value_ints = [-1]> () "
        "s = Pow (x, p) m = ReduceMean (s, a) d = Add (m, e) r = Sqrt (d) n = Div (x, r) y = Mul (n, scale)",
        {"y": _X},
    ),
    NodeCase(
        "residual + LayerNorm 128×768",
        {"x": _X, "skip": _X, "scale": (768,), "bias": (768,)},
        {"total": "Add(x, skip)", "y": "LayerNormalization[axis=-1,epsilon=0.00001](Add(x, skip), scale, bias)"},
        "total = Add (x, skip) y = LayerNormalization <axis = -1, epsilon = 0.00001> (total, scale, bias)",
        {"total": _X, "y": _X},
    ),
    NodeCase("softmax 12×128×128", {"x": (12, 128, 128)}, {"y": "Softmax[axis=-1](x)"}, "y = Softmax (x)", {"y": (12, 128, 128)}),
    NodeCase(
        "bias + GELU 128×3072",
        {"x": (128, 3072), "bias": (3072,)},
        {"y": "Gelu(Add(x, bias))"},
        "t = Add (x, bias) y = Gelu (t)",
        {"y": (128, 3072)},
    ),
    NodeCase(
        "GELU by tanh, gated, 128×3072",
        {"x": (128, 3072), "gate": (128, 3072)},
        {"y": "Mul(Gelu[approximate='tanh'](gate), x)"},
        'g = Gelu <approximate = "tanh"> (gate) y = Mul (g, x)',
        {"y": (128, 3072)},
    ),
    NodeCase(
        "SwiGLU 128×3072",
        {"x": (128, 3072), "gate": (128, 3072)},
        {"y": "Mul(Mul(gate, Sigmoid(gate)), x)"},
        "s = Sigmoid (gate) g = Mul (gate, s) y = Mul (g, x)",
        {"y": (128, 3072)},
    ),
    NodeCase(
        "rotary 12×128×64",
        {"q": _Q, "cos": (128, 64), "sin": (128, 64)},
        {"y": f"Add(Mul(q, cos), Mul({_ROTATED}, sin))"},
        "a, b = Split <axis = -1, num_outputs = 2> (q) n = Neg (b) r = Concat <axis = -1> (n, a) "
        "c = Mul (q, cos) d = Mul (r, sin) y = Add (c, d)",
        {"y": _Q},
    ),
    *(_attention(*sizes) for sizes in ((12, 128, 64), (12, 197, 64), (64, 49, 32), (12, 512, 64))),
    NodeCase(
        "heads split and merged 128×12×64",
        {"x": _X, "bias": (768,)},
        {"y": "Transpose[perm=(1,0,2)](Reshape[drop=2,shape=(128,12,64)](Add(x, bias)))"},
        "w = Constant <value_ints = [128, 12, 64]> () t = Add (x, bias) r = Reshape (t, w) y = Transpose <perm = [1, 0, 2]> (r)",
        {"y": (12, 128, 64)},
    ),
)


def _model(case: NodeCase) -> bytes:
    def values(shapes: dict[str, tuple[int, ...]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    parsed = onnx.parser.parse_graph(f"g () => () {{ {case.graph} }}")
    graph = helper.make_graph(list(parsed.node), "g", values(case.inputs), values(case.outputs))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def _runtime(
    model: bytes, inputs: dict[str, np.ndarray], outputs: Sequence[str]
) -> tuple[Callable[[], object], list[np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    kept = [value.numpy().copy() for value in binding.get_outputs()]
    return lambda: session.run_with_iobinding(binding), kept


_TRIALS = 8
"""Schedules that are tried."""


def _fastest(kernel: Kernel, level: Level, given: Sequence[np.ndarray]) -> tuple[tuple[Schedule, ...], BoundKernel]:
    """The schedules under which a kernel is fastest, and it under them."""
    best: tuple[float, tuple[Schedule, ...], BoundKernel] | None = None
    for schedules in cpu_schedules(kernel, {}, _TRIALS):
        try:
            source = generate(kernel, schedules)
        except InvalidBlock:
            continue
        ours = prepared(source, opened(build(source.text, level, kernel.label)), given)
        taken = min(_timed(ours.run, 3) for _ in range(10))
        if best is None or taken < best[0]:
            best = taken, schedules, ours
    assert best is not None, kernel.label
    return best[1], best[2]


_NOTHING = "y = Identity (x)"


def _overhead(rounds: int) -> tuple[float, float]:
    """Seconds of a call that does nothing: of onnxruntime's with bound tensors, and of a function in C."""
    x = np.zeros((2, 2), np.float32)
    empty = NodeCase("", {"x": (2, 2)}, {}, _NOTHING, {"y": (2, 2)})
    theirs, _ = _runtime(_model(empty), {"x": x}, ["y"])
    kernel = lower("nothing", {"x": TensorType(DataType.FLOAT, (2, 2))}, [("y", parse_term("Neg(x)"))])
    source = generate(kernel, cpu_schedules(kernel, {}, 1)[0])
    ours = prepared(source, opened(build(source.text, LEVELS["x86-64-v3"])), [x])
    return min(_timed(theirs, 1) for _ in range(rounds)), min(_timed(ours.run, 1) for _ in range(rounds))


def _timed(call: Callable[[], object], repeats: int) -> float:
    started = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - started) / repeats


@click.command(help=__doc__)
@click.option("--only", default="", help="Cases whose name has this in it.")
@click.option(
    "--level", "level_name", type=click.Choice(list(LEVELS)), help="Instruction set; the widest vectors here unless given."
)
@click.option("--rounds", default=60, show_default=True, help="Turns of each.")
def main(only: str, level_name: str | None, rounds: int) -> None:
    """Prints the table."""
    best = level_of_processor()
    level = LEVELS[level_name] if level_name else best
    if level is None or best is None or not level.features <= best.features:
        raise click.ClickException(f"this processor does not have {level.name if level else 'the instructions of any level'}")
    generator = np.random.default_rng(0)
    table = Table(f"{level.name}", "onnxruntime µs", "C µs", "ratio", "error, onnxruntime", "error, C", "tiles")
    their_call, our_call = _overhead(200)
    for case in CASES:
        if only not in case.name:
            continue
        inputs = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in case.inputs.items()}
        types = {name: TensorType(DataType.FLOAT, shape) for name, shape in case.inputs.items()}
        kernel = lower("case", types, [(name, parse_term(text)) for name, text in case.terms.items()])
        schedules, ours = _fastest(kernel, level, [inputs[t.name] for t in kernel.inputs])
        theirs, results = _runtime(_model(case), inputs, list(case.outputs))
        exact = evaluate_body(kernel, Real(), {name: x.astype(np.float64) for name, x in inputs.items()})
        errors = [
            max(float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in zip(values, exact, strict=True))
            for values in (results, ours.run())
        ]
        repeats = max(1, int(4e-3 / _timed(ours.run, 3)))
        pairs = []
        for _ in range(rounds):
            pairs.append((_timed(theirs, repeats) - their_call, _timed(ours.run, repeats) - our_call))
        ratio = statistics.median(a / b for a, b in pairs)
        tiles = "; ".join(",".join(f"{axis}={tile}" for axis, tile in s.tiles) or "1" for s in schedules)
        least = [min(times) * 1e6 for times in zip(*pairs, strict=True)]
        table.add_row(case.name, *(f"{x:.1f}" for x in least), f"{ratio:.2f}", *(f"{e:.1e}" for e in errors), tiles)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
