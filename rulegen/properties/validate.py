"""Validation of operator properties on sampled typed shapes.

A property is tried on random ranks, shapes (with sizes 1 and batch prefixes) and attributes. Wherever its conditions hold and
one side is well-typed, the other must be, with the same type and the same values: in a finite field, in floats, and for
small shapes as polynomials. Properties of order, sign or value (activations, range predicates) hold in floats only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import FiniteField, ZeroDivision
from mugraph.domains.range import Range
from mugraph.domains.real import Real
from mugraph.domains.symbolic import Symbolic
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, TensorType, concrete
from mugraph.terms.term import AttrValue, AttrVar, Term, substitute, var, walk
from rulegen.numeric.samples import causal_mask, random_input, same_residues
from rulegen.properties.cases import Typing, boolean_variables, open_attributes
from rules_db.trust.condition import ENTRY_PREDICATES, RANGE_PREDICATES, SOLVERS, Condition, Facts
from rules_db.trust.properties import Axiom

__all__ = ["Validation", "real_inputs", "validate"]


@dataclass(frozen=True)
class Validation:
    """How a property fared.

    Attributes:
        hits: samples on which its conditions held and a side was well-typed.
        samples: types and attributes drawn.
        counterexample: types, attributes and what went wrong at the first sample that contradicts it.
    """

    hits: int
    samples: int
    counterexample: str | None = None


_CONVOLUTIONS = ("Conv", "FusedConv")
_SPATIAL = frozenset(
    [
        *_CONVOLUTIONS,
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "BatchNormalization",
        "InstanceNormalization",
        "LRN",
        "IdentityKernel",
        "AveragingKernel",
    ]
)
"""Operators over [N, C, *spatial] and their kernels."""


class _Sampler:
    """Random types and attributes that make a property apply often enough."""

    def __init__(self, axiom: Axiom, generator: np.random.Generator) -> None:
        self.axiom, self.generator, self.kinds = axiom, generator, open_attributes(axiom)
        sides = list(walk([axiom.left, axiom.right]))
        self.booleans = boolean_variables(axiom)
        wanted = {c.terms()[0]: (*c.arguments[1:], 1)[0] for c in axiom.conditions if c.predicate in ("rank", "vector")}
        self.ranks = {term.name: rank for term, rank in wanted.items() if term.is_var and isinstance(rank, int)}
        self.images = _Images(self) if any(t.op in _SPATIAL for t in sides) else None

    def pick(self, *choices: Any) -> Any:
        return choices[self.generator.integers(len(choices))]

    def attribute(self, name: str, single: bool, pool: tuple[int, int]) -> AttrValue:
        a, b = pool
        match name:
            case "transA" | "transB" | "bias" | "sum" | "is_causal" | "unidirectional":
                return self.pick(True, False)
            case "axis":
                return self.pick(-1, -1, -2, -2, -3)
            case "axes" if single:
                return self.pick(-1, -2, -3)
            case "axes":
                return self.pick((-1,), (-2,), (-2, -1))
            case "keepdims":
                return self.pick(True, False)
            case "starts" if single:
                return self.pick(0, 0, 0, 1, a, -1)
            case "ends" if single:
                return self.pick(1, 2, a, b)
            case "steps" if single:
                return self.pick(1, 1, 1, 2)
            case "starts":
                return self.pick((0,), (1,), (0, 0), (1, 0))
            case "ends":
                return self.pick((0,), (1,), (2,), (1, 2))
            case "begins":
                return self.pick(0, 1) if single else self.pick((0,), (1,), (0, 1))
            case "steps":
                return self.pick((1,), (1,), (1, 1), (2,))
            case "mode":
                return self.pick("constant", "edge", "reflect")
            case "sizes" if single:
                return self.pick(1, a, b)
            case "sizes":
                return self.pick((a, b), (b, a), (a, b, 1), (b, 1, a), (1, a - 1, 1, b - 1))
            case "perm":
                size = int(self.generator.integers(0, 4))
                return tuple(int(i) for i in self.generator.permutation(size))
            case "drop":
                return self.pick(1, 2, 2, 3)
            case "shape" if single:
                return self.pick(1, a, b, a * b)
            case "value":
                return self.pick(float(a), float(b), 0.25)
            case "shape":
                return self.pick((a * b,), (a, b), (b, a), (a,), (1, a), (a, 1), (a, 1, b), (1,), (b, 1, 1))
            case "size" | "rows" | "columns" | "num_heads" | "kv_num_heads":
                return self.pick(a, b)
            case "approximate":
                return self.pick("none", "tanh")
            case "to":
                return self.pick(DataType.FLOAT, DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE, DataType.INT64)
            case "min":
                return self.pick(-0.5, 0.0, 0.25)
            case "max":
                return self.pick(0.5, 1.0, float("inf"))
        return self.pick(0.25, 0.5, -0.5)

    def solved(self, attrs: dict[str, AttrValue]) -> bool:
        """Computes most of the attributes that conditions determine; whether it could."""
        for condition in self.axiom.conditions:
            solvers = SOLVERS.get(condition.predicate, {}) if self.generator.random() < 0.9 else {}
            for position, solver in solvers.items():
                wanted = condition.arguments[position]
                if isinstance(wanted, AttrVar):
                    rest = [attrs[a.name] if isinstance(a, AttrVar) else a for a in condition.arguments]
                    try:
                        attrs[wanted.name] = solver(*rest)
                    except (IndexError, ValueError, TypeError):
                        return False
                    break
        return True

    def draw(self) -> tuple[dict[str, TensorType], dict[str, AttrValue]] | None:
        """Types of the term variables and values of the attribute variables; now and then ``None``.

        One in ten is of half floats or integers; none has a slice that is empty.
        """
        drawn = self.images.draw() if self.images else self._tensors()
        if drawn is None or self._is_empty(drawn[1]):
            return None
        if self.generator.random() < 0.9:
            return drawn
        dtype = self.pick(DataType.FLOAT16, DataType.INT64)
        types = {name: t if t.dtype == DataType.BOOL else TensorType(dtype, t.shape) for name, t in drawn[0].items()}
        return types, drawn[1]

    def _is_empty(self, attrs: Mapping[str, AttrValue]) -> bool:
        """Whether a slice takes nothing: tensors without entries are no samples."""
        slices = [substitute(t, {}, attrs) for t in walk([self.axiom.left, self.axiom.right]) if t.op == "Slice"]
        return any(start == end for t in slices for start, end in zip(t.attr("starts"), t.attr("ends"), strict=False))

    def _tensors(self) -> tuple[dict[str, TensorType], dict[str, AttrValue]] | None:
        pool = self.pick((2, 3), (3, 2), (2, 5), (4, 3))
        sizes = (pool[0], pool[0], pool[1], pool[1], 1, sum(pool), 1 + sum(pool))
        base = tuple(self.pick(*sizes) for _ in range(4))
        # Mostly along one common shape, so that broadcasting succeeds, with exceptions, so that it matters.
        aligned, common = self.pick(0.6, 0.8), self.pick(0, 0, 2, 2, 3)
        types = {}
        for name in self.axiom.variables:
            rank = common or self.pick(0, 1, 1, 2, 2, 2, 3, 3, 4)
            rank = self.pick(rank, self.ranks.get(name, rank))
            shape = [base[4 - rank + i] if self.generator.random() < aligned else self.pick(*sizes) for i in range(rank)]
            types[name] = TensorType(DataType.BOOL if name in self.booleans else DataType.FLOAT, tuple(shape))
        attrs = {name: self.attribute(*self.kinds.get(name, ("", False)), pool) for name in self.axiom.attr_variables}
        self._measure(types, attrs)
        return (types, attrs) if self.solved(attrs) else None

    def _measure(self, types: Mapping[str, TensorType], attrs: dict[str, AttrValue]) -> None:
        """Sets most of the sizes that conditions name to those of the variables, one time in four all of them."""
        usual = self.pick(0.5, 0.9, 0.9, 1.0)
        for condition in self.axiom.conditions:
            if condition.predicate == "dim" and condition.terms()[0].is_var and self.generator.random() < usual:
                arguments: tuple[Any, ...] = condition.arguments
                x, axis, size = arguments
                shape, axis = types[x.name].shape, attrs[axis.name] if isinstance(axis, AttrVar) else axis
                if isinstance(size, AttrVar) and len(shape) >= -axis:
                    attrs[size.name] = shape[axis]


class _Images:
    """Samples for properties of convolution, pooling and the normalisations of channels.

    Groups are 1, 2, 3 and depthwise, strides 1 and 2, pads none, those that keep the size, and others.
    """

    def __init__(self, sampler: _Sampler) -> None:
        self.sampler, self.generator, self.pick = sampler, sampler.generator, sampler.pick
        axiom = sampler.axiom
        terms = list(walk([axiom.left, axiom.right, *(t for c in axiom.conditions for t in c.terms())]))
        self.convolutions = sorted((t for t in terms if t.op in _CONVOLUTIONS), key=lambda t: t.size)
        written = {len(t.attr("strides")) for t in terms if isinstance(t.attr("strides"), tuple)}
        written |= {t.attr("spatial") for t in terms if isinstance(t.attr("spatial"), int)}
        self.axes = tuple(written) or (1, 2, 2)
        self.vectors = {t.inputs[0].name for t in terms if t.op == "Unsqueeze" and t.inputs[0].is_var}
        for term in terms:
            if term.op in ("BatchNormalization", "InstanceNormalization"):
                self.vectors |= {operand.name for operand in term.inputs[1:] if operand.is_var}
        self.factors = {
            c.terms()[0].name: c.predicate
            for c in axiom.conditions
            if c.predicate in ("ones", "per_channel", "constant_over") and c.terms()[0].is_var
        }
        self.vectors |= {bias.name for t in self.convolutions for bias in walk(t.inputs[2:]) if bias.is_var}
        self.vectors -= set(self.factors)

    def attribute(self, name: str, single: bool, places: tuple[int, ...], kernel: tuple[int, ...]) -> AttrValue:
        """A value for an attribute of windows over so many places; others as for all tensors."""
        n = len(places)

        def each(*choices: int) -> tuple[int, ...]:
            return tuple(self.pick(*choices) for _ in range(n))

        match name:
            case "group" | "channels" | "size":
                return self.pick(1, 1, 2, 2, 3)
            case "spatial":
                return n
            case "strides" | "dilations" if single:
                return self.pick(1, 1, 2)
            case "pads" if single:
                return self.pick(0, 0, 1)
            case "strides":
                return self.pick((1,) * n, (1,) * n, (2,) * n, each(1, 2))
            case "dilations":
                return self.pick((1,) * n, (1,) * n, (1,) * n, each(1, 2))
            case "kernel":
                return self.pick(*kernel) if single else kernel
            case "pads":
                same = (*(k // 2 for k in kernel), *(k - 1 - k // 2 for k in kernel))
                return self.pick((0,) * 2 * n, (0,) * 2 * n, same, same, (*each(0, 1), *each(0, 1)))
            case "begins" | "ends":
                return self.pick(each(0, 1), each(0, 1), each(1), (*each(0, 1), 1))
            case "ceil" | "count_include_pad":
                return self.pick(True, False)
            case "axis":
                return self.pick(-n - 1, -n - 1, -n - 2, -n - 2, -1)
            case "shape" if single:
                return self.pick(*places, math.prod(places))
            case "sizes":
                return self.pick(1, 1, 2) if single else self.pick((1, 1), (1, 2), (2, 2), (1, 1, 1), (2, 1, 1))
        return self.sampler.attribute(name, single, (2, 3))

    def draw(self) -> tuple[dict[str, TensorType], dict[str, AttrValue]] | None:
        sampler, n = self.sampler, self.pick(*self.axes)
        kernel = self.pick((1,) * n, (3,) * n, (2,) * n, tuple(self.pick(1, 2, 3) for _ in range(n)))
        kinds = ((name, sampler.kinds.get(name, ("", False))) for name in sampler.axiom.attr_variables)
        places = self.pick((3,) * n, (4,) * n, tuple(self.pick(3, 4, 5) for _ in range(n)))
        attrs = {name: self.attribute(kind, single, places, kernel) for name, (kind, single) in kinds}
        if not sampler.solved(attrs):
            return None
        parts = [t for name, t in attrs.items() if sampler.kinds.get(name) == ("sizes", False)]
        parts += [tuple(t for name, t in attrs.items() if sampler.kinds.get(name) == ("sizes", True))]
        total = sum(parts[0]) or 2  # a Split wants batch, channels or output channels to be as large
        shapes = self._shapes(attrs, self.pick(1, 2, total), places, kernel, total)
        if shapes is None:
            return None
        if len(shapes) > 1 and self.generator.random() < 0.1:
            one, other = self.generator.permutation(list(shapes))[:2]
            shapes[one], shapes[other] = shapes[other], shapes[one]
        for name, shape in shapes.items():
            if shape and self.generator.random() < 0.1:
                at = int(self.generator.integers(len(shape)))
                shapes[name] = (*shape[:at], self.pick(1, 2, 3, 4), *shape[at + 1 :])
            elif self.generator.random() < 0.03:
                shapes[name] = self.pick(shape[1:], (2, *shape))
        return {name: TensorType(DataType.FLOAT, shape) for name, shape in shapes.items()}, attrs

    def _shapes(
        self, attrs: Mapping[str, AttrValue], batch: int, places: tuple[int, ...], kernel: tuple[int, ...], total: int
    ) -> dict[str, tuple[int, ...]] | None:
        """Shapes that fit the convolutions: small ones first, since their operands are variables themselves."""
        names = self.sampler.axiom.variables
        special = self.vectors | set(self.factors)
        usual_in, usual_out = self.pick((1, 1), (1, 1), (2, 1), (1, 2), (2, 3), (total, total))
        shapes: dict[str, tuple[int, ...]] = {}
        channels: list[int] = []
        for term in self.convolutions:
            ground = substitute(term, {}, attrs)
            group, weights = ground.attr("group"), ground.inputs[1]
            images, kernels = ([v.name for v in walk([i]) if v.is_var and v.name not in special] for i in term.inputs[:2])
            if group < 1:
                return None
            known = [shapes[name][1] for name in images if name in shapes]
            per_in, per_out = self.pick(usual_in, usual_in, 1, 2), self.pick(usual_out, usual_out, 1, 2)
            if not weights.inputs and not weights.is_var:
                known.append(group * int(infer_types([weights], {})[weights].shape[1]))  # type: ignore[arg-type]
            per_in = next((c // group for c in known if c % group == 0), per_in)
            for name in images:
                shapes.setdefault(name, (batch, group * per_in, *places))
            for name in kernels:
                shapes.setdefault(name, (group * per_out, per_in, *kernel))
            channels += [group * per_in, group * per_out]
            for bias in walk(term.inputs[2:]):
                if bias.is_var:
                    shapes.setdefault(bias.name, (shapes[kernels[0]][0],))
        usual = self.pick(*channels, total, 2)
        one = (1,) * len(places)
        for name in names:
            c = self.pick(*channels, usual)
            match "vector" if name in self.vectors else self.factors.get(name, "image"):
                case "vector":
                    shape: tuple[int, ...] = (c,)
                case "ones":
                    shape = (1,) * self.pick(0, 1, *range(len(places) + 4))
                case "per_channel":
                    shape = self.pick((c, *one), (c, *one), (c, *one), one, (batch, c, *one), (c, *places))
                case "constant_over":
                    shape = self.pick((c, *one), (1, c, *one), (batch, c, *one), one, (), (c, *places), places)
                case _:
                    shape = (batch, usual, *places)
            shapes.setdefault(name, shape)
        return {name: shapes[name] for name in names}


def real_inputs(axiom: Axiom, types: Mapping[str, TensorType], generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Random numbers, positive, repeated or a mask where the property speaks of that, and truth values."""
    cited = [(c.predicate, t.name) for c in axiom.conditions for t in c.terms() if t.is_var]
    bounded = {name for predicate, name in cited if predicate in RANGE_PREDICATES - ENTRY_PREDICATES}
    inputs = {}
    for name, type_ in types.items():
        shape = tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]
        values = generator.standard_normal(shape)
        if name in bounded:
            values = np.abs(values) + 0.1
        if ("repeats", name) in cited:
            halves = tuple(slice(0, size // 2 if size % 2 == 0 else size) for size in shape)
            values = np.tile(values[halves], [2 if size % 2 == 0 else 1 for size in shape])
        if type_.dtype == DataType.INT64:
            values = np.ceil(3 * values).astype(np.int64)
        if ("causal", name) in cited and len(shape) >= 2:
            values = causal_mask(shape)
        if ("all_true", name) in cited:
            values = np.ones(shape)
        inputs[name] = np.asarray(values > 0 if type_.dtype == DataType.BOOL else values)  # also a scalar can be written
    return inputs


def _differs(
    axiom: Axiom, left: Term, right: Term, types: Mapping[str, TensorType], seed: int, systems: Sequence[int], small: bool
) -> str | None:
    """The name of a number system in which the sides have other values: floats (0), two finite fields (1, 2), polynomials."""
    generator = np.random.default_rng([seed, 1])
    integers = any(t.dtype == DataType.INT64 for t in types.values())
    only_real = axiom.only_real or integers
    for system in (0,) if only_real else systems:
        domain = FiniteField(seed % 3, system - 1, negative=(0.5, 0.7)[system - 1]) if system else Real()
        inputs: Mapping[str, Array]
        if isinstance(domain, FiniteField):
            inputs = {name: random_input(domain, generator, t) for name, t in types.items()}
        else:
            inputs = real_inputs(axiom, types, generator)
        try:
            values = evaluate([left, right], domain, inputs)
        except (ZeroDivision, Unsupported):
            continue
        if isinstance(domain, FiniteField) and not same_residues(values[left], values[right]):
            return f"the field of {domain.p}"
        if not system and not np.allclose(values[left], values[right], rtol=1e-9, atol=1e-9, equal_nan=True):
            return "floats"
    opaque = any(term.op == "Exp" for term in walk([left, right]))  # its law is not one of polynomials
    if small and not only_real and not opaque and not any(t.dtype == DataType.BOOL for t in types.values()):
        symbolic = Symbolic()
        inputs = {name: symbolic.input(name, concrete(t.shape) or ()) for name, t in types.items()}
        try:
            values = evaluate([left, right], symbolic, inputs)
        except (Unsupported, ZeroDivisionError):
            return None
        if not np.array_equal(values[left], values[right]):
            return "polynomials"
    return None


class _Instance:
    """A property under one choice of attributes, ready to be asked of many types."""

    def __init__(self, axiom: Axiom, attrs: Mapping[str, AttrValue], without: Condition | None) -> None:
        self.left, self.right = (substitute(side, {}, attrs) for side in (axiom.left, axiom.right))
        self.conditions = [
            c.substitute({}, attrs) for c in axiom.conditions if c is not without and c.predicate not in RANGE_PREDICATES
        ]
        cited = [term for condition in self.conditions for term in condition.terms()]
        self.typing = Typing([self.left, self.right, *cited, *map(var, axiom.variables)])
        self.facts = Facts(self.typing.of, lambda term: Range.top())

    def types(self, types: Mapping[str, TensorType]) -> tuple[TensorType | None, TensorType | None] | None:
        """The types of the sides, ``None`` for one that is ill-typed; ``None`` where the property does not apply."""
        self.typing.set(types)
        try:
            if not all(condition.holds(self.facts) for condition in self.conditions):
                return None
        except (IndexError, ValueError):
            return None
        sides = self.typing.get(self.left), self.typing.get(self.right)
        return None if sides == (None, None) else sides


_THOROUGH = 100
"""Samples that are evaluated in all number systems; the later ones in one each, in turn."""


def validate(
    axiom: Axiom,
    hits: int = 20,
    trials: int = 4000,
    seed: int = 0,
    without: Condition | None = None,
    patience: int | None = None,
) -> Validation:
    """Tries a property until it applied ``hits`` times. A sample that comes again counts, but is not evaluated again.

    Args:
        axiom: the property.
        hits: samples wanted. trials: samples drawn at most.
        seed: of the samples.
        without: a condition to leave out, to see whether it is needed.
        patience: draws after which a property is left that applied to less than a tenth of them.
    """
    generator = np.random.default_rng([seed, int(axiom.digest[:8], 16)])
    sampler, found, evaluated = _Sampler(axiom, generator), 0, 0
    applied: dict[object, bool] = {}
    instances: dict[str, _Instance] = {}
    trial = 0
    while found < hits and trial < trials and not (trial == patience and 10 * found < trial):
        trial += 1
        drawn = sampler.draw()
        if drawn is None:
            continue
        types, attrs = drawn
        chosen = repr(attrs)
        sample = (chosen, *((t.dtype, t.shape) for t in types.values()))
        if sample in applied:
            found += applied[sample]
            continue
        if chosen not in instances:
            instances[chosen] = _Instance(axiom, attrs, without)
        instance = instances[chosen]
        sides = instance.types(types)
        applied[sample] = sides is not None
        if sides is None:
            continue
        found += 1
        where = ", ".join([*(f"{n}:{t}" for n, t in types.items()), *(f"${n}={v}" for n, v in attrs.items())])
        if sides[0] != sides[1]:
            return Validation(found, trial, f"{axiom.name}: types {sides[0]} and {sides[1]} at {where}")
        evaluated += 1
        systems = (0, 1, 2) if evaluated <= _THOROUGH else (evaluated % 3,)
        small = found <= 3 and sum(t.size() for t in types.values()) <= 40
        problem = _differs(axiom, instance.left, instance.right, types, seed + trial, systems, small)
        if problem:
            return Validation(found, trial, f"{axiom.name}: values differ in {problem} at {where}")
    return Validation(found, trial)
