"""Models of one operator each, from the samples of its record: for what must hold of every record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from mugraph.blocks.operator import KERNEL
from mugraph.ops import OnnxForm, Operator, filled
from mugraph.terms.shape import DataType, TensorType, Undecided, concrete
from mugraph.terms.term import Term
from tests.support.samples import applications

__all__ = ["Application", "applications_of", "typed_models"]

_FLOATS = (DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE, DataType.BFLOAT16)


_LARGEST = 1 << 14
"""Entries of the largest operand of a sample that is tried in every type."""


@dataclass(frozen=True, slots=True)
class Application:
    """A sample as ONNX writes it.

    Attributes:
        form: the node.
        operands, results: concrete types.
        opset: of the default domain.
    """

    record: Operator
    form: OnnxForm
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    opset: int

    def model(self, read: int | None = None, leave_out: bool = False) -> onnx.ModelProto:
        """The node, with two negations or a guard against NaN behind each result that is read, for rules to remove.

        Args:
            read: how many of the results, from the first on, are read; ``None`` is all.
            leave_out: the node does not name the others, where onnxruntime runs it without their names.
        """
        leave_out = leave_out and not self.form.names_all
        count = len(self.results) if read is None else read
        inputs = [helper.make_tensor_value_info(f"x{i}", int(t.dtype), concrete(t.shape)) for i, t in enumerate(self.operands)]
        stored = [numpy_helper.from_array(np.asarray(v), f"c{i}") for i, v in enumerate(self.form.inputs) if _is_array(v)]
        names = ["" if v is None else f"x{v}" if isinstance(v, int) else f"c{i}" for i, v in enumerate(self.form.inputs)]
        produced = self.form.output_names([f"y{i}" if i < count or not leave_out else "" for i in range(len(self.results))])
        while produced and not produced[-1]:
            produced.pop()
        attributes = {
            name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            for name, value in self.form.attributes.items()
        }
        nodes = [helper.make_node(self.form.op_type, names, produced, "node", domain=self.form.domain, **attributes)]
        outputs = []
        for i, type_ in enumerate(self.results[:count]):
            nodes += _readers(i, type_)
            outputs.append(helper.make_tensor_value_info(f"z{i}", int(type_.dtype), concrete(type_.shape)))
        graph = helper.make_graph(nodes, self.record.name, inputs, outputs, stored)
        imports = [helper.make_opsetid("", self.opset), *([helper.make_opsetid(self.form.domain, 1)] if self.form.domain else [])]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _is_array(item: object) -> bool:
    return item is not None and not isinstance(item, int)


def _readers(index: int, type_: TensorType) -> list[onnx.NodeProto]:
    """Nodes from the result ``y`` to the output ``z``."""
    y, z = f"y{index}", f"z{index}"
    if type_.dtype not in _FLOATS:
        return [helper.make_node("Identity", [y], [z])]
    return [
        helper.make_node("IsNaN", [y], [f"{y}_nan"]),
        helper.make_node("Where", [f"{y}_nan", y, y], [f"{y}_same"]),
        helper.make_node("Neg", [f"{y}_same"], [f"{y}_negated"]),
        helper.make_node("Neg", [f"{y}_negated"], [z]),
    ]


def applications_of(record: Operator, opset: int, dtype: DataType = DataType.FLOAT) -> Iterator[Application]:
    """The samples of a record that ONNX has at an opset, with ``dtype`` for the floats of the samples."""
    if record.name == KERNEL:
        return
    for term, types in applications(record):
        application = _application(record, term, types, opset, dtype)
        if application is not None:
            yield application


def _application(record: Operator, term: Term, types: Sequence[TensorType], opset: int, dtype: DataType) -> Application | None:
    operands = tuple(TensorType(dtype if t.dtype == DataType.FLOAT else t.dtype, t.shape) for t in types)
    try:
        results = record.types(term.attrs, operands)
        form = filled(record.to_onnx(term.attrs, operands, opset), lambda i: np.zeros(concrete(types[i].shape) or (), np.int8))
    except (Undecided, ValueError):
        return None
    return None if form.function is not None else Application(record, form, operands, tuple(results), opset)


def typed_models(record: Operator, opset: int, dtype: DataType) -> Iterator[onnx.ModelProto]:
    """The samples of a record with ``dtype`` for the floats of the samples, as far as onnxruntime's CPU provider has a kernel.

    The record itself may refuse the type.
    """
    for app in applications_of(record, opset):
        if max((type_.size() for type_ in app.operands), default=0) > _LARGEST:
            continue
        operands = tuple(TensorType(dtype if t.dtype == DataType.FLOAT else t.dtype, t.shape) for t in app.operands)
        attributes = dict(app.form.attributes)
        if record.name == "Cast" and dtype == DataType.FLOAT:
            attributes["to"] = int(DataType.DOUBLE)
        model = replace(app, operands=operands, form=replace(app.form, attributes=attributes)).model()
        del model.graph.node[1:]
        del model.graph.output[1:]
        model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name=next(name for name in model.graph.node[0].output if name)))
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # onnxruntime raises many types where it has no kernel
            continue
        (result,) = session.get_outputs()
        element = DataType[result.type.removeprefix("tensor(").removesuffix(")").upper()]
        sizes = [size if isinstance(size, int) else None for size in result.shape]
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info(result.name, int(element), sizes))
        yield model
