"""The attributes of an operator property, and the values that they run through when it is examined.

Attribute variables run through finite ranges; attributes that a condition determines are computed from the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from mugraph.domains.base import BYTES, NIBBLES
from mugraph.domains.range import Range
from mugraph.ops import Movement, get_operator, traits_of
from mugraph.ops.traits import Entrywise
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import AttrValue, AttrVar, Term, walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.numeric.samples import STORED_MASKS
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import Axiom

__all__ = ["WINDOWS", "QuantizedVariable", "attribute_choices", "open_attributes", "quantized_variables", "stated_types"]

_AXES = (-1, -2, -3, -4)
_PERMS = (*(p for n in (0, 2, 3, 4) for p in itertools.permutations(range(n)) if not p or p[0]), (0, 1), (0, 2, 1))
_RANGES: Mapping[str, tuple[AttrValue, ...]] = {
    "axis": _AXES,
    "axes": ((-1,), (-2,), (-3,), (-4,), (-2, -1), (-3, -1), (-3, -2), (-3, -2, -1)),
    "perm": _PERMS,
    "keepdims": (True, False),
    "sizes": (
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (1, 3),
        (3, 1),
        (1, 1, 1),
        (1, 1, 2),
        (1, 2, 1),
        (2, 1, 1),
        (1, 1, 1, 1),
        (1, 1, 2, 1),
    ),
    "drop": (1, 2, 3),
    "shape": ((1,), (2,), (3,), (4,), (1, 2), (2, 1), (2, 2), (1, 4), (2, 3), (1, 1, 2), (2, 1, 2), (1, 1, 2, 2), (1, 2, 3, 3)),
    "transA": (True, False),
    "transB": (True, False),
    "approximate": ("none", "tanh"),
    "to": (DataType.FLOAT, DataType.FLOAT16, DataType.INT64),
    "min": (-0.5, 0.0, float("-inf")),
    "max": (0.5, 1.0, float("inf")),
    "group": (1, 2),
    "block": (2, 3, 16),
    "accuracy_level": (0, 4),
    "strides": ((1, 1), (2, 2), (1, 2), (1,), (2,)),
    "dilations": ((1, 1), (2, 2), (1,), (2,)),
    "output_padding": ((0, 0), (1, 1), (0, 1), (0,), (1,)),
    "pads": ((0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 0), (1, 1), (0, 1)),
    "kernel": ((1, 1), (2, 2), (3, 3), (1, 3), (1,), (2,), (3,)),
    "begins": ((0, 0), (1, 1), (0, 1), (0,), (1,)),
    "ends": ((0, 0), (1, 1), (1, 0), (0,), (1,), (2,), (2, 3)),
    "ceil": (False, True),
    "count_include_pad": (False, True),
    "spatial": (1, 2),
    "channels": (1, 2, 3),
    "size": (1, 2, 3, 4),
    "outputs": (2, 4),
    "merged": (1, 2, 3),
    "starts": ((0,), (1,), (0, 0), (1, 0)),
    "steps": ((1,), (2,), (1, 1)),
    "start": (0, 1),
    "limit": (1, 2, 3, 4),
    "dtype": (DataType.INT64,),
    "mode": ("constant", "edge", "reflect"),
    "interleaved": (False, True),
    "num_heads": (1, 2),
    "kv_num_heads": (1, 2),
    "is_causal": (False, True),
    "unidirectional": (False, True),
    "sum": (False, True),
    "bias": (False, True),
    "epsilon": (0.25, 1e-05, 2.0),
    "scale": (0.25, 2.0, 0.125, -0.5),
    "mask": ("float", "bool"),
    "mask_axes": (4, 3, 2),
    "rows": (1, 2, 3),
    "columns": (1, 2, 3),
    "entries": STORED_MASKS,
    "before": (0, 1, 2),
    "after": (0, 1, 2),
    "length": (1, 2, 3),
    "transBatchA": (True, False),
    "transBatchB": (True, False),
    "per_column": (True, False),
}
WINDOWS = {"strides": 1, "dilations": 1, "output_padding": 1, "pads": 2, "kernel": 1, "begins": 1, "ends": 1}
"""Attributes of windows, with their number of entries for a spatial axis: a choice speaks of as many axes in all of them."""
_ENTRIES: Mapping[str, tuple[AttrValue, ...]] = {
    "axes": _AXES,
    "shape": (1, 2, 3, 4),
    "starts": (0, 1, 2),
    "ends": (1, 2, 3, 4),
    "steps": (1, 2),
}
"""Ranges of single entries of an attribute; other entries are sizes."""
_AXIS = ("axis", False)
_ARGUMENTS: Mapping[str, Mapping[int, tuple[str, bool]]] = {
    "dim": {1: _AXIS, 2: ("sizes", True)},
    "constant_along": {1: _AXIS},
    "nonempty": {1: _AXIS},
    "agree": {2: _AXIS},
    "channel_axis": {0: _AXIS},
    "batch_axis": {0: _AXIS},
    "last_axes": {0: ("axes", False)},
}
"""Arguments of conditions that are axes or sizes, by position."""
_NUMBERS = (0.25, 2.0, -0.5)
"""The range of any other attribute."""


def stated_types(axiom: Axiom) -> dict[str, DataType]:
    """Term variables that stand, perhaps expanded, where truth values are wanted, or whole numbers."""
    types: dict[str, DataType] = {}
    for term in walk([axiom.left, axiom.right]):
        wanted, among = None, term.inputs
        if term.is_var or term.op == "Const":
            continue
        if traits_of(term.op).entrywise is Entrywise.LOGIC:
            wanted = DataType.BOOL
        elif term.op == "Where":
            wanted, among = DataType.BOOL, term.inputs[:1]
        elif term.op == "Equal" and any(isinstance(operand.attr("value"), bool) for operand in term.inputs):
            wanted = DataType.BOOL
        elif term.op == "Mod":
            wanted = DataType.INT64
        elif traits_of(term.op).movement is Movement.LOOKUP:
            wanted, among = DataType.INT64, term.inputs[1:]
        for operand in among if wanted is not None else ():
            inner = operand.inputs[0] if operand.op == "Expand" else operand
            if inner.is_var and wanted is not None:
                types[inner.name] = wanted
    return types


@dataclass(frozen=True, slots=True)
class QuantizedVariable:
    """What a quantised operator wants of a variable: its element type, and its rank where that is always the same."""

    dtype: DataType
    rank: int | None


def quantized_variables(axiom: Axiom) -> dict[str, QuantizedVariable]:
    """Term variables that stand, perhaps moved, where quantised operators want bytes, weights or parameters."""
    found: dict[str, QuantizedVariable] = {}
    terms = list(walk([axiom.left, axiom.right]))
    named = [value for term in terms for name, value in term.attrs if name == "to" and value in BYTES]
    for term in terms:
        wanted = [] if term.op in ("Var", "Const") else _wanted(term)
        for operand, want in zip(term.inputs, wanted, strict=False):
            like = replace(want, dtype=named[0]) if want.dtype in BYTES and named else want
            moved, keeps = [operand], True
            while moved and not moved[0].is_var and traits_of(moved[0].op).movement is not None:
                places = traits_of(moved[0].op).movement is Movement.LOOKUP
                keeps &= traits_of(moved[0].op).keeps_rank
                moved = [*moved[0].inputs[: 1 if places else None], *moved[1:]]
            for variable in filter(lambda part: part.is_var, moved):
                known = found.get(variable.name, replace(like, rank=None))
                found[variable.name] = like if keeps and like.rank is not None else known
    return found


def _wanted(term: Term) -> list[QuantizedVariable]:
    """By the sample of a quantised operator that is most like a term, where weights are constants; nothing for others.

    An attribute that is left open is like any that the sample has and its default is not.
    """
    record = get_operator(term.op)
    attrs = {**record.defaults, **dict(term.attrs)}
    best: tuple[int, list[QuantizedVariable]] = (-1, [])
    quantized = False
    for text in record.samples:
        sample, types = text.split(" | ")
        named = {name: parse_type(type_) for name, type_ in (item.split(":") for item in types.split())}
        root = parse_term(sample)
        given = {**record.defaults, **dict(root.attrs)}
        quantized |= any(type_.dtype in BYTES | NIBBLES for type_ in named.values())
        opened = {name for name, value in attrs.items() if isinstance(value, AttrVar)}
        alike = sum(given.get(name) == value for name, value in attrs.items()) + (len(root.inputs) >= len(term.inputs))
        alike += sum(name in record.defaults and given.get(name) != record.defaults[name] for name in opened)
        operands = [(named[o.name], named[o.name].rank < 2 or o.name.isupper()) for o in root.inputs]
        wants = [QuantizedVariable(type_.dtype, type_.rank if fixed else None) for type_, fixed in operands]
        best = max(best, (alike, wants), key=lambda pair: pair[0])
    return best[1] if quantized else []


def open_attributes(axiom: Axiom) -> dict[str, tuple[str, bool]]:
    """Attribute variables to the attribute they stand in, and whether for one entry of it only.

    A variable of conditions alone stands where they say; one that is a constant and an attribute stands in the attribute.
    """
    kinds: dict[str, tuple[str, bool]] = {}
    cited = [term for condition in axiom.conditions for term in condition.terms()]
    for term in walk([axiom.left, axiom.right, *cited]):
        for name, value in term.attrs:
            if isinstance(value, AttrVar) and not (term.op == "Const" and value.name in kinds):
                kinds[value.name] = (name, False)
            elif isinstance(value, tuple):
                kinds |= {v.name: (name, True) for v in value if isinstance(v, AttrVar)}
    for condition in axiom.conditions:
        for position, kind in _ARGUMENTS.get(condition.predicate, {}).items():
            value = condition.arguments[position]
            if isinstance(value, AttrVar):
                kinds.setdefault(value.name, kind)
    return kinds


def _range(attribute: str, entry: bool) -> tuple[AttrValue, ...]:
    """The values that an attribute, or one entry of it, runs through."""
    if entry:
        return _ENTRIES.get(attribute, (1, 2, 3))
    return _RANGES.get(attribute, _NUMBERS)


def _names(value: AttrValue) -> set[str]:
    """Attribute variables that are the value or its entries."""
    if isinstance(value, AttrVar):
        return {value.name}
    return set().union(*map(_names, value)) if isinstance(value, tuple) else set()


def _solved(axiom: Axiom) -> dict[str, tuple[Condition, int]]:
    """Attribute variables that a condition determines from free ones, with the condition and the variable's position in it."""
    solved: dict[str, tuple[Condition, int]] = {}
    free: set[str] = set()
    ranged = open_attributes(axiom)
    for condition in axiom.conditions:
        # What stands in conditions alone has no range of its own.
        for position in sorted(condition.guard.solvers, key=lambda p: bool(_names(condition.arguments[p]) & ranged.keys())):
            wanted = condition.arguments[position]
            if isinstance(wanted, AttrVar) and wanted.name not in free | set(solved):
                rest = set().union(*(_names(a) for i, a in enumerate(condition.arguments) if i != position))
                if not rest & set(solved):
                    solved[wanted.name] = (condition, position)
                    free |= rest
                    break
    return solved


