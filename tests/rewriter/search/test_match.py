"""Matching, guards and application on graphs built by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx.parser import parse_model

from mugraph.graph import Constant, Graph
from mugraph.onnx import load
from mugraph.terms.text import Parser, parse_term, parse_type
from rewriter.search.directions import compile_rules
from rewriter.search.guards import ModelFacts
from rewriter.search.match import Match, NoMatch
from rewriter.search.matcher import MatchPool
from rewriter.search.ranges import RangeOracle
from rules_db.trust.condition import parse_condition
from rules_db.trust.rule import FloatClass
from tests.support.graphs import ASSOCIATIVE, MERGE, UNGUARD, Builder, applied, matches_of, ops, rule


def test_a_rule_of_matrices_serves_batched_operands() -> None:
    b = Builder()
    x, a, w = b.input("[2,5,8]"), b.weight(8, 2), b.weight(2, 16)
    graph = b.graph(b.op("MatMul", b.op("MatMul", x, a), w))
    (changed,) = applied(graph, ASSOCIATIVE)
    assert isinstance(changed, Graph)
    root = changed.definition(changed.outputs[0])
    assert root is not None and root[0].inputs[0] == x and changed.tables.constant[root[0].inputs[1]]


def test_a_guard_says_no_to_a_vector() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.op("MatMul", b.input("[8]"), b.weight(8, 2)), b.weight(2, 16)))
    (refused,) = applied(graph, ASSOCIATIVE)
    assert isinstance(refused, NoMatch) and "matrix(X) does not hold" in refused.reason


def test_commutative_operators_match_in_both_orders() -> None:
    b = Builder()
    x, y = b.input("[4,8]"), b.input("[4,8]")
    one_sided = rule("Add(Neg(X), Y)", "Sub(Y, X)", "X:[m,n] Y:[m,n]")
    for operands in ((b.op("Neg", x), y), (y, b.op("Neg", x))):
        (changed,) = applied(b.graph(b.op("Add", *operands)), one_sided)
        assert isinstance(changed, Graph) and ops(changed) == ["Sub"]


def test_two_products_sharing_an_input_become_one_and_a_split() -> None:
    b = Builder()
    x = b.input("[4,8]")
    graph = b.graph(b.op("MatMul", x, b.weight(8, 3)), b.op("MatMul", x, b.weight(8, 5)))
    (changed,) = applied(graph, MERGE)
    assert isinstance(changed, Graph)
    assert sorted(ops(changed)) == ["MatMul", "Split"]
    (split,) = [n for n in changed.nodes() if n.op == "Split"]
    assert dict(split.attrs)["sizes"] == (3, 5)
    assert [changed.definition(v) for v in changed.outputs] == [(split, 0), (split, 1)]


def test_products_of_different_inputs_do_not_join() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.input("[4,8]"), b.weight(8, 3)), b.op("MatMul", b.input("[4,8]"), b.weight(8, 5)))
    assert not matches_of(graph, MERGE)


def test_merging_that_would_make_a_cycle_is_refused() -> None:
    """TASO's figure 6: A×relu(A×B)."""
    b = Builder()
    a, other = b.input("[4,4]"), b.input("[4,4]")
    graph = b.graph(b.op("MatMul", a, b.op("Relu", b.op("MatMul", a, other))))
    results = applied(graph, MERGE)
    assert results and all(isinstance(r, NoMatch) and "depend on itself" in r.reason for r in results)


def test_interior_values_with_other_users_stay() -> None:
    b = Builder()
    inner = b.op("MatMul", b.input("[4,8]"), b.weight(8, 2))
    graph = b.graph(b.op("MatMul", inner, b.weight(2, 16)), b.op("Relu", inner))
    (changed,) = applied(graph, ASSOCIATIVE)
    assert isinstance(changed, Graph) and changed.is_live(inner) and "Relu" in ops(changed)


