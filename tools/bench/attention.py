"""Attention under constant masks on one GPU in half precision: ours beside torch and onnxruntime (STOF's grid of cases).

    python -m tools.bench.attention prepare FOLDER --most 24        on any machine: builds and compiles the kernels of the cases
    python -m tools.bench.attention run FOLDER --json FILE          on the GPU machine: measures, compares, prints the table
    python -m tools.bench.attention run FOLDER --json FILE --only bigbird --only sliding:8x512 --seconds 300
    python -m tools.bench.attention example FOLDER --json FILE      on the GPU machine: two whole models through onnx-superopt
    python -m tools.bench.attention rows --json FILE                on the GPU machine: tiles of few rows beside larger ones
    python -m tools.bench.attention predict                         what the model of schedules says, anywhere
    python -m tools.bench.attention table FILE                      prints the table again

A case is a mask, a batch and a length, with 12 heads of 64. ``run`` compiles what was not prepared, appends a line to FILE for
each figure as soon as it is there, and goes on where an earlier run stopped; what fails leaves its reason. Ours is the fastest of
the schedules that were compiled, of the kernel whose loop goes along a list of tiles and, where the mask is a band, of the one
that knows its formula; ``in ort`` is the same as a custom node of stock onnxruntime. ``told`` is the kernel of documents that an
input numbers, or of a prefix of keys that one tells, for the same mask; it is compared with nobody's, as theirs know the mask.
All times are of the GPU, replayed from a CUDA graph whose launches rotate over copies of the inputs (onnxruntime's plain model
has one). Errors are relative (L2) against the formula in double precision on the same random inputs.

Widths are √length, as in the paper: a window of that many positions, as many global positions, and 10 % random blocks, of 64
positions here (of 16 where there are 128).

``rows`` times what docs/kernels.md says of rows and blocks: of each mask for one sequence of 128 and of 256 positions, the
schedules with tiles of fewer than 16 rows, which do without matrix units, and all others, each beside its prediction.
"""

from __future__ import annotations

import json
import lzma
import math
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model
from rich.console import Console
from rich.table import Table

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.text import kernel_from_json, kernel_to_json, schedule_to_json
from mugraph.ops.masks import mask_text
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import parse_term
from rewriter.cost.devices import get_device
from rewriter.cost.schedules import candidates, ranked
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.ranking import predict_all
from rewriter.cost.schedules.space import axis_of_few_rows
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.measure.inputs import kernel_inputs
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.measure.trials import ScheduleTrial, best_of, trials
from rewriter.kernels.triton.compile import Architecture, Compiler
from rewriter.reference import compare
from tools.bench.gpu import WRONG, Hosted, OnnxBench, copies_for, torch_microseconds
from tools.bench.gpu_runners import OnnxSpec, Remote, RunnerFailed, one_line

if TYPE_CHECKING:
    import torch

HEADS, WIDTH = 12, 64
SHAPES = ((1, 128), (1, 1024), (8, 512), (16, 2048), (16, 4096))
"""Batch and length of the paper's grid."""
_RANDOM_BLOCK, _RANDOM_SHARE, _DOCUMENTS = 64, 0.1, 8
_SECONDS = 180.0
"""Limit of one answer of a process, compilation included."""
TOLD = "told"
PEERS = ("flex", "sdpa", "ort")
"""torch's FlexAttention with a BlockMask, its SDPA with a mask, and onnxruntime with the model as it is."""


