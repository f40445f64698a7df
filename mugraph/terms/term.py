"""Interned terms: the programs of rules and of the rule generator.

A :class:`Term` is an operator, its attributes, its operands and the index of the output it stands for. Equal terms are
one object, so they are compared with ``is`` and memoised by identity; the digest is by content and stable across
processes. Leaves are variables (operator ``Var``) and scalar constants (operator ``Const``).
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from mugraph.order import operands_first
from mugraph.terms.shape import DataType, SymDim, evaluate_dim

__all__ = [
    "AttrValue",
    "AttrVar",
    "Attrs",
    "NamedValue",
    "Term",
    "attr_symbols",
    "bind_attrs",
    "bind_value",
    "binding_of",
    "const",
    "format_attrs",
    "format_term",
    "format_value",
    "make",
    "make_attrs",
    "occurrences",
    "open_names",
    "replace_terms",
    "same_value",
    "substitute",
    "substitute_all",
    "var",
    "variables",
    "walk",
]


@dataclass(frozen=True, slots=True)
class AttrVar:
    """An attribute left open in an operator property, written ``$name``."""

    name: str

    def __str__(self) -> str:
        return f"${self.name}"

    __repr__ = __str__


class NamedValue:
    """An attribute value that text and digests call by a name: a graph-defined kernel by its digest.

    Equal values have equal names.
    """

    __slots__ = ()

    @property
    def text_name(self) -> str:
        """The text that stands in its place wherever attributes are written or digested."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.text_name)


AttrValue = Any  # int, float, bool, str, SymDim, AttrVar, DataType, NamedValue or a tuple of these: hashable and immutable
Attrs = tuple[tuple[str, AttrValue], ...]


def _key(value: AttrValue) -> str:
    """A text that tells apart what Python's equality does not: 1, 1.0, True and 0.0, -0.0."""
    if type(value) is int:
        return f"int:{value}"
    if isinstance(value, tuple):
        return f"({','.join([_key(item) for item in value])})"
    if isinstance(value, DataType):
        return f"dtype:{value.name}"
    return f"{type(value).__name__}:{value!r}"


def _spelt(attrs: Attrs) -> tuple[tuple[str, str], ...]:
    """The key of attributes as a digest has it: with the name of each named value in its place."""
    return tuple((name, _key(value.text_name if isinstance(value, NamedValue) else value)) for name, value in attrs)


class Term:
    """One output of an operator applied to terms. Make it with :func:`make`, :func:`var` or :func:`const`."""

    __slots__ = ("__weakref__", "_digest", "attrs", "inputs", "op", "out", "size")

    op: str
    attrs: Attrs
    inputs: tuple[Term, ...]
    out: int
    _digest: bytes | None
    size: int
    """Number of operator applications, shared subterms counted each time (TASO's operator count of a tree)."""

    _table: ClassVar[WeakValueDictionary[Any, Term]] = WeakValueDictionary()

    def __new__(cls, op: str, attrs: Attrs, inputs: tuple[Term, ...], out: int) -> Term:
        attr_key = tuple([(name, _key(value)) for name, value in attrs])
        key = (op, attr_key, inputs, out)
        interned = cls._table.get(key)
        if interned is not None:
            return interned
        term = super().__new__(cls)
        term.op, term.attrs, term.inputs, term.out = op, attrs, inputs, out
        term._digest = None
        term.size = 1 + sum(operand.size for operand in inputs) if inputs else 0
        cls._table[key] = term
        return term

    @property
    def digest(self) -> bytes:
        """A digest of the content, which other processes give, too; made when it is asked for, as of most terms it never is."""
        if self._digest is None:
            for term in operands_first([self], lambda term: [each for each in term.inputs if each._digest is None]):
                content = hashlib.blake2b(repr((term.op, _spelt(term.attrs), term.out)).encode(), digest_size=16)
                for operand in term.inputs:
                    content.update(operand.digest)
                term._digest = content.digest()
        assert self._digest is not None
        return self._digest

    @property
    def name(self) -> str:
        """The name of a variable."""
        assert self.op == "Var", self
        return str(self.attrs[0][1])

    @property
    def is_var(self) -> bool:
        return self.op == "Var"

    def attr(self, name: str, default: AttrValue = None) -> AttrValue:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def __repr__(self) -> str:
        return format_term(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Term, (self.op, self.attrs, self.inputs, self.out))


