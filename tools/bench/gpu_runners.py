"""Models on a GPU, each in a process of its own: opened, captured as a CUDA graph, replayed and timed on request.

A process that raises, dies or does not answer in time costs its own row of a table (`RunnerFailed`), nothing else. All
runners hold their inputs and outputs on the device and take their time in the same way: CUDA events around replays that are
queued one after another. A process is idle unless it is asked something, so that whoever is asked has the device for itself.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import onnx
import onnxruntime as ort

from mugraph.blocks.operator import KERNEL_DOMAIN
from rewriter import runtime
from rewriter.runtime_env import PROVIDERS
from tools.zoo.exported import ZooArchitecture, build_module, example_inputs

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

TORCH_MODES = {"eager": None, "default": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Names of torch peers and the mode of torch.compile; its own CUDA graphs are off because all runners are captured alike."""

CLOCKS = ("events", "host")
"""How replays are timed: by CUDA events, or by the host from the first call until the device is idle."""


class RunnerFailed(Exception):
    """A runner gave no answer; the message says why in one line."""


class Runner(Protocol):
    """A model with its inputs and outputs on the device.

    Attributes:
        note: What a reader of its times has to know.
    """

    note: str

    def load(self, feed: Feed) -> None:
        """Copies inputs to the device."""

    def milliseconds(self, count: int) -> float:
        """Replays ``count`` times without a pause; milliseconds of one replay."""

    def outputs(self) -> list[Array]:
        """The outputs of a run into poisoned buffers."""

    def reference(self) -> list[Array] | None:
        """The outputs in float32 on the loaded inputs, where nobody but the runner has the weights; else ``None``."""


class Spec(Protocol):
    """How a runner, or whatever else answers and has a note, is made in its process."""

    def open(self) -> Any: ...


# --- clocks ---------------------------------------------------------------------------------------------------------


class HostClock:
    """Times replays from the first call until the device is idle."""

    stream: int | None = None

    def settle(self) -> None:
        """Whoever replays waits for the device itself."""

    def milliseconds(self, replay: Callable[[], None], finish: Callable[[], None]) -> float:
        """Milliseconds that ``replay`` queues work for; ``finish`` waits for the device."""
        start = time.perf_counter_ns()
        replay()
        finish()
        return (time.perf_counter_ns() - start) / 1e6


class EventClock:
    """Times replays by two CUDA events in a stream, which the model must compute in.

    Raises:
        RunnerFailed: The driver refuses, or there is no ``cuda-bindings``.
    """

    def __init__(self) -> None:
        try:
            self.driver = importlib.import_module("cuda.bindings.driver")
        except ImportError as problem:
            raise RunnerFailed(f"no CUDA events without cuda-bindings ({problem}); use --clock host") from None
        self._call("cuInit", 0)
        self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", 0)))
        self._stream = self._call("cuStreamCreate", 1)  # non-blocking, as onnxruntime's own
        self.stream: int | None = int(self._stream)
        self._events = [self._call("cuEventCreate", 0) for _ in range(2)]

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *results = getattr(self.driver, name)(*arguments)
        if int(status):
            raise RunnerFailed(f"{name}: {status}")
        return results[0] if results else None

    def settle(self) -> None:
        """Waits until the stream is idle."""
        self._call("cuStreamSynchronize", self._stream)

    def milliseconds(self, replay: Callable[[], None], finish: Callable[[], None]) -> float:
        """Milliseconds that the device needs for what ``replay`` queues."""
        self._call("cuEventRecord", self._events[0], self._stream)
        replay()
        self._call("cuEventRecord", self._events[1], self._stream)
        finish()
        self._call("cuEventSynchronize", self._events[1])
        return float(self._call("cuEventElapsedTime", *self._events))


Clock = HostClock | EventClock


