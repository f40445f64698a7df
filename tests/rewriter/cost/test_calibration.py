"""Estimates beside measurements: what was not measured is priced as what was measured of its kind."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mugraph.terms.term import make_attrs
from mugraph.terms.text import parse_type
from rewriter.cost import DEVICES, CostModel, CostTable, ProfileStore, read_table
from rewriter.cost.calibration import Calibration
from rewriter.cost.roofline import node_microseconds
from rewriter.cost.signature import Signature, parse_signature
from tests.support.graphs import Builder, backtracking, ops, rule
from tools.bench.schedules import forecasts, main, mean_error

H200 = DEVICES["h200"]
WINDOW = {"dilations": (1, 1), "pads": (0, 0, 0, 0), "strides": (16, 16)}


def shipped(name: str) -> CostTable:
    with resources.as_file(resources.files("rewriter.cost.known") / f"{name}.json") as path:
        return read_table(path)


def signature(op: str, *operands: str, **attrs: object) -> Signature:
    """Of float16 tensors, of which the second is a weight."""
    types = tuple(parse_type(f"float16[{shape}]") for shape in operands)
    return Signature(op, make_attrs(attrs), types, tuple(at == 1 for at in range(len(types))))


def roofline(asked: Signature) -> float:
    return node_microseconds(H200, asked.op, asked.attrs, asked.operands)


def calibrated(costs: dict[Signature, float], asked: Signature) -> float:
    """The factor by which a signature is multiplied where this was measured."""
    return Calibration({s.key(): cost for s, cost in costs.items()}, H200, 0.0).factor(asked, roofline(asked))


@pytest.mark.parametrize("table", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_keys_are_read_back(table: str) -> None:
    keys = [key for key in shipped(table).costs if not key.startswith("kernel ")]
    for key in keys:
        read = parse_signature(key)
        assert read is not None and read.key() == key
    assert len(keys) > 300


def test_odd_keys_are_read_back_or_refused() -> None:
    for attrs in ({"value": math.inf}, {"value": -1.5, "mode": "edge", "axes": (0, (1, 2))}, {"given": ()}):
        odd = Signature("Op", make_attrs(attrs), (parse_type("bool[]"), parse_type("int64[2,3]")), (True, False), ((0, 1.0),))
        assert parse_signature(odd.key()) == odd
    assert Signature("Op", (), (), ()).key() == "Op[]()" and parse_signature("Op[]()") == Signature("Op", (), (), ())
    for broken in (
        "kernel 12ab",
        "Op[](",
        "Op[('a', f(1))](float[2])",
        "Op[](floating[2])",
        "Op[('a', NOTHING)](float[2])",
        "Op[1]()",
        "Op[('a', {})]()",
        f"Op[{'(' * 999}](float[2])",
    ):
        assert parse_signature(broken) is None


@pytest.mark.parametrize(
    ("op", "image", "weight", "measured"),
    [
        ("Conv", "1,6,224,224", "768,3,16,16", 102.258),
        ("NhwcConv", "1,224,224,6", "768,16,16,3", 75.873),
    ],
)
def test_another_form_of_what_was_measured_does_not_look_better(op: str, image: str, weight: str, measured: float) -> None:
    """ViT's first convolution as two groups of one image, which no table has: the roofline flatters all convolutions like it."""
    asked = signature(op, image, weight, **WINDOW, group=2)
    table = shipped("nvidia-h200")
    assert measured in table.costs.values() and asked.key() not in table.costs
    price = Calibration(table.costs, H200, 0.0).factor(asked, roofline(asked)) * roofline(asked)
    assert roofline(asked) < 0.5 * measured < 0.85 * measured < price < 1.25 * measured


def test_a_convolution_in_another_layout_is_of_the_same_kind() -> None:
    plain = signature("Conv", "1,64,56,56", "64,64,3,3", **{**WINDOW, "strides": (1, 1)}, group=1)
    other = signature("NhwcConv", "1,56,56,64", "64,3,3,64", **{**WINDOW, "strides": (1, 1)}, group=1)
    assert calibrated({plain: 3 * roofline(plain)}, other) == pytest.approx(3.0, rel=0.2)
    assert calibrated({other: 3 * roofline(other)}, plain) == pytest.approx(3.0, rel=0.2)


def test_what_is_far_away_says_nothing() -> None:
    """A convolution of patches takes twice its roofline, one of a residual network does not."""
    patches = signature("Conv", "1,3,224,224", "768,3,16,16", **WINDOW, group=1)
    residual = signature("Conv", "1,256,14,14", "256,256,3,3", **{**WINDOW, "strides": (1, 1)}, group=1)
    assert calibrated({patches: 100.0}, residual) == 1.0
    line = signature("Conv", "1,80,3000", "384,80,3", dilations=(1,), pads=(1, 1), strides=(1,), group=1)
    assert calibrated({line: 100.0}, patches) == calibrated({line: 100.0}, signature("MatMul", "128,768", "768,768")) == 1.0


def test_a_factor_lies_between_those_of_the_nearest() -> None:
    asked = signature("MatMul", "128,768", "768,768")
    near = {signature("MatMul", f"{rows},768", "768,768"): factor for rows, factor in ((100, 0.5), (150, 2.0), (200, 4.0))}
    costs = {s: factor * roofline(s) for s, factor in near.items()}
    assert 0.5 < calibrated(costs, asked) < 4.0
    assert calibrated(costs, asked) < calibrated(costs, signature("MatMul", "190,768", "768,768")), "nearer ones count more"
    assert calibrated({}, asked) == 1.0


