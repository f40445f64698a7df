"""Candidate rules from text."""

from __future__ import annotations

from collections.abc import Mapping

from mugraph.terms.shape import TensorType
from mugraph.terms.text import parse_term, parse_type
from rulegen.candidate import CandidateRule, candidate_types
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import certify

__all__ = ["LANDMARK_TYPES", "TYPES", "candidate_of", "proved"]

TYPES = {
    name: parse_type(text)
    for name, text in {
        "x": "[m,k]",
        "y": "[m,k]",
        "u": "[m,p]",
        "W": "[k,n]",
        "V": "[k,p]",
        "A": "[k,r]",
        "B": "[r,n]",
        "s": "[]",
        "t": "[n,c,h,w]",
    }.items()
}
"""Types of the usual variables."""

LANDMARK_TYPES = {
    name: parse_type(text)
    for name, text in {
        "X": "[m,k]",
        "Y": "[m,k]",
        "W": "[k,n]",
        "V": "[k,p]",
        "A": "[k,r]",
        "B": "[r,n]",
        "x": "[m,n]",
        "y": "[m,n]",
        "s": "[]",
        "f": "[m,1]",
        "g": "[k]",
        "T": "[a,b,c]",
    }.items()
}
"""Types of the variables of landmarks."""


def candidate_of(text: str, types: Mapping[str, TensorType] = TYPES) -> CandidateRule:
    """The candidate ``term; ... = term; ...`` over variables of these types."""
    source, target = (tuple(parse_term(t) for t in side.split(";")) for side in text.split(" = "))
    return CandidateRule(source, target, candidate_types(source, target, types))


def proved(text: str, types: Mapping[str, TensorType] = TYPES) -> Rule:
    """The rule of a candidate that is proved."""
    like = candidate_of(text, types)
    proof = certify(like.source, like.target, like.types)
    assert proof is not None, text
    return Rule(like.source, like.target, like.types, proof.conditions, FloatClass.EXACT, proof.certificate)