def test_rules_about_floats_leave_integers_alone() -> None:
    b = Builder()
    x, y, z = b.input("int64[4,4]"), b.input("int64[4,4]"), b.input("int64[4,4]")
    graph = b.graph(b.op("MatMul", b.op("MatMul", x, y), z))
    (refused,) = applied(graph, ASSOCIATIVE)
    assert isinstance(refused, NoMatch) and "int64" in refused.reason


def test_an_undecided_shape_condition_refuses_with_its_reason() -> None:
    b = Builder()
    x, w, v = b.input("[4,k]"), b.input("[k,n]"), b.input("[k,p]")
    graph = b.graph(b.op("MatMul", x, w), b.op("MatMul", x, v))
    equal = rule("MatMul(X, W); MatMul(X, V)", "MatMul(X, V); MatMul(X, W)", "X:[m,k] W:[k,n] V:[k,n]", "same_shape(W, V)")
    (refused, *_) = applied(graph, equal)
    assert isinstance(refused, NoMatch) and "could not be shown" in refused.reason


def test_constants_in_patterns_match_by_value() -> None:
    square = rule("Pow(X, 2.0)", "Mul(X, X)", "X:[m,n]")
    for exponent, expected in ((2.0, 1), (3.0, 0)):
        b = Builder()
        graph = b.graph(b.op("Pow", b.input("[4,4]"), b.constant(np.asarray(exponent, np.float32))))
        assert len(matches_of(graph, square)) == expected


@pytest.mark.parametrize(("wanted", "there", "dtype"), [(1.5, 1, np.int64), (3e9, -(2**31), np.int32), (257.0, 1, np.uint8)])
def test_a_number_is_no_integer_that_it_would_become(wanted: float, there: int, dtype: type) -> None:
    name = np.dtype(dtype).name
    for number, expected in ((wanted, 0), (float(there), 1)):
        chosen = rule(f"Where(Less(N, {number}), X, Y)", "X", f"N:{name}[] X:[m] Y:[m]")
        b = Builder()
        x, y, n = b.input("[4]"), b.input("[4]"), b.input(f"{name}[]")
        type_ = parse_type(f"{name}[]")
        constant = b.tables.add_constant(Constant.of(np.asarray(there, dtype), type_))
        assert len(matches_of(b.graph(b.op("Where", b.op("Less", n, constant), x, y)), chosen)) == expected


def test_a_constant_in_the_replacement_takes_the_models_element_type() -> None:
    b = Builder()
    x = b.input("float16[4,4]")
    double = rule("Add(X, X)", "Mul(X, 2.0)", "X:[m,n]")
    (changed,) = applied(b.graph(b.op("Add", x, x)), double)
    assert isinstance(changed, Graph)
    (node,) = changed.nodes()
    literal = changed.type(node.inputs[1])
    assert literal is not None and literal.dtype.name == "FLOAT16"


def test_directions_need_their_variables_bound() -> None:
    assert [d.forward for d in compile_rules([UNGUARD])] == [True], "X -> Where(IsNaN(X), C, X) leaves C open"
    assert [d.forward for d in compile_rules([ASSOCIATIVE])] == [True, False]


def test_equal_rules_share_their_directions_and_others_do_not() -> None:
    again = rule("MatMul(MatMul(X, Y), Z)", "MatMul(X, MatMul(Y, Z))", "X:[m,k] Y:[k,r] Z:[r,n]")
    first, second = compile_rules([again]), compile_rules([replace(again)])
    assert all(one is other for one, other in zip(first, second, strict=True))
    for changed in (replace(again, types={**again.types, "X": again.types["Y"]}), replace(again, source=again.target)):
        assert not set(compile_rules([changed])) & set(first)
    assert not set(compile_rules([again], "cpu")) & set(first)


NEGATED = replace(rule("Concat[axis=$k](Neg(X), Neg(Y))", "Neg(Concat[axis=$k](X, Y))", "X:[m,n] Y:[m,p]"), attrs={"k": -1})


