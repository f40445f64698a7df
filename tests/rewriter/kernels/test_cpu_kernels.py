"""Kernels for processors, from the block graph to a running node, and within a run."""

from __future__ import annotations

import errno
import itertools
import math
import mmap
import multiprocessing
import re
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import Programs
from mugraph.blocks.schedule import Schedule
from mugraph.onnx import load, to_bytes
from mugraph.terms.shape import symbol
from mugraph.terms.text import parse_term, parse_type
from rewriter.cli.main import main
from rewriter.cost import DEVICES, ProfileStore
from rewriter.cost.kernel_times import Measured, recall_all, record, time_of, timed_kernels
from rewriter.cost.schedules.cpu import blocks_a_thread, cpu_schedules
from rewriter.kernels import custom, custom_cpu
from rewriter.kernels.c import objects
from rewriter.kernels.c.calling import aligned
from rewriter.kernels.c.codegen import generate
from rewriter.kernels.c.compile import LEVELS, Level, NotBuilt, build
from rewriter.kernels.c.objects import FEATURES, ObjectCompiler, levels_here
from rewriter.kernels.custom_cpu import CpuKernels
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.kept import KeptResults
from rewriter.kernels.parts import parts_for
from rewriter.kernels.programs import Scheduled, compile_on_cpu, keep_kernels
from rewriter.kernels.within import kernels_of
from rewriter.run.custom import CustomRunKernels
from rewriter.runtime import register
from rewriter.runtime.plan import unpack_objects
from rewriter.runtime_env import c_compiler_version
from tests.support.block_kernels import F16, F32, random_inputs, reference, rms_norm_matmul, skip_layer_norm, softmax
from tests.support.c_help import EMULATED, emulated
from tests.support.kernel_help import kernel_model, with_kernel

pytestmark = pytest.mark.skipif(c_compiler_version() is None or not levels_here(), reason="no C compiler, or an old processor")

V3 = (LEVELS["x86-64-v3"],)
SPLIT = Scheduled.one(rms_norm_matmul(symbol("m"), 64, 32, F32), Schedule((("m", 16), ("n", 16), ("k", 16)), split=2))
WHOLE = Scheduled.one(skip_layer_norm(symbol("b"), 3, 40), Schedule((("m", 2),)))
ROWS = Scheduled.one(softmax(64, 96, F32), Schedule((("m", 4),)))
HALF = Scheduled.one(softmax(8, 24, F16), Schedule((("m", 4),)))


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> ObjectCompiler:
    return ObjectCompiler(tmp_path_factory.mktemp("objects"), workers=1)


@pytest.fixture(scope="module")
def programs(compiler: ObjectCompiler) -> Programs:
    compiled, problems = compile_on_cpu([SPLIT, WHOLE, ROWS, HALF], compiler, V3)
    assert not problems
    return compiled


def session_of(content: bytes, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    register(options, cpu_only=True)
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("scheduled", [SPLIT, WHOLE, ROWS, HALF], ids=["split", "whole", "rows", "half"])
def test_generated_kernels_run_in_onnxruntime(scheduled: Scheduled, programs: Programs, threads: int) -> None:
    proto = kernel_model(scheduled.kernel, programs=programs)
    assert [node.op_type for node in proto.graph.node] == ["CpuKernel"]
    onnx.checker.check_model(proto, full_check=True)
    session = session_of(proto.SerializeToString(), threads)
    for size in (1, 5, 33):
        feed = random_inputs(scheduled.kernel, 2, {"m": size, "b": size})
        for got, wanted in zip(session.run(None, feed), reference(scheduled.kernel, feed), strict=True):
            assert np.max(np.abs(got - wanted)) <= (1e-5 if got.dtype == np.float32 else 2e-3) * max(np.max(np.abs(wanted)), 1)


def test_inputs_that_differ_in_a_symbol_are_refused(compiler: ObjectCompiler) -> None:
    """onnxruntime takes them, since nodes may broadcast; a kernel would read beyond the smaller one."""
    types = {name: parse_type("float[m,64]") for name in "xz"}
    kernel = lower("sum", types, [("y", parse_term("Relu(Add(x, z))"))])
    scheduled = Scheduled.one(kernel, *cpu_schedules(kernel, {"m": 16}, 1)[0])
    compiled, problems = compile_on_cpu([scheduled], compiler, V3)
    assert not problems
    session = session_of(kernel_model(kernel, programs=compiled).SerializeToString(), 1)
    x = np.ones((8, 64), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "z": x})[0], 2 * x)
    for rows in (1, 7, 9):
        with pytest.raises(Exception, match=r"the inputs of kernel .* do not fit its plan"):
            session.run(None, {"x": x, "z": np.ones((rows, 64), np.float32)})


