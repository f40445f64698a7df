"""Acceptance: what is numerically right, and how long that takes beside the original (design, Rewriting)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.graph import Graph, Node
from mugraph.onnx import Model, load
from mugraph.ops.support import providers_of
from mugraph.terms.shape import DataType
from rewriter.cost.cuda import BoundModel, bound_on_device
from rewriter.reference import (
    INFINITE,
    Error,
    Evaluated,
    NoReference,
    References,
    compare,
    compare_each,
    decided_outputs,
    is_quantized,
    worst,
)
from rewriter.run.opening import open_elsewhere_first
from rewriter.run.probes import InputProbe, run_first
from rewriter.run.referring import Ahead, referred
from rewriter.run.runtime_fusions import fused_otherwise, is_in_doubt
from rewriter.run.sealed_kernels import write_sealed
from rewriter.run.timings import MOST_ROUNDS, Timing, alternate, paired
from rewriter.runtime_env import RuntimeFailure, Session, new_session

__all__ = [
    "FLOORS",
    "Acceptance",
    "JudgedOutputs",
    "Miss",
    "NondeterministicModel",
    "first_failing",
    "first_reference",
    "session_of",
]

FLOORS = {DataType.FLOAT: 1e-6, DataType.DOUBLE: 1e-12, DataType.FLOAT16: 1e-3, DataType.BFLOAT16: 8e-3}
"""Error below which two results are equally good: a few units in the last place, by element type."""

_REPLAYS = 300
"""Most rounds of a measurement on the device: half a second of a model of 0.4 ms."""

_STEP = 2.0**-8
"""Relative error below which two results of a quantised model are equally good: one step of 8 bits, of their whole range."""
_DECIDED = _STEP / 4
"""Relative error up to which two results are the same where no rounding error decides: less than a step of 8 bits throughout,
more than some numbers that lie half way between two."""
_STEPS = 0.5
"""Relative error up to which outputs of a quantised model are compared at all: a step that goes the other way changes others."""


def _outputs_of(session: Any, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What a candidate gives. Raises RuntimeFailure, also where it is evaluated and cannot be."""
    try:
        outputs: list[np.ndarray] = session.run(None, feed)
    except NoReference as problem:
        raise RuntimeFailure(str(problem)) from problem
    return outputs


def first_reference(
    model: Model,
    feeds: Sequence[Mapping[str, np.ndarray]],
    probes: Sequence[Sequence[InputProbe]],
    is_wanted: Callable[[], bool],
    ahead: Ahead | None = None,
) -> References:
    """The float64 outputs for some inputs and for the first of each list of probes; as :func:`referred`."""
    first = [alternatives[0].feed for alternatives in probes if alternatives]
    return referred(model, [*feeds, *first], is_wanted, ahead)


def session_of(model: Model, path: Path, provider: str) -> Session:
    """A session of a file that was made of a model. Raises RuntimeFailure."""
    open_elsewhere_first(model, path, provider)
    return new_session(path, provider, spinning=False)


@dataclass(frozen=True, slots=True)
class Miss:
    """An output that is not what it has to be.

    Attributes:
        excess: how many times as far from the reference it is as it may be; 0 where it is held against the original instead.
        words: which it is, on which inputs, and by what it misses.
    """

    excess: float
    words: str


@dataclass(frozen=True, slots=True)
class JudgedOutputs:
    """A candidate's outputs beside the reference.

    Attributes:
        errors: of each output.
        miss: the output that misses most; ``None`` where all are acceptable.
        beside: the original's error that allowed these, where it is not that of a run.
    """

    errors: Sequence[Error]
    miss: Miss | None
    beside: Error | None = None


def _miss(name: str, error: Error, own: Error, floor: float) -> Miss | None:
    """By which measure an error misses most what the original's own allows; ``None`` where it is acceptable beside that."""
    if error.within(own, floor):
        return None
    allowed, misses = own.allowed(floor), []
    for measure, found, its_own, most in (
        (f"relative error {error.relative_l2:.1e}", error.relative_l2, own.relative_l2, allowed.relative_l2),
        (f"error max/rms {error.max_over_rms:.1e}", error.max_over_rms, own.max_over_rms, allowed.max_over_rms),
    ):
        excess = found / most if most else math.inf if found else 0.0
        misses.append(Miss(excess, f"{measure} of {name}, the original has {its_own:.1e}"))
    return max(misses, key=lambda each: each.excess)


