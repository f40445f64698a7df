"""The run-time library on the CPU provider, with objects of kernels that are written by hand."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from rewriter.runtime import library_path, register
from rewriter.runtime.plan import CPU_FORMAT_VERSION, Argument, Expression, ObjectImage, Plan, PlanChoice, cpu_attributes
from tests.support.cpu_kernels import CENTRED, CENTRED_TEXT, PACKED, PACKED_TEXT, ROWS, SUM, SUM_TEXT, compiled, cpu_model

V3, V4 = 1, 3
BODY = [helper.make_node("Add", ["a", "b"], ["y"])]
SHAPES = {"a": ["N", "C"], "b": ["N", "C"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def summing(folder: Path) -> bytes:
    return compiled(folder, SUM_TEXT, "-DFACTOR=1")


@pytest.fixture(scope="module")
def doubling(folder: Path) -> bytes:
    return compiled(folder, SUM_TEXT, "-DFACTOR=2")


def opened(content: bytes, threads: int = 1) -> ort.InferenceSession:
    """A session with the library, which this process's features choose the objects of."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    register(options)
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def refusal(content: bytes) -> str:
    with pytest.raises(Exception, match=r"onnx\.superopt") as caught:
        opened(content)
    return str(caught.value)


def elsewhere(script: str, *arguments: str, **environment: str) -> str:
    """What a script prints in a process of its own: the library asks once what the processor has."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_runs_at_every_size(doubling: bytes, threads: int) -> None:
    session = opened(cpu_model(SUM, [ObjectImage(V3, doubling)], BODY, SHAPES), threads)
    for rows, columns in ((1, 1), (2, 3), (7, 5), (500, 33), (0, 4), (3, 0)):
        a = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        np.testing.assert_array_equal(session.run(None, {"a": a, "b": a + 1})[0], 2 * (2 * a + 1))


@pytest.mark.parametrize("threads", [1, 2])
def test_launches_in_a_row_share_scratch_memory(folder: Path, threads: int) -> None:
    content = cpu_model(
        CENTRED,
        [ObjectImage(V3, compiled(folder, CENTRED_TEXT))],
        [helper.make_node("Identity", ["a"], ["y"])],
        {"a": ["N", "C"]},
        copies=2,
    )
    session = opened(content, threads)
    for rows in (1, 2, 40, 1001):
        a = np.random.default_rng(rows).standard_normal((rows, 6), np.float32)
        for output in session.run(None, {"a": a}):
            np.testing.assert_allclose(output, 2 * (a - a.mean(axis=1, keepdims=True)), rtol=1e-5, atol=1e-5)


def test_blocks_go_to_several_threads(folder: Path) -> None:
    """Every block says which thread ran it; blocks that are not worth it stay on the caller's."""
    text = "#define _GNU_SOURCE\n#include <unistd.h>\n#include <sys/syscall.h>\n" + SUM_TEXT.replace(
        "FACTOR * (a[row * columns + i] + b[row * columns + i])", "who"
    ).replace("for (int64_t row", "usleep(2000);\n    float who = syscall(SYS_gettid);\n    for (int64_t row")
    images = [ObjectImage(V3, compiled(folder, text))]
    a = np.zeros((64, 1), np.float32)
    threads = opened(cpu_model(SUM, images, BODY, SHAPES), 2).run(None, {"a": a, "b": a})[0]
    assert len(np.unique(threads)) == 2
    coarse = replace(SUM, launches=(replace(SUM.launches[0], threads=65),))
    alone = opened(cpu_model(coarse, images, BODY, SHAPES), 2).run(None, {"a": a, "b": a})[0]
    assert len(np.unique(alone)) == 1


def test_weights_are_packed_once(folder: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    images, body = [ObjectImage(V3, compiled(folder, PACKED_TEXT))], [helper.make_node("MatMul", ["x", "w"], ["y"])]
    session = opened(cpu_model(PACKED, images, body, {"x": ["N", 5]}, {"w": weights}))
    for rows in (1, 4, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 5), np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weights, rtol=1e-5, atol=1e-5)
    assert "input 1 of a kernel is packed once, but it is no constant" in refusal(
        cpu_model(PACKED, images, body, {"x": ["N", 5], "w": [5, 7]})
    )
    foreign = replace(PACKED, packings=(replace(PACKED.packings[0], bytes=ROWS * 4),))
    assert "what turn packs has no size" in refusal(cpu_model(foreign, images, body, {"x": ["N", 5]}, {"w": weights}))


_CHOOSE = """
import sys
import numpy as np, onnxruntime as ort
from rewriter.runtime import register
ort.set_default_logger_severity(4)
options = ort.SessionOptions()
try:
    register(options)
    session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    print(session.run(None, {n: np.ones((2, 3), np.float32) for n in "ab"})[0][0, 0])
except Exception as problem:
    print(problem)
"""


