"""Every operator record against onnxruntime: reading, typing, meaning and writing, over opsets and attributes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from onnx import helper

from mugraph.domains import FieldArray, FiniteField, Poly, Real, Symbolic, Unsupported
from mugraph.domains.field import ZeroDivision
from mugraph.ops import ONNX_OPERATORS, REGISTRY, NotExpressible, NotUnderstood, get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, floor_div, symbol
from mugraph.terms.text import parse_term, parse_type
from tests.support.onnx_helpers import foreign, inferred, make_node, run_form, run_node, type_of

OPSETS = (9, 10, 11, 12, 13, 15, 17, 18, 20, 21, 23, 26)
"""Versions in which some operator here changed; 26 is the newest that onnxruntime 1.31 loads."""
FLOAT32 = {"rtol": 2e-5, "atol": 2e-6}

F, I64 = np.float32, np.int64


def _ints(*values: int) -> np.ndarray:
    return np.asarray(values, I64)


@dataclass(frozen=True)
class Case:
    """A node at the opsets ``since`` to ``until``. Inputs are shapes (random floats), arrays, or None for an absent one."""

    op: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    since: int = 9
    until: int = OPSETS[-1]
    outputs: int = 1
    low: float = -2.0
    high: float = 2.0

    def __str__(self) -> str:
        shapes = ["-" if i is None else str(i) if isinstance(i, tuple) else f"{i.dtype}{list(i.shape)}" for i in self.inputs]
        attrs = [f"{k}={v.tolist() if isinstance(v, np.ndarray) else v}" for k, v in self.attrs.items()]
        return f"{self.op} {' '.join(shapes)} {' '.join(attrs)} {self.since}-{self.until}".replace("  ", " ")

    def arrays(self) -> list[np.ndarray | None]:
        generator = np.random.default_rng(zlib.crc32(str(self).encode()))
        return [
            generator.uniform(self.low, self.high, value).astype(F) if isinstance(value, tuple) else value
            for value in self.inputs
        ]

    @property
    def opsets(self) -> list[int]:
        return [opset for opset in OPSETS if self.since <= opset <= self.until]


def _elementwise() -> list[Case]:
    cases = [Case(op, [(2, 3, 4), (3, 1)]) for op in ("Add", "Sub", "Mul", "Div")]
    cases += [Case("Add", [(), (5,)]), Case("Div", [_ints(7, -7, 7, -7), _ints(2, 2, -2, -2)])]
    cases += [Case(op, [(3, 4)]) for op in ("Neg", "Relu", "Reciprocal", "Exp", "Abs", "Sign", "Floor", "Ceil", "Sin", "Cos")]
    cases += [Case(op, [(3, 500)], low=-8, high=8) for op in ("Sigmoid", "Erf", "Tanh", "Softplus", "Softsign")]
    cases += [Case("Sqrt", [(3, 4)], low=0), Case("Log", [(3, 4)], low=0.1), Case("Abs", [_ints(-3, 4)])]
    cases += [
        Case("Round", [np.asarray([-2.5, -1.5, -0.5, 0.5, 1.5, 2.3], F)], since=11),
        Case("Relu", [_ints(-1, 2).astype(np.int32)], since=15),
    ]
    for exponent in (-2.0, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0):
        cases.append(Case("Pow", [(3, 4), np.asarray(exponent, F)], constants=(1,), low=0.1))
    cases += [
        Case("Pow", [(3,), np.full((2, 1), 2, F)], constants=(1,)),
        Case("Pow", [(3, 4), (3, 4)], low=0.1),
        Case("Pow", [(3,), _ints(3)], constants=(1,), since=12),
        Case("Pow", [_ints(2, 3), np.asarray([1.5, 2.0], F)], since=12),
    ]
    cases += [Case("LeakyRelu", [(3, 4)], {"alpha": a}) for a in (0.1, 1.5)] + [Case("LeakyRelu", [(3, 4)])]
    cases += [Case("Elu", [(3, 4)], {"alpha": 0.7}), Case("Selu", [(3, 4)]), Case("Selu", [(3, 4)], {"alpha": 1.5, "gamma": 2.0})]
    cases += [Case("HardSigmoid", [(3, 4)]), Case("HardSigmoid", [(3, 4)], {"alpha": 0.3, "beta": 0.4})]
    cases += [Case("HardSwish", [(3, 4)], since=14, low=-5, high=5), Case("Mish", [(3, 4)], since=18)]
    cases += [Case("Gelu", [(3, 40)], {"approximate": a}, since=20) for a in ("none", "tanh")] + [Case("Gelu", [(3,)], since=20)]
    cases += [Case("PRelu", [(2, 3, 4), (3, 1)]), Case("PRelu", [(2, 3), (1,)])]
    cases += [
        Case("Clip", [(3, 4)], {"min": -1.0, "max": 0.5}, until=10),
        Case("Clip", [(3, 4)], {"max": 0.5}, until=10),
        Case("Clip", [(3, 4)], until=10),
        Case("Clip", [(3, 4), np.asarray(-1, F), np.asarray(0.5, F)], constants=(1, 2), since=11),
        Case("Clip", [(3, 4), None, np.asarray(0.5, F)], constants=(2,), since=11),
        Case("Clip", [(3, 4)], since=11),
        Case("Clip", [_ints(-5, 0, 5), np.asarray(-1, I64), np.asarray(3, I64)], constants=(1, 2), since=12),
    ]
    cases += [Case(op, [(2, 3), (3,), (2, 1)]) for op in ("Sum", "Max", "Min")] + [Case("Sum", [(2, 3)])]
    flags = [np.asarray([True, True, False, False]), np.asarray([True, False, True, False])]
    cases += [Case(op, flags) for op in ("And", "Or", "Xor")] + [Case("Not", flags[:1])]
    numbers = [np.asarray([1, 2, 3, np.nan], F), np.asarray([2, 2, 2, 2], F)]
    cases += [Case(op, numbers) for op in ("Less", "Greater")] + [Case("Equal", numbers, since=11), Case("IsNaN", numbers[:1])]
    extremes = np.asarray([1, -np.inf, np.inf, np.nan], F)
    signs = ({}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_negative": 1, "detect_positive": 1})
    cases += [Case("IsInf", [extremes], attributes, since=10) for attributes in signs]
    cases += [Case("IsInf", [extremes.astype(np.float16)], since=20)]
    cases += [Case(op, numbers, since=12) for op in ("LessOrEqual", "GreaterOrEqual")]
    cases += [Case("Mod", [_ints(-7, 5, 0, 9), np.asarray(step, np.int64)], since=10) for step in (3, -5)]
    cases += [Case("Equal", [_ints(1, 2), _ints(1, 3)]), Case("Equal", flags)]
    cases += [Case("Where", [flags[0], (2, 4), (1,)]), Case("Where", [flags[0], _ints(1), _ints(2)])]
    values = np.asarray([-2.7, -0.5, 0.0, 0.4, 3.9], F)
    for to in (DataType.FLOAT, DataType.DOUBLE, DataType.INT32, DataType.INT64, DataType.BOOL):
        cases += [Case("Cast", [value], {"to": int(to)}) for value in (values, values.astype(I64), values != 0)]
    cases += [Case("Cast", [values], {"to": int(DataType.FLOAT), "saturate": 1}, since=19)]
    cases += [Case("Identity", [(2, 3)]), Case("Identity", [flags[0]])]
    cases += [Case("Dropout", [(2, 3)]), Case("Dropout", [(2, 3)], {"ratio": 0.3}, until=11)]
    off = np.asarray(False)
    cases += [Case("Dropout", [(2, 3), np.asarray(0.3, F), off], constants=(1, 2), since=12)]
    return cases


def _products() -> list[Case]:
    shapes = [((2, 3), (3, 4)), ((5, 1, 2, 3), (4, 3, 6)), ((3,), (3,)), ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((0, 3), (3, 2))]
    cases = [Case("MatMul", list(pair)) for pair in shapes]
    cases += [Case("MatMul", [np.arange(6).reshape(2, 3).astype(I64), np.arange(12).reshape(3, 4).astype(I64)])]
    for trans_a in (0, 1):
        for trans_b in (0, 1):
            a, b = (3, 2) if trans_a else (2, 3), (4, 3) if trans_b else (3, 4)
            flags = {"transA": trans_a, "transB": trans_b}
            cases += [Case("Gemm", [a, b, c], {**flags, "alpha": 0.5, "beta": 2.0}) for c in ((4,), (2, 4), (2, 1), (1,))]
            cases += [Case("Gemm", [a, b], {**flags, "beta": 3.0}, since=11)]
    return cases


def _movements() -> list[Case]:
    x = (2, 3, 4)
    cases = [Case("Transpose", [x], {"perm": p}) for p in ((0, 2, 1), (2, 0, 1), (0, 1, 2))] + [Case("Transpose", [x])]
    cases += [Case("Concat", [(2, 3), (2, 1), (2, 2)], {"axis": 1}), Case("Concat", [(2, 3), (1, 3)], {"axis": -2}, since=11)]
    cases += [Case("Concat", [_ints(1, 2), _ints(3)], {"axis": 0})]
    cases += [
        Case("Split", [(2, 6)], {"axis": 1, "split": (1, 2, 3)}, until=12, outputs=3),
        Case("Split", [(2, 6)], {"axis": 1}, until=17, outputs=3),
        Case("Split", [(6, 2)], until=17, outputs=2),
        Case("Split", [(2, 6), _ints(1, 2, 3)], {"axis": -1}, constants=(1,), since=13, outputs=3),
        Case("Split", [(2, 7)], {"axis": 1, "num_outputs": 3}, since=18, outputs=3),
    ]
    cases += [
        Case("Slice", [(5, 6)], {"starts": (1, -4), "ends": (4, 100)}, until=9),
        Case("Slice", [(5, 6)], {"starts": (1,), "ends": (-1,), "axes": (1,)}, until=9),
    ]
    for starts, ends, axes, steps in (
        ((1, -4), (4, 100), None, None),
        ((1,), (-1,), (1,), None),
        ((0, 1), (5, 6), (1, 0), (2, 1)),
        ((-1,), (-100,), (0,), (-1,)),
        ((4,), (0,), (1,), (-2,)),
        ((3,), (1,), (0,), None),
        ((100,), (-100,), (-1,), (-3,)),
        ((-50,), (-100,), (0,), (-1,)),
    ):
        optional = [None if v is None else _ints(*v) for v in (axes, steps)]
        inputs = [(5, 6), _ints(*starts), _ints(*ends), *optional]
        cases.append(Case("Slice", inputs, constants=(1, 2, 3, 4), since=10))
    for shape in ((2, -1), (6, 4), (0, -1), (4, 3, 2), (24,), (1, 2, 3, 4), (-1, 1, 4)):
        cases.append(Case("Reshape", [x, _ints(*shape)], constants=(1,)))
    cases += [Case("Reshape", [x, _ints(2, 12)], {"allowzero": 1}, constants=(1,), since=14)]
    cases += [Case("Reshape", [(1,), _ints()], constants=(1,))]
    cases += [Case("Flatten", [x], {"axis": a}) for a in (0, 1, 2, 3)] + [Case("Flatten", [x], {"axis": -1}, since=11)]
    cases += [Case("Flatten", [x])]
    cases += [Case("Squeeze", [(1, 3, 1)], {"axes": (0,)}, until=12), Case("Squeeze", [(1, 3, 1)], until=12)]
    cases += [Case("Squeeze", [(1, 3, 1), _ints(-1, 0)], constants=(1,), since=13), Case("Squeeze", [(1, 3, 1)], since=13)]
    cases += [Case("Unsqueeze", [(2, 3)], {"axes": (0, 3)}, until=12)]
    cases += [Case("Unsqueeze", [(2, 3), _ints(3, 0)], constants=(1,), since=13)]
    cases += [Case("Unsqueeze", [(2, 3), _ints(-1, 1)], constants=(1,), since=13)]
    cases += [Case("Expand", [(3, 1), _ints(2, 1, 4)], constants=(1,)), Case("Expand", [(2, 3), _ints(1)], constants=(1,))]
    return cases


def _reductions() -> list[Case]:
    cases = []
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"):
        since = 13 if op == "ReduceSum" else 18
        for keepdims in (0, 1):
            for axes in ((0,), (0, 2), (2,)):
                attrs = {"keepdims": keepdims}
                cases.append(Case(op, [(2, 3, 4)], {**attrs, "axes": axes}, until=since - 1))
                cases.append(Case(op, [(2, 3, 4), _ints(*axes)], attrs, constants=(1,), since=since))
        cases.append(Case(op, [(2, 3)]))
        cases.append(Case(op, [(2, 3), _ints()], {"keepdims": 0}, constants=(1,), since=since))
        cases.append(Case(op, [(2, 3), _ints(-1)], constants=(1,), since=since))
    cases += [Case("ReduceSum", [np.arange(6).reshape(2, 3).astype(I64)], {"keepdims": 0})]
    for op in ("Softmax", "LogSoftmax"):
        cases += [Case(op, [(2, 3, 4)], {"axis": a}, since=13) for a in (0, 1, -1, 2)] + [Case(op, [(2, 3)])]
        cases += [Case(op, [(2, 3, 4)], {"axis": 2}, until=12), Case(op, [(2, 3, 1, 1)], until=12)]
        cases += [Case(op, [(2, 3, 4)], {"axis": -1}, since=11), Case(op, [np.asarray([[0, -np.inf, 5]], F)])]
    return cases


def _normalizations() -> list[Case]:
    cases = []
    for axis in (-1, 1, -2, 0):
        tail = (2, 3, 4)[axis:]
        for bias in ([tail], []):
            cases.append(Case("LayerNormalization", [(2, 3, 4), tail, *bias], {"axis": axis, "epsilon": 1e-3}, since=17))
        cases.append(Case("RMSNormalization", [(2, 3, 4), tail], {"axis": axis, "epsilon": 1e-3}, since=23))
    cases += [Case("LayerNormalization", [(2, 3, 4), (4,)], since=17), Case("RMSNormalization", [(2, 4), (4,)], since=23)]
    for shape in ((2, 3, 4, 5), (2, 3, 4), (2, 3, 2, 2, 2), (2, 3)):
        parameters = [np.asarray(v, F) for v in ([1, 2, 3], [0, 1, -1], [0.5, -0.5, 0], [0.5, 1, 2])]
        cases += [Case("BatchNormalization", [shape, *parameters], {"epsilon": 1e-2, "momentum": 0.8})]
        if len(shape) > 2:
            cases += [Case("InstanceNormalization", [shape, (3,), (3,)], {"epsilon": 1e-2})]
    cases += [Case("BatchNormalization", [(2, 3, 4), *parameters], {"training_mode": 0}, since=14)]
    cases += [Case("LRN", [(2, 6, 3, 3)], {"size": s, "alpha": 0.1, "beta": 0.6, "bias": 1.5}) for s in (1, 3, 5)]
    return cases


def _convolutions() -> list[Case]:
    cases = []
    for attrs in (
        {},
        {"pads": (1, 2, 0, 1)},
        {"strides": (2, 1), "pads": (1, 1, 1, 1)},
        {"dilations": (2, 1), "pads": (2, 0, 1, 3)},
        {"auto_pad": "SAME_UPPER", "strides": (2, 2)},
        {"auto_pad": "SAME_LOWER", "strides": (2, 2)},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "VALID", "strides": (1, 2)},
        {"kernel_shape": (3, 2), "strides": (3, 2), "dilations": (2, 2), "pads": (2, 2, 2, 2)},
    ):
        cases += [
            Case("Conv", [(2, 4, 7, 8), (6, 4, 3, 2), (6,)], attrs),
            Case("Conv", [(2, 4, 7, 8), (6, 2, 3, 2)], {**attrs, "group": 2}),
        ]
    cases += [Case("Conv", [(2, 4, 5, 5), (4, 1, 3, 3), (4,)], {"group": 4, "pads": (1,) * 4})]
    cases += [Case("Conv", [(2, 4, 5, 5), (3, 4, 1, 1)]), Case("Conv", [(2, 4, 5, 5), (3, 4, 1, 1)], {"strides": (2, 2)})]
    cases += [Case("Conv", [(2, 4, 9), (3, 4, 3), (3,)], {"pads": (1, 1), "strides": (2,)})]
    cases += [Case("Conv", [(1, 2, 4, 5, 6), (3, 2, 2, 3, 2)], {"pads": (0, 1, 1, 1, 0, 1), "strides": (1, 2, 1)})]
    for attrs, since in (
        ({}, 9),
        ({"strides": (2, 2)}, 9),
        ({"strides": (2, 3), "pads": (1, 0, 1, 1)}, 9),
        ({"strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1}, 10),
        ({"strides": (3, 3), "ceil_mode": 1}, 10),
        ({"strides": (2, 2), "ceil_mode": 1}, 10),
        ({"auto_pad": "SAME_UPPER", "strides": (2, 2)}, 9),
        ({"auto_pad": "SAME_LOWER"}, 9),
        ({"auto_pad": "VALID"}, 9),
    ):
        for op in ("MaxPool", "AveragePool"):
            cases.append(Case(op, [(2, 3, 8, 9)], {"kernel_shape": (3, 2), **attrs}, since=since))
        if not attrs.get("ceil_mode") and not attrs.get("auto_pad"):
            cases.append(
                Case("AveragePool", [(2, 3, 8, 9)], {"kernel_shape": (3, 2), "count_include_pad": 1, **attrs}, since=since)
            )
    cases += [Case("MaxPool", [(2, 3, 8, 9)], {"kernel_shape": (3, 2), "dilations": (2, 3), "pads": (1, 1, 2, 1)}, since=10)]
    cases += [Case("MaxPool", [(1, 3, 9)], {"kernel_shape": (3,), "pads": (1, 1), "storage_order": 0})]
    cases += [Case("AveragePool", [(2, 3, 8, 9)], {"kernel_shape": (3, 2), "dilations": (2, 3)}, since=19)]
    cases += [
        Case("AveragePool", [(1, 2, 5, 5, 5)], {"kernel_shape": (2, 3, 2), "pads": (1, 0, 1, 0, 1, 1), "strides": (2, 1, 2)})
    ]
    cases += [
        Case(op, [shape]) for op in ("GlobalAveragePool", "GlobalMaxPool") for shape in ((2, 3, 4, 5), (2, 3, 4), (1, 2, 3, 2, 2))
    ]
    return cases


def _indexing() -> list[Case]:
    cases = [Case("Gather", [(3, 4, 5), _ints(2, 0)], {"axis": a}) for a in (0, 1, 2)]
    cases += [
        Case("Gather", [(3, 4), np.asarray([[0, 1], [2, 2]], np.int32)]),
        Case("Gather", [(3, 4), np.asarray(1)], {"axis": 1}),
    ]
    cases += [Case("Gather", [(3, 4), _ints(-1, -2)], {"axis": -1}, since=11), Case("Gather", [_ints(5, 6, 7), _ints(1)])]
    for mode in ("constant", "edge", "reflect"):
        cases += [Case("Pad", [(3, 4)], {"mode": mode, "pads": (0, 2, 0, 1)}, until=10)]
        cases += [Case("Pad", [(3, 4), _ints(1, 2, 0, 1)], {"mode": mode}, constants=(1,), since=11)]
    cases += [Case("Pad", [(3, 4)], {"pads": (1, 0, 0, 2), "value": 1.5}, until=10)]
    cases += [Case("Pad", [(3, 4), _ints(1, 0, 0, 2), np.asarray(1.5, F)], constants=(1, 2), since=11)]
    cases += [Case("Pad", [(3, 4), _ints(2, 1), np.asarray(-np.inf, F), _ints(-2)], constants=(1, 2, 3), since=18)]
    cases += [Case("Pad", [(2, 3, 4), _ints(2, 1, 0, 3), None, _ints(2, 0)], constants=(1, 3), since=18)]
    cases += [Case("Pad", [(3, 4), _ints(0, 0, 0, 0)], constants=(1,), since=11)]
    cases += [Case("Tile", [(2, 3), _ints(*r)], constants=(1,)) for r in ((2, 1), (1, 3), (1, 1))]
    cases += [
        Case("ConstantOfShape", [_ints(2, 3)], {"value": np.asarray([v], d)}, constants=(0,))
        for v, d in ((1.5, F), (7, I64), (True, bool))
    ]
    cases += [Case("ConstantOfShape", [_ints(2, 3)], constants=(0,)), Case("ConstantOfShape", [_ints()], constants=(0,))]
    picked = [np.asarray([[1, 2], [0, -1]], I64), np.asarray([[[1], [0]], [[-1], [1]]], I64), _ints(1, 2, 3)]
    cases += [Case("GatherND", [(2, 3, 4), indices], since=11) for indices in picked]
    cases += [Case("GatherND", [np.asarray([[True, False], [False, True]]), picked[0] % 2], since=11)]
    cases += [Case("Trilu", [(3, 4)], since=14), Case("Trilu", [np.ones((2, 3, 3), bool)], {"upper": 0}, since=14)]
    for k in (-1, 2):
        cases += [Case("Trilu", [(2, 3, 4), np.asarray(k, I64)], {"upper": u}, constants=(1,), since=14) for u in (0, 1)]
    cases += [
        Case("CumSum", [(2, 3, 4), np.asarray(axis, I64)], {"exclusive": e, "reverse": r}, constants=(1,), since=11)
        for axis, e, r in ((-1, 0, 0), (1, 1, 0), (0, 0, 1), (-1, 1, 1))
    ]
    cases += [Case("CumSum", [_ints(3, 4, 5), np.asarray(0, I64)], constants=(1,), since=11)]
    for dtype in (I64, np.int32):
        cases += [Case("Range", [np.asarray(v, dtype) for v in (2, n, 1)], constants=(0, 1, 2), since=11) for n in (7, 2, 1)]
    cases += [Case("Shape", [(2, 3, 4)]), Case("Shape", [()])]
    cases += [
        Case("Shape", [(2, 3, 4)], a, since=15)
        for a in ({"start": 1}, {"start": -2, "end": 2}, {"end": -1}, {"start": -9, "end": 9})
    ]
    return cases


def _scattering() -> list[Case]:
    past, linear, circular = (2, 3, 5, 4), np.asarray([3, 0], I64), np.asarray([4, 7], I64)
    cases = [
        Case("TensorScatter", [past, (2, 3, 2, 4), linear], since=24),
        Case("TensorScatter", [past, (2, 3, 2, 4), circular], {"mode": "circular"}, since=24),
        Case("TensorScatter", [past, (2, 3, 2, 4)], since=24),
        Case("TensorScatter", [(2, 5, 4), (2, 1, 4), linear], since=24),
        Case("TensorScatter", [past, (2, 3, 5, 2), np.asarray([1, 2], I64)], {"axis": -1}, since=24),
        Case("TensorScatter", [past, (2, 1, 5, 4), np.asarray([2, 0], I64)], {"axis": 1}, since=24),
    ]
    rows = np.asarray([[1, 0, 4], [0, 2, -1]], I64)
    cases += [
        Case("ScatterElements", [(5, 3), rows, (2, 3)], since=11),
        Case("ScatterElements", [(5, 3), rows.astype(np.int32), (2, 3)], since=11),
        Case("ScatterElements", [(3, 5), rows, (2, 3)], {"axis": 1}, since=11),
        Case("ScatterElements", [(2, 3, 5, 4), np.full((2, 3, 1, 4), 2, I64), (2, 3, 1, 4)], {"axis": -2}, since=11),
        Case("ScatterElements", [(5, 3), rows, (2, 3)], {"reduction": "none"}, since=16),
    ]
    cases += [
        Case("GatherElements", [(5, 3), rows], since=11),
        Case("GatherElements", [(5, 3), rows.astype(np.int32)], since=11),
        Case("GatherElements", [(3, 5), rows], {"axis": 1}, since=11),
        Case("GatherElements", [(2, 3, 5, 4), np.full((1, 3, 7, 2), 2, I64)], {"axis": -2}, since=11),
        Case("GatherElements", [np.asarray([[True, False], [False, True]]), rows[:, :2] % 2], since=11),
    ]
    cases += [
        Case("ScatterND", [(5, 3), np.asarray([[1], [4], [-5]], I64), (3, 3)], since=11),
        Case("ScatterND", [(5, 3, 2), np.asarray([[[1, 2], [0, 0]]], I64), (1, 2, 2)], since=11),
        Case("ScatterND", [(5, 3), np.asarray([[1, 2], [0, 0]], I64), (2,)], {"reduction": "none"}, since=16),
    ]
    return cases


def _bytes(shape: tuple[int, ...], signed: bool = False) -> np.ndarray:
    generator = np.random.default_rng(shape)
    return generator.integers(-128, 128, shape).astype(np.int8) if signed else generator.integers(0, 256, shape).astype(np.uint8)


def _quantized() -> list[Case]:
    one, many, channels = np.asarray(0.03, F), np.asarray([0.01, 0.02, 0.5, 0.004], F), np.asarray([0.01, 0.02, 0.5], F)
    cases = [
        Case("QuantizeLinear", [(2, 3, 4), one, np.asarray(zero, dtype)], constants=constants, since=10)
        for zero, dtype in ((0, np.uint8), (7, np.uint8), (0, np.int8), (-7, np.int8))
        for constants in ((1, 2), ())
    ]
    cases += [Case("QuantizeLinear", [(3, 4), one], low=-9, high=9, since=10)]
    ties = np.asarray([-1.5, -0.5, 0.5, 1.5, 2.5, 255.5, 300.0], F)
    cases += [Case("QuantizeLinear", [ties, np.asarray(1, F), np.asarray(z, np.uint8)], constants=(2,), since=10) for z in (0, 1)]
    for axis, scale in ((-1, many), (1, channels)):
        zeros = np.arange(scale.size, dtype=np.int8)
        cases += [Case("QuantizeLinear", [(2, 3, 4), scale, zeros], {"axis": axis}, since=13)]
        cases += [Case("QuantizeLinear", [(2, 3, 4), scale, 0 * zeros], {"axis": axis}, constants=(1, 2), since=13)]
        cases += [Case("DequantizeLinear", [_bytes((2, 3, 4), True), scale, zeros], {"axis": axis}, since=13)]
        cases += [Case("DequantizeLinear", [_bytes((2, 3, 4), True), scale], {"axis": axis}, since=13)]
    words = [np.asarray(5, d) for d in (np.uint16, np.int16)]
    cases += [Case("QuantizeLinear", [(3, 4), np.asarray(1e-4, F), word], since=21) for word in words]
    cases += [Case("QuantizeLinear", [(3, 4), one], {"output_dtype": int(DataType.INT8)}, since=21)]
    cases += [Case("QuantizeLinear", [(3, 4), np.asarray([0.03], F), np.asarray([3], np.uint8)], since=10)]
    cases += [Case("DequantizeLinear", [np.full((3, 4), word), np.asarray(1e-4, F), word], since=21) for word in words]
    cases += [
        Case("DequantizeLinear", [_bytes((2, 3, 4)), one, np.asarray(zero, np.uint8)], constants=constants, since=10)
        for zero, constants in ((0, (2,)), (9, ()), (9, (1, 2)))
    ]
    cases += [Case("DequantizeLinear", [np.asarray([1 << 20, -7], np.int32), one], since=10)]
    cases += [Case("DynamicQuantizeLinear", [(3, 4)], outputs=3, low=low, high=high, since=11) for low, high in ((-2, 2), (1, 3))]
    cases += [Case("DynamicQuantizeLinear", [array], outputs=3, since=11) for array in (np.zeros((2, 3), F), -np.ones(5, F))]
    x, signed, w = _bytes((2, 3, 5)), _bytes((2, 3, 5), True), _bytes((5, 4), True)
    left, right, columns = np.asarray(3, np.uint8), np.asarray(-2, np.int8), np.arange(4).astype(np.int8)
    cases += [Case("MatMulInteger", [x, w], since=10), Case("MatMulInteger", [signed, w, None, right], since=10)]
    cases += [Case("MatMulInteger", [x, w, left], since=10), Case("MatMulInteger", [x, w, left, right], since=10)]
    cases += [Case("MatMulInteger", [x, w, left, columns], since=10), Case("MatMulInteger", [x, w, None, columns], since=10)]
    cases += [Case("MatMulInteger", [x, w, left, 0 * columns], constants=(3,), since=10)]
    image, kernel = _bytes((1, 4, 6, 5)), _bytes((6, 2, 3, 2))
    for attrs in ({}, {"pads": (1, 0, 2, 1), "strides": (2, 1)}):
        window = {"group": 2, **attrs}
        cases += [Case("ConvInteger", [image, kernel], window, since=10)]
        cases += [Case("ConvInteger", [image, kernel, left, np.asarray(9, np.uint8)], window, since=10)]
        cases += [Case("ConvInteger", [image, kernel, None, np.asarray(0, np.uint8)], window, constants=(3,), since=10)]
    return cases


CASES = [
    *_elementwise(),
    *_products(),
    *_movements(),
    *_reductions(),
    *_normalizations(),
    *_convolutions(),
    *_indexing(),
    *_scattering(),
    *_quantized(),
]


def test_every_operator_has_a_case() -> None:
    """Those that are defined by a decomposition have theirs in test_contrib.py."""
    assert {case.op for case in CASES} == {name for name, record in ONNX_OPERATORS.items() if not record.composite}


def _agree(actual: Sequence[Any], expected: Sequence[np.ndarray], rtol: float, atol: float) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert np.shape(a) == e.shape
        np.testing.assert_allclose(np.asarray(a), e, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case: Case) -> None:
    """Read at every opset of the case; equal to onnxruntime; written at every opset that can hold it."""
    arrays = case.arrays()
    node = make_node(case.op, arrays, case.attrs, case.outputs)
    operator = ONNX_OPERATORS[case.op]
    written: set[int] = set()
    forms: set[str] = set()
    for opset in case.opsets:
        expected = run_node(node, arrays, opset, case.constants)
        reading = operator.read(foreign(node, arrays, opset, case.constants))
        operands = [np.asarray(arrays[i]) for i in reading.operands]
        types = [type_of(a) for a in operands]
        assert operator.types(reading.attrs, types) == tuple(map(type_of, expected))
        first_seen = repr(sorted(reading.attrs.items())) not in forms
        if not first_seen:
            continue
        forms.add(repr(sorted(reading.attrs.items())))
        _agree(operator.run(Real(np.float32), reading.attrs, operands), expected, **FLOAT32)
        wide = [a.astype(np.float64) if a.dtype == F else a for a in operands]
        _agree(operator.run(Real(np.float64), reading.attrs, wide), expected, **FLOAT32)
        outputs = operator.types(reading.attrs, types)
        assert operator.flops(reading.attrs, types, outputs) >= 0
        for target in OPSETS:
            try:
                form = operator.to_onnx(reading.attrs, types, target)
            except NotExpressible:
                continue
            written.add(target)
            _agree(run_form(form, operands, target, case.outputs), expected, **FLOAT32)
    assert written.issuperset(case.opsets), sorted(set(case.opsets) - written)


def test_a_wrong_meaning_is_noticed() -> None:
    """The comparison says no: a sum is not a difference, and a tolerance of 1 would hide it."""
    with pytest.raises(AssertionError):
        _agree([np.ones(3, F)], [np.full(3, 1.001, F)], **FLOAT32)
    with pytest.raises(AssertionError):
        _agree([np.ones((3, 1), F)], [np.ones((1, 3), F)], **FLOAT32)


# What is not understood, and why


def _unread(
    op: str, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int, constants: tuple[int, ...] = (), outputs: int = 1
) -> str:
    case = Case(op, inputs, attrs, constants)
    node = make_node(op, case.arrays(), attrs, outputs)
    with pytest.raises(NotUnderstood) as caught:
        ONNX_OPERATORS[op].read(foreign(node, case.arrays(), opset, constants))
    return str(caught.value)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "opset", "constants", "outputs", "reason"),
    [
        ("Softmax", [(2, 3, 4)], {}, 12, (), 1, "before opset 13"),
        ("Clip", [(3,), np.asarray(0, F)], {}, 13, (), 1, "computed min"),
        ("Clip", [(3,), np.asarray(np.nan, F)], {}, 13, (1,), 1, "min nan"),
        ("Clip", [_ints(1), np.asarray(2**60 + 1)], {}, 13, (1,), 1, "min"),
        ("Cast", [(3,)], {"to": int(DataType.FLOAT8E4M3FN)}, 19, (), 1, "float8e4m3fn"),
        ("Cast", [np.asarray(["a"])], {"to": 1}, 13, (), 1, "string"),
        ("Dropout", [(3,), np.asarray(0.5, F), np.asarray(True)], {}, 13, (2,), 1, "training"),
        ("Dropout", [(3,)], {}, 13, (), 2, "2 outputs"),
        ("MaxPool", [(1, 1, 4, 4)], {"kernel_shape": (2, 2)}, 13, (), 2, "2 outputs"),
        ("MaxPool", [(1, 1, 4, 4)], {"kernel_shape": (2,)}, 13, (), 1, "kernel"),
        ("MaxPool", [(1, 1, 4, 4)], {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}, 13, (), 1, "pads"),
        (
            "AveragePool",
            [(1, 1, 5, 5)],
            {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 0, 0), "ceil_mode": 1, "count_include_pad": 1},
            13,
            (),
            1,
            "over the end",
        ),
        ("Conv", [(1, 1, 4, 4), (1, 1, 2, 2)], {"kernel_shape": (3, 3)}, 13, (), 1, "kernel"),
        ("BatchNormalization", [(2, 3), (3,), (3,), (3,), (3,)], {"training_mode": 1}, 14, (), 1, "training"),
        ("BatchNormalization", [(2, 3), (3,), (3,), (3,), (3,)], {}, 9, (), 3, "3 outputs"),
        ("LayerNormalization", [(2, 3), (3,)], {"stash_type": 10}, 17, (), 1, "stash_type"),
        ("LayerNormalization", [(2, 3), (1,)], {}, 17, (), 1, "parameter"),
        ("LayerNormalization", [(2, 3), (3,)], {}, 17, (), 2, "2 outputs"),
        ("ReduceSum", [(2, 3), _ints(0)], {}, 13, (), 1, "computed axes"),
        ("ReduceSum", [(2, 3)], {"noop_with_empty_axes": 1}, 13, (), 1, "no axis"),
        ("ReduceMean", [(2, 3)], {"axes": (0,)}, 18, (), 1, "attribute axes"),
        ("Reshape", [(2, 3), _ints(6)], {}, 13, (), 1, "computed shape"),
        ("Reshape", [(0, 3), _ints(-1)], {}, 13, (1,), 1, "without entries"),
        ("Split", [(2, 7)], {"axis": 1}, 13, (), 3, "equal parts"),
        ("Split", [(2, 5)], {"axis": 1, "num_outputs": 4}, 18, (), 4, "equal parts"),
        ("Pad", [(3,), _ints(-1, 0)], {}, 13, (1,), 1, "by (-1, 0)"),
        ("Pad", [(3,), _ints(1, 0)], {"mode": "wrap"}, 19, (1,), 1, "wrap"),
        ("Expand", [(3,), _ints(2, 3)], {}, 13, (), 1, "computed shape"),
        ("Gelu", [(3,)], {"approximate": "none", "future": 1}, 20, (), 1, "future"),
        ("Add", [(3,), (3,)], {"axis": 1}, 13, (), 1, "attribute axis"),
        ("Tile", [(3,), _ints(0)], {}, 13, (1,), 1, "(0,)"),
        ("GatherND", [(2, 3), np.zeros((2, 1), I64)], {"batch_dims": 1}, 13, (), 1, "batch dimensions"),
        ("ScatterND", [(3,), np.zeros((1, 1), I64), (1,)], {"reduction": "add"}, 16, (), 1, "the reduction add"),
        ("ScatterElements", [(3,), np.zeros(1, I64), (1,)], {"reduction": "max"}, 18, (), 1, "the reduction max"),
        ("CumSum", [(3,), np.asarray(0, I64)], {}, 13, (), 1, "computed axis"),
        ("Trilu", [(3, 3), np.asarray(0, I64)], {}, 14, (), 1, "computed diagonal"),
        ("Range", [np.asarray(v, F) for v in (0, 3, 1)], {}, 13, (0, 1, 2), 1, "float"),
        ("Range", [np.asarray(v, I64) for v in (0, 3, 2)], {}, 13, (0, 1, 2), 1, "by 2"),
        ("Range", [np.asarray(v, I64) for v in (-1, 3, 1)], {}, 13, (0, 1, 2), 1, "from -1"),
        ("Range", [np.asarray(v, I64) for v in (0, 3, 1)], {}, 13, (0, 2), 1, "computed bounds"),
        ("Shape", [(2, 3)], {"start": 1, "end": 1}, 15, (), 1, "no dimension"),
    ],
)
def test_not_understood(
    op: str, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int, constants: tuple[int, ...], outputs: int, reason: str
) -> None:
    assert reason in _unread(op, inputs, attrs, opset, constants, outputs)


def test_unknown_rank_is_not_understood() -> None:
    node = helper.make_node("Transpose", ["x0"], ["y0"])
    with pytest.raises(NotUnderstood, match="unknown rank"):
        ONNX_OPERATORS["Transpose"].read(foreign(node, [np.zeros(3, F)], 13, types=[None]))


@pytest.mark.parametrize(
    ("op", "attrs", "types", "opset", "reason"),
    [
        ("Gelu", {}, "float[3]", 19, "does not exist"),
        ("LayerNormalization", {}, "float[2,3] float[3]", 16, "does not exist"),
        ("RMSNormalization", {}, "float[2,3] float[3]", 22, "does not exist"),
        ("LessOrEqual", {}, "float[3] float[3]", 11, "does not exist"),
        ("Add", {}, "bfloat16[3] bfloat16[3]", 12, "bfloat16"),
        ("Equal", {}, "float[3] float[3]", 10, "Equal of float"),
        ("Softmax", {"axis": -2}, "float[2,3]", 12, "last"),
        ("AveragePool", {"kernel": (2,), "strides": (1,), "pads": (0, 0), "dilations": (2,)}, "float[1,1,9]", 18, "dilations"),
        ("Slice", {"axes": (-1,), "starts": (0,), "ends": (4,), "steps": (2,)}, "float[4]", 9, "steps"),
        ("Split", {"axis": -1, "sizes": (symbol("n"), symbol("m"))}, "float[m+n]", 12, "sizes"),
        ("Slice", {"axes": (-1,), "starts": (0,), "ends": (symbol("m"),), "steps": (1,)}, "float[m+n]", 9, "bounds"),
        ("ReduceSum", {"axes": ()}, "float[4]", 13, "no axis"),
    ],
)
def test_not_expressible(op: str, attrs: Mapping[str, Any], types: str, opset: int, reason: str) -> None:
    with pytest.raises(NotExpressible, match=reason):
        get_operator(op).to_onnx(attrs, [parse_type(t) for t in types.split()], opset)


# Typing


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("Add(x, y)", "float[2] float[3]"),
        ("Add(x, y)", "float[2] float16[2]"),
        ("Add(x, y)", "bool[2] bool[2]"),
        ("Exp(x)", "int64[2]"),
        ("Not(x)", "float[2]"),
        ("Where(x, y, y)", "float[2] float[2]"),
        ("PRelu(x, y)", "float[2] float[3,2]"),
        ("MatMul(x, y)", "float[2,3] float[2,3]"),
        ("MatMul(x, y)", "float[] float[2,3]"),
        ("Gemm(x, y)", "float[2,3,4] float[4,3]"),
        ("Transpose[perm=(1,0)](x)", "float[2]"),
        ("Transpose[perm=(1,1)](x)", "float[2,3]"),
        ("Concat[axis=-1](x, y)", "float[2,3] float[3,3]"),
        ("Concat[axis=-3](x, y)", "float[2,3] float[2,3]"),
        ("Split[axis=-1,sizes=(1,1)].0(x)", "float[3]"),
        ("Split[axis=-1,sizes=(-1,4)].0(x)", "float[3]"),
        ("Split[axis=-1,sizes=(1,2)].2(x)", "float[3]"),
        ("Slice[axes=(-1,),ends=(4,),starts=(0,),steps=(1,)](x)", "float[3]"),
        ("Slice[axes=(-1,),ends=(1,),starts=(2,),steps=(1,)](x)", "float[3]"),
        ("Reshape[drop=1,shape=(2,2)](x)", "float[3]"),
        ("Squeeze[axes=(-1,)](x)", "float[3]"),
        ("Unsqueeze[axes=(-3,)](x)", "float[3]"),
        ("Expand[shape=(2,)](x)", "float[3]"),
        ("ReduceSum[axes=(-2,)](x)", "float[3]"),
        ("ReduceMean[axes=(-1,)](x)", "int64[3]"),
        ("Softmax[axis=-2](x)", "float[3]"),
        ("LayerNormalization(x, y)", "float[2,3] float[2]"),
        ("BatchNormalization[spatial=1](x, y, y, y, y)", "float[2,3,4] float[4]"),
        ("LRN[size=3,spatial=1](x)", "float[2,3,4,5]"),
        ("Conv[dilations=(1,),pads=(0,0),strides=(1,)](x, y)", "float[1,3,8] float[4,2,3]"),
        ("Conv[dilations=(1,),group=2,pads=(0,0),strides=(1,)](x, y)", "float[1,4,8] float[3,2,3]"),
        ("Conv[dilations=(1,),pads=(0,0),strides=(1,)](x, y)", "float[1,2,2] float[4,2,3]"),
        ("MaxPool[dilations=(1,),kernel=(2,),pads=(0,0),strides=(0,)](x)", "float[1,2,4]"),
        ("GlobalMaxPool[spatial=2](x)", "float[1,2,4]"),
        ("Gather[axis=-1](x, y)", "float[3] float[2]"),
        ("Pad[begins=(1,1),ends=(0,0)](x)", "float[3]"),
        ("Pad[begins=(3,),ends=(0,),mode='reflect'](x)", "float[3]"),
        ("Tile[repeats=(2,2)](x)", "float[3]"),
        ("GatherND[axis=-1](x, y)", "float[2,3] int64[4,1]"),
        ("GatherND[axis=-2](x, y)", "float[2,3] int64[4,3]"),
        ("GatherND[axis=-2](x, y)", "float[2,3] float[4,2]"),
        ("ScatterND[axis=-2](x, y, z)", "float[2,3] int64[4,1] float[4,2]"),
        ("ScatterND[axis=-2](x, y, z)", "float[2,3] int32[4,1] float[4,3]"),
        ("ScatterElements[axis=-2](x, y, z)", "float[2,3] int64[1,4] float[1,4]"),
        ("ScatterElements[axis=-2](x, y, z)", "float[2,3] int64[1,3] float[3]"),
        ("GatherElements[axis=-2](x, y)", "float[2,3] int64[1,4]"),
        ("GatherElements[axis=-2](x, y)", "float[2,3] int64[3]"),
        ("GatherElements[axis=-2](x, y)", "float[2,3] float[1,3]"),
        ("ScatterElements[axis=-1](x, y, z)", "float[2,3] int64[2,4] float[2,3]"),
        ("TensorScatter[axis=-2,batch=-3,mode='linear'](x, y)", "float[2,3,4] float[2,4,4]"),
        ("TensorScatter[axis=-2,batch=-3,mode='linear'](x, y, z)", "float[2,3,4] float[2,1,4] int64[3]"),
        ("TensorScatter[axis=-3,batch=-3,mode='linear'](x, y)", "float[2,3,4] float[1,3,4]"),
        ("Trilu[upper=true](x)", "float[3]"),
        ("CumSum[axis=-2](x)", "float[3]"),
        ("Range[dtype=int64,limit=3,start=-1]()", ""),
        ("Add(x)", "float[3]"),
    ],
)
def test_ill_typed(term: str, types: str) -> None:
    with pytest.raises(ShapeError):
        inferred(term, types)


@pytest.mark.parametrize("length", [0, -1, 2.0])
def test_positions_are_counted_by_a_whole_number(length: object) -> None:
    """Attributes that properties leave open are tried with numbers of every kind."""
    with pytest.raises(ShapeError, match="positions"):
        get_operator("Positions").types({"length": length}, [])


@pytest.mark.parametrize(
    ("term", "types", "expected"),
    [
        ("Add(x, y)", "float[n,1] float[m]", "float[n,m]"),
        ("MatMul(x, y)", "float[b,n,k] float[k,m]", "float[b,n,m]"),
        ("Concat[axis=-1](x, y)", "float[n,k] float[n,m]", "float[n,k+m]"),
        ("Split[axis=-1,sizes=(n,m)].1(x)", "float[3,m+n]", "float[3,m]"),
        ("Slice[axes=(-1,),ends=(m+n,),starts=(n,),steps=(1,)](x)", "float[m+n]", "float[m]"),
        ("Reshape[drop=1,shape=(12,64)](x)", "float[n,s,768]", "float[n,s,12,64]"),
        ("Reshape[drop=3,shape=(n*s,k)](x)", "float[n,s,k]", "float[n*s,k]"),
        ("Transpose[perm=(1,0)](x)", "float[b,n,m]", "float[b,m,n]"),
        ("ReduceMean[axes=(-1,)](x)", "float[n,m]", "float[n,1]"),
        ("Softmax(x)", "float[n,m]", "float[n,m]"),
        ("LayerNormalization(x, y)", "float[n,s,64] float[64]", "float[n,s,64]"),
        ("BatchNormalization[spatial=2](x, y, y, y, y)", "float[n,3,h,w] float[3]", "float[n,3,h,w]"),
        ("Conv[dilations=(1,1),pads=(1,1,1,1),strides=(1,1)](x, y)", "float[n,3,h,w] float[8,3,3,3]", "float[n,8,h,w]"),
        ("Conv[dilations=(1,1),pads=(0,0,0,0),strides=(1,1)](x, y)", "float[n,3,h,w] float[8,3,3,3]", "float[n,8,h-2,w-2]"),
        ("GlobalAveragePool[spatial=2](x)", "float[n,c,h,w]", "float[n,c,1,1]"),
        ("Gather[axis=-2](x, y)", "float[v,k] int64[n,s]", "float[n,s,k]"),
        ("Pad[begins=(1,),ends=(2,)](x)", "float[n]", "float[n+3]"),
        ("Tile[repeats=(2,)](x)", "float[n]", "float[2*n]"),
        ("Tile[repeats=(m,)](x)", "float[n]", "float[m*n]"),
        ("GatherND[axis=-2](x, y)", "float[n,m] int64[s,k,2]", "float[s,k]"),
        ("GatherElements[axis=-1](x, y)", "float[b,n,m] int64[b,n,k]", "float[b,n,k]"),
        ("Range[dtype=int64,limit=n+2,start=1]()", "", "int64[n+1]"),
        ("TensorScatter[axis=-2,batch=-3,mode='linear'](x, y, z)", "float[b,3,4] float[b,1,4] int64[b]", "float[b,3,4]"),
        ("ScatterND[axis=-3](x, y, z)", "float[n,b,4] int64[1,1] float[1,b,4]", "float[n,b,4]"),
        ("Shape[end=0,start=-2](x)", "float[n,m]", "int64[2]"),
    ],
)
def test_symbolic_dimensions(term: str, types: str, expected: str) -> None:
    assert inferred(term, types) == parse_type(expected)


def test_a_window_that_does_not_fit_at_run_time_is_told() -> None:
    """While sizes are symbols, typing cannot say whether a window fits."""
    pool = parse_term("AveragePool[ceil=false,count_include_pad=false,dilations=(1,),kernel=(3,),pads=(0,0),strides=(2,)](x)")
    with pytest.raises(ShapeError, match="does not fit"):
        get_operator(pool.op).run(Real(), pool.attrs, [np.ones((1, 2, 2))])


def test_a_stride_leaves_the_whole_part() -> None:
    type_ = inferred("Conv[dilations=(1,),pads=(0,0),strides=(2,)](x, y)", "float[1,2,n] float[4,2,3]")
    assert type_.shape == (1, 4, floor_div(symbol("n") - 3, 2) + 1)


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("Add(x, y)", "float[n] float[m]"),
        ("MatMul(x, y)", "float[2,n] float[m,3]"),
        ("Squeeze[axes=(-1,)](x)", "float[2,n]"),
        ("Slice[axes=(-1,),ends=(4,),starts=(0,),steps=(1,)](x)", "float[n]"),
        ("MaxPool[ceil=true,dilations=(1,),kernel=(3,),pads=(0,0),strides=(2,)](x)", "float[1,2,n]"),
        ("Split[axis=-1,sizes=(2,m)].0(x)", "float[n]"),
        ("Range[dtype=int64,limit=n,start=1]()", ""),
        ("GatherND[axis=-2](x, y)", "float[2,3] int64[4,n]"),
        ("ScatterND[axis=-2](x, y, z)", "float[2,3] int64[4,n] float[4,3]"),
        ("GatherElements[axis=-1](x, y)", "float[n,4] int64[m,4]"),
        ("TensorScatter[axis=-2,batch=-3,mode='linear'](x, y)", "float[b,n,4] float[b,1,4]"),
    ],
)
def test_undecided(term: str, types: str) -> None:
    with pytest.raises(Undecided):
        inferred(term, types)


def _symbolic_reading(
    op: str, shape: tuple[Any, ...], attrs: Mapping[str, Any], constants: Sequence[np.ndarray] = (), outputs: int = 1
) -> Mapping[str, Any]:
    """What is read at opset 13 of a node whose first operand has symbolic dimensions."""
    inputs = [np.zeros(1, F), *constants]
    types = [TensorType(DataType.FLOAT, shape), *map(type_of, constants)]
    node = make_node(op, inputs, attrs, outputs)
    return ONNX_OPERATORS[op].read(foreign(node, inputs, 13, range(1, len(inputs)), types)).attrs


def test_reading_symbolic_dimensions() -> None:
    n, s = symbol("n"), symbol("s")
    assert _symbolic_reading("Reshape", (n, s, 768), {}, [_ints(0, 0, 12, 64)]) == {"drop": 1, "shape": (12, 64)}
    assert _symbolic_reading("Reshape", (n, s, 768), {}, [_ints(0, -1, 12, 64)]) == {"drop": 1, "shape": (12, 64)}
    assert _symbolic_reading("Reshape", (n, s, 768), {}, [_ints(-1, 768)]) == {"drop": 3, "shape": (n * s, 768)}
    assert _symbolic_reading("Flatten", (n, 3, 4), {}) == {"drop": 2, "shape": (12,)}
    assert _symbolic_reading("Split", (3, 2 * n), {"axis": 1}, outputs=2) == {"axis": -1, "sizes": (n, n)}
    whole = _symbolic_reading("Slice", (n, 4), {}, [_ints(0), _ints(2**63 - 1), _ints(0)])
    assert whole == {"axes": (-2,), "starts": (0,), "ends": (n,), "steps": (1,)}
    same = _symbolic_reading("MaxPool", (1, 3, n), {"kernel_shape": (3,), "auto_pad": "SAME_UPPER"})
    assert same["pads"] == (1, 1)
    with pytest.raises(NotUnderstood, match="symbolic"):
        _symbolic_reading("Slice", (n, 4), {}, [_ints(1), _ints(3), _ints(0)])
    with pytest.raises(NotUnderstood, match="stride"):
        _symbolic_reading("MaxPool", (1, 3, n), {"kernel_shape": (3,), "auto_pad": "SAME_UPPER", "strides": (2,)})
    with pytest.raises(NotUnderstood, match="undecided"):
        _symbolic_reading("Reshape", (n, 5), {}, [_ints(3, -1)])
    with pytest.raises(NotUnderstood, match="symbolic"):
        _symbolic_reading("Squeeze", (n, 1), {})
    with pytest.raises(NotUnderstood, match="into 2 parts"):
        _symbolic_reading("Split", (n,), {}, outputs=2)


def test_writing_symbolic_dimensions() -> None:
    n, s = symbol("n"), symbol("s")
    type_ = TensorType(DataType.FLOAT, (n, s, 768))
    form = get_operator("Reshape").to_onnx({"drop": 1, "shape": (12, 64)}, [type_], 13)
    assert np.array_equal(np.asarray(form.inputs[1]), [0, 0, 12, 64])
    form = get_operator("Reshape").to_onnx({"drop": 3, "shape": (n * s, 768)}, [type_], 13)
    assert np.array_equal(np.asarray(form.inputs[1]), [-1, 768])
    halves = TensorType(DataType.FLOAT, (2 * n,))
    assert get_operator("Split").to_onnx({"axis": -1, "sizes": (n, n)}, [halves], 18).inputs[1] == (n, n)
    assert get_operator("Split").to_onnx({"axis": -1, "sizes": (n, n)}, [halves], 13).attributes == {"axis": 0}
    part = {"axes": (-1,), "starts": (0,), "ends": (n,), "steps": (1,)}
    assert get_operator("Slice").to_onnx(part, [halves], 13).inputs[2] == (n,)
    assert get_operator("Split").to_onnx({"axis": -1, "sizes": (s, 2 * n - s)}, [halves], 13).inputs[1] == (s, 2 * n - s)
    assert get_operator("Expand").to_onnx({"shape": (n, 4)}, [TensorType(DataType.FLOAT, (4,))], 13).inputs[1] == (n, 4)
    swapped = get_operator("Reshape").to_onnx({"drop": 3, "shape": (s, n, 768)}, [type_], 13)
    assert swapped.inputs[1] == (-1, n, 768)


def test_flops() -> None:
    def count(term: str, types: str) -> int:
        parsed = parse_term(term)
        operands = dict(zip("xy", map(parse_type, types.split()), strict=False))
        inputs = [operands[i.name] for i in parsed.inputs]
        operator = get_operator(parsed.op)
        attrs = {**operator.defaults, **dict(parsed.attrs)}
        return operator.flops(attrs, inputs, operator.types(attrs, inputs))

    assert count("MatMul(x, y)", "float[5,2,3] float[3,4]") == 2 * 5 * 2 * 3 * 4
    assert count("Gemm[transA=true](x, y)", "float[3,2] float[3,4]") == 2 * 2 * 3 * 4
    conv = "Conv[dilations=(1,1),group=2,pads=(1,1,1,1),strides=(1,1)](x, y)"
    assert count(conv, "float[1,4,8,8] float[6,2,3,3]") == 2 * 6 * 64 * 2 * 9
    assert count("Add(x, y)", "float[2,3] float[3]") == 6
    with pytest.raises(Undecided):
        count("MatMul(x, y)", "float[2,n] float[n,4]")


# The same meaning in exact domains


def _residue(value: Fraction, modulus: int) -> int:
    return value.numerator * pow(value.denominator, -1, modulus) % modulus


def _at(poly: Poly, point: Mapping[tuple[str, tuple[int, ...]], int], modulus: int) -> int:
    """The value of a polynomial with inverses at residues."""
    total = 0
    for monomial, coefficient in poly.terms.items():
        product = _residue(coefficient, modulus)
        for atom, power in monomial:
            if atom[0] == "x":
                base = point[(atom[1], atom[2])]
            else:
                assert atom[0] == "inv", atom
                base = pow(_at(atom[1], point, modulus), -1, modulus)
            product = product * pow(base, power, modulus) % modulus
        total = (total + product) % modulus
    return total


POLYNOMIAL = [
    ("Add(x, y)", (2, 3), (3,)),
    ("Sub(x, Mul(y, 0.5))", (2, 3), (3,)),
    ("Div(x, y)", (2, 3), (3,)),
    ("Reciprocal(Add(x, y))", (2,), (2,)),
    ("Pow(x, 2)", (2, 2), ()),
    ("Pow(x, -3)", (2, 2), ()),
    ("Sum(x, y, x)", (2, 2), (2,)),
    ("MatMul(x, y)", (2, 3), (3, 2)),
    ("MatMul(x, y)", (3,), (2, 3, 2)),
    ("Gemm[alpha=0.5,beta=2.0,transA=true](x, y, x)", (2, 2), (2, 2)),
    ("Transpose[perm=(1,0)](x)", (2, 2, 3), ()),
    ("Concat[axis=-1](x, y)", (2, 3), (2, 1)),
    ("Split[axis=-1,sizes=(1,2)].1(x)", (2, 3), ()),
    ("Slice[axes=(-1,),ends=(-1,),starts=(2,),steps=(-2,)](x)", (2, 3), ()),
    ("Reshape[drop=2,shape=(3,2)](x)", (2, 3), ()),
    ("Squeeze[axes=(-1,)](Unsqueeze[axes=(-1,)](x))", (2,), ()),
    ("Expand[shape=(2,3)](x)", (2, 1), ()),
    ("ReduceSum[axes=(-2,),keepdims=false](x)", (2, 3), ()),
    ("ReduceMean[axes=(-1,)](x)", (2, 3), ()),
    ("ReduceSumSquare[axes=(-1,)](x)", (2, 3), ()),
    ("Conv[dilations=(1,),pads=(1,1),strides=(2,)](x, y)", (1, 2, 4), (2, 2, 3)),
    ("Conv[dilations=(1,),group=2,pads=(0,1),strides=(1,)](x, y)", (1, 2, 3), (2, 1, 2)),
    ("AveragePool[dilations=(1,),kernel=(3,),pads=(1,1),strides=(1,)](x)", (1, 1, 4), ()),
    ("GlobalAveragePool[spatial=1](x)", (1, 2, 3), ()),
    ("Pad[begins=(1,),ends=(2,),value=0.25](x)", (2, 2), ()),
    ("Tile[repeats=(2,)](x)", (2, 2), ()),
    ("Trilu[k=1,upper=false](x)", (3, 3), ()),
    ("Trilu[upper=true](x)", (2, 3), ()),
    ("CumSum[axis=-2](x)", (3, 2), ()),
    ("CumSum[axis=-1,exclusive=true,reverse=true](x)", (2, 3), ()),
]


@pytest.mark.parametrize(("text", "x", "y"), POLYNOMIAL)
def test_field_and_symbolic_agree(text: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """A symbolic result evaluated at field points is the field's result, modulo both primes."""
    term, symbolic, finite = parse_term(text), Symbolic(), FiniteField(seed=7)
    points = {"x": finite.random(np.random.default_rng(0), x), "y": finite.random(np.random.default_rng(1), y)}
    polynomials = evaluate([term], symbolic, {name: symbolic.input(name, value.shape) for name, value in points.items()})[term]
    residues = evaluate([term], finite, points)[term]
    assert np.shape(polynomials) == residues.shape
    for part, modulus in ((0, finite.p), (1, finite.q)):
        values = {
            (name, index): int((value.p if part == 0 else value.q)[index])
            for name, value in points.items()
            for index in np.ndindex(*value.shape)
        }
        actual = residues.p if part == 0 else residues.q
        for index in np.ndindex(*residues.shape):
            assert _at(polynomials[index], values, modulus) == int(actual[index])


