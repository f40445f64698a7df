"""The second checker: Z3 on the quantifier-free problem.

Independent of :mod:`rules_db.trust.check`: every operator with its attributes is an uninterpreted function over one sort, every
instance an equation, and the negated goal must be unsatisfiable. It knows nothing of shapes: those are the first
checker's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import z3

from mugraph.terms.term import Term, walk
from rules_db.trust.check import instantiate
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import Rule

__all__ = ["z3check"]


@lru_cache(maxsize=1)
def _solver() -> tuple[z3.Solver, z3.SortRef]:
    """One context and one solver for all rules: many contexts in one process are reported to crash."""
    solver = z3.SolverFor("QF_UF")
    solver.set("timeout", 10_000)
    return solver, z3.DeclareSort("Tensor")


def z3check(rule: Rule, axioms: Mapping[str, Axiom] | None = None) -> list[str]:
    """Failures; empty where Z3 confirms that the instances entail every output's equation."""
    try:
        properties = load_axioms() if axioms is None else axioms
        steps = [instantiate(instance, properties, rule.attrs) for instance in rule.certificate.instances]
    except ValueError as problem:
        return [str(problem)]
    solver, tensor = _solver()
    expressions: dict[Term, z3.ExprRef] = {}
    symbols: dict[tuple[object, ...], str] = {}

    def expression(root: Term) -> z3.ExprRef:
        for term in walk([root]):
            if term in expressions:
                continue
            # Attributes are part of the function's name; a leaf is named by what it is.
            name = symbols.setdefault((term.op, repr(term.attrs), term.out, len(term.inputs)), f"{term.op}#{len(symbols)}")
            if term.inputs:
                function = z3.Function(name, *[tensor] * len(term.inputs), tensor)
                expressions[term] = function(*(expressions[i] for i in term.inputs))
            else:
                expressions[term] = z3.Const(name, tensor)
        return expressions[root]

    solver.push()
    try:
        for step in steps:
            solver.add(expression(step.left) == expression(step.right))
        pairs = zip(rule.source, rule.target, strict=True)
        solver.add(z3.Or([expression(source) != expression(target) for source, target in pairs]))
        answer = solver.check()
    finally:
        solver.pop()
    return [] if answer == z3.unsat else [f"Z3 answers {answer}: the instances do not entail {rule}"]
