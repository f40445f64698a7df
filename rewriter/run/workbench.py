"""The workbench of a run: rules, costs and kernels that its stages share, opened together and closed together."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from mugraph.deadline import BudgetSpent
from mugraph.files import Scratch
from mugraph.graph import Constant
from mugraph.ops import traits_of
from mugraph.ops.traits import ProductKind
from mugraph.terms.shape import DataType, Dim
from mugraph.terms.term import walk
from rewriter.cost.fused import RuntimeDirections
from rewriter.cost.known import known_table
from rewriter.cost.observed import SlowNodes, observe
from rewriter.cost.store import ProfileStore, default_profile_path
from rewriter.kernels.parts import parts_for
from rewriter.reference import observed_sizes
from rewriter.run.background import Background, Beside, Presumption, taking_turns
from rewriter.run.clock import Clock
from rewriter.run.drafting import DraftedOutput
from rewriter.run.judgement import RunFigures
from rewriter.run.kernels import RunKernels
from rewriter.run.notes import Notes
from rewriter.run.referring import Ahead
from rewriter.run.rules_ahead import check_ahead
from rewriter.run.target import asks_for_kernels
from rewriter.run.task import Task, not_judged
from rewriter.search.candidate import RecordedMove
from rewriter.search.definitions import definitions_in
from rewriter.search.ranges import ConstantRanges, read_by_guards
from rewriter.search.strategy import STRATEGIES, MoveKind
from rules_db.entries import RuleBook, not_used
from rules_db.late import LateModule
from rules_db.library import presumed_rules
from rules_db.trust.rule import Rule

__all__ = ["Progress", "Recorded", "Workbench", "open_workbench"]

_custom = LateModule("rewriter.run.custom")  # most models for processors have no kernels
_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

_IN_C = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)
"""The types of products that kernels in C make."""

Progress = Callable[[str], None]
"""Called with a line of text now and then."""
Recorded = Sequence[RecordedMove]
"""The moves of a candidate, by which another graph of the same values may come to the like of it."""


@dataclass(frozen=True)
class Workbench:
    """The things that all stages of a run use.

    Attributes:
        task: what is to be done.
        rules: that may be used, each read when it is first asked for.
        store: of measured costs and of verdicts.
        kernels: the custom ones.
        clock: of the run.
        notes: for the summary.
        progress: tells the user what goes on.
        folder: for files that last as long as the run.
        background: work beside that of the stages.
        drafted: the output, where that is begun before it is known to be right.
        presumed: what the stages went ahead of; each raises where it does not hold.
        model_rests_on: that of it on which the task's model rests, whatever becomes of rules.
        reference_ahead: the process of the reference, where it was begun with the run.
        carried: the best that searches of this run found in a model that was refused then.
        constants: ranges of the model's constants.
        figures: of searching.
    """

    task: Task
    rules: RuleBook
    store: ProfileStore
    kernels: RunKernels
    clock: Clock
    notes: Notes
    progress: Progress
    folder: Path
    background: Background
    drafted: DraftedOutput
    presumed: Sequence[Future[None]] = ()
    model_rests_on: Sequence[Future[None]] = ()
    reference_ahead: Ahead | None = None
    carried: list[Recorded] = field(default_factory=list)
    constants: ConstantRanges = field(default_factory=ConstantRanges)
    figures: RunFigures = field(default_factory=RunFigures)

    @cached_property
    def original(self) -> Path:
        """The original's file: the model cleaned up, or else the very file that came.

        Written anew that would lack what no output needs, and onnxruntime fuses otherwise, or refuses, what is left.
        """
        task = self.task
        if task.written is not None:
            return task.written
        if task.model.path is not None:
            return task.model.path
        path = self.folder / "original.onnx"
        path.write_bytes(task.model.weights.memory)
        return path

    @cached_property
    def slow(self) -> SlowNodes:
        """The nodes of the original that numbers make slow, where kernels in C may take their place: on a GPU none does."""
        task = self.task
        if not (task.measures and task.target.provider == "cpu" and self.kernels.can_be_used) or task.model.bodies:
            return SlowNodes()
        return SlowNodes(lambda until: observe(self.original, task.feeds()[0], self.folder, until))

    def confirm(self, patience: float = math.inf) -> None:
        """Returns when what the stages went ahead of is known to hold: nothing is written before that.

        Args:
            patience: seconds to wait for it, where that is less than the budget allows.

        Raises:
            Unclean, StoreError: what does not.
            BudgetSpent: that was not found out in time.
        """
        until = time.monotonic() + patience
        if any(not future.done() for future in self.presumed):
            self.progress("waiting until what the result rests on is checked")
        for future in self.presumed:
            self.awaited(future, "what the result rests on was checked", "write", patience=until - time.monotonic())

    def is_worth_going_on(self) -> bool:
        """Whether nothing of what the stages went ahead of is known by now not to hold."""
        return not any(future.done() and future.exception() is not None for future in self.presumed)

    def is_model_right(self, patience: float = 0.0) -> bool:
        """Whether the task's model is known, by now or so many seconds later, to be one that may be written."""
        return not wait(self.model_rests_on, patience).not_done and all(not future.exception() for future in self.model_rests_on)

    def awaited(self, future: Future[_T], event: str, *steps: str, patience: float = math.inf) -> _T:
        """The result of work in the background, or its exception. A run that searches waits no longer than its budget allows.

        Args:
            event: what is waited for, in words.
            steps: those of the end of the run for which time must be left then.
            patience: seconds to wait, where that is less.

        Raises:
            BudgetSpent: it does not come in time.
        """
        allowed = self.clock.room(*steps) if self.task.options.keeps_to_budget else math.inf
        seconds = max(min(allowed, patience), 0.0)
        if not wait([future], None if math.isinf(seconds) else seconds).done:
            raise BudgetSpent(f"the budget ended before {event}")
        return future.result()

    def is_quiet(self, *steps: str) -> bool:
        """Whether times can be measured: what would disturb that is waited for while there is time to spare.

        Args:
            steps: those of the end of the run for which alone time must be left then, where the search is over.

        Raises:
            Unclean, StoreError: something that the stages went ahead of does not hold, as is known by then.
        """
        quiet = self.background.is_quiet(max(self.clock.room(*steps) if steps else self.clock.spare(), 0.0))
        for future in self.presumed:
            if future.done():
                future.result()
        return quiet

    @cached_property
    def sizes(self) -> Mapping[str, Dim]:
        """Of dimension symbols: those of the task, and those that only a run tells, read from one run of the original.

        Ensures that the notes say so, and what could not be judged for want of a size or a record.
        """
        task = self.task
        observed = observed_sizes(task.model, task.sizes, lambda: task.feeds()[0], task.target.run_on)
        sizes = {**task.sizes, **observed}
        if observed:
            self.notes.add(f"sizes that only a run tells, read from one run of the original: {len(observed)}")
        self.notes.add(*not_judged(task.model, sizes))
        return sizes

    @cached_property
    def runtime_directions(self) -> RuntimeDirections:
        """The directions that onnxruntime applies by itself: each asked once, however many searches a run makes."""
        return RuntimeDirections(self.relevant, self.store, self.task.target.provider)

    def objection(self, rule: Rule) -> str:
        """Why a rule may not be applied, which the notes say then; empty where it may."""
        if reason := self.rules.objection(rule):
            self.notes.add(not_used(rule, reason))
        return reason

    @cached_property
    def relevant(self) -> Sequence[Rule]:
        """The rules that the model's operators may call for; where the run is to explain why some do not apply, all of them."""
        own = self.definitions
        if self.task.options.explain is not None:
            return (*self.rules, *own) if own else self.rules
        brought = (term.op for rule in own for term in walk(rule.target))
        return (*self.rules.within({node.op for node in self.task.model.graph.nodes()}.union(brought)), *own)

    @cached_property
    def definitions(self) -> Sequence[Rule]:
        """Rules that hold for this model's sizes: what some of its operators are defined as."""
        return tuple(definitions_in(self.task.model.graph))


