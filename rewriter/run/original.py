"""The original, which candidates are compared with: opened and run on test inputs beside a search, with its float64 reference."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np

from mugraph.onnx import Model
from rewriter.reference import Error, NoReference, NoRoom, References
from rewriter.run import accept, timings
from rewriter.run.background import Beside
from rewriter.run.cleaning import session_as_it_came
from rewriter.run.footprint import loading_seconds
from rewriter.run.judgement import Judgement
from rewriter.run.probes import InputProbe, probes
from rewriter.run.task import holds_bfloat16
from rewriter.run.workbench import Workbench
from rewriter.runtime_env import RuntimeFailure

__all__ = ["IMPRESSION", "Original", "untyped_inputs"]

IMPRESSION = 1 / 40
"""Share of the budget for a first impression of a candidate's speed, and for a second on the device."""
_COMPARED = 5
"""Inputs on which a candidate is compared, about."""
_LATER = 1 / 3
"""Share of what the first session of a process on a GPU takes to open that others take: it pays for what all of them use."""
_GLANCING = 1.2
"""Seconds to compile and run once what kernels of the best candidate were never run."""

_EVALUATED = (
    "bfloat16, which the CPU provider cannot run: original and result were not run, but evaluated by what their operators "
    "mean, each value rounded to its own type"
)


