"""Terms as a model-local ONNX function: the plain body of a graph-defined kernel, which runs where its runtime is not.

Operators that the opset lacks, and those of a runtime, are written by what they are defined by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, numpy_helper

from mugraph.onnx.literals import Literals
from mugraph.onnx.sizes import SizeWriter
from mugraph.ops import LocalFunction, NotExpressible, OnnxForm, get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Attrs, Term, walk

__all__ = ["OVERLOADS_FROM_IR", "function_of", "onnx_attribute"]

OVERLOADS_FROM_IR = 10
"""The first IR version in which functions have overloads."""

_Value = tuple[str, TensorType]


@lru_cache(maxsize=256)
def function_of(function: LocalFunction, opset: int) -> FunctionProto:
    """Writes a model-local function at an opset of the default domain.

    Raises:
        NotExpressible: an operator has no form at that opset.
    """
    body = _Body(function.inputs, opset)
    results = body.write(function.body, {f"x{i}": (f"x{i}", type_) for i, type_ in enumerate(function.inputs)})
    outputs = [f"y{i}" for i in range(len(function.body))]
    body.nodes += [onnx.helper.make_node("Identity", [r], [y]) for (r, _), y in zip(results, outputs, strict=True)]
    return onnx.helper.make_function(
        function.domain,
        function.name,
        [f"x{i}" for i in range(len(function.inputs))],
        outputs,
        body.nodes,
        [onnx.helper.make_opsetid("", opset)],
        attributes=list(function.attributes),
        overload=function.overload,
    )


class _Body:
    """Nodes of a function in the making."""

    def __init__(self, inputs: Sequence[TensorType], opset: int) -> None:
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.count = 0
        self.literals = Literals(self.fresh, self.add_constant)
        self.sizes = SizeWriter([(f"x{i}", t) for i, t in enumerate(inputs)], opset, self.size_node, self.literals.name)

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count - 1}"

    def size_node(self, op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[NodeProto, str]:
        name = self.fresh()
        return onnx.helper.make_node(op_type, list(inputs), [name], **attributes), name

    def add_constant(self, tensor: TensorProto) -> None:
        self.nodes.append(onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))

    def write(self, roots: Sequence[Term], values: Mapping[str, _Value]) -> list[_Value]:
        """Writes terms over named values and returns the names and types of the terms."""
        types = infer_types(roots, {name: type_ for name, (_, type_) in values.items()})
        written: dict[Term, _Value] = {}
        applied: dict[tuple[str, Attrs, tuple[Term, ...]], list[_Value]] = {}
        for term in walk(roots):
            if term.is_var:
                written[term] = values[term.name]
            elif term.op != "Const":
                key = (term.op, term.attrs, term.inputs)
                if key not in applied:
                    applied[key] = self.apply(term, [self.operand(i, term, types, written) for i in term.inputs])
                written[term] = applied[key][term.out]
            elif term in roots:
                written[term] = self.constant(term, types[term].dtype)
        return [written[root] for root in roots]

    def operand(self, operand: Term, term: Term, types: Mapping[Term, TensorType], written: Mapping[Term, _Value]) -> _Value:
        """The value of an operand; a number has the element type of the operand beside it."""
        if operand.op != "Const" or isinstance(operand.attr("value"), bool):
            return written[operand] if operand.op != "Const" else self.constant(operand, DataType.BOOL)
        beside = [types[i].dtype for i in term.inputs if i.op != "Const" and types[i].dtype != DataType.BOOL]
        return self.constant(operand, beside[0] if beside else DataType.FLOAT)

    def constant(self, term: Term, dtype: DataType) -> _Value:
        return self.literals.name(np.asarray(term.attr("value"), dtype.numpy())), TensorType(dtype, ())

    def apply(self, term: Term, operands: Sequence[_Value]) -> list[_Value]:
        operator = get_operator(term.op)
        types = [type_ for _, type_ in operands]
        try:
            form = operator.to_onnx(term.attrs, types, self.opset)
            if form.domain:
                raise NotExpressible(f"{term.op} is an operator of {form.domain}")
        except NotExpressible:
            if operator.decomposition is None:
                raise
            return self.write(operator.decompose(term.attrs, types), {f"x{i}": operand for i, operand in enumerate(operands)})
        inputs = [self.sizes.form_input(item, operands) for item in form.inputs]
        outputs = [(self.fresh(), type_) for type_ in operator.types(term.attrs, types)]
        self.nodes += self.sizes.take()
        node = NodeProto(op_type=form.op_type, input=inputs, output=form.output_names([name for name, _ in outputs]))
        node.attribute.extend(onnx_attribute(form, name, value, self.opset) for name, value in form.attributes.items())
        self.nodes.append(node)
        return outputs


def onnx_attribute(form: OnnxForm, name: str, value: Any, opset: int) -> AttributeProto:
    """An attribute of a node to write."""
    if isinstance(value, np.ndarray):
        return onnx.helper.make_attribute(name, numpy_helper.from_array(value))
    if isinstance(value, tuple) and not value:
        schema = onnx.defs.get_schema(form.op_type, opset, form.domain)
        return onnx.helper.make_attribute(name, value, attr_type=schema.attributes[name].type.value)  # type: ignore[attr-defined]
    return onnx.helper.make_attribute(name, value)
