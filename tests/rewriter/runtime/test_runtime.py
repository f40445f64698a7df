"""The run-time library on the CPU, with a CUDA driver that records what it is asked and computes two kernels itself."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import rewriter
from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN
from mugraph.terms.shape import DataType
from rewriter.runtime import RuntimeLibraryError, library_path, register
from rewriter.runtime.plan import (
    BUFFER_FORMAT_VERSION,
    CHOICE_FORMAT_VERSION,
    FORMAT_VERSION,
    Argument,
    Expression,
    Image,
    Launch,
    Output,
    Plan,
    PlanChoice,
    pack_images,
)
from tests.support.stub_runner import StubRunner

STUB = Path(__file__).parents[2] / "support" / "stub_driver.c"
N = Expression.dimension(0, 0)
COUNT = N * Expression.dimension(0, 1)
NULLS = (Argument.nothing(), Argument.nothing())
IMAGES = (
    Image(80, False, b"cubin for 80", (1_000, 0)),
    Image(90, False, b"cubin for 90", (60_000, 0), waits=True),
    Image(80, True, b"ptx for 80", (70_000, 0)),
)

ADD = Launch(
    "add",
    128,
    (COUNT.ceil_div(128), 1, 1),
    (Argument.output(0), Argument.input(0), Argument.input(1), Argument.int32(COUNT), *NULLS),
)
SUM = Plan(2, (Output(DataType.FLOAT, (N, Expression.dimension(0, 1))),), (ADD,))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("driver") / "libstub.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, STUB], check=True)
    return path


def model(
    plan: Plan | PlanChoice, images: tuple[Image, ...] = IMAGES, version: int | None = None, code: list[int] | None = None
) -> bytes:
    """y = Kernel(a, b) + a body that computes a + b, over [N, 4] with N dynamic."""
    node = helper.make_node(
        KERNEL,
        ["a", "b"],
        ["y"],
        domain=KERNEL_DOMAIN,
        overload="one",
        version=plan.version if version is None else version,
        kernels="\n".join(plan.kernels),
        plan=plan.packed() if code is None else code,
        images=numpy_helper.from_array(pack_images(images)),
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(KERNEL_DOMAIN, 1)]
    body = helper.make_function(
        KERNEL_DOMAIN,
        KERNEL,
        ["x0", "x1"],
        ["y0"],
        [helper.make_node("Add", ["x0", "x1"], ["y0"])],
        opsets[:1],
        attributes=["version", "kernels", "plan", "images"],
        overload="one",
    )
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "ab"]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])])
    return bytes(helper.make_model(graph, opset_imports=opsets, functions=[body], ir_version=10).SerializeToString())


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> StubRunner:
    return StubRunner(driver, tmp_path)


def test_a_kernel_runs_and_is_loaded_once(run: StubRunner) -> None:
    result = run(model(SUM), 2, 3, 100)
    assert result["shape"] == ["N", 4] or result["shape"][1] == 4
    for rows, output in zip((2, 3, 100), result["outputs"], strict=True):
        np.testing.assert_array_equal(output, 11 * np.arange(rows * 4, dtype=np.float32).reshape(rows, 4))
    assert [c for c in run.calls if c.startswith("cuLaunchKernelEx")] == [
        "cuLaunchKernelEx add 1x1x1 128x1x1 60000 overlapped",
        "cuLaunchKernelEx add 1x1x1 128x1x1 60000 overlapped",
        "cuLaunchKernelEx add 4x1x1 128x1x1 60000 overlapped",
    ]
    assert [c for c in run.calls if c.startswith("cuModule")] == ["cuModuleLoadData cubin for 90", "cuModuleGetFunction add"]


def test_without_the_library_the_body_runs() -> None:
    session = ort.InferenceSession(model(SUM), providers=["CPUExecutionProvider"])
    a = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": a})[0], 2 * a)
    onnx.checker.check_model(onnx.load_from_string(model(SUM)))


def test_in_a_session_on_the_cpu_alone_the_body_runs(run: StubRunner) -> None:
    script = (
        "import sys, numpy as np, onnxruntime as ort\nfrom rewriter.runtime import register\n"
        "options = ort.SessionOptions()\nregister(options, cpu_only=True)\n"
        "session = ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])\n"
        "print(session.run(None, {n: np.ones((1, 4), np.float32) for n in 'ab'})[0].tolist())\n"
    )
    path = run.folder / "model.onnx"
    path.write_bytes(model(SUM))
    variables = {"ONNX_SUPEROPT_DRIVER": str(run.driver), "STUB_LOG": str(run.log), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=variables, capture_output=True, text=True, check=False)
    assert done.stdout == "[[2.0, 2.0, 2.0, 2.0]]\n", done.stderr
    assert not run.calls, "the driver is not asked"


def test_launches_in_a_row_share_scratch_memory(run: StubRunner) -> None:
    scale = Launch(
        "scale",
        32,
        (1, 1, 1),
        (Argument.scratch(0), Argument.input(0), Argument.float32(2.5), Argument.int32(COUNT), *NULLS),
    )
    add = Launch(
        "add",
        32,
        (1, 1, 1),
        (Argument.output(0), Argument.scratch(0), Argument.input(1), Argument.int32(COUNT), *NULLS),
    )
    content = model(Plan(2, SUM.outputs, (scale, add), (COUNT * 4,)))
    for architecture, shared, overlapped in (("80", 1_000, ""), ("90", 60_000, " overlapped"), ("100", 70_000, "")):
        result = run(content, 3, STUB_ARCH=architecture)
        np.testing.assert_array_equal(result["outputs"][0], 12.5 * np.arange(12, dtype=np.float32).reshape(3, 4))
        assert (f"cuFuncSetAttribute scale 8 {shared}" in run.calls) == (shared > 48 << 10)
        assert [c for c in run.calls if c.startswith("cuLaunchKernelEx")] == [
            f"cuLaunchKernelEx scale 1x1x1 32x1x1 {shared}{overlapped}",
            f"cuLaunchKernelEx add 1x1x1 32x1x1 0{overlapped}",
        ]


def test_launches_overlap_only_where_the_driver_captures_that(run: StubRunner) -> None:
    assert "error" not in run(model(SUM), 2, STUB_VERSION="12020")
    assert "cuLaunchKernelEx add 1x1x1 128x1x1 60000" in run.calls
    assert "error" not in run(model(SUM), 2, STUB_VERSION="12030")
    assert "cuLaunchKernelEx add 1x1x1 128x1x1 60000 overlapped" in run.calls


def test_an_image_says_how_much_shared_memory_each_kernel_wants(run: StubRunner) -> None:
    silent = model(SUM, (Image(90, False, b"cubin for 90", ()),))
    assert "how much shared memory kernel add wants" in run(silent, 2)["error"]
    assert "error" not in run(model(SUM, (Image(90, False, b"cubin for 90", (0,) * 1000),)), 2)
    content = model(SUM, (Image(90, False, b"cubin for 90", (0,)),))
    count = content.index(b"cubin for 90") - 12
    assert content[count : count + 4] == b"\x01\0\0\0"
    beyond = content[:count] + b"\xff\xff\0\0" + content[count + 4 :]
    assert "the model holds no kernel for this GPU" in run(beyond, 2)["error"]


def test_scratch_memory_is_given_back_after_each_run(run: StubRunner) -> None:
    megabyte = 1 << 20
    plan = Plan(2, SUM.outputs, SUM.launches, (64 * megabyte,))
    pages = run(model(plan), *[2] * 20)["pages"]
    assert (pages[-1] - pages[1]) * os.sysconf("SC_PAGE_SIZE") < 200 * megabyte


@pytest.mark.parametrize(
    ("architecture", "image"), [("80", "cubin for 80"), ("86", "cubin for 80"), ("90", "cubin for 90"), ("100", "ptx for 80")]
)
def test_the_image_is_the_device_s(run: StubRunner, architecture: str, image: str) -> None:
    assert "error" not in run(model(SUM), 2, STUB_ARCH=architecture)
    assert f"cuModuleLoadData {image}" in run.calls


def test_an_empty_input_launches_nothing(run: StubRunner) -> None:
    assert run(model(SUM), 0)["outputs"] == [[]]
    assert not [c for c in run.calls if c.startswith("cuLaunchKernelEx")]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("cuInit", "the CUDA driver does not start (error 700)"),
        ("cuModuleLoadData", "loading the image of kernel add failed: CUDA_ERROR_STUB (700)"),
        ("cuModuleGetFunction", "looking up of kernel add failed"),
        ("cuLaunchKernelEx", "the launch of kernel add with grid 1 x 1 x 1 and 128 threads failed: CUDA_ERROR_STUB (700)"),
    ],
)
def test_failures_of_the_driver_are_named(run: StubRunner, function: str, words: str) -> None:
    assert words in run(model(SUM), 2, STUB_FAIL=function)["error"]


def tiled(threads: int, scratch: int) -> Plan:
    """The sum by tiles of so many threads, through scratch memory where that is asked for."""
    size = Argument.int32(COUNT)
    grid: tuple[Expression, int, int] = (COUNT.ceil_div(threads), 1, 1)
    add = Launch("add", threads, grid, (Argument.output(0), Argument.input(0), Argument.input(1), size, *NULLS))
    if not scratch:
        return Plan(2, SUM.outputs, (add,))
    scale = Launch("scale", 64, (1, 1, 1), (Argument.scratch(0), Argument.input(0), Argument.float32(1.0), size, *NULLS))
    combine = replace(add, arguments=(Argument.output(0), Argument.scratch(0), *add.arguments[2:]))
    return Plan(2, SUM.outputs, (scale, combine), (COUNT * 4,) * scratch)


CHOICE = PlanChoice((tiled(32, 2), tiled(128, 0), tiled(512, 1)), COUNT, (16, 400))
VARIANTS = tuple(
    CHOICE.image(number, image)
    for number, image in enumerate(
        (
            Image(90, False, b"small", (50_000, 7), waits=True),
            Image(90, False, b"middle", (300,)),
            Image(90, False, b"large", (4, 60_000), waits=True),
        )
    )
)
LAUNCHES = {
    2: ["scale 1x1x1 64x1x1 50000 overlapped", "add 1x1x1 32x1x1 7 overlapped"],
    4: ["scale 1x1x1 64x1x1 50000 overlapped", "add 1x1x1 32x1x1 7 overlapped"],
    5: ["add 1x1x1 128x1x1 300"],
    100: ["add 4x1x1 128x1x1 300"],
    101: ["scale 1x1x1 64x1x1 4 overlapped", "add 1x1x1 512x1x1 60000 overlapped"],
}
"""Launches by the number of rows."""


def launched(run: StubRunner, content: bytes, *rows: int) -> list[str]:
    """The launches of runs of so many rows each in one session, whose sums are right."""
    result = run(content, *rows)
    for count, output in zip(rows, result["outputs"], strict=True):
        np.testing.assert_array_equal(output, 11 * np.arange(count * 4, dtype=np.float32).reshape(count, 4))
    return [call.split(" ", 1)[1] for call in run.calls if call.startswith("cuLaunchKernelEx")]


def test_sizes_choose_among_variants_in_one_session(run: StubRunner) -> None:
    rows = (100, 2, 101, 5, 4, 2)
    assert launched(run, model(CHOICE, VARIANTS), *rows) == [launch for count in rows for launch in LAUNCHES[count]]
    assert [c.split(" ", 1)[1] for c in run.calls if c.startswith("cuModuleLoadData")] == ["small", "middle", "large"]
    assert run(model(CHOICE, VARIANTS), 0)["outputs"] == [[]]


def test_the_variants_of_another_choice_are_others(run: StubRunner) -> None:
    for limits, measure in (((17, 400), COUNT + 3), ((15, 400), COUNT), ((16, 404), COUNT), ((16, 400), N)):
        other = model(replace(CHOICE, limits=limits, measure=measure), VARIANTS)
        assert any(launched(run, other, rows) != LAUNCHES[rows] for rows in LAUNCHES)


def test_a_variant_that_the_gpu_has_no_image_of_is_named(run: StubRunner) -> None:
    assert "the model holds no kernel for this GPU" in run(model(CHOICE, VARIANTS[:2]), 100)["error"]
    assert "the model holds no kernel for this GPU" in run(model(SUM, VARIANTS[1:]), 2)["error"]


def test_a_malformed_choice_is_refused(run: StubRunner) -> None:
    head, code = len(SUM.packed_interface()), CHOICE.packed()
    measure, limits = head + 2, head + 2 + len(COUNT.code)
    changed = [(head, 1), (head, 0), (head, -1), (head, 2), (head, 4), (head, 9), (head, 1 << 40), (head + 1, 0), (head + 1, 257)]
    changed += [(limits, -1), (limits, 400), (limits + 1, 16), (limits + 1, 1 << 63), (limits, (1 << 63) - 1), (limits + 2, 65)]
    for place, value in changed:
        broken = [*code]
        broken[place] = value - (1 << 64) if value >= 1 << 63 else value
        assert "malformed" in run(model(CHOICE, VARIANTS, code=broken), 2)["error"], (place, value)
    for broken in (code[:-1], [*code, 0], code[:limits], code[: limits + 1]):
        assert "malformed" in run(model(CHOICE, VARIANTS, code=broken), 2)["error"]
    assert "malformed" in run(model(SUM, version=CHOICE_FORMAT_VERSION), 2)["error"]
    assert "malformed" in run(model(CHOICE, VARIANTS, version=FORMAT_VERSION), 2)["error"]
    for place, value in ((measure + 1, 2), (measure + 1, -1), (measure + 2, 2), (measure + 2, -1), (measure, 99)):
        broken = [*code]
        broken[place] = value
        assert "do not fit its plan" in run(model(CHOICE, VARIANTS, code=broken), 2)["error"], (place, value)


def test_a_launch_is_smaller_where_an_output_is_in_the_buffer_of_an_input(run: StubRunner) -> None:
    """With one plan and with several; the buffers of a session that binds nothing are apart."""
    assert SUM.version == FORMAT_VERSION and CHOICE.version == CHOICE_FORMAT_VERSION

    def launched(plan: Plan | PlanChoice, images: tuple[Image, ...] = IMAGES, **bound: str) -> list[str]:
        assert plan.version == BUFFER_FORMAT_VERSION
        result = run(model(plan, images), 300, **bound)
        np.testing.assert_array_equal(result["outputs"][0], 11 * np.arange(1200, dtype=np.float32).reshape(300, 4))
        return [call.split()[2] for call in run.calls if call.startswith("cuLaunchKernelEx")]

    apart = Expression.apart(1, 0)
    blocks = (apart * 20).maximum(10)
    plan = replace(SUM, launches=(replace(ADD, grid=(blocks, 1, 1)),))
    assert launched(plan) == ["20x1x1"]
    assert launched(plan, STUB_SHARED="b") == ["10x1x1"]
    assert launched(plan, STUB_SHARED="a") == ["20x1x1"]
    several = PlanChoice((SUM, plan), COUNT, (16,))
    variants = tuple(several.image(number, Image(90, False, b"variant", (300,))) for number in range(2))
    assert launched(several, variants, STUB_SHARED="b") == ["10x1x1"]
    for code in (Expression.apart(2, 0), Expression.apart(-1, 0), Expression.apart(0, 1), Expression((9, 0))):
        broken = replace(SUM, launches=(replace(ADD, grid=(code, 1, 1)),))
        assert "is impossible" in run(model(broken), 2)["error"]
    sized = replace(plan, outputs=(Output(DataType.FLOAT, (apart, 4)),))
    assert "do not fit its plan" in run(model(sized), 2)["error"]


def test_what_does_not_fit_is_named(run: StubRunner) -> None:
    nowhere = {"ONNX_SUPEROPT_DRIVER": "/nowhere/libcuda.so"}
    assert "no CUDA driver" in run(model(SUM), 2, **nowhere, ONNX_SUPEROPT_FEATURES="0")["error"]
    assert run(model(SUM), 1, **nowhere)["outputs"] == [[[0, 11, 22, 33]]] and not run.calls  # through its body
    assert "no kernel for this GPU (sm_75)" in run(model(SUM), 2, STUB_ARCH="75")["error"]
    newer = run(model(SUM, version=BUFFER_FORMAT_VERSION + 1), 2)["error"]
    assert f"the model is of format {BUFFER_FORMAT_VERSION + 1}, the library reads 2, 3 and 4; install a newer" in newer
    assert "optimise the model again" in run(model(SUM, version=FORMAT_VERSION - 1), 2)["error"]
    code = SUM.packed()
    for broken in (code[:-1], [*code, 0], [1 << 30, *code[1:]], [0]):
        assert "malformed" in run(model(SUM, code=broken), 2)["error"]
    wide = Plan(2, (Output(DataType.FLOAT, (Expression.dimension(0, 5),)),), (ADD,))
    assert "do not fit" in run(model(wide), 2)["error"]
    divided = Plan(2, (Output(DataType.FLOAT, (N.ceil_div(N - N),)),), (ADD,))
    assert "error" in run(model(divided), 2)


def test_a_plan_has_as_many_tensors_and_launches_as_it_says(run: StubRunner) -> None:
    """A hundred launches in a row, each into scratch memory of its own, of two hundred parameters."""
    size, zeros = Argument.int32(COUNT), [Argument.float32(0.0)] * 194
    add = replace(ADD, arguments=(*ADD.arguments, *zeros))
    first = replace(add, arguments=(Argument.scratch(0), *add.arguments[1:]))
    more = [
        replace(add, arguments=(Argument.scratch(i + 1), Argument.scratch(i), Argument.input(1), size, *NULLS, *zeros))
        for i in range(98)
    ]
    last = replace(add, arguments=(Argument.output(0), Argument.scratch(98), Argument.input(1), size, *NULLS, *zeros))
    plan = Plan(2, SUM.outputs, (first, *more, last), (COUNT * 4,) * 99)
    one, result = run(model(SUM), 2)["outputs"][0], run(model(plan), 2)
    assert "error" not in result and sum(call.startswith("cuLaunchKernelEx") for call in run.calls) == 100
    a, b = (np.asarray(x, np.float32).reshape(2, 4) for x in (one, result["outputs"][0]))
    assert not np.array_equal(a, b)


def test_expressions() -> None:
    assert ((N + 2) * 3 - 1).code == (1, 0, 0, 0, 2, 2, 0, 3, 4, 0, 1, 3)
    assert N.minimum(4).maximum(1).packed()[0] == len(N.minimum(4).maximum(1).code)


def test_a_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_path().exists()
    monkeypatch.setattr("importlib.machinery.EXTENSION_SUFFIXES", [".nothing"])
    with pytest.raises(RuntimeLibraryError, match="no C compiler was found"):
        register(ort.SessionOptions())


def test_images_are_packed_in_eights() -> None:
    packed = pack_images(IMAGES)
    assert packed.dtype == np.uint8 and len(packed) % 8 == 0
    assert bytes(packed[:4]) == b"\x50\0\0\0" and bytes(packed[24:37]) == b"cubin for 80\0"


def test_a_process_that_runs_kernels_loads_no_optimiser() -> None:
    code = "import sys, rewriter.runtime; print([name for name in ('rewriter.run', 'mugraph.onnx', 'z3') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", ["rewriter", "rewriter.cost", "rewriter.reference"])
def test_names_that_a_package_takes_late_are_those_that_it_declares(name: str) -> None:
    package = importlib.import_module(name)
    declared = ast.parse((Path(str(package.__file__)).parent / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {alias.name: node.module for node in declared.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported.keys() == set(package.__all__)
    for taken, module in imported.items():
        assert getattr(package, taken) is getattr(sys.modules[str(module)], taken)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'optimise'"):
        package.optimise  # noqa: B018
    assert set(rewriter.__all__) <= set(dir(rewriter))
