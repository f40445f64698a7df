"""``superopt-costs fill``: the costs of models' operators, and of those that rewriting leads to."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mugraph.lines import counted
from mugraph.onnx import load
from mugraph.onnx.kinds import opaque_kind
from rewriter.cost import CostModel, ProfileStore, RuntimeDirections, default_device
from rewriter.cost.store import default_profile_path
from rewriter.reference import bind_sizes
from rewriter.run.options import Options
from rewriter.runtime_env import environment, pick_provider
from rewriter.search.backtracking import Backtracking, SearchLimits
from rewriter.search.layers import shorten
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rules_db.library import open_rules
from rules_db.trust.certificate import Trust

__all__ = ["fill"]

_MEASURING = 0.8
"""Share of the budget for measuring; the rest is for searching what there is to measure."""


def fill(models: Sequence[Path], rules: str | None, budget: float, options: Options) -> Iterator[str]:
    """Measures into the cache; yields a line a model.

    Args:
        rules: a rule database or file; ``None`` for the shipped rules.
        budget: seconds a model.
        options: provider and sizes.

    Raises:
        ModelError, StoreError, ProviderError, InputError: one clear message each.
    """
    provider = pick_provider(options.provider)
    all_rules = open_rules(rules, Trust.TESTED, lambda told: print(f"superopt-costs: {told}", file=sys.stderr))
    for path in models:
        model = load(path)
        sizes, _ = bind_sizes(model, options.shapes or {})
        store = ProfileStore(default_profile_path(), environment(provider))
        costs = CostModel(store, model.opset, sizes, provider, time.monotonic() + _MEASURING * budget, default_device(provider))
        runtime = RuntimeDirections(all_rules, store, provider)
        matches = Matches.of(all_rules, RangeOracle({}), provider, model.opset, runtime.possible, happens=runtime.happens)
        moves = Moves(matches, Prices(costs, matches.fusions))
        moves.start(model.graph)  # asks for the cost of every node; what rewriting leads to shows on the short model
        short = shorten(model.graph, matches.depth, opaque_kind(model))
        search = Backtracking(moves, SearchLimits(seconds=(1 - _MEASURING) * budget))
        search.run(model.graph if short is None else short.graph)
        while costs.measure_met():  # what is known leads the next search elsewhere
            search = replace(search, moves=moves.priced_anew(costs))
            search.run(model.graph if short is None else short.graph)
        store.close()
        left = f", {costs.unmeasurable} could not be" if costs.unmeasurable else ""
        yield f"{path}: {counted(costs.measured, 'cost')} measured{left}"
