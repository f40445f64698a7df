"""Of each grown group a rule that TASO lacks, and a part of a model that costs more without it (docs/taso.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mugraph.onnx import Model, load
from mugraph.terms.term import walk
from rulegen.prune.derive import ONE_STEP, Deriver
from rulegen.workloads import GROUPS
from rules_db.library import shipped_rules
from rules_db.trust.rule import Rule
from tools.bench.search import measure

TASO_FILE = frozenset(["Add", "Concat", "Conv", "MatMul", "Mul", "Relu", "Split"])
"""The operators of the 133 rules that TASO ships."""
TASO_DEPTH = 4
"""The operators that a side of a rule has at most where TASO enumerates."""


@dataclass(frozen=True)
class Profit:
    """A rule, and a part of a model.

    Attributes:
        rule: what its identity begins with.
        ends: inputs and outputs.
        body: nodes, in ONNX's notation.
        weights: shapes, or arrays that are meant as they stand.
        number: of the weights that are given as shapes.
    """

    rule: str
    ends: tuple[str, str]
    body: str
    weights: dict[str, Any] = field(default_factory=dict)
    number: type = np.float32

    def model(self) -> Model:
        inputs, outputs = self.ends
        header = '<ir_version: 10, opset_import: ["" : 21]>'
        proto = onnx.parser.parse_model(f"{header} part ({inputs}) => ({outputs}) {{ {self.body} }}")
        generator = np.random.default_rng(0)
        for name, weight in self.weights.items():
            array = generator.standard_normal(weight).astype(self.number) if isinstance(weight, tuple) else weight
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return load(onnx.shape_inference.infer_shapes(proto))


PROFITS = {
    # Attention and feed-forward of GPT-NeoX read one tensor, each behind a normalisation of its own.
    "normal": Profit(
        "df5026fb",
        ("float[1,128,256] x", "float[1,128,768] y, float[1,128,1024] z"),
        "a = LayerNormalization<axis=-1, epsilon=1e-5>(x, g, b) m = MatMul(a, w) y = Add(m, p) "
        "c = LayerNormalization<axis=-1, epsilon=1e-5>(x, h, d) n = MatMul(c, v) z = Add(n, q)",
        {**dict.fromkeys("ghbd", (256,)), "w": (256, 768), "v": (256, 1024), "p": (768,), "q": (1024,)},
    ),
    # A linear layer with an adapter (LoRA).
    "lowrank": Profit(
        "62f8f1f1",
        ("float[128,512] x", "float[128,512] y"),
        "l = MatMul(x, w) m = MatMul(x, a) n = MatMul(m, b) s = Mul(n, c) y = Add(l, s)",
        {"w": (512, 512), "a": (512, 16), "b": (16, 512), "c": np.float32(2)},
    ),
    # The router of a mixture of experts, guarded as torch exports softmax.
    "guard": Profit(
        "6d879951",
        ("float[1,4096,512] x", "float[1,4096,64] y"),
        "l = MatMul(x, w) s = Softmax<axis=-1>(l) n = IsNaN(s) y = Where(n, c, s)",
        {"w": (512, 64), "c": np.float32(0)},
    ),
    # The activation of MobileNetV3 as exporters wrote it before opset 14.
    "activation": Profit(
        "575efe14",
        ("float[1,64,56,56] x", "float[1,64,56,56] y"),
        "a = Add(x, three) c = Clip(a, zero, six) p = Mul(x, c) y = Div(p, six)",
        {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)},
    ),
    # Attention's probabilities, written out.
    "attention": Profit(
        "5c21a9c5",
        ("float[8,12,128,128] x", "float[8,12,128,128] y"),
        "e = Exp(x) r = ReduceSum<keepdims=1>(e, axes) y = Div(e, r)",
        {"axes": np.array([-1])},
    ),
    # A block of ResNet in half precision.
    "layout": Profit(
        "3d59cbea",
        ("float16[1,64,56,56] x", "float16[1,64,56,56] y"),
        "a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a) c = Conv<pads=[1,1,1,1]>(r, v, d) s = Add(c, x) y = Relu(s)",
        {"w": (64, 64, 3, 3), "v": (64, 64, 3, 3), "b": (64,), "d": (64,)},
        np.float16,
    ),
    # A fire module of SqueezeNet: kernels 1x1 and 3x3 over one image, each with a bias.
    "conv": Profit(
        "859a788d",
        ("float16[1,48,27,27] x", "float16[1,384,27,27] y"),
        "a = Conv(x, w, b) r = Relu(a) c = Conv<pads=[1,1,1,1]>(x, v, d) s = Relu(c) y = Concat<axis=1>(r, s)",
        {"w": (192, 48, 1, 1), "v": (192, 48, 3, 3), "b": (192,), "d": (192,)},
        np.float16,
    ),
    # The sum of what a layer makes of each word.
    "linear": Profit(
        "021fe8c8",
        ("float[8,128,256] x", "float[8,1,256] y"),
        "m = MatMul(x, w) y = ReduceSum<keepdims=1>(m, axes)",
        {"w": (256, 256), "axes": np.array([1])},
    ),
    # Queries, keys and values of BERT as onnxruntime's quantiser writes them.
    "quantized": Profit(
        "03723414",
        ("float[8,64,32] x", "int32[8,64,32] a, int32[8,64,32] b, int32[8,64,32] c"),
        "q, s, z = DynamicQuantizeLinear(x) a = MatMulInteger(q, u, z) b = MatMulInteger(q, v, z) c = MatMulInteger(q, w, z)",
        {name: np.random.default_rng(0).integers(-127, 128, (32, 32)).astype(np.int8) for name in "uvw"},
    ),
    # A layer of a decoder whose weights have four bits, in blocks.
    "packed": Profit(
        "3fe88eee",
        ("float16[1,1,256] x", "float16[1,1,512] y"),
        "d = DequantizeLinear<axis=0, block_size=32>(q, s) y = MatMul(x, d)",
        {"q": np.zeros((256, 512), onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.INT4)), "s": (8, 512)},
        np.float16,
    ),
    # Behind the first sum of a network that activates before it takes the greatest of each window.
    "taso": Profit(
        "2067bfd6",
        ("float16[1,64,112,112] x, float16[1,64,112,112] z", "float16[1,64,56,56] y"),
        "a = Add(x, z) r = Relu(a) y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(r)",
    ),
}


MODELS = {
    # A layer of DETR's encoder: positions are added to what queries and keys are made of, and the values share the product.
    "linear-positions": Profit(
        "5f9e9145",
        ("float16[1,850,256] x", "float16[1,850,256] q, float16[1,850,256] k, float16[1,850,256] v"),
        "e = Add(x, p) a = MatMul(e, w) q = Add(a, b) c = MatMul(e, u) k = Add(c, d) f = MatMul(x, t) v = Add(f, g)",
        {"p": (1, 850, 256), **dict.fromkeys("wut", (256, 256)), **dict.fromkeys("bdg", (256,))},
        np.float16,
    ),
    # UniFormer's positions: an image and a depthwise convolution of it.
    "conv-beside-itself": Profit(
        "83084bd4",
        ("float16[1,128,28,28] x", "float16[1,128,28,28] y"),
        "c = Conv<pads=[1,1,1,1], group=128>(x, w, b) y = Add(x, c)",
        {"w": (128, 1, 3, 3), "b": (128,)},
        np.float16,
    ),
    # The patches of a vision transformer, as rows.
    "conv-patches-biased": Profit(
        "61678907",
        ("float16[1,3,224,224] x", "float16[1,196,768] y"),
        "c = Conv<strides=[16,16]>(x, w, b) r = Reshape(c, s) y = Transpose<perm=[0,2,1]>(r)",
        {"w": (768, 3, 16, 16), "b": (768,), "s": np.array([1, 768, 196])},
        np.float16,
    ),
    # wav2vec 2.0's positions: sixteen groups, kernels of 128 entries; their bias may as well be added behind.
    "conv-windows-groups": Profit(
        "cd153081",
        ("float16[1,768,49] x", "float16[1,768,50] y"),
        "c = Conv<pads=[64,64], group=16>(x, w) y = Relu(c)",
        {"w": (768, 48, 128)},
        np.float16,
    ),
    # The second convolution of Whisper's encoder, which goes on with rows.
    "conv-windows-image": Profit(
        "bee79596",
        ("float16[1,512,3000] x", "float16[1,1500,512] y"),
        "c = Conv<strides=[2], pads=[1,1]>(x, w, b) g = Gelu(c) y = Transpose<perm=[0,2,1]>(g)",
        {"w": (512, 512, 3), "b": (512,)},
        np.float16,
    ),
    # SAM's patches, as an image whose channels are last, and its positions.
    "conv-patches-last": Profit(
        "3c113ca3",
        ("float16[1,3,512,512] x", "float16[1,32,32,768] y"),
        "c = Conv<strides=[16,16]>(x, w, b) t = Transpose<perm=[0,2,3,1]>(c) y = Add(t, p)",
        {"w": (768, 3, 16, 16), "b": (768,), "p": (1, 32, 32, 768)},
        np.float16,
    ),
}
"""Parts of whole models that profit, by the part of a group whose rule it is (docs/taso.md)."""


@cache
def grown() -> tuple[Rule, ...]:
    """What ships of the groups that are grown; what is spelled or mined recognises some of it, too."""
    return tuple(rule for rule in shipped_rules() if rule.provenance.get("group") in GROUPS)


def the_rule(group: str, profits: dict[str, Profit] = PROFITS) -> Rule:
    """The rule of a group, or of a part of one."""
    (rule,) = (rule for rule in grown() if rule.id.startswith(profits[group].rule))
    assert rule.provenance["group"] == group.split("-")[0]
    return rule


def without(rule: Rule) -> list[Rule]:
    """The grown rules that do not say the same in one step."""
    about = operators([rule])
    others = [other for other in grown() if other is not rule]
    same = Deriver([other for other in others if operators([other]) <= about], ONE_STEP)
    while found := same.derivation(rule, rule.conditions):
        for other in found:
            same.remove(other)
            others.remove(other)
    return others


def operators(rules: Iterable[Rule]) -> set[str]:
    return {term.op for rule in rules for term in walk([*rule.source, *rule.target])} - {"Var", "Const"}


def test_each_group_that_ships_has_one() -> None:
    assert set(PROFITS) == {name for name, parts in GROUPS.items() if all(part.ships for part in parts)}


@pytest.mark.parametrize("group", PROFITS)
def test_taso_lacks_it(group: str) -> None:
    """It names an operator, or has a bias, that no rule of TASO's file has, or is larger than what TASO enumerates."""
    rule = the_rule(group)
    biased = any(term.op == "Conv" and len(term.inputs) > 2 for term in walk([*rule.source, *rule.target]))
    large = max(sum(term.size for term in side) for side in (rule.source, rule.target)) > TASO_DEPTH
    assert operators([rule]) - TASO_FILE or biased or large


@pytest.mark.parametrize("group", PROFITS)
def test_a_model_profits(group: str) -> None:
    model, rule = PROFITS[group].model(), the_rule(group)
    costs = [measure(model, rules, "h200", frozenset(), expansions=40).cost for rules in (grown(), without(rule))]
    assert costs[0] < 0.95 * costs[1], costs


@pytest.mark.parametrize("part", MODELS)
def test_a_whole_model_has_such_parts(part: str) -> None:
    model, rule = MODELS[part].model(), the_rule(part, MODELS)
    costs = [measure(model, rules, "h200", frozenset(), expansions=40).cost for rules in (grown(), without(rule))]
    assert costs[0] < 0.95 * costs[1], costs
