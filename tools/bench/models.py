"""Whole models: what onnx-superopt and other optimisers gain over onnxruntime with all its optimisations, in one run.

Every tool optimises each model in a process of its own (onnx-superopt twice: cold, then warm), the results are compared with
the float64 reference, and those that are right are timed against the original, alternating in one process under default
settings (docs/measuring.md). Other runtimes (``--runtime``) run the original, and are timed beside it and our result. A row says
what a tool did with a model: nodes, error, latency ratio with its 95 % interval, or why it has none. The row A/A is the original
against itself: the noise.

    python -m tools.bench.models                                  # the zoo, about an hour
    python -m tools.bench.models --only bert --only gpt2 --seconds 8 --json table.json
    python -m tools.bench.models --no-timing --tool onnxslim my_model.onnx
    python -m tools.bench.models --only swin --runtime OpenVINO --tool onnx-superopt --once --superopt "--cpu-kernels"
    python -m tools.bench.models bert.onnx --tool onnx-superopt --once --superopt "--cpu-kernels --budget 60" \
        --superopt "--cpu-kernels --budget 60 --precision 5e-6"

Of custom kernels on the processor a row says for which instruction set the objects are that a session opens. The peers come with
the extra ``bench``; ``--peer-python`` names an interpreter of another environment that has them.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from mugraph.onnx import load
from mugraph.ops import REGISTRY
from rewriter.reference import Error, bind_sizes, random_inputs
from rewriter.run.accept import Acceptance
from rewriter.run.timings import MOST_ROUNDS, Timing, alternate, confirm, paired
from rewriter.runtime_env import environment, new_session
from tools.bench.cpu_levels import in_words
from tools.bench.peers import PEERS, PeerFailed
from tools.bench.peers import run as run_peer
from tools.bench.runtimes import RUNTIMES
from tools.zoo.__main__ import DEFAULT_DIR
from tools.zoo.exported import ARCHITECTURES
from tools.zoo.light import light_models, load_light
from tools.zoo.taso import TASO_MODELS

OURS = "onnx-superopt"

FAMILIES = ("bert", "gpt2", "llama", "qwen3", "t5", "whisper", "vit", "swin")
"""How the names of the zoo's transformers begin."""

_UNREAD_PRODUCTS = frozenset({"ConvTranspose"})
"""Products and convolutions of which there is no record."""


@dataclass(frozen=True, slots=True)
class Made:
    """A file that a tool wrote."""

    path: Path
    seconds: float
    note: str = ""
    details: Mapping[str, Any] | None = None


Tool = Callable[[Path, Path], Made]
"""Optimises a source file to a target file; raises `PeerFailed`."""


@dataclass(slots=True)
class Row:
    """The result of one tool with one model.

    Attributes:
        problem: Why there is no timing: the tool or its model failed, or the model computes something else; "" if neither.
        timing: The tool's model beside the original; None where it was not measured.
        kept: Whether the tool found nothing better and wrote the original.
    """

    tool: str
    problem: str = ""
    nodes: int | None = None
    error: Error | None = None
    timing: Timing | None = None
    kept: bool = False
    seconds: float = 0.0
    note: str = ""
    details: Mapping[str, Any] | None = None

    @property
    def ratio(self) -> float | None:
        """Latency over that of the original: 1 where the original was kept, None where there is no right result."""
        if self.problem:
            return None
        if self.kept:
            return 1.0
        return self.timing.ratio if self.timing else None

    @property
    def verdict(self) -> str:
        """Whether the tool's model is faster, beyond noise."""
        if self.problem:
            return self.problem
        if self.kept:
            return "original kept"
        return judge(self.timing) if self.timing else "not timed"


def judge(timing: Timing) -> str:
    """``faster`` or ``slower`` where the interval of the ratio excludes 1, else ``noise``."""
    if timing.faster:
        return "faster"
    return "slower" if timing.low > 1.0 else "noise"


