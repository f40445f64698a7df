"""Matching, guards, application and search on graphs built by hand; costs from a table, so nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mugraph.graph import Constant, Graph, Node, Tables
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import Parser, parse_term, parse_type
from rewriter.search.apply import apply_match
from rewriter.search.backtracking import Candidate, Limits, Search, replay
from rewriter.search.explain import near_miss
from rewriter.search.match import Match, ModelFacts, NoMatch, compile_rules
from rewriter.search.ranges import RangeOracle
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import parse_condition
from rules_db.trust.rule import FloatClass, Rule


def rule(source: str, target: str, types: str, when: str = "") -> Rule:
    """An uncertified rule: these tests are about using rules, not about proving them."""
    before, after = (tuple(parse_term(part) for part in side.split(";")) for side in (source, target))
    pairs = dict(item.split(":") for item in types.split())
    conditions = tuple(parse_condition(Parser(c)) for c in when.split(" & ") if c)
    typed = {name: parse_type(text) for name, text in pairs.items()}
    return Rule(before, after, typed, conditions, FloatClass.REASSOCIATES, Certificate(()))


ASSOCIATIVE = rule(
    "MatMul(MatMul(X, A), B)", "MatMul(X, MatMul(A, B))", "X:[m,k] A:[k,r] B:[r,n]", "matrix(X) & matrix(A) & matrix(B)"
)
FACTOR = rule(
    "Add(MatMul(X, W), MatMul(X, V))", "MatMul(X, Add(W, V))", "X:[m,k] W:[k,n] V:[k,n]", "matrix(W) & same_shape(W, V)"
)
MERGE = rule(
    "MatMul(X, W); MatMul(X, V)",
    "Split[axis=-1,sizes=(n,p)].0(MatMul(X, Concat[axis=-1](W, V)));"
    "Split[axis=-1,sizes=(n,p)].1(MatMul(X, Concat[axis=-1](W, V)))",
    "X:[m,k] W:[k,n] V:[k,p]",
    "matrix(W) & matrix(V) & dim(W,-1,n) & dim(V,-1,p)",
)
UNGUARD = rule("Where(IsNaN(X), C, X)", "X", "X:[m,n] C:[]", "not_nan(X) & fits(C, X)")


class TableCosts:
    """Costs by operator name, times the output's size where asked: a stand-in for measured costs."""

    provider = "cpu"
    opset = 20

    def __init__(self, **prices: float) -> None:
        self.prices, self.measured, self.estimated = prices, 0, set[str]()

    def cost(self, graph: Graph, node: Node) -> float:
        if node.op == "Identity" or all(graph.tables.constant[v] for v in node.values):
            return 0.0
        price = self.prices.get(node.op, 1.0)
        if node.op == "MatMul":
            sizes = [graph.type(v).shape[-1] for v in (node.inputs[0], node.values[0])]  # type: ignore[union-attr]
            price += float(np.prod([s for s in sizes if isinstance(s, int)])) / 64
        return price

    def estimate(self, graph: Graph, node: Node) -> float:
        return self.cost(graph, node)

    def total(self, graph: Graph) -> float:
        return sum(self.cost(graph, node) for node in graph.references)


class Builder:
    def __init__(self) -> None:
        self.tables = Tables()
        self.inputs: list[int] = []

    def input(self, text: str) -> int:
        self.inputs.append(self.tables.new_value(parse_type(text), f"in{len(self.inputs)}"))
        return self.inputs[-1]

    def constant(self, array: np.ndarray) -> int:
        return self.tables.add_constant(Constant.of(array, TensorType(parse_type("[]").dtype, array.shape)))

    def weight(self, *shape: int) -> int:
        return self.constant(np.ones(shape, np.float32))

    def op(self, name: str, *inputs: int, **attrs: object) -> int:
        return self.tables.apply(name, tuple(sorted(attrs.items())), inputs).values[0]

    def graph(self, *outputs: int) -> Graph:
        return Graph.build(self.tables, self.inputs, outputs)


def search(rules: list[Rule], costs: TableCosts | None = None, **limits: float) -> Search:
    return Search(rules, costs or TableCosts(), RangeOracle({}), Limits(**limits))  # type: ignore[arg-type]


