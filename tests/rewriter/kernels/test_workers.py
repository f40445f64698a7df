"""Processes that work for this one: they answer, they die alone, and they import nothing of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mugraph.deadline import BudgetSpent, Deadline
from rewriter.kernels.compiling import serve
from rewriter.kernels.triton import compile
from rewriter.kernels.workers import Worker, WorkerDied
from tests.support.work import checks_endlessly, refuses_slowly

SCRIPT = """
import sys
from tests.rewriter.kernels.test_workers import echo
from rewriter.kernels.workers import Worker

print("begun", flush=True)
worker = Worker(echo, 5)
worker.tell(37)
print(worker.answer(60), flush=True)
{end}
"""


def echo(connection: Connection, more: int) -> None:
    """Answers numbers with larger ones, and dies of 13."""
    while True:
        number = connection.recv()
        if number == 13:
            os._exit(3)
        connection.send(os.getpid() if number == 0 else number + more)


def test_a_worker_answers_until_it_dies() -> None:
    worker = Worker(echo, 5)
    worker.tell(1)
    assert worker.answer() == 6
    with pytest.raises(WorkerDied):
        worker.answer(0.01)  # nothing was asked
    worker.tell(13)
    with pytest.raises(WorkerDied):
        worker.answer(60)
    worker.tell(2)
    with pytest.raises(WorkerDied):
        worker.answer(60)
    worker.close()


def tells_variable(connection: Connection, name: str) -> None:
    connection.send(os.environ.get(name))


def test_a_worker_has_variables_beside_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_TEST_GIVEN", "here")
    for name, wanted in (("SUPEROPT_TEST_GIVEN", "here"), ("SUPEROPT_TEST_OWN", "there"), ("SUPEROPT_TEST_NONE", None)):
        worker = Worker(tells_variable, name, environment={"SUPEROPT_TEST_OWN": "there"})
        assert worker.answer(60) == wanted
        worker.close()
    assert "SUPEROPT_TEST_OWN" not in os.environ


def test_an_answer_is_not_waited_for_beyond_a_deadline() -> None:
    worker, ends = Worker(echo, 5), Deadline()
    with ends.heeded():
        worker.tell(1)
        assert worker.answer() == 6
        ends.end_in(0.3)
        for seconds in (None, 60.0):
            with pytest.raises(BudgetSpent):
                worker.answer(seconds)
        worker.tell(2)
        assert worker.is_awaited(60.0) is False and worker.answer() == 7, "what is there already counts"
    worker.close()


def test_what_is_compiled_heeds_the_deadline_of_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes end that compile, and none is started for a job that a thread took up meanwhile."""
    monkeypatch.setattr(compile, "serve", checks_endlessly)
    jobs = [compile._CompileJob("a", str(text), (), compile.DEFAULT_ARCHITECTURES[0]) for text in range(20)]
    ends, compiler = Deadline(), compile.Compiler(tmp_path, workers=2)
    with ends.heeded(), compiler:
        ends.end_in(0.5)
        with pytest.raises(BudgetSpent):
            list(compiler._run(jobs))
        assert compiler._all and all(worker._process.poll() is not None for worker in compiler._all)


def test_what_another_thread_compiles_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "serve", refuses_slowly)
    job = compile._CompileJob("a", "text", (), compile.DEFAULT_ARCHITECTURES[0])
    with compile.Compiler(tmp_path, workers=2) as compiler, ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: next(compiler._run([job]))[1], range(3)))
        assert [str(result) for result in found] == ["kernel a for sm_80: no"] * 3
        assert (compiler.compiled, compiler.hits) == (1, 2) and len(compiler._all) == 1
        assert str(next(compiler._run([job]))[1]) == "kernel a for sm_80: no" and compiler.compiled == 2, "it was not kept"


def test_processes_that_compile_end_at_the_same_time(tmp_path: Path) -> None:
    """Each takes a while to give back its memory."""
    told, compiler = list[str](), compile.Compiler(tmp_path, workers=3)
    process = SimpleNamespace(kill=lambda: told.append("kill"), close=lambda: told.append("close"))
    compiler._all = [cast(Worker, process)] * 3
    compiler.close()
    assert told == ["kill"] * 3 + ["close"] * 3


def test_who_waits_for_another_threads_compiler_heeds_his_own_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "serve", refuses_slowly)
    job, ends = compile._CompileJob("a", "text", (), compile.DEFAULT_ARCHITECTURES[0]), Deadline()
    with compile.Compiler(tmp_path, workers=2) as compiler, ThreadPoolExecutor(1) as thread:
        first = thread.submit(compiler._one, job, threading.Event())
        while not compiler._going_on:
            time.sleep(0.01)
        ends.end()
        with ends.heeded(), pytest.raises(BudgetSpent):
            compiler._one(job, threading.Event())
        assert str(first.result()) == "kernel a for sm_80: no", "that goes on"


def test_a_process_that_compiles_imports_nothing_that_it_does_not_need() -> None:
    """A run starts one a core, while it reads its model and its rules."""
    code = f"import sys, {Worker.__module__}, {serve.__module__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not {"numpy", "onnx", "onnxruntime", "mugraph.ops"} & set(done.stdout.split())


def test_a_script_that_starts_workers_as_it_is_imported_runs_once(tmp_path: Path) -> None:
    """As a user writes it first: no function, no test of the module's name."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end="worker.close()"))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, cwd=os.getcwd(), env=_environment()
    )
    assert done.stdout.splitlines() == ["begun", "42"], done.stderr


def test_a_worker_does_not_outlive_its_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.format(end="worker.tell(0); print(worker.answer(60), flush=True); import os; os.kill(os.getpid(), 9)")
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, cwd=os.getcwd(), env=_environment()
    )
    number = int(done.stdout.splitlines()[-1])
    for _ in range(100):
        if not Path(f"/proc/{number}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the worker is still there")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])}