def geometric_speedup(ratios: Iterable[float]) -> float:
    """The geometric mean of the speedups 1/ratio; NaN of none."""
    logarithms = [-math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


# --- the tools ------------------------------------------------------------------------------------------------------


def superopt(arguments: Sequence[str], cache: Path, twice: bool) -> Tool:
    """onnx-superopt's command line with further arguments; run twice, the second run finds what the first has measured."""

    def optimise(source: Path, target: Path) -> Made:
        first, cold, peak, processor = _optimise(source, target, cache, arguments)
        warm = _optimise(source, target, cache, arguments)[1] if twice else math.nan
        fired = ", ".join(f"{rule['rule'][:8]}x{rule['sites']}" for rule in first["fired"])
        details = {"cold": cold, "warm": warm, "peak_mb": peak, "processor": processor, "summary": first}
        again = f"warm {warm:.1f} s, " if twice else ""
        return Made(target, cold, f"{again}{peak:.0f} MB; {fired or first['message']}", details)

    return optimise


def _optimise(source: Path, target: Path, cache: Path, arguments: Sequence[str]) -> tuple[dict[str, Any], float, float, float]:
    """Runs the command line; returns its JSON summary, wall seconds, peak resident MB and processor seconds.

    What it says is kept beside what it writes.
    """
    summary = target.with_suffix(".json")
    command = [sys.executable, "-m", "rewriter.cli", str(source), "-o", str(target), "--json", str(summary), *arguments]
    script = (
        "import resource,subprocess,sys; r=subprocess.run(sys.argv[1:]); "
        "used=resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(used.ru_maxrss//1024, used.ru_utime+used.ru_stime, file=sys.stderr); sys.exit(r.returncode)"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "ONNX_SUPEROPT_CACHE": str(cache)},
        check=False,
    )
    seconds = time.perf_counter() - began
    target.with_suffix(".log").write_text(done.stdout + done.stderr)
    errors = done.stderr.strip().splitlines()
    if done.returncode:
        raise PeerFailed(errors[-2] if len(errors) > 1 else f"exit code {done.returncode}")
    peak, processor = map(float, errors[-1].split())
    return json.loads(summary.read_text()), seconds, peak, processor


def peer(name: str, python: Path, gpu: bool, keep: bool) -> Tool:
    """A peer; with ``keep``, what it wrote for the same source is used again."""

    def optimise(source: Path, target: Path) -> Made:
        record, source_key = target.with_suffix(".made.json"), [source.stat().st_size, source.stat().st_mtime_ns]
        if keep and target.exists() and record.exists():
            earlier = json.loads(record.read_text())
            if earlier["source"] == source_key:
                return Made(target, earlier["seconds"], earlier["note"])
        began = time.perf_counter()
        note = run_peer(python, name, source, target, gpu)
        seconds = time.perf_counter() - began
        record.write_text(json.dumps({"source": source_key, "seconds": seconds, "note": note}))
        return Made(target, seconds, note)

    return optimise


# --- one model ------------------------------------------------------------------------------------------------------


def product_share(source: Path, feeds: Sequence[Mapping[str, np.ndarray]], runs: int = 10) -> float:
    """The part of a model's kernel time on the CPU provider that goes into products, by onnxruntime's profiler."""
    with tempfile.TemporaryDirectory(prefix="superopt-profile-") as folder:
        session = new_session(source, profile=Path(folder) / "profile")
        for run in range(runs):
            session.run(None, feeds[run % len(feeds)])
        events = json.loads(session.end_profile().read_bytes())
    return share_of_products(events)


def share_of_products(events: Iterable[Mapping[str, Any]]) -> float:
    """The part of the kernel time in a profile of onnxruntime's that products, convolutions and attention take.

    The rest is what rewriting can take away at most. A node's first run, which allocates and packs, does not count.
    """
    records = [record for record in REGISTRY.values() if record.traits.product or record.traits.attention]
    products = _UNREAD_PRODUCTS.union(r.name if r.contract is None else r.contract.op_type for r in records)
    seen: set[str] = set()
    spent: Counter[bool] = Counter()
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            if name in seen:
                spent[event["args"]["op_name"] in products] += event["dur"]
            seen.add(name)
    return spent[True] / spent.total() if spent.total() else math.nan


