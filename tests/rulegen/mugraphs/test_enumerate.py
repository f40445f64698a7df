"""The enumeration of values: complete, canonical, pruned by expressions and by nothing that is wanted."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
import z3

from mugraph.domains.base import Unsupported
from rulegen.mugraphs import enumerate as enumeration
from rulegen.mugraphs.abstract import AbstractDomain, Expression, Parts, atom
from rulegen.mugraphs.enumerate import EnumerationLimits, Found, enumerate_values
from rulegen.mugraphs.goals import Goal, GoalProgram
from rulegen.mugraphs.values import Value, ValueKind, Values
from tests.support.goals import ATTENTION, GATED, LORA, NORM, SOFTMAX, goal

SUM = "ReduceSum[axes=(-1,),keepdims=true]"


def found(wanted: Goal, operators: int, pruned: bool = True, **limits: float) -> Found:
    return enumerate_values(GoalProgram(wanted), EnumerationLimits(operators, pruned=pruned, **limits))  # type: ignore[arg-type]


def text(values: Values, value: Value) -> str:
    """A value as a term; symmetric operands in the order of their texts."""
    operation = value.operation
    operands = [text(values, values[number]) for number in value.operands]
    if len(operands) == 2 and enumeration.is_commutative(operation):
        operands.sort()
    return f"{operation.kind.name}{operation.name}{operation.axis}({', '.join(operands)})"


def texts(result: Found) -> dict[str, int]:
    return {text(result.values, value): len(value.closure) for (value,) in result.results}


@pytest.mark.parametrize(("wanted", "least"), [(NORM, 5), (LORA, 3), (ATTENTION, 5), (GATED, 5), (SOFTMAX, 3)])
def test_the_shortest_graph_is_found_and_no_shorter_limit_finds_one(wanted: Goal, least: int) -> None:
    assert min(texts(found(wanted, least)).values()) == least and not found(wanted, least - 1).results


def test_no_graph_stands_twice() -> None:
    result = found(NORM, 8)
    every = [text(result.values, value) for value in result.values]
    assert len(set(every)) == len(every) > 200


def test_deeper_limits_find_nothing_new_once_all_is_there() -> None:
    assert texts(found(NORM, 8)) == texts(found(NORM, 20)) and not found(NORM, 20).stopped


SMALL = [
    (goal(f"Div(x, {SUM}(x))", x="mn"), 4),
    (goal(f"Div(Exp(x), {SUM}(Exp(x)))", x="mn"), 4),
    (goal(f"Div(x, Sqrt({SUM}(Mul(x, x))))", x="mn"), 4),
    (goal("MatMul(Mul(x, g), w)", x="mk", g="k", w="kn"), 4),
    (goal(f"MatMul(Div(x, {SUM}(x)), w)", x="mk", w="kn"), 4),
    (SOFTMAX, 4),
    (LORA, 4),
]


@pytest.mark.parametrize(("wanted", "operators"), SMALL, ids=lambda x: str(x.roots[0]) if isinstance(x, Goal) else str(x))
def test_pruning_loses_only_what_cancels(wanted: Goal, operators: int) -> None:
    """Of all graphs, made without pruning, those that are lost divide what cancels, and are longer than what is found."""
    kept, every = found(wanted, operators), found(wanted, operators, pruned=False)
    assert not kept.stopped and not every.stopped and len(kept.values) < len(every.values)
    assert texts(kept).items() <= texts(every).items()
    lost = {term: size for term, size in texts(every).items() if term not in texts(kept)}
    assert all(
        term.count("Div") > str(wanted.roots[0]).count("Div") and size > min(texts(kept).values()) for term, size in lost.items()
    )


def test_what_the_solver_proves_to_be_part_of_a_goal_is_not_pruned() -> None:
    """Mirage asks an SMT solver whether a prefix is a subexpression (section 4.3): it proves nothing that is cut."""
    wanted = goal(f"Div(MatMul(x, w), Sqrt({SUM}(Mul(x, x))))", x="mk", w="kn")
    program, theory = GoalProgram(wanted), _Theory()
    parts = Parts(program.values.look(program.roots[0]).expression)
    every = enumerate_values(program, EnumerationLimits(2, pruned=False)).values
    abstract = Values()
    again = {value.number: _entered(abstract, program, value, every) for value in every}
    made = [value for value in every if not value.operation.kind.is_leaf]
    kept_of = {value.number: abstract.look(again[value.number]).expression in parts for value in made}
    kept_values = [value for value in made if kept_of[value.number]]
    cut_values = [value for value in made if not kept_of[value.number]]
    proved, cut = 0, 0
    for value in (*kept_values[:12], *cut_values[:: max(1, len(cut_values) // 30)]):
        kept = kept_of[value.number]
        cut += not kept
        if theory.is_part(theory.term(every, value), theory.term(program.values, program.roots[0])):
            proved += 1
            assert kept, text(every, value)
    assert proved >= 4 and cut >= 10


def _entered(into: Values, program: GoalProgram, value: Value, values: Values) -> Value:
    operands = [_entered(into, program, values[number], values) for number in value.operands]
    if value.operation.kind.is_leaf:
        return into.leaf(value.operation, program.inputs.get(value.operation.name, ()))
    return into.apply(value.operation, *operands)


class _Theory:
    """Mirage's tables 1 and 2 in first-order logic."""

    def __init__(self) -> None:
        self.sort = z3.DeclareSort("Expression")
        names = {"add": 2, "mul": 2, "div": 2, "sqrt": 1, "exp": 1, "sum_a0": 1, "sum_a1": 1, "sum_a2": 1}
        self.functions = {name: z3.Function(name, *[self.sort] * (arity + 1)) for name, arity in names.items()}
        self.part = z3.Function("part", self.sort, self.sort, z3.BoolSort())
        x, y, z = z3.Consts("x y z", self.sort)
        add, mul, div, sqrt, exp = (self.functions[name] for name in ("add", "mul", "div", "sqrt", "exp"))
        equal = [
            (add(x, y), add(y, x)),
            (mul(x, y), mul(y, x)),
            (add(x, add(y, z)), add(add(x, y), z)),
            (mul(x, mul(y, z)), mul(mul(x, y), z)),
            (mul(x, add(y, z)), add(mul(x, y), mul(x, z))),
            (add(div(x, z), div(y, z)), div(add(x, y), z)),
            (mul(x, div(y, z)), div(mul(x, y), z)),
            (div(div(x, y), z), div(x, mul(y, z))),
            (mul(exp(x), exp(y)), exp(add(x, y))),
            (mul(sqrt(x), sqrt(y)), sqrt(mul(x, y))),
        ]
        for name, total in self.functions.items():
            if name.startswith("sum"):
                equal += [(total(mul(x, y)), mul(total(x), y)), (total(div(x, y)), div(total(x), y))]
        self.axioms = [z3.ForAll([x, y, z], left == right) for left, right in equal]
        self.axioms += [z3.ForAll([x], self.part(x, x))]
        self.axioms += [z3.ForAll([x, y, z], z3.Implies(z3.And(self.part(x, y), self.part(y, z)), self.part(x, z)))]
        for function in self.functions.values():
            operands = [x, y][: function.arity()]
            self.axioms += [z3.ForAll(operands, self.part(one, function(*operands))) for one in operands]

    def term(self, values: Values, value: Value) -> z3.ExprRef:
        operands = [self.term(values, values[number]) for number in value.operands]
        match value.operation.kind:
            case ValueKind.DOT:
                return self.functions[f"sum_{value.operation.axis}"](self.functions["mul"](*operands))
            case ValueKind.SUM:
                return self.functions[f"sum_{value.operation.axis}"](*operands)
            case ValueKind.ENTRYWISE:
                return self.functions[value.operation.name.lower()](*operands)
        return z3.Const(value.operation.name, self.sort)

    def is_part(self, part: z3.ExprRef, whole: z3.ExprRef) -> bool:
        """Whether it is proved, within a fixed number of steps."""
        solver = z3.Solver()
        solver.set("rlimit", 60_000)
        solver.add(*self.axioms, z3.Not(self.part(part, whole)))
        return bool(solver.check() == z3.unsat)


