"""Kernels of symbolic sizes: which schedules they carry, how the sizes of a run choose, and that every choice is right."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import CompiledKernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import variants_from_json, variants_to_json
from mugraph.blocks.variants import MOST_VARIANTS, Variants, check_variants
from mugraph.onnx import load, to_bytes
from mugraph.terms.shape import Undecided, symbol
from rewriter.cost import ProfileStore, get_device
from rewriter.cost.kernel_times import Measured, record
from rewriter.cost.schedules import SchedulePrices, default_schedules, points_of, predict, ranked
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.custom import CustomKernels
from rewriter.kernels.programs import Scheduled, compile_kernels, keep_kernels, scheduled
from rewriter.kernels.triton.compile import Compiler, NotCompiled
from rewriter.reference import bind_sizes
from rewriter.run.size_grid import size_grid
from rewriter.runtime.plan import Expression
from tests.support.block_kernels import F16, F32, heads_attention, random_inputs, reference, rms_norm_matmul
from tests.support.kernel_help import kernel_model, with_kernel
from tests.support.stub_runner import StubRunner
from tools.fuzz.interpreter import Interpreter

pytest.importorskip("triton")
pytest_plugins = ("tests.rewriter.runtime.test_runtime",)

H200 = get_device("h200")
M = symbol("m")
KERNEL = rms_norm_matmul(M, 64, 32, F16)
VARIANTS = Variants(
    (
        (Schedule((("m", 1), ("n", 16), ("k", 16)), split=2, warps=1),),
        (Schedule((("m", 16), ("n", 32), ("k", 32)), warps=2),),
        (Schedule((("m", 32), ("n", 16), ("k", 64)), split=3, warps=4, stages=3),),
    ),
    2 * M,
    (8, 80),
)
CHOSEN = {1: 0, 4: 0, 5: 1, 40: 1, 41: 2, 100: 2}
"""The variant by the size."""


# Choosing


def prices(times: np.ndarray, points: list[dict[str, int]], winner: int) -> SchedulePrices:
    """Made-up times of schedules that are told apart by their warps."""
    return SchedulePrices(points, [(Schedule((), warps=1 << number),) for number in range(len(times))], times, winner)


def largest_regret(made: SchedulePrices, variants: Variants) -> float:
    """Of variants of these schedules, over all points."""
    chosen = [made.schedules.index(variants.chosen(point)) for point in made.points]
    return float(np.max(made.regrets[chosen, range(len(made.points))]))


def least(made: SchedulePrices, values: list[int], most: int) -> float:
    """The smallest largest regret of all intervals of a measure, and of all schedules for them, by trying them all."""
    stops = sorted(set(values))
    best = np.inf
    for count in range(most):
        for starts in itertools.combinations(range(1, len(stops)), count):
            of_points = np.searchsorted([stops[start] for start in starts], values, side="right")
            for numbers in itertools.product(range(len(made.schedules)), repeat=count + 1):
                if numbers[of_points[0]] == made.winner:
                    best = min(best, max(made.regrets[numbers[part], at] for at, part in enumerate(of_points)))
    return float(best)


@pytest.mark.parametrize("seed", range(12))
def test_no_other_intervals_are_better(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points = [{"a": a, "b": b} for a, b in [(2, 3), (1, 5), (2, 8), (3, 3), (4, 5), (7, 1)]]
    made = prices(np.exp(generator.normal(0, 0.6, (4, len(points)))), points, int(generator.integers(4)))
    measures = [[a * b, a, b, a * a * b, a * b * b] for a, b in (point.values() for point in points)]
    for most in (1, 2, 3):
        found = made.variants(most)
        wanted = min(least(made, list(values), most) for values in zip(*measures, strict=True))
        reached = largest_regret(made, found)
        assert reached <= max(1.1, 1.02 * wanted) + 1e-6 and len(found.schedules) <= most
        assert found.chosen(points[0]) == made.schedules[made.winner]
        assert made.regrets[made.winner, 0] == 1


def test_as_few_variants_as_are_enough() -> None:
    points = [{"m": 1 << i} for i in range(6)]
    flat = prices(np.array([[1.0] * 6, [1.05, 0.95] * 3]), points, 0)
    assert flat.variants() == Variants.one(flat.schedules[0])
    two = prices(np.array([[1.0, 1, 1, 3, 3, 3], [3.0, 3, 3, 1, 1, 1], [1.0, 2, 1, 2, 1, 2]]), points, 0)
    assert two.variants() == Variants((two.schedules[0], two.schedules[1]), M, (4,))
    steps = prices(np.where(np.eye(6) > 0, 1.0, 2.0), points, 2)
    assert len(steps.variants().schedules) == 4 and steps.variants().chosen({"m": 4}) == steps.schedules[2]
    assert largest_regret(steps, steps.variants(6)) == 1 and steps.variants(6).limits == (1, 2, 4, 8, 16)


def test_what_was_measured_goes_before_what_is_predicted() -> None:
    kernel, points = rms_norm_matmul(M, 512, 512, F16), [{"m": 16}, {"m": 4096}]
    plain = SchedulePrices.of(kernel, H200, points)
    assert plain.schedules[plain.winner] == default_schedules(kernel, H200, points[0])
    twice, other = plain.schedules[1], plain.schedules[2]
    made = SchedulePrices.of(kernel, H200, points, [{twice: 2 * plain.times[1, 0], other: 9.0}])
    assert made.winner == 1 and list(made.schedules) == list(plain.schedules)
    np.testing.assert_allclose(made.times[1], 2 * plain.times[1], rtol=1e-9)
    np.testing.assert_allclose(made.times[2], plain.times[2] * 9 / plain.times[2, 0], rtol=1e-9)
    typical = np.exp(np.mean(np.log([2, 9 / plain.times[2, 0]])))
    np.testing.assert_allclose(made.times[3, 1], plain.times[3, 1] * typical, rtol=1e-9)
    assert made.times[2:, 0].min() >= 1.05 * made.times[1, 0]
    assert made.regrets[1, 0] == 1 and made.variants().chosen({"m": 16}) == twice
    later = SchedulePrices.of(kernel, H200, points, [{}, {other: 0.5}])
    assert later.times[2, 1] == 0.5 and later.winner == plain.winner and later.variants().chosen({"m": 4096}) == other
    refused = SchedulePrices.of(kernel, H200, points, [{twice: 1.0, other: 9.0}], [twice])
    assert twice not in refused.schedules and refused.schedules[refused.winner] == other
    with pytest.raises(InvalidBlock, match="none of its schedules can be used"):
        SchedulePrices.of(kernel, H200, points[:1], (), [s for _, s in ranked(kernel, H200, points[0], 100_000)])


def test_a_file_tuned_once_loses_little_at_other_sizes() -> None:
    kernel = rms_norm_matmul(symbol("b") * symbol("s"), 512, 2048, F16)
    grid = [{"b": b, "s": s, "other": 3} for b in (1, 4, 16) for s in (16, 128, 512)]
    with pytest.raises(Undecided):
        scheduled(kernel, H200, {"b": 1})
    kernel = heads_attention(symbol("b"), symbol("s"), symbol("s"), 12, 64, F16)
    points = points_of(kernel, {"b": 1, "s": 128}, grid)
    assert points[0] == {"b": 1, "s": 128} and len(points) == len(grid)
    found = scheduled(kernel, H200, {"b": 1, "s": 128}, grid=grid).variants
    check_variants(kernel, found)
    home = default_schedules(kernel, H200, points[0])
    assert found.chosen(points[0]) == home and len(found.schedules) > 1

    def regret(schedules: tuple[Schedule, ...], point: dict[str, int]) -> float:
        return predict(kernel, schedules, H200, point) / predict(kernel, default_schedules(kernel, H200, point), H200, point)

    assert max(regret(found.chosen(point), point) for point in points) < 1.3
    assert max(regret(home, point) for point in points) > 2
    assert scheduled(kernel, H200, {"b": 1, "s": 128}).variants == Variants.one(home)


def test_times_at_other_sizes_count_where_they_are_known(tmp_path: Path) -> None:
    kernel, grid = rms_norm_matmul(M, 512, 2048, F16), [{"m": 1 << i} for i in range(4, 14)]
    store = ProfileStore(tmp_path / "profile.sqlite", "a GPU")
    *others, (_, slow) = ranked(kernel, H200, {"m": 8192}, 8)
    record(store, kernel, {"m": 8192}, [Measured(slow, 10.0), *(Measured(schedules, 30.0) for _, schedules in others)])
    found = scheduled(kernel, H200, {"m": 16}, store, grid).variants
    assert found.chosen({"m": 8192}) == slow and found.chosen({"m": 16}) == default_schedules(kernel, H200, {"m": 16})


def test_the_grid_is_of_batches_and_lengths() -> None:
    infos = [onnx.helper.make_tensor_value_info("x", 1, ["b", "s", 4]), onnx.helper.make_tensor_value_info("p", 1, ["b", "past"])]
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"]), onnx.helper.make_node("Relu", ["p"], ["q"])]
    outputs = [onnx.helper.make_tensor_value_info(name, 1, None) for name in "yq"]
    graph = onnx.helper.make_graph(nodes, "g", infos, outputs)
    model = load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    grid = size_grid(model, bind_sizes(model, {"x": (3, 1000, 4)})[0])
    assert sorted({point["b"] for point in grid}) == [1, 2, 3, 4, 6, 8, 11, 16]
    lengths = [16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512]
    assert sorted({point["s"] for point in grid}) == [*lengths, 724, 1000, 1024]
    assert {point["past"] for point in grid} == {128} and len(grid) == 8 * 14
    assert size_grid(model, {}) == [{}]


# Each is right


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    made = Interpreter()
    yield made
    made.close()


@pytest.mark.parametrize("rows", [1, 5, 17, 65])
@pytest.mark.parametrize("variant", range(3))
def test_every_variant_is_right_at_every_size(interpreter: Interpreter, variant: int, rows: int) -> None:
    feed = random_inputs(KERNEL, rows, {"m": rows})
    (got,), (wanted,) = interpreter.run(KERNEL, VARIANTS.schedules[variant], feed), reference(KERNEL, feed)
    assert np.max(np.abs(got - wanted)) <= 5e-3 * np.max(np.abs(wanted))


@pytest.mark.parametrize("length", [1, 7, 40])
def test_schedules_for_long_sequences_are_right_for_short_ones(interpreter: Interpreter, length: int) -> None:
    """More parts of the loop than there are tiles."""
    kernel = heads_attention(symbol("b"), symbol("s"), symbol("s"), 2, 16, F32)
    (block,) = kernel.blocks
    grid = dict.fromkeys(block.grid, 1) | {block.grid[-1]: 16}
    feed = random_inputs(kernel, length, {"b": 2, "s": length})
    for split in (1, 4):
        assert block.loop is not None
        schedule = Schedule((*grid.items(), (block.loop, 16)), split=split, stages=4)
        for got, wanted in zip(interpreter.run(kernel, (schedule,), feed), reference(kernel, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


# In a file


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[Kernel, CompiledKernel]:
    with Compiler(tmp_path_factory.mktemp("kernels"), workers=2) as compiler:
        programs, problems = compile_kernels([Scheduled(KERNEL, VARIANTS)], compiler, (Architecture(90),))
    assert not problems
    return programs


_RUN = """
import sys
import numpy as np, onnxruntime as ort
from rewriter.runtime import register
options = ort.SessionOptions()
register(options)
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
for size in map(int, sys.argv[2:]):
    feed = {i.name: np.ones([size if d == "m" else d for d in i.shape], np.float16) for i in session.get_inputs()}
    print(session.run(None, feed)[0].shape[0])