def test_a_model_that_is_read_keeps_its_objects(programs: Programs) -> None:
    model = load(onnx.load_from_string(to_bytes(*with_kernel(WHOLE.kernel), programs)))
    assert not model.opaque and kernels_of(model.graph) == [WHOLE.kernel]
    kept = model.programs[WHOLE.kernel]
    assert kept.on_cpu and kept.variants == WHOLE.variants
    assert [image.features for image in unpack_objects(kept.attributes["images"])] == [FEATURES["x86-64-v3"]]
    (node,) = onnx.load_from_string(to_bytes(model, model.graph)).graph.node
    assert node.op_type == "CpuKernel"


def test_objects_are_kept_by_all_that_they_depend_on(compiler: ObjectCompiler, programs: Programs, tmp_path: Path) -> None:
    (source,) = WHOLE.c_sources()
    again = ObjectCompiler(Path(compiler._kept.folder), workers=1)
    (found,) = again.compile([("other words", source.text)], V3)
    assert (again.hits, again.compiled) == (1, 0) and not isinstance(found, NotBuilt)
    for path in Path(compiler._kept.folder).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:3])  # cut off
    assert again.compile([("a kernel", source.text)], V3) == [found] and again.compiled == 1
    wrong, fine = again.compile([("a", source.text + "\nint wrong = ;\n"), ("b", source.text)], V3)
    assert isinstance(wrong, NotBuilt) and "a: " in str(wrong) and fine == found
    kept = KeptResults(tmp_path / "none")
    assert kept.recall("00") is None


def test_a_kernel_without_a_form_in_c_is_told(compiler: ObjectCompiler) -> None:
    invalid = Scheduled.one(ROWS.kernel, Schedule((("m", 3),)))
    compiled, problems = compile_on_cpu([invalid], compiler, V3)
    assert not compiled and "no power of two" in problems[ROWS.kernel]


def test_kernels_are_kept_for_people_to_read(tmp_path: Path) -> None:
    written = keep_kernels([ROWS], tmp_path, on_cpu=True)
    assert {path.suffix for path in written} == {".c", ".txt", ".json", ".svg"}


def on_huge_pages() -> int:
    """Bytes of this process's own memory, not shared, for which Linux was asked for huge pages."""
    size = total = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1]) << 10
        elif line.startswith("VmFlags:") and "hg" in line.split() and "sh" not in line.split():
            total += size
    return total


def asked_for_by_a_session(content: bytes) -> int:
    """Bytes for which Linux was asked for huge pages while a session of a model was made."""
    before = on_huge_pages()
    session = session_of(content, 1)
    asked = on_huge_pages() - before
    del session
    return asked


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages to ask for")
def test_packed_weights_are_on_huge_pages_as_far_as_they_fill_them(compiler: ObjectCompiler) -> None:
    """Of 4.5 MiB of weights, two of 2 MiB; the process that times kernels packs them so, too.

    A process of its own makes the session: in this one the heap may hand out memory for which an earlier test asked already.
    """
    kernel = lower(
        "wide", {"x": parse_type("float[3,1024]"), "w": parse_type("float[1024,1152]")}, [("y", parse_term("MatMul(x, w)"))]
    )
    feed = random_inputs(kernel, 1)
    tried = Scheduled.one(kernel, Schedule((("m", 4), ("n", 64), ("k", 128)))).asking_ahead("w")
    compiled, problems = compile_on_cpu([tried], compiler, V3)
    assert not problems
    model, graph = with_kernel(kernel, weights={"w": feed["w"]})
    content = to_bytes(model, graph, compiled)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
        assert another.submit(asked_for_by_a_session, content).result() == 4 << 20
    (y,) = session_of(content, 1).run(None, {"x": feed["x"]})
    np.testing.assert_allclose(y, reference(kernel, feed)[0], rtol=0, atol=1e-4)
    before = on_huge_pages()
    (kept,) = (aligned(3 << 20),)
    assert on_huge_pages() > before and kept.ctypes.data % (2 << 20) == 0