def attribute_choices(axiom: Axiom, without: Set[str] = frozenset()) -> Iterator[dict[str, AttrValue]]:
    """Every choice of attributes in their ranges that the conditions about attributes alone admit.

    Args:
        axiom: the property.
        without: attribute variables that get no value; conditions about them are not asked.
    """
    kinds, solved = open_attributes(axiom), {n: s for n, s in _solved(axiom).items() if without.isdisjoint(s[0].open_names())}
    free = [name for name in axiom.attr_variables if name not in solved and name not in without]
    slices = {v.name for t in walk([axiom.left, axiom.right]) if t.op == "Slice" for _, v in t.attrs if isinstance(v, AttrVar)}
    about = [c for c in axiom.conditions if not c.terms() and without.isdisjoint(c.open_names())]
    facts = Facts(lambda term: TensorType(DataType.FLOAT, ()), lambda term: Range.top())
    for values in itertools.product(*(_range(*kinds.get(name, ("", False))) for name in free)):
        chosen = dict(zip(free, values, strict=True))
        windows = [(n, kinds[n][0]) for n in free if n in kinds and kinds[n][0] in WINDOWS and not kinds[n][1]]
        if len({len(chosen[n]) for n in free if n in slices}) > 1:
            continue
        if len({len(chosen[n]) // WINDOWS[attribute] for n, attribute in windows}) > 1:
            continue
        try:
            for name, (condition, position) in solved.items():
                arguments = [chosen[a.name] if isinstance(a, AttrVar) and a.name != name else a for a in condition.arguments]
                chosen[name] = condition.guard.solvers[position](*arguments)
            if all(c.substitute({}, chosen).holds(facts) for c in about):
                yield {name: chosen[name] for name in axiom.attr_variables if name in chosen}
        except (IndexError, ValueError):
            continue