def test_the_object_is_the_best_that_the_processor_has(folder: Path, summing: bytes, doubling: bytes) -> None:
    tripling = compiled(folder, SUM_TEXT, "-DFACTOR=3")
    path = folder / "choice.onnx"
    path.write_bytes(
        cpu_model(SUM, [ObjectImage(V4, tripling), ObjectImage(V3, doubling), ObjectImage(1 << 20, summing)], BODY, SHAPES)
    )
    assert elsewhere(_CHOOSE, str(path), ONNX_SUPEROPT_FEATURES="1") == "4.0\n"
    assert "this processor is older than x86-64-v3; run the model" in elsewhere(_CHOOSE, str(path), ONNX_SUPEROPT_FEATURES="0")
    with Path("/proc/cpuinfo").open() as file:
        if "avx512vl" in file.read():
            assert elsewhere(_CHOOSE, str(path)) == "6.0\n"
    path.write_bytes(cpu_model(SUM, [ObjectImage(1 << 20, summing)], BODY, SHAPES))
    assert "the model holds no object of kernel sum for this processor; run it without the library" in elsewhere(
        _CHOOSE, str(path)
    )


_RUN = """
import sys
import numpy as np, onnxruntime as ort
from rewriter.runtime import register
options = ort.SessionOptions()
register(options, cpu_only=True)
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
for rows in (1, 7):
    print(session.run(None, {n: np.ones((rows, 2), np.float32) for n in "ab"})[0].shape)
"""


def test_sizes_that_are_not_known_are_no_surprise(folder: Path, doubling: bytes) -> None:
    """onnxruntime warns on standard error of outputs that have not the sizes that were inferred."""
    path = folder / "dynamic.onnx"
    path.write_bytes(cpu_model(SUM, [ObjectImage(V3, doubling)], BODY, SHAPES))
    assert elsewhere(_RUN, str(path)) == "(1, 2)\n(7, 2)\n"


def behind(shape: Sequence[str] | None, image: bytes) -> bytes:
    """z = -y, y = CpuKernel(a, b): what y is of only the library says."""
    model = onnx.load_from_string(cpu_model(SUM, [ObjectImage(V3, image)], BODY, dict.fromkeys("ab", shape)))
    model.graph.node.append(helper.make_node("Neg", ["y0"], ["z"]))
    model.graph.output[0].name = "z"
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("shape", [None, ["N", "C"]])
def test_an_input_of_unknown_rank_is_no_scalar(folder: Path, doubling: bytes, shape: Sequence[str] | None) -> None:
    """As behind an operator whose axes are fed; onnxruntime tells the rank of such as 0 before a run."""
    path = folder / "rank.onnx"
    path.write_bytes(behind(shape, doubling))
    assert elsewhere(_RUN, str(path)) == "(1, 2)\n(7, 2)\n"


def test_a_scalar_is_refused_in_a_run(doubling: bytes) -> None:
    scalar = np.ones((), np.float32)
    with pytest.raises(Exception, match="the inputs of kernel sum do not fit its plan"):
        opened(behind(None, doubling)).run(None, {"a": scalar, "b": scalar})


def test_without_the_library_the_body_runs(doubling: bytes) -> None:
    content = cpu_model(SUM, [ObjectImage(V3, doubling)], BODY, SHAPES)
    a = np.ones((2, 4), np.float32)
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": a})[0], 2 * a)
    onnx.checker.check_model(onnx.load_from_string(content))


def test_equal_objects_are_opened_once(summing: bytes, doubling: bytes) -> None:
    def objects() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum("onnx.superopt" in line and " r-xp " in line for line in lines)

    before = objects()
    both = [opened(cpu_model(SUM, [ObjectImage(V3, summing)], BODY, SHAPES, copies=3)) for _ in range(2)]
    assert objects() == before + 1
    both.append(opened(cpu_model(SUM, [ObjectImage(V3, doubling)], BODY, SHAPES)))
    assert objects() == before + 2
    a = np.ones((1, 1), np.float32)
    assert [float(session.run(None, {"a": a, "b": a})[0][0, 0]) for session in both] == [2, 2, 4]
    both.clear()
    assert objects() == before


def test_sizes_choose_among_variants(summing: bytes, doubling: bytes) -> None:
    choice = PlanChoice((SUM, SUM), ROWS, (8,))
    session = opened(cpu_model(choice, [ObjectImage(V3, summing, 0), ObjectImage(V3, doubling, 1)], BODY, SHAPES))
    for rows, factor in ((8, 1), (9, 2)):
        a = np.ones((rows, 2), np.float32)
        np.testing.assert_array_equal(session.run(None, {"a": a, "b": a})[0], 2 * factor * a)
    assert "no object of kernel sum" in refusal(cpu_model(choice, [ObjectImage(V3, summing, 0)], BODY, SHAPES))