# --- onnxruntime ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnnxSpec:
    """A model file in onnxruntime, inputs and outputs bound; one CUDA graph from the first run on where it can be captured.

    Attributes:
        path: The file.
        provider: ``cuda``, or ``cpu`` without a graph and by the host's clock.
        feed: Inputs to capture with.
        poison: What fills the outputs before a run: arrays of their shapes and types.
        clock: One of `CLOCKS`.
        shared: Outputs, by name, each with the input whose buffer it is written to; no poison fills them.
    """

    path: Path
    provider: str
    feed: Feed
    poison: Sequence[Array]
    clock: str = "events"
    shared: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> Runner:
        """Opens it; without a CUDA graph where none can be captured: the note then says why."""
        if self.provider == "cpu":
            return OnnxRunner(self, HostClock(), graph=False)
        new_clock = EventClock if self.clock == "events" else HostClock
        clock = new_clock()
        try:
            return OnnxRunner(self, clock, graph=True)
        except Exception as problem:  # onnxruntime raises its own kinds, all of Exception
            note = f"without a CUDA graph: {one_line(problem)}"
        runner = OnnxRunner(self, new_clock(), graph=False)  # the other stream may still be capturing
        runner.note = note
        return runner


class OnnxRunner:
    """A model in a session of onnxruntime, described by an `OnnxSpec`."""

    def __init__(self, spec: OnnxSpec, clock: Clock, graph: bool) -> None:
        self.note, self.clock = "", clock
        options = ort.SessionOptions()
        options.log_severity_level = 4
        providers: list[Any] = [PROVIDERS["cpu"]]
        if spec.provider == "cuda":
            model = onnx.load(spec.path, load_external_data=False)
            if count_kernels(model)[0]:
                runtime.register(options)
            settings = {"enable_cuda_graph": str(int(graph)), "use_tf32": str(int(not is_single(model)))}
            if clock.stream is not None:
                settings["user_compute_stream"] = str(clock.stream)
            providers.insert(0, (PROVIDERS["cuda"], settings))
        self.session = ort.InferenceSession(str(spec.path), options, providers=providers)
        if self.session.get_providers()[0] != PROVIDERS[spec.provider]:
            raise RunnerFailed(f"onnxruntime does not run it on {PROVIDERS[spec.provider]}")
        self.unsynchronised = ort.RunOptions()
        self.unsynchronised.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.binding = self.session.io_binding()
        device = spec.provider
        self.inputs = {name: ort.OrtValue.ortvalue_from_numpy(array.copy(), device, 0) for name, array in spec.feed.items()}
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        names = [output.name for output in self.session.get_outputs()]
        self.poison = dict(zip((name for name in names if name not in spec.shared), spec.poison, strict=True))
        self.results = {
            name: ort.OrtValue.ortvalue_from_numpy(self.poison[name].copy(), device, 0)
            if name in self.poison
            else self.inputs[spec.shared[name]]
            for name in names
        }
        for name, value in self.results.items():
            self.binding.bind_ortvalue_output(name, value)
        for _ in range(3):  # allocate, capture, replay
            self._run()

    def _run(self) -> None:
        self.session.run_with_iobinding(self.binding)
        self.clock.settle()

    def load(self, feed: Feed) -> None:
        """Copies inputs to the device."""
        for name, value in self.inputs.items():
            value.update_inplace(feed[name])

    def milliseconds(self, count: int) -> float:
        """Replays ``count`` times without a pause; milliseconds of one replay."""
        waits = self.clock.stream is None  # then the last replay waits for the device

        def replay() -> None:
            for _ in range(count - waits):
                self.session.run_with_iobinding(self.binding, self.unsynchronised)

        return self.clock.milliseconds(replay, self._run if waits else _nothing) / count

    def outputs(self) -> list[Array]:
        """The outputs of a run into poisoned buffers."""
        for name, array in self.poison.items():
            self.results[name].update_inplace(array)
        self._run()
        return [np.array(value.numpy()) for value in self.results.values()]

    def reference(self) -> None:
        """``None``: the weights stand in the file."""


def _nothing() -> None:
    pass


