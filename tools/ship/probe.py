"""Which operators onnxruntime's execution providers have kernels for, by element type: asked, not assumed.

    python -m tools.ship.probe --provider cuda

Each operator of the registry is built as a one-node model for every float type, opened with that provider alone (on CUDA
``session.disable_cpu_ep_fallback`` is set), run on random operands and compared with the record's own float64 evaluation. The
answers go to ``mugraph/ops/support.json``, which the records read; the other provider's part of it stays. A probe that kills
its process counts as refused, and the next one gets a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from mugraph.domains import Real
from mugraph.ops import REGISTRY, NotUnderstood, get_operator
from mugraph.ops.support import FILE
from mugraph.terms.shape import DataType, TensorType, Undecided, concrete
from mugraph.terms.term import Term
from mugraph.terms.text import parse_term, parse_type

OPSET = 23
TYPES = {
    DataType.FLOAT: 1e-3,
    DataType.FLOAT16: 2e-2,
    DataType.BFLOAT16: 1e-1,
    DataType.DOUBLE: 1e-5,
}
"""Element types probed, with the greatest error over the root mean square that passes as right."""
PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
PATIENCE = 120.0
"""Seconds until a probe counts as hanging."""

_HEADS = "num_heads=2,scale=0.25"
_FLASH = "num_heads=12,scale=0.125"
_WIDE = "q:[1,128,768] k:[1,128,768] v:[1,128,768]"
_CONV = "dilations=(1,1),pads=(1,1,1,1),strides=(1,1)"
_IMAGE = "x:[1,8,14,14]"

UNARY = [
    *("Neg", "Relu", "Reciprocal", "Sqrt", "Exp", "Abs", "Sign", "Floor", "Ceil", "Round", "Log", "Sin", "Cos", "Sigmoid", "Erf"),
    *("Tanh", "Softplus", "LeakyRelu", "Elu", "Selu", "Gelu", "Gelu[approximate='tanh']", "HardSigmoid", "HardSwish", "Mish"),
    *("Softsign", "Clip[max=0.7,min=0.2]", "IsInf", "IsNaN", "Identity", "Softmax", "LogSoftmax", "Softmax[axis=-2]", "OrtGelu"),
    *("FastGelu", "QuickGelu", "Tile[repeats=(1,2)]", "Transpose[perm=(1,0)]", "Unsqueeze[axes=(-2,)]"),
    *("Split[axis=-1,sizes=(16,16)].0", "Slice[axes=(-1,),ends=(16,),starts=(4,),steps=(1,)]", "Reshape[drop=1,shape=(8,4)]"),
    *("Expand[shape=(3,4,32)]", "Pad[begins=(0,1),ends=(1,0),mode='constant',value=0.0]", "Shape[end=0,start=-2]"),
    *("Cast[to=float]", "Cast[to=float16]", "Cast[to=bfloat16]", "Cast[to=bool]", "CumSum[axis=-1]", "Trilu[upper=true]"),
]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"]

SAMPLES = [
    *(f"{op}(x) | x:[4,32]" for op in UNARY),
    *(f"{op}(x, y) | x:[4,32] y:[4,32]" for op in BINARY),
    *(f"{op}[axes=(-1,),keepdims=true](x) | x:[4,32]" for op in REGISTRY if op.startswith("Reduce")),
    *(f"{op}(x, y) | x:bool[4,32] y:bool[4,32]" for op in ("And", "Or", "Xor")),
    "Not(x) | x:bool[4,32]",
    "Where(c, x, y) | c:bool[4,32] x:[4,32] y:[4,32]",
    "Concat[axis=-1](x, y) | x:[4,32] y:[4,32]",
    "Squeeze[axes=(-2,)](x) | x:[4,1,32]",
    "Gather[axis=-2](x, i) | x:[8,32] i:int64[4]",
    "GatherND[axis=-2](x, i) | x:[8,32] i:int64[4,1]",
    "Range[dtype=int64,limit=8,start=0]() | ",
    "PRelu(x, y) | x:[4,32] y:[32]",
    "ConstantOfShape[dtype=float,shape=(4,32),value=0.5]() | ",
    "LayerNormalization(x, g, b) | x:[4,64] g:[64] b:[64]",
    "LayerNormalization(x, g) | x:[4,64] g:[64]",
    "RMSNormalization(x, g) | x:[4,64] g:[64]",
    "BatchNormalization[spatial=2](x, g, b, m, v) | x:[1,8,14,14] g:[8] b:[8] m:[8] v:[8]",
    "InstanceNormalization[spatial=2](x, g, b) | x:[1,8,14,14] g:[8] b:[8]",
    f"LRN[size=3,spatial=2](x) | {_IMAGE}",
    "MatMul(x, y) | x:[2,32,64] y:[64,48]",
    "Gemm(x, y, b) | x:[32,64] y:[64,48] b:[48]",
    "FusedMatMul[alpha=0.5,transB=true](x, y) | x:[2,32,64] y:[2,48,64]",
    "FusedMatMul[transA=true](x, y) | x:[64,32] y:[64,48]",
    "FusedGemm(x, y, b) | x:[32,64] y:[64,48] b:[48]",
    f"Conv[{_CONV}](x, w) | {_IMAGE} w:[16,8,3,3]",
    f"FusedConv[{_CONV}](x, w, b) | {_IMAGE} w:[16,8,3,3] b:[16]",
    f"FusedConv[{_CONV},residual=true](x, w, b, z) | {_IMAGE} w:[16,8,3,3] b:[16] z:[1,16,14,14]",
    f"NhwcConv[{_CONV}](x, W, b) | x:[1,14,14,8] W:[16,3,3,8] b:[16]",
    f"MaxPool[dilations=(1,1),kernel=(2,2),pads=(0,0,0,0),strides=(2,2)](x) | {_IMAGE}",
    f"AveragePool[dilations=(1,1),kernel=(2,2),pads=(0,0,0,0),strides=(2,2)](x) | {_IMAGE}",
    f"GlobalAveragePool[spatial=2](x) | {_IMAGE}",
    f"GlobalMaxPool[spatial=2](x) | {_IMAGE}",
    "SimplifiedLayerNormalization(x, g) | x:[2,16,64] g:[64]",
    "SkipLayerNormalization(x, s, g, b) | x:[2,16,64] s:[2,16,64] g:[64] b:[64]",
    "SkipLayerNormalization[bias=true,sum=true](x, s, g, b, c) | x:[2,16,64] s:[2,16,64] g:[64] b:[64] c:[64]",
    "SkipSimplifiedLayerNormalization(x, s, g) | x:[2,16,64] s:[2,16,64] g:[64]",
    "SkipSimplifiedLayerNormalization[sum=true](x, s, g) | x:[2,16,64] s:[2,16,64] g:[64]",
    "EmbedLayerNormalization(w, p, g, b, i, t, s) | w:[8,64] p:[16,64] g:[64] b:[64] i:int32[2,16] t:[2,64] s:int32[2,16]",
    "BiasGelu(x, b) | x:[4,32] b:[32]",
    "FastGelu(x, b) | x:[4,32] b:[32]",
    f"MultiHeadAttention[{_HEADS}](q, k, v) | q:[2,3,32] k:[2,5,32] v:[2,5,32]",
    f"MultiHeadAttention[{_FLASH}](q, k, v) | {_WIDE}",
    f"MultiHeadAttention[{_FLASH},unidirectional=true](q, k, v) | {_WIDE}",
    f"MultiHeadAttention[{_FLASH},given=('bias',)](q, k, v, b) | {_WIDE} b:[2304]",
    f"MultiHeadAttention[{_FLASH},given=('key_padding_mask',)](q, k, v, m) | {_WIDE} m:int32[1,128]",
    f"MultiHeadAttention[{_FLASH},given=('attention_bias',)](q, k, v, a) | {_WIDE} a:[1,1,128,128]",
    f"MultiHeadAttention[{_FLASH},present=true](q, k, v) | {_WIDE}",
    f"OrtAttention[{_HEADS},qkv_hidden_sizes=(32,32,32)](x, w, b) | x:[2,5,32] w:[32,96] b:[96]",
    f"OrtAttention[{_FLASH},qkv_hidden_sizes=(768,768,768)](x, w, b) | x:[1,128,768] w:[768,2304] b:[2304]",
    f"OrtAttention[{_FLASH},given=('mask_index',),qkv_hidden_sizes=(768,768,768)](x, w, b, m) "
    "| x:[1,128,768] w:[768,2304] b:[2304] m:int32[1,128]",
    "OrtRotaryEmbedding[num_heads=4](x, i, c, s) | x:[2,16,256] i:int64[2,16] c:[16,32] s:[16,32]",
    "OrtRotaryEmbedding(x, i, c, s) | x:[2,4,16,64] i:int64[2,16] c:[16,32] s:[16,32]",
    "RotaryEmbedding(x, c, s) | x:[2,4,16,64] c:[2,16,32] s:[2,16,32]",
    "Attention[scale=0.125](q, k, v) | q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64]",
    "Attention[is_causal=true,scale=0.125](q, k, v) | q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64]",
    "Attention[mask='float',mask_axes=4,scale=0.125](q, k, v, m) | q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64] m:[1,1,128,128]",
    "GroupQueryAttention[kv_num_heads=2,num_heads=4,scale=0.125](q, k, v) | q:[1,128,256] k:[1,128,128] v:[1,128,128]",
    "GroupQueryAttention[kv_num_heads=2,num_heads=4,scale=0.125](q, k, v, c, s) "
    "| q:[1,128,256] k:[1,128,128] v:[1,128,128] c:[128,32] s:[128,32]",
]
"""An application of each operator, and its operands' types; ``float`` stands for the type that is probed.

