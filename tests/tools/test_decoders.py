"""Steps of decoders in several spellings: equal numbers, and the kernels that become of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import load, to_bytes
from mugraph.onnx.cleaning import clean
from mugraph.terms.term import walk
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import FusableSet, propose
from rewriter.kernels.fuse.kernels import Built, KernelBuilder
from rewriter.kernels.text.analysis import updates
from rewriter.reference import reference_outputs
from rewriter.run.cleaning import computed
from rewriter.run.shared_buffers import named_buffers
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import kernel_of_rule
from tests.support.decoding import attending, beginning, updating
from tools.bench import decoding
from tools.bench.decoding import MODELS, DecodingCase, bound_milliseconds, parse_row, small
from tools.zoo.decoder_files import write_step, write_weights
from tools.zoo.decoders import (
    FIXED,
    LLAMA_STEP,
    SPELLINGS,
    STORES,
    Decoder,
    Spelling,
    Store,
    cache_names,
    decoder_step,
    step_weights,
)
from tools.zoo.draws import repeated_normal
from tools.zoo.steps import STEPS, export_step

SMALL = Decoder()
EVERY = (*SPELLINGS, *FIXED)
CHOSEN: tuple[Spelling, ...] = ("static", "scatternd", "elements", "chosen")
"""Whose new position may be chosen for each entry."""


def spelled(spelling: Spelling, which: Decoder = SMALL) -> Decoder:
    """A small decoder in a spelling; of as many heads of keys as of queries where it has no others."""
    return replace(which, spelling=spelling, key_heads=which.heads if spelling == "multihead" else which.key_heads)


def feeds(which: Decoder, batch: int, past: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(past)
    kind = np.float16 if which.half else np.float32
    words = generator.integers(0, which.words, (batch, which.new))
    shape = (batch, which.key_heads, past, which.size)
    counted = {"attention_mask": np.ones((batch, past + which.new), np.int64)} if which.spelling == "genai" else {}
    return {
        "input_ids": words,
        **counted,
        **{name: generator.standard_normal(shape).astype(kind) for name, _ in cache_names(which.layers)},
    }


def results(model: onnx.ModelProto, fed: dict[str, np.ndarray], fuses: bool = True) -> list[np.ndarray]:
    options = ort.SessionOptions()
    if not fuses:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, fed)


@pytest.mark.parametrize("spelling", SPELLINGS[1:])
@pytest.mark.parametrize("past", [1, 9])
def test_spellings_give_equal_numbers(spelling: Spelling, past: int) -> None:
    which = spelled(spelling)
    fed, explicit = feeds(which, 2, past), replace(which, spelling="explicit")
    expected = results(decoder_step(explicit), {name: array for name, array in fed.items() if name != "attention_mask"})
    actual = results(decoder_step(which), fed)
    assert [x.shape for x in actual] == [x.shape for x in expected]
    assert expected[1].shape == (2, which.key_heads, past + 1, which.size)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)


SEVERAL: dict[Spelling, int] = {"explicit": 2, "attention": 2, "grouped": 1, "packed": 1, "genai": 1}
"""Whose step may take several words, and of how many sequences: onnxruntime's GroupQueryAttention takes them of one."""


