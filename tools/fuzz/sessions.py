"""Models run by a provider with the library for custom kernels registered, in a process of their own.

An illegal address leaves a CUDA context of no use to its process, and a kernel in C may end it: then another process takes its
place, and whoever asked is told. The asking process never touches the GPU itself, so that it may have been forked, and may fork.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx.parser import parse_model

from mugraph.blocks.operator import CPU_KERNEL, KERNEL
from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.runtime import register
from rewriter.runtime_env import PROVIDERS, usable_providers
from tools.fuzz.fence import POISON, CudaFailure, Driver, FencedMemory, trip
from tools.fuzz.running import CannotRun, Outputs, fed, one_line, poison_memory

__all__ = ["Answer", "ProcessEnded", "Request", "Sessions", "self_test"]

_SECONDS = 60.0
"""That a request may take; the first of a process loads CUDA's libraries."""
_STARTING = 180.0
"""That loading them for the first time may take on a machine."""
_REQUESTS = 300
"""After which a process is replaced: modules of kernels stay loaded."""
_LAST_WORDS = 600
"""Characters of what a process said at its end."""


class ProcessEnded(Exception):
    """The process ended, or was ended since it did not answer; the message says how."""


@dataclass(frozen=True, slots=True)
class Request:
    """A model to be run.

    Attributes:
        model: the file.
        feeds: inputs by their kind.
        library: with the library for custom kernels; else they run through their bodies.
        optimize: with onnxruntime's optimisers.
        fenced: in memory in which whoever passes the end of a tensor is caught, every tensor poisoned at first. On a CPU as ever.
        poison: the byte that fenced memory is full of.
    """

    model: bytes
    feeds: Mapping[str, Mapping[str, Any]]
    library: bool = False
    optimize: bool = True
    fenced: bool = False
    poison: int = POISON


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes:
        outputs: by the kind of inputs.
        refused: why it did not run on others, by kind; all of them where it did not load.
        beside: what was written beside tensors, by kind.
        kernels: how often nodes of custom kernels were run.
        broken: the driver's error after which the device is of no use to the process; empty where there is none.
    """

    outputs: Mapping[str, Outputs] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)
    kernels: int = 0
    broken: str = ""


class Sessions:
    """A process that runs models on a provider; another one after it ended.

    Args:
        provider: ``cpu`` or ``cuda``.
    """

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self._worker: Worker | None = None
        self._log = Path(tempfile.gettempdir()) / f"fuzz-sessions-{os.getpid()}.log"
        self._left = 0

    def run(self, request: Request) -> Answer:
        """Runs a model. Raises ProcessEnded."""
        if self._worker is None:
            self._worker, self._left = Worker(_serve, self.provider, str(self._log)), _REQUESTS
        self._worker.tell(request)
        try:
            answer: Answer = self._worker.answer(_SECONDS)
        except WorkerDied:
            raise ProcessEnded(self._ended()) from None
        self._left -= 1
        if answer.broken or not self._left:
            self.close()
        return answer

    def _ended(self) -> str:
        """How the process ended."""
        assert self._worker is not None
        code = self._worker.exit_code()
        self.close()
        how = f"no answer in {_SECONDS:g} s" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        with suppress(OSError):
            said = " ".join(self._log.read_text(errors="replace").split())[-_LAST_WORDS:]
            return f"{how}: {said}" if said else how
        return how

    def close(self) -> None:
        """Ends the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        self._log.unlink(missing_ok=True)


def self_test(provider: str) -> tuple[str, bool]:
    """Sees in processes of their own what runs on a provider: in words, and whether fenced memory can be had and holds.

    Raises:
        CannotRun: nothing runs there; the message is one line.
    """
    if provider not in usable_providers():
        raise CannotRun(f"provider {provider}: onnxruntime finds no such device on this machine")
    words, is_well = _told_by(_tell_session, provider, False)
    if not is_well:
        raise CannotRun(f"provider {provider}: {words}")
    if provider == "cpu":
        return words, False
    told = [words]
    for function, arguments in ((_tell_fence, ()), (_tell_session, (True,))):
        words, is_well = _told_by(function, provider, *arguments)
        told.append(words)
        if not is_well:
            return "; ".join([*told, "no fences then: models run in onnxruntime's own memory only"]), False
    return "; ".join(told), True


def _told_by(function: Callable[..., None], provider: str, *arguments: Any) -> tuple[str, bool]:
    """What a process says that runs a function, and whether all is well."""
    log = Path(tempfile.gettempdir()) / f"fuzz-self-test-{os.getpid()}.log"
    worker = Worker(function, provider, str(log), *arguments)
    try:
        words, is_well = worker.answer(_STARTING)
    except WorkerDied:
        words, is_well = f"the process ended: {worker.exit_code()}", False
    worker.close()
    said = " ".join(log.read_text(errors="replace").split())[-_LAST_WORDS:] if log.exists() else ""
    log.unlink(missing_ok=True)
    return (words if is_well or not said else f"{words}; it said {said}"), is_well


# --- in the process -------------------------------------------------------------------------------------------------

_SQUARE = """<ir_version: 10, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Mul(x, x) }"""


