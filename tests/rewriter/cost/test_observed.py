"""Times of nodes in a run of their model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.graph import Graph, Node
from rewriter.cost import CostModel, ProfileStore
from rewriter.cost.model import Signature
from rewriter.cost.observed import SlowNodes, observe
from tests.support.graphs import Builder

PRODUCT = "MatMul(float[4,8], float[8,8])"


def _file(path: Path, last: str = "Relu") -> Path:
    onnx.save(
        parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x, float[8,8] w) => (float[N,8] y) {{
            a = MatMul(x, w)  b = Softmax(a)  c = MatMul(b, w)  y = {last}(c)
        }}"""),
        path,
    )
    return path


def _feed(rows: int = 4, columns: int = 8) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = {"x": (rows, columns), "w": (8, 8)}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_run_tells_the_time_of_each_kind_of_node(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    times = observe(_file(tmp_path / "m.onnx"), _feed(), folder, math.inf)
    assert times.keys() == {PRODUCT, "Softmax(float[4,8])", "Relu(float[4,8])"}
    assert min(times.values()) >= 0 and not list(folder.iterdir()), "nothing is left behind"


@pytest.mark.parametrize(("last", "columns", "until"), [("Nothing", 8, math.inf), ("Relu", 7, math.inf), ("Relu", 8, 0.0)])
def test_nothing_is_told_of_a_model_that_does_not_run_or_for_too_long(
    tmp_path: Path, last: str, columns: int, until: float
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    assert observe(_file(tmp_path / "m.onnx", last), _feed(columns=columns), folder, until) == {} and not list(folder.iterdir())


class Watch:
    """Stands in for onnxruntime: what nodes take in their model, and by themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seen: Mapping[str, float], alone: float) -> None:
        self.looked, self.timed, self.seen = list[float](), list[str](), seen
        monkeypatch.setattr(CostModel, "_measure", lambda costs, signature: self._time(signature, alone))

    def look(self, until: float) -> Mapping[str, float]:
        self.looked.append(until)
        return self.seen

    def _time(self, signature: Signature, alone: float) -> float:
        self.timed.append(signature.op)
        return alone


def _products() -> tuple[Graph, list[tuple[Graph, Node]]]:
    """A product, one of another size, a Relu, and two Softmax of one shape along other axes."""
    b = Builder()
    product = b.op("MatMul", b.input("[4,8]"), b.input("[8,8]"))
    softmax = [b.op("Softmax", product, axis=axis) for axis in (-1, -2)]
    graph = b.graph(b.op("Relu", product), b.op("MatMul", product, b.input("[8,4]")), *softmax)
    return graph, [(graph, node) for node in graph.nodes()]


SEEN = {PRODUCT: 700.0, "Relu(float[4,8])": 12.0, "Softmax(float[4,8])": 9000.0}


def test_a_node_that_its_numbers_make_slow_costs_what_it_takes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, nodes = _products()
    watch = Watch(monkeypatch, SEEN, alone=10.0)
    costs = CostModel(ProfileStore(None, "here"), 17, {}, told_by=graph, slow=SlowNodes(watch.look))
    before = [costs.cost(*node) for node in nodes]
    assert not watch.looked and max(before) < 100, "asking for a price looks at nothing"
    assert costs.measure([], 8.0) and watch.timed == ["MatMul"], "a profile does not tell what has attributes apart"
    assert len(watch.looked) == 1 and watch.looked[0] <= time.monotonic() + 2.0, "a quarter of the time"
    after = [costs.cost(*node) for node in nodes]
    assert after[0] == 701.0 and max(after[1:]) < 100
    assert not costs.measure([]) and len(watch.looked) == 1
    (told,) = costs.slow.notes()
    assert told.startswith("MatMul of float[4,8] by float[8,8] takes 70 times as long")


def test_what_takes_as_long_by_itself_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a moment in which others have the processor, or where an estimate is far off."""
    graph, nodes = _products()
    watch = Watch(monkeypatch, SEEN, alone=300.0)
    costs = CostModel(ProfileStore(None, "here"), 17, {}, told_by=graph, slow=SlowNodes(watch.look))
    assert not costs.measure([]) and watch.timed == ["MatMul"]
    assert costs.cost(*nodes[0]) == 301.0 and not costs.slow.notes(), "that time is known now"


def test_nobody_looks_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = _products()
    watch = Watch(monkeypatch, SEEN, alone=10.0)
    costs = CostModel(ProfileStore(None, "here"), 17, {}, deadline=0.0, told_by=graph, slow=SlowNodes(watch.look))
    assert not costs.measure([]) and not watch.looked
