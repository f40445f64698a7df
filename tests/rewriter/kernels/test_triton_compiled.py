"""Generated Triton source as text and as machine code: as expected in golden files, compiled, sums and products as they are."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.ops.masks import mask_text
from mugraph.terms.shape import DataType, symbol
from mugraph.terms.term import variables
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.triton import generate
from rewriter.kernels.triton.compile import Compiler, NotCompiled
from rewriter.kernels.triton.source import OVERLAPPED, Source
from tests.support.block_kernels import (
    F16,
    F32,
    TOTALS,
    causal_attention,
    cut,
    cut_of,
    gated_mlp,
    heads_attention,
    kernel_of_terms,
    lora,
    rms_norm_matmul,
    skip_layer_norm,
    squares,
    tensor,
    term,
)

triton = pytest.importorskip("triton")

GOLDEN = Path(__file__).parent / "golden"
INFINITE = kernel_of_terms("infinite", {"x": tensor(F16, 128, 512)}, {"y": TOTALS["infinite"]})
GOLDENS = {
    "rms_norm_matmul": (rms_norm_matmul(16, 4096, 6144, F16), (Schedule((("m", 16), ("n", 64), ("k", 128)), 4, 4, 3, 8),)),
    "attention": (
        heads_attention(symbol("b"), symbol("s"), symbol("s"), 12, 64, F16),
        (Schedule((("s", 64), ("t", 64)), 1, 4, 3),),
    ),
    "causal": (causal_attention(12, 1, 1024, 64, F16), (Schedule((("t", 128),), 8),)),
    "skip_layer_norm": (skip_layer_norm(symbol("b"), symbol("s"), 768, F16), (Schedule(()),)),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_source(name: str) -> None:
    """Written anew with ``UPDATE_GOLDEN=1``; a difference is to be read."""
    path = GOLDEN / f"{name}.py.txt"
    text = generate(*GOLDENS[name]).text
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def listed() -> Kernel:
    """Attention whose loop goes along a list of tiles, full and partial ones, with rows that take longer than others."""
    places = np.arange(256)
    mask = (abs(places[:, None] - places) < 20) | (places[:, None] < 16)
    types = {name: tensor(F16, 2, 256, 64) for name in "qkv"}
    shown = f"StoredMask[columns=256,entries='{mask_text(mask)}',rows=256]()"
    scores = f"Where({shown}, MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    return kernel_of_terms("listed", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})


COMPILED = {
    **{f"total {split}": (INFINITE, cut(split=split, k=1024)) for split in (1, 8)},
    **{name: GOLDENS[name] for name in ("rms_norm_matmul", "skip_layer_norm")},
    "bfloat16": (gated_mlp(8, 512, 512, DataType.BFLOAT16), cut(m=16, n=64, k=64)),
    "attention": (heads_attention(symbol("b"), symbol("s"), symbol("s"), 12, 64, F16), cut(s=32, t=32)),
    "listed": (listed(), cut(s=16, t=16)),
    "squares": (squares(symbol("s"), F16), cut(**{axis: 16 for axis in squares(symbol("s")).blocks[0].grid[-2:]})),
}


def compiled_launches(source: Source, architecture: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What Triton makes of each launch."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    path = folder / "generated.py"
    path.write_text(source.text)
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for launch in source.launches:
        pointers = [i for i, (_, kind) in enumerate(launch.signature) if kind.startswith("*")]
        assert len(launch.arguments) == len(launch.signature)
        types = {**dict(launch.signature), OVERLAPPED: "constexpr"}
        aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
        yield triton.compile(
            ASTSource(getattr(module, launch.function), types, {OVERLAPPED: architecture == 90}, aligned),
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True},
        )


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", COMPILED)
def test_cubins(name: str, architecture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for compiled in compiled_launches(generate(*COMPILED[name]), architecture, tmp_path, monkeypatch):
        assert compiled.asm["cubin"][:4] == b"\x7fELF"
        assert compiled.metadata.global_scratch_size == compiled.metadata.profile_scratch_size == 0
        code = compiled.asm["ptx"]
        if architecture == 90:  # nothing is read or written before the launch before has ended
            touches = [code.index(word) for word in ("ld.global", "cp.async", "st.global") if word in code]
            assert code.index("griddepcontrol.wait") < min(*touches, code.index("griddepcontrol.launch_dependents"))
        else:
            assert "griddepcontrol" not in code
        if name in ("bfloat16", "attention", "listed"):
            assert "mma" in compiled.asm["ptx"]


SUMMED = {
    "product": "MatMul(MatMul(x, a), b)",
    "reduction": "ReduceSum[axes=(-1,),keepdims=false](Mul(tall, wide))",
}


@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_products_stay_sums(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton makes a product of matrices of them; before 3.7 in TF32, and with twice the sum of four terms."""
    types = {"x": tensor(F32, 12, 4), "a": tensor(F32, 4, 4), "b": tensor(F32, 4, 12)}
    types |= {"tall": tensor(F32, 12, 1, 4), "wide": tensor(F32, 1, 12, 4)}
    root = term(SUMMED[name])
    used = {leaf.name for leaf in variables([root])}
    kernel = lower(name, {name: type_ for name, type_ in types.items() if name in used}, [("y", root)])
    source = generate(kernel, cut_of(kernel, m=16, n=16, k=16))
    assert "tl.dot" not in source.text
    for compiled in compiled_launches(source, 90, tmp_path, monkeypatch):
        assert "tt.dot" not in compiled.asm["ttir"]


