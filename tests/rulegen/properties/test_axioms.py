"""Operator properties: they hold on sampled typed shapes, and each of their conditions is needed."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from mugraph.domains import Real
from mugraph.domains.range import Range
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import Dim, ShapeError, Undecided, symbol
from mugraph.terms.term import substitute
from mugraph.terms.text import Parser, parse_type
from rulegen.properties.case_typing import TypedSides
from rulegen.properties.sampling import Sampler
from rulegen.properties.validate import validate
from rules_db.trust.condition import Condition, Facts, parse_condition
from rules_db.trust.guards import GUARDS
from rules_db.trust.implied import implied
from rules_db.trust.properties import Axiom, AxiomError, load_axioms, parse_axioms

# Decompositions hold by definition; the sampler hardly ever meets their operands, so test_contrib_properties.py and
# test_spelling_proofs.py have samples of their own.
AXIOMS = {name: axiom for name, axiom in load_axioms().items() if axiom.family not in ("contrib", "fused")}
FAMILIES = sorted({axiom.family for axiom in AXIOMS.values()})


@pytest.mark.parametrize("family", FAMILIES)
def test_properties_hold_on_sampled_shapes(family: str) -> None:
    """Typing in both directions and equal values in floats, finite fields and polynomials."""
    firsts = first_instances()
    for axiom in AXIOMS.values():
        if axiom.family == family:
            hits = 1 if axiom not in firsts else 20 if family in ("conv", "pool") else 4
            result = validate(axiom, hits=hits, trials=6000, seed=11)
            assert result.counterexample is None, result.counterexample
            assert result.hits == hits, f"{axiom.name} hardly ever applies: {result.hits} samples"


@cache
def first_instances() -> tuple[Axiom, ...]:
    """One property of every template."""
    found: dict[str, Axiom] = {}
    for axiom in AXIOMS.values():
        found.setdefault(re.sub(r"\.(out\d|[A-Z]\w*)", "", axiom.name), axiom)
    return tuple(found.values())


CONVENIENT = {
    # Cited for the attribute that they compute; a depthwise kernel's own channels say the same.
    ("conv.split_depthwise_first", "sums($g, $m, $n)"),
    ("conv.split_depthwise_second", "sums($g, $m, $n)"),
    ("conv.place_factor.Conv", "channel_axis($c, $s)"),
    # Cited for the numbers of groups and columns that they compute; with others, or other images, the right side is ill-typed.
    *(
        (f"conv.merged_groups{bias}", condition)
        for bias in ("", "_bias")
        for condition in ("channel_axis(-3, $s)", "product($g, $h, $r)", "dim(w, -3, $i)")
    ),
    # A kernel of a single entry: each follows from the two others, as a row of the matrix that it becomes has $k entries.
    *(
        (f"layout.pointwise{bias}.NhwcConv.Reshape", condition)
        for bias in ("", "_bias")
        for condition in ("dim(w, -1, $k)", "dim(w, -2, 1)", "dim(w, -3, 1)")
    ),
    # Not for booleans, which have no sum.
    ("sum.one", "typed(Sum(x))"),
    # Kept though a sampled counterexample is out of reach: a factor of more dimensions than x.
    ("reshape.scalar_right.Add", "fits(s, x)"),
    ("reshape.scalar_left.Sub", "fits(s, x)"),
    # Samples have bounds in order, and identity matrices of more than one row.
    ("clip.neg", "at_most($a, $b)"),
    ("clip.nonnegative", "at_most(0.0, $b)"),
    ("eye.diagonal_left", "dim(x, -1, $n)"),
    ("eye.diagonal_right", "dim(x, -2, $n)"),
    ("eye.spread_left", "dim(x, -1, $n)"),
    ("eye.spread_right", "dim(x, -2, $n)"),
    # Constant images and kernels seldom have sizes that fit.
    ("conv.ones.Conv", "constant_over(w, (1,1))"),
    ("conv.expand.Conv", "constant_over(w, (1,1))"),
    ("conv.expand.Conv", "constant_over(x, (1,1))"),
    # Dilated kernels seldom reach over more than one entry of an image that fits: a test below has one that does.
    ("conv.enlarged_by_mirrors.IdentityKernel.Pad", "unit($d)"),
    # Expanded operands of products seldom are other than matrices, or of another length.
    ("matmul.factor_vector", "matrix(f)"),
    ("matmul.expand_left", "matrix(x)"),
    ("matmul.expand_left", "agree(x, Expand[shape=$s](x), -1)"),
    ("matmul.expand_right", "matrix(y)"),
    ("matmul.expand_right", "agree(y, Expand[shape=$s](y), -2)"),
    ("concat.matmul_right4", "matrix(y)"),
    ("reshape.expand", "vector(x)"),
    ("expand.outside.Add", "same_shape(Add(Expand[shape=$s](x), y), Expand[shape=$s](Add(x, y)))"),
    # Tensors of five dimensions are not sampled; the sizes are those that equal shapes have, and samples are drawn by them.
    ("matmul.raised_right", "rank(y, 3)"),
    ("matmul.raised_right", "dim(y, -3, $a)"),
    ("matmul.raised_right", "dim(y, -2, $b)"),
    ("matmul.raised_right", "dim(y, -1, $c)"),
    ("matmul.raised_left", "rank(x, 3)"),
    ("matmul.raised_left", "dim(x, -3, $a)"),
    ("matmul.raised_left", "dim(x, -2, $b)"),
    ("matmul.raised_left", "dim(x, -1, $c)"),
    # Tensors of five dimensions are not sampled: their second axis of one entry would be dropped.
    ("squeeze.first_of_four.Add", "rank(c, 4)"),
    # The size is that which equal shapes have.
    ("and.all_true_rows", "dim(c, -2, $m)"),
    # Cited for the length that it computes.
    ("expand.shorter", "length($h, $d)"),
    # Windows that leave something out seldom miss the greatest entry; axes that are not the spatial ones are seldom typed.
    ("pool.global_of_max", "centred($p, $k, $d)"),
    ("pool.global_pointwise.Conv", "last_axes($a, $s)"),
    ("pool.global_pointwise.Conv", "last_axes($a, $n)"),
    # In windows of padding alone records have no value and the runtime has the least number: test_runtime.py meets one.
    ("max_pool.monotone.MaxPool.Relu", "touches(x, $k, $p, $d)"),
    ("max_pool.shift.MaxPool", "touches(x, $k, $p, $d)"),
    ("max_pool.factor.MaxPool", "touches(x, $k, $p, $d)"),
    ("average_pool.shift.AveragePool", "touches(x, $k, $p, $d)"),
    # Tensors without entries are not sampled; a vector of probabilities seldom meets a constant of more dimensions.
    ("softmax.times_constant.Add", "nonempty(x, -1)"),
    ("softmax.times_constant.Add", "matrix(x)"),
    ("matmul.div_left", "nonempty(x, -1)"),
    # A reversal of the whole axis is seldom sampled, and places are drawn within both tables.
    ("slice.expand_along.Slice", "constant_along(x, $k)"),
    ("gather.expand_through", "agree(x, Expand[shape=$s](x), $k)"),
    # Cited for the length that it computes.
    ("reduce.matmul_batch", "dim(x, -1, $k)"),
    # Cited for the sizes that they compute; of others the right side is ill-typed.
    *(
        ("conv.windows_grouped.Conv", condition)
        for condition in ("dim(w, -1, $k)", "dim(w, -3, $n)", "product($r, $k, $c)", "product($n, $g, $m)")
    ),
    # Those of the image are cited for the number of patches along an axis; what holds along one axis holds along the other, since
    # the image has no more. A kernel that is the image is seldom sampled: a test below has it.
    *(
        (name, condition)
        for name in ("conv.patches.Conv.Reshape", "conv.patches_bias.Conv.Reshape")
        for condition in (
            *("dim(x, -2, $h)", "product($h, $m, $u)", "dim(x, -1, $o)", "product($o, $n, $v)"),
            *("dim(w, -2, $u)", "dim(w, -1, $v)"),
        )
    ),
    # Cited for the sizes that they compute; of others the two sides have different shapes, or one has none.
    *(
        ("layout.group_norm", condition)
        for condition in (
            *("dim(x, -3, $c)", "dim(x, -2, $h)", "dim(x, -1, $w)"),
            *("product($c, $g, $k)", "product($n, $h, $w)", "product($m, $k, $n)"),
        )
    ),
    *(
        (f"group.definition{name}", condition)
        for name, sizes in (("_rows", ("dim(x, -2, $c)",)), ("", ("dim(x, -3, $c)", "dim(x, -2, $h)", "product($l, $h, $w)")))
        for condition in (
            *sizes,
            "dtype(x, $t)",
            "dim(x, -1, $w)",
            "product($c, $g, $k)",
            f"product($m, $k, {'$l' if sizes[1:] else '$w'})",
        )
    ),
    # The right side is typed for vectors and single numbers alone; the proof reads vectors.
    *(("layout.group_affine.GroupNorm", f"vector({name})") for name in "gc"),
}


def is_needed(axiom: Axiom, condition: Condition) -> bool:
    """Whether a property is false somewhere without one of its conditions; most show it soon."""
    budgets = ((40, 1500, 5), (500, 12000, 6), (2000, 40000, 5))
    tries = ({"hits": hits, "trials": trials, "seed": seed} for hits, trials, seed in budgets)
    return any(validate(axiom, **limits, without=condition).counterexample is not None for limits in tries)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_shape_condition_is_needed(family: str) -> None:
    """But those that only want a term well-typed: the proofs' induction needs them, whatever values say."""
    superfluous = [
        (axiom.name, str(condition))
        for axiom in first_instances()
        if axiom.family == family
        for condition in axiom.conditions
        if not condition.guard.of_values
        and condition.predicate not in ("floating", "typed")
        and (axiom.name, str(condition)) not in CONVENIENT
        and not is_needed(axiom, condition)
    ]
    assert not superfluous