def test_memory_is_aligned_where_linux_refuses_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    memory = aligned(3 << 20)
    memory[:] = 1
    assert memory.size == 3 << 20 and memory.ctypes.data % 64 == 0


# Schedules


def test_the_schedules_to_try_are_all_valid() -> None:
    wide = {"x": parse_type("float[4,128,768]"), "b": parse_type("float[768]")}
    kernels = [lower("gelu", wide, [("y", parse_term("Gelu[approximate='none'](Add(x, b))"))]), SPLIT.kernel, ROWS.kernel]
    for kernel in kernels:
        chosen = cpu_schedules(kernel, {"m": 100}, 6)
        assert 1 <= len(chosen) <= 6 and len(set(chosen)) == len(chosen)
        for schedules in chosen:
            generate(kernel, schedules)
    assert len(cpu_schedules(SPLIT.kernel, {"m": 100}, 1)) == 1


@pytest.mark.parametrize("rows, threads, tile", [(64, 1, 64), (65, 1, 64), (64, 2, 16), (65, 2, 16), (127, 2, 64), (65, 4, 16)])
def test_threads_that_share_an_attention_have_as_much_to_do(rows: int, threads: int, tile: int) -> None:
    """Of 65 rows in tiles of 64 one thread would have 64; of 127 both have half, and four each 16 or 17."""
    types = dict.fromkeys("qkv", parse_type(f"float[{rows},64]"))
    kernel = lower("attention", types, [("y", parse_term("MatMul(Softmax[axis=-1](MatMul(q, Transpose[perm=(1,0)](k))), v)"))])
    ((first,), *_) = cpu_schedules(kernel, {}, 6, threads)
    assert max(first.tile(axis) for axis in kernel.blocks[0].grid[-1:]) == tile


def test_small_blocks_go_to_another_thread_in_company(compiler: ObjectCompiler) -> None:
    (rows,) = ROWS.kernel.blocks
    assert blocks_a_thread(rows, Schedule((("m", 4),))) == (32 << 10) // (2 * 4 * 4 * 96)
    assert blocks_a_thread(rows, Schedule((("m", 64),))) == 1
    (product,) = SPLIT.kernel.blocks
    assert blocks_a_thread(product, SPLIT.variants.schedules[0][0]) == 1
    compiled, _ = compile_on_cpu([ROWS], compiler, V3)
    plan = compiled[ROWS.kernel].attributes["plan"]
    (source,) = ROWS.c_sources()
    assert 10 in plan and 10 not in source.plan.packed()


# Within a run


def kernels_for(store: ProfileStore, sizes: dict[str, int], folder: Path, parts: tuple[int, ...] = parts_for(0.0)) -> CpuKernels:
    kernels = CpuKernels(DEVICES["cpu"], store, sizes, (), parts=parts)
    kernels.objects = ObjectCompiler(folder, workers=1)
    return kernels


def test_a_kernel_is_timed_and_the_best_schedule_written(tmp_path: Path) -> None:
    kernel: Kernel = ROWS.kernel
    model, graph = with_kernel(kernel)
    store = ProfileStore(tmp_path / "profile.sqlite", "a processor | cpu")
    kernels = kernels_for(store, {}, tmp_path / "objects")
    assert kernels.glance(graph, math.inf) and kernels.timed >= 1 and not kernels.notes
    known = recall_all(store, kernel, {})
    assert known and all(result.microseconds is not None and result.microseconds > 0 for result in known)
    assert kernels.compile(graph) == []
    program = kernels.programs[kernel]
    assert program.variants.schedules == (known[0].schedules,)
    assert {image.features for image in unpack_objects(program.attributes["images"])} == {1, 3}
    assert not kernels.glance(graph, math.inf), "it is known already"
    kernels.close()
    feed = random_inputs(kernel, 0)
    outputs = session_of(to_bytes(model, graph, kernels.programs), 1).run(None, feed)
    np.testing.assert_allclose(outputs[0], reference(kernel, feed)[0], rtol=1e-4, atol=1e-6)


