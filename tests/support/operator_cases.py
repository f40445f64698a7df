"""Nodes of every operator of ONNX that has a record, over forms, attributes and opsets."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mugraph.terms.shape import DataType

OPSETS = (9, 10, 11, 12, 13, 15, 17, 18, 20, 21, 23, 26)
"""Versions in which some operator here changed; 26 is the newest that onnxruntime 1.31 loads."""
FLOAT32 = {"rtol": 2e-5, "atol": 2e-6}

F, I64 = np.float32, np.int64


def ints(*values: int) -> np.ndarray:
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
    cases += [Case("Add", [(), (5,)]), Case("Div", [ints(7, -7, 7, -7), ints(2, 2, -2, -2)])]
    cases += [Case(op, [(3, 4)]) for op in ("Neg", "Relu", "Reciprocal", "Exp", "Abs", "Sign", "Floor", "Ceil", "Sin", "Cos")]
    cases += [Case(op, [(3, 500)], low=-8, high=8) for op in ("Sigmoid", "Erf", "Tanh", "Softplus", "Softsign")]
    cases += [Case("Sqrt", [(3, 4)], low=0), Case("Log", [(3, 4)], low=0.1), Case("Abs", [ints(-3, 4)])]
    cases += [
        Case("Round", [np.asarray([-2.5, -1.5, -0.5, 0.5, 1.5, 2.3], F)], since=11),
        Case("Relu", [ints(-1, 2).astype(np.int32)], since=15),
    ]
    for exponent in (-2.0, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0):
        cases.append(Case("Pow", [(3, 4), np.asarray(exponent, F)], constants=(1,), low=0.1))
    cases += [
        Case("Pow", [(3,), np.full((2, 1), 2, F)], constants=(1,)),
        Case("Pow", [(3, 4), (3, 4)], low=0.1),
        Case("Pow", [(3,), ints(3)], constants=(1,), since=12),
        Case("Pow", [ints(2, 3), np.asarray([1.5, 2.0], F)], since=12),
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
        Case("Clip", [ints(-5, 0, 5), np.asarray(-1, I64), np.asarray(3, I64)], constants=(1, 2), since=12),
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
    cases += [Case("Mod", [ints(-7, 5, 0, 9), np.asarray(step, np.int64)], since=10) for step in (3, -5)]
    cases += [Case("Equal", [ints(1, 2), ints(1, 3)]), Case("Equal", flags)]
    cases += [Case("Where", [flags[0], (2, 4), (1,)]), Case("Where", [flags[0], ints(1), ints(2)])]
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
    cases += [Case("Concat", [ints(1, 2), ints(3)], {"axis": 0})]
    cases += [
        Case("Split", [(2, 6)], {"axis": 1, "split": (1, 2, 3)}, until=12, outputs=3),
        Case("Split", [(2, 6)], {"axis": 1}, until=17, outputs=3),
        Case("Split", [(6, 2)], until=17, outputs=2),
        Case("Split", [(2, 6), ints(1, 2, 3)], {"axis": -1}, constants=(1,), since=13, outputs=3),
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
        optional = [None if v is None else ints(*v) for v in (axes, steps)]
        inputs = [(5, 6), ints(*starts), ints(*ends), *optional]
        cases.append(Case("Slice", inputs, constants=(1, 2, 3, 4), since=10))
    for shape in ((2, -1), (6, 4), (0, -1), (4, 3, 2), (24,), (1, 2, 3, 4), (-1, 1, 4)):
        cases.append(Case("Reshape", [x, ints(*shape)], constants=(1,)))
    cases += [Case("Reshape", [x, ints(2, 12)], {"allowzero": 1}, constants=(1,), since=14)]
    cases += [Case("Reshape", [(1,), ints()], constants=(1,))]
    cases += [Case("Flatten", [x], {"axis": a}) for a in (0, 1, 2, 3)] + [Case("Flatten", [x], {"axis": -1}, since=11)]
    cases += [Case("Flatten", [x])]
    cases += [Case("Squeeze", [(1, 3, 1)], {"axes": (0,)}, until=12), Case("Squeeze", [(1, 3, 1)], until=12)]
    cases += [Case("Squeeze", [(1, 3, 1), ints(-1, 0)], constants=(1,), since=13), Case("Squeeze", [(1, 3, 1)], since=13)]
    cases += [Case("Unsqueeze", [(2, 3)], {"axes": (0, 3)}, until=12)]
    cases += [Case("Unsqueeze", [(2, 3), ints(3, 0)], constants=(1,), since=13)]
    cases += [Case("Unsqueeze", [(2, 3), ints(-1, 1)], constants=(1,), since=13)]
    cases += [Case("Expand", [(3, 1), ints(2, 1, 4)], constants=(1,)), Case("Expand", [(2, 3), ints(1)], constants=(1,))]
    return cases


def _reductions() -> list[Case]:
    cases = []
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"):
        since = 13 if op == "ReduceSum" else 18
        for keepdims in (0, 1):
            for axes in ((0,), (0, 2), (2,)):
                attrs = {"keepdims": keepdims}
                cases.append(Case(op, [(2, 3, 4)], {**attrs, "axes": axes}, until=since - 1))
                cases.append(Case(op, [(2, 3, 4), ints(*axes)], attrs, constants=(1,), since=since))
        cases.append(Case(op, [(2, 3)]))
        cases.append(Case(op, [(2, 3), ints()], {"keepdims": 0}, constants=(1,), since=since))
        cases.append(Case(op, [(2, 3), ints(-1)], constants=(1,), since=since))
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
    for shape in ((2, 6, 3, 4), (1, 6, 5), (2, 6, 2, 2, 2)):
        for groups in (1, 3, 6):
            attributes = {"num_groups": groups, "epsilon": 1e-2}
            cases += [Case("GroupNormalization", [shape, (6,), (6,)], attributes, since=21)]
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


def _transposed_convolutions() -> list[Case]:
    cases = [Case("ConvTranspose", [(2, 4, 5, 4), (4, 3, 3, 2)]), Case("ConvTranspose", [(2, 4, 5, 4), (4, 3, 3, 2), (3,)])]
    forms: tuple[Mapping[str, Any], ...] = (
        {"strides": (2, 3), "pads": (1, 0, 2, 1)},
        {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 0), "dilations": (2, 1)},
        {"strides": (1, 1), "pads": (4, 1, 0, 2)},
        {"strides": (3, 2), "kernel_shape": (3, 2), "auto_pad": "VALID"},
        {"strides": (2, 1), "auto_pad": "SAME_UPPER"},
        {"strides": (2, 1), "auto_pad": "SAME_LOWER"},
        {"strides": (2, 2), "output_shape": (10, 7), "pads": (1, 1, 1, 1)},
        {"strides": (2, 2), "output_shape": (8, 7), "auto_pad": "SAME_UPPER"},
    )
    for attrs in forms:
        cases.append(Case("ConvTranspose", [(2, 4, 5, 4), (4, 3, 3, 2), (3,)], attrs))
        cases.append(Case("ConvTranspose", [(2, 4, 5, 4), (4, 3, 3, 2), (6,)], {**attrs, "group": 2}))
    cases += [Case("ConvTranspose", [(2, 4, 5, 4), (4, 1, 3, 3), (4,)], {"group": 4, "strides": (2, 2)})]
    cases += [Case("ConvTranspose", [(2, 4, 7), (4, 3, 5), (3,)], {"pads": (6, 2), "strides": (3,), "output_padding": (2,)})]
    cases += [Case("ConvTranspose", [(1, 2, 3, 2, 4), (2, 3, 2, 3, 2)], {"pads": (0, 1, 1, 1, 0, 1), "strides": (1, 2, 3)})]
    return cases


def _resizings() -> list[Case]:
    """A region and scales that are not given are absent, or empty, as opsets before 13 want it."""
    cases = []
    for none, since in ((None, 13), (np.zeros(0, F), 11)):
        for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            for sizes in ((2, 3, 8, 10), (2, 3, 12, 5), (2, 3, 2, 15), (2, 3, 7, 1), (2, 3, 4, 3)):
                attrs = {"coordinate_transformation_mode": coordinates, "mode": "linear"}
                cases.append(Case("Resize", [(2, 3, 4, 5), none, none, ints(*sizes)], attrs, constants=(1, 2, 3), since=since))
        for coordinates in ("half_pixel", "asymmetric"):
            for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
                attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
                for scales in ((1, 1, 2, 3), (1, 1, 1, 1.5), (1, 2, 0.5, 1)):
                    inputs = [(1, 2, 4, 6), none, np.asarray(scales, F)]
                    cases.append(Case("Resize", inputs, attrs, constants=(1, 2), since=since))
    return cases


def _indexing() -> list[Case]:
    cases = [Case("Gather", [(3, 4, 5), ints(2, 0)], {"axis": a}) for a in (0, 1, 2)]
    cases += [
        Case("Gather", [(3, 4), np.asarray([[0, 1], [2, 2]], np.int32)]),
        Case("Gather", [(3, 4), np.asarray(1)], {"axis": 1}),
    ]
    cases += [Case("Gather", [(3, 4), ints(-1, -2)], {"axis": -1}, since=11), Case("Gather", [ints(5, 6, 7), ints(1)])]
    for mode in ("constant", "edge", "reflect"):
        cases += [Case("Pad", [(3, 4)], {"mode": mode, "pads": (0, 2, 0, 1)}, until=10)]
        cases += [Case("Pad", [(3, 4), ints(1, 2, 0, 1)], {"mode": mode}, constants=(1,), since=11)]
    cases += [Case("Pad", [(3, 4)], {"pads": (1, 0, 0, 2), "value": 1.5}, until=10)]
    cases += [Case("Pad", [(3, 4), ints(1, 0, 0, 2), np.asarray(1.5, F)], constants=(1, 2), since=11)]
    cases += [Case("Pad", [(3, 4), ints(2, 1), np.asarray(-np.inf, F), ints(-2)], constants=(1, 2, 3), since=18)]
    cases += [Case("Pad", [(2, 3, 4), ints(2, 1, 0, 3), None, ints(2, 0)], constants=(1, 3), since=18)]
    cases += [Case("Pad", [(3, 4), ints(0, 0, 0, 0)], constants=(1,), since=11)]
    cases += [Case("Tile", [(2, 3), ints(*r)], constants=(1,)) for r in ((2, 1), (1, 3), (1, 1))]
    cases += [Case("DepthToSpace", [(2, 12, 2, 3)], {"blocksize": 2, "mode": mode}, since=11) for mode in ("DCR", "CRD")]
    cases += [Case("DepthToSpace", [(2, 9, 2, 3)], {"blocksize": 3}), Case("SpaceToDepth", [(2, 3, 4, 6)], {"blocksize": 2})]
    places, three = ints(0, -1, 2, -3, 3, -4, 2**63 - 1, -(2**63)).reshape(2, 4), np.asarray(3, I64)
    cases += [Case("OneHot", [places, three, np.asarray([0.5, 2.0], F)], {"axis": axis}, (1,)) for axis in (-3, 0, 1, 2, -1)]
    cases += [Case("OneHot", [places[:1].astype(np.int32), three.astype(np.int32), np.asarray([-1, 1], F)], {}, (1,))]
    cases += [Case("OneHot", [places, np.asarray([3.7], F), np.asarray([7, -7], t)], {}, (1,)) for t in (np.int32, F)]
    cases += [Case("OneHot", [ints(1, -5), ints(5), ints(4, 5)], {}, (1, 2))]
    cases += [
        Case("ConstantOfShape", [ints(2, 3)], {"value": np.asarray([v], d)}, constants=(0,))
        for v, d in ((1.5, F), (7, I64), (True, bool))
    ]
    cases += [Case("ConstantOfShape", [ints(2, 3)], constants=(0,)), Case("ConstantOfShape", [ints()], constants=(0,))]
    picked = [np.asarray([[1, 2], [0, -1]], I64), np.asarray([[[1], [0]], [[-1], [1]]], I64), ints(1, 2, 3)]
    cases += [Case("GatherND", [(2, 3, 4), indices], since=11) for indices in picked]
    cases += [Case("GatherND", [np.asarray([[True, False], [False, True]]), picked[0] % 2], since=11)]
    cases += [Case("Trilu", [(3, 4)], since=14), Case("Trilu", [np.ones((2, 3, 3), bool)], {"upper": 0}, since=14)]
    for k in (-1, 2):
        cases += [Case("Trilu", [(2, 3, 4), np.asarray(k, I64)], {"upper": u}, constants=(1,), since=14) for u in (0, 1)]
    cases += [
        Case("CumSum", [(2, 3, 4), np.asarray(axis, I64)], {"exclusive": e, "reverse": r}, constants=(1,), since=11)
        for axis, e, r in ((-1, 0, 0), (1, 1, 0), (0, 0, 1), (-1, 1, 1))
    ]
    cases += [Case("CumSum", [ints(3, 4, 5), np.asarray(0, I64)], constants=(1,), since=11)]
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
    """Of all sizes, but signed ones: onnxruntime saturates sums of products of larger ones by unsigned bytes on some processors
    (docs/upstream.md)."""
    generator = np.random.default_rng(shape)
    return generator.integers(-64, 64, shape).astype(np.int8) if signed else generator.integers(0, 256, shape).astype(np.uint8)


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
    *_transposed_convolutions(),
    *_resizings(),
    *_indexing(),
    *_scattering(),
    *_quantized(),
]
