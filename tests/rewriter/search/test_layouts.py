"""Layouts: the forms of operators for channels that stand last, and the choice of a whole model's layouts at once."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.domains import Real
from mugraph.graph import Graph, Node
from mugraph.onnx import Model, load, to_proto
from mugraph.onnx.fold import Folder
from mugraph.ops import get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.ops.nhwc import CHANNELS_FIRST, CHANNELS_LAST
from mugraph.terms.shape import DataType, ShapeError, TensorType
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term, parse_type
from rewriter import optimize
from rewriter.cost import CostModel, CostTable, ProfileStore, get_device, write_table
from rewriter.cost.fused import RuntimeDirections
from rewriter.cost.signature import Signature
from rewriter.reference import Evaluated, compare, random_inputs, reference_outputs
from rewriter.run import accept, timings
from rewriter.search.candidate import Candidate
from rewriter.search.directions import compile_rules
from rewriter.search.expansion import Expansion
from rewriter.search.layouts import LayoutChooser
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rewriter.search.replay import replay
from rewriter.search.roles import Layout, wraps
from rewriter.search.strategy import BACKTRACKING, LAYOUTS, SEQUENTIAL, MoveKind
from rulegen.cli.growing import SHIPPED
from rules_db.exchange import read_rules
from rules_db.library import open_rules
from rules_db.trust.rule import Rule
from tools.bench.search import measure
from tools.zoo.taso import squeezenet

NHWC = Layout(CHANNELS_LAST, CHANNELS_FIRST)


@cache
def rules() -> tuple[Rule, ...]:
    """Those of layouts, and of convolutions but for kernels that are enlarged: a table of prices knows no merged convolution."""
    every = (rule for group in ("layout", "conv") for rule in read_rules(SHIPPED / f"{group}.rules"))
    return tuple(rule for rule in every if not any(term.op == "Pad" for term in walk(rule.target)))


# The operator


def test_a_convolution_of_channels_that_stand_last() -> None:
    generator = np.random.default_rng(0)
    x, w, b = generator.standard_normal((2, 5, 6, 4)), generator.standard_normal((6, 3, 3, 2)), generator.standard_normal(6)
    attrs = "dilations=(1,1),group=2,pads=(1,0,1,2),strides=(2,1)"
    last, first = parse_term(f"NhwcConv[{attrs}](x, w, b)"), parse_term(f"Conv[{attrs}](x, w, b)")
    given = evaluate([last], Real(), {"x": x, "w": w, "b": b})[last]
    turned = {"x": x.transpose(0, 3, 1, 2), "w": w.transpose(0, 3, 1, 2), "b": b}
    np.testing.assert_allclose(given, evaluate([first], Real(), turned)[first].transpose(0, 2, 3, 1), rtol=1e-12)
    types = {"x": parse_type("[2,5,6,4]"), "w": parse_type("[6,3,3,2]"), "b": parse_type("[6]")}
    assert infer_types([last], types)[last].shape == given.shape


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [(2, ("[2,5,6,4]", "[6,4,3,3]")), (2, ("[2,5,6,4]", "float16[6,3,3,4]")), (3, ("[1,2,4,4,3]", "[6,1,1,1,2]"))],
)
def test_ill_typed_operands_are_refused(axes: int, shapes: Sequence[str]) -> None:
    """Among them images of three axes, which onnxruntime does not take."""
    attrs = {"dilations": (1,) * axes, "group": axes - 1, "pads": (0,) * 2 * axes, "strides": (1,) * axes}
    with pytest.raises(ShapeError):
        get_operator("NhwcConv").types(attrs, list(map(parse_type, shapes)))


def _model(
    path: Path, nodes: Sequence[onnx.NodeProto], shape: Sequence[int], result: Sequence[int], **weights: np.ndarray
) -> Path:
    """A model from x to y; weights are of 32 bits."""
    graph = helper.make_graph(
        nodes,
        "layouts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def test_it_is_read_and_written_as_it_came(tmp_path: Path) -> None:
    node = helper.make_node(
        "NhwcConv",
        ["x", "w", "b"],
        ["y"],
        "n",
        domain="com.microsoft",
        kernel_shape=[3, 3],
        pads=[1] * 4,
        strides=[2, 2],
        group=2,
    )
    weights = {"w": np.ones((6, 3, 3, 2)), "b": np.ones(6)}
    source = _model(tmp_path / "m.onnx", [node], (1, 8, 8, 4), (1, 4, 4, 6), **weights)
    model = load(source)
    (read,) = model.graph.nodes()
    assert read.op == "NhwcConv" and dict(read.attrs)["strides"] == (2, 2) and dict(read.attrs)["group"] == 2
    form = get_operator("NhwcConv").to_onnx(read.attrs, [model.graph.type(v) for v in read.inputs], 17)
    assert (form.op_type, form.domain, form.attributes["kernel_shape"]) == ("NhwcConv", "com.microsoft", (3, 3))


# Rules


def test_wrapping_directions_bring_a_layout() -> None:
    wrapping = {(d.pattern[0].op, layout) for d in compile_rules(rules()) if (layout := wraps(d)) is not None}
    assert {("Conv", NHWC), ("Relu", NHWC), ("Add", NHWC), ("MaxPool", NHWC), ("Concat", NHWC)} <= wrapping
    assert ("MatMul", Layout((1, 0), (1, 0))) in wrapping
    assert all(layout.there in (CHANNELS_LAST, (1, 0)) for _, layout in wrapping)


# The choice


class Priced(CostModel):
    """Fixed prices by operator, or by the function that is given; Transposes cost 3, views and constants nothing."""

    def __init__(self, model: Model, prices: Mapping[str, float], provider: str = "cuda") -> None:
        super().__init__(ProfileStore(None, "test"), model.opset, {}, provider, -math.inf, get_device("h200"))
        self.prices = {"Transpose": 3.0, "Squeeze": 0.0, "Unsqueeze": 0.0, "Reshape": 0.0, **prices}

    def cost(self, graph: Graph, node: Node) -> float:
        if node.op == "Identity" or all(graph.tables.constant[v] for v in node.values):
            return 0.0
        pads = node.attrs[2][1] if node.op in ("Conv", "NhwcConv") else ()
        return self.prices.get(f"{node.op}{pads[0]}" if pads else node.op, self.prices.get(node.op, 1.0))

    estimate = cost


def moves_of(model: Model, prices: Mapping[str, float], provider: str = "cuda", noise: float = 0.0) -> Moves:
    costs = Priced(model, prices, provider)
    matches = Matches.of(rules(), RangeOracle({}), provider, model.opset)
    return Moves(matches, Prices(costs, matches.fusions), noise)


def children(moves: Moves, candidate: Candidate) -> list[Candidate]:
    """The candidates that a fresh chooser proposes."""
    return list(LayoutChooser(moves.matches)(moves, candidate))


def ops(graph: Graph) -> Counter[str]:
    """Operators that remain at run time."""
    live = (n for n in graph.references if n.op != "Identity" and not all(graph.tables.constant[v] for v in n.values))
    return Counter(node.op for node in live)


def conv(x: str, w: str, y: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], **{"kernel_shape": [3, 3], "pads": [1] * 4, **attributes})


def residual_block(path: Path, dtype: int = TensorProto.FLOAT) -> Path:
    """Two paths that meet, one of them without a convolution, and a reader that knows one layout only."""
    generator, numpy_type = np.random.default_rng(1), helper.tensor_dtype_to_np_dtype(dtype)
    nodes = [
        conv("x", "w0", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        conv("b", "w1", "c", kernel_shape=[5, 5], pads=[2] * 4),
        helper.make_node("Sigmoid", ["b"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("Reshape", ["b", "flat"], ["f"]),
        helper.make_node("MaxPool", ["e"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["g", "flat"], ["h"]),
        helper.make_node("Concat", ["f", "h"], ["y"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", dtype, (1, 4, 6, 6))],
        [helper.make_tensor_value_info("y", dtype, (180,))],
        [
            *(
                numpy_helper.from_array(generator.standard_normal((4, 4, k, k)).astype(numpy_type), w)
                for w, k in (("w0", 3), ("w1", 5))
            ),
            numpy_helper.from_array(np.array([-1]), "flat"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def every_choice(moves: Moves, start: Candidate) -> list[float]:
    """The costs of all choices of layouts, each carried out."""
    chooser, graph = LayoutChooser(moves.matches), start.graph
    forms = {v: chooser.forms(graph, v, NHWC) for n in graph.nodes() for v in n.values}
    cheapest = {
        value: min(here, key=lambda form: sum(moves.prices.cost(graph, node) for node in form.inner)).direction
        for value, here in forms.items()
        if here
    }
    costs = []
    for count in range(len(cheapest) + 1):
        for subset in itertools.combinations(cheapest, count):
            chosen = [(cheapest[value], value) for value in subset]
            costs.append(chooser.carry_out(moves, start, NHWC, chosen).cost)
    return costs


@pytest.mark.parametrize("seed", range(13))
def test_the_cut_is_the_best_of_all_choices(tmp_path: Path, seed: int) -> None:
    names = ("Conv1", "Conv2", "NhwcConv1", "NhwcConv2", "MaxPool", "Squeeze", "Transpose")
    prices = dict(zip(names, np.random.default_rng(seed).uniform(0, (20, 20, 15, 15, 5, 5, 5)).tolist(), strict=True))
    model = load(residual_block(tmp_path / "block.onnx"))
    moves = moves_of(model, prices)
    start = moves.start(model.graph)
    best = min([start.cost, *(child.cost for child in children(moves, start))])
    costs = every_choice(moves, start)
    assert len(costs) == 2**6
    assert best == pytest.approx(min(costs))


def test_a_choice_is_replayed_move_by_move(tmp_path: Path) -> None:
    model = load(residual_block(tmp_path / "block.onnx"))
    moves = moves_of(model, {"Conv": 20, "NhwcConv": 13}, noise=0.1)
    (child,) = children(moves, moves.start(model.graph))
    assert ops(child.graph)["NhwcConv"] == 2 and "Conv" not in ops(child.graph)
    assert child.cost == pytest.approx(moves.prices.total(child.graph)), "noise is held against the whole, not against one move"
    assert {wraps(move.direction) for move in child.moves[:-1]} == {NHWC}
    again = replay(moves, model.graph, child.moves)
    assert again.graph.content_digest() == child.graph.content_digest() and again.cost == pytest.approx(child.cost)


def test_transpositions_of_the_model_are_part_of_the_choice(tmp_path: Path) -> None:
    """A model whose images have their channels last, exported with a transposition at either end."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[0, 3, 1, 2]),
        conv("a", "w", "b"),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    model = load(_model(tmp_path / "m.onnx", nodes, (1, 6, 6, 4), (1, 6, 6, 4), w=np.ones((4, 4, 3, 3))))
    moves = moves_of(model, {"Conv": 10, "NhwcConv": 10.5})
    (child,) = children(moves, moves.start(model.graph))
    assert ops(child.graph) == {"NhwcConv": 1, "Relu": 1}


