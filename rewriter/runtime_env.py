"""onnxruntime sessions, made the same way everywhere, and the environment that measurements hold for."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime as ort

from mugraph.deadline import deadline, heed
from mugraph.interrupts import calling_for
from rewriter.runtime import CPU_ONLY, is_built, library_path, register

__all__ = [
    "PROVIDERS",
    "ProviderError",
    "RuntimeFailure",
    "Session",
    "bare_session",
    "c_compiler",
    "c_compiler_version",
    "calling_runtime",
    "cores",
    "digest",
    "environment",
    "gpu_architecture",
    "limit_threads",
    "new_session",
    "pick_provider",
    "second_cache",
    "settings_elsewhere",
    "triton_version",
    "usable_providers",
    "usual_threads",
]

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

ort.set_default_logger_severity(4)


class ProviderError(ValueError):
    """The asked execution provider is not to be had here."""


class RuntimeFailure(Exception):
    """onnxruntime refuses a model, or fails while it runs one; the message is the first line of what it says."""


class _GpuCalls:
    """Calls for the GPU, of any thread: many at once, but a graph is captured alone.

    While one thread captures, CUDA refuses to allocate, to copy and to synchronise in all others of the process, and the capture
    fails as well (CUDA's programming guide, Prohibited and Unhandled Operations).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = set[object]()
        self._capturer: object | None = None

    @contextmanager
    def called(self) -> Iterator[None]:
        """While nothing is captured."""
        call = object()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._capturer is None)
                self._calls.add(call)
            yield
        finally:  # an interrupt may come while it waits
            with self._changed:
                self._calls.discard(call)
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other thread calls, nor this one by :meth:`called`."""
        capture = object()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._capturer is None)
                self._capturer = capture  # no call begins any more
                self._changed.wait_for(lambda: not self._calls)
            yield
        finally:
            with self._changed:
                if self._capturer is capture:
                    self._capturer = None
                self._changed.notify_all()


_GPU = _GpuCalls()


def _asking(provider: str, captures: bool = False) -> AbstractContextManager[None]:
    """While something is asked of a provider, as :func:`calling_runtime` says."""
    if provider == "cpu":
        return nullcontext()
    return _GPU.alone() if captures else _GPU.called()


@contextmanager
def calling_runtime(provider: str = "cpu", *, captures: bool = False) -> Iterator[None]:
    """Turns whatever a call of onnxruntime raises into :class:`RuntimeFailure`: it raises many types. Nothing else goes in.

    Where the deadline of the work is over, it raises BudgetSpent instead: what was stopped did not fail.

    Args:
        provider: ``cuda`` where something is asked of the GPU: no other thread captures a graph meanwhile.
        captures: a graph may be captured: no other thread asks anything of the GPU meanwhile.
    """
    with _asking(provider, captures):
        try:
            yield
        except Exception as problem:
            heed()
            raise RuntimeFailure(_first_line(problem)) from problem


def _first_line(problem: BaseException) -> str:
    """The first line of what an exception says, or its type where it says nothing."""
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__


class Session:
    """A session of onnxruntime whose calls raise :class:`RuntimeFailure` and nothing else of onnxruntime's.

    They heed the deadline of the work that made it, in whatever thread they are made, and raise BudgetSpent where that is over.

    Args:
        session: of onnxruntime.
        provider: of it.
        model: that it was opened of: a name is that of its file.
    """

    def __init__(self, session: Any, provider: str = "cpu", model: bytes | str | None = None) -> None:
        self._session, self._provider, self._running, self._deadline = session, provider, ort.RunOptions(), deadline()
        self._call = calling_for(model)
        if self._deadline is not None:
            self._deadline.stops(self)

    def stop(self) -> None:
        """Ends a run that goes on after the node that it is at, and every later one."""
        self._running.terminate = True

    def _failure(self, problem: Exception) -> RuntimeFailure:
        """What to raise for what onnxruntime raised. Raises BudgetSpent where it was stopped."""
        if self._deadline is not None:
            self._deadline.heed()
        return RuntimeFailure(_first_line(problem))

    def run(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names, or all."""
        with _asking(self._provider), nullcontext() if self._deadline is None else self._deadline.call():
            try:
                outputs: list[Any] = self._call(self._session.run, names, feed, self._running)
            except Exception as problem:  # a call of its own, since what is timed should be short
                raise self._failure(problem) from problem
        return outputs

    def end_profile(self) -> Path:
        """The file with times of the nodes until now, where the session was made to keep them."""
        return Path(self._session.end_profiling())

    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return [output.name for output in self._session.get_outputs()]

    def io_binding(self) -> Any:
        """A binding of tensors, for :meth:`run_with_iobinding`."""
        return self._session.io_binding()

    def run_with_iobinding(self, binding: Any) -> None:
        """Runs on bound tensors; where the session captures graphs, in the thread that captured this one."""
        try:
            self._call(self._session.run_with_iobinding, binding, self._running)
        except Exception as problem:
            raise self._failure(problem) from problem


def pick_provider(name: str) -> str:
    """Resolves ``cpu``, ``cuda`` or ``auto`` to one that works here."""
    if name not in (*PROVIDERS, "auto"):
        raise ProviderError(f"unknown provider '{name}': use cpu, cuda or auto")
    cuda = "cuda" in usable_providers()
    if name == "cuda" and not cuda:
        raise ProviderError("provider cuda: onnxruntime finds no CUDA device on this machine; use --provider cpu")
    return ("cuda" if cuda else "cpu") if name == "auto" else name


