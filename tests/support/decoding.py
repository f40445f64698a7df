"""Steps of decoders with the kernel that attends over their cache, for tests."""

from __future__ import annotations

from mugraph.onnx import Model, load
from mugraph.onnx.cleaning import clean
from mugraph.terms.term import walk
from rewriter.cost import CostModel, ProfileStore, get_device
from rewriter.kernels.fuse.fusable import FusableSet, propose
from rewriter.kernels.matched import matches_of
from rewriter.kernels.proposals import KernelProposals
from rewriter.run.cleaning import computed
from rewriter.search.candidate import Candidate
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from tools.zoo.decoders import Decoder, decoder_step


def beginning(which: Decoder, chooses: bool = True) -> tuple[Model, Moves, Candidate]:
    """A step, cleaned up, and what a search for kernels begins from.

    Args:
        chooses: whether what is written into a cache is a choice where it can be one.
    """
    read = load(decoder_step(which))
    cleaned = clean(read, computed)
    model = read if cleaned is None else cleaned.model
    costs = CostModel(ProfileStore(None, "h200"), model.opset, {}, "cuda", 0.0, get_device("h200"))
    matches = Matches.of([], RangeOracle({}), "cuda", model.opset)
    moves = Moves(matches, Prices(costs, matches.fusions))
    start = moves.start(model.graph)
    (start,) = (list(KernelProposals().starts(moves, start)) if chooses else []) or [start]
    return model, moves, start


def attending(which: Decoder, chooses: bool = True) -> tuple[Model, Moves, Candidate]:
    """A step, cleaned up, and the candidate with the kernel in the place of most nodes that attends over its cache, proved for
    all sizes.

    Args:
        chooses: as :func:`beginning` has it.
    """
    model, moves, start = beginning(which, chooses)
    found = []
    for fusable in propose(start.graph):
        operators = [part.op for part in walk(fusable.terms)]
        weighs = "Softmax" in operators and operators.count("MatMul") > 1
        if weighs or any(op.endswith("Attention") for op in operators):
            children = _with_kernel(moves, start, fusable)
            found += [(fusable.nodes, len(found) + place, child) for place, child in enumerate(children)]
    return model, moves, max(found)[2]


def updating(moves: Moves, candidate: Candidate) -> Candidate:
    """A candidate with one kernel that writes what is new into the keys and values of its one layer, proved for all sizes."""
    _, *returned = candidate.graph.outputs
    sets = [fusable for fusable in propose(candidate.graph) if set(fusable.roots) == set(returned)]
    return _with_kernel(moves, candidate, sets[-1])[-1]


def _with_kernel(moves: Moves, candidate: Candidate, fusable: FusableSet) -> list[Candidate]:
    """The candidates with kernels in the place of a fusable set."""
    children, proposals = list[Candidate](), KernelProposals()
    for direction in proposals.proved(fusable):
        child = proposals.taken(moves, candidate, matches_of(candidate.graph, direction))
        assert child is not None
        children.append(child)
    return children
