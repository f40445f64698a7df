"""Terms as kernels: what they become, that they compute the same, and the rules that they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.interp import evaluate_body
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import retyped, specialised
from mugraph.blocks.statements import Compute, Dot, Load, Predicate, Reduce
from mugraph.domains.real import Real
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import parse_term
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.fuse.scope import Form
from rulegen.share.audit import audit
from rules_db.exchange import RuleTextError, format_rule, parse_rule
from rules_db.trust.check import check
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import interpret, kernel_of_rule
from tests.support.fusing import (
    ATTENTION,
    CAUSAL,
    HALF,
    HEADS,
    INFINITE,
    RMS,
    fusable_of,
    graph_of,
    kinds,
    types_of,
)
from tests.support.kernel_help import content
from tools.fuzz.interpreter import Interpreter

ROTATED = (
    "Add(Mul({0}, c), Mul(Concat[axis=-1](Neg(Slice[axes=(-1,),ends=(4,),starts=(2,),steps=(1,)]({0})), "
    "Slice[axes=(-1,),ends=(2,),starts=(0,),steps=(1,)]({0})), s))"
)
PAIRS = (
    "Add(Mul({0}, c), Mul(Reshape[drop=2,shape=(4,)](Concat[axis=-1]("
    "Unsqueeze[axes=(-1,)](Neg(Slice[axes=(-1,),ends=(4,),starts=(1,),steps=(2,)]({0}))), "
    "Unsqueeze[axes=(-1,)](Slice[axes=(-1,),ends=(4,),starts=(0,),steps=(2,)]({0})))), s))"
)
"""Rotary embedding whose pairs stand side by side, as GPT-J and Cohere have it."""


def built(shapes: Mapping[str, Sequence[int]], texts: Sequence[str], form: Form | None = None) -> Kernel:
    return lower("k", types_of(shapes), [(f"y{i}", parse_term(t)) for i, t in enumerate(texts)], form or Form())


def checked(kernel: Kernel) -> Block:
    """The kernel computes its body in fields and floats, and provably; its one block graph."""
    assert interpret(kernel, 3, 0) is None
    assert why_not_proved(kernel) is None
    (block,) = kernel.blocks
    return block


# Lowering


def test_statistics_of_rows_stand_before_a_product_or_beside_it() -> None:
    shapes, text = {"x": (3, 6), "w": (6, 8)}, f"MatMul({RMS.format('x')}, w)"
    before, beside = checked(built(shapes, [text])), checked(built(shapes, [text], Form(accumulated=True)))
    assert [a.monoid for a in before.accumulators] == ["sum"] and [a.monoid for a in beside.accumulators] == ["sum", "sum"]
    assert [axis for axis, _ in beside.axes] == ["m", "k", "n"] and "w" in before.sizes


def test_a_shift_of_the_rows_cannot_stand_behind_the_product() -> None:
    shapes, text = {"x": (3, 6), "g": (6,), "b": (6,), "w": (6, 8)}, "MatMul(LayerNormalization(x, g, b), w)"
    checked(built(shapes, [text]))
    with pytest.raises(NotFusable, match="joins a value of the loop and an accumulated one"):
        built(shapes, [text], Form(accumulated=True))


def test_lora_is_one_loop() -> None:
    shapes = {"x": (3, 6), "w": (6, 8), "a": (6, 2), "b": (2, 8)}
    block = checked(built(shapes, ["Add(MatMul(x, w), MatMul(MatMul(x, a), b))"]))
    assert kinds(block, Dot) == 3 and len(block.accumulators) == 2
    assert sum(isinstance(s, Load) and s.tensor == "x" for s in block.statements) == 1


def test_gated_products_share_their_operand() -> None:
    shapes = {"x": (3, 6), "w": (6, 8), "v": (6, 8)}
    block = checked(built(shapes, ["Mul(Mul(MatMul(x, w), Sigmoid(MatMul(x, w))), MatMul(x, v))"]))
    assert kinds(block, Dot) == 2 and block.grid == ("m", "n")


def test_rows_with_two_results() -> None:
    shapes = {"x": (2, 3, 6), "r": (2, 3, 6), "g": (6,), "b": (6,)}
    block = checked(built(shapes, ["Add(x, r)", "LayerNormalization(Add(x, r), g, b)"]))
    assert block.grid == ("m",) and block.sizes["m"] == 6 and len(block.stores) == 2  # batch and rows are one axis


@pytest.mark.parametrize("guarded", [False, True])
def test_heads_are_read_and_written_in_place(guarded: bool) -> None:
    q, k, v = (HEADS.format(x) for x in "qkv")
    scores = f"Add(MatMul(Mul({q}, 0.5), Transpose[perm=(1,0)]({k})), m)"
    weights = f"Softmax[axis=-1]({scores})"
    weights = f"Where(IsNaN({weights}), 0, {weights})" if guarded else weights
    shapes = {"q": (2, 5, 12), "k": (2, 7, 12), "v": (2, 7, 12), "m": (2, 1, 5, 7)}
    block = checked(built(shapes, [f"Reshape[drop=2,shape=(12,)](Transpose[perm=(1,0,2)](MatMul({weights}, {v})))"]))
    assert [a.monoid for a in block.accumulators] == ["softmax"] and block.grid == ("b1", "b0", "s")
    assert len(block.loads) == 4


def test_softmax_spelt_out_is_attention_too() -> None:
    scores = "Exp(MatMul(q, k))"
    text = f"MatMul(Div({scores}, ReduceSum[axes=(-1,),keepdims=true]({scores})), v)"
    block = checked(built({"q": (2, 5, 4), "k": (2, 4, 7), "v": (2, 7, 4)}, [text]))
    assert [a.monoid for a in block.accumulators] == ["softmax"]


SHIFTED = "Exp(Sub(MatMul(q, k), ReduceMax[axes=(-1,),keepdims=true](MatMul(q, k))))"
WEIGHTS = "Softmax[axis=-1](MatMul(q, k))"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (f"FusedMatMul[transB=true]({WEIGHTS}, v)", (2, 4, 7)),
        (f"FusedMatMul[alpha=0.5]({WEIGHTS}, v)", (2, 7, 4)),
        (f"MatMul(Div({SHIFTED}, ReduceSum[axes=(-1,),keepdims=true]({SHIFTED})), v)", (2, 7, 4)),
    ],
)
def test_the_scores_of_a_softmax_are_computed_once(text: str, values: tuple[int, ...]) -> None:
    """Whichever operator the product is, and where the softmax is spelt out with the greatest of each row."""
    block = checked(built({"q": (2, 5, 4), "k": (2, 4, 7), "v": values}, [text]))
    assert [a.monoid for a in block.accumulators] == ["softmax"] and kinds(block, Dot) == 1 and kinds(block, Reduce) == 0


BIASED = {x: HEADS.format(f"Add({x}, b{x})") for x in "qkv"}
BIASED_SHAPES = {"q": (2, 5, 12), "k": (2, 7, 12), "v": (2, 7, 12), "bq": (12,), "bk": (12,), "bv": (12,)}


@pytest.mark.parametrize(
    "scores",
    [
        "MatMul({q}, {k})",
        "Add(m, Div(MatMul({q}, {k}), 2.0))",
        "Sub(Mul(0.5, MatMul({q}, {k})), m)",
        "Where(Greater(m, 0.0), MatMul({q}, {k}), -inf)",
        "Where(CausalMask[columns=7,rows=5](), Mul(MatMul({q}, {k}), 0.5), -inf)",
    ],
)
@pytest.mark.parametrize("guarded", [False, True])
def test_what_every_key_has_is_not_seen_by_the_softmax(scores: str, guarded: bool) -> None:
    """Nor is what every value has part of the sum: the weights sum to one."""
    weights = "Softmax[axis=-1]({})".format(scores.format(q=BIASED["q"], k=f"Transpose[perm=(1,0)]({BIASED['k']})"))
    weights = f"Where(IsNaN({weights}), 0, {weights})" if guarded else weights
    kernel = built({**BIASED_SHAPES, "m": (5, 7)}, [f"MatMul({weights}, {BIASED['v']})"])
    block = checked(kernel)
    (softmax,) = block.accumulators
    (product,) = [s for s in block.statements if isinstance(s, Dot)]
    assert all(isinstance(block.defined[name], Load) for name in (product.right, softmax.operands[1]))
    assert {load.tensor for load in block.loads} - {"m"} == set(BIASED_SHAPES) - {"bk"}
    assert {t.name for t in kernel.inputs} - {"m"} == set(BIASED_SHAPES)  # the body has it


@pytest.mark.parametrize(
    ("scores", "bias"),
    [
        ("MatMul({q}, {k})", (7, 12)),  # another one for every key
        ("Tanh(MatMul({q}, {k}))", (12,)),
        ("Where(Greater(m, 0.0), MatMul({q}, {k}), -5.0)", (12,)),
        ("Mul(MatMul({q}, {k}), m)", (12,)),
        ("Div(2.0, MatMul({q}, {k}))", (12,)),
        ("Add(MatMul({q}, {k}), Sigmoid(MatMul({q}, {k})))", (12,)),
    ],
)
def test_what_every_key_has_stays_where_the_softmax_sees_it(scores: str, bias: tuple[int, ...]) -> None:
    text = scores.format(q=BIASED["q"], k=f"Transpose[perm=(1,0)]({BIASED['k']})")
    shapes = {**BIASED_SHAPES, "bk": bias, "bv": bias, "m": (5, 7)}
    block = checked(built(shapes, [ATTENTION.format(text, BIASED["v"])]))
    assert "bk" in {load.tensor for load in block.loads}
    (softmax,) = block.accumulators
    assert isinstance(block.defined[softmax.operands[1]], Load) == (bias == (12,))


def test_all_entries_are_reduced_in_one_loop() -> None:
    """No axis is cut into blocks: the loop goes over the entries as they are in memory, and a split makes blocks of it."""
    block = checked(built({"x": (5, 6)}, [INFINITE.format("Cast[to=float](x)")]))
    assert block.grid == () and block.sizes == {block.loop: 30} and [a.monoid for a in block.accumulators] == ["max"]
    for axes in ("(-2,-1)", "(-1,-2)"):
        mean = f"Sqrt(ReduceMean[axes={axes},keepdims=true](Mul(x, Transpose[perm=(1,0)](y))))"
        assert checked(built({"x": (5, 6), "y": (6, 5)}, [mean])).accumulators[0].monoid == "sum"
    flags = {"b": TensorType(DataType.BOOL, (5, 6))}
    counted = "Cast[to=float](ReduceSum[axes=(-2,-1),keepdims=true](Cast[to=int64](b)))"
    checked(lower("k", flags, [("y", parse_term(counted))]))
    several = ["ReduceSum[axes=(-2,-1),keepdims=true](x)", "ReduceMax[axes=(-2,-1),keepdims=true](Abs(x))"]
    assert len(checked(built({"x": (5, 6)}, several)).accumulators) == 2


def test_what_one_loop_cannot_reduce_is_refused() -> None:
    total = "ReduceSum[axes=(-2,-1),keepdims=false]({0})"
    for text, reason in (
        (INFINITE.format("Mul(x, x)"), "would not overflow in 32 bits"),
        (INFINITE.format("Cast[to=float](Mul(x, x))"), "would not overflow in 32 bits"),
        (INFINITE.format("Cast[to=float16](Cast[to=float](x))"), "would not overflow in 32 bits"),
        (total.format("Sub(x, ReduceMax[axes=(-2,-1),keepdims=true](x))"), "accumulate"),
        (f"Add({total.format('x')}, {total.format('y')})", "different numbers of entries"),
        ("ReduceMin[axes=(-2,-1),keepdims=false](x)", "an accumulated minimum"),
        ("Cast[to=float](ReduceMax[axes=(-2,-1),keepdims=false](Cast[to=int64](x)))", "ReduceMax of integers"),
    ):
        with pytest.raises(NotFusable, match=reason):
            built({"x": (5, 6), "y": (3, 4)}, [text])
    flags = {"b": TensorType(DataType.BOOL, (1 << 13, 1 << 12))}  # more than 32-bit floats count
    with pytest.raises(NotFusable, match="ReduceSum of integers"):
        lower("k", flags, [("y", parse_term(f"Cast[to=float]({total.format('Cast[to=int64](b)')})"))])


def test_a_kernel_that_overlooks_infinities_is_found_wrong() -> None:
    kernel = built({"x": (5, 6)}, [INFINITE.format("x")])
    (block,) = kernel.blocks
    never = parse_term("Cast[to=int64](IsNaN(x_tile))")
    statements = [replace(s, term=never) if isinstance(s, Compute) and "IsInf" in repr(s.term) else s for s in block.statements]
    assert statements != list(block.statements)
    wrong = replace(kernel, blocks=(replace(block, statements=tuple(statements)),))
    assert "differs in floats" in (interpret(wrong, 3, 0) or "")


def test_a_causal_mask_is_computed_from_positions() -> None:
    kernel = built({"q": (2, 5, 4), "k": (2, 7, 4), "v": (2, 7, 4)}, [ATTENTION.format(CAUSAL, "v")])
    block = checked(kernel)
    (softmax,) = block.accumulators
    assert {load.tensor for load in block.loads} == {"q", "k", "v"} and isinstance(block.defined[softmax.keep or ""], Predicate)


def test_a_causal_mask_elsewhere_is_computed_too() -> None:
    either = "Softmax[axis=-1](Where(Or(CausalMask[columns=6,rows=6](), b), x, -2.0))"
    types = {**types_of({"x": (4, 6, 6)}), "b": TensorType(DataType.BOOL, (6,))}
    block = checked(lower("k", types, [("y", parse_term(either))]))
    assert kinds(block, Predicate) == 1 and not block.accumulators
    heads = "Reshape[drop=2,shape=(12,)](Where(CausalMask[columns=6,rows=2](), x, 0.0))"
    assert kinds(checked(built({"x": (3, 2, 6)}, [f"Relu({heads})"])), Predicate) == 1


def test_grouped_heads_of_a_composite_operator_are_read_in_place() -> None:
    call = "Attention[is_causal=true,kv_num_heads=0,mask='',mask_axes=0,num_heads=0,scale=0.5](q, k, v)"
    block = checked(built({"q": (2, 4, 6, 4), "k": (2, 2, 6, 4), "v": (2, 2, 6, 4)}, [call]))
    assert len(block.loads) == 3 and block.accumulators[0].keep is not None
    assert any(f.index.divide == 2 for load in block.loads for f in load.view)
    grouped = "GroupQueryAttention[kv_num_heads=2,num_heads=4,rotary_interleaved=false,scale=0.5].0(q, k, v, w, s)"
    shapes = {"q": (1, 6, 64), "k": (1, 6, 32), "v": (1, 6, 32), "w": (9, 8), "s": (9, 8)}
    rotated = checked(built(shapes, [grouped]))
    assert rotated.accumulators[0].keep is not None and kinds(rotated, Dot) == 1
    near = grouped.replace("num_heads=4", "local_window_size=3,num_heads=4")
    block = checked(built(shapes, [near]))
    (seen,) = (s for s in block.statements if isinstance(s, Predicate) and s.name == block.accumulators[0].keep)
    assert len(seen.conditions) == 2, "of a window both sides are conditions of positions"
    (fusable,) = propose(graph_of(shapes, {}, [grouped]))
    assert KernelBuilder().build(fusable).rule.source == fusable.terms


@pytest.mark.parametrize("rotated", [ROTATED, PAIRS], ids=["halves", "pairs"])
def test_rotary_embedding_is_a_prologue_of_attention(rotated: str) -> None:
    q, k = (rotated.format(HEADS.format(x)) for x in "qk")
    shapes = {x: (1, 5, 12) for x in "qkv"} | {"c": (1, 1, 5, 4), "s": (1, 1, 5, 4)}
    text = ATTENTION.format(f"MatMul({q}, Transpose[perm=(1,0)]({k}))", HEADS.format("v"))
    checked(built(shapes, [text]))


def test_a_rotary_embedding_at_all_positions_is_a_prologue_of_attention() -> None:
    """onnxruntime's operator takes positions: all of them in their order are computed, and rows of the tables read in place."""

    def rotated(x: str) -> str:
        return f"OrtRotaryEmbedding[interleaved=false,num_heads=0]({HEADS.format(x)}, Positions[length=5](), c, s)"

    text = ATTENTION.format(f"MatMul({rotated('q')}, Transpose[perm=(1,0)]({rotated('k')}))", HEADS.format("v"))
    shapes = {x: (1, 5, 12) for x in "qkv"} | {"c": (9, 2), "s": (9, 2)}
    block = checked(built(shapes, [text]))
    assert {load.tensor for load in block.loads} == set(shapes)
    sets = [
        f for f in propose(graph_of(shapes, {}, [text])) if "OrtRotaryEmbedding" in str(f.terms) and "Softmax" in str(f.terms)
    ]
    assert any(f.terms == (parse_term(text),) or len(f.operands) == len(shapes) for f in sets)
    assert all("Positions[length=5]()" in str(f.terms) for f in sets)


