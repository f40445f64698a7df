"""Clean models that were seen to compute otherwise than the model that came, remembered beside verdicts."""

from __future__ import annotations

import hashlib
from contextlib import closing

from onnx import ModelProto

from rewriter.cost.store import ProfileError, ProfileStore, default_profile_path
from rewriter.run.task import Task
from rewriter.runtime_env import digest, environment

__all__ = ["Refusals"]


class Refusals:
    """What runs of one machine saw of clean models. It can only have less cleaned: nothing is written that was not compared.

    A clean model is known by its content without large weights: cleaned another time, or by another version, it is another one
    where anything else became of it.

    Args:
        task: whose cache is asked, where its options allow that; else nothing is known, nor remembered.

    Attributes:
        reason: why the model that was asked for last and is refused is.
    """

    def __init__(self, task: Task) -> None:
        options = task.options
        remembers = options.searches and options.use_verdicts and task.measures
        self.reason = ""
        self._path = (options.cache or default_profile_path()) if remembers else None
        self._environment = task.target.environment

    def holds(self, model: ModelProto) -> bool:
        """Whether a clean model was seen to compute otherwise."""
        if self._path is None or not self._path.exists():
            return False
        with closing(self._store()) as store:
            reason = store.verdict(_key(model))
        self.reason = reason or self.reason
        return reason is not None

    def add(self, model: ModelProto, reason: str) -> None:
        """Remembers that a clean model computes otherwise, and why that is said."""
        if self._path is not None:
            with closing(self._store()) as store:
                store.remember(_key(model), reason)

    def _store(self) -> ProfileStore:
        """The cache; one that cannot be used is told of by whoever opens it for costs."""
        return ProfileStore(self._path, self._environment, _untold)


def _key(model: ModelProto) -> str:
    content = hashlib.blake2b(model.SerializeToString(deterministic=True), digest_size=16).hexdigest()
    return digest("refused", environment("cpu"), content)


def _untold(_: ProfileError) -> None:
    return None
