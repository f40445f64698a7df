"""Models that are equal, one of which is then changed in one thing, to see that ``superopt-diff`` never says that they are.

The pairs are those of each kind of proof, at sizes that are equal wherever they can be: square weights, as many heads as places;
what onnxruntime makes of a block and of a convolution; and any others (``--pair``). A change counts if onnxruntime computes
another thing of the changed model, on the inputs on which the two are compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from modeldiff.compare import Equality, ModelComparison, compare_models
from modeldiff.distance import distance
from modeldiff.inputs import SEEDS
from mugraph.onnx import ModelError, load
from rewriter.reference import InputError, bind_sizes, random_inputs
from tools.fuzz.campaign import Show
from tools.fuzz.console import attack, shared_options
from tools.fuzz.diff_changes import changed
from tools.fuzz.fates import CaseReport, Fate
from tools.fuzz.running import CannotRun, run, session
from tools.zoo.built import lora_block

__all__ = ["PAIRS", "diffs_command", "drawn", "examine_change", "names", "small_model"]

_APART = 1e-3
"""Relative error of an entry from which on two outputs differ, whatever rounding does."""
_FURTHER = (11, 12)
"""Seeds of inputs on which what is proved must be equal, too."""
_PROOFS = 5.0
"""Seconds in which proofs of a comparison are begun."""
_SIDE = 16
"""Of the matrices: also the product of heads and their sizes."""


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers, float32 of a shape."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def small_model(text: str, opset: int = 17, **tensors: Any) -> ModelProto:
    """The model of a graph in words, with its constants."""
    model = parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1, "local" : 1]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items())
    return model


Pair = tuple[ModelProto, ModelProto]

_HEADS = "(float[2,4,16] x) => (float[2,4,16] a, float[2,4,16] b, float[2,4,16] c)"
_WEIGHTS = {name: drawn(_SIDE, _SIDE, seed=place) for place, name in enumerate("qkv")}
_BIASES = {f"{name}b": drawn(_SIDE, seed=place) for place, name in enumerate("qkv")}


def _merged() -> Pair:
    before = f"{_HEADS} {{ a = MatMul(x, q) b = MatMul(x, k) c = MatMul(x, v) }}"
    after = f"{_HEADS} {{ m = MatMul(x, w) a, b, c = Split<axis = -1>(m, s) }}"
    return small_model(before, **_WEIGHTS), small_model(after, w=np.concatenate([*_WEIGHTS.values()], axis=1), s=[_SIDE] * 3)


def _attention() -> Pair:
    ends = "(float[2,4,16] x) => (float[2,4,16] y)"
    parts = "".join(
        f"p{n} = MatMul(x, {n}) l{n} = Add(p{n}, {n}b) r{n} = Reshape(l{n}, heads) t{n} = Transpose<perm = [0,2,1,3]>(r{n}) "
        for n in "qkv"
    )
    before = f"""{ends} {{ {parts} u = Transpose<perm = [0,1,3,2]>(tk) s = MatMul(tq, u) d = Mul(s, half) o = Softmax(d)
        h = MatMul(o, tv) g = Transpose<perm = [0,2,1,3]>(h) y = Reshape(g, whole) }}"""
    after = f"{ends} {{ y = com.microsoft.Attention<num_heads = 4, scale = 0.5>(x, w, bias) }}"
    shapes = {"heads": [0, 0, 4, 4], "whole": [0, 0, _SIDE], "half": np.float32(0.5)}
    packed = {"w": np.concatenate([*_WEIGHTS.values()], axis=1), "bias": np.concatenate([*_BIASES.values()])}
    return small_model(before, **_WEIGHTS, **_BIASES, **shapes), small_model(after, **packed)


def _flattened() -> Pair:
    ends = "(float[4,4,4,16] x) => (float[4,4,4,16] y)"
    before = small_model(f"{ends} {{ p = MatMul(x, w) y = Add(p, b) }}", w=_WEIGHTS["q"], b=_BIASES["qb"])
    text = f"{ends} {{ r = Reshape(x, rows) p = Gemm<transB = 1>(r, t, b) y = Reshape(p, back) }}"
    turned = np.ascontiguousarray(_WEIGHTS["q"].T)
    return before, small_model(text, t=turned, b=_BIASES["qb"], rows=[64, _SIDE], back=[4, 4, 4, _SIDE])


def _scaled() -> Pair:
    ends = "(float[16,16] x) => (float[16,16] y)"
    before = small_model(
        f"{ends} {{ p = MatMul(x, w) l = Add(p, b) y = Mul(l, f) }}", w=_WEIGHTS["q"], b=_BIASES["qb"], f=_BIASES["kb"]
    )
    merged = {"w": _WEIGHTS["q"] * _BIASES["kb"], "b": _BIASES["qb"] * _BIASES["kb"]}
    return before, small_model(f"{ends} {{ p = MatMul(x, w) y = Add(p, b) }}", **merged)


def _zeros() -> Pair:
    ends = "(float[4,4] x, float[4,4] z) => (float[4,4] y)"
    zeros = np.zeros((4, 4), np.float32)
    before = small_model(f"{ends} {{ m = Transpose<perm = [1,0]>(f) a = Add(x, m) s = Softmax(a) y = MatMul(s, z) }}", f=zeros)
    return before, small_model(f"{ends} {{ s = Softmax(x) y = MatMul(s, z) }}")


def _rounded() -> Pair:
    before = """(float[4,16] x) => (float[4,16] y) { c = Pow(x, three) s = Mul(c, third) i = Add(x, s) m = Mul(i, root)
        t = Tanh(m) p = Add(t, one) h = Mul(x, half) y = Mul(h, p) }"""
    numbers = {"three": 3.0, "third": 0.044715, "root": np.sqrt(2 / np.pi), "one": 1.0, "half": 0.5}
    tensors = {name: np.float32(number) for name, number in numbers.items()}
    return small_model(before, **tensors), small_model("(float[4,16] x) => (float[4,16] y) { y = com.microsoft.FastGelu(x) }")


def _factors() -> Pair:
    ends = "(float[2,4,4] x, float[2,4,4] z) => (float[2,4,4] y)"
    before = small_model(f"{ends} {{ a = Mul(x, r) b = Mul(z, r) y = MatMul(a, b) }}", r=np.float32(8**-0.25))
    return before, small_model(f"{ends} {{ y = com.microsoft.FusedMatMul<alpha = 0.35355338454246521>(x, z) }}")


def _skip() -> Pair:
    ends = "(float[2,4,16] x, float[2,4,16] z) => (float[2,4,16] y, float[2,4,16] s)"
    tensors = {"g": _BIASES["qb"], "b": _BIASES["kb"]}
    before = f"{ends} {{ s = Add(x, z) y = LayerNormalization<axis = -1, epsilon = 1e-5>(s, g, b) }}"
    after = f"{ends} {{ y, m, i, s = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, z, g, b) }}"
    return small_model(before, **tensors), small_model(after, **tensors)


def _recurrent() -> Pair:
    ends = "(float[4,4,4] x, float[1,4,4] h, float[1,4,4] c) => (float[4,1,4,4] y, float[1,4,4] yh, float[1,4,4] yc)"
    text = f"{ends} {{{{ a = Relu(x) {{}} y, yh, yc = LSTM<hidden_size = 4>({{}}, w, r, b, , h, c) }}}}"
    tensors = {"w": drawn(1, _SIDE, 4), "r": drawn(1, _SIDE, 4, seed=1), "b": drawn(1, 32)}
    return small_model(text.format("e = Relu(a)", "e"), **tensors), small_model(text.format("", "a"), **tensors)


def _branches() -> Pair:
    text = """(float[4,4] x, float[4,4] z, int64[1] n) => (float[4,4] y) {{ p = Neg(x) q = Tanh(z) {} c = Cast<to = 9>(n)
        y = If(c) <then_branch = t () => (float[4,4] u) {{ m = MatMul(p, w) u = Sub(m, q) }},
        else_branch = e () => (float[4,4] v) {{ v = Sub(q, p) }}> }}"""
    twice = small_model(text.format("").replace("Neg(x)", "Neg(o) k = Neg(x) o = Neg(k)"), w=drawn(4, 4))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in twice.graph.node]
    del twice.graph.node[:]
    twice.graph.node.extend([*nodes[1:3], nodes[0], *nodes[3:]])
    return small_model(text.format(""), w=drawn(4, 4)), twice


_TENSORS = {"w": drawn(4, 4), "r": drawn(4, seed=1)}


def _rewritten_branches() -> Pair:
    text = """(float[4,4] x, float[4,4] z, int64[1] n) => (float[4,4] y) {{ c = Cast<to = 9>(n)
        y = If(c) <then_branch = t () => (float[4,4] u) {{ {} s = ReduceSum<keepdims = 0>(z) p = Cast<to = 9>(s)
            u = If(p) <then_branch = s () => (float[4,4] k) {{ k = {} }},
                else_branch = f () => (float[4,4] l) {{ l = Neg(a) }}> }},
        else_branch = e () => (float[4,4] v) {{ {} }}> }}"""
    before = text.format("m = MatMul(x, w) a = Add(m, r)", "Add(a, z)", "o = Neg(x) q = Neg(o) v = Sub(q, z)")
    return small_model(before, **_TENSORS), small_model(
        text.format("a = Gemm(x, w, r)", "Add(z, a)", "v = Sub(x, z)"), **_TENSORS
    )


def _moved_branches() -> Pair:
    text = """(float[4,4] x, float[4,4] z, int64[1] n) => (float[4,4] y) {{ c = Cast<to = 9>(n) {}
        y = If(c) <then_branch = t () => (float[4,4] u) {{ {} u = Sub(p, q) }},
        else_branch = e () => (float[4,4] v) {{ {} v = Sub(q, a) }}> }}"""
    before = text.format("a = MatMul(x, w) q = Tanh(a)", "m = MatMul(x, w) p = Add(m, r)", "")
    after = text.format("a = MatMul(x, w)", "p = Add(a, r) q = Tanh(a)", "q = Tanh(a)")
    return small_model(before, **_TENSORS), small_model(after, **_TENSORS)


def _loop() -> Pair:
    text = """(float[4,4] x, float[4,4] z) => (float[4,4] y, float[3,4,4] q) {{ a = Abs(z)
        y, q = Loop(three, yes, x) <body = b (int64 i, bool c, float[4,4] h) => (bool d, float[4,4] g, float[4,4] o)
            {{ d = Identity(c) {} g = Tanh(s) t = Mul(g, a) o = Sub(t, r) }}> }}"""
    tensors = {"three": 3, "yes": np.bool_(True), **_TENSORS}
    return small_model(text.format("m = MatMul(h, w) s = Add(m, r)"), **tensors), small_model(
        text.format("s = Gemm(h, w, r)"), **tensors
    )


def _moved_loop() -> Pair:
    text = """(float[4,4] x, float[4,4] z) => (float[4,4] y, float[3,4,4] q) {{ {}
        y, q = Loop(three, yes, x) <body = b (int64 i, bool c, float[4,4] h) => (bool d, float[4,4] g, float[4,4] o)
            {{ d = Identity(c) {} s = Add(h, m) g = Tanh(s) t = Mul(g, a) o = Sub(t, r) }}> }}"""
    tensors = {"three": 3, "yes": np.bool_(True), **_TENSORS}
    before, after = text.format("a = Abs(z)", "m = MatMul(a, w)"), text.format("k = Abs(z) m = MatMul(k, w)", "a = Abs(z)")
    return small_model(before, **tensors), small_model(after, **tensors)


def _scan() -> Pair:
    text = """(float[4,4] x, float[3,4,4] z) => (float[4,4] y, float[3,4,4] q) {{
        y, q = Scan<num_scan_inputs = 1, body = b (float[4,4] h, float[4,4] e) => (float[4,4] g, float[4,4] o)
            {{ {} s = Add(p, h) g = Tanh(s) o = Sub(g, r) }}>(x, z) }}"""
    before = small_model(text.format("m = MatMul(e, w) p = Mul(m, two)"), two=np.float32(2), **_TENSORS)
    return before, small_model(text.format("p = MatMul(e, w)"), **{**_TENSORS, "w": 2 * _TENSORS["w"]})


def _function() -> Pair:
    text = """(float[4,4] x, float[4,4] z) => (float[4,4] y) {{ {} y = local.f({}, z) }}
        <domain: "local", opset_import: ["" : 17]> f (a, b) => (c) {{ s = Softsign(a) h = Hardmax(b) c = Sub(s, h) }}"""
    return small_model(text.format("d = Neg(x) k = Neg(d) e = Relu(k)", "e")), small_model(text.format("e = Relu(x)", "e"))


def _counted() -> Pair:
    text = """(float[9] a, float[9] b) => (float[M] y, float[K] z) {{ p = Relu(a) q = Relu(b) {} one = Constant<value_int = 1>()
        s = Shape(n) i = Gather(s, one) r = Unsqueeze(i, first) e = Expand(c, r) y = {}
        t = Shape(o) j = Gather(t, one) u = Unsqueeze(j, first) f = Expand(c, u) z = Neg(f) }}"""
    tensors = {"c": np.float32([2]), "first": [0]}
    before = small_model(text.format("n = NonZero(p) o = NonZero(q)", "Add(e, e)"), **tensors)
    return before, small_model(text.format("o = NonZero(q) n = NonZero(p)", "Mul(e, two)"), two=np.float32(2), **tensors)


def _optimised(model: ModelProto) -> Pair:
    """A model and what onnxruntime's extended optimisations make of it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-diffs-") as folder:
        options = ort.SessionOptions()
        options.optimized_model_filepath = f"{folder}/model.onnx"
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.log_severity_level = 4
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return model, onnx.load(options.optimized_model_filepath)