def test_a_time_that_was_disturbed_does_not_stay(tmp_path: Path) -> None:
    """The best schedules are timed once more, in later runs too, which keeps what it finds to be less; not without end."""
    kernel: Kernel = SPLIT.kernel
    sizes = {"m": 37}
    _, graph = with_kernel(kernel)
    store = ProfileStore(tmp_path / "profile.sqlite", "a processor | cpu")
    schedules = cpu_schedules(kernel, sizes, 4)
    record(store, kernel, sizes, [Measured(each, 1e6 + at) for at, each in enumerate(schedules)])
    kernels = kernels_for(store, sizes, tmp_path / "objects")
    assert not kernels.second_opinion([graph], 0.0), "the time is over"
    assert kernels.second_opinion([graph, graph], math.inf)
    known = recall_all(store, kernel, sizes)
    assert {each.schedules for each in known[:3]} == set(schedules[:3]) and known[2].microseconds < 1e6  # type: ignore[operator]
    assert known[3] == Measured(schedules[3], 1e6 + 3, known[3].error), "what is further behind is not timed"
    record(store, kernel, sizes, [Measured(each, 1e-3) for each in schedules])
    assert not kernels.second_opinion([graph], math.inf) and not kernels.second_opinion([graph], math.inf)
    assert time_of(store, kernel, sizes) == 1e-3, "what is known can only fall"
    before = kernels.timed
    assert not kernels.second_opinion([graph], math.inf) and kernels.timed == before, "often enough"
    kernels.close()


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Level:
    """Lets this processor have tiles of AMX, in plain C; the instruction set with them."""
    best = levels_here()[0]
    level = Level("emulated", EMULATED.flags, best.features, EMULATED.lanes)

    def built(text: str, to: Level, label: str) -> bytes:
        return build(emulated(text) if to is level else text, to, label)

    monkeypatch.setattr(objects, "build", built)
    monkeypatch.setattr(custom_cpu, "_TILES", level)
    monkeypatch.setattr(custom_cpu, "_QUICK", best)  # a processor with tiles has wide vectors, whatever this one has
    monkeypatch.setattr(custom_cpu, "levels_here", lambda: (level, *levels_here()))
    monkeypatch.setitem(FEATURES, level.name, FEATURES[best.name])
    return level


@pytest.fixture
def gaining(tiles: Level, monkeypatch: pytest.MonkeyPatch) -> Level:
    """The same, where parts gain however small a product is: emulated ones take long."""
    monkeypatch.setattr(custom_cpu, "share_in_parts", lambda kernel, sizes, stored: 1.0 if stored else 0.0)
    return tiles


PRODUCT = rms_norm_matmul(symbol("m"), 64, 40, F32)


def test_parts_of_numbers_are_tried_where_the_processor_has_tiles(tmp_path: Path, gaining: Level) -> None:
    """Schedules with and without them are timed; what is written has an object for tiles and others for what has none."""
    weights = {name: x for name, x in random_inputs(PRODUCT, 0, {"m": 37}).items() if name != "x"}
    model, graph = with_kernel(PRODUCT, weights=weights)
    store = ProfileStore(tmp_path / "profile.sqlite", "a processor | cpu")
    kernels = kernels_for(store, {"m": 37}, tmp_path / "objects")
    assert kernels.tune(graph, math.inf) and not kernels.notes
    known = recall_all(store, PRODUCT, {"m": 37})
    parts = [schedule.parts for result in known for schedule in result.schedules]
    assert set(parts) == {1, 3}
    assert parts.count(1) == 1 < parts.count(3), "floats once, parts as often as they are not far behind"
    fastest = next(result for result in known if result.schedules[0].parts == 3)
    record(store, PRODUCT, {"m": 37}, [replace(fastest, microseconds=0.5)])
    assert kernels.compile(graph) == []
    program = kernels.programs[PRODUCT]
    images = unpack_objects(program.attributes["images"])
    assert program.variants.schedules[0][0].parts == 3
    assert [image.features for image in images] == [FEATURES["emulated"], 3, 1]
    assert len({image.content for image in images}) == 3
    kernels.close()
    feed = random_inputs(PRODUCT, 1, {"m": 37})
    (output,) = session_of(to_bytes(model, graph, kernels.programs), 1).run(None, {"x": feed["x"]})
    (expected,) = reference(PRODUCT, {**feed, **weights})
    assert np.linalg.norm(output - expected) <= 3e-7 * np.linalg.norm(expected)


