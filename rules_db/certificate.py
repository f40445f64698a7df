"""Certificates: ground instances of named operator properties from which target = source follows by congruence alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mugraph.node import AttrValue, Term, substitute
from mugraph.shape import Dim
from mugraph.text import Parser, format_term, format_value

__all__ = ["Certificate", "Instance"]


@dataclass(frozen=True)
class Instance:
    """A property with its variables replaced by terms and its attribute variables by values."""

    axiom: str
    terms: tuple[tuple[str, Term], ...]
    attrs: tuple[tuple[str, AttrValue], ...] = ()

    def substitute(self, terms: Mapping[str, Term], dims: Mapping[str, Dim]) -> Instance:
        carrier = [(k, substitute(Term("Carrier", (("v", v),), (), 0), {}, dims=dims).attr("v")) for k, v in self.attrs]
        return Instance(self.axiom, tuple((k, substitute(t, terms, dims=dims)) for k, t in self.terms), tuple(carrier))

    def __str__(self) -> str:
        parts = [f"{k}={format_term(t)}" for k, t in self.terms] + [f"${k}={format_value(v)}" for k, v in self.attrs]
        return f"{self.axiom}{{{', '.join(parts)}}}"

    @staticmethod
    def parse(parser: Parser) -> Instance:
        """Reads ``name.of.axiom{x=term, ..., $k=value, ...}``."""
        name = parser.name("a property")
        while parser.accept("."):
            name += "." + parser.name("a property")
        parser.expect("{")
        terms: list[tuple[str, Term]] = []
        attrs: list[tuple[str, AttrValue]] = []
        while not parser.accept("}"):
            is_attr = parser.accept("$")
            key = parser.name("a variable")
            parser.expect("=")
            if is_attr:
                attrs.append((key, parser.value()))
            else:
                terms.append((key, parser.term()))
            if not parser.accept(","):
                parser.expect("}")
                break
        return Instance(name, tuple(terms), tuple(attrs))


@dataclass(frozen=True)
class Certificate:
    """Evidence of kind ``axioms`` (design, Rules): the instances, in no particular order."""

    instances: tuple[Instance, ...]

    def substitute(self, terms: Mapping[str, Term], dims: Mapping[str, Dim]) -> Certificate:
        return Certificate(tuple(i.substitute(terms, dims) for i in self.instances))

    def __str__(self) -> str:
        return "; ".join(map(str, self.instances))