def matches(graph: Graph, *rules: Rule) -> list[Match]:
    engine = search(list(rules))
    return [m for look, group in engine.group(engine.start(graph)).items() if isinstance(look, tuple) for m in group]


def outcome(graph: Graph, one: Rule, forward: bool = True) -> list[Graph | NoMatch]:
    return [apply_match(m, graph, RangeOracle({})) for m in matches(graph, one) if m.direction.forward is forward]


def ops(graph: Graph) -> list[str]:
    """The operators that run: what depends on constants alone is folded."""
    return [node.op for node in graph.nodes() if not all(graph.tables.constant[v] for v in node.values)]


def test_a_rule_of_matrices_serves_batched_operands() -> None:
    b = Builder()
    x, a, w = b.input("[2,5,8]"), b.weight(8, 2), b.weight(2, 16)
    graph = b.graph(b.op("MatMul", b.op("MatMul", x, a), w))
    (changed,) = outcome(graph, ASSOCIATIVE)
    assert isinstance(changed, Graph)
    root = changed.definition(changed.outputs[0])
    assert root is not None and root[0].inputs[0] == x and changed.tables.constant[root[0].inputs[1]]


def test_a_guard_says_no_to_a_vector() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.op("MatMul", b.input("[8]"), b.weight(8, 2)), b.weight(2, 16)))
    (refused,) = outcome(graph, ASSOCIATIVE)
    assert isinstance(refused, NoMatch) and "matrix(X) does not hold" in refused.reason


def test_commutative_operators_match_in_both_orders() -> None:
    b = Builder()
    x, y = b.input("[4,8]"), b.input("[4,8]")
    one_sided = rule("Add(Neg(X), Y)", "Sub(Y, X)", "X:[m,n] Y:[m,n]")
    for operands in ((b.op("Neg", x), y), (y, b.op("Neg", x))):
        (changed,) = outcome(b.graph(b.op("Add", *operands)), one_sided)
        assert isinstance(changed, Graph) and ops(changed) == ["Sub"]


def test_two_products_sharing_an_input_become_one_and_a_split() -> None:
    b = Builder()
    x = b.input("[4,8]")
    graph = b.graph(b.op("MatMul", x, b.weight(8, 3)), b.op("MatMul", x, b.weight(8, 5)))
    (changed,) = outcome(graph, MERGE)
    assert isinstance(changed, Graph)
    assert sorted(ops(changed)) == ["MatMul", "Split"]
    (split,) = [n for n in changed.nodes() if n.op == "Split"]
    assert dict(split.attrs)["sizes"] == (3, 5)
    assert [changed.definition(v) for v in changed.outputs] == [(split, 0), (split, 1)]


def test_products_of_different_inputs_do_not_join() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.input("[4,8]"), b.weight(8, 3)), b.op("MatMul", b.input("[4,8]"), b.weight(8, 5)))
    assert not matches(graph, MERGE)


def test_merging_that_would_make_a_cycle_is_refused() -> None:
    """TASO's figure 6: A×relu(A×B)."""
    b = Builder()
    a, other = b.input("[4,4]"), b.input("[4,4]")
    graph = b.graph(b.op("MatMul", a, b.op("Relu", b.op("MatMul", a, other))))
    results = outcome(graph, MERGE)
    assert results and all(isinstance(r, NoMatch) and "depend on itself" in r.reason for r in results)


def test_interior_values_with_other_users_stay() -> None:
    b = Builder()
    inner = b.op("MatMul", b.input("[4,8]"), b.weight(8, 2))
    graph = b.graph(b.op("MatMul", inner, b.weight(2, 16)), b.op("Relu", inner))
    (changed,) = outcome(graph, ASSOCIATIVE)
    assert isinstance(changed, Graph) and changed.is_live(inner) and "Relu" in ops(changed)


@pytest.mark.parametrize(("mask", "fires"), [(-3e38, True), (-np.inf, False)])
def test_the_nan_guard_goes_only_where_no_nan_is_shown(mask: float, fires: bool) -> None:
    """A fully masked row of -inf makes softmax NaN; a large finite mask does not."""
    b = Builder()
    scores, zero = b.input("[2,4,4]"), b.constant(np.zeros((), np.float32))
    masked = b.op("Add", scores, b.constant(np.full((4, 4), mask, np.float32)))
    soft = b.op("Softmax", masked, axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft))
    (result,) = outcome(graph, UNGUARD)
    if fires:
        assert isinstance(result, Graph) and ops(result) == ["Add", "Softmax", "Identity"]
    else:
        assert isinstance(result, NoMatch) and "not_nan(X) could not be shown" in result.reason


