"""Whole models on one GPU in half precision: onnxruntime with CUDA graphs, other optimisers, torch.compile, in one run.

    python -m tools.bench.gpu_models SKELETONS --work DIR --json FILE --torch default --torch max-autotune

SKELETONS is a folder of files that ``python -m tools.zoo skeleton`` wrote, named as `tools.zoo.SIZED_ARCHITECTURES`. Each is
filled with random weights, every tool optimises it, and the results are compared with the float64 reference on inputs that
the capture of the CUDA graph has not seen, into outputs full of NaN. What is right is timed in turns: in each round every
runner replays its graph many times on the same fresh inputs, and ratios are taken within the round. Replays follow each other
without waiting for the device; the last one of a round waits for all. The peers of onnxruntime get a CUDA graph too:
onnxruntime's files one by ``enable_cuda_graph`` with all inputs and outputs bound, torch's modules one by capture.

``--provider cpu`` is a dry run of all but CUDA graphs and torch.
"""

from __future__ import annotations

import copy
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
import numpy as np
import onnx
import onnxruntime as ort
from rich.console import Console

from mugraph.graph import Graph
from mugraph.onnx_io import load
from mugraph.ops import get_operator
from rewriter import runtime
from rewriter.accept import FLOORS, paired
from rewriter.cost.signature import bytes_of
from rewriter.reference import Error, bind_sizes, compare, random_inputs, reference_outputs, worst
from rewriter.runtime.plan import DOMAIN
from rewriter.runtime_env import PROVIDERS, environment
from tools import zoo
from tools.bench.models import OURS, Made, Row, Tool, count_nodes, peer, plain, print_tables, superopt
from tools.bench.peers import PEERS, PeerFailed

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

BASELINE, AGAIN = "onnxruntime", "A/A"

CHECKED, TIMED = 2, 6
"""How many random inputs are compared with the reference, and how many are timed on."""

BANDWIDTH, PEAK, LAUNCH_US = 4.3e12, 790e12, 0.7
"""Bytes and half-precision operations a second that one H200 reaches, and microseconds between kernels of a CUDA graph."""

