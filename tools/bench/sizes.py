"""One file for many sizes: what a model loses that is tuned at one size and run at others.

    python -m tools.bench.sizes predict tests/rewriter/kernels/dynamic_kernels.jsonl
    python -m tools.bench.sizes measure bert6_dynamic.skeleton --work DIR --json FILE

``predict`` needs no GPU: it prints the regret of kernels with one schedule and with a few variants, the time that the model of
schedules gives them over that of the best schedule for the size, at sizes that are drawn at random.

``measure`` tunes a model of dynamic batch and sequence once, and at each of some sizes from a cache of its own. At every size it
times the original, the file tuned once, the same file held to the schedules of the size that it was tuned at, and the file tuned
for the size, in turns within each round, replayed from CUDA graphs. One session more runs the file tuned once at all sizes, one
after the other, and compares its outputs with the original's. Files that are in DIR are not made again, so that what was cut off
goes on.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.blocks.text import kernel_from_json, variants_from_json
from mugraph.onnx import Model, load
from mugraph.terms.shape import SymDim, evaluate_dim
from rewriter import runtime
from rewriter.cost import get_device
from rewriter.cost.schedules import SchedulePrices, points_of, ranked
from rewriter.cost.schedules import predict as predicted
from rewriter.reference import compare, random_inputs
from rewriter.run.size_grid import half_octaves
from rewriter.run.timings import paired
from rewriter.runtime.plan import CHOICE_FORMAT_VERSION
from rewriter.runtime_env import PROVIDERS, environment
from tools.bench.gpu_models import take_turns
from tools.bench.gpu_runners import CLOCKS, Array, OnnxSpec, Remote, open_all
from tools.bench.models import superopt
from tools.zoo.skeletons import fill, read_skeleton

GRID = [{"batch": batch, "sequence": length} for batch in half_octaves(1, 16) for length in half_octaves(16, 512)]
ORIGINAL, ONCE, HELD, OWN = "original", "tuned once", "one schedule", "tuned for it"
_FEEDS, _DRAWN = 4, 60


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """What a file that is tuned at one size loses at others."""


# --- predicted ------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("kernels", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", default="h200", show_default=True)
@click.option("--tuned", default="1x128", show_default=True, help="Batch and sequence length that the file is tuned at.")
@click.option("--most", default=5, show_default=True, help="Variants of a kernel.")
def predict(kernels: Path, device: str, tuned: str, most: int) -> None:
    """Prints the regrets of the kernels in KERNELS, a JSON object with a kernel and its model a line."""
    table = Table(title=f"largest and mean regret, tuned at {tuned}, predicted for {device}")
    for column in ("kernel", *(f"{count} variant{'s' * (count > 1)}" for count in range(1, most + 1)), "chosen by", "limits"):
        table.add_column(column)
    totals: dict[str, list[list[np.ndarray]]] = defaultdict(list)
    for line in map(json.loads, kernels.read_text().splitlines()):
        kernel = kernel_from_json(line["kernel"])
        prices = SchedulePrices.of(kernel, get_device(device), points_of(kernel, sizes_of(tuned), GRID))
        found = [prices.variants(count) for count in range(1, most + 1)]
        drawn = drawn_sizes()
        best = np.array([ranked(kernel, get_device(device), size, 1)[0][0] for size in drawn])
        times = [np.array([predicted(kernel, v.chosen(size), get_device(device), size) for size in drawn]) for v in found]
        totals[line["model"]].append([best, *times])
        measure, limits = (str(found[-1].measure), found[-1].limits) if found[-1].limits else ("", ())
        regrets = (_summary(time / best) for time in times)
        table.add_row(f"{line['model']}: {kernel.name}", *regrets, measure, " ".join(map(str, limits)))
    for name, rows in totals.items():
        best, *times = (sum(parts) for parts in zip(*rows, strict=True))
        table.add_row(f"{name}: one of each", *(_summary(np.asarray(time / best)) for time in times), "", "")
    Console(width=180).print(table)


def drawn_sizes() -> list[dict[str, int]]:
    """Batches up to 16 and sequence lengths of 16 to 512, the same ones each time."""
    generator = np.random.default_rng(0)
    batches, lengths = generator.integers(1, 17, _DRAWN), np.exp(generator.uniform(math.log(16), math.log(512), _DRAWN))
    return [{"batch": int(batch), "sequence": int(length)} for batch, length in zip(batches, lengths, strict=True)]


def _summary(regrets: np.ndarray) -> str:
    return f"{regrets.max():.2f} {math.exp(np.log(regrets).mean()):.3f}"


def sizes_of(text: str) -> dict[str, int]:
    """Batch and sequence length of a text like 8x128. Raises click.ClickException."""
    try:
        batch, length = map(int, text.split("x"))
    except ValueError:
        raise click.ClickException(f"{text}: write batch and sequence length as 8x128") from None
    return {"batch": batch, "sequence": length}


# --- measured -------------------------------------------------------------------------------------------------------


def bound(model: Model, text: str) -> dict[str, int]:
    """The sizes of a model's symbols: the batch on the first axis of an input, else the sequence length."""
    wanted = sizes_of(text)
    found: dict[str, int] = {}
    for type_ in model.inputs.values():
        for axis, dim in enumerate(type_.shape):
            for symbol in dim.symbols() if isinstance(dim, SymDim) else ():
                found.setdefault(symbol, wanted["batch" if axis == 0 else "sequence"])
    return found


