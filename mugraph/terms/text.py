"""The text form of terms and types, read; :mod:`mugraph.terms.term` writes it.

Grammar::

    term   := NUMBER | "true" | "false" | "$" NAME | NAME
            | OPERATOR [ "[" attr ("," attr)* "]" ] [ "." INDEX ] "(" [ term ("," term)* ] ")"
    attr   := NAME "=" value
    value  := NUMBER | "true" | "false" | "'" text "'" | dtype name | "$" NAME | dimension polynomial | "(" value "," ... ")"

``MatMul(Transpose[perm=(1,0)](x), y)`` or ``Split[axis=-1,sizes=(n,p)].0(x)``. A bare name in a value is a dimension
symbol, ``min(3,p)`` the smaller of two dimensions, ``floor((p+1)/2)`` a whole part; element types are written ``float``,
``float16``, ``int64``, as ONNX names them. Operator properties alone have open attributes, ``$k``, which may stand for constants
too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from mugraph.terms.shape import DataType, Dim, SymDim, TensorType, Undecided, floor_div, smaller, symbol
from mugraph.terms.term import AttrValue, AttrVar, Term, const, make, var

__all__ = ["Parser", "TextError", "parse_term", "parse_type", "split_top"]

_DTYPES = {member.name.lower(): member for member in DataType}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:inf|nan|\d+\.?\d*(?:e[+-]?\d+)?)(?![A-Za-z_]))|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<text>'[^']*')|"
    r"(?P<digest>@[0-9a-f]{8})|"
    r"(?P<mark>\.\.\.|==|>=|<=|[-()\[\]{},;.=$:*+/^|])|(?P<unknown>\S))"
)
_SEPARATOR = re.compile(r"'[^']*'|[()\[\]{},]")
_WHOLE = re.compile(r"-?\d+", re.ASCII)
_T = TypeVar("_T")


_MAX_DEPTH = 200
"""Deepest nesting of operators and tuples that is read; terms themselves may be as deep as they like."""
_LEVELS_OF_FUNCTION = 20
"""That a function of dimensions counts for: those that are written are two deep."""
_MAX_LENGTH = 100_000
"""Most characters of a text; the longest certificate that ships has a tenth of them."""
_MAX_WHOLE = 2**63 - 1
"""Largest whole number: ONNX has no larger one either."""
_MAX_POWER = 8
"""Greatest power of a symbol in a dimension."""
_MAX_SUMMANDS = 64
"""Most summands of a dimension."""
_MAX_OUTPUT = 255
"""Greatest index of an output."""
_SHOWN = 80
"""Most characters of a text that a message repeats."""


def _shown(text: str) -> str:
    """A text as messages repeat it."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


class TextError(ValueError):
    """A text that is not of the grammar; the message says where and what was expected."""


def _too_long(text: str) -> TextError:
    return TextError(f"{len(text):,} characters, more than {_MAX_LENGTH:,}, in {text[:40]!r}...")


def split_top(text: str) -> list[str]:
    """The parts of a text between the commas that are in no bracket and no quotes. Raises TextError for too long a text."""
    if len(text) > _MAX_LENGTH:
        raise _too_long(text)
    parts, depth, start = list[str](), 0, 0
    for found in _SEPARATOR.finditer(text):
        mark = found[0]
        if mark == "," and not depth:
            parts.append(text[start : found.start()].strip())
            start = found.end()
        depth += (mark in "([{") - (mark in ")]}")
    return [*parts, text[start:].strip()]