def test_where_the_normal_form_does_not_decide_nothing_is_pruned() -> None:
    """x / (x+y)² is x / (x+y) / (x+y), whose divisors have another normal form."""
    wanted = goal("Div(x, Mul(Add(x, y), Add(x, y)))", x="m", y="m")
    result = found(wanted, 3)
    assert "a divisor of 4 summands" in result.undecided
    assert any(term.count("Div") == 2 for term in texts(result))


def test_candidates_of_equal_expressions_are_refuted_by_fingerprints() -> None:
    """An expression does not know which of two equal factors was summed along an axis."""
    result = found(NORM, 8)
    assert result.refuted > 0 and result.candidates == result.refuted + len(result.results)


def test_limits_stop_an_enumeration_and_it_says_so() -> None:
    assert found(NORM, 11, values=50).stopped == "50 values"
    assert found(NORM, 11, seconds=0.0).stopped == "0 s"


def test_time_that_others_had_the_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = count(step=3600)
    monkeypatch.setattr(enumeration, "time", SimpleNamespace(process_time=lambda: 0.0, monotonic=lambda: next(hours)))
    assert not found(NORM, 8, seconds=1.0).stopped


def test_a_goal_without_operators_of_tiles_is_refused() -> None:
    with pytest.raises(Unsupported, match="no abstract expression"):
        GoalProgram(goal("Where(Less(x, y), x, y)", x="m", y="m"))


def test_expressions_of_a_goal_are_those_of_its_definition() -> None:
    domain = AbstractDomain()
    program = GoalProgram(goal("Div(Exp(x), y)", x="m", y="m"))
    expression: Expression = program.values.look(program.roots[0]).expression
    assert expression == domain.div(domain.exp(atom("x")), atom("y"))
