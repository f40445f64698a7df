"""Whole models under sparse masks on one GPU in half precision: ours beside onnxruntime and torch.compile (STOF's figure 12).

    python -m tools.bench.sparse_models run WORK --json FILE                    on the GPU machine: measures and prints the table
    python -m tools.bench.sparse_models run WORK --json FILE --only bert_base --only vit:bigbird:8x512 --peers onnxruntime
    python -m tools.bench.sparse_models run WORK --json FILE --peers torch,flex         beside what an earlier run left in WORK
    python -m tools.bench.sparse_models run WORK --json FILE --together 4 --superopt "--budget 20"          more cases a minute
    python -m tools.bench.sparse_models predict WORK --json FILE                anywhere: what the model of costs says of an H200
    python -m tools.bench.sparse_models table FILE...                           prints the tables of lines that were kept

A case is a model of `tools.zoo.masked`, a mask of `tools.bench.attention` with the paper's widths, a batch and a length. Its file
is written in seconds and optimised by onnx-superopt with a budget. Peers are onnxruntime with the file as it came, and torch with
the same weights, compiled with max-autotune: ``torch`` with scaled_dot_product_attention under the mask, ``flex`` with
FlexAttention, to which the mask is a formula. All run as CUDA graphs in processes of their own and are timed in turns; ratios are
taken within a round. Errors are relative (L2) against torch in single precision on the same inputs; without torch, against
onnxruntime with the file as it came.

From 2,048 positions on the batch of a file is any, and it is optimised at a batch of 1: the float64 reference of a larger one
takes longer than all else. Its kernels choose among a few schedules by the batch of a run.

Cases are taken in the order of what ``--only`` names. Most of a case's time is torch's compiler. With ``--together`` so many
cases are optimised one after another, all that runs them is opened, so many at a time, and then they are timed one after another
with nothing else at work. torch's tuning sees its neighbours then, whose use of the GPU is short; onnx-superopt's does not.

A line is appended to FILE as soon as a part of a case is there; what fails leaves its reason, and a part that is there is not
measured again. On a machine with several GPUs several of these run at once, each under a ``CUDA_VISIBLE_DEVICES`` and with a WORK
and a FILE of its own. ``--provider cpu`` is a dry run of all but CUDA graphs and torch's compiler.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.onnx import load
from mugraph.terms.term import walk
from rewriter.reference import Error, compare
from rewriter.run.timings import paired
from tools.bench.attention.cases import MaskCase
from tools.bench.gpu_models import take_turns
from tools.bench.gpu_runners import (
    CLOCKS,
    Array,
    OnnxSpec,
    Remote,
    Runner,
    RunnerFailed,
    Spec,
    TorchRunner,
    one_line,
    open_all,
)
from tools.bench.models import OURS, geometric_speedup, plain, superopt
from tools.zoo.masked import MASKED, image_of, masked_model, masked_module, masked_weights

if TYPE_CHECKING:
    import torch

SHAPES = ((1, 128), (8, 512), (16, 2048))
MASKS = ("sliding", "bigbird")
PEERS = ("onnxruntime", "torch", "flex")
ORIGINAL = PEERS[0]
TUNED_AT_ONE = 2048
"""Positions from which on a file is optimised at a batch of 1."""
CLOSE = 1e-2
"""Relative error that a result may have beyond twice that of onnxruntime: another mask makes 0.05 and more."""


@dataclass(frozen=True)
class ModelCase:
    """A row of the table."""

    model: str
    mask: str
    batch: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.model}:{self.mask}:{self.batch}x{self.length}"

    @property
    def words(self) -> frozenset[str]:
        """What may be asked for to have this case."""
        return frozenset({self.label, *self.label.split(":"), f"{self.model}:{self.mask}"})

    @property
    def positions(self) -> MaskCase:
        return MaskCase(self.mask, self.batch, self.length)

    @property
    def shown(self) -> Array:
        """What each query sees: of a decoder nothing that comes later."""
        entries = self.positions.entries
        return np.tril(entries) if self.model == "gpt" else entries

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, 3, *image_of(self.length)) if self.model == "vit" else (self.batch, self.length)

    @property
    def input_name(self) -> str:
        return "pixel_values" if self.model == "vit" else "input_ids"

    def feed(self, seed: int) -> dict[str, Array]:
        """Random inputs."""
        generator = np.random.default_rng(seed)
        if self.model == "vit":
            return {self.input_name: generator.standard_normal(self.input_shape, np.float32).astype(np.float16)}
        return {self.input_name: generator.integers(0, 1000, self.input_shape)}

    def write(self, path: Path) -> None:
        """Writes the model."""
        onnx.save(masked_model(MASKED[self.model], self.shown, None if self.length >= TUNED_AT_ONE else self.batch), path)

    @property
    def options(self) -> list[str]:
        """What onnx-superopt is told of the sizes."""
        if self.length < TUNED_AT_ONE:
            return []
        return ["--input", f"{self.input_name}={'x'.join(map(str, (1, *self.input_shape[1:])))}"]


def every_case() -> list[ModelCase]:
    """All cases, the small ones first."""
    return [ModelCase(model, mask, *shape) for shape in SHAPES for model in MASKED for mask in MASKS]


def chosen_cases(only: Sequence[str]) -> list[ModelCase]:
    """Those of any of the words, models, masks and shapes, or labels, in the words' order. Raises click.BadParameter."""
    every = every_case()
    for word in only:
        if not any(word in case.words for case in every):
            raise click.BadParameter(
                f"no case {word}; there are {', '.join((*MASKED, *MASKS))} and such as 8x512, gpt:bigbird:8x512"
            )
    chosen = [case for case in every if not only or any(word in case.words for word in only)]
    return sorted(chosen, key=lambda case: next((n for n, word in enumerate(only) if word in case.words), 0))