def is_single(model: onnx.ModelProto) -> bool:
    """Whether a model has matrices or filters in single precision.

    These are not to be multiplied as TF32. Without that, onnxruntime's convolutions use no tensor cores, whatever their
    precision is (``CreateCudnnFeExecutionPlan`` in its ``providers/cuda/nn/conv.cc``): models in half precision keep it.
    """
    weights = model.graph.initializer
    return any(weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) > 1 for weight in weights)


def count_kernels(model: onnx.ModelProto) -> tuple[int, int]:
    """Custom kernel nodes of a model's main graph, and the launches that they make together."""
    nodes = [node for node in model.graph.node if node.domain == KERNEL_DOMAIN]
    names = [a.s.decode() for node in nodes for a in node.attribute if a.name == "kernels"]
    return len(nodes), sum(len(text.splitlines()) for text in names)


# --- torch ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchSpec:
    """A model of transformers in half precision, compiled, on a GPU as one CUDA graph; its weights are its own.

    Attributes:
        architecture: The model.
        mode: A key of `TORCH_MODES`.
        device: ``cuda``, or ``cpu`` without a graph and by the host's clock.
        clock: One of `CLOCKS`.
    """

    architecture: ZooArchitecture
    mode: str
    device: str = "cuda"
    clock: str = "events"

    def open(self) -> Runner:
        """Builds, compiles and captures it."""
        module = build_module(self.architecture).half()
        example = example_inputs(self.architecture, {}, fp16=True)
        inputs = {name: example[name] for name in self.architecture.inputs}
        return TorchRunner(module, copy.deepcopy(module).float(), inputs, self.mode, self.device, self.clock)


class TorchRunner:
    """A module of torch in half precision.

    Args:
        module: of one output.
        wide: the same in float32, for the reference.
        inputs: by name, in the order of the module's arguments.
        mode, device, clock: as of a `TorchSpec`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        wide: torch.nn.Module,
        inputs: Mapping[str, torch.Tensor],
        mode: str,
        device: str,
        clock: str,
    ) -> None:
        import torch

        torch.set_grad_enabled(False)
        self.note, self.on_gpu = "", device == "cuda"
        module, self.wide = module.to(device), wide.to(device)
        self.inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        compiles = TORCH_MODES[mode]
        self.call = torch.compile(module, mode=compiles, dynamic=False) if compiles else module
        self.clock: Clock | _TorchClock = HostClock()
        self.replay: Callable[[], None] = self._run
        self.result = self._run()
        if self.on_gpu:
            self._capture()
            if clock == "events":
                self.clock = _TorchClock()

    def _run(self) -> torch.Tensor:
        self.result = self.call(*self.inputs.values())
        return self.result

    def _capture(self) -> None:
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        self.replay = graph.replay

    def _finish(self) -> None:
        import torch

        if self.on_gpu:
            torch.cuda.synchronize()

    def load(self, feed: Feed) -> None:
        """Copies inputs to the device, each to the argument of its name."""
        import torch

        for name, tensor in self.inputs.items():
            if feed[name].shape != tuple(tensor.shape):
                raise RunnerFailed(f"{name} is {list(feed[name].shape)} in the ONNX file, {list(tensor.shape)} in torch")
            tensor.copy_(torch.from_numpy(feed[name]))

    def milliseconds(self, count: int) -> float:
        """Replays ``count`` times without a pause; milliseconds of one replay."""

        def replay() -> None:
            for _ in range(count):
                self.replay()

        return self.clock.milliseconds(replay, self._finish) / count

    def outputs(self) -> list[Array]:
        """The outputs of a run into poisoned buffers."""
        self.result.fill_(float("nan"))
        self.replay()
        self._finish()
        return [self.result.cpu().numpy()]

    def reference(self) -> list[Array]:
        """The outputs of the module in float32 on the inputs that are loaded."""
        import torch

        torch.backends.cudnn.allow_tf32 = False
        inputs = [value.float() if value.is_floating_point() else value for value in self.inputs.values()]
        return [self.wide(*inputs).cpu().numpy()]


class _TorchClock:
    """As `EventClock`, in torch's current stream."""

    def __init__(self) -> None:
        import torch

        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def milliseconds(self, replay: Callable[[], None], finish: Callable[[], None]) -> float:
        """Milliseconds that the device needs for what ``replay`` queues."""
        start, end = self.events
        start.record()
        replay()
        end.record()
        finish()
        return float(start.elapsed_time(end))


