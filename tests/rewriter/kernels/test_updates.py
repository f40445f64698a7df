"""Kernels that write some entries of a buffer that they read: one buffer may be bound as both, and then no other is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.terms.shape import DataType, symbol
from mugraph.terms.term import make, var
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.c import generate as generate_in_c
from rewriter.kernels.c.compile import build
from rewriter.kernels.c.objects import FEATURES
from rewriter.kernels.text.analysis import _kept, updates
from rewriter.kernels.triton import generate
from rewriter.kernels.triton.compile import Compiler, NotCompiled
from rewriter.run.shared_buffers import _chosen
from rewriter.runtime import register
from rewriter.runtime.plan import Expression, ObjectImage
from rules_db.trust.formulas.proof import why_not_proved
from tests.support.block_kernels import F16, F32, kernel_of_terms, reference, tensor
from tests.support.c_help import Processor, levels
from tests.support.cpu_kernels import cpu_model
from tools.fuzz.interpreter import Interpreter

BATCH, ROOM = symbol("b"), symbol("t")
GROUPS, ROWS, SIZE = 2, 21, 16
POSITIONS = "Range[dtype=int64,limit=t,start=0]()"
FORMS = {
    "position": ({"pos": tensor(DataType.INT64, 1)}, f"Where(Unsqueeze[axes=(-1,)](Equal({POSITIONS}, pos)), {{0}}, {{1}})"),
    "sequences": (
        {"pos": tensor(DataType.INT64, BATCH, 1, 1)},
        f"Where(Unsqueeze[axes=(-1,)](Equal({POSITIONS}, pos)), {{0}}, {{1}})",
    ),
    "read": (
        {"keys": tensor(DataType.INT64, ROOM), "pos": tensor(DataType.INT64, 1, 1, 1, 1)},
        "Where(Equal(Unsqueeze[axes=(-1,)](keys), pos), {0}, {1})",
    ),
    "told": ({"here": tensor(DataType.BOOL, ROOM, 1)}, "Where(here, {0}, {1})"),
    "others": (
        {"pos": tensor(DataType.INT64, 1)},
        f"Where(Unsqueeze[axes=(-1,)](Not(Equal({POSITIONS}, pos))), {{1}}, {{0}})",
    ),
    "kept": ({"here": tensor(DataType.BOOL, ROOM, 1)}, "Where(here, {1}, {0})"),
    "halves": ({"mark": tensor(F16, ROOM, 1)}, "Where(Greater(Sub(Exp(mark), 1.0), 0.00005), {0}, {1})"),
}
"""How what is new is chosen: at one position, at one of each sequence, at one among those that are read, where a mask says;
turned around; and by halves that say so in single precision alone."""


def updating(form: str, dtype: DataType = F32, parts: str = "kv") -> Kernel:
    """Keys and values with a new position in buffers of any length."""
    types, chosen = FORMS[form]
    types = dict(types)
    for part in parts:
        types |= {f"{part}new": tensor(dtype, BATCH, GROUPS, 1, SIZE), f"{part}old": tensor(dtype, BATCH, GROUPS, ROOM, SIZE)}
    bodies = {f"{part}all": chosen.format(f"Mul({part}new, 2.0)", f"{part}old") for part in parts}
    return kernel_of_terms("append", types, bodies)


def inputs_of(kernel: Kernel, form: str, at: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    generator, sizes = np.random.default_rng(at), {"b": 3, "t": rows}
    given = {}
    for each in kernel.inputs:
        shape = tuple(sizes.get(str(dim), dim) for dim in each.type.shape)
        given[each.name] = generator.standard_normal(shape).astype(each.type.dtype.numpy())  # type: ignore[arg-type]
    if "keys" in given:
        given["keys"] = np.arange(rows)
    if "pos" in given:
        given["pos"] = np.resize([at, rows - 1, 0], given["pos"].shape).astype(np.int64)
    elif "mark" in given:
        given["mark"] = np.where(np.arange(rows)[:, None] == at, 1e-4, 0.0).astype(np.float16)
    else:
        given["here"] = (np.arange(rows)[:, None] == at) == (form == "told")
    return given


def schedules_of(kernel: Kernel, rows: int = 4) -> list[Schedule]:
    return [Schedule(tuple((axis, rows if axis == "m" else 1) for axis in block.grid)) for block in kernel.blocks]


def shared(kernel: Kernel) -> dict[int, int]:
    """Every output in the buffer of the input that it updates."""
    inputs, outputs = ([t.name for t in tensors] for tensors in (kernel.inputs, kernel.outputs))
    return {outputs.index(u.output): inputs.index(u.input) for block in kernel.blocks for u in updates(kernel, block)}


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at", [0, 13, ROWS - 1])
def test_one_buffer_and_two_give_the_same_bits(interpreter: Interpreter | Processor, form: str, dtype: DataType, at: int) -> None:
    kernel = updating(form, dtype)
    assert why_not_proved(kernel) is None
    inputs, pairs = inputs_of(kernel, form, at), shared(kernel)
    assert len(pairs) == 2
    apart = interpreter.run(kernel, schedules_of(kernel), inputs)
    together = interpreter.run(kernel, schedules_of(kernel), inputs, pairs)
    for one, other, expected in zip(apart, together, reference(kernel, inputs), strict=True):
        assert one.tobytes() == other.tobytes()
        np.testing.assert_allclose(one, expected, rtol=1e-3 if dtype == F16 else 1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_of_one_buffer_only_tiles_with_what_is_new_are_written(
    interpreter: Interpreter | Processor, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told that buffers are one where they are two, a kernel leaves rows behind as they were before.

    On a processor all of a tile is written where something is new.
    """

    def taken_for_one(kernel: Kernel, schedules: Sequence[Schedule]) -> Any:
        source = generate_in_c(kernel, schedules)
        text = re.sub(r"\b(.all) (!=|==) .old\b", r"\1 \2 \1", source.text)
        assert text != source.text
        return replace(source, text=text)

    monkeypatch.setattr("tests.support.c_help.generate", taken_for_one)
    monkeypatch.setattr(Expression, "apart", lambda input, output: Expression.of(0))
    kernel = updating(form)
    inputs = inputs_of(kernel, form, 13)
    rows = 1 if isinstance(interpreter, Processor) else 4
    made = interpreter.run(kernel, schedules_of(kernel, rows), inputs)
    at = inputs["pos"].reshape(-1) if "pos" in inputs else np.asarray([13])
    is_new = np.arange(ROWS) == np.broadcast_to(at, 3)[:, None]
    for array, expected in zip(made, reference(kernel, inputs), strict=True):
        np.testing.assert_array_equal(array, np.where(is_new[:, None, :, None], expected, np.float32(77)))