def _unless_it_fails(holds: Presumption, notes: Notes, beside: Beside) -> None:
    """Work for the background that may disturb measurements to its end."""
    if told := holds(beside.is_wanted):
        notes.add(told)


def _read(constants: ConstantRanges, wanted: Mapping[int, Constant], is_elsewhere: bool, beside: Beside) -> None:
    """Looks at constants, which disturbs no measurement elsewhere."""
    if is_elsewhere:
        beside.disturbs_no_more()
    constants.read(wanted, beside.is_wanted)


def _open_kernels(task: Task, rules: RuleBook, store: ProfileStore, notes: Notes) -> RunKernels:
    """The custom kernels of a run; where there can be none and the user may not expect that, a note says why."""
    if asks_for_kernels(task.options, task.target):
        kernels: RunKernels = _custom.open_custom(task, rules, store, notes)
        return kernels
    if any(MoveKind.SCHEME in kinds for kinds in STRATEGIES[task.options.strategy].phases):
        notes.add("no fusion schemes: they are of custom kernels, which this run makes none of")
    if asks_for_kernels(replace(task.options, cpu_kernels=True), task.target):
        graph = task.model.graph
        types = (graph.type(node.values[0]) for node in graph.nodes() if traits_of(node.op).product is ProductKind.MATRIX)
        products = sum(type_ is not None and type_.dtype in _IN_C for type_ in types)
        if products:
            notes.add(f"no kernels in C were tried, which may make products faster ({products} here): --cpu-kernels")
    return RunKernels(task.model)


