"""Decoding with a key/value cache on one GPU: a step of four Llama layers in half precision, in CUDA graphs, in one run.

    python -m tools.bench.decoding WORK --json FILE
    python -m tools.bench.decoding WORK --json FILE --row 4x8192 --row "1x1024 packed" --only original --only ours --budget 60
    python -m tools.bench.decoding WORK --json FILE --only original --only grouped --only predicted --jobs 6
    python -m tools.bench.decoding WORK --json FILE --only torch

A row is a batch, the positions in the cache, and how the matrices are stored (floats, or the two kinds of four bits: ``packed``,
``blocks``). What is run of each (``--only``):

- ``original``: the file (`tools.zoo.decoders`, with ``--dynamic`` that of any sizes) in onnxruntime;
- ``grouped``: the same step with onnxruntime's GroupQueryAttention;
- ``predicted``: what onnx-superopt makes of the file by the model of an H200, without measuring: ``--jobs`` rows at a time;
- ``ours``: what it makes from an empty cache on the GPU that is here;
- ``torch``: torch with a cache that it writes in place, under torch.compile(max-autotune). What it compiles is kept in WORK.
  Weights of four bits it has dequantised.

All are compared with the original in double precision on random inputs: its logits and its cache (torch's logits). What is right
is timed in turns. ``bound`` is the time for reading weights, as they are stored, and cache once. What FILE has already of a row
is left as it is, so that a run that was cut off goes on and peers need not be timed again.

``--provider cpu --small`` is a dry run of all but CUDA graphs and the GPU's kernels.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from mugraph.onnx import load
from rewriter.reference import bind_sizes, random_inputs
from rewriter.run.timings import paired
from tools.bench.decoding_steps import StepSpec
from tools.bench.gpu_models import BANDWIDTH, references_of, take_turns
from tools.bench.gpu_runners import CLOCKS, Remote, RunnerFailed, open_all
from tools.bench.models import plain, superopt
from tools.bench.peers import PeerFailed
from tools.zoo.decoders import LLAMA_STEP, STORES, Decoder, Store, cache_names, decoder_step

ROWS = ("1x1024", "4x1024", "16x1024", "1x1024 packed")
RUNNERS = ("original", "grouped", "torch", "predicted", "ours")
MADE = ("predicted", "ours")
"""What onnx-superopt makes."""
SMALL = Decoder(half=True)
_DEVICE = "h200"
_LEAST_ERROR = 1e-3
"""Relative error up to which a result is right, whatever the original's is."""


def bound_milliseconds(which: Decoder) -> float:
    """The time for reading the weights of all layers as they are stored, and the cache in half precision, once."""
    width = which.key_heads * which.size
    layer = 2 * which.hidden * which.hidden + 2 * which.hidden * width + 3 * which.hidden * which.intermediate
    cache = 2 * (which.batch or 1) * (which.past or 0) * width
    bytes_ = 2 if which.store == "floats" else 0.5 + 2 / 32
    return (bytes_ * (which.layers * layer + which.hidden * which.words) + 2 * which.layers * cache) / BANDWIDTH * 1e3


def row_name(which: Decoder) -> str:
    """How a row is called: batch and positions, and how the matrices are stored where that is not as floats."""
    return f"{which.batch}x{which.past}" + (f" {which.store}" if which.store != "floats" else "")


def parse_row(name: str, small: bool) -> Decoder:
    """The decoder of a row. Raises ValueError for a name that is none."""
    sizes, _, store = name.partition(" ")
    if (store or STORES[0]) not in STORES:
        raise ValueError(f"{name!r}: weights are stored as {', '.join(STORES)}")
    batch, past = map(int, sizes.split("x"))
    return replace(SMALL if small else LLAMA_STEP, batch=batch, past=past, store=cast(Store, store or STORES[0]))


