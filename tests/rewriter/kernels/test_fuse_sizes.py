"""Sizes of fusable sets as symbols: what operators ask of them and nothing else, and rules that serve other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx.parser import parse_model

from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import Factor, Index, Load
from mugraph.deadline import BudgetSpent, Deadline
from mugraph.graph import Graph
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.text import parse_term
from rewriter import optimize
from rewriter.kernels.fuse import kernels
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.fuse.sizes import VARIANTS, Variant, generalised, untold
from rewriter.kernels.fuse.symbols import SizeSymbols
from rewriter.kernels.proposals import KernelProposals
from rewriter.search.directions import is_made_here
from rules_db.trust.check import check
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import interpret, kernel_of_rule
from rules_db.trust.rule import Rule
from tests.support.fusing import fusable_of, graph_of, moves_for

HALF = DataType.FLOAT16
NONE, BIASED = "given=()", "given=('attention_bias',)"
MHA = "MultiHeadAttention[{},mask_filter_value=-10000.0,num_heads={},present=false,scale=0.125,unidirectional=false]"
PACKED = "Reshape[drop=2,shape=(768,)](Reshape[drop=1,shape=(12,64)](Split[axis=-1,sizes=(768,768,768)].{}({})))"
SUM = "Reshape[drop=2,shape=(8,512,2304)](Add(x0, x1))"
TURNED = "Concat[axis=-1](Neg(Slice[axes=(-1,),ends=(64,),starts=(32,),steps=(1,)](x0)), {})"
FIRST = "Slice[axes=(-1,),ends=(32,),starts=(0,),steps=(1,)](x0)"
TABLES = "Add(x0, Slice[axes=(-2,),ends=(128,),starts=(0,),steps=(1,)](x1))"
GROUPED = "GroupQueryAttention[kv_num_heads=4,num_heads=16,rotary_interleaved=false,scale=0.088]({}, {}, {}, x1, x2)"
PARTS = [f"Split[axis=-1,sizes=(512,2048,512)].{i}(x0)" for i in (1, 2, 0)]


def typed(rule: Rule) -> list[str]:
    return [str(type_).removeprefix("float16") for type_ in rule.types.values()]


HEADS = "Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(6,16)](x0))"
HALVES = [f"Slice[axes=(-1,),ends=({end},),starts=({end - 8},),steps=(1,)]({HEADS})" for end in (8, 16)]
ROTATED = f"OrtRotaryEmbedding[interleaved=false,num_heads=0]({HALVES[0]}, Positions[length=24](), x1, x2)"
PARTLY = f"Reshape[drop=2,shape=(96,)](Transpose[perm=(1,0,2)](Concat[axis=-1]({ROTATED}, {HALVES[1]})))"
PAIRS = [f"Slice[axes=(-1,),ends=(16,),starts=({start},),steps=(2,)]({HEADS})" for start in (0, 1)]
EXCHANGED = "Reshape[drop=2,shape=(16,)](Concat[axis=-1](Unsqueeze[axes=(-1,)](Neg({1})), Unsqueeze[axes=(-1,)]({0})))"
EVERY = "Relu(Slice[axes=(-1,),ends=({},),starts=(2,),steps=(3,)](x0))"


CASES: dict[str, tuple[Mapping[str, Sequence[int]], str, list[str]]] = {
    "a batch of 8, 512 positions, 12 heads of 64: none is a power of another": (
        {"x0": (4096, 2304), "x1": (2304,), "x2": (8, 12, 512, 512)},
        f"{MHA.format(BIASED, 12)}({', '.join(PACKED.format(i, SUM) for i in range(3))}, x2)",
        ["[d0*d1,36*d2]", "[36*d2]", "[d0,12,d1,d1]"],
    ),
    "as many heads as the batch is large": (
        {"x0": (8, 512, 1536), "x1": (8, 8, 512, 512)},
        f"{MHA.format(BIASED, 8)}({', '.join(f'Split[axis=-1,sizes=(512,512,512)].{i}(x0)' for i in range(3))}, x1)",
        ["[d0,d1,24*d2]", "[d0,8,d1,d1]"],
    ),
    "rows are batch times positions, which an attribute tells": (
        {"x0": (4096, 3072), "x1": (3072,)},
        "Relu(Reshape[drop=2,shape=(8,512,3072)](Add(x0, x1)))",
        ["[d0*d1,d2]", "[d2]"],
    ),
    "pairs that stand side by side, exchanged": (
        {"x0": (2, 24, 96), "x1": (2, 6, 24, 16)},
        f"Mul({EXCHANGED.format(*PAIRS)}, x1)",
        ["[d0,d1,2*d2*d3]", "[d0,d2,d1,2*d3]"],
    ),
    "every third entry": ({"x0": (8, 12)}, EVERY.format(12), ["[d0,3*d1]"]),
    "every third entry of some": ({"x0": (8, 12)}, EVERY.format(9), ["[d0,12]"]),
    "a batch of one": (
        {"x0": (1, 128, 768), "x1": (1, 128, 768), "x2": (768,), "x3": (768,)},
        "LayerNormalization[axis=-1](Add(x0, x1), x2, x3)",
        ["[d0,d1,d2]", "[d0,d1,d2]", "[d2]", "[d2]"],
    ),
    "one is what is broadcast": (
        {"x0": (8, 12, 64, 64), "x1": (1, 1, 64, 64)},
        "Softmax[axis=-1](Add(x0, x1))",
        ["[d0,d1,d2,d3]", "[1,1,d2,d3]"],
    ),
    "rows of one are split into a batch of one and positions": (
        {"x0": (128, 2304)},
        "Relu(Reshape[drop=2,shape=(1,128,2304)](x0))",
        ["[d0*d1,d2]"],
    ),
    "query heads share keys, and tables are half a head wide": (
        {"x0": (1, 128, 3072), "x1": (128, 64), "x2": (128, 64)},
        GROUPED.format(*PARTS),
        ["[d0,d1,384*d2]", "[d1,8*d2]", "[d1,8*d2]"],
    ),
    "rotary embeddings at all positions, whose number an attribute tells": (
        {"x0": (1, 128, 768), "x1": (128, 32), "x2": (128, 32)},
        "OrtRotaryEmbedding[interleaved=false,num_heads=12](x0, Positions[length=128](), x1, x2)",
        ["[1,d0,24*d1]", "[d0,d1]", "[d0,d1]"],
    ),
    "heads that are made and counted, half of each rotated": (
        {"x0": (1, 24, 96), "x1": (24, 4), "x2": (24, 4)},
        f"{MHA.format(NONE, 6)}({PARTLY}, x0, x0)",
        ["[1,d0,96]", "[d0,4]", "[d0,4]"],
    ),
    "halves that change places": ({"x0": (8, 64)}, TURNED.format(FIRST), ["[d0,2*d1]"]),
    "the first part of an axis in front of rows": (
        {"x0": (2, 7, 5, 12), "x1": (12, 16)},
        "MatMul(Split[axis=-3,sizes=(2,5)].0(x0), x1)",
        ["[d0,d1+d2,d3,d4]", "[d4,d5]"],
    ),
    "the first part of a row that was reduced": (
        {"x0": (16, 64)},
        "Slice[axes=(-1,),ends=(48,),starts=(0,),steps=(1,)](Softmax[axis=-1](x0))",
        ["[d0,d1+d2]"],
    ),
    "a longer table than is read": ({"x0": (2, 128, 64), "x1": (512, 64)}, TABLES, ["[d0,d1,d2]", "[d1+d3,d2]"]),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes_are_apart_as_far_as_operators_allow(case: str) -> None:
    shapes, text, wanted = CASES[case]
    builder, fusable = KernelBuilder(), fusable_of(shapes, text)
    rule = builder.general(fusable)
    assert typed(rule) == wanted and not check(rule, {})
    general, own = kernel_of_rule(rule), kernel_of_rule(builder.build(fusable).rule)
    assert general is not None and own is not None and own.body == fusable.terms and not own.symbols
    assert builder.build(fusable).general == general


def test_what_is_stored_is_what_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of a kernel that was proved, where those of the first draft are wrong."""
    builder, fusable = KernelBuilder(), fusable_of({"x0": (16, 64), "x1": (64, 32)}, "Relu(MatMul(x0, x1))")
    wrong = builder.draft(fusable).general
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "why_not_proved", lambda kernel: "it differs" if kernel == wrong else why_not_proved(kernel))
        patch.setattr(kernels, "interpret", lambda *_: "it differs")
        built = builder.build(fusable, proved=True)
        with pytest.raises(NotFusable, match="it differs"):
            builder.build(fusable)
        stored = builder.stored(built.rule)
    assert built.general != wrong
    assert stored is not None and kernel_of_rule(stored) == built.general


