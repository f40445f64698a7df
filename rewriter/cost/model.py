"""Prices of nodes, by operator signature.

A signature is what the time depends on: operator, attributes, operand types at the measured sizes, and which operands are
constants. A roofline estimate, calibrated by what was measured of its kind (:mod:`rewriter.cost.calibration`), stands in until
it is measured, once, in onnxruntime as a one-node model, which the profile store keeps. What a decision rests on is asked for by
name (:meth:`CostModel.measure`): no price is measured because it was looked at.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_high

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.blocks.sizes import bound_sizes
from mugraph.deadline import heed
from mugraph.graph import Graph, Node
from mugraph.ops import Entrywise, Movement, ProductKind, get_operator, traits_of
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, concrete, type_at
from mugraph.terms.term import bind_attrs, walk
from rewriter.cost import cpu
from rewriter.cost.calibration import Calibration
from rewriter.cost.cuda import empty_microseconds, time_on_cuda
from rewriter.cost.devices import DEVICES, Device
from rewriter.cost.kernel_times import least_known, time_of
from rewriter.cost.observed import SlowNodes, kind_of, may_be_slow
from rewriter.cost.pace import Pace, pace_of
from rewriter.cost.roofline import node_microseconds, product_sizes
from rewriter.cost.schedules import least_of_any, least_of_product
from rewriter.cost.signature import Signature, bytes_of, random_array
from rewriter.cost.store import ProfileStore

__all__ = ["CostModel", "Signature", "random_array"]

NODE_OVERHEAD = {"cpu": 1.0, "cuda": 0.0}
"""Microseconds that onnxruntime spends on any node beside what is measured: on CUDA nothing, since graphs are replayed."""

_OPINIONS = {"cpu": 3, "cuda": 1}
"""How often a node is measured once more at most: other work disturbs what is measured on a processor."""
_LOOKING, _SUSPECTS = 0.25, 4
"""Share of the time for measuring in which is found out what numbers make slow, and how many nodes are timed for that."""
_NO_NUMBERS = (DataType.STRING, DataType.COMPLEX64, DataType.COMPLEX128)
"""Element types whose entries are no real numbers."""


def _as_fast(kernel: Kernel, sizes: Mapping[str, int]) -> float:
    """Of products that are taken to be as fast as the runtime's."""
    return 1.0


