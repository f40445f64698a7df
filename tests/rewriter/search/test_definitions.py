"""Products that ONNX has under another name: rules that say what they are defined as, at a model's sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import load
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term
from rewriter import optimize
from rewriter.search.definitions import definitions_in
from rules_db.exchange import format_rules, parse_rules
from rules_db.trust.certificate import Evidence
from rules_db.trust.check import check
from rules_db.trust.rule import Rule
from tests.support.models import op_types, session


def _rules_of(equation: str, x: str, y: str) -> list[Rule]:
    model = parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float16{x} x, float16{y} y) => (float16[] z)
        {{ z = Einsum<equation = "{equation}">(x, y) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return list(definitions_in(load(model).graph))


@pytest.mark.parametrize("wide", ["[768,12,64]", "[8192,64,128]"], ids=["small", "more entries than are numbered"])
def test_a_product_of_several_axes_is_proved_to_be_one_of_matrices(wide: str) -> None:
    (rule,) = _rules_of("ibh,hnd->ibnd", f"[128,1,{wide[1:].partition(',')[0]}]", wide)
    assert {term.op for term in walk(rule.target)} == {"MatMul", "Reshape", "Var"}
    assert rule.certificate.evidence is Evidence.PROVED and check(rule, {}) == []
    assert parse_rules(format_rules([rule]))[0] == rule
    other = replace(rule, target=(parse_term("Neg(x0)"),))
    assert check(other, {}), "another program is not proved"


def test_another_order_of_equal_axes_is_refused() -> None:
    (rule,) = _rules_of("bij,bjd->bid", "[2,4,4]", "[2,4,4]")
    assert check(rule, {}) == []
    assert "differ" in check(replace(rule, target=(parse_term("MatMul(x1, x0)"),)), {})[0]


@pytest.mark.parametrize("shapes", [("[B,4]", "[4,3,5]"), ("[0,4]", "[4,3,5]")], ids=["told by a run", "empty"])
def test_no_rule_for_sizes_that_are_not_known(shapes: tuple[str, str]) -> None:
    assert _rules_of("bh,hnd->bnd", *shapes) == []


@pytest.mark.usefixtures("own_cache")
def test_projections_of_several_axes_meet_the_rules_for_products(tmp_path: Path) -> None:
    """As XLNet writes them: one read of what is projected, by one product, remains."""
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[128,1,256] x) => (float[128,1,4,64] a, float[128,1,4,64] b) {
        p = Einsum<equation = "ibh,hnd->ibnd">(x, q) a = Relu(p)
        r = Einsum<equation = "ibh,hnd->ibnd">(x, k) b = Relu(r) }""")
    generator = np.random.default_rng(0)
    for weight in "qk":
        proto.graph.initializer.append(
            numpy_helper.from_array(generator.standard_normal((256, 4, 64)).astype(np.float32), weight)
        )
    onnx.save(proto, tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", device="h200", kernels=False, deterministic=True)
    left = op_types(onnx.load(tmp_path / "o.onnx"))
    assert "Einsum" not in left and left.count("MatMul") == 1, left
    assert any(rule.evidence == Evidence.PROVED and "Einsum" in rule.text for rule in outcome.fired)
    feed = {"x": generator.standard_normal((128, 1, 256)).astype(np.float32)}
    for wanted, given in zip(*(session(tmp_path / name).run(None, feed) for name in ("m.onnx", "o.onnx")), strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
