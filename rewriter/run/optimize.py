"""The whole run: import, search, acceptance, emission. The command line only wraps :func:`optimize`."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

from mugraph.blocks.operator import Programs
from mugraph.graph import Graph
from mugraph.onnx import Model, load, open_in, save
from mugraph.onnx.fold import Folder
from mugraph.terms.shape import DataType, Undecided
from rewriter.cost import CostModel, ProfileStore
from rewriter.cost.fused import runtime_directions
from rewriter.cost.store import default_profile_path
from rewriter.kernels.custom import CustomKernels, default_architectures, learned_path
from rewriter.kernels.programs import kernels_of
from rewriter.kernels.triton.compile import LEAST_ARCHITECTURE, Architecture, compiler_is_here
from rewriter.reference import Error, InputError, bind_sizes, check_data, random_inputs, reference_outputs
from rewriter.run import accept
from rewriter.run.outcome import Fired, Outcome
from rewriter.run.quarantine import write_reproduction
from rewriter.run.target import Target, choose_target
from rewriter.runtime import is_built
from rewriter.runtime_env import digest
from rewriter.search.backtracking import Candidate, Limits, Search, Searched, Step, replay, retrace, simplify
from rewriter.search.explain import Explanation, explain_all, explain_node, explain_rule
from rewriter.search.layers import ShortModel, lift, opaque_kind, shorten
from rewriter.search.layouts import layout_children
from rewriter.search.match import Direction
from rewriter.search.ranges import RangeOracle
from rewriter.search.strategy import BACKTRACKING, STRATEGIES, Strategy
from rules_db.exchange import format_rule, parse_rule
from rules_db.library import open_rules
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

__all__ = ["Fired", "Outcome", "optimize"]

_LEFT_OUT = 3
"""Most rules of the best candidate that are left out in turn."""

_OPINIONS = 8
"""Most searches that follow the first, each knowing what was measured of the candidate that the one before found best."""

_UNTIMED_EXPANSIONS = 300
"""Most expansions of a search that reads no clock."""

ATTENDED = (
    "assumes that no row of a mask is hidden throughout (every position attends to something); --no-assume-attended drops it"
)
"""Said of a result that rests on the assumption."""

VERDICT_VERSION = 5
"""Part of the key of cached verdicts; raise it when import, matching or search change what a recorded move means."""


Progress = Callable[[str], None]

_T = TypeVar("_T")


def _silent(_: str) -> None:
    return None


def optimize(
    model: str | Path | onnx.ModelProto,
    output: str | Path | None = None,
    *,
    provider: str = "auto",
    shapes: Mapping[str, Sequence[int]] | None = None,
    data: Sequence[Mapping[str, np.ndarray]] = (),
    rules: str | Sequence[Rule] | None = None,
    budget: float = 60.0,
    alpha: float = 1.05,
    top: int = 5,
    assume_finite: bool = True,
    assume_attended: bool = True,
    explain: str | None = None,
    cache: Path | None = None,
    use_verdicts: bool = True,
    costs: Path | None = None,
    device: str | None = None,
    deterministic: bool = False,
    strategy: str = BACKTRACKING.name,
    reuse_layers: bool = True,
    kernels: bool = True,
    architectures: Sequence[Architecture] | None = None,
    kernels_folder: Path | None = None,
    progress: Progress = _silent,
) -> Outcome:
    """Writes an equivalent, faster model, or the original where nothing is better.

    Args:
        model: a path, or a model in memory (then ``output`` is required).
        output: where to write; default is the model's name with ``.superopt.onnx``.
        provider: ``cpu``, ``cuda`` or ``auto``.
        shapes: sizes of inputs for measuring; the written model keeps its dynamic dimensions.
        data: user-given inputs, tested beside the random ones.
        rules: URL or path of a rule database, rules, or ``None`` for those that the package ships.
        budget: seconds for search and measurement; 0 writes the plain round trip.
        alpha: how much worse than the best a candidate may be to be explored further.
        top: how many candidates are measured end to end.
        assume_finite: model inputs hold no NaN and no infinity.
        assume_attended: masks that are computed from model inputs let every position attend to something.
        explain: ``"all"``, a rule's id or a node's or value's name: fills ``Outcome.explanations``.
        cache: file of measured costs and verdicts; default is in the user's cache directory.
        use_verdicts: whether a remembered verdict on the same model, rules, options and environment may be reused.
        costs: a cost table, such as ``superopt-costs export`` writes: the model is optimised for the device it was measured on.
        device: name of a device that is not here: its roofline stands in for measurements.
        deterministic: nothing is measured and no clock is read, so that equal arguments write equal bytes.
        strategy: name of one of :data:`rewriter.search.strategy.STRATEGIES`.
        reuse_layers: repeated layers are searched once.
        kernels: regions may become custom kernels, where the model is for a GPU.
        architectures: to compile custom kernels for; default is the device's own, and PTX for those to come.
        kernels_folder: where the custom kernels of the written model are kept for people to read.
        progress: called with a line of text now and then.

    Ctrl-C stops the search, the checks or the measurements: the best that is known to be right by then is written, or the
    original.

    Raises:
        ModelError, InputError, ProviderError, StoreError, ProfileError: one clear message each.
    """
    if not (math.isfinite(budget) and budget >= 0 and math.isfinite(alpha) and alpha >= 1):
        raise InputError(f"budget {budget} and alpha {alpha}: give seconds from 0 on and a factor from 1 on")
    if strategy not in STRATEGIES:
        raise InputError(f"unknown strategy '{strategy}': use {', '.join(STRATEGIES)}")
    options = _Options(
        dict(shapes or {}),
        list(data),
        budget,
        alpha,
        top,
        assume_finite,
        assume_attended,
        explain,
        use_verdicts,
        deterministic,
        STRATEGIES[strategy],
        reuse_layers,
        kernels,
        None if architectures is None else tuple(architectures),
        kernels_folder,
    )
    target = choose_target(provider, costs, device)
    if (architectures is not None or kernels_folder is not None) and not (kernels and target.provider == "cuda"):
        raise InputError("custom kernels are for GPUs: name one by --device, --costs or --provider cuda, without --no-kernels")
    return _Run(model, output, rules, cache, target, options, progress).execute()


@dataclass(frozen=True, slots=True)
class _Options:
    """What the user asked for; see :func:`optimize`."""

    shapes: Mapping[str, Sequence[int]]
    data: Sequence[Mapping[str, np.ndarray]]
    budget: float
    alpha: float
    top: int
    assume_finite: bool
    assume_attended: bool
    explain: str | None
    use_verdicts: bool
    deterministic: bool
    strategy: Strategy
    reuse_layers: bool
    kernels: bool
    architectures: tuple[Architecture, ...] | None
    kernels_folder: Path | None

    def digest(self) -> str:
        """Of all that a verdict depends on."""
        shapes = sorted((name, tuple(shape)) for name, shape in self.shapes.items())
        data = [hashlib.sha256(feed[name].tobytes()).hexdigest() for feed in self.data for name in sorted(feed)]
        assumed = (self.assume_finite, self.assume_attended)
        course = (self.budget, self.alpha, self.top, assumed, self.strategy.name, self.reuse_layers)
        kernels = (self.kernels, [str(architecture) for architecture in self.architectures or ()])
        return digest(str(shapes), str(data), str(course), str(kernels))


@dataclass(slots=True)
class _Trial:
    """A candidate that runs and is right: its file, an open session, its error, and a first impression of its speed."""

    candidate: Candidate
    path: Path
    session: Any
    error: Error
    timing: accept.Timing | None = None
    score: float = 1.0


class _Run:
    def __init__(
        self,
        source: str | Path | onnx.ModelProto,
        output: str | Path | None,
        rules: str | Sequence[Rule] | None,
        cache: Path | None,
        target: Target,
        options: _Options,
        progress: Progress,
    ) -> None:
        self.began = time.monotonic()
        self.options, self.target, self.progress = options, target, progress
        self.budget = options.budget
        self.measures = target.here and not options.deterministic
        progress("reading the model")
        self.model: Model = load(source)
        name = "model" if isinstance(source, onnx.ModelProto) else str(source)
        if output is None:
            if isinstance(source, onnx.ModelProto):
                raise InputError("a model in memory needs an output path")
            output = Path(source).with_suffix(".superopt.onnx")
        self.output = Path(output)
        if not self.output.parent.is_dir() or self.output.is_dir():
            raise InputError(f"{self.output}: cannot be written there; name a file in an existing directory")
        self.sizes, assumed = bind_sizes(self.model, options.shapes)
        check_data(self.model, options.data)
        self.outcome = Outcome(name, str(self.output), provider=target.provider, environment=target.environment)
        self.outcome.notes = list(self.model.notes)
        if assumed:
            self.outcome.notes.append(f"measured with {', '.join(assumed)}; set sizes with --input NAME=...")
        self.quarantined: set[str] = set()
        self.known_right: _Trial | None = None
        self.interrupted = False
        self.runtime: frozenset[str] | None = None
        self.missing: dict[int, int] = {}
        self.oracle = RangeOracle({})
        self.kernels: CustomKernels | None = None
        self.outcome.nodes_before = self.outcome.nodes_after = len(self.model.proto.graph.node)
        if self.budget > 0:
            self.rules = open_rules(rules) if rules is None or isinstance(rules, str) else list(rules)
            self.outcome.rules = len(self.rules)
            # Whatever else the cache holds must not change what a run that measures nothing gives.
            self.store = ProfileStore((cache or default_profile_path()) if self.measures else None, target.environment)
            self.store.preload(target.costs)
            self.kernels = self.custom_kernels()

    def custom_kernels(self) -> CustomKernels | None:
        """``None`` where there can be none; where the user may not expect that, a note says why."""
        options, target = self.options, self.target
        if not options.kernels or target.provider != "cuda":
            return None
        reason = ""
        if target.device.architecture < LEAST_ARCHITECTURE:
            reason = f"they need a GPU of sm_{LEAST_ARCHITECTURE} or later"
        elif target.here and not is_built():
            reason = "the library that runs them was not built when onnx-superopt was installed, for want of a C compiler"
        elif not compiler_is_here():
            reason = "Triton is not installed"
        if reason:
            self.outcome.notes.append(f"no custom kernels: {reason}")
            return None
        architectures = options.architectures or default_architectures(target.device)
        learned = learned_path() if self.measures else None
        sizes = {name: size for name, size in self.sizes.items() if isinstance(size, int)}
        strict = options.architectures is not None
        kernels = CustomKernels(
            target.device, self.store, sizes, self.rules, architectures, strict, learned, measures=self.measures
        )
        kernels.keep_as_given(self.model.graph)
        return kernels

    def lap(self, name: str, since: float) -> float:
        now = time.monotonic()
        self.outcome.seconds[name] = round(self.outcome.seconds.get(name, 0.0) + now - since, 3)
        return now

    def left(self) -> float:
        """Seconds that are left of the budget."""
        return self.budget - (time.monotonic() - self.began)

    def execute(self) -> Outcome:
        outcome = self.outcome
        now = self.lap("import", self.began)
        if self.budget <= 0:
            outcome.message = "budget 0: the plain round trip was written"
            self.write(self.model.graph, now)
            return self.outcome
        try:
            key = self.verdict_key()
            remembered = self.store.verdict(key) if self.options.use_verdicts and not self.options.explain else None
            if remembered is None or not self.reuse(remembered):
                try:
                    winner = self.decide()
                except KeyboardInterrupt:
                    winner = self.stop()
                self.finish(winner, key)
        finally:
            self.store.close()
            if self.kernels is not None:
                self.kernels.close()
        return self.outcome

    def verdict_key(self) -> str:
        ids = ",".join(sorted(rule.id for rule in self.rules))
        costs = str(sorted(self.target.costs.items()))
        return digest(self.model.digest(), ids, self.options.digest(), self.target.environment, costs, str(VERDICT_VERSION))

    def feeds(self) -> list[Mapping[str, np.ndarray]]:
        """The inputs that candidates are compared and timed on."""
        return [*self.options.data, *(random_inputs(self.model, self.sizes, seed) for seed in (1, 2))]

    def new_search(self) -> Search:
        op_types = {index: origin.op_type for index, origin in enumerate(self.model.origins)}
        deadline = self.began + self.budget / 2 if self.measures else -math.inf
        target = self.target
        costs = CostModel(self.store, self.model.opset, self.sizes, target.provider, deadline, target.device)
        defaults = {self.model.values[name]: default for name, default in self.model.defaults.items()}
        fold = Folder(self.model, self.model.graph).fold
        self.oracle = oracle = RangeOracle(op_types, self.options.assume_finite, fold, defaults, self.options.assume_attended)

        def report(expanded: int, start: float, best: float) -> None:
            share = f"{best / max(start, 1e-9):.3f} of the original predicted"
            self.progress(f"searching: {expanded} candidates expanded, {costs.measured} costs measured, {share}")

        if self.options.deterministic:
            limits = Limits(alpha=self.options.alpha, seconds=math.inf, expansions=_UNTIMED_EXPANSIONS)
        else:
            # What measures costs ends at half of the budget: some of that is for second opinions.
            limits = Limits(alpha=self.options.alpha, seconds=min(0.4 * self.budget, max(self.left(), 1.0)))
        if self.runtime is None:
            self.runtime = runtime_directions(self.rules, self.store, self.target.provider)
        return Search(
            self.rules,
            costs,
            oracle,
            limits,
            report,
            strategy=self.options.strategy,
            layouts=(layout_children,),
            kernels=() if self.kernels is None else (self.kernels.children,),
            runtime_directions=self.runtime,
        )

    def decide(self) -> Candidate | None:
        """Searches, checks and measures; the winner, if there is one."""
        outcome, now = self.outcome, time.monotonic()
        on_gpu = self.measures and self.target.run_on == "cuda"  # the processor has time for what is compared with later
        references = _in_background(lambda: reference_outputs(self.model, self.feeds())) if on_gpu else None
        search = self.new_search()
        costs = search.costs
        banned = frozenset(r.id for r in self.rules if self.store.verdict(self.quarantine_key(r.id)))
        outcome.dropped += [f"{rule}: quarantined by an earlier run on this model" for rule in sorted(banned)]
        start = search.start(self.model.graph)
        outcome.predicted_before = outcome.predicted_after = start.cost
        short = shorten(self.model.graph, search.depth, opaque_kind(self.model)) if self.options.reuse_layers else None
        graph = self.model.graph if short is None else short.graph
        searched = search.run(graph, banned)
        for _ in range(_OPINIONS):
            if searched.interrupted or not (self.measures and searched.better):
                break
            changed = costs.second_opinion(searched.start.executed.graph, searched.better[0].executed.graph)
            searched, timed = self.with_times(searched, costs)
            if not (changed or timed):
                break
            search = search.again(min(self.budget / 2, max(self.left(), 1.0)))
            searched = search.run(graph, banned)
        searched, _ = self.with_times(searched, costs)
        outcome.expanded, outcome.generated = searched.expanded, searched.generated
        schedules = 0 if self.kernels is None else self.kernels.timed
        outcome.measured_costs, outcome.estimated_costs = costs.measured + schedules, len(costs.estimated)
        outcome.predicted_before = outcome.predicted_after = search.start(self.model.graph).cost
        self.interrupted = searched.interrupted
        self.store.flush()
        now = self.lap("search", now)
        if self.options.explain and not self.interrupted:
            outcome.explanations = list(self.explanations(search, start))
            now = self.lap("explain", now)
        winner: Candidate | None = None
        if not searched.better:
            outcome.message = f"no candidate is cheaper by the cost model ({searched.stopped}): the original was written"
        elif (
            any(t is not None and t.dtype == DataType.BFLOAT16 for t in self.model.inputs.values())
            and self.target.run_on == "cpu"
        ):
            outcome.message = "bfloat16 inputs are not measured on the CPU provider: the original was written"
        else:
            winner = self.choose(search, searched, short, references)
        if winner is not None and self.interrupted:
            outcome.notes.append("interrupted while searching: the best until then was checked numerically, not timed")
        self.lap("accept", now)
        return winner

    def with_times(self, searched: Searched, costs: CostModel) -> tuple[Searched, bool]:
        """Times kernels until those of the best candidate are known.

        Returns:
            what was found, in the order of what is known now and without kernels that do not work; whether any was timed.
        """
        timed = False
        while self.kernels is not None and searched.better and not searched.interrupted:
            self.progress(f"timing kernels: {self.kernels.timed} schedules so far")
            if not self.kernels.tune(searched.better[0].graph, self.began + 0.6 * self.budget):
                break
            timed = True
            known = [replace(c, cost=costs.total(c.executed.graph)) for c in searched.better if not self.refused_rules(c)]
            known.sort(key=lambda c: (c.cost, len(c.moves)))
            searched = replace(searched, better=tuple(c for c in known if c.cost < searched.start.cost))
        return searched, timed

    def stop(self) -> Candidate | None:
        """After an interruption: the best candidate that is known to be right."""
        self.interrupted = True
        known, outcome = self.known_right, self.outcome
        outcome.latency = outcome.paired = None
        if known is None:
            outcome.message = "interrupted before a better candidate was known to be right: the original was written"
            return None
        outcome.error_after, outcome.paired = known.error, known.timing
        outcome.notes.append("interrupted: the best that was known to be right was written, not timed to the end")
        return known.candidate

    def choose(
        self,
        search: Search,
        searched: Searched,
        short: ShortModel | None,
        references: Future[list[list[np.ndarray]]] | None,
    ) -> Candidate | None:
        """Numeric acceptance and paired timing of the best candidates; the fastest that is right, confirmed."""
        proposals = self.portfolio(search, searched, short)
        outcome, feeds = self.outcome, self.feeds()
        with tempfile.TemporaryDirectory(prefix="onnx-superopt-") as folder:
            original = open_in(self.model, self.model.graph, Path(folder))
            self.progress("running the original and its reference in float64")
            try:
                acceptance = accept.Acceptance(self.model, original, feeds, self.target.run_on, references)
            except accept.NondeterministicModel as problem:
                outcome.message = f"{problem}: nothing can be compared, the original was written"
                return None
            except Exception as problem:  # onnxruntime raises many types
                outcome.message = (
                    f"onnxruntime cannot run the original on test inputs ({_first_line(problem)}): it was written unchanged"
                )
                return None
            outcome.error_before = acceptance.own_error()
            if not self.measures or self.interrupted:
                return self.right(search, proposals, acceptance, Path(folder))
            trials = self.trials(search, list(proposals), acceptance, Path(folder))
            acceptance.close()
            for trial in trials:
                self.known_right = trial
                self.progress("measuring the most promising candidate under default settings")
                seconds = min(max(self.budget / 3, 2.0), 30.0, max(self.left(), 2.0))
                timing = accept.confirm(original, trial.path, feeds, self.target.provider, seconds, briefly=True)
                longer = min(2 * seconds, self.left())
                if not timing.faster and timing.ratio < 0.995 and longer >= 10:
                    self.progress("measuring it again, for longer")  # a small saving: fresh numbers, more of them
                    timing = accept.confirm(original, trial.path, feeds, self.target.provider, longer)
                if timing.faster:
                    outcome.paired, outcome.latency, outcome.error_after = trial.timing, timing, trial.error
                    return trial.candidate
                self.known_right = None
                outcome.message = (
                    f"the most promising candidate took {timing.ratio:.3f} [{timing.low:.3f}, {timing.high:.3f}] of the "
                    "original's time, not less beyond noise: the original was written"
                )
                if self.left() <= 0:
                    break
            outcome.message = outcome.message or "no candidate seemed faster end to end: the original was written"
            return None

    def right(
        self, search: Search, proposals: Iterable[Candidate], acceptance: accept.Acceptance, folder: Path
    ) -> Candidate | None:
        """The best candidate by the cost model that is numerically right: where time cannot or must not be measured."""
        for proposal in proposals:
            trial = self.verified(search, proposal, acceptance, folder)
            if trial is not None:
                self.outcome.error_after = trial.error
                return trial.candidate
        self.outcome.message = "no candidate was left that can be built and is numerically right: the original was written"
        return None

    def trials(self, search: Search, tried: Sequence[Candidate], acceptance: accept.Acceptance, folder: Path) -> list[_Trial]:
        """The two most promising candidates that are right, the better first.

        This only orders them: the decision rests on fresh measurements, since the luckiest of several noisy numbers is
        too good.
        """
        found: list[_Trial] = []
        for number, proposal in enumerate(tried):
            if found and self.left() < self.budget / 4:
                self.outcome.notes.append(f"the budget allowed {number} of {len(tried)} candidates to be tried end to end")
                break
            self.progress(f"trying candidate {number + 1} of {len(tried)} end to end")
            trial = self.verified(search, proposal, acceptance, folder)
            if trial is None:
                continue
            self.known_right = self.known_right or trial
            trial.timing = acceptance.pair(trial.session, self.budget / 40)
            trial.session = None
            # The first is the best by the cost model: it has the benefit of the doubt.
            trial.score = trial.timing.ratio * (0.99 if number == 0 else 1.0)
            found.append(trial)
            found.sort(key=lambda t: t.score)
            for loser in [t for t in found if t in found[2:] or (t.timing is not None and t.timing.low > 1.0)]:
                loser.path.unlink()
                found.remove(loser)
            self.known_right = found[0] if found else None
        return found

    def portfolio(self, search: Search, searched: Searched, short: ShortModel | None) -> Iterator[Candidate]:
        """The best candidate, the best without one of the rules that save least, and the next best that use other rules.

        The cost model knows no more than a part of what onnxruntime does with a model: what it missed shows only end to end.
        Candidates of a short model are picked there, and done on the whole one when they are asked for.
        """
        graph = self.model.graph if short is None else short.graph
        picked = [searched.better[0]] if self.interrupted else self.picked(search, searched, graph)
        start = search.start(self.model.graph)
        digests = set()
        for candidate in picked:
            if short is None:  # as a later run will come to it from its recorded moves
                again, missing = replay(search, graph, candidate.moves), 0
                done = again if again.cost <= candidate.cost + 1e-6 else candidate
            else:
                lifted = lift(search, short, candidate)
                done, missing = lifted.candidate, lifted.missing
                if any(move.gain <= 0 for move in done.moves):  # the whole model may weigh differently
                    done = simplify(search, self.model.graph, done)
            # What the price takes for granted of the runtime is written first, so that it holds.
            for proposal in ([search.fused(done)] if candidate is picked[0] else []) + [done]:
                if proposal.cost < start.cost and proposal.graph.digest not in digests:
                    digests.add(proposal.graph.digest)
                    self.missing[proposal.graph.digest] = missing
                    yield proposal

    def picked(self, search: Search, searched: Searched, graph: Graph) -> list[Candidate]:
        """What is worth a trial, of the candidates that a search on ``graph`` found."""
        best = simplify(search, graph, searched.better[0])
        picked, digests = [best], {best.graph.digest}

        def add(candidate: Candidate) -> None:
            if candidate.graph.digest not in digests and candidate.cost < searched.start.cost and len(picked) < self.options.top:
                digests.add(candidate.graph.digest)
                picked.append(candidate)

        for candidate in searched.better if kernels_of(best.graph) else ():
            if not kernels_of(candidate.graph):  # what kernels have to beat
                add(simplify(search, graph, candidate))
                break
        gains: dict[str, float] = {}
        for move in best.moves:
            gains[move.direction.rule.id] = gains.get(move.direction.rule.id, 0.0) + move.gain
        for rule in sorted(gains, key=lambda r: (gains[r], r))[:_LEFT_OUT] if len(gains) > 1 else ():
            add(simplify(search, graph, replay(search, graph, [m for m in best.moves if m.direction.rule.id != rule])))
        kinds = {frozenset(m.direction.rule.id for m in c.moves) for c in picked}
        for candidate in searched.better[1:]:
            kind = frozenset(m.direction.rule.id for m in candidate.moves)
            if kind not in kinds:
                kinds.add(kind)
                add(candidate)
        return picked

    def verified(self, search: Search, candidate: Candidate, acceptance: accept.Acceptance, folder: Path) -> _Trial | None:
        """The candidate with its error, after dropping every rule that bisection finds guilty of a miss."""
        start = search.start(self.model.graph)
        candidate = self.without(search, candidate, self.quarantined | self.refused_rules(candidate))
        while not self.compiled(candidate):
            candidate = self.without(search, candidate, self.refused_rules(candidate))
        while candidate.moves and candidate.cost < start.cost:
            trial = self.evaluate(candidate, acceptance, folder)
            if isinstance(trial, _Trial):
                return trial
            self.drop_guilty(search, candidate, trial, acceptance, folder)
            candidate = self.without(search, candidate, self.quarantined)
        return None

    def drop_guilty(
        self, search: Search, candidate: Candidate, problem: str, acceptance: accept.Acceptance, folder: Path
    ) -> None:
        """Finds the move that breaks a candidate by bisection, quarantines its rule and writes reproduction files."""
        moves = candidate.moves

        def passes(count: int) -> bool:
            tried = self.evaluate(replay(search, self.model.graph, moves[:count]), acceptance, folder)
            if isinstance(tried, _Trial):
                tried.path.unlink()
            return isinstance(tried, _Trial)

        number = accept.first_failing(len(moves), passes) - 1
        guilty = moves[number].direction
        before = replay(search, self.model.graph, moves[:number])
        try:
            file = write_reproduction(self.output, self.model, before.graph, moves[number].matches[0], self.sizes, problem)
            written = f"see {file}" if file is not None else f"see {self.output.name}.quarantine/{guilty.rule.id}.txt"
        except OSError as failure:
            written = f"reproduction files could not be written: {failure.strerror}"
        text = f"{guilty.id}: with it {problem}; quarantined for this model; {written}"
        self.outcome.dropped.append(text)
        self.store.remember(self.quarantine_key(guilty.rule.id), text)
        self.quarantined.add(guilty.rule.id)

    def without(self, search: Search, candidate: Candidate, rules: Collection[str]) -> Candidate:
        """The candidate without the moves of some rules, and without those that then gain nothing."""
        kept = [m for m in candidate.moves if m.direction.rule.id not in rules]
        if len(kept) == len(candidate.moves):
            return candidate
        return simplify(search, self.model.graph, replay(search, self.model.graph, kept))

    def compiled(self, candidate: Candidate) -> bool:
        """Whether the custom kernels of a candidate are ready to be written; those that cannot be are refused from now on."""
        problems = [] if self.kernels is None else self.kernels.compile(candidate.graph)
        self.outcome.dropped += problems
        return not problems

    def programs(self) -> Programs:
        """How the custom kernels that were compiled are launched."""
        return {} if self.kernels is None else self.kernels.programs

    def refused_rules(self, candidate: Candidate) -> set[str]:
        """Ids of a candidate's rules whose kernels cannot be used."""
        rules = {move.direction.rule.id: move.direction.rule for move in candidate.moves}
        return {i for i, rule in rules.items() if self.kernels is not None and self.kernels.refusal(rule)}

    def evaluate(self, candidate: Candidate, acceptance: accept.Acceptance, folder: Path) -> _Trial | str:
        """Builds and runs a candidate; the reason where it cannot be built or does not run."""
        try:
            path = open_in(self.model, candidate.graph, folder, self.programs())
        except Undecided as problem:
            return f"the rewritten model cannot be written ({problem})"
        try:
            session = acceptance.open(path, None if self.target.here else candidate.graph)
            error, right = acceptance.judge(session)
        except Exception as problem:  # onnxruntime raises many types; the guilty rule is found by bisection and named
            path.unlink()
            return f"the rewritten model does not run ({_first_line(problem)})"
        if not right:
            path.unlink()
            return f"relative error {error.relative_l2:.1e}, the original has {acceptance.own_error().relative_l2:.1e}"
        return _Trial(candidate, path, session, error)

    def quarantine_key(self, rule: str) -> str:
        return digest("quarantine", self.model.digest(), rule, self.target.environment)

    def explanations(self, search: Search, start: Candidate) -> Sequence[Explanation]:
        asked = self.options.explain
        assert asked is not None
        graph = start.graph
        if asked in self.model.values:
            return list(explain_node(search, start, self.model.values[asked]))
        for index, origin in enumerate(self.model.origins):
            if origin.name == asked:
                node = next((n for n in graph.tables.nodes if n.origin == index), None)
                if node is None:
                    return [Explanation("", "", asked, "a constant")]
                if node.is_opaque:
                    return [Explanation("", "", asked, f"opaque: {self.model.opaque.get(index, origin.op_type)}")]
                return [e for v in node.values for e in explain_node(search, start, v)]
        if asked == "all":
            return [*explain_all(search, start), *(() if self.kernels is None else self.kernels.explanations())]
        if any(rule.id.startswith(asked.rstrip("<>")) for rule in self.rules):
            return list(explain_rule(search, start, asked))
        raise InputError(f"--explain {asked}: neither a rule, a node nor a value of the model")

    def finish(self, winner: Candidate | None, key: str) -> None:
        """Records the verdict and writes the winner or the original."""
        outcome, graph = self.outcome, self.model.graph
        if winner is not None:
            graph = winner.graph
            outcome.improved = True
            outcome.predicted_after = winner.cost
            outcome.fired = [
                Fired(
                    move.direction.id,
                    str(move.direction),
                    len(move.sites),
                    round(move.gain, 2),
                    tuple(self.model.tables.names[site[0]] or f"value {site[0]}" for site in move.sites),
                )
                for move in winner.moves
            ]
            applied = {(move.direction.id, match.values) for move in winner.moves for match in move.matches}
            if applied & self.oracle.relied:
                outcome.notes.append(ATTENDED)
            missing = self.missing.get(winner.graph.digest, 0)
            if missing:
                outcome.notes.append(
                    f"{missing} sites in repeated layers did not admit what the others did; they were left alone"
                )
            if self.kernels is not None:
                self.kernels.learn(winner)
        self.write(graph, time.monotonic())
        if self.interrupted:
            return
        steps = [] if winner is None else [move.step(self.model.tables.key) for move in winner.moves]
        moves = [[step.direction.id, sorted(step.keys)] for step in steps]
        built = {step.direction.rule.id: step.direction.rule for step in steps if kernel_of_rule(step.direction.rule) is not None}
        record = asdict(outcome)
        for volatile in ("model", "output", "seconds", "explanations", "cached_verdict"):
            del record[volatile]
        reached = None if winner is None else winner.graph.content_digest()
        remembered = {"outcome": record, "moves": moves, "graph": reached}
        self.store.remember(key, json.dumps({**remembered, "kernels": [*map(format_rule, built.values())]}))

    def reuse(self, remembered: str) -> bool:
        """Replays a remembered verdict; false where it is damaged or does not lead to the same graph any more."""
        now = time.monotonic()
        try:
            record = json.loads(remembered)
            known, recorded, reached = record["outcome"], record["moves"], record["graph"]
            built = [parse_rule(text) for text in record["kernels"]]
        except (ValueError, KeyError, TypeError):
            return False
        graph = self.model.graph
        if recorded:
            search = self.new_search()
            directions = {d.id: d for d in (*search.directions, *(Direction(r, True, search.costs.provider) for r in built))}
            if any(rule not in directions for rule, _ in recorded):
                return False
            steps = [Step(directions[rule], frozenset(keys)) for rule, keys in recorded]
            candidate = retrace(search, graph, steps, self.model.tables.key)
            if candidate.graph.content_digest() != reached or (built and not self.compiled(candidate)):
                return False
            graph = candidate.graph
        fresh = Outcome(
            self.outcome.model, self.outcome.output, **{k: v for k, v in known.items() if k in Outcome.__dataclass_fields__}
        )
        fresh.fired = [Fired(**{**f, "where": tuple(f["where"])}) for f in known["fired"]]
        for name in ("latency", "paired"):
            setattr(fresh, name, accept.Timing(**known[name]) if known[name] else None)
        for name in ("error_before", "error_after"):
            setattr(fresh, name, Error(**known[name]) if known[name] else None)
        fresh.seconds = self.outcome.seconds
        fresh.cached_verdict = True
        self.outcome = fresh
        now = self.lap("replay", now)
        self.write(graph, now)
        return True

    def write(self, graph: Graph, now: float) -> None:
        self.progress("writing")
        self.outcome.nodes_after = save(self.model, graph, self.output, self.programs())
        self.outcome.kernels = len(kernels_of(graph))
        if self.kernels is not None:
            self.outcome.notes += self.kernels.notes
            if self.options.kernels_folder is not None:
                self.kernels.keep(graph, self.options.kernels_folder)
        self.lap("write", now)
        self.lap("total", self.began)


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__


def _in_background(work: Callable[[], _T]) -> Future[_T]:
    """What ``work`` gives, made by a thread that ends with the process at the latest."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:  # whoever asks for the result is told
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return future
