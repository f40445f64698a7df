"""The kernels of a step of decoding by themselves, on one GPU: skinny products and attention over a cache.

    python -m tools.bench.decoding_kernels FILE --most 24
    python -m tools.bench.decoding_kernels FILE --only product_1x2048x11264 --only attention
    python -m tools.bench.decoding_kernels FILE --dry               on any machine: builds, predicts and compiles
    python -m tools.bench.schedules FILE                            the model of schedules beside what FILE has

Products are those of a Llama layer (2048 wide, 16 heads of 128, 4 of keys, 5632), of rows in half precision by weights in half
precision (``half``), of MatMulNBits (``packed``), of DequantizeLinear in blocks (``blocks``), and of eight bits by channels
(``int8``). Each kernel is compiled under the schedules that look best for the device, compared with its body in double precision,
and timed from a CUDA graph whose launches rotate over 220 MB. Lines of FILE are added as they come, and a run goes on where an
earlier one stopped. Nothing but Triton and the CUDA driver is needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import kernel_to_json, schedule_to_json
from mugraph.terms.text import parse_term, parse_type
from rewriter.cost import get_device
from rewriter.cost.schedules import ranked
from rewriter.cost.signature import bytes_of
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.measure.trials import NotMeasured, best_of, trials
from rewriter.kernels.triton.compile import Compiler
from tools.bench.gpu_models import BANDWIDTH
from tools.bench.schedules import read_timed
from tools.zoo.decoders import LLAMA_STEP

_PRODUCTS = {
    "half": ("MatMul(x, w)", {"w": "float16[{k},{n}]"}),
    "packed": ("MatMulNBits[block=32](x, w, s)", {"w": "int4[{n},{k}]", "s": "float16[{n},{blocks}]"}),
    "blocks": ("MatMul(x, DequantizeLinear[axis=-2,block=32](w, s))", {"w": "int4[{k},{n}]", "s": "float16[{blocks},{n}]"}),
    "int8": ("MatMul(x, DequantizeLinear[axis=-1](w, s))", {"w": "int8[{k},{n}]", "s": "float16[{n}]"}),
}
_ROWS, _CACHES = (1, 4, 16), ((1, 1024), (4, 1024), (16, 1024), (1, 8192), (4, 8192), (16, 8192))


def cases() -> Iterator[Kernel]:
    """The kernels, made as the rewriter makes them; those that tell most come first."""
    which = LLAMA_STEP
    width = which.hidden + 2 * which.key_heads * which.size
    for rows in _ROWS:
        for k, n in (
            (which.hidden, 2 * which.intermediate),
            (which.intermediate, which.hidden),
            (which.hidden, width),
            (which.hidden, which.hidden),
        ):
            for store, (text, weights) in _PRODUCTS.items():
                types = {"x": f"float16[{rows},{k}]", **{name: t.format(k=k, n=n, blocks=k // 32) for name, t in weights.items()}}
                yield _lowered(f"product_{rows}x{k}x{n}_{store}", types, text)
    for batch, past in _CACHES:
        yield attention(batch, past)


def attention(batch: int, past: int) -> Kernel:
    """Attention of one new position over a cache, with its keys and values beside it."""
    heads, groups, size = LLAMA_STEP.heads, LLAMA_STEP.key_heads, LLAMA_STEP.size
    types = {"q": f"float16[{batch},{heads},1,{size}]"}
    for name in "kv":
        types |= {f"{name}old": f"float16[{batch},{groups},{past},{size}]", f"{name}new": f"float16[{batch},{groups},1,{size}]"}
    k, v = (
        f"Reshape[drop=4,shape=({heads},{past + 1},{size})](Expand[shape=({batch},{groups},{heads // groups},{past + 1},{size})]("
        f"Unsqueeze[axes=(-3,)](Concat[axis=-2]({name}old, {name}new))))"
        for name in "kv"
    )
    scores = f"Mul(MatMul(q, Transpose[perm=(1,0)]({k})), {size**-0.5})"
    return _lowered(f"attention_{batch}x{past}", types, f"MatMul(Softmax[axis=-1]({scores}), {v})")


def _lowered(name: str, types: dict[str, str], text: str) -> Kernel:
    return lower(name, {key: parse_type(t) for key, t in types.items()}, [("y", parse_term(text))])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--only", multiple=True, help="Kernels whose names hold this; repeatable.")
@click.option("--most", default=24, show_default=True, help="Schedules that are tried, a kernel.")
@click.option("--device", default="h200", show_default=True)
@click.option("--workers", type=int, help="Processes that compile; default: one a core.")
@click.option("--dry", "is_dry", is_flag=True, help="Time nothing.")
def main(file: Path, only: tuple[str, ...], most: int, device: str, workers: int | None, is_dry: bool) -> None:
    """Times kernels of a step of decoding, and adds them to FILE (.jsonl)."""
    done = {one.kernel.name for one in read_timed(file)} if file.exists() else set[str]()
    architecture, console = Architecture(get_device(device).architecture), Console(soft_wrap=True, highlight=False)
    with Compiler(workers=workers) as compiler, KernelTimer() as timer:
        for kernel in cases():
            if kernel.name in done or (only and not any(part in kernel.name for part in only)):
                continue
            try:
                best = ranked(kernel, get_device(device), {}, most)
                compiled, problems = trials(kernel, [schedules for _, schedules in best], compiler, architecture)
                bound = sum(bytes_of(tensor.type) for tensor in (*kernel.inputs, *kernel.outputs)) / BANDWIDTH * 1e6
                about = f"{kernel.name}: {len(compiled)} schedules, bound {bound:.2f} us, predicted {best[0][0]:.2f}"
                if is_dry:
                    console.print(about, *problems[:1])
                    continue
                results = timer.measure(kernel, compiled, {})
                fastest = best_of(results)
            except (NotMeasured, InvalidBlock) as problem:
                console.print(f"{kernel.name}: {problem}")
                continue
            microseconds = fastest.microseconds or math.nan
            kept = [
                {"schedules": [schedule_to_json(s) for s in r.schedules], "microseconds": r.microseconds}
                for r in results
                if r.microseconds is not None
            ]
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"kernel": kernel_to_json(kernel), "sizes": {}, "times": kept}) + "\n")
            of_bound = f"{microseconds:.2f} measured ({bound / microseconds:.0%} of the bandwidth), error {fastest.error:.1e}"
            console.print(f"{about}, {of_bound}; {', '.join(map(str, fastest.schedules))}")


if __name__ == "__main__":
    main()
