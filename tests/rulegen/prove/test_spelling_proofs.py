"""What exporters spell out is proved equal to the operator that a runtime has for it; and the properties that this takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from mugraph.domains import Range, Real
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import AttrVar, Term, substitute, var
from mugraph.terms.text import Parser, parse_type
from rulegen.numeric.samples import arrange
from rulegen.prove.prover import Proof, Prover
from rulegen.show.equations import parse_equation, parse_let
from rules_db.trust.check import check
from rules_db.trust.condition import Facts, parse_condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

MEAN = "ReduceMean[axes=(-1,),keepdims=true]"
ROOT = f"Sqrt(Add({MEAN}(Pow(x, 2.0)), 1e-06))"
RMS = "RMSNormalization[axis=-1,epsilon=1e-06](x, g)"
SIMPLIFIED = RMS.replace("RMSNormalization", "SimplifiedLayerNormalization")
CENTRED = f"Sub(x, {MEAN}(x))"
DEVIATION = f"Sqrt(Add({MEAN}(Pow({CENTRED}, 2.0)), 1e-06))"
WIDE = "Cast[to=float](x)"
CUBE = "Mul(Add(x, Mul(Pow(x, 3.0), 0.044715)), 0.7978845608028654)"
ROWS = "x:float[b,s,n], g:float[n]"
HALF = "x:float16[b,s,n], g:float16[n]"
BIASED = "x:float[b,s,n], d:float[n]"
SKIP = "x:float[b,s,n], y:float[b,s,n], g:float[n], d:float[n], c:float[n]"
BOTH = "SkipLayerNormalization[bias=false,epsilon=1e-06,sum=true]"
SKIP_RMS = "SkipSimplifiedLayerNormalization[bias=true,epsilon=1e-06,sum=false]"
GEMM = "alpha=1.0,beta=1.0,transA=false,transB=false"
FLAT = f"Reshape[drop=2,shape=(1,s,o)](Gemm[{GEMM}](Reshape[drop=3,shape=(s,n)](x), w, d))"


def _heads(x: str, heads: str = "h") -> str:
    return f"Transpose[perm=(1,0,2)](Reshape[drop=1,shape=({heads},d)]({x}))"


def _keys(x: str) -> str:
    """Keys turned as three dimensions, heads and batch in one."""
    return f"Reshape[drop=3,shape=(b,h,d,s)](Transpose[perm=(1,0)](Reshape[drop=4,shape=(b*h,s,d)]({_heads(x)})))"


def _joined(x: str, width: str = "d*h") -> str:
    return f"Reshape[drop=2,shape=({width},)](Transpose[perm=(1,0,2)]({x}))"


def _guarded(scores: str, values: str) -> str:
    weights = f"Softmax[axis=-1]({scores})"
    return f"MatMul(Where(IsNaN({weights}), 0.0, {weights}), {values})"


def _multi_head(operands: str, scale: str = "0.25", given: str = "('attention_bias',)") -> str:
    rest = f"mask_filter_value=-10000.0,num_heads=h,present=false,scale={scale},unidirectional=false"
    return f"MultiHeadAttention[given={given},{rest}]({operands})"


def _causal_heads(operands: str) -> str:
    rest = "mask_filter_value=-10000.0,num_heads=h,present=false,scale=0.25,unidirectional=true"
    return f"MultiHeadAttention[given=(),{rest}]({operands})"


def _repeated(x: str, size: str = "d") -> str:
    """Four heads of each."""
    return f"Expand[shape=(1,g,4,s,{size})](Unsqueeze[axes=(-3,)]({x}))"


def _four(x: str) -> str:
    return f"Reshape[drop=4,shape=(4*g,s,8*d)]({_repeated(x, '8*d')})"


def _turned(x: str, cos: str, sin: str) -> str:
    first, second = (
        f"Slice[axes=(-1,),ends=({end},),starts=({start},),steps=(1,)]({x})" for start, end in ((0, "h"), ("h", "2*h"))
    )
    return f"Add(Mul({x}, {cos}), Mul(Concat[axis=-1](Neg({second}), {first}), {sin}))"


HALVED = "Slice[axes=(-1,),ends=(h,),starts=(0,),steps=(1,)]"
RAISED = "Unsqueeze[axes=(-3,)]"
SCALED = f"Add(MatMul(Mul({_heads('q')}, 0.5), Mul({_keys('k')}, 0.5)), m)"
HIDDEN = "q:float[b,s,d*h], k:float[b,s,d*h], v:float[b,s,d*h], m:float[1,1,s,s]"
GROUPED = "q:float[1,4*g,s,d], k:float[1,g,s,d], v:float[1,g,s,d], m:float[1,1,s,s]"
ANGLES = "x:float[1,n,l,2*h], c:float[1,l,2*h], s:float[1,l,2*h]"
ROTARY = "RotaryEmbedding[interleaved=false,num_heads=0]"

PROJECTED = [f"Add(MatMul(x, {w}), {b})" for w, b in ("wd", "ye", "zf")]
PACKED = (
    "OrtAttention[given=('attention_bias',),mask_filter_value=-10000.0,num_heads=h,qkv_hidden_sizes=(d*h,d*h,d*h),scale=0.25,"
    "unidirectional=false](x, Concat[axis=-1](w, y, z), Concat[axis=-1](d, e, f), m)"
)
WEIGHTS = "x:float[b,s,n], m:float[1,1,s,s], " + ", ".join(f"{w}:float[n,d*h], {b}:float[d*h]" for w, b in ("wd", "ye", "zf"))

SPELLINGS = {
    "rms reciprocal": (f"Mul(g, Mul(x, Reciprocal({ROOT})))", RMS, ROWS),
    "rms quotient": (f"Mul(Div(x, {ROOT}), g)", SIMPLIFIED, ROWS),
    "rms power": (f"Mul(g, Mul(x, Pow(Add({MEAN}(Mul(x, x)), 1e-06), -0.5)))", SIMPLIFIED, ROWS),
    "rms wide": (f"Mul(g, Cast[to=float16](Mul({WIDE}, Reciprocal({ROOT.replace('(x,', f'({WIDE},')}))))", SIMPLIFIED, HALF),
    "rms all wide": (f"Cast[to=float16](Mul(Cast[to=float](g), Div({WIDE}, {ROOT.replace('(x,', f'({WIDE},')})))", RMS, HALF),
    "layer": (
        f"Add(Mul(Div({CENTRED}, {DEVIATION}), g), d)",
        "LayerNormalization[axis=-1,epsilon=1e-06](x, g, d)",
        ROWS + ", d:float[n]",
    ),
    "gelu erf": ("Mul(x, Mul(0.5, Add(Erf(Div(x, 1.414213562373095)), 1.0)))", "OrtGelu(x)", "x:float[b,s,n]"),
    "gelu tanh": (f"Mul(0.5, Mul(x, Add(Tanh({CUBE}), 1.0)))", "FastGelu(x)", "x:float[b,s,n]"),
    "gelu bias": (
        f"Mul(Mul(x, 0.5), Add(Tanh({CUBE}), 1.0))".replace("x,", "Add(x, d),"),
        "FastGelu(x, d)",
        BIASED,
    ),
    "gelu wide": (
        "Mul(Mul(x, 0.5), Add(Cast[to=float16](Erf(Cast[to=float](Div(x, 1.414213562373095)))), 1.0))",
        "Gelu[approximate='none'](x)",
        "x:float16[b,s,n]",
    ),
    "silu": ("Mul(Sigmoid(x), x)", "QuickGelu[alpha=1.0](x)", "x:float[b,s,n]"),
    "skip": (
        "LayerNormalization[axis=-1,epsilon=1e-06](Add(x, y), g, d); Add(x, y)",
        f"{BOTH}.0(x, y, g, d); {BOTH}.1(x, y, g, d)",
        SKIP,
    ),
    "skip rms": ("RMSNormalization[axis=-1,epsilon=1e-06](Add(Add(x, c), y), g)", f"{SKIP_RMS}(x, y, g, c)", SKIP),
    "gemm plain": (
        f"Relu(Gemm[{GEMM}](x, w))",
        f"FusedGemm[activation='Relu',activation_params=(),{GEMM}](x, w)",
        "x:float[m,k], w:float[k,n]",
    ),
    "gemm of rows": (FLAT, "Add(MatMul(x, w), d)", "x:float[1,s,n], w:float[n,o], d:float[o]"),
    "scale": (
        "MatMul(Mul(q, 0.1), Mul(k, 0.7))",
        f"Mul(MatMul(q, k), {0.1 * 0.7!r})",
        "q:float[b,h,s,d], k:float[b,h,d,t]",
    ),
    "keys": (_keys("k"), "Transpose[perm=(1,2,0)](Reshape[drop=1,shape=(h,d)](k))", "k:float[b,s,d*h]"),
    "attention": (_joined(_guarded(SCALED, _heads("v"))), _multi_head("q, k, v, m"), HIDDEN),
    "attention wide": (
        _joined(f"MatMul(Cast[to=float16](Softmax[axis=-1](Cast[to=float]({SCALED}))), {_heads('v')})"),
        _multi_head("q, k, v, m"),
        HIDDEN.replace("float[", "float16["),
    ),
    "attention quotient": (
        _joined(
            f"MatMul(Softmax[axis=-1](Add(m, Div(MatMul({_heads('q')}, Transpose[perm=(1,0)]({_heads('k')})), 11.3))), "
            f"{_heads('v')})"
        ),
        _multi_head("q, k, v, m", repr(1 / 11.3)),
        HIDDEN,
    ),
    "attention of projections": (_multi_head(", ".join([*PROJECTED, "m"])), PACKED, WEIGHTS),
    "grouped heads": (
        _guarded(
            f"Add(Mul(MatMul(q, Reshape[drop=3,shape=(1,4*g,d,s)](Transpose[perm=(1,0)](Reshape[drop=5,shape=(4*g,s,d)]"
            f"({_repeated('k')})))), 0.25), m)",
            f"Reshape[drop=4,shape=(4*g,s,d)]({_repeated('v')})",
        ),
        "Attention[is_causal=false,kv_num_heads=0,mask='float',mask_axes=4,num_heads=0,scale=0.25](q, k, v, m)",
        GROUPED,
    ),
    "causal": (_multi_head("q, k, v, m"), _causal_heads("q, k, v"), HIDDEN),
    "causal heads": (
        _joined(
            f"MatMul(Softmax[axis=-1](Add(MatMul(Mul({_heads('q')}, 0.25), Transpose[perm=(1,0)]({_heads('k')})), m)), "
            f"{_heads('v')})"
        ),
        _causal_heads("q, k, v"),
        HIDDEN,
    ),
    "grouped causal": (
        _joined(
            f"MatMul(Softmax[axis=-1](Add(Mul(MatMul(q, Transpose[perm=(1,0)]({_four('k')})), 0.25), m)), {_four('v')})", "32*d*g"
        ),
        "GroupQueryAttention[kv_num_heads=g,num_heads=4*g,rotary_interleaved=false,scale=0.25]"
        f"({_joined('q', '32*d*g')}, {_joined('k', '8*d*g')}, {_joined('v', '8*d*g')})",
        "q:float[1,4*g,s,8*d], k:float[1,g,s,8*d], v:float[1,g,s,8*d], m:float[1,1,s,s]",
    ),
    "rotary": (_turned("x", f"{RAISED}(c)", f"{RAISED}(s)"), f"{ROTARY}(x, {HALVED}(c), {HALVED}(s))", ANGLES),
    "rotary angles": (
        _turned("x", f"{RAISED}(Cos(Concat[axis=-1](f, f)))", f"{RAISED}(Sin(Concat[axis=-1](f, f)))"),
        f"{ROTARY}(x, Cos(f), Sin(f))",
        "x:float[1,n,l,2*h], f:float[1,l,h]",
    ),
}


@cache
def _prover() -> Prover:
    return Prover()


def _rule(source: str, target: str, let: str) -> Rule | None:
    left, right = parse_equation(f"{source} = {target}")
    proof: Proof | None = _prover().certify(left, right, parse_let(let))
    if proof is None:
        return None
    return Rule(left, right, parse_let(let), proof.conditions, FloatClass.REASSOCIATES, proof.certificate)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_its_operator(name: str) -> None:
    rule = _rule(*SPELLINGS[name])
    assert rule is not None
    assert check(rule, load_axioms()) == []
    assert len(rule.certificate.instances) <= 24


@pytest.mark.parametrize(
    ("source", "target", "let"),
    [
        (f"Mul(g, Mul(x, Reciprocal({ROOT})))", RMS.replace("e-06", "e-05"), ROWS),
        (f"Mul(g, Mul(x, Reciprocal({ROOT.replace('Pow(x, 2.0)', 'x')})))", RMS, ROWS),
        (f"Mul(g, Cast[to=float16](Mul(Cast[to=int32]({WIDE}), 2)))", "Mul(g, Mul(x, 2.0))", HALF),
        ("MatMul(Mul(q, 0.1), Mul(k, 0.7))", "Mul(MatMul(q, k), 0.0701)", "q:float[s,d], k:float[d,t]"),
        (_turned("x", f"{RAISED}(c)", f"{RAISED}(s)"), f"{ROTARY}(x, {HALVED}(s), {HALVED}(c))", ANGLES),
        (_joined(_guarded(SCALED, _heads("v"))), _multi_head("q, k, v, m", "0.5"), HIDDEN),
        (_joined(_guarded(SCALED, _heads("v"))), _multi_head("k, q, v, m"), HIDDEN),
    ],
)
def test_another_operator_is_not_proved(source: str, target: str, let: str) -> None:
    assert _rule(source, target, let) is None


def test_what_a_spelling_needs_stands_among_the_conditions() -> None:
    wide = _rule(*SPELLINGS["rms wide"])
    rotary = _rule(*SPELLINGS["rotary"])
    guarded = _rule(*SPELLINGS["attention"])
    assert wide is not None and rotary is not None and guarded is not None
    assert "dtype(x, float16)" in map(str, wide.conditions)
    assert {"repeats(c, -1)", "repeats(s, -1)"} <= set(map(str, rotary.conditions))
    assert any(c.predicate == "not_nan" for c in guarded.conditions)


@pytest.mark.parametrize(("second", "answer"), [([1.0, 2.0], True), ([1.0, 2.5], False), ([1.0], False), (None, None)])
def test_that_a_table_repeats_is_known_of_constants_only(second: list[float] | None, answer: bool | None) -> None:
    value = None if second is None else np.asarray([[1.0, 2.0, *second]])
    facts = Facts(lambda term: parse_type("[1,4]"), lambda term: Range.top(), value_of=lambda term: value)
    assert parse_condition(Parser("repeats(x, -1)")).holds(facts) is answer


_SEEN = np.tri(3, dtype=bool)


@pytest.mark.parametrize(
    ("mask", "dtype", "answer"),
    [
        (np.where(_SEEN, 0.0, -np.inf), "float", True),
        (np.where(_SEEN, 0.0, -3.4e38)[None, None], "float", True),
        (np.where(_SEEN, 0.0, -65504.0), "float16", True),
        (np.where(_SEEN, 0.0, -65504.0), "float", False),  # scores may be as large
        (np.where(_SEEN, 0.0, -10000.0), "float16", False),
        (np.where(_SEEN, 1.0, -np.inf), "float", False),
        (np.where(_SEEN.T, 0.0, -np.inf), "float", False),
        (np.where(np.tri(3, 3, 1, dtype=bool), 0.0, -np.inf), "float", False),
        (np.where(np.tri(2, 3, 1, dtype=bool), 0.0, -np.inf), "float", False),
        (np.stack([np.where(_SEEN, 0.0, -np.inf), np.zeros((3, 3))]), "float", False),
        (np.zeros(3), "float", False),
        (np.broadcast_to(np.where(_SEEN, 0.0, -np.inf), (1000000, 1000, 3, 3)), "float", True),
        (np.broadcast_to(np.zeros((1, 1)), (2, 3, 3)), "float", False),  # hides nothing
        (np.broadcast_to(np.where(_SEEN, 0.0, -np.inf)[-1:], (3, 3)), "float", False),
        (_SEEN, "bool", True),
        (_SEEN.T, "bool", False),
        (np.tri(3, 3, 1, dtype=bool), "bool", False),
        (None, "float", None),
    ],
)
def test_a_causal_mask_is_known_of_constants_only(mask: np.ndarray | None, dtype: str, answer: bool | None) -> None:
    """Nothing hidden of what comes before, nothing seen of what comes after, in every part of a batch."""
    facts = Facts(lambda term: parse_type(f"{dtype}[3,3]"), lambda term: Range.top(), value_of=lambda term: mask)
    assert parse_condition(Parser("causal(m)")).holds(facts) is answer


def test_a_mask_is_proved_causal_where_it_says_so_only() -> None:
    """Onnxruntime's attention without a mask, causal, is not the one with a mask unless that is known of the mask."""
    for name in ("causal", "causal heads", "grouped causal"):
        proved = _rule(*SPELLINGS[name])
        assert proved is not None
        said = [c for c in proved.conditions if c.predicate in ("causal", "finite")]
        assert {c.predicate for c in said} == {"causal", "finite"}
        for condition in said:
            free = replace(proved, conditions=tuple(c for c in proved.conditions if c != condition))
            assert check(free, load_axioms())
    source, _, types = SPELLINGS["causal heads"]
    assert _rule(source, _causal_heads("q, k, q"), types) is None