BATCHED = [
    *dict.fromkeys(text for text, *_ in POLYNOMIAL),
    "Softmax[axis=-2](x)",
    "LogSoftmax(x)",
    "LayerNormalization(x, y)",
    "BatchNormalization[spatial=1](x, y, y, y, y)",
    "InstanceNormalization[spatial=1](x, y, y)",
    "LRN[size=3,spatial=1](x)",
    "MaxPool[dilations=(1,),kernel=(3,),pads=(1,1),strides=(2,)](x)",
    "AveragePool[dilations=(1,),kernel=(3,),pads=(1,1),strides=(2,)](x)",
    "ReduceMax[axes=(-1,)](x)",
    "ReduceMin[axes=(-2,),keepdims=false](x)",
    "Erf(x)",
    "Gelu(x)",
]
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {text: (x, y) for text, x, y in POLYNOMIAL} | {
    "MatMul(x, y)": ((2, 3), (3, 2)),
    "LayerNormalization(x, y)": ((2, 3, 4), (4,)),
    "BatchNormalization[spatial=1](x, y, y, y, y)": ((2, 3, 4), (3,)),
    "InstanceNormalization[spatial=1](x, y, y)": ((2, 3, 4), (3,)),
}


@pytest.mark.parametrize("text", BATCHED)
def test_further_leading_axes_pass_through(text: str) -> None:
    """A batch of programs in one call equals the programs one by one, in floats and residues."""
    term = parse_term(text)
    x, y = SHAPES.get(text, ((2, 3, 4), ()))
    for domain in (Real(), FiniteField(seed=1)):
        for attempt in range(20):
            try:
                single, batch = _one_by_one(domain, term, x, y, np.random.default_rng(attempt))
                break
            except ZeroDivision:
                continue
        np.testing.assert_allclose(batch, single, rtol=1e-12, atol=1e-12)


