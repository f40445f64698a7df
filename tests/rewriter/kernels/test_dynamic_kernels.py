"""Kernels that fire on models of dynamic batch and sequence: each is written and read by Triton with symbols for sizes.

A line of ``dynamic_kernels.jsonl`` is a kernel with its schedules, as ``onnx-superopt MODEL --device h200 --deterministic
--keep-kernels FOLDER`` leaves it, and where it comes from: exports of transformers in half precision with two to four layers,
``batch`` and ``sequence`` dynamic. Triton's own intermediate code is as far as a kernel is taken here: what a symbol is written
wrongly shows there, in a twentieth of the time of a compilation.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rewriter.kernels.triton import generate
from rewriter.kernels.triton.source import OVERLAPPED, LaunchSource, Source
from rules_db.trust.formulas.proof import why_not_proved
from tests.support.kernel_help import DYNAMIC_KERNELS, scheduled_kernel

NAMES = [f"{line['kernel']['name']} of {line['model']}" for line in DYNAMIC_KERNELS]


def intermediate(text: str, launch: LaunchSource, folder: Path) -> str:
    """What Triton reads in a function, before any of its passes."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    path = folder / "generated.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target = GPUTarget("cuda", 90, 32)
    backend: Any = make_backend(target)
    options = backend.parse_options({"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source: Any = ASTSource(
        getattr(module, launch.function), {**dict(launch.signature), OVERLAPPED: "constexpr"}, {OVERLAPPED: True}
    )
    made = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    return str(made)


def source_of(line: dict[str, Any]) -> Source:
    return generate(*scheduled_kernel(line))


@pytest.mark.parametrize("line", DYNAMIC_KERNELS, ids=NAMES)
def test_every_kernel_is_read_with_symbols_for_sizes(line: dict[str, Any], tmp_path: Path) -> None:
    kernel, schedules = scheduled_kernel(line)
    assert {"batch", "sequence"} & set(kernel.symbols) and why_not_proved(kernel) is None
    source = generate(kernel, schedules)
    for launch in source.launches:
        assert "tt.func" in intermediate(source.text, launch, tmp_path)


@pytest.mark.parametrize("wrong", ["sequence**2", "sequence.size", "length"])
def test_a_size_that_triton_does_not_read_is_found(wrong: str, tmp_path: Path) -> None:
    source = next(source for line in DYNAMIC_KERNELS if "tl.cast(sequence" in (source := source_of(line)).text)
    text = source.text.replace("tl.cast(sequence, tl.int64)*sequence", wrong)
    assert text != source.text
    with pytest.raises(Exception, match=r"unsupported operand|no attribute|not defined"):
        for launch in source.launches:
            intermediate(text, launch, tmp_path)