def _begin(provider: str, log: str) -> None:
    """Once a process: what it says goes into a file, and it may reserve what CUDA does."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_RSS):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    poison_memory()
    ort.set_default_logger_severity(2)
    if provider == "cuda":
        ort.preload_dlls()  # those that stand in packages


def _serve(connection: Connection, provider: str, log: str) -> None:
    """Answers requests as they come."""
    _begin(provider, log)
    memory = FencedMemory(Driver()) if provider == "cuda" else None
    while True:
        held: list[ort.InferenceSession] = []
        connection.send(_answer(connection.recv(), provider, memory, held))
        held.clear()  # not before: where the device is of no use, this may end the process


def _tell_session(connection: Connection, provider: str, log: str, fenced: bool) -> None:
    """Says whether a session of a provider computes what it should."""
    _begin(provider, log)
    x = np.arange(5, dtype=np.float32)
    memory = FencedMemory(Driver()) if provider == "cuda" else None
    asked = Request(parse_model(_SQUARE).SerializeToString(), {"x": {"x": x}}, library=True, fenced=fenced)
    answer = _answer(asked, provider, memory, [])
    where = f"onnxruntime {ort.__version__} on {provider}{' in fenced memory' if fenced else ''}"
    if not answer.outputs:
        connection.send((f"{where} does not run a product: {' '.join(answer.refused.values())}", False))
    elif not np.array_equal(answer.outputs["x"][0], x * x):
        connection.send((f"{where} gives {answer.outputs['x'][0]} where it should give {x * x}", False))
    elif fenced and (memory is None or not memory.given):
        connection.send((f"{where} takes its memory from elsewhere", False))
    else:
        connection.send((f"{where} runs", True))


def _tell_fence(connection: Connection, provider: str, log: str) -> None:
    """Says whether a read past the end of a tensor is an illegal address, as it should be."""
    _begin(provider, log)
    try:
        told = trip(Driver())
    except CudaFailure as problem:
        connection.send((f"fenced memory cannot be had: {problem}", False))
        return
    connection.send((f"reads within and past a tensor end in {told}", len(told) == 2 and not told[0]))


def _answer(request: Request, provider: str, memory: FencedMemory | None, held: list[ort.InferenceSession]) -> Answer:
    """Runs a model on all its inputs.

    Args:
        held: gets the session, so that it lasts until the answer is on its way.
    """
    fenced = memory if request.fenced else None
    if fenced is not None:
        fenced.poison = request.poison
    outputs, refused, beside, broken = dict[str, Outputs](), dict[str, str](), dict[str, str](), ""
    with tempfile.TemporaryDirectory(prefix="fuzz-profile-") as folder:
        try:
            running = _session(request, provider, fenced, Path(folder))
            held.append(running)
        except Exception as problem:  # onnxruntime raises many types
            refused = dict.fromkeys(request.feeds, f"does not load: {_told(problem, fenced)}")
            return Answer(refused=refused, broken=_broken(memory))
        for kind, feed in request.feeds.items():
            try:
                made = running.run(None, {name: fed(value) for name, value in feed.items()})
                if fenced is not None and (told := fenced.look()):
                    beside[kind] = "; ".join(told)
                outputs[kind] = made
            except Exception as problem:  # onnxruntime raises many types
                refused[kind] = _told(problem, fenced)
                if broken := _broken(memory):
                    return Answer(outputs, refused, beside, broken=broken)
        return Answer(outputs, refused, beside, _kernels_in(Path(running.end_profiling())))


def _broken(memory: FencedMemory | None) -> str:
    """The error with which the device answers from now on, if it does."""
    try:
        if memory is not None:
            memory.mapper.settle()
    except CudaFailure as problem:
        return str(problem)
    return ""


def _told(problem: Exception, memory: FencedMemory | None) -> str:
    """What went wrong, in a line."""
    told = [one_line(problem), *(memory.problems if memory is not None else ())]
    if memory is not None:
        memory.problems.clear()
    return "; ".join(told)


def _session(request: Request, provider: str, memory: FencedMemory | None, folder: Path) -> ort.InferenceSession:
    """A session of one thread that notes which nodes it runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "nodes")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if request.optimize else level.ORT_DISABLE_ALL
    if request.library:
        register(options, cpu_only=provider == "cpu")
    if provider == "cpu":
        return ort.InferenceSession(request.model, options, providers=[PROVIDERS["cpu"]])
    # Single precision is not to be multiplied in tens of bits; searching for algorithms of convolutions takes seconds.
    settings = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    if memory is not None:
        options.enable_mem_pattern = options.enable_mem_reuse = False  # each tensor has a block of its own
        settings |= memory.provider_options()
    running = ort.InferenceSession(request.model, options, providers=[(PROVIDERS["cuda"], settings), PROVIDERS["cpu"]])
    if running.get_providers()[0] != PROVIDERS["cuda"]:
        raise CannotRun("onnxruntime does not start its CUDA provider")
    return running


def _kernels_in(profile: Path) -> int:
    """How often nodes of custom kernels were run, as a session's profile has it."""
    events = json.loads(profile.read_text(encoding="utf-8"))
    ran = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    return sum(event["args"].get("op_name") in (KERNEL, CPU_KERNEL) for event in ran)
