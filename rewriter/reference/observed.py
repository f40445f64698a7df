"""Sizes that only a run tells: how many entries are not zero, say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx

from mugraph.files import Scratch
from mugraph.onnx import Model, open_in
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DerivedSymbol, Dim, TensorType, evaluate_dim, plain_symbol
from rewriter.reference.evaluation import reference_run
from rewriter.reference.nodes import NoReference
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = ["observed_sizes", "values_in_a_run"]


def observed_sizes(
    model: Model, sizes: Mapping[str, Dim], feed: Callable[[], Mapping[str, np.ndarray]], provider: str
) -> dict[str, Dim]:
    """The sizes of dimension symbols that are not known, in one run of the original; within bodies, in one evaluation of it.

    A size that may be another one each time that a body runs is none of them.

    Args:
        sizes: of the symbols that are known.
        feed: gives the inputs, where it comes to a run.
        provider: to run on.

    Returns:
        the sizes; none where nothing is missing, or the model does not run.
    """
    tables, outside, within = model.tables, dict[str, int](), dict[str, int]()
    live = {value for node in model.graph.nodes() for value in (*node.inputs, *node.values)}
    for value in sorted(value for value in live if tables.names[value] is not None):
        for name in _missing(tables.types[value], sizes):
            (within if value in tables.bodies else outside).setdefault(name, value)
    found: dict[str, Dim] = {}
    if outside:
        names = list(dict.fromkeys(told for value in outside.values() if (told := tables.names[value]) is not None))
        for name, result in zip(names, values_in_a_run(model, names, feed, provider), strict=False):
            type_ = tables.types[model.values[name]]
            if type_ is not None and isinstance(result, np.ndarray | np.generic):
                shape = tuple(evaluate_dim(dim, sizes) for dim in type_.shape)
                found = solve(equations(shape, np.shape(result)), found)
    if not within.keys() <= found.keys():
        with suppress(NoReference, RuntimeFailure):
            found = {**reference_run(model, [feed()]).sizes, **found}
    return {name: size for name, size in found.items() if name in outside or name in within}


def _missing(type_: TensorType | None, sizes: Mapping[str, Dim]) -> Iterator[str]:
    """The symbols of a type, of those that are no function of others, that are not known."""
    for dim in () if type_ is None else type_.shape:
        name = plain_symbol(evaluate_dim(dim, sizes))
        if name is not None and name not in sizes and not isinstance(name, DerivedSymbol):
            yield name


def values_in_a_run(
    model: Model, names: Sequence[str], feed: Callable[[], Mapping[str, np.ndarray]], provider: str
) -> Sequence[Any]:
    """Some values of the main graph in a run of the original; none where it does not run."""
    with Scratch() as scratch:
        path = open_in(model, model.as_it_came, scratch.path)
        proto = onnx.load(path, load_external_data=False)
        there = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
        path.write_bytes(proto.SerializeToString())
        try:
            results: Sequence[Any] = new_session(path, provider, optimize=False, spinning=False).run(list(names), dict(feed()))
        except RuntimeFailure:
            return ()
        return results