@dataclass
class StepRow:
    """A row on its way.

    Attributes:
        which: the decoder, of the row's sizes.
        source: its file.
        feeds: files of inputs: to compare on, and to time on.
        reference: the file of the right outputs for the first feed.
        files: by runner, the file that it runs.
        made: of those that onnx-superopt made, the summary of its run.
        problems: why one has no time.
    """

    which: Decoder
    source: Path
    feeds: list[Path]
    reference: Path
    files: dict[str, Path] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of inputs that say the sizes of all."""
        which = self.which
        batch, past = which.batch or 1, which.past or 0
        return {"input_ids": (batch, 1), cache_names(1)[0][0]: (batch, which.key_heads, past, which.size)}


def prepare(which: Decoder, runners: Sequence[str], work: Path, provider: str, budget: float, *, is_dynamic: bool) -> StepRow:
    """Writes the files of a row: originals, inputs, reference, and what onnx-superopt makes without a GPU."""
    name = row_name(which).replace(" ", ".")
    written = replace(which, batch=None, past=None) if is_dynamic else which
    of_file = f"any.{which.store}" if is_dynamic else name
    source = work / f"step.{of_file}.onnx"
    feeds = [work / f"feed{seed}.{name}.npz" for seed in range(2)]
    row = StepRow(which, source, feeds, work / f"reference.{name}.npz")
    row.files |= {"original": source, "torch": source}
    _once(source, lambda path: onnx.save(decoder_step(written), path))
    if "grouped" in runners:
        row.files["grouped"] = work / f"grouped.{of_file}.onnx"
        _once(row.files["grouped"], lambda path: onnx.save(decoder_step(replace(written, spelling="grouped")), path))
    if "predicted" in runners:
        device = ["--device", _DEVICE] if provider == "cuda" else []
        make("predicted", row, work, ["--provider", provider, "--deterministic", *device], budget)
    model = load(source)
    drawn = [random_inputs(model, bind_sizes(model, row.shapes)[0], seed) for seed in range(2)]
    for path, feed in zip(feeds, drawn, strict=True):
        _once(path, lambda target, feed=feed: np.savez(target, allow_pickle=False, **feed))
    references_of(model, drawn[:1], feeds[0], row.reference)
    return row


def make(runner: str, row: StepRow, work: Path, arguments: Sequence[str], budget: float) -> None:
    """Lets onnx-superopt make the file of a runner, from an empty cache."""
    name = row_name(row.which).replace(" ", ".")
    target, cache = work / f"{runner}.{name}.onnx", work / f"cache.{runner}.{name}"
    shutil.rmtree(cache, ignore_errors=True)
    given = [text for name, shape in row.shapes.items() for text in ("--input", f"{name}={'x'.join(map(str, shape))}")]
    try:
        made = superopt([*given, *arguments, "--budget", str(budget)], cache, twice=False)(row.source, target)
    except PeerFailed as problem:
        row.problems[runner] = f"onnx-superopt fails: {problem}"
        return
    summary = (made.details or {})["summary"]
    kept = ("kernels", "seconds", "predicted_before", "predicted_after", "message", "notes", "dropped", "tried")
    row.files[runner], row.made[runner] = target, {"wall": made.seconds, **{key: summary.get(key) for key in kept}}


def _once(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file unless it is there; one that is cut off is not taken for whole."""
    if not path.exists():
        part = path.with_suffix(f".part{path.suffix}")
        write(part)
        part.replace(path)


def measure(row: StepRow, runners: Sequence[str], provider: str, clock: str, rounds: int, compiled: Path) -> dict[str, Any]:
    """Compares and times a row."""
    specs = {
        name: StepSpec(row.which, row.files[name], row.feeds[0], provider, clock, compiled if name == "torch" else None)
        for name in runners
        if name in row.files
    }
    problems = dict(row.problems)
    with ExitStack() as stack:
        opened = open_all(specs, 200, len(specs))
        for remote in opened.values():
            if isinstance(remote, Remote):
                stack.callback(remote.close)
        problems |= {name: str(problem) for name, problem in opened.items() if isinstance(problem, RunnerFailed)}
        remotes = {name: remote for name, remote in opened.items() if isinstance(remote, Remote)}
        errors = dict[str, list[float]]()
        for name, remote in remotes.items():
            try:
                errors[name] = remote.ask("errors", row.reference)
            except RunnerFailed as problem:
                problems[name] = str(problem)
        for name in errors:
            limits = [max(1.5 * error, _LEAST_ERROR) for error in errors.get("original", [_LEAST_ERROR] * len(errors[name]))]
            if not all(error <= limit for error, limit in zip(errors[name], limits, strict=False)):
                problems[name] = f"wrong: relative errors of its outputs {', '.join(f'{error:.1e}' for error in errors[name])}"
        right = {name: remotes[name] for name in errors if name not in problems}
        times, failed = take_turns(right, row.feeds[1:], rounds, 100.0)
    problems |= failed
    return {
        "row": row_name(row.which),
        "bound_ms": bound_milliseconds(row.which),
        "ms": {name: float(np.median(samples)) for name, samples in times.items()},
        "pairs": {
            f"{one} / {other}": paired(times[other], times[one])
            for one in MADE
            for other in times
            if one in times and one != other
        },
        "errors": {name: max(of_outputs) for name, of_outputs in errors.items()},
        "problems": problems,
        "notes": {name: remote.note for name, remote in remotes.items() if remote.note},
        "made": row.made,
    }


