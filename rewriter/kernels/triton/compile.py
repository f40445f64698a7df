"""Ahead-of-time compilation of generated source: for named architectures, without a GPU, in processes of their own.

A source becomes one image an architecture, with all its functions in it. What the compiler gives is kept on disk, under a
digest of source, signatures, options, architecture and Triton's version; so is its refusal. A process that dies or hangs is
the reason why its kernel was not compiled, and nothing else is lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from mugraph.deadline import heed
from mugraph.files import Scratch
from rewriter.kernels.architecture import DEFAULT_ARCHITECTURES, Architecture
from rewriter.kernels.compiling import Job, Reply, serve
from rewriter.kernels.kept import KeptResults, key_of
from rewriter.kernels.triton.source import OVERLAPPED, Source
from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.runtime.plan import Image
from rewriter.runtime_env import triton_version
from rules_db.files import cache_folder

__all__ = [
    "Binary",
    "CompiledFunction",
    "Compiler",
    "NotCompiled",
    "compiler_is_here",
]

_FORMAT = 6
"""Part of the key of what is kept on disk; raise it when the options, the packing or what is refused change."""
_ASKING = 0.1
"""Seconds after which who waits for what another thread compiles asks whether there is still time."""


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A compiled function: its name and threads a block."""

    name: str
    threads: int


@dataclass(frozen=True, slots=True)
class Binary:
    """A source compiled for one architecture; functions in the order of its launches."""

    image: Image
    functions: tuple[CompiledFunction, ...]


class NotCompiled(Exception):
    """A source that does not compile: the message names the kernel, the architecture and what the compiler says first."""


@dataclass(frozen=True, slots=True)
class _CompileJob:
    """A source to be compiled for an architecture, and what messages call its kernel."""

    label: str
    text: str
    launches: tuple[tuple[str, tuple[tuple[str, str], ...], int, int], ...]
    architecture: Architecture

    @staticmethod
    def of(label: str, source: Source, architecture: Architecture) -> _CompileJob:
        launches = tuple((x.function, x.signature, x.warps, x.stages) for x in source.launches)
        return _CompileJob(label, source.text, launches, architecture)

    @property
    def told(self) -> Job:
        """What a compiling process is told."""
        target = self.architecture
        return Job(self.text, self.launches, target.number, target.is_ptx, OVERLAPPED, target.overlaps)

    @property
    def key(self) -> str:
        code = "\n".join(line for line in self.text.splitlines() if not line.startswith("#"))
        return key_of(str(_FORMAT), _compiler_version(), code, repr(self.launches), str(self.architecture))


def _compiler_version() -> str:
    """Raises NotCompiled where there is no compiler."""
    version = triton_version()
    if version is None:
        raise NotCompiled("Triton is not installed, so no kernel can be compiled; install triton")
    return version


def compiler_is_here() -> bool:
    """Whether Triton is installed."""
    return triton_version() is not None


