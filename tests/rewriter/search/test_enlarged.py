"""Kernels enlarged by zeros: a convolution with a smaller kernel over the same image is merged with its neighbour."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import load
from rewriter import optimize

CHANNELS = 8


class Branches:
    """Convolutions over one image [1,8,11,13], each with a bias."""

    def __init__(self, dtype: int = TensorProto.FLOAT) -> None:
        self.dtype, self.numbers = dtype, helper.tensor_dtype_to_np_dtype(dtype)
        self.generator = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"v{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def weight(self, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(self.numbers), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, height: int, width: int, out: int = CHANNELS, stride: int = 1, group: int = 1) -> str:
        shapes = ((out, CHANNELS // group, height, width), (out,))
        names = [self.weight(self.generator.standard_normal(shape)) for shape in shapes]
        return self.node("Conv", "x", *names, pads=[height // 2, width // 2] * 2, strides=[stride] * 2, group=group)

    def normalised(self, x: str) -> str:
        """A BatchNormalization of other epsilon than the default, whose variances are not near zero."""
        scale, bias, mean, variance = (self.weight(self.generator.uniform(0.5, 1.5, CHANNELS)) for _ in range(4))
        return self.node("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-3)

    def save(self, path: Path, result: str) -> Path:
        ends = [helper.make_tensor_value_info("x", self.dtype, (1, CHANNELS, 11, 13))]
        ends.append(helper.make_tensor_value_info(result, self.dtype, None))
        graph = helper.make_graph(self.nodes, "branches", ends[:1], ends[1:], self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(proto), path)
        return path


def written(model: Path) -> Counter[str]:
    """The operators of what is written for a GPU, after numbers were compared."""
    out = model.with_suffix(".out.onnx")
    outcome = optimize(model, out, device="h200", deterministic=True, kernels=False, use_verdicts=False)
    assert outcome.improved, outcome.message
    graph = load(out).graph
    ops = Counter(node.op for node in graph.nodes() if not graph.tables.constant[node.values[0]])
    return ops + Counter({"Conv": ops.pop("NhwcConv", 0) + ops.pop("FusedConv", 0)})


@pytest.mark.parametrize(
    ("large", "small", "stride"), [((3, 3), (1, 1), 1), ((3, 3), (1, 1), 2), ((5, 5), (3, 3), 1), ((3, 3), (1, 3), 1)]
)
def test_a_kernel_beside_a_larger_one_is_enlarged(
    tmp_path: Path, large: tuple[int, int], small: tuple[int, int], stride: int
) -> None:
    b = Branches()
    parts = [b.node("Relu", b.conv(*small, out=4, stride=stride)), b.node("Relu", b.conv(*large, out=6, stride=stride))]
    ops = written(b.save(tmp_path / "beside.onnx", b.node("Concat", *parts, axis=1)))
    assert ops["Conv"] == 1 and not ops["Concat"] and not ops["Split"]


def test_kernels_that_are_added_are_one(tmp_path: Path) -> None:
    """As in RepVGG while it is trained."""
    b = Branches()
    ops = written(b.save(tmp_path / "summed.onnx", b.node("Relu", b.node("Add", b.conv(3, 3), b.conv(1, 1)))))
    assert ops["Conv"] == 1 and not ops["Add"]


@pytest.mark.parametrize(("side", "dtype"), [(3, TensorProto.FLOAT), (5, TensorProto.FLOAT), (3, TensorProto.FLOAT16)])
def test_the_image_itself_is_a_branch(tmp_path: Path, side: int, dtype: int) -> None:
    """RepVGG's third branch: an identity kernel of the size that the pads tell, in the model's own element type."""
    b = Branches(dtype)
    summed = b.node("Add", b.node("Add", b.conv(side, side), b.conv(1, 1)), "x")
    ops = written(b.save(tmp_path / "image.onnx", b.node("Relu", summed)))
    assert ops["Conv"] == 1 and not ops["Add"]


@pytest.mark.parametrize(("side", "group"), [(3, 1), (1, 1), (3, CHANNELS), (1, CHANNELS)])
def test_a_normalised_image_is_a_branch(tmp_path: Path, side: int, group: int) -> None:
    """As in MobileOne while it is trained, whose convolutions are depthwise and pointwise."""
    b = Branches()
    ops = written(
        b.save(tmp_path / "image.onnx", b.node("Relu", b.node("Add", b.conv(side, side, group=group), b.normalised("x"))))
    )
    assert ops["Conv"] == 1 and not ops["Add"] and not ops["BatchNormalization"]


@pytest.mark.parametrize("pads", [[0, 1, 2, 1], [2, 2, 0, 0]])
def test_an_image_that_the_kernel_does_not_stand_around_stays(tmp_path: Path, pads: list[int]) -> None:
    b = Branches()
    y = b.conv(3, 3)
    next(each for each in b.nodes[-1].attribute if each.name == "pads").CopyFrom(helper.make_attribute("pads", pads))
    out = tmp_path / "out.onnx"
    model = b.save(tmp_path / "apart.onnx", b.node("Add", y, "x"))
    optimize(model, out, device="h200", deterministic=True, kernels=False, use_verdicts=False)
    assert [node.op_type for node in onnx.load(out).graph.node if node.op_type == "Add"] == ["Add"] or any(
        node.op_type == "FusedConv" and len(node.input) == 4 for node in onnx.load(out).graph.node
    )


def test_kernels_of_which_none_holds_the_other_stay_apart(tmp_path: Path) -> None:
    b = Branches()
    model = b.save(tmp_path / "apart.onnx", b.node("Concat", b.conv(1, 7), b.conv(7, 1), axis=1))
    out = tmp_path / "out.onnx"
    optimize(model, out, device="h200", deterministic=True, kernels=False, use_verdicts=False)
    assert sum(node.op_type in ("Conv", "NhwcConv", "FusedConv") for node in onnx.load(out).graph.node) == 2
