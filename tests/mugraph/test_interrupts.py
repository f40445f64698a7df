"""Interrupts from the keyboard: none is lost where Python ignores exceptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from mugraph.interrupts import INTERNAL_EXIT, PIPE_EXIT, USER_EXIT

_LOST = """
import threading, time, weakref
from mugraph.interrupts import heed_interrupts

class Value:
    pass

def finalized(_):
    raise KeyboardInterrupt

{heed}
value = Value()
reference = weakref.ref(value, finalized)
try:
    del value
    time.sleep({seconds})
except KeyboardInterrupt:
    print("heard")
"""


def _run(heed: str, seconds: float) -> subprocess.CompletedProcess[str]:
    code = _LOST.format(heed=heed, seconds=seconds)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_an_interrupt_in_a_callback_of_a_weak_reference_is_sent_again() -> None:
    done = _run("heed_interrupts()", 30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")


def test_it_is_sent_once_what_ignores_exceptions_is_left() -> None:
    """A busy machine may go on with that after whatever time."""
    begins = "start = threading.Thread.start; threading.Thread.start = lambda thread: (start(thread), time.sleep(0.3))"
    done = _run(f"{begins}; heed_interrupts()", 2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")


def test_python_alone_loses_it() -> None:
    done = _run("", 0.1)
    assert done.stdout == "" and "KeyboardInterrupt" in done.stderr


def test_a_warning_is_one_line_that_tells_a_terminal_nothing(tmp_path: Path) -> None:
    (tmp_path / "warns.py").write_text("import logging\ndef main():\n    logging.getLogger('x').warning('%s', 'a\\x1b[2J\\nb')\n")
    code = "from mugraph.interrupts import run_command; run_command('warns', 'main')"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == "a\\x1b[2J\\nb\n"


COMMANDS = pytest.mark.parametrize(
    "command",
    [
        "rewriter.cli optimize_command",
        "rewriter.cli costs_command",
        "rulegen.cli rulegen_command",
        "modeldiff.command diff_command",
    ],
)


@COMMANDS
@pytest.mark.parametrize("moment", ["interrupted()", "type('Owner', (), {'name': Name()})", "loaded()", "replaced()"])
def test_a_command_that_is_interrupted_while_it_loads_says_nothing(command: str, moment: str) -> None:
    """Between the lines of a module, or while a class gets its names."""
    module, function = command.split()
    code = f"""
import os, signal, sys
from {module} import {function}
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupted(*_):
    raise KeyboardInterrupt
def replaced():  # as NumPy's C code has it
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
    raise ImportError("numpy._core.umath failed to import")
def loaded():  # as pybind11 has it
    try:
        interrupted()
    except KeyboardInterrupt as problem:
        raise ImportError("initialization failed") from problem
class Name:
    __set_name__ = interrupted
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name in ("click", "numpy", "onnx", "sqlalchemy"):
            {moment}
sys.meta_path.insert(0, Interrupts())
{function}()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@COMMANDS
def test_a_command_that_is_interrupted_while_nothing_is_imported_yet_says_nothing(command: str) -> None:
    """Its module imports a small one, and what Python needs for signals."""
    module, function = command.split()
    code = f"""
import os, signal, sys
sys.path.insert(0, {os.getcwd()!r})
before = {{*sys.modules}}
from {module} import {function}
imported = {{*sys.modules}} - before
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name.startswith("mugraph."):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
print(*(name for name in imported if name.startswith("mugraph.") or name in ("logging", "typing")), flush=True)
{function}()
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout == "mugraph.starting\n"


@COMMANDS
def test_a_command_that_is_interrupted_while_it_reads_its_arguments_was_interrupted(command: str) -> None:
    """The library that reads them calls that a failure, and says so."""
    module, function = command.split()
    code = f"""
import click
from {module} import {function}
def interrupted(*_):
    raise KeyboardInterrupt
click.Command.parse_args = click.Group.parse_args = interrupted
{function}()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


_FAULTY = """
import sys
from mugraph.interrupts import run_command
sys.argv[0] = "/usr/bin/tool"
run_command("{module}", "run")
"""


def _command(
    tmp_path: Path, body: str, out: int | IO[str] = subprocess.PIPE, words: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "faulty_tool.py").write_text(f"def run():\n    {body}\n")
    code = _FAULTY.format(module="faulty_tool")
    settings = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}", **environment}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=settings, timeout=60, check=False)