def _block() -> Pair:
    return _optimised(lora_block(hidden=32, heads=4, sequence=8, intermediate=32, rank=8))


def _convolution() -> Pair:
    text = """(float[2,4,4,4] x) => (float[2,4,4,4] y) { c = Conv<pads = [1,1,1,1]>(x, w, b)
        n = BatchNormalization(c, g, h, m, v) r = Relu(n) s = Add(r, x) d = Conv(s, u) y = Add(d, k) }"""
    rows = {name: drawn(4, seed=place) for place, name in enumerate("bghm")}
    weights = {"w": drawn(4, 4, 3, 3), "u": drawn(4, 4, 1, 1), "v": np.abs(drawn(4)) + 1, "k": drawn(1, 4, 1, 1)}
    return _optimised(small_model(text, **rows, **weights))


PAIRS: Mapping[str, Callable[[], Pair]] = {
    make.__name__.strip("_"): lru_cache(maxsize=1)(make)
    for make in (
        _merged,
        _attention,
        _flattened,
        _scaled,
        _zeros,
        _rounded,
        _factors,
        _skip,
        _recurrent,
        _branches,
        _rewritten_branches,
        _moved_branches,
        _loop,
        _moved_loop,
        _scan,
        _function,
        _counted,
        _block,
        _convolution,
    )
}
"""Equal models, by what makes them equal."""