class Original:
    """What a run knows of the original. A run has one: what it found out serves all that is judged.

    Requires an open workbench. Ensures that the clock knows what the steps to come will take, once it was opened and run.

    Attributes:
        own_error: its worst distance from the reference, as soon as it was compared.
        own_errors: likewise, of each output.
        outputs: their names.
        entered: the bodies that some test input runs.
        pace: seconds to open a session that is not the first, and to run it, as they were seen last.
    """

    def __init__(self, bench: Workbench) -> None:
        self.own_error: Error | None = None
        self.own_errors: list[Error] = []
        self.outputs: list[str] = []
        self.entered: frozenset[int] = frozenset()
        self.pace = (0.0, 0.0)
        self._bench = bench
        self._times = False
        self._references: Future[References] | None = None
        self._opening: Future[accept.Acceptance] | None = None
        self._inputs: tuple[list[Mapping[str, np.ndarray]], list[list[InputProbe]]] = ([], [])
        self._known: accept.Acceptance | Judgement | None = None
        self._took = (0.0, 0.0)
        self._later = 0.0

    def prepare(self, *, times: bool) -> None:
        """Begins with what takes long and needs no proposal, and notes what judging and writing one will take.

        Costs are measured when it has ended, as far as it would disturb that.

        Args:
            times: candidates are going to be timed, where that is possible, and not checked alone.
        """
        self._times |= times and self._bench.task.measures
        if self._opening is not None:
            return
        task = self._bench.task
        if untyped_inputs(task.model):
            return
        self._inputs = task.feeds(), probes(task, task.choices()[0])
        self._references = self._bench.background.begin(self._referred)
        self._opening = self._bench.background.begin(partial(self._opened, self._bench.original))

    @property
    def is_begun(self) -> bool:
        """Whether it is being opened, or was."""
        return self._opening is not None

    def is_ready(self) -> bool:
        """Whether a candidate can be tried without waiting: it was run, and its reference made."""
        return self._opening is not None and self._opening.done()

    def acceptance(self) -> accept.Acceptance | Judgement:
        """What candidates are compared with; the judgement where there is nothing to compare."""
        if self._known is None:
            self._known = self._opened_and_run()
        return self._known

    def capture(self, acceptance: accept.Acceptance, *, foresees: bool) -> bool:
        """Whether the device tells its time; where the run began with a verdict that does not hold, only now.

        Args:
            foresees: the clock is told what that means for the steps to come.
        """
        if (is_captured := acceptance.capture()) and foresees:
            self._ran(*self._took, True)
        return is_captured

    def survives_writing(self, acceptance: accept.Acceptance) -> bool:
        """Whether it is right once it is written anew; else no candidate is, whatever rules made it."""
        graph = self._bench.task.model.as_it_came
        try:
            return acceptance.judge(acceptance.open(self._bench.kernels.open_in(graph, self._bench.folder), graph))[1]
        except RuntimeFailure:
            return False

    def paced(self, opening: float, running: float) -> None:
        """Notes what it took to open a candidate, and to run the original beside it, while nothing else went on."""
        self.pace = opening, running
        clock, longer = self._bench.clock, max(opening - self._later, 0.0)
        loading = loading_seconds(self._took[0] + longer, self._later + longer, self._took[1])
        clock.needs("load", max(loading, clock.needed("load")))

    @property
    def _evaluates(self) -> bool:
        """Whether the model is evaluated instead of run."""
        task = self._bench.task
        return not task.target.here and holds_bfloat16(task.model.tables.types)

    def _opened_and_run(self) -> accept.Acceptance | Judgement:
        self._bench.progress("running the original and its reference in float64")
        if self._evaluates:
            self._bench.notes.add(_EVALUATED)
        try:
            self.prepare(times=False)
            assert self._opening is not None, "there are inputs"
            acceptance = self._bench.awaited(self._opening, "the original was run and its reference made", "write")
        except accept.NondeterministicModel as problem:
            return Judgement(message=f"{problem}: nothing can be compared, the original was kept")
        except NoReference as problem:
            lacks_room = isinstance(problem, NoRoom)  # there may be more another time
            return Judgement(message=f"{problem}: nothing can be compared, the original was kept", is_undecided=lacks_room)
        except RuntimeFailure as problem:
            return Judgement(message=self._not_run(problem))
        self.own_error, self.entered = acceptance.own_error(), acceptance.entered
        self.own_errors = acceptance.own_errors_by_output()
        if acceptance.unprobed:
            self._bench.notes.add(f"the original does not run {', nor '.join(acceptance.unprobed)}: nothing was compared there")
        self.outputs = acceptance.output_names
        errors = zip(self.outputs, self.own_errors, strict=True)
        far = [f"{name} (relative error {error.relative_l2:.1e})" for name, error in errors if not error.is_small]
        if far and not acceptance.quantizes:
            self._bench.notes.add(
                f"onnxruntime itself is far from exact numbers: {', '.join(far)}; results had to be what it gives"
            )
        return acceptance

    def _ran(self, opening: float, running: float, is_captured: bool) -> None:
        """Notes what the steps to come will take, now that opening and running the original are known.

        Args:
            is_captured: the device decides, while a candidate is tried.
        """
        task, measures, clock = self._bench.task, self._bench.task.measures, self._bench.clock
        self._took, first = (opening, running), opening
        opening *= 1.0 if task.target.run_on == "cpu" else _LATER
        self.pace, self._later = (opening, running), opening
        has_kernels = measures and self._bench.kernels.can_be_used
        compiling = self._bench.kernels.compiling_seconds if has_kernels else 0.0
        writing = clock.needed("write") if task.seconds_to_write is None else task.seconds_to_write
        sessions = 1 if task.target.here or not self._bench.kernels.can_be_used else 2  # with kernels as their bodies, and sealed
        times = _COMPARED * sessions + (2 * timings.LEAST_ROUNDS if measures else 0)
        graph = opening + clock.budget * IMPRESSION if measures and is_captured else 0.0
        clock.needs("glance", _GLANCING if has_kernels else 0.0)
        clock.needs("judge", compiling + (writing if measures else 0.0) + opening * sessions + graph + 2 * times * running)
        clock.needs(
            "decide", timings.deciding_seconds(opening, running, task.target.provider) if measures and not is_captured else 0.0
        )
        clock.needs("load", loading_seconds(first, opening, running))

    def _referred(self, beside: Beside) -> References:
        """The reference for the inputs that are compared first."""
        ahead = self._bench.reference_ahead
        if self._bench.task.target.run_on != "cpu" and not (ahead and ahead.on_device):  # made by the processor alone
            beside.disturbs_no_more()
        return accept.first_reference(self._bench.task.model, *self._inputs, beside.is_wanted, ahead)

    def _opened(self, original: Path, beside: Beside) -> accept.Acceptance:
        """The original run on test inputs: with the first numbers for what inputs decide with which it runs.

        Where it runs with none, the user's inputs have to do: what random ones hold may be no size of anything.

        Args:
            beside: is told when only the reference is left to be made.

        Raises:
            NondeterministicModel, NoReference, RuntimeFailure: as :class:`rewriter.run.accept.Acceptance`.
        """
        task, evaluates, failure = self._bench.task, self._evaluates, None
        provider = task.target.run_on
        opened = partial(
            accept.Acceptance,
            task.model,
            original,
            evaluates=evaluates,
            precision=task.options.precision,
            captures=lambda: self._times,
            is_wanted=beside.is_wanted,
        )

        def ran(opening: float, running: float, is_captured: bool) -> None:
            self._ran(opening, running, is_captured)
            if provider != "cpu":  # the reference, which is left to wait for, says of itself whether it does
                beside.disturbs_no_more()

        for number, chosen in enumerate(task.choices()):
            known = self._references if not number else None
            try:
                feeds, further = self._inputs if not number else (task.feeds(chosen), probes(task, chosen))
                return opened(feeds, provider, known, further, once_run=ran)
            except RuntimeFailure as problem:
                failure = failure or problem
        assert failure is not None, "there is one choice at least"
        if not task.options.data:
            raise failure
        acceptance = opened(task.options.data, provider, once_run=ran)
        self._bench.notes.add(
            f"the original does not run on random inputs ({failure}): nothing was compared but on those of --data"
        )
        return acceptance

    def _not_run(self, problem: RuntimeFailure) -> str:
        """What to say of an original that does not run on test inputs."""
        words = f"onnxruntime cannot run the original on test inputs ({problem}): it was written unchanged"
        try:
            session_as_it_came(self._bench.task.original, self._bench.task.target.run_on)
        except RuntimeFailure:
            return words
        return f"{words}; give sizes or inputs that it runs on with --input or --data"


def untyped_inputs(model: Model) -> list[str]:
    """Names of the inputs that must be fed and of which nothing is known."""
    tables = model.tables
    return [
        name
        for value in model.graph.inputs
        if tables.types[value] is None and (name := tables.names[value]) is not None and name not in model.defaults
    ]
