"""Products with stored weights on the CPU, one thread: ours in C beside onnxruntime's.

    python -m tools.bench.cpu_products                     the table of float32 products on this processor's instructions
    python -m tools.bench.cpu_products --shape 128x768x768 --level x86-64-v3
    python -m tools.bench.cpu_products --tiles 256x64x512  beside them, floats under tiles of so many columns, rows and steps
    python -m tools.bench.cpu_products --bytes             products of bytes, MatMulInteger with both scales
    python -m tools.bench.cpu_products --shared            apart: where the core's other thread has work, and where it has none

Ours are block graphs of one product, with numbers as they are (``floats``) and as three or two bfloat16 parts (``six`` and
``three`` products, `rewriter/kernels/c/parts.py`), each under the fastest of the schedules that a run tries first, which is
printed; only processors with tiles of AMX multiply parts. A case is several products of the same left operand with weights of
own, so that weights are in the cache as far as those of a model's layers are; onnxruntime has them as constants of one model.
What is compared takes turns, all twice in a round (``again`` is onnxruntime's second turn: what ratios say of nothing but noise).
A time is the least of many rounds over the number of products, in seconds of the thread's processor, or with ``--wall`` of the
clock, where nothing else runs and threads have no clock as fine as that; a ratio is the median of ratios within a round. Errors
are relative (L2) against float64, and are checked before anything is timed, with numbers of all magnitudes, infinities and NaN
among them.

A virtual machine does not see what the other thread of its core does, which takes more than half of what tiles of AMX can do.
``--shared`` asks the tiles before and behind every run: a load and a multiplication take 16 cycles where the core is not shared,
and 22 to 66 where it is. What they disagree on counts for neither.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import click
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import next_power
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.text import parse_term
from rewriter.cost.schedules.cpu import SECOND_CACHE, cpu_schedules
from rewriter.kernels.c import CSource, generate
from rewriter.kernels.c.calling import BoundKernel, admits_tiles, opened, prepared
from rewriter.kernels.c.compile import LEVELS, Level, build, level_of_processor
from rewriter.kernels.c.objects import ObjectCompiler
from rewriter.kernels.c.parts import MATRIX
from rewriter.kernels.fuse.lower import lower
from rewriter.runtime_env import second_cache

__all__ = ["byte_product", "plain_product"]

SHAPES = (
    "1x768x768",
    "1x768x3072",
    "4x768x768",
    "8x768x3072",
    "32x768x768",
    "128x768x768",
    "128x768x3072",
    "128x3072x768",
    "512x768x768",
)
OURS: Mapping[str, int] = {"floats": 1, "six": 3, "three": 2}
"""Parts of numbers."""
_TRIALS = 3
"""Schedules of which the fastest is taken: so many a run times."""
_WEIGHTS = 4
"""Products of a case."""
_QUICK = 9
"""Runs of each schedule."""
_LEAST = 7
"""Rounds."""
_PROBE = (
    f"""#include <stdint.h>
