"""Conditions: typed predicates over terms, cited by operator properties and carried by rules as guards.

Each predicate answers yes, no or unknown (``None``) from the types and ranges of the terms it names, so one definition
serves the certificate checker (on sample types) and the rewriter (on a model's possibly symbolic types).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mugraph.domains.range import Range
from mugraph.node import AttrValue, Term, bind_value, open_names, substitute, walk
from mugraph.shape import DataType, Dim, ShapeError, TensorType, Undecided, broadcast, same_dim, same_shape
from mugraph.text import Parser, format_value

__all__ = ["FLOATING", "PREDICATES", "RANGE_PREDICATES", "SIGNATURES", "SOLVERS", "Condition", "Facts", "parse_condition"]

Argument = Term | AttrValue

FLOATING = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16})


class Facts:
    """What is known where a condition is asked: types, ranges and the binding of dimension symbols and attribute variables."""

    def __init__(
        self,
        type_of: Callable[[Term], TensorType],
        range_of: Callable[[Term], Range],
        binding: Mapping[str, AttrValue] | None = None,
    ) -> None:
        self.type_of, self.range_of, self.binding = type_of, range_of, binding or {}

    def shape(self, term: Term) -> tuple[Dim, ...]:
        return self.type_of(term).shape


def _matrix(facts: Facts, x: Term) -> bool | None:
    """x has at least two dimensions."""
    return len(facts.shape(x)) >= 2


def _same_shape(facts: Facts, x: Term, y: Term) -> bool | None:
    """x and y have equal shapes."""
    return same_shape(facts.shape(x), facts.shape(y))


def _agree(facts: Facts, x: Term, y: Term, axis: int) -> bool | None:
    """x and y both reach ``axis`` (negative) and are equally long there."""
    a, b = facts.shape(x), facts.shape(y)
    return same_dim(a[axis], b[axis]) if min(len(a), len(b)) >= -axis else False


def _tail(facts: Facts, x: Term, dims: tuple[Dim, ...]) -> bool | None:
    """The last dimensions of x are ``dims``."""
    shape = facts.shape(x)
    return same_shape(shape[len(shape) - len(dims) :], dims) if len(shape) >= len(dims) else False


def _constant_along(facts: Facts, x: Term, axis: int) -> bool | None:
    """x has size 1 at ``axis`` (negative) or does not reach it, so that broadcasting repeats it along that axis."""
    shape = facts.shape(x)
    return same_dim(shape[axis], 1) if len(shape) >= -axis else True


def _vector(facts: Facts, x: Term) -> bool | None:
    """x has exactly one dimension."""
    return len(facts.shape(x)) == 1


def _ones(facts: Facts, x: Term) -> bool | None:
    """Every dimension of x is 1 (a scalar, whatever its rank)."""
    verdicts = [same_dim(d, 1) for d in facts.shape(x)]
    return False if False in verdicts else (None if None in verdicts else True)


def _dim(facts: Facts, x: Term, axis: int, size: Dim) -> bool | None:
    """The dimension of x at ``axis`` (negative) is ``size``."""
    shape = facts.shape(x)
    if len(shape) < -axis:
        return False
    return same_dim(shape[axis], size)


def _fits(facts: Facts, x: Term, y: Term) -> bool | None:
    """x broadcasts to the shape of y: combining them elementwise has the shape of y."""
    try:
        return same_shape(broadcast([facts.shape(x), facts.shape(y)]), facts.shape(y))
    except ShapeError:
        return False
    except Undecided:
        return None


def _floating(facts: Facts, x: Term) -> bool | None:
    """The entries of x are floating-point numbers: division is division."""
    return facts.type_of(x).dtype in FLOATING


def _not_nan(facts: Facts, x: Term) -> bool | None:
    """No entry of x is NaN."""
    return True if not facts.range_of(x).nan else None


def _finite(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is finite."""
    return True if facts.range_of(x).finite else None


def _nonzero(facts: Facts, x: Term) -> bool | None:
    """No entry of x is zero."""
    return True if facts.range_of(x).nonzero and not facts.range_of(x).nan else None


def _nonnegative(facts: Facts, x: Term) -> bool | None:
    """No entry of x is negative or NaN."""
    range_ = facts.range_of(x)
    return True if range_.lo >= 0 and not range_.neg_inf and not range_.nan else None


