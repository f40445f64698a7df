"""The command ``onnx-superopt``: what it prints, and bad input in one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.parser import parse_model
from rich.console import Console

from mugraph.deadline import BudgetSpent
from mugraph.onnx import ModelError
from rewriter import optimize
from rewriter.cli.main import main, run
from rewriter.cli.summary import print_explanations
from rewriter.run import kernels as run_kernels
from rewriter.run import optimize as optimize_module
from rewriter.run import timings
from rewriter.search.misses import MissReason, NearMiss
from rules_db import late
from tests.support.runs import lora

pytestmark = pytest.mark.usefixtures("measured_cache")


def _invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)


def _expect(result: Any, *texts: str) -> None:
    assert result.exit_code == 2, result.output
    message = result.stderr.strip()
    assert len(message.splitlines()) == 1 and "Traceback" not in message, message
    for text in texts:
        assert text in message


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    source, target, summary = lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx", tmp_path / "s.json"
    result = _invoke(source, "-o", target, "--provider", "cpu", "--json", summary, "--budget", "20", "--input", "x=2x4x32")
    assert result.exit_code == 0, result.output
    for text in ("latency", "nodes", "relative error", "rules that fired", "improved"):
        assert text in result.output
    record = json.loads(summary.read_text())
    assert record["improved"] and record["fired"][0]["sites"] >= 1 and record["error_after"]["relative_l2"] < 1e-6


def test_the_command_collects_garbage_rarely() -> None:
    code = """
import gc
from rewriter.cli import main, optimize_command
before = gc.get_threshold()
main.run = lambda: print(gc.get_threshold()[0] > before[0])
optimize_command()
print(gc.get_threshold() == before, gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "0"]


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    target.write_bytes(b"previous")
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(source.read_bytes()[:2000])
    text = tmp_path / "text.onnx"
    text.write_text("this is no model")
    misnamed, mistyped = tmp_path / "misnamed.npz", tmp_path / "mistyped.npz"
    np.savez(misnamed, z=np.ones(3))
    np.savez(mistyped, x=np.ones((2, 4, 32)))
    cases = [
        ((truncated,), ("truncated.onnx",)),
        ((text,), ("text.onnx",)),
        ((tmp_path / "missing.onnx",), ("missing.onnx",)),
        (("/",), ("/",)),
        ((source, "--input", "nope=2x4x32"), ("nope", "x")),
        ((source, "--input", "x=2x4"), ("x", "dimensions")),
        ((source, "--input", "x=2x5x32"), ("x", "contradicts 4 of the model")),
        ((source, "--input", "x2x5"), ("NAME=2x128",)),
        ((source, "--input", "x=100000000000x4x32"), ("x", "smaller")),
        ((source, "--data", tmp_path / "none.npz"), ("none.npz",)),
        ((source, "--data", text), ("text.onnx",)),
        ((source, "--data", misnamed), ("input x is missing",)),
        ((source, "--data", mistyped), ("float64", "declares")),
        ((source, "--json", tmp_path / "no" / "s.json"), ("s.json",)),
        ((source, "--rules", tmp_path / "none.rules"), ("none.rules",)),
        ((source, "--rules", tmp_path), (str(tmp_path),)),
        ((source, "--rules", text), ("text.onnx",)),
        ((source, "--json", "-"), ("/dev/stdout",)),
        ((source, "--explain", "nothing-like-it"), ("nothing-like-it",)),
        ((source, "--explain", "--clean"), ("--explain", "--clean")),
    ]
    for arguments, texts in cases:
        for asked in (("--budget", "0.001"), ("--budget", "0"), ("--clean",)):  # which end before much of that is used
            if "--explain" not in arguments or "0.001" in asked:
                _expect(_invoke(*arguments, "-o", target, "--provider", "cpu", *asked), *texts)
            assert target.read_bytes() == b"previous"
    assert {p.name for p in tmp_path.iterdir()} == {
        "lora.onnx",
        "out.onnx",
        "truncated.onnx",
        "text.onnx",
        "misnamed.npz",
        "mistyped.npz",
        "cache",
    }