def test_what_does_not_fit_is_named(summing: bytes) -> None:
    images = [ObjectImage(V3, summing)]
    newer = refusal(cpu_model(SUM, images, BODY, SHAPES, changed={"version": CPU_FORMAT_VERSION + 1}))
    assert "the model is of format 2, the library reads 1 of kernels for processors; install a newer onnx-superopt" in newer
    unknown = replace(SUM, launches=(replace(SUM.launches[0], kernel="missing"),))
    assert "the object has no function missing" in refusal(cpu_model(unknown, images, BODY, SHAPES))
    assert "the object of kernel sum cannot be opened: " in refusal(cpu_model(SUM, [ObjectImage(V3, b"no object")], BODY, SHAPES))
    session = opened(cpu_model(replace(SUM, scratch=(ROWS * -4,)), images, BODY, SHAPES))
    a = np.ones((2, 4), np.float32)
    with pytest.raises(Exception, match="scratch memory of kernel sum has no size"):
        session.run(None, {"a": a, "b": a})
    huge = Expression.of(1 << 40)
    session = opened(cpu_model(replace(SUM, launches=(replace(SUM.launches[0], grid=(huge, huge, 1)),)), images, BODY, SHAPES))
    with pytest.raises(Exception, match=r"the launch of kernel sum with grid 1099511627776 x 1099511627776 x 1 .* is impossible"):
        session.run(None, {"a": a, "b": a})
    foreign = replace(SUM, launches=(replace(SUM.launches[0], arguments=(Argument.weights(0),)),))
    assert "the node's plan is malformed" in refusal(cpu_model(foreign, images, BODY, SHAPES))


def test_a_damaged_node_is_refused(summing: bytes) -> None:
    attributes = dict(cpu_attributes(SUM, [ObjectImage(V3, summing)]))
    image = attributes["images"].copy()
    image[len(image) // 2] ^= 4
    code = list(attributes["plan"])
    code[-1] ^= 1
    for damaged in ({"images": image}, {"plan": code}, {"kernels": "sun"}):
        content = cpu_model(SUM, [ObjectImage(V3, summing)], BODY, SHAPES, changed=damaged)
        assert "is damaged; write the model again" in refusal(content)


_FUZZ = """
import random, sys
import onnxruntime as ort
from rewriter.runtime import register
from tests.rewriter.runtime.test_cpu_kernels import damaged_nodes
ort.set_default_logger_severity(4)
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
register(options)
told = {}
for content in damaged_nodes(int(sys.argv[1]), int(sys.argv[2])):
    try:
        ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        word = "opened"
    except Exception as problem:
        text = str(problem)
        word = text[text.find("onnx.superopt") :][:40] if "onnx.superopt" in text else "refused by onnxruntime"
    told[word] = told.get(word, 0) + 1
print(told)
"""


def damaged_nodes(seed: int, count: int) -> Sequence[bytes]:
    """Models of a node whose plan or images were changed at random, half of them with a checksum that fits."""
    rng, made = random.Random(seed), []
    plans: list[Plan | PlanChoice] = [SUM, CENTRED, PACKED, PlanChoice((SUM, SUM), ROWS, (8,))]
    for _ in range(count):
        attributes: dict[str, Any] = dict(
            cpu_attributes(rng.choice(plans), [ObjectImage(V3, b"no object"), ObjectImage(V4, b"")])
        )
        code, image = list(attributes["plan"]), bytearray(attributes["images"].tobytes())
        for _ in range(rng.randrange(1, 4)):
            if rng.random() < 0.7:
                at = rng.randrange(len(code))
                code[at] = rng.choice(
                    [0, -1, 1, 2, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), code[at] + 1, rng.randrange(1 << 20)]
                )
            elif image and rng.random() < 0.5:
                image[rng.randrange(len(image))] = rng.randrange(256)
            else:
                code = code[: rng.randrange(len(code) + 1)] or [0]
                image = image[: rng.randrange(len(image) + 1)]
        if rng.random() < 0.5:
            names = str(attributes["kernels"]).encode()
            packed = b"".join((x & ((1 << 64) - 1)).to_bytes(8, "little") for x in code[1:])
            code[0] = zlib.crc32(image, zlib.crc32(names, zlib.crc32(packed)))
        code = [max(min(x, (1 << 63) - 1), -(1 << 63)) for x in code]
        attributes |= {"plan": code, "images": np.frombuffer(bytes(image), np.uint8)}
        made.append(cpu_model(SUM, [], BODY, SHAPES, changed=attributes))
    return made


def test_no_damaged_node_ends_the_process() -> None:
    told = elsewhere(_FUZZ, "1", "400")
    assert "'opened'" not in told and "the node's plan is malfor" in told and "the node of kernel" in told, told


_OLD = """
import ctypes, sys
make_status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
@make_status
def create_status(code, message):
    print(message.decode())
    return 1
table = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))
get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda version: ctypes.addressof(table) if version < 18 else None)
base = (ctypes.c_void_p * 2)(ctypes.cast(get_api, ctypes.c_void_p), None)
library = ctypes.CDLL(sys.argv[1])
library.RegisterCustomOps.restype = ctypes.c_void_p
print(library.RegisterCustomOps(None, base))
"""


def test_an_onnxruntime_that_is_too_old_is_told() -> None:
    """What makes a status has been in the first slot of its functions from the first version on."""
    told = elsewhere(_OLD, str(library_path())).splitlines()
    assert told == ["onnx.superopt: this onnxruntime is older than 1.18; install a newer one", "1"]
