"""Bodies of If, Loop and Scan, as two models that are compared: they are fed what the nodes of the model before feed them.

A body is closed (:mod:`mugraph.onnx.bodies`): what it reads around it is another value within. So it is a model whose inputs are
its formal ones and what it captures. Formal inputs and results of two bodies correspond by their places, captured values as they
do around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from modeldiff.inputs import CommonInputs
from modeldiff.limits import RunLimit
from modeldiff.pairing import Pairing
from modeldiff.sides import ComparedModel
from modeldiff.surroundings import OpenedBody, opened_bodies
from mugraph.graph import Node
from mugraph.onnx import Model
from mugraph.onnx.bodies import BRANCHES, GraphBody
from mugraph.terms.shape import Dim
from rewriter.reference import NoReference
from rewriter.reference.control import Tensor, is_true, run_loop, run_scan
from rewriter.run.probes import InputProbe

__all__ = ["BodyPair", "body_pairs", "is_wired_alike", "partners"]

_ITERATIONS, _MORE_ITERATIONS = 4, 16
"""Of a loop, the first ones, whose numbers its body is fed; more of one that differs. At the node all of them are compared."""


@dataclass(frozen=True, slots=True)
class BodyPair:
    """Two bodies in one place of two nodes.

    Attributes:
        attribute: of the nodes that holds them.
        before, after: the bodies as models.
        fed: inputs of the one after to those of the one before.
        inputs: on which they are compared; the names of what they are fed say for which of the two it is.
        usual: how many of these, the first ones, count as of the usual scale and sizes.
        sizes: what is known of dimension symbols around the bodies, before and after, on each of the inputs.
        is_entered: whether these are inputs on which the body runs; else they are those of its node.
        limit: of nodes that onnxruntime runs by themselves.
    """

    attribute: str
    before: _BodyModel
    after: _BodyModel
    fed: Mapping[int, int]
    inputs: CommonInputs
    usual: int
    sizes: tuple[tuple[Mapping[str, Dim], ...], tuple[Mapping[str, Dim], ...]]
    is_entered: bool
    limit: RunLimit

    def sides(self, numbers: Sequence[int]) -> tuple[ComparedModel, ComparedModel]:
        """The two on some of the inputs, by their numbers."""
        usual = sum(number < self.usual for number in numbers)
        probes = [self.inputs.probes[number] for number in numbers]
        first, second = (
            body.compared([body.fed(probe) for probe in probes], usual, self.limit, [sizes[n] for n in numbers])
            for body, sizes in zip((self.before, self.after), self.sizes, strict=True)
        )
        return first, second


@dataclass(frozen=True, slots=True)
class _BodyModel:
    """A body as a model.

    Attributes:
        number: of the body.
        names: what its inputs are called in what it is fed, by their values.
        roots: values, beside its results, that it computes.
    """

    model: Model
    number: int
    names: Mapping[int, str]
    roots: Sequence[int]

    @staticmethod
    def of(model: Model, opened: OpenedBody, side: str) -> _BodyModel:
        """The body of a model that is called by a side's name."""
        tables, graph = model.tables, opened.graph
        names = {value: f"{side} {place}: {tables.names[value]}" for place, value in enumerate(graph.inputs)}
        types = {name: type_ for value, name in names.items() if (type_ := tables.types[value]) is not None}
        known = {**model.values, **dict(zip(names.values(), graph.inputs, strict=True))}
        closed = replace(model, graph=graph, as_it_came=graph, inputs=types, defaults={}, symbols=(), values=known)
        return _BodyModel(closed, opened.body.number, names, opened.roots)

    def compared(
        self, feeds: Sequence[Mapping[str, np.ndarray]], usual: int, limit: RunLimit, sizes: Sequence[Mapping[str, Dim]]
    ) -> ComparedModel:
        """It on some inputs."""
        return ComparedModel(self.model, feeds, usual, limit, self.number, sizes, self.roots)

    def fed(self, probe: InputProbe) -> dict[str, np.ndarray]:
        """What it is fed of some inputs."""
        return {name: probe.feed[name] for name in self.names.values()}