class Acceptance:
    """Compares candidates with the original: numerically against the float64 reference, and in time.

    Sessions here do not spin, since two spinning sessions disturb each other (docs/measuring.md); the original's stays open,
    and on a GPU so does its captured graph, where it can be captured.

    Args:
        feeds: inputs to compare and time on.
        references: of :func:`first_reference` for them and for the probes, where they are being made already.
        probes: further inputs to compare on; of each list the first counts that the original runs.
        once_run: is called when only the reference is waited for, with the seconds that it took to open the original, those
            that a run of it takes, and whether the device can be asked for its time (:meth:`on_device`).
        is_wanted: as of :func:`rewriter.reference.reference_run`.
        captures: asked before the reference is made whether candidates are going to be timed: then the original's graph is
            captured, where it can be.
        evaluates: original and candidates are evaluated through the registry's definitions, in their values' own types, since
            the provider lacks kernels for one of these.
        precision: relative error up to which two float32 results are equally good, where that is more than their floor.

    Attributes:
        probed: what is particular of the probes that count.
        unprobed: the same of those that the original does not run.
        entered: numbers of the bodies that some input runs.
        quantizes: whether the original does: a number half way between two steps goes to either.

    Raises:
        NondeterministicModel: the original gives different outputs on the same inputs.
        NoReference: the original cannot be evaluated in float64.
        RuntimeFailure: onnxruntime does not run the original.
    """

    def __init__(
        self,
        model: Model,
        original: Path,
        feeds: Sequence[Mapping[str, np.ndarray]],
        provider: str,
        references: Future[References] | None = None,
        probes: Sequence[Sequence[InputProbe]] = (),
        *,
        evaluates: bool = False,
        precision: float = 0.0,
        captures: Callable[[], bool] = lambda: True,
        once_run: Callable[[float, float, bool], None] = lambda opening, running, is_captured: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.model, self.feeds, self.provider = model, [dict(feed) for feed in feeds], provider
        self.evaluates = evaluates
        began = time.perf_counter()
        self.original = self.open(original, model.graph if evaluates else None)
        opening = time.perf_counter() - began
        self.outputs = [self.original.run(None, feed) for feed in self.feeds]
        further, self.unprobed = run_first(probes, partial(self.original.run, None))
        self.probed = [each.probe.words for each in further]
        self.compared = [*self.feeds, *(dict(each.probe.feed) for each in further)]
        self.outputs += [each.outputs for each in further]
        types = [model.graph.type(value) for value in model.graph.outputs]
        floors = {**FLOORS, DataType.FLOAT: max(FLOORS[DataType.FLOAT], precision)}
        self.floors = [0.0 if t is None else floors.get(t.dtype, 0.0) for t in types]
        began = time.perf_counter()
        again = self.original.run(None, self.feeds[0])
        running = time.perf_counter() - began
        self._path = original
        self._device: ThreadPoolExecutor | None = None
        self._bound: BoundModel | None = None
        self._captures = True
        is_captured = captures() and self.capture()
        self.quantizes = is_quantized(model.graph)
        plain = self._run_plainly(original) if self.quantizes and not evaluates else []
        once_run(opening, running, is_captured)
        are_first = len(further) == len(probes) and all(
            each.probe is alternatives[0] for each, alternatives in zip(further, probes, strict=True)
        )
        reference = self._reference(references if are_first else None, is_wanted)
        self.references, self.entered = reference.outputs, reference.entered
        self.own_errors = self._errors(self.outputs)
        self.step_errors = self._step_errors(plain) if plain else []
        for second, first, own_error, floor in zip(again, self.outputs[0], self.own_errors[0], self.floors, strict=True):
            # GPU kernels that add in no fixed order round differently from run to run; what is drawn at random is far off.
            if not _is_repeated(second, first, own_error, floor):
                raise NondeterministicModel("the model's outputs differ from run to run on the same inputs")
        self._evaluated: tuple[list[list[np.ndarray]], list[list[Error]]] | None = None
        self._decided: list[np.ndarray] | None = None

    def _reference(self, known: Future[References] | None, is_wanted: Callable[[], bool]) -> References:
        """The float64 outputs for all inputs that are compared; what is known counts where it could be made."""
        if known is not None and known.exception() is None:
            return known.result()
        return referred(self.model, self.compared, is_wanted)

    def open(self, path: Path, graph: Graph | None = None) -> Any:
        """A session of a candidate; its evaluation where its graph is given and holds an operator that cannot run here."""
        if graph is not None and (self.evaluates or any(_lacks_kernel(graph, n, self.provider) for n in graph.references)):
            return Evaluated(self.model, graph)
        return session_of(self.model, path, self.provider)

    def _errors(self, outputs: Sequence[Sequence[Any]]) -> list[list[Error]]:
        pairs = zip(outputs, self.references, strict=True)
        return [compare_each(actual, wanted) for actual, wanted in pairs]

    def own_error(self) -> Error:
        """The original's error against the reference, the worst over the inputs that are timed, and outputs."""
        return worst([error for errors in self.own_errors[: len(self.feeds)] for error in errors])

    def _run_plainly(self, path: Path) -> list[list[Any]]:
        """A model's outputs for all inputs that are compared, by the runtime without its optimisers."""
        session = new_session(path, self.provider, spinning=False, optimize=False)
        return [session.run(None, feed) for feed in self.compared]

    def _step_errors(self, plain: Sequence[Sequence[Any]]) -> list[Error]:
        """How far an original that quantises is from the reference, by output: the worst over inputs, and of two ways to run it.

        A number that lies half way between two steps goes to either, by a rounding error; so the runtime's own optimisers change
        its outputs, by more on one input than on another.

        Args:
            plain: of :meth:`_run_plainly`.
        """
        runs = [self.own_errors, self._errors(plain)]
        by_output = zip(*(errors for run in runs for errors in run[: len(self.feeds)]), strict=True)
        return [worst(errors) for errors in by_output]

    def own_errors_by_output(self) -> list[Error]:
        """The original's error against the reference for each output, the worst over the inputs that are timed."""
        return [worst(errors) for errors in zip(*self.own_errors[: len(self.feeds)], strict=True)]

    def judge(self, session: Any) -> tuple[Error, bool]:
        """A candidate's error against the reference, the worst over outputs, and whether it is acceptable.

        Raises:
            RuntimeFailure: onnxruntime does not run the candidate.
        """
        judged = self.judge_outputs(session)
        return worst(judged.errors), judged.miss is None

    def judge_outputs(self, session: Any) -> JudgedOutputs:
        """A candidate's error against the reference for each output, and what misses most.

        An error is the worst over the inputs that are timed; of one that is unacceptable, over all inputs.

        Each output is judged by itself: within twice the original's own error, with a floor by element type. Where the
        original itself is far from the reference (an overflow, an index or a cast to integers that rounding decides),
        the candidate must give what the original gives. A candidate that is evaluated instead of run is compared with the
        original evaluated in the same way, since kernels round elsewhere. On a probe on which the original itself is far from
        the reference, such as one whose numbers overflow, nothing is asked of an output but its shape. Of a model that quantises
        the own error is the worst of those at the timed inputs, run with the runtime's optimisers and without.

        Raises:
            RuntimeFailure: onnxruntime does not run the candidate.
        """
        if isinstance(session, Evaluated):
            return self._judged(session, *self._as_evaluated())
        return self._judged(session, self.outputs, self.own_errors)

    def judge_elsewhere(self, session: Any, graph: Graph) -> JudgedOutputs:
        """As :meth:`judge_outputs`, of a candidate for a device that is not here.

        In half precision the CPU provider rounds only between some nodes, and between others than the device does: the original's
        own error there may be nearly none, and a rounding that it has on the device seems too much of a candidate. So one that
        misses is right where it does not miss what is allowed by the original's error with every value rounded to its own type,
        neither run nor itself evaluated so.

        Args:
            graph: of the candidate.

        Raises:
            RuntimeFailure: onnxruntime does not run the candidate.
        """
        judged = self.judge_outputs(session)
        if judged.miss is None or isinstance(session, Evaluated) or not self._holds_halves():
            return judged
        try:
            if self.judge_outputs(Evaluated(self.model, graph)).miss is not None:
                return judged
        except (NoReference, RuntimeFailure):
            return judged
        _, errors = self._as_evaluated()
        usual = [worst(of_output) for of_output in zip(*errors[: len(self.feeds)], strict=True)]
        pairs = zip(self.own_errors, errors, strict=True)
        allowed = [list(map(_on_device, run, rounded, usual)) for run, rounded in pairs]
        return replace(self._judged(session, self.outputs, allowed), beside=worst(usual))

    def _holds_halves(self) -> bool:
        """Whether a value of the model is in half precision."""
        return any(type_ is not None and type_.dtype is DataType.FLOAT16 for type_ in self.model.tables.types)

    def _as_evaluated(self) -> tuple[list[list[np.ndarray]], list[list[Error]]]:
        """The original's outputs where it is evaluated, every value rounded to its own type, and their errors."""
        if self._evaluated is None:
            original = Evaluated(self.model, self.model.graph)
            outputs = [original.run(None, feed) for feed in self.compared]
            self._evaluated = outputs, self._errors(outputs)
        return self._evaluated

    def _judged(self, session: Any, originals: Sequence[Sequence[Any]], own_errors: Sequence[Sequence[Error]]) -> JudgedOutputs:
        """A candidate's outputs beside what the original gives, and that one's errors."""
        errors: list[list[Error]] = [[] for _ in self.floors]
        misses, names = list[Miss](), self.output_names
        rows = zip(self.compared, originals, self.references, own_errors, strict=True)
        for number, (feed, outputs, references, errors_of_original) in enumerate(rows):
            is_probe = number >= len(self.feeds)
            where = f" {self.probed[number - len(self.feeds)]}".rstrip() if is_probe else ""
            given = _outputs_of(session, feed)
            found = compare_each(given, references)
            for output, (actual, original, error, own_error, floor) in enumerate(
                zip(given, outputs, found, errors_of_original, self.floors, strict=True)
            ):
                name = f"{names[output]}{where}"
                steps = worst([own_error, self.step_errors[output]]) if self.step_errors else INFINITE
                miss: Miss | None = None
                if steps.relative_l2 <= _STEPS:
                    miss = _miss(name, error, steps, max(floor, _STEP))
                elif own_error.is_small:
                    miss = _miss(name, error, own_error, floor)
                elif is_probe:
                    if np.shape(actual) != np.shape(original):
                        miss = Miss(math.inf, f"{name} is of shape {np.shape(actual)}, the original's of {np.shape(original)}")
                elif not compare(actual, original).within(Error(0.0, 0.0), floor):
                    miss = Miss(0.0, f"{name} is not what the original gives, which is itself far from exact numbers")
                misses += [] if miss is None else [miss]
                if not (is_probe and miss is None):
                    errors[output].append(error)
        return JudgedOutputs([worst(of_output) for of_output in errors], max(misses, key=lambda each: each.excess, default=None))

    @property
    def output_names(self) -> list[str]:
        """What messages call the outputs."""
        return [self.model.tables.names[value] or f"value {value}" for value in self.model.graph.outputs]

    def is_right_sealed(self, path: Path) -> bool:
        """Whether a candidate's file is acceptable as it is run where the library of its custom kernels is.

        It is, too, where onnxruntime's optimisers do not make the difference: the CPU provider rounds halves where a sealed
        kernel ends, and not within what it does not seal.

        Raises:
            RuntimeFailure: onnxruntime does not run it so.
        """
        sealed = write_sealed(path)
        try:
            session = self.open(sealed)
            return self.judge(session)[1] or self._is_as_unoptimised(session, self._run_plainly(sealed))
        finally:
            sealed.unlink()

    def _is_as_unoptimised(self, session: Any, plain: Sequence[Sequence[Any]]) -> bool:
        """Whether a session gives what it gives without the optimisers, or is as near to the reference, for all that is compared.

        On a probe on which the original itself is far from the reference nothing is asked of an output but its shape.

        Args:
            plain: of :meth:`_run_plainly`.
        """
        rows = zip(self.compared, plain, self.references, self.own_errors, strict=True)
        for number, (feed, outputs, references, own_errors) in enumerate(rows):
            given = zip(session.run(None, feed), outputs, references, own_errors, self.floors, strict=True)
            for actual, unoptimised, wanted, own_error, floor in given:
                if number >= len(self.feeds) and not own_error.is_small:
                    fits = np.shape(actual) == np.shape(unoptimised)
                else:
                    either = worst([own_error, compare(unoptimised, wanted)])
                    is_as_near = either.is_small and compare(actual, wanted).within(either, floor)
                    fits = is_as_near or _is_repeated(actual, unoptimised, own_error, floor)
                if not fits:
                    return False
        return True

    def decides_otherwise(self, graph: Graph) -> float | None:
        """The relative error of a candidate whose steps are other ones than the original's; ``None`` where they are the same.

        Both are evaluated in float64, on one of the inputs that are timed: no rounding error decides there. What computes the
        same makes the same steps, and a zero point that is off by one shows, which in a session looks like steps that went
        the other way. Nothing is asked of a model that does not quantise, nor of a candidate that cannot be evaluated.
        """
        if not self.quantizes:
            return None
        feed = self.feeds[-1]
        try:
            if self._decided is None:
                self._decided = decided_outputs(self.model, self.model.graph, feed)
            actual = decided_outputs(self.model, graph, feed)
        except NoReference:
            return None
        error = max(compare(a, w).relative_l2 for a, w in zip(actual, self._decided, strict=True))
        return error if error > _DECIDED else None

    def fuses_otherwise(self, graph: Graph, path: Path) -> str:
        """What onnxruntime's optimisers make of a candidate's file that they do not make of the original and that is another
        function, whatever the inputs that are compared show; empty where they make none.

        Raises:
            RuntimeFailure: onnxruntime does not tell.
        """
        return fused_otherwise(self.model, load(path), self.provider) if is_in_doubt(self.model, graph) else ""

    def pair(self, session: Any, seconds: float) -> Timing:
        """A first impression of a candidate's speed: alternating with the original, spinning off."""
        times: tuple[list[float], ...] = ([], [], [], [])
        alternate(self.original, session, self.feeds, seconds, times, most=MOST_ROUNDS)
        return paired(*times)

    def capture(self) -> bool:
        """Captures the original's graph, unless that was tried before; whether the device can be asked for times.

        Where it cannot be captured, it is run with inputs and outputs in device memory, as are candidates then.

        onnxruntime keeps a captured graph for the thread that captured it: from another one it would run the model anew and
        capture it again. So graphs are captured and replayed by one thread, whoever asks for that.
        """
        if self._device is None and self.provider == "cuda" and not self.evaluates:
            self._device = ThreadPoolExecutor(1)
            self._bound = self._device.submit(copy_context().run, self._bind_original).result()
        return self._bound is not None

    def _bind_original(self) -> BoundModel | None:
        for self._captures in (True, False):
            if (bound := self._bind(self._path)) is not None:
                return bound
        return None

    def on_device(self, path: Path, seconds: float) -> Timing | None:
        """A candidate's time on the GPU beside the original's, in turn on one input: as captured graphs, if the original is one.

        ``None`` where there is no GPU, and where the candidate cannot be captured and the original can.
        """
        if not self.capture():
            return None
        assert self._device is not None, "it captured the original's"
        return self._device.submit(copy_context().run, self._timed_in_turn, path, seconds).result()

    def _timed_in_turn(self, path: Path, seconds: float) -> Timing | None:
        candidate = self._bind(path)
        if candidate is None:
            return None
        times: tuple[list[float], ...] = ([], [], [], [])
        try:
            alternate(self._bound, candidate, self.feeds[:1], seconds, times, most=_REPLAYS)
        except RuntimeFailure:
            return None
        return paired(*times)

    def _bind(self, path: Path) -> BoundModel | None:
        """A model's file on one input; ``None`` where it cannot be captured, or run."""
        try:
            return bound_on_device(path, self.feeds[0], self.outputs[0], captures=self._captures)
        except RuntimeFailure:
            return None

    def close(self) -> None:
        """Frees the original's sessions, so that :func:`confirm` has the machine to itself."""
        del self.original
        self._bound = None
        if self._device is not None:
            self._device.shutdown()


def _on_device(run: Error, rounded: Error, usual: Error) -> Error:
    """An output's error on a device, by that of a run elsewhere and that of an evaluation that rounds every value.

    Args:
        usual: of an evaluation on the inputs that are timed. It counts on a probe on which halves overflow, so that the
            evaluation is far from the reference; where they overflow on inputs that are timed, what was run counts alone.
    """
    rounding = rounded if rounded.is_small else usual
    return worst([run, rounding]) if rounding.is_small else run


def _is_repeated(again: Any, first: Any, own_error: Error, floor: float) -> bool:
    """Whether an output is what it was in another run, but for an error as the original has, or the floor of its type."""
    return compare(again, first).within(own_error if own_error.is_small else Error(0.0, 0.0), floor)


def _lacks_kernel(graph: Graph, node: Node, provider: str) -> bool:
    """Whether a provider was found unable to run a node; what depends on constants alone is folded before it would."""
    type_ = graph.type(node.values[0])
    if node.is_opaque or type_ is None or all(graph.tables.constant[value] for value in node.values):
        return False
    kernels = providers_of(node.op, kernels_only=False).get(provider)
    return kernels is not None and type_.dtype in FLOORS and type_.dtype not in kernels


class NondeterministicModel(ValueError):
    """The model draws random numbers or keeps state: nothing can be compared."""


def first_failing(count: int, passes: Callable[[int], bool]) -> int:
    """Bisection: the smallest n in 1..count whose first n steps fail, given that all ``count`` fail and none passes."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return high
