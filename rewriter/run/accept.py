"""Acceptance: numerically right and faster end to end, or not at all (design, Rewriting)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.deadline import BudgetSpent
from mugraph.graph import Graph, Node
from mugraph.onnx import Model, load
from mugraph.ops.support import providers_of
from mugraph.terms.shape import DataType
from rewriter.cost.cuda import Replay, replayed
from rewriter.reference import (
    INFINITE,
    Error,
    Evaluated,
    NoReference,
    References,
    compare,
    decided_outputs,
    is_quantized,
    worst,
)
from rewriter.run.opening import open_elsewhere_first
from rewriter.run.probes import InputProbe
from rewriter.run.referring import Ahead, referred
from rewriter.run.runtime_fusions import fused_otherwise, is_in_doubt
from rewriter.run.sealed_kernels import write_sealed
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = [
    "FLOORS",
    "LEAST_ROUNDS",
    "UNTIMED",
    "Acceptance",
    "NondeterministicModel",
    "Speed",
    "Timing",
    "confirm",
    "deciding_seconds",
    "first_failing",
    "first_reference",
    "paired",
]

FLOORS = {DataType.FLOAT: 1e-6, DataType.DOUBLE: 1e-12, DataType.FLOAT16: 1e-3, DataType.BFLOAT16: 8e-3}
"""Error below which two results are equally good: a few units in the last place, by element type."""

_BUSY = 0.05
"""Share by which the original may differ from itself on a machine that is quiet enough to measure on."""
_ROUNDS = 60
"""Most rounds of a measurement that decides: of a model of a millisecond they are mostly pauses."""

_REPLAYS = 300
"""Most rounds of a measurement on the device: half a second of a model of 0.4 ms."""

_STEP = 2.0**-8
"""Relative error below which two results of a quantised model are equally good: one step of 8 bits, of their whole range."""
_DECIDED = _STEP / 4
"""Relative error up to which two results are the same where no rounding error decides: less than a step of 8 bits throughout,
more than some numbers that lie half way between two."""
_STEPS = 0.5
"""Relative error up to which outputs of a quantised model are compared at all: a step that goes the other way changes others."""

LEAST_ROUNDS = 4
"""Rounds of two sessions, each run twice, that tell something of their times."""
_ORDERS = ((0, 1, 3, 2), (1, 0, 2, 3), (2, 3, 1, 0), (3, 2, 0, 1))
"""Of four rounds in which an original and a candidate (the odd numbers) are run twice each. Every run comes in every place once,
and follows once on one of the same session: that finds the model's weights in caches, and is faster (docs/measuring.md)."""
_PAUSE = 0.03
"""Seconds before each run under default settings, in which the threads of the other session stop spinning."""

_FASTEST = 0.1
"""Share of the runs that a busy machine disturbs least: what others do only adds to a time, so that these are the fastest."""
_ENOUGH = 20
"""Rounds from which on the fastest runs tell something."""