@pytest.mark.parametrize(
    "part", ["ends=(16,),starts=(1,),steps=(2,)", "ends=(15,),starts=(4,),steps=(4,)", "ends=(16,),starts=(9,),steps=(8,)"]
)
def test_every_so_many_entries_are_read_in_place(part: str) -> None:
    block = checked(built({"x": (4, 16)}, [f"Relu(Slice[axes=(-1,),{part}](x))"]))
    assert [load.tensor for load in block.loads] == ["x"]


def test_grouped_heads_share_keys() -> None:
    def shared(x: str) -> str:
        split = f"Unsqueeze[axes=(-3,)](Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(2,4)]({x})))"
        return f"Reshape[drop=4,shape=(4,5,4)](Expand[shape=(1,2,2,5,4)]({split}))"

    text = ATTENTION.format(f"MatMul(q, Transpose[perm=(1,0)]({shared('k')}))", shared("v"))
    block = checked(built({"q": (1, 4, 5, 4), "k": (1, 5, 8), "v": (1, 5, 8)}, [text]))
    divided = [f for load in block.loads if load.tensor == "k" for f in load.view if f.index.divide == 2]
    assert [f.index.axis for f in divided] == ["b0"]


@pytest.mark.parametrize(
    "shapes, text, reason",
    [
        ({"x": (3, 6), "w": (6, 8)}, "MatMul(CumSum[axis=-1](x), w)", "neither elementwise nor a movement"),
        ({"x": (3, 6), "w": (4, 3), "v": (6, 4)}, "MatMul(x, MatMul(v, w))", "the right operand of a product is one"),
        ({"x": (2, 6), "w": (6,)}, "MatMul(x, w)", "a product with a vector"),
        ({"x": (4, 6)}, "ReduceSum[axes=(-2,),keepdims=true](x)", "other than along a row"),
        ({"x": (4, 6)}, "Softmax[axis=-2](x)", "other than along a row"),
        ({"x": (3, 8), "y": (4, 8)}, "Add(x, y)", "ShapeError: "),
        ({"x": (4, 6)}, "Slice[axes=(-1,),ends=(6,),starts=(0,),steps=(4,)](Relu(x))", "every 4th of 6 entries"),
    ],
)
def test_what_cannot_be_fused_says_why(shapes: dict[str, tuple[int, ...]], text: str, reason: str) -> None:
    with pytest.raises(NotFusable, match=reason):
        built(shapes, [text])