def names(seed: int, count: int, pairs: Sequence[str]) -> list[str]:
    """``SEED NUMBER PAIR`` of the first changes of a seed."""
    return [f"{seed} {number} {pairs[number % len(pairs)]}" for number in range(count)]


@dataclass(frozen=True, slots=True)
class _Runs:
    """What onnxruntime gives for two models.

    Attributes:
        compared: they differ on the inputs on which they are compared.
        further: or on others.
    """

    compared: bool
    further: bool


def examine_change(given: Mapping[str, tuple[Path, Path]], name: str, show: Show) -> CaseReport:
    """Changes one model of a pair, runs both, and compares them.

    Args:
        given: pairs of files by their names, beside those of `PAIRS`.
    """
    seed, number, pair = name.split(" ", 2)
    before, after = (onnx.load(path) for path in given[pair]) if pair in given else PAIRS[pair]()
    wrong, change = changed(after, np.random.default_rng([int(seed), int(number)]))
    show({"before.onnx": before.SerializeToString(), "after.onnx": wrong.SerializeToString()})
    with tempfile.TemporaryDirectory(prefix="fuzz-diffs-") as folder:
        paths = [Path(folder) / file for file in ("before.onnx", "after.onnx")]
        for path, model in zip(paths, (before, wrong), strict=True):
            onnx.save(model, path)
        try:
            runs = _runs(paths)
        except (CannotRun, ModelError, InputError) as problem:
            return CaseReport(Fate.NOT_RUNNABLE, change, str(problem))
        try:
            comparison = compare_models(*paths, seconds=_PROOFS)
        except (ModelError, InputError) as problem:
            return CaseReport(Fate.REFUSED, f"{change}: {str(problem).replace(folder, '')}"[:120])
        return _judged(change, runs, comparison)


