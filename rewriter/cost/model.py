"""Prices of nodes, by operator signature.

A signature is what the time depends on: operator, attributes, operand types at the measured sizes, and which operands are
constants. It is measured once in onnxruntime as a one-node model and kept in the profile store. Where it cannot be
measured (a budget, an element type without kernel) a roofline estimate stands in and is counted, so that the report says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from mugraph.graph import Graph, Node
from mugraph.node import AttrValue, bind_attrs
from mugraph.ops import NotUnderstood, get_operator
from mugraph.shape import DataType, Dim, TensorType, Undecided, concrete, evaluate_dim
from rewriter.cost.devices import DEVICES, Device
from rewriter.cost.store import ProfileStore
from rewriter.runtime_env import new_session

__all__ = ["CostModel", "Signature", "random_array"]

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
"""Vectorised arithmetic takes the time of moving its operands, whatever it computes, in whatever order they come and
whether they are constants: one measurement stands for all, so that noise prefers none."""

NODE_OVERHEAD = 1.0
"""Microseconds that onnxruntime spends on any node beside its kernel."""


def random_array(type_: TensorType, generator: np.random.Generator) -> np.ndarray:
    """Fresh random contents of a concrete type: normal floats, small non-negative integers."""
    shape = concrete(type_.shape)
    assert shape is not None
    if type_.dtype == DataType.BOOL:
        return generator.random(shape) < 0.5
    dtype = type_.dtype.numpy()
    if type_.dtype in (DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16):
        return np.asarray(generator.standard_normal(shape, np.float32) * 0.1 + 0.5).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a node's time depends on."""

    op: str
    attrs: tuple[tuple[str, AttrValue], ...]
    operands: tuple[TensorType, ...]
    constant: tuple[bool, ...]
    scalars: tuple[tuple[int, float], ...] = ()
    """Position and value of one-element constants: kernels have short cuts for some (a power of 2)."""

    def key(self) -> str:
        operands = ", ".join(f"{'const ' if c else ''}{t}" for t, c in zip(self.operands, self.constant, strict=True))
        scalars = "".join(f" x{index}={value!r}" for index, value in self.scalars)
        return f"{self.op}{list(self.attrs)}({operands}){scalars}"