def test_generated_code_reads_and_writes_in_place() -> None:
    """Rolled halves, exchanged pairs, heads stored transposed, statistics beside the product: in Triton's interpreter."""
    q, k, pair_q, pair_k = (form.format(HEADS.format(x)) for form in (ROTATED, PAIRS) for x in "qk")
    heads = {x: (1, 5, 12) for x in "qkv"} | {"c": (1, 1, 5, 4), "s": (1, 1, 5, 4)}
    rotated = ATTENTION.format(f"MatMul({q}, Transpose[perm=(1,0)]({k}))", HEADS.format("v"))
    paired = ATTENTION.format(f"MatMul({pair_q}, Transpose[perm=(1,0)]({pair_k}))", HEADS.format("v"))
    shared = {"x": (1, 5, 20), "u": (20, 12), "b": (12,), "w": (20, 12)}
    split = ["Mul(" + HEADS.format("Add(MatMul(x, u), b)") + ", 0.5)", HEADS.format("MatMul(x, w)")]
    cases = [
        (built(heads, [f"Reshape[drop=2,shape=(12,)](Transpose[perm=(1,0,2)]({rotated}))"]), {"s": 16, "t": 16}),
        (built(heads, [paired]), {"s": 16, "t": 16}),
        (built(shared, split), {"m": 16, "n": 16, "k": 16}),
        (
            built({"x": (3, 20), "w": (20, 8)}, [f"MatMul({RMS.format('x')}, w)"], Form(accumulated=True)),
            {"m": 16, "n": 16, "k": 16},
        ),
    ]
    interpreter = Interpreter()
    try:
        for kernel, tiles in cases:
            generator = np.random.default_rng(0)
            x = {t.name: generator.standard_normal([int(d) for d in t.type.shape]).astype(np.float16) for t in kernel.inputs}
            given = interpreter.run(kernel, [Schedule(tuple(tiles.items()))], x)
            wanted = evaluate_body(kernel, Real(), {name: a.astype(np.float64) for name, a in x.items()})
            for a, b in zip(given, wanted, strict=True):
                np.testing.assert_allclose(a.astype(np.float64), b, rtol=1e-2, atol=2e-2)
    finally:
        interpreter.close()