def fused_with_other_threads(ptx: str) -> list[str]:
    """Additions of what another thread has to a product of this one that is not rounded, or that the assembler may leave so."""
    products, exchanged, fused = set[str](), set[str](), list[str]()
    for line in ptx.splitlines():
        operation, _, rest = line.split("//")[0].strip().rstrip(";").partition(" ")
        made, *operands = (word.strip() for word in rest.split(","))
        if operation == "mul.f32":
            products.add(made)
        elif operation == "shfl.sync.bfly.b32":
            exchanged.add(made)
        elif operation == "fma.rn.f32":
            fused += [line.strip()] if operands[2] in exchanged else []
        elif operation == "add.f32":
            fused += [line.strip()] if exchanged & set(operands) and products & set(operands) else []
    return fused


AGREED = {
    "scores": heads_attention(2, 5, 5, 3, 14),
    "scores of halves with a bias": kernel_of_terms(
        "biased",
        {**{name: tensor(F16, 3, 5, 14) for name in "qk"}, "v": tensor(F32, 3, 5, 14), "bias": tensor(F32, 14)},
        {"y": "MatMul(Softmax[axis=-1](MatMul(Add(Cast[to=float](q), bias), Transpose[perm=(1,0)](Cast[to=float](k)))), v)"},
    ),
    "reduction": kernel_of_terms(
        "reduced", {name: tensor(F32, 8, 16) for name in "xw"}, {"y": "ReduceSum[axes=(-1,),keepdims=false](Mul(x, w))"}
    ),
    "variance": skip_layer_norm(2, 3, 16),
}


@pytest.mark.parametrize("name", AGREED)
def test_threads_that_hold_one_sum_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two would round the other's product and not its own: one's scores would not be those of a row's sum of weights."""
    source = generate(AGREED[name], cut_of(AGREED[name], s=1, t=16))
    assert "tl.sum(" in source.text and "tl.dot(" not in source.text
    for compiled in compiled_launches(source, 90, tmp_path, monkeypatch):
        assert "shfl.sync.bfly" in compiled.asm["ptx"]
        assert fused_with_other_threads(compiled.asm["ptx"]) == []


LOG2E = "0f3FB8AA3B"
"""In PTX."""


@pytest.mark.parametrize("root", ["Softmax(Mul(x, w))", "Softmax(Mul(x, 0.3))", "MatMul(Softmax(Mul(x, w)), v)"])
def test_the_greatest_product_is_not_greater_than_itself(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is subtracted from a product that is not rounded: the greatest of them is."""
    types = {"x": tensor(F32, 4, 32), "w": tensor(F32, 4, 32), "v": tensor(F32, 32, 16)}
    used = {leaf.name for leaf in variables([term(root)])}
    kernel = lower("softmax", {name: type_ for name, type_ in types.items() if name in used}, [("y", term(root))])
    for compiled in compiled_launches(generate(kernel, cut_of(kernel, m=1, n=16, k=16)), 90, tmp_path, monkeypatch):
        lines = [re.split(r"[\s,;]+", line.strip()) for line in compiled.asm["ptx"].splitlines()]
        negated = {line[1] for line in lines if line[0] == "neg.f32"}
        assert any(line[0].startswith("ex2.approx") for line in lines)
        fused = [line for line in lines if line[0] == "fma.rn.f32" and line[4] in negated]
        assert [line for line in fused if line[3] != LOG2E] == []  # what that leaves is what f32_exp asks for


def test_a_product_whose_sign_tells_at_0_is_written_as_it_is() -> None:
    types = {"x": tensor(F32, 4, 32), "w": tensor(F32, 4, 32)}
    for outputs, apart in (("Softmax(Mul(x, w))",), True), (("Softmax(Mul(x, w))", "Mul(x, w)"), False):
        kernel = lower("softmax", types, [(f"y{i}", term(root)) for i, root in enumerate(outputs)])
        assert ("0.0 - (0.0 - " in generate(kernel, cut_of(kernel, m=1)).text) is apart


def test_sums_of_products_of_halves_need_no_zero() -> None:
    """A product of two has as many bits as a float in single precision."""
    kernel = heads_attention(2, 5, 5, 3, 14, F16)
    text = generate(kernel, cut_of(kernel, s=1, t=16)).text
    assert "dot = tl.sum(" in text and "0.0 - tl.sum(" not in text


def test_what_the_compiler_multiplies_in_tf32_is_refused(tmp_path: Path) -> None:
    kernel, schedules = lora(16, 32, 32, 16), cut(m=16, n=16, k=16)
    source = generate(kernel, schedules)
    loose = replace(source, text=source.text.replace(', input_precision="ieee"', ""))
    with Compiler(tmp_path, workers=1) as compiler:
        exact, refused = compiler.compile([("exact", source), ("loose", loose)], [Architecture(90)])
    assert not isinstance(exact, NotCompiled)
    assert isinstance(refused, NotCompiled) and "TF32" in str(refused)