def test_a_causal_mask_of_infinities_keeps_one_finite_entry_a_row() -> None:
    b = Builder()
    causal = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
    soft = b.op("Softmax", b.op("Add", b.input("[2,4,4]"), b.constant(causal)), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), b.constant(np.zeros((), np.float32)), soft))
    (result,) = outcome(graph, UNGUARD)
    assert isinstance(result, Graph)


def guarded(dtype: str, mask: Callable[[Builder, int, int], int]) -> Graph:
    """A guarded softmax of scores [2,4,4] and a mask, which is given zero and the least number of the element type."""
    b = Builder()
    numpy_dtype = parse_type(f"{dtype}[]").dtype.numpy()
    type_ = parse_type(f"{dtype}[]")
    least = np.asarray(np.finfo(numpy_dtype).min, numpy_dtype)
    zero, low = (b.tables.add_constant(Constant.of(np.asarray(v, numpy_dtype), type_)) for v in (0, least))
    soft = b.op("Softmax", b.op("Add", b.input(f"{dtype}[2,4,4]"), mask(b, zero, low)), axis=-1)
    return b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft))


def flags(b: Builder, array: np.ndarray) -> int:
    return b.tables.add_constant(Constant.of(array, TensorType(DataType.BOOL, array.shape)))


@pytest.mark.parametrize(("dtype", "shown"), [("float", True), ("float16", False)])
def test_the_largest_float16_mask_counts_as_infinite(dtype: str, shown: bool) -> None:
    """-65504 plus a score of -16 rounds to -inf in float16; the least float32 swallows any score.

    That a row is not hidden throughout is then an assumption, which the oracle remembers.
    """
    graph = guarded(dtype, lambda b, zero, low: b.op("Where", b.input("bool[4,4]"), low, zero))
    (match,) = matches(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_attended=False)), Graph) is shown
    oracle = RangeOracle({})
    assert isinstance(apply_match(match, graph, oracle), Graph)
    assert oracle.relied == (set() if shown else {(match.direction.id, match.values)})


TRIANGLE = np.tri(4, dtype=bool)
HOLE = TRIANGLE & (np.arange(4) != 2)[:, None]
"""A causal mask of which one row is hidden throughout."""


@pytest.mark.parametrize(
    ("mask", "fires"),
    [
        (lambda b, zero, low: b.op("Where", b.op("And", b.input("bool[4,4]"), flags(b, TRIANGLE)), zero, low), True),
        (lambda b, zero, low: b.op("Where", b.op("And", b.input("bool[4,4]"), flags(b, HOLE)), zero, low), False),
        (lambda b, zero, low: b.op("Where", b.op("Or", flags(b, ~HOLE), b.input("bool[4,4]")), low, zero), False),
        (lambda b, zero, low: b.op("Where", b.op("Not", b.op("And", b.input("bool[1,4]"), flags(b, HOLE))), low, zero), False),
        (lambda b, zero, low: b.op("Where", b.op("Or", flags(b, ~TRIANGLE), b.input("bool[4,4]")), low, zero), True),
        (lambda b, zero, low: b.op("Where", b.input("bool[4,4]"), low, low), False),
        (lambda b, zero, low: b.op("Where", b.input("bool[4,4]"), b.input("float16[4,4]"), low), True),
        (lambda b, zero, low: b.op("Transpose", b.op("Where", b.input("bool[4,4]"), zero, low), perm=(1, 0)), False),
        (lambda b, zero, low: b.op("Add", *(b.op("Where", b.input("bool[4,4]"), zero, low) for _ in range(2))), False),
    ],
)
def test_a_mask_is_assumed_to_leave_something_unless_its_constants_do_not(
    mask: Callable[[Builder, int, int], int], fires: bool
) -> None:
    graph = guarded("float16", mask)
    (match,) = matches(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, RangeOracle({})), Graph) is fires
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_attended=False)), NoMatch)