@dataclass
class CostModel:
    """Microseconds of nodes on one provider.

    Args:
        store: where measured costs are kept.
        opset: of the default domain, for the one-node models.
        sizes: what the model's dimension symbols are bound to for measuring.
        deadline: after this :func:`time.monotonic` instant nothing new is measured.
        device: whose roofline stands in where nothing is measured.
    """

    store: ProfileStore
    opset: int
    sizes: Mapping[str, Dim]
    provider: str = "cpu"
    deadline: float = float("inf")
    device: Device = DEVICES["cpu"]

    def __post_init__(self) -> None:
        self.measured = 0
        self.estimated: set[str] = set()
        self._memo: dict[Node, float] = {}
        self._estimates: dict[Node, float] = {}
        self._baseline: float | None = None

    def signature(self, graph: Graph, node: Node) -> Signature | None:
        """``None`` where the node is opaque or a size is unknown: such a node costs the same in every candidate."""
        if node.is_opaque:
            return None
        operands: list[TensorType] = []
        for value in node.inputs:
            type_ = graph.type(value)
            shape = None if type_ is None else concrete([evaluate_dim(d, self.sizes) for d in type_.shape])
            if type_ is None or shape is None:
                return None
            operands.append(TensorType(type_.dtype, shape))
        constant = tuple(graph.tables.constant[v] for v in node.inputs)
        if node.op in _ARITHMETIC:
            return Signature("Add", (), tuple(sorted(operands, key=str)), (False,) * len(operands))
        scalars = tuple(
            (index, float(array.reshape(())))
            for index, value in enumerate(node.inputs)
            if (array := graph.tables.small_constant(value, 1)) is not None and array.size == 1
        )
        return Signature(node.op, bind_attrs(node.attrs, self.sizes), tuple(operands), constant, scalars)

    def cost(self, graph: Graph, node: Node) -> float:
        """The node's time: measured, or a roofline estimate where that is not possible."""
        known = self._memo.get(node)
        if known is not None:
            return known
        price, final = self._price(graph, node)
        if final:
            self._memo[node] = price
        return price

    def _price(self, graph: Graph, node: Node) -> tuple[float, bool]:
        if node.op == "Identity" or all(graph.tables.constant[v] for v in node.values):
            return 0.0, True
        signature = self.signature(graph, node)
        if signature is None:
            return 0.0, True
        key = signature.key()
        stored = self.store.get(key)
        if stored is not None:
            return stored + NODE_OVERHEAD, True
        if time.monotonic() < self.deadline:
            microseconds = self._measure(signature)
            if microseconds is not None:
                self.store.put(key, microseconds)
                self.measured += 1
                return microseconds + NODE_OVERHEAD, True
        self.estimated.add(key)
        return self.estimate(graph, node), False

    def estimate(self, graph: Graph, node: Node) -> float:
        """The roofline of the device."""
        known = self._estimates.get(node)
        if known is not None:
            return known
        signature = self.signature(graph, node)
        if signature is None or node.op == "Identity" or all(graph.tables.constant[v] for v in node.values):
            price = 0.0
        else:
            operator = get_operator(signature.op)
            try:
                outputs = operator.types(signature.attrs, signature.operands)
                flops = operator.flops({**operator.defaults, **dict(signature.attrs)}, signature.operands, outputs)
                moved = sum(t.size() * max(t.dtype.itemsize, 1) for t in (*signature.operands, *outputs))
            except (Undecided, ValueError):
                flops, moved = 0, 0
            free = signature.op in ("Reshape", "Squeeze", "Unsqueeze")
            dtype = signature.operands[0].dtype if signature.operands else DataType.FLOAT
            price = self.device.launch + (0.0 if free else self.device.microseconds(flops, moved, dtype))
        self._estimates[node] = price
        return price

    def total(self, graph: Graph) -> float:
        return sum(self.cost(graph, node) for node in graph.references)

    def change(self, parent_cost: float, graph: Graph) -> float:
        """Cost of a derived candidate, from the nodes it gained and lost."""
        gained = sum(self.cost(graph, node) for node in graph.added)
        return parent_cost + gained - sum(self.cost(graph, node) for node in graph.removed)

    def estimated_change(self, graph: Graph) -> float:
        """The same difference by the roofline alone: decides whether measuring is worth it."""
        gained = sum(self.estimate(graph, node) for node in graph.added)
        return gained - sum(self.estimate(graph, node) for node in graph.removed)

    def second_opinion(self, before: Graph, after: Graph) -> bool:
        """Measures again what two candidates differ in, and keeps the smaller times.

        One disturbed measurement of a large product can outweigh everything else, and a search finds it.

        Returns:
            whether a price changed by more than a tenth.
        """
        nodes = [(before, node) for node in before.references if node not in after.references]
        nodes += [(after, node) for node in after.references if node not in before.references]
        signatures = {s.key(): s for graph, node in nodes if (s := self.signature(graph, node)) is not None}
        changed = False
        for key, signature in signatures.items():
            known = self.store.get(key)
            again = self._measure(signature) if known is not None and time.monotonic() < self.deadline else None
            if known is not None and again is not None and again < known:
                changed |= again < 0.9 * known - 1
                self.store.put(key, again)
        self._memo.clear()
        return changed

    def _measure(self, signature: Signature) -> float | None:
        model = self._one_node_model(signature)
        if model is None:
            return None
        generator = np.random.default_rng(0)
        try:
            session = new_session(model, self.provider)
        except Exception:  # onnxruntime raises many types where a kernel is missing; the estimate is counted and reported
            return None
        feeds = {
            f"x{i}": random_array(t, generator)
            for i, (t, c) in enumerate(zip(signature.operands, signature.constant, strict=True))
            if not c
        }
        if self._baseline is None:
            self._baseline = _time(*_empty_session(self.provider))
        try:
            return max(_time(session, feeds) - self._baseline, 0.0)
        except Exception:  # a kernel that refuses these values at run time
            return None

    def _one_node_model(self, signature: Signature) -> bytes | None:
        operator = get_operator(signature.op)
        try:
            outputs = operator.types(signature.attrs, signature.operands)
            form = operator.to_onnx(signature.attrs, signature.operands, self.opset)
        except (NotUnderstood, Undecided, ValueError):
            return None
        generator = np.random.default_rng(1)
        inputs, initializers, names = [], [], []
        scalars = dict(signature.scalars)
        for index, (type_, constant) in enumerate(zip(signature.operands, signature.constant, strict=True)):
            if constant:
                array = random_array(type_, generator)
                if index in scalars:
                    array = np.full_like(array, scalars[index])
                initializers.append(_tensor(f"x{index}", array))
            else:
                inputs.append(onnx.helper.make_tensor_value_info(f"x{index}", int(type_.dtype), concrete(type_.shape)))
        for index, item in enumerate(form.inputs):
            if isinstance(item, np.ndarray):
                initializers.append(_tensor(f"c{index}", item))
            names.append("" if item is None else f"x{item}" if isinstance(item, int) else f"c{index}")
        results = [onnx.helper.make_tensor_value_info(f"y{i}", int(t.dtype), concrete(t.shape)) for i, t in enumerate(outputs)]
        written = form.output_names([r.name for r in results])
        node = onnx.helper.make_node(form.op_type, names, written, domain=form.domain, **form.attributes)
        graph = onnx.helper.make_graph([node], "one", inputs, results, initializers)
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        if form.domain:
            opsets.append(onnx.helper.make_opsetid(form.domain, 1))
        return bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def _tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _empty_session(provider: str) -> tuple[object, dict[str, np.ndarray]]:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "empty", info[:1], info[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return new_session(model.SerializeToString(), provider), {"x": np.ones(1, np.float32)}


def _time(session: object, feeds: dict[str, np.ndarray], seconds: float = 0.02, least: int = 5, most: int = 400) -> float:
    """Microseconds of a run: the lower quartile of repeated runs, after two to warm up."""
    run = session.run  # type: ignore[attr-defined]
    run(None, feeds)
    run(None, feeds)
    times: list[int] = []
    end = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < end and len(times) < most):
        start = time.perf_counter_ns()
        run(None, feeds)
        times.append(time.perf_counter_ns() - start)
    return float(np.quantile(times, 0.25)) / 1000