def test_a_normalisation_in_front_of_a_convolution_is_a_factor_and_a_summand(tmp_path: Path) -> None:
    """As in DenseNet: none takes it in. Where it costs more than it saves it stays, and so does the layout."""
    nodes = [
        conv("x", "w", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("BatchNormalization", ["b", "scale", "shift", "mean", "variance"], ["c"], epsilon=1e-3),
        helper.make_node("Relu", ["c"], ["d"]),
        conv("d", "w", "y"),
    ]
    draw, names = np.random.default_rng(4), ("scale", "shift", "mean", "variance")
    weights = {"w": draw.standard_normal((4, 4, 3, 3))} | {name: draw.uniform(0.5, 1.5, 4) for name in names}
    model = load(_model(tmp_path / "m.onnx", nodes, (1, 4, 6, 6), (1, 4, 6, 6), **weights))
    moves = moves_of(model, {"Conv": 20, "NhwcConv": 13})
    (child,) = children(moves, moves.start(model.graph))
    assert ops(child.graph) == {"Transpose": 2, "NhwcConv": 2, "Relu": 2, "Mul": 1, "Add": 1}
    feed = random_inputs(model, {}, seed=5)
    ((wanted,),), (given,) = reference_outputs(model, [feed]), Evaluated(model, child.graph).run(None, feed)
    assert compare(given, wanted).relative_l2 < 1e-6
    dear = moves_of(model, {"Conv": 20, "NhwcConv": 19, "Mul": 9, "Add": 9})
    assert not children(dear, dear.start(model.graph))


@pytest.mark.parametrize(("rounding", "moved"), [("floor", 2), ("ceil", 4)])
def test_an_image_that_is_made_larger_keeps_its_layout(tmp_path: Path, rounding: str, moved: int) -> None:
    """As in decoders of images, by the spelling of exporters; another way to choose entries is transposed around."""
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
    nodes = [conv("x", "w", "a"), helper.make_node("Resize", ["a", "", "scales"], ["b"], **nearest), conv("b", "w", "y")]
    weights = {"w": np.random.default_rng(6).standard_normal((4, 4, 3, 3)), "scales": np.array([1, 1, 2, 2])}
    model = load(_model(tmp_path / "m.onnx", nodes, (1, 4, 6, 6), (1, 4, 12, 12), **weights))
    moves = moves_of(model, {"Conv": 30, "NhwcConv": 13})
    (child,) = children(moves, moves.start(model.graph))
    assert ops(child.graph) == {"Transpose": moved, "NhwcConv": 2, "Resize": 1}
    feed = random_inputs(model, {}, seed=8)
    ((wanted,),), (given,) = reference_outputs(model, [feed]), Evaluated(model, child.graph).run(None, feed)
    assert compare(given, wanted).relative_l2 < 1e-6


def test_both_parts_of_a_split_take_a_layout_together(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=1),
        conv("a", "v", "c"),
        conv("b", "w", "d"),
        helper.make_node("Concat", ["c", "d"], ["y"], axis=1),
    ]
    weights = {"v": np.ones((2, 2, 3, 3)), "w": np.ones((2, 6, 3, 3))}
    path = _model(tmp_path / "m.onnx", nodes, (1, 8, 6, 6), (1, 4, 6, 6), **weights)
    proto = onnx.load(path)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 6]), "sizes"))
    model = load(proto)
    moves = moves_of(model, {"Conv": 10, "NhwcConv": 5, "Transpose": 4})
    (child,) = children(moves, moves.start(model.graph))
    assert ops(child.graph) == {"Transpose": 2, "Split": 1, "NhwcConv": 2, "Concat": 1}
    assert child.cost == pytest.approx(20)


