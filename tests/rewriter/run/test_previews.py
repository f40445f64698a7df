"""Models with operators of ONNX's preview domain: what is searched, compared and written is what ONNX defines them by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from rewriter import optimize
from tests.support.models import session

HEADS, SIZE, LENGTH = 4, 16, 256
POSITIONS = """of = Shape(x) rows = Gather<axis = 0>(of, two) columns = Gather<axis = 0>(of, three)
    i0 = Range(zero, rows, one) i = Reshape(i0, down) j0 = Range(zero, columns, one) j = Reshape(j0, across)"""
WINDOW = f"{POSITIONS} behind = Sub(i, j) near = Less(behind, width) past = GreaterOrEqual(i, j) seen = And(near, past)"


def flex(body: str, length: int | str = LENGTH, key_heads: int = HEADS, dtype: str = "float") -> ModelProto:
    """FlexAttention whose scores ``x`` become ``z``; half of the probabilities count."""
    types = [f"{dtype}[b,{heads},{length},{SIZE}]" for heads in (HEADS, key_heads)]
    proto = parse_model(f"""<ir_version: 10, opset_import: ["" : 23, "ai.onnx.preview" : 1]>
        g ({types[0]} q, {types[1]} k, {types[1]} v) => ({types[0]} y) {{
            y = ai.onnx.preview.FlexAttention<
                score_mod = scores (float[B,H,L,S] x) => (float[B,H,L,S] z) {{ {body} }},
                prob_mod = shares (float[B,H,L,S] p) => (float[B,H,L,S] r) {{ r = Mul(p, half) }}>(q, k, v)
        }}""")
    numbers = {"zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "three": np.int64(3), "width": np.int64(16)}
    numbers |= {"down": np.array([1, 1, -1, 1]), "across": np.array([1, 1, 1, -1]), "low": np.float32(-np.inf)}
    numbers |= {"half": np.float32(0.5), "cap": np.float32(2)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items())
    return proto


def feeds(key_heads: int = HEADS, batch: int = 2, length: int = LENGTH) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(length)
    heads = {"q": HEADS, "k": key_heads, "v": key_heads}
    return {name: generator.standard_normal((batch, count, length, SIZE)).astype(np.float32) for name, count in heads.items()}


def attended(fed: dict[str, np.ndarray], changed: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> np.ndarray:
    """Half of the attention that scores give when they are changed."""
    k, v = (np.repeat(fed[name], HEADS // fed[name].shape[1], axis=1) for name in "kv")
    with np.errstate(over="ignore"):
        weights = np.exp(changed(fed["q"] @ k.swapaxes(-1, -2) / np.sqrt(SIZE)))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ v / 2)


def behind(x: np.ndarray) -> np.ndarray:
    """How far each key of scores is behind its query."""
    return np.arange(x.shape[-2])[:, None] - np.arange(x.shape[-1])


def windowed(x: np.ndarray) -> np.ndarray:
    return np.where((behind(x) >= 0) & (behind(x) < 16), x, -np.inf)


def causal(x: np.ndarray) -> np.ndarray:
    return np.where(behind(x) >= 0, x, -np.inf)


def capped(x: np.ndarray) -> np.ndarray:
    return np.asarray(2 * np.tanh(x / 2))


CAUSAL, CAPPED = f"{POSITIONS} seen = GreaterOrEqual(i, j)", "a = Div(x, cap) t = Tanh(a) z = Mul(t, cap)"


@pytest.mark.parametrize(
    ("body", "changed", "length", "key_heads", "expected"),
    [
        (f"{WINDOW} z = Where(seen, x, low)", windowed, LENGTH, HEADS, f"BandMask[after=0,before=15,columns={LENGTH}"),
        (f"{WINDOW} z = Where(seen, x, low)", windowed, "s", HEADS, "BandMask[after=0,before=15,columns=s"),
        (f"{CAUSAL} z = Where(seen, x, low)", causal, LENGTH, 2, f"BandMask[after=0,before={LENGTH}"),
        (CAPPED, capped, "s", 2, "Tanh"),
    ],
    ids=["window", "window of symbolic length", "causal, grouped", "capped, grouped, of symbolic length"],
)
def test_a_kernel_computes_what_the_graphs_say(
    body: str, changed: Callable[[np.ndarray], np.ndarray], length: int | str, key_heads: int, expected: str, tmp_path: Path
) -> None:
    onnx.save(flex(body, length, key_heads), tmp_path / "model.onnx")
    sizes = {name: array.shape for name, array in feeds(key_heads).items()}
    paths = tmp_path / "model.onnx", tmp_path / "out.onnx"
    outcome = optimize(*paths, device="h200", deterministic=True, kernels_folder=tmp_path / "kept", shapes=sizes)
    assert outcome.improved and any("1 FlexAttention" in note for note in outcome.notes)
    assert any(node.op_type == "Kernel" for node in onnx.load(paths[1]).graph.node)
    assert expected in "".join(path.read_text() for path in (tmp_path / "kept").glob("*.py"))
    running = session(paths[1])
    for batch, size in ((2, LENGTH), (1, 37)) if length == "s" else ((2, LENGTH),):
        fed = feeds(key_heads, batch, size)
        np.testing.assert_allclose(running.run(None, fed)[0], attended(fed, changed), rtol=1e-4, atol=1e-5)


def test_without_rewriting_the_model_stays_as_it_came(tmp_path: Path) -> None:
    proto = flex("z = Identity(x)")
    optimize(proto, tmp_path / "out.onnx", budget=0, provider="cpu")
    written = onnx.load(tmp_path / "out.onnx")
    assert list(written.graph.node) == list(proto.graph.node) and written.opset_import == proto.opset_import


@pytest.mark.parametrize("options", [{"clean": True}, {"rules": (), "kernels": False}], ids=["cleaned up", "searched"])
def test_what_is_written_runs(options: dict[str, object], tmp_path: Path) -> None:
    """Also where nothing is better, and weights that lay beside the model lie beside the result."""
    proto = flex("z = Identity(x)")
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(SIZE, dtype=np.float32) * 2, "w"))
    proto.graph.node[0].input[0] = "turned"
    proto.graph.node.insert(0, onnx.helper.make_node("MatMul", ["q", "w"], ["turned"]))
    (folder := tmp_path / "in").mkdir()
    onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    outcome = optimize(folder / "model.onnx", tmp_path / "out.onnx", provider="cpu", deterministic=True, **options)
    assert not outcome.improved and any("written out" in note for note in outcome.notes)
    for file in folder.iterdir():
        file.unlink()
    fed = feeds()
    (given,) = session(tmp_path / "out.onnx").run(None, fed)
    np.testing.assert_allclose(given, attended({**fed, "q": 2 * fed["q"]}), rtol=1e-4, atol=1e-5)
    assert sorted(file.name for file in tmp_path.glob("out.onnx*"))[0] == "out.onnx"
