"""Cleaning up: a run starts from its model without what no run of that needs, once outputs were seen to be the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from mugraph.files import Scratch
from mugraph.onnx import Model, open_in
from mugraph.onnx.cleaning import Depth, clean
from mugraph.terms.shape import Dim, concrete, evaluate_dim
from rewriter.reference import bind_shape, identical
from rewriter.run.background import in_background
from rewriter.run.probes import probes
from rewriter.run.task import Task
from rewriter.runtime_env import RuntimeFailure, Session, new_session

__all__ = ["cleaned_up", "computed", "session_as_it_came"]

Feed = Mapping[str, np.ndarray]


def cleaned_up(task: Task, until: float, meanwhile: Callable[[], object]) -> Task:
    """A task whose model is clean; the same task where nothing is to be done, or where the outputs would not be the same.

    Both models run in onnxruntime on the CPU as a user runs them, on the inputs that candidates are compared on. Where outputs
    differ in a bit, fewer constants are computed, and where they still do, the model stays as it came.

    Ensures that a note says why a model stays as it came though there was something to do.

    Args:
        until: the instant of :func:`time.monotonic` after which no further inputs are compared, once some were.
        meanwhile: called while the models run, of which it must know nothing.
    """
    reason = ""
    for depth in reversed(Depth):
        cleaned = clean(task.model, computed, depth)
        if cleaned is None:
            break
        reason = _difference(task, cleaned.model, until, meanwhile)
        if not reason:
            return replace(task, model=cleaned.model, cleaned=cleaned, sizes=_sizes(task, cleaned.model))
    if not reason:
        return task
    return replace(task, is_unclean=True, remarks=(*task.remarks, f"it was not cleaned up: {reason}"))


def _sizes(task: Task, cleaned: Model) -> Mapping[str, Dim]:
    """The sizes as the task has them, by the names of the clean model: it may tell less of its inputs."""
    sizes = dict(task.sizes)
    for name, type_ in cleaned.inputs.items():
        shape = concrete([evaluate_dim(dim, task.sizes) for dim in task.model.inputs[name].shape])
        if shape is not None:
            bind_shape(sizes, type_, shape)
    return sizes


def _difference(task: Task, cleaned: Model, until: float, meanwhile: Callable[[], object]) -> str:
    """Why outputs of two models are not known to be the same; empty where they are."""
    with Scratch() as scratch:
        path = open_in(cleaned, cleaned.as_it_came, scratch.path)
        difference = in_background(lambda: _compared(task, path, until))
        meanwhile()
        return difference.result()


def _compared(task: Task, cleaned: Path, until: float) -> str:
    """The same of a model and a file."""
    try:
        opening = in_background(lambda: session_as_it_came(task.model))
        after = new_session(cleaned)
        before = opening.result()
        compared = False
        for feed in _feeds(task):
            same = _same(before, after, feed)
            if same is False:
                return "an output would not be the same bit for bit"
            compared |= bool(same)
            if compared and time.monotonic() > until:
                break
    except RuntimeFailure as problem:
        return f"onnxruntime refuses it ({problem})"
    return "" if compared else "onnxruntime does not run it on inputs of the sizes that were tried"


def _feeds(task: Task) -> Iterator[Feed]:
    """The inputs to compare on."""
    first = task.choices()[0]
    yield from (probe.feed for alternatives in probes(task, first) for probe in alternatives[:1])
    yield from task.feeds(first)


def session_as_it_came(model: Model, provider: str = "cpu") -> Session:
    """A model opened where it is, not written anew. Raises RuntimeFailure."""
    return new_session(model.weights.memory if model.path is None else model.path, provider)


def _same(before: Session, after: Session, feed: Feed) -> bool | None:
    """Whether the outputs on these inputs are the same bit for bit; ``None`` where the first model does not run on them."""
    try:
        wanted = before.run(None, feed)
    except RuntimeFailure:
        return None
    try:
        return all(map(identical, wanted, after.run(None, feed)))
    except RuntimeFailure:
        return False


def computed(program: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a model by name, as onnxruntime computes them on the CPU without its optimisers.

    Where it cannot run the whole, its nodes are run one by one, and what fails is left out.
    """
    try:
        return _outputs(program, feeds)
    except RuntimeFailure:
        known = dict(feeds)
        for node in program.graph.node:
            names = [name for name in node.input if name]
            if all(name in known for name in names):
                try:
                    known.update(_outputs(_alone(program, node, known), {name: known[name] for name in names}))
                except RuntimeFailure:
                    continue
        return {name: array for name, array in known.items() if name not in feeds}


def _outputs(program: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs that are arrays of numbers. Raises RuntimeFailure."""
    session = new_session(program.SerializeToString(), optimize=False, threads=1)
    names = [value.name for value in program.graph.output]
    results = zip(names, session.run(names, feeds), strict=True)
    return {name: array for name, array in results if isinstance(array, np.ndarray) and array.dtype != object}


def _alone(program: onnx.ModelProto, node: onnx.NodeProto, known: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A model of one node of a program."""
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(known[name].dtype), known[name].shape)
        for name in dict.fromkeys(node.input)
        if name
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "constant", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=program.opset_import, ir_version=program.ir_version)