#include <time.h>
{MATRIX.matrix}"""
    + """
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return 1e9 * at.tv_sec + at.tv_nsec;
}
/* Nanoseconds of a load and a multiplication, the least of three times. */
double probe(void) {
    static char from[2048] __attribute__((aligned(64)));
    double least = 1e9;
    tiles_begin();
    for (int turn = 0; turn < 3; ++turn) {
        const double start = now();
        for (int i = 0; i < 300; ++i) {
            TILE_LOAD(4, from, 64);
            TILE_LOAD(5, from + 1024, 64);
            TILE_PAIRS(0, 4, 6);
            TILE_PAIRS(1, 5, 7);
        }
        const double time = (now() - start) / 600;
        least = time < least ? time : least;
    }
    tiles_end();
    return least;
}
"""
)
_ALONE, _SHARED = 1.2, 1.6
"""Times of the probe over the least of all up to and from which a core is alone, and shared."""
_ZERO = 131
_SCALES = {"zero": np.array(_ZERO, np.uint8), "scale": np.array(0.033, np.float32), "of_right": np.array(0.01, np.float32)}
"""Of products of bytes."""
_AGAIN = "again"
_SECONDS = 4.0
"""For the rounds of a case."""


def plain_product(k: int, n: int) -> Kernel:
    """A float32 product of any number of rows with weights, which nothing follows."""
    types = {name: TensorType(DataType.FLOAT, shape) for name, shape in (("left", (symbol("m"), k)), ("right", (k, n)))}
    return lower("product", types, [("y", parse_term("MatMul(left, right)"))])


def byte_product(k: int, n: int, behind: str = "{}") -> Kernel:
    """A product of any number of rows of quantised numbers with bytes, times the scales of both, and what follows it."""
    types = {"left": TensorType(DataType.UINT8, (symbol("m"), k)), "zero": TensorType(DataType.UINT8, ())}
    types |= {"right": TensorType(DataType.INT8, (k, n)), **dict.fromkeys(("scale", "of_right"), TensorType(DataType.FLOAT, ()))}
    types["bias"] = TensorType(DataType.FLOAT, (n,))
    product = "Mul(Cast[to=float](MatMulInteger[zeros=('a',)](left, right, zero)), Mul(scale, of_right))"
    return lower("product", types, [("y", parse_term(behind.format(product)))])


@dataclass(frozen=True, slots=True)
class _LoadedProduct:
    """A kernel under a schedule, compiled and loaded."""

    schedule: Schedule
    source: CSource
    library: ctypes.CDLL

    def bound(self, *inputs: np.ndarray) -> BoundKernel:
        return prepared(self.source, self.library, inputs)


def _tried(kernel: Kernel, m: int, parts: int) -> list[Schedule]:
    """The schedules that a run tries first for so many rows."""
    room = second_cache() or SECOND_CACHE
    return [one for (one,) in cpu_schedules(kernel, {"m": m}, _TRIALS, second_cache=room, in_parts=parts > 1)]


def _cut(tiles: str, m: int) -> Schedule:
    """A schedule of so many columns, rows and steps (``256x64x512``), and no more rows than so many need."""
    n, rows, k = (int(size) for size in tiles.split("x"))
    return Schedule((("n", n), ("m", min(rows, next_power(m))), ("k", k)), warps=1, stages=1)


def _built(kernel: Kernel, schedules: Sequence[Schedule], parts: int, level: Level) -> list[_LoadedProduct]:
    """A product under some schedules."""
    schedules = [replace(one, ahead=("right",), parts=parts) for one in schedules]
    sources = [generate(kernel, [schedule]) for schedule in schedules]
    built = []
    compiled = ObjectCompiler().compile([("a product", source.text) for source in sources], [level])
    for schedule, source, result in zip(schedules, sources, compiled, strict=True):
        if isinstance(result, Exception):
            raise click.ClickException(str(result))
        built.append(_LoadedProduct(schedule, source, opened(result[0])))
    return built


@dataclass(frozen=True, slots=True)
class _ProductSizes:
    m: int
    k: int
    n: int

    @staticmethod
    def parse(text: str) -> _ProductSizes:
        return _ProductSizes(*(int(size) for size in text.split("x")))

    def __str__(self) -> str:
        return f"{self.m}×{self.k}×{self.n}"


class _ProductCase:
    """Runs of one shape, by name: each computes all products once."""

    def __init__(self, shape: _ProductSizes, quantized: bool) -> None:
        random = np.random.default_rng(0)
        self.shape = shape
        self.left = random.standard_normal((shape.m, shape.k), np.float32)
        weights = [random.standard_normal((shape.k, shape.n), np.float32) for _ in range(_WEIGHTS)]
        self.weights = [np.clip(np.rint(w * 40), -127, 127).astype(np.int8) for w in weights] if quantized else weights
        self.quantized = quantized
        if quantized:
            self.left = np.clip(np.rint(self.left * 30) + _ZERO, 0, 255).astype(np.uint8)
        self.runs: dict[str, Callable[[], None]] = {}
        self.results: dict[str, list[np.ndarray]] = {}

    def add_onnxruntime(self) -> None:
        shape, nodes, constants = self.shape, [], []
        constants += [numpy_helper.from_array(array, name) for name, array in _SCALES.items() if self.quantized]
        for i, weights in enumerate(self.weights):
            constants.append(numpy_helper.from_array(weights, f"w{i}"))
            if not self.quantized:
                nodes.append(helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]))
                continue
            nodes += [
                helper.make_node("MatMulInteger", ["x", f"w{i}", "zero"], [f"i{i}"]),
                helper.make_node("Cast", [f"i{i}"], [f"f{i}"], to=TensorProto.FLOAT),
                helper.make_node("Mul", ["scale", "of_right"], [f"t{i}"]),
                helper.make_node("Mul", [f"f{i}", f"t{i}"], [f"y{i}"]),
            ]
        outputs = [helper.make_tensor_value_info(f"y{i}", 1, [shape.m, shape.n]) for i in range(_WEIGHTS)]
        inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8 if self.quantized else 1, [shape.m, shape.k])]
        graph = helper.make_graph(nodes, "products", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results = [np.empty((shape.m, shape.n), np.float32) for _ in range(_WEIGHTS)]
        binding = session.io_binding()
        binding.bind_cpu_input("x", self.left)
        for i, result in enumerate(results):
            binding.bind_output(f"y{i}", "cpu", 0, np.float32, result.shape, result.ctypes.data)

        def run() -> None:
            session.run_with_iobinding(binding)

        self._add("onnxruntime", run, results)

    def add_kernel(self, name: str, several: Sequence[_LoadedProduct], clock: Callable[[], float]) -> Schedule:
        """Adds the fastest of several, whose schedule is returned."""
        trials = [(each, [each.bound(*self._inputs(weights)) for weights in self.weights]) for each in several]
        times = np.full((_QUICK, len(trials)), np.inf)
        for row in times:
            for at, (_, products) in enumerate(trials):
                start = clock()
                for product in products:
                    product.run()
                row[at] = clock() - start
        best, products = trials[int(np.argmin(times.min(axis=0)))]

        def run() -> None:
            for product in products:
                product.run()

        self._add(name, run, [product.outputs[0] for product in products])
        return best.schedule

    def _inputs(self, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of a kernel."""
        if not self.quantized:
            return self.left, weights
        return self.left, _SCALES["zero"], weights, _SCALES["scale"], _SCALES["of_right"]

    def _add(self, name: str, run: Callable[[], None], results: list[np.ndarray]) -> None:
        run()
        self.runs[name], self.results[name] = run, results

    def errors(self) -> dict[str, float]:
        """Relative (L2), of the first product; of bytes against onnxruntime's result."""
        if self.quantized:
            exact = self.results["onnxruntime"][0].astype(np.float64)
        else:
            exact = self.left.astype(np.float64) @ self.weights[0].astype(np.float64)
        norm = np.linalg.norm(exact)
        return {name: float(np.linalg.norm(results[0] - exact) / norm) for name, results in self.results.items()}

    def times(self, seconds: float, clock: Callable[[], float]) -> dict[str, np.ndarray]:
        """Microseconds of a product by round, and of onnxruntime a second time, as :data:`_AGAIN`.

        Neither of onnxruntime's follows on the other, whose weights would be in the caches yet: ours stand behind each, and the
        mean of both counts.
        """
        theirs, ours = self.runs["onnxruntime"], {name: run for name, run in self.runs.items() if name != "onnxruntime"}
        times: dict[str, list[float]] = {name: [] for name in ("onnxruntime", *ours, _AGAIN)}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["onnxruntime"]) < _LEAST:
            for half in ("onnxruntime", _AGAIN):
                for name, run in {half: theirs, **ours}.items():
                    start = clock()
                    run()
                    times[name].append((clock() - start) / _WEIGHTS * 1e6)
        return {name: np.reshape(each, (len(times[_AGAIN]), -1)).mean(axis=1) for name, each in times.items()}

    def times_by_state(self, seconds: float) -> dict[str, dict[str, list[float]]]:
        """Microseconds of a product by the clock, by whether the core was ``alone`` or ``shared``."""
        library = opened(build(_PROBE, LEVELS["x86-64-amx"], "a probe"))
        library.probe.restype = ctypes.c_double
        found: list[tuple[str, float, float, float]] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, run in self.runs.items():
                before, start = library.probe(), time.perf_counter()
                run()
                took = time.perf_counter() - start
                found.append((name, before, library.probe(), took / _WEIGHTS * 1e6))
        least = min(min(before, behind) for _, before, behind, _ in found)
        times = {state: {name: list[float]() for name in self.runs} for state in ("alone", "shared")}
        for name, before, behind, microseconds in found:
            if max(before, behind) <= _ALONE * least:
                times["alone"][name].append(microseconds)
            elif min(before, behind) >= _SHARED * least:
                times["shared"][name].append(microseconds)
        return times


