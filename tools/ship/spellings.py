"""A small corpus of spellings: what exporters write where a runtime has one operator.

Each spelling is a tiny ONNX model with the operator that it stands for. Some are node for node what torch's exporter writes
today for the models of :mod:`tools.zoo` (batch 2 in place of 1, so that it does not pass for a broadcast); others are those of
older exporters and of TensorFlow's. The rule generator mines them (``rulegen mine``), and tests ask that each reaches its
operator. Sizes are pairwise distinct where they mean different things.

Run ``python -m tools.ship.spellings --out DIR`` to write all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["BATCH", "HIDDEN", "LENGTH", "SPELLINGS", "Sketch", "Spelling", "attend", "build"]

Array = np.ndarray[Any, Any]

OPSET, IR_VERSION = 17, 10
BATCH, LENGTH, HEADS, SIZE = 2, 5, 3, 14
HIDDEN = HEADS * SIZE
EPSILON = 1e-6


class Sketch:
    """Collects nodes; float constants are of the model's element type.

    Args:
        dtype: float32 or float16.
    """

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        self.dtype = np.dtype(dtype)
        self.opset = OPSET
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._generator = np.random.default_rng(0)

    def __call__(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Adds a node; the name of its output, or of its first one."""
        name = f"{op_type.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return name

    def input(self, *shape: int, dtype: Any = None) -> str:
        name = f"input_{len(self.inputs)}"
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype) if dtype else self.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def constant(self, values: Array) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers[name] = numpy_helper.from_array(values, name)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._generator.normal(size=shape).astype(self.dtype))

    def number(self, value: float, dtype: Any = None) -> str:
        return self.constant(np.array(value, dtype or self.dtype))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def single(self, x: str) -> str:
        """As float32: what torch casts to before it normalises."""
        return x if self.dtype == np.float32 else self("Cast", x, to=onnx.TensorProto.FLOAT)

    def cast_back(self, x: str) -> str:
        """Back to the model's element type."""
        return x if self.dtype == np.float32 else self("Cast", x, to=helper.np_dtype_to_tensor_dtype(self.dtype))

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "spelling", self.inputs, results, [*self.initializers.values()])
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="tools.ship.spellings")
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        infos = {value.name: value for value in inferred.graph.value_info}
        typed = [infos.get(name) or next(o for o in inferred.graph.output if o.name == name) for name in outputs]
        del model.graph.output[:]
        model.graph.output.extend(typed)
        onnx.checker.check_model(model, full_check=True)
        return model


Write = Callable[[Sketch], "str | list[str]"]


@dataclass(frozen=True)
class Spelling:
    """One spelling.

    Attributes:
        name: of the spelling; with ``-fp16`` where it is in half precision.
        expected: the registry's name of an operator that the spelling is, in part or whole.
        half: whether the model is in float16, with Casts to float32 where torch writes them.
    """

    name: str
    expected: str
    write: Write
    half: bool = False

    def build(self) -> onnx.ModelProto:
        """The model."""
        sketch = Sketch(np.float16 if self.half else np.float32)
        outputs = self.write(sketch)
        return sketch.model([outputs] if isinstance(outputs, str) else outputs)


# Normalisation


def _root_mean_square(s: Sketch, x: str, way: str) -> str:
    """1/sqrt(mean(x^2) + epsilon) times x, in float32."""
    square = s("Mul", x, x) if way == "product" else s("Pow", x, s.number(2, np.float32))
    mean = s("Add", s("ReduceMean", square, axes=[-1], keepdims=1), s.number(EPSILON, np.float32))
    if way == "power":
        return s("Mul", x, s("Pow", mean, s.number(-0.5, np.float32)))
    root = s("Sqrt", mean)
    if way == "quotient":
        return s("Div", x, root)
    if way == "inverse":
        return s("Mul", x, s("Div", s.number(1, np.float32), root))
    return s("Mul", x, s("Reciprocal", root))


def _rms(s: Sketch, x: str, way: str = "reciprocal", size: int = HIDDEN) -> str:
    return s("Mul", s.weight(size), s.cast_back(_root_mean_square(s, s.single(x), way)))


def _write_rms(way: str, s: Sketch) -> str:
    return _rms(s, s.input(BATCH, LENGTH, HIDDEN), way)


def _write_rms_wide(s: Sketch) -> str:
    """The weight is applied in float32, too, as T5's first exporters wrote it."""
    normal = _root_mean_square(s, s.single(s.input(BATCH, LENGTH, HIDDEN)), "reciprocal")
    return s.cast_back(s("Mul", normal, s.single(s.weight(HIDDEN))))