@pytest.mark.parametrize(
    ("without", "image", "rows", "columns"), [("dim(w, -2, $u)", "[1,2,2,1]", 2, 1), ("dim(w, -1, $v)", "[1,2,1,2]", 1, 2)]
)
def test_a_kernel_that_is_the_image_is_no_patch(without: str, image: str, rows: int, columns: int) -> None:
    """It has as many entries as all patches of one place, which come place by place and not channel by channel."""
    axiom = AXIOMS["conv.patches.Conv.Reshape"]
    (condition,) = (c for c in axiom.conditions if str(c) == without)
    attrs: dict[str, Any] = {"u": 1, "v": 1, "h": rows, "m": rows, "o": columns, "n": columns, "k": 4, "l": 1}
    types = {"x": parse_type(image), "w": parse_type(image)}
    assert TypedSides(axiom, attrs).of(types) is None
    sides = TypedSides(axiom, attrs, without=condition)
    assert sides.of(types) is not None
    shape = tuple(map(int, image.strip("[]").split(",")))
    arrays = {"x": np.arange(4.0).reshape(shape), "w": 10.0 ** np.arange(4.0).reshape(shape)}
    values = evaluate([sides.left, sides.right], Real(), arrays)
    assert values[sides.left].ravel().tolist() == [3210.0] and values[sides.right].ravel().tolist() == [3120.0]


