"""C text to shared objects of several instruction sets, in parallel, each kept on disk by all that it depends on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path

from mugraph.deadline import heed
from rewriter.kernels.c.compile import FLAGS, LEVELS, Level, NotBuilt, build, level_of_processor
from rewriter.kernels.kept import KeptResults, key_of
from rewriter.runtime_env import c_compiler_version
from rules_db.files import cache_folder

__all__ = ["FEATURES", "ObjectCompiler", "levels_here"]

_FORMAT = 1
"""Part of the key of what is kept; raise it when objects are made another way."""

FEATURES = {"x86-64-v3": 1, "x86-64-v4": 3, "x86-64-v4-bf16": 15, "x86-64-amx": 31}
"""What a processor must have to run objects of each level, as superopt_runtime.c numbers it."""


def levels_here() -> tuple[Level, ...]:
    """The instruction sets that this machine's processor has, the best first."""
    best = level_of_processor()
    return () if best is None else tuple(level for level in reversed(LEVELS.values()) if level.features <= best.features)


class ObjectCompiler:
    """Compiles texts; there is nothing to close.

    Args:
        folder: where results are kept; ``None`` for the user's cache directory.
        workers: compilers at a time; ``None`` for one a core.
    """

    def __init__(self, folder: Path | None = None, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))
        self.hits = self.compiled = 0
        self._kept = KeptResults(cache_folder() / "objects" if folder is None else folder)

    def compile(self, sources: Sequence[tuple[str, str]], levels: Sequence[Level]) -> list[tuple[bytes, ...] | NotBuilt]:
        """Compiles every text for every level.

        Args:
            sources: what messages call the kernel, and its text.

        Returns:
            for each text its objects, one a level, or why there are none.
        """
        jobs = [(label, text, level) for label, text in sources for level in levels]
        keys = [key_of(str(_FORMAT), str(c_compiler_version()), repr(FLAGS), repr(level.flags), text) for _, text, level in jobs]
        fresh = dict(zip(keys, jobs, strict=True))
        with ThreadPoolExecutor(self.workers) as threads:
            # In copies of this context, so that they heed the deadline of this thread.
            works = [partial(copy_context().run, self._one, key, *job) for key, job in fresh.items()]
            made = dict(zip(fresh, threads.map(lambda work: work(), works), strict=True))
        results: list[tuple[bytes, ...] | NotBuilt] = []
        for start in range(0, len(jobs), len(levels)):
            mine = [made[key] for key in keys[start : start + len(levels)]]
            problem = next((result for result in mine if isinstance(result, NotBuilt)), None)
            results.append(problem or tuple(result for result in mine if isinstance(result, bytes)))
        return results

    def _one(self, key: str, label: str, text: str, level: Level) -> bytes | NotBuilt:
        heed()
        kept = self._kept.recall(key)
        if kept is not None:
            self.hits += 1
            return kept[1]
        self.compiled += 1
        try:
            content = build(text, level, label)
        except NotBuilt as problem:
            return problem
        self._kept.keep(key, {"level": level.name}, content)
        return content