def test_where_time_is_short_fewer_schedules_of_more_kernels_are_timed(
    tmp_path: Path, gaining: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kernel of a product that gains by parts one in parts, however little is left."""
    weights = {name: x for name, x in random_inputs(PRODUCT, 0, {"m": 37}).items() if name != "x"}
    counts = []
    for kernels_left in (1, 1000):
        _, graph = with_kernel(PRODUCT, weights=weights)
        store = ProfileStore(None, "a processor | cpu")
        kernels = kernels_for(store, {"m": 37}, tmp_path)
        trials = kernels._trials(time.monotonic() + 100.0, kernels_left)
        monkeypatch.setattr(kernels, "_trials", lambda deadline, left, trials=trials: trials)
        assert kernels.tune(graph, math.inf) and not kernels.notes
        known = recall_all(store, PRODUCT, {"m": 37})
        counts.append(sorted(schedule.parts for result in known for schedule in result.schedules))
        kernels.close()
    assert counts == [[1, 3, 3], [3]]


def test_two_parts_are_tried_and_remembered_only_where_outputs_may_be_less_exact(tmp_path: Path, gaining: Level) -> None:
    assert parts_for(0.0) == parts_for(1e-6) == (3, 1) and parts_for(5e-6) == (2, 3, 1)
    weights = {name: x for name, x in random_inputs(PRODUCT, 0, {"m": 37}).items() if name != "x"}
    _, graph = with_kernel(PRODUCT, weights=weights)
    path, environment = tmp_path / "profile.sqlite", "a processor | cpu"
    rough = ProfileStore(path, environment, is_rough=True)
    kernels = kernels_for(rough, {"m": 37}, tmp_path / "objects", parts_for(5e-6))
    assert kernels.glance(graph, math.inf)
    assert {s.parts for result in recall_all(rough, PRODUCT, {"m": 37}) for s in result.schedules} == {2, 3}
    kernels.close()
    rough.close()
    store = ProfileStore(path, environment)
    assert recall_all(store, PRODUCT, {"m": 37}) == [] and time_of(store, PRODUCT, {"m": 37}) is None
    assert list(timed_kernels(store)) == []


def test_kernels_that_round_too_much_get_more_parts_first_where_that_costs_least(
    tmp_path: Path, tiles: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two kernels at one node each one is left in two parts where half of the nodes may be."""
    others = [rms_norm_matmul(symbol("m"), 64, n, F32) for n in (40, 72)]
    graphs = []
    for kernel in others:
        weights = {name: x for name, x in random_inputs(kernel, 0, {"m": 37}).items() if name != "x"}
        graphs.append(with_kernel(kernel, weights=weights)[1])
    store = ProfileStore(tmp_path / "profile.sqlite", "a processor | cpu", is_rough=True)
    kernels = kernels_for(store, {"m": 37}, tmp_path / "objects", parts_for(5e-6))
    tiled = [replace(cpu_schedules(kernel, {"m": 37}, 1)[0][0], ahead=("w",)) for kernel in others]
    for kernel, schedule, exact in zip(others, tiled, (3.0, 9.0), strict=True):
        times = {2: 1.0, 3: exact, 1: 10.0}
        known = [Measured((replace(schedule, parts=parts),), us) for parts, us in times.items()]
        record(store, kernel, {"m": 37}, known)
    for graph in graphs:
        assert kernels.compile(graph) == []

    def parts() -> list[int]:
        return [kernels.programs[kernel].variants.schedules[0][0].parts for kernel in others if kernel in kernels.programs]

    both = SimpleNamespace(nodes=lambda: [node for graph in graphs for node in graph.nodes()])
    monkeypatch.setattr("rewriter.kernels.custom.kernels_of", lambda graph: others if graph is both else kernels_of(graph))
    assert parts() == [2, 2]
    assert kernels.refine(both, 0.5) == 1 and list(kernels.programs) == [others[1]]  # type: ignore[arg-type]
    assert kernels.compile(graphs[0]) == [] and parts() == [3, 2], "that which loses more keeps its two parts"
    assert kernels.refine(both, 0.5) == 1 and kernels.compile(graphs[1]) == [] and parts() == [3, 3]  # type: ignore[arg-type]
    assert kernels.refine(both, 0.0) == 0, "no more can be done"  # type: ignore[arg-type]
    kernels.close()


def test_a_kernel_without_stored_weights_has_no_parts(tmp_path: Path, gaining: Level) -> None:
    _, graph = with_kernel(PRODUCT)
    store = ProfileStore(tmp_path / "profile.sqlite", "a processor | cpu")
    kernels = kernels_for(store, {"m": 37}, tmp_path / "objects")
    assert kernels.glance(graph, math.inf)
    assert {s.parts for result in recall_all(store, PRODUCT, {"m": 37}) for s in result.schedules} == {1}
    kernels.close()


@pytest.mark.parametrize("weights", [True, False])
def test_what_was_not_timed_has_parts_where_they_are_sure_to_gain(tmp_path: Path, gaining: Level, weights: bool) -> None:
    constants = {name: x for name, x in random_inputs(PRODUCT, 0, {"m": 37}).items() if name != "x"} if weights else {}
    _, graph = with_kernel(PRODUCT, weights=constants)
    kernels = kernels_for(ProfileStore(tmp_path / "profile.sqlite", "a processor | cpu"), {"m": 37}, tmp_path / "objects")
    kernels.foresee(graph)
    assert kernels.glance(graph, 0.0) is False, "there is no time to time anything"
    assert kernels.compile(graph) == []
    assert kernels.programs[PRODUCT].variants.schedules[0][0].parts == (3 if weights else 1)
    kernels.close()


GAINS = {
    (128, 512, 512): 1.45,
    (128, 512, 2048): 1.73,
    (128, 2048, 512): 1.55,
    (3136, 96, 96): 0.87,
    (3136, 96, 384): 1.00,
    (3136, 384, 96): 1.09,
    (784, 192, 192): 1.16,
    (784, 768, 192): 1.34,
    (196, 384, 384): 1.22,
    (196, 1536, 384): 1.32,
    (49, 768, 768): 1.17,
    (49, 3072, 768): 1.23,
    (1500, 384, 384): 1.45,
    (1500, 1536, 384): 1.44,
    (1500, 384, 1536): 1.40,
    (128, 768, 768): 1.73,
    (128, 768, 3072): 1.80,
    (128, 3072, 768): 1.53,
}
"""What products in three parts gained over onnxruntime's, by rows, steps and columns, as docs/kernels_cpu.md has it."""


def multiplied(rows: int, steps: int, columns: int) -> Kernel:
    types = {"x": parse_type(f"float[{rows},{steps}]"), "w": parse_type(f"float[{steps},{columns}]")}
    return lower("product", types, [("y", parse_term("MatMul(x, w)"))])


@pytest.mark.parametrize("sizes, gain", GAINS.items())
def test_what_parts_gain_is_foreseen_by_the_size_of_a_product(
    tmp_path: Path, tiles: Level, sizes: tuple[int, int, int], gain: float
) -> None:
    """Never as less than what floats are taken to gain."""
    store = ProfileStore(None, "a processor | cpu")
    foreseen = kernels_for(store, {}, tmp_path).speedup(multiplied(*sizes), {})
    assert foreseen == pytest.approx(max(gain, 1.1), rel=0.12)


def test_products_are_taken_to_be_faster_only_where_the_processor_has_tiles(tmp_path: Path, tiles: Level) -> None:
    store, large = ProfileStore(None, "a processor | cpu"), multiplied(1024, 5000, 5000)
    speedups = [kernels_for(store, {}, tmp_path, parts_for(precision)).speedup(large, {}) for precision in (0.0, 5e-6)]
    assert speedups == pytest.approx([1.8 / 1.02, 2.4 / 1.02])
    rows = [kernels_for(store, {}, tmp_path).speedup(multiplied(rows, 5000, 5000), {}) for rows in (1, 31, 33, 64)]
    assert rows == pytest.approx([1.1, 1.8 / (32 / 31 + 0.02), 1.1, 1.8 / 1.02]), "32 are multiplied at a time"
    attention = lower(
        "attention",
        {name: parse_type("float[4,49,32]") for name in "qk"},
        [("y", parse_term("MatMul(q, Transpose[perm=(0, 2, 1)](k))"))],
    )
    assert kernels_for(store, {}, tmp_path).speedup(attention, {}) == 1.1, "no weights are stored"
    here = CpuKernels(DEVICES["cpu"], store, {}, (), measures=False)
    assert here.speedup(large, {}) == 1.0, "nothing would tell that it is not so"


@pytest.mark.parametrize("best, speedup", [("x86-64-v3", 1.0), ("x86-64-v4", 1.1), ("x86-64-v4-bf16", 1.1)])
def test_without_tiles_products_are_taken_to_be_a_little_faster_where_vectors_are_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: str, speedup: float
) -> None:
    """Else none would ever be timed: at the same speed a product with what follows it saves nothing."""
    here = list(itertools.takewhile(lambda level: level.name != best, LEVELS.values()))
    monkeypatch.setattr(custom_cpu, "levels_here", lambda: (LEVELS[best], *reversed(here)))
    kernels = kernels_for(ProfileStore(None, "a processor | cpu"), {}, tmp_path, parts_for(5e-6))
    assert kernels.speedup(multiplied(1024, 5000, 5000), {}) == speedup


