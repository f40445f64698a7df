"""How commands end: interrupts from the keyboard are not lost and end them quietly, mistakes and crashes are told in a line."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from mugraph.lines import LineFormatter, in_a_line
from mugraph.starting import INTERRUPTED_EXIT, end_at_once, rare_collections

__all__ = ["INTERNAL_EXIT", "PIPE_EXIT", "USER_EXIT", "calling_for", "heed_interrupts", "run_command"]

USER_EXIT = 2
"""Exit code of a command that ended in something that its user can put right."""

INTERNAL_EXIT = 3
"""Exit code of a command that ended in a mistake of ours."""
PIPE_EXIT = 141
"""Exit code of a command whose output nobody reads any more, as shells have it."""

_AGAIN_SECONDS = 0.01
"""After which it is seen whether an interrupt that was lost can be sent once more."""


def heed_interrupts() -> None:
    """Has an interrupt that is raised where Python ignores exceptions sent again, for the rest of the process.

    That is in finalizers and callbacks of weak references, which run at any time: one in forty was lost in SQLAlchemy's.
    """
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Thread(target=_interrupt_behind, args=(hook.__code__,), daemon=True).start()
        else:
            usual(unraisable)

    sys.unraisablehook = hook


def _interrupt_behind(hook: CodeType) -> None:
    """Sends an interrupt as soon as the main thread has left a hook, in which it would be lost once more."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        time.sleep(_AGAIN_SECONDS)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_code is not hook:
            frame = frame.f_back
    os.kill(os.getpid(), signal.SIGINT)


def run_command(module: str, name: str, *, collects_rarely: bool = False) -> None:
    """Runs the function of a console script. Interrupted at whatever moment, the process ends without a word.

    Its module is imported here, since that takes a second, in which people change their mind, too: then an interrupt ends the
    process at once (:mod:`mugraph.starting`). One that is raised later may be the cause of another error: of a RuntimeError while
    a class gets its names, before Python 3.12, of an ImportError while a module of pybind11's is loaded, as onnxruntime's is. A
    mistake of ours is one line and exit code 3, with a traceback where the environment has ``ONNX_SUPEROPT_DEBUG``; whoever
    closes a pipe has read enough, and a disk that is full is no mistake of ours. Where a library's code ends the process, as
    onnxruntime's does for some models (docs/upstream.md), that is told, too.

    Args:
        collects_rarely: the garbage collector is spared most of its work (:func:`mugraph.starting.rare_collections`).
    """
    heed_interrupts()
    if logging.lastResort is not None:  # prints warnings where nobody asked for a log
        logging.lastResort.setFormatter(LineFormatter())
    if isinstance(sys.stdout, io.TextIOWrapper):  # Python has none where the descriptor was closed from the start
        sys.stdout = _StandardOutput(sys.stdout)
    _tell_of_crashes()
    try:
        with rare_collections() if collects_rarely else nullcontext():
            function = getattr(import_module(module), name)
            if signal.getsignal(signal.SIGINT) is end_at_once:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            function()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is flushed into it at the end
        sys.exit(PIPE_EXIT)
    except Exception as problem:
        if isinstance(problem.__cause__, KeyboardInterrupt):
            sys.exit(INTERRUPTED_EXIT)
        if isinstance(problem, OSError) and problem is getattr(sys.stdout, "refusal", None):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            words = f"standard output cannot be written: {problem.strerror}; make room or send it elsewhere"
            print(f"{Path(sys.argv[0]).name}: {words}", file=sys.stderr)
            sys.exit(USER_EXIT)
        if os.environ.get("ONNX_SUPEROPT_DEBUG"):
            raise
        said = in_a_line(" ".join(str(problem).split()))
        words = f"internal error, {type(problem).__name__}: {said}; please report it with what ONNX_SUPEROPT_DEBUG=1 prints"
        print(f"{Path(sys.argv[0]).name}: {words}", file=sys.stderr)
        sys.exit(INTERNAL_EXIT)