def _write_split_joined(s: Sketch) -> str:
    """Heads are split and put side by side again: what is left where attention takes transpositions of its own."""
    heads = s("Reshape", s.input(BATCH, LENGTH, HIDDEN), s.ints(BATCH, LENGTH, HEADS, SIZE))
    return _rms(s, s("Reshape", heads, s.ints(BATCH, LENGTH, HIDDEN)))


def _layer_norm(s: Sketch, x: str, way: str = "power") -> str:
    """LayerNormalization before opset 17."""
    x = s.single(x)
    centred = s("Sub", x, s("ReduceMean", x, axes=[-1], keepdims=1))
    square = s("Mul", centred, centred) if way == "product" else s("Pow", centred, s.number(2, np.float32))
    variance = s("Add", s("ReduceMean", square, axes=[-1], keepdims=1), s.number(EPSILON, np.float32))
    if way == "reciprocal":
        normal = s("Mul", centred, s("Reciprocal", s("Sqrt", variance)))
    else:
        normal = s("Div", centred, s("Sqrt", variance))
    normal = s.cast_back(normal)
    return s("Add", s("Mul", normal, s.weight(HIDDEN)), s.weight(HIDDEN))


def _write_layer_norm(way: str, s: Sketch) -> str:
    return _layer_norm(s, s.input(BATCH, LENGTH, HIDDEN), way)


def _layer_operator(s: Sketch, x: str) -> str:
    return s("LayerNormalization", x, s.weight(HIDDEN), s.weight(HIDDEN), axis=-1, epsilon=EPSILON)


def _layer_unshifted(s: Sketch, x: str) -> str:
    return s("LayerNormalization", x, s.weight(HIDDEN), axis=-1, epsilon=EPSILON)


def _write_skip(normalise: Callable[[Sketch, str], str], parts: str, s: Sketch) -> list[str]:
    """A sum and its normalisation; ``parts`` says whether the sum has a bias and whether it is used again."""
    x, y = s.input(BATCH, LENGTH, HIDDEN), s.input(BATCH, LENGTH, HIDDEN)
    if "bias" in parts:
        x = s("Add", s("MatMul", x, s.weight(HIDDEN, HIDDEN)), s.weight(HIDDEN))
    total = s("Add", x, y)
    normal = normalise(s, total)
    return [normal, total] if "sum" in parts else [normal]


# Activations


def _gelu(s: Sketch, x: str, way: str) -> str:
    """The GELU by the error function or by tanh, as several exporters order its factors."""
    if way.startswith("tanh"):
        cube = s("Mul", x, s("Mul", x, x)) if way == "tanh-product" else s("Pow", x, s.number(3))
        inner = s("Mul", s("Add", x, s("Mul", cube, s.number(0.044715))), s.number(math.sqrt(2 / math.pi)))
        return s("Mul", s("Mul", x, s.number(0.5)), s("Add", s("Tanh", inner), s.number(1)))
    inner = s("Mul", x, s.number(math.sqrt(0.5))) if way == "erf-factor" else s("Div", x, s.number(math.sqrt(2)))
    gate = s("Add", s("Erf", inner), s.number(1))
    if way == "erf-last":
        return s("Mul", s("Mul", x, gate), s.number(0.5))
    if way == "erf-gate":
        return s("Mul", x, s("Mul", gate, s.number(0.5)))
    return s("Mul", s("Mul", x, s.number(0.5)), gate)


def _biased(s: Sketch, bias: bool) -> str:
    x = s.input(BATCH, LENGTH, HIDDEN)
    return s("Add", s("MatMul", x, s.weight(HIDDEN, HIDDEN + 2)), s.weight(HIDDEN + 2)) if bias else x


def _write_gelu(way: str, bias: bool, s: Sketch) -> str:
    return _gelu(s, _biased(s, bias), way)


def _write_gelu_operator(approximate: str, bias: bool, s: Sketch) -> str:
    s.opset = 20
    return s("Gelu", _biased(s, bias), approximate=approximate)


def _write_silu(alpha: float, s: Sketch) -> str:
    x = s.input(BATCH, LENGTH, HIDDEN)
    return s("Mul", x, s("Sigmoid", x if alpha == 1 else s("Mul", x, s.number(alpha))))


# Attention


def _split(s: Sketch, x: str, heads: int = HEADS, size: int = SIZE, batch: int = BATCH) -> str:
    return s("Transpose", s("Reshape", x, s.ints(batch, LENGTH, heads, size)), perm=[0, 2, 1, 3])


