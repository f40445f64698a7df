"""From binary to variadic: rules of two parts widened to rules of three and more.

Enumeration concatenates and splits two tensors at a time. Equations of two parts mostly hold for any number, and then a
model with three products that share an operand wants one step, not two and a tidying. A candidate is widened by its text
alone: the second part of every Concat and Split is copied under new variables. Nothing is believed of the result; it is
proved like any other candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mugraph.terms.shape import Dim, SymDim, TensorType, evaluate_dim, plain_symbol, symbol
from mugraph.terms.term import Term, substitute, var, variables, walk
from rulegen.candidate import CandidateRule, candidate_types
from rules_db.trust.rule import Side

__all__ = ["widen"]


def widen(candidate: CandidateRule, parts: int = 3) -> CandidateRule | None:
    """The candidate with ``parts`` parts in place of two, or ``None`` where it has no such parts or they are nested.

    Args:
        candidate: sides in which every Concat has two operands and every Split two sizes.
        parts: number of parts wanted, more than two.
    """
    every = list(walk([*candidate.source, *candidate.target]))
    if not any(t.op in ("Concat", "Split") for t in every) or _nested(every):
        return None
    first, second = _variables_of_parts(every)
    copied = second - first
    if not copied and not any(t.op == "Split" for t in every):
        return None
    widener = _Widener(candidate.types, copied, first, parts, every)
    source, target = widener.side(candidate.source), widener.side(candidate.target)
    if source is None or target is None:
        return None
    return CandidateRule(source, target, candidate_types(source, target, widener.types))


def _nested(every: Iterable[Term]) -> bool:
    """Whether anything joined is joined again, or is joined of other than two parts."""
    for term in every:
        if term.op == "Concat" and (
            len(term.inputs) != 2 or any(t.op in ("Concat", "Split") for operand in term.inputs for t in walk([operand]))
        ):
            return True
        if term.op == "Split" and (len(term.attr("sizes")) != 2 or any(t.op == "Split" for t in walk(term.inputs))):
            return True
    return False


def _variables_of_parts(every: Iterable[Term]) -> tuple[set[str], set[str]]:
    """Names of the variables in first and in second operands of Concat."""
    first: set[str] = set()
    second: set[str] = set()
    for term in every:
        if term.op == "Concat":
            first |= {v.name for v in variables(term.inputs[:1])}
            second |= {v.name for v in variables(term.inputs[1:])}
    return first, second


class _Widener:
    """Copies the second part of every Concat and Split of a candidate under new variables.

    Attributes:
        copied: variables of second parts alone; ``first``: of first parts alone.
        dims: per copy its dimension symbols for those of the second part, the second part itself first.
        names: per copy its variables for those of the second part.
        types: of all variables, old and new.
    """

    def __init__(
        self, types: Mapping[str, TensorType], copied: set[str], first: set[str], parts: int, every: Iterable[Term]
    ) -> None:
        self.copied, self.first, self.parts = copied, first - copied, parts
        repeated = self._symbols(types, [n for n in types if n in copied])
        repeated -= self._symbols(types, [n for n in types if n not in copied])
        for term in every:  # a split of a variable: the size of its second part
            if term.op == "Split":
                before, after = term.attr("sizes")
                if before != after and (name := plain_symbol(after)) is not None:
                    repeated.add(name)
        self.dims: list[dict[str, Dim]] = [{} if i == 1 else {s: symbol(f"{s}{i}") for s in repeated} for i in range(1, parts)]
        total: dict[str, Dim] = {s: sum((d.get(s, symbol(s)) for d in self.dims[1:]), start=symbol(s)) for s in repeated}
        self.names = [{n: n if i == 1 else f"{n}{i}" for n in copied} for i in range(1, parts)]
        self.types = {n: t.at({} if n in copied else total) for n, t in types.items()}
        for names, dims in zip(self.names[1:], self.dims[1:], strict=True):
            self.types |= {names[n]: types[n].at(dims) for n in copied}

    @staticmethod
    def _symbols(types: Mapping[str, TensorType], names: Iterable[str]) -> set[str]:
        return {s for n in names for d in types[n].shape if isinstance(d, SymDim) for s in d.symbols()}

    def side(self, side: Side) -> Side | None:
        """The outputs widened; the second of two outputs is copied where the outputs are the parts."""
        widened = tuple(map(self.term, side))
        if len(side) == 1:
            return widened
        if len(side) != 2:
            return None
        return (*widened, *(self.copy(side[1], i) for i in range(1, self.parts - 1)))

    def term(self, term: Term) -> Term:
        """The term with more parts in every Concat, every Split and every sum over parts."""
        if term.op == "Concat":
            first, second = term.inputs
            return Term("Concat", term.attrs, (first, *(self.copy(second, i) for i in range(self.parts - 1))), 0)
        if term.op == "Split":
            return self._split(term, term.out)
        inputs = tuple(map(self.term, term.inputs))
        if term.op == "Add" and self._is_sum_over_parts(term):
            total = Term("Add", (), inputs, 0)
            for i in range(1, self.parts - 1):
                total = Term("Add", (), (total, self.copy(term.inputs[1], i)), 0)
            return total
        return Term(term.op, term.attrs, inputs, term.out) if inputs else term

    def copy(self, term: Term, number: int) -> Term:
        """The ``number``-th copy of a term of the second part: 0 is itself."""
        if term.op == "Concat":
            return self.term(term)
        if term.op == "Split":
            return self._split(term, term.out + number if term.out else 0)
        if term.is_var:
            return var(self.names[number].get(term.name, term.name))
        inputs = tuple(self.copy(operand, number) for operand in term.inputs)
        bound = substitute(Term(term.op, term.attrs, (), term.out), {}, dims=self.dims[number])
        return Term(term.op, bound.attrs, inputs, term.out)

    def _split(self, term: Term, out: int) -> Term:
        before, after = term.attr("sizes")
        sizes = (before, *(evaluate_dim(after, dims) for dims in self.dims))
        attrs = tuple((k, sizes if k == "sizes" else v) for k, v in term.attrs)
        return Term("Split", attrs, tuple(map(self.term, term.inputs)), out)

    def _is_sum_over_parts(self, term: Term) -> bool:
        left, right = ({v.name for v in variables([operand])} for operand in term.inputs)
        return bool(right & self.copied and left & self.first) and not (left & self.copied or right & self.first)
