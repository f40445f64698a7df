"""Texts of thread graphs: domains whose arrays are expressions of a language.

Operators say what they mean once, against the arithmetic protocol; evaluated here they write themselves down. Floats are
computed in 32 bits whatever their type in memory, and casts between floats are the identity, as in the reference.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.ops import get_operator, traits_of
from mugraph.terms.shape import DataType
from mugraph.terms.term import Term, walk

__all__ = ["Expr", "NotGenerated", "ThreadText", "bare", "write_thread"]


class NotGenerated(Exception):
    """There is no text for something; the message says for what."""


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar expression: its text, ``float``, ``int`` or ``bool``, and its value where it is a literal."""

    text: str
    kind: str = "float"
    value: float | None = None

    @property
    def atomic(self) -> bool:
        return self.value is not None or re.fullmatch(r"[A-Za-z_]\w*(\[[:,None ]*\])?", self.text) is not None


_LOGIC = {
    np.logical_and: "({0} & {1})",
    np.logical_or: "({0} | {1})",
    np.logical_xor: "({0} ^ {1})",
    np.logical_not: "({0} == 0)",
}


class ThreadText(ABC):
    """The domain of expressions. What only moves entries between places does not belong in a thread graph."""

    name: str
    maximum_text: str
    minimum_text: str
    where_text: str
    magnitude_text: str
    """Of operands without parentheses around them: two, two, a condition and two, one."""

    @abstractmethod
    def literal(self, value: float | bool) -> str:
        """A number or a truth value."""

    @abstractmethod
    def function(self, name: str) -> str | None:
        """The text of a scalar function (:data:`mugraph.domains.functions.FUNCTIONS`): a name, or a formula of ``{0}``."""

    @abstractmethod
    def as_float(self, a: Expr) -> str:
        """The text of an integer or a truth value as a float of 32 bits."""

    @abstractmethod
    def as_integer(self, a: Expr, to: DataType) -> str:
        """The text of a value as an integer of 32 or 64 bits."""

    def const(self, value: float | int | bool | Fraction) -> Expr:
        if isinstance(value, bool):
            return Expr(self.literal(value), "bool", float(value))
        return Expr(self.literal(float(value)), "float", float(value))

    def uniform(self, a: Expr) -> Fraction | None:
        return None if a.value is None or not math.isfinite(a.value) else Fraction(a.value)

    def _binary(self, sign: str, a: Expr, b: Expr) -> Expr:
        kind = "int" if "int" in (a.kind, b.kind) else "float"
        if kind == "int":
            a, b = self._whole(a), self._whole(b)
        return Expr(f"({a.text} {sign} {b.text})", kind)

    @staticmethod
    def _whole(a: Expr) -> Expr:
        """What stands beside integers: one of them, or a number that is one. Raises NotGenerated for any other."""
        if a.value is None:
            if a.kind == "float":
                raise NotGenerated("a float beside an integer")
            return a
        if not math.isfinite(a.value) or a.value != int(a.value) or abs(a.value) > 2**53:
            raise NotGenerated(f"{a.value} beside an integer")
        return Expr(str(int(a.value)), "int", a.value)

    def add(self, a: Expr, b: Expr) -> Expr:
        return self._binary("+", a, b)

    def sub(self, a: Expr, b: Expr) -> Expr:
        return self._binary("-", a, b)

    def mul(self, a: Expr, b: Expr) -> Expr:
        return self._binary("*", a, b)

    def div(self, a: Expr, b: Expr) -> Expr:
        if "int" in (a.kind, b.kind):
            raise NotGenerated("a division of integers")
        return self._binary("/", a, b)

    def neg(self, a: Expr) -> Expr:
        return Expr(f"(-{a.text})", a.kind)

    def power(self, a: Expr, exponent: int) -> Expr:
        return Expr("(" + " * ".join([a.text] * exponent) + ")", a.kind)

    def sqrt(self, a: Expr) -> Expr:
        return self.apply("sqrt", a)

    def exp(self, a: Expr) -> Expr:
        return self.apply("exp", a)

    def maximum(self, a: Expr, b: Expr) -> Expr:
        return Expr(self.maximum_text.format(bare(a.text), bare(b.text)), a.kind)

    def minimum(self, a: Expr, b: Expr) -> Expr:
        return Expr(self.minimum_text.format(bare(a.text), bare(b.text)), a.kind)

    def less(self, a: Expr, b: Expr) -> Expr:
        return replace(self._binary("<", a, b), kind="bool")

    def equal(self, a: Expr, b: Expr) -> Expr:
        return replace(self._binary("==", a, b), kind="bool")

    def isnan(self, a: Expr) -> Expr:
        return Expr(f"({a.text} != {a.text})", "bool")

    def isinf(self, a: Expr, negative: bool, positive: bool) -> Expr:
        if not (negative and positive):
            return Expr(f"({a.text} == {self.literal(math.inf if positive else -math.inf)})", "bool")
        return Expr(f"({self.magnitude_text.format(bare(a.text))} == {self.literal(math.inf)})", "bool")

    def logic(self, function: Callable[..., np.ndarray], *operands: Expr) -> Expr:
        assert isinstance(function, np.ufunc)
        return Expr(_LOGIC[function].format(*(x.text for x in operands)), "bool")

    def where(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        kind = b.kind if a.value is not None else a.kind
        if kind == "int":
            a, b = self._whole(a), self._whole(b)
        return Expr(self.where_text.format(bare(condition.text), bare(a.text), bare(b.text)), kind)

    def apply(self, function: str, *operands: Expr) -> Expr:
        text = self.function(function)
        if text is None:
            raise NotGenerated(f"{function} in a kernel")
        if "{" in text:
            return Expr("(" + text.format(*(x.text for x in operands)) + ")")
        return Expr(f"{text}({bare(operands[0].text)})")

    def cast(self, a: Expr, to: DataType) -> Expr:
        if to == DataType.BOOL:
            return a if a.kind == "bool" else Expr(f"({a.text} != 0)", "bool")
        if to in FLOATS:
            return a if a.kind == "float" else Expr(self.as_float(a))
        if to not in (DataType.INT32, DataType.INT64):
            raise NotGenerated(f"a cast to {to.name.lower()}")
        return Expr(self.as_integer(a, to), "int")

    def move(self, function: Callable[..., np.ndarray], *operands: Expr) -> Expr:
        """Only broadcasting reaches here, which expressions do by themselves."""
        return operands[0]

    def __getattr__(self, name: str) -> Any:
        raise NotGenerated(f"{name} within a thread graph")


_WIDTH = 70


def bare(text: str) -> str:
    """A text without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def write_thread(
    domain: ThreadText, root: Term, leaves: Mapping[str, Expr], target: str, define: Callable[[str, Expr], None]
) -> Expr:
    """Writes a thread graph down and returns the value, which is named ``target`` unless it is one of the leaves.

    Args:
        root: an elementwise term.
        leaves: expressions of its variables.
        define: gives an expression a name; the text may have parentheses around it.
    """
    parts = list(walk([root]))
    uses = Counter(operand for part in parts for operand in part.inputs)
    once = {part: all(traits_of(user.op).nests for user in parts if part in user.inputs) for part in parts}
    done: dict[Term, Expr] = {}
    number = 0
    for part in parts:
        if part.is_var:
            done[part] = leaves[part.name]
            continue
        if part.op == "Const":
            done[part] = domain.const(part.attr("value"))
            continue
        value: Expr = get_operator(part.op).run(domain, part.attrs, [done[i] for i in part.inputs])[part.out]  # type: ignore[arg-type]
        if part is not root and not value.atomic and (uses[part] > 1 or not once[part] or len(value.text) > _WIDTH):
            number += 1
            name = f"{target}_{number}"
            define(name, value)
            value = Expr(name, value.kind)
        done[part] = value
    result = done[root]
    if root.is_var:
        return result
    define(target, result)
    return Expr(target, result.kind)