@pytest.mark.parametrize(("kept", "fires"), [(TRIANGLE, True), (HOLE, False)])
def test_a_constant_float16_mask_is_read_row_by_row(kept: np.ndarray, fires: bool) -> None:
    def mask(b: Builder, zero: int, low: int) -> int:
        hidden = np.where(kept, 0, np.finfo(np.float16).min).astype(np.float16)
        return b.tables.add_constant(Constant.of(hidden, TensorType(DataType.FLOAT16, hidden.shape)))

    graph = guarded("float16", mask)
    oracle = RangeOracle({})
    (match,) = matches(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, oracle), Graph) is fires
    assert not oracle.relied


CAUSAL = rule("Add(X, M)", "X", "X:[b,h,m,n] M:[b,1,m,n]", "causal(M)")
TRUE = rule("And(C, X)", "X", "C:bool[m,1] X:bool[m,n]", "all_true(C) & fits(C, X)")


@pytest.mark.parametrize("change", ["", "another sequence", "a later key", "an input"])
@pytest.mark.parametrize("batch", [2, 256])
def test_a_mask_that_is_computed_of_positions_for_a_batch_is_causal(batch: int, change: str) -> None:
    """As exporters write it: keys of one's own sequence, up to oneself. It is looked at once, however large the batch is."""
    b = Builder()
    length = 256

    def positions(*shape: int) -> int:
        array = np.broadcast_to(np.arange(length).reshape(shape), (batch, *shape)).copy()
        if change == "a later key" and shape[-1] == length:
            array[-1, 0, 0, 5] = 4
        return b.tables.add_constant(Constant.of(array, TensorType(DataType.INT64, array.shape)))

    def sequence(*shape: int) -> int:
        array = np.zeros((batch, *shape), np.int64)
        if change == "another sequence" and shape[-1] == length:
            array[-1, 0, 0, 0] = 1
        return b.tables.add_constant(Constant.of(array, TensorType(DataType.INT64, array.shape)))

    queries, keys = (1, length, 1), (1, 1, length)
    seen = b.op("LessOrEqual", positions(*keys), positions(*queries))
    own = b.op("Equal", sequence(*queries), sequence(*keys))
    seen = b.op("And", b.op("And", flags(b, np.ones((), np.bool_)), own), seen)
    if change == "an input":
        seen = b.op("And", seen, b.input(f"bool[{batch},1,1,{length}]"))
    mask = b.op("Where", seen, b.constant(np.zeros((), np.float32)), b.constant(np.asarray(-np.inf, np.float32)))
    scores = b.input(f"[{batch},12,{length},{length}]")
    graph = b.graph(b.op("Add", scores, b.op("Expand", mask, shape=(12, length, length))))
    oracle = RangeOracle({}, fold=lambda value: pytest.fail("the whole batch is looked at") if batch > 2 else None)
    (found,) = (apply_match(m, graph, oracle) for m in matches(graph, CAUSAL) if dict(m.variables)["X"] == scores)
    assert isinstance(found, NoMatch) and "causal(M)" in found.reason if change else isinstance(found, Graph)


@pytest.mark.parametrize(
    ("flag", "fires"),
    [
        (lambda b: flags(b, np.ones((1, 4, 1), np.bool_)), True),
        (lambda b: flags(b, np.arange(4).reshape(1, 4, 1) != 2), False),
        (lambda b: b.op("Or", flags(b, TRIANGLE), flags(b, ~TRIANGLE)), True),
        (lambda b: b.op("Or", flags(b, TRIANGLE), flags(b, ~HOLE)), True),
        (lambda b: b.op("Or", flags(b, HOLE), flags(b, ~TRIANGLE)), False),
        (lambda b: b.op("Not", b.op("Expand", flags(b, np.zeros((1, 1), np.bool_)), shape=(4, 4))), True),
        (lambda b: b.op("Or", b.input("bool[4,4]"), flags(b, np.ones((4, 1), np.bool_))), True),
        (lambda b: b.input("bool[4,4]"), False),
    ],
)
def test_a_mask_hides_nothing_only_where_every_entry_is_true(flag: Callable[[Builder], int], fires: bool) -> None:
    b = Builder()
    graph = b.graph(b.op("And", flag(b), b.input("bool[2,4,4]")))
    results = [apply_match(m, graph, RangeOracle({})) for m in matches(graph, TRUE) if m.direction.forward]
    assert any(isinstance(result, Graph) for result in results) is fires
    assert fires or any(isinstance(r, NoMatch) and "all_true(C) could not be shown" in r.reason for r in results)