Operands in capitals are initializers: onnxruntime's CUDA provider leaves an NhwcConv with computed weights to the CPU.
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """One sample in one element type."""

    sample: str
    dtype: DataType

    def application(self) -> tuple[Term, list[TensorType]]:
        text, types = self.sample.split(" | ")
        given = {name: parse_type(one) for name, one in (item.split(":") for item in types.split())}
        term = parse_term(text)
        float_types = {n: TensorType(self.dtype, t.shape) if t.dtype == DataType.FLOAT else t for n, t in given.items()}
        return term, [float_types[operand.name] for operand in term.inputs]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a probe.

    Attributes:
        status: ``kernel`` (the provider's own), ``runs`` (right, but inlined or between casts), ``wrong`` or ``refused``.
        detail: the error, or how far off the result is.
    """

    status: str
    detail: str = ""


def probes() -> list[Probe]:
    return [Probe(sample, dtype) for sample in SAMPLES for dtype in TYPES]


def operands(types: list[TensorType], seed: int = 0) -> list[np.ndarray]:
    """Floats around one half (positive, for roots and logarithms); ones and a few zeros as masks, indices and booleans."""
    generator = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for type_ in types:
        shape = concrete(type_.shape)
        assert shape is not None
        if type_.dtype in TYPES:
            found.append(generator.uniform(0.1, 0.9, shape).astype(np.float32))
        elif type_.dtype == DataType.BOOL:
            found.append(generator.random(shape) < 0.5)
        else:
            array = (generator.random(shape) < 0.8).astype(type_.dtype.numpy())
            array[..., 0] = 1
            found.append(array)
    return found


def ask(probe: Probe, provider: str) -> Answer:
    """Builds, opens, runs and judges one probe in this process."""
    import onnxruntime as ort

    term, types = probe.application()
    record = get_operator(term.op)
    attrs = {**record.defaults, **dict(term.attrs)}
    try:
        outputs = record.types(attrs, types)
        form = record.to_onnx(attrs, types, OPSET)
    except (NotUnderstood, Undecided, ValueError) as problem:
        return Answer("refused", str(problem))
    arrays = operands(types)
    nodes, names, constants, infos, feeds = [], [], [], [], {}
    for index, (type_, array) in enumerate(zip(types, arrays, strict=True)):
        if term.inputs[index].name.isupper():
            constants.append(onnx.numpy_helper.from_array(array.astype(type_.dtype.numpy()), f"x{index}"))
            continue
        narrow = type_.dtype in TYPES and type_.dtype != DataType.FLOAT
        given = f"given{index}" if narrow else f"x{index}"
        dtype = DataType.FLOAT if narrow else type_.dtype
        infos.append(onnx.helper.make_tensor_value_info(given, int(dtype), array.shape))
        feeds[given] = array
        if narrow:
            nodes.append(onnx.helper.make_node("Cast", [given], [f"x{index}"], to=int(type_.dtype)))
    for index, item in enumerate(form.inputs):
        if isinstance(item, int):
            names.append(f"x{item}")
        elif item is None:
            names.append("")
        else:
            constants.append(onnx.numpy_helper.from_array(np.asarray(item), f"c{index}"))
            names.append(f"c{index}")
    plain = [f"y{i}" for i in range(len(outputs))]
    nodes.append(
        onnx.helper.make_node(form.op_type, names, form.output_names(plain), domain=form.domain, **as_onnx(form.attributes))
    )
    wanted = [o.dtype if o.dtype not in (DataType.FLOAT16, DataType.BFLOAT16) else DataType.FLOAT for o in outputs]
    results = []
    for name, type_, dtype in zip(plain, outputs, wanted, strict=True):
        if dtype != type_.dtype:
            nodes.append(onnx.helper.make_node("Cast", [name], [f"{name}f"], to=int(dtype)))
        results.append(onnx.helper.make_tensor_value_info(name if dtype == type_.dtype else f"{name}f", int(dtype), None))
    graph = onnx.helper.make_graph(nodes, "probe", infos, results, constants)
    opsets = [onnx.helper.make_opsetid("", OPSET), *([onnx.helper.make_opsetid(form.domain, 1)] if form.domain else [])]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if provider == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "loaded.onnx"
        options.optimized_model_filepath = str(written)
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=[PROVIDERS[provider]])
            if PROVIDERS[provider][0] not in session.get_providers():
                return Answer("refused", f"{PROVIDERS[provider][0]} is not to be had")
            loaded = onnx.load(written)
            actual = session.run(None, feeds)
        except Exception as problem:  # onnxruntime raises many types where a kernel is missing
            return Answer("refused", " ".join(str(problem).split())[:300])
    own = [node for node in loaded.graph.node if node.op_type == form.op_type]
    kept = any(list(node.input)[: len(names)] == names for node in own) or (not names and bool(own))
    rounded = [
        a.astype(t.dtype.numpy()).astype(np.float64) if t.dtype in TYPES else a for a, t in zip(arrays, types, strict=True)
    ]
    expected = record.run(Real(np.float64), attrs, rounded)
    worst = max((error(a, np.asarray(e)) for a, e in zip(actual, expected, strict=True)), default=0.0)
    dtypes = [t.dtype for t in (*types, *outputs) if t.dtype in TYPES]
    limit = max((TYPES[dtype] for dtype in dtypes), default=0.0)
    if not worst <= limit:
        return Answer("wrong", f"off by {worst:.1e} of the root mean square")
    return Answer("kernel" if kept else "runs", f"off by {worst:.1e}")


def as_onnx(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a node, arrays as tensors."""
    return {k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}


def error(actual: Any, expected: np.ndarray) -> float:
    """The greatest difference over the root mean square; infinite for another shape."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if a.shape != e.shape:
        return float("inf")
    scale = float(np.sqrt(np.mean(e * e))) if e.size else 0.0
    return float(np.max(np.abs(a - e), initial=0.0)) / (scale or 1.0)


def work(provider: str, first: int) -> None:
    """The child process: says which probe begins, then its answer, one JSON line each."""
    for index, probe in enumerate(probes()):
        if index >= first:
            print(json.dumps({"begin": index}), flush=True)
            print(json.dumps({"end": index, **asdict(ask(probe, provider))}), flush=True)


def worker_command(provider: str, first: int) -> list[str]:
    """What starts a child process."""
    return [sys.executable, "-m", "tools.ship.probe", "--provider", provider, "--worker", str(first)]


def answers(provider: str) -> Iterator[tuple[Probe, Answer]]:
    """All answers, from as many child processes as it takes."""
    todo, index = probes(), 0
    while index < len(todo):
        command = worker_command(provider, index)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            descriptor, text, reason = child.stdout.fileno(), b"", "its process ended"
            while index < len(todo):
                if not select.select([descriptor], [], [], PATIENCE)[0]:
                    reason = f"no answer within {PATIENCE:.0f} s"
                    child.kill()
                    break
                piece = os.read(descriptor, 1 << 16)
                if not piece:
                    break
                *lines, text = (text + piece).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if "end" in said:
                        yield todo[said["end"]], Answer(said["status"], said["detail"])
                        index = said["end"] + 1
            if index < len(todo):
                yield todo[index], Answer("refused", f"{reason} (exit code {child.wait()})")
                index += 1


def summary(found: list[tuple[Probe, Answer]]) -> dict[str, dict[str, list[str]]]:
    """Operator to the element types in which the provider has a kernel, and those in which it runs all the same.

    One sample with a kernel is enough; one with a wrong result is too much.
    """
    statuses: dict[str, dict[str, set[str]]] = {}
    for probe, answer in found:
        term, types = probe.application()
        if probe.dtype != DataType.FLOAT and not any(t.dtype in TYPES for t in types):
            continue  # the operator has no float operand: the probes are all the same
        statuses.setdefault(term.op, {}).setdefault(probe.dtype.name.lower(), set()).add(answer.status)
    table = {}
    for op, by_type in sorted(statuses.items()):
        right = {dtype: s for dtype, s in by_type.items() if "wrong" not in s}
        kernel = sorted(dtype for dtype, s in right.items() if "kernel" in s)
        table[op] = {"kernel": kernel, "runs": sorted(dtype for dtype, s in right.items() if "runs" in s and dtype not in kernel)}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, default=FILE, help="the table to update; default: the package's own")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        work(arguments.provider, arguments.worker)
        return
    from rewriter.runtime_env import environment, usable_providers

    if arguments.provider not in usable_providers():
        parser.error(f"provider {arguments.provider}: onnxruntime finds none on this machine")
    found: list[tuple[Probe, Answer]] = []
    for probe, answer in answers(arguments.provider):
        found.append((probe, answer))
        if answer.status in ("wrong", "refused"):
            print(f"{answer.status:8}{probe.dtype.name.lower():9}{probe.sample}: {answer.detail}", flush=True)
    operators = summary(found)
    data = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    data[arguments.provider] = {"environment": environment(arguments.provider), "operators": operators}
    arguments.out.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    for op, types in operators.items():
        print(f"{op:34}{', '.join(types['kernel']) or 'none':36}{'runs: ' + ', '.join(types['runs']) if types['runs'] else ''}")
    counts = {status: sum(answer.status == status for _, answer in found) for status in ("kernel", "runs", "wrong", "refused")}
    print(f"{len(found)} probes: " + ", ".join(f"{count} {status}" for status, count in counts.items()))


if __name__ == "__main__":
    main()
