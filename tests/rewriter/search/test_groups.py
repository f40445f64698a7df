"""Groups of a convolution that are merged: kernels that are zero where they would read another group (TASO, section 7)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import load
from rewriter import optimize


def grouped(path: Path, channels: int, groups: int, bias: bool = False, dtype: int = TensorProto.FLOAT) -> Path:
    """One convolution 3x3 in groups over an image [1,channels,28,28]."""
    generator, numbers = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(dtype)
    shapes = [(channels, channels // groups, 3, 3), *([(channels,)] if bias else [])]
    weights = [numpy_helper.from_array(generator.standard_normal(s).astype(numbers), f"w{i}") for i, s in enumerate(shapes)]
    node = helper.make_node("Conv", ["x", *(w.name for w in weights)], ["y"], pads=[1] * 4, group=groups)
    ends = [helper.make_tensor_value_info(name, dtype, (1, channels, 28, 28)) for name in "xy"]
    graph = helper.make_graph([node], "grouped", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def groups_written(model: Path) -> list[object]:
    """The groups of the convolutions that are written for a processor, after numbers were compared."""
    out = model.with_suffix(".out.onnx")
    optimize(model, out, device="cpu", deterministic=True, use_verdicts=False)
    return [dict(node.attrs)["group"] for node in load(out).graph.nodes() if "Conv" in node.op]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("channels", "groups", "merged"), [(256, 32, 16), (128, 32, 8), (64, 32, 4), (64, 4, 4), (16, 16, 16)])
def test_narrow_groups_are_merged_until_they_fill_a_block(
    tmp_path: Path, channels: int, groups: int, merged: int, bias: bool
) -> None:
    """As in ResNeXt's first stages; a depthwise convolution is none, and groups of 16 channels have all that they want."""
    assert groups_written(grouped(tmp_path / "grouped.onnx", channels, groups, bias)) == [merged]
