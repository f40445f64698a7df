"""Custom kernels within a run: proposed to the search, timed on the GPU that is here, compiled, and remembered as rules.

The search prices a kernel by the model of its schedules until it has been timed. What the best candidate uses is timed then,
schedule by schedule, and the search asked again with what is known: the model may err, the result does not rest on it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import CompiledKernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.deadline import BudgetSpent, Deadline
from mugraph.deadline import deadline as heeded_deadline
from mugraph.graph import Graph
from mugraph.terms.shape import Undecided
from rewriter.cost.devices import Device
from rewriter.cost.kernel_times import recall_all, time_of
from rewriter.cost.store import ProfileStore
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.measure.processes import KernelTimer, Trial
from rewriter.kernels.measure.trials import NoDevice, NotMeasured, compile_ahead, compiled_trials
from rewriter.kernels.programs import Scheduled, compile_kernels, constant_inputs, keep_kernels, scheduled
from rewriter.kernels.proposals import KernelProposals, forever
from rewriter.kernels.schemes.search import SchemeProposals
from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton.compile import Compiler
from rewriter.kernels.within import kernels_of
from rewriter.runtime_env import cores
from rewriter.search.candidate import Candidate
from rewriter.search.misses import NearMiss
from rewriter.search.moves import Moves
from rules_db.entries import KernelOutline, not_used, outlines_of, read_all
from rules_db.files import StoreError, cache_folder
from rules_db.store import RuleStore
from rules_db.trust.certificate import Trust
from rules_db.trust.check import check, objections
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

__all__ = ["CustomKernels", "default_architectures", "learned_path", "unobjected"]

_T = TypeVar("_T")

_TRIALS = 24
"""Schedules of a kernel that are timed at most."""
_GLANCE = 2
"""Schedules of a kernel that are timed where there is no time for more."""
_COMPILING = 1.5
"""Seconds to compile the kernels of a candidate, until some took longer in this run."""
_FIRST_SECONDS = 2.0
"""What the first kernel of a run takes until it is timed at least: the processes that compile and time have to start."""
_RIVALS = 7
"""How often other schedules are tried instead of some that do not compile."""


def learned_path() -> Path:
    """The database of multi-level rules that earlier runs found, in the user's cache directory."""
    return cache_folder() / "kernels.sqlite"


def default_architectures(device: Device) -> tuple[Architecture, ...]:
    """The device's own, and PTX for those to come."""
    return (Architecture(device.architecture), Architecture(80, is_ptx=True))


def unobjected(rule: Rule) -> str:
    """No reason against a rule."""
    return ""


