"""What a command shows while it works, and how it is read where nobody watches."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from mugraph.console import FOLDED, result_console
from rewriter.cli.main import main
from rewriter.cli.progress import watched
from rewriter.cli.summary import print_explanations, print_summary
from rewriter.run import timings
from rewriter.run.optimize import optimize
from rewriter.run.outcome import Fired, Outcome
from rewriter.search.misses import NearMiss
from tests.support.runs import lora


def test_a_line_tells_stage_and_time() -> None:
    screen = io.StringIO()
    with watched(Console(file=screen, force_terminal=True, width=100), budget=60, spent=12) as tell:
        tell("searching: 7 candidates expanded")
    assert "searching: 7 candidates expanded (12 s, 48 s left)" in screen.getvalue()


def test_nothing_moves_where_nobody_looks() -> None:
    file = io.StringIO()
    with watched(Console(file=file)) as tell:
        tell("searching")
    assert file.getvalue() == ""


def test_a_run_tells_its_stages_and_the_best_so_far(
    tmp_path: Path, measured_cache: Path, timing: dict[str, timings.Timing], caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    with caplog.at_level(logging.INFO):
        optimize(lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx", progress=lines.append, provider="cpu", budget=20)
    stages = [line.partition(":")[0].partition(";")[0] for line in lines]
    for stage in ("reading the model", "loading rules and measured costs", "matching rules and pricing the model", "writing"):
        assert stage in stages, lines
    assert any("best so far 0.500 of the original's time" in line for line in lines), lines
    told = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("candidate 1, of rules ") for line in told) and any(line.endswith(": written") for line in told)


def test_a_saving_that_rounds_to_nothing_has_no_sign() -> None:
    fired = tuple(Fired(f"r{i}", "x -> y", "proved", 1, gain, ("y",)) for i, gain in enumerate((-0.01, 0.01, -3.0)))
    file = io.StringIO()
    print_summary(Outcome("a", "b", fired=fired), Console(file=file, width=200))
    assert "-0.0" not in file.getvalue() and "-3.0 us" in file.getvalue() and file.getvalue().count(" 0.0 us") == 2


@pytest.mark.parametrize(
    ("improved", "overall", "told"),
    [
        (False, 0.5, "cleaned up: 2.00 times as fast as the file that came; what was written is the original with less in it"),
        (False, 1.0, "cleaned up: what was written is the original with less in it"),
        (False, None, "cleaned up: what was written is the original with less in it"),
        (True, 0.4, "improved: 2.50 times as fast as the file that came; 1.25 times as fast as cleaned up alone"),
        (True, 1.0, "improved: 1.25 times as fast as before"),
        (False, 1.25, "cleaned up: 0.80 times as fast as the file that came; what was written"),
        (True, 1.25, "improved: 0.80 times as fast as the file that came; 1.25 times as fast as cleaned up alone"),
    ],
)
def test_what_cleaning_up_gained_is_told(improved: bool, overall: float | None, told: str) -> None:
    def timing(ratio: float) -> timings.Timing:
        return timings.Timing(1.0, ratio, 0.1, 0.1, ratio, ratio, ratio)

    file, latency = io.StringIO(), timings.Speed(timing(0.8)) if improved else timings.UNTIMED
    whole = None if overall is None else timing(overall)
    print_summary(Outcome("a", "b", improved, cleaned=True, speed=latency, overall=whole), Console(file=file, width=200))
    assert told in file.getvalue()
    assert ("latency ratio to the file that came" in file.getvalue()) is (overall is not None)


def test_moves_of_one_substitution_are_told_together() -> None:
    moves = (("r>", "x -> y", 2, 5.0), ("r<", "y -> x", 1, 6.5), ("r>", "x -> y", 1, -3.0), ("r>", "x -> z", 1, 1.0))
    fired = tuple(Fired(rule, text, "proved", sites, gain, ("y",)) for rule, text, sites, gain in moves)
    file = io.StringIO()
    print_summary(Outcome("a", "b", fired=fired), Console(file=file, width=200))
    rows = [
        [cell.strip() for cell in line[1:-1].split("│")] for line in file.getvalue().splitlines() if "->" in line and "│" in line
    ]
    assert [(cells[0], *cells[2:]) for cells in rows] == [
        ("r<", "1", "6.5 us", "y -> x"),
        ("r>", "3", "2.0 us", "x -> y"),
        ("r>", "1", "1.0 us", "x -> z"),
    ]


def test_rules_that_fired_are_whole_on_a_narrow_screen_and_what_saves_most_comes_first() -> None:
    text = "Reshape[shape=(k*n,)](" * 12 + "x" + ")" * 12 + " -> x"
    fired = tuple(Fired(f"r{i}", text, "proved", 1, gain, ("y",)) for i, gain in enumerate((2.0, 70.0)))
    file = io.StringIO()
    print_summary(Outcome("a", "b", fired=fired), Console(file=file, width=80))
    rows = [line[1:-1].split("│") for line in file.getvalue().splitlines() if line.startswith("│") and line.count("│") == 6]
    assert "".join(cells[-1].strip() for cells in rows).replace(" ", "") == 2 * text.replace(" ", "")
    assert [cells[0].strip() for cells in rows if cells[0].strip()] == ["r1", "r0"]


def test_a_long_substitution_is_folded_in_a_file_and_whole() -> None:
    text = "Reshape[shape=(k*n,)](" * 40 + "x" + ")" * 40 + " -> x"
    miss = NearMiss("r", text, "y", "a guard", text, 3.0)
    file = io.StringIO()
    console = result_console(file=file)
    print_explanations([miss], console)
    print_summary(Outcome("a", "b", fired=(Fired("r", text, "proved", 1, 2.0, ("y",)),)), console)
    assert max(map(len, file.getvalue().splitlines())) < 3 * FOLDED
    rows = [line[1:-1].split("│") for line in file.getvalue().splitlines() if line.startswith("│") and line.count("│") == 6]
    assert len(rows) > 5 and "".join(cells[-1].strip() for cells in rows).replace(" ", "") == text.replace(" ", "")


def test_lines_are_not_folded_in_a_pipe() -> None:
    file = io.StringIO()
    console = result_console(file=file)
    console.print("word " * 200)
    assert len(file.getvalue().strip().splitlines()) == 1


def test_the_help_has_headings() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    for heading in (
        "What is written:",
        "What it is for:",
        "How it is searched:",
        "What may be assumed:",
        "What is told:",
        "Help:",
    ):
        assert text.count(f"\n{heading}\n") == 1
    assert text.index("--budget") > text.index("How it is searched:") > text.index("--provider")


@pytest.mark.parametrize("module", ["rewriter.cli", "modeldiff", "rulegen"])
def test_shells_complete_options(module: str) -> None:
    name = "prog"
    script = (
        f"import sys; sys.argv = ['{name}']; import runpy; runpy.run_module('{module}', run_name='__main__', alter_sys=False)"
    )
    environment = {**os.environ, "_PROG_COMPLETE": "bash_complete", "COMP_WORDS": f"{name} --he", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert "plain,--help" in done.stdout, done.stderr
