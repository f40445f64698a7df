"""Whole models on one GPU: onnxruntime with CUDA graphs, other optimisers, torch.compile, in one run.

    python -m tools.bench.gpu_models MODELS --work DIR --json FILE
    python -m tools.bench.gpu_models MODELS --work DIR --json ours.json --no-peers
    python -m tools.bench.gpu_models MODELS --work DIR --json peers.json --peers-only
    python -m tools.bench.show ours.json peers.json

MODELS is a folder of skeletons in half precision that ``python -m tools.zoo skeleton`` wrote, named as
`tools.SIZED_ARCHITECTURES`, which are filled with random weights, and of models of any precision, as ``python -m tools.zoo taso``
writes them, which torch runs as they are (`tools.bench.torch_files`). Every tool optimises each, and the results are compared
with the float64 reference on inputs that the capture of the CUDA graph has not seen, into outputs full of NaN. What is right
is timed in turns: in each round every runner replays its graph many times on the same fresh inputs, and ratios are taken
within the round. Replays follow each other without waiting for the device. onnxruntime's files get their CUDA graph by
``enable_cuda_graph`` with all inputs and outputs bound, torch's modules by capture; every one lives in a process of its own
(`tools.bench.gpu_runners`).

onnx-superopt optimises each model from an empty cache with custom kernels, then again with what it remembers, then with
onnxruntime's operators only. ``--peers-only`` times our results that an earlier run left in DIR beside the peers, so that
ratios between them are taken within the round too.

``--provider cpu`` is a dry run of all but CUDA graphs.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from mugraph.graph import Graph
from mugraph.onnx import Model, load
from mugraph.ops import get_operator, traits_of
from mugraph.terms.shape import DataType
from rewriter.cost.signature import bytes_of
from rewriter.reference import Error, bind_sizes, compare, random_inputs, reference_outputs, worst
from rewriter.run.accept import FLOORS
from rewriter.run.timings import Timing, paired
from rewriter.runtime_env import environment
from tools.bench.gpu_runners import (
    CLOCKS,
    TORCH_MODES,
    Array,
    Feed,
    OnnxSpec,
    Remote,
    RunnerFailed,
    Spec,
    TorchSpec,
    count_kernels,
    one_line,
    open_all,
)
from tools.bench.models import (
    FAMILIES,
    OURS,
    Made,
    Row,
    Tool,
    count_nodes,
    geometric_speedup,
    peer,
    plain,
    print_tables,
    superopt,
)
from tools.bench.peers import PEERS, PeerFailed
from tools.bench.torch_files import TorchFileSpec
from tools.zoo.exported import SIZED_ARCHITECTURES
from tools.zoo.skeletons import fill, read_skeleton

BASELINE, AGAIN, OPERATORS = "onnxruntime", "A/A", "operators-only"

CHECKED, TIMED = 2, 6
"""How many random inputs are compared with the reference, and how many are timed on."""

LARGE = 1 << 20
"""Outputs of more elements are compared with the reference on one random input only."""

BANDWIDTH, PEAKS, LAUNCH_US = 4.3e12, {DataType.FLOAT16: 790e12, DataType.FLOAT: 67e12}, 0.7
"""Bytes a second that one H200 reaches, operations a second by precision (single is the vendor's figure without TF32), and
microseconds between kernels of a CUDA graph."""


class Asked(Protocol):
    """A runner in a process of its own, as `tools.bench.gpu_runners.Remote` is one."""

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the runner. Raises RunnerFailed."""


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An output of which nothing is written yet: NaN, or -1 where there is none."""
    return np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)


# --- one model ------------------------------------------------------------------------------------------------------


def examine(
    name: str,
    source: Path,
    tools: Mapping[str, Tool],
    torch: Mapping[str, Remote | RunnerFailed],
    beside: Mapping[str, Path],
    folder: Path,
    provider: str,
    clock: str,
    rounds: int,
    block: float,
    jobs: int,
) -> dict[str, Any]:
    """Optimises a model with every tool, checks the results and times those that are right, in turns.

    Args:
        name: The model's name.
        source: The model.
        tools: Name to tool.
        torch: Modes of torch to runners, or why there is none.
        beside: Our results of an earlier run that are timed with the others but get no row.
        folder: Where the optimised files go.
        provider: Execution provider.
        clock: One of `CLOCKS`.
        rounds: Rounds of timing.
        block: Milliseconds of replays that each runner gets in a round.
        jobs: Processes that are opened at a time.

    Returns:
        As `tools.bench.models.examine`; ``against`` has the timing of our model beside every other runner's, ``floor_ms`` is
        that of `floor_milliseconds`.
    """
    model = load(source)
    sizes = bind_sizes(model, {})[0]
    feeds = [random_inputs(model, sizes, seed) for seed in range(CHECKED + TIMED)]
    references = references_of(model, feeds[:CHECKED], source, folder / f"{source.stem}.reference.npz")
    types = [model.graph.type(value) for value in model.graph.outputs]
    tolerances = [0.0 if type_ is None else FLOORS.get(type_.dtype, 0.0) for type_ in types] * len(references)
    dtypes = [
        reference.dtype if type_ is None else type_.dtype.numpy() for reference, type_ in zip(references[0], types, strict=True)
    ]
    poison = [poisoned(reference.shape, dtype) for reference, dtype in zip(references[0], dtypes, strict=True)]
    floor = floor_milliseconds(model.graph)
    del model
    rows, files = optimise(source, tools, folder)
    with ExitStack() as stack:
        paths = {BASELINE: source, AGAIN: source, **beside, **files}
        specs: dict[str, Spec] = {key: OnnxSpec(path, provider, feeds[-1], poison, clock) for key, path in paths.items()}
        opened = open_all(specs, 120, jobs)
        for remote in opened.values():
            if isinstance(remote, Remote):
                stack.callback(remote.close)
        baseline = opened[BASELINE]
        if isinstance(baseline, RunnerFailed):
            raise baseline
        original_errors = _errors(baseline, feeds, references)
        runners: dict[str, Asked] = {key: r for key in (BASELINE, AGAIN, *beside) if isinstance(r := opened[key], Remote)}
        for row in rows:
            if row.problem:
                continue
            try:
                runner = opened[row.tool]
                if isinstance(runner, RunnerFailed):
                    raise runner
                row.note = "; ".join(filter(None, (runner.note, row.note)))
                errors = _errors(runner, feeds, references)
            except RunnerFailed as problem:
                row.problem = f"does not run: {problem}"
                continue
            row.error = worst(errors)
            if all(e.within(o, tolerance) for e, o, tolerance in zip(errors, original_errors, tolerances, strict=True)):
                runners[row.tool] = runner
            else:
                row.problem = f"wrong: relative error {row.error.relative_l2:.1e}"
        for mode, remote in torch.items():
            rows.append(_torch_row(mode, remote, feeds[0]))
            if isinstance(remote, Remote) and not rows[-1].problem:
                runners[rows[-1].tool] = remote
        times, problems = take_turns(runners, feeds[CHECKED:], rounds, block)
        remarks = [baseline.note, *(f"{key}: {problems[key]}" for key in (BASELINE, AGAIN) if key in problems)]
    for row in rows:
        row.problem = row.problem or problems.get(row.tool, "")
        if row.tool in times and BASELINE in times:
            row.timing = paired(times[BASELINE], times[row.tool])
    others = [key for key in times if key not in (OURS, AGAIN) and OURS in times]
    return {
        "model": name,
        "nodes": count_nodes(source),
        "error": worst(original_errors),
        "product_share": math.nan,
        "aa": paired(times[BASELINE], times[AGAIN]) if {BASELINE, AGAIN} <= times.keys() else None,
        "rows": rows,
        "against": [(key, paired(times[key], times[OURS])) for key in others],
        "floor_ms": floor,
        "remark": "; ".join(filter(None, remarks)),
    }


def references_of(model: Model, feeds: Sequence[Feed], source: Path, kept: Path) -> list[list[Array]]:
    """Outputs of a model in float64 on the first of ``feeds``; in the file ``kept`` once they were computed for ``source``."""
    if kept.exists() and kept.stat().st_mtime_ns > source.stat().st_mtime_ns:
        with np.load(kept) as archive:
            flat = [archive[key] for key in archive.files]
    else:
        first = reference_outputs(model, feeds[:1])
        rest = feeds[1:] if sum(output.size for output in first[0]) <= LARGE else []
        flat = [output for outputs in (*first, *reference_outputs(model, rest)) for output in outputs]
        np.savez(kept, *flat)
    count = len(model.graph.outputs)
    return [flat[start : start + count] for start in range(0, len(flat), count)]


def optimise(source: Path, tools: Mapping[str, Tool], folder: Path) -> tuple[list[Row], dict[str, Path]]:
    """Runs every tool; a row each, and the files of those that gave one."""
    rows, files = [], {}
    for tool_name, tool in tools.items():
        row = Row(tool_name)
        rows.append(row)
        try:
            made = tool(source, folder / f"{source.stem}.{tool_name}.onnx")
            row.seconds, row.note, row.nodes = made.seconds, made.note, count_nodes(made.path)
            kernels, launches = count_kernels(onnx.load(made.path, load_external_data=False))
            row.details = {**(made.details or {}), "kernel_nodes": kernels, "launches": row.nodes - kernels + launches}
        except PeerFailed as problem:
            row.problem = f"fails: {problem}"
        except Exception as problem:  # whatever a tool writes is its row
            row.problem = f"does not run: {one_line(problem)}"
        else:
            files[tool_name] = made.path
            row.kept = made.details is not None and not made.details["summary"]["improved"]
    return rows, files


def _errors(runner: Asked, feeds: Sequence[Feed], references: Sequence[Sequence[Array]]) -> list[Error]:
    errors = []
    for feed, wanted in zip(feeds, references, strict=False):
        runner.ask("load", feed)
        errors += [compare(actual, reference) for actual, reference in zip(runner.ask("outputs"), wanted, strict=True)]
    return errors


def _torch_row(mode: str, remote: Remote | RunnerFailed, feed: Feed) -> Row:
    """A mode's row, its error that against the same weights in float32."""
    row = Row(f"torch {mode}")
    try:
        if isinstance(remote, RunnerFailed):
            raise remote
        remote.ask("load", feed)
        row.seconds = remote.seconds
        row.error = worst([compare(a, w) for a, w in zip(remote.ask("outputs"), remote.ask("reference"), strict=True)])
        if not row.error.is_small:
            row.problem = f"wrong: relative error {row.error.relative_l2:.1e}"
    except RunnerFailed as problem:
        row.problem = f"fails: {problem}"
    return row


def floor_milliseconds(graph: Graph) -> float:
    """The time under which no version of a model stays on one H200, launches aside (`LAUNCH_US` each).

    The larger of two times: weights (but not the tables that a Gather reads a few rows of), inputs and outputs read or
    written once at `BANDWIDTH`; the operations of products at the peak of their precision (`PEAKS`; at that of half where it is
    not there). Activations in between may stay in the cache.
    """
    moved, computing = set(graph.inputs) | set(graph.outputs), 0.0
    for node in graph.nodes():
        moved.update(v for i, v in enumerate(node.inputs) if v in graph.tables.constants and (i or node.op != "Gather"))
        operands = [type_ for value in node.inputs if (type_ := graph.type(value)) is not None]
        results = [type_ for value in node.values if (type_ := graph.type(value)) is not None]
        if traits_of(node.op).product and len(operands) == len(node.inputs) and results:
            operations = get_operator(node.op).flops(dict(node.attrs), operands, results)
            computing += operations / PEAKS.get(operands[0].dtype, max(PEAKS.values()))
    bytes_moved = sum(bytes_of(type_) for value in moved if (type_ := graph.type(value)) is not None)
    return 1e3 * max(bytes_moved / BANDWIDTH, computing)


def take_turns(
    runners: Mapping[str, Asked], feeds: Sequence[Feed], rounds: int, block: float
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Times runners in turns; the order shifts by one from round to round.

    Args:
        runners: Name to runner.
        feeds: Inputs; each round takes the next.
        rounds: Number of rounds.
        block: Milliseconds of replays in a turn, which decide how many there are.

    Returns:
        Milliseconds of one replay, by runner and round; and why runners that failed meanwhile are not among them.
    """
    counts: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in runners}
    problems: dict[str, str] = {}

    def turn(name: str, feed: Feed) -> None:
        runner = runners[name]
        try:
            runner.ask("load", feed)
            runner.ask("milliseconds", 3)
            if name not in counts:
                counts[name] = max(3, min(1000, round(block / max(runner.ask("milliseconds", 3), 1e-6))))
            times[name].append(runner.ask("milliseconds", counts[name]))
        except RunnerFailed as problem:
            problems[name] = f"fails while it is timed: {problem}"
            del times[name]

    names = list(runners)
    for index in range(rounds if names else 0):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            if name in times:
                turn(name, feeds[index % len(feeds)])
    return times, problems


def ready_made(folder: Path, suffix: str) -> Tool:
    """Our result, optimised earlier, as FOLDER/NAME.onnx with ``suffix`` behind the name."""

    def find(source: Path, target: Path) -> Made:
        path = folder / f"{source.stem}{suffix}.onnx"
        if not path.exists():
            raise PeerFailed(f"{path} is missing")
        return Made(path, 0.0, "ready-made")

    return find


# --- printing -------------------------------------------------------------------------------------------------------


def _row(result: Mapping[str, Any], tool: str) -> Row | None:
    return next((row for row in result["rows"] if row.tool == tool), None)


def line_of(result: Mapping[str, Any]) -> str:
    """A model in a line: milliseconds of onnxruntime and of every other runner, with its speedup and what we did."""
    baseline = f"{BASELINE} {result['aa'].original:.3f} ms" if result["aa"] else BASELINE
    parts = [f"{result['model']}: {baseline}, floor {result['floor_ms']:.3f} ms"]
    for row in result["rows"]:
        told = f": {row.verdict}"
        if row.timing and not row.kept and not row.problem:
            told = f" {row.timing.candidate:.3f} ms, {1 / row.timing.ratio:.2f} times faster"
        parts.append(f"{row.tool}{told}{f' ({row.note})' if row.note else ''}")
    parts += [f"{OURS} over {key}: {1 / timing.ratio:.2f}" for key, timing in result["against"] if key != BASELINE]
    return "; ".join(parts)


def _ms(result: Mapping[str, Any], tool: str) -> str:
    row = _row(result, tool)
    if row is None:
        return ""
    if row.problem:
        return "problem"
    return f"{row.timing.candidate:.3f}" if row.timing else ""


def speedup_over(result: Mapping[str, Any], tool: str) -> tuple[float, bool] | None:
    """How many times faster our model is than a tool's, and whether both were timed in the same rounds.

    Otherwise it is the quotient of their ratios to onnxruntime.
    """
    direct: dict[str, Timing] = dict(result["against"])
    if tool in direct:
        return 1 / direct[tool].ratio, True
    ours, other = _row(result, OURS), _row(result, tool)
    if ours is None or other is None or ours.timing is None or other.timing is None:
        return None
    return other.timing.ratio / ours.timing.ratio, False


def summary_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """One row a model.

    Columns: milliseconds of every runner (``ort``: onnxruntime with all its optimisations, ``tf-opt``: its transformers
    optimizer first, ``ops only`` and ``kernels``: onnx-superopt, then torch); speedups over onnxruntime, max-autotune and the
    fastest of torch, marked ~ where they were not timed in the same rounds; the floor, the floor and `LAUNCH_US` for every
    launch of our model, our time as a multiple of that; error of the original and ours; nodes of our model and the custom
    kernels among them; seconds of the first optimisation and of a second run.
    """
    torch = [f"torch {mode}" for mode in TORCH_MODES]
    table = Table(title="milliseconds, then speedups of onnx-superopt with kernels, floors, errors", title_justify="left")
    columns = ("model", "ort", "A/A", "tf-opt", "ops only", "kernels", "eager", "compile", "autotune", "over ort", "autotune")
    for column in (*columns, "torch", "floor", "+launch", "x floor", "error", "ours", "nodes", "s", "again"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)

    def times(tool: str) -> str:
        speedup = speedup_over(result, tool)
        return "" if speedup is None else f"{speedup[0]:.2f}" if speedup[1] else f"~{speedup[0]:.2f}"

    for result in results:
        again, ours = result["aa"], _row(result, OURS)
        details: Mapping[str, Any] = (ours.details if ours else None) or {}
        right = [row for row in result["rows"] if row.tool in torch and row.timing]
        best = min(right, key=lambda row: row.timing.ratio).tool if right else ""
        bound = result["floor_ms"] + LAUNCH_US * details["launches"] / 1e3 if "launches" in details else math.nan
        table.add_row(
            result["model"],
            f"{again.original:.3f}" if again else "",
            f"{again.ratio:.3f}" if again else "",
            _ms(result, "transformers"),
            _ms(result, OPERATORS),
            _ms(result, OURS),
            *(_ms(result, tool) for tool in torch),
            times(BASELINE),
            times(torch[-1]),
            times(best) if best else "",
            f"{result['floor_ms']:.3f}",
            "" if math.isnan(bound) else f"{bound:.3f}",
            f"{ours.timing.candidate / bound:.2f}" if ours and ours.timing and not math.isnan(bound) else "",
            f"{result['error'].relative_l2:.1e}",
            f"{ours.error.relative_l2:.1e}" if ours and ours.error else "",
            f"{ours.nodes} ({details['kernel_nodes']})" if ours and "kernel_nodes" in details else "",
            f"{details['cold']:.0f}" if "cold" in details else "",
            f"{details['warm']:.0f}" if "warm" in details else "",
        )
    return table


def print_gpu_tables(console: Console, results: Sequence[Mapping[str, Any]], title: str) -> None:
    """All rows and means as of `tools.bench.models`, the summary, means over what was compared, and every problem in full."""
    print_tables(console, results, title)
    console.print(summary_table(results))
    for tool in (BASELINE, OPERATORS, *(f"torch {mode}" for mode in TORCH_MODES)):
        speedups = {result["model"]: speedup[0] for result in results if (speedup := speedup_over(result, tool))}
        language = tuple(name for name in speedups if name.startswith(FAMILIES))
        for names in dict.fromkeys((language, tuple(speedups))):
            if names:
                mean = geometric_speedup([1 / speedups[name] for name in names])
                console.print(f"{OURS} over {tool}, geometric mean over {', '.join(names)}: {mean:.3f}")
    for result in results:
        if result["remark"]:
            console.print(f"{result['model']}: {result['remark']}")
        for row in result["rows"]:
            if row.problem:
                console.print(f"{result['model']}: {row.tool}: problem: {row.problem}")
    console.print(
        f"floor: weights, inputs and outputs moved once, or products at full speed; a launch adds {LAUNCH_US} us (H200)"
    )


# --- the command ----------------------------------------------------------------------------------------------------


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--work", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where models are written and kept."
)
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--only", multiple=True, help="A model of MODELS; repeatable. Default: all.")
@click.option(
    "--tool",
    "chosen",
    multiple=True,
    type=click.Choice([OURS, OPERATORS, *PEERS]),
    default=(OURS, OPERATORS, "transformers"),
    show_default=True,
)
@click.option(
    "--torch", "modes", multiple=True, type=click.Choice(list(TORCH_MODES)), default=tuple(TORCH_MODES), show_default=True
)
@click.option("--no-peers", is_flag=True, help="onnxruntime and onnx-superopt only.")
@click.option("--peers-only", is_flag=True, help="onnxruntime and the peers, beside our results that are in --work.")
@click.option("--ours", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Our results, optimised earlier.")
@click.option("--superopt", "options", default="--budget 60", show_default=True, help="Arguments of onnx-superopt.")
@click.option("--once", is_flag=True, help="Do not optimise a second time with what the first has measured.")
@click.option("--rounds", default=40, show_default=True, help="Rounds of timing.")
@click.option("--block", default=20.0, show_default=True, help="Milliseconds of replays that each runner gets in a round.")
@click.option("--clock", type=click.Choice(CLOCKS), default=CLOCKS[0], show_default=True, help="What times the replays.")
@click.option("--jobs", default=6, show_default=True, help="Processes that open or compile a model at a time.")
@click.option("--torch-seconds", default=240.0, show_default=True, help="Time limit of a torch process until it is compiled.")
@click.option("--seconds", default=math.inf, help="No model is begun after so long.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Written anew after each model.")
def main(
    models: Path,
    work: Path,
    provider: str,
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    modes: tuple[str, ...],
    no_peers: bool,
    peers_only: bool,
    ours: Path | None,
    options: str,
    once: bool,
    rounds: int,
    block: float,
    clock: str,
    jobs: int,
    torch_seconds: float,
    seconds: float,
    json_file: Path | None,
) -> None:
    """Prints latencies of the models in MODELS under every tool, and their ratios to onnxruntime."""
    console = Console(width=240)
    began = time.monotonic()
    names = chosen_models(models, only)
    if no_peers and peers_only:
        raise click.ClickException("--no-peers and --peers-only leave nothing to time")
    here = environment(provider).partition(" + ")[2] or environment(provider)  # a captured graph is the device's alone
    modes = () if no_peers else modes
    results: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    work.mkdir(parents=True, exist_ok=True)

    def tools_of(name: str) -> dict[str, Tool]:
        every: dict[str, Tool] = {}
        if not peers_only:
            new = (
                our_tools(work / "cache" / name, provider, shlex.split(options), not once) if ours is None else ready_tools(ours)
            )
            every |= new
        if not no_peers:
            every |= {key: peer(key, Path(sys.executable), gpu=provider == "cuda", keep=True) for key in PEERS}
        return {key: tool for key, tool in every.items() if key in chosen}

    def run(name: str, torch: Mapping[str, Remote | RunnerFailed]) -> None:
        since = time.perf_counter()
        try:
            source = models / f"{name}.onnx"
            if not source.exists():
                source = work / f"{name}.onnx"
            if not source.exists():
                onnx.save(fill(read_skeleton(models / f"{name}.skeleton")), source)
            beside = {key: work / f"{name}.{key}.onnx" for key in (OURS, OPERATORS)} if peers_only else {}
            beside = {key: path for key, path in beside.items() if path.exists()}
            tools = tools_of(name)
            results.append(examine(name, source, tools, torch, beside, work, provider, clock, rounds, block, jobs))
        except Exception as problem:  # one model must not lose the others' rows
            failed[name] = one_line(problem)
        told = f"{name}: {failed[name]}" if name in failed else line_of(results[-1])
        console.print(f"{told}; {time.perf_counter() - since:.0f} s", soft_wrap=True, highlight=False, markup=False)
        if json_file is not None:
            head = {"environment": here, "rounds": rounds, "block_ms": block, "clock": clock, "failed": failed}
            json_file.write_text(json.dumps({**head, "models": plain(results)}, indent=2))

    at_once = max(1, jobs // len(modes)) if modes else 1
    for first in range(0, len(names), at_once):
        group = names[first : first + at_once]
        if time.monotonic() - began > seconds:
            failed |= dict.fromkeys(group, "not begun: out of time")
            continue
        with ExitStack() as stack:
            torch = open_torch(models, group, modes, provider, clock, torch_seconds, jobs)
            for remote in torch.values():
                if isinstance(remote, Remote):
                    stack.callback(remote.close)
            for name in group:
                run(name, {mode: torch[name, mode] for mode in modes})
    print_gpu_tables(console, results, here)
    for name, problem in failed.items():
        console.print(f"{name}: {problem}")


def chosen_models(folder: Path, only: Sequence[str]) -> Sequence[str]:
    """The names of the models of a folder that are asked for; of all where none are. Raises ClickException for an unknown one."""
    available = sorted(path.stem for path in folder.iterdir() if path.suffix in (".skeleton", ".onnx"))
    if unknown := [name for name in only if name not in available]:
        raise click.ClickException(f"{folder}: no model {', '.join(unknown)}; there are {', '.join(available)}")
    return only or available


def open_torch(
    models: Path, names: Sequence[str], modes: Sequence[str], device: str, clock: str, seconds: float, jobs: int
) -> dict[tuple[str, str], Remote | RunnerFailed]:
    """Builds, compiles and captures models in torch, each in every mode: by their names, others from their files."""
    keys = [(name, mode) for name in names for mode in modes]
    specs: dict[tuple[str, str], Spec] = {}
    for name, mode in keys:
        if (file := models / f"{name}.onnx").exists():
            specs[name, mode] = TorchFileSpec(file, mode, device, clock)
        elif architecture := SIZED_ARCHITECTURES.get(name):
            specs[name, mode] = TorchSpec(architecture, mode, device, clock)
    missing = {key: RunnerFailed("no architecture of this name in tools.zoo") for key in keys if key not in specs}
    return {**missing, **open_all(specs, seconds, jobs)}


def our_tools(cache: Path, provider: str, options: Sequence[str], twice: bool) -> dict[str, Tool]:
    """onnx-superopt with custom kernels, from an empty cache and perhaps once more; then without, from what was measured."""
    shutil.rmtree(cache, ignore_errors=True)
    arguments = ["--provider", provider, *options]
    return {
        OURS: superopt([*arguments, "--kernels"], cache, twice=twice),
        OPERATORS: superopt([*arguments, "--no-kernels"], cache, twice=False),
    }


def ready_tools(folder: Path) -> dict[str, Tool]:
    """Our results, optimised earlier, as FOLDER/NAME.onnx, and as FOLDER/NAME.operators-only.onnx."""
    return {OURS: ready_made(folder, ""), OPERATORS: ready_made(folder, f".{OPERATORS}")}


if __name__ == "__main__":
    main()
