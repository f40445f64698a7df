"""TASO's own models: valid, of a sane scale, and understood node by node."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from mugraph.onnx import load
from tools.zoo.taso import TASO_MODELS


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