def test_a_factor_does_not_depend_on_the_order_of_what_was_measured() -> None:
    """Eight are as near as each other, of which five count."""
    asked, *near = (
        signature("FusedMatMul", "128,768", "768,768", alpha=alpha, transA=False, transB=False, transBatchA=0, transBatchB=0)
        for alpha in (1.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    )
    costs = {measured: (1.0 + at) * roofline(measured) for at, measured in enumerate(near)}
    assert (
        calibrated(costs, asked)
        == calibrated(dict(reversed(costs.items())), asked)
        == pytest.approx(math.prod(range(1, 6)) ** 0.2)
    )


def test_a_disturbed_measurement_counts_no_more_than_its_bound() -> None:
    asked, beside = signature("MatMul", "128,768", "768,768"), signature("MatMul", "129,768", "768,768")
    assert calibrated({beside: 1e6}, asked) == pytest.approx(32.0) and calibrated({beside: 0.0}, asked) == pytest.approx(1 / 32)


def test_a_measurement_says_nothing_of_itself() -> None:
    """Else the error of a calibration would look like none."""
    asked = signature("MatMul", "128,768", "768,768")
    assert calibrated({asked: 100.0}, asked) == 1.0


def test_costs_of_operators_that_are_gone_are_passed_over() -> None:
    calibration = Calibration({"Gone[](float16[8,8])": 3.0, "Softmax[('axis', 7)](float16[8,8])": 3.0, "?": 1.0}, H200, 0.0)
    asked = signature("Softmax", "8,8", axis=-1)
    assert calibration.factor(asked, roofline(asked)) == 1.0


def test_prices_are_calibrated_by_what_was_measured_and_rooflines_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    first, second = (b.op("MatMul", b.input(f"[{rows},512]"), b.weight(512, 512)) for rows in (64, 80))
    graph = b.graph(first, second)
    one, other = graph.nodes()
    model = CostModel(ProfileStore(None, "here"), 17, {})
    alone = model.estimate(graph, other)
    assert model.cost(graph, other) == alone and model.calibrated([(graph, other)]) == 0, "nothing was measured"
    monkeypatch.setattr(CostModel, "_measure", lambda self, signature: 7.0 * model.estimate(graph, one) - 1.0)
    assert model.measure([(graph, one)])
    assert model.cost(graph, other) == pytest.approx(7.0 * alone) and model.estimate(graph, other) == alone
    assert model.unmeasured([(graph, other)]), "it is still to be measured"
    assert model.calibrated([(graph, one), (graph, other), (graph, other)]) == 1, "one estimate stands in, for a node twice"
    monkeypatch.setattr(CostModel, "_measure", lambda self, signature: 2.0 * model.estimate(graph, one) - 1.0)
    model.second_opinion([(graph, one)], math.inf)
    assert model.cost(graph, other) == pytest.approx(2.0 * alone)


def test_a_search_is_not_led_astray_by_what_was_not_measured() -> None:
    b = Builder()
    graph = b.graph(b.op("Relu", b.op("Tanh", b.op("Tanh", b.input("[512,512]")))))
    known = rule("Tanh(Tanh(X))", "Sin(X)", "X:[m,n]")
    store = ProfileStore(None, "here")
    store.preload({"Tanh[](float[512,512])": 4000.0, "Cos[](float[512,512])": 4000.0}, {})
    better = rule("Tanh(X)", "Sin(X)", "X:[m,n]")
    costs = CostModel(store, 17, {}, deadline=0.0)
    assert not backtracking([better], costs, alpha=1.0).run(graph).better
    found = backtracking([known], costs, alpha=1.0).run(graph).better
    assert found and "Sin" in ops(found[0].graph), "one is less than two"


@pytest.mark.parametrize("table", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_what_ships_is_predicted_better_by_its_neighbours(table: str) -> None:
    found = list(forecasts(shipped(table)))
    kinds = {kind: [each for each in found if each.kind == kind] for kind in {each.kind for each in found}}
    assert mean_error([each.calibrated for each in found]) < 1.17 < mean_error([each.alone for each in found])
    assert mean_error([each.far for each in found]) < mean_error([each.alone for each in found])
    for kind, mine in kinds.items():
        if len(mine) > 8:
            alone, near = (mean_error([getattr(each, name) for each in mine]) for name in ("alone", "calibrated"))
            assert near < max(alone, 1.2), kind
            assert np.log([each.calibrated for each in mine]).mean() == pytest.approx(0.0, abs=0.1), f"{kind}: no side is taken"


def test_a_table_is_compared_by_class(tmp_path: Path) -> None:
    path = resources.files("rewriter.cost.known") / "nvidia-h200.json"
    told = CliRunner().invoke(main, [str(path)], env={"COLUMNS": "200"})
    assert told.exit_code == 0 and "NhwcConv" in told.output and "Conv, grouped" in told.output and "all" in told.output
    broken = tmp_path / "t.json"
    broken.write_text("{}")
    told = CliRunner().invoke(main, [str(broken)])
    assert told.exit_code == 1 and f"{broken}: not a cost table" in told.output
