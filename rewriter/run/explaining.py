"""Explanations: why rules did not fire, for what the user asked about."""

from __future__ import annotations

from collections.abc import Iterable

from rewriter.run.searching import ModelSearch
from rewriter.run.task import names_rules, names_within
from rewriter.run.workbench import Workbench
from rewriter.search.explain import explain_all, explain_node, explain_rule, explain_spelled
from rewriter.search.misses import MissReason, NearMiss

__all__ = ["explanations"]


def explanations(bench: Workbench, search: ModelSearch) -> tuple[NearMiss, ...]:
    """The explanations that ``explain`` asks for: of a value, a node, one rule, or all rules, those that miss most first.

    Requires that there is what is asked about (:func:`rewriter.run.task.read_task`).
    """
    asked = bench.task.options.explain
    return () if asked is None else tuple(_explained(bench, search, asked))


def _explained(bench: Workbench, search: ModelSearch, asked: str) -> Iterable[NearMiss]:
    model, moves, start = bench.task.model, search.moves, search.start()
    if asked in model.values:
        return explain_node(moves, start, model.values[asked])
    for index, origin in enumerate(model.origins):
        if origin.name == asked:
            node = next((n for n in start.graph.tables.nodes if n.origin == index), None)
            if node is None:
                return [NearMiss("", "", asked, "a constant")]
            if node.is_opaque:
                return [NearMiss("", "", asked, f"opaque: {model.opaque.get(index, origin.op_type)}", MissReason.OPAQUE)]
            return [line for value in node.values for line in explain_node(moves, start, value)]
    is_name = asked in names_within(bench.task.original)
    if asked == "all" and not is_name:
        misses = [*explain_spelled(moves, start), *explain_all(moves, start)]
        return [*sorted(misses, key=lambda line: -line.at_stake), *bench.kernels.explanations()]
    if names_rules(asked, bench.rules) and not is_name:
        return explain_rule(moves, start, asked)
    return [
        NearMiss("", "", asked, "cleaning up took it away: the model that is searched has none of that name", MissReason.GONE)
    ]
