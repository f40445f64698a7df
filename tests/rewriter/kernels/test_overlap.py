"""What a kernel asks for while its predecessor runs: constants, brought into the cache; nothing is read or written."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule, check_ahead
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import schedule_from_json, schedule_to_json
from mugraph.blocks.variants import Variants, check_variants
from mugraph.terms.shape import symbol
from rewriter.kernels.programs import Scheduled, constant_inputs
from rewriter.kernels.triton import generate
from rewriter.kernels.triton.ahead import check_waits
from rewriter.kernels.triton.source import OVERLAPPED
from tests.support.block_kernels import (
    F16,
    gated_mlp,
    heads_attention,
    lora,
    random_inputs,
    reference,
    rms_norm_matmul,
    skip_layer_norm,
)
from tests.support.kernel_help import DYNAMIC_KERNELS, scheduled_kernel, with_kernel
from tools.fuzz.interpreter import Interpreter

M = symbol("m")
CASES: list[tuple[Kernel, Schedule]] = [
    (gated_mlp(4, 256, 640, F16), Schedule((("m", 16), ("n", 64), ("k", 64)), stages=3, ahead=("w1", "w2"))),
    (rms_norm_matmul(M, 256, 100, F16), Schedule((("m", 16), ("n", 128), ("k", 64)), split=3, ahead=("scale", "w"))),
    (lora(M, 256, 96, 16, F16), Schedule((("m", 16), ("n", 32), ("k", 32)), ahead=("w", "a", "b", "bias"))),
    (skip_layer_norm(2, M, 96, F16), Schedule((("m", 1),), ahead=("scale", "bias"))),
    (heads_attention(2, M, M, 2, 16, F16), Schedule((("s", 16), ("t", 16)), ahead=("mask",))),
]
NAMES = [kernel.name for kernel, _ in CASES]


def before_the_wait(text: str) -> Iterator[list[str]]:
    """The lines of each function up to its wait."""
    for function in text.split("@triton.jit")[1:]:
        if "gdc_wait" in function:
            yield function[: function.index("gdc_wait()")].splitlines()


@pytest.mark.parametrize(("kernel", "schedule"), CASES, ids=NAMES)
def test_constants_are_asked_for_before_the_wait_and_nothing_is_accessed(kernel: Kernel, schedule: Schedule) -> None:
    text = generate(kernel, [schedule]).text
    assert "import gdc_launch_dependents, gdc_wait" in text
    asked: set[str] = set()
    for lines in before_the_wait(text):
        for line in lines:
            assert "tl.load" not in line and "tl.store" not in line
            asked |= set(re.findall(r"ask_ahead\((\w+)", line))
    assert asked == set(schedule.ahead)
    plain = generate(kernel, [replace(schedule, ahead=())]).text
    assert "ask_ahead" not in plain


def test_what_several_blocks_need_one_of_them_asks_for() -> None:
    conditions = {kernel.name: requests(kernel, schedule) for kernel, schedule in CASES}
    assert conditions["gated_mlp"] == {"w1": {"m"}, "w2": {"m"}}  # a tile of columns for each tile of rows
    assert conditions["skip_layer_norm"] == {"scale": {"m"}, "bias": {"m"}}


def requests(kernel: Kernel, schedule: Schedule) -> dict[str, set[str]]:
    """The axes along which only the first block asks for a tensor."""
    found: dict[str, set[str]] = {}
    for lines in before_the_wait(generate(kernel, [schedule]).text):
        for line in lines:
            for tensor in re.findall(r"ask_ahead\((\w+)", line):
                found[tensor] = set(re.findall(r"\((\w+)_start == 0\)", line))
    return found


@pytest.mark.parametrize(("kernel", "schedule"), CASES[:2], ids=NAMES[:2])
def test_the_compiled_kernel_asks_before_it_waits(kernel: Kernel, schedule: Schedule, tmp_path: Path) -> None:
    for name, ptx in compiled(kernel, schedule, tmp_path):
        wait = ptx.index("griddepcontrol.wait")
        assert "ld.global" not in ptx[:wait] and "cp.async" not in ptx[:wait] and "st.global" not in ptx[:wait]
        begins = ptx.index("griddepcontrol.launch_dependents")
        if not name.endswith("_combine"):
            asks = ptx.index("prefetch.global.L2")
            assert asks < wait
            is_part = name.endswith("_part")  # what combines them has nothing to ask for
            assert wait < begins < ptx.index("st.global") if is_part else begins < asks


def compiled(kernel: Kernel, schedule: Schedule, folder: Path) -> Iterator[tuple[str, str]]:
    """The functions of a kernel and their PTX for Hopper."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = generate(kernel, [schedule])
    path = folder / "generated.py"
    path.write_text(source.text)
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for launch in source.launches:
        types = {**dict(launch.signature), OVERLAPPED: "constexpr"}
        aligned: Any = {(i,): [["tt.divisibility", 16]] for i, (_, kind) in enumerate(launch.signature) if kind.startswith("*")}
        asked: Any = ASTSource(getattr(module, launch.function), types, {OVERLAPPED: True}, aligned)
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        yield launch.function, triton.compile(asked, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def test_what_is_asked_for_changes_no_result(interpreter: Interpreter) -> None:
    kernel, schedule = CASES[0]
    inputs = random_inputs(kernel, 0)
    (first,), (second,) = (interpreter.run(kernel, [s], inputs) for s in (schedule, replace(schedule, ahead=())))
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, reference(kernel, inputs)[0], rtol=2e-2, atol=2e-2)