def test_a_provider_without_the_kernel_keeps_the_layout(tmp_path: Path) -> None:
    model = load(residual_block(tmp_path / "block.onnx"))
    for provider, count in (("cuda", 1), ("cpu", 0)):
        moves = moves_of(model, {"Conv": 20, "NhwcConv": 1}, provider)
        assert len(children(moves, moves.start(model.graph))) == count


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 2, 2)])
@pytest.mark.parametrize("group", [1, 2])
def test_weights_that_are_computed_keep_the_layout(tmp_path: Path, is_computed: bool, pads: Sequence[int], group: int) -> None:
    """CUDA has NhwcConv for any groups and pads, and for weights that are initializers only."""
    nodes = [
        helper.make_node("Slice", ["x" if is_computed else "v", *"sea"], ["w"]),
        helper.make_node("Relu", ["w"], ["u"]),
        conv("x", "u", "y", kernel_shape=[3, 3], pads=list(pads), group=group),
    ]
    weights = {"v": np.ones((4, 4, 6, 6)), "s": np.zeros(3), "e": np.array([4 // group, 3, 3]), "a": np.array([1, 2, 3])}
    source = _model(tmp_path / "m.onnx", nodes, (4, 4, 6, 6), (4, 4, 6, 6), **weights)
    proto = onnx.load(source)
    for tensor in proto.graph.initializer:
        if tensor.name in "sea":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.int64), tensor.name))
    model = load(proto)
    moves = moves_of(model, {"Conv": 60, "NhwcConv": 10})
    written = [to_proto(model, child.graph).graph for child in children(moves, moves.start(model.graph))]
    turned = [(graph, node) for graph in written for node in graph.node if node.op_type == "NhwcConv"]
    assert bool(turned) != is_computed
    assert all(node.input[1] in {tensor.name for tensor in graph.initializer} for graph, node in turned)