def arguments(model: Model, text: str) -> Iterator[str]:
    """Options of onnx-superopt that say a model's sizes."""
    sizes = bound(model, text)
    for name, type_ in model.inputs.items():
        yield f"--input={name}={'x'.join(str(evaluate_dim(dim, sizes)) for dim in type_.shape)}"


def held(path: Path, sizes: Mapping[str, int], target: Path) -> Path:
    """Writes a file whose kernels run as they do at some sizes, whatever the sizes are."""
    model = onnx.load(path)
    for node in model.graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.domain != KERNEL_DOMAIN or "version" not in attributes or attributes["version"].i != CHOICE_FORMAT_VERSION:
            continue
        variants = variants_from_json(json.loads(attributes["mugraph"].s))
        number = variants.schedules.index(variants.chosen(sizes))
        count = len(variants.limits)
        at = _limits_at(attributes["plan"].ints)
        always = [i if i < number else (1 << 62) + i for i in range(count)]
        attributes["plan"].ints[at : at + count] = always
    onnx.save(model, target)
    return target


def _limits_at(plan: Sequence[int]) -> int:
    """Where the limits of a plan with variants stand."""
    at = 2
    for _ in range(plan[1]):
        rank = plan[at + 1]
        at += 2
        for _ in range(rank):
            at += 1 + plan[at]
    return at + 2 + plan[at + 1]


def made(source: Path, model: Model, text: str, target: Path, cache: Path, options: Sequence[str]) -> Path:
    """The model tuned at a size, as it is or made now."""
    if not target.exists():
        superopt([*arguments(model, text), *options], cache, twice=False)(source, target)
    return target


def errors_in_one_session(
    path: Path, original: Path, provider: str, feeds: Mapping[str, Mapping[str, Array]]
) -> dict[str, float]:
    """The largest relative error (L2) beside the original's outputs at each size, of one session that runs at all of them."""
    sessions = []
    for file in (original, path):
        options = ort.SessionOptions()
        if provider == "cuda" and file == path:
            runtime.register(options)
        sessions.append(ort.InferenceSession(str(file), options, providers=[PROVIDERS[provider]]))
    outputs = [{text: session.run(None, dict(feed)) for text, feed in feeds.items()} for session in sessions]
    return {
        text: max(compare(got, wanted.astype(np.float64)).relative_l2 for got, wanted in zip(*pair, strict=True))
        for text, pair in ((text, (outputs[1][text], outputs[0][text])) for text in feeds)
    }