# --- masks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskCase:
    """One row of the table.

    Attributes:
        name: of the mask: one of `MASKS`, ``window`` of 64, or ``random`` and the percentage of blocks of 128 that are full.
    """

    name: str
    batch: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.name}:{self.batch}x{self.length}"

    @property
    def width(self) -> int:
        return 64 if self.name == "window" else math.isqrt(self.length)

    @property
    def random_block(self) -> int:
        """Positions of a side of BigBird's random blocks."""
        return min(_RANDOM_BLOCK, self.length // 8)

    @cached_property
    def blocks(self) -> np.ndarray:
        """Which blocks of its own size BigBird draws, or of 128 a random mask has."""
        generator = np.random.default_rng(self.length)
        size, share = (
            (self.random_block, _RANDOM_SHARE) if self.name == "bigbird" else (128, int(self.name.removeprefix("random")) / 100)
        )
        count = -(-self.length // size)
        chosen = np.zeros(count * count, bool)
        chosen[generator.permutation(count * count)[: round(share * count * count)]] = True
        drawn = chosen.reshape(count, count)
        return drawn if self.name == "bigbird" else drawn | np.eye(count, dtype=bool)

    @cached_property
    def documents(self) -> np.ndarray:
        """The document of each position: of unequal lengths."""
        generator = np.random.default_rng(self.length)
        ends = np.sort(generator.choice(np.arange(1, self.length), _DOCUMENTS - 1, replace=False))
        return np.searchsorted(ends, np.arange(self.length), side="right")

    @property
    def table(self) -> np.ndarray | None:
        """What the mask looks up: blocks or documents."""
        if self.name == "document":
            return self.documents
        return self.blocks if self.name.startswith(("bigbird", "random")) else None

    def rule(self, table: Any) -> Callable[[Any, Any], Any]:
        """Whether query i sees key j, of NumPy arrays or of torch's tensors: a function of numbers and a table, to be traced."""
        width, quarter, side = self.width, self.length // 4, self.random_block
        half = width // 2
        match self.name:
            case "sliding" | "window":
                return lambda i, j: (i - j <= half) & (j - i <= half)
            case "dilated":
                return lambda i, j: (i - j <= 2 * half) & (j - i <= 2 * half) & ((i - j) % 2 == 0)
            case "longformer":
                return lambda i, j: ((i - j <= half) & (j - i <= half)) | (i < width) | (j < width)
            case "bigbird":
                return lambda i, j: ((i - j <= half) & (j - i <= half)) | (i < width) | (j < width) | table[i // side, j // side]
            case "causal":
                return lambda i, j: j <= i
            case "prefix":
                return lambda i, j: (j <= i) | (j < quarter)
            case "document":
                return lambda i, j: table[i] == table[j]
        return lambda i, j: table[i // 128, j // 128]

    @cached_property
    def entries(self) -> np.ndarray:
        """The mask, [length, length]."""
        shown: np.ndarray = self.rule(self.table)(np.arange(self.length)[:, None], np.arange(self.length)[None, :])
        return np.broadcast_to(shown, (self.length, self.length))

    @cached_property
    def density(self) -> float:
        """The share of pairs that count."""
        return float(self.entries.mean())


MASKS = ("sliding", "dilated", "longformer", "bigbird", "causal", "prefix", "document")
"""The paper's masks, and those of language models."""
DENSITIES = ("random5", "random10", "random25", "random50", "random75", "random100")
"""At (8, 2048): time is meant to be proportional to the blocks that are not empty."""


EXAMPLES = (MaskCase("window", 8, 2048), MaskCase("bigbird", 8, 2048))
"""Whole models."""
ROW_LENGTHS = (128, 256)
"""Of the masks for which tiles of few rows are timed."""
FEW_ROWS, BLOCKS = "few rows", "blocks"


def every_case() -> list[MaskCase]:
    """The cases, the smaller ones first."""
    grid = [MaskCase(name, *shape) for shape in SHAPES for name in MASKS]
    return [*grid, *(MaskCase(name, 8, 2048) for name in DENSITIES)]


def chosen_cases(only: Sequence[str]) -> list[MaskCase]:
    """Those of names, shapes or both. Raises click.BadParameter for one that is none."""
    every = every_case()
    for word in only:
        if not any(word in (c.name, c.label, c.label.partition(":")[2]) for c in every):
            raise click.BadParameter(f"no case {word}; there are {', '.join((*MASKS, *DENSITIES))} and such as sliding:8x512")
    return [c for c in every if not only or any(word in (c.name, c.label, c.label.partition(":")[2]) for word in only)]


# --- ours ------------------------------------------------------------------------------------------------------------


def kernels_of_case(case: MaskCase) -> dict[str, Kernel]:
    """Our kernels of a case over q, k and v, each [batch, heads, length, width]: ``list``, and ``band`` where it is one."""
    size, half = case.length, case.width // 2
    masks = {"list": f"StoredMask[columns={size},entries='{mask_text(case.entries)}',rows={size}]()"}
    if case.name == "sliding":
        masks["band"] = f"BandMask[after={half},before={half},columns={size},rows={size}]()"
    if case.name == "causal":
        masks["band"] = f"CausalMask[columns={size},rows={size}]()"
    types = {name: TensorType(DataType.FLOAT16, (case.batch, HEADS, size, WIDTH)) for name in "qkv"}
    kernels = {}
    for kind, mask in masks.items():
        scores = f"Where({mask}, Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.125), -inf)"
        kernels[kind] = lower(f"attention_{kind}", types, [("y", parse_term(f"MatMul(Softmax[axis=-1]({scores}), v)"))])
    return kernels


def told_kernel(case: MaskCase) -> tuple[Kernel, dict[str, np.ndarray]] | None:
    """The kernel of a case whose mask an input of the run tells, and that input; ``None`` where it is none of that kind."""
    size, batch = case.length, case.batch
    if case.name == "document":
        told = np.ascontiguousarray(np.broadcast_to(case.documents, (batch, size)))
        mask = "Unsqueeze[axes=(-3,)](Equal(Unsqueeze[axes=(-1,)](told), Unsqueeze[axes=(-2,)](told)))"
    elif case.name == "prefix":
        told = np.ascontiguousarray(np.broadcast_to(np.arange(size) < size // 4, (batch, size)))
        mask = f"Or(Unsqueeze[axes=(-3,-2)](told), CausalMask[columns={size},rows={size}]())"
    else:
        return None
    types = {name: TensorType(DataType.FLOAT16, (batch, HEADS, size, WIDTH)) for name in "qkv"}
    types["told"] = TensorType(DataType.INT64 if told.dtype != bool else DataType.BOOL, (batch, size))
    scores = f"Where({mask}, Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.125), -inf)"
    kernel = lower("attention_told", types, [("y", parse_term(f"MatMul(Softmax[axis=-1]({scores}), v)"))])
    return kernel, {"told": told}


@dataclass(frozen=True)
class PreparedCase:
    """The kernels of a case, compiled.

    Attributes:
        kernels: by kind, as JSON, each with its trials.
        predicted: microseconds of the best schedule of any of them.
    """

    kernels: dict[str, tuple[dict[str, Any], list[ScheduleTrial]]]
    predicted: float
    problems: list[str]


def prepare_kernels(
    every: Mapping[str, Kernel], compiler: Compiler, device: str, architecture: Architecture, most: int
) -> PreparedCase:
    """Compiles kernels under the schedules worth a trial."""
    kernels, problems, predicted = {}, list[str](), math.inf
    for kind, kernel in every.items():
        worth = ranked(kernel, get_device(device), {}, most)
        compiled, failed = trials(kernel, [schedules for _, schedules in worth], compiler, architecture)
        kernels[kind] = kernel_to_json(kernel), compiled
        problems += failed
        predicted = min(predicted, worth[0][0])
    return PreparedCase(kernels, predicted, problems)


def _file(folder: Path, case: MaskCase) -> Path:
    return folder / f"{case.label.replace(':', '-')}.xz"


def plain_model(case: MaskCase) -> ModelProto:
    """The case as an ONNX model: products, scale, a boolean mask in a Where, softmax."""
    type_ = f"float16[{case.batch},{HEADS},{case.length},{WIDTH}]"
    proto = parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g ({type_} q, {type_} k, {type_} v) => ({type_} y) {{
            keys = Transpose<perm = [0,1,3,2]>(k) scores = MatMul(q, keys) scaled = Mul(scores, scale)
            masked = Where(seen, scaled, low) weights = Softmax<axis: int = -1>(masked) y = MatMul(weights, v)
        }}"""
    )
    values = {"scale": np.float16(0.125), "low": np.float16(-np.inf), "seen": np.ascontiguousarray(case.entries[None, None])}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())
    return proto


# --- torch -----------------------------------------------------------------------------------------------------------


@dataclass
class TorchAttention:
    """Torch in a process of its own: the reference of a case, and its peers."""

    note: str = ""
    _case: MaskCase | None = None
    _inputs: Sequence[torch.Tensor] = ()
    _reference: np.ndarray | None = None

    def open(self) -> TorchAttention:
        """Imports what takes long."""
        import torch._dynamo
        import torch._inductor
        import torch.nn.attention.flex_attention

        torch.set_grad_enabled(False)
        return self

    def reference(self, case: MaskCase) -> np.ndarray:
        """The output in double precision, rounded to single."""
        import torch

        if self._case != case or self._reference is None:
            self._inputs = ()
            drawn = kernel_inputs(kernels_of_case(case)["list"], {})
            self._inputs = [torch.from_numpy(drawn[name]).cuda() for name in "qkv"]
            mask, parts = torch.from_numpy(np.ascontiguousarray(case.entries)).cuda(), []
            for q, k, v in zip(*self._inputs, strict=True):  # one of the batch at a time: scores are large
                for head in range(HEADS):
                    scores = q[head].double() @ k[head].double().T * 0.125
                    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), -1)
                    parts.append((weights @ v[head].double()).float().cpu())
            self._reference = torch.stack(parts).reshape(self._inputs[0].shape).numpy()
            self._case = case
        return self._reference

    def measure(self, case: MaskCase, peer: str) -> tuple[float, float]:
        """Microseconds and error of a peer."""
        import torch

        reference = self.reference(case)
        torch._dynamo.reset()
        formula = self._flex(case) if peer == "flex" else self._sdpa(case)
        first = list(self._inputs)
        copies = [first, *([x.clone() for x in first] for _ in range(copies_for(sum(x.nbytes for x in first)) - 1))]
        microseconds, result = torch_microseconds(formula, copies, None)
        return microseconds, compare(result, reference).relative_l2

    @staticmethod
    def _sdpa(case: MaskCase) -> Callable[..., torch.Tensor]:
        import torch
        import torch.nn.functional as f

        mask = torch.from_numpy(np.ascontiguousarray(case.entries)).cuda()
        if case.name == "causal":
            return lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.125)
        return lambda q, k, v: f.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.125)

    @staticmethod
    def _flex(case: MaskCase) -> Callable[..., torch.Tensor]:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        rule = case.rule(None if case.table is None else torch.from_numpy(case.table).cuda())

        def shows(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            shown: torch.Tensor = rule(i, j)
            return shown

        mask = create_block_mask(shows, None, None, case.length, case.length, device="cuda")
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda q, k, v: compiled(q, k, v, block_mask=mask, scale=0.125)


# --- a case ----------------------------------------------------------------------------------------------------------


def file_microseconds(path: Path, case: MaskCase) -> tuple[float, np.ndarray, str]:
    """Microseconds of a model file in onnxruntime, its output, and what is to be known of the time. Raises RunnerFailed."""
    drawn = kernel_inputs(kernels_of_case(case)["list"], {})
    poison = [np.full(drawn["q"].shape, np.nan, np.float16)]
    remote = Remote(OnnxSpec(path, "cuda", drawn, poison), _SECONDS, _SECONDS)
    try:
        remote.wait()
        (result,) = remote.ask("outputs")
        once = remote.ask("milliseconds", 3)
        count = max(3, math.ceil(30 / max(once, 0.01)))
        times = [remote.ask("milliseconds", count) * 1000 for _ in range(5)]
    finally:
        remote.close()
    return min(times), result, remote.note


class CaseBench:
    """Measures the parts of cases, each in a process of its own that is started anew where it failed."""

    def __init__(self) -> None:
        self._torch: Remote | None = None
        self._timer = KernelTimer()
        self._reference: tuple[MaskCase, np.ndarray] | None = None

    def ask(self, method: str, *arguments: Any) -> Any:
        """What torch's process answers. Raises RunnerFailed."""
        if self._torch is None:
            self._torch = Remote(TorchAttention(), _SECONDS, _SECONDS)
            try:
                self._torch.wait()
            except RunnerFailed:
                self._torch = None
                raise
        try:
            return self._torch.ask(method, *arguments)
        except RunnerFailed:
            self._torch = None
            raise

    def reference(self, case: MaskCase) -> np.ndarray:
        if self._reference is None or self._reference[0] != case:
            self._reference = case, self.ask("reference", case)
        return self._reference[1]

    def ours(self, case: MaskCase, prepared: PreparedCase) -> dict[str, Any]:
        """The fastest trial of each kind of kernel, and of all."""
        found: dict[str, Any] = {"predicted": prepared.predicted, "kinds": {}, "problems": prepared.problems[:3]}
        fastest = math.inf
        for kind, (text, compiled) in prepared.kernels.items():
            results = self._timer.measure(kernel_from_json(text), compiled, {}, [self.reference(case)])
            best = best_of(results)
            assert best.microseconds is not None
            tried = [(r.microseconds, [schedule_to_json(s) for s in r.schedules]) for r in results if r.microseconds is not None]
            found["kinds"][kind] = {"us": best.microseconds, "error": best.error, "tried": sorted(tried, key=lambda t: t[0])[:8]}
            found["problems"] += [r.problem for r in results if r.problem][:3]
            if best.microseconds < fastest:
                fastest = best.microseconds
                schedules = [schedule_to_json(s) for s in best.schedules]
                found |= {"us": best.microseconds, "error": best.error, "kind": kind, "schedules": schedules}
        return found

    def told(self, case: MaskCase, compiler: Compiler, device: str, architecture: Architecture, most: int) -> dict[str, Any]:
        """The fastest trial of the kernel whose mask an input tells. Raises RunnerFailed where no input tells the mask."""
        made = told_kernel(case)
        if made is None:
            raise RunnerFailed("no input tells this mask")
        kernel, given = made
        prepared = prepare_kernels({TOLD: kernel}, compiler, device, architecture, most)
        results = self._timer.measure(kernel, prepared.kernels[TOLD][1], {}, [self.reference(case)], given)
        best = best_of(results)
        schedules = [schedule_to_json(schedule) for schedule in best.schedules]
        problems = [*prepared.problems[:3], *[r.problem for r in results if r.problem][:3]]
        return {
            "predicted": prepared.predicted,
            "us": best.microseconds,
            "error": best.error,
            "schedules": schedules,
            "problems": problems,
        }

    def hosted(self, case: MaskCase, prepared: PreparedCase, ours: dict[str, Any]) -> dict[str, Any]:
        """The fastest trial as a node of stock onnxruntime."""
        text, compiled = prepared.kernels[ours["kind"]]
        trial = next(t for t in compiled if [schedule_to_json(s) for s in t.schedules] == ours["schedules"])
        remote = Remote(OnnxBench(), _SECONDS, _SECONDS)
        try:
            remote.wait()
            microseconds, error = remote.ask("measure", Hosted(text, trial, self.reference(case), plain=False))
        finally:
            remote.close()
        return {"us": microseconds, "error": error}

    def plain(self, case: MaskCase) -> dict[str, Any]:
        """onnxruntime with the model as it is."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plain.onnx"
            onnx.save(plain_model(case), path)
            microseconds, result, note = file_microseconds(path, case)
        return {"us": microseconds, "error": compare(result, self.reference(case)).relative_l2, "note": note}

    def peer(self, case: MaskCase, peer: str) -> dict[str, Any]:
        if peer == "ort":
            return self.plain(case)
        microseconds, error = self.ask("measure", case, peer)
        return {"us": microseconds, "error": error}

    def close(self) -> None:
        """Ends all processes."""
        self._timer.close()
        if self._torch is not None:
            self._torch.close()


# --- rows or blocks ----------------------------------------------------------------------------------------------------


def row_cases() -> list[MaskCase]:
    """The masks for which tiles of few rows are timed."""
    return [MaskCase(name, 1, length) for length in ROW_LENGTHS for name in MASKS]


def schedules_by_rows(kernel: Kernel, device: str, most: int) -> dict[str, list[tuple[float, Schedule]]]:
    """The schedules with tiles of few rows and all others, the most promising first, each with its predicted microseconds.

    Args:
        kernel: of one block graph, over a stored mask.
        most: of each, no two of one tiling and split.
    """
    (schedules,), (block,) = candidates(kernel, get_device(device)), kernel.blocks
    axis = axis_of_few_rows(BlockFigures(kernel, block, {}))
    assert axis is not None, "masks of so few positions have tiles of few rows"
    times = predict_all(kernel, [(schedule,) for schedule in schedules], get_device(device))
    found: dict[str, dict[tuple[Any, ...], tuple[float, Schedule]]] = {FEW_ROWS: {}, BLOCKS: {}}
    for number in np.argsort(times, kind="stable"):
        schedule = schedules[number]
        found[FEW_ROWS if schedule.tile(axis) < 16 else BLOCKS].setdefault(
            (schedule.tiles, schedule.split), (float(times[number]), schedule)
        )
    return {kind: list(each.values())[:most] for kind, each in found.items()}


def rows_of_case(
    case: MaskCase, timer: KernelTimer, compiler: Compiler, device: str, architecture: Architecture, most: int
) -> dict[str, Any]:
    """By kind the best time, the prediction for it, the best prediction, and all that was tried."""
    kernel = kernels_of_case(case)["list"]
    result: dict[str, Any] = {}
    for kind, worth in schedules_by_rows(kernel, device, most).items():
        compiled, problems = trials(kernel, [(schedule,) for _, schedule in worth], compiler, architecture)
        predicted = {schedule: time_us for time_us, schedule in worth}
        measured = timer.measure(kernel, compiled, {})
        best = best_of(measured)
        tried = [
            {"us": r.microseconds, "predicted": predicted[r.schedules[0]], "schedule": schedule_to_json(r.schedules[0])}
            for r in measured
            if r.microseconds is not None
        ]
        result[kind] = {
            "us": best.microseconds,
            "error": best.error,
            "predicted of it": predicted[best.schedules[0]],
            "predicted": worth[0][0],
            "tried": sorted(tried, key=lambda each: float(each["us"])),
            "problems": [*problems, *(r.problem for r in measured if r.problem)][:3],
        }
    return result


def equation_1(case: MaskCase) -> tuple[float, float]:
    """Both sides of the inequality by which STOF takes its kernel by rows (section 4.2.3): it does where the first is less."""
    count = -(-case.length // 16)
    tiles = np.zeros((count * 16, count * 16), bool)
    tiles[: case.length, : case.length] = case.entries
    shown = tiles.reshape(count, 16, count, 16).any(axis=(1, 3)).sum()
    return float(shown) / count**2, 1.2 / math.log2(count) ** 2


def show_rows(found: dict[str, dict[str, dict[str, Any]]], console: Console) -> None:
    """Prints what was measured of rows and blocks, beside what was predicted."""
    table = Table(title="one sequence, 12 heads of 64 in half precision: microseconds of tiles of few rows and of blocks")
    for column in (
        "case",
        "density",
        "equation 1",
        "rows",
        "predicted",
        "of it",
        "blocks",
        "predicted",
        "of it",
        "gain",
        "predicted",
    ):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in row_cases():
        entry = found.get(case.label, {}).get("rows", {})
        if FEW_ROWS not in entry:
            continue
        kinds = [entry[FEW_ROWS], entry[BLOCKS]]
        left, right = equation_1(case)
        times = [number for kind in kinds for number in (kind["us"], kind["predicted"], kind["predicted of it"])]
        gains = [kinds[1][key] / kinds[0][key] for key in ("us", "predicted")]
        table.add_row(
            case.label,
            f"{case.density:.3f}",
            f"{left:.3f} {'<' if left < right else '>'} {right:.3f}",
            *(_number(number, 2) for number in (*times, *gains)),
        )
    console.print(table)


# --- the table -------------------------------------------------------------------------------------------------------


def read_lines(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """By case and part what was found last; a line that was cut short is left out."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
            found.setdefault(entry["case"], {})[entry["part"]] = entry
        except (ValueError, KeyError):
            continue
    return found


def _geomean(numbers: Iterable[float]) -> float:
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def show(found: dict[str, dict[str, dict[str, Any]]], console: Console) -> None:
    """Prints the table, the means, and all problems."""
    table = Table(title="attention under a mask, 12 heads of 64 in half precision: microseconds on the GPU")
    for column in (
        "case",
        "density",
        "predicted",
        "ours",
        "kind",
        "in ort",
        TOLD,
        *PEERS,
        "best torch / ours",
        "flex / ours",
        "error",
    ):
        table.add_column(column, justify="left" if column in ("case", "kind") else "right")
    over_best, over_flex = list[float](), list[float]()
    for case in every_case():
        parts = found.get(case.label)
        if parts is None:
            continue
        us = {name: part["us"] for name, part in parts.items() if "us" in part}
        torch_times = [us[name] for name in ("flex", "sdpa") if name in us]
        best = min(torch_times, default=math.nan) / us.get("ours", math.nan)
        flex = us.get("flex", math.nan) / us.get("ours", math.nan)
        if len(torch_times) == 2 and case.name in MASKS and not math.isnan(best):
            over_best.append(best)
            over_flex += [flex] if case.name in MASKS[:4] else []
        ours = parts.get("ours", {})
        table.add_row(
            case.label,
            f"{case.density:.3f}",
            _number(ours.get("predicted")),
            _number(us.get("ours")),
            ours.get("kind", ""),
            _number(us.get("in ort")),
            _number(us.get(TOLD)),
            *(_number(us.get(peer)) for peer in PEERS),
            _number(best, 2),
            _number(flex, 2),
            f"{ours['error']:.1e}" if "error" in ours else "",
        )
    console.print(table)
    console.print(
        f"geometric means: {_geomean(over_best):.2f} over the better of SDPA and FlexAttention ({len(over_best)} cases, least "
        f"{min(over_best, default=math.nan):.2f}); {_geomean(over_flex):.2f} over FlexAttention on {', '.join(MASKS[:4])}"
    )
    for label, parts in found.items():
        for name, part in parts.items():
            for problem in [part["problem"]] if "problem" in part else part.get("problems", []):
                console.print(f"{label} {name}: {problem}", markup=False)


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


# --- the command -----------------------------------------------------------------------------------------------------


@click.group(help=__doc__.split("\n")[0])
def main() -> None:
    pass


_ONLY = click.option("--only", multiple=True, metavar="MASK[:SHAPE]|SHAPE", help="Only these cases.")
_MOST = click.option("--most", default=24, show_default=True, help="Schedules of each kernel.")
_DEVICE = click.option("--device", default="h200", show_default=True)
_ARCHITECTURE = click.option("--architecture", default=90, show_default=True)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@_ONLY
@_MOST
@_DEVICE
@_ARCHITECTURE
@click.option("--workers", type=int, help="Processes; one a core unless given.")
def prepare(folder: Path, only: Sequence[str], most: int, device: str, architecture: int, workers: int | None) -> None:
    """Builds and compiles the kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    with Compiler(workers=workers) as compiler:
        for case in chosen_cases(only):
            prepared = _prepared(folder, case, compiler, device, Architecture(architecture), most)
            counts = ", ".join(f"{len(compiled)} {kind}" for kind, (_, compiled) in prepared.kernels.items())
            print(f"{case.label}: {counts}, {len(prepared.problems)} not compiled, {prepared.predicted:.1f} µs", flush=True)
            for problem in prepared.problems[:2]:
                print(f"  {problem}")


def _prepared(
    folder: Path, case: MaskCase, compiler: Compiler, device: str, architecture: Architecture, most: int
) -> PreparedCase:
    """What a folder has of a case, else what is compiled now and put there."""
    path = _file(folder, case)
    if path.exists():
        return PreparedCase(**pickle.loads(lzma.decompress(path.read_bytes())))
    prepared = prepare_kernels(kernels_of_case(case), compiler, device, architecture, most)
    path.write_bytes(lzma.compress(pickle.dumps(vars(prepared)), preset=1))
    return prepared


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where lines are appended.")
@_ONLY
@_MOST
@_DEVICE
@_ARCHITECTURE
@click.option("--part", "parts", multiple=True, type=click.Choice(["ours", "in ort", TOLD, *PEERS]), help="All unless given.")
@click.option("--seconds", default=480.0, show_default=True, help="Nothing is begun after so long.")
def run(
    folder: Path,
    path: Path,
    only: Sequence[str],
    most: int,
    device: str,
    architecture: int,
    parts: Sequence[str],
    seconds: float,
) -> None:
    """Measures ours and the peers; goes on where an earlier run stopped."""
    deadline, found, bench = time.monotonic() + seconds, read_lines(path), CaseBench()
    folder.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Compiler() as compiler:
        for case in chosen_cases(only):
            row = found.setdefault(case.label, {})
            for part in parts or ("ours", "flex", "sdpa", "in ort", "ort", *([TOLD] if told_kernel(case) else [])):
                if "us" in row.get(part, {}) or time.monotonic() > deadline:
                    continue
                began = time.perf_counter()
                try:
                    prepared = None
                    if part in ("ours", "in ort"):
                        prepared = _prepared(folder, case, compiler, device, Architecture(architecture), most)
                    if part == "ours" and prepared is not None:
                        entry = bench.ours(case, prepared)
                    elif part == "in ort" and prepared is not None:
                        if "us" not in row.get("ours", {}):
                            raise RunnerFailed("no kernel was measured that could run there")
                        entry = bench.hosted(case, prepared, row["ours"])
                    elif part == TOLD:
                        entry = bench.told(case, compiler, device, Architecture(architecture), most)
                    else:
                        entry = bench.peer(case, part)
                    if not entry["error"] < WRONG:
                        entry["problem"] = f"wrong: relative error {entry['error']:.1e}, {entry.pop('us'):.1f} µs"
                except Exception as problem:  # the other parts go on
                    entry = {"problem": one_line(problem)}
                entry = {"case": case.label, "part": part, "seconds": time.perf_counter() - began, **entry}
                row[part] = entry
                with path.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                print(case.label, part, _number(entry.get("us"), 2) or entry.get("problem", ""), flush=True)
            if not row:
                del found[case.label]
    bench.close()
    show(found, Console(width=200))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where lines are appended.")
@click.option("--seconds", default=240.0, show_default=True, help="Limit of onnx-superopt for each.")
@click.option("--superopt", "options", default="--budget 60", show_default=True, help="Arguments of onnx-superopt.")
def example(folder: Path, path: Path, seconds: float, options: str) -> None:
    """Optimises two whole models and measures them before and after."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in EXAMPLES:
        before, after = (folder / f"{case.name}{end}.onnx" for end in ("", ".superopt"))
        onnx.save(plain_model(case), before)
        command = [sys.executable, "-m", "rewriter.cli", str(before), "--output", str(after), *options.split()]
        entry: dict[str, Any] = {"case": case.label, "part": "whole"}
        try:
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
            entry["seconds"], entry["said"] = time.perf_counter() - began, (done.stdout + done.stderr)[-1500:]
            if done.returncode:
                raise RunnerFailed(f"onnx-superopt: exit code {done.returncode}")
            entry["ort"], plain, entry["ort note"] = file_microseconds(before, case)
            entry["us"], result, entry["note"] = file_microseconds(after, case)
            entry["error"] = compare(result, plain.astype(np.float64)).relative_l2
        except Exception as problem:  # the other goes on
            entry["problem"] = one_line(problem)
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print({name: value for name, value in entry.items() if name != "said"}, entry.get("said", ""), sep="\n", flush=True)


@main.command()
@_ONLY
@_DEVICE
@click.option("--batch", type=int, help="Instead of that of each case.")
def predict(only: Sequence[str], device: str, batch: int | None) -> None:
    """Prints what the model of schedules expects of each kernel."""
    for case in chosen_cases(only):
        case = replace(case, batch=batch) if batch is not None else case
        for kind, kernel in kernels_of_case(case).items():
            ((time_us, schedules),) = ranked(kernel, get_device(device), {}, most=1)
            tiles = ", ".join(f"{axis}={tile}" for axis, tile in schedules[0].tiles if tile > 1)
            print(f"{case.label:22} {case.density:6.3f} {kind:5} {time_us:8.1f} µs  {tiles}")


@main.command()
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where lines are appended.")
@click.option("--most", default=12, show_default=True, help="Schedules of each kind.")
@_DEVICE
@_ARCHITECTURE
@click.option("--seconds", default=240.0, show_default=True, help="Nothing is begun after so long.")
def rows(path: Path, most: int, device: str, architecture: int, seconds: float) -> None:
    """Compiles and measures tiles of few rows beside larger ones."""
    deadline, found, timer = time.monotonic() + seconds, read_lines(path), KernelTimer()
    path.parent.mkdir(parents=True, exist_ok=True)
    with Compiler() as compiler:
        for case in row_cases():
            if FEW_ROWS in found.get(case.label, {}).get("rows", {}) or time.monotonic() > deadline:
                continue
            entry: dict[str, Any] = {"case": case.label, "part": "rows"}
            try:
                entry |= rows_of_case(case, timer, compiler, device, Architecture(architecture), most)
            except Exception as problem:  # the other cases go on
                entry["problem"] = one_line(problem)
            found.setdefault(case.label, {})["rows"] = entry
            with path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(case.label, *(_number(entry.get(kind, {}).get("us"), 2) for kind in (FEW_ROWS, BLOCKS)), flush=True)
    timer.close()
    show_rows(found, Console(width=200))


@main.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def table(path: Path) -> None:
    """Prints the tables of lines that were kept."""
    found, console = read_lines(path), Console(width=200)
    show(found, console)
    if any("rows" in parts for parts in found.values()):
        show_rows(found, console)


if __name__ == "__main__":
    main()