def _judged(change: str, runs: _Runs, comparison: ModelComparison) -> CaseReport:
    verdict = comparison.verdict
    detail = "\n".join([change, str(verdict), *comparison.notes])
    if runs.compared and verdict in (Equality.PROVED, Equality.TESTED):
        return CaseReport(Fate.WRONG, f"{change}: other outputs are said to be {verdict}", detail)
    if runs.further and verdict is Equality.PROVED:
        return CaseReport(Fate.WRONG, f"{change}: outputs that differ on other inputs are said to be {verdict}", detail)
    if runs.compared:
        fate = Fate.TOLD if verdict is Equality.DIFFERENT else Fate.UNMEASURED
        return CaseReport(fate, f"{change}: {verdict}", detail, counts={f"of another function: {verdict}": 1})
    return CaseReport(Fate.UNCHANGED, counts={f"of the same function: {verdict}": 1})


def _runs(paths: Sequence[Path]) -> _Runs:
    """Whether outputs differ. Raises CannotRun, ModelError, InputError."""
    sessions = [session(path.read_bytes(), optimize=False) for path in paths]
    model = load(paths[0])
    sizes, _ = bind_sizes(model, {})
    differs = []
    for seed in (*SEEDS, *_FURTHER):
        feed = random_inputs(model, sizes, seed)
        outputs = [run(each, {value.name: feed[value.name] for value in each.get_inputs()}) for each in sessions]
        differs.append(any(_differ(ours, theirs) for theirs, ours in zip(*outputs, strict=True)))
    return _Runs(any(differs[: len(SEEDS)]), any(differs))


def _differ(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether some entry is further away than rounding explains."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return True
    return not distance(ours, theirs).max_over_rms <= _APART


@click.command("diffs")
@click.option("--count", default=400, show_default=True, help="How many changes.")
@click.option("--seed", default=0, show_default=True, help="Seed of the changes.")
@click.option(
    "--pair",
    "files",
    type=(click.Path(exists=True, path_type=Path), click.Path(exists=True, path_type=Path)),
    multiple=True,
    help="Two models that are equal, in place of the built-in ones; repeatable.",
)
@shared_options
def diffs_command(count: int, seed: int, files: tuple[tuple[Path, Path], ...], **options: Any) -> None:
    """Changes one of two equal models and asks superopt-diff whether they are equal."""
    given = {f"{number}:{after.stem}": (before, after) for number, (before, after) in enumerate(files)}
    attack("diffs", names(seed, count, list(given or PAIRS)), partial(examine_change, given), **options)