def test_a_schedule_keeps_in_text_what_it_asks_for() -> None:
    for _, schedule in CASES:
        assert schedule_from_json(schedule_to_json(schedule)) == schedule
    assert "ahead" not in schedule_to_json(Schedule(()))


def test_inputs_that_are_constants_at_every_node_are_asked_for() -> None:
    kernel, schedule = CASES[0]
    model, graph = with_kernel(kernel)
    assert constant_inputs(graph) == {kernel: set()}
    (node,) = graph.nodes()
    graph.tables.constant[node.inputs[1]] = True
    assert constant_inputs(graph) == {kernel: {"w1"}}
    (asking,) = Scheduled.one(kernel, replace(schedule, ahead=())).asking_ahead({"w1", "elsewhere"}).variants.schedules
    assert [s.ahead for s in asking] == [("w1",)]
    assert model.graph is not graph


def mutated(generator: random.Random) -> tuple[Kernel, list[Schedule]]:
    """A kernel and schedules of which one asks for what is written by a kernel, is not read, or is asked for already."""
    if generator.random() < 0.5:
        kernel, schedule = generator.choice(CASES)
        schedules = [schedule]
    else:
        kernel, read_ones = scheduled_kernel(generator.choice(DYNAMIC_KERNELS))
        schedules = list(read_ones)
    place = generator.randrange(len(schedules))
    block = kernel.blocks[place]
    loaded = [load.tensor for load in block.loads]
    written = [t.name for t in (*kernel.outputs, *kernel.scratch)]
    states = [f"{name}_parts" for a in block.accumulators for name in a.names]
    values = [name for name in block.defined if name not in kernel.tensors]
    right = generator.sample(loaded, generator.randint(0, len(set(loaded)))) if loaded else []
    right = list(dict.fromkeys(name for name in right if name in {t.name for t in kernel.inputs}))
    wrong = generator.choice([*written, *states, *values, *block.sizes, "", "spans", *right])
    ahead = [*right, wrong]
    generator.shuffle(ahead)
    schedules[place] = replace(schedules[place], ahead=tuple(ahead))
    return kernel, schedules


def test_2000_of_2000_mutated_schedules_are_refused() -> None:
    generator = random.Random(0)
    for _ in range(2000):
        kernel, schedules = mutated(generator)
        with pytest.raises(InvalidBlock, match="asks ahead"):
            check_ahead(kernel, schedules)
    for _ in range(50):
        kernel, schedules = mutated(generator)
        with pytest.raises(InvalidBlock, match="asks ahead"):
            generate(kernel, schedules)
        with pytest.raises(InvalidBlock, match="asks ahead"):
            check_variants(kernel, Variants.one(schedules))


def test_a_text_that_accesses_memory_before_it_waits_is_refused() -> None:
    refused = 0
    for kernel, schedule in CASES:
        for function in generate(kernel, [schedule]).text.split("\n\n\n@triton.jit\n")[1:]:
            if "gdc_wait" not in function:
                continue
            text = "@triton.jit\n" + function.rstrip()
            assert check_waits(text) == text
            lines = text.splitlines()
            wait = lines.index("        gdc_wait()")
            for access in [line for line in lines[wait:] if "tl.load" in line or "tl.store" in line]:
                for place in range(2, wait + 1):
                    with pytest.raises(InvalidBlock):
                        check_waits("\n".join([*lines[:place], "    " + access.strip(), *lines[place:]]))
                    refused += 1
            for change in (
                lambda s: s.replace("        gdc_wait()\n", ""),
                lambda s: s.replace("        gdc_wait()\n", "            gdc_wait()\n"),
                lambda s: s.replace("        gdc_wait()\n", "    gdc_wait()\n"),
                lambda s: s.replace(f"    if {OVERLAPPED}:", "    if pid == 0:"),
            ):
                with pytest.raises(InvalidBlock):
                    check_waits(change(text))
    assert refused > 300
