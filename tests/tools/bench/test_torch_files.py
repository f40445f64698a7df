"""ONNX files as modules of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rewriter.reference import compare
from tools.bench import gpu_models, gpu_runners
from tools.bench.torch_files import TorchFileSpec, module_of
from tools.zoo.running import random_inputs, session_of
from tools.zoo.taso import TASO_MODELS, bert, in_half, nasnet_a


def conv(pads: list[int], op: str = "Conv") -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2, 3, 3]) for name in "xwy"]
    node = helper.make_node(op, ["x", "w"], ["y"], pads=pads, strides=[1, 1])
    return helper.make_model(helper.make_graph([node], "g", infos[:2], infos[2:]))


@pytest.mark.parametrize(
    ("model", "told"), [(conv([1, 0, 1, 1]), "pads differ"), (conv([1] * 4, "ConvTranspose"), "ConvTranspose")]
)
def test_what_torch_would_do_otherwise_is_refused(model: onnx.ModelProto, told: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(gpu_runners.RunnerFailed, match=told):
        module_of(model)


@pytest.mark.parametrize("name", TASO_MODELS)
def test_torch_computes_what_onnxruntime_does(name: str) -> None:
    torch = pytest.importorskip("torch")
    small = {"nasnet_a": lambda: nasnet_a(batch=2, channels=8, cells=1), "taso_bert": lambda: bert(batch=2, layers=2, length=8)}
    model = small.get(name, lambda: TASO_MODELS[name](0, 2))()
    session = session_of(model.SerializeToString())
    feeds = random_inputs(session, np.random.default_rng(0))
    with torch.no_grad():
        found = module_of(model)(*(torch.from_numpy(feeds[info.name]) for info in model.graph.input))
    assert compare(found.numpy(), session.run(None, feeds)[0].astype(np.float64)).relative_l2 < 1e-5


def test_a_file_runs_beside_the_others(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "m.onnx"
    onnx.save(in_half(bert(layers=1, length=8)), path)
    runner = TorchFileSpec(path, "eager", "cpu").open()
    feed = {"x": np.random.default_rng(0).standard_normal((1, 8, 768), np.float32).astype(np.float16)}
    runner.load(feed)
    (found,), wide = runner.outputs(), runner.reference()
    assert wide is not None and found.dtype == np.float16 and wide[0].dtype == np.float32
    assert compare(found, wide[0].astype(np.float64)).relative_l2 < 1e-2


def test_a_file_that_is_no_skeleton_is_torchs_own_peer(tmp_path: Path) -> None:
    onnx.save(conv([1, 0, 1, 1]), tmp_path / "m.onnx")
    opened = gpu_models.open_torch(tmp_path, ["m", "other"], ["eager"], "cpu", "host", 60, 1)
    problems = {name: str(remote) for (name, _), remote in opened.items()}
    assert problems["other"] == "no architecture of this name in tools.zoo"
    assert "pads differ" in problems["m"] or "torch" in problems["m"]
