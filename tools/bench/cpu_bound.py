"""What onnxruntime spends on the operators of models on a processor, and what fusing them could gain at most.

    python -m tools.bench.cpu_bound bert.onnx gpt2.onnx              # on one thread
    python -m tools.bench.cpu_bound bert.onnx --threads 2 --runs 200

Models run as onnxruntime optimises them, under its profiler; of each node the least of its times counts, since other work only
adds. ``products`` are those of matrices; ``free`` is how many times as fast a model would be if all but these and convolutions
took no time, ``halved`` if that took half of it. ``peak`` is the former with products as fast as the best register tile
multiplies what lies in the first cache (:mod:`rewriter.kernels.c.tiles`): nothing that computes the same products is faster on
that many threads. Inputs are normal floats, and ones where they are integers; their sizes have to be numbers.
"""

from __future__ import annotations

import ctypes
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from rewriter.kernels.c.calling import opened
from rewriter.kernels.c.compile import Level, build, level_of_processor
from rewriter.kernels.c.tiles import FLOATS, TileTarget, vector_tiles

__all__ = ["Spent", "fastest_products", "spent_by"]

_PRODUCTS, _CONVOLUTIONS = frozenset({"MatMul", "FusedMatMul", "Gemm"}), frozenset({"Conv", "FusedConv", "NhwcConv"})

_ONES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run of a model takes in microseconds.

    Attributes:
        products, convolutions: of matrices, and over images.
        others: by operator as onnxruntime runs it.
        operations: floating-point operations of the products of matrices.
    """

    products: float
    convolutions: float
    others: Mapping[str, float]
    operations: float

    @property
    def total(self) -> float:
        return self.products + self.convolutions + sum(self.others.values())

    def gain(self, share: float, gigaflops: float = 0.0) -> float:
        """How many times as fast the model would be.

        Args:
            share: of the time of all that is neither product nor convolution that would be left.
            gigaflops: of products of matrices, where those are slower.
        """
        products = min(self.products, self.operations / gigaflops / 1e3) if gigaflops else self.products
        return self.total / (products + self.convolutions + share * sum(self.others.values()))


def spent_by(model: Path, threads: int, runs: int) -> Spent:
    """Profiles a model. Raises ClickException where an input has no size."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        feed = {value.name: _value(model, value) for value in session.get_inputs()}
        for _ in range(runs):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times, kinds = defaultdict[str, list[float]](list), dict[str, tuple[str, int]]()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times[event["args"]["node_index"]].append(event["dur"])
            kinds[event["args"]["node_index"]] = event["args"]["op_name"], _operations(event["args"])
    spent = defaultdict[str, float](float)
    for node, (op, _) in kinds.items():
        spent[op] += min(times[node])
    products, convolutions = (sum(spent.pop(op, 0.0) for op in ops) for ops in (_PRODUCTS, _CONVOLUTIONS))
    return Spent(products, convolutions, spent, sum(operations for _, operations in kinds.values()))


def _value(model: Path, value: onnxruntime.NodeArg) -> np.ndarray:
    if not all(isinstance(size, int) for size in value.shape):
        raise click.ClickException(f"{model}: input {value.name} has no size but {value.shape}; write numbers into the model")
    if value.type == "tensor(float)":
        normal: np.ndarray = np.random.default_rng(0).standard_normal(value.shape, np.float32)
        return normal
    if value.type not in _ONES:
        raise click.ClickException(f"{model}: input {value.name} is a {value.type}, none of tensor(float) and {', '.join(_ONES)}")
    return np.ones(value.shape, _ONES[value.type])


def _operations(about: Mapping[str, Any]) -> int:
    """Of a product of matrices: its weights are not told once they are packed."""
    if about["op_name"] not in _PRODUCTS:
        return 0
    left, result = (next(iter(about[f"{side}_type_shape"][0].values())) for side in ("input", "output"))
    operations: int = 2 * math.prod(left) * result[-1]
    return operations


def fastest_products(level: Level) -> float:
    """Operations a nanosecond of the largest register tile on one thread, with operands in the first cache."""
    target = TileTarget.of(level)
    text = f"""#include <stdint.h>
{vector_tiles(FLOATS, target)}
#define ALIGNED __attribute__((aligned(64)))
static float left[{target.rows * FLOATS.stride}] ALIGNED, right[{FLOATS.slab * target.columns}] ALIGNED;
static float sums[{target.rows * target.columns}] ALIGNED;
void multiply(int64_t times) {{
    while (times--) floats_{target.rows}(left, right, sums, {target.columns}, {FLOATS.slab}, 1, right);
}}
"""
    library, times, least = opened(build(text, level, "the fastest product")), 2000, math.inf
    for _ in range(30):
        started = time.thread_time()
        library.multiply(ctypes.c_int64(times))
        least = min(least, time.thread_time() - started)
    return 2.0 * target.rows * target.columns * FLOATS.slab * times / least / 1e9


@click.command(help=__doc__)
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--threads", default=1, show_default=True, help="Of a session.")
@click.option("--runs", default=60, show_default=True, help="Of each model.")
def main(models: Sequence[Path], threads: int, runs: int) -> None:
    """Prints the table."""
    level = level_of_processor()
    if level is None:
        raise click.ClickException("this processor does not have the instructions of any level")
    peak = fastest_products(level)
    table = Table(f"{threads} threads", "ms", "products", "GFLOP/s", "free", "halved", "peak", "most of the rest")
    for model in models:
        spent = spent_by(model, threads, runs)
        rest = sorted(((us, op) for op, us in spent.others.items()), reverse=True)[:5]
        gigaflops = f"{spent.operations / spent.products / 1e3:.1f}" if spent.products else ""
        table.add_row(
            *(model.stem, f"{spent.total / 1e3:.2f}", f"{spent.products / spent.total:.1%}", gigaflops),
            *(f"{spent.gain(0.0):.3f}", f"{spent.gain(0.5):.3f}", f"{spent.gain(0.0, peak * threads):.3f}"),
            ", ".join(f"{op} {us / spent.total:.1%}" for us, op in rest),
        )
    console = Console(width=180)
    console.print(table)
    console.print(f"peak: {peak:.1f} GFLOP/s a thread")


if __name__ == "__main__":
    main()