def test_mirrors_lose_what_a_dilated_kernel_leaves_out() -> None:
    """Such a kernel, as an image of the mirror's size, keeps its middle entry alone."""
    axiom = AXIOMS["conv.enlarged_by_mirrors.IdentityKernel.Pad"]
    (unit,) = (c for c in axiom.conditions if str(c) == "unit($d)")
    attrs: dict[str, Any] = {"d": (2,), "s": (1,), "p": (2, 2), "q": (2, 2), "b": (0,), "e": (0,), "c": 1, "k": (3,)}
    types = {"w": parse_type("[1,1,3]")}
    assert TypedSides(axiom, attrs).of(types) is None
    sides = TypedSides(axiom, attrs, without=unit)
    assert sides.of(types) is not None
    values = evaluate([sides.left, sides.right], Real(), {"w": np.array([[[1.0, 2.0, 3.0]]])})
    assert values[sides.left].tolist() == [[[0.0, 2.0, 0.0]]] and values[sides.right].tolist() == [[[1.0, 2.0, 3.0]]]


def samples(name: str, count: int) -> list[dict[str, Any]]:
    """Attributes of well-typed samples of a property's left side, with the channels of its kernel."""
    axiom = AXIOMS[name]
    sampler = Sampler(axiom, np.random.default_rng(3))
    found: list[dict[str, Any]] = []
    while len(found) < count:
        drawn = sampler.draw()
        if drawn is not None:
            types, attrs = drawn
            try:
                infer_types([substitute(axiom.left, {}, attrs)], types)
            except (ShapeError, Undecided):
                continue
            found.append(attrs | {"channels": types["x"].shape[1]})
    return found