SOFTMAXES = replace(
    rule(
        "Concat[axis=$k](Softmax[axis=$j](X), Softmax[axis=$j](Y))",
        "Softmax[axis=$j](Concat[axis=$k](X, Y))",
        "X:[m,n] Y:[m,n]",
        "distinct($j, $k)",
    ),
    attrs={"j": -1, "k": -2},
)


@pytest.mark.parametrize("axis", [-1, -2])
def test_attribute_variables_take_the_model_s_values(axis: int) -> None:
    b = Builder()
    x, y = b.input("[2,3]"), b.input("[2,3]")
    (joined,) = applied(b.graph(b.op("Concat", b.op("Neg", x), b.op("Neg", y), axis=axis)), NEGATED)
    assert isinstance(joined, Graph) and sorted(ops(joined)) == ["Concat", "Neg"]
    assert [dict(node.attrs)["axis"] for node in joined.nodes() if node.op == "Concat"] == [axis]
    (parted,) = applied(b.graph(b.op("Neg", b.op("Concat", x, y, axis=axis))), NEGATED, forward=False)
    assert isinstance(parted, Graph) and sorted(ops(parted)) == ["Concat", "Neg", "Neg"]


def test_an_attribute_variable_has_one_value() -> None:
    b = Builder()
    x, y = b.input("[2,2]"), b.input("[2,2]")
    assert applied(b.graph(b.op("Concat", b.op("Softmax", x, axis=-1), b.op("Softmax", y, axis=-2), axis=-1)), SOFTMAXES) == []


@pytest.mark.parametrize("axis", [-1, -2])
def test_guards_ask_about_the_values_of_attribute_variables(axis: int) -> None:
    b = Builder()
    x, y = (b.op("Softmax", b.input("[2,2]"), axis=-1) for _ in range(2))
    (after,) = applied(b.graph(b.op("Concat", x, y, axis=axis)), SOFTMAXES)
    if axis == -1:
        assert isinstance(after, NoMatch) and "distinct($j, $k) does not hold" in after.reason
    else:
        assert isinstance(after, Graph)


def test_a_direction_that_leaves_an_attribute_open_is_not_usable() -> None:
    """Nothing on the right says along which axis to concatenate."""
    lost = replace(rule("Concat[axis=$k](X, Y)", "Add(X, Y)", "X:[m,n] Y:[m,n]"), attrs={"k": -1})
    assert [direction.forward for direction in compile_rules([lost])] == [True]


RMS = replace(
    rule(
        "Mul(Div(X, Sqrt(Add(ReduceMean[axes=(-1,),keepdims=true](Mul(X, X)), $e))), G)",
        "RMSNormalization[axis=-1,epsilon=$e](X, G)",
        "X:[m,n] G:[n]",
        "typed(RMSNormalization[axis=-1,epsilon=$e](X, G))",
    ),
    attrs={"e": 0.5},
)


def test_an_attribute_variable_may_be_a_number() -> None:
    b = Builder()
    x, g, e = b.input("[2,3]"), b.weight(3), b.constant(np.asarray(0.25, np.float32))
    mean = b.op("ReduceMean", b.op("Mul", x, x), axes=(-1,), keepdims=True)
    graph = b.graph(b.op("Mul", b.op("Div", x, b.op("Sqrt", b.op("Add", mean, e))), g))
    (composed,) = applied(graph, RMS)
    assert isinstance(composed, Graph)
    assert [(n.op, dict(n.attrs)["epsilon"]) for n in composed.nodes()] == [("RMSNormalization", 0.25)]
    b = Builder()
    x, g = b.input("[2,3]"), b.weight(3)
    (written_out,) = applied(b.graph(b.op("RMSNormalization", x, g, axis=-1, epsilon=0.25)), RMS, forward=False)
    assert isinstance(written_out, Graph)
    (add,) = [node for node in written_out.nodes() if node.op == "Add"]
    literal = written_out.tables.small_constant(add.inputs[1], 1)
    assert literal is not None and literal == 0.25


