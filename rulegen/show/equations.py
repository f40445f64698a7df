"""Equations and types as people type them; errors tell the column."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mugraph.ops import get_operator
from mugraph.terms.shape import TensorType
from mugraph.terms.term import Term, format_value, make, walk
from mugraph.terms.text import Parser, TextError
from rules_db.trust.rule import Side

__all__ = ["EquationError", "parse_equation", "parse_let", "typing_text"]


class EquationError(ValueError):
    """An equation that cannot be read or typed; the message is one line, with the place and a remedy."""


# Equations


def _column(parser: Parser | None, text: str, problem: TextError) -> int:
    """The column at which reading stopped, counted from 1."""
    if parser is None:
        return len(text) - len(text.lstrip()) + 1
    if str(problem).startswith("cannot read"):  # what follows the last token
        rest = text[parser.at :]
        return parser.at + len(rest) - len(rest.lstrip()) + 1
    return parser.at - len(parser.token) + 1


def parse_equation(text: str) -> tuple[Side, Side]:
    """Reads ``term; ... = term; ...``; attributes that may be left out are filled in.

    Raises:
        EquationError: with the column.
    """
    parser: Parser | None = None
    try:
        parser = Parser(text)
        sides = []
        for mark in ("=", ""):
            roots = [parser.term()]
            while parser.accept(";"):
                roots.append(parser.term())
            sides.append(roots)
            if mark and not parser.accept("=="):
                parser.expect("=")
        parser.end()
    except TextError as problem:
        column = _column(parser, text, problem)
        message = re.sub(r" in '.*'$", "", str(problem))
        raise EquationError(
            f"column {column}: {message}; write an equation such as 'MatMul(x, Add(y, z)) = Add(MatMul(x, y), MatMul(x, z))', "
            "with ';' between several outputs"
        ) from None
    if len(sides[0]) != len(sides[1]):
        raise EquationError(f"{len(sides[0])} outputs on the left and {len(sides[1])} on the right; write as many on both sides")
    filled: dict[Term, Term] = {}
    for term in walk([*sides[0], *sides[1]]):
        if term.is_var or term.op == "Const":
            filled[term] = term
            continue
        try:
            operator = get_operator(term.op)
        except KeyError as problem:
            column = text.find(term.op) + 1
            raise EquationError(f"column {column}: {problem.args[0]}") from None
        least, most = operator.arity
        if len(term.inputs) < least or (most is not None and len(term.inputs) > most):
            wanted = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
            raise EquationError(f"column {text.find(term.op) + 1}: {term.op} takes {wanted} operands, not {len(term.inputs)}")
        for name in ("axis", "axes"):
            value = term.attr(name)
            axes = value if isinstance(value, tuple) else (value,)
            if any(isinstance(axis, int) and axis >= 0 for axis in axes):
                column = text.find(term.op) + 1
                raise EquationError(
                    f"column {column}: {term.op} with {name}={format_value(value)}; axes count from the end, -1 last"
                )
        filled[term] = make(term.op, [filled[i] for i in term.inputs], {**operator.defaults, **dict(term.attrs)}, term.out)
    return tuple(filled[t] for t in sides[0]), tuple(filled[t] for t in sides[1])


def parse_let(text: str) -> dict[str, TensorType]:
    """Reads ``x:float[m,k], w:float[k,n]``. Raises EquationError with the column."""
    parser: Parser | None = None
    types: dict[str, TensorType] = {}
    try:
        parser = Parser(text)
        while parser.kind != "end":
            name = parser.name("a variable")
            parser.expect(":")
            types[name] = parser.type()
            parser.accept(",")
    except TextError as problem:
        column = _column(parser, text, problem)
        message = re.sub(r" in '.*'$", "", str(problem))
        raise EquationError(f"--let, column {column}: {message}; write types such as 'x:float[m,k], w:float[k,n]'") from None
    return types


def typing_text(types: Mapping[str, TensorType]) -> str:
    """Types of variables as ``--let`` takes them."""
    return ", ".join(f"{name}: {type_}" for name, type_ in types.items())
