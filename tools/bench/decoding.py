"""Decoding with a key/value cache on one GPU: a step of a decoder in half precision, in CUDA graphs, in one run.

    python -m tools.bench.decoding WORK --json FILE
    python -m tools.bench.decoding WORK --json FILE --row 4x8192 --row "1x1024 packed" --only original --only ours --budget 60
    python -m tools.bench.decoding WORK --json FILE --only original --only grouped --only predicted --jobs 6
    python -m tools.bench.decoding WORK --json FILE --only torch
    python -m tools.bench.decoding WORK --json FILE --model qwen3-0.6b --row 1x2048 --row "1x2048 packed" --budget 120
    python -m tools.bench.decoding WORK --json FILE --model qwen3-0.6b --spelling static --row 1x2048
    python -m tools.bench.decoding WORK --json FILE --model qwen3-0.6b --spelling grouped --dynamic --row 1x2048 --row 1x0+512

A row is a batch, the positions in the cache, how many words of a sequence are new (one, or ``+512``: a prompt of 512 words), and
how the matrices are stored (floats, or the two kinds of four bits: ``packed``, ``blocks``). The model is four layers of Llama's
shape with a head of 1,000 words, or the whole of Llama-3.2-1B or Qwen3-0.6B with random weights; ``--layers`` takes fewer. What
is run of each (``--only``):

- ``original``: the file (`tools.zoo.decoders`, of ``--spelling``) in onnxruntime;
- ``grouped``: the same step with onnxruntime's GroupQueryAttention, over a cache of the same kind;
- ``predicted``: what onnx-superopt makes of the file by the model of an H200, without measuring: ``--jobs`` rows at a time;
- ``ours``: what it makes from an empty cache on the GPU that is here;
- ``torch``: torch with a cache that it writes in place, under torch.compile(max-autotune). What it compiles is kept in WORK.
  Weights of four bits it has dequantised.

A cache of a fixed size (``--spelling static``, say) is one buffer before and after the step, and full after it.

With ``--dynamic`` one file serves all rows of a store: batch, past and new words are of any size, and onnx-superopt makes one
file of it, at the sizes of the first row that asks for it.

All are compared with the original in double precision on random inputs: its logits and its cache (torch's logits). What is right
is timed in turns. ``bound`` is the time for reading weights, as they are stored, and cache once, or for the operations where
these take longer. What FILE has already of a row is left as it is, so that a run that was cut off goes on and peers need not be
timed again.

``--provider cpu --small`` is a dry run of all but CUDA graphs and the GPU's kernels.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mugraph.onnx import Model, load
from mugraph.terms.shape import DataType
from rewriter.reference import bind_sizes, random_inputs, reference_outputs
from rewriter.run.timings import paired
from tools.bench.decoding_steps import StepSpec
from tools.bench.gpu_models import BANDWIDTH, PEAKS, take_turns
from tools.bench.gpu_runners import CLOCKS, Feed, Remote, RunnerFailed, open_all
from tools.bench.models import plain, superopt
from tools.bench.peers import PeerFailed
from tools.zoo.decoder_files import write_step, write_weights
from tools.zoo.decoders import (
    FIXED,
    LLAMA_1B,
    LLAMA_STEP,
    QWEN3_06B,
    SPELLINGS,
    STORES,
    Decoder,
    Spelling,
    Store,
    cache_names,
)

ROWS = ("1x1024", "4x1024", "16x1024", "1x1024 packed")
RUNNERS = ("original", "grouped", "torch", "predicted", "ours")
MADE = ("predicted", "ours")
"""What onnx-superopt makes."""
MODELS = {"llama": LLAMA_STEP, "llama-3.2-1b": LLAMA_1B, "qwen3-0.6b": QWEN3_06B}
_DEVICE = "h200"
_LEAST_ERROR, _ERROR_LAYERS = 1e-3, 4
"""Relative error up to which a result is right, whatever the original's is, and of how many layers at most; that of more grows
with the square root of their number, as the sum of independent roundings does."""
_WRITING = Lock()
"""Held while weights are written, which rows that are prepared at a time share."""
_ROW = re.compile(r"(?P<batch>[1-9]\d*)x(?P<past>\d+)(\+(?P<new>[1-9]\d*))?( (?P<store>\w+))?")


@dataclass(frozen=True)
class DecodingCase:
    """What a row measures.

    Attributes:
        model: a key of :data:`MODELS`, with the number of layers where that is another.
        which: the decoder, of the row's sizes.
        is_dynamic: files are of any sizes, and one for all rows of a store.
    """

    model: str
    which: Decoder
    is_dynamic: bool = False

    @property
    def name(self) -> str:
        """How the row is called: what differs from one new word of four layers, spelled as exporters do, with floats."""
        which, words = self.which, [self.model] if self.model != "llama" else []
        words.append(f"{which.batch}x{self.cached}" + (f"+{which.new}" if which.new != 1 else ""))
        words += [part for part, usual in ((which.store, STORES[0]), (which.spelling, SPELLINGS[0])) if part != usual]
        return " ".join([*words, "dynamic"] if self.is_dynamic else words)

    @property
    def cached(self) -> int | None:
        """Positions that the cache has before a step: all of them, where its size is fixed."""
        return self.which.room if self.which.spelling in FIXED else self.which.past

    @property
    def stem(self) -> str:
        """Of files for the row's sizes."""
        return self.name.replace(" ", ".")

    @property
    def written(self) -> Decoder:
        """The decoder as its file has it."""
        return replace(self.which, batch=None, past=None, new=None) if self.is_dynamic else self.which

    @property
    def file_stem(self) -> str:
        """Of files that serve the row, and others if they are dynamic."""
        return f"{self.model}.any.{self.which.store}.{self.which.spelling}" if self.is_dynamic else self.stem


