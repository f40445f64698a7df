"""Explanations: why rules did not fire, for what the user asked about."""

from __future__ import annotations

from collections.abc import Iterable

from rewriter.reference import InputError
from rewriter.run.searching import ModelSearch
from rewriter.run.workbench import Workbench
from rewriter.search.explain import Explanation, explain_all, explain_node, explain_rule

__all__ = ["explanations"]


def explanations(bench: Workbench, search: ModelSearch) -> tuple[Explanation, ...]:
    """The explanations that ``explain`` asks for: of a value, a node, all rules, or one rule.

    Raises:
        InputError: it is none of these.
    """
    asked = bench.task.options.explain
    return () if asked is None else tuple(_explained(bench, search, asked))


def _explained(bench: Workbench, model_search: ModelSearch, asked: str) -> Iterable[Explanation]:
    model, search, start = bench.task.model, model_search.search, model_search.start()
    if asked in model.values:
        return explain_node(search, start, model.values[asked])
    for index, origin in enumerate(model.origins):
        if origin.name == asked:
            node = next((n for n in start.graph.tables.nodes if n.origin == index), None)
            if node is None:
                return [Explanation("", "", asked, "a constant")]
            if node.is_opaque:
                return [Explanation("", "", asked, f"opaque: {model.opaque.get(index, origin.op_type)}")]
            return [line for value in node.values for line in explain_node(search, start, value)]
    if asked == "all":
        return [*explain_all(search, start), *bench.kernels.explanations(search)]
    if any(rule.id.startswith(asked.rstrip("<>")) for rule in bench.rules):
        return explain_rule(search, start, asked)
    raise InputError(f"--explain {asked}: neither a rule, a node nor a value of the model")
