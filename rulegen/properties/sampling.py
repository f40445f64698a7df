"""Random types and attributes that make an operator property apply often enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mugraph.domains.base import BYTES, NIBBLES
from mugraph.ops import ImageRole, ProductKind, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, TensorType, Undecided
from mugraph.terms.term import AttrValue, AttrVar, substitute, walk
from rulegen.numeric.samples import STORED_MASKS
from rulegen.properties.parameters import open_attributes, quantized_variables, stated_types
from rules_db.trust.properties import Axiom

__all__ = ["Sample", "Sampler"]

Sample = tuple[dict[str, TensorType], dict[str, AttrValue]]
"""Types of the term variables and values of the attribute variables."""


class Sampler:
    """Random types and attributes that make a property apply often enough."""

    def __init__(self, axiom: Axiom, generator: np.random.Generator) -> None:
        self._axiom, self._draws = axiom, _Draws(axiom, generator)
        spatial = any(traits_of(t.op).image for t in walk([axiom.left, axiom.right]))
        self._kind = _ImageDraws(self._draws) if spatial else _TensorDraws(self._draws)

    def draw(self) -> Sample | None:
        """A sample; now and then ``None``. One in ten is of half floats or integers; none has a slice that is empty."""
        drawn = self._kind.draw()
        if drawn is None or self._is_empty(drawn[1]):
            return None
        if self._draws.generator.random() < 0.9:
            return drawn
        dtype = self._draws.pick(DataType.FLOAT16, DataType.INT64)
        kept = BYTES | NIBBLES | {DataType.BOOL}
        types = {name: t if t.dtype in kept else TensorType(dtype, t.shape) for name, t in drawn[0].items()}
        return types, drawn[1]

    def _is_empty(self, attrs: Mapping[str, AttrValue]) -> bool:
        """Whether a slice takes nothing: tensors without entries are no samples."""
        slices = [substitute(t, {}, attrs) for t in walk([self._axiom.left, self._axiom.right]) if t.op == "Slice"]
        return any(start == end for t in slices for start, end in zip(t.attr("starts"), t.attr("ends"), strict=False))


class _Draws:
    """Random choices for one property, and values for its attributes."""

    def __init__(self, axiom: Axiom, generator: np.random.Generator) -> None:
        self.axiom, self.generator, self.kinds = axiom, generator, open_attributes(axiom)

    def pick(self, *choices: Any) -> Any:
        """One of the choices, each as likely as it is often named."""
        return choices[self.generator.integers(len(choices))]

    def attribute(self, name: str, single: bool, pool: tuple[int, int]) -> AttrValue:
        """A value for an attribute, or for a single entry of it; ``pool`` holds two sizes that shapes have."""
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
            case "entries":
                return self.pick(*STORED_MASKS)
            case "before" | "after":
                return self.pick(0, 1, 2)
            case "approximate":
                return self.pick("none", "tanh")
            case "to":
                return self.pick(DataType.FLOAT, DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE, DataType.INT64)
            case "dtype":
                return DataType.INT64
            case "start":
                return self.pick(0, 0, 1)
            case "limit":
                return self.pick(1, a, b)
            case "min":
                return self.pick(-0.5, 0.0, 0.25)
            case "max":
                return self.pick(0.5, 1.0, float("inf"))
        return self.pick(0.25, 0.5, -0.5)

    def solved(self, attrs: dict[str, AttrValue]) -> bool:
        """Computes most of the attributes that conditions determine; whether it could."""
        for condition in self.axiom.conditions:
            solvers = condition.guard.solvers if self.generator.random() < 0.9 else {}
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


class _TensorDraws:
    """Samples for properties of any tensors: mostly along one common shape, so that broadcasting succeeds, with exceptions."""

    def __init__(self, draws: _Draws) -> None:
        self.draws, self.axiom, self.generator, self.pick = draws, draws.axiom, draws.generator, draws.pick
        self.stated, self.quantized = stated_types(self.axiom), quantized_variables(self.axiom)
        wanted = {c.terms()[0]: (*c.arguments[1:], 1)[0] for c in self.axiom.conditions if c.predicate in ("rank", "vector")}
        self.ranks = {term.name: rank for term, rank in wanted.items() if term.is_var and isinstance(rank, int)}

    def draw(self) -> Sample | None:
        """Types and attributes; ``None`` where conditions cannot be solved."""
        pool = self.pick((2, 3), (3, 2), (2, 5), (4, 3))
        sizes = (pool[0], pool[0], pool[1], pool[1], 1, sum(pool), 1 + sum(pool))
        base = tuple(self.pick(*sizes) for _ in range(4))
        aligned, common = self.pick(0.6, 0.8), self.pick(0, 0, 2, 2, 3)
        types, byte, narrow = {}, self.pick(*sorted(BYTES)), self.pick(*sorted(BYTES | NIBBLES))
        for name in self.axiom.variables:
            rank = common or self.pick(0, 1, 1, 2, 2, 2, 3, 3, 4)
            rank = self.pick(rank, self.ranks.get(name, rank))
            like = self.quantized.get(name)
            if like is not None and like.rank is not None:
                rank = like.rank
            shape = [base[4 - rank + i] if self.generator.random() < aligned else self.pick(*sizes) for i in range(rank)]
            dtype = self.stated.get(name, DataType.FLOAT)
            if like is not None:
                dtype = byte if like.dtype in BYTES else narrow if like.dtype in NIBBLES else dtype
            types[name] = TensorType(dtype, tuple(shape))
        attrs = {name: self.draws.attribute(*self.draws.kinds.get(name, ("", False)), pool) for name in self.axiom.attr_variables}
        self._measure(types, attrs)
        return (types, attrs) if self.draws.solved(attrs) else None

    def _measure(self, types: Mapping[str, TensorType], attrs: dict[str, AttrValue]) -> None:
        """Sets most of the sizes and shapes that conditions name to those of the terms, one time in four all of them."""
        usual = self.pick(0.5, 0.9, 0.9, 1.0)
        for condition in self.axiom.conditions:
            arguments: tuple[Any, ...] = condition.arguments
            if condition.predicate == "dim":
                measured, axis, wanted = arguments
            elif condition.predicate == "same_shape":
                measured, axis, wanted = arguments[0], None, arguments[1].attr("shape")
            else:
                continue
            if not isinstance(wanted, AttrVar) or self.generator.random() >= usual:
                continue
            term = substitute(measured, {}, attrs)
            try:
                shape = infer_types([term], types)[term].shape
            except (ValueError, TypeError, IndexError, AttributeError, Undecided):
                continue
            axis = attrs[axis.name] if isinstance(axis, AttrVar) else axis
            if axis is None:
                attrs[wanted.name] = shape
            elif len(shape) >= -axis:
                attrs[wanted.name] = shape[axis]


class _ImageDraws:
    """Samples for properties of convolution, pooling and the normalisations of channels.

    Groups are 1, 2, 3 and depthwise, strides 1 and 2, pads none, those that keep the size, and others.
    """

    def __init__(self, draws: _Draws) -> None:
        self.draws, self.axiom, self.generator, self.pick = draws, draws.axiom, draws.generator, draws.pick
        axiom = self.axiom
        terms = list(walk([axiom.left, axiom.right, *(t for c in axiom.conditions for t in c.terms())]))
        self.convolutions = sorted((t for t in terms if traits_of(t.op).convolves), key=lambda t: t.size)
        written = {len(t.attr("strides")) for t in terms if isinstance(t.attr("strides"), tuple)}
        written |= {t.attr("spatial") for t in terms if isinstance(t.attr("spatial"), int)}
        self.axes = tuple(written) or (1, 2, 2)
        self.vectors = {t.inputs[0].name for t in terms if t.op == "Unsqueeze" and t.inputs[0].is_var}
        for term in terms:
            if traits_of(term.op).image is ImageRole.CHANNELS:
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
            case "output_padding":
                return self.pick((0,) * n, each(0, 1))
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
        return self.draws.attribute(name, single, (2, 3))

    def draw(self) -> Sample | None:
        """Types and attributes; ``None`` where conditions cannot be solved or no shapes fit."""
        kinds_of, n = self.draws.kinds, self.pick(*self.axes)
        kernel = self.pick((1,) * n, (3,) * n, (2,) * n, tuple(self.pick(1, 2, 3) for _ in range(n)))
        kinds = ((name, kinds_of.get(name, ("", False))) for name in self.axiom.attr_variables)
        places = self.pick((3,) * n, (4,) * n, tuple(self.pick(3, 4, 5) for _ in range(n)))
        attrs = {name: self.attribute(kind, single, places, kernel) for name, (kind, single) in kinds}
        if not self.draws.solved(attrs):
            return None
        parts = [t for name, t in attrs.items() if kinds_of.get(name) == ("sizes", False)]
        parts += [tuple(t for name, t in attrs.items() if kinds_of.get(name) == ("sizes", True))]
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
        names = self.axiom.variables
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
            channels_in = [shapes[name][1] for name in images if name in shapes]
            per_in, per_out = self.pick(usual_in, usual_in, 1, 2), self.pick(usual_out, usual_out, 1, 2)
            if not weights.inputs and not weights.is_var:
                channels_in.append(group * int(infer_types([weights], {})[weights].shape[1]))  # type: ignore[arg-type]
            per_in = next((c // group for c in channels_in if c % group == 0), per_in)
            for name in images:
                shapes.setdefault(name, (batch, group * per_in, *places))
            transposed = traits_of(term.op).product is ProductKind.TRANSPOSED_CONVOLUTION
            across = (group * per_in, per_out) if transposed else (group * per_out, per_in)
            for name in kernels:
                shapes.setdefault(name, (*across, *kernel))
            channels += [group * per_in, group * per_out]
            for bias in walk(term.inputs[2:]):
                if bias.is_var:
                    outputs = group * shapes[kernels[0]][1] if transposed else shapes[kernels[0]][0]
                    shapes.setdefault(bias.name, (outputs,))
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
