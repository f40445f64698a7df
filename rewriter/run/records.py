"""How a candidate was made, as it is kept for other runs: moves in terms that mean the same there, and the rules that it found.

Whoever can write the cache can write one. Who reads it believes nothing of it: moves are made where they match, and kernels are
checked as rules of a foreign database are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rewriter.search.candidate import Candidate
from rewriter.search.directions import is_made_here
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

__all__ = ["MALFORMED", "CandidateRecord"]

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading JSON that is no record raises."""


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """How a candidate was made.

    Attributes:
        moves: ids of directions, and keys of their sites.
        rules: those among them that hold kernels or are made for the model's sizes, which a search finds anew each time.
    """

    moves: list[tuple[str, list[str]]]
    rules: list[Rule]

    @staticmethod
    def of(candidate: Candidate, key: Callable[[int], str]) -> CandidateRecord:
        """The record of a candidate.

        Args:
            key: a name of a value that means the same where it is read (as :meth:`mugraph.graph.Tables.key`).
        """
        steps = [move.recorded(key) for move in candidate.moves]
        rules = {move.direction.rule.id: move.direction.rule for move in candidate.moves}
        found = [rule for rule in rules.values() if kernel_of_rule(rule) is not None or is_made_here(rule)]
        return CandidateRecord([(step.direction.id, sorted(step.keys)) for step in steps], found)

    def as_json(self) -> dict[str, Any]:
        """Fields of a JSON object."""
        return {"moves": self.moves, "kernels": [format_rule(rule) for rule in self.rules]}

    @staticmethod
    def of_json(fields: Any) -> CandidateRecord:
        """Reads :meth:`as_json`, beside other fields perhaps. Raises one of `MALFORMED`."""
        moves = [(_text(rule), list(map(_text, keys))) for rule, keys in fields["moves"]]
        return CandidateRecord(moves, [parse_rule(_text(rule)) for rule in fields["kernels"]])


def _text(value: object) -> str:
    """A text of a record. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
