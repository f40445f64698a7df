"""onnxruntime sessions, made the same way everywhere, and the environment that measurements hold for."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime as ort

from mugraph.deadline import deadline, heed
from rewriter.runtime import is_built, register

__all__ = [
    "PROVIDERS",
    "ProviderError",
    "RuntimeFailure",
    "Session",
    "calling_runtime",
    "digest",
    "environment",
    "gpu_architecture",
    "new_session",
    "pick_provider",
    "triton_version",
    "usable_providers",
]

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

ort.set_default_logger_severity(4)


class ProviderError(ValueError):
    """The asked execution provider is not to be had here."""


class RuntimeFailure(Exception):
    """onnxruntime refuses a model, or fails while it runs one; the message is the first line of what it says."""


@contextmanager
def calling_runtime() -> Iterator[None]:
    """Turns whatever a call of onnxruntime raises into :class:`RuntimeFailure`: it raises many types. Nothing else goes in.

    Where the deadline of the work is over, it raises BudgetSpent instead: what was stopped did not fail.
    """
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
    """

    def __init__(self, session: Any) -> None:
        self._session, self._running, self._deadline = session, ort.RunOptions(), deadline()
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
        try:
            outputs: list[Any] = self._session.run(names, feed, self._running)
        except Exception as problem:  # a call of its own, since what is timed should be short
            raise self._failure(problem) from problem
        return outputs

    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return [output.name for output in self._session.get_outputs()]

    def io_binding(self) -> Any:
        """A binding of tensors, for :meth:`run_with_iobinding`."""
        return self._session.io_binding()

    def run_with_iobinding(self, binding: Any) -> None:
        """Runs on bound tensors."""
        try:
            self._session.run_with_iobinding(binding, self._running)
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
    model: bytes | str | Path, provider: str = "cpu", *, spinning: bool = True, optimize: bool = True, threads: int = 0
) -> Session:
    """An inference session. ``spinning=False`` is for sessions timed side by side (they disturb each other otherwise).

    On the CUDA provider custom kernels run where the library for them was built, else their bodies.

    Raises:
        RuntimeFailure: onnxruntime refuses the model.
    """
    options = ort.SessionOptions()
    if provider == "cuda" and is_built():
        register(options)
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    names = [PROVIDERS["cuda"], PROVIDERS["cpu"]] if provider == "cuda" else [PROVIDERS["cpu"]]
    heed()
    opening, ends = _Opening(options), deadline()
    if ends is not None:
        ends.stops(opening)
    with calling_runtime():
        return Session(ort.InferenceSession(str(model) if isinstance(model, Path) else model, options, providers=names))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.cache
def environment(provider: str) -> str:
    """The environment that a measured cost holds for: device, cores, onnxruntime version and provider, in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = f"{_processor()} x{cores}"
    if provider == "cuda":
        device += f" + {_gpu_name()}"
    return f"{device} | onnxruntime {ort.__version__} | {provider}"


def _gpu_name() -> str:
    """The first GPU's name and the driver's version."""
    answer = _asked_of_gpu("name,driver_version")
    if answer:
        return ", driver ".join(part.strip() for part in answer.split(","))
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return "CUDA device"


@functools.cache
def gpu_architecture() -> int:
    """The first GPU's compute capability as one number, such as 90; 0 where it is not told."""
    major, _, minor = _asked_of_gpu("compute_cap").partition(".")
    return 10 * int(major) + int(minor) if major.isdecimal() and minor.isdecimal() else 0


def _asked_of_gpu(fields: str) -> str:
    """The answer of the driver's tool about the first GPU; empty where there is none."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    return lines[0].strip() if lines else ""


@functools.cache
def triton_version() -> str | None:
    """The version of Triton, which is not imported for that; ``None`` where it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def digest(*parts: str) -> str:
    """A short stable digest of texts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
