"""The report of a run tells what its summary tells, and nothing that the run has no data about."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from rewriter.cli.main import main
from rewriter.reference import Error
from rewriter.report.charts import bars, histogram
from rewriter.report.of_run import run_page
from rewriter.run import optimize as optimize_module
from rewriter.run import timings
from rewriter.run.outcome import Fired, OperatorTime, Outcome, Tried
from rules_db.entries import Entry
from rules_db.library import read_entries
from rules_db.store import RuleStore
from tests.support.runs import FASTER, lora

pytestmark = pytest.mark.usefixtures("measured_cache")


def _run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)


def _sections(html: str) -> list[str]:
    return re.findall(r'<section id="(\w+)">', html)


def test_a_run_writes_its_report(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    timing["confirm"] = replace(FASTER, ratios=tuple(0.5 + i / 1000 for i in range(-20, 21)))
    source, page, summary = lora(tmp_path / "lora.onnx"), tmp_path / "r.html", tmp_path / "s.json"
    result = _run(source, "--provider", "cpu", "--report", page, "--json", summary, "--budget", "20", "--input", "x=2x4x32")
    assert result.exit_code == 0, result.output
    html, record = page.read_text(), json.loads(summary.read_text())
    assert _sections(html) == ["latency", "where", "operators", "rules", "tried", "errors", "assumed", "notes", "graphs"]
    assert "2.00 times as fast as before" in html and "0.500 [0.450, 0.550]" in html and "in 41 pairs of runs" in html
    for fired in record["fired"]:
        assert f'id="rule-{escape(fired["rule"])}"' in html and fired["where"][0] in html
    assert "Both sides of rule" in html and "because, where each line is an operator property" in html
    before, after = onnx.load(source).graph, onnx.load(record["output"]).graph
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S).group(1))  # type: ignore[union-attr]
    for side, graph in (("before", before), ("after", after)):
        names = [".".join(part for part in (node.domain, node.op_type) if part) for node in graph.node]
        assert [node["op"] for node in data[side]["nodes"]] == names
    assert {rule for region in data["regions"] for rule in region["rules"]} == {fired["rule"] for fired in record["fired"]}
    spent = sum(row["microseconds_before"] for row in record["times"])
    rounded = 0.005 * len(record["times"])  # each to a hundredth of a microsecond
    assert spent == pytest.approx(record["predicted_before"], abs=rounded + 1e-3)
    assert sum(row["microseconds_after"] for row in record["times"]) == pytest.approx(record["predicted_after"], rel=0.05)
    assert [tried["fate"] for tried in record["tried"]].count("written") == 1
    assert record["output_errors"][0]["after"] == record["error_after"]


def test_a_verdict_that_is_repeated_keeps_its_figures(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    timing["confirm"] = replace(FASTER, ratios=(0.4, 0.5, 0.6))
    source, page = lora(tmp_path / "lora.onnx"), tmp_path / "r.html"
    arguments = (source, "--provider", "cpu", "--budget", "20", "--input", "x=2x4x32")
    assert _run(*arguments).exit_code == 0
    assert _run(*arguments, "--report", page).exit_code == 0
    html = page.read_text()
    assert "The verdict of an earlier run" in html and "in 3 pairs of runs" in html and "Where the time goes" in html


def test_the_report_is_no_model(tmp_path: Path) -> None:
    source = lora(tmp_path / "lora.onnx")
    content = source.read_bytes()
    for target in (source, tmp_path / "none" / "r.html"):
        result = _run(source, "--report", target)
        assert result.exit_code == 2 and "--report" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert source.read_bytes() == content


def test_what_was_not_measured_is_not_shown(tmp_path: Path) -> None:
    graph = onnx.load(lora(tmp_path / "lora.onnx")).graph
    kept = Outcome("a.onnx", "b.onnx", message="no candidate is cheaper: the original was kept")
    html = run_page(kept, graph, graph, None, tmp_path)
    assert _sections(html) == ["operators", "notes", "graphs"] and "not improved" in html
    html = run_page(replace(kept, cleaned=True, overall=FASTER), graph, graph, None, tmp_path)
    assert "latency" in _sections(html) and "cleaned up: 2.00 times as fast as the file that came" in html
    tried = Tried(("r",), 2.0, "relative error 0.5, the original has 1e-7", None)
    html = run_page(replace(kept, tried=(tried,), error_before=Error(1e-7, 1e-6)), graph, graph, None, tmp_path)
    assert _sections(html) == ["operators", "tried", "errors", "notes", "graphs"] and "relative error 0.5" in html


def test_bars_are_as_long_as_what_they_show() -> None:
    drawn = bars([("Conv<evil>", 40.0, 10.0), ("kernel", 0.0, 20.0)], "us")
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    assert widths[0] == pytest.approx(4 * widths[1]) == pytest.approx(2 * widths[3]) and widths[2] == 0
    assert "40.0 us" in drawn and "0.0 us" not in drawn.replace("40.0 us", "").replace("10.0 us", "").replace("20.0 us", "")
    assert "<evil>" not in drawn and "&lt;evil&gt;" in drawn


@pytest.mark.parametrize(("roofline", "shown"), [(3.0, "3.0"), (4.0, "4.0"), (4.1, "-"), (40.0, "-")])
def test_no_least_time_is_above_what_was_measured(roofline: float, shown: str, tmp_path: Path) -> None:
    graph = onnx.load(lora(tmp_path / "lora.onnx")).graph
    row = OperatorTime("Gemm", 2, 1, 4.0, 2.0, roofline, 1.0)
    html = run_page(Outcome("a.onnx", "b.onnx", times=(row, row)), graph, graph, None, tmp_path)
    cells = re.findall(r"<(?:th|td)[^>]*>([^<]*)</", re.search(r"<tbody>(.*?)</tbody>", html, re.S).group(1))  # type: ignore[union-attr]
    assert cells[:7] == ["Gemm", "2", "1", "4.0", "2.0", shown, "1.0"] and cells[14:] == ["all", "4", "2", "8.0", "4.0", "-", "-"]


def test_a_histogram_has_every_round() -> None:
    drawn = histogram([0.9, 0.9, 0.95, 1.1], 0.92, 0.9, 1.0)
    heights = sorted(float(h) for h in re.findall(r'height="([\d.]+)" fill="var\(--edge\)"', drawn))
    assert heights == [40.0, 40.0, 80.0]


def test_the_report_is_written_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run leaves the time for it; of a budget that is hardly longer, half."""
    budgets, clock = list[float](), optimize_module.Clock
    monkeypatch.setattr(optimize_module, "Clock", lambda budget, spent: budgets.append(budget) or clock(budget, spent))
    monkeypatch.setattr("rewriter.report.of_run.page_seconds", lambda _: 4.0)
    source = lora(tmp_path / "lora.onnx")
    for budget in ("20", "2"):
        for more in (["--report", tmp_path / "r.html"], []):
            assert _run(source, "--provider", "cpu", "--budget", budget, "--input", "x=2x4x32", *more).exit_code == 0
    assert 15 < budgets[0] < 16 and budgets[1:] == [20, 1, 2]


@pytest.mark.parametrize("place", [None, "own.rules", "own.db"])
def test_only_the_rules_that_fired_are_read(place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that ship, of a file, in which another block may bear the identity, and of a database."""
    entry, *others = read_entries()[:3]
    rules = None if place is None else str(tmp_path / place)
    if place == "own.rules":
        twin = re.sub("target .*", "target x", entry.text)
        (tmp_path / place).write_text("\n".join(each.text for each in (*others, entry, replace(entry, text=twin))))
    elif rules is not None:
        with RuleStore.open(rules) as store:
            store.add_all(each.read() for each in (*others, entry))
    read, entry_read = list[str](), Entry.read
    monkeypatch.setattr(Entry, "read", lambda entry, **how: read.append(entry.name) or entry_read(entry, **how))
    monkeypatch.setattr("rules_db.entries.check", None)
    graph = onnx.load(lora(tmp_path / "lora.onnx")).graph
    fired = Fired(f"{entry.name}>", "x", "proved", 1, 1.0, ("y",))
    html = run_page(Outcome("a.onnx", "b.onnx", fired=(fired,)), graph, graph, rules, tmp_path)
    assert set(read) == {entry.name} and f"Both sides of rule {entry.name}" in html
