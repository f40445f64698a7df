"""What operator records do not understand, cannot write, refuse or leave undecided, and what they do with symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from mugraph.domains import Real
from mugraph.onnx.foreign import ProtoNode
from mugraph.ops import ONNX_OPERATORS, NotExpressible, NotUnderstood, get_operator
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, floor_div, symbol
from mugraph.terms.text import parse_term, parse_type
from tests.support.onnx_helpers import foreign, inferred, make_node, run_node, type_of
from tests.support.operator_cases import I64, Case, F, ints


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
        ("Clip", [ints(1), np.asarray(2**60 + 1)], {}, 13, (1,), 1, "min"),
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
        ("ReduceSum", [(2, 3), ints(0)], {}, 13, (), 1, "computed axes"),
        ("ReduceSum", [(2, 3)], {"noop_with_empty_axes": 1}, 13, (), 1, "no axis"),
        ("ReduceMean", [(2, 3)], {"axes": (0,)}, 18, (), 1, "attribute axes"),
        ("Reshape", [(2, 3), ints(6)], {}, 13, (), 1, "computed shape"),
        ("Reshape", [(0, 3), ints(-1)], {}, 13, (1,), 1, "without entries"),
        ("Split", [(2, 7)], {"axis": 1}, 13, (), 3, "equal parts"),
        ("Split", [(2, 5)], {"axis": 1, "num_outputs": 4}, 18, (), 4, "equal parts"),
        ("Pad", [(3,), ints(-1, 0)], {}, 13, (1,), 1, "by (-1, 0)"),
        ("Pad", [(3,), ints(1, 0)], {"mode": "wrap"}, 19, (1,), 1, "wrap"),
        ("Expand", [(3,), ints(2, 3)], {}, 13, (), 1, "computed shape"),
        ("Gelu", [(3,)], {"approximate": "none", "future": 1}, 20, (), 1, "future"),
        ("Add", [(3,), (3,)], {"axis": 1}, 13, (), 1, "attribute axis"),
        ("Tile", [(3,), ints(0)], {}, 13, (1,), 1, "(0,)"),
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


@pytest.mark.parametrize("opset", [7, 9, 13])
def test_statistics_of_a_batch_that_are_named_train_where_nobody_reads_them(opset: int) -> None:
    """Before opset 14 the number of outputs says so."""
    operands = Case("BatchNormalization", [(2, 3, 5), (3,), (3,), (3,), (3,)], {}).arrays()
    plain, training = (make_node("BatchNormalization", operands, {}, outputs) for outputs in (1, 5))
    (wanted,), (other, *_) = (run_node(node, operands, opset) for node in (plain, training))
    assert not np.allclose(wanted, other, atol=0.1)
    read = ONNX_OPERATORS["BatchNormalization"].read
    assert read(foreign(plain, operands, opset)).operands == (0, 1, 2, 3, 4)
    with pytest.raises(NotUnderstood, match="training mode"):
        read(ProtoNode(training, opset, list(map(type_of, operands)), wanted=1))


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
        ("Slice[axes=(-1,),ends=(3*n,),starts=(2,),steps=(3,)](x)", "float[3*n]", "float[n]"),
        ("Slice[axes=(-1,),ends=(2*n,),starts=(0,),steps=(4,)](x)", "float[4*m+2*n]", "float[floor((2*n+3)/4)]"),
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
        ("Windows[axis=-2,dilations=(1,),kernel=(3,),strides=(1,)](x)", "float[b,n,m]", "float[b,n-2,3,m]"),
        ("Windows[axis=-2,dilations=(2,),kernel=(k,),strides=(1,)](x)", "float[n+2*k,m]", "float[n+2,k,m]"),
        ("Conv[dilations=(2,),pads=(1,0),strides=(1,)](x, y)", "float[1,c,n+2*k] float[4,c,k]", "float[1,4,n+3]"),
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


def test_kernels_as_wide_as_their_strides_have_as_many_places_as_there_are_patches() -> None:
    type_ = inferred("Conv[dilations=(1,1),group=1,pads=(0,0,0,0),strides=(k,m)](x, y)", "float[n,c,h*k,3*m] float[d,c,k,m]")
    assert type_.shape == (symbol("n"), symbol("d"), symbol("h"), 3)


@pytest.mark.parametrize(
    ("window", "image", "kernel", "places"),
    [
        ("pads=(0,0,0,0),strides=(k,3)", "h*k,10", "k,3", (symbol("h"), 3)),
        ("pads=(0,0,0,0),strides=(3,k)", "11,h*k", "3,k", (3, symbol("h"))),
        ("pads=(0,0,0,0),strides=(k,3)", "h*k,w", "k,3", (symbol("h"), floor_div(symbol("w") - 3, 3) + 1)),
        ("pads=(0,1,0,1),strides=(k,2)", "h*k,8", "k,3", (symbol("h"), 4)),
    ],
)
def test_along_an_axis_whose_kernel_is_known_places_are_counted_as_ever(
    window: str, image: str, kernel: str, places: tuple[object, ...]
) -> None:
    type_ = inferred(f"Conv[dilations=(1,1),group=1,{window}](x, y)", f"float[n,c,{image}] float[d,c,{kernel}]")
    assert type_.shape[2:] == places


@pytest.mark.parametrize(
    ("window", "image", "kernel"),
    [
        ("dilations=(1,1),pads=(0,0,0,0),strides=(k,3)", "h*k,2", "k,3"),
        ("dilations=(1,1),pads=(0,0,0,0),strides=(k,3)", "h*k,0", "k,3"),
        ("dilations=(1,1),pads=(0,0,0,0),strides=(k,0)", "h*k,6", "k,0"),
        ("dilations=(1,1),pads=(0,0,-1,0),strides=(k,m)", "h*k,6", "k,m"),
        ("dilations=(1,1),pads=(0,0,0,0),strides=(k,)", "h*k,w*m", "k,m"),
        ("dilations=(1,1),pads=(0,0),strides=(k,m)", "h*k,w*m", "k,m"),
    ],
)
def test_no_kernel_of_unknown_size_makes_good_what_cannot_be(window: str, image: str, kernel: str) -> None:
    with pytest.raises(ShapeError):
        inferred(f"Conv[group=1,{window}](x, y)", f"float[n,c,{image}] float[d,c,{kernel}]")


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("Add(x, y)", "float[n] float[m]"),
        ("MatMul(x, y)", "float[2,n] float[m,3]"),
        ("Squeeze[axes=(-1,)](x)", "float[2,n]"),
        ("Slice[axes=(-1,),ends=(4,),starts=(0,),steps=(1,)](x)", "float[n]"),
        ("Conv[dilations=(1,),pads=(0,0),strides=(k,)](x, y)", "float[1,2,n] float[4,2,k]"),
        ("Conv[dilations=(1,),pads=(0,0),strides=(k,)](x, y)", "float[1,2,3*m] float[4,2,m]"),
        ("Conv[dilations=(1,),pads=(1,0),strides=(k,)](x, y)", "float[1,2,3*k] float[4,2,k]"),
        ("Conv[dilations=(2,),pads=(0,0),strides=(k,)](x, y)", "float[1,2,3*k] float[4,2,k]"),
        ("Conv[dilations=(1,),pads=(0,0),strides=(k,)](x, y)", "float[1,2,3*k] float[4,2,3]"),
        ("Conv[dilations=(1,),pads=(k,0),strides=(3,)](x, y)", "float[1,2,9] float[4,2,3]"),
        ("Conv[dilations=(1,),pads=(0,0),strides=(k,)](x, y)", "float[1,2,1+3*k] float[4,2,k]"),
        ("MaxPool[ceil=true,dilations=(1,),kernel=(3,),pads=(0,0),strides=(2,)](x)", "float[1,2,n]"),
        ("Windows[axis=-1,dilations=(1,),kernel=(3,),strides=(k,)](x)", "float[n]"),
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
    assert _symbolic_reading("Reshape", (n, s, 768), {}, [ints(0, 0, 12, 64)]) == {"drop": 1, "shape": (12, 64)}
    assert _symbolic_reading("Reshape", (n, s, 768), {}, [ints(0, -1, 12, 64)]) == {"drop": 1, "shape": (12, 64)}
    assert _symbolic_reading("Reshape", (n, s, 768), {}, [ints(-1, 768)]) == {"drop": 3, "shape": (n * s, 768)}
    assert _symbolic_reading("Flatten", (n, 3, 4), {}) == {"drop": 2, "shape": (12,)}
    assert _symbolic_reading("Split", (3, 2 * n), {"axis": 1}, outputs=2) == {"axis": -1, "sizes": (n, n)}
    whole = _symbolic_reading("Slice", (n, 4), {}, [ints(0), ints(2**63 - 1), ints(0)])
    assert whole == {"axes": (-2,), "starts": (0,), "ends": (n,), "steps": (1,)}
    with pytest.raises(NotUnderstood, match="backwards"):  # onnxruntime begins at the last entry, ONNX has nothing left
        _symbolic_reading("Slice", (3, 4), {}, [ints(-1), ints(2**63 - 1), ints(0), ints(-1)])
    same = _symbolic_reading("MaxPool", (1, 3, n), {"kernel_shape": (3,), "auto_pad": "SAME_UPPER"})
    assert same["pads"] == (1, 1)
    with pytest.raises(NotUnderstood, match="symbolic"):
        _symbolic_reading("Slice", (n, 4), {}, [ints(1), ints(3), ints(0)])
    with pytest.raises(NotUnderstood, match="stride"):
        _symbolic_reading("MaxPool", (1, 3, n), {"kernel_shape": (3,), "auto_pad": "SAME_UPPER", "strides": (2,)})
    with pytest.raises(NotUnderstood, match="undecided"):
        _symbolic_reading("Reshape", (n, 5), {}, [ints(3, -1)])
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


def test_concat_of_different_ranks_is_ill_typed_whatever_else_is_unknown() -> None:
    n, m = symbol("n"), symbol("m")
    operands = [TensorType(DataType.FLOAT, shape) for shape in ((2, m), (3, n), (n,))]
    with pytest.raises(ShapeError, match="different ranks"):
        get_operator("Concat").types({"axis": -2}, operands)
