"""Cleaning up: a run starts from its model without what no run of that needs, once outputs were seen to be the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from mugraph.onnx import Model, dimension_in_words, open_in
from mugraph.onnx.calls import functions_called, functions_of
from mugraph.onnx.cleaning import Cleaned, Depth, clean
from mugraph.terms.shape import Dim, shape_at
from rewriter.reference import bind_shape, identical, random_inputs, sizes_that_run, without_false_claims
from rewriter.run.background import Presumption
from rewriter.run.opening import open_elsewhere_first
from rewriter.run.probes import probes
from rewriter.run.runtime_fusions import fused_otherwise, is_in_doubt
from rewriter.run.task import Task
from rewriter.runtime_env import RuntimeFailure, Session, new_session

__all__ = [
    "Differs",
    "Idle",
    "Unclean",
    "Unopened",
    "at_sizes_that_run",
    "clean_tasks",
    "computed",
    "fits",
    "left_unclean",
    "runs",
    "session_as_it_came",
    "with_true_claims",
]

Feed = Mapping[str, np.ndarray]


class Unclean(ValueError):
    """The outputs of a clean model are not known to be those of the model that came; the message says why."""


class Differs(Unclean):
    """They were seen to differ, or what onnxruntime makes of the two models does: so it will be whenever they are compared."""


class Idle(Unclean):
    """onnxruntime does not run the model that came on any of the inputs."""


class Unopened(Unclean):
    """onnxruntime does not open the model that came."""


_RUNS_ON_NONE = "onnxruntime does not run it on inputs of the sizes that were tried"
_ALIKE_UNOPTIMIZED = (
    "onnxruntime's optimisers for a processor fuse the model otherwise since it was cleaned up, so that outputs there differ by "
    "rounding; without them they were the same bit for bit"
)
_SHOWN = 4
"""Functions that a line on what was written out names."""
_STEPS = tuple((depth, is_named) for depth in reversed(Depth) for is_named in (True, False))
"""How a model is cleaned up, and whether sizes have names then; the next one counts where a byte of its outputs differs.
Without names it may take twice as long to load; with them onnxruntime may fuse more."""


def clean_tasks(
    task: Task, folder: Path, until: float, is_refused: Callable[[onnx.ModelProto], bool] = lambda _: False
) -> Iterator[tuple[Task, Presumption]]:
    """A task with a clean model, and then with models of which a runtime knows less; none where nothing is to be done.

    Both models of each run in onnxruntime on the CPU with its optimisers, as a user runs them, on the inputs that candidates are
    compared on, by a function that comes with the task: the next one counts only where that raises :class:`Unclean`. That is so
    whatever the target is: what the CPU would read otherwise is not computed for a GPU, either, since it would be refused. What
    its optimisers alone make otherwise counts for the CPU alone.

    Args:
        folder: for the files of the clean models.
        until: the instant of :func:`time.monotonic` after which no further inputs are compared, once some were.
        is_refused: whether it is known of a clean model that its outputs differ: it is left out.
    """
    tried: list[onnx.ModelProto] = []
    original, unnamed = _OutputsAsTheyCame(), dict[Depth, Cleaned | None]()
    for depth, is_named in _STEPS:
        if depth not in unnamed:
            unnamed[depth] = clean(task.model, computed_as_read, depth)
        without = unnamed[depth]
        if without is None:
            return
        cleaned = without.with_names() if is_named else without
        if cleaned.model.proto in tried:
            continue
        tried.append(cleaned.model.proto)
        if is_refused(cleaned.model.proto):
            continue
        (place := folder / f"{depth.name.lower()}-{'named' if is_named else 'unnamed'}").mkdir(parents=True)
        since = time.monotonic()
        path = open_in(cleaned.model, cleaned.model.as_it_came, place)
        seconds, sizes = time.monotonic() - since, _sizes(task, cleaned.model)
        remarks = (*task.remarks, *_written_out(task.model, cleaned.model))
        yield (
            replace(
                task,
                model=cleaned.model,
                cleaned=cleaned,
                written=path,
                seconds_to_write=seconds,
                sizes=sizes,
                remarks=remarks,
            ),
            partial(_compare, task, original, cleaned.model, path, until),
        )


def _written_out(model: Model, cleaned: Model) -> Iterator[str]:
    """A line on the functions of a model that are no calls in the clean one."""
    called = functions_called(model.proto.graph.node, functions_of(model.proto))
    names = sorted({name for _, name, _ in set(called).difference(functions_of(cleaned.proto))})
    if names:
        told = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else "")
        yield f"functions of the model are written out where they were called: {told}; --budget 0 keeps them"


def with_true_claims(task: Task) -> Task:
    """A task whose model is read without the shapes that its file alone tells and that a run of it does not give."""
    chosen = task.choices()[0]
    model, false = without_false_claims(
        task.original,
        task.sizes,
        lambda: task.feeds(chosen)[0],
        "cpu",
        smaller=lambda: (probe.feed for probe in probes(task, chosen)[-1][:1]),
    )
    return replace(task, model=model, original=model, remarks=(*task.remarks, *false)) if false else task


def fits(task: Task) -> bool:
    """Whether no value of the model has a negative size, as behind a window that is longer than what it goes over."""
    graph = task.model.graph
    types = (graph.type(value) for node in graph.nodes() for value in node.values)
    shapes = (shape_at(type_, task.sizes) for type_ in types)
    return all(min(shape, default=0) >= 0 for shape in shapes if shape is not None)


def runs(task: Task, is_wanted: Callable[[], bool]) -> str:
    """Runs the model that came on one of the inputs. Raises Idle where onnxruntime runs it on none."""
    try:
        session = session_as_it_came(task.original)
    except RuntimeFailure:
        return ""  # at no sizes, as whoever opens it next says
    for chosen in task.choices():
        if not is_wanted():
            raise Unclean("nobody waited until the model was run")
        if any(_run(session, feed) is not None for feed in task.feeds(chosen)):
            return ""
    raise Idle(_RUNS_ON_NONE)


def at_sizes_that_run(task: Task) -> Task | None:
    """A task with other sizes in place of those that nobody gave, on which onnxruntime runs the model that came.

    ``None`` where all are given, or none of a few runs.
    """
    if not task.assumed:
        return None
    model, options = task.original, task.options
    try:
        session = session_as_it_came(model)
    except RuntimeFailure:
        return None
    found = sizes_that_run(
        model,
        options.shapes or {},
        lambda sizes: _run(session, random_inputs(model, sizes, 1)) is not None,
        data=options.data,
    )
    return None if found is None else replace(task, model=model, sizes=found[0], assumed=tuple(found[1]))


def left_unclean(task: Task, reason: str) -> Task:
    """A task whose model stays as it came though there was something to do, with a note that says why."""
    return replace(task, is_unclean=True, remarks=(*task.remarks, f"it was not cleaned up: {reason}"))


def _sizes(task: Task, cleaned: Model) -> Mapping[str, Dim]:
    """The sizes as the task has them, by the names of the clean model: it may tell less of its inputs."""
    sizes = dict(task.sizes)
    for name, type_ in cleaned.inputs.items():
        shape = shape_at(task.model.inputs[name], task.sizes)
        if shape is not None:
            bind_shape(sizes, type_, shape)
    return sizes


class _OutputsAsTheyCame:
    """What the model that came gives, which is asked once more where a clean model differs.

    It holds no session: one is a single comparison's, since it heeds the deadline of the work that made it.
    """

    def __init__(self) -> None:
        self._outputs: dict[int, list[np.ndarray] | None] = {}

    def of(self, session: Session, number: int, feed: Feed) -> list[np.ndarray] | None:
        """The outputs on inputs, which have a number; ``None`` where it does not run on them."""
        if number not in self._outputs:
            self._outputs[number] = _run(session, feed)
        return self._outputs[number]

    def forget(self) -> None:
        """Frees them: nobody asks any more."""
        self._outputs.clear()


def _compare(
    task: Task, original: _OutputsAsTheyCame, model: Model, cleaned: Path, until: float, is_wanted: Callable[[], bool]
) -> str:
    """Runs a model and the file of a clean one; says how and where, if not as on a processor at the usual inputs.

    Raises:
        Unclean: their outputs are not known to be the same.
    """
    alike, told = partial(_where_alike, task, cleaned, until, is_wanted), list[str]()
    try:
        compared = alike(original)
        if compared is None and task.target.provider != "cpu":  # the optimisers of another provider move and widen other things
            compared = alike(_OutputsAsTheyCame(), optimize=False)
            told.append(_ALIKE_UNOPTIMIZED)
        if compared is None:
            raise Differs("an output would not be the same bit for bit")
        if is_in_doubt(model, model.graph) and (fused := fused_otherwise(task.model, model, "cpu")):
            raise Differs(fused)
    except RuntimeFailure as problem:
        raise Unclean(f"onnxruntime refuses it ({problem})") from None
    original.forget()
    if not compared:
        raise Idle(_RUNS_ON_NONE)
    if "" not in compared:
        sizes = ", ".join(f"{dimension_in_words(name)} = {size}" for name, size in task.sizes.items())
        usual = f"with {sizes}" if sizes else "on usual inputs"
        told.append(
            f"onnxruntime does not run the model {usual}: what was cleaned up was compared {' and '.join(compared)} alone"
        )
    return "; ".join(told)


def _where_alike(
    task: Task,
    cleaned: Path,
    until: float,
    is_wanted: Callable[[], bool],
    original: _OutputsAsTheyCame,
    *,
    optimize: bool = True,
) -> list[str] | None:
    """What is particular of the inputs on which a model and the file of a clean one give the same bits; ``None`` if on some not.

    Raises:
        Unclean: nobody waited.
        Unopened: onnxruntime does not open the model that came.
        RuntimeFailure: onnxruntime refuses one of them.
    """
    compared = list[str]()
    with ThreadPoolExecutor(1) as beside:  # nobody leaves before both are opened, nor while one of them runs
        opening = beside.submit(copy_context().run, partial(session_as_it_came, task.model, optimize=optimize))
        try:
            open_elsewhere_first(task.model, cleaned, "cpu")
            after = new_session(cleaned, spinning=False, optimize=optimize)
        except RuntimeFailure:
            _opened(opening)  # that it does not open the model that came, either, is all there is to say
            raise
        before = _opened(opening)
        for number, (feed, words) in enumerate(_feeds(task)):
            if not is_wanted():
                raise Unclean("nobody waited until outputs were compared")
            same = _same(beside.submit(original.of, before, number, feed), _run(after, feed))
            if same is False:
                return None
            compared += [words] if same else []
            if compared and time.monotonic() > until:
                break
    return compared


def _feeds(task: Task) -> Iterator[tuple[Feed, str]]:
    """The inputs to compare on, with what is particular of them: ordinary ones first, on which a rounding error shows best."""
    first = task.choices()[0]
    ordinary = task.feeds(first)
    yield ordinary[0], ""
    yield from ((probe.feed, probe.words) for alternatives in probes(task, first) for probe in alternatives[:1])
    yield from ((feed, "") for feed in ordinary[1:])


def session_as_it_came(model: Model, provider: str = "cpu", *, optimize: bool = True) -> Session:
    """A model opened where it is, not written anew. Raises RuntimeFailure."""
    source = model.weights.memory if model.path is None else model.path
    return new_session(source, provider, spinning=False, optimize=optimize)


def _opened(opening: Future[Session]) -> Session:
    """The session of the model that came. Raises Unopened."""
    try:
        return opening.result()
    except RuntimeFailure as problem:
        raise Unopened(f"onnxruntime cannot open the original ({problem})") from None


def _run(session: Session, feed: Feed) -> list[np.ndarray] | None:
    """The outputs on these inputs; ``None`` where it does not run on them."""
    try:
        return session.run(None, feed)
    except RuntimeFailure:
        return None


def _same(before: Future[list[np.ndarray] | None], after: list[np.ndarray] | None) -> bool | None:
    """Whether outputs are the same bit for bit; ``None`` where the first model does not run."""
    wanted = before.result()
    return None if wanted is None else after is not None and all(map(identical, wanted, after))


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


def computed_as_read(program: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As :func:`computed`, without what nodes on the CPU would not read as it is given.

    The CPU provider computes most operators on halves in single precision, and rounds nothing between two of these: what the
    second reads is no half, unless it is one by its value. Nor does a Cast to another type round it, as a rule, which depends
    on what else reads it.
    """
    results = computed(program, feeds)
    lost = _unrounded(program, feeds, results)
    widened = set[str]()
    for node in program.graph.node:
        made = [results[name].dtype for name in node.output if name in results]
        if not widened.isdisjoint(node.input) or (np.float16 not in made and not lost.isdisjoint(node.input)):
            widened.update(node.output)
    return {name: array for name, array in results.items() if name not in lost | widened}


def _unrounded(program: onnx.ModelProto, feeds: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]) -> set[str]:
    """The halves that a node without a kernel for halves reads otherwise; all of them where that cannot be told."""
    halves = {name: array for name, array in results.items() if array.dtype == np.float16}
    if not halves:
        return set()
    comparing = onnx.ModelProto()
    comparing.CopyFrom(program)
    for name, array in halves.items():
        rounded, same = f"{name}/rounded", f"{name}/same"
        comparing.graph.input.append(onnx.helper.make_tensor_value_info(rounded, onnx.TensorProto.FLOAT16, array.shape))
        comparing.graph.node.append(onnx.helper.make_node("Equal", [name, rounded], [same]))
        comparing.graph.output.append(onnx.helper.make_empty_tensor_value_info(same))
    try:
        told = _outputs(comparing, {**feeds, **{f"{name}/rounded": array for name, array in halves.items()}})
    except RuntimeFailure:
        return set(halves)
    return {name for name in halves if not told[f"{name}/same"].all()}


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