@pytest.mark.parametrize(("scale", "fires"), [(1.0, True), (60000.0, False)])
def test_a_normalised_row_is_bounded_by_its_length(scale: float, fires: bool) -> None:
    """No entry exceeds the root of the row's length; interval arithmetic alone has it divided by the root of epsilon."""
    b = Builder()
    half = TensorType(DataType.FLOAT16, (16,))
    gain, shift = (b.tables.add_constant(Constant.of(np.full(16, v, np.float16), half)) for v in (scale, 0))
    bounded = b.op("Clip", b.input("float16[2,16]"), min=-9.0, max=9.0)
    normal = b.op("LayerNormalization", bounded, gain, shift, axis=-1, epsilon=1e-12)
    range_ = RangeOracle({}).range(b.graph(normal), normal)
    assert range_.finite is fires
    assert not fires or (range_.lo, range_.hi) == (-4.0, 4.0)


def test_two_float32_masks_add_up_to_infinity() -> None:
    """A causal and a padding mask of the least float32 number overflow together: a fully masked row is NaN."""
    b = Builder()
    least = b.constant(np.asarray(np.finfo(np.float32).min, np.float32))
    zero = b.constant(np.zeros((), np.float32))
    masks = [b.op("Where", b.input("bool[4,4]"), least, zero) for _ in range(2)]
    soft = b.op("Softmax", b.op("Add", b.op("Add", b.input("[4,4]"), masks[0]), masks[1]), axis=-1)
    (result,) = outcome(b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft)), UNGUARD)
    assert isinstance(result, NoMatch) and "not_nan(X) could not be shown" in result.reason


def test_the_guards_of_all_layers_go() -> None:
    """A mask shared by layers is huge in each of them, and softmax absorbs it each time."""
    b = Builder()
    value, zero = b.input("[4,4]"), b.constant(np.zeros((), np.float32))
    mask = b.op("Where", b.input("bool[4,4]"), zero, b.constant(np.asarray(np.finfo(np.float32).min, np.float32)))
    for _ in range(3):
        soft = b.op("Softmax", b.op("Add", b.op("MatMul", value, b.weight(4, 4)), mask), axis=-1)
        value = b.op("MatMul", b.op("Where", b.op("IsNaN", soft), zero, soft), value)
    results = outcome(b.graph(value), UNGUARD)
    assert len(results) == 3 and all(isinstance(r, Graph) for r in results)


def test_an_overridable_mask_may_be_overridden_by_its_like() -> None:
    b = Builder()
    mask = b.input("[4,4]")
    default = Constant.of(np.full((4, 4), -np.inf, np.float32), parse_type("[4,4]"))
    soft = b.op("Softmax", b.op("Add", b.input("[4,4]"), mask), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), b.constant(np.zeros((), np.float32)), soft))
    (match,) = matches(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, RangeOracle({}, defaults={mask: default})), NoMatch)
    assert isinstance(apply_match(match, graph, RangeOracle({})), Graph)


def test_inputs_that_may_be_infinite_keep_the_guard() -> None:
    b = Builder()
    soft = b.op("Softmax", b.input("[4,4]"), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), b.constant(np.zeros((), np.float32)), soft))
    (match,) = [m for m in matches(graph, UNGUARD)]
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_finite=False)), NoMatch)
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_finite=True)), Graph)


def test_rules_about_floats_leave_integers_alone() -> None:
    b = Builder()
    x, y, z = b.input("int64[4,4]"), b.input("int64[4,4]"), b.input("int64[4,4]")
    graph = b.graph(b.op("MatMul", b.op("MatMul", x, y), z))
    (refused,) = outcome(graph, ASSOCIATIVE)
    assert isinstance(refused, NoMatch) and "int64" in refused.reason


def test_an_undecided_shape_condition_refuses_with_its_reason() -> None:
    b = Builder()
    x, w, v = b.input("[4,k]"), b.input("[k,n]"), b.input("[k,p]")
    graph = b.graph(b.op("MatMul", x, w), b.op("MatMul", x, v))
    equal = rule("MatMul(X, W); MatMul(X, V)", "MatMul(X, V); MatMul(X, W)", "X:[m,k] W:[k,n] V:[k,n]", "same_shape(W, V)")
    (refused, *_) = outcome(graph, equal)
    assert isinstance(refused, NoMatch) and "could not be shown" in refused.reason


