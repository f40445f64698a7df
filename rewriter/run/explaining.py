"""Explanations: why rules did not fire, for what the user asked about."""

from __future__ import annotations

from collections.abc import Iterable

from rewriter.reference import InputError
from rewriter.run.searching import ModelSearch
from rewriter.run.workbench import Workbench
from rewriter.search.explain import NearMiss, explain_all, explain_node, explain_rule

__all__ = ["explanations"]


def explanations(bench: Workbench, search: ModelSearch) -> tuple[NearMiss, ...]:
    """The explanations that ``explain`` asks for: of a value, a node, all rules, or one rule.

    Raises:
        InputError: it is none of these.
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
                return [NearMiss("", "", asked, f"opaque: {model.opaque.get(index, origin.op_type)}")]
            return [line for value in node.values for line in explain_node(moves, start, value)]
    if asked == "all":
        return [*explain_all(moves, start), *bench.kernels.explanations()]
    if any(rule.id.startswith(asked.rstrip("<>")) for rule in bench.rules):
        return explain_rule(moves, start, asked)
    raise InputError(f"--explain {asked}: neither a rule, a node nor a value of the model")