def masks_of(path: Path) -> list[str]:
    """The masks of positions in the kernels of a model, in the order of its nodes: ``BandMask``, ``StoredMask``, ..."""
    found = []
    for node in load(path).graph.nodes():
        if node.op == KERNEL:
            found += [term.op for term in walk(kernel_of(node.attrs).body) if term.op.endswith("Mask")]
    return found


# --- torch -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskedTorch:
    """A case in torch, compiled; as a `tools.bench.gpu_runners.TorchSpec`.

    Attributes:
        flexes: whether attention is FlexAttention, else scaled_dot_product_attention.
    """

    case: ModelCase
    flexes: bool
    device: str = "cuda"

    def open(self) -> Runner:
        """Builds, compiles and captures it."""
        import torch

        torch.set_grad_enabled(False)
        case, which = self.case, MASKED[self.case.model]
        weights = masked_weights(which, case.length)
        module = masked_module(which, case.shown, weights, self._attend() if self.flexes else None).half()
        wide = masked_module(which, case.shown, weights).float()
        inputs = {name: torch.from_numpy(array) for name, array in case.feed(0).items()}
        return TorchRunner(module, wide, inputs, "max-autotune" if self.device == "cuda" else "eager", self.device, CLOCKS[0])

    def _attend(self) -> Callable[..., torch.Tensor]:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        positions, length = self.case.positions, self.case.length
        rule = positions.rule(None if positions.table is None else torch.from_numpy(positions.table).to(self.device))
        is_causal = self.case.model == "gpt"

        def shows(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            shown: torch.Tensor = rule(i, j)
            return shown & (j <= i) if is_causal else shown

        mask = create_block_mask(shows, None, None, length, length, device=self.device)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None) -> torch.Tensor:
            if bias is None:
                mixed: torch.Tensor = flex_attention(q, k, v, block_mask=mask, scale=scale)
                return mixed

            def biased(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
                return score + bias[h, i, j]

            mixed = flex_attention(q, k, v, score_mod=biased, block_mask=mask, scale=scale)
            return mixed

        return attend


# --- a case ----------------------------------------------------------------------------------------------------------


def optimise(case: ModelCase, work: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Writes a case's file and ours into a folder, the latter from a cache that all cases there share; what came of it."""
    source, target = files_of(case, work)
    began = time.perf_counter()
    if not source.exists():
        case.write(source)
    written = time.perf_counter() - began
    made = superopt([*arguments, *case.options], work / "cache", twice=False)(source, target)
    summary = (made.details or {})["summary"]
    return {
        "write_s": written,
        "seconds": made.seconds,
        "improved": summary["improved"],
        "predicted_us": summary["predicted_after"],
        "predicted_before_us": summary["predicted_before"],
        "masks": masks_of(target),
        "layers": MASKED[case.model].layers,
        "notes": [*summary["notes"], *summary["dropped"]][:4],
    }


def files_of(case: ModelCase, work: Path) -> tuple[Path, Path]:
    """Where the model of a case stands, and ours."""
    stem = case.label.replace(":", "-")
    return work / f"{stem}.onnx", work / f"{stem}.superopt.onnx"


def specs_of(case: ModelCase, work: Path, names: Sequence[str], provider: str) -> dict[str, Spec]:
    """How each of the runners is opened; of files those that are there."""
    specs: dict[str, Spec] = {n: MaskedTorch(case, n == "flex", device=provider) for n in ("flex", "torch") if n in names}
    poison = [np.full((case.batch, case.length, MASKED[case.model].width), np.nan, np.float16)]
    for name, path in zip((ORIGINAL, OURS), files_of(case, work), strict=True):
        if name in names and path.exists():
            specs[name] = OnnxSpec(path, provider, case.feed(0), poison)
    return specs


def measure(
    case: ModelCase,
    opened: Mapping[str, Remote | RunnerFailed],
    rounds: int,
    block: float,
    tell: Callable[..., None],
) -> None:
    """Compares what was opened for a case, times what is right in turns, and closes all.

    Args:
        opened: by name, in the order of `specs_of`: torch in single precision is the reference where there is one.
        block: milliseconds of replays that each runner gets in a round.
        tell: is called with the part of the case and what is known of it.
    """
    feeds = [case.feed(seed) for seed in range(1, 4)]
    outputs: dict[str, Array] = {}
    with ExitStack() as stack:
        runners: dict[str, Remote] = {}
        wanted: Array | None = None
        for name, remote in opened.items():
            try:
                if isinstance(remote, RunnerFailed):
                    raise remote
                stack.callback(remote.close)
                remote.ask("load", feeds[0])
                (outputs[name],) = remote.ask("outputs")
                runners[name] = remote
                if wanted is None and name in ("torch", "flex"):
                    (wanted,) = remote.ask("reference")
                tell(name, {"open_s": remote.seconds, "note": remote.note})
            except RunnerFailed as problem:
                tell(name, {"problem": one_line(problem)})
        errors = errors_of(outputs, wanted)
        for name, error in errors.items():
            if not error.within(errors.get(ORIGINAL, Error(0.0, 0.0)), CLOSE):
                tell(name, {"problem": f"wrong: relative error {error.relative_l2:.1e}"})
                del runners[name]
        times, problems = take_turns(runners, feeds[1:], rounds, block)
    for name, reason in problems.items():
        tell(name, {"problem": reason})
    ours = times.get(OURS)
    for name, series in times.items():
        ratio = {} if ours is None or name == OURS else {"beside": paired(series, ours)}
        tell(name, {"ms": float(np.median(series)), "error": errors[name].relative_l2 if name in errors else None, **ratio})


def errors_of(outputs: Mapping[str, Array], wanted: Array | None) -> dict[str, Error]:
    """Of each output against the reference; without one, of all others against onnxruntime's."""
    if wanted is None:
        wanted = outputs.get(ORIGINAL)
        outputs = {name: array for name, array in outputs.items() if name != ORIGINAL}
    return {} if wanted is None else {name: compare(array, wanted) for name, array in outputs.items()}


# --- lines and tables ------------------------------------------------------------------------------------------------


def read_lines(paths: Sequence[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """By case and part all that is known, what came later before what came earlier; a line that was cut short is left out."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                entry = json.loads(line)
                part = found.setdefault(entry["case"], {}).setdefault(entry["part"], {})
            except (ValueError, KeyError):
                continue
            if "ms" in entry or "seconds" in entry:
                part.pop("problem", None)
            part.update(entry)
    return found


def show(found: Mapping[str, Mapping[str, Mapping[str, Any]]], console: Console) -> None:
    """Prints the table, the means over cases, and all problems."""
    table = Table(title="whole models under a mask, half precision: milliseconds on the GPU, and how many times as fast ours is")
    over = [f"over {peer}" for peer in PEERS]
    for column in ("case", "density", "predicted", "ours", *PEERS, *over, "better torch", "masks", "s", "error"):
        table.add_column(column, justify="left" if column == "case" else "right", no_wrap=True)
    means: dict[str, list[float]] = {column: [] for column in (*over, "better torch")}
    for case in every_case():
        parts = found.get(case.label)
        if parts is None:
            continue
        made, ours = parts.get("optimise", {}), parts.get(OURS, {})
        ratios = {peer: parts[peer]["beside"]["ratio"] for peer in PEERS if "beside" in parts.get(peer, {})}
        if {"torch", "flex"} <= ratios.keys():
            ratios["better torch"] = max(ratios["torch"], ratios["flex"])
        for name, ratio in ratios.items():
            means[f"over {name}" if name in PEERS else name].append(ratio)
        table.add_row(
            case.label,
            f"{np.mean(case.shown):.3f}",
            _number(made.get("predicted_us"), 1e-3),
            _number(ours.get("ms")),
            *(_number(parts.get(peer, {}).get("ms")) for peer in PEERS),
            *(_number(1 / ratios[name], digits=2) if name in ratios else "" for name in (*PEERS, "better torch")),
            f"{len(made['masks'])}/{made['layers']}" if "masks" in made else "",
            _number(made.get("seconds"), digits=0),
            f"{ours['error']:.1e}" if ours.get("error") is not None else "",
        )
    console.print(table)
    for name, series in means.items():
        if series:
            words = name if name.startswith("over") else f"over the {name}"
            least = f"least {1 / max(series):.2f}, {len(series)} cases"
            console.print(f"{OURS} {words}, geometric mean: {geometric_speedup(series):.2f} ({least})")
    for label, parts in found.items():
        for name, part in parts.items():
            if part.get("problem"):
                console.print(f"{label} {name}: {part['problem']}", markup=False)


def _number(value: float | None, scale: float = 1.0, digits: int = 3) -> str:
    return "" if value is None or math.isnan(value) else f"{value * scale:.{digits}f}"


# --- the command -----------------------------------------------------------------------------------------------------


@click.group(help=__doc__.split("\n")[0])
def main() -> None:
    pass


_WORK = click.argument("work", type=click.Path(file_okay=False, path_type=Path))
_JSON = click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where lines are appended.")
_ONLY = click.option("--only", multiple=True, metavar="MODEL|MASK|SHAPE|CASE", help="Only these cases, of any of the words.")
_SECONDS = click.option("--seconds", default=540.0, show_default=True, help="Nothing is begun after so long.")


class _Lines:
    """Appends what is told to a file, and prints it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.found = path, read_lines([path])

    def tell(self, case: ModelCase, part: str, entry: Mapping[str, Any]) -> None:
        line = json.dumps(plain({"case": case.label, "part": part, **entry}))
        with self.path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)
        self.found = read_lines([self.path])

    def has(self, case: ModelCase, part: str, what: str) -> bool:
        return what in self.found.get(case.label, {}).get(part, {})


def _optimised(lines: _Lines, case: ModelCase, work: Path, arguments: Sequence[str]) -> None:
    """Optimises a case unless that is done."""
    if lines.has(case, "optimise", "seconds") and files_of(case, work)[1].exists():
        return
    try:
        lines.tell(case, "optimise", optimise(case, work, arguments))
    except Exception as problem:  # the peers go on
        lines.tell(case, "optimise", {"problem": one_line(problem)})


@main.command()
@_WORK
@_JSON
@_ONLY
@_SECONDS
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--peers", default="onnxruntime,torch,flex", show_default=True, help="Of them any, with commas; or none.")
@click.option("--superopt", "options", default="--budget 60", show_default=True, help="Arguments of onnx-superopt.")
@click.option("--rounds", default=20, show_default=True, help="Rounds of timing.")
@click.option("--block", default=20.0, show_default=True, help="Milliseconds of replays that each runner gets in a round.")
@click.option("--open-seconds", default=150.0, show_default=True, help="Limit for opening a runner, compilation included.")
@click.option(
    "--together",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Cases, and runners of them, that are opened at a time.",
)
def run(
    work: Path,
    path: Path,
    only: Sequence[str],
    seconds: float,
    provider: str,
    peers: str,
    options: str,
    rounds: int,
    block: float,
    open_seconds: float,
    together: int,
) -> None:
    """Optimises and measures; goes on where an earlier run stopped."""
    asked = [name for name in peers.split(",") if name not in ("", "none")]
    if unknown := set(asked) - set(PEERS):
        raise click.BadParameter(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    work.mkdir(parents=True, exist_ok=True)
    began, lines = time.monotonic(), _Lines(path)

    def missing(case: ModelCase) -> list[str]:
        peers_left = [name for name in asked if not lines.has(case, name, "ms")]
        return [*peers_left, OURS] if peers_left or not lines.has(case, OURS, "ms") else []

    left = [case for case in chosen_cases(only) if missing(case)]
    for cases in (left[n : n + together] for n in range(0, len(left), together)):
        for case in cases:
            if time.monotonic() - began > seconds:
                break
            _optimised(lines, case, work, ["--provider", provider, *shlex.split(options)])
        if time.monotonic() - began > seconds:
            break
        specs = {(case, name): spec for case in cases for name, spec in specs_of(case, work, missing(case), provider).items()}
        opened = open_all(specs, open_seconds, together)
        for case in cases:
            try:
                runners = {name: remote for (its, name), remote in opened.items() if its == case}
                measure(case, runners, rounds, block, partial(lines.tell, case))
            except Exception as problem:  # one case must not lose the others
                lines.tell(case, "measure", {"problem": one_line(problem)})
    show(lines.found, Console(width=220))


@main.command()
@_WORK
@_JSON
@_ONLY
@_SECONDS
@click.option("--device", default="h200", show_default=True)
def predict(work: Path, path: Path, only: Sequence[str], seconds: float, device: str) -> None:
    """Optimises by a model of a device's costs, which nothing has to be here for."""
    work.mkdir(parents=True, exist_ok=True)
    began, lines = time.monotonic(), _Lines(path)
    for case in chosen_cases(only):
        if time.monotonic() - began <= seconds:
            _optimised(lines, case, work, ["--device", device, "--deterministic"])
    show(lines.found, Console(width=220))


@main.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def table(paths: Sequence[Path]) -> None:
    """Prints the tables of lines that were kept."""
    show(read_lines(paths), Console(width=220))


if __name__ == "__main__":
    main()
