"""Growth: the whole way from a workload to certified rules, stage by stage with counts (TASO, table 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

from mugraph.terms.term import Term
from rulegen.candidate import CandidateRule
from rulegen.grow.candidates import GatedCandidates, PartGate, gated_candidates
from rulegen.grow.certification import FATES, Certifier, Prospect, declared_data, prospect_data, read_declared, shared_prover
from rulegen.grow.growth import Growth, Stage, StageClock
from rulegen.grow.recorded import recorded
from rulegen.grow.selection import derivable, macros, minimal, ranked
from rulegen.journal import Journal
from rulegen.prune.derive import Deriver, supposed
from rulegen.prune.instances import more_general_first
from rulegen.rules import readable
from rulegen.workers import Here, UnitWorkers, sent_by
from rulegen.workloads.workload import Workload
from rules_db.exchange import parse_rule
from rules_db.trust.rule import Rule

__all__ = ["grow", "grow_parts"]


def grow_parts(
    parts: Sequence[Workload],
    max_ops: int | None = None,
    seed: int = 0,
    journal_of: Callable[[Workload, Sequence[Workload]], Journal | None] = lambda part, before: None,
    show: Callable[[str], None] = lambda text: None,
    workers: UnitWorkers | None = None,
    known: Sequence[Rule] = (),
) -> list[Growth]:
    """Grows the parts of a group; a later one has no rules that the earlier ones derive.

    Candidates of all parts are found side by side. Which of them are rules is asked of one part after the other.

    Args:
        parts: of the group.
        max_ops, seed: of each growth.
        journal_of: from a part and the parts before it to its journal.
        show: called with a line of text when a stage begins or ends.
        workers: as of :func:`grow`.
        known: rules that stand before those of the first part.
    """

    workers = workers or Here()

    def growing(number: int, part: Workload) -> _Grower:
        def progress(stage: Stage) -> None:
            show(f"{part.name}: {stage.left:,} left after {stage.name}")

        growth = Growth(part, part.max_ops if max_ops is None else max_ops, seed)
        return _Grower(growth, progress, journal_of(part, parts[:number]) or Journal(), workers)

    show(f"{', '.join(part.name for part in parts)}: terms")
    return _grown([growing(number, part) for number, part in enumerate(parts)], known, workers)


def grow(
    workload: Workload,
    max_ops: int | None = None,
    seed: int = 0,
    progress: Callable[[Stage], None] = lambda stage: None,
    journal: Journal | None = None,
    before: Sequence[Rule] = (),
    workers: UnitWorkers | None = None,
) -> Growth:
    """Generates, filters, prunes and certifies the rules of a workload. Equal arguments give equal rules in equal order.

    Args:
        workload: the operator group.
        max_ops: greatest number of operators a side; the workload's own where left out.
        seed: of all random inputs.
        progress: called after every stage.
        journal: stages that a growth with equal arguments has finished are taken from there, and those that this one finishes
            are recorded.
        before: rules that are there; candidates that they derive are no rules again.
        workers: that test and prove candidates; this process where left out. The rules do not depend on them.
    """
    growth = Growth(workload, workload.max_ops if max_ops is None else max_ops, seed)
    journal = Journal() if journal is None else journal
    workers = workers or Here()
    (grown,) = _grown([_Grower(growth, progress, journal, workers)], before, workers)
    return grown


def _grown(growers: Sequence[_Grower], known: Sequence[Rule], workers: UnitWorkers) -> list[Growth]:
    """The growths of the parts of a group, behind rules that are known."""

    def meanwhile() -> None:
        shared_prover()
        workers.refresh()

    def behind() -> None:
        for grower in growers:
            grower.ask_declared()

    gated = gated_candidates([grower.gate for grower in growers], meanwhile, behind)
    for grower, found in zip(growers, gated, strict=True):
        grower.begin(found)
    growths: list[Growth] = []
    for number, grower in enumerate(growers):
        before = [*known, *(rule for growth in growths for rule in growth.rules)]
        growths.append(grower.run(before, growers[number + 1 :]))
    return growths


class _Grower:
    """One growth, whose finished stages the journal remembers."""

    def __init__(self, growth: Growth, progress: Callable[[Stage], None], journal: Journal, workers: UnitWorkers) -> None:
        self.growth, self.journal, self.workers = growth, journal, workers
        self.clock = StageClock(growth, progress)
        self.gate = PartGate(growth, self.clock, workers, journal)
        self._next = 0

    def ask_declared(self) -> None:
        """Asks what becomes of the equations that the workload declares, which depends on nothing else."""
        equations = [[self.growth.parameters, equation] for equation in self.growth.workload.equations]
        self._declared = recorded(self.journal, "declared", self.workers, declared_data, equations, read_declared)

    def begin(self, gated: GatedCandidates) -> None:
        """Takes the candidates."""
        self._certifier = Certifier(self.growth, gated.delta)
        self._candidates = sorted(gated.candidates, key=more_general_first)
        self._asked: dict[int, Iterator[Prospect]] = {}
        self._put_off: list[int] = []
        self._seen = 0

    def run(self, before: Sequence[Rule], following: Sequence[_Grower]) -> Growth:
        """Certifies candidates, and chooses the rules that stay beside those before them.

        Args:
            before: rules that are there.
            following: whose candidates workers look at behind those of this one.
        """
        growth, workers, journal, certifier = self.growth, self.workers, self.journal, self._certifier
        self.clock.resume()
        guess = _Guess(
            before, workers.count <= _SPARING, (candidate for grower in (self, *following) for candidate in grower._under_way())
        )
        with workers.supplied(partial(self._ask_further, guess, following)):
            self._certify(Deriver(before), guess, following)
            answers = derivable(growth.rules, before, workers, journal)
            self._look_ahead(guess, following)  # behind these questions
            growth.rules = minimal(growth.rules, before, answers, journal)
            self.clock.stage("minimal", len(growth.rules))
            further = macros(growth.derived, growth.rules, before, certifier, workers, journal)
            self.clock.stage("macros", len(further))
        for fate, found in self._declared:
            if isinstance(found, Rule):
                further.append(found)
            else:
                (growth.unproved if fate == "unproved" else growth.suspicious).append(found)
        growth.rules = [readable(rule) for rule in [*growth.rules, *further]]
        growth.unproved = ranked(growth.unproved, [*before, *growth.rules], self.journal)
        self.clock.stage("unproved", len(growth.unproved))
        return growth

    def _certify(self, deriver: Deriver, guess: _Guess, following: Sequence[_Grower]) -> None:
        """Floats and proofs, in order of generality, for the candidates that the rules proved so far do not derive."""
        growth = self.growth
        fates: dict[CandidateRule, str] = {}
        for candidate, fate in self._fates(deriver, guess, following):
            fates[candidate] = fate
            if fate == "unproved":
                growth.unproved.append(candidate)
            elif fate == "suspicious":
                growth.suspicious.append(candidate)
            elif fate not in FATES:
                growth.rules.append(parse_rule(fate))
                deriver.add(growth.rules[-1])
                guess.learn(growth.rules[-1])
        growth.derived = [candidate for candidate, fate in fates.items() if fate in ("derived", "proved and derived")]
        growth.survivors = sum(fate != "lost" for fate in fates.values())
        self.clock.stage("derivability", len(fates) - len(growth.derived))
        self.clock.stage("floats", sum(fate not in ("derived", "lost") for fate in fates.values()))
        self.clock.stage("proved", len(growth.rules))

    def _under_way(self) -> Iterator[CandidateRule]:
        """The candidates that were asked about and not yet looked at."""
        return map(self._candidates.__getitem__, self._asked)

    def _look_ahead(self, guess: _Guess, following: Sequence[_Grower]) -> None:
        """Asks what becomes of the next candidates that rules are not going to derive, it seems, as many as workers want."""
        growers = [self, *following]
        while self.workers.wants(sum(len(each._asked) for each in growers)) and self._ask_further(guess, following):
            pass

    def _ask_further(self, guess: _Guess, following: Sequence[_Grower]) -> bool:
        """Asks what becomes of some of these; whether there are any."""
        return self.workers.count > 1 and any(grower._ask(guess) for grower in (self, *following))

    def _ask(self, guess: _Guess) -> bool:
        """Asks about candidates that were put off, or else about those behind all that were looked at; whether there are any."""
        waiting = [number for number in self._put_off if number >= self._next]
        self._put_off = [number for number in waiting if guess.is_like_another(self._candidates[number])]
        chosen = sorted(set(waiting) - set(self._put_off))
        if not chosen:
            self._seen = max(self._seen, self._next)
            chosen = list(range(self._seen, min(self._seen + self.workers.count, len(self._candidates))))
            self._seen += len(chosen)
        asked: list[int] = []
        for number in chosen:
            candidate = self._candidates[number]
            if self.journal.get(f"candidate {number}") is None:
                if guess.is_like_another(candidate):
                    self._put_off.append(number)
                elif guess.asks(candidate):
                    asked.append(number)
        for number in asked:  # each for itself: not all are waited for
            unit = self._certifier.unit(self._candidates[number])
            self._asked[number] = sent_by(self.workers, prospect_data, [unit], Prospect.read)
        return bool(chosen)

    def _fates(self, deriver: Deriver, guess: _Guess, following: Sequence[_Grower]) -> Iterator[tuple[CandidateRule, str]]:
        """The end of each candidate, in order, from the journal where it was found before: one of FATES, or a rule's text.

        What becomes of those that the rules so far do not derive is found out for several at the same time. Each is asked again
        in its turn, when all rules before it are there: so nothing depends on how many are found out together.
        """
        for number, candidate in enumerate(self._candidates):
            self._next = number
            self._look_ahead(guess, following)
            asked = self._asked.pop(number, None)
            if asked is not None:
                guess.forget(candidate)
            key = f"candidate {number}"
            fate = self.journal.get(key)
            if fate is None:
                if deriver.derives(candidate):
                    fate = "derived"  # its proof, if asked for, is not waited for
                else:
                    fate = _fate(candidate, deriver, self._certifier, None if asked is None else next(asked))
                self.journal.put(key, fate)
            yield candidate, fate


class _Guess:
    """Which candidates are worth a proof before their turn: those that neither the rules so far derive nor, it seems, what is
    going to become of the ones under way. It is a guess: each is asked again in its turn.

    Args:
        rules: that are there.
        spares: proofs that are not used cost more than waiting, since workers are few; else only what the rules derive counts.
        under_way: candidates that were asked about already.
    """

    def __init__(self, rules: Sequence[Rule], spares: bool, under_way: Iterable[CandidateRule] = ()) -> None:
        self._spares, given = spares, list(under_way) if spares else []
        self._deriver = Deriver([*rules, *map(supposed, given)])
        self._shapes = Counter(map(_without_attrs, given))

    def learn(self, rule: Rule) -> None:
        """Takes a rule that was proved."""
        self._deriver.add(rule)

    def is_like_another(self, candidate: CandidateRule) -> bool:
        """Whether one that is under way differs from a candidate in attributes and names alone: its rule may leave these open."""
        return self._shapes[_without_attrs(candidate)] > 0

    def asks(self, candidate: CandidateRule) -> bool:
        """Whether a candidate is worth a proof; it is under way then."""
        if self._deriver.derives(candidate):
            return False
        if self._spares:
            self._deriver.add(supposed(candidate))
            self._shapes[_without_attrs(candidate)] += 1
        return True

    def forget(self, candidate: CandidateRule) -> None:
        """What became of a candidate is known."""
        if not self._spares:
            return
        self._deriver.remove(supposed(candidate))
        self._shapes[_without_attrs(candidate)] -= 1


@lru_cache(maxsize=1 << 14)
def _without_attrs(candidate: CandidateRule) -> Hashable:
    """A candidate but for the attributes of its operators and the names of its variables."""
    names: dict[str, int] = {}

    def bare(term: Term) -> Hashable:
        if term.is_var:
            return names.setdefault(term.name, len(names))
        return (term.op, () if term.inputs else term.attrs, term.out, *map(bare, term.inputs))

    return tuple(tuple(map(bare, side)) for side in (candidate.source, candidate.target))


_SPARING = 4
"""Workers up to which proofs are asked for sparingly: eight have nothing else to do meanwhile, and the first process has."""


def _fate(candidate: CandidateRule, deriver: Deriver, certifier: Certifier, found: Prospect | None) -> str:
    """The end of a candidate that the rules so far do not derive, and its prospect where that was found out."""
    found = found or certifier.prospect(candidate)
    if found.conditions is not None and deriver.derives(candidate, found.conditions):
        return "proved and derived"
    return found.fate
