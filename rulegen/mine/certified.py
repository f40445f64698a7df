"""Rules that lead from a spelling to a composite operator: proved, tried on floats, and as general as the proof."""

from __future__ import annotations

from collections.abc import Mapping

from mugraph.terms.term import walk
from rulegen.candidate import CandidateRule, operator_count, symbols_of
from rulegen.mine.numbers import is_sample
from rulegen.numeric.floats import float_test
from rulegen.numeric.trials import contradicted
from rulegen.prove.prover import Proof
from rulegen.prune.attributes import generalise_attrs, generalise_numbers
from rulegen.rules import GENERATOR_VERSION, readable
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

__all__ = ["GROUP", "Contradicted", "certified"]

GROUP = "spelling"
"""The group of such rules."""


class Contradicted(Exception):
    """Random inputs contradict a proof: an operator property is wrong."""


def certified(
    candidate: CandidateRule, proof: Proof, seed: int, source: Mapping[str, str], open_numbers: bool = True
) -> Rule | None:
    """The rule that a proof gives, generalised.

    Args:
        candidate: the spelling and the composite operator.
        proof: that they are equal.
        seed: of random inputs.
        source: what the provenance says of where the rule comes from.
        open_numbers: whether numbers through which the proof only passes become variables.

    Returns:
        ``None`` where floats lose the answer, or where a number that stands for any other is part of what is proved.

    Raises:
        Contradicted: the sides differ on random inputs.
    """
    verdict = float_test(candidate, symbols_of(candidate.types), seed, conditions=proof.conditions)
    if verdict.float_class is None:
        return None
    provenance = {
        "group": GROUP,
        "ops": str(operator_count(candidate.source)),
        "seed": str(seed),
        "generator": str(GENERATOR_VERSION),
        **source,
        **verdict.provenance(),
    }
    rule = proof.rule(candidate, verdict.float_class, provenance)
    axioms = load_axioms()
    if contradicted(rule, verdict, axioms, seed):
        raise Contradicted(str(candidate))
    general = generalise_numbers(rule, axioms) if open_numbers else rule
    if any(is_sample(v) for t in walk([*general.source, *general.target]) for _, v in t.attrs):
        return None
    return readable(generalise_attrs(general, axioms, keep=("to", "length")))