def test_a_sample_of_two_groups_binds_the_size_of_one() -> None:
    """``[2*n]`` beside a tensor of six columns says that n is three; five columns say nothing."""
    first, second = (f"Split[axis=-1,sizes=(n,n)].{i}(X)" for i in range(2))
    parted = rule("Neg(X)", f"Concat[axis=-1](Neg({first}), Neg({second}))", "X:[m,2*n]")
    for columns in (6, 5):
        b = Builder()
        (after,) = applied(b.graph(b.op("Neg", b.input(f"[4,{columns}]"))), parted)
        if columns == 6:
            assert isinstance(after, Graph) and sorted(ops(after)) == ["Concat", "Neg", "Neg", "Split"]
        else:
            assert isinstance(after, NoMatch) and "the size n is not bound" in after.reason


UPCAST = rule(
    "Cast[to=float16](Mul(Cast[to=float](X), Mul(Cast[to=float](Y), 2.0)))",
    "Mul(X, Mul(Y, 2.0))",
    "X:float16[m,n] Y:float16[m,n]",
)


def _spelled(narrow: str, wide: str) -> tuple[Builder, Graph]:
    """2xy, computed in the wide type on operands of the narrow one."""
    b = Builder()
    x, y = b.input(f"{narrow}[2,3]"), b.input(f"{narrow}[2,3]")
    type_ = parse_type(f"{wide}[]")
    two = b.tables.add_constant(Constant.of(np.asarray(2, type_.dtype.numpy()), type_))
    up = [b.op("Cast", v, to=type_.dtype) for v in (x, y)]
    product = b.op("Mul", up[0], b.op("Mul", up[1], two))
    return b, b.graph(b.op("Cast", product, to=parse_type(f"{narrow}[]").dtype))


@pytest.mark.parametrize(
    ("narrow", "wide", "applies"),
    [
        ("float16", "float", True),
        ("bfloat16", "float", True),
        ("float", "double", False),
        ("float16", "double", False),
        ("bfloat16", "float16", False),
    ],
)
def test_float_types_of_a_rule_with_several_are_meant(narrow: str, wide: str, applies: bool) -> None:
    """Each is exact, but float16 may stand for bfloat16; the number of the replacement is of the operands' type."""
    _, graph = _spelled(narrow, wide)
    results = applied(graph, UPCAST)
    assert [isinstance(result, Graph) for result in results] == [True] * applies
    for result in results:
        assert isinstance(result, Graph) and ops(result) == ["Mul", "Mul"]
        numbers = [result.type(v) for node in result.nodes() for v in node.inputs if v in result.tables.constants]
        assert [t and t.dtype for t in numbers] == [parse_type(f"{narrow}[]").dtype]


def test_a_rule_with_both_narrow_types_takes_none_for_the_other() -> None:
    both = rule("Cast[to=bfloat16](Cast[to=float](X))", "Cast[to=bfloat16](X)", "X:float16[m,n]")
    for narrow, applies in (("float16", True), ("bfloat16", False)):
        b = Builder()
        up = b.op("Cast", b.input(f"{narrow}[2,3]"), to=parse_type("[]").dtype)
        graph = b.graph(b.op("Cast", up, to=parse_type("bfloat16[]").dtype))
        (result,) = applied(graph, both)
        assert isinstance(result, Graph) is applies
        if isinstance(result, NoMatch):
            assert "X has element type bfloat16, not float16" in result.reason


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_one_float_type_of_a_rule_stands_for_any(dtype: str) -> None:
    """In Casts, too: the mask of a model in float16 is cast to float16."""
    masked = rule("Mul(Cast[to=float](M), X)", "Where(M, X, 0.0)", "M:bool[m,n] X:[m,n]", "same_shape(M, X)")
    b = Builder()
    m, x = b.input("bool[2,3]"), b.input(f"{dtype}[2,3]")
    (there,) = applied(b.graph(b.op("Mul", b.op("Cast", m, to=parse_type(f"{dtype}[]").dtype), x)), masked)
    assert isinstance(there, Graph) and ops(there) == ["Where"]
    zero = b.tables.literal(np.zeros((), parse_type(f"{dtype}[]").dtype.numpy()), parse_type(f"{dtype}[]"))
    (back,) = applied(b.graph(b.op("Where", m, x, zero)), masked, forward=False)
    assert isinstance(back, Graph) and ops(back) == ["Cast", "Mul"]


