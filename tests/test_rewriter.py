"""Matching, guards, application and search on graphs built by hand; costs from a table, so nothing is timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugraph.graph import Constant, Graph, Node, Tables
from mugraph.shape import TensorType
from mugraph.text import Parser, parse_term, parse_type
from rewriter.apply import apply_match
from rewriter.explain import near_miss
from rewriter.match import Match, NoMatch, compile_rules
from rewriter.ranges import RangeOracle
from rewriter.search import Candidate, Limits, Search, replay
from rules_db.certificate import Certificate
from rules_db.condition import parse_condition
from rules_db.rule import FloatClass, Rule


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

    def total(self, graph: Graph) -> float:
        return sum(self.cost(graph, node) for node in graph.references)

    def change(self, parent: float, graph: Graph) -> float:
        return parent + self.estimated_change(graph)

    def estimated_change(self, graph: Graph) -> float:
        return sum(self.cost(graph, n) for n in graph.added) - sum(self.cost(graph, n) for n in graph.removed)


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


@pytest.mark.parametrize(("dtype", "fires"), [("float", True), ("float16", False)])
def test_the_largest_float16_mask_counts_as_infinite(dtype: str, fires: bool) -> None:
    """-65504 plus a score of -16 rounds to -inf in float16; the least float32 swallows any score."""
    b = Builder()
    scores = b.input(f"{dtype}[2,4,4]")
    hidden = b.input("bool[4,4]")
    numpy_dtype = parse_type(f"{dtype}[]").dtype.numpy()
    least = np.asarray(np.finfo(numpy_dtype).min, numpy_dtype)
    type_ = parse_type(f"{dtype}[]")
    zero, low = (b.tables.add_constant(Constant.of(np.asarray(v, numpy_dtype), type_)) for v in (0, least))
    soft = b.op("Softmax", b.op("Add", scores, b.op("Where", hidden, low, zero)), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft))
    (result,) = outcome(graph, UNGUARD)
    assert isinstance(result, Graph) is fires


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
