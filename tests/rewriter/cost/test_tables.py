"""Cost tables, devices that are not here, and runs that measure nothing."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from mugraph.terms.shape import DataType
from rewriter import optimize
from rewriter.cost import DEVICES, CostModel, CostTable, ProfileError, merge_tables, read_table, write_table
from rewriter.cost.store import default_profile_path
from rewriter.reference import InputError
from rewriter.run import timings
from tests.support.runs import lora, ops

SIZES = {"x": (2, 4, 32)}


@pytest.fixture(autouse=True)
def _nothing_is_timed(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "confirm", lambda *args, **kwargs: pytest.fail("timed end to end"))


@pytest.fixture
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CostModel, "_measure", lambda self, signature: pytest.fail("measured"))


def table(environment: str = "there | onnxruntime 1 | cuda", **costs: float) -> CostTable:
    return CostTable(environment, "1", "cuda", costs)


def test_a_table_reads_back(tmp_path: Path) -> None:
    write_table(table(a=1.5, b=0.25), tmp_path / "t.json")
    assert read_table(tmp_path / "t.json") == table(a=1.5, b=0.25)
    before = (tmp_path / "t.json").read_bytes()
    write_table(table(b=0.25, a=1.5), tmp_path / "t.json")
    assert (tmp_path / "t.json").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "not a cost table"),
        ('{"format": 1}', "not a cost table of format 2"),
        ('{"format": 2, "environment": "e", "onnxruntime": "1", "provider": "cuda"}', "missing or impossible"),
        ('{"format": 2, "environment": "e", "onnxruntime": "1", "provider": "cuda", "costs": {"a": -1}}', "impossible"),
        ('{"format": 2, "environment": "e", "onnxruntime": "1", "provider": "rocm", "costs": {}}', "impossible"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=words) as problem:
        read_table(path)
    assert str(path) in str(problem.value)


def test_merging_keeps_the_smaller_time_and_refuses_another_environment() -> None:
    assert merge_tables([table(a=2, b=1), table(a=1, c=3)]).costs == {"a": 1, "b": 1, "c": 3}
    with pytest.raises(ProfileError, match=r"'there .*' and 'elsewhere'"):
        merge_tables([table(a=1), table("elsewhere", a=1)])


def test_schedules_go_with_the_time_that_they_gave(tmp_path: Path) -> None:
    slow, fast = ({"kernel 1": time, "a": 1.0} for time in (2.0, 1.0))
    tables = [CostTable("e", "1", "cuda", slow, {"kernel 1": "slow"}), CostTable("e", "1", "cuda", fast, {"kernel 1": "fast"})]
    for order in (tables, tables[::-1]):
        merged = merge_tables(order)
        assert merged.costs == fast and merged.schedules == {"kernel 1": "fast"}
    write_table(merged, tmp_path / "t.json")
    assert read_table(tmp_path / "t.json") == merged
    (tmp_path / "t.json").write_text((tmp_path / "t.json").read_text().replace('"kernel 1": "fast"', '"kernel 2": "fast"'))
    with pytest.raises(ProfileError, match="missing or impossible"):
        read_table(tmp_path / "t.json")


def test_a_device_that_is_not_here(tmp_path: Path, _nothing_is_measured: None) -> None:
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    default_profile_path().unlink()
    outcome = optimize(source, target, shapes=SIZES, device="h200", kernels=False)
    assert outcome.improved and outcome.latency is None and ops(target) == ["MatMul"]
    assert outcome.provider == "cuda" and outcome.environment.startswith("h200 by its roofline")
    assert outcome.error_after is not None and outcome.estimated_costs and not outcome.calibrated_costs
    assert not default_profile_path().exists(), "nothing of it is remembered"
    with pytest.raises(InputError, match=r"unknown device 'h2000'; known devices: .*h200"):
        optimize(source, target, device="h2000")


def test_a_table_steers_the_search(tmp_path: Path, _nothing_is_measured: None) -> None:
    """Where the table says that folding the adapter costs more, nothing is folded."""
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    folded = "MatMul[](float[2,4,32], const float[32,48])"
    for microseconds in (0.1, 1e6):
        there = CostTable("a GPU | onnxruntime | cuda", ort.__version__, "cuda", {folded: microseconds})
        write_table(there, tmp_path / "t.json")
        outcome = optimize(source, target, shapes=SIZES, costs=tmp_path / "t.json", kernels=False)
        assert outcome.environment == "a GPU | onnxruntime | cuda"
        assert (ops(target) == ["MatMul"]) == (microseconds < 1)


def test_equal_tables_calibrate_equal_bytes(tmp_path: Path, _nothing_is_measured: None) -> None:
    source, path = lora(tmp_path / "lora.onnx"), tmp_path / "t.json"
    known = {f"MatMul[](float[2,4,{rows}], const float[{rows},48])": 3.0 + rows / 7 for rows in (31, 33, 36, 40)}
    written, predicted = [], []
    write_table(CostTable("a GPU | onnxruntime | cuda", ort.__version__, "cuda", known), path)
    for _ in range(2):
        outcome = optimize(source, tmp_path / "out.onnx", shapes=SIZES, costs=path, kernels=False, deterministic=True)
        assert outcome.improved and 0 < outcome.calibrated_costs <= outcome.estimated_costs
        written.append((tmp_path / "out.onnx").read_bytes())
        predicted.append((outcome.predicted_before, outcome.predicted_after))
    assert written[0] == written[1] and predicted[0] == predicted[1]


def test_a_table_of_another_version_or_provider_is_refused(tmp_path: Path) -> None:
    source, path = lora(tmp_path / "lora.onnx"), tmp_path / "t.json"
    write_table(table(), path)
    with pytest.raises(ProfileError, match=f"with onnxruntime 1, this is {ort.__version__}"):
        optimize(source, tmp_path / "out.onnx", costs=path)
    write_table(CostTable("a GPU", ort.__version__, "cuda", {}), path)
    with pytest.raises(ProfileError, match="is about provider cuda, not cpu"):
        optimize(source, tmp_path / "out.onnx", costs=path, provider="cpu")
    assert not (tmp_path / "out.onnx").exists()


def test_equal_arguments_write_equal_bytes(tmp_path: Path, _nothing_is_measured: None) -> None:
    source = lora(tmp_path / "lora.onnx")
    written = []
    for name in ("a.onnx", "b.onnx"):
        assert optimize(source, tmp_path / name, shapes=SIZES, provider="cpu", deterministic=True).improved
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    onnx.checker.check_model(str(tmp_path / "a.onnx"))


def test_the_roofline_is_the_device_s() -> None:
    a100, l4 = DEVICES["a100-80gb"], DEVICES["l4"]
    assert a100.microseconds(2 * 4096**3, 0, DataType.FLOAT16) == pytest.approx(440.5, rel=1e-3)
    assert a100.microseconds(2 * 4096**3, 0, DataType.FLOAT) > 10 * a100.microseconds(2 * 4096**3, 0, DataType.FLOAT16)
    assert l4.microseconds(0, 3e8, DataType.FLOAT16) == pytest.approx(1000)
