"""Models of spellings, and the rules that were mined from all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.ops import get_operator
from mugraph.terms.term import walk
from rulegen.mine.certified import GROUP
from rulegen.mine.normalise import Normaliser
from rules_db.library import shipped_rules
from rules_db.trust.rule import FloatClass, Rule
from tools.ship.spellings import Sketch, build

__all__ = ["Write", "graph_of", "largest_first", "mined_rules", "shrinking", "sketch", "spelling"]

Write = Callable[[Sketch], str]
"""Writes a sketch; returns the name of its output."""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def graph_of(model: onnx.ModelProto) -> Graph:
    """A model as it is read from a file."""
    folder = Path(_folder().name)
    path = folder / f"{len(list(folder.iterdir()))}.onnx"
    onnx.save(model, path)
    return load(path).graph


@cache
def spelling(name: str) -> Graph:
    """The model of a spelling."""
    return graph_of(build(name))


def sketch(write: Write) -> onnx.ModelProto:
    """A model in float32 of one output."""
    s = Sketch(np.float32)
    return s.model([write(s)])


@cache
def mined_rules() -> tuple[Rule, ...]:
    """The shipped rules that were mined."""
    return tuple(rule for rule in shipped_rules() if rule.provenance["group"] == GROUP)


def largest_first(rule: Rule) -> tuple[bool, int]:
    """Orders rules for who takes the first that fits and never goes back: the largest first, and last the steps of chains.

    These move numbers on the way to a smaller form of an operator, away from where the whole form of a larger one has them.
    """
    ends = any(get_operator(term.op).composite for term in walk(rule.target) if term.inputs)
    is_step = "spelled" in rule.provenance and not ends and rule.float_class is not FloatClass.EXACT
    return is_step, -sum(term.size for term in rule.source)


@cache
def shrinking(expected: str) -> Normaliser:
    """The mined rules, the largest first, that end in this operator, in a runtime's own, or in plain ones.

    The others, which end in a composite operator that only the newest opsets have, would stand in their way. Of rules with
    one source those that end in this operator come first.
    """
    rules = Normaliser()

    def order(rule: Rule) -> tuple[bool, int, bool]:
        return *largest_first(rule), expected not in {term.op for term in walk(rule.target)}

    for rule in sorted(mined_rules(), key=order):
        operators = [get_operator(t.op) for t in walk(rule.target) if t.inputs]
        everywhere = all(not op.composite or op.contract is not None or op.name == expected for op in operators)
        if everywhere and "FusedMatMul" not in str(rule):
            rules.add(rule)
    for rule in shipped_rules():  # what a rule turns back cancels
        if rule.provenance["group"] == "layout" and rule.target[0].is_var:
            rules.add(rule)
    return rules
