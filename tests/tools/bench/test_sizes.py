"""One file for many sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
from click.testing import CliRunner
from onnx import TensorProto, helper

from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.text import variants_to_json
from mugraph.blocks.variants import Variants
from mugraph.onnx import load
from mugraph.terms.shape import DataType, symbol
from rewriter.runtime.plan import Expression, Launch, Output, Plan, PlanChoice
from tools.bench import sizes


def test_a_file_is_held_to_the_schedules_of_one_size(tmp_path: Path) -> None:
    rows = Expression.dimension(0, 0)
    plan = Plan(1, (Output(DataType.FLOAT, (rows, 4)),), (Launch("k", 32, (rows, 1, 1), ()),), (rows * 4,))
    choice = PlanChoice((plan,) * 3, rows, (8, 80))
    variants = Variants(tuple((Schedule((), warps=1 << i),) for i in range(3)), symbol("m"), choice.limits)
    text = json.dumps(variants_to_json(variants))
    several = helper.make_node(KERNEL, ["x"], ["y"], domain=KERNEL_DOMAIN, version=3, plan=choice.packed(), mugraph=text)
    one = helper.make_node(KERNEL, ["x"], ["z"], domain=KERNEL_DOMAIN, version=2, plan=plan.packed(), mugraph="{}")
    onnx.save(helper.make_model(helper.make_graph([several, one], "g", [], [])), tmp_path / "m.onnx")
    for size, limits in ((8, (1 << 62, (1 << 62) + 1)), (9, (0, (1 << 62) + 1)), (81, (0, 1))):
        made = onnx.load(sizes.held(tmp_path / "m.onnx", {"m": size}, tmp_path / "held.onnx"))
        plans = [next(a.ints for a in node.attribute if a.name == "plan") for node in made.graph.node]
        assert list(plans[0]) == replace(choice, limits=limits).packed() and list(plans[1]) == plan.packed()


def test_regrets_of_kernels_are_printed(tmp_path: Path) -> None:
    lines = Path(__file__).parents[2] / "rewriter" / "kernels" / "dynamic_kernels.jsonl"
    one = tmp_path / "one.jsonl"
    one.write_text(lines.read_text().splitlines()[0])
    done = CliRunner().invoke(sizes.main, ["predict", str(one), "--most", "2"])
    assert done.exit_code == 0 and "bert, 1x128: one of each" in done.output
    assert "write batch and sequence" in CliRunner().invoke(sizes.main, ["predict", str(one), "--tuned", "8"]).output


def test_a_model_is_given_its_sizes_by_its_inputs(tmp_path: Path) -> None:
    info, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "t", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [info], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    assert sizes.bound(model, "3x17") == {"n": 3, "t": 17} and list(sizes.arguments(model, "3x17")) == ["--input=x=3x17x4"]