def test_a_kernel_for_rotary_embeddings_serves_other_numbers_of_positions() -> None:
    shapes, text, _ = CASES["rotary embeddings at all positions, whose number an attribute tells"]
    rule = KernelBuilder().general(fusable_of(shapes, text))
    other = {"x0": (1, 40, 768), "x1": (40, 32), "x2": (40, 32)}
    graph = graph_of(other, {}, [text.replace("length=128", "length=40")])
    (found,) = (direction for direction, _ in KernelProposals(lambda: [rule]).known(graph))
    kernel = kernel_of_rule(found.rule)
    assert kernel is not None and not kernel.symbols and kernel.inputs[0].type.shape == (1, 40, 768)


def test_products_side_by_side_stay_of_one_width() -> None:
    """Their results have the same axes, which no operator asks for."""
    fusable = fusable_of({"x0": (8, 512, 768), "x1": (768, 768), "x2": (768, 768)}, "MatMul(x0, x1)")
    fusable = type(fusable)((0, 1), (*fusable.terms, parse_term("MatMul(x0, x2)")), fusable.operands, fusable.types, 2)
    assert typed(KernelBuilder().general(fusable)) == ["[d0,d1,d2]", "[d2,d3]", "[d2,d3]"]


def test_a_batch_of_one_leaves_no_axis_behind() -> None:
    """The kernel with the sizes put back is the one that is built for them."""
    shapes, text, _ = CASES["as many heads as the batch is large"]
    one = {name: (1, *shape[1:]) for name, shape in shapes.items()}
    fusable = fusable_of(one, text)
    built = KernelBuilder().build(fusable)
    own = kernel_of_rule(built.rule)
    assert own is not None and own.blocks == lower(own.name, fusable.types, [("y0", fusable.terms[0])]).blocks
    assert len(built.general.blocks[0].grid) == len(own.blocks[0].grid) + 1
    assert interpret(specialised(built.general, {"d0": 1}), 3, 0) is None
    single = specialised(built.general, {"d0": 1, "d1": 1})
    assert len(single.blocks[0].grid) == 1 and interpret(single, 3, 0) is None


