"""Steps of decoders in several spellings: equal numbers, and the kernels that become of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from mugraph.onnx import load
from mugraph.terms.term import walk
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import FusableSet, propose
from rewriter.kernels.fuse.kernels import Built, KernelBuilder
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import kernel_of_rule
from tools.bench import decoding
from tools.bench.decoding import OURS, bound_milliseconds
from tools.zoo.decoders import LLAMA_STEP, SPELLINGS, Decoder, Spelling, cache_names, decoder_step
from tools.zoo.steps import STEPS, export_step

SMALL = Decoder()


def feeds(which: Decoder, batch: int, past: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(past)
    kind = np.float16 if which.half else np.float32
    words = generator.integers(0, which.words, (batch, 1))
    shape = (batch, which.key_heads, past, which.size)
    return {"input_ids": words, **{name: generator.standard_normal(shape).astype(kind) for name, _ in cache_names(which.layers)}}


def results(model: onnx.ModelProto, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, fed)


@pytest.mark.parametrize("spelling", SPELLINGS[1:])
@pytest.mark.parametrize("past", [1, 9])
def test_spellings_give_equal_numbers(spelling: Spelling, past: int) -> None:
    fed = feeds(SMALL, 2, past)
    expected = results(decoder_step(SMALL), fed)
    actual = results(decoder_step(replace(SMALL, spelling=spelling)), fed)
    assert [x.shape for x in actual] == [x.shape for x in expected]
    assert expected[1].shape == (2, SMALL.key_heads, past + 1, SMALL.size)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("batch", "past"), [(None, None), (2, 7)])
def test_every_node_of_an_explicit_step_is_understood(half: bool, batch: int | None, past: int | None) -> None:
    model = load(decoder_step(replace(SMALL, half=half, batch=batch, past=past)))
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


def test_keys_and_values_of_a_layer_are_appended_by_one_kernel() -> None:
    appends = [(f, b) for f, b in kernels(SMALL, "Concat") if len(f.terms) == 2]
    assert len(appends) == 1, "both layers look alike"
    ((fusable, made),) = appends
    assert all(term.op == "Concat" for term in fusable.terms)
    kernel = kernel_of_rule(made.rule)
    assert kernel is not None and [str(t.type) for t in kernel.outputs] == ["float[batch,2,1+past,16]"] * 2
    assert why_not_proved(made.general) is None


@pytest.mark.parametrize("name", ["llama_step", "llama_step_padded", "qwen3_step"])
def test_a_step_of_transformers_is_exported_as_torch_computes_it(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 50}
    config = {**STEPS[name].config, **small, "num_key_value_heads": 2, "head_dim": 16}
    path = tmp_path / "step.onnx"
    assert export_step(replace(STEPS[name], config=config), path) < 1e-5
    assert not load(path).opaque


def test_the_bound_of_a_step_is_what_it_reads() -> None:
    """The figure of four Llama layers, batch 4, 1,024 positions: 396 MB at 4.3 TB/s."""
    assert bound_milliseconds(replace(LLAMA_STEP, batch=4, past=1024)) == pytest.approx(0.092, rel=0.02)


def test_rows_that_were_measured_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(which: Decoder, *arguments: object, **options: object) -> dict[str, object]:
        measured.append(f"{which.batch}x{which.past}")
        return {"row": measured[-1], "ms": {OURS: 1.0}, "bound_ms": 0.5, "errors": {}, "problems": {}, "note": ""}

    monkeypatch.setattr(decoding, "measure", measure)
    for rows in (("1x8",), ("1x8", "2x8")):
        arguments = [str(tmp_path), "--json", str(tmp_path / "rows.json"), *(text for row in rows for text in ("--row", row))]
        assert CliRunner().invoke(decoding.main, arguments, catch_exceptions=False).exit_code == 0
    assert measured == ["1x8", "2x8"]
    assert [row["row"] for row in json.loads((tmp_path / "rows.json").read_text())] == measured
