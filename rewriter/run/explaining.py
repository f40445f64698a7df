"""Explanations: why rules did not fire, for what the user asked about."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from mugraph.onnx import Model
from rewriter.reference import InputError
from rewriter.run.searching import ModelSearch
from rewriter.run.workbench import Workbench
from rewriter.search.explain import explain_all, explain_node, explain_rule, explain_spelled
from rewriter.search.misses import MissReason, NearMiss

__all__ = ["check_asked", "explanations"]

_ALIKE = 3
"""Names that a question about an unknown one is answered with."""


def check_asked(bench: Workbench) -> None:
    """Sees whether there is what ``explain`` asks about, before anything is searched.

    Raises:
        InputError: it is no rule, no node and no value.
    """
    asked = bench.task.options.explain
    names = list(dict.fromkeys([*_names(bench.task.original), *_names(bench.task.model)]))
    if asked is None or asked == "all" or asked in names or _rules_asked(bench, asked):
        return
    near = get_close_matches(asked, filter(None, (*names, *bench.rules.ids)), _ALIKE)
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    raise InputError(f"--explain {asked}: neither a rule, a node nor a value of the model{meant}")


def _names(model: Model) -> list[str]:
    """Of the values and nodes of a model."""
    return [*model.values, *(origin.name for origin in model.origins)]


def _rules_asked(bench: Workbench, asked: str) -> bool:
    return any(name.startswith(asked.rstrip("<>")) for name in bench.rules.ids)


def explanations(bench: Workbench, search: ModelSearch) -> tuple[NearMiss, ...]:
    """The explanations that ``explain`` asks for: of a value, a node, one rule, or all rules, those that miss most first.

    Requires :func:`check_asked`.
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
    if asked in _names(bench.task.original):
        return [
            NearMiss("", "", asked, "cleaning up took it away: the model that is searched has none of that name", MissReason.GONE)
        ]
    if asked == "all":
        misses = [*explain_spelled(moves, start), *explain_all(moves, start)]
        return [*sorted(misses, key=lambda line: -line.at_stake), *bench.kernels.explanations()]
    return explain_rule(moves, start, asked)
