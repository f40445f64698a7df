"""Decoding with a key/value cache on one GPU: a step of four Llama layers in half precision, in CUDA graphs, in one run.

    python -m tools.bench.decoding WORK --json FILE
    python -m tools.bench.decoding WORK --json FILE --row 4x8192 --budget 60
    python -m tools.bench.decoding WORK --json FILE --row 1x1024 --store packed

A row is a batch and the positions in the cache. Of each a file of these sizes (`tools.zoo.decoders`), with ``--dynamic`` the file
of any, is optimised from an empty cache, and compared with the original on random inputs, against torch in single precision with
the same weights; what is right is timed in turns. Beside it stand the same step with onnxruntime's GroupQueryAttention, and torch
with a cache that it writes in place, under torch.compile(max-autotune). Weights of four bits (``--store``) torch has dequantised.
``bound`` is the time for reading weights, as they are stored, and cache once.
Rows that FILE has already are left as they are, so that a run that was cut off goes on.

``--provider cpu --small`` is a dry run of all but CUDA graphs and the GPU's kernels.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from mugraph.onnx import load
from rewriter.reference import bind_sizes, compare, random_inputs, worst
from rewriter.run.accept import paired
from tools.bench.gpu_models import BANDWIDTH, take_turns
from tools.bench.gpu_runners import CLOCKS, Array, Feed, OnnxSpec, Remote, Runner, RunnerFailed, Spec, TorchRunner, open_all
from tools.bench.models import plain, superopt
from tools.bench.peers import PeerFailed
from tools.zoo.decoders import LLAMA_STEP, STORES, Decoder, Store, cache_names, decoder_step, step_weights

if TYPE_CHECKING:
    import torch

ROWS = ("1x1024", "4x1024", "16x1024")
ORIGINAL, GROUPED, OURS, TORCH = "onnxruntime", "onnxruntime, GroupQueryAttention", "onnx-superopt", "torch max-autotune"
SMALL = Decoder(half=True)


@dataclass(frozen=True)
class StepSpec:
    """A step in torch, with a cache that it writes in place.

    Attributes:
        which: the decoder, of fixed sizes.
        path: the file that has its weights.
        provider, clock: as of an `OnnxSpec`.
    """

    which: Decoder
    path: Path
    provider: str
    clock: str

    def open(self) -> Runner:
        """Builds, compiles and captures it."""
        return _StepRunner(self)


class _StepRunner(TorchRunner):
    """A step in torch, described by a `StepSpec`."""

    def __init__(self, spec: StepSpec) -> None:
        import torch

        weights = {name: torch.from_numpy(array.copy()) for name, array in step_weights(onnx.load(spec.path)).items()}
        module, wide = (_step_module(spec.which, weights, kind) for kind in (torch.float16, torch.float32))
        words = torch.zeros((spec.which.batch or 1, 1), dtype=torch.int64)
        mode = "max-autotune" if spec.provider == "cuda" else "eager"
        self.module, self.past = module, spec.which.past or 0
        self.names = [before for before, _ in cache_names(spec.which.layers)]
        super().__init__(module, wide, {"input_ids": words}, mode, spec.provider, spec.clock)

    def load(self, feed: Feed) -> None:
        """Copies words and cache to the device."""
        import torch

        super().load({"input_ids": feed["input_ids"]})
        for module in (self.module, self.wide):
            for name, buffer in zip(self.names, module.caches(), strict=True):
                buffer[:, :, : self.past].copy_(torch.from_numpy(feed[name]))


def _step_module(which: Decoder, weights: Mapping[str, torch.Tensor], kind: torch.dtype) -> torch.nn.Module:
    """The step as a module, from words to logits."""
    import torch
    from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

    batch, past, size = which.batch or 1, which.past or 0, which.size
    angles = past * weights["frequencies"].double().flatten()
    both = torch.cat([angles, angles])

    class LlamaStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in weights.items():
                if tensor.is_floating_point() and tensor.numel() > size:
                    self.register_buffer(name, tensor.to(kind))
            for name in self.cache_buffers():
                self.register_buffer(name, torch.zeros((batch, which.key_heads, past + 1, size), dtype=kind))
            self.register_buffer("cos", both.cos().to(kind))
            self.register_buffer("sin", both.sin().to(kind))

        @staticmethod
        def cache_buffers() -> list[str]:
            return [f"{part}_cache{n}" for n in range(which.layers) for part in "kv"]

        def caches(self) -> list[torch.Tensor]:
            return [getattr(self, name) for name in self.cache_buffers()]

        def turned(self, x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * self.cos + torch.cat([-second, first], dim=-1) * self.sin

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            w = dict(self.named_buffers())
            x = w["words"][input_ids]
            for n in range(which.layers):
                y = rms_norm(x, (which.hidden,), w[f"beforew{n}"], 1e-6)
                q, k, v = ((y @ w[f"{name}w{n}"]).view(batch, 1, -1, size).transpose(1, 2) for name in ("q", "k", "v"))
                keys, values = w[f"k_cache{n}"], w[f"v_cache{n}"]
                keys[:, :, past:] = self.turned(k)
                values[:, :, past:] = v
                seen = scaled_dot_product_attention(self.turned(q), keys, values, enable_gqa=True)
                x = x + seen.transpose(1, 2).reshape(batch, 1, -1) @ w[f"ow{n}"]
                y = rms_norm(x, (which.hidden,), w[f"betweenw{n}"], 1e-6)
                x = x + (silu(y @ w[f"gatew{n}"]) * (y @ w[f"upw{n}"])) @ w[f"downw{n}"]
            return rms_norm(x, (which.hidden,), w["lastw"], 1e-6) @ w["headw"]

    return LlamaStep().eval()


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


def measure(
    which: Decoder,
    work: Path,
    provider: str,
    clock: str,
    budget: float,
    rounds: int,
    *,
    is_dynamic: bool,
    with_torch: bool,
) -> dict[str, Any]:
    """Optimises, compares and times one row."""
    written = replace(which, batch=None, past=None) if is_dynamic else which
    sized = (f".{which.store}" if which.store != "floats" else "") + ("" if is_dynamic else f".{which.batch}x{which.past}")
    source, grouped = work / f"step{sized}.onnx", work / f"grouped{sized}.onnx"
    for path, one in ((source, written), (grouped, replace(written, spelling="grouped"))):
        if not path.exists():
            onnx.save(decoder_step(one), path)
    row = row_name(which)
    target, cache = work / f"fast.{row.replace(' ', '.')}.onnx", work / f"cache.{row.replace(' ', '.')}"
    shutil.rmtree(cache, ignore_errors=True)
    batch, past = which.batch or 1, which.past or 0
    shapes = {"input_ids": (batch, 1), cache_names(1)[0][0]: (batch, which.key_heads, past, which.size)}
    given = [text for name, shape in shapes.items() for text in ("--input", f"{name}={'x'.join(map(str, shape))}")]
    note, summary = "", dict[str, Any]()
    try:
        made = superopt([*given, "--provider", provider, "--budget", str(budget)], cache, twice=False)(source, target)
        summary = (made.details or {})["summary"]
    except PeerFailed as problem:
        note = f"onnx-superopt fails: {problem}"
    model = load(source)
    sizes = bind_sizes(model, shapes)[0]
    feeds = [random_inputs(model, sizes, seed) for seed in range(4)]
    total = (batch, which.key_heads, past + 1, which.size)
    poison: list[Array] = [np.full((batch, 1, which.words), np.nan, np.float16)]
    poison += [np.full(total, np.nan, np.float16) for _ in cache_names(which.layers)]
    files = {ORIGINAL: source, GROUPED: grouped, **({OURS: target} if not note else {})}
    specs: dict[str, Spec] = {name: OnnxSpec(path, provider, feeds[-1], poison, clock) for name, path in files.items()}
    if with_torch:
        specs[TORCH] = StepSpec(which, source, provider, clock)
    with ExitStack() as stack:
        opened = open_all(specs, 200, 1)
        for remote in opened.values():
            if isinstance(remote, Remote):
                stack.callback(remote.close)
        problems = {name: str(problem) for name, problem in opened.items() if isinstance(problem, RunnerFailed)}
        runners = {name: remote for name, remote in opened.items() if isinstance(remote, Remote)}
        errors = _errors(runners, feeds[0], problems)
        if not errors.get(OURS, 0.0) <= max(1.5 * errors.get(ORIGINAL, 0.0), 1e-3):
            problems[OURS] = f"wrong: relative error {errors[OURS]:.1e}, the original's is {errors.get(ORIGINAL, 0.0):.1e}"
        right = {name: runner for name, runner in runners.items() if name not in problems}
        times, failed = take_turns(right, feeds[1:], rounds, 200.0)
    problems |= failed
    return {
        "row": row,
        "ms": {name: float(np.median(samples)) for name, samples in times.items()},
        "ours_to": {name: paired(times[name], times[OURS]) for name in times if name != OURS} if OURS in times else {},
        "bound_ms": bound_milliseconds(which),
        "errors": errors,
        "problems": problems,
        "note": note,
        "notes": {name: runner.note for name, runner in runners.items() if runner.note},
        "kernels": summary.get("kernels"),
        "seconds": summary.get("seconds"),
        "predicted": [summary.get("predicted_before"), summary.get("predicted_after")],
    }


def _errors(runners: Mapping[str, Remote], feed: Feed, problems: dict[str, str]) -> dict[str, float]:
    """Relative errors of the logits against torch in single precision; without it against the original."""
    outputs: dict[str, Array] = {}
    reference: Array | None = None
    for name, runner in runners.items():
        try:
            runner.ask("load", feed)
            outputs[name] = runner.ask("outputs")[0]
            if name == TORCH:
                (reference,) = runner.ask("reference")
        except RunnerFailed as problem:
            problems[name] = str(problem)
    if reference is None:
        reference = outputs.pop(ORIGINAL, None)
    if reference is None:
        return {}
    return {name: worst([compare(output, reference)]).relative_l2 for name, output in outputs.items()}


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as a table, milliseconds of a step."""
    table = Table(title="a step of decoding, ms")
    names = [ORIGINAL, GROUPED, TORCH, OURS]
    for column in ("batch x past", *names, "bound", "ours / torch", "of the bound", "errors"):
        table.add_column(column)
    for row in rows:
        times = [row["ms"].get(name, math.nan) for name in names]
        errors = ", ".join(f"{row['errors'][name]:.1e}" for name in names if name in row["errors"])
        shares = [times[2] / times[3], row["bound_ms"] / times[3]]
        table.add_row(
            row["row"], *(f"{time:.3f}" for time in (*times, row["bound_ms"])), f"{shares[0]:.2f}", f"{shares[1]:.0%}", errors
        )
    console = Console(width=160)
    console.print(table)
    for row in rows:
        for name, problem in row["problems"].items():
            console.print(f"{row['row']}: {name}: {problem}")
        if row["note"]:
            console.print(f"{row['row']}: {row['note']}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("work", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Rows, kept as they come."
)
@click.option("--row", "chosen", multiple=True, help=f"BATCHxPAST; repeatable. Default: {', '.join(ROWS)}.")
@click.option("--budget", default=45.0, show_default=True, help="Seconds for onnx-superopt, a row.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--provider", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--clock", type=click.Choice(CLOCKS), default="events", show_default=True)
@click.option("--small", is_flag=True, help="A decoder of two small layers.")
@click.option("--store", type=click.Choice(STORES), default="floats", show_default=True, help="How the matrices are stored.")
@click.option("--dynamic", "is_dynamic", is_flag=True, help="One file for all rows.")
@click.option("--torch/--no-torch", "with_torch", default=True, help="Time torch, and compare with it in single precision.")
def main(
    work: Path,
    json_file: Path,
    chosen: tuple[str, ...],
    budget: float,
    rounds: int,
    provider: str,
    clock: str,
    small: bool,
    store: Store,
    is_dynamic: bool,
    with_torch: bool,
) -> None:
    """Measures steps of decoding with files in WORK."""
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = json.loads(json_file.read_text()) if json_file.exists() else []
    for name in chosen or ROWS:
        batch, past = map(int, name.split("x"))
        which = replace(SMALL if small else LLAMA_STEP, batch=batch, past=past, store=store)
        if any(row["row"] == row_name(which) for row in rows):
            continue
        row = measure(which, work, provider, clock, budget, rounds, is_dynamic=is_dynamic, with_torch=with_torch)
        rows.append(plain(row))
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
        print_rows(rows[-1:])
    print_rows(rows)


if __name__ == "__main__":
    main()
