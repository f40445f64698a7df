"""One-node ONNX models: built, run in onnxruntime on the CPU, and wrapped as records read them; types of terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx.foreign import ProtoNode
from mugraph.ops import OnnxForm, filled
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import parse_term, parse_type

Inputs = Sequence[np.ndarray | None]

onnxruntime.set_default_logger_severity(4)


def make_node(
    op_type: str, inputs: Inputs, attributes: Mapping[str, Any], outputs: int | Sequence[str] = 1, domain: str = ""
) -> onnx.NodeProto:
    """A node whose inputs are called x0, x1, ... (absent where ``None``) and whose outputs are y0, y1, ... or as given."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    results = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
    return helper.make_node(op_type, names, results, domain=domain, **attributes)


def run_node(
    node: onnx.NodeProto,
    inputs: Inputs,
    opset: int,
    constants: Sequence[int] = (),
    *,
    runs: bool = True,
    written: Path | None = None,
) -> list[np.ndarray]:
    """The node's outputs in onnxruntime. Inputs at the positions ``constants`` are initializers.

    ``written`` receives the model as onnxruntime prepared it; without ``runs`` it is only loaded.
    """
    session, fed = session_of_node(node, inputs, opset, constants, written)
    results: list[np.ndarray] = session.run(None, fed) if runs else []
    return results


def session_of_node(
    node: onnx.NodeProto, inputs: Inputs, opset: int, constants: Sequence[int] = (), written: Path | None = None
) -> tuple[onnxruntime.InferenceSession, dict[str, np.ndarray]]:
    """A session of a node, and what it is fed; arguments as of :func:`run_node`."""
    given = {name: np.asarray(value) for name, value in zip(node.input, inputs, strict=True) if value is not None}
    fixed = {f"x{i}" for i in constants}
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
            if name not in fixed
        ],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name],
        [numpy_helper.from_array(value, name) for name, value in given.items() if name in fixed],
    )
    for output in graph.output:
        output.ClearField("type")
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(node.domain, 1)] if node.domain else [])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if written is not None:
        options.optimized_model_filepath = str(written)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session, {name: value for name, value in given.items() if name not in fixed}


def type_of(value: np.ndarray) -> TensorType:
    return TensorType(DataType.from_numpy(np.asarray(value).dtype), tuple(np.shape(value)))


def foreign(
    node: onnx.NodeProto,
    inputs: Inputs,
    opset: int,
    constants: Sequence[int] = (),
    types: Sequence[TensorType | None] | None = None,
) -> ProtoNode:
    """The node as a record reads it; ``types`` replaces those of the values, for symbolic dimensions."""
    known = [inputs[i] if i in constants else None for i in range(len(inputs))]
    return ProtoNode(node, opset, types or [None if v is None else type_of(v) for v in inputs], known)


def run_form(form: OnnxForm, operands: Sequence[np.ndarray], opset: int, outputs: int = 1) -> list[np.ndarray]:
    """Runs what a record wrote."""
    form = filled(form, operands.__getitem__)
    inputs = [operands[source] if isinstance(source, int) else source for source in form.inputs]
    constants = [i for i, source in enumerate(form.inputs) if isinstance(source, np.ndarray)]
    names = form.output_names([f"y{i}" for i in range(outputs)])
    return run_node(make_node(form.op_type, inputs, form.attributes, names, form.domain), inputs, opset, constants)


def inferred(term: str, types: str) -> TensorType:
    """The type of a term whose variables x, y, z are of the types that stand in ``types``, in order."""
    root = parse_term(term)
    return infer_types([root], dict(zip("xyz", map(parse_type, types.split()), strict=False)))[root]