"""


def launched(run: StubRunner, content: bytes) -> list[str]:
    """Name, grid, block and shared memory of every launch of one session that meets all of ``CHOSEN``."""
    path = run.folder / "model.onnx"
    path.write_bytes(content)
    run.log.unlink(missing_ok=True)
    environment = {
        "ONNX_SUPEROPT_DRIVER": str(run.driver),
        "ONNX_SUPEROPT_PROVIDER": "CPUExecutionProvider",
        "STUB_LOG": str(run.log),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    command = [sys.executable, "-c", _RUN, str(path), *map(str, CHOSEN)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(map(str, CHOSEN))
    return [" ".join(call.split()[1:5]) for call in run.calls if call.startswith("cuLaunchKernel")]


def expected(folder: Path) -> list[str]:
    """The launches of ``CHOSEN``, by each variant compiled alone."""
    launches = []
    with Compiler(folder, workers=2) as compiler:
        for rows, number in CHOSEN.items():
            (source,) = Scheduled.one(KERNEL, *VARIANTS.schedules[number]).sources()
            (result,) = compiler.compile([("alone", source)], (Architecture(90),))
            assert not isinstance(result, NotCompiled)
            (binary,) = result
            for launch, function, shared in zip(source.launches, binary.functions, binary.image.shared, strict=True):
                grid = "x".join(str(Expression.of(extent).value([(rows, 64), (64,), (64, 32)])) for extent in launch.grid)
                launches.append(f"{function.name} {grid} {function.threads}x1x1 {shared}")
    return launches


def test_one_session_launches_what_each_size_chooses(
    run: StubRunner, compiled: dict[Kernel, CompiledKernel], tmp_path: Path
) -> None:
    wanted = expected(tmp_path)
    assert launched(run, kernel_model(KERNEL, programs=compiled).SerializeToString()) == wanted
    assert len({launch.split()[2] for launch in wanted}) > 1
    wrong = kernel_model(KERNEL, programs=compiled)
    (plan,) = (a for a in wrong.graph.node[0].attribute if a.name == "plan")
    at = list(plan.ints).index(80)
    plan.ints[at] = 82
    assert launched(run, wrong.SerializeToString()) != wanted


def test_a_file_with_variants_is_read_and_written_the_same(compiled: dict[Kernel, CompiledKernel]) -> None:
    content = to_bytes(*with_kernel(KERNEL), compiled)
    model = load(onnx.load_from_string(content))
    assert not model.opaque and model.programs[KERNEL].variants == VARIANTS
    assert to_bytes(model, model.graph) == content
    (node,) = onnx.load_from_string(content).graph.node
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert found["version"] == 3 and json.loads(found["mugraph"])["format"] == 2
    assert variants_from_json(json.loads(found["mugraph"])) == VARIANTS


@pytest.mark.parametrize(
    "change",
    [
        {"limits": [8]},
        {"limits": [80, 8]},
        {"limits": [8, 8]},
        {"limits": [-1, 8]},
        {"limits": [8, "x"]},
        {"limits": None},
        {"measure": "2*unknown"},
        {"measure": "m("},
        {"measure": 7},
        {"variants": []},
        {"variants": [[], [], []]},
        {"variants": [[{"tiles": {"m": 3}, "split": 1, "warps": 1, "stages": 1, "group": 1}]] * 3},
        {"variants": variants_to_json(VARIANTS)["variants"] * 3, "limits": list(range(MOST_VARIANTS))},
        {"format": 3},
    ],
)
def test_variants_that_are_malformed_are_opaque(change: dict[str, Any], compiled: dict[Kernel, CompiledKernel]) -> None:
    proto = kernel_model(KERNEL, programs=compiled)
    (attribute,) = (a for a in proto.graph.node[0].attribute if a.name == "mugraph")
    attribute.s = json.dumps({**json.loads(attribute.s), **change}).encode()
    model = load(proto)
    assert model.opaque and not model.programs
    assert onnx.load_from_string(to_bytes(model, model.graph)).graph.node == proto.graph.node


def test_variants_are_kept_to_read(tmp_path: Path) -> None:
    paths = keep_kernels([Scheduled(KERNEL, VARIANTS)], tmp_path)
    assert [path.name.split(".", 1)[1] for path in paths] == ["1.py", "2.py", "3.py", "txt", "json", "svg"]
    assert variants_from_json(json.loads(paths[4].read_text())) == VARIANTS
    assert "tiles m=32" in paths[2].read_text()


def test_a_variant_that_does_not_compile_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, grid = rms_norm_matmul(M, 512, 2048, F16), [{"m": 1 << i} for i in range(4, 14)]
    custom = CustomKernels(H200, ProfileStore(None, "x"), {"m": 16}, [], [Architecture(90)], False, grid=grid, measures=False)
    found = custom._scheduled(kernel).variants
    assert len(found.schedules) > 1
    wrong = Scheduled.one(kernel, *found.schedules[-1]).sources()[0].text
    plain = Compiler.compile

    def compile_(self: Compiler, sources: Any, architectures: Any = ()) -> list[Any]:
        made = plain(self, sources, architectures)
        return [NotCompiled("no") if source.text == wrong else m for (_, source), m in zip(sources, made, strict=True)]

    monkeypatch.setattr(Compiler, "compile", compile_)
    assert custom.compile(with_kernel(kernel)[1]) == []
    custom.close()
    rest = custom.programs[kernel].variants
    assert found.schedules[-1] not in rest.schedules and len(rest.schedules) > 1
    assert rest.chosen({"m": 16}) == found.chosen({"m": 16})
    assert custom.programs[kernel].attributes["version"] == 3


def test_what_the_measure_rests_on_has_to_be_known() -> None:
    assert VARIANTS.chosen({"m": 41}) == VARIANTS.schedules[2]
    with pytest.raises(Undecided):
        VARIANTS.chosen({})
    with pytest.raises(InvalidBlock):
        check_variants(KERNEL, replace(VARIANTS, limits=(8,)))
