"""Kernels compiled ahead of time and written into models that run with and without them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from mugraph.blocks.operator import Programs, kernel_attrs
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.text import kernel_from_json, parse_kernel, schedule_from_json
from mugraph.terms.shape import TensorType, Undecided, symbol
from rewriter.cost import ProfileStore, get_device
from rewriter.cost.kernel_times import Measured, record
from rewriter.cost.schedules import default_schedules
from rewriter.cost.signature import Signature, node_model
from rewriter.kernels.architecture import Architecture, parse_architectures
from rewriter.kernels.compiling import merge_ptx
from rewriter.kernels.programs import Scheduled, compile_kernels, keep_kernels, scheduled
from rewriter.kernels.triton.compile import Compiler, NotCompiled
from rewriter.kernels.triton.source import Source
from rewriter.kernels.within import kernels_of
from rewriter.runtime.plan import FORMAT_VERSION, Output
from rules_db.files import StoreError
from tests.support.block_kernels import F16, F32, random_inputs, reference, rms_norm_matmul, skip_layer_norm, softmax
from tests.support.kernel_help import kernel_model, with_kernel
from tests.support.stub_runner import StubRunner

pytest.importorskip("triton")
pytest_plugins = ("tests.rewriter.runtime.test_runtime",)

SPLIT = Scheduled.one(
    rms_norm_matmul(symbol("m"), 64, 32, F16), Schedule((("m", 16), ("n", 16), ("k", 16)), split=2, warps=1, stages=2)
)
WHOLE = Scheduled.one(skip_layer_norm(symbol("b"), 3, 40), Schedule((("m", 2),), warps=1, stages=1))
EVERYWHERE = (Architecture(80), Architecture(90), Architecture(80, is_ptx=True))


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    with Compiler(tmp_path_factory.mktemp("kernels"), workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def programs(compiler: Compiler) -> Programs:
    """Both kernels compiled for everything."""
    compiled, problems = compile_kernels([SPLIT, WHOLE], compiler, EVERYWHERE)
    assert not problems
    return compiled


# Compiling


def test_one_image_an_architecture_with_all_functions_in_it(compiler: Compiler, programs: Programs) -> None:
    assert list(programs) == [SPLIT.kernel, WHOLE.kernel]
    (binaries,) = compiler.compile([("again", SPLIT.sources()[0])], EVERYWHERE)
    assert not isinstance(binaries, NotCompiled)
    assert [(b.image.architecture, b.image.is_ptx) for b in binaries] == [(80, False), (90, False), (80, True)]
    assert [b.image.waits for b in binaries] == [False, True, False] and all(len(b.image.shared) == 2 for b in binaries)
    names = ["rms_norm_matmul_part", "rms_norm_matmul_combine"]
    for binary in binaries:
        assert [f.name for f in binary.functions] == names and {f.threads for f in binary.functions} == {32}
        assert all(name.encode() in binary.image.content for name in names)
        assert binary.image.content.startswith(b".version 8.0" if binary.image.is_ptx else b"\x7fELF")
    assert binaries[2].image.content.count(b".visible .entry") == 2
    assert b".target sm_80\n" in binaries[2].image.content


def test_processes_that_were_started_ahead_do_the_work(tmp_path: Path) -> None:
    with Compiler(tmp_path, workers=1) as ahead:
        ahead.warm()
        (started,) = ahead._all
        (found,) = ahead.compile([("a kernel", WHOLE.sources()[0])], EVERYWHERE[:1])
        assert not isinstance(found, NotCompiled) and ahead._all == [started]
        ahead.warm()
        assert ahead._all == [started]


def test_results_are_kept(compiler: Compiler, programs: Programs, tmp_path: Path) -> None:
    with Compiler(compiler.folder) as again:
        (found,) = again.compile([("other words", SPLIT.sources()[0])], EVERYWHERE)
        assert (again.hits, again.compiled, again._all) == (3, 0, [])
        assert not isinstance(found, NotCompiled)
        for path in compiler.folder.rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[:3])  # cut off
        fresh, *_ = again.compile([("other words", SPLIT.sources()[0])], EVERYWHERE[:1])
        assert again.compiled == 1 and not isinstance(fresh, NotCompiled) and fresh[0] == found[0]


def source(text: str) -> Source:
    """The whole kernel's source with something else in its place."""
    return replace(WHOLE.sources()[0], text=text)