def partners(pairing: Pairing) -> Iterator[tuple[Node, Node]]:
    """The control-flow nodes after the change that are no nodes before it, and those before it whose place they may have.

    That is the one whose result corresponds or has its name, or else the only one that reads the same.
    """
    after, before = pairing.after, pairing.before
    kept = set(pairing.kept.values())
    left = [node for node in before.nodes if before.bodies(node) and node not in kept]
    for node in after.nodes:
        if not after.bodies(node) or node in pairing.kept:
            continue
        values = [value for value in node.values if after.tables.names[value]]
        pairs = [pairing.paired.get(value) for value in values] + [pairing.namesake(value) for value in values]
        found = [before.maker(pair) for pair in pairs if pair is not None]
        alike = [other for other in left if is_wired_alike(pairing, node, other)]
        found += alike if len(alike) == 1 else []
        partner = next((each for each in found if each is not None and each in left and _is_like(pairing, node, each)), None)
        if partner is not None:
            left.remove(partner)
            yield node, partner


def _is_like(pairing: Pairing, node: Node, other: Node) -> bool:
    """Whether two control-flow nodes run their bodies in the same way, of as many operands and results."""
    protos = []
    for side, each in ((pairing.after, node), (pairing.before, other)):
        assert each.origin is not None, "it has bodies"
        origin, bodies = side.model.origins[each.origin], side.bodies(each)
        held = {body.attribute for body in bodies}
        rest = sorted(a.SerializeToString(deterministic=True) for a in origin.attribute if a.name not in held)
        ends = [(body.attribute, len(body.inputs), len(body.outputs)) for body in bodies]
        protos.append((origin.op_type, [*map(bool, origin.input)], [*map(bool, origin.output)], rest, ends))
    return protos[0] == protos[1]


def is_wired_alike(pairing: Pairing, node: Node, other: Node) -> bool:
    """Whether two control-flow nodes run their bodies in the same way, on operands that correspond; captured ones apart."""
    if not _is_like(pairing, node, other):
        return False
    assert node.origin is not None and other.origin is not None, "they have bodies"
    reads = pairing.after.model.reads[node.origin], pairing.before.model.reads[other.origin]
    return all(a is None or b is None or pairing.pair_of(a) == pairing.stands_for(b) for a, b in zip(*reads, strict=True))


def body_pairs(pairing: Pairing, node: Node, other: Node, inputs: CommonInputs) -> Iterator[BodyPair]:
    """The bodies of two control-flow nodes, those of which it is known what they are fed.

    Args:
        node, other: after and before the change.
        inputs: of the models, or bodies, that the nodes stand in.
    """
    most = _ITERATIONS if pairing.pins.keys().isdisjoint(node.values) else _MORE_ITERATIONS
    for bodies in zip(pairing.before.bodies(other), pairing.after.bodies(node), strict=True):
        opened = opened_bodies(pairing, *bodies)
        before = _BodyModel.of(pairing.before.model, opened[0], "before")
        after = _BodyModel.of(pairing.after.model, opened[1], "after")
        (first, second), outer = (each.body for each in opened), opened[0].known
        fed = dict(zip(second.inputs, first.inputs, strict=True))
        for value, inner in second.captured.items():
            pair = pairing.pair_of(value)
            if pair is not None and (pair in outer or pair in pairing.before.tables.constants):
                fed[inner] = outer.get(pair, pair)
        captured = [
            (before.names, first.captured, pairing.numbers_before),
            (after.names, second.captured, pairing.numbers),
        ]
        known = [
            (names[inner], read(value)) for names, within, read in captured for value, inner in within.items() if inner in names
        ]
        if any(arrays is None for _, arrays in known):
            continue
        arrays_of = {name: arrays for name, arrays in known if arrays is not None}
        runs = list(_runs(pairing, other, first, before, arrays_of, most))
        entered = any(formal is not None for _, formal in runs)
        probes, numbers = list[InputProbe](), list[int]()
        for number, formal in runs:
            if entered and formal is None:
                continue
            feed = {name: arrays[number] for name, arrays in arrays_of.items()}
            for names, body in ((before.names, first), (after.names, second)):
                feed |= {names[value]: array for value, array in zip(body.inputs, formal or (), strict=True)}
            which = inputs.probes[number]
            turn = sum(each == number for each in numbers) + 1
            words = f"{which.words}, iteration {turn}" if body.inputs else which.words
            probes.append(InputProbe(feed, words, which.scale))
            numbers.append(number)
        if not probes:
            continue
        sizes = tuple(tuple(side.sizes(n) for n in numbers) for side in (pairing.before, pairing.after))
        usual = max(1, sum(number < pairing.before.usual for number in numbers))  # where probes alone run it one has to tell
        shared, limit = CommonInputs(tuple(probes), (), ()), pairing.before.limit
        yield BodyPair(first.attribute, before, after, fed, shared, usual, (sizes[0], sizes[1]), entered, limit)


