"""Inputs and outputs that may be one buffer: which they are, and that the numbers are those of two buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.parser import parse_model

from mugraph.blocks.operator import KERNEL, kernel_attrs
from mugraph.onnx import load, to_bytes
from mugraph.ops import get_operator
from rewriter.run.shared_buffers import named_buffers, note_on_shared_buffers
from tests.support.block_kernels import kernel_of_terms
from tests.support.decoding import attending, updating
from tools.zoo.decoders import SPELLINGS, Decoder, Spelling, cache_names, decoder_step

STEP = Decoder(layers=1, room=64)
UPDATED: tuple[Spelling, ...] = ("chosen", "elements", "static", "scatternd", "tensorscatter")


def pairs_of(text: str) -> dict[str, str]:
    return named_buffers(load(parse_model(f'<ir_version: 10, opset_import: ["" : 24]> g {text}')).graph)


@pytest.mark.parametrize("chooses", [False, True])
@pytest.mark.parametrize("spelling", UPDATED)
def test_caches_that_are_updated_may_be_read_and_written_in_one_buffer(spelling: Spelling, chooses: bool) -> None:
    """In the cleaned original, and with the kernel that attends: it reads the cache beside what is new."""
    which = replace(STEP, spelling=spelling)
    model, _, candidate = attending(which, chooses)
    expected = dict(cache_names(which.layers))
    assert named_buffers(model.graph) == named_buffers(candidate.graph) == expected
    first = "'past_key_values.0.key' and 'present.0.key' may be bound to one buffer"
    assert list(note_on_shared_buffers(expected)) == [f"{first}, and so may 1 other pair, which --json names"]
    assert list(note_on_shared_buffers(dict(list(expected.items())[:1]))) == [first]


@pytest.mark.parametrize("spelling", SPELLINGS[:4])
def test_caches_that_grow_are_not_in_one_buffer(spelling: Spelling) -> None:
    graph = load(decoder_step(replace(STEP, spelling=spelling))).graph
    assert not named_buffers(graph) and not list(note_on_shared_buffers({}))


UPDATE = """(float[4,8] past, bool[4,1] here, bool[4,1] there, float[1,8] new, int64[1,8] at, int64[1] from) =>
    (float[4,8] present, float[4,8] other) {{ {} }}"""


@pytest.mark.parametrize(
    ("nodes", "is_shared"),
    [
        ("present = Where(here, new, past) other = Neg(present)", True),
        ("present = Where(here, past, new) other = Neg(present)", True),
        ("present = Where(here, new, past) twice = Add(new, new) x = Where(here, twice, past) other = Neg(x)", True),
        ("present = Where(here, new, past) other = Neg(past)", False),
        ("present = Where(here, new, past) x = Where(there, new, past) other = Neg(x)", False),
        ("present = Where(here, new, past) x = Where(here, past, new) other = Neg(x)", False),
        ("no = Not(here) present = Where(here, new, past) x = Where(no, new, past) other = Neg(x)", False),
        ("x = Neg(past) present = Where(here, x, past) other = Neg(present)", False),
        ("x = Where(here, new, past) present = Neg(x) other = Neg(new)", False),
        ("present = Where(here, past, past) other = Neg(new)", False),
        ("present = ScatterElements<axis = 0>(past, at, new) other = Neg(present)", True),
        ("present = ScatterElements<axis = 0>(past, at, new) other = Neg(past)", False),
        (
            "present = ScatterElements<axis = 0>(past, at, new) x = Where(here, new, past) other = Neg(x)",
            False,
        ),
        (
            "next = Add(at, at) present = ScatterElements<axis = 0>(past, at, new) "
            "x = ScatterElements<axis = 0>(past, next, new) other = Neg(x)",
            False,
        ),
        (
            "twice = Add(new, new) present = ScatterElements<axis = 0>(past, at, new) "
            "x = ScatterElements<axis = 0>(past, at, twice) other = Neg(x)",
            True,
        ),
    ],
)
def test_what_was_there_before_may_be_read_nowhere(nodes: str, is_shared: bool) -> None:
    expected = {"past": "present"} if is_shared else {}
    assert pairs_of(UPDATE.format(nodes)) == expected


def test_longer_news_at_the_same_place_write_over_more() -> None:
    text = """(float[2,4,8] past, float[2,1,8] one, float[2,3,8] three, int64[2] at) => (float[2,4,8] present, float[2,4,8] other)
        {{ present = TensorScatter<axis = 1>(past, {}, at) x = TensorScatter<axis = 1>(past, one, at) other = Neg(x) }}"""
    assert pairs_of(text.format("one")) and not pairs_of(text.format("three"))


def test_an_input_has_one_output_and_an_output_one_input() -> None:
    """What is chosen where nothing is kept may have the buffer, too."""
    text = """(float[4] past, float[4] old, bool[4] c, float[4] new) => (float[4] present, float[4] other, float[4] third)
        { present = Where(c, new, past) other = Where(c, new, past) third = Where(c, past, old) }"""
    assert pairs_of(text) == {"new": "present", "old": "third"}
    both = text.replace("third = Where(c, past, old)", "third = Where(c, new, old)")
    assert pairs_of(both) == {"new": "present", "past": "other", "old": "third"}


@pytest.mark.parametrize(
    ("other", "is_shared"), [("Mul(wide, 2.0)", False), ("Where(here, Mul(new, 2.0), wide)", True), ("past", False)]
)
def test_kernels_have_to_be_written_for_it(other: str, is_shared: bool) -> None:
    """One that stores something else in the same blocks takes its buffers for different ones."""
    model = load(
        parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            g (bool[4,1] here, float[1,8] new, float[4,8] past, float[4,8] wide) => (float[4,8] present, float[4,8] other) {
                present = Where(here, new, past) other = Neg(wide)
            }""")
    )
    graph, tables = model.graph, model.tables
    values = {str(tables.names[value]): value for value in graph.inputs}
    types = {name: type_ for name, value in values.items() if (type_ := graph.type(value)) is not None}
    kernel = kernel_of_terms("append", types, {"y": "Where(here, new, past)", "z": other})
    node = tables.apply(KERNEL, kernel_attrs(kernel), [values[tensor.name] for tensor in kernel.inputs])
    (present, second) = graph.outputs
    changed = graph.substitute({present: (node, 0), second: (node, 1)})
    assert named_buffers(changed) == ({"past": "present", "wide": "other"} if is_shared else {})