def test_a_number_beside_numbers_alone_takes_the_rule_s_float_type() -> None:
    either = rule("Mul(Where(M, X, -2.0), 0.5)", "Mul(Where(M, X, 0.0), Where(M, 0.5, -1.0))", "M:bool[m,n] X:[m,n]")
    b = Builder()
    half, low = (b.tables.add_constant(Constant.of(np.asarray(v, np.float16), parse_type("float16[]"))) for v in (0.5, -2.0))
    m, x = b.input("bool[2,3]"), b.input("float16[2,3]")
    (result,) = applied(b.graph(b.op("Mul", b.op("Where", m, x, low), half)), either)
    assert isinstance(result, Graph), "the two numbers of the second Where are float16"


def test_a_number_may_stand_in_several_tensors() -> None:
    halved = rule("Add(Mul(X, 0.5), Mul(Y, 0.5))", "Mul(Add(X, Y), 0.5)", "X:[m,n] Y:[m,n]")
    b = Builder()
    x, y = (b.op("Mul", b.input("[2,3]"), b.constant(np.asarray(0.5, np.float32))) for _ in range(2))
    assert any(isinstance(result, Graph) for result in applied(b.graph(b.op("Add", x, y)), halved))


@pytest.mark.parametrize(
    ("dtype", "ulps", "float_class", "expected"),
    [
        ("float", 2, FloatClass.APPROXIMATES, 1),
        ("float", 3, FloatClass.APPROXIMATES, 0),
        ("float", 1, FloatClass.REASSOCIATES, 0),
        ("float", 0, FloatClass.EXACT, 1),
        ("float16", 2, FloatClass.APPROXIMATES, 1),
        ("float16", 3, FloatClass.APPROXIMATES, 0),
        ("double", 2**30, FloatClass.APPROXIMATES, 1),
        ("double", 2**30, FloatClass.REASSOCIATES, 0),
        ("double", 2**31, FloatClass.APPROXIMATES, 0),
    ],
)
def test_numbers_of_approximating_rules_match_within_two_units(
    dtype: str, ulps: int, float_class: FloatClass, expected: int
) -> None:
    """Units of float32 (2^29 of float64) or of the tensor's own type, whichever is coarser."""
    type_ = parse_type(f"{dtype}[]")
    number = np.asarray(0.7978845608, type_.dtype.numpy())
    moved = (number + ulps * np.spacing(number)).astype(number.dtype)
    scaled = replace(rule("Mul(X, 0.7978845608)", "Neg(X)", "X:[m,n]"), float_class=float_class)
    b = Builder()
    constant = b.tables.add_constant(Constant.of(moved, type_))
    assert len(matches_of(b.graph(b.op("Mul", b.input(f"{dtype}[2,3]"), constant)), scaled)) == expected


PAIR = replace(
    rule("Neg(Add(X, $e)); Relu(Add(Y, $e))", "Sub(Neg(X), $e); Relu(Add(Y, $e))", "X:[m,n] Y:[m,n]"), attrs={"e": 0.5}
)


