"""Times of nodes in a run of their model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx.parser import parse_model

from mugraph.graph import Graph, Node
from rewriter.cost import CostModel, ProfileStore
from rewriter.cost.observed import ObservedTimes, observe
from tests.support.graphs import Builder

SHAPES = ((4, 8), (8, 8))


def _file(path: Path, extra: str = "") -> Path:
    onnx.save(
        parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x, float[8,8] w) => (float[N,8] y) {{
            a = MatMul(x, w)  b = Softmax(a)  c = MatMul(b, w)  y = {extra or "Relu"}(c)
        }}"""),
        path,
    )
    return path


def _feed() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {"x": generator.standard_normal((4, 8)).astype(np.float32), "w": generator.standard_normal((8, 8)).astype(np.float32)}


def test_a_run_tells_the_time_of_each_kind_of_node(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    times = observe(_file(tmp_path / "m.onnx"), _feed(), folder)
    assert times.keys() == {("MatMul", SHAPES), ("Softmax", ((4, 8),)), ("Relu", ((4, 8),))}
    assert min(times.values()) >= 0 and not list(folder.iterdir()), "nothing is left behind"


def test_nothing_is_told_of_a_model_that_does_not_run(tmp_path: Path) -> None:
    assert observe(_file(tmp_path / "m.onnx", "Nothing"), _feed(), tmp_path) == {}


def test_a_node_that_takes_much_longer_in_its_model_costs_what_it_takes_there() -> None:
    looked = []

    def look() -> Mapping[tuple[str, tuple[tuple[int, ...], ...]], float]:
        looked.append("")
        return {("MatMul", SHAPES): 700.0, ("Relu", ((4, 8),)): 12.0}

    b = Builder()
    product = b.op("MatMul", b.input("[4,8]"), b.input("[8,8]"))
    graph = b.graph(b.op("Relu", product), b.op("MatMul", product, b.input("[8,4]")))
    costs = CostModel(ProfileStore(None, "here"), 17, {}, observed=ObservedTimes(look))
    slow, relu, other = graph.nodes()
    nodes = [(graph, node) for node in (slow, relu, other)]
    before = [costs.cost(*node) for node in nodes]
    assert not looked, "asking for a price looks at nothing"
    assert costs.measure(nodes) and len(looked) == 1
    after = [costs.cost(*node) for node in nodes]
    assert after[0] == 701.0 and max(before + after[1:]) < 100, "a few microseconds are no difference"
    costs.measure(nodes)
    assert len(looked) == 1
    (told,) = costs.observed.notes()
    assert told.startswith(f"MatMul of 4×8 by 8×8 takes {700 / max(by_itself(costs, graph, slow), 1.0):.0f} times as long")


def by_itself(costs: CostModel, graph: Graph, node: Node) -> float:
    """What a node takes by itself."""
    signature = costs.signature(graph, node)
    assert signature is not None
    timed = costs.store.get(signature.key())
    assert timed is not None
    return timed


def test_what_is_seen_counts_where_nothing_is_measured() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.input("[4,8]"), b.input("[8,8]")))
    (node,) = graph.nodes()
    observed = ObservedTimes(lambda: {("MatMul", SHAPES): 700.0})
    costs = CostModel(ProfileStore(None, "here"), 17, {}, observed=observed)
    assert observed.look() and costs.cost(graph, node) == 700.0 and not observed.look()
    assert not observed.notes(), "an estimate says nothing of a node by itself"
