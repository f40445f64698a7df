"""Whether what a file alone tells of shapes is true, as far as one run tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from mugraph.onnx import Model, claimed, distrusting
from mugraph.terms.shape import Dim
from rewriter.reference.evaluation import reference_run
from rewriter.reference.nodes import FalseClaim, NoReference, check_shape
from rewriter.reference.observed import values_in_a_run
from rewriter.runtime_env import RuntimeFailure

__all__ = ["without_false_claims"]

_Feed = Callable[[], Mapping[str, np.ndarray]]
_Feeds = Callable[[], Iterable[Mapping[str, np.ndarray]]]


def without_false_claims(
    model: Model, sizes: Mapping[str, Dim], feed: _Feed, provider: str, *, smaller: _Feeds = tuple
) -> tuple[Model, Sequence[str]]:
    """A model whose claims (:mod:`mugraph.onnx.claims`) hold in a run, and a line on each that does not.

    Values of the main graph are looked at in a run of the original, those within bodies in an evaluation of it, which takes
    a minute for a loop over a sentence. Where the model does not run on the inputs, nothing is known.

    Args:
        sizes: of the symbols that are known.
        feed: gives the inputs, where it comes to a run.
        provider: to run on.
        smaller: gives inputs of smaller sizes; the model is evaluated on the first of all these inputs on which it can be.
    """
    lines: list[str] = []
    while claims := claimed(model):
        false = _false_in_a_run(model, claims, sizes, feed, provider)
        false = false or _false_in_an_evaluation(model, claims, lambda: _with_last(smaller, feed))
        if not false:
            break
        lines += [f"not used: {one}" for one in false]
        model = distrusting(model, [one.name for one in false])
    return model, lines


def _false_in_a_run(
    model: Model, claims: Iterable[int], sizes: Mapping[str, Dim], feed: _Feed, provider: str
) -> Sequence[FalseClaim]:
    """The false ones among claims of the main graph."""
    tables = model.tables
    names = [name for value in sorted(claims) if value not in tables.bodies and (name := tables.names[value]) is not None]
    found, known = list[FalseClaim](), dict(sizes)
    for name, result in zip(names, values_in_a_run(model, names, feed, provider) if names else (), strict=False):
        try:
            if isinstance(result, np.ndarray | np.generic):
                known = check_shape(model, model.values[name], np.shape(result), known)
        except FalseClaim as problem:
            found.append(problem)
    return found


def _with_last(feeds: _Feeds, last: _Feed) -> Iterator[Mapping[str, np.ndarray]]:
    yield from feeds()
    yield last()


def _false_in_an_evaluation(model: Model, claims: Iterable[int], feeds: _Feeds) -> Sequence[FalseClaim]:
    """The first false one among claims within bodies."""
    for feed in feeds() if any(value in model.tables.bodies for value in claims) else ():
        with suppress(NoReference, RuntimeFailure):
            try:
                reference_run(model, [feed])
            except FalseClaim as problem:
                return [problem] if problem.name not in model.distrusted else []
            break
    return []