@dataclass
class CostModel:
    """Microseconds of nodes on one provider. Asking for a price measures nothing.

    Args:
        store: where measured costs are kept.
        opset: of the default domain, for the one-node models.
        sizes: what the model's dimension symbols are bound to for measuring.
        deadline: after this :func:`time.monotonic` instant nothing new is measured.
        device: whose roofline stands in where nothing is measured.
        runs: how often the bodies of control-flow nodes run, by number; others run once.
        caution: what a custom kernel that was not timed is taken to need, over what the model of its schedules says.
        told_by: the graph of whose measured nodes the roofline of custom kernels learns how fast this processor is: one that is
            priced by a modest core's figures is never tried beside nodes that were measured on a fast one. ``None`` for none.
        speedup: of the products of a custom kernel over those of the runtime, by what is known before any was timed, at sizes of
            the kernel's symbols; those that were may tell less.
        slow: nodes of the model that its numbers make slow, which is found out before anything is measured.
        measured: how many costs were measured: those at other prices before, where this is a model of the same run, and its own.
    """

    store: ProfileStore
    opset: int
    sizes: Mapping[str, Dim]
    provider: str = "cpu"
    deadline: float = float("inf")
    device: Device = DEVICES["cpu"]
    runs: Mapping[int, int] = field(default_factory=dict)
    caution: float = 1.0
    told_by: Graph | None = None
    speedup: Callable[[Kernel, Mapping[str, int]], float] = _as_fast
    slow: SlowNodes = field(default_factory=SlowNodes)
    measured: int = 0

    def __post_init__(self) -> None:
        self._memo: dict[Node, float] = {}
        self._estimates: dict[Node, float] = {}
        self._kernel_pace: tuple[Pace, float] | None = None
        self._paced: dict[Node, float] = {}
        self._timed_products: dict[str, tuple[Signature, float]] = {}
        self._baseline: float | None = None
        self._opinions = Counter[str]()
        self._unmeasurable: set[str] = set()
        self._met: dict[str, Signature] = {}
        self._calibration: Calibration | None = None

    def signature(self, graph: Graph, node: Node) -> Signature | None:
        """``None`` where the node is opaque or a size is unknown: such a node costs the same in every candidate."""
        if node.is_opaque:
            return None
        operands: list[TensorType] = []
        for value in node.inputs:
            type_ = type_at(graph.type(value), self.sizes)
            if type_ is None:
                return None
            operands.append(type_)
        constant = tuple(graph.tables.constant[v] for v in node.inputs)
        if len(operands) == 2 and traits_of(node.op).entrywise is Entrywise.ARITHMETIC:
            # It takes the time of moving its operands, whatever it computes, in whatever order they come and whether they are
            # constants: one measurement stands for all, so that noise prefers none.
            return Signature("Add", (), tuple(sorted(operands, key=str)), (False,) * len(operands))
        scalars = tuple(
            (index, float(array.reshape(())))
            for index, (value, type_) in enumerate(zip(node.inputs, operands, strict=True))
            if type_.dtype not in _NO_NUMBERS and (array := graph.tables.small_constant(value, 1)) is not None and array.size == 1
        )
        return Signature(node.op, bind_attrs(node.attrs, self.sizes), tuple(operands), constant, scalars)

    def cost(self, graph: Graph, node: Node) -> float:
        """The node's time in a run of the model: measured, or a calibrated roofline estimate where it was not."""
        price = self._memo.get(node)
        if price is not None:
            return price
        heed()
        try:
            price, final = self._price(graph, node)
        except Exception as problem:
            problem.add_note(f"at {graph.tables.label(node)}")
            raise
        if final:
            self._memo[node] = price
        return price

    def _price(self, graph: Graph, node: Node) -> tuple[float, bool]:
        if self._is_free(graph, node):
            return self._folded(graph, node) if node.op != "Identity" else 0.0, True
        signature = self.signature(graph, node)
        if signature is None:
            return 0.0, True
        if traits_of(node.op).movement is Movement.VIEW and not _leaves(graph, node):
            return self.device.view * _times_run(self.runs, graph, node), True  # alone in a model it would be a copy
        if node.op == KERNEL:  # timed by itself, schedule by schedule, or not yet (:mod:`rewriter.kernels.custom`)
            timed = self._kernel_time(signature)
            if timed is not None and self.told_by is not None:
                self._learn_of_products(signature, timed)
        else:
            key = signature.key()
            timed = self.slow.time(key) or self.store.get(key)
            if timed is None:
                self._met.setdefault(key, signature)
        times = _times_run(self.runs, graph, node)
        if timed is None:
            estimate = self.estimate(graph, node)
            if node.op == KERNEL:
                return estimate * self.caution, False
            return estimate * self._calibrated(signature, estimate / max(times, 1)), False
        return (timed + NODE_OVERHEAD[self.provider]) * times, True

    def _calibrated(self, signature: Signature, estimate: float) -> float:
        """By what the estimate of an operator is multiplied, where anything was measured at all."""
        if not self.store.costs:
            return 1.0
        if self._calibration is None:
            self._calibration = Calibration(self.store.costs, self.device, NODE_OVERHEAD[self.provider])
        return self._calibration.factor(signature, estimate)

    def _is_free(self, graph: Graph, node: Node) -> bool:
        """Whether the runtime does not execute a node: there is nothing to do, or it is done before the first run."""
        return node.op == "Identity" or all(graph.tables.constant[v] for v in node.values)

    def unmeasured(self, nodes: Iterable[tuple[Graph, Node]]) -> dict[str, Signature]:
        """The signatures of nodes, by key, for which an estimate stands in; those of kernels apart."""
        found: dict[str, Signature] = {}
        for graph, node in nodes:
            if node.op == KERNEL or self._is_free(graph, node) or self._price(graph, node)[1]:
                continue
            signature = self.signature(graph, node)
            assert signature is not None
            found[signature.key()] = signature
        return found

    def calibrated(self, nodes: Iterable[tuple[Graph, Node]]) -> int:
        """How many of the estimates that stand in for nodes are calibrated: other than the roofline alone."""
        found = {
            key: self.cost(graph, node) != self.estimate(graph, node)
            for graph, node in nodes
            for key in self.unmeasured([(graph, node)])
        }
        return sum(found.values())

    def measure(self, nodes: Iterable[tuple[Graph, Node]], seconds: float = math.inf) -> bool:
        """Measures, until the deadline and for so many seconds at most, what no time is known of.

        Returns:
            whether anything is known then that was not.
        """
        return self._measure_all(self.unmeasured(nodes), seconds)

    def measure_met(self, seconds: float = math.inf) -> bool:
        """As :meth:`measure`, of whatever a price was asked of, in that order."""
        return self._measure_all(self._met, seconds)

    @property
    def unmeasurable(self) -> int:
        """The number of signatures that the provider does not run by themselves."""
        return len(self._unmeasurable)

    def _measure_all(self, signatures: Mapping[str, Signature], seconds: float) -> bool:
        before, now = self.measured, time.monotonic()
        deadline = min(self.deadline, now + seconds)
        seen = now < deadline and self._find_slow(min(deadline, now + _LOOKING * seconds))
        for key, signature in list(signatures.items()):
            if time.monotonic() >= deadline:
                break
            if key not in self._unmeasurable and self.store.get(key) is None:
                microseconds = self._measure(signature)
                if microseconds is None:
                    self._unmeasurable.add(key)
                else:
                    self.store.put(key, microseconds)
                    self.measured += 1
                    self._know_more()
            self._met.pop(key, None)
        return seen or self.measured > before

    def _find_slow(self, until: float) -> bool:
        """Looks once at what the nodes of the model take in a run of it, and times those by themselves then that seem slow.

        What takes most comes first. Nodes with attributes are left: a profile does not tell them apart.

        Args:
            until: the instant of :func:`time.monotonic` after which nothing more is run.

        Returns:
            whether any is slow.
        """
        graph = self.told_by
        if self.slow.is_known or graph is None:
            return False
        observed, suspects = self.slow.observed(until), dict[str, tuple[float, Signature, float]]()
        for node in graph.references:
            signature = None if self._is_free(graph, node) else self.signature(graph, node)
            if signature is None or signature.attrs or node.op == KERNEL or signature.op != node.op:
                continue
            key, seen = signature.key(), observed.get(kind_of(node.op, [str(type_) for type_ in signature.operands]), 0.0)
            if may_be_slow(seen, self.store.get(key) or self.estimate(graph, node)):
                before = suspects[key][0] if key in suspects else 0.0
                suspects[key] = before + seen, signature, seen
        found = False
        for _, signature, seen in sorted(suspects.values(), key=lambda suspect: -suspect[0])[:_SUSPECTS]:
            if time.monotonic() >= until:
                break
            alone = self._measure(signature)
            if alone is not None:
                known = self.store.get(signature.key())
                self.store.put(signature.key(), alone if known is None else min(alone, known))
                found |= self.slow.add(signature, seen, alone)
        self._memo.clear()
        return found

    def _kernel_time(self, signature: Signature) -> float | None:
        return time_of(self.store, *_sized(signature))

    def least_of_kernels(self) -> Callable[[Graph, Iterable[int]], float]:
        """Microseconds that no graph-defined kernel takes less than that reads and makes some values of a graph.

        By the model of schedules, or by the least time that is known of any kernel. Nothing is known of one of a processor, or in
        a body, or where a size is not told.
        """
        known = least_known(self.store)

        def least(graph: Graph, values: Iterable[int]) -> float:
            moved = 0.0
            for value in values:
                type_ = type_at(graph.type(value), self.sizes)
                if type_ is None or value in graph.tables.bodies:
                    return 0.0
                moved += bytes_of(type_)
            return min(known, self.caution * least_of_any(self.device, moved))

        return least if self.device.units > 1 else lambda graph, values: 0.0

    def least_of_products(self) -> Callable[[Graph, Node, DataType], float]:
        """Microseconds that no graph-defined kernel takes less than that multiplies what a node does; 0 where nothing is known.

        As :meth:`least_of_kernels`; the element type is that of the operands in memory.
        """
        known = least_known(self.store)
        return lambda graph, node, dtype: min(known, self._least_of_product(graph, node, dtype))

    def _least_of_product(self, graph: Graph, node: Node, dtype: DataType) -> float:
        """By the model of schedules alone."""
        signature = self.signature(graph, node)
        if signature is None or self.device.units == 1 or node.values[0] in graph.tables.bodies:
            return 0.0
        operator = get_operator(node.op)
        attrs = {**operator.defaults, **dict(signature.attrs)}
        try:
            sizes = product_sizes(node.op, attrs, signature.operands, operator.types(signature.attrs, signature.operands))
        except (Undecided, ShapeError):
            return 0.0
        if sizes is None or traits_of(node.op).product is not ProductKind.MATRIX:
            return 0.0
        return self.caution * least_of_product(self.device.name, dtype, *sizes)

    def estimate(self, graph: Graph, node: Node) -> float:
        """The roofline of the device alone, for a run of the model."""
        told_by = self.told_by if node.op == KERNEL else None
        known = self._estimates if told_by is None else self._paced
        estimate = known.get(node)
        if estimate is not None:
            return estimate
        signature = self.signature(graph, node)
        device = self.device if told_by is None or signature is None else self._device_of_kernel(told_by, signature)
        price = 0.0
        if all(graph.tables.constant[v] for v in node.values):
            price = self._folded(graph, node)
        elif signature is not None and node.op != "Identity":
            try:
                price = node_microseconds(device, node.op, signature.attrs, signature.operands, _leaves(graph, node))
            except (Undecided, ShapeError):  # the latter at sizes into which a window does not fit
                price = device.launch + device.latency
            price *= _times_run(self.runs, graph, node)
        known[node] = price
        return price

    def _learn_of_products(self, signature: Signature, timed: float) -> None:
        """Keeps the time of a kernel that multiplies by weights: what is like it will take about as long for its size."""
        key = signature.key()
        if self._timed_products.get(key) != (signature, timed) and any(signature.constant):
            roots = get_operator(KERNEL).decompose(signature.attrs, signature.operands)
            if any(traits_of(term.op).product is ProductKind.MATRIX for term in walk(roots)):
                self._timed_products[key] = signature, timed
                self._forget_estimates()

    def _device_of_kernel(self, graph: Graph, signature: Signature) -> Device:
        """The figures by which a kernel is priced that was not timed: its products gain no more of what is hoped for than those
        that were."""
        if self._kernel_pace is None:
            pace, products = self._measured_pace(graph), self._timed_products.values()
            reached = [self._hoped_for(pace, s) / max(timed, 1e-3) for s, timed in products]
            share = min(1.0, median_high(reached)) if reached else 1.0  # a disturbed one tells nothing of others
            self._kernel_pace = pace, share
        pace, share = self._kernel_pace
        return pace.of(self.device, share * self.speedup(*_sized(signature)))

    def _hoped_for(self, pace: Pace, signature: Signature) -> float:
        """Microseconds of a kernel before any was timed."""
        device = pace.of(self.device, self.speedup(*_sized(signature)))
        return node_microseconds(device, KERNEL, signature.attrs, signature.operands)

    def _know_more(self) -> None:
        """Forgets what measurements told: there is another one."""
        self._calibration = None
        self._forget_estimates()

    def _forget_estimates(self) -> None:
        """Those of kernels: more is known by now."""
        self._kernel_pace = None
        self._paced.clear()

    def _measured_pace(self, graph: Graph) -> Pace:
        """What the nodes of a graph that were measured by now took, over what the roofline says of them."""
        measured = []
        for node in graph.references:
            if node.op == KERNEL or self._is_free(graph, node) or (signature := self.signature(graph, node)) is None:
                continue
            timed = self.store.get(signature.key())
            if timed is not None:
                once = self.estimate(graph, node) / max(_times_run(self.runs, graph, node), 1)
                measured.append((node.op, timed, once))
        return pace_of(measured)

    def _folded(self, graph: Graph, node: Node) -> float:
        """A constant that is repeated has to be read from memory, where what it repeats would have stayed in the cache."""
        values = (node.values[0], *node.inputs)
        types = [type_ for value in values if (type_ := type_at(graph.type(value), self.sizes)) is not None]
        if traits_of(node.op).movement is not Movement.REPETITION or len(types) < len(values):
            return 0.0
        made, *read = map(bytes_of, types)
        return max(made - sum(read), 0) / (self.device.bandwidth * 1e3)

    def second_opinion(self, nodes: Iterable[tuple[Graph, Node]], deadline: float) -> bool:
        """Measures nodes once more of which a time is known, and keeps the smaller times.

        One disturbed measurement of a large product can outweigh everything else, and a search finds it. So those come first that
        take longest, but for what was measured once more already; nothing is so more than `_OPINIONS` times.

        Args:
            deadline: the instant of :func:`time.monotonic` from which on none is begun.

        Returns:
            whether a price changed by more than a tenth.
        """
        signatures = {s.key(): s for graph, node in nodes if (s := self.signature(graph, node)) is not None}
        changed = False
        for key in sorted(signatures, key=lambda key: (self._opinions[key], -(self.store.get(key) or 0.0))):
            stored = self.store.get(key)
            if stored is None or self._opinions[key] >= _OPINIONS[self.provider] or time.monotonic() >= deadline:
                continue
            self._opinions[key] += 1
            again = self._measure(signatures[key])
            if again is not None and again < stored:
                changed |= again < 0.9 * stored - 1
                self.store.put(key, again)
        self._memo.clear()
        self._know_more()
        return changed

    def _measure(self, signature: Signature) -> float | None:
        if any(isinstance(size, int) and size < 0 for type_ in signature.operands for size in type_.shape):
            return None  # behind a window that does not fit
        return self._measure_on_cuda(signature) if self.provider == "cuda" else self._measure_on_cpu(signature)

    def _measure_on_cuda(self, signature: Signature) -> float | None:
        if self._baseline is None:
            self._baseline = empty_microseconds()
        return time_on_cuda(signature, self.opset, self._baseline)

    def _measure_on_cpu(self, signature: Signature) -> float | None:
        if self._baseline is None:
            self._baseline = cpu.empty_microseconds()
        return cpu.time_on_cpu(signature, self.opset, self._baseline)


def _sized(signature: Signature) -> tuple[Kernel, dict[str, int]]:
    """The kernel of a node, and the sizes of its symbols."""
    kernel = kernel_of(signature.attrs)
    shapes = {t.name: concrete(type_.shape) or () for t, type_ in zip(kernel.inputs, signature.operands, strict=True)}
    return kernel, bound_sizes(kernel, shapes)


def _leaves(graph: Graph, node: Node) -> bool:
    """Whether a result of the node is one of the model's."""
    return any(value in graph.outputs for value in node.values)


def _times_run(runs: Mapping[int, int], graph: Graph, node: Node) -> int:
    """How often a node runs in a run of the model."""
    return runs.get(graph.tables.bodies.get(node.values[0], 0), 1)