def test_a_failure_is_a_reason_and_nothing_else_is_lost(compiler: Compiler) -> None:
    good, text = WHOLE.sources()[0], WHOLE.sources()[0].text
    wrong = source(text.replace("tl.store(", "tl.stoore("))
    dying = source("import os\nos._exit(7)\n")
    huge = Scheduled.one(rms_norm_matmul(512, 512, 512, F16), Schedule((("m", 128), ("n", 128), ("k", 256)), warps=4, stages=4))
    (exact,) = Scheduled.one(rms_norm_matmul(16, 64, 64, F32), Schedule((("m", 16), ("n", 64), ("k", 32)))).sources()
    rounding = replace(exact, text=exact.text.replace(', input_precision="ieee"', ""))
    sources = [("a", good), ("b", wrong), ("c", dying), ("d", huge.sources()[0]), ("e", exact), ("f", rounding)]
    found = compiler.compile(sources, [Architecture(80)])
    assert isinstance(found[0], tuple) and isinstance(found[4], tuple)
    messages = [str(problem) for problem in found[1:]]
    assert "kernel b for sm_80: at " in messages[0] and "stoore" in messages[0] and "\n" not in messages[0]
    assert messages[1] == "kernel c for sm_80: the compiler's process died"
    assert "bytes of shared memory, more than sm_80 has" in messages[2]
    assert messages[4] == "kernel f for sm_80: rms_norm_matmul: Triton makes products of TF32 where none are asked for"


def test_architectures_are_named() -> None:
    assert parse_architectures("sm_80, sm_90,compute_80") == EVERYWHERE
    assert [str(a) for a in EVERYWHERE] == ["sm_80", "sm_90", "compute_80"]
    for wrong in ("sm_75", "90", "sm90", ""):
        with pytest.raises(ValueError, match="is no architecture"):
            parse_architectures(wrong)


def test_modules_are_merged_by_their_declarations() -> None:
    head = ".version 8.0\n.target sm_80\n.extern .shared .align 16 .b8 global_smem[];\n"
    texts = [f"//\n{head}.global .b8 _$_str[{n}] = {{}};\n.visible .entry k{n}()\n{{ ld _$_str; }}\n" for n in (1, 2)]
    merged = merge_ptx(texts)
    assert merged.count(".version") == merged.count("global_smem") == 1 and merged.count(".visible .entry") == 2
    assert "_$_str0[1]" in merged and "ld _$_str1;" in merged


# In a model


def test_the_node_says_all_that_a_runtime_needs(programs: Programs) -> None:
    (node,) = kernel_model(SPLIT.kernel, programs=programs).graph.node
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert found["version"] == FORMAT_VERSION and found["kernels"] == b"rms_norm_matmul_part\nrms_norm_matmul_combine"
    text = json.loads(found["mugraph"])
    assert kernel_from_json(text["kernel"]).digest == SPLIT.kernel.digest
    assert tuple(map(schedule_from_json, text["schedules"])) == SPLIT.variants.schedules[0]
    assert tuple(found["plan"]) == programs[SPLIT.kernel].attributes["plan"]
    assert onnx.numpy_helper.to_array(found["images"]).nbytes > 10_000


@pytest.mark.parametrize("scheduled", [SPLIT, WHOLE], ids=["split", "whole"])
def test_without_the_library_the_body_runs(scheduled: Scheduled, programs: Programs) -> None:
    proto = kernel_model(scheduled.kernel, programs=programs)
    onnx.checker.check_model(proto, full_check=True)
    feed = random_inputs(scheduled.kernel, 2, {"m": 5, "b": 3})
    outputs = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
    for got, wanted in zip(outputs, reference(scheduled.kernel, feed), strict=True):
        assert np.max(np.abs(got - wanted)) <= 2e-3 * np.max(np.abs(wanted))


