"""What scales and shifts the channels of a transposed convolution goes into its weights and its bias."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import Model, load
from rewriter.cost import CostModel, ProfileStore, get_device
from rewriter.reference import Evaluated, bind_sizes, compare, random_inputs, reference_outputs
from rewriter.search.backtracking import Backtracking, SearchLimits
from rewriter.search.candidate import Candidate
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rulegen.cli.growing import SHIPPED
from rules_db.exchange import read_rules
from rules_db.trust.rule import Rule
from tests.rewriter.search.test_group_norm import ops

CHANNELS, OUTPUTS = 8, 12


class Writer:
    """A model of a transposed convolution that makes sizes twice as large, and of what comes before and after it."""

    def __init__(self, spatial: int, group: int, batch: tuple[int, ...] = ()) -> None:
        self.spatial, self.group, self.batch, self.draw = spatial, group, batch, np.random.default_rng(3)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, least: float = -1.0) -> str:
        values = self.draw.uniform(least, 2.0, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"v{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def channels(self, count: int) -> str:
        """A number for each channel of an image."""
        return self.weight(*self.batch, count, *(1,) * self.spatial)

    def transposed(self, x: str, bias: bool = False) -> str:
        kernel = self.weight(CHANNELS, OUTPUTS // self.group, *(2,) * self.spatial)
        more = [self.weight(OUTPUTS)] if bias else []
        return self.op("ConvTranspose", x, kernel, *more, group=self.group, strides=[2] * self.spatial)

    def normalised(self, x: str) -> str:
        vectors = [self.weight(OUTPUTS, least=0.5) for _ in range(4)]
        return self.op("BatchNormalization", x, *vectors, epsilon=1e-3)

    def model(self, path: Path, make: Callable[[Writer, str], str]) -> Model:
        result = make(self, "x")
        image = [2, CHANNELS, *range(24, 24 + 8 * self.spatial, 8)]
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
        ends.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, None))
        graph = helper.make_graph(self.nodes, "transposed", ends[:1], ends[1:], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return load(path)


@cache
def rules() -> list[Rule]:
    return list(read_rules(SHIPPED / "conv.rules"))


def searched(model: Model) -> Candidate:
    """The best candidate by the roofline of a GPU, without custom kernels."""
    device = get_device("h200")
    sizes, _ = bind_sizes(model, {})
    costs = CostModel(ProfileStore(None, "h200"), model.opset, sizes, device.provider, -math.inf, device)
    matches = Matches.of(rules(), RangeOracle({}), device.provider, model.opset)
    search = Backtracking(Moves(matches, Prices(costs, matches.fusions)), SearchLimits(seconds=math.inf, expansions=20))
    found = search.run(model.graph)
    return found.better[0] if found.better else found.start


MODELS: dict[str, Callable[[Writer, str], str]] = {
    "summand": lambda w, x: w.op("Add", w.transposed(x), w.channels(OUTPUTS)),
    "summand beside a bias": lambda w, x: w.op("Add", w.transposed(x, bias=True), w.channels(OUTPUTS)),
    "normalised": lambda w, x: w.normalised(w.transposed(x)),
    "normalised with a bias": lambda w, x: w.normalised(w.transposed(x, bias=True)),
    "summand and normalised": lambda w, x: w.normalised(w.op("Add", w.transposed(x), w.channels(OUTPUTS))),
    "factor": lambda w, x: w.op("Mul", w.transposed(x), w.channels(OUTPUTS)),
    "factor in front": lambda w, x: w.transposed(w.op("Mul", x, w.channels(CHANNELS))),
    "factor of all": lambda w, x: w.op("Mul", w.transposed(x, bias=True), w.weight(1)),
}
OF_ALL_GROUPS = ("summand", "summand beside a bias", "factor in front", "factor of all")


@pytest.mark.parametrize(("name", "group"), [(name, 1) for name in MODELS] + [(name, 4) for name in OF_ALL_GROUPS])
@pytest.mark.parametrize("batch", [(), (1,)])
@pytest.mark.parametrize("spatial", [1, 2])
def test_what_scales_and_shifts_channels_is_folded(
    tmp_path: Path, name: str, group: int, spatial: int, batch: tuple[int, ...]
) -> None:
    model = Writer(spatial, group, batch).model(tmp_path / "m.onnx", MODELS[name])
    assert not model.opaque
    best = searched(model)
    assert ops(best.graph) == {"ConvTranspose": 1}
    feed = random_inputs(model, {}, seed=5)
    ((wanted,),), (given,) = reference_outputs(model, [feed]), Evaluated(model, best.graph).run(None, feed)
    assert compare(given, wanted).relative_l2 < 1e-5


def test_what_scales_the_channels_of_groups_stays(tmp_path: Path) -> None:
    """The channels of one entry of the weights are several, in groups."""
    model = Writer(2, 4).model(tmp_path / "m.onnx", MODELS["factor"])
    assert ops(searched(model).graph) == {"ConvTranspose": 1, "Mul": 1}