def parse_row(text: str, model: str, spelling: Spelling, *, layers: int | None, is_small: bool, is_dynamic: bool) -> DecodingCase:
    """The case of a row. Raises ValueError for a text that is none."""
    found = _ROW.fullmatch(text)
    store = found and (found["store"] or STORES[0])
    if not found or store not in STORES:
        raise ValueError(f"{text!r}: weights are stored as {', '.join(STORES)}")
    whole = small(MODELS[model]) if is_small else MODELS[model]
    sizes = {name: int(found[name] or 1) for name in ("batch", "past", "new")}
    if spelling in FIXED:
        if is_dynamic or sizes["new"] != 1 or not sizes["past"]:
            raise ValueError(f"{text!r}: spelled {spelling!r}, files are of one size, and steps of one word")
        sizes |= {"past": sizes["past"] - 1, "room": sizes["past"]}
    which = replace(whole, **sizes, store=cast(Store, store), spelling=spelling, layers=layers or whole.layers)
    return DecodingCase(model if not layers else f"{model}.{layers}", which, is_dynamic)


def small(which: Decoder) -> Decoder:
    """Two small layers of a decoder's kind."""
    head = None if which.head is None else 32
    return replace(which, layers=2, hidden=64, intermediate=96, heads=4, key_heads=2, head=head, words=100)


def bound_milliseconds(which: Decoder) -> float:
    """The time under which no step stays on one H200.

    That is for reading the weights of all layers and of the last product as they are stored, and the cache in half precision,
    once each, whether or not the last product shares its weights with the table of words, of which a step reads some rows; or
    for the multiplications and additions in half precision, where these take longer.
    """
    batch, past, new = which.batch or 1, which.past or 0, which.new or 1
    of_attention = 2 * which.hidden * (which.query_width + which.key_width)
    weights = which.layers * (of_attention + 3 * which.hidden * which.intermediate) + which.hidden * which.words
    cache = which.layers * 2 * batch * past * which.key_width
    bytes_ = (2 if which.store == "floats" else 0.5 + 2 / 32) * weights + 2 * cache
    seen = which.layers * batch * which.query_width * new * (past + (new + 1) / 2)
    operations = 2 * batch * new * weights + 4 * seen
    return max(bytes_ / BANDWIDTH, operations / PEAKS[DataType.FLOAT16]) * 1e3


