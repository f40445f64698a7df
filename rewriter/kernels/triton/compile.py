"""Ahead-of-time compilation of generated source: for named architectures, without a GPU, in processes of their own.

A source becomes one image an architecture, with all its functions in it. What the compiler gives is kept on disk, under a
digest of source, signatures, options, architecture and Triton's version; so is its refusal. A process that dies or hangs is
the reason why its kernel was not compiled, and nothing else is lost.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from mugraph.deadline import heed
from mugraph.files import Scratch
from rewriter.kernels.kept import KeptResults, key_of
from rewriter.kernels.triton.source import OVERLAPPED, Source
from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.runtime.plan import Image
from rewriter.runtime_env import triton_version
from rules_db.files import cache_folder

__all__ = [
    "DEFAULT_ARCHITECTURES",
    "LEAST_ARCHITECTURE",
    "Architecture",
    "Binary",
    "CompiledFunction",
    "Compiler",
    "NotCompiled",
    "compiler_is_here",
    "parse_architectures",
]

_FORMAT = 3
"""Part of the key of what is kept on disk; raise it when the options or the packing change."""
LEAST_ARCHITECTURE = 80
"""Triton's kernels need its matrix units."""
_NICE = 5
_ASKING = 0.1
"""Seconds after which who waits for what another thread compiles asks whether there is still time."""
_LIMIT_SECONDS = 60
_PTX_VERSION = 80
"""Of PTX for architectures to come: what a driver of CUDA 12.0 reads."""
_LAST_LINES = 2
"""Of a compiler's message, beside its first line."""
_FIRST_OVERLAPPING = 90
"""The first architecture with ``griddepcontrol``."""
_SHARED = {80: 163 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10}
_LEAST_SHARED = 99 << 10
"""Dynamic shared memory a block may have, by architecture (CUDA programming guide, technical specifications)."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A target of compilation: a cubin of an architecture such as 90, or PTX that drivers compile for later ones."""

    number: int
    is_ptx: bool = False

    def __str__(self) -> str:
        return f"compute_{self.number}" if self.is_ptx else f"sm_{self.number}"

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may start while the one before it still runs."""
        return self.number >= _FIRST_OVERLAPPING and not self.is_ptx


DEFAULT_ARCHITECTURES = (Architecture(80), Architecture(90), Architecture(80, is_ptx=True))


def parse_architectures(text: str) -> tuple[Architecture, ...]:
    """Reads ``sm_80,sm_90,compute_80``.

    Raises:
        ValueError: another name, or an architecture before sm_80, whose matrix units Triton's kernels need.
    """
    architectures = []
    for name in text.split(","):
        match = re.fullmatch(r"(sm|compute)_(\d{2,3})", name.strip())
        if match is None or int(match[2]) < LEAST_ARCHITECTURE:
            raise ValueError(f"'{name.strip()}' is no architecture; give for example sm_80,sm_90, and compute_80 for PTX")
        architectures.append(Architecture(int(match[2]), match[1] == "compute"))
    return tuple(dict.fromkeys(architectures))


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
    """The input of a compiling process; picklable and small."""

    label: str
    text: str
    launches: tuple[tuple[str, tuple[tuple[str, str], ...], int, int], ...]
    architecture: Architecture

    @staticmethod
    def of(label: str, source: Source, architecture: Architecture) -> _CompileJob:
        launches = tuple((x.function, x.signature, x.warps, x.stages) for x in source.launches)
        return _CompileJob(label, source.text, launches, architecture)

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
        worker.tell(job)
        try:
            reply: _Reply = worker.answer()
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
        worker = Worker(_serve, str(self._scratch.path))
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

    def _finished(self, job: _CompileJob, reply: _Reply) -> Binary | NotCompiled:
        head, image, lasting = reply
        if lasting:
            self._kept.keep(job.key, head, image)
        return _result(job, head, image)


_Reply = tuple[dict[str, Any], bytes, bool]
"""Head and image of a result, and whether it would be the same another time."""


def _result(job: _CompileJob, head: dict[str, Any], image: bytes) -> Binary | NotCompiled:
    if "problem" in head:
        return NotCompiled(f"kernel {job.label} for {job.architecture}: {head['problem']}")
    functions = tuple(CompiledFunction(str(name), int(threads)) for name, threads, _ in head["functions"])
    shared = tuple(int(bytes_) for _, _, bytes_ in head["functions"])
    architecture = job.architecture
    return Binary(Image(architecture.number, architecture.is_ptx, image, shared, architecture.overlaps), functions)


# In the processes


def _serve(connection: Connection, scratch: str) -> None:
    """Compiles jobs as they come, after whatever else the run does."""
    os.nice(_NICE)
    _prepare(scratch)
    with suppress(ImportError):  # the first job says so
        importlib.import_module("triton")
    while True:
        connection.send(_compile(connection.recv()))


def _prepare(scratch: str) -> None:
    """Once a process: a cache of its own for Triton, and a place for temporary files."""
    os.environ["TMPDIR"] = scratch
    os.environ["TRITON_CACHE_DIR"] = str(Path(scratch) / str(os.getpid()))
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    os.environ.pop("TRITON_INTERPRET", None)
    signal.signal(signal.SIGALRM, _expired)


def _expired(number: int, frame: object) -> None:
    raise TimeoutError(f"it takes more than {_LIMIT_SECONDS} seconds")


def _compile(job: _CompileJob) -> _Reply:
    signal.alarm(_LIMIT_SECONDS)
    try:
        head, image = _compiled(job)
        return head, image, True
    except TimeoutError as problem:
        return {"problem": str(problem)}, b"", False
    except Exception as problem:  # the compiler raises whatever its passes do
        lines = [line.strip() for line in str(problem).splitlines() if line.strip(" ^")]
        told = [*lines[:1], *lines[1:][-_LAST_LINES:]]  # Triton says where first, and what last
        return {"problem": "; ".join(told)[:400] or type(problem).__name__}, b"", True
    finally:
        signal.alarm(0)


def _compiled(job: _CompileJob) -> tuple[dict[str, Any], bytes]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    number = job.architecture.number
    texts, cubins, functions = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"  # Triton takes functions from files only
        path.write_text(job.text)
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, signature, warps, stages in job.launches:
            aligned = {(i,): [["tt.divisibility", 16]] for i, (_, kind) in enumerate(signature) if kind.startswith("*")}
            options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
            if job.architecture.is_ptx:
                options["ptx_version"] = _PTX_VERSION
            types = {**dict(signature), OVERLAPPED: "constexpr"}
            source = ASTSource(getattr(module, name), types, {OVERLAPPED: job.architecture.overlaps}, aligned)
            compiled = triton.compile(source, target=GPUTarget("cuda", number, 32), options=options)
            about = compiled.metadata
            if about.global_scratch_size or about.profile_scratch_size:
                raise ValueError(f"{name} wants {about.global_scratch_size} bytes of global scratch memory")
            if about.shared > _SHARED.get(number, _LEAST_SHARED):
                raise ValueError(f"{name} wants {about.shared} bytes of shared memory, more than {job.architecture} has")
            functions.append((about.name, 32 * about.num_warps, about.shared))
            texts.append(compiled.asm["ptx"])
            cubins.append(compiled.asm["cubin"])
    head = {"functions": functions}
    if job.architecture.is_ptx:
        return head, merge_ptx(texts).encode()
    return head, cubins[0] if len(cubins) == 1 else _assemble(merge_ptx(texts), number)


def merge_ptx(texts: Sequence[str]) -> str:
    """One PTX module of several with the same head; what they declare alike stands once."""
    if len(texts) == 1:
        return texts[0]
    head: list[str] = []
    bodies: list[str] = []
    for number, text in enumerate(texts):
        text = re.sub(r"_\$_str", f"_$_str{number}", text)  # module-level names that two modules use for different things
        start = text.index(".visible .entry")
        head += [line for line in text[:start].splitlines() if line.startswith(".") and line not in head]
        bodies.append(text[start:])
    return "\n".join([*head, *bodies])


def _assemble(ptx: str, number: int) -> bytes:
    """A cubin by Triton's own assembler, with the options that Triton gives it."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [get_ptxas(number).path, f"--gpu-name={sm_arch_from_capability(number)}", str(source), "-o", str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"ptxas: {done.stderr}")
        return result.read_bytes()