# The properties of onnxruntime's operators, which hold by definition, on operands that they take

_SKIP = {"x": "[2,3,4]", "y": "[2,3,4]", "g": "[4]", "b": "[4]", "c": "[4]"}
_GEMM: tuple[dict[str, str], dict[str, Any]] = (
    {"x": "[2,3]", "y": "[4,3]", "z": "[4]"},
    {"a": 0.5, "b": 1.0, "p": False, "q": True, "c": 0.25, "d": 0.5},
)
_EMBED = {
    "w": "[9,4]",
    "p": "[7,4]",
    "g": "[4]",
    "b": "[4]",
    "i": "int32[2,3]",
    "t": "[2,4]",
    "j": "int32[2,3]",
}
_SIZES = {"c": 0.3, "h": 2, "d": 4, "e": 6, "u": False}
_HIDDEN = {"q": "[2,3,8]", "k": "[2,5,8]", "v": "[2,5,12]", "m": "[2,1,3,5]", "b": "[28]"}
_PACKED = {"x": "[2,5,6]", "w": "[6,28]", "b": "[28]", "m": "[2,1,5,5]"}
_PARTS = {"x": "[2,5,6]", "w": "[6,8]", "y": "[6,8]", "z": "[6,12]", "b": "[8]", "d": "[8]", "e": "[12]", "m": "[2,1,5,5]"}
_FOUR = {"q": "[2,4,3,8]", "k": "[2,2,5,8]", "v": "[2,2,5,6]", "m": "[1,4,3,5]"}
_SAME = {"q": "[2,4,5,8]", "k": "[2,4,5,8]", "v": "[2,4,5,6]", "m": "[1,4,5,5]"}
_BESIDE = {"q": "[2,3,16]", "k": "[2,5,8]", "v": "[2,5,12]", "w": "[3,5]"}
_QUERIES = {"q": "[2,5,32]", "k": "[2,5,16]", "v": "[2,5,16]"}
_TABLES = {"q": "[2,5,64]", "k": "[2,5,32]", "v": "[2,5,32]", "w": "[7,8]", "s": "[7,8]"}
_GROUPS = {"t": 2, "h": 4, "g": 2, "l": 5, "d": 8, "e": 6, "c": 0.3, "u": False, "s": "float", "a": 4}
SAMPLES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "gemm": _GEMM,
    "skip": (_SKIP, {"e": 0.1, "f": False}),
    "skip_rms_bias": (_SKIP, {"e": 0.1, "f": True}),
    "embed": (_EMBED, {"e": 0.1, "f": True, "n": 3}),
    "heads": (_HIDDEN, {**_SIZES, "m": 8, "n": 12}),
    "heads_mask": (_HIDDEN, {**_SIZES, "l": 8, "n": 12}),
    "heads_causal": ({"q": "[2,5,8]", "k": "[2,5,8]", "v": "[2,5,12]"}, {**_SIZES, "l": 5, "m": 8, "n": 12}),
    "heads_bias": (_HIDDEN, {**_SIZES, "l": 8, "m": 8, "n": 12}),
    "heads_bias_mask": (_HIDDEN, {**_SIZES, "l": 8, "o": 8, "n": 12}),
    "packed": (_PACKED, {**_SIZES, "l": 8, "m": 8, "n": 12}),
    "packed_mask": (_PACKED, {**_SIZES, "l": 8, "o": 8, "n": 12}),
    "packed_parts": (_PARTS, {**_SIZES, "l": 8, "m": 8, "n": 12}),
    "packed_parts_mask": (_PARTS, {**_SIZES, "l": 8, "o": 8, "n": 12}),
    "grouped": (_FOUR, _GROUPS),
    "attention_causal": (_SAME, {"c": 0.3, "l": 5}),
    "attention_visible": ({**_FOUR, "k": "[2,4,5,8]", "v": "[2,4,5,6]", "m": "bool[3,5]"}, {"c": 0.3, "a": 2}),
    "attention_bias": ({**_FOUR, "k": "[2,4,5,8]", "v": "[2,4,5,6]", "m": "[4,3,5]"}, {"c": 0.3, "a": 3}),
    "beside": (_BESIDE, {**_GROUPS, "d": 4, "l": 16, "m": 12, "n": 24, "a": 2}),
    "group_query": (_QUERIES, {**_GROUPS, "m": 16, "d": 8}),
    "group_query_rotary": (_TABLES, {**_GROUPS, "i": True, "m": 64, "d": 16, "b": 2}),
    "group_heads": (_QUERIES, {**_GROUPS, "m": 32, "d": 8}),
    "group_rotary": (
        {"q": "[1,5,64]", "k": "[1,5,32]", "v": "[1,5,32]", "w": "[5,8]", "s": "[5,8]"},
        {**_GROUPS, "i": True, "d": 16},
    ),
    "hidden_heads": ({**{x: "[2,5,8]" for x in "qk"}, "v": "[2,5,12]", "m": "[2,1,5,5]"}, {"c": 0.3, "h": 2}),
    "rotary_turned": ({"x": "[2,4,3,8]", "c": "[2,3,4]", "s": "[2,3,4]"}, {"n": 8, "h": 4}),
}
DEFINITIONS = {name: axiom for name, axiom in load_axioms().items() if axiom.family == "fused"}