@dataclass
class StepRow:
    """A row on its way.

    Attributes:
        case: what it measures.
        source: its file.
        feeds: files of inputs: to compare on, and to time on.
        reference: the file of the right outputs for the first feed.
        files: by runner, the file that it runs.
        made: of those that onnx-superopt made, the summary of its run.
        problems: why one has no time.
    """

    case: DecodingCase
    source: Path
    feeds: list[Path]
    reference: Path
    files: dict[str, Path] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of inputs that say the sizes of all."""
        which = self.case.which
        cache = (which.batch or 1, which.key_heads, self.case.cached or 0, which.size)
        return {"input_ids": (cache[0], which.new or 1), cache_names(1)[0][0]: cache}

    def inputs(self, model: Model, seed: int) -> Feed:
        """Random inputs of the row's sizes; the new word is the last that a cache of a fixed size has room for."""
        fed = random_inputs(model, bind_sizes(model, self.shapes)[0], seed)
        if "position" in fed:
            fed["position"] = np.full_like(fed["position"], self.case.which.past)
        return fed


def prepare(case: DecodingCase, runners: Sequence[str], work: Path, provider: str, budget: float) -> StepRow:
    """Writes the files of a row: originals, inputs, reference, and what onnx-superopt makes without a GPU."""
    source = work / f"step.{case.file_stem}.onnx"
    weights = work / f"weights.{case.model}.{case.which.store}.data"
    feeds = [work / f"feed{seed}.{case.stem}.npz" for seed in range(2)]
    row = StepRow(case, source, feeds, work / f"reference.{case.stem}.npz")
    row.files |= {"original": source, "torch": source}
    with _WRITING:
        write_weights(case.written, weights)
    _once(source, lambda path: write_step(case.written, path, weights))
    if "grouped" in runners:
        row.files["grouped"] = work / f"grouped.{case.file_stem}.onnx"
        grouped: Spelling = "shared" if case.which.spelling in FIXED else "grouped"
        _once(row.files["grouped"], lambda path: write_step(replace(case.written, spelling=grouped), path, weights))
    if "predicted" in runners:
        device = ["--device", _DEVICE] if provider == "cuda" else []
        make("predicted", row, work, ["--provider", provider, "--deterministic", *device], budget)
    model = load(source)
    for seed, path in enumerate(feeds):
        _once(path, lambda part, seed=seed: np.savez(part, allow_pickle=False, **row.inputs(model, seed)))
    _once(row.reference, lambda part: np.savez(part, *reference_outputs(model, [row.inputs(model, 0)])[0], allow_pickle=False))
    return row


def make(runner: str, row: StepRow, work: Path, arguments: Sequence[str], budget: float) -> None:
    """Lets onnx-superopt make the file of a runner, from an empty cache; a file for all sizes once."""
    stem = row.case.file_stem
    target, cache = work / f"{runner}.{stem}.onnx", work / f"cache.{runner}.{stem}"
    record = target.with_suffix(".made.json")
    if not row.case.is_dynamic or not record.exists():
        shutil.rmtree(cache, ignore_errors=True)
        given = [text for name, shape in row.shapes.items() for text in ("--input", f"{name}={'x'.join(map(str, shape))}")]
        try:
            made = superopt([*given, *arguments, "--budget", str(budget)], cache, twice=False)(row.source, target)
        except PeerFailed as problem:
            row.problems[runner] = f"onnx-superopt fails: {problem}"
            return
        details = made.details or {}
        kept = ("kernels", "seconds", "predicted_before", "predicted_after", "message", "notes", "dropped", "tried")
        told = {"wall": made.seconds, "peak_mb": details["peak_mb"], **{key: details["summary"].get(key) for key in kept}}
        record.write_text(json.dumps(plain(told)))
    row.files[runner], row.made[runner] = target, json.loads(record.read_text())


