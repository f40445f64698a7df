"""Two models compared, and their bodies: the regions in which they differ, each with its verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx

from modeldiff.beyond import other_attributes, shown_beyond
from modeldiff.bodies import body_pairs, is_wired_alike, partners
from modeldiff.faults import ModelDifference, explained, other_defaults, suspects
from modeldiff.inputs import SEEDS, CommonInputs, common_inputs, fed_to
from modeldiff.limits import RUN_SECONDS, RunLimit
from modeldiff.pairing import EqualityClaim, Numbers, Pairing
from modeldiff.proofs import Judged, Proofs, ProvedEquations
from modeldiff.sides import ComparedModel
from mugraph.deadline import Deadline
from mugraph.graph import Node
from mugraph.onnx import Model, load
from mugraph.onnx.cleaning.calling import without_calls
from mugraph.order import operands_first
from mugraph.terms.shape import DataType, Dim
from rewriter.reference import Error, InputError, compare, worst
from rewriter.run.accept import FLOORS
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = ["ComparedBody", "ComparedOutput", "DiffRegion", "Equality", "ModelComparison", "compare_models"]

_LOGGER = logging.getLogger(__name__)
_MOST = 32
"""Differences that are looked for."""


class Equality(StrEnum):
    """What is known of a region, or of two models; in the order in which one outweighs another."""

    PROVED = "proved equal"
    TESTED = "tested equal"
    UNDECIDED = "undecided"
    DIFFERENT = "different"


_WEIGHT = list(Equality)


@dataclass(frozen=True, slots=True)
class DiffRegion:
    """Nodes before and after a change that compute the same, or should.

    Attributes:
        verdict: of all its results.
        before, after: the nodes, operands first.
        claims: the results that correspond, with what is known of each.
        differences: where it differs.
        reasons: why it is undecided.
        bodies: those of its control-flow nodes, which are models by themselves.
    """

    verdict: Equality
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    claims: tuple[tuple[EqualityClaim, Judged], ...] = ()
    differences: tuple[ModelDifference, ...] = ()
    reasons: tuple[str, ...] = ()
    bodies: tuple[ComparedBody, ...] = ()


@dataclass(frozen=True)
class ComparedBody:
    """What is known of two bodies in one place of two control-flow nodes, as of models (:class:`ModelComparison`).

    Attributes:
        name: of the body.
        places: the node and attribute that hold it, before and after.
        verdict: of all its results, for whatever the body is fed.
        is_entered: whether some input runs it; else it is compared on what the node reads.
    """

    name: str
    places: tuple[tuple[Node, str], tuple[Node, str]]
    verdict: Equality
    regions: tuple[DiffRegion, ...]
    pairing: Pairing
    inputs: CommonInputs
    is_entered: bool


@dataclass(frozen=True, slots=True)
class ComparedOutput:
    """An output of both models.

    Attributes:
        run: the distance between what onnxruntime gives for the two on the usual inputs, each in its own types; ``None`` where
            it does not run both.
    """

    name: str
    verdict: Equality
    run: Error | None


@dataclass(frozen=True)
class ModelComparison:
    """What is known of two models.

    Attributes:
        regions: in the order of the nodes after the change.
        outputs: of the models.
        pairing: what corresponds.
        inputs: on which they were compared.
        notes: what the user should know.
    """

    regions: tuple[DiffRegion, ...]
    outputs: tuple[ComparedOutput, ...]
    pairing: Pairing
    inputs: CommonInputs
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Equality:
        """The one of its regions and outputs that outweighs the others."""
        return heaviest([*(region.verdict for region in self.regions), *(output.verdict for output in self.outputs)])


def heaviest(verdicts: Sequence[Equality]) -> Equality:
    """The verdict that outweighs the others; of none, that all is proved."""
    return max(verdicts, key=_WEIGHT.index, default=Equality.PROVED)


def compare_models(
    before: str | Path,
    after: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    tolerance: float | None = None,
    seconds: float = 60.0,
    run_seconds: float = RUN_SECONDS,
    progress: Callable[[str], None] = lambda line: None,
) -> ModelComparison:
    """Compares two model files.

    Args:
        shapes: sizes of inputs; what they leave open is chosen.
        tolerance: relative error below which tensors are equal; ``None`` for a few units in the last place of their types.
        seconds: in which proofs are begun.
        run_seconds: that a run in onnxruntime may take; at most three are ended, of which nothing is known.
        progress: told what goes on.

    Raises:
        ModelError, InputError: one clear message each.
    """

    def told(line: str) -> None:
        _LOGGER.info("%s", line)
        progress(line)

    told("reading both models")
    models = without_calls(load(before)), without_calls(load(after))
    if len(models[0].graph.outputs) != len(models[1].graph.outputs):
        first, second = (len(model.graph.outputs) for model in models)
        raise InputError(f"{after} has {second} outputs, and {before} has {first}: nothing can be compared")
    told("running the first model in onnxruntime")
    limit = RunLimit(run_seconds)
    inputs = common_inputs(*models, shapes or {}, limit)
    told("evaluating the first model in float64")
    evaluated = _evaluable(models[0], inputs, RunLimit(run_seconds) if inputs.outputs else limit)
    known, inputs = evaluated.numbers, evaluated.inputs
    limit = RunLimit(run_seconds)
    sides = evaluated.side, _side(models[1], inputs, limit)
    told("pairing nodes")
    deadline = Deadline()
    deadline.end_in(seconds)
    work = _Work(tolerance, ProvedEquations(deadline), told, progress)
    pairing = _paired(partial(Pairing, *sides, known, tolerance=tolerance), told)
    regions = tuple(_compared(pairing, inputs, work))
    deadline.end()
    told("running the second model in onnxruntime")
    outputs, problems = _outputs(models[1], pairing, inputs, regions, limit)
    return ModelComparison(regions, outputs, pairing, inputs, (*inputs.notes, *problems))


@dataclass(frozen=True, slots=True)
class _Work:
    """What the comparisons of two models and of their bodies share.

    Attributes:
        equations: that are proved.
        told, progress: of steps that are logged, and of those that are not.
    """

    tolerance: float | None
    equations: ProvedEquations
    told: Callable[[str], None]
    progress: Callable[[str], None]


def _compared(pairing: Pairing, inputs: CommonInputs, work: _Work) -> Iterator[DiffRegion]:
    """The regions of two models or bodies that were paired."""
    bodies = {node: tuple(_compared_bodies(pairing, node, other, inputs, work)) for node, other in partners(pairing)}
    claims = [*pairing.claims, *_output_claims(pairing)]
    judged = _judged(claims, Proofs(pairing, work.equations), bodies, work.progress)
    differences = [explained(pairing, after, before) for after, before in pairing.pins.items()]
    differences += other_defaults(pairing)
    yield from _regions(pairing, judged, differences, bodies, inputs.only_at)


def _compared_bodies(pairing: Pairing, node: Node, other: Node, inputs: CommonInputs, work: _Work) -> Iterator[ComparedBody]:
    """The bodies of a node after the change and of the one before it in whose place it stands."""
    for pair in body_pairs(pairing, node, other, inputs):
        name = f"{pair.attribute} of {pairing.after.label(node)}"
        work.told(f"comparing {name}")
        numbers = list(range(len(pair.inputs.probes)))
        while True:  # without the inputs on which some node cannot be evaluated
            before, after = pair.sides(numbers)
            known = Numbers(before)
            if not before.failed:
                break
            numbers = [number for place, number in enumerate(numbers) if place not in before.failed]
        fed = CommonInputs(tuple(pair.inputs.probes[number] for number in numbers), (), (), inputs.only_at)
        within = _paired(partial(Pairing, before, after, known, tolerance=work.tolerance, around=(pairing, pair.fed)), work.told)
        regions = tuple(_compared(within, fed, work))
        verdict = heaviest([region.verdict for region in regions])
        if not all(_corresponds(within, value, place) for value, place in _output_pairs(within)):
            verdict = heaviest([verdict, Equality.UNDECIDED])
        places = (other, pair.attribute), (node, pair.attribute)
        yield ComparedBody(name, places, verdict, regions, within, fed, pair.is_entered)


def _judged(
    claims: Sequence[EqualityClaim],
    proofs: Proofs,
    bodies: Mapping[Node, Sequence[ComparedBody]],
    progress: Callable[[str], None],
) -> list[tuple[EqualityClaim, Judged]]:
    """The claims as they are judged; those that are not proved once more, where more came to be known of weights meanwhile."""
    judged, name = dict[int, Judged](), proofs.pairing.after.name
    seen = -1
    while seen < proofs.origins and (open_ := [n for n in range(len(claims)) if n not in judged or not judged[n].is_proved]):
        seen = proofs.origins
        for number in open_:
            progress(f"proving {number + 1} of {len(claims)}: '{name(claims[number].after)}'")
            known = judged[number] = _by_bodies(claims[number], proofs.pairing, bodies) or proofs.judged(claims[number])
            by = f"rule {known.rule.id}" if known.rule else "its bodies" if known.by_bodies else "constants, computed"
            _LOGGER.info("%s: %s", name(claims[number].after), by if known.is_proved else f"tested; {known.why_not}")
    for number, known in judged.items():
        if not known.is_proved:
            beyond = shown_beyond(proofs.pairing, claims[number], proofs.oracle)
            judged[number] = replace(known, beyond=beyond)
    return [(claim, judged[number]) for number, claim in enumerate(claims)]


def _by_bodies(claim: EqualityClaim, pairing: Pairing, bodies: Mapping[Node, Sequence[ComparedBody]]) -> Judged | None:
    """A claim of two control-flow nodes: proved where all of their bodies are, and they read the same; ``None`` of others."""
    node, other = pairing.after.maker(claim.after), pairing.before.maker(claim.before)
    if node is None or other is None or node not in bodies:
        return None
    if node.values.index(claim.after) != other.values.index(claim.before):
        return Judged(False, why_not="it is another result of its node")
    if len(bodies[node]) < len(pairing.after.bodies(node)):
        return Judged(False, why_not="it is not known what its bodies are fed")
    if not is_wired_alike(pairing, node, other):
        return Judged(False, why_not="its node reads other values")
    open_ = [f"{body.name} is {body.verdict}" for body in bodies[node] if body.verdict is not Equality.PROVED]
    return Judged(not open_, why_not="; ".join(open_), by_bodies=not open_)


@dataclass(frozen=True, slots=True)
class _FirstModel:
    """The model before, with its numbers on the inputs on which it can be evaluated."""

    side: ComparedModel
    numbers: Numbers
    inputs: CommonInputs


def _side(model: Model, inputs: CommonInputs, limit: RunLimit) -> ComparedModel:
    return ComparedModel(model, [fed_to(model, probe) for probe in inputs.probes], len(SEEDS), limit)


def _evaluable(model: Model, inputs: CommonInputs, limit: RunLimit) -> _FirstModel:
    """Evaluates the model before on the usual inputs and on the probes on which all can be evaluated that can be on those."""
    side = _side(model, inputs, limit)
    numbers = Numbers(side)
    return _FirstModel(side, numbers, inputs) if not side.failed else _evaluable(model, inputs.without(side.failed), limit)


def _paired(pair: Callable[[Mapping[int, int]], Pairing], progress: Callable[[str], None]) -> Pairing:
    """The pairing in which all outputs correspond, for those that differ where they begin to.

    Args:
        pair: makes one in which some values are taken to correspond though they differ.
    """
    pairing = pair({})
    after = pairing.after
    while len(pairing.pins) < _MOST and (unequal := next(_unequal(pairing), None)) is not None:
        progress(f"looking for difference {len(pairing.pins) + 1}")
        best: Pairing | None = None
        for pin in suspects(pairing, *unequal):
            trial = pair({**pairing.pins, after.made(pin[0]): pin[1]})
            if trial.explained > pairing.explained and after.made(pin[0]) not in pairing.pins:
                best = trial
                break
        if best is None:  # what computes the output is other throughout
            best = pair({**pairing.pins, after.made(unequal[0]): unequal[1]})
            if best.pins == pairing.pins:
                return best
        pairing = best
    return pairing


def _unequal(pairing: Pairing) -> Iterator[tuple[int, int]]:
    """Outputs that are known to differ."""
    for value, other in _output_pairs(pairing):
        if not _corresponds(pairing, value, other) and pairing.compared(value, other) is not None:
            yield value, other


def _output_pairs(pairing: Pairing) -> Iterator[tuple[int, int]]:
    outputs = pairing.before.graph.outputs
    for value, place in zip(pairing.after.graph.outputs, pairing.output_order(), strict=True):
        yield value, outputs[place]


def _corresponds(pairing: Pairing, value: int, other: int) -> bool:
    """Whether an output after the change is that before it."""
    if pairing.pair_of(value) == pairing.stands_for(other):
        return True
    known = pairing.compared(value, other)
    return known is not None and known.is_equal


def _output_claims(pairing: Pairing) -> Iterator[EqualityClaim]:
    """Outputs that hold the numbers of the ones before, and correspond to another value: what computed them is not needed."""
    for value, other in _output_pairs(pairing):
        if pairing.pair_of(value) != pairing.stands_for(other) and _corresponds(pairing, value, other):
            arrays = pairing.computed(value)
            assert arrays is not None, "they correspond by their numbers"
            yield pairing.claim(value, other, arrays)


def _regions(
    pairing: Pairing,
    judged: Sequence[tuple[EqualityClaim, Judged]],
    differences: Sequence[ModelDifference],
    bodies: Mapping[Node, tuple[ComparedBody, ...]],
    only_at: Mapping[str, Dim],
) -> Iterator[DiffRegion]:
    """What is not common to both models, in connected parts: cut where values correspond."""
    before, after = pairing.before, pairing.after
    ours, theirs, graph = _changed(pairing)
    ends: dict[Node, list[tuple[EqualityClaim, Judged] | ModelDifference]] = {}
    alone: list[DiffRegion] = []
    ended: list[tuple[EqualityClaim, Judged] | ModelDifference] = [*judged, *differences]
    for item in ended:
        claim = item if isinstance(item, ModelDifference) else item[0]
        sides = (after, claim.after), (before, claim.before)
        makers = [n for side, value in sides if value is not None and (n := side.maker(value)) is not None and n in graph]
        if makers:
            graph.add_edge(makers[0], makers[-1])
            ends.setdefault(makers[0], []).append(item)
        elif isinstance(item, ModelDifference):
            alone.append(DiffRegion(Equality.DIFFERENT, (), (), differences=(item,)))
        elif not item[1].is_proved:  # of a stored tensor that the model before computes, or has with other roundings
            alone.append(DiffRegion(Equality.TESTED, (), (), (item,)))
    parts = []
    for members in _components(pairing, graph, ours):
        items = [item for node in members for item in ends.get(node, ())]
        first = [node for node in theirs if node in members]
        second = [node for node in ours if node in members]
        parts.append((min((after.place[n] for n in second), default=len(after.nodes)), first, second, items))
    for _, first, second, items in sorted(parts, key=lambda part: part[0]):
        claims = tuple(item for item in items if not isinstance(item, ModelDifference))
        found = tuple(item for item in items if isinstance(item, ModelDifference))
        reasons = tuple(f"{after.label(node)}: {pairing.unknown[node]}" for node in second if node in pairing.unknown)
        within = tuple(body for node in second for body in bodies.get(node, ()))
        if not all(known.is_proved for _, known in claims):
            shown = {place for body in within if body.verdict is Equality.PROVED for place in body.places}
            reasons += tuple(dict.fromkeys(pairing.untaken(first, second, shown)))
            for claim, known in claims:
                reasons += () if known.is_proved else tuple(_unshown(pairing, claim, known, only_at))
            if not found:
                reasons += tuple(reason for body in within for reason in _untold(body))
        yield DiffRegion(_verdict(second, claims, found, reasons), tuple(first), tuple(second), claims, found, reasons, within)
    yield from alone


def _unshown(pairing: Pairing, claim: EqualityClaim, known: Judged, only_at: Mapping[str, Dim]) -> Iterator[str]:
    """Why two values need not be equal that are on all inputs."""
    yield from pairing.other_weights(claim)
    yield from other_attributes(pairing, claim, only_at)
    if known.beyond:
        yield f"'{pairing.after.name(claim.after)}': {known.beyond}"


def _untold(body: ComparedBody) -> Iterator[str]:
    """Why numbers of a node do not say that a body computes the same."""
    if body.verdict is Equality.UNDECIDED:
        yield f"{body.name} is undecided"
    elif body.verdict is Equality.DIFFERENT and body.is_entered:
        yield f"{body.name} differs, which shows at no result of its node"


def _changed(pairing: Pairing) -> tuple[list[Node], list[Node], nx.Graph]:
    """The nodes of the model after that are not common to both, those of the one before, and which of them hang together."""
    before, after = pairing.before, pairing.after
    kept = set(pairing.kept.values())
    ours = [node for node in after.nodes if node not in pairing.kept and node.op != "Identity"]
    theirs = [node for node in before.nodes if node not in kept and node.op != "Identity"]
    graph: nx.Graph = nx.Graph()
    graph.add_nodes_from([*ours, *theirs])
    for node in ours:
        for value in after.operands(node):
            maker = after.maker(value)
            if maker in graph and after.made(value) not in pairing.paired:
                graph.add_edge(maker, node)
    shared = set(pairing.paired.values())
    for node in theirs:
        for value in before.operands(node):
            maker = before.maker(value)
            if maker in graph and pairing.stands_for(value) not in shared:
                graph.add_edge(maker, node)
    return ours, theirs, graph


def _components(pairing: Pairing, graph: nx.Graph, ours: Sequence[Node]) -> list[set[Node]]:
    """The connected parts; what only the model before has belongs to a part that is not understood, where there is one."""
    components = [set(members) for members in nx.connected_components(graph)]
    open_end = next((members for members in components if not members.isdisjoint(pairing.unknown)), None)
    if open_end is None:
        return components
    for members in components:  # it may compute what nothing else stands for
        open_end |= members if members.isdisjoint(ours) else set()
    return [members for members in components if not members.isdisjoint(ours)]


def _verdict(
    after: Sequence[Node],
    claims: Sequence[tuple[EqualityClaim, Judged]],
    differences: Sequence[ModelDifference],
    reasons: Sequence[str],
) -> Equality:
    """Of a region. What only the model before computes is computed there twice, or read by nobody that is left."""
    if differences:
        return Equality.DIFFERENT
    if reasons or (after and not claims):
        return Equality.UNDECIDED
    return Equality.PROVED if all(known.is_proved for _, known in claims) else Equality.TESTED


def _outputs(
    model: Model, pairing: Pairing, inputs: CommonInputs, regions: Sequence[DiffRegion], limit: RunLimit
) -> tuple[tuple[ComparedOutput, ...], list[str]]:
    """The outputs; and why onnxruntime does not run the model after, or which of its results belie that nothing differs."""
    runs, refused, problems = _results(model, pairing.before, inputs, limit)
    order, found = pairing.output_order(), []
    for number, (value, other) in enumerate(_output_pairs(pairing)):
        pairs = [
            None if run is None else (first[order[number]], run[number]) for first, run in zip(inputs.outputs, runs, strict=False)
        ]
        usual = [compare(second, first) for first, second in filter(None, pairs[: pairing.before.usual])]
        run, name = worst(usual) if usual else None, pairing.after.name(value)
        verdict, told = _output_verdict(pairing, inputs, regions, value, other, run, pairs)
        problems += [f"output {name}: {words}" for words in told]
        found.append(ComparedOutput(name, Equality.DIFFERENT if refused else verdict, run))
    return tuple(found), problems


def _results(
    model: Model, before: ComparedModel, inputs: CommonInputs, limit: RunLimit
) -> tuple[list[list[Any] | None], Collection[str], list[str]]:
    """What onnxruntime gives for the model after on each input; the inputs on which it refuses; and what is to be said of it."""
    runs, refused = list[list[Any] | None](), dict[str, RuntimeFailure]()
    problems: list[str] = []
    try:
        with limit.limited():
            session = new_session(model.path or model.weights.memory, spinning=False)
        for number, probe in enumerate(inputs.probes if inputs.outputs else ()):
            try:
                runs.append(limit.run(session, fed_to(model, probe)))
            except RuntimeFailure as problem:
                if number < before.usual or limit.is_reached():
                    raise
                runs.append(None)
                refused[probe.words] = problem
    except RuntimeFailure as problem:
        runs.clear()
        problems.append(f"onnxruntime does not run the model after: {problem}")
    if refused:
        where, why = "; ".join(refused), next(iter(refused.values()))
        problems.append(f"onnxruntime runs the model before on inputs {where}, and not the one after: {why}")
    return runs, refused, problems


def _output_verdict(
    pairing: Pairing,
    inputs: CommonInputs,
    regions: Sequence[DiffRegion],
    value: int,
    other: int,
    run: Error | None,
    pairs: Sequence[tuple[Any, Any] | None],
) -> tuple[Equality, list[str]]:
    """The verdict on an output, and what is to be said of it.

    Args:
        value, other: the output of the model after, and of the one before.
        run: how far apart they are in onnxruntime, at worst on usual inputs; None where that does not run both.
        pairs: of each input what they are there, before and after.
    """
    upstream = _upstream(pairing.after, value)
    is_drawn = not upstream.isdisjoint(pairing.after.drawing)  # then two runs tell nothing
    if pairing.after.made(value) in pairing.pins:
        return Equality.DIFFERENT, []
    if not _corresponds(pairing, value, other):
        if run is None or is_drawn:
            return Equality.UNDECIDED, []
        return Equality.TESTED if pairing.is_equal(value, other, run) else Equality.DIFFERENT, []
    changed = [region for region in regions if upstream.intersection(region.after)]
    verdict = heaviest([region.verdict for region in changed])
    if verdict is Equality.DIFFERENT or run is None or is_drawn:
        return verdict, []  # of equal operands, equal results: what follows a difference is none
    if _is_far(pairing, value, other, run):
        return heaviest([verdict, Equality.UNDECIDED]), [_FAR_APART]
    far = [
        number
        for number, pair in list(enumerate(pairs))[pairing.before.usual :]
        if pair is not None and _is_far(pairing, value, other, compare(pair[1], pair[0]))
    ]
    untold = [n for n in far if inputs.probes[n].scale == 1 and not _is_told(changed, n)]
    told = [
        words.format("; ".join(inputs.probes[n].words for n in apart))
        for words, apart in ((_UNTOLD, untold), (_OTHERWISE, [n for n in far if n not in untold]))
        if apart
    ]
    return heaviest([verdict, Equality.UNDECIDED]) if untold else verdict, told


def _is_told(regions: Sequence[DiffRegion], number: int) -> bool:
    """Whether numbers tell of all that was changed, and is not proved, on one of the inputs."""
    return all(number in claim.inputs for region in regions for claim, known in region.claims if not known.is_proved)


def _is_far(pairing: Pairing, value: int, other: int, run: Error) -> bool:
    """Whether what onnxruntime gives for the two models is further apart than rounding, followed through either, explains."""
    type_ = pairing.after.graph.type(value)
    floor = FLOORS[DataType.FLOAT] if type_ is None else FLOORS.get(type_.dtype, 0.0)
    rounded = (pairing.before.rounds_to(node) for node in _upstream(pairing.before, other))
    floors = (floor, pairing.tolerance or 0.0, *(FLOORS[dtype] for dtype in rounded if dtype is not None))
    return run.relative_l2 > _ROUNDINGS * max(floors)


_ROUNDINGS = 100
"""How many times the distance that a rounding is allowed outputs of equal models may be apart in the runtime's own types."""
_OTHERWISE = "onnxruntime's results are further apart on inputs {}: there they overflow or round otherwise"
_UNTOLD = (
    "onnxruntime's results are further apart than rounding explains on inputs {}, of which float64 does not tell: there the model"
    " before is far from itself in its own types"
)
_FAR_APART = "nothing that differs was found, but onnxruntime's results are further apart than rounding explains"


def _upstream(side: ComparedModel, value: int) -> set[Node]:
    """The nodes that a value rests on."""

    def makers(values: Iterable[int]) -> list[Node]:
        return [node for node in map(side.maker, values) if node is not None]

    return set(operands_first(makers([value]), lambda node: makers(side.rests_on(node))))
