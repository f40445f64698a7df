"""Groups of channels normalised as exporters write it, by the operator for channels that stand last."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.domains import Real
from mugraph.graph import Graph
from mugraph.onnx import Model, load
from mugraph.ops import get_operator
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, ShapeError
from mugraph.terms.text import parse_term, parse_type
from rewriter.cost import CostModel, ProfileStore, get_device
from rewriter.reference import Evaluated, bind_sizes, compare, random_inputs, reference_outputs
from rewriter.search.backtracking import Backtracking, SearchLimits
from rewriter.search.candidate import Candidate
from rewriter.search.layouts import LayoutChooser
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rulegen.cli.growing import SHIPPED
from rules_db.exchange import read_rules

GROUPS, CHANNELS = 4, 24


def written(path: Path, dtype: DataType, spatial: tuple[int, int] = (64, 48), groups: int = GROUPS) -> Path:
    """Two convolutions, and groups of channels in front of each, with SiLU and without, as torch writes it."""
    draw, weights, nodes = np.random.default_rng(3), [], []

    def weight(values: np.ndarray) -> str:
        whole = values.dtype.kind == "i"
        weights.append(numpy_helper.from_array(values if whole else values.astype(dtype.numpy()), f"w{len(weights)}"))
        return weights[-1].name

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def normal(x: str) -> str:
        grouped = op("Reshape", x, weight(np.array([0, groups, -1])))
        ones, zeros = weight(draw.uniform(0.5, 1.5, groups)), weight(draw.uniform(-0.5, 0.5, groups))
        back = op("Reshape", op("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5), weight(np.array(shape)))
        scaled = op("Mul", back, weight(draw.uniform(0.5, 1.5, (CHANNELS, 1, 1))))
        return op("Add", scaled, weight(draw.uniform(-0.5, 0.5, (CHANNELS, 1, 1))))

    def conv(x: str) -> str:
        return op("Conv", x, weight(draw.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 16), pads=[1] * 4)

    shape = (1, CHANNELS, *spatial)
    first = normal(conv("x"))
    last = normal(conv(op("Mul", first, op("Sigmoid", first))))
    ends = [helper.make_tensor_value_info(name, int(dtype), shape) for name in ("x", last)]
    graph = helper.make_graph(nodes, "groups", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def written_whole(path: Path, dtype: DataType, stash: int = 1) -> Path:
    """Two convolutions, and ONNX's own operator in front of each, with SiLU and without, as torch writes it from opset 21 on."""
    draw, weights, nodes = np.random.default_rng(3), [], []

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def weight(*shape: int) -> str:
        values = draw.standard_normal(shape).astype(dtype.numpy()) / np.prod(shape[1:], dtype=dtype.numpy()) ** 0.5
        weights.append(numpy_helper.from_array(values.astype(dtype.numpy()), f"w{len(weights)}"))
        return str(weights[-1].name)

    def normal(x: str) -> str:
        return op("GroupNormalization", x, weight(CHANNELS), weight(CHANNELS), num_groups=GROUPS, stash_type=stash)

    first = normal(op("Conv", "x", weight(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4))
    active = op("Mul", first, op("Sigmoid", first))
    last = normal(op("Conv", active, weight(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4))
    ends = [helper.make_tensor_value_info(name, int(dtype), (1, CHANNELS, 64, 48)) for name in ("x", last)]
    graph = helper.make_graph(nodes, "groups", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def searched(model: Model, name: str = "h200") -> Candidate:
    """The best candidate by the roofline of a device, without custom kernels."""
    device = get_device(name)
    sizes, _ = bind_sizes(model, {})
    costs = CostModel(ProfileStore(None, name), model.opset, sizes, device.provider, -math.inf, device)
    silu = [rule for rule in read_rules(SHIPPED / "spelled.rules") if rule.target == (parse_term("QuickGelu[alpha=1.0](x)"),)]
    groups = [rule for rule in read_rules(SHIPPED / "normal.rules") if rule.source[0].op == "GroupNormalization"]
    rules = [*read_rules(SHIPPED / "layout.rules"), *groups, *silu]
    matches = Matches.of(rules, RangeOracle({}), device.provider, model.opset)
    limits = SearchLimits(seconds=math.inf, expansions=20)
    search = Backtracking(Moves(matches, Prices(costs, matches.fusions)), limits, layouts=(LayoutChooser(matches),))
    found = search.run(model.graph)
    return found.better[0] if found.better else found.start


def ops(graph: Graph) -> Counter[str]:
    """Operators that remain at run time."""
    live = (n for n in graph.references if n.op != "Identity" and not all(graph.tables.constant[v] for v in n.values))
    return Counter(node.op for node in live)


@pytest.mark.parametrize(("dtype", "most"), [(DataType.FLOAT, 1e-6), (DataType.FLOAT16, 2e-3)])
def test_convolutions_around_groups_take_channels_last(tmp_path: Path, dtype: DataType, most: float) -> None:
    """One step alone costs more than it saves: what it saves shows once its transpositions meet those of convolutions."""
    model = load(written(tmp_path / "m.onnx", dtype))
    best = searched(model)
    assert ops(best.graph) == {"Transpose": 2, "NhwcConv": 2, "GroupNorm": 2}
    assert sorted(dict(n.attrs)["silu"] for n in best.graph.references if n.op == "GroupNorm") == [False, True]
    feed = random_inputs(model, {}, seed=5)
    ((wanted,),), (given,) = reference_outputs(model, [feed]), Evaluated(model, best.graph).run(None, feed)
    assert given.dtype == dtype.numpy() and compare(given, wanted).relative_l2 < most


@pytest.mark.parametrize(("dtype", "most"), [(DataType.FLOAT, 1e-6), (DataType.FLOAT16, 2e-3)])
def test_the_operator_of_onnx_takes_channels_last_as_well(tmp_path: Path, dtype: DataType, most: float) -> None:
    """No kernel computes it: onnxruntime runs eleven."""
    model = load(written_whole(tmp_path / "m.onnx", dtype))
    best = searched(model)
    assert ops(best.graph) == {"Transpose": 2, "NhwcConv": 2, "GroupNorm": 2}
    feed = random_inputs(model, {}, seed=5)
    ((wanted,),), (given,) = reference_outputs(model, [feed]), Evaluated(model, best.graph).run(None, feed)
    assert given.dtype == dtype.numpy() and compare(given, wanted).relative_l2 < most


@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.FLOAT16])
def test_on_a_processor_groups_are_channels_that_are_normalised_each(tmp_path: Path, dtype: DataType) -> None:
    """0.55 to 0.62 of the time of an image of 320 channels and 8 to 32 rows."""
    model = load(written_whole(tmp_path / "m.onnx", dtype))
    best = searched(model, "cpu")
    assert ops(best.graph)["InstanceNormalization"] == 2 and not ops(best.graph)["GroupNormalization"]
    feed = random_inputs(model, {}, seed=5)
    ((wanted,),), (given,) = reference_outputs(model, [feed]), Evaluated(model, best.graph).run(None, feed)
    assert given.dtype == dtype.numpy() and compare(given, wanted).relative_l2 < (1e-6 if dtype == DataType.FLOAT else 2e-3)


@pytest.mark.parametrize(("dtype", "stash"), [(DataType.DOUBLE, 1), (DataType.FLOAT16, 10)])
def test_what_normalises_in_another_type_than_float32_is_opaque(tmp_path: Path, dtype: DataType, stash: int) -> None:
    nodes = list(load(written_whole(tmp_path / "m.onnx", dtype, stash)).graph.nodes())
    assert sum(node.is_opaque for node in nodes) == 2


def test_groups_of_an_odd_number_of_channels_stay(tmp_path: Path) -> None:
    """onnxruntime's kernel takes channels two at a time."""
    model = load(written(tmp_path / "m.onnx", DataType.FLOAT, groups=8))
    assert "GroupNorm" not in ops(searched(model).graph)


# The operator


@pytest.mark.parametrize("silu", [False, True])
def test_it_is_what_it_says(silu: bool) -> None:
    draw = np.random.default_rng(0)
    x, s, b = draw.standard_normal((2, 6, 5, 12)), draw.standard_normal(12), draw.standard_normal(12)
    term = parse_term(f"GroupNorm[epsilon=0.01,group=3,silu={str(silu).lower()}](x, s, b)")
    given = evaluate([term], Real(), {"x": x, "s": s, "b": b})[term]
    rows = x.transpose(0, 3, 1, 2).reshape(2, 3, -1)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 0.01)
    wanted = rows.reshape(2, 12, 6, 5).transpose(0, 2, 3, 1) * s + b
    np.testing.assert_allclose(given, wanted / (1 + np.exp(-wanted)) if silu else wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("x", "scale", "group"),
    [
        ("[2,6,5,12]", "[12]", 4),
        ("[2,6,5,12]", "[12]", 5),
        ("[2,6,5,12]", "[12]", 0),
        ("[2,6,5,12]", "[6]", 3),
        ("float16[2,6,5,12]", "float16[12]", 3),
        ("[2,30,12]", "[12]", 3),
        ("double[2,6,5,12]", "[12]", 3),
        ("[2,6,5,1028]", "[1028]", 2),
        ("[n,h,w,514]", "[514]", 1),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(x: str, scale: str, group: int) -> None:
    """Odd groups, groups that are none, scales of another size or type, rows, doubles, groups of more than 512 channels."""
    with pytest.raises(ShapeError):
        get_operator("GroupNorm").types({"group": group}, [parse_type(x), parse_type(scale), parse_type(scale)])


def test_groups_of_as_many_channels_as_the_kernel_takes_stand() -> None:
    types = [parse_type("[2,6,5,1024]"), parse_type("[1024]"), parse_type("[1024]")]
    assert get_operator("GroupNorm").types({"group": 2}, types) == (types[0],)


@pytest.mark.parametrize(("first", "activation"), [(0, 0), (1, 1), (1, 0)])
def test_it_is_read_and_written_as_it_came(tmp_path: Path, first: int, activation: int) -> None:
    attributes = {"activation": activation, "groups": 3, "epsilon": 0.5, "channels_last": first}
    node = helper.make_node("GroupNorm", ["x", "s", "b"], ["y"], domain="com.microsoft", **attributes)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, (2, 6, 5, 12)) for name in "xy"]
    weights = [numpy_helper.from_array(np.ones(12, np.float32), name) for name in "sb"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    (read,) = load(tmp_path / "m.onnx").graph.nodes()
    assert read.is_opaque is not bool(first)
    if first:
        types = [parse_type("float16[2,6,5,12]"), parse_type("[12]"), parse_type("[12]")]
        form = get_operator("GroupNorm").to_onnx(read.attrs, types, 17)
        assert form.attributes == attributes and (form.op_type, form.domain) == ("GroupNorm", "com.microsoft")