@pytest.mark.parametrize(
    "sizes, most, parts",
    [((128, 768, 768), 2, [3]), ((128, 768, 768), 4, [1, 3, 3]), ((49, 768, 3072), 2, [1, 3]), ((3136, 96, 96), 6, [1, 1, 1])],
)
def test_what_is_sure_by_the_size_of_a_product_is_not_tried(
    tmp_path: Path, tiles: Level, sizes: tuple[int, int, int], most: int, parts: list[int]
) -> None:
    """Of one that gains by parts none in floats, unless there is time, and of one that loses none in parts."""
    kernel = multiplied(*sizes)
    weights = {"w": np.ones(sizes[1:], np.float32)}
    _, graph = with_kernel(kernel, weights=weights)
    kernels = kernels_for(ProfileStore(None, "a processor | cpu"), {}, tmp_path)
    kernels._untimed(graph, 1)  # which looks at what is constant
    tried = kernels._tried(kernel, most)
    assert sorted(schedule.parts for each in tried for schedule in each.variants.schedules[0]) == parts


def test_fewer_schedules_of_a_product_of_floats_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights of its own; the same kernel whose weights are inputs has no panels and more to try."""
    monkeypatch.setattr(custom_cpu, "levels_here", lambda: V3)
    counts = []
    for stored in (True, False):
        weights = {name: x for name, x in random_inputs(PRODUCT, 0, {"m": 37}).items() if stored and name != "x"}
        _, graph = with_kernel(PRODUCT, weights=weights)
        store = ProfileStore(None, "a processor | cpu")
        kernels = kernels_for(store, {"m": 37}, tmp_path / "objects")
        assert kernels.tune(graph, math.inf) and not kernels.notes
        counts.append(len(recall_all(store, PRODUCT, {"m": 37})))
        kernels.close()
    assert counts[0] == 3 < counts[1]


def test_nothing_is_compiled_while_a_kernel_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers would take the cores on which it is timed. On two, two kernels are compiled at once, and timed then."""
    kernels = kernels_for(ProfileStore(None, "a processor | cpu"), {}, tmp_path)
    events, several, both = list[str](), [ROWS.kernel, WHOLE.kernel, HALF.kernel], threading.Barrier(2)

    def compiled(kernel: Kernel, most: int) -> list[object]:
        if kernel is not several[-1]:
            both.wait(timeout=30)
        events.append("compiles")
        time.sleep(0.3)
        events.append("compiled")
        return [None]

    def settled(kernel: Kernel, *_: object) -> None:
        events.append(f"times {kernel.name}")
        time.sleep(0.3)
        events.append(f"timed {kernel.name}")

    monkeypatch.setattr(custom, "cores", lambda: 2)
    monkeypatch.setattr(kernels, "_untimed", lambda graph, trials: several)
    monkeypatch.setattr(kernels, "_compiled", compiled)
    monkeypatch.setattr(kernels.timer, "settle", settled)
    first, second, third = ([f"times {kernel.name}", f"timed {kernel.name}"] for kernel in several)
    together = ["compiles", "compiles", "compiled", "compiled"]
    for tried in (kernels.tune, kernels.glance):
        kernels._tuned.clear()
        assert tried(with_kernel(ROWS.kernel)[1], math.inf)
        assert events == [*together, *first, *second, "compiles", "compiled", *third]
        events.clear()
    kernels.close()