def _positive(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is greater than zero."""
    return True if _nonnegative(facts, x) and facts.range_of(x).nonzero else None


def _typed(facts: Facts, x: Term) -> bool | None:
    """x is well-typed: an intermediate term of the certificate that neither side of the rule holds."""
    facts.type_of(x)
    return True


def _compose(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    """Transposing by q and then by p, in canonical form (leading axes that stay are left out)."""
    size = max(len(p), len(q))
    p, q = ((*range(size - len(x)), *(i + size - len(x) for i in x)) for x in (p, q))
    whole = tuple(q[i] for i in p)
    lead = next((i for i, axis in enumerate(whole) if axis != i), size)
    return tuple(axis - lead for axis in whole[lead:])


def _axis_before(perm: tuple[int, ...], axis: int) -> int:
    """The axis of the operand that a transposition moves to ``axis`` (both negative)."""
    return perm[axis + len(perm)] - len(perm) if -axis <= len(perm) else axis


def _axis_after(perm: tuple[int, ...], axis: int) -> int:
    return perm.index(axis + len(perm)) - len(perm) if -axis <= len(perm) else axis


def _composes(facts: Facts, r: tuple[int, ...], p: tuple[int, ...], q: tuple[int, ...]) -> bool | None:
    """Transposing by q and then by p is transposing by r."""
    return r == _compose(p, q)


def _moves(facts: Facts, perm: tuple[int, ...], before: int, after: int) -> bool | None:
    """Transposing by perm moves axis ``before`` of the operand to axis ``after`` of the result."""
    return before == _axis_before(perm, after)


def _distinct(facts: Facts, a: int, b: int) -> bool | None:
    """Two axes differ."""
    return a != b


def _length(facts: Facts, dims: tuple[Dim, ...], count: int) -> bool | None:
    """A list of dimensions has ``count`` entries."""
    return len(dims) == count


SOLVERS: dict[str, Mapping[int, Callable[..., AttrValue]]] = {
    "composes": {0: lambda r, p, q: _compose(p, q)},
    "moves": {1: lambda p, before, after: _axis_before(p, after), 2: lambda p, before, after: _axis_after(p, before)},
}
"""For predicates about attributes alone: the argument at a position from the others. Only who looks for a proof solves."""

PREDICATES: dict[str, Callable[..., bool | None]] = {
    "matrix": _matrix,
    "vector": _vector,
    "same_shape": _same_shape,
    "agree": _agree,
    "tail": _tail,
    "constant_along": _constant_along,
    "ones": _ones,
    "dim": _dim,
    "fits": _fits,
    "floating": _floating,
    "not_nan": _not_nan,
    "finite": _finite,
    "nonzero": _nonzero,
    "nonnegative": _nonnegative,
    "positive": _positive,
    "typed": _typed,
    "composes": _composes,
    "moves": _moves,
    "distinct": _distinct,
    "length": _length,
}
"""Name to definition; a definition's docstring is what ``rulegen show`` prints."""

RANGE_PREDICATES = frozenset({"not_nan", "finite", "nonzero", "nonnegative", "positive"})
"""Predicates about values, which only a model can answer."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate applied to terms and attribute values."""

    predicate: str
    arguments: tuple[Argument, ...]

    def holds(self, facts: Facts) -> bool | None:
        """Yes, no, or ``None`` where it cannot be shown. An ill-typed term in it means no, and so does an axis that is none."""
        try:
            arguments = (a if isinstance(a, Term) else bind_value(a, facts.binding) for a in self.arguments)
            return PREDICATES[self.predicate](facts, *arguments)
        except (ShapeError, IndexError):
            return False
        except Undecided:
            return None

    def substitute(
        self, terms: Mapping[str, Term], attrs: Mapping[str, AttrValue] | None = None, dims: Mapping[str, Dim] | None = None
    ) -> Condition:
        def replace(argument: Argument) -> Argument:
            if isinstance(argument, Term):
                return substitute(argument, terms, attrs, dims)
            return bind_value(argument, binding)

        binding = {**(dims or {}), **{f"${name}": value for name, value in (attrs or {}).items()}}
        return Condition(self.predicate, tuple(replace(a) for a in self.arguments))

    def open_names(self) -> set[str]:
        """Names of the attribute variables in it."""
        values = [a for a in self.arguments if not isinstance(a, Term)]
        values += [value for term in walk(self.terms()) for _, value in term.attrs]
        return {name for value in values for name in open_names(value)}

    def terms(self) -> Sequence[Term]:
        return [a for a in self.arguments if isinstance(a, Term)]

    def __str__(self) -> str:
        return f"{self.predicate}({', '.join(repr(a) if isinstance(a, Term) else format_value(a) for a in self.arguments)})"


SIGNATURES = {
    "agree": "ttv",
    "tail": "tv",
    "constant_along": "tv",
    "dim": "tvv",
    "same_shape": "tt",
    "fits": "tt",
    "composes": "vvv",
    "moves": "vvv",
    "distinct": "vv",
    "length": "vv",
}
"""Arguments of a predicate: ``t`` a term, ``v`` an attribute value; one term where nothing stands here."""


def parse_condition(parser: Parser) -> Condition:
    """Reads ``predicate(argument, ...)``; an unknown predicate is named with the known ones."""
    name = parser.name("a condition")
    if name not in PREDICATES:
        parser.fail(f"one of {', '.join(PREDICATES)}, not '{name}',")
    parser.expect("(")
    arguments: list[Argument] = []
    for position, kind in enumerate(SIGNATURES.get(name, "t")):
        if position:
            parser.expect(",")
        arguments.append(parser.term() if kind == "t" else parser.value())
    parser.expect(")")
    return Condition(name, tuple(arguments))