# Rules of kernels, and interpretation as evidence


def test_interpretation_finds_a_wrong_view() -> None:
    kernel = built({"x": (3, 6), "w": (6, 6)}, ["MatMul(x, w)"])
    (block,) = kernel.blocks
    wrong = [replace(s, view=s.view[::-1]) if isinstance(s, Load) and s.tensor == "w" else s for s in block.statements]
    kernel = replace(kernel, blocks=(replace(block, statements=tuple(wrong)),))
    assert "y0 differs" in (interpret(kernel, 3, 0) or "")


def test_sizes_become_symbols_and_come_back() -> None:
    builder = KernelBuilder()
    fusable = fusable_of({"x0": (16, 64), "x1": (64, 64)}, "Relu(MatMul(x0, x1))")
    own = kernel_of_rule(builder.build(fusable).rule)
    rule = builder.general(fusable)
    general = kernel_of_rule(rule)
    assert own is not None and general is not None
    assert [str(t) for t in rule.types.values()] == ["float16[d0,d1]", "float16[d1,d2]"]
    assert specialised(general, {"d0": 16, "d1": 64, "d2": 64}) == own


def test_nothing_is_built_of_tensors_without_entries() -> None:
    with pytest.raises(NotFusable, match="without entries"):
        KernelBuilder().build(fusable_of({"x0": (16, 0), "x1": (0, 64)}, "Relu(MatMul(x0, x1))"))


