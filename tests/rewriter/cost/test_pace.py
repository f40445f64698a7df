"""Kernels on a processor that were not timed, priced by what measured nodes tell of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_attrs
from mugraph.blocks.schedule import Schedule
from mugraph.graph import Graph, Node
from mugraph.onnx import Model, load
from mugraph.terms.text import parse_term, parse_type
from rewriter.cost import DEVICES, CostModel, ProfileStore
from rewriter.cost.kernel_times import Measured, record
from rewriter.cost.pace import Pace, pace_of
from rewriter.cost.roofline import node_microseconds
from rewriter.kernels.custom_cpu import CpuKernels
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.within import kernels_of
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from tests.support.kernel_help import with_kernel
from tools.bench.cpu_kernels import encoder

CPU = DEVICES["cpu"]
SIZES = {"batch": 1, "sequence": 128}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("pace") / "encoder.onnx"
    onnx.save(encoder(layers=1, hidden=256, heads=4, inner=1024), path)
    return load(path)


def measured(model: Model, factor: float) -> ProfileStore:
    """A store in which every node of a model took so many times what the roofline says."""
    store = ProfileStore(None, "a processor | cpu")
    costs = CostModel(store, model.opset, SIZES, deadline=0.0)
    for node in model.graph.nodes():
        signature = costs.signature(model.graph, node)
        if signature is not None:
            store.put(signature.key(), factor * costs.estimate(model.graph, node))
    return store


def products_in_kernels(model: Model, store: ProfileStore, told_by: Graph | None, speedup: float = 1.0) -> int:
    """Products of the model that are in kernels in the first candidate with such."""
    costs = CostModel(store, model.opset, SIZES, deadline=0.0, told_by=told_by, speedup=lambda *of: speedup)
    matches = Matches.of((), RangeOracle({}), "cpu", model.opset)
    moves = Moves(matches, Prices(costs, matches.fusions))
    kernels = CpuKernels(CPU, store, SIZES, (), measures=False)
    start = moves.start(model.graph)
    first = next(kernels.children(moves, start), start)
    kernels.close()
    assert first is start or kernels_of(first.graph)
    before, after = (sum(node.op == "MatMul" for node in graph.references) for graph in (start.graph, first.graph))
    return before - after


def test_the_pace_is_that_of_products_and_of_the_rest() -> None:
    nodes = [("MatMul", 30.0, 90.0), ("MatMul", 2.0, 6.0), ("Add", 1.0, 2.0), ("Reshape", 9.0, 1.0), ("Conv", 9.0, 1.0)]
    assert pace_of(nodes) == Pace(1 / 3, 0.5)
    assert pace_of(nodes[2:]) == Pace(1.0, 0.5) and pace_of([]) == Pace()
    device = Pace(1 / 3, 0.5).of(CPU, 1.3)
    assert device.bandwidth == 2 * CPU.bandwidth
    assert device.peaks == {dtype: pytest.approx(3.9 * peak) for dtype, peak in CPU.peaks.items()}


def test_kernels_with_products_are_proposed_beside_nodes_measured_on_a_fast_processor(model: Model) -> None:
    """By a modest core's figures each would lose by more than all that it saves, and none would ever be timed."""
    store = measured(model, 0.2)
    assert products_in_kernels(model, store, None) == 0
    assert products_in_kernels(model, store, model.graph) == 3, "attention's two, and the one in front of the GELU"
    assert products_in_kernels(model, store, model.graph, speedup=1.3) == 8


def test_an_estimate_follows_what_is_measured_later(model: Model) -> None:
    fused = lower("sum", {n: parse_type("float[64,256]") for n in "xz"}, [("y", parse_term("Relu(Add(x, z))"))])
    types = [tensor.type for tensor in fused.inputs]
    store = ProfileStore(None, "a processor | cpu")
    costs = CostModel(store, model.opset, SIZES, told_by=model.graph)
    values = [model.tables.new_value(type_) for type_ in types]
    node = model.tables.add_node(KERNEL, kernel_attrs(fused), values, [model.tables.new_value(types[0])])
    nominal = node_microseconds(CPU, KERNEL, kernel_attrs(fused), types)
    assert costs.estimate(model.graph, node) == nominal
    assert costs.measure((model.graph, node) for node in model.graph.nodes() if node.op == "Erf")
    assert costs.estimate(model.graph, node) != nominal