def examine(
    source: Path,
    tools: Mapping[str, Tool],
    folder: Path,
    provider: str,
    seconds: float,
    precision: float = 0.0,
    runtimes: Sequence[str] = (),
) -> dict[str, Any]:
    """Optimises a model with every tool, checks the results and times those that are right.

    Args:
        source: The model.
        tools: Name to tool; the one named `OURS` is also timed against the fastest other one that is not ours.
        folder: Where the results go.
        provider: Execution provider.
        seconds: Timing budget of a pair, or 0 to time nothing.
        precision: Relative error up to which a result is right, where that is more than twice the original's.
        runtimes: Of `RUNTIMES`, that run the original on the processor.

    Returns:
        ``model``, ``nodes``, ``error`` of the original, ``product_share``, ``aa``, ``rows`` and ``against``: names of
        peers and the timing of our model beside theirs.
    """
    model = load(source)
    feeds = [random_inputs(model, bind_sizes(model, {})[0], seed) for seed in (11, 12)]
    acceptance = Acceptance(model, source, feeds, provider, precision=precision)
    nodes, error = count_nodes(source), acceptance.own_error()
    rows: list[Row] = []
    files: dict[str, Path] = {}
    for name, tool in tools.items():
        target = folder / f"{source.stem}.{name.replace('/', '_')}.onnx"
        row, path = check(name, tool, source, target, acceptance)
        rows.append(row)
        if path is not None:
            files[name] = path
    others = [_opened_elsewhere(name, source, acceptance) for name in runtimes]
    rows += [row for row, _ in others]
    del model
    acceptance.close()
    share = product_share(source, feeds) if provider == "cpu" else math.nan
    again: Timing | None = None
    against: list[tuple[str, Timing]] = []
    if seconds:
        again = confirm(source, source, feeds, provider, seconds)
        for row in rows:
            if row.tool in files and not row.kept:
                row.timing = confirm(source, files[row.tool], feeds, provider, seconds)
        theirs = (row for row in rows if row.tool in files and not row.tool.startswith(OURS))
        peers = [(ratio, row.tool) for row in theirs if (ratio := row.ratio) is not None]
        if OURS in files and peers:
            best = min(peers)[1]
            against.append((best, confirm(files[best], files[OURS], feeds, provider, seconds)))
        for row, session in others:
            if session is not None:
                row.timing = _in_turn(new_session(source, lingering=False), session, feeds, seconds)
                if OURS in files:
                    ours = new_session(files[OURS], lingering=False)
                    against.append((row.tool, _in_turn(session, ours, feeds, seconds)))
    return {
        "model": source.stem,
        "nodes": nodes,
        "error": error,
        "product_share": share,
        "aa": again,
        "rows": rows,
        "against": against,
    }


def check(name: str, tool: Tool, source: Path, target: Path, acceptance: Acceptance) -> tuple[Row, Path | None]:
    """Runs a tool and compares its model with the reference; the second result is the file, if it is right."""
    row = Row(name)
    try:
        made = tool(source, target)
    except PeerFailed as problem:
        row.problem = f"fails: {problem}"
        return row, None
    row.seconds, row.note, row.details, row.nodes = made.seconds, made.note, made.details, count_nodes(made.path)
    if made.details is not None and not made.details["summary"]["improved"]:
        row.kept = True
    try:
        session = acceptance.open(made.path)
        row.error, right = acceptance.judge(session)
    except Exception as problem:  # onnxruntime raises its own kinds, all of Exception
        row.problem = "does not run: " + " ".join(str(problem).split())[:200]
        return row, None
    if not right:
        row.problem = f"wrong: relative error {row.error.relative_l2:.1e}"
        return row, None
    if levels := in_words(made.path):
        row.note = f"{levels}; {row.note}"
    return row, made.path


def _opened_elsewhere(name: str, source: Path, acceptance: Acceptance) -> tuple[Row, Any]:
    """The original in another runtime, compared with the reference; no session where that does not run it.

    One that is not right is timed all the same: its row says so.
    """
    row, began = Row(name), time.perf_counter()
    try:
        session = RUNTIMES[name](source)
        row.seconds = time.perf_counter() - began
        row.error, right = acceptance.judge(session)
    except Exception as problem:  # whatever a runtime raises is its result
        row.problem = "does not run: " + " ".join(str(problem).split())[:200]
        return row, None
    if not right:
        row.problem = f"wrong: relative error {row.error.relative_l2:.1e}"
    return row, session


def _in_turn(first: Any, second: Any, feeds: Sequence[Mapping[str, np.ndarray]], seconds: float) -> Timing:
    """Two sessions that are open, run in turn: the time of the second over that of the first."""
    times: tuple[list[float], ...] = ([], [], [], [])
    alternate(first, second, feeds, seconds, times, most=4 * MOST_ROUNDS)
    return paired(*times)


def count_nodes(path: Path) -> int:
    """Nodes of a model file's main graph."""
    return len(onnx.load(path, load_external_data=False).graph.node)


# --- the zoo --------------------------------------------------------------------------------------------------------


def zoo_names() -> list[str]:
    """The models that are measured by default."""
    return [*ARCHITECTURES, *TASO_MODELS, *(f"light_{name}" for name in light_models())]


