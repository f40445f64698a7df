"""Written models whose kernels compute another thing than their bodies do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.parser import parse_model

from rewriter import optimize

__all__ = ["FEED", "softmax_times", "with_another_body", "with_kernel"]

FEED = {"x": np.linspace(-3, 3, 4 * 48, dtype=np.float32).reshape(4, 48)}


def softmax_times(factor: str) -> bytes:
    """A model of some elementwise operators and a softmax, whose output is as large as the factor."""
    return parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[4,48] x) => (float[4,48] y) {{
            a = Sigmoid(x) b = Mul(x, a) c = Softmax<axis = -1>(b) half = Constant<value_float = {factor}>() y = Mul(c, half)
        }}""").SerializeToString()


def with_kernel(folder: Path, **options: Any) -> onnx.ModelProto:
    """:func:`softmax_times` of a half, written with a kernel."""
    (folder / "model.onnx").write_bytes(softmax_times("0.5"))
    optimize(folder / "model.onnx", folder / "written.onnx", deterministic=True, **options)
    return onnx.load(folder / "written.onnx")


def with_another_body(written: onnx.ModelProto) -> bytes:
    """The same with half of what it was in the bodies of its kernels; the kernels stay."""
    changed = onnx.ModelProto()
    changed.CopyFrom(written)
    for function in changed.functions:
        (result,) = function.output
        for node in function.node:
            node.output[:] = ["whole" if name == result else name for name in node.output]
        half = helper.make_node("Constant", [], ["half"], value_float=0.5)
        function.node.extend([half, helper.make_node("Mul", ["whole", "half"], [result])])
    return changed.SerializeToString()