@pytest.mark.parametrize("rows", [40, 5000])
@pytest.mark.parametrize("form", ["sequences", "told"])
def test_few_blocks_update_one_buffer(triton_interpreter: Interpreter, form: str, rows: int) -> None:
    """As many as all else that is cut has, and no more than a GPU runs at once; each visits its share of what is between."""
    kernel, places = updating(form), rows - np.asarray([1, 37, 23])
    inputs, schedules, pairs = inputs_of(kernel, form, 13, rows=rows), schedules_of(kernel, rows=2), shared(kernel)
    if form == "told":
        inputs["here"] = np.isin(np.arange(rows), places)[:, None]
    else:
        inputs["pos"] = places.reshape(3, 1, 1)
    (launch,), shapes = generate(kernel, schedules).launches, [inputs[t.name].shape for t in kernel.inputs]
    apart, together, one = (
        Expression.of(launch.grid[0]).value(shapes, bound)
        for bound in ([], [(place, out) for out, place in pairs.items()], [(pairs[0], 0)])
    )
    assert apart == one == 3 * GROUPS * rows // 2
    assert together == 3 * GROUPS * min(rows // 2, 128 // (3 * GROUPS))
    made = triton_interpreter.run(kernel, schedules, inputs, pairs)
    for array, expected in zip(made, reference(kernel, inputs), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    "body",
    [
        "Where(here, knew, Mul(kold, 2.0))",
        "Mul(Where(here, knew, kold), 2.0)",
        "Where(here, knew, Transpose[perm=(1,0)](kold))",
        "Where(here, knew, Transpose[perm=(1,0,2,3)](kold))",
        "Where(here, kold, 0.0)",
    ],
)
def test_what_changes_or_moves_the_rest_is_no_update(body: str) -> None:
    """The last one is, of the buffer that it keeps entries of."""
    types = {"here": tensor(DataType.BOOL, SIZE, 1), "knew": tensor(F32, 2, 2, 1, SIZE), "kold": tensor(F32, 2, 2, SIZE, SIZE)}
    kernel = kernel_of_terms("changed", types, {"kall": body})
    assert bool(shared(kernel)) == (body == "Where(here, kold, 0.0)")


def test_a_block_that_stores_something_else_too_is_no_update() -> None:
    types, chosen = FORMS["told"]
    types = {**types, "knew": tensor(F32, BATCH, GROUPS, 1, SIZE), "kold": tensor(F32, BATCH, GROUPS, ROOM, SIZE)}
    bodies = {"kall": chosen.format("knew", "kold"), "wide": "Mul(kold, 2.0)"}
    kernel = kernel_of_terms("append", types, bodies)
    assert [len(updates(kernel, block)) for block in kernel.blocks] == [0] * len(kernel.blocks)
    assert "apart" not in generate(kernel, schedules_of(kernel)).text


def test_what_is_new_may_be_made_of_what_was_there(interpreter: Interpreter | Processor) -> None:
    types = {"here": tensor(DataType.BOOL, ROOM, 1), "kold": tensor(F32, BATCH, GROUPS, ROOM, SIZE)}
    kernel = kernel_of_terms("more", types, {"kall": "Where(here, Add(kold, 1.0), kold)"})
    inputs, pairs = inputs_of(kernel, "told", 13), shared(kernel)
    assert pairs == {0: 1}
    (made,), (expected,) = interpreter.run(kernel, schedules_of(kernel), inputs, pairs), reference(kernel, inputs)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


@pytest.mark.parametrize("at", [0, 13, ROWS - 1])
def test_words_one_behind_another_are_new_in_one_buffer(interpreter: Interpreter | Processor, at: int) -> None:
    """The second of them beyond the end, once."""
    types, _ = FORMS["position"]
    types = {**types, "next": types["pos"], "knew": tensor(F32, BATCH, GROUPS, 1, SIZE)}
    types["kold"] = tensor(F32, BATCH, GROUPS, ROOM, SIZE)
    here, behind = (f"Unsqueeze[axes=(-1,)](Equal({POSITIONS}, {place}))" for place in ("pos", "next"))
    kernel = kernel_of_terms("append", types, {"kall": f"Where({behind}, Neg(knew), Where({here}, knew, kold))"})
    inputs, pairs = inputs_of(kernel, "position", at), shared(kernel)
    assert why_not_proved(kernel) is None and pairs == {0: 3}
    inputs["next"] = inputs["pos"] + 1
    (made,), (expected,) = interpreter.run(kernel, schedules_of(kernel), inputs, pairs), reference(kernel, inputs)
    np.testing.assert_array_equal(made, expected)
    assert (made != inputs["kold"]).any(axis=(0, 1, 3)).nonzero()[0].tolist() == [at, at + 1][: ROWS - at]


@pytest.mark.parametrize("form", ["sequences", "halves"])
def test_it_is_compiled_for_gpus(tmp_path: Path, form: str) -> None:
    """Whatever is to be asked for ahead: what a scope of the text names has no other type before it."""
    kernel = updating(form, F16)
    schedules = [replace(schedule, ahead=("knew",)) for schedule in schedules_of(kernel, rows=16)]
    source = generate(kernel, schedules)
    assert "prefetch" not in source.text
    with Compiler(tmp_path, workers=1) as compiler:
        (binaries,) = compiler.compile([("append", source)], [Architecture(90)])
    assert not isinstance(binaries, NotCompiled), binaries


def test_onnxruntime_runs_it_in_one_buffer() -> None:
    """As a session on the CPU runs compiled kernels, of rows that a number below zero marks."""
    if not levels():
        pytest.skip("no processor that kernels in C are for")
    types = {"mark": tensor(F32, ROOM, 1), "new": tensor(F32, 1, SIZE), "old": tensor(F32, ROOM, SIZE)}
    kernel = kernel_of_terms("append", types, {"y": "Where(Less(mark, 0.0), new, old)"})
    assert shared(kernel) == {0: 2}
    source = generate_in_c(kernel, schedules_of(kernel))
    images = [ObjectImage(FEATURES[level.name], build(source.text, level, kernel.label)) for level in levels()]
    body = [
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Less", ["mark", "zero"], ["is_new"]),
        helper.make_node("Where", ["is_new", "new", "old"], ["y"]),
    ]
    options = ort.SessionOptions()
    register(options)
    shapes = {"mark": ["T", 1], "new": [1, SIZE], "old": ["T", SIZE]}
    session = ort.InferenceSession(cpu_model(source.plan, images, body, shapes), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    mark, new, old = (generator.standard_normal(shape).astype(np.float32) for shape in ((1000, 1), (1, SIZE), (1000, SIZE)))
    buffer, binding = ort.OrtValue.ortvalue_from_numpy(old), session.io_binding()
    binding.bind_cpu_input("mark", mark)
    binding.bind_cpu_input("new", new)
    binding.bind_ortvalue_input("old", buffer)
    binding.bind_ortvalue_output("y0", buffer)
    session.run_with_iobinding(binding)
    (apart,) = session.run(None, {"mark": mark, "new": new, "old": old})
    assert buffer.numpy().tobytes() == apart.tobytes() == np.where(mark < 0, new, old).tobytes()


def test_choices_that_share_their_branches_are_followed_so_far_alone() -> None:
    """Each has two paths to the one before it: to follow all through forty of them would take for ever."""
    term = var("x")
    for number in range(40):
        term = make("Where", [var(f"c{number}"), term, make("Where", [var(f"d{number}"), var("n"), term])])
    block: Any = SimpleNamespace(defined={})
    assert list(_kept(block, term)) == []
    assert sum(1 for _ in _chosen(term)) < 1 << 18
