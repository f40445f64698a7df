"""Guards are records: each says all of itself in one place, and a new one works wherever guards are used."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest

from mugraph.domains.range import Range
from mugraph.graph import Constant, Graph, Tables
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, TensorType, same_dim, symbol
from mugraph.terms.term import AttrValue, Term, var, walk
from mugraph.terms.text import Parser, TextError, parse_term, parse_type
from rewriter.search.directions import compile_rules
from rewriter.search.match import Match, NoMatch, RootIndex, find_root_matches, join
from rewriter.search.ranges import RangeOracle
from rules_db.exchange import format_rule, parse_rules
from rules_db.show.words import in_words
from rules_db.solving import determined
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.check import check
from rules_db.trust.condition import Condition, Facts, parse_condition
from rules_db.trust.guards import GUARDS, About, Premises
from rules_db.trust.guards.record import EVERYWHERE, LeastRank, guard
from rules_db.trust.implied import implied
from rules_db.trust.properties import parse_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.graphs import apply_match


def condition(text: str) -> Condition:
    return parse_condition(Parser(text))


def test_a_causal_mask_is_zero_and_minus_infinity_or_true_and_false() -> None:
    def causal(entries: np.ndarray) -> bool | None:
        type_ = TensorType(DataType.from_numpy(entries.dtype), entries.shape)
        return GUARDS["causal"].predicate(
            Facts(lambda term: type_, lambda term: Range.top(), value_of=lambda term: entries), var("m")
        )

    seen = np.tri(4, dtype=bool)[None]
    off = seen.copy()
    off[0, 1, 2] = True
    for mask, expected in ((seen, True), (off, False), (~seen, False), (seen[:, :3], False), (np.zeros_like(seen), False)):
        assert causal(mask) is expected
        assert causal(np.where(mask, 0, -np.inf).astype(np.float32)) is expected
    assert causal(seen.astype(np.int64)) is False


@pytest.mark.parametrize("name", GUARDS)
def test_a_record_says_all_of_itself(name: str) -> None:
    record = GUARDS[name]
    assert record.name == name and record.predicate.__doc__ and record.words.endswith(".")
    assert len(record.kinds) == len(record.parameters) > 0
    assert set(record.kinds) == {"v"} if record.about == About.ATTRIBUTES else True
    assert set(record.solvers) <= set(range(len(record.kinds))) and (not record.solvers or record.about == About.ATTRIBUTES)
    assert record.of_values == (record.of_ranges or record.of_entries) == (record.about in (About.RANGES, About.ENTRIES))


def test_guards_are_numbered_in_order() -> None:
    assert [record.number for record in GUARDS.values()] == list(range(1, len(GUARDS) + 1))


def test_an_unknown_guard_is_told_the_known_ones_in_order() -> None:
    with pytest.raises(TextError, match=re.escape(f"one of {', '.join(GUARDS)}, not 'squared'")):
        condition("squared(x)")
    assert list(GUARDS)[:4] == ["matrix", "vector", "rank", "same_rank"]


def test_arguments_are_terms_or_values_as_the_predicate_has_them() -> None:
    assert GUARDS["same_per_group"].kinds == "tvtv" and GUARDS["moves"].kinds == "vvv" and GUARDS["matrix"].kinds == "t"
    for text in ("matrix((1,0))", "moves(Relu(x), -1, -2)", "matrix(x, y)", "agree(x, y)"):
        with pytest.raises(TextError):
            condition(text)


# What is determined


def facts_of(binding: Mapping[str, AttrValue]) -> Facts:
    return Facts(lambda term: TensorType(DataType.FLOAT, ()), lambda term: Range.top(), binding)


def test_variables_are_determined_after_those_that_they_need() -> None:
    conditions = [condition(text) for text in ("doubles($d, $c)", "product($c, $a, $b)", "distinct($e, $a)", "doubles($a, $a)")]
    plan = determined(conditions, {"a", "b"})
    assert [(one.name, one.position) for one in plan] == [("c", 0), ("d", 0)]
    binding = {"$a": 2.0, "$b": 1.5}
    for one in plan:
        binding[f"${one.name}"] = one.value(facts_of(binding))
    assert binding == {"$a": 2.0, "$b": 1.5, "$c": 3.0, "$d": 6.0}
    assert [one.name for one in determined(conditions[:2], {"d"})] == ["c"]
    assert determined(conditions[1:2], {"a"}) == ()


@pytest.mark.parametrize(
    ("text", "binding"),
    [
        ("doubles($d, $c)", {"$d": 3}),
        ("product($d, $c, $b)", {"$d": 1.0, "$b": 0.0}),
        ("product($d, $c, $b)", {"$d": symbol("n"), "$b": 3}),
        ("lifted($c, -1, $b)", {"$b": 7}),
        ("swapped($c, $b)", {"$b": (1,)}),
    ],
)
def test_where_no_value_does_there_is_none(text: str, binding: dict[str, AttrValue]) -> None:
    (one,) = determined([condition(text)], {name[1:] for name in binding})
    assert one.name == "c"
    with pytest.raises(ValueError):
        one.value(facts_of(binding))


# A new guard


def square(facts: Facts, x: Term) -> bool | None:
    """The last two dimensions of x are equal."""
    shape = facts.shape(x)
    return same_dim(shape[-1], shape[-2]) if len(shape) >= 2 else False


def _square_law(premises: Premises, x: Term) -> bool:
    """Of a transposed matrix, if it is one of the matrix."""
    return x.op == "Transpose" and x.attr("perm") == (1, 0) and premises.follows("square", x.inputs[0])


def triples(facts: Facts, total: float, third: float) -> bool | None:
    """The number ``total`` is three times ``third``."""
    return total == 3 * third


@pytest.fixture
def two_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    number = len(GUARDS)
    records = [
        guard(number + 1, About.SHAPES, tells=lambda x: [LeastRank(x, 2)], law=_square_law)(square),
        guard(number + 2, About.ATTRIBUTES, solvers={0: lambda _, third: 3 * third, 1: lambda total, _: total / 3})(triples),
    ]
    for record in records:
        monkeypatch.setitem(GUARDS, record.name, record)  # type: ignore[arg-type]


class _Model:
    def __init__(self, shape: str) -> None:
        self.tables = Tables()
        self.x = self.tables.new_value(parse_type(shape), "x")

    def op(self, name: str, *inputs: int, **attrs: object) -> int:
        return self.tables.apply(name, tuple(sorted(attrs.items())), inputs).values[0]

    def number(self, value: float) -> int:
        return self.tables.add_constant(Constant.of(np.float32(value), TensorType(parse_type("[]").dtype, ())))

    def graph(self, output: int) -> Graph:
        return Graph.build(self.tables, [self.x], [output])


def applied(rule: Rule, graph: Graph) -> Graph | NoMatch:
    """The rule applied from left to right to the only output."""
    index = RootIndex(direction for direction in compile_rules([rule]) if direction.forward)
    (hit,) = find_root_matches(graph, index, graph.outputs[0])
    match = next(join(hit.direction, [[hit]]))
    assert isinstance(match, Match)
    return apply_match(match, graph, RangeOracle({}))


@pytest.mark.usefixtures("two_guards")
def test_a_new_guard_is_parsed_listed_and_put_in_words() -> None:
    new = condition("square(Transpose[perm=(1,0)](x))")
    assert str(new) == "square(Transpose[perm=(1,0)](x))" and not new.guard.of_values
    assert in_words(new) == "The last two dimensions of Transpose[perm=(1,0)](x) are equal."
    assert in_words(condition("triples(6.0, $t)")) == "The number 6.0 is three times $t."
    with pytest.raises(TextError, match=f"{re.escape(list(GUARDS)[-3])}, square, triples, not 'squared'"):
        condition("squared(x)")


@pytest.mark.usefixtures("two_guards")
def test_a_new_guard_follows_and_tells() -> None:
    assert implied(condition("square(Transpose[perm=(1,0)](x))"), [condition("square(x)")])
    assert not implied(condition("square(Relu(x))"), [condition("square(x)")])
    assert implied(condition("matrix(Relu(x))"), [condition("square(x)")])
    assert implied(condition("triples(6.0, 2.0)"), []) and not implied(condition("triples(6.0, 3.0)"), [])
    types = infer_types([parse_term("x")], {"x": parse_type("[2,n,n]")})
    facts = Facts(types.__getitem__, lambda term: Range.top())
    assert condition("square(x)").holds(facts) is True


@pytest.mark.usefixtures("two_guards")
def test_a_new_guard_is_checked_and_asked_of_models() -> None:
    axiom = "test.square: Transpose[perm=(1,0)](x) = x when square(x), matrix(x)"
    axioms = {one.name: one for one in parse_axioms(axiom, "test.axioms")}
    proof = Certificate((Instance("test.square", (("x", parse_term("x")),)),))
    sides = (parse_term("Transpose[perm=(1,0)](x)"),), (parse_term("x"),)
    rule = Rule(*sides, {"x": parse_type("[n,n]")}, (condition("square(x)"),), FloatClass.EXACT, proof, {"group": "test"})
    assert check(rule, axioms) == []  # that it is a matrix follows
    (read,) = parse_rules(format_rule(rule))
    assert read.id == rule.id and check(read, axioms) == []
    bare = Rule(*sides, {"x": parse_type("[n,n]")}, (), FloatClass.EXACT, proof)
    assert any("step 1 needs square(x)" in failure for failure in check(bare, axioms))
    wrong = Rule(*sides, {"x": parse_type("[n,m]")}, rule.conditions, FloatClass.EXACT, proof)
    assert any("contradict its condition square(x)" in failure for failure in check(wrong, axioms))

    for shape, wanted in (("[4,4]", True), ("[3,n,n]", True), ("[4,5]", False), ("[n,m]", None)):
        model = _Model(shape)
        result = applied(rule, model.graph(model.op("Transpose", model.x, perm=(1, 0))))
        if wanted:
            assert isinstance(result, Graph) and not [node for node in result.nodes() if node.op == "Transpose"]
        else:
            reason = "condition square(x) does not hold" if wanted is False else "condition square(x) could not be shown"
            assert isinstance(result, NoMatch) and result.reason == reason


@pytest.mark.usefixtures("two_guards")
def test_a_new_guard_is_solved() -> None:
    product = "Mul(x, $a)"
    sides = (parse_term(f"Add(Add({product}, {product}), {product})"),), (parse_term("Mul(x, $c)"),)
    when = (condition("triples($c, $a)"),)
    types = {"x": parse_type("[n]")}
    rule = Rule(*sides, types, when, FloatClass.REASSOCIATES, Certificate(()), attrs={"a": 2.0, "c": 6.0})
    model = _Model("[4]")
    scaled = model.op("Mul", model.x, model.number(1.5))
    result = applied(rule, model.graph(model.op("Add", model.op("Add", scaled, scaled), scaled)))
    assert isinstance(result, Graph)
    definition = result.definition(result.outputs[0])
    assert definition is not None and definition[0].op == "Mul"
    factor = result.tables.small_constant(definition[0].inputs[1], 1)
    assert factor is not None and float(factor) == 4.5
    assert [term.op for term in walk(rule.target)] == ["Var", "Const", "Mul"]


def test_what_is_no_axis_is_asked_for_in_no_time() -> None:
    """An attribute of a rule that somebody wrote may be anything; only whole numbers below zero are axes."""
    assert -1 in EVERYWHERE and -(10**30) in EVERYWHERE and 0 not in EVERYWHERE
    for other in (-1.0, (-1,), "x", DataType.FLOAT, parse_type("[n]").shape[0]):
        assert other not in EVERYWHERE
    premises = [condition("ones(x)")]
    assert implied(condition("constant_along(Mul(x, x), -1)"), premises)
    for axis in ("-1.5", "(-1,)"):
        assert not implied(condition(f"constant_along(Mul(x, x), {axis})"), premises)


def test_pads_of_other_numbers_of_axes_do_not_add_up() -> None:
    """A Pad may be of more axes than a convolution has."""
    padded = GUARDS["padded"].predicate
    assert padded(None, (1, 3), (0, 1), (1,), (2,))
    assert not padded(None, (1, 3), (0, 1), (0, 1), (0, 2)) and not padded(None, (1, 3), (0, 1), (1,), ())
    assert not GUARDS["widened"].predicate(None, (1, 3), (0, 1), (1,), (2,), (1, 1))