def test_a_corrupt_rule_database_is_refused_and_a_corrupt_cache_done_without(tmp_path: Path) -> None:
    source = lora(tmp_path / "lora.onnx")
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\0" + b"garbage" * 100)
    _expect(_invoke(source, "--provider", "cpu", "--rules", broken), "broken.sqlite")
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    (cache / "profile.sqlite").write_bytes(b"no database at all" * 100)
    result = _invoke(source, "--provider", "cpu", "--budget", "1")
    told = " ".join(result.output.split())
    assert result.exit_code == 0 and "delete it" in told and told.count("this run went on without it") == 1


def test_a_summary_replaces_no_model_and_no_device(tmp_path: Path) -> None:
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx"
    target.write_bytes(before := source.read_bytes())
    for json_file in (source, target):
        _expect(_invoke(source, "-o", target, "--json", json_file, "--budget", "0"), json_file.name, "this is a model")
    assert source.read_bytes() == target.read_bytes() == before
    assert _invoke(source, "-o", "/dev/null", "--json", "/dev/null", "--budget", "0").exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_nothing_that_is_written_replaces_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, weights, data, rules = lora(tmp_path / "lora.onnx"), tmp_path / "w.bin", tmp_path / "x.npz", tmp_path / "my.rules"
    onnx.save(onnx.load(source), source, save_as_external_data=True, location=weights.name, size_threshold=0)
    np.savez(data, x=np.ones((2, 4, 32), np.float32))
    rules.write_text("# none\n")
    costs, link = tmp_path / "costs.json", tmp_path / "link"
    costs.write_text("{}")
    link.symlink_to(data)
    before = {path: path.read_bytes() for path in (source, weights, data, rules, costs)}
    cases = [
        (("--json", weights), "holds weights of"),
        (("--report", weights), "holds weights of"),
        (("--data", data, "-o", data), "--data reads this file"),
        (("--data", data, "-o", link), "--data reads this file"),
        (("--data", data, "--json", "x.npz"), "--data reads this file"),
        (("--rules", rules, "-o", rules), "--rules reads this file"),
        (("--rules", rules, "--report", rules), "--rules reads this file"),
        (("--costs", costs, "-o", costs), "--costs reads this file"),
        (("--json", "lora.superopt.onnx"), "this is a model"),
        (("-o", "new.onnx", "--json", "./new.onnx"), "this is a model"),
        (("--json", "one.html", "--report", "one.html"), "name one file"),
    ]
    for arguments, text in cases:
        _expect(_invoke(source, *arguments, "--budget", "0"), text)
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {path.name for path in (*before, link)}


def test_replacing_the_model_takes_a_flag(tmp_path: Path) -> None:
    source = lora(tmp_path / "lora.onnx")
    _expect(_invoke(source, "-o", source, "--budget", "0"), "is the model itself", "--in-place")
    assert _invoke(source, "--in-place", "--budget", "0").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"lora.onnx", "cache"}


def test_cuda_without_a_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.runtime_env._cuda_device_present", lambda: False)
    _expect(_invoke(lora(tmp_path / "lora.onnx"), "--provider", "cuda"), "no CUDA device", "--provider cpu")


def test_an_unwritable_output_is_named(tmp_path: Path) -> None:
    _expect(_invoke(lora(tmp_path / "lora.onnx"), "-o", tmp_path / "no" / "such" / "o.onnx", "--budget", "0"), "o.onnx")