def _keys(s: Sketch, k: str, way: str, heads: int = HEADS, size: int = SIZE) -> str:
    """Split keys transposed, as torch exports scaled_dot_product_attention: through three dimensions and back."""
    if way == "four":
        return s("Transpose", k, perm=[0, 1, 3, 2])
    flat = s("Reshape", k, s.ints(-1, LENGTH, size))
    return s("Reshape", s("Transpose", flat, perm=[0, 2, 1]), s.ints(BATCH, heads, size, LENGTH))


def _joined(s: Sketch, x: str, way: str = "three", hidden: int = HIDDEN, batch: int = BATCH) -> str:
    x = s("Transpose", x, perm=[0, 2, 1, 3])
    return s("Reshape", x, s.ints(batch * LENGTH, hidden) if way == "rows" else s.ints(batch, LENGTH, hidden))


def _guarded(s: Sketch, x: str) -> str:
    return s("Where", s("IsNaN", x), s.number(0), x)


def _mask(s: Sketch) -> str:
    """The summand of BERT's attention scores, from a mask of one number a token."""
    mask = s("Unsqueeze", s.input(BATCH, LENGTH), s.ints(1, 2))
    return s("Mul", s("Sub", s.number(1), mask), s.number(-10000))


def _write_attention(way: str, s: Sketch) -> str:
    return attend(s, *(s.input(BATCH, LENGTH, HIDDEN) for _ in range(3)), way)


def _write_projected(biases: str, way: str, s: Sketch) -> str:
    """Attention of projections of one tensor; ``biases`` names those that have a bias, and is "at once" where one product gives
    all three, as in GPT-2."""
    x, width = s.input(BATCH, LENGTH, HIDDEN + 2), HIDDEN + 2
    if biases == "at once":
        product = s("Add", s("MatMul", x, s.weight(width, 3 * HIDDEN)), s.weight(3 * HIDDEN))
        first = s("Split", product, s.ints(*[HIDDEN] * 3), axis=-1, outputs=3)
        return attend(s, first, f"{first}_1", f"{first}_2", way)
    products = {name: s("MatMul", x, s.weight(width, HIDDEN)) for name in "qkv"}
    return attend(s, *(s("Add", p, s.weight(HIDDEN)) if name in biases else p for name, p in products.items()), way)


def attend(s: Sketch, q: str, k: str, v: str, way: str) -> str:
    """Attention of [batch, length, hidden]; ``way`` lists what the exporter does about it."""
    root, scale = s.number(SIZE**-0.25), s.number(SIZE**-0.5)
    if "scaled-projection" in way:
        q = s("Mul", q, scale)
    q, k, v = _split(s, q), _split(s, k), _split(s, v)
    if "scaled-queries" in way:
        q = s("Mul", q, scale)
    k = _keys(s, k, "four" if "four" in way else "three")
    if "both-scaled" in way:
        q, k = s("Mul", q, root), s("Mul", k, root)
    scores = s("MatMul", q, k)
    if "quotient" in way:
        scores = s("Div", scores, s.number(SIZE**0.5))
    if "scaled-scores" in way:
        scores = s("Mul", scores, scale)
    if "bias" in way:
        scores = s("Add", scores, s.constant(np.zeros((1, HEADS, LENGTH, LENGTH), s.dtype)))
    elif "causal" in way:
        scores = s("Add", scores, _causal(s))
    elif "mask" in way:
        scores = s("Add", scores, s.input(BATCH, 1, 1 if "narrow" in way else LENGTH, LENGTH))
    probabilities = s("Softmax", scores, axis=-1)
    if "guard" in way:
        probabilities = _guarded(s, probabilities)
    context = s("MatMul", probabilities, v)
    if "clone" in way:  # a copy in torch, a Reshape to its own shape when exported
        context = s("Reshape", context, s.ints(BATCH, HEADS, LENGTH, SIZE))
    return _joined(s, context, "rows" if "rows" in way else "three")


def _write_keys_at_once(s: Sketch) -> str:
    """BERT of older exporters: keys are split and transposed at once, scores divided, the mask computed beside."""
    q, k, v = (s.input(BATCH, LENGTH, HIDDEN) for _ in range(3))
    keys = s("Transpose", s("Reshape", k, s.ints(BATCH, LENGTH, HEADS, SIZE)), perm=[0, 2, 3, 1])
    scores = s("Div", s("MatMul", _split(s, q), keys), s.number(SIZE**0.5))
    mask = s("Expand", _mask(s), s.ints(BATCH, 1, LENGTH, LENGTH))
    return _joined(s, s("MatMul", s("Softmax", s("Add", scores, mask), axis=-1), _split(s, v)))