@pytest.mark.parametrize("spelling", SEVERAL)
@pytest.mark.parametrize("past", [0, 9])
def test_several_words_are_as_many_steps(spelling: Spelling, past: int) -> None:
    """A prompt that goes on, or words that were guessed: each sees those before it, and the cache."""
    which = replace(SMALL, spelling=spelling, new=3)
    fed = feeds(which, SEVERAL[spelling], past)
    logits, *present = results(decoder_step(which), fed)
    one_word, cache, single = decoder_step(replace(which, new=1)), {n: fed[n] for n, _ in cache_names(which.layers)}, []
    for at in range(3):
        counted = {name: array[:, : past + at + 1] for name, array in fed.items() if name == "attention_mask"}
        expected, *parts = results(one_word, {"input_ids": fed["input_ids"][:, at : at + 1], **counted, **cache})
        cache = dict(zip(cache, parts, strict=True))
        single.append(expected)
    for one, other in zip((logits, *present), (np.concatenate(single, axis=1), *cache.values()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("spelling", SEVERAL)
def test_several_words_attend_in_one_kernel(spelling: Spelling) -> None:
    """Over a cache of any length, an empty one among them; the file with it gives the original's numbers."""
    which = replace(SMALL, spelling=spelling, new=3, layers=1)
    model, _, candidate = attending(which)
    kernel = kernel_of_rule(candidate.moves[-1].direction.rule)
    assert kernel is not None and str(kernel.blocks[0].sizes["t"]) == "3+past"
    written = onnx.ModelProto.FromString(to_bytes(model, candidate.graph))
    for past in (0, 1, 9):
        fed = feeds(which, SEVERAL[spelling], past)
        for one, other in zip(results(written, fed), results(decoder_step(which), fed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("spelling", FIXED)
@pytest.mark.parametrize("past", [0, 9, SMALL.room - 1])
def test_a_cache_of_a_fixed_size_counts_up_to_the_position(spelling: Spelling, past: int) -> None:
    """What lies behind the position, whatever it is, changes no word. It stays as it was, but where GroupQueryAttention has
    two buffers, one of which it does not write there.
    """
    which, fed = spelled(spelling), feeds(SMALL, 2, past)
    behind = (2, which.key_heads, which.room - past, which.size)
    cache = {name: np.concatenate([fed[name], np.full(behind, 7, np.float32)], axis=2) for name, _ in cache_names(which.layers)}
    position = np.full(2 if spelling == "tensorscatter" else 1, past)
    actual = results(decoder_step(which), {**fed, **cache, "position": position})
    expected = results(decoder_step(SMALL), fed)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=2e-6)
    for one, other in zip(actual[1:], expected[1:], strict=True):
        np.testing.assert_allclose(one[:, :, : past + 1], other, rtol=1e-4, atol=2e-6)
        assert spelling == "shared" or (one[:, :, past + 1 :] == 7).all()


@pytest.mark.parametrize("spelling", EVERY)
def test_layers_of_any_number_have_names_of_their_own(spelling: Spelling) -> None:
    graph = decoder_step(spelled(spelling, replace(SMALL, layers=28))).graph
    names = [name for node in graph.node for name in node.output] + [value.name for value in (*graph.initializer, *graph.input)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_heads_that_share_keys_are_refused_where_the_operator_has_none() -> None:
    with pytest.raises(ValueError, match="4 heads of queries and 2 of keys"):
        decoder_step(replace(SMALL, spelling="multihead"))
    with pytest.raises(ValueError, match="3 new words a step, spelled 'chosen'"):
        decoder_step(replace(SMALL, spelling="chosen", new=3))
    with pytest.raises(ValueError, match="any new words a step, spelled 'chosen'"):
        decoder_step(replace(SMALL, spelling="chosen", new=None))
    with pytest.raises(ValueError, match="normalised, of one product, spelled 'genai'"):
        decoder_step(replace(SMALL, spelling="genai", normalises_heads=True))


@pytest.mark.parametrize("spelling", ["explicit", "attention", "grouped", "packed"])
@pytest.mark.parametrize("store", STORES[1:])
def test_stores_give_the_numbers_of_dequantised_floats(store: Store, spelling: Spelling) -> None:
    """onnxruntime rounds the operands of products by DequantizeLinear to eight bits if it is let."""
    fed = feeds(SMALL, 2, 9)
    stored, floats = (decoder_step(replace(SMALL, spelling=spelling, store=kind)) for kind in (store, "floats"))
    weights = dict(step_weights(stored))
    assert weights
    for tensor in floats.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights.pop(tensor.name), tensor.name))
    assert not weights
    for one, other in zip(results(stored, fed, fuses=False), results(floats, fed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=5e-6)


QWEN = replace(SMALL, head=32, is_tied=True, normalises_heads=True)
"""Heads wider than hidden / heads, normalised; the last product is by the table of words."""


@pytest.mark.parametrize("spelling", ["explicit", "attention", "grouped", "scatternd", "tensorscatter"])
@pytest.mark.parametrize("store", STORES)
def test_normalised_heads_of_another_size_and_a_tied_head_are_understood(spelling: Spelling, store: Store) -> None:
    """Equal numbers in all spellings with a cache that grows, which depend on what normalises."""
    which = replace(QWEN, spelling=spelling, store=store)
    model = decoder_step(which)
    assert not load(model).opaque
    if spelling in SPELLINGS:
        fed = feeds(which, 2, 9)
        ours, explicit = (results(m, fed, fuses=False) for m in (model, decoder_step(replace(which, spelling="explicit"))))
        assert ours[1].shape == (2, which.key_heads, 10, 32)
        for one, other in zip(ours, explicit, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=5e-6)
        (gain,) = (tensor for tensor in model.graph.initializer if tensor.name == "qgainw1")
        gain.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(gain), gain.name))
        assert np.abs(results(model, fed, fuses=False)[0] - ours[0]).max() > 1e-2


def test_a_tied_head_is_one_tensor_of_the_file_where_it_is_stored_as_floats() -> None:
    def heads(which: Decoder) -> set[str]:
        return {t.name for t in decoder_step(which).graph.initializer if t.name.startswith("headw")}

    assert heads(QWEN) == set()
    assert heads(replace(QWEN, is_tied=False)) == {"headw"}
    assert heads(replace(QWEN, store="packed")) == {"headw_q", "headw_s"}
    tied, words = (dict(step_weights(decoder_step(replace(QWEN, store=store)))) for store in ("packed", "floats"))
    np.testing.assert_allclose(tied["headw"], words["words"].T, atol=0.1 * np.abs(words["words"]).max())


@pytest.mark.parametrize("spelling", SEVERAL)
def test_one_file_takes_a_prompt_and_steps(spelling: Spelling) -> None:
    """As many new words as a run has, behind any cache."""
    which = replace(SMALL, spelling=spelling, new=None)
    free = decoder_step(which)
    for new, past in ((5, 0), (1, 9), (3, 2)):
        fixed = replace(which, new=new)
        fed = feeds(fixed, SEVERAL[spelling], past)
        for one, other in zip(results(free, fed), results(decoder_step(fixed), fed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("spelling", SEVERAL)
def test_one_file_for_a_prompt_and_steps_is_understood(spelling: Spelling) -> None:
    """Also where nothing says that a table of angles has rows for as many words: numbers are those of float64 up to its end."""
    which = replace(SMALL, spelling=spelling, new=None)
    proto = decoder_step(which)
    model = load(proto)
    assert not model.opaque
    for new, past in ((5, 0), (2, 9), (1, SMALL.room - 1), (SMALL.room, 0)):
        fed = feeds(replace(which, new=new), SEVERAL[spelling], past)
        (references,) = reference_outputs(model, [fed])
        for one, other in zip(results(proto, fed), references, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("store", STORES)
def test_weights_beside_the_files_are_those_within(store: Store, tmp_path: Path) -> None:
    """Two spellings share one file of weights, which is written once; arrays that are large repeat numbers, none are zeros."""
    which = replace(QWEN, store=store, words=9000, layers=1)
    weights = tmp_path / "weights.data"
    write_weights(which, weights)
    written = weights.stat().st_mtime_ns
    write_weights(which, weights)
    assert weights.stat().st_mtime_ns == written
    fed = feeds(which, 1, 3)
    for spelling in ("explicit", "grouped"):
        path, spelled_so = tmp_path / f"{spelling}.onnx", replace(which, spelling=spelling)
        write_step(spelled_so, path, weights)
        assert path.stat().st_size < 100_000
        whole = decoder_step(spelled_so)
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        for one, other in zip(session.run(None, fed), results(whole, fed), strict=True):
            np.testing.assert_array_equal(one, other)
        beside = dict(step_weights(onnx.load(path, load_external_data=False), tmp_path))
        assert beside.keys() == dict(step_weights(whole)).keys()
        assert all((array != 0).mean() > 0.85 for array in beside.values())
    large = repeated_normal(np.random.default_rng(0), (1200, 1024), 2.0)
    assert large.std() == pytest.approx(2.0, rel=0.01) and len(np.unique(large[:, 0])) == len(large)


@pytest.mark.parametrize("store", STORES[1:])
@pytest.mark.parametrize("half", [False, True])
def test_every_node_of_a_step_with_narrow_weights_is_understood(store: Store, half: bool) -> None:
    model = load(decoder_step(replace(SMALL, half=half, store=store)))
    assert not model.opaque
    products = Counter(node.op for node in model.graph.nodes())
    assert products["MatMulNBits" if store == "packed" else "DequantizeLinear"] == 7 * SMALL.layers + 1


@pytest.mark.parametrize("spelling", EVERY)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("batch", "past"), [(None, None), (2, 7)])
def test_every_node_of_a_step_is_understood(spelling: Spelling, half: bool, batch: int | None, past: int | None) -> None:
    model = load(decoder_step(replace(spelled(spelling), half=half, batch=batch, past=past)))
    assert not model.opaque


def kernels(which: Decoder, operator: str) -> list[tuple[FusableSet, Built]]:
    """The fusable sets with an operator that become kernels."""
    builder, built = KernelBuilder(), []
    for fusable in propose(load(decoder_step(which)).graph):
        if any(part.op == operator for part in walk(fusable.terms)):
            try:
                built.append((fusable, builder.build(fusable)))
            except NotFusable:
                continue
    return built


@pytest.mark.parametrize("half", [False, True])
def test_a_step_of_any_length_attends_in_one_kernel_that_reads_the_cache(half: bool) -> None:
    which = replace(SMALL, half=half, layers=1)
    found = []
    for fusable, made in kernels(which, "Softmax"):
        kernel = kernel_of_rule(made.rule)
        assert kernel is not None and why_not_proved(made.general) is None
        caches = [t for t in fusable.types.values() if len(t.shape) == 4 and str(t.shape[2]) == "past"]
        if len(caches) == 2 and sum(part.op == "MatMul" for part in walk(fusable.terms)) == 2:
            found.append(kernel)
    assert found
    (block,) = found[-1].blocks
    assert block.sizes["s"] == which.heads // which.key_heads and str(block.sizes["t"]) == "1+past"
    for load_ in block.loads:
        assert block.phases[load_.name] != "loop" or "s" not in block.value_axes[load_.name]


@pytest.mark.parametrize("spelling", CHOSEN)
def test_keys_and_values_of_a_fixed_size_are_updated_by_one_kernel(spelling: Spelling) -> None:
    """With the new ones, of which it computes the rotary embedding; it writes where it reads if one buffer is bound as both."""
    which = replace(SMALL, spelling=spelling, layers=1)
    graph = beginning(which)[2].graph
    assert any(set(fusable.roots) == set(graph.outputs[1:]) for fusable in propose(graph))
    _, moves, attended = attending(which)
    candidate = updating(moves, attended)
    kernel = kernel_of_rule(candidate.moves[-1].direction.rule)
    assert kernel is not None and why_not_proved(kernel) is None
    assert {"Cos", "Where"} <= {part.op for part in walk(kernel.body)}
    assert [len(updates(kernel, block)) for block in kernel.blocks] == [2]


@pytest.mark.parametrize("appended", ["Concat<axis = 2>({}old, {}t)", "Where(here, {}t, {}old)"])
def test_keys_that_are_normalised_are_appended_with_their_values(appended: str) -> None:
    """Both come of one product's operand, and the normalisation is one operator."""
    appended = appended.replace("{}", "{0}")
    length = 8 if "Where" in appended else 9
    model = parse_model(f"""<ir_version: 10, opset_import: ["" : 20]> g (
        float[2,1,32] x, float[32,32] kw, float[32,32] vw, float[16] gain, bool[8,1] here,
        float[2,2,8,16] kold, float[2,2,8,16] vold
        ) => (float[2,2,{length},16] kall, float[2,2,{length},16] vall) <int64[4] heads = {{0, 0, -1, 16}}> {{
            k = MatMul(x, kw) v = MatMul(x, vw) kh = Reshape(k, heads) vh = Reshape(v, heads)
            kn = SimplifiedLayerNormalization<axis = -1, epsilon = 0.000001, stash_type = 1>(kh, gain)
            kt = Transpose<perm = [0, 2, 1, 3]>(kn) vt = Transpose<perm = [0, 2, 1, 3]>(vh)
            kall = {appended.format("k")} vall = {appended.format("v")}
        }}""")
    graph = load(model).graph
    assert any(set(fusable.roots) == set(graph.outputs) for fusable in propose(graph))


@pytest.mark.parametrize("spelling", ["explicit", "chosen"])
def test_queries_are_normalised_where_they_attend_and_keys_for_all_their_readers(spelling: Spelling) -> None:
    """Keys are read by what appends them, too; that is one kernel with the values, which are not normalised."""
    which = replace(QWEN, layers=1, spelling=spelling)
    model = load(decoder_step(which))
    sets = list(propose(model.graph))
    attending = [
        Counter(part.op for part in walk(fusable.terms))["ReduceMean"]
        for fusable in sets
        if any(part.op == "Softmax" for part in walk(fusable.terms))
    ]
    assert {0, 1, 2} <= set(attending)
    returned = {after for _, after in cache_names(which.layers)}
    assert any({model.tables.names[root] for root in fusable.roots} == returned for fusable in sets)


@pytest.mark.parametrize("spelling", EVERY)
def test_a_step_attends_in_one_kernel_however_it_is_spelled(spelling: Spelling) -> None:
    """Queries that share keys are rows of a block, which reads these once; what makes the cache longer is a launch of its own."""
    which = spelled(spelling, replace(SMALL, layers=1))
    _, _, candidate = attending(which)
    kernel = kernel_of_rule(candidate.moves[-1].direction.rule)
    assert kernel is not None
    block, *appends = kernel.blocks
    assert block.sizes.get("s", 1) == which.heads // which.key_heads
    for load_ in block.loads:
        assert block.phases[load_.name] != "loop" or "s" not in block.value_axes[load_.name]
    cached = [t for t in kernel.inputs if len(t.type.shape) == 4 and t.type.shape[-1] == which.size and t.type.shape[-2] != 1]
    assert len(cached) == 2, "the cache is read where it lies"
    own = {"attention": 2, "multihead": 2, "grouped": 1, "packed": 1}  # keys and values are of one size in the last two
    assert len(appends) == own.get(spelling, 0)


def words_of(proto: bytes, which: Decoder, batch: int, count: int) -> list[np.ndarray]:
    """The likeliest words behind a prompt of three, one step after the other from an empty cache."""
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    fixed, names = which.spelling in FIXED, cache_names(which.layers)
    empty = np.zeros((batch, which.key_heads, which.room if fixed else 0, which.size), np.float32)
    cache, prompt = {name: empty for name, _ in names}, np.random.default_rng(batch).integers(0, which.words, (batch, 3))
    text = [prompt[:, at : at + 1] for at in range(3)]
    for at in range(count + 2):
        told = {"position": np.full(batch if which.spelling == "tensorscatter" else 1, at)} if fixed else {}
        told |= {"attention_mask": np.ones((batch, at + 1), np.int64)} if which.spelling == "genai" else {}
        logits, *present = session.run(None, {"input_ids": text[at], **cache, **told})
        cache = {name: array for (name, _), array in zip(names, present, strict=True)}
        if at >= 2:
            text.append(logits.argmax(-1))
    return text


@pytest.mark.parametrize("spelling", EVERY)
def test_64_words_behind_a_prompt_are_those_of_the_original(spelling: Spelling) -> None:
    """The plain bodies of the kernels run, for several batches and any length of one file."""
    which = spelled(spelling, replace(SMALL, layers=1, room=72))
    model, _, candidate = attending(which)
    written = to_bytes(model, candidate.graph)
    assert any(node.op_type == "Kernel" for node in onnx.ModelProto.FromString(written).graph.node)
    for batch in (1, 3):
        original, ours = (words_of(p, which, batch, 64) for p in (decoder_step(which).SerializeToString(), written))
        assert len(ours) == 67 and all(map(np.array_equal, original, ours))
        assert len(np.unique(np.stack(ours[3:]))) > 5


def counted_words(proto: bytes, which: Decoder, lengths: list[int], count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The likeliest words behind prompts of unequal lengths, and the buffers, one each, that are read and written."""
    session, generator = ort.InferenceSession(proto, providers=["CPUExecutionProvider"]), np.random.default_rng(len(lengths))
    batch, names = len(lengths), cache_names(which.layers)
    buffers = {}
    for before, _ in names:
        rows = generator.standard_normal((batch, which.key_heads, which.room, which.size)).astype(np.float32)
        buffers[before] = ort.OrtValue.ortvalue_from_numpy(rows)
    words, found = generator.integers(0, which.words, (batch, 1)), []
    for step in range(count):
        mask = np.zeros((batch, max(lengths) + step + 1), np.int64)
        for sequence, length in enumerate(lengths):
            mask[sequence, : length + step + 1] = 1
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", words)
        binding.bind_cpu_input("attention_mask", mask)
        binding.bind_output("logits", "cpu")
        for before, after in names:
            binding.bind_ortvalue_input(before, buffers[before])
            binding.bind_ortvalue_output(after, buffers[before])
        session.run_with_iobinding(binding)
        words = binding.get_outputs()[0].numpy().argmax(-1)
        found.append(words)
    return np.concatenate(found, axis=1), [value.numpy().copy() for value in buffers.values()]


def test_64_words_of_unequal_sequences_in_one_buffer_are_those_of_the_original() -> None:
    """The cache is read and written where it lies: onnxruntime's operator appends, and the kernel attends to what counts."""
    which = replace(SMALL, spelling="genai", layers=1, room=96)
    model, _, candidate = attending(which)
    written = to_bytes(model, candidate.graph)
    nodes = Counter(node.op_type for node in onnx.ModelProto.FromString(written).graph.node)
    assert (nodes["Kernel"], nodes["GroupQueryAttention"]) == (1, 1)
    for lengths in ([3], [20, 0, 7, 11]):
        (ours, buffers), (words, others) = (
            counted_words(proto, which, lengths, 64) for proto in (written, decoder_step(which).SerializeToString())
        )
        assert np.array_equal(ours, words) and len(np.unique(ours)) > 5
        assert all(map(np.array_equal, buffers, others))


def test_lengths_that_the_file_computes_stay_where_operands_change() -> None:
    """No record writes lengths that the run tells: the node is written as it stands in the file, on other operands."""
    which = spelled("grouped", replace(SMALL, layers=1))
    model = load(decoder_step(which))
    negated = model.tables.apply("Neg", (), (model.values["before0"],))
    graph = model.graph.substitute({model.values["q0"]: (negated, 0)})
    written = onnx.ModelProto.FromString(to_bytes(model, graph))
    (kept,) = (node for node in written.graph.node if node.op_type == "GroupQueryAttention")
    assert list(kept.input)[5:7] == ["lengths", "total"] and "Neg" in {node.op_type for node in written.graph.node}
    assert results(written, feeds(which, 2, 5))[0].shape == (2, 1, which.words)


def test_keys_and_values_of_a_layer_are_appended_by_one_kernel() -> None:
    appends = [(f, b) for f, b in kernels(SMALL, "Concat") if len(f.terms) == 2]
    assert len(appends) == 1, "both layers look alike"
    ((fusable, made),) = appends
    assert all(term.op == "Concat" for term in fusable.terms)
    kernel = kernel_of_rule(made.rule)
    assert kernel is not None and [str(t.type) for t in kernel.outputs] == ["float[batch,2,1+past,16]"] * 2
    assert why_not_proved(made.general) is None


@pytest.mark.parametrize("name", ["llama_step", "llama_step_padded", "qwen3_step", "llama_step_static", "qwen3_step_static"])
def test_a_step_of_transformers_is_exported_as_torch_computes_it(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 50}
    config = {**STEPS[name].config, **small, "num_key_value_heads": 2, "head_dim": 16}
    path = tmp_path / "step.onnx"
    assert export_step(replace(STEPS[name], config=config), path) < 1e-5
    model = load(onnx.load(path))
    assert not model.opaque
    cleaned = clean(model, computed)
    shared = named_buffers(model.graph if cleaned is None else cleaned.model.graph)
    assert shared == (dict(cache_names(1)) if STEPS[name].is_static else {})


def test_the_bound_of_a_step_is_what_it_reads() -> None:
    """The figure of four Llama layers, batch 4, 1,024 positions: 396 MB at 4.3 TB/s."""
    assert bound_milliseconds(replace(LLAMA_STEP, batch=4, past=1024)) == pytest.approx(0.092, rel=0.02)
    narrow = bound_milliseconds(replace(LLAMA_STEP, batch=4, past=0, store="packed"))
    assert narrow == pytest.approx(bound_milliseconds(replace(LLAMA_STEP, batch=4, past=0)) * 4.5 / 16)


@pytest.mark.parametrize(
    ("model", "params", "past"), [("llama-3.2-1b", 1.2358e9, 16 * 2 * 512), ("qwen3-0.6b", 0.596e9, 28 * 2 * 1024)]
)
def test_the_bounds_of_whole_models_are_of_their_parameters(model: str, params: float, past: int) -> None:
    """Parameters as the models' cards have them, without normalisations; a tied head is read once, whatever stores it."""
    which = replace(MODELS[model], batch=1, past=2048)
    expected = (2 * params + 2 * 2048 * past) / 4.3e9
    assert bound_milliseconds(which) == pytest.approx(expected, rel=0.001)
    assert bound_milliseconds(replace(which, is_tied=False)) == bound_milliseconds(which)
    prompt = bound_milliseconds(replace(which, past=0, new=512))
    assert 1.0 < prompt / (2 * 512 * params / 790e9) < 1.15, "what attends is little beside the products"


def test_rows_say_sizes_words_and_stores() -> None:
    case = parse_row("1x0+512 packed", "qwen3-0.6b", "grouped", layers=3, is_small=False, is_dynamic=True)
    which = case.which
    assert (which.batch, which.past, which.new, which.store, which.layers, which.hidden) == (1, 0, 512, "packed", 3, 1024)
    assert case.name == "qwen3-0.6b.3 1x0+512 packed grouped dynamic"
    assert case.file_stem == "qwen3-0.6b.3.any.packed.grouped" and case.written.new is None
    assert parse_row("4x1024", "llama", "explicit", layers=None, is_small=True, is_dynamic=False).name == "4x1024"
    for wrong in ("0x8", "1x8+0", "1x8 nibbles", "1x8  packed", "8"):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            parse_row(wrong, "llama", "explicit", layers=None, is_small=True, is_dynamic=False)


@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen3-0.6b"])
def test_a_whole_model_is_measured_for_steps_and_a_prompt_with_one_file(model: str, tmp_path: Path) -> None:
    """Small, on the CPU: what is made is right at both sizes, and made once."""
    kept = tmp_path / "rows.json"
    arguments = [
        str(tmp_path),
        "--json",
        str(kept),
        "--small",
        "--provider",
        "cpu",
        "--model",
        model,
        "--dynamic",
        "--budget",
        "8",
    ]
    arguments += ["--spelling", "grouped", "--row", "1x9", "--row", "1x0+5", "--only", "original", "--only", "predicted"]
    result = CliRunner().invoke(decoding.main, [*arguments, "--rounds", "1"], catch_exceptions=False)
    assert result.exit_code == 0
    step, prompt = json.loads(kept.read_text())
    for row in (step, prompt):
        assert row["problems"] == {} and row["ms"].keys() == {"original", "predicted"}
        assert 0 < row["errors"]["original"] < 3e-3
    assert step["made"] == prompt["made"]


def test_what_was_measured_of_a_row_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that have a time or a problem are not run again, but for the original, which the others are judged by."""
    measured: list[tuple[str, list[str]]] = []

    def measure(row: decoding.StepRow, runners: list[str], *arguments: object) -> dict[str, object]:
        measured.append((row.case.name, runners))
        times = {"ms": dict.fromkeys(runners, 1.0), "problems": {}, "errors": {}, "notes": {}, "made": {}, "pairs": {}}
        if "torch" in runners:
            times |= {"ms": {"original": 2.0}, "problems": {"torch": "none here"}}
        return {"row": row.case.name, "bound_ms": 0.5, **times}

    monkeypatch.setattr(decoding, "measure", measure)
    kept = tmp_path / "rows.json"
    for rows, runners in (
        (("1x8",), ("original", "grouped")),
        (("1x8", "2x8 packed"), ("original", "grouped")),
        (("1x8",), ("grouped", "original", "torch")),
        (("1x8",), ("torch",)),
    ):
        chosen = [text for row in rows for text in ("--row", row)] + [text for one in runners for text in ("--only", one)]
        arguments = [str(tmp_path), "--json", str(kept), "--small", "--provider", "cpu", *chosen]
        assert CliRunner().invoke(decoding.main, arguments, catch_exceptions=False).exit_code == 0
    both = ["original", "grouped"]
    assert measured == [("1x8", both), ("2x8 packed", both), ("1x8", ["original", "torch"])]
    first, second = json.loads(kept.read_text())
    assert (first["ms"], first["problems"]) == ({"original": 2.0, "grouped": 1.0}, {"torch": "none here"})
    assert second["row"] == "2x8 packed"


def test_a_row_that_is_none_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(decoding.main, [str(tmp_path), "--json", str(tmp_path / "rows.json"), "--row", "1x8 nibbles"])
    assert result.exit_code == 2 and "'1x8 nibbles'" in result.output


def test_results_that_are_wrong_get_no_time(tmp_path: Path) -> None:
    """A file that computes something else, and its peer that does not, as they are run."""
    which = replace(small(LLAMA_STEP), batch=1, past=8)
    row = decoding.prepare(DecodingCase("llama", which), ["original", "grouped"], tmp_path, "cpu", 0.0)
    other = decoder_step(replace(which, spelling="grouped"), seed=1)
    onnx.save(other, row.files["grouped"])
    found = decoding.measure(row, ["original", "grouped"], "cpu", "host", 1, tmp_path)
    assert list(found["ms"]) == ["original"] and "wrong" in found["problems"]["grouped"]