@pytest.mark.parametrize("other", [0.25, 0.125])
def test_an_attribute_variable_has_one_value_in_all_outputs(other: float) -> None:
    b = Builder()
    x, y = (b.op("Add", b.input("[2,3]"), b.constant(np.asarray(e, np.float32))) for e in (0.25, other))
    forward = [m for m in matches_of(b.graph(b.op("Neg", x), b.op("Relu", y)), PAIR) if m.direction.forward]
    assert len(forward) == (other == 0.25)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_outputs_that_are_not_alike_match_in_any_order(order: tuple[int, int]) -> None:
    """The second part may be older than the first: exchanging them gives another pattern."""
    first, second = (f"Split[axis=-1,sizes=(n,n)].{i}(X)" for i in range(2))
    moved = rule(
        f"Neg({first}); Neg({second})",
        f"{first.replace('X', 'Neg(X)')}; {second.replace('X', 'Neg(X)')}",
        "X:[m,2*n]",
    )
    b = Builder()
    node = b.tables.apply("Split", (("axis", -1), ("sizes", (3, 3))), [b.input("[2,6]")])
    results = [b.op("Neg", node.values[i]) for i in order]
    (after,) = applied(b.graph(*results), moved)
    assert isinstance(after, Graph) and ops(after) == ["Neg", "Split"]


@pytest.mark.parametrize(
    ("width", "cut", "end", "fires"),
    [("5", "2", "5", True), ("n+2", "2", "n+2", True), ("n+k", "n", "n+k", True), ("7", "2", "5", False)],
)
def test_a_sum_of_sizes_binds_the_one_that_is_open(width: str, cut: str, end: str, fires: bool) -> None:
    """The end of the second part is the sum of both sizes; a symbol of the model may bear the name of a rule's."""
    low, high = (f"Slice[axes=(-1,),ends=({e},),starts=({s},),steps=(1,)](X)" for s, e in (("0", "m"), ("m", "m+n")))
    whole = rule(f"Concat[axis=-1]({low}, {high})", "X", "X:[b,m+n]", "dim(X,-1,m+n)")
    b = Builder()
    x = b.input(f"[b,{width}]")
    middle, last = parse_type(f"[{cut},{end}]").shape
    parts = [b.op("Slice", x, axes=(-1,), starts=(s,), ends=(e,), steps=(1,)) for s, e in ((0, middle), (middle, last))]
    (result,) = applied(b.graph(b.op("Concat", *parts, axis=-1)), whole)
    assert isinstance(result, Graph) is fires
    if isinstance(result, NoMatch):
        assert "condition dim(X, -1, m+n) does not hold" in result.reason


SCALES = replace(
    rule("Mul(Mul(X, $a), $b)", "Mul(X, $c)", "X:[m,n]", "product($c, $a, $b)"), attrs={"a": 0.5, "b": 0.25, "c": 0.125}
)


def test_a_condition_says_what_an_attribute_variable_is() -> None:
    """The reverse direction has a product and no factor."""
    assert [direction.forward for direction in compile_rules([SCALES])] == [True]
    b = Builder()
    half, third = (b.constant(np.asarray(v, np.float32)) for v in (0.5, 3.0))
    (result,) = applied(b.graph(b.op("Mul", b.op("Mul", b.input("[2,3]"), half), third)), SCALES)
    assert isinstance(result, Graph) and ops(result) == ["Mul"]
    (node,) = result.nodes()
    number = result.tables.small_constant(node.inputs[1], 1)
    assert number is not None and number == 1.5


