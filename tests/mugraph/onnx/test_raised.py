"""Models of opsets 7 and 8 are read as what they are in opset 9."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import defs, helper
from onnx.defs import OpSchema

from mugraph.onnx import ModelError, load
from mugraph.onnx.parse import _EXTENDED, _is_changed
from rewriter.cli.main import main

OLD = """<ir_version: 3, opset_import: ["" : %d]>
g (float[1,3,8,8] x, float[3] s, float[3] b, float[3] m, float[3] v, bool c) => (float[1,3,16,16] y, float[1,3,64] f) {
    n = BatchNormalization%s(x, s, b, m, v)
    r = Identity(n) q = Relu(r)
    p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(q)
    u = Upsample<mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]>(p)
    w = If (c) <
        then_branch = t () => (t) { t = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]>(q) },
        else_branch = e () => (e) { e = Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(r) }
    >
    y = Max(u, w)
    a, d = Split<axis = 2>(q) j = Concat<axis = 2>(a, d)
    f = Reshape(j, shape)
}"""


def old(opset: int, spatial: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(OLD % (opset, spatial))
    model.graph.initializer.append(helper.make_tensor("shape", onnx.TensorProto.INT64, [3], [1, 3, 64]))
    model.graph.input.append(helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [3]))
    return model


@pytest.mark.parametrize(("opset", "spatial"), [(7, ""), (8, "<spatial = 1>")])
@pytest.mark.parametrize("how", ["--clean", "--deterministic"])
def test_what_is_written_computes_the_same(tmp_path: Path, opset: int, spatial: str, how: str) -> None:
    path, written = tmp_path / "old.onnx", tmp_path / "new.onnx"
    onnx.save(old(opset, spatial), path)
    result = CliRunner().invoke(main, [str(path), "-o", str(written), how, "--provider", "cpu"])
    assert result.exit_code == 0, result.output
    assert f"of opset {opset}, read as opset 9" in " ".join(result.output.split())
    assert len(onnx.load(written).graph.node) < len(onnx.load(path).graph.node), result.output
    random = np.random.default_rng(0)
    inputs = {name: random.uniform(0.5, 2, 3).astype(np.float32) for name in "sbmv"} | {"x": random.normal(size=(1, 3, 8, 8))}
    for choice in (True, False):
        feed = {name: np.asarray(value, np.float32) for name, value in inputs.items()} | {"c": np.array(choice)}
        before, after = (
            ort.InferenceSession(file, providers=["CPUExecutionProvider"]).run(["y", "f"], feed) for file in (path, written)
        )
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_a_model_without_an_equal_is_refused_with_the_node() -> None:
    with pytest.raises(ModelError, match="BatchNormalization 'n' of opset 7 has no equal in opset 9"):
        load(old(7, "<spatial = 0>"))
    with pytest.raises(ModelError, match="opset 6 is not supported, 7 to"):
        load(old(6))
    both = old(8)
    both.opset_import.add(domain="ai.onnx", version=7)
    with pytest.raises(ModelError, match="at versions 8 and 7"):
        load(both)
    early = old(8)
    next(node for node in early.graph.node if node.op_type == "Relu").op_type = "Erf"
    with pytest.raises(ModelError, match="Erf 'q' of opset 8 has no equal in opset 9"):
        load(early)
    called = old(8)
    called.functions.append(onnx.parser.parse_function('<domain: "d", opset_import: ["" : 8]> f (x) => (y) { y = Relu(x) }'))
    with pytest.raises(ModelError, match="a model of opset 8 has no functions"):
        load(called)


def is_extended(before: OpSchema, after: OpSchema) -> bool:
    """Whether what an operator takes and gives is so in a later opset, too, where it may take more."""
    added = [attribute for name, attribute in after.attributes.items() if name not in before.attributes]
    types, later = ({c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints} for schema in (before, after))
    names = [
        ([operand.name for operand in getattr(before, kind)], [operand.name for operand in getattr(after, kind)])
        for kind in ("inputs", "outputs")
    ]
    return (
        set(before.attributes) <= set(after.attributes)
        and not any(attribute.required for attribute in added)
        and all(new[: len(old)] == old for old, new in names)
        and all(types[name] <= later[name] for name in types)
    )


@pytest.mark.parametrize("opset", [7, 8])
def test_what_stays_as_it_is_takes_what_it_took(opset: int) -> None:
    """And onnx knows of no other operator that differs, but of Scan, which is refused."""
    names = {schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain}
    known = {name for name in names if defs.has(name, opset, "")}
    assert {name for name in known if _is_changed(name, opset)} == {"BatchNormalization", "Upsample"} | ({"Scan"} & known)
    for name in _EXTENDED & known:
        assert is_extended(defs.get_schema(name, opset, ""), defs.get_schema(name, 9, "")), name
