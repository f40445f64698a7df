"""Kernels for the model at hand, searched within the run (``--search-kernels``), beside those that are built of its nodes.

Another process divides the model into Lax subprograms and searches (:mod:`rulegen.mugraphs.serving`). What it finds until its
time is over is checked once more and then proposed, priced and timed as stored rules are. Guards that cannot come to act are
taken off the model first, as rules do it in the search that follows.
"""

from __future__ import annotations

import time

from mugraph.blocks.schedule import LIMITS
from mugraph.onnx import ModelError
from mugraph.terms.shape import Undecided
from rewriter.kernels.preparing import unguarded
from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.run.searching import ModelSearch
from rewriter.run.workbench import Workbench
from rules_db.exchange import parse_rule
from rules_db.trust.certificate import Evidence, Trust
from rules_db.trust.rule import Rule

__all__ = ["search_kernels"]

_UNKNOWN = min(LIMITS.values(), key=lambda limits: limits.shared)
"""For the memory of a device that nobody knows."""
_SEARCHER = "rulegen.mugraphs.serving:serve"
"""What the process runs: the generator is no part of the optimiser."""


def search_kernels(bench: Workbench, search: ModelSearch) -> None:
    """Searches kernels for the subprograms of the task's model, for as long as was asked for and the budget has to spare.

    Requires: no search has begun. Ensures that those to come know what was found, and that a note says how much was searched.

    Args:
        search: that is to begin.
    """
    options, clock, notes = bench.task.options, bench.clock, bench.notes
    if not bench.kernels.can_be_used:
        notes.add("no kernels were searched: this run makes no custom kernels")
        return
    seconds = min(options.search_kernels, max(clock.spare(), 0.0))
    bench.progress("searching kernels")
    with clock.lap("search kernels"):
        (folder := bench.folder / "unguarded").mkdir(exist_ok=True)
        try:
            path = bench.kernels.open_in(unguarded(search.moves, search.start()).graph, folder)
        except (ModelError, Undecided) as problem:
            notes.add(f"no kernels were searched: {problem}")
            return
        worker = Worker(_SEARCHER, str(path), seconds, LIMITS.get(bench.task.target.device.name, _UNKNOWN))
        until, rules = time.monotonic() + seconds, dict[str, Rule]()
        done, known, complete, is_over = 0, 0, False, False
        try:
            while not complete:
                texts, known = worker.answer(max(until - time.monotonic(), 0.0))
                complete = texts is None
                done += not complete
                found = [parse_rule(text, is_known=True) for text in texts or ()]
                rules |= {rule.id: rule for rule in found if _is_trusted(rule, Trust(options.trust))}
                bench.progress(f"searching kernels: {done} of {known} subprograms, {len(rules)} kernels")
        except WorkerDied:
            is_over = time.monotonic() >= until
        finally:
            worker.close()
    bench.kernels.add(list(rules.values()))
    why = f"{seconds:.0f} s did not suffice for the rest" if is_over else "the process that searched them died"
    rest = "" if complete else f"; {why}"
    notes.add(f"{len(rules)} kernels were found for {done} of {known} subprograms and parts of them{rest}")


def _is_trusted(rule: Rule, trust: Trust) -> bool:
    return trust is Trust.TESTED or rule.certificate.evidence is Evidence.PROVED
