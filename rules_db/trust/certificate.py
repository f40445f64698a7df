"""Certificates: ground instances of named operator properties from which target = source follows by congruence alone.

What the properties do not give yet may enter by exhaustive and random tests instead (:class:`BoundedTests`). Rules whose target
is a graph-defined kernel rest on the interpretation of its block graphs (:class:`Interpretation`). Rules about tensors of their
own sizes may rest on the numbers of their entries (:mod:`rules_db.trust.numbering`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mugraph.terms.shape import Dim
from mugraph.terms.term import AttrValue, Term, bind_attrs, binding_of, format_term, format_value, substitute
from mugraph.terms.text import Parser, TextError

__all__ = ["BoundedTests", "Certificate", "Evidence", "Instance", "Interpretation", "Trust"]

_MOST_TESTS = 1_000
"""Most tests that a certificate may ask for."""
_MOST_SHAPES, _MOST_RANKS = 8, 8
"""Greatest bounds that a certificate may claim."""
_NUMBERED = "numbered(sizes=own)"
"""The text of a certificate that cites nothing but the entries of both sides."""


class Evidence(StrEnum):
    """On what a rule stands; summaries and reports name it."""

    PROVED = "proved"
    """Instances of operator properties, for all operands; of a kernel, formulas for all sizes; or entries, at their own sizes."""
    TESTED = "tested"
    """Tests as polynomials within a bound and at random, in the place of a proof."""
    INTERPRETED = "interpreted"
    """A kernel's block graphs interpreted in some tests, at some sizes, without a proof."""


