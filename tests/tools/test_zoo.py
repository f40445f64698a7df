"""The zoo models that need no torch run in onnxruntime and give useful outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from tools.zoo.__main__ import main
from tools.zoo.built import lora_block, write_big
from tools.zoo.draws import Array
from tools.zoo.exported import SIZED_ARCHITECTURES
from tools.zoo.light import _draw, light_models, load_light
from tools.zoo.running import random_inputs
from tools.zoo.skeletons import fill, read_skeleton, skeleton, write_skeleton

# Small enough to be quick, and between them every way of synthesising, reshaping and normalising.
QUICK_LIGHT_MODELS = ("squeezenet", "shufflenet", "inception_v1", "densenet121")


def run(model: onnx.ModelProto | Path) -> Array:
    """The first output for random input."""
    source = model if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    output: Array = session.run(None, random_inputs(session, np.random.default_rng(1)))[0]
    return output


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def test_the_wheel_has_nine_light_models() -> None:
    assert len(light_models()) == 9


@pytest.mark.parametrize("name", QUICK_LIGHT_MODELS)
def test_light_model_gives_finite_varied_output(name: str) -> None:
    model = load_light(name)
    onnx.checker.check_model(model)
    output = run(model).ravel()
    assert output.size == 1000
    assert np.isfinite(output).all()
    # Were all classes alike, or all but one zero, a wrong rewrite could go unnoticed.
    assert len(np.unique(output)) > 900
    if "Softmax" in operators(model):
        assert output.max() < 0.5


@pytest.mark.parametrize("name", QUICK_LIGHT_MODELS)
def test_light_model_has_its_weights_as_constants(name: str) -> None:
    model = load_light(name)
    initializers = {tensor.name for tensor in model.graph.initializer}
    assert "ConstantOfShape" not in operators(model)
    assert not initializers & {value.name for value in model.graph.input}
    assert initializers <= {name for node in model.graph.node for name in node.input}


def test_batch_statistics_normalise_what_they_were_measured_on() -> None:
    model = load_light("shufflenet")
    first = next(node for node in model.graph.node if node.op_type == "BatchNormalization")
    last = [node for node in model.graph.node if node.op_type == "BatchNormalization"][-1]
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(node.output[0]) for node in (first, last))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for output in session.run(None, random_inputs(session, np.random.default_rng(1))):
        assert 0.5 < output.std() < 2, "the gain is about 1"


def test_light_weights_depend_on_the_seed_alone() -> None:
    assert load_light("squeezenet", seed=3) == load_light("squeezenet", seed=3)
    assert load_light("squeezenet", seed=3) != load_light("squeezenet", seed=4)


def test_unknown_light_model_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="squeezenet"):
        load_light("squeezenett")


def test_lora_block_runs_and_keeps_scale() -> None:
    model = lora_block()
    onnx.checker.check_model(model, full_check=True)
    output = run(model)
    assert output.shape == (1, 128, 512)
    assert np.isfinite(output).all()
    assert 0.5 < output.std() < 5


def test_lora_block_is_causal() -> None:
    sequence, changed = 8, 5
    model = lora_block(hidden=32, heads=2, sequence=sequence, intermediate=48, rank=4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((1, sequence, 32), np.float32)
    y = x.copy()
    y[:, changed] += 1
    (before,), (after,) = (session.run(None, {"hidden_states": value}) for value in (x, y))
    np.testing.assert_array_equal(after[:, :changed], before[:, :changed])
    assert (np.abs(after - before)[:, changed:].max(axis=(0, 2)) > 1e-3).all()


def test_lora_block_rejects_heads_of_odd_size() -> None:
    with pytest.raises(ValueError, match="even size"):
        lora_block(hidden=24, heads=8)


def test_big_model_runs_from_external_data(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    write_big(path, gigabytes=0.02, width=1024)
    assert path.stat().st_size < 10_000
    assert 0.02e9 <= path.with_name("big.onnx.data").stat().st_size < 0.03e9
    onnx.checker.check_model(str(path))
    output = run(path)
    assert output.shape == (1, 1024)
    assert np.isfinite(output).all()
    assert output.std() > 0.1


def test_big_model_has_at_least_one_weight(tmp_path: Path) -> None:
    write_big(tmp_path / "big.onnx", gigabytes=0, width=16)
    assert run(tmp_path / "big.onnx").shape == (1, 16)


def test_a_parameter_of_unknown_use_is_an_error() -> None:
    with pytest.raises(ValueError, match="operand 1 of Tanh"):
        _draw(np.random.default_rng(0), ("Tanh", 1), (4,))


@pytest.mark.parametrize(("error", "exit_code"), [(1e-7, 0), (1.0, 1), (float("nan"), 1)])
def test_export_fails_when_the_file_computes_something_else(
    error: float, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_export(name: str, path: Path, fp16: bool) -> float:
        write_big(path, gigabytes=0, width=16)
        return error

    monkeypatch.setattr("tools.zoo.__main__.export_model", fake_export)
    result = CliRunner().invoke(main, ["export", "bert", "--dir", str(tmp_path)])
    assert result.exit_code == exit_code
    assert ("relative error" in result.output) == (exit_code != 0)


# --- skeletons ------------------------------------------------------------------------------------------------------


def test_a_skeleton_leaves_out_the_weights_and_nothing_else(tmp_path: Path) -> None:
    model = lora_block()
    write_skeleton(model, tmp_path / "block.skeleton")
    assert (tmp_path / "block.skeleton").stat().st_size < model.ByteSize() / 15
    filled = fill(read_skeleton(tmp_path / "block.skeleton"))
    assert filled.graph.node == model.graph.node and filled.graph.input == model.graph.input
    tensors = list(zip(model.graph.initializer, filled.graph.initializer, strict=True))
    drawn = {left.name for left, right in tensors if left != right}
    assert drawn == {t.name for t in model.graph.initializer if t.name.endswith("_proj.weight")}
    for left, right in tensors:
        before, after = (onnx.numpy_helper.to_array(tensor) for tensor in (left, right))
        assert before.dtype == after.dtype and before.shape == after.shape
        if left.name in drawn:
            assert abs(after.std() / before.std() - 1) < 0.02 and not np.array_equal(before, after)
    assert 0.5 < run(filled).std() < 5


def test_large_tables_of_few_values_stay() -> None:
    mask = np.where(np.tri(512, dtype=np.bool_), 0, -np.inf).astype(np.float16)
    normal = np.random.default_rng(0).normal(3, 0.5, (512, 512)).astype(np.float16)
    counted = np.arange(512 * 512).reshape(512, 512)
    arrays = {"mask": mask, "normal": normal, "counted": counted}
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], initializers))
    filled = {t.name: onnx.numpy_helper.to_array(t) for t in fill(skeleton(model)).graph.initializer}
    np.testing.assert_array_equal(filled["mask"], mask)
    np.testing.assert_array_equal(filled["counted"], counted)
    assert filled["normal"].dtype == np.float16
    assert abs(filled["normal"].mean(dtype=float) - 3) < 0.01 and abs(filled["normal"].std(dtype=float) - 0.5) < 0.01


def test_a_skeleton_is_no_model_until_it_is_filled() -> None:
    bare = skeleton(lora_block())
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        ort.InferenceSession(bare.SerializeToString(), providers=["CPUExecutionProvider"])
    assert fill(bare, seed=1) == fill(bare, seed=1)
    assert fill(bare, seed=1) != fill(bare, seed=2)


def test_skeleton_and_fill_on_the_command_line(tmp_path: Path) -> None:
    model, bare, out = (tmp_path / name for name in ("model.onnx", "model.skeleton", "out.onnx"))
    onnx.save(load_light("squeezenet"), model)
    for arguments in (["skeleton", str(model), str(bare)], ["fill", str(bare), str(out), "--seed", "4"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
    assert np.isfinite(run(out)).all()
    refused = CliRunner().invoke(main, ["fill", str(model), str(out)])
    assert refused.exit_code == 1 and "not a skeleton" in refused.output


def test_sized_models_say_their_sizes() -> None:
    for name, architecture in SIZED_ARCHITECTURES.items():
        batch, *rest = map(int, name.rsplit("_", 1)[1].split("x"))
        for shape in architecture.inputs.values():
            assert shape[0] == batch and list(shape[1:]) == (rest or list(shape[1:]))