@pytest.mark.parametrize(
    "text",
    [
        "false.matmul: MatMul(x, y) = MatMul(y, x)",
        "false.bias: MatMul(x, Add(y, z)) = Add(MatMul(x, y), MatMul(x, z))",
        "false.vectors: MatMul(MatMul(x, y), z) = MatMul(x, MatMul(y, z)) when matrix(x), matrix(y)",
        "false.relu: Relu(Add(x, y)) = Add(Relu(x), Relu(y))",
        "false.typing: Add(x, y) = x when fits(x, y)",
        "false.order: Concat[axis=$k](x, y) = Concat[axis=$k](y, x)",
        "false.scalar: Transpose[perm=$p](Mul(x, s)) = Mul(Transpose[perm=$p](x), s) when ones(s)",
        "false.cast: Cast[to=$t](Cast[to=$u](x)) = Cast[to=$t](x) when floating(x)",
        "false.number: Mul(Mul(x, $a), $b) = Mul(x, $c) when sums($c, $a, $b), floating(x)",
        "false.twice: Concat[axis=$k](Slice[axes=($k,),ends=($h,),starts=(0,),steps=(1,)](c),"
        " Slice[axes=($k,),ends=($h,),starts=(0,),steps=(1,)](c)) = c when dim(c, $k, $n), doubles($n, $h)",
    ],
)
def test_a_false_property_is_found_out(text: str) -> None:
    (axiom,) = parse_axioms(text, "false.axioms")
    assert validate(axiom, hits=300, trials=6000).counterexample is not None


def test_templates_write_one_property_for_each_choice() -> None:
    axioms = parse_axioms("t: F(Split[axis=$k,sizes=$s].I(x)) = F(x) for I in 0, 1; F in Neg, LeakyRelu[alpha=$a]", "t.axioms")
    assert [a.name for a in axioms] == ["t.out0.Neg", "t.out0.LeakyRelu", "t.out1.Neg", "t.out1.LeakyRelu"]
    assert axioms[3].attr_variables == ("k", "s", "a")
    assert axioms[0].left.inputs[0].out == 0 and axioms[2].left.inputs[0].out == 1