@main.command()
@click.argument("source", metavar="MODEL", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--work", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where models are written and kept."
)
@click.option("--tuned", default="1x128", show_default=True, help="Batch and sequence length that the file is tuned at once.")
@click.option("--at", "texts", default="1x16,1x128,1x512,8x128,16x512", show_default=True, help="Sizes to measure at.")
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--superopt", "options", default="--budget 60", show_default=True, help="Arguments of onnx-superopt.")
@click.option("--rounds", default=20, show_default=True, help="Rounds of timing.")
@click.option("--block", default=20.0, show_default=True, help="Milliseconds of replays that each file gets in a round.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Written anew after each size.")
def measure(
    source: Path,
    work: Path,
    tuned: str,
    texts: str,
    provider: str,
    options: str,
    rounds: int,
    block: float,
    json_file: Path | None,
) -> None:
    """Times MODEL, or what a skeleton is filled to, tuned once and tuned at each size."""
    console = Console(width=180)
    work.mkdir(parents=True, exist_ok=True)
    original = work / f"{source.stem}.onnx"
    if not original.exists():
        onnx.save(fill(read_skeleton(source)) if source.suffix == ".skeleton" else onnx.load(source), original)
    model = load(original)
    extra = [f"--provider={provider}", *shlex.split(options)]
    once = made(original, model, tuned, work / f"{source.stem}.once.onnx", work / "cache-once", extra)
    alone = held(once, bound(model, tuned), work / f"{source.stem}.held.onnx")
    sizes = texts.split(",")
    feeds = {text: [random_inputs(model, bound(model, text), seed) for seed in range(_FEEDS)] for text in sizes}
    errors = errors_in_one_session(once, original, provider, {text: feeds[text][0] for text in sizes})
    table = Table(title=f"{source.stem} tuned at {tuned}: milliseconds, and over the file that is tuned for the size")
    for column in ("size", ORIGINAL, HELD, ONCE, OWN, f"{HELD} / own", f"{ONCE} / own", "low, high", "error", "remarks"):
        table.add_column(column)
    results: list[dict[str, Any]] = []
    for text in sizes:
        own = made(original, model, text, work / f"{source.stem}.{text}.onnx", work / "cache-sizes", extra)
        files = {ORIGINAL: original, HELD: alone, ONCE: once, OWN: own}
        times, problems = timed(model, files, text, feeds[text], provider, rounds, block)
        result: dict[str, Any] = {"size": text, "error": errors[text], "problems": problems}
        result["milliseconds"] = {name: float(np.median(values)) for name, values in times.items()}
        if OWN in times:
            pairs = {name: paired(times[OWN], values) for name, values in times.items() if name != OWN}
            result["over own"] = {name: [pair.ratio, pair.low, pair.high] for name, pair in pairs.items()}
        results.append(result)
        table.add_row(*_cells(result))
        if json_file is not None:
            here = environment(provider)
            json_file.write_text(json.dumps({"environment": here, "tuned": tuned, "sizes": results}, indent=2))
    console.print(table)


def _cells(result: Mapping[str, Any]) -> list[str]:
    ratios = result.get("over own", {})
    low, high = ratios.get(ONCE, [math.nan] * 3)[1:]
    return [
        result["size"],
        *(f"{result['milliseconds'].get(name, math.nan):.3f}" for name in (ORIGINAL, HELD, ONCE, OWN)),
        *(f"{ratios.get(name, [math.nan])[0]:.3f}" for name in (HELD, ONCE)),
        f"[{low:.3f}, {high:.3f}]",
        f"{result['error']:.1e}",
        "; ".join(f"{name}: {problem}" for name, problem in result["problems"].items()),
    ]


def timed(
    model: Model,
    files: Mapping[str, Path],
    text: str,
    feeds: Sequence[Mapping[str, Array]],
    provider: str,
    rounds: int,
    block: float,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Milliseconds of files at one size, by round, and what goes wrong with others or has to be known of them."""
    sizes = bound(model, text)
    types = [type_ for value in model.graph.outputs if (type_ := model.graph.type(value)) is not None]
    poison = [np.zeros([int(str(evaluate_dim(d, sizes))) for d in t.shape], t.dtype.numpy()) for t in types]
    with ExitStack() as stack:
        specs = {name: OnnxSpec(path, provider, feeds[0], poison, CLOCKS[0]) for name, path in files.items()}
        opened = open_all(specs, 120, len(specs))
        there = {name: remote for name, remote in opened.items() if isinstance(remote, Remote)}
        for remote in there.values():
            stack.callback(remote.close)
        problems = {name: str(remote) for name, remote in opened.items() if name not in there}
        problems |= {name: remote.note for name, remote in there.items() if remote.note}
        times, failed = take_turns(there, feeds, rounds, block)
    return times, {**problems, **failed}


if __name__ == "__main__":
    main()