def _tell_of_crashes() -> None:
    """Has a process of its own say in a line that a fault in a library's code ended this one: Python gets no turn to say it then.

    It reads what Python's fault handler writes (``faulthandler``), which is nothing where a process ends in another way. What
    ends a process that this one forked is nothing of its: whoever waits for that one handles it.
    """
    import faulthandler

    if faulthandler.is_enabled() or not hasattr(os, "fork"):
        return
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        faulthandler.enable(writing)

        def leave() -> None:
            faulthandler.disable()
            os.close(writing)

        os.register_at_fork(after_in_child=leave)
        return
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with the other, whatever ends that
            signal.signal(number, signal.SIG_IGN)
        for descriptor in (writing, sys.__stdin__, sys.__stdout__):
            if descriptor is not None:  # as where it was closed from the start
                os.close(descriptor if isinstance(descriptor, int) else descriptor.fileno())
        with os.fdopen(reading, errors="replace") as faults:
            trace = faults.read()
        if trace and sys.stderr is not None:
            print(_crash_in_words(trace), file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def calling_for(model: bytes | str | Path | None) -> Callable[..., Any]:
    """What calls a function with arguments for a model's file, or one of no file, and is told where that ends the process.

    All that Python's fault handler tells of a call are the names of functions, so that this one's has a digest of the file's.

    Args:
        model: its file, or, where it has none, what is in it.
    """
    return FunctionType(_call.__code__.replace(co_name=_mark(model)), {})


def _call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return function(*arguments, **named)


def _mark(model: bytes | str | Path | None) -> str:
    name = os.fsencode(os.path.realpath(model)) if isinstance(model, str | Path) else b""
    return f"for_{hashlib.blake2b(name, digest_size=8).hexdigest()}"


def _was_run(trace: str) -> str:
    """Which model was run where a process ended, as far as that is known: a file that its command names, or none of these."""
    threads = trace.split("\n\n")
    marks = {mark for thread in threads for mark in re.findall(r" in (for_[0-9a-f]{16})$", thread, re.MULTILINE)}
    current = [thread for thread in threads if thread.startswith("Current thread")]
    marks = {mark for mark in marks if any(mark in thread for thread in current)} or marks
    if len(marks) != 1:
        return ""
    words = [word.rpartition("=")[2] for word in sys.argv[1:]]
    named = next((word for word in words if _mark(word) in marks), None)
    return " while it ran a model of our own making" if named is None else f" while it ran {in_a_line(named)}"


def _crash_in_words(trace: str) -> str:
    """What ended a process, by what Python's fault handler wrote."""
    if os.environ.get("ONNX_SUPEROPT_DEBUG"):
        return trace
    fault = trace.splitlines()[0].removeprefix("Fatal Python error: ")
    whose = "onnxruntime" if "onnxruntime_inference_collection" in trace else "a library"
    name = Path(sys.argv[0]).name
    return (
        f"{name}: {whose} ended the process ({fault}) that was run as '{in_a_line(' '.join([name, *sys.argv[1:]]))}'"
        f"{_was_run(trace)}; try another version of it, or onnx-superopt --budget 0, which runs no model; "
        "ONNX_SUPEROPT_DEBUG=1 prints where it was"
    )


class _StandardOutput(io.TextIOWrapper):
    """Standard output that keeps what it was refused with: a stream that is flushed again has dropped what it could not write.

    Args:
        usual: as Python opened it.
    """

    refusal: OSError | None = None

    def __init__(self, usual: io.TextIOWrapper) -> None:
        super().__init__(
            usual.buffer,
            encoding=usual.encoding,
            errors=usual.errors,
            line_buffering=usual.line_buffering,
            write_through=usual.write_through,
        )

    def write(self, text: str) -> int:
        with self._heard():
            return super().write(text)

    def flush(self) -> None:
        with self._heard():
            super().flush()

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            self.refusal = problem
            raise