def test_with_the_library_the_kernels_are_launched(run: StubRunner, programs: Programs) -> None:
    """The driver that pretends computes nothing; it says what was launched, on which grid, with which image."""
    content = kernel_model(SPLIT.kernel, programs=programs).SerializeToString()
    script = (
        "import json, sys\nimport numpy as np, onnxruntime as ort\nfrom rewriter.runtime import register\n"
        "options = ort.SessionOptions()\nregister(options)\n"
        "session = ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])\n"
        "feed = {i.name: np.ones([40 if d == 'm' else d for d in i.shape], np.float16) for i in session.get_inputs()}\n"
        "print(session.run(None, feed)[0].shape)\n"
    )
    path = run.folder / "model.onnx"
    path.write_bytes(content)
    environment = {
        "ONNX_SUPEROPT_DRIVER": str(run.driver),
        "ONNX_SUPEROPT_PROVIDER": "CPUExecutionProvider",
        "STUB_LOG": str(run.log),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(40, 32)"
    launches = [call.split()[1:] for call in run.calls if call.startswith("cuLaunchKernel")]
    assert [launch[:3] for launch in launches] == [
        ["rms_norm_matmul_part", "6x2x1", "32x1x1"],
        ["rms_norm_matmul_combine", "6x1x1", "32x1x1"],
    ]


def test_a_kernel_that_does_not_compile_leaves_its_nodes_as_they_are(compiler: Compiler) -> None:
    kernel = softmax(4, 24, F16)
    invalid = Scheduled.one(kernel, Schedule((("m", 3),)))
    programs, problems = compile_kernels([invalid], compiler, EVERYWHERE)
    assert not programs and problems[kernel].startswith(f"kernel {kernel.label}: ") and "no power of two" in problems[kernel]
    (node,) = kernel_model(kernel, programs=programs).graph.node
    assert [a.name for a in node.attribute] == ["mugraph"]


def test_one_node_is_a_model_to_measure(programs: Programs) -> None:
    kernel = WHOLE.kernel
    types = tuple(TensorType(t.type.dtype, tuple(2 if d == symbol("b") else d for d in t.type.shape)) for t in kernel.inputs)
    signature = Signature("Kernel", kernel_attrs(kernel), types, (False,) * 4)
    assert node_model(signature, 17, copies=3) is None  # not compiled: its body would be measured
    proto = node_model(signature, 17, copies=3, compiled=programs[kernel])
    assert proto is not None and len(proto.graph.node) == 3 and len(proto.functions) == 1
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = random_inputs(kernel, 0, {"b": 2})
    outputs = session.run(None, {f"x{i}_{c}": x for c in range(3) for i, x in enumerate(feed.values())})
    np.testing.assert_allclose(outputs[5], reference(kernel, feed)[1], rtol=1e-4, atol=1e-5)


def test_kernels_of_a_graph_get_schedules(tmp_path: Path) -> None:
    m = symbol("m")
    kernel = rms_norm_matmul(m, 512, 512, F16)
    _, graph = with_kernel(kernel)
    assert kernels_of(graph) == [kernel]
    found = scheduled(kernel, get_device("h200"), {"m": 16})
    assert found == Scheduled.one(kernel, *default_schedules(kernel, get_device("h200"), {"m": 16}))
    store = ProfileStore(tmp_path / "profile.sqlite", "a GPU")
    best = (Schedule((("m", 16), ("n", 16), ("k", 16)), 4),)
    record(store, kernel, {"m": 16}, [Measured(best, 3.0)])
    assert scheduled(kernel, get_device("h200"), {"m": 16}, store) == Scheduled.one(kernel, *best)
    with pytest.raises(Undecided, match="the time of a kernel of size m"):
        scheduled(kernel, get_device("h200"), {}, store)


# For people


def test_kernels_are_kept_to_read(tmp_path: Path) -> None:
    paths = keep_kernels([SPLIT], tmp_path / "kernels")
    stem = f"rms_norm_matmul-{SPLIT.kernel.digest.hex()[:8]}"
    assert [p.name for p in paths] == [f"{stem}.{suffix}" for suffix in ("py", "txt", "json", "svg")]
    texts = [p.read_text() for p in paths]
    assert "def rms_norm_matmul_part" in texts[0] and texts[3].startswith("<svg")
    assert parse_kernel(texts[1]).digest == SPLIT.kernel.digest
    assert kernel_from_json(json.loads(texts[2])["kernel"]).digest == SPLIT.kernel.digest
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be made: .*; give another folder"):
        keep_kernels([SPLIT], tmp_path / "file" / "kernels")


def test_outputs_of_a_source_are_sizes_of_inputs() -> None:
    (output,) = SPLIT.sources()[0].outputs
    assert isinstance(output, Output) and output.dtype == F16 and output.shape[1] == 32
    assert WHOLE.sources()[0].outputs[0].dtype == F32