def test_a_chooser_serves_one_opinion_of_prices_after_another(tmp_path: Path) -> None:
    """It keeps the forms of operators, not what they cost."""
    model = load(residual_block(tmp_path / "block.onnx"))
    moves = moves_of(model, {"Conv": 20, "NhwcConv": 40})
    chooser = LayoutChooser(moves.matches)
    assert not list(chooser(moves, moves.start(model.graph)))
    cheaper = moves.priced_anew(Priced(model, {"Conv": 20, "NhwcConv": 5}))
    (child,) = chooser(cheaper, cheaper.start(model.graph))
    assert ops(child.graph)["NhwcConv"] == 2
    assert not list(chooser(moves, moves.start(model.graph)))


def test_a_saving_within_noise_is_none(tmp_path: Path) -> None:
    model = load(residual_block(tmp_path / "block.onnx"))
    for noise, count in ((0.05, 1), (0.15, 0)):
        moves = moves_of(model, {"Conv": 100, "NhwcConv": 88}, noise=noise)
        assert len(children(moves, moves.start(model.graph))) == count


# From a cost table to a written model


def _conv_signatures(x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, int], kernel: int) -> dict[str, Signature]:
    """The signatures of a convolution with weights and bias in every form, by operator."""
    pads = (kernel // 2,) * 4
    attrs = (("dilations", (1, 1)), ("group", 1), ("pads", pads), ("strides", strides))
    signatures = {}
    for bias in (True, False):
        for op in ("Conv", "FusedConv", "NhwcConv"):
            shapes = [x, w]
            if op == "NhwcConv":
                shapes = [(s[0], *s[2:], s[1]) for s in shapes]
            operands = tuple(TensorType(DataType.FLOAT, s) for s in [*shapes, *([w[:1]] if bias else [])])
            signatures[f"{op}{bias}"] = Signature(op, attrs, operands, (False, *[True] * (len(operands) - 1)))
    return signatures


def small_resnet(path: Path, table: Path, ratio: float) -> Path:
    """Stem, pool, two residual blocks, global pool and classifier.

    The table prices a convolution at 100 us in NCHW, at ``ratio`` of that in NHWC, and a transposition at 10 us.
    """
    generator = np.random.default_rng(2)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    costs: dict[str, float] = {}

    def block(x: str, shape: tuple[int, ...], channels: int, kernel: int, stride: int, relu: bool) -> tuple[str, tuple[int, ...]]:
        n = len(weights)
        w = (channels, shape[1], kernel, kernel)
        weights[f"w{n}"] = generator.standard_normal(w) / np.sqrt(shape[1] * kernel * kernel)
        nodes.append(conv(x, f"w{n}", f"c{n}", kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, strides=[stride] * 2))
        for name, low in (("g", 0.5), ("b", 0.0), ("m", 0.0), ("v", 0.5)):
            weights[f"{name}{n}"] = low + generator.random(channels)
        nodes.append(helper.make_node("BatchNormalization", [f"c{n}", *(f"{p}{n}" for p in "gbmv")], [f"n{n}"]))
        if relu:
            nodes.append(helper.make_node("Relu", [f"n{n}"], [f"r{n}"]))
        for name, signature in _conv_signatures(shape, w, (stride, stride), kernel).items():
            costs[signature.key()] = 100.0 * (ratio if name.startswith("Nhwc") else 1.0)
        return f"{'r' if relu else 'n'}{n}", (shape[0], channels, -(-shape[2] // stride), -(-shape[3] // stride))

    x, shape = block("x", (1, 3, 16, 16), 8, 3, 1, True)
    nodes.append(helper.make_node("MaxPool", [x], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    x, shape = "p", (1, 8, 8, 8)
    for number, (channels, stride) in enumerate(((8, 1), (16, 2))):
        a, inner = block(x, shape, channels, 3, stride, True)
        a, inner = block(a, inner, channels, 3, 1, False)
        short = x if stride == 1 else block(x, shape, channels, 1, stride, False)[0]
        nodes.append(helper.make_node("Add", [a, short], [f"s{number}"]))
        nodes.append(helper.make_node("Relu", [f"s{number}"], [f"o{number}"]))
        x, shape = f"o{number}", inner
    weights["head"] = generator.standard_normal((16, 10))
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["q"]),
        helper.make_node("Flatten", ["q"], ["f"]),
        helper.make_node("MatMul", ["f", "head"], ["y"]),
    ]
    for c, size in ((3, 16), (8, 16), (8, 8), (16, 4), (16, 1)):
        for perm, shape in ((CHANNELS_LAST, (1, c, size, size)), (CHANNELS_FIRST, (1, size, size, c))):
            costs[Signature("Transpose", (("perm", perm),), (TensorType(DataType.FLOAT, shape),), (False,)).key()] = 10.0
    write_table(CostTable("a device elsewhere", ort.__version__, "cuda", costs), table)
    return _model(path, nodes, (1, 3, 16, 16), (1, 10), **weights)


@pytest.fixture(autouse=True)
def _nothing_is_measured(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "confirm", lambda *args, **kwargs: pytest.fail("timed end to end"))


def _written(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize(("ratio", "last"), [(0.5, True), (1.0, False)])
def test_a_network_takes_the_layout_that_its_device_likes(tmp_path: Path, ratio: float, last: bool) -> None:
    source, target = small_resnet(tmp_path / "net.onnx", tmp_path / "table.json", ratio), tmp_path / "fast.onnx"
    outcome = optimize(source, target, rules=rules(), costs=tmp_path / "table.json", budget=20, kernels=False)
    assert outcome.cleaned and outcome.improved is last and not outcome.dropped, outcome.message
    written = _written(target)
    if last:
        assert written["NhwcConv"] == 6 and not {"Conv", "FusedConv", "BatchNormalization"} & written.keys()
        assert written["Transpose"] == 2, "the image's and the classifier's"
    else:
        assert written["Conv"] + written["FusedConv"] == 6 and not {"NhwcConv", "Transpose"} & written.keys()
    original, result = load(source), load(target)
    feed = random_inputs(original, {}, seed=7)
    ((wanted,),), ((given,),) = reference_outputs(original, [feed]), reference_outputs(result, [feed])
    assert compare(given, wanted).relative_l2 < 1e-6  # weights are folded in float32
    assert not last or (outcome.error_after is not None and outcome.error_after.relative_l2 < 1e-5)


def test_a_wrong_rewrite_beside_an_operator_without_a_kernel_is_found(tmp_path: Path) -> None:
    """What cannot run here is evaluated, and judged like anything else: a false rule is found by bisection."""
    (relu,) = (rule for rule in rules() if rule.target == (parse_term("Relu(x)"),) and "Transpose" in str(rule.source))
    wrong = replace(relu, source=(parse_term("Transpose[perm=(2,0,1)](Abs(Transpose[perm=(1,2,0)](x)))"),))
    source = small_resnet(tmp_path / "net.onnx", tmp_path / "table.json", 0.5)
    tried = [wrong if rule is relu else rule for rule in rules()]
    outcome = optimize(source, tmp_path / "fast.onnx", rules=tried, costs=tmp_path / "table.json", budget=20, kernels=False)
    assert outcome.improved and [text[:16] for text in outcome.dropped] == [wrong.id], outcome.dropped
    assert _written(tmp_path / "fast.onnx")["NhwcConv"] == 6 and "Abs" not in _written(tmp_path / "fast.onnx")


@pytest.mark.parametrize(("dtype", "least", "most"), [(DataType.FLOAT, 1e-9, 1e-6), (DataType.FLOAT16, 1e-5, 2e-3)])
def test_evaluation_stands_for_a_session(tmp_path: Path, dtype: DataType, least: float, most: float) -> None:
    """Outputs are rounded as values of their type are, whatever the layout."""
    model = load(residual_block(tmp_path / "block.onnx", int(dtype)))
    feed = random_inputs(model, {}, seed=3)
    (wanted,) = reference_outputs(model, [feed])[0]
    (given,) = Evaluated(model, model.graph).run(None, feed)
    assert given.dtype == dtype.numpy() and least < compare(given, wanted).relative_l2 < most
    moves = moves_of(model, {"Conv": 20, "NhwcConv": 5})
    (child,) = children(moves, moves.start(model.graph))
    (turned,) = Evaluated(model, child.graph).run(None, feed)
    assert turned.dtype == dtype.numpy() and least < compare(turned, wanted).relative_l2 < most


def test_what_is_evaluated_is_compared_with_what_is_evaluated(tmp_path: Path) -> None:
    """Sessions on the CPU keep float16 in 32 bits between nodes: a long chain would never be as right as theirs."""
    factors = [numpy_helper.from_array(np.array(f, np.float16), f"f{i}") for i, f in enumerate((1.1, 0.9))]
    nodes = [helper.make_node("Mul", [f"x{i}", f"f{i % 2}"], [f"x{i + 1}"]) for i in range(200)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, (64,)) for name in ("x0", "x200")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], factors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "chain.onnx")
    model = load(tmp_path / "chain.onnx")
    acceptance = accept.Acceptance(model, tmp_path / "chain.onnx", [random_inputs(model, {}, seed=5)], "cpu")
    error, right = acceptance.judge(Evaluated(model, model.graph))
    assert right and not error.within(acceptance.own_error(), accept.FLOORS[DataType.FLOAT16])


# Products


@pytest.mark.parametrize(("ratio", "turned"), [(1 / 1.5, True), (1.0, False)])
def test_a_transposed_product_is_a_layout(tmp_path: Path, ratio: float, turned: bool) -> None:
    """TASO, figure 5: BERT's 64x1024 by 1024x4096, where the device is faster at the transposed product."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    source = _model(tmp_path / "m.onnx", [node], (64, 1024), (64, 4096), w=np.random.default_rng(4).standard_normal((1024, 4096)))
    a, b = (TensorType(DataType.FLOAT, shape) for shape in ((64, 1024), (1024, 4096)))
    at, bt = (TensorType(DataType.FLOAT, shape) for shape in ((1024, 64), (4096, 1024)))
    plain = Signature("MatMul", (), (a, b), (False, True))
    product = Signature("MatMul", (), (bt, at), (True, False))
    table = CostTable("a device elsewhere", ort.__version__, "cuda", {plain.key(): 60.0, product.key(): 60.0 * ratio})
    write_table(table, tmp_path / "table.json")
    wanted = [rule for rule in rules() if "FusedMatMul" not in str(rule)]
    outcome = optimize(source, tmp_path / "fast.onnx", rules=wanted, costs=tmp_path / "table.json", budget=20, kernels=False)
    assert outcome.improved == turned, outcome.message
    assert _written(tmp_path / "fast.onnx") == ({"Transpose": 2, "MatMul": 1} if turned else {"MatMul": 1})


def test_joint_search_finds_what_substitutions_and_then_layouts_find() -> None:
    """Turned, SqueezeNet saves more at once than any merge of its convolutions: what is not turned yet must go on beside it."""
    rules = open_rules(None)
    runtime = RuntimeDirections(rules, ProfileStore(None, "h200"), "cuda").applied()
    model = load(halved(squeezenet()))
    ratios = [
        measure(model, rules, "h200", runtime, strategy, expansions=60).ratio for strategy in (LAYOUTS, SEQUENTIAL, BACKTRACKING)
    ]
    layouts, sequential, joint = ratios
    assert joint <= sequential + 1e-9 < layouts


def forked(path: Path) -> Path:
    """Twice a 3x3 and a 1x1 kernel over one image: of many channels, and of few."""
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def layer(x: str, channels: int, out: int, side: int, y: str) -> None:
        for suffix, shape in (("w", (out, channels, side, side)), ("b", (out,))):
            weights.append(numpy_helper.from_array(generator.standard_normal(shape).astype(np.float16), y + suffix))
        parts = conv(x, f"{y}w", f"{y}c", kernel_shape=[side] * 2, pads=[side // 2] * 4)
        parts.input.append(f"{y}b")
        nodes.extend([parts, helper.make_node("Relu", [f"{y}c"], [y])])

    layer("x", 256, 128, 3, "a")
    layer("x", 256, 128, 1, "d")
    layer("a", 128, 64, 1, "e")
    layer("e", 64, 64, 3, "f")
    layer("e", 64, 64, 1, "g")
    image, *results = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (1, channels, 56, 56))
        for name, channels in (("x", 256), ("d", 128), ("f", 64), ("g", 64))
    )
    graph = helper.make_graph(nodes, "forked", [image], results, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def least(model: Model, every: Sequence[Rule], runtime: frozenset[str], depth: int) -> float:
    """The least cost of what so many substitutions make of a model, each graph in the best of all layouts, by H200's roofline."""
    costs = CostModel(ProfileStore(None, "h200"), model.opset, {}, "cuda", -math.inf, get_device("h200"))
    oracle = RangeOracle({}, True, Folder(model, model.graph).fold)
    matches = Matches.of(every, oracle, "cuda", model.opset, runtime)
    moves, chooser = Moves(matches, Prices(costs, matches.fusions)), LayoutChooser(matches)
    expansion = Expansion(moves, frozenset({MoveKind.SUBSTITUTION}))
    front = [moves.start(model.graph)]
    met = {candidate.graph.digest: candidate for candidate in front}
    for _ in range(depth):
        made = {child.graph.digest: child for candidate in front for child in expansion.children(candidate, math.inf)}
        front = [child for digest, child in made.items() if digest not in met]
        met |= made
    return min(one.cost for candidate in met.values() for one in (candidate, *chooser(moves, candidate)))


def test_joint_search_finds_what_substitutions_and_then_layouts_miss(tmp_path: Path) -> None:
    """Channels first, one enlarged kernel is worth it: it saves the way to channels last and back. Channels last it is not."""
    rules = open_rules(None)
    runtime = RuntimeDirections(rules, ProfileStore(None, "h200"), "cuda").applied()
    model = load(forked(tmp_path / "forked.onnx"))
    layouts, sequential, joint = (
        measure(model, rules, "h200", runtime, strategy, expansions=60).cost for strategy in (LAYOUTS, SEQUENTIAL, BACKTRACKING)
    )
    assert joint < 0.97 * min(layouts, sequential)
    assert joint == pytest.approx(least(model, rules, runtime, 2))


def halved(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float16."""
    for weight in proto.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return proto
