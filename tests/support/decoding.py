"""Steps of decoders with the kernel that attends over their cache, for tests."""

from __future__ import annotations

from mugraph.onnx import Model, load
from mugraph.onnx.cleaning import clean
from mugraph.terms.term import walk
from rewriter.cost import CostModel, ProfileStore, get_device
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.matched import matches_of
from rewriter.kernels.proposals import KernelProposals
from rewriter.run.cleaning import computed
from rewriter.search.candidate import Candidate
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from tools.zoo.decoders import Decoder, decoder_step


def attending(which: Decoder) -> tuple[Model, Moves, Candidate]:
    """A step, cleaned up, and the candidate with the kernel in the place of most nodes that attends over its cache, proved for
    all sizes."""
    read = load(decoder_step(which))
    cleaned = clean(read, computed)
    model = read if cleaned is None else cleaned.model
    costs = CostModel(ProfileStore(None, "h200"), model.opset, {}, "cuda", 0.0, get_device("h200"))
    matches = Matches.of([], RangeOracle({}), "cuda", model.opset)
    moves, proposals = Moves(matches, Prices(costs, matches.fusions)), KernelProposals()
    start = moves.start(model.graph)
    (start,) = proposals.starts(moves, start) if which.spelling == "genai" else (start,)
    found = []
    for fusable in propose(start.graph):
        operators = [part.op for part in walk(fusable.terms)]
        weighs = "Softmax" in operators and operators.count("MatMul") > 1
        if not weighs and not any(op.endswith("Attention") for op in operators):
            continue
        for direction in proposals.proved(fusable):
            child = proposals.taken(moves, start, matches_of(start.graph, direction))
            assert child is not None
            found.append((fusable.nodes, len(found), child))
    return model, moves, max(found)[2]
