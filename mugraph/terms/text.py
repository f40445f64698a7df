"""The text form of terms and types, read; :mod:`mugraph.terms.term` writes it.

Grammar::

    term   := NUMBER | "true" | "false" | "$" NAME | NAME
            | OPERATOR [ "[" attr ("," attr)* "]" ] [ "." INDEX ] "(" [ term ("," term)* ] ")"
    attr   := NAME "=" value
    value  := NUMBER | "true" | "false" | "'" text "'" | dtype name | "$" NAME | dimension polynomial | "(" value "," ... ")"

``MatMul(Transpose[perm=(1,0)](x), y)`` or ``Split[axis=-1,sizes=(n,p)].0(x)``. A bare name in a value is a dimension
symbol; element types are written ``float``, ``float16``, ``int64``, as ONNX names them. Operator properties alone have open
attributes, ``$k``, which may stand for constants too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.term import AttrValue, AttrVar, Term, const, make, var

__all__ = ["Parser", "TextError", "parse_term", "parse_type"]

_DTYPES = {member.name.lower(): member for member in DataType}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:inf|nan|\d+\.?\d*(?:e[+-]?\d+)?)(?![A-Za-z_]))|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<text>'[^']*')|"
    r"(?P<digest>@[0-9a-f]{8})|"
    r"(?P<mark>\.\.\.|==|>=|<=|[-()\[\]{},;.=$:*+^|]))"
)


_MAX_DEPTH = 200
"""Deepest nesting of operators and tuples that is read; terms themselves may be as deep as they like."""


class TextError(ValueError):
    """A text that is not of the grammar; the message says where and what was expected."""


class Parser:
    """A recursive-descent parser over one text; the rule and property files build their own grammar on it."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.kind, self.token = "", ""
        self._depth = 0
        self.advance()

    @contextmanager
    def nested(self) -> Iterator[None]:
        """One level deeper, so that a text from outside cannot exhaust the stack."""
        if self._depth >= _MAX_DEPTH:
            raise TextError(f"more than {_MAX_DEPTH} levels of nesting in {self.text[:40]!r}...")
        self._depth += 1
        yield
        self._depth -= 1

    def fail(self, expected: str) -> NoReturn:
        raise TextError(f"expected {expected} before {self.text[self.at - len(self.token) :][:40]!r} in {self.text!r}")

    def advance(self) -> str:
        """Steps to the next token and returns the one left behind."""
        left = self.token
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            if self.text[self.at :].strip():
                raise TextError(f"cannot read {self.text[self.at :][:40]!r} in {self.text!r}")
            self.kind, self.token = "end", ""
        else:
            self.kind, self.token, self.at = str(match.lastgroup), str(match.group(str(match.lastgroup))), match.end()
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
        return int(token) if re.fullmatch(r"-?\d+", token) else float(token)

    def end(self) -> None:
        if self.kind != "end":
            self.fail("the end")

    def value(self) -> AttrValue:
        if self.accept("("):
            items: list[AttrValue] = []
            while not self.accept(")"):
                with self.nested():
                    items.append(self.value())
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

    def dim(self) -> Dim:
        """A polynomial over dimension symbols, as :class:`SymDim` writes it."""
        total: Dim = 0
        sign = 1
        while True:
            if self.accept("-"):
                sign = -sign
            product: Dim = sign
            while True:
                factor: Dim = self.number() if self.kind == "number" else symbol(self.name("a dimension"))  # type: ignore[assignment]
                for _ in range(int(self.number()) if self.accept("^") else 1):
                    product = product * factor
                if not self.accept("*"):
                    break
            total = total + product
            if self.accept("+") or self.token == "-" or (self.kind == "number" and self.token.startswith("-")):
                sign = 1
            else:
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
        out = int(self.number()) if self.accept(".") else 0
        self.expect("(")
        inputs: list[Term] = []
        while not self.accept(")"):
            with self.nested():
                inputs.append(self.term())
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