class CustomKernels:
    """The custom kernels of one run, for a GPU.

    Args:
        device: that the model is optimised for.
        store: where schedules and times of kernels are kept.
        sizes: of the model's dimension symbols, as it is measured.
        rules: the multi-level ones among them apply where they match; elsewhere kernels are built.
        architectures: to compile for. Where a kernel does not compile for all of them, it is not used if ``strict``, else it
            does without the others' images.
        grid: other sizes at which kernels should be as fast as those that are tuned for them.
        measures: the GPU is here and may be asked for times.
        learned: database of multi-level rules of earlier runs, which those of this one are added to; ``None`` for none.
        objection: why one of the rules may not be applied, asked before anything rests on it; empty where it may.

    Attributes:
        compiling_seconds: what a candidate's kernels take to compile, the longest that was seen.
    """

    provider = "cuda"
    compiles_beside = True
    """Whether kernels are compiled while others are timed; else a few are, as many as there are processors, before these are."""
    trial_seconds = 0.15
    """What compiling and timing a schedule takes."""
    least_trials = 6
    """Schedules of a kernel that are timed at least, where that is tuned."""

    def __init__(
        self,
        device: Device,
        store: ProfileStore,
        sizes: Mapping[str, int],
        rules: Sequence[Rule],
        architectures: Sequence[Architecture],
        strict: bool,
        learned: Path | None = None,
        *,
        grid: Sequence[Mapping[str, int]] = (),
        measures: bool = True,
        trust: Trust = Trust.PROVED,
        objection: Callable[[Rule], str] = unobjected,
    ) -> None:
        self.device, self.store, self.sizes, self.grid = device, store, sizes, grid
        self.architectures, self.strict, self.learned = tuple(architectures), strict, learned
        self.compiler, self.timer = Compiler(), self._timer()
        self._unproved, self._objection = dict[str, Rule](), objection
        self._wrong: set[str] = set()
        self.notes: list[str] = []
        self._searched: dict[str, Rule] = {}
        self.proposals = KernelProposals(partial(self._stored, rules), self.is_proved, self.provider, self._why_unwritten)
        self.programs: dict[Kernel, CompiledKernel] = {}
        self._known: dict[Kernel, float | None] = {}
        self.timed = 0
        self._longest = _FIRST_SECONDS
        self.compiling_seconds = _COMPILING
        self._compiling, self._wanted = list[ThreadPoolExecutor](), Deadline()
        self.ahead: tuple[Future[object], ...] = ()
        self._foreseen: set[tuple[Kernel, float | None]] = set()
        self._can_time, self._trust = measures, trust
        self._refused: dict[Kernel, str] = {}
        self._tuned: set[Kernel] = set()
        self._given: set[Kernel] = set()
        self._constants: dict[Kernel, set[str]] = {}

    def _timer(self) -> KernelTimer:
        return KernelTimer()

    def _stored(self, rules: Sequence[Rule]) -> list[Rule | KernelOutline]:
        """The multi-level ones of some rules, unread as far as they were, and those that earlier runs learned.

        Those that a search found in this run come with them.
        """
        stored = {outline.head.id: outline for outline in outlines_of(rules)}
        try:
            if self.learned is not None and self.learned.exists():
                with RuleStore.open(str(self.learned), create=False) as database:
                    entries = database.entries()
                learned, damaged = read_all(entries)
                self._unproved = {rule.id: rule for rule in learned if rule.id not in stored}
                if damaged:
                    self.notes.append(f"{self.learned}: {len(damaged)} kernels of earlier runs cannot be read and were not used")
        except (StoreError, OSError) as problem:
            self.notes.append(f"kernels of earlier runs were not used: {problem}")
            self.learned = None
        self._unproved |= {rule.id: rule for rule in self._searched.values() if rule.id not in stored}
        return [*stored.values(), *self._unproved.values()]

    def add(self, rules: Sequence[Rule]) -> None:
        """Takes multi-level rules that were searched for this model, for searches that begin later. They are checked once more.

        Raises:
            AssertionError: a search has begun.
        """
        assert not self.proposals.is_open
        self._searched |= {rule.id: rule for rule in rules}

    def speedup(self, kernel: Kernel, sizes: Mapping[str, int]) -> float:
        """Of a kernel's products over the runtime's, as far as is known before any was timed: the model of schedules knows more
        of a GPU's."""
        return 1.0

    def warm(self) -> None:
        """Starts the processes that compile and time, where kernels are going to be timed."""
        if self._can_time:
            self.compiler.warm()
            self.timer.warm()

    def close(self) -> None:
        """Ends the processes that compile and time, and what is compiled ahead, which may be waited for no more."""
        self._wanted.end()
        for thread in self._compiling:
            thread.shutdown()
        self.compiler.close()
        self.timer.close()

    def keep_as_given(self, graph: Graph) -> None:
        """Leaves the kernels that a model came with as they are."""
        self._given = set(kernels_of(graph))

    def children(self, moves: Moves, candidate: Candidate, left: Callable[[], float] = forever) -> Iterator[Candidate]:
        """The candidates with kernels for fusable sets, without those kernels that do not work.

        Args:
            moves, candidate, left: as for :meth:`rewriter.kernels.proposals.KernelProposals.children`.
        """
        for child in self.proposals.children(moves, candidate, left):
            if not any(self.refusal(move.direction.rule) for move in child.moves):
                yield child

    def starts(self, moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
        """Candidates without kernels of their own from which a search finds more of them."""
        return self.proposals.starts(moves, candidate)

    def schemes(self, moves: Moves, candidate: Candidate, banned: frozenset[str]) -> Iterator[Candidate]:
        """The candidates of fusion schemes, of kernels that are not known not to work.

        Args:
            banned: ids of rules that are left out, too.
        """

        def works(rule: Rule) -> bool:
            return rule.id not in banned and not self.refusal(rule)

        yield from SchemeProposals(self.proposals, works).children(moves, candidate)

    def is_proved(self, rule: Rule) -> bool:
        """Whether a stored rule holds: what other runs learned is checked once more, and so is what is remembered to stand."""
        learned = self._unproved.get(rule.id)
        if learned is not None:
            if failures := objections(learned, load_axioms(), self._trust):
                self._wrong.add(rule.id)
                self.notes.append(f"{self.learned}: rule {rule.id} is not proved and was not used: {failures[0]}")
            del self._unproved[rule.id]  # now that it is known: what cuts the check short leaves it as it was
        elif rule.id not in self._wrong and (reason := self._objection(rule)):
            self._wrong.add(rule.id)
            self.notes.append(not_used(rule, reason))
        return rule.id not in self._wrong

    def refusal(self, rule: Rule) -> str:
        """Why the kernel of a rule cannot be used; empty where nothing is known against it, or the rule has none."""
        kernel = kernel_of_rule(rule)
        return "" if kernel is None else self._refused.get(kernel, "")

    def are_written(self, graph: Graph) -> bool:
        """Whether the kernels of a candidate have schedules and texts; each is written once."""
        return not any(self.proposals.unwritten(kernel) for kernel in self._own(graph))

    def explanations(self) -> Iterator[NearMiss]:
        """Why fusable sets did not become kernels."""
        for reason, count in self.proposals.reasons.most_common():
            yield NearMiss("", "a region as a kernel", f"{count} regions", reason)
        for reason in self._refused.values():
            yield NearMiss("", "a region as a kernel", "", reason)

    def tune(self, graph: Graph, deadline: float, gains: Mapping[Kernel, float] | None = None) -> bool:
        """Times the kernels of a candidate that have no time yet; whether anything is known now that was not.

        The schedules of a kernel are compiled while those of the one before it are timed, where that does not disturb them.

        Args:
            gains: microseconds that kernels are thought to save: the time may end before all are timed.
            deadline: the instant of :func:`time.monotonic` at which this ends, whatever is being compiled or timed then: what
                was timed by then counts. None is begun for which the time does not suffice that the longest took, nor the first
                for which `_FIRST_SECONDS` do not.
        """
        untimed = [kernel for kernel in self._untimed(graph, _GLANCE + 1) if kernel not in self._tuned]
        fresh = sorted(untimed, key=lambda kernel: -(gains or {}).get(kernel, 0.0))
        changed = False

        def compiled(kernel: Kernel, left: int) -> Sequence[Trial]:
            return self._compiled(kernel, self._trials(deadline, left))

        with self._begun((partial(compiled, kernel, len(fresh) - i) for i, kernel in enumerate(fresh)), deadline) as jobs:
            for kernel, job in zip(fresh, jobs, strict=True):
                began = time.monotonic()
                settled = self._settle(kernel, job, deadline)
                self._longest = max(self._longest, time.monotonic() - began)
                if not settled:
                    break
                self._tuned.add(kernel)
                changed |= settled
        return changed

    def glance(self, graph: Graph, deadline: float) -> bool:
        """Times those kernels under the one or two schedules that look best; whether anything is known now that was not.

        They are compiled all at once. A later run that has the time for it finds better schedules: it tunes them still.

        Args:
            deadline: the instant of :func:`time.monotonic` at which this ends, as :meth:`tune` does.
        """
        fresh = self._untimed(graph, 1)

        def compiled(kernel: Kernel) -> Sequence[Trial]:
            if kernel is fresh[0]:
                self._compile_ahead(fresh)
            return self._compiled(kernel, _GLANCE)

        with self._begun((partial(compiled, kernel) for kernel in fresh), deadline) as jobs:
            settled = [self._settle(kernel, job, deadline) for kernel, job in zip(fresh, jobs, strict=True)]
        return any(settled)

    def second_opinion(self, graphs: Iterable[Graph], deadline: float) -> bool:
        """Times kernels of candidates once more whose times others' work may have disturbed; whether one fell by a tenth.

        Here none is: no other work goes on on a GPU, and a time is that of many replays.

        Args:
            deadline: the instant of :func:`time.monotonic` at which this ends.
        """
        return False

    @contextmanager
    def _begun(self, works: Iterable[Callable[[], _T]], deadline: float) -> Iterator[Iterable[Future[_T]]]:
        """The results of what a thread of its own does, one after the other; what it did not begin by the end is not done.

        Where kernels are not compiled beside others, several threads do a few when the result of the first of these is asked
        for, and are waited for. What threads are at in the end goes on without being waited for: whoever needs the same finds it,
        or is ahead of it.

        Args:
            deadline: the instant of :func:`time.monotonic` from which on they are not waited for.
        """
        several = 1 if self.compiles_beside else cores()
        threads = self._threads(several)
        begun = (threads.submit(self._while_wanted, work) for work in works)
        try:
            yield list(begun) if self.compiles_beside else _waited_for(begun, several, deadline)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _threads(self, count: int = 1) -> ThreadPoolExecutor:
        """New ones, which compile beside the run and are waited for when that ends."""
        self._compiling.append(ThreadPoolExecutor(count))
        return self._compiling[-1]

    def _while_wanted(self, work: Callable[[], _T]) -> _T:
        with self._wanted.heeded():
            return work()

    def foresee(self, graph: Graph) -> None:
        """Begins to compile the kernels of a candidate that may be written, under the schedules that look best now."""
        self._constants |= constant_inputs(graph)
        chosen = []
        for kernel in self._own(graph) if self._can_time else ():
            if self._is_ready(kernel):
                continue
            with suppress(InvalidBlock, Undecided):  # it is refused when it is asked for
                known = kernel, time_of(self.store, kernel, self.sizes)  # once timed it may have other schedules
                if known not in self._foreseen:
                    self._foreseen.add(known)
                    chosen.append(self._scheduled(kernel))
        if chosen:
            work = partial(self._compile, chosen, self.architectures)
            self.ahead = (*self.ahead, self._threads().submit(self._while_wanted, work))

    def is_current(self, graph: Graph) -> bool:
        """Whether the kernels of a candidate are compiled, and no better schedules are known since."""
        return all(map(self._is_ready, self._own(graph)))

    def _is_ready(self, kernel: Kernel) -> bool:
        """Whether a kernel is compiled under the schedules that are the best that are known."""
        if kernel not in self.programs:
            return False
        return self._known.get(kernel) == time_of(self.store, kernel, self.sizes)

    def _compile_ahead(self, kernels: Sequence[Kernel]) -> None:
        """Compiles several kernels at once for a glance."""
        compile_ahead(kernels, self.device, self.compiler, self.architectures[0], self.sizes, _GLANCE)

    def _untimed(self, graph: Graph, trials: int) -> list[Kernel]:
        """The kernels of a candidate of which fewer trials are known; none where they cannot be timed."""
        self._constants |= constant_inputs(graph)
        return [k for k in self._own(graph) if len(recall_all(self.store, k, self.sizes)) < trials] if self._can_time else []

    def _settle(self, kernel: Kernel, compiled: Future[Sequence[Trial]], deadline: float) -> bool:
        """Times a kernel, or refuses it; whether anything is known now that was not: there may be no time or no device."""
        try:
            if not (trials := compiled.result(_seconds_until(deadline))):
                return False
            with _ending_at(deadline):
                self.timer.settle(kernel, trials, self.store, self.sizes)
            self.timed += len(trials)
        except (TimeoutError, BudgetSpent):
            return False
        except NoDevice as problem:
            self._can_time = False
            self.notes.append(f"kernels have the schedules that look best: {problem}")
            return False
        except (InvalidBlock, Undecided, NotMeasured) as problem:
            self._refused[kernel] = str(problem)
        return True

    def _compiled(self, kernel: Kernel, most: int) -> Sequence[Trial]:
        """At most so many trials of a kernel. Raises InvalidBlock and NotMeasured."""
        if not most or not self._can_time:
            return []
        return compiled_trials(kernel, self.device, self.compiler, self.architectures[0], self.sizes, most)

    def _trials(self, deadline: float, left: int) -> int:
        """How many schedules of a kernel can be tried by a deadline, a few at least; none where it is over.

        Args:
            left: how many kernels the time is for.
        """
        seconds = deadline - time.monotonic()
        if seconds < self._longest:
            return 0
        return max(self.least_trials, int(min(_TRIALS, seconds / left / self.trial_seconds)))

    def compile(self, graph: Graph) -> list[str]:
        """Tests and compiles the kernels of a candidate into ``programs``; the reasons where some cannot be."""
        fresh, untrue = [], dict[Kernel, str]()
        self._constants |= constant_inputs(graph)
        for kernel in self._own(graph):
            if not self._is_ready(kernel):
                try:
                    self.proposals.confirm(kernel)
                    fresh.append(kernel)
                except NotFusable as reason:
                    untrue[kernel] = str(reason)
        chosen, problems = [], dict[Kernel, str]()
        for kernel in fresh:
            try:
                chosen.append(self._scheduled(kernel))
            except (InvalidBlock, Undecided) as problem:
                problems[kernel] = f"kernel {kernel.label}: {problem}"
        programs, wrong = self._compile(chosen, self.architectures)
        if wrong and not self.strict:
            first, again = wrong, [s for s in chosen if s.kernel in wrong]
            more, wrong = self._compile(again, self.architectures[:1])
            programs |= more
            only = [reason for kernel, reason in first.items() if kernel not in wrong]
            self.notes += [f"compiled for {self.architectures[0]} only: {reason}" for reason in only]
        for failed in chosen:
            if failed.kernel in wrong and (rival := self._rival(failed)) is not None:
                programs[failed.kernel] = rival
                del wrong[failed.kernel]
        problems |= wrong | untrue
        self._refused |= problems
        self.programs |= programs
        self._known |= {kernel: time_of(self.store, kernel, self.sizes) for kernel in programs}
        return list(problems.values())

    def _compile(
        self, chosen: Sequence[Scheduled], architectures: Sequence[Architecture]
    ) -> tuple[dict[Kernel, CompiledKernel], dict[Kernel, str]]:
        """Compiles kernels, which ask for their constants before they wait for the kernel before them."""
        began = time.monotonic()
        compiled = compile_kernels(list(map(self._with_constants, chosen)), self.compiler, architectures)
        self.compiling_seconds = max(self.compiling_seconds, time.monotonic() - began)
        return compiled

    def _with_constants(self, chosen: Scheduled) -> Scheduled:
        """A kernel whose schedules say which of its inputs are constants."""
        return chosen.asking_ahead(self._constants.get(chosen.kernel, ()))

    def _scheduled(self, kernel: Kernel, refused: Collection[tuple[Schedule, ...]] = ()) -> Scheduled:
        """Raises InvalidBlock and Undecided, as :func:`rewriter.kernels.programs.scheduled`."""
        return scheduled(kernel, self.device, self.sizes, self.store, self.grid, refused)

    def _why_unwritten(self, kernel: Kernel) -> str:
        """Why a kernel has no schedule or no text; empty where it has both."""
        try:
            self._write(self._scheduled(kernel))
        except (InvalidBlock, NotGenerated, Undecided) as problem:
            return str(problem)
        return ""

    def _write(self, scheduled: Scheduled) -> None:
        """Raises InvalidBlock and NotGenerated where it has no text."""
        scheduled.sources()

    def _rival(self, failed: Scheduled) -> CompiledKernel | None:
        """A kernel not all of whose schedules compile, under the next best that do: the model of memory may err."""
        kernel, needed = failed.kernel, self.architectures if self.strict else self.architectures[:1]
        refused: set[tuple[Schedule, ...]] = set()
        for _ in range(_RIVALS):
            for schedules in failed.variants.schedules:
                if self._compile([Scheduled.one(kernel, *schedules)], needed)[1]:
                    refused.add(schedules)
            try:
                failed = self._scheduled(kernel, refused)
            except InvalidBlock:
                return None
            programs, _ = self._compile([failed], needed)
            if kernel in programs:
                return programs[kernel]
        return None

    def _own(self, graph: Graph) -> list[Kernel]:
        """A candidate's kernels that the model did not come with and nothing is known against."""
        return [kernel for kernel in kernels_of(graph) if kernel not in self._given and kernel not in self._refused]

    def prepare_to_learn(self, candidate: Candidate) -> None:
        """Begins to import what :meth:`learn` needs, beside what goes before it."""
        if self.learned is not None and self._worth_learning(candidate):
            RuleStore.ahead()

    def _worth_learning(self, candidate: Candidate) -> list[Rule]:
        """The multi-level rules behind a candidate that other models may use."""
        origins = (move.direction.rule.provenance.get("kernel", "") for move in candidate.moves)
        searched = [self._searched[origin] for origin in dict.fromkeys(origins) if origin in self._searched]
        return [*self.proposals.winning_rules(candidate), *searched]

    def learn(self, candidate: Candidate) -> None:
        """Remembers the multi-level rules behind a candidate, for other models; those that are not proved are left out."""
        winning = self._worth_learning(candidate)
        if self.learned is None or not winning:
            return
        wrong = {rule.id: failures[0] for rule in winning if (failures := check(rule, load_axioms()))}
        self.notes += [f"kernel rule {rule} was not remembered for other models: {reason}" for rule, reason in wrong.items()]
        try:
            self.learned.parent.mkdir(parents=True, exist_ok=True)
            with RuleStore.open(str(self.learned)) as database:
                database.add_all([rule for rule in winning if rule.id not in wrong], Trust.TESTED)
        except (StoreError, OSError) as problem:
            self.notes.append(f"kernels were not remembered for other models: {problem}")

    def refine(self, graph: Graph, share: float) -> int:
        """Has the kernels of a candidate that round more than they need to do so at fewer of its nodes.

        Args:
            share: of these nodes, that may be left.

        Returns:
            how many kernels have to be compiled anew for that; here none rounds more than it needs to.
        """
        return 0

    def keep(self, graph: Graph, folder: Path) -> None:
        """Writes the kernels of the written model for people to read. Raises StoreError."""
        used = set(kernels_of(graph))
        kept = [Scheduled(k, program.variants) for k, program in self.programs.items() if k in used]
        keep_kernels(kept, folder, on_cpu=self.provider == "cpu")


def _waited_for(begun: Iterator[Future[_T]], several: int, deadline: float) -> Iterator[Future[_T]]:
    """Work that is begun when it is asked for, so much at a time, once all of that is done or a deadline has come."""
    while some := list(itertools.islice(begun, several)):
        wait(some, _seconds_until(deadline))
        yield from some


def _seconds_until(deadline: float) -> float | None:
    """How long to wait for something at most; ``None`` where there is no end to it."""
    return None if math.isinf(deadline) else max(deadline - time.monotonic(), 0.0)


@contextmanager
def _ending_at(instant: float) -> Iterator[None]:
    """The work of the block ends then, or when the work around it has to. It raises BudgetSpent where that cuts it short."""
    outer, inner = heeded_deadline(), Deadline()
    left = min(instant - time.monotonic(), math.inf if outer is None else outer.left())
    if not math.isinf(left):
        inner.end_in(left)
    try:
        with inner.heeded():
            yield
    finally:
        inner.end()
