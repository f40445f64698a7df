"""Sizes that only a run tells: how many entries are not zero, say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from mugraph.files import Scratch
from mugraph.onnx import Model, open_in
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import Dim, Least, WholePart, evaluate_dim, plain_symbol
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = ["observed_sizes"]


def observed_sizes(
    model: Model, sizes: Mapping[str, Dim], feed: Callable[[], Mapping[str, np.ndarray]], provider: str
) -> dict[str, Dim]:
    """The sizes of dimension symbols outside of bodies that are not known, in one run of the original.

    Args:
        sizes: of the symbols that are known.
        feed: gives the inputs, where it comes to a run.
        provider: to run on.

    Returns:
        the sizes; none where nothing is missing, or the model does not run.
    """
    tables, carriers = model.tables, dict[str, int]()
    for value, type_ in enumerate(tables.types):
        if type_ is None or value in tables.bodies or tables.names[value] is None or not model.graph.is_live(value):
            continue
        for dim in type_.shape:
            name = plain_symbol(evaluate_dim(dim, sizes))
            if name is not None and name not in sizes and not isinstance(name, Least | WholePart):
                carriers.setdefault(name, value)
    if not carriers:
        return {}
    names = list(dict.fromkeys(name for value in carriers.values() if (name := tables.names[value]) is not None))
    found: dict[str, Dim] = {}
    for name, result in zip(names, _run(model, names, feed, provider), strict=False):
        type_ = tables.types[model.values[name]]
        if type_ is not None and isinstance(result, np.ndarray | np.generic):
            shape = tuple(evaluate_dim(dim, sizes) for dim in type_.shape)
            found = solve(equations(shape, np.shape(result)), found)
    return {name: size for name, size in found.items() if name in carriers}


def _run(model: Model, names: Sequence[str], feed: Callable[[], Mapping[str, np.ndarray]], provider: str) -> Sequence[Any]:
    """Some values in a run of the original; none where it does not run."""
    with Scratch() as scratch:
        path = open_in(model, model.as_it_came, scratch.path)
        proto = onnx.load(path, load_external_data=False)
        there = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
        path.write_bytes(proto.SerializeToString())
        try:
            results: Sequence[Any] = new_session(path, provider, optimize=False).run(list(names), dict(feed()))
        except RuntimeFailure:
            return ()
        return results