class Parser:
    """A recursive-descent parser over one text; the rule and property files build their own grammar on it.

    Texts come from outside: their length, nesting, numbers and powers are bounded, so that each is read or refused at once.

    Raises:
        TextError: the text does not begin with a token, or is too long.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_LENGTH:
            raise _too_long(text)
        self.text, self.at = text, 0
        self.kind, self.token = "", ""
        self._depth = 0
        # One pass over the text: a search for each token takes three times as long.
        self._tokens = iter([(str(found.lastgroup), found[str(found.lastgroup)], found.end()) for found in _TOKEN.finditer(text)])
        self.advance()

    def nested(self, read: Callable[[], _T], levels: int = 1) -> _T:
        """What is read so many levels deeper, so that a text from outside cannot exhaust the stack."""
        if self._depth + levels > _MAX_DEPTH:
            raise TextError(f"more than {_MAX_DEPTH} levels of nesting in {self.text[:40]!r}...")
        self._depth += levels
        found = read()
        self._depth -= levels
        return found

    def fail(self, expected: str) -> NoReturn:
        rest = self.text[self.at - len(self.token) :][:40]
        raise TextError(f"expected {expected} {f'before {rest!r}' if rest else 'at the end'} in {_shown(self.text)}")

    def advance(self) -> str:
        """Steps to the next token and returns the one left behind."""
        left, before = self.token, self.at
        self.kind, self.token, self.at = next(self._tokens, ("end", "", before))
        if self.kind == "unknown":
            self.at -= len(self.token)
            raise TextError(f"cannot read {self.text[self.at :][:40]!r} in {_shown(self.text)}")
        return left

    def accept(self, mark: str) -> bool:
        if self.token == mark and self.kind in ("mark", "name"):
            self.advance()
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            self.fail(f"'{mark}'")

    def name(self, what: str = "a name") -> str:
        if self.kind != "name":
            self.fail(what)
        return self.advance()

    def number(self) -> int | float:
        if self.kind != "number":
            self.fail("a number")
        token = self.advance()
        if not _WHOLE.fullmatch(token):
            return float(token)
        if len(token) > len(str(_MAX_WHOLE)) + 1 or abs(int(token)) > _MAX_WHOLE:
            raise TextError(f"a whole number of more than 64 bits, {token[:40]}, in {_shown(self.text)}")
        return int(token)

    def whole(self, what: str, most: int) -> int:
        """A whole number from 0 to ``most``, without a point."""
        number = self.number()
        if not isinstance(number, int) or not 0 <= number <= most:
            raise TextError(f"{what} {number} is not one of 0 to {most} in {_shown(self.text)}")
        return number

    def end(self) -> None:
        if self.kind != "end":
            self.fail("the end")

    def value(self) -> AttrValue:
        if self.accept("("):
            items: list[AttrValue] = []
            while not self.accept(")"):
                items.append(self.nested(self.value))
                if not self.accept(","):
                    self.expect(")")
                    break
            return tuple(items)
        if self.accept("$"):
            return AttrVar(self.name("an attribute variable"))
        if self.kind == "text":
            return self.advance()[1:-1]
        if self.kind == "number" and not self.token.lstrip("-").isdigit():
            return self.number()
        if self.kind == "name" and self.token in ("true", "false"):
            return self.advance() == "true"
        if self.kind == "name" and self.token in _DTYPES:
            return _DTYPES[self.advance()]
        return self.dim()

    def _bounded(self, dim: Dim) -> Dim:
        """The dimension. Raises TextError where it is larger than any has a reason to be."""
        terms = dim.terms if isinstance(dim, SymDim) else (((), dim),)
        powers = [power for monomial, _ in terms for _, power in monomial]
        if len(terms) > _MAX_SUMMANDS or max(powers, default=0) > _MAX_POWER or any(abs(c) > _MAX_WHOLE for _, c in terms):
            most = f"{_MAX_SUMMANDS} summands, powers of {_MAX_POWER}, numbers of 64 bits"
            raise TextError(f"a dimension beyond the bounds ({most}) in {_shown(self.text)}")
        return dim

    def _factor(self) -> Dim:
        """A whole number, a symbol or a function of dimensions, and its power."""
        factor: Dim
        if self.kind == "number":
            number = self.number()
            if not isinstance(number, int):
                raise TextError(f"a dimension with the number {number}, which is not whole, in {_shown(self.text)}")
            factor = number
        else:
            name = self.name("a dimension")
            factor = self._derived(name) if self.accept("(") else symbol(name)
        if not self.accept("^"):
            return factor
        power: Dim = 1
        for _ in range(self.whole("the power", _MAX_POWER)):
            power = power * factor
        return self._bounded(power)

    def _derived(self, function: str) -> Dim:
        """The smaller of two dimensions or a whole part, behind the bracket, as their symbols write them."""
        if function == "min":
            first = self.nested(self.dim, _LEVELS_OF_FUNCTION)
            self.expect(",")
            second = self.nested(self.dim, _LEVELS_OF_FUNCTION)
            self.expect(")")
            try:
                return smaller(first, second)
            except Undecided as problem:
                raise TextError(f"{problem}, which may be negative, in {_shown(self.text)}") from None
        if function == "floor":
            self.expect("(")
            divided = self.nested(self.dim, _LEVELS_OF_FUNCTION)
            self.expect(")")
            self.expect("/")
            divisor = self.whole("the divisor", _MAX_WHOLE)
            self.expect(")")
            if divisor:
                return floor_div(divided, divisor)
        raise TextError(f"a dimension that is no min of two and no floor of a quotient, {function}(...), in {_shown(self.text)}")

    def _product(self) -> Dim:
        is_negative = self.accept("-")
        product = self._factor()
        while self.accept("*"):
            product = self._bounded(product * self._factor())
        return -product if is_negative else product

    def dim(self) -> Dim:
        """A polynomial over dimension symbols, as :class:`SymDim` writes it."""
        total = self._product()
        while self.accept("+") or self.token == "-" or (self.kind == "number" and self.token.startswith("-")):
            total = self._bounded(total + self._product())
        return total

    def term(self) -> Term:
        if self.kind == "number":
            return const(float(self.number()))
        if self.accept("$"):
            return Term("Const", (("value", AttrVar(self.name("an attribute variable"))),), (), 0)
        name = self.name("a term")
        if name in ("true", "false"):
            return const(name == "true")
        if self.token not in ("(", "[", "."):
            return var(name)
        attrs: dict[str, AttrValue] = {}
        if self.accept("["):
            while not self.accept("]"):
                key = self.name("an attribute")
                self.expect("=")
                attrs[key] = self.value()
                if not self.accept(","):
                    self.expect("]")
                    break
        out = self.whole("the output", _MAX_OUTPUT) if self.accept(".") else 0
        self.expect("(")
        inputs: list[Term] = []
        while not self.accept(")"):
            inputs.append(self.nested(self.term))
            if not self.accept(","):
                self.expect(")")
                break
        return make(name, inputs, attrs, out)

    def type(self) -> TensorType:
        dtype = DataType.FLOAT
        if self.kind == "name" and self.token in _DTYPES:
            dtype = _DTYPES[self.advance()]
        self.expect("[")
        shape: list[Dim] = []
        while not self.accept("]"):
            shape.append(self.dim())
            if not self.accept(","):
                self.expect("]")
                break
        return TensorType(dtype, tuple(shape))


def _whole(text: str, method: str) -> Any:
    parser = Parser(text)
    result = getattr(parser, method)()
    parser.end()
    return result


def parse_term(text: str) -> Term:
    """Parses one term. Operators are not looked up here: typing a term names an unknown one."""
    result: Term = _whole(text, "term")
    return result


def parse_type(text: str) -> TensorType:
    """Parses ``float16[n,64]``; without an element type it is ``float``."""
    result: TensorType = _whole(text, "type")
    return result
