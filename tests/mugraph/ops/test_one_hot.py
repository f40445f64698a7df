"""OneHot against ONNX's own conformance cases."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mugraph.domains import Real
from mugraph.ops import DESCRIBED_OPSET, NotUnderstood, get_operator
from mugraph.terms.text import parse_type
from tests.support.onnx_helpers import foreign, type_of
from tools.fuzz.conformance import ConformanceCase, cases

CASES = {name: case for name, case in cases().items() if "OneHot" in case.operators}


def _given(case: ConformanceCase) -> tuple[onnx.NodeProto, list[np.ndarray], np.ndarray]:
    """The node, its inputs and what ONNX expects of it."""
    assert case.source.data_sets is not None
    ((inputs, (expected,)),) = case.source.data_sets
    return case.proto().graph.node[0], [np.asarray(value) for value in inputs], expected


@pytest.mark.parametrize("name", CASES)
def test_cases_of_onnx(name: str) -> None:
    """Those at floats are left alone."""
    node, inputs, expected = _given(CASES[name])
    record = get_operator("OneHot")
    if inputs[0].dtype.kind == "f":
        with pytest.raises(NotUnderstood, match="at indices that are floats"):
            record.read(foreign(node, inputs, DESCRIBED_OPSET, (1,)))
        return
    reading = record.read(foreign(node, inputs, DESCRIBED_OPSET, (1,)))
    operands = [inputs[i] for i in reading.operands]
    assert record.types(reading.attrs, [type_of(value) for value in operands]) == (type_of(expected),)
    np.testing.assert_array_equal(record.run(Real(), reading.attrs, operands)[0], expected)


def test_there_are_cases_with_indices_from_the_end_and_outside() -> None:
    understood = [inputs for _, inputs, _ in map(_given, CASES.values()) if inputs[0].dtype.kind != "f"]
    assert any((-depth <= indices).any() and (indices < 0).any() for indices, depth, _ in understood)
    assert any((indices >= depth).any() for indices, depth, _ in understood)


@pytest.mark.parametrize(
    ("indices", "values", "dtype"),
    [("int8[3]", "float[2]", "int64"), ("int32[3]", "float[2]", "int32"), ("int64[3]", "int32[2]", "float32")],
)
def test_a_depth_is_written_that_no_index_reaches(indices: str, values: str, dtype: str) -> None:
    form = get_operator("OneHot").write({"axis": -1, "depth": 1000}, [parse_type(indices), parse_type(values)], DESCRIBED_OPSET)
    depth = form.inputs[1]
    assert isinstance(depth, np.ndarray) and depth == 1000 and depth.dtype == dtype