@pytest.mark.parametrize(
    ("read", "is_shared"),
    [
        ("Where(there, new, Where(here, new, past))", True),
        ("Where(there, past, Where(here, new, past))", False),
        ("Where(here, new, past)", False),
        ("Where(there, new, past)", False),
        ("Where(here, new, Where(there, new, past))", False),
        ("Add(Where(there, new, Where(here, new, past)), Where(here, new, past))", False),
        ("Where(there, new, Where(here, Mul(past, 2.0), past))", False),
    ],
)
def test_choices_one_behind_another_are_read_so(read: str, is_shared: bool) -> None:
    """By kernels: all of the choices, in their order, and none of them alone."""
    model = load(
        parse_model("""<ir_version: 10, opset_import: ["" : 20]>
            g (bool[4,1] here, bool[4,1] there, float[1,8] new, float[4,8] past) => (float[4,8] present, float[4,8] other) {
                a = Where(here, new, past) present = Where(there, new, a) other = Neg(a)
            }""")
    )
    graph, tables = model.graph, model.tables
    values = {str(tables.names[value]): value for value in graph.inputs}
    types = {name: type_ for name, value in values.items() if (type_ := graph.type(value)) is not None}
    changed = graph
    for output, body in zip(graph.outputs, ("Where(there, new, Where(here, new, past))", f"Neg({read})"), strict=True):
        kernel = kernel_of_terms("choose", types, {"y": body})
        node = tables.apply(KERNEL, kernel_attrs(kernel), [values[tensor.name] for tensor in kernel.inputs])
        changed = changed.substitute({output: (node, 0)})
    assert named_buffers(changed) == ({"past": "present"} if is_shared else {})


def steps(proto: bytes, which: Decoder, together: bool, count: int = 8) -> list[bytes]:
    """The logits of some steps, and the caches at last; in one buffer for past and present, or in two that take turns."""
    session, generator = ort.InferenceSession(proto, providers=["CPUExecutionProvider"]), np.random.default_rng(0)
    shape, found = (2, which.key_heads, which.room, which.size), list[bytes]()
    sides = [
        [ort.OrtValue.ortvalue_from_numpy(generator.standard_normal(shape).astype(np.float32)) for _ in cache_names(which.layers)]
        for _ in range(2)
    ]
    for at in range(count):
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", generator.integers(0, which.words, (2, 1)))
        binding.bind_cpu_input("position", np.full(2 if which.spelling == "tensorscatter" else 1, at))
        binding.bind_output("logits", "cpu")
        for (before, after), one, other in zip(cache_names(which.layers), *sides, strict=True):
            binding.bind_ortvalue_input(before, one)
            binding.bind_ortvalue_output(after, one if together else other)
        session.run_with_iobinding(binding)
        found.append(binding.get_outputs()[0].numpy().tobytes())
        if not together:
            sides.reverse()
    return [*found, *(value.numpy().tobytes() for value in sides[0])]


@pytest.mark.parametrize(
    ("spelling", "kernels"), [*((one, 1) for one in UPDATED), *((one, 2) for one in UPDATED if one != "tensorscatter")]
)
def test_one_buffer_gives_the_bits_of_two(spelling: Spelling, kernels: int) -> None:
    """Of the original in two buffers; kernels run through their plain bodies. The second one is that which updates."""
    which = replace(STEP, spelling=spelling)
    model, moves, candidate = attending(which, chooses=kernels > 1)
    if kernels > 1:
        candidate = updating(moves, candidate)
        assert named_buffers(candidate.graph) == dict(cache_names(which.layers))
    written = to_bytes(model, candidate.graph)
    assert [node.op_type for node in onnx.ModelProto.FromString(written).graph.node].count("Kernel") == kernels
    original, *others = (
        steps(proto, which, together)
        for proto in (decoder_step(which).SerializeToString(), written)
        for together in (False, True)
    )
    assert all(other == original for other in others)


def test_the_body_of_a_kernel_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pairs of buffers are looked at."""
    _, moves, candidate = attending(replace(STEP, spelling="chosen"))
    graph, asked = updating(moves, candidate).graph, list[int]()
    record = get_operator(KERNEL)
    expected = sum(node.op == KERNEL for node in graph.nodes())
    counting = replace(record, decomposition=lambda *given: asked.append(1) or record.decompose(*given))
    monkeypatch.setattr("rewriter.run.shared_buffers.get_operator", lambda op: counting)
    assert len(named_buffers(graph)) == 2 and len(asked) == expected == 2