_MARGIN = 2.0
"""Widths of its interval by which a saving has to exceed that, for a short or a first measurement to be enough."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A paired measurement: latencies in milliseconds and the ratio candidate / original.

    ``low`` and ``high`` bound the ratio with 95 % confidence (bootstrap over rounds), ``control_low`` and ``control_high``
    that of the original against itself, measured in the same rounds (1 where it was not). ``ratios`` are those of the rounds.
    Latencies are medians and the ratio is the median of those of the rounds; where ``share`` is less than a half, latencies
    are quantiles with so many runs below, and the ratio is theirs (:func:`paired`).
    """

    original: float
    candidate: float
    original_spread: float
    candidate_spread: float
    ratio: float
    low: float
    high: float
    control_low: float = 1.0
    control_high: float = 1.0
    ratios: tuple[float, ...] = ()
    share: float = 0.5

    @property
    def statistic(self) -> str:
        """What the latencies are, in words."""
        return "median" if self.share == 0.5 else f"fastest {self.share:.0%}"

    @property
    def compared(self) -> str:
        """What the interval is one of, in words."""
        return "the median" if self.share == 0.5 else f"the ratio of the fastest {self.share:.0%} of the runs"

    @property
    def faster(self) -> bool:
        """Whether the candidate is faster beyond noise: by more than the original seems faster than itself."""
        return self.high < min(1.0, self.control_low)

    @property
    def clearly_faster(self) -> bool:
        """Whether it is faster beyond noise by so much that a measurement of its own would find the same."""
        return self.high + _MARGIN * (self.high - self.low) < min(1.0, self.control_low)

    @property
    def slower(self) -> bool:
        """Whether the candidate is slower beyond noise."""
        return self.low > max(1.0, self.control_high)

    @property
    def busy(self) -> bool:
        """Whether the machine does so much else that the original's time cannot be told from itself."""
        return max(self.control_high - 1.0, 1.0 - self.control_low) > _BUSY


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of a candidate's time beside the original's.

    Attributes:
        latency: under default settings, or a first impression of that where the device chose; ``None`` where that was not
            measured to the end.
        on_device: on the GPU alone, both as captured CUDA graphs; ``None`` where that cannot be told.
        paired: a first impression, with spinning off; ``None`` before there is one.
    """

    latency: Timing | None = None
    on_device: Timing | None = None
    paired: Timing | None = None

    @property
    def on_processor(self) -> Timing | None:
        """As known until now: under default settings, or else the first impression."""
        return self.latency or self.paired

    @property
    def is_slower(self) -> bool:
        """Whether it leaves no doubt that the candidate is slower than the original, run in one way or the other."""
        return any(timing is not None and timing.slower for timing in (self.on_processor, self.on_device))

    @property
    def is_decided_by_device(self) -> bool:
        """Whether the device leaves no doubt that the candidate is faster."""
        return self.on_device is not None and self.on_device.clearly_faster

    @property
    def ratio(self) -> float:
        """The candidate's time over the original's: on the device, where that is known; 1 where nothing is."""
        return self.ratios([self])[0]

    @staticmethod
    def ratios(speeds: Sequence[Speed]) -> list[float]:
        """The times of candidates over the original's, on one scale: on the device, where that is known of all of them.

        What launching kernels takes beside them hides what they take themselves: the two scales say nothing of each other.
        """
        by_device = all(speed.on_device is not None for speed in speeds)
        timings = [speed.on_device if by_device else speed.on_processor for speed in speeds]
        return [1.0 if timing is None else timing.ratio for timing in timings]


UNTIMED = Speed()
"""Of a candidate that was not timed."""


def _drawn(rounds: int) -> np.ndarray:
    """Rounds drawn with replacement, for a bootstrap: int64[500, rounds]."""
    return np.random.default_rng(0).integers(0, rounds, (500, rounds))


def _bounds(estimates: np.ndarray) -> tuple[float, float]:
    """The interval that holds 95 % of what draws gave."""
    return float(np.quantile(estimates, 0.025)), float(np.quantile(estimates, 0.975))


def paired(
    first: Sequence[float], second: Sequence[float], again: Sequence[float] = (), second_again: Sequence[float] = ()
) -> Timing:
    """The timing of a candidate beside the original, from latencies measured in turn.

    On a machine that is too busy to tell the original from itself by medians, the fastest tenth of the runs counts, if these
    tell the original from itself more closely and the medians do not say that the candidate is slower.

    Args:
        first: of the original, one a round.
        second: of the candidate.
        again: of the original once more in each round, where it was.
        second_again: of the candidate once more, where ``again`` is.
    """
    a = np.asarray([first, again] if len(second_again) else [first]).T
    b = np.asarray([second, second_again] if len(second_again) else [second]).T
    c = np.asarray(again)
    ratios, drawn = b / a, _drawn(len(a))

    def estimated(times: np.ndarray, share: float) -> np.ndarray:
        """A quantile of what was measured in the rounds of each draw."""
        return np.asarray(np.quantile(times[drawn].reshape(len(drawn), -1), share, axis=1))

    control = _bounds(estimated(c / a[:, 0], 0.5)) if len(c) else (1.0, 1.0)
    spreads, rounds = (_spread(a), _spread(b)), tuple(float(ratio) for ratio in ratios.ravel())
    medians = float(np.median(a)), float(np.median(b)), *spreads, float(np.median(ratios))
    timing = Timing(*medians, *_bounds(estimated(ratios, 0.5)), *control, rounds)
    if not timing.busy or timing.slower or len(a) < _ENOUGH:
        return timing
    fastest = float(np.quantile(a, _FASTEST)), float(np.quantile(b, _FASTEST))
    bounds = _bounds(estimated(b, _FASTEST) / estimated(a, _FASTEST))
    control = _bounds(estimated(c, _FASTEST) / estimated(a[:, 0], _FASTEST))
    by_fastest = Timing(*fastest, *spreads, fastest[1] / fastest[0], *bounds, *control, rounds, _FASTEST)
    return min(timing, by_fastest, key=lambda told: told.control_high - told.control_low)


def _spread(times: np.ndarray) -> float:
    """Distance between the quartiles."""
    low, high = np.quantile(times, [0.25, 0.75])
    return float(high - low)


def confirm(
    original: Path,
    candidate: Path,
    feeds: Sequence[Mapping[str, np.ndarray]],
    provider: str,
    seconds: float,
    *,
    briefly: bool = False,
    least: int = LEAST_ROUNDS,
) -> Timing:
    """Times two models alternating in one process under default settings, as a user would run them, and the first against itself.

    Before each run there is a pause in which the other session's threads stop spinning (docs/measuring.md). The session
    that is made second tends to be a percent faster, so each model is made first for half of the time.

    Args:
        seconds: to measure for; what opening sessions takes of them, the longer part of a brief measurement does without.
        briefly: a fifth of the time is enough where it leaves no doubt that the candidate is faster, or where the budget ends.
        least: rounds of each of the first two sessions that are measured in any case: fewer decide less.
    """
    times: tuple[list[float], ...] = ([], [], [], [])
    began, opening = time.perf_counter(), 0.0
    timing: Timing | None = None
    for share in (0.2, 0.8) if briefly else (1.0,):
        part = min(seconds * share, began + seconds - time.perf_counter() - opening)
        if timing is not None and (timing.clearly_faster or part <= 0):
            break
        try:
            for order in ((0, 1), (1, 0)):
                opens = time.perf_counter()
                sessions = {which: new_session((original, candidate)[which], provider) for which in order}
                opening += time.perf_counter() - opens
                rounds = math.ceil(_ROUNDS * share / 2)
                _alternate(sessions[0], sessions[1], feeds, part / 2, times, _PAUSE, rounds, least=least)
                del sessions
        except BudgetSpent:  # what was measured in both orders counts
            if timing is None:
                raise
            break
        timing = paired(*times)
    assert timing is not None, "one part is measured at least"
    return timing


def deciding_seconds(opening: float, running: float, least: int = LEAST_ROUNDS) -> float:
    """Seconds that :func:`confirm` takes at least.

    Args:
        opening, running: seconds to open a session of the original, and to run it.
        least: as there.
    """
    return 2 * (2 * opening + (4 * least + 2) * running + 4 * least * _PAUSE)


def _alternate(
    original: Any,
    candidate: Any,
    feeds: Sequence[Mapping[str, np.ndarray]],
    seconds: float,
    times: tuple[list[float], ...],
    pause: float = 0.0,
    most: float = math.inf,
    least: int = LEAST_ROUNDS,
) -> None:
    """Runs two sessions or replays in turn for ``seconds`` or ``most`` rounds, but ``least`` anyhow, each twice a round.

    Args:
        times: of the original, of the candidate, and of each once more, to which is added in milliseconds.
        pause: seconds before each run.
    """
    for session in (original, candidate):
        _run(session, dict(feeds[0]))
    end, before = time.perf_counter() + seconds, len(times[0])
    while (done := len(times[0]) - before) < least or (time.perf_counter() < end and done < most):
        feed = dict(feeds[done % len(feeds)])
        for which in _ORDERS[done % len(_ORDERS)]:
            time.sleep(pause)
            times[which].append(_run(candidate if which % 2 else original, feed))


def _run(session: Any, feed: dict[str, np.ndarray]) -> float:
    start = time.perf_counter_ns()
    session.run(None, feed)
    return (time.perf_counter_ns() - start) / 1e6


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
        self.probed: list[str] = []
        self.unprobed: list[str] = []
        further = list(self._run_probes(probes))
        self.compared = [*self.feeds, *(dict(feed) for feed, _ in further)]
        self.outputs += [outputs for _, outputs in further]
        types = [model.graph.type(value) for value in model.graph.outputs]
        floors = {**FLOORS, DataType.FLOAT: max(FLOORS[DataType.FLOAT], precision)}
        self.floors = [0.0 if t is None else floors.get(t.dtype, 0.0) for t in types]
        began = time.perf_counter()
        again = self.original.run(None, self.feeds[0])
        running = time.perf_counter() - began
        self._path = original
        self._device: ThreadPoolExecutor | None = None
        self._replay: Replay | None = None
        is_captured = captures() and self.capture()
        self.quantizes = is_quantized(model.graph)
        plain = self._run_plainly(original) if self.quantizes and not evaluates else []
        once_run(opening, running, is_captured)
        are_first = len(further) == len(probes) and all(
            feed is alternatives[0].feed for (feed, _), alternatives in zip(further, probes, strict=True)
        )
        reference = self._reference(references if are_first else None, is_wanted)
        self.references, self.entered = reference.outputs, reference.entered
        self.own_errors = self._errors(self.outputs)
        self.step_errors = self._step_errors(plain) if plain else []
        for second, first, own_error, floor in zip(again, self.outputs[0], self.own_errors[0], self.floors, strict=True):
            # GPU kernels that add in no fixed order round differently from run to run; what is drawn at random is far off.
            if not compare(second, first).within(own_error if own_error.is_small else Error(0.0, 0.0), floor):
                raise NondeterministicModel("the model's outputs differ from run to run on the same inputs")
        self._evaluated: list[list[np.ndarray]] | None = None
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
        open_elsewhere_first(self.model, path, self.provider)
        return new_session(path, self.provider, spinning=False)

    def _errors(self, outputs: Sequence[Sequence[Any]]) -> list[list[Error]]:
        pairs = zip(outputs, self.references, strict=True)
        return [[compare(a, w) for a, w in zip(actual, wanted, strict=True)] for actual, wanted in pairs]

    def own_error(self) -> Error:
        """The original's error against the reference, the worst over the inputs that are timed, and outputs."""
        return worst([error for errors in self.own_errors[: len(self.feeds)] for error in errors])

    def _run_plainly(self, original: Path) -> list[list[Any]]:
        """The original's outputs for all inputs that are compared, by the runtime without its optimisers."""
        session = new_session(original, self.provider, spinning=False, optimize=False)
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

    def _run_probes(self, probes: Sequence[Sequence[InputProbe]]) -> Iterator[tuple[Mapping[str, np.ndarray], list[Any]]]:
        """The inputs of the probes that count, and the original's outputs."""
        for alternatives in probes:
            refused: list[str] = []
            for probe in alternatives:
                try:
                    outputs = self.original.run(None, dict(probe.feed))
                except (RuntimeFailure, NoReference):  # a model may ask more of its sizes than it says
                    refused.append(probe.words)
                    continue
                self.probed.append(probe.words)
                refused = [words for words in refused if words not in probe.words]  # what was asked for runs at other sizes
                yield probe.feed, outputs
                break
            self.unprobed += refused

    def own_errors_by_output(self) -> list[Error]:
        """The original's error against the reference for each output, the worst over the inputs that are timed."""
        return [worst(errors) for errors in zip(*self.own_errors[: len(self.feeds)], strict=True)]

    def judge(self, session: Any) -> tuple[Error, bool]:
        """A candidate's error against the reference, the worst over outputs, and whether it is acceptable.

        Raises:
            RuntimeFailure: onnxruntime does not run the candidate.
        """
        errors, right = self.judge_outputs(session)
        return worst(errors), right

    def judge_outputs(self, session: Any) -> tuple[list[Error], bool]:
        """A candidate's error against the reference for each output, and whether all are acceptable.

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
        errors: list[list[Error]] = [[] for _ in self.floors]
        right = True
        originals, own_errors = self.outputs, self.own_errors
        if isinstance(session, Evaluated):
            if self._evaluated is None:
                original = Evaluated(self.model, self.model.graph)
                self._evaluated = [original.run(None, feed) for feed in self.compared]
            originals, own_errors = self._evaluated, self._errors(self._evaluated)
        rows = zip(self.compared, originals, self.references, own_errors, strict=True)
        for number, (feed, outputs, references, errors_of_original) in enumerate(rows):
            is_probe = number >= len(self.feeds)
            for output, (actual, original, wanted, own_error, floor) in enumerate(
                zip(_outputs_of(session, feed), outputs, references, errors_of_original, self.floors, strict=True)
            ):
                error = compare(actual, wanted)
                steps = worst([own_error, self.step_errors[output]]) if self.step_errors else INFINITE
                if steps.relative_l2 <= _STEPS:
                    fits = error.within(steps, max(floor, _STEP))
                elif own_error.is_small:
                    fits = error.within(own_error, floor)
                elif is_probe:
                    fits = np.shape(actual) == np.shape(original)
                else:
                    fits = compare(actual, original).within(Error(0.0, 0.0), floor)
                right &= fits
                if not (is_probe and fits):
                    errors[output].append(error)
        return [worst(of_output) for of_output in errors], right

    def is_right_sealed(self, path: Path) -> bool:
        """Whether a candidate's file is acceptable as it is run where the library of its custom kernels is, if it has any.

        Raises:
            RuntimeFailure: onnxruntime does not run it so.
        """
        sealed = write_sealed(path)
        if sealed is None:
            return True
        try:
            return self.judge(self.open(sealed))[1]
        finally:
            sealed.unlink()

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
        _alternate(self.original, session, self.feeds, seconds, times, most=_ROUNDS)
        return paired(*times)

    def capture(self) -> bool:
        """Captures the original's graph, unless that was tried before; whether the device can be asked for times.

        onnxruntime keeps a captured graph for the thread that captured it: from another one it would run the model anew and
        capture it again. So graphs are captured and replayed by one thread, whoever asks for that.
        """
        if self._device is None and self.provider == "cuda" and not self.evaluates:
            self._device = ThreadPoolExecutor(1)
            self._replay = self._device.submit(copy_context().run, self._captured, self._path).result()
        return self._replay is not None

    def on_device(self, path: Path, seconds: float) -> Timing | None:
        """A candidate's time on the GPU beside the original's: both are captured graphs, replayed in turn on one input.

        ``None`` where there is no GPU, and where one of the two cannot be captured.
        """
        if not self.capture():
            return None
        assert self._device is not None, "it captured the original's"
        return self._device.submit(copy_context().run, self._replayed_in_turn, path, seconds).result()

    def _replayed_in_turn(self, path: Path, seconds: float) -> Timing | None:
        candidate = self._captured(path)
        if candidate is None:
            return None
        times: tuple[list[float], ...] = ([], [], [], [])
        try:
            _alternate(self._replay, candidate, self.feeds[:1], seconds, times, most=_REPLAYS)
        except RuntimeFailure:
            return None
        return paired(*times)

    def _captured(self, path: Path) -> Replay | None:
        """A model's file on one input; ``None`` where it cannot be captured."""
        try:
            return replayed(path, self.feeds[0], self.outputs[0])
        except RuntimeFailure:
            return None

    def close(self) -> None:
        """Frees the original's sessions, so that :func:`confirm` has the machine to itself."""
        del self.original
        self._replay = None
        if self._device is not None:
            self._device.shutdown()


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