class Trust(StrEnum):
    """How much a rule from outside has to bring: the one policy for runs, databases, audits and merges."""

    PROVED = "proved"
    TESTED = "tested"

    def refusal(self, evidence: Evidence) -> str:
        """Why rules with this evidence are not taken; empty where they are."""
        if self is Trust.TESTED or evidence is Evidence.PROVED:
            return ""
        return f"it is {evidence}, not proved, and tests do not rule out every mistake; '--trust tested' takes such rules"


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
        binding = binding_of(attrs, dims)
        return replace(
            self,
            terms=tuple((k, substitute(t, terms, attrs, dims)) for k, t in self.terms),
            attrs=bind_attrs(self.attrs, binding),
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
class BoundedTests:
    """Evidence of the kinds ``bounded`` and ``probabilistic`` (design, Rules), which count together only.

    Attributes:
        shapes, ranks: the sides are equal as polynomials for all operands of at most so many dimensions, each at most so long.
        tests, seed: random tests in finite fields that repeat from the seed.
        delta: the tests pass two different programs with a probability of at most 2 to the power of minus this.
    """

    shapes: int
    ranks: int
    tests: int
    seed: int
    delta: int

    _FORM = re.compile(
        r"bounded\(shapes<=(\d{1,9}), ranks<=(\d{1,9})\) & probabilistic\(tests=(\d{1,9}), seed=(\d{1,9}), delta=2\^-(\d{1,9})\)"
    )

    def __str__(self) -> str:
        return (
            f"bounded(shapes<={self.shapes}, ranks<={self.ranks}) & "
            f"probabilistic(tests={self.tests}, seed={self.seed}, delta=2^-{self.delta})"
        )

    def in_words(self) -> str:
        """A description of the tests in words."""
        return (
            f"both sides are equal polynomials for all operands of at most {self.ranks} dimensions, each at most {self.shapes} "
            f"long, and agree in {self.tests} random tests (seed {self.seed}), which two different ones pass with a probability "
            f"of at most 2^-{self.delta}"
        )

    @staticmethod
    def parse(text: str) -> BoundedTests:
        """Reads the text form."""
        form = BoundedTests._FORM.fullmatch(text)
        if form is None:
            raise TextError(f"expected evidence like '{BoundedTests(2, 3, 3, 0, 60)}'")
        tested = BoundedTests(*map(int, form.groups()))
        if tested.shapes > _MOST_SHAPES or tested.ranks > _MOST_RANKS or tested.tests > _MOST_TESTS:
            most = f"shapes<={_MOST_SHAPES}, ranks<={_MOST_RANKS}, tests={_MOST_TESTS:,}"
            raise TextError(f"'{tested}' asks for more than is tried at most: {most}")
        return tested


@dataclass(frozen=True)
class Interpretation:
    """Evidence for a target that is a graph-defined kernel with the source as its body: its block graphs, interpreted.

    Attributes:
        tests, seed: evaluations in finite fields, and as many in floats, that repeat from the seed. They have no error bound.
        proved: the block graphs are the body for all sizes, by formulas of entries (:mod:`rules_db.trust.formulas.proof`).
    """

    tests: int
    seed: int
    proved: bool = False

    _FORM = re.compile(r"interpreted\(tests=(\d{1,9}), seed=(\d{1,9})\)( & proved\(sizes=all\))?")

    def __str__(self) -> str:
        return f"interpreted(tests={self.tests}, seed={self.seed}){' & proved(sizes=all)' if self.proved else ''}"

    def in_words(self) -> str:
        """A description of the tests in words."""
        return (
            f"the source is what the kernel's body says, and its block graphs, interpreted tile by tile in finite fields and in "
            f"floats, gave the body's values in {self.tests} random tests each (seed {self.seed})"
            f"{', and are equal to it for all sizes, entry by entry, in normal form' if self.proved else ''}"
        )

    @staticmethod
    def parse(text: str) -> Interpretation:
        """Reads the text form."""
        form = Interpretation._FORM.fullmatch(text)
        if form is None:
            raise TextError(f"expected evidence like '{Interpretation(3, 0)}'")
        tests, seed, proved = form.groups()
        told = Interpretation(int(tests), int(seed), proved is not None)
        if told.tests > _MOST_TESTS:
            raise TextError(f"'{told}' asks for more than {_MOST_TESTS:,} tests")
        return told


@dataclass(frozen=True)
class Certificate:
    """Evidence of kind ``axioms`` (design, Rules): the instances, in no particular order; or tests in their place.

    Attributes:
        numbered: both sides have the same expressions for entries, at the sizes that conditions say.
    """

    instances: tuple[Instance, ...]
    tested: BoundedTests | None = None
    interpreted: Interpretation | None = None
    numbered: bool = False

    @staticmethod
    def parse(text: str) -> Certificate:
        """Reads the text form. Raises TextError."""
        if text.startswith("bounded("):
            return Certificate((), BoundedTests.parse(text))
        if text.startswith("interpreted("):
            return Certificate((), interpreted=Interpretation.parse(text))
        if text == _NUMBERED:
            return Certificate((), numbered=True)
        parser = Parser(text)
        instances = []
        while parser.kind != "end":
            instances.append(Instance.parse(parser))
            if not parser.accept(";"):
                parser.end()
        return Certificate(tuple(instances))

    @staticmethod
    def known(text: str) -> Certificate:
        """The same of a text that was read before: instances are read when they are first asked for.

        Who applies a rule asks for none of them, and they are half of what a rule's text says.
        """
        if text.startswith(("bounded(", "interpreted(", _NUMBERED)):
            return Certificate.parse(text)
        certificate = object.__new__(Certificate)
        vars(certificate)["_unread"] = text
        return certificate

    def __getattr__(self, name: str) -> Any:
        """What an instance lacks: the instances of one that is unread."""
        text = vars(self).get("_unread")
        if name != "instances" or text is None:
            raise AttributeError(f"a certificate has no {name}")
        vars(self)["instances"] = instances = Certificate.parse(text).instances
        return instances

    @property
    def cites_properties(self) -> bool:
        """Whether it is instances of operator properties, and nothing else."""
        return self.tested is None and self.interpreted is None and not self.numbered

    @property
    def evidence(self) -> Evidence:
        """On what a rule with this certificate stands, once it is checked."""
        if self.interpreted is not None:
            return Evidence.PROVED if self.interpreted.proved else Evidence.INTERPRETED
        return Evidence.TESTED if self.tested else Evidence.PROVED

    def substitute(
        self, terms: Mapping[str, Term], attrs: Mapping[str, AttrValue] | None = None, dims: Mapping[str, Dim] | None = None
    ) -> Certificate:
        return replace(self, instances=tuple(i.substitute(terms, attrs, dims) for i in self.instances))

    def __str__(self) -> str:
        tests = self.tested or self.interpreted
        return str(tests) if tests else _NUMBERED if self.numbered else "; ".join(map(str, self.instances))