class Compiler:
    """Compiles sources; a context manager that ends its processes.

    Args:
        folder: where results are kept; ``None`` for the user's cache directory.
        workers: processes; ``None`` for one a core.
    """

    def __init__(self, folder: Path | None = None, workers: int | None = None) -> None:
        self.folder = cache_folder() / "kernels" if folder is None else folder
        self._kept = KeptResults(self.folder)
        self.workers = workers or len(os.sched_getaffinity(0))
        self.hits = self.compiled = 0
        self._all: list[Worker] = []
        self._idle: list[Worker] = []
        self._going_on: dict[str, Future[Binary | NotCompiled | None]] = {}
        self._lock = threading.Lock()
        self._scratch: Scratch | None = None

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def warm(self) -> None:
        """Starts the processes, which import Triton meanwhile: that takes as long as to compile a kernel or two."""
        with self._lock:
            for _ in range(self.workers - len(self._all)):
                self._idle.append(self._started())

    def close(self) -> None:
        """Ends the processes; they are started again where more is compiled."""
        for worker in self._all:
            worker.kill()
        for worker in self._all:
            worker.close()
        self._all, self._idle = [], []
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def compile(
        self, sources: Sequence[tuple[str, Source]], architectures: Sequence[Architecture] = DEFAULT_ARCHITECTURES
    ) -> list[tuple[Binary, ...] | NotCompiled]:
        """Compiles every source for every architecture.

        Args:
            sources: what messages call the kernel, and its source.

        Returns:
            for each source its binaries, one an architecture, or why there are none.
        """
        jobs = [_CompileJob.of(label, source, architecture) for label, source in sources for architecture in architectures]
        results: dict[str, Binary | NotCompiled] = {}
        fresh: dict[str, _CompileJob] = {}
        for job in jobs:
            if job.key in results or job.key in fresh:
                continue
            recalled = self._recall(job)
            if recalled is None:
                fresh[job.key] = job
            else:
                self.hits += 1
                results[job.key] = recalled
        for job, result in self._run(list(fresh.values())):
            results[job.key] = result
        compiled: list[tuple[Binary, ...] | NotCompiled] = []
        for start in range(0, len(jobs), len(architectures)):
            mine = [results[job.key] for job in jobs[start : start + len(architectures)]]
            binaries = tuple(r for r in mine if isinstance(r, Binary))
            compiled.append(binaries if len(binaries) == len(mine) else next(r for r in mine if isinstance(r, NotCompiled)))
        return compiled

    def _run(self, jobs: list[_CompileJob]) -> Iterator[tuple[_CompileJob, Binary | NotCompiled]]:
        """Compiles in parallel, each job in a process that has none beside it."""
        if not jobs:
            return
        ended = threading.Event()
        with ThreadPoolExecutor(min(self.workers, len(jobs))) as threads:
            try:
                # In copies of this context, so that they heed the deadline of this thread.
                works = [partial(copy_context().run, self._one, job, ended) for job in jobs]
                yield from zip(jobs, threads.map(lambda work: work(), works), strict=True)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self._end_all(ended)
                raise

    def _one(self, job: _CompileJob, ended: threading.Event) -> Binary | NotCompiled:
        """The result of a job: of another thread that is at the same one, else compiled here."""
        while True:
            with self._lock:
                if ended.is_set():  # a thread may have begun with this job before the others were cancelled
                    raise CancelledError
                other = self._going_on.get(job.key)
                if other is None:
                    mine = self._going_on[job.key] = Future[Binary | NotCompiled | None]()
                    worker = self._idle.pop() if self._idle else self._started()
                    break
            while not wait([other], _ASKING).done:
                heed()
            if (known := other.result()) is not None:
                self.hits += 1
                return known
        result = None
        try:
            result = self._answered(worker, job, ended)
        finally:
            with self._lock:
                del self._going_on[job.key]
                self.compiled += result is not None
            mine.set_result(result)
        return result

    def _answered(self, worker: Worker, job: _CompileJob, ended: threading.Event) -> Binary | NotCompiled:
        """Compiles in a process. One that died is the reason why its job was not compiled."""
        worker.tell(job.told)
        try:
            reply: Reply = worker.answer()
        except WorkerDied:
            worker.end()
            return NotCompiled(f"kernel {job.label} for {job.architecture}: the compiler's process died")
        with self._lock:
            if not ended.is_set():
                self._idle.append(worker)
        return self._finished(job, reply)

    def _started(self) -> Worker:
        """A new process; the caller holds the lock."""
        self._scratch = self._scratch or Scratch()
        worker = Worker(serve, str(self._scratch.path))
        self._all.append(worker)
        return worker

    def _end_all(self, ended: threading.Event) -> None:
        """Ends the processes, and says so under the lock, so that none is started afterwards."""
        with self._lock:
            ended.set()
            self._idle = []
            for worker in self._all:
                worker.end()

    def _recall(self, job: _CompileJob) -> Binary | NotCompiled | None:
        kept = self._kept.recall(job.key)
        try:
            return None if kept is None else _result(job, *kept)
        except (ValueError, KeyError, TypeError):  # damaged: compiled again
            return None

    def _finished(self, job: _CompileJob, reply: Reply) -> Binary | NotCompiled:
        head, image, lasting = reply
        if lasting:
            self._kept.keep(job.key, head, image)
        return _result(job, head, image)


def _result(job: _CompileJob, head: dict[str, Any], image: bytes) -> Binary | NotCompiled:
    if "problem" in head:
        return NotCompiled(f"kernel {job.label} for {job.architecture}: {head['problem']}")
    functions = tuple(CompiledFunction(str(name), int(threads)) for name, threads, _ in head["functions"])
    shared = tuple(int(bytes_) for _, _, bytes_ in head["functions"])
    architecture = job.architecture
    return Binary(Image(architecture.number, architecture.is_ptx, image, shared, architecture.overlaps), functions)