def test_a_multi_level_rule_reads_back_and_is_audited() -> None:
    rule = KernelBuilder().general(fusable_of({"x0": (16, 64), "x1": (64, 32)}, "Relu(MatMul(x0, x1))"))
    text = format_rule(rule)
    assert parse_rule(text) == rule and format_rule(parse_rule(text)) == text and not check(rule, {})
    read, made = kernel_of_rule(parse_rule(text)), kernel_of_rule(rule)
    assert read is not None and made is not None and content(read) == content(made)
    assert audit([rule]).passed
    assert any("too few" in reason for reason in check(parse_rule(text.replace("tests=3", "tests=1")), {}))
    with pytest.raises(RuleTextError, match="is not the one in the line 'kernel'"):
        parse_rule(text.replace("y0_value = Relu(total)", "y0_value = Neg(total)"))
    with pytest.raises(RuleTextError, match="is not the one in the line 'kernel'"):
        parse_rule("".join(line for line in text.splitlines(keepends=True) if not line.startswith("  kernel")))


def test_a_rule_whose_source_is_not_the_body_is_refuted() -> None:
    rule = KernelBuilder().general(fusable_of({"x0": (16, 64), "x1": (64, 32)}, "Relu(MatMul(x0, x1))"))
    other = replace(rule, source=(parse_term("Neg(MatMul(x0, x1))"),))
    assert check(other, {}) == ["the kernel's body is not the source"]