def test_constants_in_patterns_match_by_value() -> None:
    square = rule("Pow(X, 2.0)", "Mul(X, X)", "X:[m,n]")
    for exponent, expected in ((2.0, 1), (3.0, 0)):
        b = Builder()
        graph = b.graph(b.op("Pow", b.input("[4,4]"), b.constant(np.asarray(exponent, np.float32))))
        assert len(matches(graph, square)) == expected


def test_a_constant_in_the_replacement_takes_the_models_element_type() -> None:
    b = Builder()
    x = b.input("float16[4,4]")
    double = rule("Add(X, X)", "Mul(X, 2.0)", "X:[m,n]")
    (changed,) = outcome(b.graph(b.op("Add", x, x)), double)
    assert isinstance(changed, Graph)
    (node,) = changed.nodes()
    literal = changed.type(node.inputs[1])
    assert literal is not None and literal.dtype.name == "FLOAT16"


def _lora(layers: int) -> Graph:
    b = Builder()
    value = b.input("[4,64]")
    for _ in range(layers):
        base = b.op("MatMul", value, b.weight(64, 64))
        adapter = b.op("MatMul", b.op("MatMul", value, b.weight(64, 2)), b.weight(2, 64))
        value = b.op("Relu", b.op("Add", base, adapter))
    return b.graph(value)


def test_backtracking_passes_through_a_worse_candidate() -> None:
    """Merging an adapter first makes its product larger (associativity), then removes it (distributivity)."""
    graph = _lora(1)
    found = search([ASSOCIATIVE, FACTOR], alpha=2.0).run(graph)
    assert ops(found.better[0].graph).count("MatMul") == 1
    assert not search([ASSOCIATIVE, FACTOR], alpha=1.0).run(graph).better, "greedy search cannot get there"


def test_equal_layers_are_rewritten_in_one_move() -> None:
    work = []
    for layers in (2, 16):
        found = search([ASSOCIATIVE, FACTOR], alpha=2.0).run(_lora(layers))
        best = found.better[0]
        assert ops(best.graph).count("MatMul") == layers
        assert {len(move.sites) for move in best.moves} == {layers}
        work.append(found.generated)
    assert work[0] == work[1], "the number of candidates does not grow with the number of layers"


def test_incremental_matches_and_costs_equal_fresh_ones() -> None:
    graph = _lora(3)
    engine = search([ASSOCIATIVE, FACTOR, MERGE], alpha=2.0)
    for candidate in engine.run(graph).better[:20]:
        fresh = engine.start(candidate.graph)
        assert candidate.cost == pytest.approx(fresh.cost)
        assert _as_sets(engine, candidate) == _as_sets(engine, fresh)


def _as_sets(engine: Search, candidate: Candidate) -> set[object]:
    groups = [matches for look, matches in engine.group(candidate).items() if isinstance(look, tuple)]
    return {(m.direction.id, m.values, tuple(sorted((repr(t), v) for t, v in m.binding.items()))) for g in groups for m in g}


def test_a_saving_that_comes_only_with_the_last_site_is_found() -> None:
    """A factor on the input of two products of different sizes goes away once both have absorbed it."""
    b = Builder()
    scaled = b.op("Mul", b.input("[4,64]"), b.constant(np.asarray(2.0, np.float32)))
    graph = b.graph(b.op("MatMul", scaled, b.weight(64, 32)), b.op("MatMul", scaled, b.weight(64, 16)))
    absorb = rule("MatMul(Mul(X, s), W)", "MatMul(X, Mul(W, s))", "X:[m,k] W:[k,n] s:[]", "ones(s) & matrix(W)")
    best = search([absorb], alpha=1.0).run(graph).better[0]
    assert ops(best.graph) == ["MatMul", "MatMul"]


def test_replay_leads_to_the_same_candidate() -> None:
    graph = _lora(3)
    engine = search([ASSOCIATIVE, FACTOR], alpha=2.0)
    best = engine.run(graph).better[0]
    assert replay(engine, graph, best.moves).graph.digest == best.graph.digest
    assert replay(engine, graph, best.moves[:-1]).graph.digest != best.graph.digest


