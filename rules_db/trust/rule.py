"""The rule: two programs that compute the same, when, and why.

Text form (one block, what a reviewer reads; :mod:`rules_db.exchange` reads and writes files of them)::

    rule 1f0c9e5a7b21d340
      let    X:float[m,k] A:float[k,r] B:float[r,n]
      source MatMul(MatMul(X, A), B)
      target MatMul(X, MatMul(A, B))
      when   matrix(X), matrix(A), matrix(B)
      class  reassociates
      proof  matmul.associative{x=X,y=A,z=B}
      from   group=linear ops=3 seed=0 generator=1

A rule with several outputs lists them separated by ``;`` on both sides, in the same order. It may be used in both
directions, as far as one side's variables and dimension symbols bind the other's. An attribute that may have any value is an
attribute variable, ``strides=$s``, with a sample beside the types: ``let x:float[n,c,h,w] $s:(1,1)``.

The target may be a graph-defined kernel, ``Kernel[digest='...'](x0, x1)``, whose μGraph stands in a line ``kernel`` before the
source: a multi-level rule. Its schedule is free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from mugraph.domains.base import WHOLE_NUMBERS
from mugraph.terms.shape import SymDim, TensorType, symbol
from mugraph.terms.term import (
    AttrValue,
    AttrVar,
    Term,
    attr_symbols,
    bind_value,
    format_term,
    open_names,
    substitute,
    var,
    variables,
    walk,
)
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import Condition

__all__ = ["FloatClass", "Rule", "Side", "Verdict", "dim_symbols"]


class Verdict(StrEnum):
    """The three answers of a prover."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class FloatClass(StrEnum):
    """The effect of a rule on floating-point results."""

    EXACT = "exact"
    REASSOCIATES = "reassociates"
    APPROXIMATES = "approximates"


Side = tuple[Term, ...]
"""The outputs of one side of a rule."""


def dim_symbols(roots: Iterable[Term]) -> set[str]:
    """Dimension symbols in the attributes of terms."""
    return {symbol for term in walk(roots) for _, value in term.attrs for symbol in attr_symbols(value)}


@dataclass(frozen=True)
class Rule:
    """A certified substitution.

    Attributes:
        source, target: outputs of the two sides, in the same order.
        types: sample types of the variables. Their last dimensions bind the dimension symbols that attributes use; what
            a rule really needs of shapes stands in ``conditions``.
        conditions: guards, tested at every application.
        float_class: effect on floating-point results.
        certificate: why source and target are equal where the conditions hold.
        provenance: group, number of operators, seed, generator version.
        attrs: sample values of the attribute variables, under which the sample types are meant.
    """

    source: Side
    target: Side
    types: Mapping[str, TensorType]
    conditions: tuple[Condition, ...]
    float_class: FloatClass
    certificate: Certificate
    provenance: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.source, self.target, self.conditions))

    @cached_property
    def id(self) -> str:
        """Identity: a digest of the canonical form of source, target and conditions (16 hexadecimal digits).

        Types are samples and no part of it, but for those of integers, which are meant as they stand.
        """
        canonical = replace(self, certificate=Certificate(())).canonical()
        integers = [f"{name}:{t.dtype.name.lower()}" for name, t in sorted(canonical.types.items()) if t.dtype in WHOLE_NUMBERS]
        text = "\n".join(
            [
                "; ".join(map(format_term, canonical.source)),
                "; ".join(map(format_term, canonical.target)),
                ", ".join(sorted(map(str, canonical.conditions))),
                *([", ".join(integers)] if integers else []),
            ]
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def rename(self, names: Mapping[str, str], dims: Mapping[str, str], attrs: Mapping[str, str] | None = None) -> Rule:
        """The same rule with other names of variables, dimension symbols and attribute variables."""
        attrs = attrs or {}
        terms = {old: var(new) for old, new in names.items()}
        symbols = {old: symbol(new) for old, new in dims.items()}
        opened = {old: AttrVar(new) for old, new in attrs.items()}

        def side(roots: Side) -> Side:
            return tuple(substitute(root, terms, opened, symbols) for root in roots)

        return Rule(
            side(self.source),
            side(self.target),
            {names.get(name, name): type_.at(symbols) for name, type_ in self.types.items()},
            tuple(c.substitute(terms, opened, symbols) for c in self.conditions),
            self.float_class,
            self.certificate.substitute(terms, opened, symbols),
            self.provenance,
            {attrs.get(name, name): bind_value(value, symbols) for name, value in self.attrs.items()},
        )

    def sample(self) -> Rule:
        """The rule with its attribute variables replaced by their samples: what can be evaluated."""
        if not self.attrs:
            return self
        return replace(
            self,
            source=tuple(substitute(root, {}, self.attrs) for root in self.source),
            target=tuple(substitute(root, {}, self.attrs) for root in self.target),
            conditions=tuple(c.substitute({}, self.attrs) for c in self.conditions),
            certificate=self.certificate.substitute({}, self.attrs),
            attrs={},
        )

    def canonical(self) -> Rule:
        """Variables and symbols named in order of first occurrence: x0, x1, ..., d0, d1, ... and $a0, $a1, ...

        Symbols that attributes use come first, so that sample types of another rank do not change the others' names.
        """
        names = {v.name: f"x{i}" for i, v in enumerate(variables([*self.source, *self.target]))}
        cited = [term for condition in self.conditions for term in condition.terms()]
        used = dim_symbols([*self.source, *self.target, *cited])
        met = [s for n in names for d in self.types[n].shape if isinstance(d, SymDim) for s in sorted(d.symbols())]
        dims = {s: f"d{i}" for i, s in enumerate(dict.fromkeys([*(s for s in met if s in used), *met]))}
        values = [value for term in walk([*self.source, *self.target, *cited]) for _, value in term.attrs]
        values += [a for condition in self.conditions for a in condition.arguments if not isinstance(a, Term)]
        attrs = {name: f"a{i}" for i, name in enumerate(dict.fromkeys(n for value in values for n in open_names(value)))}
        renamed = self.rename(names, dims, attrs)
        types = {n: renamed.types[n] for n in names.values() if n in renamed.types}
        return replace(renamed, types=types, attrs={n: renamed.attrs[n] for n in attrs.values() if n in renamed.attrs})

    def __str__(self) -> str:
        return f"{'; '.join(map(format_term, self.source))} = {'; '.join(map(format_term, self.target))}"