def test_a_kernel_of_another_type_has_numbers_as_they_are_written() -> None:
    kernel = KernelBuilder().build(fusable_of({"x0": (16, 64), "x1": (64, 64)}, "MatMul(Mul(x0, 0.0999755859375), x1)")).general
    single = retyped(kernel, {HALF: DataType.FLOAT})
    assert repr(single.body) == f"(MatMul(Mul(x0, {float(np.float32(0.1))!r}), x1),)" and interpret(single, 3, 0) is None
    assert {t.type.dtype for t in (*single.inputs, *single.outputs)} == {DataType.FLOAT}
    assert retyped(single, {DataType.FLOAT: HALF}) == kernel and retyped(kernel, {}) == kernel
    largest = KernelBuilder().build(fusable_of({"x0": (16, 64), "x1": (64, 64)}, "MatMul(Mul(x0, 65504.0), x1)")).general
    assert repr(retyped(largest, {HALF: DataType.FLOAT}).body) == "(MatMul(Mul(x0, 65500.0), x1),)"


def test_parts_of_what_is_packed_have_symbols() -> None:
    """Queries, keys and values of one product: five widths of keys in front of the values, six together."""
    values = "Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(4,128)](Split[axis=-1,sizes=(2560,512)].1(x1)))"
    shared = f"Reshape[drop=4,shape=(16,128,128)](Expand[shape=(1,4,4,128,128)](Unsqueeze[axes=(-3,)]({values})))"
    fusable = fusable_of({"x0": (1, 16, 128, 128), "x1": (1, 128, 3072)}, f"MatMul(Softmax[axis=-1](x0), {shared})")
    general = KernelBuilder().build(fusable).general
    assert [str(t.type) for t in general.inputs] == ["float16[d0,d1*d2,d3,d4]", "float16[d0,d4,6*d1*d5]"]


def test_a_width_is_so_many_heads_of_any_size() -> None:
    """At the sizes of the model alone these would be too many entries to interpret."""
    attrs = "given=('attention_bias',),mask_filter_value=-10000.0,num_heads=12,present=false,scale=0.125,unidirectional=false"
    width = (8, 512, 768)
    fusable = fusable_of(
        {"x0": width, "x1": width, "x2": width, "x3": (8, 1, 512, 512)}, f"MultiHeadAttention[{attrs}](x0, x1, x2, x3)"
    )
    built = KernelBuilder().build(fusable)
    assert "num_heads=12" in repr(built.general.body[0]) and built.general.symbols
    assert built.rule.source == fusable.terms