def _enter_known(store: ProfileStore, task: Task, notes: Notes) -> None:
    """Enters the costs of the table that is optimised for, and those that ship for this machine where none is named."""
    target = task.target
    store.preload(target.costs, target.schedules)
    known = known_table(target.environment) if task.measures and task.options.costs is None else None
    if known is not None:
        store.fall_back_on(known.costs, known.schedules)
    if store.ignored:
        notes.add(f"{store.path}: {store.ignored} measured costs are no times and were ignored")


def _with_best(progress: Progress, notes: Notes) -> Progress:
    """Tells what goes on with the best so far behind it."""

    def told(line: str) -> None:
        _LOGGER.info("%s", line)
        progress(f"{line}; best so far {notes.best}" if notes.best else line)

    return told


@contextmanager
def open_workbench(
    task: Task,
    clock: Clock,
    progress: Progress,
    presumed: Sequence[Presumption] = (),
    *,
    searches: bool,
    left: Callable[[], float] | None = None,
    reference_ahead: Ahead | None = None,
    carried: list[Recorded] | None = None,
) -> Iterator[Workbench]:
    """Opens rules, store and kernels for a task; where they are not used, none are.

    Ensures that what was measured is written when the workbench is closed, however the run ends, and that nothing goes on in
    the background then, nor later than the instant at which writing has to begin.

    Args:
        presumed: what is found out of the task's model in the background, and the stages go ahead of; each raises where it does
            not hold.
        searches: whether anything is to be proposed.
        left: how many seconds are left before writing has to begin, as busy as the system is by then.
        reference_ahead, carried: as of :class:`Workbench`.

    Raises:
        StoreError: rules cannot be read.
    """
    options, target, notes = task.options, task.target, Notes(task.notes())
    progress = _with_best(progress, notes)
    with ExitStack() as stack:
        folder = stack.enter_context(Scratch()).path if task.written is None else task.written.parent
        stack.enter_context(taking_turns())
        ends = clock.deadline("before anything was known to be better", keeps_to_budget=options.keeps_to_budget)
        background, drafted = Background(ends), DraftedOutput()
        stack.callback(drafted.close)
        stack.callback(background.end)
        if options.keeps_to_budget and left is not None:
            background.watch(left)
        of_model = [background.begin(partial(_unless_it_fails, holds, notes)) for holds in presumed]
        futures = [*of_model]
        made = partial(
            Workbench,
            task=task,
            clock=clock,
            notes=notes,
            progress=progress,
            folder=folder,
            background=background,
            model_rests_on=of_model,
            drafted=drafted,
        )
        if not searches:
            unused = ProfileStore(None, target.environment)
            yield made(rules=RuleBook(()), store=unused, kernels=RunKernels(task.model), presumed=of_model)
            return
        constants = ConstantRanges()
        background.begin(partial(_read, constants, read_by_guards(task.model.graph), target.run_on != "cpu"))
        with clock.lap("import"):
            progress("loading rules and measured costs")
            if task.rules is None:
                futures.append(background.begin(partial(_unless_it_fails, check_ahead(), notes)))
            rules = presumed_rules() if task.rules is None else task.rules
            # Whatever else the cache holds must not change what a run that measures nothing gives.
            path = (options.cache or default_profile_path()) if task.measures else None
            store = ProfileStore(
                path,
                target.environment,
                lambda problem: notes.tell(f"{problem}; this run went on without it"),
                is_rough=parts_for(options.precision) != parts_for(0.0),
            )
            stack.callback(store.close)
            _enter_known(store, task, notes)
            kernels = _open_kernels(task, rules, store, notes)
            stack.callback(kernels.close)
        yield made(
            rules=rules,
            store=store,
            kernels=kernels,
            presumed=futures,
            reference_ahead=reference_ahead,
            carried=[] if carried is None else carried,
            constants=constants,
        )