# Rotary embedding and grouped heads


def _angles(s: Sketch, function: str, size: int = SIZE) -> str:
    """Cosines or sines for each position, [1, 1, length, size], of angles that are there twice."""
    half = np.outer(np.arange(LENGTH), 100.0 ** (-np.arange(0, size, 2) / size))
    angles = s.constant(np.concatenate([half, half], axis=1, dtype=np.float32)[None])
    return s("Unsqueeze", s.cast_back(s(function, angles)), s.ints(1))


def _rotated(s: Sketch, x: str, cos: str, sin: str, size: int = SIZE, way: str = "slice") -> str:
    if way == "split":
        first = s("Split", x, s.ints(size // 2, size // 2), axis=-1, outputs=2)
        second = f"{first}_1"
    else:
        ends = [s.ints(0), s.ints(size // 2), s.ints(np.iinfo(np.int64).max)]
        first, second = (s("Slice", x, ends[i], ends[i + 1], s.ints(3), s.ints(1)) for i in range(2))
    crossed = s("Concat", s("Neg", second), first, axis=-1)
    return s("Add", s("Mul", x, cos), s("Mul", crossed, sin))


def _write_rotary(way: str, s: Sketch) -> str:
    x = _split(s, s.input(1, LENGTH, HIDDEN), batch=1)  # the tables are of one sequence
    return _rotated(s, x, _angles(s, "Cos"), _angles(s, "Sin"), way=way)


_GROUPS, _EACH, _WIDE = 4, 3, 8
"""Key heads, query heads for each, and the size of a head."""


def _repeated(s: Sketch, x: str, way: str, batch: int, size: int) -> str:
    """Key or value heads, each for several query heads."""
    wide = s("Expand", s("Unsqueeze", x, s.ints(2)), s.ints(batch, _GROUPS, _EACH, LENGTH, size))
    return s("Reshape", wide, s.ints(*((-1,) if way == "keys" else (batch, _GROUPS * _EACH)), LENGTH, size))


def _write_grouped(way: str, s: Sketch) -> str:
    """Llama's attention: grouped heads, both operands scaled, a causal mask that is a constant."""
    q = _split(s, s.input(BATCH, LENGTH, _GROUPS * _EACH * _WIDE), _GROUPS * _EACH, _WIDE)
    k, v = (_split(s, s.input(BATCH, LENGTH, _GROUPS * _WIDE), _GROUPS, _WIDE) for _ in range(2))
    return _grouped(s, q, k, v, guard=way == "guard")


def _write_grouped_rotary(s: Sketch) -> str:
    """The same of one sequence, with queries and keys turned by their positions."""
    size = 4 * _WIDE
    q = s.input(1, _GROUPS * _EACH, LENGTH, size)
    k, v = (s.input(1, _GROUPS, LENGTH, size) for _ in range(2))
    angles = np.outer(np.arange(LENGTH), 100.0 ** (-np.arange(0, size, 2) / size))
    tables = (np.concatenate([f(angles)] * 2, axis=1)[None].astype(s.dtype) for f in (np.cos, np.sin))
    cos, sin = (s("Unsqueeze", s.constant(table), s.ints(1)) for table in tables)
    return _grouped(s, _rotated(s, q, cos, sin, size), _rotated(s, k, cos, sin, size), v, batch=1, size=size)


def _grouped(s: Sketch, q: str, k: str, v: str, guard: bool = False, batch: int = BATCH, size: int = _WIDE) -> str:
    """Causal attention of queries to keys and values of fewer heads."""
    heads, root = _GROUPS * _EACH, s.number(size**-0.25)
    flat = s("Transpose", _repeated(s, k, "keys", batch, size), perm=[0, 2, 1])
    keys = s("Reshape", flat, s.ints(batch, heads, size, LENGTH))
    scores = s("MatMul", s("Mul", q, root), s("Mul", keys, root))
    probabilities = s("Softmax", s("Add", scores, _causal(s)), axis=-1)
    if guard:
        probabilities = _guarded(s, probabilities)
    return _joined(s, s("MatMul", probabilities, _repeated(s, v, "values", batch, size)), hidden=heads * size, batch=batch)


def _causal(s: Sketch) -> str:
    hidden = np.where(np.tri(LENGTH, dtype=bool), 0, np.finfo(s.dtype).min).astype(s.dtype)
    return s.constant(hidden[None, None])


def _all() -> Iterator[Spelling]:
    simplified, layer, mha = "SimplifiedLayerNormalization", "LayerNormalization", "MultiHeadAttention"
    for half in (False, True):
        suffix = "-fp16" if half else ""

        def spelling(name: str, expected: str, write: Write, half: bool = half, suffix: str = suffix) -> Spelling:
            return Spelling(name + suffix, expected, write, half)

        for way in ("reciprocal", "quotient", "inverse", "power", "product"):
            yield spelling(f"rms-{way}", simplified, partial(_write_rms, way))
        yield spelling("rms-wide", simplified, _write_rms_wide)
        for way in ("power", "product", "reciprocal"):
            yield spelling(f"layer-norm-{way}", layer, partial(_write_layer_norm, way))
        for parts in ("", "sum", "bias", "bias-sum"):
            name = "-".join(filter(None, ("skip", parts)))
            yield spelling(f"{name}-layer", "SkipLayerNormalization", partial(_write_skip, _layer_operator, parts))
            yield spelling(f"{name}-layer-unshifted", "SkipLayerNormalization", partial(_write_skip, _layer_unshifted, parts))
            yield spelling(f"{name}-layer-spelled", "SkipLayerNormalization", partial(_write_skip, _layer_norm, parts))
            yield spelling(f"{name}-rms", "SkipSimplifiedLayerNormalization", partial(_write_skip, _rms, parts))
        for way in ("tanh", "tanh-product"):
            yield spelling(f"gelu-{way}", "FastGelu", partial(_write_gelu, way, False))
        yield spelling("gelu-tanh-bias", "FastGelu", partial(_write_gelu, "tanh", True))
        for way in ("erf", "erf-last", "erf-gate", "erf-factor"):
            yield spelling(f"gelu-{way}", "OrtGelu", partial(_write_gelu, way, False))
        yield spelling("gelu-erf-bias", "BiasGelu", partial(_write_gelu, "erf", True))
        yield spelling("gelu-bias", "BiasGelu", partial(_write_gelu_operator, "none", True))
        yield spelling("gelu-approximate-bias", "FastGelu", partial(_write_gelu_operator, "tanh", True))
        yield spelling("silu", "QuickGelu", partial(_write_silu, 1.0))
        yield spelling("quick-gelu", "QuickGelu", partial(_write_silu, 1.702))
        for way in (
            "both-scaled mask guard",
            "both-scaled bias guard",
            "both-scaled mask guard rows",
            "both-scaled bias",
            "mask",
            "scaled-projection",
            "scaled-projection clone",
            "four scaled-scores narrow mask",
            "four scaled-queries",
            "four scaled-queries mask",
            "four scaled-scores",
            "four scaled-scores mask",
            "four quotient",
            "four quotient mask",
            "both-scaled causal guard",
            "both-scaled causal guard rows",
            "four quotient causal",
        ):
            yield spelling(f"attention {way}".replace(" ", "-"), mha, partial(_write_attention, way))
        yield spelling("attention-keys-at-once", mha, _write_keys_at_once)
        if not half:  # types are found out before: in half precision it is the same once more
            for biases in ("", "qkv", "at once"):
                for way in ("four scaled-scores", "four scaled-scores mask"):
                    name = "-".join(["projected", *biases.split(), *way.split()])
                    yield spelling(name, "OrtAttention", partial(_write_projected, biases, way))
            yield spelling("projected-qv", "OrtAttention", partial(_write_projected, "qv", "four scaled-queries"))
        yield spelling("split-joined", simplified, _write_split_joined)
        for way in ("slice", "split"):
            yield spelling(f"rotary-{way}", "OrtRotaryEmbedding", partial(_write_rotary, way))
        for way in ("plain", "guard"):
            yield spelling(f"grouped-{way}", "GroupQueryAttention", partial(_write_grouped, way))
        yield spelling("grouped-rotary", "GroupQueryAttention", _write_grouped_rotary)


SPELLINGS: dict[str, Spelling] = {spelling.name: spelling for spelling in _all()}


def build(name: str) -> onnx.ModelProto:
    """The model of a spelling. Raises KeyError for an unknown name."""
    return SPELLINGS[name].build()


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder to write to.")
def main(out: Path) -> None:
    """Writes every spelling as OUT/NAME.onnx."""
    out.mkdir(parents=True, exist_ok=True)
    for name, spelling in SPELLINGS.items():
        onnx.save(spelling.build(), out / f"{name}.onnx")
    click.echo(f"{len(SPELLINGS)} spellings in {out}")


if __name__ == "__main__":
    main()