def test_an_axis_of_one_that_more_than_a_place_rests_on_stays() -> None:
    """Which keys a query sees is asked of its position; rows that are read in turn are not at their own place."""
    causal = MHA.format(NONE, 2).replace("unidirectional=false", "unidirectional=true")
    kernel = (
        KernelBuilder().build(fusable_of({"x0": (2, 8, 16), "x1": (2, 8, 16), "x2": (2, 8, 16)}, f"{causal}(x0, x1, x2)")).general
    )
    one = specialised(kernel, {"d0": 1, "d1": 1})
    assert kernel.blocks[0].grid == ("b1", "b0", "s") and one.blocks[0].grid == ("b0", "s") and interpret(one, 3, 0) is None
    kernel = KernelBuilder().build(fusable_of({"x0": (8, 16), "x1": (16, 4)}, "MatMul(x0, x1)")).general
    (block,) = kernel.blocks
    turned = [
        replace(s, view=(Factor(Index("m", shift=1, modulo=symbol("d0")), symbol("d0")), *s.view[1:]))
        if isinstance(s, Load) and s.tensor == "x0"
        else s
        for s in block.statements
    ]
    assert specialised(kernel, {"d0": 1}).blocks[0].grid == ("n",)
    rolled = replace(kernel, blocks=(replace(block, statements=tuple(turned)),))
    assert specialised(rolled, {"d0": 1}).blocks[0].grid == ("m", "n")


