"""TASO's own models: valid, of a sane scale, and understood node by node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from mugraph.onnx import load
from tools.zoo.__main__ import main
from tools.zoo.taso import TASO_MODELS, bert, in_half, resnet50


@pytest.mark.parametrize("name", TASO_MODELS)
def test_every_node_is_understood(name: str) -> None:
    proto = TASO_MODELS[name](0)
    onnx.checker.check_model(proto, full_check=True)
    model = load(proto)
    assert not model.opaque
    assert not any(node.is_opaque for node in model.graph.nodes())


def test_values_keep_their_scale() -> None:
    session = ort.InferenceSession(TASO_MODELS["nasrnn"](0).SerializeToString(), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    feeds = {i.name: generator.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    (state,) = session.run(None, feeds)
    assert state.shape == (1, 512) and 0.01 < state.std() < 1


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, feeds)
    return np.asarray(result)


def test_half_precision_computes_the_same() -> None:
    model = bert(layers=1, length=8)
    x = np.random.default_rng(0).standard_normal((1, 8, 768), np.float32)
    single, half = run(model, x=x), run(in_half(model), x=x.astype(np.float16))
    assert half.dtype == np.float16
    assert 0 < np.linalg.norm(half - single) < 1e-2 * np.linalg.norm(single)


def test_images_of_a_batch_are_independent() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 224, 224), np.float32)
    together, alone = run(resnet50(batch=2), x=x), run(resnet50(), x=x[1:])
    np.testing.assert_allclose(together[1:], alone, rtol=1e-3, atol=1e-3 * float(np.abs(alone).max()))
    assert np.abs(together[0] - together[1]).max() > 0.01 * float(np.abs(alone).max())


def test_the_command_names_batch_and_precision(tmp_path: Path) -> None:
    arguments = ["taso", "nasrnn", "--dir", str(tmp_path), "--batch", "4", "--fp16"]
    assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
    (info, *_) = onnx.load(tmp_path / "nasrnn_b4_fp16.onnx").graph.input
    assert info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert [dim.dim_value for dim in info.type.tensor_type.shape.dim] == [4, 512]