def _one_by_one(
    domain: Any, term: Any, x: tuple[int, ...], y: tuple[int, ...], generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    def draw(shape: tuple[int, ...]) -> Any:
        return domain.random(generator, shape) if isinstance(domain, FiniteField) else generator.uniform(0.5, 2, shape)

    def plain(value: Any) -> np.ndarray:
        return value.p if isinstance(value, FieldArray) else np.asarray(value)

    elementwise = get_operator(term.op).elementwise
    inputs = {"x": draw((3, *x)), "y": draw((3, *y))}
    single = [evaluate([term], domain, {name: value[i] for name, value in inputs.items()})[term] for i in range(3)]
    if elementwise and len(y) < len(x):
        inputs["y"] = domain.move(lambda a: a.reshape(3, *(1,) * (len(x) - len(y)), *y), inputs["y"])
    batch = evaluate([term], domain, inputs)[term]
    return np.stack([plain(s) for s in single]), plain(batch)


def test_opaque_functions_are_keyed_and_deterministic() -> None:
    x = FiniteField(seed=1).random(np.random.default_rng(0), (50,))
    same, other = FiniteField(seed=1), FiniteField(seed=2)
    assert np.array_equal(same.apply("erf", x).p, FiniteField(seed=1).apply("erf", x).p)
    assert not np.array_equal(same.apply("erf", x).p, other.apply("erf", x).p)
    assert not np.array_equal(same.apply("cast_INT32", x).p, same.apply("cast_INT64", x).p)
    assert not np.array_equal(same.apply("pow", x, same.const(5)).p, same.apply("pow", same.const(5), x).p)
    assert (same.apply("erf", x).p < same.p).all()


def test_casts_to_integers_do_not_vanish() -> None:
    term = parse_term("Cast[to=float](Cast[to=int64](x))")
    finite = FiniteField(seed=1)
    x = finite.random(np.random.default_rng(0), (20,))
    assert not np.array_equal(evaluate([term], finite, {"x": x})[term].p, x.p)
    symbols = Symbolic().input("x", (2,))
    assert not np.array_equal(evaluate([term], Symbolic(), {"x": symbols})[term], symbols)
    between_floats = parse_term("Cast[to=float](Cast[to=float16](x))")
    assert np.array_equal(evaluate([between_floats], finite, {"x": x})[between_floats].p, x.p)


def test_symbolic_extrema_are_associative_and_idempotent() -> None:
    symbolic = Symbolic()
    inputs = {name: symbolic.input(name, ()) for name in "xyz"}
    terms = [parse_term(t) for t in ("Max(x, y, z)", "Max(Max(z, y), Max(x, x))", "Max(x, Max(y, z), y)", "Min(x, y, z)")]
    values = evaluate(terms, symbolic, inputs)
    first, second, third, least = (values[t][()] for t in terms)
    assert first == second == third != least


def test_unsupported_says_so() -> None:
    symbolic = Symbolic()
    with pytest.raises(Unsupported, match="order"):
        evaluate([term := parse_term("Less(x, 0)")], symbolic, {"x": symbolic.input("x", (2,))})[term]
    with pytest.raises(Unsupported, match="finite field"):
        evaluate([parse_term("Clip[max=1.0](Add(x, inf))")], FiniteField(0), {"x": FiniteField(0).const(1)})
    with pytest.raises(Unsupported, match="indices"):
        FiniteField(0).add(np.asarray(True), FiniteField(0).const(1))


def test_registry_suggests_a_name() -> None:
    with pytest.raises(KeyError, match="did you mean 'Gelu'"):
        get_operator("Gelo")
    assert all(record.name == name for name, record in REGISTRY.items())
    assert math.isinf(get_operator("Clip").defaults["max"])


# Constant tensors, and what the zoo of exporters does not write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ones[shape=(2,3)]()", np.ones((2, 3))),
        ("Eye[size=3]()", np.eye(3)),
        ("IdentityKernel[channels=2,kernel=(1,3)]()", np.eye(2)[:, :, None, None] * np.array([0, 1, 0])),
        ("AveragingKernel[channels=2,kernel=(2,2)]()", np.full((2, 1, 2, 2), 0.25)),
        ("GroupBlocks[columns=1,group=4,merged=2,outputs=4]()", np.array([[1, 0], [0, 1], [1, 0], [0, 1]])),
        (
            "GroupBlocks[columns=2,group=2,merged=2,outputs=4]()",
            np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]),
        ),
    ],
)
def test_constant_tensors(text: str, expected: np.ndarray) -> None:
    term = parse_term(text)
    assert term.size == 0  # a leaf
    assert infer_types([term], {})[term] == type_of(expected.astype(F))
    np.testing.assert_array_equal(evaluate([term], Real(), {})[term], expected)
    (written,) = run_form(get_operator(term.op).to_onnx(term.attrs, [], 17), [], 17)
    np.testing.assert_array_equal(written, expected)
    for domain in (FiniteField(0), Symbolic()):
        value = evaluate([term], domain, {})[term]
        wanted = domain.move(lambda *rows: np.stack(rows), *(domain.const(Fraction(x)) for x in expected.reshape(-1)))
        pairs = [(value.p, wanted.p), (value.q, wanted.q)] if isinstance(value, FieldArray) else [(value, wanted)]
        for got, want in pairs:
            np.testing.assert_array_equal(np.reshape(got, -1), np.reshape(want, -1))