TORCH_MODES = {"eager": None, "default": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Names of torch peers and the mode of torch.compile; its own CUDA graphs are off because all runners are captured alike."""


class Runner(Protocol):
    """A model with its inputs and outputs on the device."""

    def load(self, feed: Feed) -> None:
        """Copies inputs to the device."""

    def replay(self, count: int) -> None:
        """Runs ``count`` times, and returns when all are done."""

    def outputs(self) -> list[Array]:
        """The outputs of a run into poisoned buffers."""


class OnnxRunner:
    """A model file in onnxruntime, inputs and outputs bound, as a CUDA graph from the first run on.

    Args:
        path: The file.
        provider: ``cuda``, or ``cpu`` without a graph.
        feed: Inputs to capture with.
        poison: What fills the outputs before a run: arrays of their shapes and types.
        graph: Whether to capture a CUDA graph.
    """

    def __init__(self, path: Path, provider: str, feed: Feed, poison: Sequence[Array], graph: bool) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if provider == "cuda" and _has_custom_kernels(path):
            runtime.register(options)
        providers: list[Any] = [PROVIDERS["cpu"]]
        if provider == "cuda":
            settings = {"enable_cuda_graph": "1" if graph else "0", "use_tf32": "0"}
            providers.insert(0, (PROVIDERS["cuda"], settings))
        self.session = ort.InferenceSession(str(path), options, providers=providers)
        if self.session.get_providers()[0] != PROVIDERS[provider]:
            raise RuntimeError(f"onnxruntime does not run it on {PROVIDERS[provider]}")
        self.unsynchronised = ort.RunOptions()
        self.unsynchronised.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.binding = self.session.io_binding()
        self.inputs = {name: ort.OrtValue.ortvalue_from_numpy(array.copy(), provider, 0) for name, array in feed.items()}
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        self.poison = poison
        self.results = [ort.OrtValue.ortvalue_from_numpy(array.copy(), provider, 0) for array in poison]
        for output, value in zip(self.session.get_outputs(), self.results, strict=True):
            self.binding.bind_ortvalue_output(output.name, value)
        for _ in range(3):  # allocate, capture, replay
            self.session.run_with_iobinding(self.binding)

    def load(self, feed: Feed) -> None:
        """Copies inputs to the device."""
        for name, value in self.inputs.items():
            value.update_inplace(feed[name])

    def replay(self, count: int) -> None:
        """Runs ``count`` times, and returns when all are done."""
        for _ in range(count - 1):
            self.session.run_with_iobinding(self.binding, self.unsynchronised)
        self.session.run_with_iobinding(self.binding)

    def outputs(self) -> list[Array]:
        """The outputs of a run into poisoned buffers."""
        for value, array in zip(self.results, self.poison, strict=True):
            value.update_inplace(array)
        self.replay(1)
        return [np.array(value.numpy()) for value in self.results]


def _has_custom_kernels(path: Path) -> bool:
    return any(entry.domain == DOMAIN for entry in onnx.load(path, load_external_data=False).opset_import)


def _poison(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)


class TorchRunner:
    """A module of transformers on the GPU, compiled and captured; its weights are its own.

    Args:
        name: A key of `tools.zoo.SIZED_ARCHITECTURES`.
        mode: A key of `TORCH_MODES`.
    """

    def __init__(self, name: str, mode: str) -> None:
        import torch

        self.architecture = zoo.SIZED_ARCHITECTURES[name]
        module = zoo.build_module(self.architecture).half().cuda()
        self.wide = copy.deepcopy(module).float()
        example = zoo.example_inputs(self.architecture, {}, fp16=True)
        self.inputs: dict[str, torch.Tensor] = {key: value.cuda() for key, value in example.items()}
        compiled = torch.compile(module, mode=TORCH_MODES[mode], dynamic=False) if TORCH_MODES[mode] else module
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    compiled(*self.inputs.values())
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = compiled(*self.inputs.values())

    def load(self, feed: Feed) -> None:
        """Copies inputs to the device."""
        import torch

        for name, tensor in self.inputs.items():
            tensor.copy_(torch.from_numpy(feed[name]))

    def replay(self, count: int) -> None:
        """Runs ``count`` times, and returns when all are done."""
        import torch

        for _ in range(count):
            self.graph.replay()
        torch.cuda.synchronize()

    def outputs(self) -> list[Array]:
        """The outputs of a run into poisoned buffers."""
        self.result.fill_(math.nan)
        self.replay(1)
        return [self.result.cpu().numpy()]

    def reference(self) -> list[Array]:
        """What the module gives in float32 on the inputs that are loaded."""
        import torch

        inputs = [value.float() if value.is_floating_point() else value for value in self.inputs.values()]
        with torch.no_grad():
            return [self.wide(*inputs).cpu().numpy()]


# --- one model ------------------------------------------------------------------------------------------------------


def examine(
    name: str,
    source: Path,
    tools: Mapping[str, Tool],
    modes: Sequence[str],
    folder: Path,
    provider: str,
    rounds: int,
    block: float,
) -> dict[str, Any]:
    """Optimises a model with every tool, checks the results and times those that are right, in turns.

    Args:
        name: The model's name, known to `tools.zoo.SIZED_ARCHITECTURES` if torch is to run it.
        source: The model.
        tools: Name to tool.
        modes: Keys of `TORCH_MODES`.
        folder: Where the optimised files go.
        provider: Execution provider.
        rounds: Rounds of timing.
        block: Milliseconds of replays that each runner gets in a round.

    Returns:
        As `tools.bench.models.examine`; ``against`` has the timing of our model beside every other runner's.
    """
    model = load(source)
    sizes = bind_sizes(model, {})[0]
    feeds = [random_inputs(model, sizes, seed) for seed in range(CHECKED + TIMED)]
    references = reference_outputs(model, feeds[:CHECKED])
    types = [model.graph.type(value) for value in model.graph.outputs]
    tolerances = [0.0 if type_ is None else FLOORS.get(type_.dtype, 0.0) for type_ in types]
    dtypes = [
        reference.dtype if type_ is None else type_.dtype.numpy() for reference, type_ in zip(references[0], types, strict=True)
    ]
    poison = [_poison(reference.shape, dtype) for reference, dtype in zip(references[0], dtypes, strict=True)]
    floor = floor_milliseconds(model.graph)
    del model
    runners: dict[str, Runner] = {}

    def errors(runner: Runner) -> list[Error]:
        found = []
        for feed, wanted in zip(feeds, references, strict=False):
            runner.load(feed)
            found += [compare(actual, reference) for actual, reference in zip(runner.outputs(), wanted, strict=True)]
        return found

    def open_file(path: Path) -> tuple[OnnxRunner, str]:
        if provider == "cpu":
            return OnnxRunner(path, provider, feeds[-1], poison, graph=False), ""
        try:
            return OnnxRunner(path, provider, feeds[-1], poison, graph=True), ""
        except Exception as problem:
            runner = OnnxRunner(path, provider, feeds[-1], poison, graph=False)
            return runner, f"without a CUDA graph: {_line(problem)}"

    runners[BASELINE], remark = open_file(source)
    own = errors(runners[BASELINE])
    runners[AGAIN] = open_file(source)[0]
    rows: list[Row] = []
    for tool_name, tool in tools.items():
        row = Row(tool_name)
        rows.append(row)
        try:
            made = tool(source, folder / f"{source.stem}.{tool_name}.onnx")
            row.seconds, row.note, row.details, row.nodes = made.seconds, made.note, made.details, count_nodes(made.path)
            runner, without = open_file(made.path)
            row.note = "; ".join(filter(None, (without, row.note)))
            found = errors(runner)
        except PeerFailed as problem:
            row.problem = f"fails: {problem}"
        except Exception as problem:
            row.problem = f"does not run: {_line(problem)}"
        else:
            row.error = worst(found)
            if all(e.within(o, tolerance) for e, o, tolerance in zip(found, own, tolerances * CHECKED, strict=True)):
                runners[tool_name] = runner
            else:
                row.problem = f"wrong: relative error {row.error.relative_l2:.1e}"
    for mode in modes:
        row = Row(f"torch {mode}")
        rows.append(row)
        began = time.perf_counter()
        try:
            runner_ = TorchRunner(name, mode)
            runner_.load(feeds[0])
            row.error = worst([compare(a, w) for a, w in zip(runner_.outputs(), runner_.reference(), strict=True)])
        except Exception as problem:
            row.problem = f"fails: {_line(problem)}"
        else:
            row.seconds = time.perf_counter() - began
            if row.error.is_small:
                runners[row.tool] = runner_
            else:
                row.problem = f"wrong: relative error {row.error.relative_l2:.1e}"
    times = take_turns(runners, feeds[CHECKED:], rounds, block)
    for row in rows:
        if row.tool in times:
            row.timing = paired(times[BASELINE], times[row.tool])
    against = [
        (row.tool, paired(times[row.tool], times[OURS])) for row in rows if row.timing and row.tool != OURS and OURS in times
    ]
    return {
        "model": name,
        "nodes": count_nodes(source),
        "error": worst(own),
        "product_share": math.nan,
        "aa": paired(times[BASELINE], times[AGAIN]),
        "rows": rows,
        "against": against,
        "floor_ms": floor,
        "remark": remark,
    }


def floor_milliseconds(graph: Graph) -> float:
    """The time under which no version of a model stays on one H200, launches aside (`LAUNCH_US` each).

    The larger of two times: weights (but not the tables that a Gather reads a few rows of), inputs and outputs read or
    written once at `BANDWIDTH`; the operations of products at `PEAK`. Activations in between may stay in the cache.
    """
    moved, operations = set(graph.inputs) | set(graph.outputs), 0
    for node in graph.nodes():
        moved.update(v for i, v in enumerate(node.inputs) if v in graph.tables.constants and (i or node.op != "Gather"))
        operands = [type_ for value in node.inputs if (type_ := graph.type(value)) is not None]
        results = [type_ for value in node.values if (type_ := graph.type(value)) is not None]
        if node.op in ("MatMul", "Gemm", "Conv") and len(operands) == len(node.inputs) and results:
            operations += get_operator(node.op).flops(dict(node.attrs), operands, results)
    bytes_moved = sum(bytes_of(type_) for value in moved if (type_ := graph.type(value)) is not None)
    return 1e3 * max(bytes_moved / BANDWIDTH, operations / PEAK)


def take_turns(runners: Mapping[str, Runner], feeds: Sequence[Feed], rounds: int, block: float) -> dict[str, list[float]]:
    """Times runners in turns; the order shifts by one from round to round.

    Args:
        runners: Name to runner.
        feeds: Inputs; each round takes the next.
        rounds: Number of rounds.
        block: Milliseconds of replays in a turn, which decide how many there are.

    Returns:
        Milliseconds of one replay, by runner and round.
    """
    counts = {}
    for name, runner in runners.items():
        runner.replay(3)
        counts[name] = max(3, min(1000, round(block / _milliseconds(runner, 3))))
    times: dict[str, list[float]] = {name: [] for name in runners}
    names = list(runners)
    for index in range(rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            runners[name].load(feeds[index % len(feeds)])
            runners[name].replay(2)
            times[name].append(_milliseconds(runners[name], counts[name]))
    return times


def _milliseconds(runner: Runner, count: int) -> float:
    start = time.perf_counter_ns()
    runner.replay(count)
    return (time.perf_counter_ns() - start) / 1e6 / count


def _line(problem: Exception) -> str:
    return f"{type(problem).__name__}: " + " ".join(str(problem).split())[:200]


def ready_made(folder: Path) -> Callable[[Path, Path], Made]:
    """Our result, optimised earlier, as FOLDER/NAME.onnx."""

    def find(source: Path, target: Path) -> Made:
        path = folder / source.name
        if not path.exists():
            raise PeerFailed(f"{path} is missing")
        return Made(path, 0.0, "ready-made")

    return find


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("skeletons", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--work", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where models are written and kept."
)
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--only", multiple=True, help="A model of SKELETONS; repeatable. Default: all.")
@click.option(
    "--tool", "chosen", multiple=True, type=click.Choice([OURS, *PEERS]), default=(OURS, "transformers"), show_default=True
)
@click.option("--torch", "modes", multiple=True, type=click.Choice(list(TORCH_MODES)), help="Peers on torch; repeatable.")
@click.option("--ours", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Our results, optimised earlier.")
@click.option("--superopt", "options", default="--budget 60", show_default=True, help="Arguments of onnx-superopt.")
@click.option("--rounds", default=40, show_default=True, help="Rounds of timing.")
@click.option("--block", default=20.0, show_default=True, help="Milliseconds of replays that each runner gets in a round.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Written anew after each model.")
def main(
    skeletons: Path,
    work: Path,
    provider: str,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    modes: tuple[str, ...],
    ours: Path | None,
    options: str,
    rounds: int,
    block: float,
    json_file: Path | None,
) -> None:
    """Prints latencies of the models in SKELETONS under every tool, and their ratios to onnxruntime."""
    console = Console(width=200)
    available = sorted(path.stem for path in skeletons.glob("*.skeleton"))
    if unknown := [name for name in only if name not in available]:
        raise click.ClickException(f"{skeletons}: no skeleton of {', '.join(unknown)}; there are {', '.join(available)}")
    tools: dict[str, Tool] = {
        OURS: ready_made(ours) if ours else superopt(["--provider", provider, *shlex.split(options)], work / "cache", twice=False)
    }
    tools |= {name: peer(name, Path(sys.executable), gpu=provider == "cuda", keep=True) for name in PEERS}
    tools = {name: tool for name, tool in tools.items() if name in chosen}
    results: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    work.mkdir(parents=True, exist_ok=True)
    for name in only or available:
        began = time.perf_counter()
        try:
            source = work / f"{name}.onnx"
            if not source.exists():
                onnx.save(zoo.fill(zoo.read_skeleton(skeletons / f"{name}.skeleton")), source)
            results.append(examine(name, source, tools, modes, work, provider, rounds, block))
        except Exception as problem:  # one model must not lose the others' rows
            failed[name] = _line(problem)
        console.print(f"{name}: {failed.get(name, 'done')}, {time.perf_counter() - began:.0f} s")
        if json_file is not None:
            head = {"environment": environment(provider), "rounds": rounds, "block_ms": block, "failed": failed}
            json_file.write_text(json.dumps({**head, "models": plain(results)}, indent=2))
    print_tables(console, results, environment(provider))
    for result in results:
        least = f"least time on an H200 {result['floor_ms']:.3f} ms and {LAUNCH_US} us a launch"
        console.print(f"{result['model']}: {'; '.join(filter(None, (least, result['remark'])))}")


if __name__ == "__main__":
    main()