def test_a_condition_without_a_solution_refuses() -> None:
    parted = replace(SCALES, source=SCALES.target, target=(parse_term("Mul(Mul(X, $c), $b)"),), conditions=())
    (condition,) = (parse_condition(Parser(text)) for text in ("product($c, $c, $b)",))
    unsolved = replace(parted, conditions=(condition,))
    b = Builder()
    graph = b.graph(b.op("Mul", b.input("[2,3]"), b.constant(np.zeros((), np.float32))))
    (result,) = applied(graph, unsolved)
    assert isinstance(result, NoMatch) and "product($c, $c, $b) gives no $b: division by zero" in result.reason


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_a_float_type_in_a_condition_is_the_rule_s(dtype: str) -> None:
    """Which type it is in the model does not matter: the Cast is to what the operand has already."""
    idle = rule("Relu(Cast[to=float](X))", "Relu(X)", "X:[m,n]", "dtype(X, float)")
    b = Builder()
    (result,) = applied(b.graph(b.op("Relu", b.op("Cast", b.input(f"{dtype}[2,3]"), to=parse_type(f"{dtype}[]").dtype))), idle)
    assert isinstance(result, Graph) and ops(result) == ["Relu"]


@pytest.mark.parametrize("constant", [True, False])
def test_a_condition_about_entries_asks_constants(constant: bool) -> None:
    halves = rule("Neg(Neg(X))", "X", "X:[m,2*n]", "repeats(X, -1)")
    b = Builder()
    x = b.constant(np.asarray([[1, 2, 1, 2]], np.float32)) if constant else b.input("[1,4]")
    graph = b.graph(b.op("Add", b.op("Neg", b.op("Neg", x)), b.input("[1,4]")))
    if constant:
        assert not matches_of(graph, halves), "what is constant is folded, not rewritten"
        facts = ModelFacts(Match(compile_rules([halves])[0], (), {parse_term("X"): x}, {}, ()), graph, RangeOracle({}), {})
        assert halves.conditions[0].holds(facts) is True
    else:
        (result,) = applied(graph, halves)
        assert isinstance(result, NoMatch) and "repeats(X, -1) could not be shown" in result.reason


@pytest.mark.parametrize(
    ("dtype", "epsilon", "refused"), [("double", 1e-5, True), ("double", 2**-10, False), ("float", 1e-5, False)]
)
def test_a_number_of_a_model_of_doubles_that_no_attribute_holds_stays_where_it_is(
    dtype: str, epsilon: float, refused: bool
) -> None:
    """ONNX's attributes are of float32: as one, 1e-5 would be another number, and float64 tells the two apart."""
    model = load(
        parse_model(f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g ({dtype}[2,8] x, {dtype}[8] w) => ({dtype}[2,8] y) <int64[1] last = {{-1}}, {dtype} e = {{{epsilon}}}> {{
            q = Mul(x, x) m = ReduceMean(q, last) a = Add(m, e) s = Sqrt(a) d = Div(x, s) y = Mul(d, w)
        }}""")
    )
    pool = MatchPool(RangeOracle({}), model.opset)
    (match,) = (m for m in matches_of(model.graph, RMS) if m.direction.forward)
    after = pool.apply(match, model.graph)
    assert isinstance(after, NoMatch) is refused
    if isinstance(after, NoMatch):
        assert after.reason == "RMSNormalization has epsilon in float32, which 1e-05 is not"


def test_of_the_spellings_of_one_application_the_first_alone_is_read_from_the_operator() -> None:
    """Whatever their variables are called; one of another application, and one that was not spelled, is read both ways."""
    first = rule("Mul(X, Sigmoid(X))", "QuickGelu[alpha=1.0](X)", "X:[m,n]")
    second = rule("Div(Y, Add(Exp(Neg(Y)), 1.0))", "QuickGelu[alpha=1.0](Y)", "Y:[m,n]")
    third = rule("Mul(X, Sigmoid(Mul(X, 2.0)))", "QuickGelu[alpha=2.0](X)", "X:[m,n]")
    halves = replace(second, types={"Y": parse_type("float16[m,n]")})
    spelled = [replace(r, provenance={"spelled": "QuickGelu"}) for r in (first, second, third, halves)]
    ways = [[d.forward for d in compile_rules(spelled) if d.rule is r] for r in spelled]
    assert ways == [[True, False], [True], [True, False], [True, False]]
    assert [d.forward for d in compile_rules([first, second])] == [True, False, True, False]