def test_fused_convolution_is_relu_of_the_convolution() -> None:
    attrs = "[dilations=(1,1),group=1,pads=(1,1,1,1),strides=(1,1)]"
    fused, plain = parse_term(f"FusedConv{attrs}(x, w)"), parse_term(f"Relu(Conv{attrs}(x, w))")
    generator = np.random.default_rng(0)
    inputs = {"x": generator.normal(size=(1, 3, 4, 5)), "w": generator.normal(size=(2, 3, 3, 3))}
    values = evaluate([fused, plain], Real(), inputs)
    np.testing.assert_array_equal(values[fused], values[plain])
    assert values[fused].min() == 0


def test_convolution_of_symbolic_channels() -> None:
    def conv(group: str, x: str, w: str) -> TensorType:
        term = parse_term(f"Conv[dilations=(1,1),group={group},pads=(1,1,1,1),strides=(1,1)](x, w)")
        return infer_types([term], {"x": parse_type(x), "w": parse_type(w)})[term]

    assert str(conv("1", "[n,c,h,w]", "[o,c,3,3]")) == "float[n,o,h,w]"
    assert str(conv("2", "[n,2*c,h,w]", "[2*o,c,3,3]")) == "float[n,2*o,h,w]"
    assert str(conv("c", "[n,c,h,w]", "[c,1,3,3]")) == "float[n,c,h,w]"
    for group, x, w in (("2", "[n,2*c,h,w]", "[o,c,3,3]"), ("c", "[n,c,h,w]", "[4,1,3,3]"), ("1", "[n,c,h,w]", "[o,d,3,3]")):
        with pytest.raises(Undecided):
            conv(group, x, w)
    with pytest.raises(ShapeError):
        conv("2", "[n,6,h,w]", "[5,3,3,3]")


@pytest.mark.parametrize("wrong", ["columns=-3", "rows=-1", "rows=2.0", "after=1.5", "before=true", "after=(1,2)"])
def test_a_mask_of_positions_counts_places(wrong: str) -> None:
    right = {"after": "-1", "before": "2", "columns": "3", "rows": "4"}
    name, value = wrong.split("=")
    for attributes in (right, {**right, name: value}):
        mask = parse_term(f"BandMask[{','.join(f'{n}={v}' for n, v in attributes.items())}]()")
        if attributes is right:
            assert str(infer_types([mask], {})[mask]) == "bool[4,3]"
        else:
            with pytest.raises(ShapeError, match=f"a mask of positions with {name} "):
                infer_types([mask], {})
