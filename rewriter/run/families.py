"""What earlier runs found for models of a family: of the same layers, however many, and of other weights.

Whoever can write the cache can write a record of it. It says where a search may begin, and nothing else: its moves are of rules
that this run has, made where they match, those that do not being left out; kernels in it are checked as rules of a foreign
database are; and what they lead to has a price, is searched on from and tried like any candidate.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from mugraph.blocks.statements import InvalidBlock
from mugraph.onnx.kinds import opaque_kind
from mugraph.terms.shape import ShapeError, Undecided
from rewriter.run.records import MALFORMED, CandidateRecord
from rewriter.run.rules_ahead import begin_objections
from rewriter.run.searching import ModelSearch, Unrepeatable
from rewriter.run.workbench import Workbench
from rewriter.runtime_env import digest
from rewriter.search.candidate import Candidate
from rewriter.search.families import ModelFamily, family_of
from rewriter.search.layers import ShortModel
from rules_db.trust.certificate import Trust

__all__ = ["FamilyMemory"]

_VERSION = 1
"""Part of the key; raise it when import, matching or search change what a recorded move means."""
_BEGAN = "the search began with what an earlier run found for a model of these layers; --no-verdict-cache begins with nothing"


def _parsed(text: str | None) -> CandidateRecord | None:
    """What the store says; ``None`` where that is none."""
    try:
        return None if text is None else CandidateRecord.of_json(json.loads(text))
    except MALFORMED:
        return None


class FamilyMemory:
    """What is remembered of the family of one task's model, in the store of the workbench.

    Requires an open workbench. A run that measures nothing remembers nothing, nor does one that is to use no verdicts.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._family: ModelFamily | None = None

    def recall(self, search: ModelSearch, short: ShortModel, banned: Collection[str]) -> Candidate | None:
        """The candidate of the short model that the moves of the family's last gain lead to; ``None`` where it saves nothing.

        Args:
            search: that makes it.
            short: the model with its repeated layers shortened.
            banned: ids of rules to leave out.
        """
        task = self._bench.task
        if not (task.measures and task.options.use_verdicts):
            return None
        self._family = family_of(short, opaque_kind(task.model))
        if self._family is None:
            return None
        record = _parsed(self._bench.store.verdict(self._key(self._family)))
        if record is None or (record.rules and not self._bench.kernels.can_be_used):
            return None
        moves = [(direction, keys) for direction, keys in record.moves if direction.rstrip("<>") not in banned]
        objections, made = begin_objections(record.rules, Trust(task.options.trust)), None
        try:
            made = search.retraced_in(short.graph, replace(record, moves=moves), self._family.key)
        except (InvalidBlock, ShapeError, Undecided, Unrepeatable):  # a kernel without a schedule, say
            pass
        finally:
            problems = objections()
        if problems or made is None or made.cost >= search.moves.start(short.graph).cost:
            return None
        if not self._bench.kernels.are_written(made):
            return None
        self._bench.notes.add(_BEGAN)
        return made

    def remember(self, winner: Candidate) -> None:
        """Keeps a verified gain on the whole model for the family.

        Requires that the family was asked for (:meth:`recall`): else there is none.
        """
        if self._family is None:
            return
        record = CandidateRecord.of(winner, self._family.key)
        self._bench.store.remember(self._key(self._family), json.dumps(record.as_json()))

    def _key(self, family: ModelFamily) -> str:
        """Where the record is kept: what was measured elsewhere, for other sizes or under other options, is another one."""
        task = self._bench.task
        sizes = str(sorted((name, str(size)) for name, size in task.sizes.items()))
        about = (task.target.environment, str(sorted(task.target.costs.items())), str(_VERSION), sizes)
        return digest("family", family.digest, task.options.result_digest(), *about)