def test_kernels_that_compile_too_long_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one turn that are ready by then are no more timed either: the time is over."""
    kernels, slow = kernels_for(ProfileStore(None, "a processor | cpu"), {}, tmp_path), threading.Event()
    several = [ROWS.kernel, WHOLE.kernel]
    monkeypatch.setattr(custom, "cores", lambda: 2)
    monkeypatch.setattr(kernels, "_untimed", lambda graph, trials: several)
    monkeypatch.setattr(kernels, "_compiled", lambda kernel, most: slow.wait(60) if kernel is several[1] else [])
    began = time.monotonic()
    assert not kernels.glance(with_kernel(ROWS.kernel)[1], began + 0.5)
    assert time.monotonic() - began < 30
    slow.set()
    kernels.close()


def test_kernels_that_seem_to_save_most_are_timed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time may end before all are timed; a kernel saves what the moves that put it somewhere do together."""
    kernels, order = kernels_for(ProfileStore(None, "a processor | cpu"), {}, tmp_path), list[Kernel]()
    few, most, none = ROWS.kernel, WHOLE.kernel, HALF.kernel
    monkeypatch.setattr(kernels, "_untimed", lambda graph, trials: [none, few, most])
    monkeypatch.setattr(kernels, "_compiled", lambda kernel, most: [None])
    monkeypatch.setattr(kernels.timer, "settle", lambda kernel, *_: order.append(kernel))
    monkeypatch.setattr("rewriter.run.custom.kernel_of_rule", lambda rule: rule)
    model, graph = with_kernel(few)
    moves = [(most, 2.0), (few, 3.0), (None, 9.0), (most, 2.0)]
    made = [SimpleNamespace(direction=SimpleNamespace(rule=kernel), gain=gain) for kernel, gain in moves]
    candidate = SimpleNamespace(graph=graph, moves=made)
    assert CustomRunKernels(model, kernels).tune(candidate, math.inf)  # type: ignore[arg-type]
    assert order == [most, few, none]
    kernels.close()