def usable_providers() -> list[str]:
    """The providers that work on this machine."""
    cuda = PROVIDERS["cuda"] in ort.get_available_providers() and _cuda_device_present()
    return ["cpu", "cuda"] if cuda else ["cpu"]


@functools.cache
def _cuda_device_present() -> bool:
    return any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))


class _Threads:
    """How many threads a session has that is asked for none, as it was told; 0: it was not."""

    usual = 0


def limit_threads(count: int) -> None:
    """From now on sessions of this process have so many threads each, unless one is asked for others.

    For processes that share a machine with their like: onnxruntime starts a thread for each core, whichever cores it may use.
    """
    _Threads.usual = count


class _Opening:
    """A session that is being opened.

    Args:
        options: with which it is.
    """

    def __init__(self, options: Any) -> None:
        self._options = options

    def stop(self) -> None:
        """Ends it at the next step of onnxruntime's."""
        self._options.set_load_cancellation_flag(True)


def new_session(
    model: bytes | str | Path,
    provider: str = "cpu",
    *,
    spinning: bool = True,
    lingering: bool = True,
    optimize: bool = True,
    threads: int | None = None,
    optimized: Path | None = None,
    profile: Path | None = None,
) -> Session:
    """An inference session.

    Custom kernels for the provider run where the library for them was built, else their bodies.

    Args:
        spinning: its threads spin where they wait for work.
        lingering: they go on spinning behind a run, on cores that another session may be timed on (docs/measuring.md).
        optimized: a file to which onnxruntime writes the model as its optimisers made it.
        profile: the beginning of the name of a file with times of nodes (:meth:`Session.end_profile`).

    Raises:
        RuntimeFailure: onnxruntime refuses the model.
    """
    options = ort.SessionOptions()
    if is_built():
        register(options, cpu_only=provider == "cpu")
    options.log_severity_level = 4
    options.intra_op_num_threads = usual_threads() if threads is None else threads
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not lingering:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    names = [PROVIDERS["cuda"], PROVIDERS["cpu"]] if provider == "cuda" else [PROVIDERS["cpu"]]
    source = str(model) if isinstance(model, Path) else model
    return Session(bare_session(source, options, names, provider), provider, source)


def bare_session(model: bytes | str, options: Any, providers: Sequence[Any], provider: str) -> Any:
    """A session of onnxruntime's own, of a model or a file of this name, on these providers and no others.

    Raises:
        RuntimeFailure: onnxruntime refuses the model.
        BudgetSpent: the deadline of this thread's work is over.
    """
    heed()
    opening, ends = _Opening(options), deadline()
    if ends is not None:
        ends.stops(opening)
    with calling_runtime(provider):  # without a second try on another provider, which onnxruntime would only print
        return calling_for(model)(ort.InferenceSession, model, options, providers=providers, enable_fallback=0)


def settings_elsewhere(provider: str) -> dict[str, Any]:
    """What a process that imports nothing of this project makes sessions with as :func:`new_session` does.

    Returns:
        As JSON has it: ``providers``, by their names, ``library`` of custom kernels or nothing, and ``entries`` of the
        session's configuration.
    """
    return {
        "providers": list(dict.fromkeys((PROVIDERS[provider], PROVIDERS["cpu"]))),
        "library": str(library_path()) if is_built() else None,
        "entries": dict([CPU_ONLY]) if provider == "cpu" else {},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def second_cache() -> int | None:
    """Bytes of a core's second cache, as Linux has them; ``None`` where the machine does not say."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, size = (folder.joinpath(name).read_text().strip() for name in ("level", "size"))
            if level == "2":
                return int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return None


@functools.cache
def environment(provider: str) -> str:
    """The environment that a measured cost holds for: device, cores, onnxruntime version and provider, in words."""
    device = f"{_processor()} x{_Threads.usual or cores()}"
    if provider == "cuda":
        device += f" + {_gpu_name()}"
    return f"{device} | onnxruntime {ort.__version__} | {provider}"


def _gpu_name() -> str:
    """The first GPU's name and the driver's version."""
    answer = _asked_of_gpu()
    if answer:
        return f"{answer[0]}, driver {answer[1]}"
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return "CUDA device"


def gpu_architecture() -> int:
    """The first GPU's compute capability as one number, such as 90; 0 where it is not told."""
    answer = _asked_of_gpu()
    major, _, minor = (answer[2] if answer else "").partition(".")
    return 10 * int(major) + int(minor) if major.isdecimal() and minor.isdecimal() else 0


@functools.cache
def _asked_of_gpu() -> tuple[str, ...]:
    """Name, driver and compute capability of the first GPU, as the driver's tool tells them; nothing where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return ()
    fields = tuple(field.strip() for field in lines[0].split(",")) if lines else ()
    return fields if len(fields) == 3 else ()


@functools.cache
def triton_version() -> str | None:
    """The version of Triton, which is not imported for that; ``None`` where it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def c_compiler() -> str | None:
    """The path of the C compiler; ``None`` where there is none."""
    return shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")


def c_compiler_version() -> str | None:
    """The C compiler in words, as it tells itself; ``None`` where there is none."""
    compiler = c_compiler()
    return None if compiler is None else _told_version(compiler)


@functools.cache
def _told_version(compiler: str) -> str | None:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None


def usual_threads() -> int:
    """How many threads a session has that is asked for none; 0: as many as onnxruntime takes, one a core of the machine.

    That is what :func:`limit_threads` was told, else 0, unless this process may use fewer cores than the machine has:
    onnxruntime heeds no such limit, and binds a thread to each of the others, too.
    """
    return _Threads.usual or (cores() if cores() < (os.cpu_count() or 1) else 0)


def digest(*parts: str) -> str:
    """A short stable digest of texts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