def _check(name: str, built: _LoadedProduct, k: int, n: int) -> None:
    """Asks that numbers of all magnitudes, infinities and NaN come out as float64 says.

    Raises:
        SystemExit: they do not.
    """
    random = np.random.default_rng(1)
    left = random.standard_normal((40, k), np.float32)
    weights = random.standard_normal((k, n), np.float32)
    left[1] *= np.float32(1e-38)
    left[2] *= np.float32(1e36) / np.sqrt(np.float32(k))
    left[3, 5], left[4, 6], left[5, 7] = np.inf, -np.inf, np.nan
    weights[:, 0] *= np.float32(1e-30)
    (result,) = built.bound(left, weights).run()
    with np.errstate(all="ignore"):
        exact = left.astype(np.float64) @ weights.astype(np.float64)
        scale = np.abs(left.astype(np.float64)) @ np.abs(weights.astype(np.float64))
        finite = np.isfinite(exact)
        wrong = np.abs(result - exact)[finite] > 1e-4 * scale[finite] + 1e-44
    if wrong.any() or not np.array_equal(result[~finite], exact[~finite].astype(np.float32), equal_nan=True):
        sys.exit(f"{name}: {wrong.sum()} wrong results")


@click.command()
@click.option("--shape", "shapes", multiple=True, default=SHAPES, help="M×K×N, as 128x768x768.")
@click.option("--level", type=click.Choice(list(LEVELS)), help="The instruction set; this processor's last by default.")
@click.option("--only", multiple=True, type=click.Choice(list(OURS)), default=tuple(OURS), help="Which of ours.")
@click.option("--tiles", multiple=True, help="Columns, rows and steps of tiles, as 256x64x512: floats under these, too.")
@click.option("--bytes", "quantized", is_flag=True, help="Products of bytes in place of floats.")
@click.option("--seconds", default=_SECONDS, show_default=True, help="For the rounds of a shape.")
@click.option("--shared", is_flag=True, help="Apart, by the clock, where the core is shared and where it is not; with AMX.")
@click.option("--wall", is_flag=True, help="Times of the clock in place of the thread's processor.")
def main(
    shapes: Sequence[str],
    level: str | None,
    only: Sequence[str],
    tiles: Sequence[str],
    quantized: bool,
    seconds: float,
    shared: bool,
    wall: bool,
) -> None:
    """Prints the table."""
    clock = time.perf_counter if wall else time.thread_time
    console, chosen = Console(), LEVELS[level] if level else level_of_processor()
    if chosen is None:
        raise click.ClickException("no instruction set of rewriter/kernels/c/compile.py is known to be here")
    if "amx_tile" in chosen.features and not admits_tiles():
        raise click.ClickException("Linux does not let this process use AMX; choose another --level")
    names = ("bytes",) if quantized else (*only, *tiles)
    columns = (*names, _AGAIN)
    table = Table("M×K×N", "onnxruntime µs (error)", *(f"{name} µs (error)" for name in columns), title=chosen.name)
    for shape in map(_ProductSizes.parse, shapes):
        case = _ProductCase(shape, quantized)
        case.add_onnxruntime()
        for name in names:
            kernel = byte_product(shape.k, shape.n) if quantized else plain_product(shape.k, shape.n)
            parts = OURS.get(name, 1)
            schedules = [_cut(name, shape.m)] if name in tiles else _tried(kernel, shape.m, parts)
            built = _built(kernel, schedules, parts, chosen)
            if not quantized:
                _check(name, built[0], shape.k, shape.n)
            print(shape, name, dict(case.add_kernel(name, built, clock).tiles), flush=True)
        if shared:
            for state, by_name in case.times_by_state(seconds).items():
                medians = {name: np.median(each or np.nan) for name, each in by_name.items()}
                base = medians["onnxruntime"]
                runs = min(map(len, by_name.values()))
                cells = [f"{name} {median:.0f} µs {base / median:.2f}×" for name, median in medians.items()]
                print(shape, state, f"{runs} runs", *cells, sep="  ", flush=True)
            continue
        times = case.times(seconds, clock)
        base, errors = times["onnxruntime"], case.errors()
        errors[_AGAIN] = errors["onnxruntime"]
        cells = [f"{base.min():.0f} ({errors['onnxruntime']:.1e})"]
        cells += [f"{times[name].min():.0f} ({errors[name]:.1e}) {np.median(base / times[name]):.2f}×" for name in columns]
        table.add_row(str(shape), *cells)
        print(shape, *cells, sep="  ", flush=True)
    console.print(table)


if __name__ == "__main__":
    main()