_Fed = tuple[int, list[np.ndarray] | None]
"""The number of an input, and what the formal inputs of a body are there; ``None`` where it does not run on that."""


def _runs(
    pairing: Pairing, other: Node, body: GraphBody, model: _BodyModel, captured: Mapping[str, list[np.ndarray]], most: int
) -> Iterator[_Fed]:
    """Each time that a body of a node before the change is run, on all inputs in turn; of a loop at most so many times."""
    assert other.origin is not None, "it has bodies"
    reads = [None if v is None else pairing.numbers_before(v) for v in pairing.before.model.reads[other.origin]]
    given = [v is not None for v in pairing.before.model.reads[other.origin]]
    if any(is_given and arrays is None for is_given, arrays in zip(given, reads, strict=True)):
        return
    for number in range(pairing.before.inputs):
        operands: list[Tensor | None] = [None if arrays is None else (arrays[number], None) for arrays in reads]
        if body.attribute in BRANCHES:
            is_taken = is_true(operands[0]) is (body.attribute == BRANCHES[0])
            yield number, [] if is_taken else None
            continue
        feed = {name: captured[name][number] for name in model.names.values() if name in captured}
        fed = _Iterations(model, body, feed, pairing.before, number, most if number < pairing.before.usual else 1)
        yield from ((number, formal) for formal in fed.of(pairing.before, other, operands))


class _Iterations:
    """What a body is fed in the first iterations of a loop."""

    def __init__(
        self, model: _BodyModel, body: GraphBody, captured: Mapping[str, np.ndarray], outer: ComparedModel, number: int, most: int
    ) -> None:
        self._model, self._body, self._captured, self._most = model, body, captured, most
        self._limit, self._sizes = outer.limit, outer.sizes(number)
        self._fed: list[list[np.ndarray]] = []

    def of(self, side: ComparedModel, node: Node, operands: Sequence[Tensor | None]) -> list[list[np.ndarray]]:
        """The formal inputs, each time."""
        assert node.origin is not None, "it has bodies"
        origin = side.model.origins[node.origin]
        try:
            if origin.op_type == "Loop":
                types = [side.graph.type(value) for value in self._body.inputs[:2]]
                run_loop(operands, self._run, [0 if type_ is None else type_.rank for type_ in types], lambda first: [])
            else:
                run_scan(origin, [tensor for tensor in operands if tensor is not None], self._run, lambda first: [])
        except (_EnoughIterations, NoReference):  # of a body that cannot be evaluated what it is fed first is known
            pass
        return self._fed

    def _run(self, formal: Sequence[Tensor]) -> Sequence[Tensor]:
        arrays = [np.asarray(exact) for exact, _ in formal]
        self._fed.append(arrays)
        if len(self._fed) == self._most:
            raise _EnoughIterations
        names = [self._model.names[value] for value in self._body.inputs]
        feed = {**self._captured, **dict(zip(names, arrays, strict=True))}
        side = self._model.compared([feed], 1, self._limit, [self._sizes])
        known = side.evaluated()
        results = []
        for value in self._body.outputs:
            made = side.made(value)
            found = known[made] if made in known else side.leaf(made)
            if found is None:
                raise NoReference(f"'{side.name(value)}' cannot be evaluated")
            results.append((found[0], None))
        return results


class _EnoughIterations(Exception):
    """As many as are looked at were run."""