def product(rows: int) -> tuple[Kernel, Graph, Node]:
    """A kernel that multiplies so many rows by weights, and its node in a graph."""
    types = {"x": parse_type(f"float[{rows},256]"), "w": parse_type("float[256,256]")}
    kernel = lower("product", types, [("y", parse_term("Relu(MatMul(x, w))"))])
    _, graph = with_kernel(kernel, weights={"w": np.ones((256, 256), np.float32)})
    (node,) = (node for node in graph.references if node.op == KERNEL)
    return kernel, graph, node


def test_kernels_that_were_timed_tell_how_fast_others_are(model: Model) -> None:
    """What turned out to be slower than was hoped for is not hoped for of each that is like it."""
    store = measured(model, 0.2)
    costs = CostModel(store, model.opset, SIZES, deadline=0.0, told_by=model.graph, speedup=lambda *of: 1.3)
    timed, at, node = product(512)
    _, elsewhere, like_it = product(1024)
    hoped_for, wanted = costs.estimate(elsewhere, like_it), costs.estimate(at, node)
    record(store, timed, {}, [Measured((Schedule((("m", 64), ("n", 64), ("k", 64))),), 1.5 * wanted)])
    assert costs.cost(at, node) == pytest.approx(1.5 * wanted + 1.0)
    assert costs.estimate(elsewhere, like_it) == pytest.approx(1.5 * hoped_for, rel=0.02)
    quick = CostModel(store, model.opset, SIZES, deadline=0.0, told_by=model.graph, speedup=lambda *of: 1.3)
    record(store, timed, {}, [Measured((Schedule((("m", 64), ("n", 64), ("k", 64))),), 0.5 * wanted)])
    assert quick.cost(at, node) < wanted and quick.estimate(elsewhere, like_it) == pytest.approx(hoped_for), (
        "no more than was hoped for"
    )


@pytest.mark.parametrize("slower, like_it", [((1.2, 4.0, 1.2), 1.2), ((4.0,), 4.0), ((4.0, 1.2), 1.2), ((), 1.0)])
def test_one_kernel_that_was_timed_in_a_busy_minute_tells_nothing_of_others(
    model: Model, slower: tuple[float, ...], like_it: float
) -> None:
    """One of several took four times as long as was hoped for; if it is alone it is all that is known."""
    store = measured(model, 0.2)
    costs = CostModel(store, model.opset, SIZES, deadline=0.0, told_by=model.graph, speedup=lambda *of: 1.3)
    untold = CostModel(store, model.opset, SIZES, deadline=0.0, told_by=model.graph, speedup=lambda *of: 1.3)
    for number, factor in enumerate(slower):
        kernel, graph, node = product(512 + 64 * number)
        schedules = (Schedule((("m", 64), ("n", 64), ("k", 64))),)
        record(store, kernel, {}, [Measured(schedules, factor * untold.estimate(graph, node))])
        costs.cost(graph, node)
    _, graph, node = product(1024)
    assert costs.estimate(graph, node) == pytest.approx(like_it * untold.estimate(graph, node), rel=0.02)


def test_a_transposed_product_within_a_kernel_has_all_its_arithmetic(tmp_path: Path) -> None:
    w = parse_type("float[96,48]")
    plain = lower("plain", {"x": parse_type("float[1,32,96]"), "w": w}, [("y", parse_term("MatMul(x, w)"))])
    turned = lower("turned", {"x": parse_type("float[1,96,32]"), "w": w}, [("y", parse_term("FusedMatMul[transA=true](x, w)"))])
    one, other = (node_microseconds(CPU, KERNEL, kernel_attrs(k), [t.type for t in k.inputs]) for k in (plain, turned))
    assert one == other


def test_what_is_in_front_of_a_product_is_computed_for_every_tile_of_columns() -> None:
    def price(columns: int, term: str) -> float:
        types = {"x": parse_type("float[128,512]"), "w": parse_type(f"float[512,{columns}]")}
        kernel = lower("k", types, [("y", parse_term(term))])
        return node_microseconds(CPU, KERNEL, kernel_attrs(kernel), [t.type for t in kernel.inputs])

    once = 2 * 4 * 128 * 512 / (CPU.bandwidth * 1e3 * 0.85)
    before, behind = "MatMul(Gelu[approximate='none'](x), w)", "Gelu[approximate='none'](MatMul(x, w))"
    for columns, again in ((64, 0), (256, 0), (512, 1), (2048, 7)):
        assert price(columns, behind) == price(columns, "MatMul(x, w)")
        assert price(columns, before) == pytest.approx(price(columns, behind) + again * once)