def test_banned_rules_are_not_used() -> None:
    engine = search([ASSOCIATIVE, FACTOR], alpha=2.0)
    assert not engine.run(_lora(1), banned=frozenset({FACTOR.id})).better


def test_interruption_keeps_the_best_so_far() -> None:
    calls = []

    def interrupt(expanded: int, start: float, best: float) -> None:
        calls.append(expanded)
        if best < start:
            raise KeyboardInterrupt

    engine = Search([ASSOCIATIVE, FACTOR], TableCosts(), RangeOracle({}), Limits(alpha=2.0), interrupt)  # type: ignore[arg-type]
    found = engine.run(_lora(2))
    assert found.better and "interrupted" in found.stopped


def test_near_misses_name_the_node_and_the_reason() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.op("Relu", b.input("[4,8]")), b.weight(8, 16)))
    depth, miss = near_miss(graph, ASSOCIATIVE.source[0], graph.outputs[0])
    assert depth == 1 and miss is not None and "computed by Relu, the rule wants MatMul" in miss.reason


def test_directions_need_their_variables_bound() -> None:
    assert [d.forward for d in compile_rules([UNGUARD])] == [True], "X -> Where(IsNaN(X), C, X) leaves C open"
    assert [d.forward for d in compile_rules([ASSOCIATIVE])] == [True, False]


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
    (joined,) = outcome(b.graph(b.op("Concat", b.op("Neg", x), b.op("Neg", y), axis=axis)), NEGATED)
    assert isinstance(joined, Graph) and sorted(ops(joined)) == ["Concat", "Neg"]
    assert [dict(node.attrs)["axis"] for node in joined.nodes() if node.op == "Concat"] == [axis]
    (parted,) = outcome(b.graph(b.op("Neg", b.op("Concat", x, y, axis=axis))), NEGATED, forward=False)
    assert isinstance(parted, Graph) and sorted(ops(parted)) == ["Concat", "Neg", "Neg"]


def test_an_attribute_variable_has_one_value() -> None:
    b = Builder()
    x, y = b.input("[2,2]"), b.input("[2,2]")
    assert outcome(b.graph(b.op("Concat", b.op("Softmax", x, axis=-1), b.op("Softmax", y, axis=-2), axis=-1)), SOFTMAXES) == []


@pytest.mark.parametrize("axis", [-1, -2])
def test_guards_ask_about_the_values_of_attribute_variables(axis: int) -> None:
    b = Builder()
    x, y = (b.op("Softmax", b.input("[2,2]"), axis=-1) for _ in range(2))
    (after,) = outcome(b.graph(b.op("Concat", x, y, axis=axis)), SOFTMAXES)
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
    (composed,) = outcome(graph, RMS)
    assert isinstance(composed, Graph)
    assert [(n.op, dict(n.attrs)["epsilon"]) for n in composed.nodes()] == [("RMSNormalization", 0.25)]
    b = Builder()
    x, g = b.input("[2,3]"), b.weight(3)
    (written_out,) = outcome(b.graph(b.op("RMSNormalization", x, g, axis=-1, epsilon=0.25)), RMS, forward=False)
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
        (after,) = outcome(b.graph(b.op("Neg", b.input(f"[4,{columns}]"))), parted)
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
    results = outcome(graph, UPCAST)
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
        (result,) = outcome(graph, both)
        assert isinstance(result, Graph) is applies
        if isinstance(result, NoMatch):
            assert "X has element type bfloat16, not float16" in result.reason


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_one_float_type_of_a_rule_stands_for_any(dtype: str) -> None:
    """In Casts, too: the mask of a model in float16 is cast to float16."""
    masked = rule("Mul(Cast[to=float](M), X)", "Where(M, X, 0.0)", "M:bool[m,n] X:[m,n]", "same_shape(M, X)")
    b = Builder()
    m, x = b.input("bool[2,3]"), b.input(f"{dtype}[2,3]")
    (there,) = outcome(b.graph(b.op("Mul", b.op("Cast", m, to=parse_type(f"{dtype}[]").dtype), x)), masked)
    assert isinstance(there, Graph) and ops(there) == ["Where"]
    zero = b.tables.literal(np.zeros((), parse_type(f"{dtype}[]").dtype.numpy()), parse_type(f"{dtype}[]"))
    (back,) = outcome(b.graph(b.op("Where", m, x, zero)), masked, forward=False)
    assert isinstance(back, Graph) and ops(back) == ["Cast", "Mul"]


