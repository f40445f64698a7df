"""Products with stored weights as sessions run them, on several threads: kernels in C beside onnxruntime's nodes.

    python -m tools.bench.cpu_threads                                    on 1, 2, 4, ... threads, as many as there are cores
    python -m tools.bench.cpu_threads --shape 128x768x3072 --threads 1 --threads 4 --seconds 2

A model holds copies of one product, each with operands and weights of its own (docs/measuring.md). Ours are the kernels that a
run tries first, with numbers as they are (``floats``) and, on a processor with tiles of AMX, in three or two parts (``six`` and
``three`` products). What is compared takes turns; a time is the least of all rounds, of the fastest schedule, in microseconds of
the clock. Behind it is how many times as fast that is as on one thread, and as onnxruntime on as many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import click
import onnx
from rich.console import Console
from rich.table import Table

from mugraph.blocks.operator import KERNEL, CompiledKernel, kernel_attrs
from mugraph.blocks.variants import Variants
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import parse_term
from rewriter.cost.cpu import copies_of, empty_microseconds, timer_of_copies
from rewriter.cost.schedules.cpu import cpu_schedules
from rewriter.cost.signature import Signature, node_model
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.objects import ObjectCompiler, levels_here
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.programs import Scheduled, compile_on_cpu
from rewriter.runtime_env import cores, limit_threads

__all__: list[str] = []

_SHAPES = ("32x768x768", "128x768x768", "128x768x3072", "128x3072x768", "512x768x768")
ModelOf = Callable[[int], onnx.ModelProto]
_PARTS = {"floats": 1, "six": 3, "three": 2}
_TRIALS = 4
_OPSET, _THEIRS = 20, "onnxruntime"


def _models(m: int, k: int, n: int) -> Iterator[tuple[str, ModelOf, int]]:
    """Of one shape, by whose it is: models of so many products, and how many run in turn."""
    types = (TensorType(DataType.FLOAT, (m, k)), TensorType(DataType.FLOAT, (k, n)))
    theirs = Signature("MatMul", (), types, (False, True))
    copies = copies_of(theirs)
    yield _THEIRS, partial(_of, theirs, None), copies
    kernel = lower("product", dict(zip("xw", types, strict=True)), [("y", parse_term("MatMul(x, w)"))])
    ours = Signature(KERNEL, kernel_attrs(kernel), types, (False, True))
    objects, here = ObjectCompiler(), levels_here()
    for name, parts in _PARTS.items():
        if parts > 1 and LEVELS["x86-64-amx"] not in here:
            continue
        for schedules in cpu_schedules(kernel, {}, _TRIALS, in_parts=parts > 1):
            tried = Scheduled.one(kernel, *schedules).asking_ahead("w").in_parts(parts)
            programs, problems = compile_on_cpu([tried], objects, here[:1])
            if problems:
                raise click.ClickException(problems[kernel])
            made = programs[kernel]
            compiled = CompiledKernel(Variants.one(tried.variants.schedules[0]), made.attributes, made.tables, on_cpu=True)
            yield name, partial(_of, ours, compiled), copies


def _of(signature: Signature, compiled: CompiledKernel | None, copies: int) -> onnx.ModelProto:
    model = node_model(signature, _OPSET, copies, compiled)
    assert model is not None
    return model


def _times(models: Sequence[tuple[str, ModelOf, int]], threads: int, seconds: float) -> dict[str, float]:
    """Microseconds of a product on so many threads, by whose it is."""
    limit_threads(threads)
    empty, end = empty_microseconds(), time.perf_counter() + seconds
    times: dict[str, float] = {}
    while not times or time.perf_counter() < end:
        for name, model_of, copies in models:
            times[name] = min(times.get(name, float("inf")), timer_of_copies(model_of, copies, empty)())
    return times


@click.command(help=__doc__)
@click.option("--shape", "shapes", multiple=True, default=_SHAPES, help="M×K×N, as 128x768x768.")
@click.option("--threads", "several", multiple=True, type=int, help="Threads of a session; repeatable.")
@click.option("--seconds", default=3.0, show_default=True, help="For the rounds of a shape on so many threads.")
def main(shapes: Sequence[str], several: Sequence[int], seconds: float) -> None:
    """Prints the table."""
    counts = sorted(several) or [2**i for i in range(cores().bit_length())]
    table, console = Table("M×K×N", "threads", _THEIRS, *_PARTS, title=levels_here()[0].name), Console(width=130)
    for shape in shapes:
        m, k, n = map(int, shape.split("x"))
        models, first = list(_models(m, k, n)), dict[str, float]()
        for threads in counts:
            times = _times(models, threads, seconds)
            first = first or times
            cells = {name: f"{us:.0f} ({first[name] / us:.2f}×; {times[_THEIRS] / us:.2f}×)" for name, us in times.items()}
            table.add_row(f"{m}×{k}×{n}", str(threads), *(cells.get(name, "") for name in (_THEIRS, *_PARTS)))
            print(shape, threads, cells, flush=True)
    console.print(table)


if __name__ == "__main__":
    main()
