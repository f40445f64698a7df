"""Certificates: ground instances of named operator properties from which target = source follows by congruence alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mugraph.node import AttrValue, Term, bind_value, substitute
from mugraph.shape import Dim
from mugraph.text import Parser, format_term, format_value

__all__ = ["Certificate", "Instance"]


@dataclass(frozen=True)
class Instance:
    """A property with its variables replaced by terms and its attribute variables by values.

    Attributes:
        axiom: name of the property.
        terms, attrs: what its variables and attribute variables stand for.
        digest: the first eight hexadecimal digits of the property's digest when the proof was found, or nothing. It proves
            nothing; it says which property has changed where a certificate does not hold any more.
    """

    axiom: str
    terms: tuple[tuple[str, Term], ...]
    attrs: tuple[tuple[str, AttrValue], ...] = ()
    digest: str = ""

    def substitute(
        self, terms: Mapping[str, Term], attrs: Mapping[str, AttrValue] | None = None, dims: Mapping[str, Dim] | None = None
    ) -> Instance:
        binding = {**(dims or {}), **{f"${name}": value for name, value in (attrs or {}).items()}}
        return replace(
            self,
            terms=tuple((k, substitute(t, terms, attrs, dims)) for k, t in self.terms),
            attrs=tuple((k, bind_value(v, binding)) for k, v in self.attrs),
        )

    def __str__(self) -> str:
        parts = [f"{k}={format_term(t)}" for k, t in self.terms] + [f"${k}={format_value(v)}" for k, v in self.attrs]
        return f"{self.axiom}{'@' + self.digest if self.digest else ''}{{{', '.join(parts)}}}"

    @staticmethod
    def parse(parser: Parser) -> Instance:
        """Reads ``name.of.axiom@digest{x=term, ..., $k=value, ...}``, with or without the digest."""
        name = parser.name("a property")
        while parser.accept("."):
            name += "." + parser.name("a property")
        digest = parser.advance()[1:] if parser.kind == "digest" else ""
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
        return Instance(name, tuple(terms), tuple(attrs), digest)


@dataclass(frozen=True)
class Certificate:
    """Evidence of kind ``axioms`` (design, Rules): the instances, in no particular order."""

    instances: tuple[Instance, ...]

    def substitute(
        self, terms: Mapping[str, Term], attrs: Mapping[str, AttrValue] | None = None, dims: Mapping[str, Dim] | None = None
    ) -> Certificate:
        return Certificate(tuple(i.substitute(terms, attrs, dims) for i in self.instances))

    def __str__(self) -> str:
        return "; ".join(map(str, self.instances))
