"""Certification: from two programs to a certificate, a counterexample, or an admitted "unknown".

``certify`` finds a proof (e-graph), ``refute`` finds a counterexample (finite field), ``prove`` asks both; ``z3check`` is the
second, independent checker of a finished rule. Symbols in sample types stand for distinct sizes; attributes (Split's sizes)
may use them. What a proof needs beyond the programs being well-typed comes back as conditions of the rule.
"""

from __future__ import annotations

from rulegen.prove.prover import Limits, Proof, Prover, certify
from rulegen.prove.refute import Counterexample, Outcome, prove, refute
from rulegen.prove.second import z3check

__all__ = ["Counterexample", "Limits", "Outcome", "Proof", "Prover", "certify", "prove", "refute", "z3check"]
