"""The Triton source of kernels in written models, interpreted on a machine without a GPU and held against their bodies.

Operands of each kernel are what onnxruntime's CPU provider computes. They lie in memory that ends where they end, so that who
reads past them ends the interpreter (`tools.fuzz.triton_server`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN
from mugraph.blocks.sizes import bound_sizes
from mugraph.blocks.text import kernel_from_json, variants_from_json
from mugraph.blocks.variants import Variants
from mugraph.terms.shape import DataType
from rewriter.kernels.triton import generate
from rewriter.runtime.plan import Expression
from tools.fuzz.elsewhere import counted
from tools.fuzz.fates import Fate
from tools.fuzz.interpreter import Interpreter, InterpreterFailed
from tools.fuzz.oracle import Originals, Verdict, far
from tools.fuzz.running import CannotRun, Outputs, run

__all__ = ["Interpreted"]

_MOST_BLOCKS = 128
"""Blocks of a kernel that are interpreted one after the other: more take too long."""
_UNREAD = frozenset({DataType.BFLOAT16, DataType.INT4, DataType.UINT4})
"""Element types that the interpreter does not compute with."""

_Values = Mapping[str, Any]


class Interpreted:
    """Interprets the kernels of a model. Called as `tools.fuzz.oracle.Elsewhere`."""

    def __init__(self) -> None:
        self._interpreter: Interpreter | None = None

    def __call__(self, originals: Originals, written: bytes) -> tuple[Verdict | None, Counter[str]]:
        _, counts = counted(originals, written)
        model, told = onnx.ModelProto.FromString(written), None
        nodes = [node for node in model.graph.node if _is_compiled(node)]
        if not nodes:
            return None, counts
        values = {kind: values for kind, values in _values(model, nodes, originals)}
        for node in nodes:
            verdict = self._verdict(_CompiledNode.of(model, node), values, counts)
            if verdict is not None and verdict[0].is_failure:
                return verdict, counts
            told = told or verdict
        return told, counts

    def _verdict(self, node: _CompiledNode, values: Mapping[str, _Values], counts: Counter[str]) -> Verdict | None:
        """What is wrong with a kernel on operands of some kinds; ``None`` where nothing is."""
        if {tensor.dtype for tensor in node.kernel.tensors.values()} & _UNREAD:
            counts["kernels that cannot be interpreted"] += 1
            return None
        plain = {kind: (node.operands(of), node.results(of)) for kind, of in values.items()}
        bodies, own = Originals(node.body(plain), plain), None
        for kind, (feed, wanted) in plain.items():
            inputs = {tensor.name: feed[name] for tensor, name in zip(node.kernel.inputs, node.inputs, strict=False)}
            schedules = node.variants.chosen(bound_sizes(node.kernel, {name: one.shape for name, one in inputs.items()}))
            source = generate(node.kernel, schedules)
            shapes = [inputs[tensor.name].shape for tensor in node.kernel.inputs]
            blocks = [math.prod(Expression.of(extent).value(shapes) for extent in launch.grid) for launch in source.launches]
            if sum(blocks) > _MOST_BLOCKS:
                counts["runs of kernels too long to be interpreted"] += 1
                continue
            try:
                made = self._run(node.kernel, schedules, inputs)
            except InterpreterFailed as problem:
                return Fate.DIED, f"kernel {node.kernel.label} interpreted on {kind} inputs: {problem}"
            counts["runs of kernels"] += 1
            for position, (one, by) in enumerate(zip(_as_typed(made, wanted), wanted, strict=True)):
                if not bodies.yardstick(kind, position).accepts(one, by):
                    told = f"kernel {node.kernel.label} interpreted on {kind} inputs: output {position}, {far(one, by)}"
                    fate = bodies.fate_by_rounding(kind, position, one, by)
                    if fate is not Fate.ILL_CONDITIONED:
                        return fate, told
                    own = own or (fate, told)
        return own

    def _run(self, kernel: Kernel, schedules: Sequence[Any], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Raises InterpreterFailed, after which another process takes the place of this one."""
        self._interpreter = self._interpreter or Interpreter()
        try:
            return self._interpreter.run(kernel, schedules, inputs)
        except InterpreterFailed:
            self._interpreter.close()
            self._interpreter = None
            raise


def _is_compiled(node: onnx.NodeProto) -> bool:
    return (node.domain, node.op_type) == (KERNEL_DOMAIN, KERNEL) and any(one.name == "plan" for one in node.attribute)


def _as_typed(made: Sequence[np.ndarray], wanted: Outputs) -> Iterator[Any]:
    """Outputs as onnxruntime gives them: truth values lie in bytes."""
    for one, by in zip(made, wanted, strict=False):
        yield one.astype(bool) if by.dtype == bool else one


def _values(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], originals: Originals) -> Iterator[tuple[str, _Values]]:
    """What nodes read and compute, by the kind of inputs, as their bodies compute it."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = dict.fromkeys(name for node in nodes for name in (*node.input, *node.output) if name)
    made = {name for node in model.graph.node for name in node.output}
    asked = [name for name in names if name in made]
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    for kind, (feed, _) in originals.plain.items():
        try:
            outputs = run(whole.SerializeToString(), feed, optimize=False)
        except CannotRun:
            continue
        yield kind, {**stored, **feed, **dict(zip(asked, outputs, strict=True))}


@dataclass(frozen=True)
class _CompiledNode:
    """A node with a compiled kernel.

    Attributes:
        model: that holds it.
    """

    model: onnx.ModelProto
    node: onnx.NodeProto
    kernel: Kernel
    variants: Variants

    @staticmethod
    def of(model: onnx.ModelProto, node: onnx.NodeProto) -> _CompiledNode:
        text = json.loads(next(one.s for one in node.attribute if one.name == "mugraph"))
        return _CompiledNode(model, node, kernel_from_json(text["kernel"]), variants_from_json(text))

    @property
    def inputs(self) -> list[str]:
        return list(self.node.input)

    def operands(self, values: _Values) -> dict[str, Any]:
        """What it reads, of what the model computes."""
        return {name: values[name] for name in self.node.input}

    def results(self, values: _Values) -> Outputs:
        """What its body makes of that."""
        return [values[name] for name in self.node.output if name]

    def body(self, plain: Mapping[str, tuple[Mapping[str, Any], Outputs]]) -> bytes:
        """Its body as a model of its own."""
        feed, wanted = next(iter(plain.values()))
        inputs = [_declared(name, array) for name, array in feed.items()]
        outputs = [_declared(name, array) for name, array in zip(filter(None, self.node.output), wanted, strict=True)]
        graph = helper.make_graph([self.node], "kernel", inputs, outputs)
        opsets, functions = self.model.opset_import, self.model.functions
        alone = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=self.model.ir_version)
        return bytes(inliner.inline_local_functions(alone).SerializeToString())


def _declared(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