def _once(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file unless it is there; one that is cut off is not taken for whole."""
    if not path.exists():
        part = path.with_suffix(f".part{path.suffix}")
        write(part)
        part.replace(path)


def measure(
    row: StepRow, runners: Sequence[str], provider: str, clock: str, rounds: int, compiled: Path, patience: float = 200
) -> dict[str, Any]:
    """Compares and times a row.

    Args:
        patience: seconds that a runner may take to be opened.
    """
    specs = {
        name: StepSpec(row.case.which, row.files[name], row.feeds[0], provider, clock, compiled if name == "torch" else None)
        for name in runners
        if name in row.files
    }
    problems, least = dict(row.problems), _LEAST_ERROR * max(row.case.which.layers / _ERROR_LAYERS, 1) ** 0.5
    with ExitStack() as stack:
        opened = open_all(specs, patience, len(specs))
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
            limits = [max(1.5 * error, least) for error in errors.get("original", [least] * len(errors[name]))]
            if not all(error <= limit for error, limit in zip(errors[name], limits, strict=False)):
                problems[name] = f"wrong: relative errors of its outputs {', '.join(f'{error:.1e}' for error in errors[name])}"
        right = {name: remotes[name] for name in errors if name not in problems}
        times, failed = take_turns(right, row.feeds[1:], rounds, 100.0)
    problems |= failed
    return {
        "row": row.case.name,
        "bound_ms": bound_milliseconds(row.case.which),
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
@click.option("--model", type=click.Choice(list(MODELS)), default="llama", show_default=True)
@click.option("--layers", type=click.IntRange(1), help="So many layers of the model.")
@click.option(
    "--spelling", type=click.Choice((*SPELLINGS, *FIXED)), default=SPELLINGS[0], show_default=True, help="Of the original."
)
@click.option("--row", "chosen", multiple=True, help=f"BATCHxPAST[+NEW] [STORE]; repeatable. Default: {', '.join(ROWS)}.")
@click.option("--only", "runners", type=click.Choice(RUNNERS), multiple=True, help="What is run; repeatable. Default: all.")
@click.option("--budget", default=45.0, show_default=True, help="Seconds for onnx-superopt, a row.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--patience", default=200.0, show_default=True, help="Seconds for opening a runner, torch's compilation included.")
@click.option("--jobs", default=1, show_default=True, help="Rows that are prepared at a time.")
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--clock", type=click.Choice(CLOCKS), default="events", show_default=True)
@click.option("--small", "is_small", is_flag=True, help="Two small layers of the model's kind.")
@click.option("--dynamic", "is_dynamic", is_flag=True, help="One file for all rows of a store.")
def main(
    work: Path,
    json_file: Path,
    model: str,
    layers: int | None,
    spelling: Spelling,
    chosen: tuple[str, ...],
    runners: tuple[str, ...],
    budget: float,
    rounds: int,
    patience: float,
    jobs: int,
    provider: str,
    clock: str,
    is_small: bool,
    is_dynamic: bool,
) -> None:
    """Measures steps of decoding with files in WORK."""
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = json.loads(json_file.read_text()) if json_file.exists() else []
    began, wanted = time.perf_counter(), list[tuple[DecodingCase, list[str]]]()
    for text in chosen or ROWS:
        try:
            case = parse_row(text, model, spelling, layers=layers, is_small=is_small, is_dynamic=is_dynamic)
        except ValueError as problem:
            raise click.BadParameter(
                f"{problem}; a row is BATCHxPAST, as 4x1024, or '1x0+512 packed'", param_hint="--row"
            ) from None
        if left := missing(rows, case.name, runners or RUNNERS):
            wanted.append((case, left))
    if is_dynamic:  # rows share their files
        jobs = 1
    with ThreadPoolExecutor(jobs) as pool:
        coming = [pool.submit(prepare, case, left, work, provider, budget) for case, left in wanted]
        for (case, _), one in zip(wanted, coming, strict=True):
            one.result()
            click.echo(f"{time.perf_counter() - began:5.0f} s: {case.name} is prepared")
    for (_, left), one in zip(wanted, coming, strict=True):
        row = one.result()
        if "ours" in left:
            make("ours", row, work, ["--provider", provider], budget)
        measured = merge(rows, plain(measure(row, left, provider, clock, rounds, work / "compiled", patience)))
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
        click.echo(f"{time.perf_counter() - began:5.0f} s: {measured['row']}")
        print_rows([measured])
    print_rows(rows)


if __name__ == "__main__":
    main()