def test_a_models_own_symbols_are_sizes_as_others() -> None:
    batch, length = symbol("d0"), symbol("seq")
    types = {"x0": TensorType(HALF, (batch * length, 768)), "x1": TensorType(HALF, (768,))}
    terms = [parse_term("Relu(Reshape[drop=2,shape=(d0,seq,768)](Add(x0, x1)))")]
    found = generalised(terms, types, VARIANTS[0])
    assert found is not None and sorted(map(str, found.sizes.values())) == ["768", "d0", "seq"]
    assert [str(t) for t in found.types.values()] == ["float16[d0*d1,d2]", "float16[d2]"]
    assert found.sizes["d0"] == batch


def test_what_cannot_be_solved_keeps_its_size() -> None:
    """Groups of 6 and 4 entries as 8 and 3: no dimension is a product of others."""
    types = {"x0": TensorType(HALF, (5, 6, 4))}
    found = generalised([parse_term("Relu(Reshape[drop=2,shape=(8,3)](x0))")], types, Variant(True, True))
    assert found is not None and found.sizes == {"d0": 5}
    assert [str(t) for t in found.types.values()] == ["float16[d0,6,4]"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_beginning_of_a_part_that_keeps_its_size_asks_for_nothing(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left behind the beginning is a number: a symbol for it was found to be that number, over and over."""
    fresh = SizeSymbols.fresh

    def limited(symbols: SizeSymbols, value: Dim) -> Dim:
        assert len(symbols.values) < 100, "one symbol after another"
        return fresh(symbols, value)

    monkeypatch.setattr(SizeSymbols, "fresh", limited)
    outer = "Slice[axes=(-1,),ends=(34,),starts=(2,),steps=(1,)](x0)"
    inner = parse_term(f"Slice[axes=(-1,),ends=(16,),starts=(0,),steps=(1,)]({outer})")
    found = generalised([inner], {"x0": TensorType(HALF, (5, 35))}, variant)
    assert found is not None and found.terms == (inner,) and found.sizes == {"d0": 5}


def test_finding_symbols_ends_with_the_time_of_its_run() -> None:
    ended = Deadline()
    ended.end()
    with ended.heeded(), pytest.raises(BudgetSpent):
        generalised([parse_term("Relu(x0)")], {"x0": TensorType(HALF, (5, 6))}, VARIANTS[0])


def test_a_symbol_that_no_place_tells_is_none_of_a_stored_rule() -> None:
    type_ = TensorType(HALF, (symbol("a") * symbol("b"), symbol("b") + symbol("c")))
    (relu,) = terms = [parse_term("Relu(x0)")]
    assert untold(terms, {"x0": type_}) == {"a", "b", "c"}
    assert untold([parse_term("Reshape[drop=1,shape=(b,c)](x0)")], {"x0": type_}) == set()
    assert untold([relu], {"x0": TensorType(HALF, (symbol("b"), symbol("a") * symbol("a") * symbol("b")))}) == {"a"}


def layers(batch: int, length: int, width: int = 32) -> Graph:
    shape = (batch, length, width)
    scores = "MatMul(Add(MatMul(x, w), b), Transpose[perm=(1,0)](Add(MatMul(x, v), c)))"
    texts = [f"LayerNormalization(Add(MatMul(Softmax(Add({scores}, m)), x), x), g, h)"]
    weights = {"w": (width, width), "v": (width, width), "b": (width,), "c": (width,), "g": (width,), "h": (width,)}
    return graph_of({"x": shape, "m": (batch, length, length)}, weights, texts)


@pytest.mark.parametrize("first, then", [((8, 64), (1, 24)), ((1, 24), (8, 64)), ((1, 32), (4, 16)), ((1, 16), (2, 4))])
def test_what_is_learned_at_one_size_serves_another(
    first: tuple[int, int], then: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a batch is as large as something else by chance; nothing is built the second time.

    Of few rows weights are turned (`rewriter.kernels.turned`), so that these are learned from few.
    """
    graph, other = layers(*first), layers(*then)
    moves, proposals = moves_for(), KernelProposals()
    best = min(proposals.children(moves, moves.start(graph)), key=lambda child: child.cost)
    stored = proposals.winning_rules(best)
    assert len(stored) >= 2
    monkeypatch.setattr("rewriter.kernels.proposals.propose", lambda graph: iter(()))
    moves = moves_for()
    again = min(KernelProposals(lambda: stored).children(moves, moves.start(other)), key=lambda child: child.cost)
    taken = [move.direction.rule for move in again.moves if not is_made_here(move.direction.rule)]
    assert {rule.provenance["kernel"] for rule in taken} == {rule.id for rule in stored}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("body", "shapes", "options"),
    [
        # A Split into parts of fixed sizes of what has a dynamic size: nobody knows the sizes of the parts.
        (
            """g (float[3,7] a, float[7,N] b, float[3,M] c, float[3,7] d) => (float[3,p] y) {
                sizes = Constant<value_ints = [3, 3, 7]>() s, t, u = Split<axis = 1>(b, sizes)
                m = MatMul(a, s) y = Add(m, c) }""",
            {"b": (7, 13), "c": (3, 1)},
            {"device": "h100"},
        ),
        # Triton has no powers of what is computed; in C there is one.
        ("g (float[8,7] x) => (float[8,7] y) { s = Softmax(x) y = Pow(s, x) }", {}, {"device": "h100"}),
        ("g (float[3,3] x) => (float[3,3] y) <float c = {0.044715}> { t = Tanh(x) y = Pow(c, t) }", {}, {"device": "h100"}),
        # Kernels write no doubles.
        ("g (float[8,8] x) => (double[8,8] y) { h = HardSigmoid(x) y = Cast<to = 11>(h) }", {}, {"device": "h100"}),
        # An operator without a bias that comes with a place for one, behind which its definition asks for a shape.
        (
            "g (float[4,32] x, float[4,32] z) => (float[4,32] y) { g = com.microsoft.Gelu(x) y = Add(z, g) }",
            {},
            {"device": "h100"},
        ),
        # A size that no dimension of an operand tells the run-time library: of an operand that is tiled.
        (
            """g (float[N,6,N] a, float[N,3] b, int8[6,3] w, float[3] f) => (float[p,q,3] y)
                <int64[3] k = {2, 1, 2}, int8 zero = {0}> {
                m = MatMul(a, b) t = Tile(m, k) q, s, z = DynamicQuantizeLinear(t) i = MatMulInteger(q, w, z, zero)
                c = Cast<to = 1>(i) r = Mul(s, f) y = Mul(c, r) }""",
            {"a": (3, 6, 3), "b": (3, 3)},
            {"device": "h100"},
        ),
        # A product whose operand is read as it lies in a larger tensor, and along which no schedule goes.
        (
            """g (float[M,N,12,20] x, float[12,M] w, bool[8] b, float c) => (float[M,12,N,M] y)
                <int64[2] k = {8, 12}, float low = {-inf}> {
                s, t = Split<axis = 3>(x, k) u = Transpose<perm = [0, 2, 1, 3]>(t) m = MatMul(u, w)
                v = Where(b, c, low) a = Add(m, v) y = Softmax<axis = -1>(a) }""",
            {"x": (8, 7, 12, 20), "w": (12, 8)},
            {"device": "h100"},
        ),
        # Rows that are read across: the kernel in C does not cut them, and their length is dynamic.
        (
            "g (float[N,M] x) => (float[M,N] y) { g = Gelu(x) y = Transpose<perm = [1, 0]>(g) }",
            {"x": (16, 9)},
            {"provider": "cpu", "cpu_kernels": True},
        ),
    ],
)
def test_a_kernel_that_cannot_be_scheduled_or_written_is_not_proposed(
    body: str, shapes: dict[str, tuple[int, ...]], options: dict[str, Any], tmp_path: Path
) -> None:
    """It would cost nothing, as nodes of unknown size do, and what was built on it would be given up at the end."""
    model = parse_model(f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> {body}')
    outcome = optimize(model, tmp_path / "out.onnx", deterministic=True, shapes=shapes, **options)
    assert outcome.dropped == ()
