"""Dimension symbols of a file, and the sizes that the model's own operators say they are.

A node of the main graph that an output needs is executed in every run. Where it is well-typed only if two dimensions are
equal, they are: other sizes give an error, and no result that a rewritten model would have to repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from onnx import GraphProto, NodeProto, TypeProto, helper

from mugraph.onnx.scopes import declarations
from mugraph.terms.shape import (
    DataType,
    Dim,
    Least,
    SymDim,
    TensorType,
    Unequal,
    at_most,
    evaluate_dim,
    is_natural,
    plain_symbol,
    symbol,
    symbols_within,
)

__all__ = [
    "DeclaredTypes",
    "Restriction",
    "SymbolLearner",
    "SymbolValues",
    "dimension_in_words",
    "restrictions_in_words",
    "type_proto",
]

_ANONYMOUS = ("", "?", "*", "-1", "None")
"""What exporters write for a dimension of which they know nothing: two such dimensions need not be equal."""


_SHOWN, _LONGEST = 3, 80
"""Restrictions that a note tells, and characters of each."""
_LONG = "sizes that fit each other"
"""In the place of a longer one: exporters write formulas where others have names."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """A condition on the sizes that may be fed, or on what a run does with them.

    Attributes:
        node: that runs only under it.
        words: the condition.
    """

    node: str
    words: str


def dimension_in_words(name: str) -> str:
    """A dimension symbol as users know it: one that the file does not name is an axis of a value."""
    value, _, axis = name.removeprefix("?").rpartition("_")
    return f"axis {axis} of {value}" if name.startswith("?") and value else name


@dataclass(frozen=True)
class SymbolValues:
    """The symbols of a file that are another size in every run: ``n`` is ``2*m``.

    Attributes:
        equal: symbol to the dimension that it always is; following these leads to no symbol twice.
        restrictions: what that says of the sizes that may be fed.
        natural: dimensions that are not negative, because tensors have them as sizes in every run.
    """

    equal: Mapping[str, Dim] = field(default_factory=dict)
    restrictions: tuple[Restriction, ...] = ()
    natural: frozenset[Dim] = frozenset()

    def normal(self, dim: Dim) -> Dim:
        """The dimension in terms of the symbols that are left."""
        if isinstance(dim, int) or not self.equal:
            return dim
        while True:
            replaced = evaluate_dim(dim, self.equal)
            if replaced == dim:
                return dim
            dim = replaced

    def type(self, type_: TensorType) -> TensorType:
        """The type with normal dimensions."""
        return TensorType(type_.dtype, tuple(map(self.normal, type_.shape))) if self.equal else type_

    def learn(self, name: str, dim: Dim, restriction: Restriction | None = None) -> SymbolValues:
        """Also that the symbol ``name`` is ``dim``, which is normal and does not contain it."""
        more = () if restriction is None else (restriction,)
        return replace(self, equal={**self.equal, name: dim}, restrictions=(*self.restrictions, *more))


def type_proto(type_: TensorType) -> TypeProto:
    """A type as ONNX writes it; a dimension that is no number is its symbol, or its formula as if that were one."""
    return helper.make_tensor_type_proto(int(type_.dtype), [dim if isinstance(dim, int) else str(dim) for dim in type_.shape])


def restrictions_in_words(restrictions: Iterable[Restriction]) -> str:
    """Restrictions as one sentence; empty where there are none."""
    words, nodes = dict[str, None](), dict[str, None]()
    for one in restrictions:
        words[one.words if len(one.words) <= _LONGEST else _LONG] = None
        nodes[f"'{one.node}'"] = None
    if not words:
        return ""
    return f"{_listed(list(nodes))} {'runs' if len(nodes) == 1 else 'run'} only with {_listed(list(words))}"


def _listed(words: list[str]) -> str:
    """Words as a list in a sentence, the first few of them."""
    if len(words) > _SHOWN:
        words = [*words[: _SHOWN - 1], f"{len(words) - _SHOWN + 1} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class DeclaredTypes:
    """The types that a file and onnx's inference give to values.

    Args:
        inferred: the main graph after onnx's inference; no two values bear one name.
        symbols: the symbols that do not stand for themselves.

    Attributes:
        fed: the symbols of the main graph's inputs.
    """

    def __init__(self, inferred: GraphProto, symbols: SymbolValues) -> None:
        self.protos: dict[str, TypeProto] = {}
        for value in declarations(inferred):
            if value.name not in self.protos or value.type.tensor_type.HasField("shape"):  # a body's results may declare nothing
                self.protos[value.name] = value.type
        self.symbols = symbols
        self.fed: frozenset[str] = frozenset()
        self.fed = self._symbols_of(value.name for value in inferred.input)

    def of(self, name: str, body: int = 0) -> TensorType | None:
        """The type of a tensor of known rank, else ``None``; a dimension of which nothing is said is a symbol of its own.

        Args:
            body: the number of the body that computes it, where that may run several times: its symbols, but for those of the
                main graph's inputs, may be another size each time, and none that a symbol of this name is elsewhere.
        """
        declared = self.protos.get(name)
        if declared is None or not declared.HasField("tensor_type"):
            return None
        tensor = declared.tensor_type
        if not tensor.HasField("shape") or tensor.elem_type not in {int(t) for t in DataType} - {DataType.UNDEFINED}:
            return None
        shape: list[Dim] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(dim.dim_value)
            else:
                named = dim.dim_param if dim.dim_param.strip() not in _ANONYMOUS else ""
                named = f"{named}@{body}" if body and named and named not in self.fed else named
                shape.append(self.symbols.normal(symbol(named or f"?{name}_{axis}")))
        return TensorType(DataType(tensor.elem_type), tuple(shape))

    def _symbols_of(self, names: Iterable[str]) -> frozenset[str]:
        """The symbols in the types of some values."""
        types = (self.of(name) for name in names)
        dims = (dim for type_ in types if type_ is not None for dim in type_.shape if isinstance(dim, SymDim))
        return frozenset(name for dim in dims for name in dim.symbols())


class SymbolLearner:
    """Collects what a reading of the graph says of its symbols, for the next reading to use.

    Ensures that every symbol is learned once, and never as a dimension that contains it.

    Args:
        values: the symbols that were known before this reading.
        fed: the symbols of the graph's inputs, which are known before a run.

    Attributes:
        learned: ``values`` and what was learned beside them; ``None`` as long as that is nothing.
    """

    def __init__(self, values: SymbolValues, fed: frozenset[str]) -> None:
        self.values, self.fed = values, fed
        self.learned: SymbolValues | None = None
        self._sizes: set[Dim] = set()

    def exists(self, type_: TensorType) -> None:
        """Notes the sizes of a tensor that every run computes: they are not negative."""
        self._sizes |= {dim for dim in type_.shape if not at_most(0, dim)}

    def answer(self, doubted: Iterable[Dim]) -> None:
        """Learns which dimensions are not negative, where one that this reading doubted would not be then."""
        more = self._sizes - self.values.natural
        if more and any(is_natural(dim, self._sizes) for dim in doubted):
            values = self.learned or self.values
            self.learned = replace(values, natural=values.natural | more)

    def compare(self, declared: Dim, computed: Dim) -> None:
        """Learns what a symbol of the file is, and that a slice of size min(1,n) has one entry."""
        if declared == computed:
            return
        name = plain_symbol(declared)
        if name is not None and name not in self.fed:
            self.learn(name, computed)
        least = plain_symbol(computed)
        if declared == 1 and isinstance(least, Least) and least.first == 1:
            self.learn(least, 1)

    def must_hold(self, question: Unequal, node: NodeProto) -> None:
        """Learns what is true wherever a node that is executed is well-typed.

        Where broadcasting is allowed, two different symbols may also be equal because one of them is 1. That is no way
        out for min(c,n) beside n where c > 1: up to c they are equal, and beyond it neither is 1. Where a tensor may be empty,
        such as a cache before the first run, nothing is learned: it may be of another batch.
        """
        if question.or_empty:
            return
        first, second = question.dims
        label = node.name or node.output[0]
        for least, other in ((first, second), (second, first)):
            name = plain_symbol(least)
            if isinstance(name, Least):
                bound = next((b for a, b in ((name.first, name.second), (name.second, name.first)) if a == other), None)
                if bound is not None and at_most(2, bound):
                    self.learn(name, other, Restriction(label, f"{_in_words(other)} at most {_in_words(bound)}"))
                    return
        if question.or_one:
            return
        for name, dim in _solutions(first, second):
            if name not in self.fed or symbols_within(dim) <= self.fed:
                self.learn(name, dim, Restriction(label, f"{dimension_in_words(name)} = {_in_words(dim)}"))
                return

    def learn(self, name: str, dim: Dim, restriction: Restriction | None = None) -> None:
        """Learns that a symbol is a dimension, unless it is known already or the dimension contains it."""
        values = self.learned or self.values
        dim = values.normal(dim)
        if name not in values.equal and not (isinstance(dim, SymDim) and name in symbols_within(dim)):
            self.learned = values.learn(name, dim, restriction)


def _solutions(first: Dim, second: Dim) -> Iterator[tuple[str, Dim]]:
    """What a symbol is where two dimensions are equal: those that are one symbol first, then the terms of their difference.

    1+m = 1+n says that n is m, as two caches do that one new entry is appended to.
    """
    for left, right in ((second, first), (first, second)):
        if (name := plain_symbol(left)) is not None:
            yield name, right
    difference = second - first
    for monomial, coefficient in difference.terms if isinstance(difference, SymDim) else ():
        size = SymDim.make({monomial: 1})
        if (
            abs(coefficient) == 1
            and (name := plain_symbol(size)) is not None
            and at_most(0, dim := size - coefficient * difference)
        ):
            yield name, dim


def _in_words(dim: Dim) -> str:
    name = plain_symbol(dim)
    return dimension_in_words(name) if name is not None else str(dim)
