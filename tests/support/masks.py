"""Masks of positions, and models of attention under them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from rewriter.run.optimize import optimize
from tests.support.models import random_feeds, session

HEADS, SIZE, LENGTH = 4, 16, 512


def within(rows: int, columns: int, before: int, after: int) -> np.ndarray:
    ahead = np.arange(columns) - np.arange(rows)[:, None]
    return (ahead >= -before) & (ahead <= after)


def added(seen: np.ndarray, low: float = -np.inf, dtype: type = np.float32) -> np.ndarray:
    return np.where(seen, 0.0, low).astype(dtype)


def attention(mask: np.ndarray | None, form: str = "Add", computed: str = "", low: float = -np.inf) -> ModelProto:
    """Attention over heads side by side, as torch exports it, under a constant mask or one that is computed as ``seen``."""
    width = HEADS * SIZE
    type_ = f"float[b,{'s' if computed else LENGTH},{width}]"
    masked = "masked = Where(seen4, scaled, low)" if form == "Where" else "masked = Add(scaled, bias)"
    if computed and form == "Add":
        masked = f"bias = Where(seen4, nought, low) {masked}"
    positions = """
        shape = Shape(q) sn = Gather<axis: int = 0>(shape, one) steps = Range(zero, sn, one)
        key = Unsqueeze(steps, first) query = Unsqueeze(steps, second)
    """
    proto = parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g ({type_} q, {type_} k, {type_} v) => ({type_} y) {{
            {f"{positions} {computed} seen4 = Unsqueeze(seen, both)" if computed else ""}
            q3 = Reshape(q, heads) q4 = Transpose<perm = [0,2,1,3]>(q3)
            k3 = Reshape(k, heads) k4 = Transpose<perm = [0,2,3,1]>(k3)
            v3 = Reshape(v, heads) v4 = Transpose<perm = [0,2,1,3]>(v3)
            scores = MatMul(q4, k4) scaled = Mul(scores, scale) {masked}
            weights = Softmax<axis: int = -1>(masked) o = MatMul(weights, v4)
            o3 = Transpose<perm = [0,2,1,3]>(o) y = Reshape(o3, whole)
        }}"""
    )
    values = {
        **{
            "zero": np.int64(0),
            "one": np.int64(1),
            "first": [0],
            "second": [1],
            "both": [0, 1],
            "width": np.int64(16),
            "step": np.int64(3),
        },
        **{"heads": [0, 0, HEADS, SIZE], "whole": [0, 0, width], "scale": np.float32(0.25), "low": np.float32(low)},
        "nought": np.float32(0),
    }
    if mask is not None:
        values["seen4" if form == "Where" else "bias"] = mask[None, None]
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in values.items() if n in read)
    return proto


def kept_sources(proto: ModelProto, folder: Path) -> str:
    """The text of the kernels that a model gets; what it computes without them is compared with the original."""
    onnx.save(proto, folder / "model.onnx")
    sizes = {name: (2, LENGTH, HEADS * SIZE) for name in "qkv"}
    optimize(
        folder / "model.onnx",
        folder / "out.onnx",
        device="h200",
        deterministic=True,
        kernels_folder=folder / "kept",
        shapes=sizes,
    )
    before, after = session(proto.SerializeToString()), session((folder / "out.onnx").read_bytes())
    for batch, length in ((2, LENGTH), (1, 37), (1, 5), (1, 1)):
        if length == LENGTH or "s" in [d.dim_param for d in proto.graph.input[0].type.tensor_type.shape.dim]:
            feeds = random_feeds(before, b=batch, s=length)
            np.testing.assert_allclose(after.run(None, feeds)[0], before.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
    return "".join(path.read_text() for path in sorted((folder / "kept").glob("*.py")))