def test_digests_follow_the_content() -> None:
    one, other = (
        parse_axioms(f"a: Add(x, y) = Add(y, x) when {condition}", "t.axioms")[0] for condition in ("matrix(x)", "matrix(y)")
    )
    assert one.digest != other.digest
    assert len({axiom.digest for axiom in AXIOMS.values()}) == len(AXIOMS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\na: Gelo(x) = x", r"t\.axioms:3: unknown operator 'Gelo'; did you mean 'Gelu'\?"),
        ("a: Neg(x) = x when squarish(x)", r"t\.axioms:1: expected one of matrix.*not 'squarish'"),
        ("a: Neg(x)", r"t\.axioms:1: expected '='"),
        ("a: Neg(x) = x\na: Neg(x) = x", r"t\.axioms:2: a second property named 'a'"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str) -> None:
    with pytest.raises(AxiomError, match=message):
        parse_axioms(text, "t.axioms")


def test_convolutions_are_sampled_in_all_their_kinds() -> None:
    found = samples("conv.neg_input.Conv", 300)
    groups = {"dense" if s["g"] == 1 else "depthwise" if s["g"] == s["channels"] else "grouped" for s in found}
    assert groups == {"dense", "depthwise", "grouped"} and {s["g"] for s in found} >= {1, 2, 3}
    assert {step for s in found for step in s["s"]} == {1, 2} == {step for s in found for step in s["d"]}
    assert {(1, 1, 1, 1), (0, 0, 0, 0)} < {s["p"] for s in found}
    assert {len(s["s"]) for s in found} == {1, 2}
    assert {(s["i"], any(s["p"])) for s in samples("average_pool.neg.AveragePool", 200)} == {
        (counts, pads) for counts in (True, False) for pads in (True, False)
    }


TYPES = {
    name: parse_type(text)
    for name, text in {
        "x": "[2,4,5,5]",
        "w": "[4,1,3,3]",
        "k": "[6,2,3,3]",
        "c": "[4,1,1]",
        "v": "[4]",
        "h": "float16[4]",
    }.items()
}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("rank(x, 4)", True),
        ("rank(v, 4)", False),
        ("same_rank(x, w)", True),
        ("same_rank(x, v)", False),
        ("single(v)", True),
        ("single(h)", False),
        ("channel_axis(-3, (1,1))", True),
        ("channel_axis(-3, (1,))", False),
        ("channel_axis(-3, 2)", True),
        ("batch_axis(-4, (1,1))", True),
        ("batch_axis(-3, (1,1))", False),
        ("outside(-3, (1,1))", True),
        ("outside(-2, (1,1))", False),
        ("last_axes((-2,-1), (1,1))", True),
        ("last_axes((-1,), (1,1))", False),
        ("from_axis((-2,-1), -2)", True),
        ("from_axis((-1,), -2)", False),
        ("per_channel(c, (1,1))", True),
        ("per_channel(c, (1,))", False),
        ("per_channel(v, (1,1))", False),
        ("constant_over(c, (1,1))", True),
        ("constant_over(c, (1,1,1))", False),
        ("depthwise(w, 4)", True),
        ("depthwise(w, 2)", False),
        ("depthwise(k, 6)", False),
        ("same_per_group(k, 3, w, 2)", True),
        ("same_per_group(k, 2, w, 2)", False),
        ("sums(5, 2, 3)", True),
        ("sums(5, 2, 2)", False),
        ("sums(n+p, n, p)", True),
        ("sums(n, n, p)", None),
        ("sums_each((1,2), (1,0), (0,2))", True),
        ("sums_each((1,2), (1,0), (0,1))", False),
        ("centred((1,2,1,2), (3,3), (1,2))", True),
        ("centred((1,1,1,1), (3,3), (1,2))", False),
        ("centred((1,0), (2,), (1,))", True),
        ("centred((0,1), (2,), (1,))", False),  # the middle of an even kernel comes after its half
        ("padded((1,2), (0,0), (1,), (2,))", True),
        ("padded((1,1), (0,0), (1,), (2,))", False),
        ("padded((0,0), (-1,0), (1,), (0,))", False),
        ("padded((3,3,3,3), (2,2,2,2), (1,1,1), (1,1,1))", False),  # a rule's pads of two axes, a model's of three
        ("sums_each((3,3), (1,1), (2,2,2))", False),
        ("widened((2,2), (0,0), (1,), (1,), (2,))", True),
        ("widened((1,1), (0,0), (1,), (1,), (2,))", False),
        ("unpadded((0,0))", True),
        ("unpadded((0,1))", False),
        ("unit((1,1))", True),
        ("unit((1,2))", False),
        ("odd((3,1))", True),
        ("odd((3,2))", False),
        ("enlarged((5,), (3,), (1,), (1,))", True),
        ("enlarged((4,), (3,), (0,), (1,))", False),
        ("lifted(-2, -1, (-1,))", True),
        ("lifted(-1, -1, (-1,))", False),
        ("lifted(-1, -1, (-3,))", True),
        ("stacked((-2,-1), (-1,), (-1,))", True),
        ("stacked((-3,-1), (-1,), (-1,))", False),
        ("among(-1, (-2,-1))", True),
        ("among(-3, (-2,-1))", False),
        ("below(v, -2)", True),
        ("below(v, -1)", False),
        ("still(c, (1,0))", True),
        ("still(c, (1,0,2))", False),
        ("still(v, (1,0,2))", True),
        ("doubles(6, 3)", True),
        ("doubles(7, 3)", False),
        ("doubles(2*n, n)", True),
        ("doubles(n, p)", None),
        ("clamped(0.5, -1.0, 0.5, 2.0)", True),
        ("clamped(-1.0, -1.0, 0.5, 2.0)", False),
        ("opposite(-2.0, 2.0)", True),
        ("opposite(2.0, 2.0)", False),
        ("at_most(0.0, 0.0)", True),
        ("at_most(0.5, 0.0)", False),
        ("full((2,4,2,4), (3,3), (1,2))", True),
        ("full((2,3,2,4), (3,3), (1,2))", False),
        ("nonempty(x, -1)", True),
        ("nonempty(v, -2)", False),
        ("touches(x, (3,3), (1,1,1,1), (1,1))", True),
        ("touches(x, (2,2), (1,1,1,1), (3,3))", True),
        ("touches(x, (2,2), (1,1,1,1), (9,9))", False),
        ("touches(x, (1,1), (1,1,1,1), (1,1))", False),
        ("surrounds(w, (2,3,2,2), (1,1))", True),
        ("surrounds(w, (2,1,2,2), (1,1))", False),
        ("surrounds(w, (2,2,2,2), (1,2))", False),
        ("dtype(h, float16)", True),
        ("dtype(v, float16)", False),
        ("float_type(bfloat16)", True),
        ("float_type(int64)", False),
        ("product(0.25, 0.5, 0.5)", True),
        ("product(1.0, 0.7071067811865476, 1.414213562373095)", True),  # as far as doubles go
        ("product(1.0, 0.7071068, 1.4142135)", False),
        ("product(inf, inf, 1.0)", False),
        ("product(0.0, 1e-200, 1e-200)", False),
        ("product(6, 2, 3)", True),
        ("product(7, 2, 3)", False),
        ("product(n*p, n, p)", True),
        ("product(n, n, p)", None),
        ("swapped((2,3), (3,2))", True),
        ("swapped((1,3,2), (1,3,2))", False),
        ("swapped((2,), (2,))", False),
        ("keeps(x, (7,5,5), 2)", True),
        ("keeps(x, (7,5,4), 2)", False),
        ("keeps(x, (5,), 2)", False),
        ("headless((3,), (2,3))", True),
        ("headless((2,), (2,3))", False),
        ("leads(x, 3, (4,25))", True),
        ("leads(x, 2, (4,25))", False),
        ("leads(v, 2, (4,))", False),
        ("reaches(4, 2, (8,), 3)", True),
        ("reaches(2, 2, (8,), 3)", False),
        ("reaches(2, 2, (4,2), 1)", True),
        ("spliced((4,5,6), (4,7), 1, (5,6))", True),
        ("spliced((5,6), (4,7), 1, (5,6))", False),
        ("repeats(x, -1)", None),
        ("causal(x)", None),
        ("all_true(x)", None),
    ],
)
def test_what_predicates_say(text: str, answer: bool | None) -> None:
    facts = Facts(lambda term: infer_types([term], TYPES)[term], lambda term: Range.top())
    assert parse_condition(Parser(text)).holds(facts) is answer