# --- processes ------------------------------------------------------------------------------------------------------


class Remote:
    """A runner in a process of its own, which starts at once; `wait` returns when it is open.

    Args:
        spec: What to open there.
        seconds: Time limit for opening, compilation included.
        answer_seconds: Time limit for anything that is asked of it later.
    """

    def __init__(self, spec: Spec, seconds: float, answer_seconds: float = 60) -> None:
        context = multiprocessing.get_context("spawn")
        self._log = Path(tempfile.mkstemp(prefix="superopt-runner-", suffix=".log")[1])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec, self._log))
        self._began, self._limit, self._answer_limit = time.monotonic(), seconds, answer_seconds
        self._process.start()
        theirs.close()
        self.seconds, self.note = 0.0, ""

    def wait(self) -> None:
        """Waits until the runner is open.

        Raises:
            RunnerFailed: It cannot be opened, or not in time; the process is gone then.
        """
        self.note = self._answer(self._began, self._limit)
        self.seconds = time.monotonic() - self._began

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the runner. Raises RunnerFailed, after which the process is gone."""
        try:
            self._connection.send((method, arguments))
        except OSError:
            self._fail("its process is gone")
        return self._answer(time.monotonic(), self._answer_limit)

    def _answer(self, began: float, seconds: float) -> Any:
        try:
            if not self._connection.poll(max(began + seconds - time.monotonic(), 0)):
                self._fail(f"no answer after {seconds:.0f} s")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode or 0
            self._fail(f"killed by signal {-code}" if code < 0 else f"exit code {code}", last_words=True)
        if kind == "failed":
            self._fail(value)
        return value

    def _fail(self, reason: str, last_words: bool = False) -> NoReturn:
        said = self._log.read_text(errors="replace").strip().splitlines() if last_words and self._log.exists() else []
        self.close()
        raise RunnerFailed(": ".join((reason, " ".join(said[-1].split())[:200])) if said else reason)

    def close(self) -> None:
        """Ends the process and all that it started."""
        self._connection.close()
        pid = self._process.pid
        if pid is not None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._process.kill()
        self._process.join()
        self._log.unlink(missing_ok=True)


def _serve(connection: Connection, spec: Spec, log: Path) -> None:
    """In the process: opens a runner and answers until nobody asks any more."""
    os.setsid()  # what torch starts to compile ends with this process
    with log.open("wb", buffering=0) as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    try:
        runner = spec.open()
        connection.send(("done", runner.note))
        while True:
            method, arguments = connection.recv()
            connection.send(("done", getattr(runner, method)(*arguments)))
    except EOFError:
        pass
    except Exception as problem:  # whatever is raised here is that runner's row
        connection.send(("failed", one_line(problem)))
    connection.close()
    os._exit(0)  # a broken device must not hang the interpreter's end


def open_all(specs: Mapping[Any, Spec], seconds: float, jobs: int) -> dict[Any, Remote | RunnerFailed]:
    """Opens runners, ``jobs`` at a time: each is there, or the reason why not."""

    def opened(spec: Spec) -> Remote | RunnerFailed:
        remote = Remote(spec, seconds)
        try:
            remote.wait()
        except RunnerFailed as problem:
            return problem
        return remote

    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        return dict(zip(specs, pool.map(opened, specs.values()), strict=True))


def one_line(problem: Exception) -> str:
    """An exception as a line of a table."""
    text = " ".join(str(problem).split())[:200]
    return text if isinstance(problem, RunnerFailed) else f"{type(problem).__name__}: {text}"
