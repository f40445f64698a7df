"""``--search-kernels``: what is searched within a run stands beside what is built, and keeps to its time."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx import load, open_in
from mugraph.terms.term import format_term
from rewriter import Options, optimize
from rewriter.cost import CostModel, ProfileStore, get_device
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.preparing import unguarded
from rewriter.kernels.proposals import PROVIDER
from rewriter.reference import InputError
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rulegen.mugraphs.lax import SubprogramBounds, goals_of
from rules_db.library import shipped_rules
from tools.mirage import programs

pytestmark = pytest.mark.usefixtures("own_cache")

GUARDED = """<ir_version: 10, opset_import: ["" : 20]> guarded 
    (float16[2,64,32] q, float16[2,32,128] k, float16[2,128,32] v{input}) => (float16[2,64,32] y) <float16 zero = {{0}}> {{
    s = MatMul(q, k) {mask} w = Softmax<axis=-1>({scores}) n = IsNaN(w) g = Where(n, zero, w) y = MatMul(g, v) }}"""


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    program = next(program for program in programs() if program.label == "LoRA:1")
    onnx.save(program.model(), tmp_path / "lora.onnx")
    return tmp_path / "lora.onnx"


def test_what_is_searched_stands_beside_what_is_built(lora: Path, tmp_path: Path) -> None:
    options = {"device": "h200", "architectures": (Architecture(90),), "rules": [], "budget": 120.0}
    lowered = optimize(lora, tmp_path / "lowered.onnx", **options)
    searched = optimize(lora, tmp_path / "searched.onnx", search_kernels=30.0, **options)
    assert searched.predicted_after < 0.95 * lowered.predicted_after
    assert any("kernels were found for 4 of 4 subprograms" in note for note in searched.notes)
    assert not any("kernels were found" in note for note in lowered.notes)


def test_the_search_ends_with_its_time_and_says_so(lora: Path, tmp_path: Path) -> None:
    outcome = optimize(lora, tmp_path / "out.onnx", device="h200", rules=[], budget=60.0, search_kernels=1e-3)
    assert any("0 kernels were found for 0 of 0" in note and "did not suffice" in note for note in outcome.notes)
    assert (tmp_path / "out.onnx").exists()


def test_a_run_without_kernels_of_its_own_searches_none_and_says_so(lora: Path, tmp_path: Path) -> None:
    outcome = optimize(lora, tmp_path / "out.onnx", provider="cpu", rules=[], budget=5.0, search_kernels=5.0)
    assert "no kernels were searched: this run makes no custom kernels" in outcome.notes


def test_a_run_that_reads_no_clock_refuses_a_search_that_does() -> None:
    with pytest.raises(InputError, match="rulegen mine --kernels MODEL --out FILE"):
        Options(deterministic=True, search_kernels=5.0)


def without_guards(text: str, folder: Path) -> Graph:
    """A model without needless guards, as the process that searches reads it."""
    model = load(parse_model(text))
    costs = CostModel(ProfileStore(None, "predicted"), model.opset, {}, PROVIDER, float("-inf"), get_device("h200"))
    matches = Matches.of(shipped_rules(), RangeOracle({}), PROVIDER, model.opset)
    moves = Moves(matches, Prices(costs, matches.fusions))
    return load(open_in(model, unguarded(moves, moves.start(model.graph)).graph, folder)).graph


def texts(graph: Graph) -> list[str]:
    return ["; ".join(map(format_term, goal.roots)) for goal in goals_of(graph, SubprogramBounds())]


def test_guarded_attention_is_one_goal_where_the_guard_cannot_come_to_act(tmp_path: Path) -> None:
    """As torch exports it: Where(IsNaN(weights), 0, weights). Scores without a mask are finite."""
    plain = GUARDED.format(input="", mask="", scores="s")
    assert texts(without_guards(plain, tmp_path)) == ["MatMul(Softmax[axis=-1](MatMul(x0, x1)), x2)"]
    assert "Softmax[axis=-1](MatMul(x0, x1))" in texts(load(parse_model(plain)).graph)


def test_a_guard_that_may_come_to_act_bounds_goals(tmp_path: Path) -> None:
    """A mask that the model is fed may hide a row: then the guard makes zeros of it."""
    least = "least = Constant<value_float=-inf>() low = CastLike(least, s) m = Where(shown, s, low)"
    masked = GUARDED.format(input=", bool[64,128] shown", mask=least, scores="m")
    assert any(node.op == "IsNaN" for node in without_guards(masked, tmp_path).nodes())
