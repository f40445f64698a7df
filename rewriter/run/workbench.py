"""The workbench of a run: rules, costs and kernels that its stages share, opened together and closed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

from mugraph.terms.shape import Dim
from rewriter.cost import runtime_directions
from rewriter.cost.known import known_table
from rewriter.cost.store import ProfileStore, default_profile_path
from rewriter.reference import observed_sizes
from rewriter.run.clock import Clock
from rewriter.run.kernels import RunKernels, open_kernels
from rewriter.run.notes import Notes
from rewriter.run.task import Task, not_judged
from rules_db.library import open_rules
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["Progress", "Workbench", "open_workbench"]

Progress = Callable[[str], None]
"""Called with a line of text now and then."""


@dataclass(frozen=True)
class Workbench:
    """The things that all stages of a run use.

    Attributes:
        task: what is to be done.
        rules: that may be used.
        store: of measured costs and of verdicts.
        kernels: the custom ones.
        clock: of the run.
        notes: for the summary.
        progress: tells the user what goes on.
    """

    task: Task
    rules: Sequence[Rule]
    store: ProfileStore
    kernels: RunKernels
    clock: Clock
    notes: Notes
    progress: Progress

    @cached_property
    def sizes(self) -> Mapping[str, Dim]:
        """Of dimension symbols: those of the task, and those that only a run tells, read from one run of the original.

        Ensures that the notes say so, and what could not be judged for want of a size or a record.
        """
        task = self.task
        observed = observed_sizes(task.model, task.sizes, lambda: task.feeds()[0], task.target.run_on)
        sizes = {**task.sizes, **observed}
        if observed:
            self.notes.add(f"{len(observed)} sizes that only a run tells were read from one run of the original")
        self.notes.add(*not_judged(task.model, sizes))
        return sizes

    @cached_property
    def runtime_directions(self) -> frozenset[str]:
        """Ids of the directions that onnxruntime applies by itself: asked once, however many searches a run makes."""
        return runtime_directions(self.rules, self.store, self.task.target.provider)


@contextmanager
def open_workbench(task: Task, clock: Clock, progress: Progress) -> Iterator[Workbench]:
    """Opens rules, store and kernels for a task; where they are not used, none are.

    Ensures that what was measured is written when the workbench is closed, however the run ends.

    Raises:
        StoreError: rules cannot be read.
    """
    options, target, notes = task.options, task.target, Notes(task.notes())
    if not options.searches:
        unused = ProfileStore(None, target.environment)
        yield Workbench(task, (), unused, RunKernels(task.model), clock, notes, progress)
        return
    with ExitStack() as stack:
        with clock.lap("import"):
            given = options.rules
            rules = open_rules(given, Trust(options.trust)) if given is None or isinstance(given, str) else given
            # Whatever else the cache holds must not change what a run that measures nothing gives.
            path = (options.cache or default_profile_path()) if task.measures else None
            store = ProfileStore(path, target.environment, lambda problem: notes.tell(f"{problem}; this run went on without it"))
            stack.callback(store.close)
            store.preload(target.costs, target.schedules)
            known = known_table(target.environment) if task.measures and options.costs is None else None
            if known is not None:
                store.fall_back_on(known.costs, known.schedules)
            if store.ignored:
                notes.add(f"{store.path}: {store.ignored} measured costs are no times and were ignored")
            kernels = open_kernels(task, rules, store, notes)
            stack.callback(kernels.close)
        yield Workbench(task, tuple(rules), store, kernels, clock, notes, progress)