def _inputs(types: Mapping[str, TensorType]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    drawn: dict[str, np.ndarray] = {}
    for name, type_ in types.items():
        shape = tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]
        if type_.dtype == DataType.INT32:
            drawn[name] = generator.integers(0, 2, shape)
        else:
            numbers = generator.normal(size=shape)
            drawn[name] = numbers > 0 if type_.dtype == DataType.BOOL else numbers
    return drawn


@pytest.mark.parametrize("name", DEFINITIONS)
def test_decompositions_hold(name: str) -> None:
    """Where the conditions hold both sides have one type and equal values, and other operands give others."""
    axiom = DEFINITIONS[name]
    texts, values = SAMPLES[max((key for key in SAMPLES if name.removeprefix("fused.").startswith(key)), key=len)]
    types = {variable: parse_type(texts[variable]) for variable in axiom.variables}
    attrs = {a: values[a] for a in axiom.attr_variables}
    sides = [substitute(side, {}, attrs) for side in (axiom.left, axiom.right)]
    known = infer_types(sides, types)
    assert known[sides[0]] == known[sides[1]]
    facts = Facts(lambda term: infer_types([term], types)[term], lambda term: Range.top())
    of_types = [c for c in axiom.conditions if not c.guard.of_values]
    assert all(condition.substitute({}, attrs).holds(facts) for condition in of_types)
    inputs = arrange(_inputs(types), axiom.conditions)
    results = evaluate(sides, Real(), inputs)
    np.testing.assert_allclose(results[sides[0]], results[sides[1]], rtol=1e-9, atol=1e-9)
    wrong = substitute(axiom.right, {v: Term("Neg", (), (var(v),), 0) for v in ("x", "v", "k", "p") if v in types}, attrs)
    assert not np.allclose(results[sides[0]], evaluate([wrong], Real(), inputs)[wrong], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "name", [n for n, a in DEFINITIONS.items() if any(c.predicate in ("dim", "product") for c in a.conditions)]
)
def test_decompositions_say_what_sizes_they_need(name: str) -> None:
    """The sizes in the decomposition are those of the operands: another one breaks a condition."""
    axiom = DEFINITIONS[name]
    texts, values = SAMPLES[max((key for key in SAMPLES if name.removeprefix("fused.").startswith(key)), key=len)]
    types = {variable: parse_type(texts[variable]) for variable in axiom.variables}
    facts = Facts(lambda term: infer_types([term], types)[term], lambda term: Range.top())
    sized = {a.name for c in axiom.conditions if c.predicate in ("dim", "product") for a in c.arguments if isinstance(a, AttrVar)}
    for changed in sized:
        attrs = {a: values[a] + (a == changed) for a in axiom.attr_variables if not isinstance(values[a], str)}
        attrs |= {a: values[a] for a in axiom.attr_variables if isinstance(values[a], str)}
        assert not all(condition.substitute({}, attrs).holds(facts) for condition in axiom.conditions), changed