def test_a_mistake_of_a_command_is_one_line(tmp_path: Path) -> None:
    done = _command(tmp_path, "raise KeyError('no such rule')", ONNX_SUPEROPT_DEBUG="")
    assert done.returncode == INTERNAL_EXIT and len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("tool: internal error, KeyError: 'no such rule'")
    assert "Traceback" in _command(tmp_path, "raise KeyError('no such rule')", ONNX_SUPEROPT_DEBUG="1").stderr


@pytest.mark.skipif(sys.platform == "win32", reason="has no signals")
def test_what_a_library_ends_is_told_in_a_line(tmp_path: Path) -> None:
    inner = "onnxruntime_inference_collection"  # as the module is called that runs models
    (tmp_path / f"{inner}.py").write_text("import faulthandler\ndef run():\n    faulthandler._sigsegv()\n")
    for body, whose in (
        ("import faulthandler; faulthandler._sigsegv()", "a library"),
        (f"import {inner}; {inner}.run()", "onnxruntime"),
    ):
        done = _command(tmp_path, body, ONNX_SUPEROPT_DEBUG="")
        assert done.returncode == -signal.SIGSEGV and len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith(f"tool: {whose} ended the process (Segmentation fault) that was run as 'tool';")
        assert "faulty_tool.py" in _command(tmp_path, body, ONNX_SUPEROPT_DEBUG="1").stderr


@pytest.mark.skipif(sys.platform == "win32", reason="has no signals")
def test_a_crash_is_told_with_the_model_that_was_run(tmp_path: Path) -> None:
    """Where two threads run models, that of the thread which crashed; where it is no thread of Python's, none."""
    setup = "import sys, time, faulthandler, threading; from mugraph.interrupts import calling_for; "
    crash, elsewhere = (
        "(faulthandler._sigsegv)",
        "threading.Thread(target=lambda: calling_for('b.onnx')(time.sleep, 9), daemon=True).start()",
    )
    foreign = "__import__('ctypes').CDLL(None).pthread_create(b'12345678', None, None, None)"  # which starts at no address
    for body, told in (
        (f"calling_for('a.onnx'){crash}", "' while it ran ./a.onnx; try"),
        (f"calling_for('other.onnx'){crash}", "' while it ran a model of our own making; try"),
        (f"{elsewhere}; calling_for('a.onnx'){crash}", "' while it ran ./a.onnx; try"),
        (f"{elsewhere}; calling_for('a.onnx')(lambda: ({foreign}, time.sleep(9)))", ""),
    ):
        done = _command(tmp_path, setup + body, words=["./a.onnx"], ONNX_SUPEROPT_DEBUG="")
        assert (told in done.stderr) if told else "while it ran" not in done.stderr, done.stderr
        assert "ended the process" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="has no signals")
def test_what_ends_a_process_that_a_command_forked_is_not_told(tmp_path: Path) -> None:
    """Whoever forked it handles that, as a pool of workers does; the command itself ends well."""
    body = "import faulthandler, os; pid = os.fork(); os.waitpid(pid, 0) if pid else faulthandler._sigsegv()"
    done = _command(tmp_path, body)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="has no signals")
def test_what_others_end_is_not_told(tmp_path: Path) -> None:
    done = _command(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")


def test_whoever_closes_a_pipe_has_read_enough(tmp_path: Path) -> None:
    done = _command(tmp_path, "raise BrokenPipeError")
    assert (done.returncode, done.stderr) == (PIPE_EXIT, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_is_no_mistake_of_a_command(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = _command(tmp_path, "print('told', flush=True)", full)
        assert done.returncode == USER_EXIT
        assert done.stderr == "tool: standard output cannot be written: No space left on device; make room or send it elsewhere\n"
    other = _command(tmp_path, "raise OSError(28, 'No space left on device')", ONNX_SUPEROPT_DEBUG="")
    assert other.returncode == INTERNAL_EXIT and other.stdout == "", "standard output is not asked by writing into it"
    done = _command(tmp_path, "print('told'); raise OSError(28, 'No space left on device')", ONNX_SUPEROPT_DEBUG="")
    assert done.returncode == INTERNAL_EXIT and done.stdout == "told\n"


def test_a_command_without_standard_output_tells_what_failed() -> None:
    """Python has no stream for a descriptor that was closed from the start."""
    code = """
import sys
from mugraph.interrupts import run_command
sys.modules["failing"] = type(sys)("failing")
def fails():
    raise OSError(28, "No space left on device")
sys.modules["failing"].fails = fails
sys.stdout = None
run_command("failing", "fails")
"""
    environment = {**os.environ, "ONNX_SUPEROPT_DEBUG": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == INTERNAL_EXIT and "No space left on device" in done.stderr and "Traceback" not in done.stderr
