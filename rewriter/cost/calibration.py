"""Estimates beside measurements: a roofline that is brought to the level of what was measured of the same kind.

Where measured and estimated prices stand side by side a search takes whatever the roofline flatters most: what takes 105 µs by
measurement looked like 4 µs in another form, which nobody had measured. So an estimate is multiplied by what measurements took
over *their* estimates: those of the nearest nodes of its kind, by the geometric mean, in which nearer ones count more (a local
regression of the roofline's error, as Nadaraya's and Watson's, 1964). Of a kind are products of matrices, convolutions over
images of one rank, and otherwise what has the same traits. Near is what has the same operator, element type, attributes and
sizes, in whatever layout: an NhwcConv is looked at as the Conv that it stands for.

The factor never leaves the range of what these few took over their estimates, which is cut at ``_MOST`` either way, and fades to
1 with the distance to the nearest: far away the roofline is the better guess. ``python -m tools.bench.schedules`` compares the
two on a cost table; twice or half of each constant below changes the mean error there by 3 % at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mugraph.ops import NotUnderstood, ProductKind, get_operator, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Attrs, walk
from rewriter.cost.devices import Device
from rewriter.cost.roofline import node_microseconds, operand_types, product_sizes
from rewriter.cost.signature import Signature, bytes_of, parse_signature

__all__ = ["Calibration"]

_NEIGHBOURS = 5
"""The nearest measurements, of which alone a factor is made."""
_HALVING = 1.0
"""Octaves further than the nearest at which a neighbour counts half."""
_NEAR, _FAR = 4.0, 8.0
"""Octaves up to which a factor counts in full, and from which on it does not count."""
_OTHERWISE = 2.0
"""Octaves that another operator, and another element type, are away."""
_MOST = 32.0
"""What a node takes at most over its estimate, and the estimate over it: more is a disturbed measurement."""

Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _PlaceOfKind:
    """Where a node stands among those of its kind.

    Attributes:
        kind: what is compared at all.
        variant: operator, element type and attributes.
        sizes: of the product in it, or the bytes that it reads and writes, in octaves.
    """

    kind: Kind
    variant: tuple[str, int, Attrs]
    sizes: tuple[float, ...]


@lru_cache(maxsize=1 << 14)
def _form(op: str, attrs: Attrs, operands: tuple[TensorType, ...]) -> _PlaceOfKind | None:
    """``None`` where the application is ill-typed or a size is symbolic."""
    try:
        outputs = get_operator(op).types(attrs, operands)
        product = _product(op, attrs, operands)
        read, written = sum(map(bytes_of, operands)), sum(map(bytes_of, outputs))
    except (ShapeError, Undecided, NotUnderstood, KeyError):  # the last of an operator that there was once
        return None
    variant = (op, int(outputs[0].dtype), attrs)
    if product is None:
        return _PlaceOfKind(_kind(op), variant, (_octaves(read), _octaves(written)))
    kind, sizes = product
    return _PlaceOfKind(kind, variant, tuple(map(_octaves, sizes)))


def _octaves(size: int) -> float:
    return math.log2(max(size, 1))


def _kind(op: str) -> Kind:
    """What kind of operator it is; one that fits in none is its own."""
    traits = traits_of(op)
    roles = (traits.entrywise is not None, traits.movement, traits.reduction is not None, traits.rows)
    return (*roles, traits.attention) if any(roles) or traits.attention else (op,)


def _product(op: str, attrs: Attrs, operands: Sequence[TensorType]) -> tuple[Kind, tuple[int, ...]] | None:
    """The kind and sizes of the one product that a node is, or that it stands for. Raises ShapeError or Undecided."""
    record = get_operator(op)
    if traits_of(op).product is None:
        return None
    if not record.composite:
        terms = [(op, attrs, operands, record.types(attrs, operands))]
    else:
        roots = record.decompose(attrs, operands)
        types = infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(operands)})
        inside = [term for term in walk(roots) if term.inputs and term.out == 0 and traits_of(term.op).product is not None]
        terms = [(term.op, term.attrs, operand_types(term, types), (types[term],)) for term in inside]
    if len(terms) != 1:
        return None
    name, given, inner, outputs = terms[0]
    sizes = product_sizes(name, {**get_operator(name).defaults, **dict(given)}, inner, outputs)
    if sizes is None or traits_of(name).product is ProductKind.MATRIX:
        return None if sizes is None else (("product",), sizes)
    return (traits_of(name).product, inner[0].rank), (*sizes, math.prod(concrete(inner[1].shape[2:]) or ()))


@dataclass(frozen=True, slots=True)
class _MeasuredKind:
    """What was measured of a kind, in the order of the keys.

    Attributes:
        variants: those that there are, each once.
        which: the variant of each measurement, of shape [n].
        places: sizes and roofline of each, in octaves, of shape [n, sizes + 1].
        ratios: natural logarithms of what each took over its roofline, of shape [n].
    """

    keys: Sequence[str]
    variants: Sequence[tuple[str, int, Attrs]]
    which: np.ndarray
    places: np.ndarray
    ratios: np.ndarray


class Calibration:
    """How far a device's roofline is off, by what was measured.

    Args:
        costs: microseconds by signature, of which only those of a kind that is asked for are looked at.
        device: whose roofline it is.
        overhead: microseconds that a node takes beside what is measured.
    """

    def __init__(self, costs: Mapping[str, float], device: Device, overhead: float) -> None:
        self._costs, self._device, self._overhead = dict(costs), device, overhead
        self._operators: dict[str, list[str]] | None = None
        self._of_kind: dict[Kind, _MeasuredKind | None] = {}
        self._factors: dict[str, float] = {}

    def factor(self, signature: Signature, estimate: float) -> float:
        """By what an estimate is multiplied: 1 where nothing near was measured.

        Args:
            signature: of the node; where it was measured, that is left out.
            estimate: its roofline, in microseconds.
        """
        key = signature.key()
        if key not in self._factors:
            distances, ratios = self.alike(signature, estimate)
            self._factors[key] = self.joined(distances, ratios)
        return self._factors[key]

    @staticmethod
    def joined(distances: np.ndarray, ratios: np.ndarray) -> float:
        """The factor that measurements amount to.

        Args:
            distances: of some measurements, in octaves, ascending.
            ratios: natural logarithms of what these took over their estimates.
        """
        if not len(distances) or distances[0] >= _FAR:
            return 1.0
        trust = min((_FAR - distances[0]) / (_FAR - _NEAR), 1.0)
        weights = np.exp2(-(distances[:_NEIGHBOURS] - distances[0]) / _HALVING)
        return math.exp(trust * float(weights @ ratios[:_NEIGHBOURS] / weights.sum()))

    def alike(self, signature: Signature, estimate: float) -> tuple[np.ndarray, np.ndarray]:
        """Distances to the measurements of a signature's kind, ascending, and logarithms of what each took over its estimate."""
        form = _form(signature.op, signature.attrs, signature.operands) if estimate > 0 else None
        measured = self._measured(form.kind) if form is not None else None
        if form is None or measured is None:
            return np.zeros(0), np.zeros(0)
        place = np.array([*form.sizes, math.log2(estimate)])
        apart = np.array([_apart(form.variant, variant) for variant in measured.variants])
        distances = np.abs(measured.places - place).sum(1) + apart[measured.which]
        key = signature.key()
        order = [at for at in np.argsort(distances, kind="stable") if measured.keys[at] != key]
        return distances[order], measured.ratios[order]

    def _measured(self, kind: Kind) -> _MeasuredKind | None:
        if kind not in self._of_kind:
            self._of_kind[kind] = self._gathered(kind)
        return self._of_kind[kind]

    def _gathered(self, kind: Kind) -> _MeasuredKind | None:
        """What was measured of a kind, ``None`` if nothing was."""
        if self._operators is None:
            self._operators = {}
            for key in sorted(self._costs):
                self._operators.setdefault(key.partition("[")[0], []).append(key)
        keys, forms, places, ratios = [], [], list[tuple[float, ...]](), list[float]()
        for op, named in self._operators.items():
            if not _may_be(op, kind):
                continue
            for key in named:
                signature = parse_signature(key)
                form = None if signature is None else _form(signature.op, signature.attrs, signature.operands)
                if signature is None or form is None or form.kind != kind:
                    continue
                estimate = self._estimate(signature)
                if estimate > 0:
                    keys.append(key)
                    forms.append(form.variant)
                    places.append((*form.sizes, math.log2(estimate)))
                    took = (self._costs[key] + self._overhead) / estimate
                    ratios.append(math.log(min(max(took, 1 / _MOST), _MOST)))
        if not keys:
            return None
        variants = list(dict.fromkeys(forms))
        at = {variant: index for index, variant in enumerate(variants)}
        return _MeasuredKind(keys, variants, np.array([at[form] for form in forms]), np.array(places), np.array(ratios))

    def _estimate(self, signature: Signature) -> float:
        """The roofline of what was measured; a view is only where it is a copy."""
        try:
            return node_microseconds(self._device, signature.op, signature.attrs, signature.operands, leaves_model=True)
        except (ShapeError, Undecided):  # at sizes into which a window does not fit
            return 0.0


def _may_be(op: str, kind: Kind) -> bool:
    """Whether a node of an operator can be of a kind: what only its operands tell is left open."""
    return traits_of(op).product is not None or _kind(op) == kind


def _apart(one: tuple[str, int, Attrs], other: tuple[str, int, Attrs]) -> float:
    """Octaves between two variants: an attribute counts one."""
    apart = _OTHERWISE * (one[1] != other[1])
    if one[0] != other[0]:
        return apart + _OTHERWISE
    return apart + sum(a != b for a, b in zip(one[2], other[2], strict=False)) + abs(len(one[2]) - len(other[2]))