def test_a_wrong_kernel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ObjectCompiler.compile
    monkeypatch.setattr(
        ObjectCompiler, "compile", lambda self, sources, levels: plain(self, [(a, _spoilt(b)) for a, b in sources], levels)
    )
    kernels = kernels_for(ProfileStore(None, "a processor | cpu"), {}, tmp_path)
    _, graph = with_kernel(ROWS.kernel)
    assert kernels.tune(graph, math.inf) and kernels.timed == 0
    assert any("y is wrong, relative error 5.0e-01" in miss.outcome for miss in kernels.explanations())
    kernels.close()


def _spoilt(text: str) -> str:
    """A kernel that stores half of what it should."""
    spoilt, count = re.subn(r"\b(y_at\w*\[[^]]*\]) = ", r"\1 = 0.5f * ", text)
    assert count == 1
    return spoilt


# Verifying a file


def test_a_file_is_verified(tmp_path: Path, programs: Programs) -> None:
    path = tmp_path / "model.onnx"
    proto = kernel_model(WHOLE.kernel, programs=programs)

    def told(changed: onnx.ModelProto) -> tuple[int, str]:
        onnx.save(changed, path)
        result = CliRunner().invoke(main, [str(path), "--verify"])
        return result.exit_code, result.output

    code, text = told(proto)
    assert code == 0 and text.startswith("equal") and "1 node, x86-64-v3" in text
    images = next(a for a in proto.graph.node[0].attribute if a.name == "images")
    compiler = next(a for a in proto.graph.node[0].attribute if a.name == "compiler")
    whole = images.t.raw_data
    images.t.raw_data = whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:]
    code, text = told(proto)
    assert code == 1 and text.startswith("different") and "its images are not what" in text
    compiler.s = b"another compiler"
    code, text = told(proto)
    assert code == 2 and text.startswith("other compiler") and "made by another compiler; here is " in text
    images.t.raw_data = whole[:100]
    assert told(proto)[0] == 1 and "it cannot be read" in told(proto)[1]
    images.t.raw_data = whole
    del proto.functions[0].node[-1:]
    code, text = told(proto)
    assert code == 1 and "the function by which it runs elsewhere is not its body" in text
    del proto.graph.node[:]
    path.write_bytes(kernel_model(WHOLE.kernel).SerializeToString())
    result = CliRunner().invoke(main, [str(path), "--verify"])
    assert result.exit_code == 0 and "no compiled kernels in it" in result.output
    assert CliRunner().invoke(main, [str(tmp_path / "none.onnx"), "--verify"]).exit_code == 2