def format_value(value: AttrValue) -> str:
    """The text of an attribute value."""
    if isinstance(value, tuple):
        return "(" + ",".join(map(format_value, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DataType):
        return value.name.lower()
    if isinstance(value, str):
        return f"'{value}'"
    return repr(value)


def format_attrs(term: Term) -> str:
    return "[" + ",".join(f"{k}={format_value(v)}" for k, v in term.attrs) + "]" if term.attrs else ""


def format_term(root: Term) -> str:
    """The text of a term; shared subterms are written each time."""
    pieces: list[str] = []
    stack: list[Term | str] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif item.is_var:
            pieces.append(item.name)
        elif item.op == "Const":
            pieces.append(format_value(item.attr("value")))
        else:
            out = f".{item.out}" if item.out or item.op == "Split" else ""
            pieces.append(f"{item.op}{format_attrs(item)}{out}(")
            stack.append(")")
            for position in range(len(item.inputs) - 1, -1, -1):
                stack.append(item.inputs[position])
                if position:
                    stack.append(", ")
    return "".join(pieces)


def make_attrs(attrs: Mapping[str, AttrValue]) -> Attrs:
    return tuple(sorted(attrs.items()))


def make(op: str, inputs: Sequence[Term], attrs: Mapping[str, AttrValue] | Attrs = (), out: int = 0) -> Term:
    """The interned application of ``op``; attributes in any order."""
    return Term(op, make_attrs(dict(attrs)), tuple(inputs), out)


@lru_cache(maxsize=1024)
def var(name: str) -> Term:
    return Term("Var", (("name", name),), (), 0)


def const(value: float | bool) -> Term:
    """A scalar constant, of the element type that its use needs."""
    return Term("Const", (("value", value if isinstance(value, bool) else float(value)),), (), 0)


_OPERANDS: Callable[[Term], tuple[Term, ...]] = operator.attrgetter("inputs")


def walk(roots: Iterable[Term], seen: set[Term] | None = None) -> Iterator[Term]:
    """Every distinct term under ``roots``, operands first. Iterative: the depth of a term is not bounded.

    Args:
        seen: terms to leave out with all that is under them; those that are given enter it.
    """
    return operands_first(roots, _OPERANDS, seen)


def occurrences(root: Term) -> Iterator[Term]:
    """Every term of a tree, shared ones as often as they occur; a term before its operands, the last of which comes first."""
    stack = [root]
    while stack:
        term = stack.pop()
        yield term
        stack.extend(term.inputs)


def variables(roots: Iterable[Term]) -> list[Term]:
    """The distinct variables, in order of first occurrence from left to right."""
    return [term for term in walk(roots) if term.is_var]


def rebuild(root: Term, leaf: Callable[[Term], Term], attr: Callable[[AttrValue], AttrValue]) -> Term:
    """Rebuilds a term with every leaf and every attribute value mapped."""
    return rebuild_all([root], leaf, attr)[root]


def rebuild_all(roots: Iterable[Term], leaf: Callable[[Term], Term], attr: Callable[[AttrValue], AttrValue]) -> dict[Term, Term]:
    """What every term under ``roots`` becomes with every leaf and every attribute value mapped."""
    done: dict[Term, Term] = {}
    for term in walk(roots):
        if not term.inputs and term.op in ("Var", "Const"):
            done[term] = leaf(term)
            continue
        inputs, attrs = tuple([done[operand] for operand in term.inputs]), _mapped(term.attrs, attr)
        is_same = attrs is term.attrs and all(map(operator.is_, inputs, term.inputs))
        done[term] = term if is_same else Term(term.op, attrs, inputs, term.out)
    return done


def _mapped(attrs: Attrs, attr: Callable[[AttrValue], AttrValue]) -> Attrs:
    """Attributes with their values mapped: the same object where all values are."""
    if not attrs:
        return attrs
    values = [attr(value) for _, value in attrs]
    if all(new is old for new, (_, old) in zip(values, attrs, strict=True)):
        return attrs
    return tuple((name, value) for value, (name, _) in zip(values, attrs, strict=True))


def replace_terms(root: Term, new: Mapping[Term, Term]) -> Term:
    """Replaces subterms everywhere."""
    done: dict[Term, Term] = {}
    for part in walk([root]):
        if part in new:
            done[part] = new[part]
        else:
            inputs = tuple(done[operand] for operand in part.inputs)
            done[part] = Term(part.op, part.attrs, inputs, part.out) if part.inputs else part
    return done[root]


def binding_of(attrs: Mapping[str, AttrValue] | None, dims: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The binding for :func:`bind_value` that joins values of attribute variables, by name, and of dimension symbols."""
    return {**(dims or {}), **{f"${name}": value for name, value in (attrs or {}).items()}}


def bind_value(value: AttrValue, binding: Mapping[str, Any]) -> AttrValue:
    """An attribute value with dimension symbols and attribute variables replaced, where ``binding`` knows them.

    Attribute variables stand in it with their dollar sign: ``{"n": 4, "$axis": -1}``.
    """
    if type(value) is int:
        return value
    if isinstance(value, tuple):
        items = tuple([bind_value(item, binding) for item in value])
        return value if all(map(operator.is_, items, value)) else items
    if isinstance(value, AttrVar):
        return binding.get(str(value), value)
    return evaluate_dim(value, binding) if isinstance(value, SymDim) else value


def bind_attrs(attrs: Attrs, binding: Mapping[str, Any]) -> Attrs:
    """Attributes with their values bound as :func:`bind_value` does."""
    return _mapped(attrs, lambda value: bind_value(value, binding))


def same_value(a: AttrValue, b: AttrValue) -> bool:
    """Whether two attribute values are equal and of one type: 1 is neither True nor 1.0, also inside a tuple."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b)


def attr_symbols(value: AttrValue) -> frozenset[str]:
    """Dimension symbols in an attribute value."""
    if isinstance(value, tuple):
        return frozenset(name for item in value for name in attr_symbols(item))
    return value.symbols() if isinstance(value, SymDim) else frozenset()


def open_names(value: AttrValue) -> Iterator[str]:
    """Names of the attribute variables in an attribute value."""
    if isinstance(value, AttrVar):
        yield value.name
    elif isinstance(value, tuple):
        for item in value:
            yield from open_names(item)


def substitute(
    root: Term, terms: Mapping[str, Term], attrs: Mapping[str, AttrValue] | None = None, dims: Mapping[str, Any] | None = None
) -> Term:
    """Replaces variables by terms, attribute variables by values and dimension symbols by dimensions; others stay."""
    return substitute_all([root], terms, attrs, dims)[root]


def substitute_all(
    roots: Iterable[Term],
    terms: Mapping[str, Term],
    attrs: Mapping[str, AttrValue] | None = None,
    dims: Mapping[str, Any] | None = None,
) -> dict[Term, Term]:
    """What every term under ``roots`` becomes by :func:`substitute`."""
    if not (terms or attrs or dims):
        return {term: term for term in walk(roots)}
    binding = binding_of(attrs, dims)
    return rebuild_all(
        roots,
        lambda leaf: terms.get(leaf.name, leaf) if leaf.is_var else _close(leaf, attrs or {}),
        lambda value: bind_value(value, binding),
    )


def _close(constant: Term, attrs: Mapping[str, AttrValue]) -> Term:
    """The constant that stands for an open one, where its value is known."""
    value = constant.attr("value")
    bound = attrs.get(value.name, value) if isinstance(value, AttrVar) else value
    return Term("Const", (("value", bound),), (), 0) if isinstance(bound, AttrVar) else const(bound)