def test_a_number_beside_numbers_alone_takes_the_rule_s_float_type() -> None:
    either = rule("Mul(Where(M, X, -2.0), 0.5)", "Mul(Where(M, X, 0.0), Where(M, 0.5, -1.0))", "M:bool[m,n] X:[m,n]")
    b = Builder()
    half, low = (b.tables.add_constant(Constant.of(np.asarray(v, np.float16), parse_type("float16[]"))) for v in (0.5, -2.0))
    m, x = b.input("bool[2,3]"), b.input("float16[2,3]")
    (result,) = outcome(b.graph(b.op("Mul", b.op("Where", m, x, low), half)), either)
    assert isinstance(result, Graph), "the two numbers of the second Where are float16"


def test_a_number_may_stand_in_several_tensors() -> None:
    halved = rule("Add(Mul(X, 0.5), Mul(Y, 0.5))", "Mul(Add(X, Y), 0.5)", "X:[m,n] Y:[m,n]")
    b = Builder()
    x, y = (b.op("Mul", b.input("[2,3]"), b.constant(np.asarray(0.5, np.float32))) for _ in range(2))
    assert any(isinstance(result, Graph) for result in outcome(b.graph(b.op("Add", x, y)), halved))


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
    assert len(matches(b.graph(b.op("Mul", b.input(f"{dtype}[2,3]"), constant)), scaled)) == expected


PAIR = replace(
    rule("Neg(Add(X, $e)); Relu(Add(Y, $e))", "Sub(Neg(X), $e); Relu(Add(Y, $e))", "X:[m,n] Y:[m,n]"), attrs={"e": 0.5}
)


@pytest.mark.parametrize("other", [0.25, 0.125])
def test_an_attribute_variable_has_one_value_in_all_outputs(other: float) -> None:
    b = Builder()
    x, y = (b.op("Add", b.input("[2,3]"), b.constant(np.asarray(e, np.float32))) for e in (0.25, other))
    found = [m for m in matches(b.graph(b.op("Neg", x), b.op("Relu", y)), PAIR) if m.direction.forward]
    assert len(found) == (other == 0.25)


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
    (after,) = outcome(b.graph(*results), moved)
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
    (result,) = outcome(b.graph(b.op("Concat", *parts, axis=-1)), whole)
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
    (result,) = outcome(b.graph(b.op("Mul", b.op("Mul", b.input("[2,3]"), half), third)), SCALES)
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
    (result,) = outcome(graph, unsolved)
    assert isinstance(result, NoMatch) and "product($c, $c, $b) gives no $b: division by zero" in result.reason


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_a_float_type_in_a_condition_is_the_rule_s(dtype: str) -> None:
    """Which type it is in the model does not matter: the Cast is to what the operand has already."""
    idle = rule("Relu(Cast[to=float](X))", "Relu(X)", "X:[m,n]", "dtype(X, float)")
    b = Builder()
    (result,) = outcome(b.graph(b.op("Relu", b.op("Cast", b.input(f"{dtype}[2,3]"), to=parse_type(f"{dtype}[]").dtype))), idle)
    assert isinstance(result, Graph) and ops(result) == ["Relu"]


@pytest.mark.parametrize("known", [True, False])
def test_a_condition_about_entries_asks_constants(known: bool) -> None:
    halves = rule("Neg(Neg(X))", "X", "X:[m,2*n]", "repeats(X, -1)")
    b = Builder()
    x = b.constant(np.asarray([[1, 2, 1, 2]], np.float32)) if known else b.input("[1,4]")
    graph = b.graph(b.op("Add", b.op("Neg", b.op("Neg", x)), b.input("[1,4]")))
    found = [m for m in matches(graph, halves)]
    if known:
        assert not found, "what is constant is folded, not rewritten"
        facts = ModelFacts(Match(compile_rules([halves])[0], (), {parse_term("X"): x}, {}, ()), graph, RangeOracle({}), {})
        assert halves.conditions[0].holds(facts) is True
    else:
        (result,) = outcome(graph, halves)
        assert isinstance(result, NoMatch) and "repeats(X, -1) could not be shown" in result.reason