def zoo_file(name: str, directory: Path) -> Path:
    """A model of the zoo, made where it is missing and can be made without torch.

    Raises:
        click.ClickException: it is missing, and torch has to export it.
    """
    path = directory / f"{name}.onnx"
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    if name in TASO_MODELS:
        onnx.save(TASO_MODELS[name](0), path)
    elif name.removeprefix("light_") in light_models():
        onnx.save(load_light(name.removeprefix("light_")), path)
    else:
        raise click.ClickException(f"{path} is missing; 'python -m tools.zoo export {name} --dir {directory}' exports it")
    return path


# --- printing -------------------------------------------------------------------------------------------------------


def interval(timing: Timing | None) -> str:
    """A ratio with its interval."""
    return "" if timing is None else f"{timing.ratio:.3f} [{timing.low:.3f}, {timing.high:.3f}]"


def models_table(results: Sequence[Mapping[str, Any]], title: str) -> Table:
    """All models and tools: one row each."""
    columns = ("model", "tool", "nodes", "rel. error", "ms", "ratio to onnxruntime", "verdict", "s", "what it did")
    table = Table(*columns, title=title)
    for result in results:
        share, again = result["product_share"], result["aa"]
        ceiling = "" if math.isnan(share) else f"products {share:.0%}: at most {1 / share:.2f} times faster"
        error, ms = f"{result['error'].relative_l2:.1e}", f"{again.original:.3f}" if again else ""
        table.add_row(result["model"], "onnxruntime, A/A", str(result["nodes"]), error, ms, interval(again), "", "", ceiling)
        for row in result["rows"]:
            table.add_row(
                "",
                row.tool,
                str(row.nodes or ""),
                f"{row.error.relative_l2:.1e}" if row.error else "",
                f"{row.timing.candidate:.3f}" if row.timing else "",
                interval(row.timing),
                row.verdict,
                f"{row.seconds:.1f}" if row.seconds else "",
                row.note,
            )
        for other, timing in result["against"]:
            table.add_row("", f"{OURS} / {other}", "", "", f"{timing.candidate:.3f}", interval(timing), judge(timing))
        table.add_section()
    return table


def means_table(results: Sequence[Mapping[str, Any]], over: Sequence[str]) -> Table:
    """Geometric means over the models ``over``: speedups over onnxruntime by tool, where the tool has a right result, and ours
    over each other tool."""
    table = Table("tool", "speedup, geometric mean", "models", "faster", "slower", title="over " + ", ".join(over))
    chosen = [result for result in results if result["model"] in over]
    rows = [row for result in chosen for row in result["rows"]]
    for tool in dict.fromkeys(row.tool for row in rows):
        mine = [row for row in rows if row.tool == tool]
        _add_mean(table, tool, [r for row in mine if (r := row.ratio) is not None], [row.verdict for row in mine])
    pairs = [pair for result in chosen for pair in result["against"]]
    for other in dict.fromkeys(name for name, _ in pairs):
        timings = [timing for name, timing in pairs if name == other]
        _add_mean(table, f"{OURS} / {other}", [timing.ratio for timing in timings], [judge(timing) for timing in timings])
    return table


def _add_mean(table: Table, name: str, ratios: Sequence[float], verdicts: Sequence[str]) -> None:
    counts = Counter(verdicts)
    mean = f"{geometric_speedup(ratios):.3f}" if ratios else ""
    table.add_row(name, mean, f"{len(ratios)} of {len(verdicts)}", str(counts["faster"]), str(counts["slower"]))


def print_tables(console: Console, results: Sequence[Mapping[str, Any]], title: str) -> None:
    """The table of all models, and the means over the transformers without LoRA adapters and over all that were timed."""
    console.print(models_table(results, title))
    timed = tuple(result["model"] for result in results if result["aa"])
    transformers = tuple(name for name in timed if name.startswith(FAMILIES) and "lora" not in name)
    for names in dict.fromkeys((transformers, timed)):
        if names:
            console.print(means_table(results, names))


def plain(value: Any) -> Any:
    """A result as JSON takes it: records become objects, what is not finite null."""
    if isinstance(value, Row):
        return plain({**asdict(value), "ratio": value.ratio, "verdict": value.verdict})
    if isinstance(value, Timing | Error):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--only", multiple=True, type=click.Choice(zoo_names()), help="A model of the zoo; repeatable. Default: all.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), default=DEFAULT_DIR, show_default=True, help="The zoo.")