def test_no_room_for_temporary_files_blames_no_rule(
    tmp_path: Path, timing: dict[str, timings.Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is not the rules' fault: one message, nothing quarantined."""
    calls: list[int] = []
    genuine = run_kernels.open_in

    def full(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ModelError("candidate0.onnx cannot be written: No space left on device; make room")
        return genuine(*arguments)

    monkeypatch.setattr(run_kernels, "open_in", full)
    source = lora(tmp_path / "lora.onnx")
    _expect(_invoke(source, "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20"), "No space left")
    assert not (tmp_path / "o.onnx").exists()
    monkeypatch.setattr(run_kernels, "open_in", genuine)
    again = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=20)
    assert again.improved and not again.dropped


def test_paths_are_whole_in_the_summary_and_what_was_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with a name that is longer than the table of a model is wide" / "weights[1]"
    folder.mkdir(parents=True)
    body = "g (float[2] x) => (float[2] y) { a = Identity(x) b = Abs(a) y = Neg(b) }"
    onnx.save(parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {body}'), folder / "m.onnx")
    result = _invoke(folder / "m.onnx", "-o", folder / "o.onnx", "--clean")
    assert result.exit_code == 0 and result.output.splitlines()[0] == f"{folder / 'm.onnx'} -> {folder / 'o.onnx'}"
    assert "what was written is the original" in result.output.splitlines()[-1]


def test_explanations_are_printed(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    source = lora(tmp_path / "lora.onnx")
    result = _invoke(source, "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20", "--explain")
    assert result.exit_code == 0 and "why (not)" in result.output and "--json" in result.output


def test_explanations_are_one_screen_of_what_would_have_saved_most(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [NearMiss(f"rule{n}", "A -> B", f"at{n}", f"because of {n}", "it misses", float(n)) for n in range(40, 0, -1)]
    same = [NearMiss(f"other{n}", "A -> B", "at40", "because of 40", "it misses", 40.0) for n in range(7)]
    unlike = [NearMiss("rule0", "A -> B", "at", "it applies", "it applies")]
    print_explanations([*lines[:1], *same, *lines[1:], *unlike], Console(width=100))
    printed = capsys.readouterr().out
    assert (
        "rule40 +7" in printed and "because of 21" in printed and "because of 20" not in printed and "it applies" not in printed
    )
    assert len(printed.splitlines()) < 25 and "21 more outcomes" in printed


def test_what_cleaning_took_away_is_said_to_be_gone_and_is_no_rule(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    """A value's name may be the beginning of rules' ids."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4,8] x) => (float[4,8] y) { a = Identity(x) y = Relu(a) }'
    model, source, summary = parse_model(text), tmp_path / "m.onnx", tmp_path / "s.json"
    model.graph.node[0].name = "nothing"
    onnx.save(model, source)
    for name in ("a", "nothing"):
        result = _invoke(
            source, "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20", "--explain", name, "--json", summary
        )
        assert result.exit_code == 0, result.output
        (line,) = json.loads(summary.read_text())["explanations"]
        assert line["where"] == name and line["reason"] == MissReason.GONE and not line["rule"]


def test_a_run_that_ends_before_it_explains_says_so(tmp_path: Path) -> None:
    source = lora(tmp_path / "lora.onnx")
    for name in ("scaled", "all"):
        result = _invoke(source, "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "0.01", "--explain", name)
        assert f"--explain {name}: the run ended before it looked at that; --budget gives" in " ".join(result.output.split())


def test_an_unknown_name_is_refused_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lora(tmp_path / "lora.onnx")
    monkeypatch.setattr("rewriter.run.deciding.Proposer", lambda *_: pytest.fail("it was searched"))
    result = _invoke(source, "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20", "--explain", "scalled")
    assert result.exit_code == 2 and "did you mean scaled?" in result.output


def test_the_budget_of_a_command_begins_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, float] = {}
    monkeypatch.setattr("rewriter.cli.main.main", lambda **fields: told.update(fields))
    monkeypatch.setattr("rewriter.cli.main.process_seconds", lambda: 1.5)
    monkeypatch.setattr("rewriter.cli.main.time", SimpleNamespace(monotonic=lambda: 10.0))
    monkeypatch.setattr("rewriter.cli.main.os._exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        run()
    assert told["obj"] == 8.5 and not ended.value.code


def test_what_is_imported_before_a_run_begins_takes_of_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forgotten once a command imported what it needs after it had looked at the clock: runs ended too late."""
    told: list[float] = []

    def asked(*given: Any) -> None:
        told.append(given[-1])
        raise KeyboardInterrupt

    monkeypatch.setattr("rewriter.cli.running.optimize", asked)
    monkeypatch.setattr("rewriter.cli.running.time", SimpleNamespace(monotonic=lambda: 10.0))
    with pytest.raises(SystemExit):
        main([str(lora(tmp_path / "lora.onnx"))], obj=7.0, standalone_mode=False)
    assert told == [3.0]


def test_an_interrupt_ends_the_command_with_the_exit_code_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rewriter.cli.running.optimize", interrupted)
    result = _invoke(lora(tmp_path / "lora.onnx"), "-o", tmp_path / "o.onnx")
    assert (result.exit_code, result.output.strip()) == (130, "")


@pytest.mark.parametrize("argument, code", [("--version", 0), ("missing.onnx", 2)])
def test_a_command_ends_its_process_at_once(tmp_path: Path, argument: str, code: int) -> None:
    """All that it prints is there by then; only what it made is not taken apart."""
    program = "import atexit, sys; atexit.register(print, 'apart'); from rewriter.cli.main import run; sys.argv[0] = 'x'; run()"
    ended = subprocess.run([sys.executable, "-c", program, argument], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == code and "apart" not in ended.stdout
    assert "version" in ended.stdout or "missing.onnx" in ended.stderr


def test_data_that_is_none_is_told_with_a_way_that_is_safe(tmp_path: Path) -> None:
    (tmp_path / "junk.npz").write_bytes(b"junk" * 40)
    result = _invoke(lora(tmp_path / "lora.onnx"), "--data", tmp_path / "junk.npz")
    _expect(result, "junk.npz: not a readable .npz file of the model's inputs (numpy.savez writes such files)")
    assert "pickle" not in result.output


@pytest.mark.parametrize("words, told", [(("--budget", "5"), True), (("--budget", "0"), False), ((), False)])
def test_a_budget_that_no_clock_ends_is_told(tmp_path: Path, words: tuple[str, ...], told: bool) -> None:
    result = _invoke(lora(tmp_path / "lora.onnx"), "-o", tmp_path / "o.onnx", "--deterministic", *words)
    assert result.exit_code == 0 and ("--budget did not end the run" in result.output.replace("\n", " ")) is told


@pytest.mark.parametrize("words", [("--budget", "-3"), ("--strategy", "luck"), ("--nope",), ("one.onnx", "two.onnx"), ()])
def test_bad_words_are_told_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    program = "from rewriter.cli.main import run; run()"
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("onnx-superopt: ")


def test_names_as_long_as_the_file_are_cut_on_the_screen(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    """To colour a line of 100,000 characters took minutes; the file of --json has it whole."""
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }')
    name = "n" * 100_000
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = name
    onnx.save(proto, tmp_path / "m.onnx")
    result = _invoke(tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--deterministic", "--json", tmp_path / "s.json")
    assert result.exit_code == 0 and len(result.output) < 10_000 and "characters)" in result.output.replace("\n", " ")
    assert f"{name} = 1" in (tmp_path / "s.json").read_text()


def test_a_model_that_computes_what_no_memory_holds_is_refused_unless_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"g (float[2] x) => (float[M] y) <int64[1] many = {{{2**30}}}> {{ made = ConstantOfShape(many) y = Neg(made) }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path / "m.onnx")
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: 1 << 30)
    for flag in ("--deterministic", "--clean"):
        _expect(
            _invoke(tmp_path / "m.onnx", flag),
            f"{tmp_path / 'm.onnx'}: to run ConstantOfShape",
            "GiB at least, and 1.0 can be had",
        )
    assert _invoke(tmp_path / "m.onnx", "--budget", "0").exit_code == 0


_IMPORTED = (
    "import sys; from rewriter.cli.main import main; main(sys.argv[1:], standalone_mode=False); "
    "print('imported:', len(sys.modules), *sys.modules)"
)
"""Runs the command and tells what was imported by its end."""
_PAGES = {"networkx", "jinja2", "markupsafe", "sqlalchemy", "z3", "rewriter.report.of_run"}
_KERNELS = {
    "rewriter.kernels.custom",
    "rewriter.kernels.fuse",
    "rewriter.kernels.triton.compile",
    "rewriter.kernels.c.codegen",
    "rewriter.kernels.verify",
}
_SEARCH = {
    "rewriter.run.deciding",
    "rewriter.search.moves",
    "rewriter.cost.model",
    "rewriter.kernels.fuse",
}
_RUN = {"onnx", "mugraph.onnx", "mugraph.ops", "rules_db.library", "rewriter.run.optimize", "rewriter.cli.running", "rich.table"}


@pytest.mark.parametrize(
    ("words", "most", "unneeded"),
    [
        (("--version",), 330, _PAGES | _KERNELS | _SEARCH | _RUN),
        (("--help",), 330, _PAGES | _KERNELS | _SEARCH | _RUN),
        (("--clean",), 705, _PAGES | _KERNELS | _SEARCH),
        (("--budget", "0"), 705, _PAGES | _KERNELS | _SEARCH),
        (("--provider", "cpu", "--budget", "5"), 770, _PAGES | _KERNELS),
    ],
    ids=["version", "help", "clean", "budget 0", "budget 5"],
)
def test_a_command_imports_no_more_than_it_needs(tmp_path: Path, words: tuple[str, ...], most: int, unneeded: set[str]) -> None:
    """Each module takes a part of a millisecond of the budget, and milliseconds where files are read slowly.

    What a search needs comes once it begins, what kernels, pages and databases need where they are asked for. So it is in a
    second run, which is answered from what the first remembered.
    """
    about = [lora(tmp_path / "lora.onnx"), "-o", tmp_path / "o.onnx", "--input", "x=2x4x32", *words]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2 if "5" in words else 1):
        run = subprocess.run([sys.executable, "-c", _IMPORTED, *map(str, about)], capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr
        _, number, *names = run.stdout.splitlines()[-1].split()
        assert not unneeded & {*names} and int(number) < most


def test_a_run_whose_time_is_over_imports_no_more_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It heeds its deadline between two modules, and writes the clean model."""
    asked, there = list[str](), late.import_module

    def heeded() -> None:
        if len(asked) == 2:
            raise BudgetSpent("the budget ended")

    def noted(name: str) -> ModuleType:
        asked.extend({name} & {*optimize_module.SEARCHING})
        return there(name)

    monkeypatch.setattr(late, "import_module", noted)
    monkeypatch.setattr(late, "heed", heeded)
    result = _invoke(lora(tmp_path / "lora.onnx"), "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20")
    told = result.output.replace("\n", " ")
    assert result.exit_code == 0 and "undecided: the budget ended" in told and "a larger --budget may tell" in told
    assert len(asked) == 2 and (tmp_path / "o.onnx").is_file()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyboardInterrupt(), "interrupted before the search began"),
        (RuntimeError("__set_name__"), "interrupted before the search"),
    ],
)
def test_an_interrupt_while_the_search_is_imported_writes_the_clean_model(
    raised: BaseException, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 an interrupt while a class gets its names is the cause of another exception."""
    raised.__cause__ = KeyboardInterrupt() if isinstance(raised, RuntimeError) else None

    there = late.import_module

    def interrupted(name: str) -> ModuleType:
        if name in optimize_module.SEARCHING:
            raise raised
        return there(name)

    monkeypatch.setattr(late, "import_module", interrupted)
    result = _invoke(lora(tmp_path / "lora.onnx"), "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20")
    assert result.exit_code == 0 and said in result.output.replace("\n", " ") and (tmp_path / "o.onnx").is_file()


@pytest.mark.parametrize(
    "odd", ["\n", "\r", "\x1b[2J", "\x00", "\u202e", "[/bold]"], ids=["line", "return", "escape", "nul", "turn", "markup"]
)
def test_names_tell_a_terminal_nothing(tmp_path: Path, odd: str) -> None:
    """Nor do they make two lines of an error."""
    proto = parse_model('<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { a = Neg(x) y = Neg(a) }')
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [name + odd for name in names]
    proto.graph.input[0].name += odd
    proto.graph.output[0].name += odd
    path = tmp_path / f"model{odd.replace('/', '').replace(chr(0), '')}.onnx"
    path.write_bytes(proto.SerializeToString())
    words = [str(path), "-o", str(tmp_path / "out.onnx"), "--deterministic"]
    command = subprocess.run([sys.executable, "-m", "rewriter.cli", *words, "--explain"], capture_output=True, check=True)
    shown = command.stdout.decode()
    logged = subprocess.run([sys.executable, "-m", "rewriter.cli", *words, "--verbose"], capture_output=True, check=True).stderr
    assert odd in ("\n", "[/bold]") or odd not in logged.decode()
    assert "y" in shown and (odd in ("\n", "[/bold]") or odd not in shown)
    result = CliRunner().invoke(main, [*words, "--input", "z=2"])
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1 and "its inputs are x" in result.output
    result = CliRunner().invoke(main, [str(path), "--verify"], catch_exceptions=False)
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 1 and "no compiled kernels" in result.output
