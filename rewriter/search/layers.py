"""Repeated layers solved once: a model in which a run of equal layers is shortened to a few of them.

The first layer, one from the middle and the last are kept (more where a pattern could span more). The values that the last kept
layer reads are redefined as those of the middle one; a graph is persistent, so the layers between fall away at no cost. What a
search finds on the short model is then done on the whole one at every site of the same place within a layer; a guard that looks
at the weights themselves may refuse some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from mugraph.graph import Definition, Graph
from rewriter.search.candidate import Candidate, site_key
from rewriter.search.layer_runs import LayerRun, NodeKind, fed_to, find_layer_runs, is_weight, nothing_known
from rewriter.search.moves import Moves
from rewriter.search.replay import retrace_sites

__all__ = ["Lifted", "ShortModel", "lift", "shorten"]


@dataclass(frozen=True, slots=True)
class ShortModel:
    """A model without most of its repeated layers.

    Attributes:
        whole, graph: the model as it came, and the short one.
        runs: the runs of layers that were shortened.
        kept: how many layers of each run are left.
        places: names of values, weights and inputs by their place in a layer, the same in all layers of a run.
    """

    whole: Graph
    graph: Graph
    runs: tuple[LayerRun, ...]
    kept: tuple[int, ...]
    places: Mapping[int, str]
    _keys: dict[int, str] = field(default_factory=dict, init=False, repr=False)

    def key(self, value: int) -> str:
        """A name of a value, the same for corresponding values of all layers (:meth:`mugraph.graph.Tables.key`)."""
        return self.whole.tables.key_among(self._keys, value, self._own_key)

    def _own_key(self, value: int) -> str | None:
        tables = self.whole.tables
        return self.places.get(value) or (None if tables.is_made_anew(value) else tables.key(value))

    @property
    def left_out(self) -> list[int]:
        """Layers left out of each run."""
        return [len(run.layers) - kept for run, kept in zip(self.runs, self.kept, strict=True)]


def shorten(graph: Graph, depth: int, kind: NodeKind = nothing_known) -> ShortModel | None:
    """The model with its repeated layers shortened, or ``None`` where there are none to leave out.

    Args:
        graph: the model.
        depth: greatest number of operators on a path of a pattern.
        kind: tells opaque nodes apart.
    """
    runs: list[LayerRun] = []
    kept: list[int] = []
    changes: dict[int, Definition] = {}
    places: dict[int, str] = {}
    for run in find_layer_runs(graph, kind):
        copies = len(run.layers)
        keep = max(3, 1 + -(-(depth - 1) // len(run.layers[0])))  # a pattern may span several layers of few nodes
        marks = _marks(graph, run, len(runs))
        if keep >= copies or marks is None or any(places.get(value, mark) != mark for value, mark in marks.items()):
            continue
        standing = _standing(graph, run, keep)
        if any(graph.type(value) is None for value in standing):  # nothing may stand for it
            continue
        places.update(marks)
        changes |= {value: (graph.tables.apply("Identity", (), [other]), 0) for value, other in standing.items()}
        runs.append(run)
        kept.append(keep)
    if not runs:
        return None
    return ShortModel(graph, graph.substitute(changes), tuple(runs), tuple(kept), places)


def _standing(graph: Graph, run: LayerRun, keep: int) -> dict[int, int]:
    """What stands for the values that are read outside of the layers that are left out: those of a layer that is kept."""
    template, dropped = run.layers[keep - 2], run.layers[keep - 1 : -1]
    inside = {node for layer in dropped for node in layer}
    return {
        value: other
        for layer in dropped
        for node, model in zip(layer, template, strict=True)
        for value, other in zip(node.values, model.values, strict=True)
        if value in graph.outputs or not inside.issuperset(graph.users.get(value, ()))
    }


def _marks(graph: Graph, run: LayerRun, number: int) -> dict[int, str] | None:
    """The names of the values and weights of all layers, and of what is fed to each, by their place.

    ``None`` where a weight has two places.
    """
    marks: dict[int, str] = {}
    feeds = [fed_to(graph, layer) for layer in run.layers]
    every = set.intersection(*(set(fed.values()) for fed in feeds))
    for layer, fed in zip(run.layers, feeds, strict=True):
        weights: dict[int, int] = {}
        marks.update({value: f"layer {number} input {j}.{i}" for value, (j, i) in fed.items() if (j, i) in every})
        for j, node in enumerate(layer):
            for o, value in enumerate(node.values):
                marks[value] = f"layer {number} node {j}.{o}"
            for value in node.inputs:
                if is_weight(graph, value):
                    mark = f"layer {number} weight {weights.setdefault(value, len(weights))}"
                    if marks.setdefault(value, mark) != mark:
                        return None
    return marks


@dataclass(frozen=True, slots=True)
class Lifted:
    """A candidate of the whole model, and in how many places fewer than expected its moves applied."""

    candidate: Candidate
    missing: int


def lift(moves: Moves, short: ShortModel, candidate: Candidate) -> Lifted:
    """Takes a short model's moves on the whole one, at every site of the same place."""
    recorded = [move.recorded(short.key) for move in candidate.moves]
    lifted, done = retrace_sites(moves, short.whole, recorded, short.key)
    missing = 0
    for move, sites in zip(candidate.moves, done, strict=True):
        missing += max(_expected(short, Counter(site_key(match, short.key) for match in move.matches)) - sites, 0)
    return Lifted(lifted, missing)


def _expected(short: ShortModel, sites: Counter[str]) -> int:
    """Sites on the whole model: what a short model has in several layers, the whole one has in every layer left out, too."""
    left_out = short.left_out
    expected = 0
    for key, count in sites.items():
        layers = [left for number, left in enumerate(left_out) if f"layer {number} " in key]
        expected += count + (min(layers, default=0) if count > 1 else 0)
    return expected