@pytest.mark.parametrize(
    ("predicate", "arguments"),
    [
        ("length", ((1, 2), 2)),
        ("channel_axis", (-3, (1, 1))),
        ("batch_axis", (-3, 1)),
        ("last_axes", ((-2, -1), (2, 2))),
        ("from_axis", ((-2, -1), -2)),
        ("sums", (7, 3, 4)),
        ("sums_each", ((1, 3), (0, 1), (1, 2))),
        ("centred", ((1, 2, 1, 1), (3, 4), (1, 1))),
        ("padded", ((1, 2, 0, 1), (0, 1, 0, 1), (1, 1), (0, 0))),
        ("widened", ((3, 1), (1, 1), (1,), (0,), (2,))),
        ("enlarged", ((5, 3), (3, 1), (1, 1), (1, 1))),
        ("lifted", (-3, -2, (-2,))),
        ("stacked", ((-4, -2), (-2,), (-3,))),
        ("composes", ((2, 0, 1), (1, 0, 2), (0, 2, 1))),
        ("moves", ((1, 2, 0), -3, -1)),
        ("doubles", (6, 3)),
        ("doubles", (symbol("n") + symbol("n"), symbol("n"))),
        ("clamped", (2.0, 7.0, 0.5, 2.0)),
        ("opposite", (-2.0, 2.0)),
        ("full", ((2, 0, 2, 0), (3, 1), (1, 2))),
        ("product", (0.125, 0.5, 0.25)),
        ("product", (6, 2, 3)),
        ("product", (symbol("n") * symbol("p"), symbol("n"), symbol("p"))),
        ("swapped", ((1, 3, 2), (1, 2, 3))),
        ("headless", ((2, 3), (1, 2, 3))),
        ("reaches", (4, 2, (8,), 3)),
        ("spliced", ((4, 5, 6), (4, 7), 1, (5, 6))),
    ],
)
def test_solvers_find_what_predicates_want(predicate: str, arguments: tuple[object, ...]) -> None:
    assert GUARDS[predicate].predicate(None, *arguments)
    for position, solver in GUARDS[predicate].solvers.items():
        unknown = (*arguments[:position], None if position else arguments[0], *arguments[position + 1 :])
        assert solver(*unknown) == arguments[position]