@click.option("--tool", "chosen", multiple=True, type=click.Choice([OURS, *PEERS]), help="Repeatable. Default: all.")
@click.option("--runtime", "runtimes", multiple=True, type=click.Choice(list(RUNTIMES)), help="Another runtime; repeatable.")
@click.option("--peer-python", type=click.Path(exists=True, path_type=Path), default=sys.executable, help="Has the peers.")
@click.option("--seconds", default=8.0, show_default=True, help="Timing budget of a pair.")
@click.option("--no-timing", is_flag=True, help="Only whether the results run, their nodes and errors.")
@click.option(
    "--superopt",
    "variants",
    multiple=True,
    default=("--budget 60",),
    show_default=True,
    help="Arguments of onnx-superopt; repeatable: a row for each, from one cache, judged by the largest --precision among them.",
)
@click.option("--once", is_flag=True, help="onnx-superopt runs from a cold cache alone, not from a warm one once more.")
@click.option("--work", type=click.Path(path_type=Path), help="Keep the optimised files here, and use the peers' again.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Written anew after each model.")
@click.option(
    "--against",
    nargs=2,
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Also time our result for the first model beside the second, unoptimised one (LoRA against no LoRA).",
)
def main(
    models: tuple[Path, ...],
    only: tuple[str, ...],
    directory: Path,
    chosen: tuple[str, ...],
    runtimes: tuple[str, ...],
    peer_python: Path,
    seconds: float,
    no_timing: bool,
    variants: tuple[str, ...],
    once: bool,
    work: Path | None,
    json_file: Path | None,
    against: tuple[tuple[Path, Path], ...],
) -> None:
    """Prints nodes, errors and latency ratios of MODELS, or of the zoo, under every tool."""
    console = Console(width=220)
    sources = [*models, *(zoo_file(name, directory) for name in only or (() if models else zoo_names()))]
    results: list[dict[str, Any]] = []
    beside: list[tuple[str, str, Timing]] = []
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="superopt-bench-") as scratch:
            folder = work or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            every = _ours(variants, Path(scratch) / "cache", twice=not once)
            every |= {name: peer(name, peer_python, gpu=False, keep=work is not None) for name in PEERS}
            tools = {name: tool for name, tool in every.items() if name.partition(" ")[0] in (chosen or every)}
            began = time.perf_counter()
            try:
                most = max(map(_precision, variants))
                result = examine(source, tools, folder, "cpu", 0 if no_timing else seconds, most, runtimes)
            except Exception as problem:  # one model must not lose the others' rows
                console.print(f"[red]{source.stem}: {type(problem).__name__}: {problem}")
                continue
            beside += _beside(source, folder, against, seconds)
            results.append(result)
            console.print(f"{source.stem}: {time.perf_counter() - began:.0f} s")
            if json_file is not None:
                head = {"environment": environment("cpu"), "seconds_a_pair": seconds}
                json_file.write_text(json.dumps({**head, "models": plain(results), "beside": plain(beside)}, indent=2))
    print_tables(console, results, environment("cpu"))
    for left, right, timing in beside:
        console.print(f"{left} optimised, beside {right}: {interval(timing)}, {judge(timing)}")
    console.print(f"peak of this script: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


def _ours(variants: Sequence[str], cache: Path, twice: bool) -> dict[str, Tool]:
    """onnx-superopt under every set of arguments: the first by its name alone, the others with what they are given."""
    tools = [superopt(["--provider", "cpu", *shlex.split(options)], cache, twice) for options in variants]
    return dict(zip([OURS, *(f"{OURS} {options}" for options in variants[1:])], tools, strict=True))


def _precision(options: str) -> float:
    """That which some arguments of onnx-superopt ask for."""
    words = shlex.split(options)
    return float(words[words.index("--precision") + 1]) if "--precision" in words else 0.0


def _beside(source: Path, folder: Path, pairs: Sequence[tuple[Path, Path]], seconds: float) -> list[tuple[str, str, Timing]]:
    """Our result for a model beside other models."""
    timings = []
    for left, right in pairs:
        target = folder / f"{source.stem}.{OURS}.onnx"
        if left == source and target.exists():
            model = load(source)
            feeds = [random_inputs(model, bind_sizes(model, {})[0], seed) for seed in (11, 12)]
            timings.append((left.stem, right.stem, confirm(right, target, feeds, "cpu", seconds)))
    return timings


if __name__ == "__main__":
    main()
