"""Constant tensors that operator properties speak of: operators without operands (TASO, section 3.1, constant tensors).

In a term they are leaves: like variables and numbers they do not count as applications.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.domains.range import Range, RangeDomain
from mugraph.ops.base import Operator, register
from mugraph.ops.forms import AtMost, AttrMap, Counted, OnnxForm, integers
from mugraph.ops.traits import NO_TRAITS, ImageRole, Traits
from mugraph.terms.kinds import AttributeKind
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, at_most, concrete

__all__ = ["DILATED_MASK", "POSITION_MASKS", "Seen", "seen_where", "shows_each_row"]

DILATED_MASK = "DilatedMask"
POSITION_MASKS = frozenset({"CausalMask", "BandMask", "PrefixMask", DILATED_MASK, "StoredMask"})
"""Operators that say of each position which others it sees: by their places alone (:func:`seen_where`), or entry by entry
(:mod:`mugraph.ops.masks`). A kernel reads none of their entries as an operand."""

Shape = Callable[[AttrMap], tuple[Dim, ...]]


def _register(
    name: str,
    shape: Shape,
    ones: Callable[[tuple[int, ...], AttrMap], np.ndarray],
    value: Callable[[AttrMap], Fraction],
    traits: Traits = NO_TRAITS,
    kinds: Mapping[str, AttributeKind] = MappingProxyType({}),
) -> None:
    """An operator whose entries are ``value`` where ``ones`` of its shape says so, and zero elsewhere."""

    def infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dims = shape(attrs)
        if any(isinstance(d, int) and d < 1 for d in dims):
            raise ShapeError(f"{name} of shape {dims}")
        return (TensorType(DataType.FLOAT, dims),)

    def where(attrs: AttrMap) -> np.ndarray:
        return ones(tuple(integers(shape(attrs), f"the shape of {name}").tolist()), attrs)

    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        entry = domain.const(value(attrs))

        def fill(zero: np.ndarray, one: np.ndarray) -> np.ndarray:
            filled: np.ndarray = np.where(where(attrs), one, zero)
            return filled

        return (domain.move(fill, domain.const(0), entry),)

    def write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
        return OnnxForm("Identity", ((where(attrs) * float(value(attrs))).astype(np.float32),))

    register(Operator(name, (0, 0), infer, evaluate, write=write, onnx=(), traits=traits, kinds=kinds))


def _all(shape: tuple[int, ...], attrs: AttrMap) -> np.ndarray:
    return np.ones(shape, bool)


def _diagonal(shape: tuple[int, ...], attrs: AttrMap) -> np.ndarray:
    return np.eye(*shape, dtype=bool)


def _central(shape: tuple[int, ...], attrs: AttrMap) -> np.ndarray:
    """Channel i of the output is channel i of the input at the centre of the kernel."""
    kernel = np.zeros(shape, bool)
    for channel in range(shape[0]):
        kernel[(channel, channel, *(size // 2 for size in shape[2:]))] = True
    return kernel


def _own_blocks(shape: tuple[int, ...], attrs: AttrMap) -> np.ndarray:
    """Of so many groups that become one, the columns of the j-th are those of its own outputs (TASO's merge of groups)."""
    outputs, columns = shape
    groups, merged = integers((attrs["group"], attrs["merged"]), "the groups of GroupBlocks").tolist()
    group = np.arange(outputs) * groups // outputs
    own: np.ndarray = group[:, None] % merged == np.arange(columns) * merged // columns
    return own


def _one(attrs: AttrMap) -> Fraction:
    return Fraction(1)


_register("Ones", lambda attrs: tuple(attrs["shape"]), _all, _one)
_register("Eye", lambda attrs: (attrs["size"], attrs["size"]), _diagonal, _one)
# [outputs, merged * columns]: which input channels an output reads of a convolution in ``group`` groups, each of so many
# (``columns``), once so many of the groups (``merged``) have become one.
_register(
    "GroupBlocks",
    lambda attrs: (attrs["outputs"], attrs["columns"] * attrs["merged"]),
    _own_blocks,
    _one,
    kinds={"merged": AttributeKind.WHOLE, "outputs": AttributeKind.WHOLE},
)
# Kernels of convolutions over [..., C, *spatial]: dense, and depthwise (as many groups as channels).
_KERNEL = Traits(image=ImageRole.KERNEL)
_register("IdentityKernel", lambda attrs: (attrs["channels"], attrs["channels"], *attrs["kernel"]), _central, _one, _KERNEL)
_register(
    "AveragingKernel",
    lambda attrs: (attrs["channels"], 1, *attrs["kernel"]),
    _all,
    lambda attrs: Fraction(1, int(np.prod(attrs["kernel"]))),
    _KERNEL,
)


# Positions of one sequence, int64 [1, length]: 0, 1, ..., as an operator takes them that picks rows of a table.


def _infer_positions(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    length = attrs["length"]
    if not isinstance(length, int | SymDim) or (isinstance(length, int) and length < 1):
        raise ShapeError(f"{length} positions")
    return (TensorType(DataType.INT64, (1, length)),)


def _counted(attrs: AttrMap) -> np.ndarray:
    (length,) = integers((attrs["length"],), "the number of positions").tolist()
    return np.arange(length, dtype=np.int64)[None]


def _positions(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Indices are whole numbers in every domain but that of ranges."""
    return (Range.of(_counted(attrs)) if isinstance(domain, RangeDomain) else _counted(attrs),)


def _write_positions(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    length = attrs["length"]
    return OnnxForm("Identity", (_counted(attrs) if isinstance(length, int) else Counted(0, length, (1, -1)),))


register(
    Operator(
        "Positions",
        (0, 0),
        _infer_positions,
        _positions,
        write=_write_positions,
        sized=frozenset({"length"}),
        onnx=(),
    )
)


# The mask of causal attention: which of ``columns`` keys each of the ``rows`` last positions sees, itself and those before it.


def _infer_mask(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The type of a mask of positions. Raises ShapeError where an attribute counts no places, or a size is negative."""
    for name, value in attrs.items():
        if isinstance(value, bool | float | str | tuple) or (name in ("rows", "columns") and at_most(value, -1)):
            raise ShapeError(f"a mask of positions with {name} {value}")
    return (TensorType(DataType.BOOL, (attrs["rows"], attrs["columns"])),)


def _triangle(attrs: AttrMap) -> np.ndarray:
    rows, columns = integers((attrs["rows"], attrs["columns"]), "the causal mask").tolist()
    return np.tri(rows, columns, columns - rows, dtype=bool)


def _causal(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A range has no positions: two rows stand for all, each with something visible."""
    return (Range.of(np.tri(2, dtype=bool)) if isinstance(domain, RangeDomain) else _triangle(attrs),)


def _write_causal(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """A constant; where sizes are symbols, each key's position compared with that of each query."""
    rows, columns = attrs["rows"], attrs["columns"]
    if concrete((rows, columns)) is not None:
        return OnnxForm("Identity", (_triangle(attrs),))
    return OnnxForm("LessOrEqual", (Counted(0, columns, (1, -1)), Counted(columns - rows, rows, (-1, 1))))


register(
    Operator(
        "CausalMask",
        (0, 0),
        _infer_mask,
        _causal,
        write=_write_causal,
        sized=frozenset({"rows", "columns"}),
        onnx=(),
    )
)


# The mask of a band: which of ``columns`` keys each of ``rows`` positions sees, those from ``before`` places before it to
# ``after`` places behind it. A sliding window is one; so is each side of one, the other bound being a size.


def _entries_of_band(attrs: AttrMap) -> np.ndarray:
    named = (attrs["rows"], attrs["columns"], attrs["before"], attrs["after"])
    rows, columns, before, after = integers(named, "the mask of a band").tolist()
    seen: np.ndarray = np.tri(rows, columns, after, dtype=bool) & ~np.tri(rows, columns, -before - 1, dtype=bool)
    return seen


def shows_each_row(attrs: AttrMap) -> bool:
    """Whether each position is known to see a key, by the attributes of a ``BandMask``."""
    rows, columns, before, after = attrs["rows"], attrs["columns"], attrs["before"], attrs["after"]
    return all((at_most(0, after), at_most(0, before + after), at_most(rows - before, columns)))


def _band(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A range has no positions: two rows stand for all, each with something visible, or one without."""
    if isinstance(domain, RangeDomain):
        return (Range.of(np.tri(2, k=0 if shows_each_row(attrs) else -1, dtype=bool)),)
    return (_entries_of_band(attrs),)


def _write_band(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """A constant; where sizes are symbols, each key's position compared with the first and the last that a query sees."""
    rows, columns, before, after = attrs["rows"], attrs["columns"], attrs["before"], attrs["after"]
    if concrete((rows, columns, before, after)) is not None:
        return OnnxForm("Identity", (_entries_of_band(attrs),))
    keys, first, last = Counted(0, columns, (1, -1)), Counted(-before, rows, (-1, 1)), Counted(after, rows, (-1, 1))
    return OnnxForm("And", (AtMost(first, keys), AtMost(keys, last)))


register(
    Operator(
        "BandMask",
        (0, 0),
        _infer_mask,
        _band,
        write=_write_band,
        kinds={"before": AttributeKind.WHOLE, "after": AttributeKind.WHOLE},
        sized=frozenset({"rows", "columns", "before", "after"}),
        onnx=(),
    )
)


# The mask of causal attention behind a prefix, which all positions see.


def _prefixed(attrs: AttrMap) -> np.ndarray:
    (prefix,) = integers((attrs["prefix"],), "the mask of a prefix").tolist()
    seen: np.ndarray = _triangle(attrs) | (np.arange(int(attrs["columns"])) < prefix)
    return seen


def _prefix(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A range has no positions: two rows stand for all, each with something visible."""
    return (Range.of(np.tri(2, dtype=bool)) if isinstance(domain, RangeDomain) else _prefixed(attrs),)


def _write_prefix(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """A constant; where sizes are symbols, each key's position compared with that of each query, and with the prefix."""
    rows, columns, prefix = attrs["rows"], attrs["columns"], attrs["prefix"]
    if concrete((rows, columns, prefix)) is not None:
        return OnnxForm("Identity", (_prefixed(attrs),))
    keys, past = Counted(0, columns, (1, -1)), Counted(columns - rows, rows, (-1, 1))
    return OnnxForm("Or", (AtMost(keys, past), AtMost(keys, Counted(prefix - 1, 1, (1, 1)))))


register(
    Operator(
        "PrefixMask",
        (0, 0),
        _infer_mask,
        _prefix,
        write=_write_prefix,
        kinds={"prefix": AttributeKind.WHOLE},
        sized=frozenset({"rows", "columns", "prefix"}),
        onnx=(),
    )
)


# The mask of dilated attention: each position sees the keys that are a multiple of ``step`` places away from it.


def _infer_dilated(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if not isinstance(attrs["step"], int) or attrs["step"] < 1:
        raise ShapeError(f"a dilated mask with step {attrs['step']}")
    return _infer_mask(attrs, inputs)


def _multiples(attrs: AttrMap) -> np.ndarray:
    rows, columns = integers((attrs["rows"], attrs["columns"]), "a dilated mask").tolist()
    seen: np.ndarray = np.arange(rows)[:, None] % attrs["step"] == np.arange(columns) % attrs["step"]
    return seen


def _dilated(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A range has no positions: two rows stand for all, each with something visible, where each position is one of a key."""
    if isinstance(domain, RangeDomain):
        return (Range.of(np.tri(2, k=0 if at_most(attrs["rows"], attrs["columns"]) else -1, dtype=bool)),)
    return (_multiples(attrs),)


def _write_dilated(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """A constant; where sizes are symbols, what remains of each key's position compared with that of each query's."""
    rows, columns, step = attrs["rows"], attrs["columns"], attrs["step"]
    if concrete((rows, columns)) is not None:
        return OnnxForm("Identity", (_multiples(attrs),))
    return OnnxForm("Equal", (Counted(0, columns, (1, -1), step), Counted(0, rows, (-1, 1), step)))


register(
    Operator(
        DILATED_MASK,
        (0, 0),
        _infer_dilated,
        _dilated,
        write=_write_dilated,
        kinds={"step": AttributeKind.WHOLE},
        sized=frozenset({"rows", "columns"}),
        onnx=(),
    )
)


@dataclass(frozen=True, slots=True)
class Seen:
    """When the query at position i sees the key at position j.

    Attributes:
        conditions: triples (s, t, c), each of which says that s * i + t * j + c is not negative.
        is_any: whether one of them is enough, else all of them have to hold.
        modulo: where given, i and j are what remains of the positions, divided by it.
    """

    conditions: tuple[tuple[int, int, Dim], ...]
    is_any: bool = False
    modulo: int | None = None


def seen_where(op: str, attrs: AttrMap) -> Seen | None:
    """When queries see keys, of an operator that says so by positions; ``None`` for any other."""
    if op in ("CausalMask", "PrefixMask"):
        causal = (1, -1, attrs["columns"] - attrs["rows"])
        return Seen((causal,)) if op == "CausalMask" else Seen((causal, (0, -1, attrs["prefix"] - 1)), is_any=True)
    if op == DILATED_MASK:
        return Seen(((1, -1, 0), (-1, 1, 0)), modulo=attrs["step"])
    if op != "BandMask":
        return None
    rows, columns, before, after = attrs["rows"], attrs["columns"], attrs["before"], attrs["after"]
    limits = ((1, after, columns), (-1, before, rows))
    asked = tuple((sign, -sign, far) for sign, far, size in limits if not at_most(size - 1, far))
    return Seen(asked or ((1, -1, after),))
