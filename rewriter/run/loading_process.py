"""A process that opens models in onnxruntime and runs them: what that takes is its own. It imports nothing of this project.

It reads JSON: ``models``, ``providers``, ``library`` of custom kernels or nothing, and ``inputs``, a file of arrays or nothing.
It writes JSON, for each model: ``load``, the least of the seconds that a session took to make, the models taking turns; and, in a
process of its own, ``peak``, the bytes of memory that opening and running it took at most, and ``first_run``, the seconds of its
first run, or nothing where these are not known.
"""

import json
import os
import re
import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort

_SECONDS, _LEAST, _TIMES = 0.4, 2, 5  # for so long each model is loaded, so often at least and at most
_UNKNOWN = {"first_run": None, "peak": None}


def _memory(name: str) -> int:
    """Bytes that the system tells of this process. Raises OSError, LookupError where it does not."""
    with open("/proc/self/status") as file:
        found = re.search(rf"{name}:\s*(\d+)", file.read())
    if found is None:
        raise LookupError(name)
    return 1024 * int(found[1])


def _session(task: dict[str, Any], model: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for entry, value in task["entries"].items():
        options.add_session_config_entry(entry, value)
    if task["library"]:
        options.register_custom_ops_library(task["library"])
    return ort.InferenceSession(model, options, providers=task["providers"])


def _loaded(task: dict[str, Any], model: str) -> float:
    """Seconds to make a session."""
    began = time.perf_counter()
    _session(task, model)
    return time.perf_counter() - began


def _first(task: dict[str, Any], model: str) -> dict[str, Any]:
    """What opening and running a model takes, found in a fork of this process."""
    if not task["inputs"] or not hasattr(os, "fork"):
        return _UNKNOWN
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            inputs = dict(np.load(task["inputs"]))
            before = _memory("VmRSS")
            session, began = _session(task, model), time.perf_counter()
            session.run(None, inputs)
            taken = {"first_run": time.perf_counter() - began, "peak": _memory("VmHWM") - before}
            os.write(writing, json.dumps(taken).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else _UNKNOWN


def main() -> None:
    task = json.load(sys.stdin)
    firsts = [_first(task, model) for model in task["models"]]  # before this process has sessions, whose threads no fork has
    _session(task, task["models"][0])  # the first session of a process pays for what all of them use
    times: list[list[float]] = [[] for _ in firsts]
    for _ in range(_TIMES):
        for taken, model in zip(times, task["models"], strict=True):
            if len(taken) < _LEAST or sum(taken) < _SECONDS:
                taken.append(_loaded(task, model))
    print(json.dumps([{"load": min(taken), **first} for taken, first in zip(times, firsts, strict=True)]))


if __name__ == "__main__":
    main()