@pytest.mark.parametrize("size", [3, symbol("n"), symbol("n") + symbol("n") + 1])
def test_what_is_odd_has_no_half(size: Dim) -> None:
    with pytest.raises(ValueError, match="has no known half"):
        GUARDS["doubles"].solvers[1](size, None)


@pytest.mark.parametrize(("total", "factor"), [(7, 2), (7, 0), (1.0, 0.0), (symbol("n"), symbol("p")), (6, symbol("n"))])
def test_what_is_no_multiple_has_no_factor(total: Any, factor: Any) -> None:
    with pytest.raises(ValueError):
        GUARDS["product"].solvers[1](total, None, factor)


def test_every_solver_belongs_to_a_predicate_of_attributes() -> None:
    assert all(set(guard.kinds) == {"v"} for guard in GUARDS.values() if guard.solvers)


@pytest.mark.parametrize(
    ("wanted", "given", "answer"),
    [
        ("same_shape(Neg(a), a)", (), True),
        ("same_shape(Add(a, b), a)", ("fits(b, a)",), True),
        ("same_shape(Add(a, b), a)", (), False),
        ("same_shape(Softmax[axis=-1](a), Mul(a, 2.0))", (), True),
        ("same_shape(MatMul(a, c), MatMul(b, c))", ("same_shape(b, a)",), True),
        ("same_shape(MatMul(a, c), MatMul(b, d))", ("same_shape(b, a)",), False),
        ("fits(a, Add(b, c))", ("fits(a, c)",), True),
        ("fits(a, MatMul(b, c))", ("fits(a, c)",), False),
        ("fits(Mul(a, b), c)", ("fits(a, c)", "fits(b, c)"), True),
        ("fits(Mul(a, b), c)", ("fits(a, c)",), False),
        ("fits(Neg(ReduceMax[axes=(-1,),keepdims=true](a)), a)", (), True),
        ("fits(Neg(ReduceMax[axes=(-1,),keepdims=false](a)), a)", (), False),
        ("constant_along(ReduceSum[axes=(-1,),keepdims=true](a), -1)", (), True),
        ("constant_along(ReduceSum[axes=(-1,),keepdims=true](a), -2)", (), False),
        ("constant_along(ReduceSum[axes=(-1,),keepdims=false](a), -1)", (), False),
        ("constant_along(Reciprocal(ReduceSum[axes=(-1,),keepdims=true](Exp(a))), -1)", (), True),
        ("constant_along(Unsqueeze[axes=(-1,)](a), -1)", (), True),
        ("constant_along(a, -2)", ("vector(a)",), True),
        ("constant_along(a, -1)", ("vector(a)",), False),
        ("constant_along(MatMul(a, b), -1)", ("constant_along(b, -1)",), False),
        ("constant_over(Mul(a, 2.0), (1,1))", ("per_channel(a, (1,1))",), True),
        ("constant_over(a, (1,1,1))", ("per_channel(a, (1,1))",), False),
        ("per_channel(Unsqueeze[axes=(-2,-1)](Mul(a, 2.0)), (1,1))", ("vector(a)",), True),
        ("per_channel(Unsqueeze[axes=(-2,-1)](a), (1,))", ("vector(a)",), False),
        ("per_channel(Unsqueeze[axes=(-2,-1)](a), (1,1))", (), False),
        ("depthwise(Neg(a), 4)", ("depthwise(a, 4)",), True),
        ("depthwise(Neg(a), 4)", ("depthwise(a, 2)",), False),
        ("depthwise(AveragingKernel[channels=4,kernel=(3,3)](), 4)", (), True),
        ("depthwise(Add(a, b), 4)", ("depthwise(a, 4)", "depthwise(b, 4)"), False),
        ("matrix(Unsqueeze[axes=(-1,)](a))", ("vector(a)",), True),
        ("matrix(Unsqueeze[axes=(-1,)](a))", (), False),
        ("matrix(Reshape[drop=1,shape=(2,3)](a))", (), True),
        ("rank(Transpose[perm=(1,0)](a), 2)", ("rank(a, 2)",), True),
        ("rank(Transpose[perm=(1,0)](a), 2)", (), False),
        ("same_rank(Neg(a), a)", (), True),
        ("same_rank(a, b)", ("vector(a)", "vector(b)"), True),
        ("same_rank(a, b)", ("vector(a)",), False),
        ("dim(Unsqueeze[axes=(-1,)](a), -2, n)", ("dim(a, -1, n)",), True),
        ("dim(Unsqueeze[axes=(-2,)](a), -2, n)", ("dim(a, -1, n)",), False),
        ("single(MatMul(a, b))", ("single(a)",), True),
        ("single(2.0)", (), False),
        ("still(Neg(a), (1,0,2))", ("vector(a)",), True),
        ("still(Neg(a), (1,0))", ("vector(a)",), False),
        ("below(Neg(a), -2)", ("vector(a)",), True),
        ("below(Neg(a), -1)", ("vector(a)",), False),
        ("below(a, -2)", (), False),
        ("dtype(Cast[to=float16](a), float16)", (), True),
        ("dtype(Cast[to=float16](a), float)", (), False),
        ("dtype(Add(a, Reciprocal(b)), float16)", ("dtype(b, float16)",), True),
        ("dtype(Pow(a, b), float16)", ("dtype(b, float16)",), False),
        ("floating(Neg(a))", ("dtype(a, float16)",), True),
        ("floating(Neg(a))", ("dtype(a, int64)",), False),
        ("floating(Cast[to=int64](a))", ("floating(a)",), False),
        ("floating(Pow(a, b))", ("floating(a)",), True),
        ("floating(Pow(a, b))", ("floating(b)",), False),
        ("keeps(Unsqueeze[axes=(-3,)](a), (4,m,n), 2)", ("dim(a, -1, n)", "dim(a, -2, m)"), True),
        ("keeps(Unsqueeze[axes=(-3,)](a), (4,m,n), 2)", ("dim(a, -1, n)",), False),
        ("leads(Unsqueeze[axes=(-3,)](a), 3, (1,n))", (), True),
        ("leads(Unsqueeze[axes=(-2,)](a), 3, (1,n))", (), False),
        ("tail(Transpose[perm=(1,0)](a), (n,m))", ("dim(a, -1, n)", "dim(a, -2, m)"), True),
        ("tail(Transpose[perm=(1,0)](a), (m,n))", ("dim(a, -1, n)", "dim(a, -2, m)"), False),
        ("dim(Expand[shape=(4,1)](a), -2, 4)", (), True),
        ("dim(Expand[shape=(m,1)](a), -2, m)", (), False),
        ("dim(Expand[shape=(m,1)](a), -2, m)", ("dim(a, -2, 1)",), True),
        ("dim(Expand[shape=(m,1)](a), -1, n)", ("dim(a, -1, n)",), True),
    ],
)
def test_what_shapes_imply(wanted: str, given: tuple[str, ...], answer: bool) -> None:
    assert implied(parse_condition(Parser(wanted)), [parse_condition(Parser(text)) for text in given]) is answer
