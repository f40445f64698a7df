"""Faults: mistakes of this program's own. A run that meets one says so, keeps the original, and never blames anybody else."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass

from mugraph.onnx import ModelError
from rewriter.cost import ProfileError
from rewriter.reference import InputError
from rewriter.runtime import RuntimeLibraryError
from rewriter.runtime_env import ProviderError
from rules_db.files import StoreError

__all__ = ["FAULT_EXIT", "USER_ERRORS", "Fault", "raises_faults"]

USER_ERRORS = (ModelError, InputError, ProviderError, ProfileError, StoreError, RuntimeLibraryError)
"""Types of exceptions whose message is for the user, who can put right what they say: a command ends with exit code 2."""

FAULT_EXIT = 3
"""Exit code of a run that ended in a fault, whether or not the original could be written."""

_STAGES = {
    "import": "reading the model",
    "clean": "cleaning up",
    "replay": "replaying a remembered verdict",
    "search": "searching",
    "explain": "explaining",
    "accept": "checking candidates",
    "write": "writing",
    "load": "loading what was written",
    "learn": "remembering kernels for other models",
}


def raises_faults(asked: bool) -> bool:
    """Whether faults are raised where they occur: it was asked for, or the environment has ``ONNX_SUPEROPT_DEBUG``."""
    return asked or bool(os.environ.get("ONNX_SUPEROPT_DEBUG"))


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception that nothing in the user's model or machine accounts for.

    Attributes:
        stage: what the run was doing.
        problem: type and message of the exception.
        where: the nodes, values or rules at work, the innermost first.
        trace: the traceback.
    """

    stage: str
    problem: str
    where: tuple[str, ...]
    trace: str

    @staticmethod
    def of(problem: Exception, stage: str) -> Fault:
        """The fault behind an exception; its notes (:meth:`BaseException.add_note`) say where.

        Args:
            stage: name of a lap of :class:`rewriter.run.clock.Clock`.
        """
        said = " ".join(str(problem).split())
        text = f"{type(problem).__name__}: {said}" if said else type(problem).__name__
        where = tuple(getattr(problem, "__notes__", ()))
        return Fault(_STAGES.get(stage, stage), text, where, "".join(traceback.format_exception(problem)))

    def __str__(self) -> str:
        at = f" ({'; '.join(self.where)})" if self.where else ""
        return f"internal error while {self.stage}{at}: {self.problem}; please report it with the model or what --debug prints"
