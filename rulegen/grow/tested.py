"""Rules on the evidence of tests: for candidates that are equal polynomials within a bound and keep their answer in floats."""

from __future__ import annotations

from dataclasses import replace

from mugraph.terms.term import var
from rulegen.candidate import symbols_of
from rulegen.grow.growth import Growth
from rulegen.numeric.floats import float_test
from rulegen.rules import GENERATOR_VERSION, readable
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import Condition
from rules_db.trust.evidence import gather
from rules_db.trust.rule import Rule

__all__ = ["rules_on_tests"]


def rules_on_tests(growth: Growth) -> list[Rule]:
    """The unproved candidates for which tests are evidence enough.

    Where a rule does not hold for operands of every rank, it is for those of its sample types.
    """
    rules = []
    for candidate in growth.unproved:
        verdict = float_test(candidate, symbols_of(candidate.types), growth.seed)
        if verdict.float_class is None or verdict.guarded:
            continue
        source = {"group": growth.workload.group, "ops": str(growth.max_ops), "seed": str(growth.seed)}
        rule = Rule(
            candidate.source,
            candidate.target,
            candidate.types,
            (),
            verdict.float_class,
            Certificate(()),
            {**source, "generator": str(GENERATOR_VERSION), "kind": "tested"},
        )
        ranks = tuple(Condition("rank", (var(name), type_.rank)) for name, type_ in rule.types.items())
        for conditions in ((), ranks):
            guarded = replace(rule, conditions=conditions)
            certificate = gather(guarded, growth.seed)
            if certificate is not None:
                rules.append(readable(replace(guarded, certificate=certificate)))
                break
    return rules
