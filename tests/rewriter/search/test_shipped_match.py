"""Every rule that the package ships is of use: a model that is one side of it becomes the other side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from mugraph.domains import Real
from mugraph.domains.range import Range
from mugraph.graph import Constant, Graph, Tables
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, concrete
from mugraph.terms.term import AttrValue, Term, attr_symbols, bind_attrs, bind_value, binding_of, walk
from rewriter.search.directions import Direction, compile_rules
from rewriter.search.match import Match, NoMatch, RootIndex, RootMatch, find_root_matches, join
from rewriter.search.ranges import RangeOracle
from rulegen.numeric.samples import HIDING, POSITIONED, masked
from rules_db.library import open_rules
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule, dim_symbols
from tests.support.graphs import apply_match

FLOATS = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE)
LEAST, MOST = 0.25, 0.75
"""Model inputs are known to lie between, so that guards about values hold."""


def sizes_of(rule: Rule) -> list[dict[str, Dim]]:
    """Sizes of a rule's dimension symbols to try: different ones first, in a row or not, then equal ones."""
    symbols = {s for t in rule.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    symbols |= {s for value in rule.attrs.values() for s in attr_symbols(value)}
    names = sorted(symbols | dim_symbols([*rule.source, *rule.target]))
    rows = [(2, 3, 5, 4, 6, 7, 8, 9), (6, 4, 2, 8, 3, 5, 7, 9), (4,) * 8, (2,) * 8]
    return [dict(zip(names, itertools.cycle(row), strict=False)) for row in rows]


def build(roots: Sequence[Term], rule: Rule, sizes: Mapping[str, Dim]) -> tuple[Graph, dict[int, TensorType]]:
    """A model that is one side of a rule, and its inputs. Raises ShapeError or Undecided where the sizes do not fit.

    What a condition wants to repeat itself, to be a mask of positions or to be true throughout is a constant that does.
    """
    tables, values, inputs = Tables(), dict[Term, int](), dict[int, TensorType]()
    binding: Mapping[str, AttrValue] = binding_of({k: bind_value(v, sizes) for k, v in rule.attrs.items()}, sizes)
    repeated = {c.arguments[0]: c.arguments[1] for c in rule.conditions if c.predicate == "repeats"}
    masks: dict[object, Callable[[np.ndarray], np.ndarray]] = {
        c.arguments[0]: np.ones_like if c.predicate == "all_true" else partial(masked, c.substitute({}, rule.attrs))
        for c in rule.conditions
        if c.predicate in ("all_true", *POSITIONED)
    }
    masks |= {c.arguments[1]: lambda values: np.full_like(values, -np.inf) for c in rule.conditions if c.predicate in HIDING}
    for term in walk(roots):
        if term.is_var:
            sample = rule.types[term.name]
            type_ = sample.at(sizes)
            if term in repeated:
                values[term] = tables.add_constant(Constant.of(twice(type_, repeated[term]), type_))
                continue
            if term in masks:
                entries = masks[term](random(type_, np.random.default_rng(0)))
                values[term] = tables.add_constant(Constant.of(entries.astype(type_.dtype.numpy()), type_))
                continue
            values[term] = tables.new_value(type_, term.name)
            inputs[values[term]] = type_
        elif term.op != "Const":
            beside = [tables.types[values[i]].dtype for i in term.inputs if i.op != "Const"]  # type: ignore[union-attr]
            dtype = next((d for d in beside if d != DataType.BOOL), DataType.FLOAT)
            operands = [values[i] if i.op != "Const" else number(tables, i, rule, dtype) for i in term.inputs]
            values[term] = tables.apply(term.op, bind_attrs(term.attrs, binding), operands).values[term.out]
    return Graph.build(tables, list(inputs), [values[root] for root in roots]), inputs


def twice(type_: TensorType, axis: object) -> np.ndarray:
    """Random entries of which the second half along an axis is the first again. Raises ShapeError for an odd size."""
    shape = concrete(type_.shape)
    assert shape is not None and isinstance(axis, int)
    if shape[axis] % 2:
        raise ShapeError(f"{type_} has no two halves")
    half = random(
        TensorType(type_.dtype, tuple(n // 2 if i == axis % len(shape) else n for i, n in enumerate(shape))),
        np.random.default_rng(0),
    )
    return np.concatenate([half, half], axis).astype(type_.dtype.numpy())


def number(tables: Tables, term: Term, rule: Rule, dtype: DataType) -> int:
    ((_, value),) = bind_attrs(term.attrs, binding_of(rule.attrs))
    type_ = TensorType(DataType.BOOL if isinstance(value, bool) else dtype, ())
    return tables.add_constant(Constant.of(np.asarray(value, type_.dtype.numpy()), type_))


def random(type_: TensorType, generator: np.random.Generator) -> np.ndarray:
    shape = concrete(type_.shape)
    assert shape is not None
    if type_.dtype in FLOATS:
        return generator.uniform(LEAST, MOST, shape)
    return generator.integers(0, 2, shape).astype(type_.dtype.numpy())


def run(graph: Graph, feeds: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """The outputs in float64."""
    values = {value: constant.load().astype(np.float64) for value, constant in graph.tables.constants.items()}
    values.update(feeds)
    for node in graph.nodes():
        results = get_operator(node.op).run(Real(np.float64), node.attrs, [values[v] for v in node.inputs])
        for value, result in zip(node.values, results, strict=True):
            values.setdefault(value, np.asarray(result))
        values.update({v: np.asarray(results[out]) for v, (n, out) in graph.definitions.items() if n is node})
    return [values[v] for v in graph.outputs]


def matches(direction: Direction, graph: Graph) -> list[Match]:
    index = RootIndex([direction])
    parts: list[list[RootMatch]] = [[] for _ in direction.pattern]
    for node in graph.nodes():
        for value in node.values:
            for hit in find_root_matches(graph, index, value) if graph.is_live(value) else ():
                parts[hit.root].append(hit)
    return list(join(direction, parts))


def attempt(direction: Direction) -> str:
    """Nothing where the direction applies to its own pattern and keeps what it computes; else the reason."""
    reason = "no sizes fit"
    for sizes in sizes_of(direction.rule):
        try:
            graph, inputs = build(direction.pattern, direction.rule, sizes)
        except (ShapeError, Undecided) as problem:
            reason = f"no sizes fit: {problem}"
            continue
        here = matches(direction, graph)
        reason = "no match" if not here else reason
        for match in here:
            oracle = RangeOracle({})
            for value, type_ in inputs.items():
                oracle.ranges[value] = Range.finite_input(LEAST, MOST) if type_.dtype in FLOATS else Range.finite_input(0, 1)
            after = apply_match(match, graph, oracle)
            if isinstance(after, NoMatch):
                reason = after.reason
                continue
            generator = np.random.default_rng(0)
            feeds = {value: random(type_, generator) for value, type_ in inputs.items()}
            for old, new in zip(run(graph, feeds), run(after, feeds), strict=True):
                np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-9, err_msg=f"{direction}")
            return ""
    return reason


def fold(rule: Rule) -> str:
    """Nothing where the sides of a rule about constants alone fold to the same numbers at some sizes; else the reason.

    It is no move, since a model's constants are folded: it serves derivations.
    """
    reason = "no sizes fit"
    for sizes in sizes_of(rule):
        try:
            graphs = [build(side, rule, sizes)[0] for side in (rule.source, rule.target)]
        except (ShapeError, Undecided) as problem:
            reason = f"no sizes fit: {problem}"
            continue
        assert all(graph.tables.constant[value] for graph in graphs for value in graph.outputs)
        for old, new in zip(*(run(graph, {}) for graph in graphs), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-9, err_msg=f"{rule}")
        return ""
    return reason


@pytest.mark.parametrize("part", range(4))
def test_every_rule_applies_to_one_of_its_sides(part: int) -> None:
    rules = {rule.id: rule for rule in open_rules(None)}
    directions: dict[str, list[Direction]] = {name: [] for name in rules}
    for direction in compile_rules(open_rules(None)):
        directions[direction.rule.id].append(direction)
    for rule in open_rules(None):
        if kernel_of_rule(rule) is not None:  # it is no move by itself: its kernel is made for the model's sizes first
            directions[rule.id].append(Direction(rule, True))
    assert len(directions) > 500
    useless = {}
    for name, both in sorted(directions.items())[part::4]:
        reasons = [attempt(direction) for direction in both] if rules[name].types else [fold(rules[name])]
        if all(reasons):
            useless[name] = "; ".join(reasons) or "no direction binds what the other needs"
    assert not useless