def merge(rows: list[dict[str, Any]], new: Mapping[str, Any]) -> dict[str, Any]:
    """Enters what was measured of a row beside what is there of it; returns the row."""
    for row in rows:
        if row["row"] == new["row"]:
            for key, value in new.items():
                row[key] = {**row[key], **value} if isinstance(value, Mapping) else value
            return row
    rows.append(dict(new))
    return rows[-1]


def missing(rows: Sequence[Mapping[str, Any]], name: str, runners: Sequence[str]) -> list[str]:
    """The runners that a row has neither times nor problems of; if there are any the original, which they are judged by, too."""
    done = {runner for row in rows if row["row"] == name for part in ("ms", "problems") for runner in row[part]}
    left = [runner for runner in runners if runner not in done]
    return [runner for runner in runners if runner == "original" or runner in left] if left else []


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as a table: milliseconds of a step, and the share of the bandwidth that is reached."""
    table = Table(title="a step of decoding, ms (share of the bandwidth)")
    for column in ("batch x past", "bound", *RUNNERS, "torch / ours", "grouped / ours", "largest errors"):
        table.add_column(column)
    for row in rows:
        times, bound = row["ms"], row["bound_ms"]
        cells = [f"{times[name]:.3f} ({bound / times[name]:.0%})" if name in times else "-" for name in RUNNERS]
        best = min((times[name] for name in MADE if name in times), default=None)
        cells += [f"{times[name] / best:.2f}" if best and name in times else "-" for name in ("torch", "grouped")]
        errors = ", ".join(f"{row['errors'][name]:.1e}" if name in row["errors"] else "-" for name in RUNNERS)
        table.add_row(row["row"], f"{bound:.3f}", *cells, errors)
    console = Console(width=190)
    console.print(table)
    for row in rows:
        for name, made in row["made"].items():
            kernels = f"kernels {made['kernels']}, predicted {made['predicted_before']} -> {made['predicted_after']}"
            console.print(f"{row['row']}: {name}: {made['wall']:.0f} s; {kernels}; {made['message']}", highlight=False)
        for kind in ("problems", "notes"):
            for name, text in row[kind].items():
                console.print(f"{row['row']}: {name}: {text}", highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("work", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Rows, kept as they come."
)
@click.option("--row", "chosen", multiple=True, help=f"BATCHxPAST [STORE]; repeatable. Default: {', '.join(ROWS)}.")
@click.option("--only", "runners", type=click.Choice(RUNNERS), multiple=True, help="What is run; repeatable. Default: all.")
@click.option("--budget", default=45.0, show_default=True, help="Seconds for onnx-superopt, a row.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Rows that are prepared at a time.")
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--clock", type=click.Choice(CLOCKS), default="events", show_default=True)
@click.option("--small", is_flag=True, help="A decoder of two small layers.")
@click.option("--dynamic", "is_dynamic", is_flag=True, help="One file for all rows.")
def main(
    work: Path,
    json_file: Path,
    chosen: tuple[str, ...],
    runners: tuple[str, ...],
    budget: float,
    rounds: int,
    jobs: int,
    provider: str,
    clock: str,
    small: bool,
    is_dynamic: bool,
) -> None:
    """Measures steps of decoding with files in WORK."""
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = json.loads(json_file.read_text()) if json_file.exists() else []
    began, wanted = time.perf_counter(), list[tuple[Decoder, list[str]]]()
    for name in chosen or ROWS:
        try:
            which = parse_row(name, small)
        except ValueError as problem:
            raise click.BadParameter(
                f"{problem}; a row is BATCHxPAST, as 4x1024, or '4x1024 packed'", param_hint="--row"
            ) from None
        if left := missing(rows, row_name(which), runners or RUNNERS):
            wanted.append((which, left))
    if is_dynamic:  # rows share their files
        jobs = 1
    with ThreadPoolExecutor(jobs) as pool:
        coming = [pool.submit(prepare, which, left, work, provider, budget, is_dynamic=is_dynamic) for which, left in wanted]
        for (which, _), one in zip(wanted, coming, strict=True):
            one.result()
            click.echo(f"{time.perf_counter() - began:5.0f} s: {row_name(which)} is prepared")
    for (_, left), one in zip(wanted, coming, strict=True):
        row = one.result()
        if "ours" in left:
            make("ours", row, work, ["--provider", provider], budget)
        measured = merge(rows, plain(measure(row, left, provider, clock, rounds, work / "compiled")))
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
        click.echo(f"{time.perf_counter() - began:5.0f} s: {measured['row']}")
        print_rows([measured])
    print_rows(rows)


if __name__ == "__main__":
    main()
