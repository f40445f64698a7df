"""A process that opens a model in onnxruntime and runs it: what that takes is its own. It imports nothing of this project.

It reads JSON: ``model``, ``providers``, ``library`` of custom kernels or nothing, and ``inputs``, a file of arrays or nothing. It
writes JSON: ``load``, the least of the seconds that a session took to make, and ``peak``, the bytes of memory that opening and
running the model took at most, or nothing where the system does not tell.
"""

import json
import re
import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort

_SECONDS, _TIMES = 1.0, 5  # sessions are made again until so much time is spent, or so often


def _memory(name: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
            found = re.search(rf"{name}:\s*(\d+)", file.read())
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None


def _session(task: dict[str, Any]) -> tuple[ort.InferenceSession, float]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if task["library"]:
        options.register_custom_ops_library(task["library"])
    began = time.perf_counter()
    session = ort.InferenceSession(task["model"], options, providers=task["providers"])
    return session, time.perf_counter() - began


def main() -> None:
    task = json.load(sys.stdin)
    inputs = dict(np.load(task["inputs"])) if task["inputs"] else None
    before = _memory("VmRSS")
    session, taken = _session(task)
    if inputs is not None:
        session.run(None, inputs)
    peak = _memory("VmHWM")
    del session
    times = [taken]
    while len(times) < _TIMES and sum(times) < _SECONDS:
        times.append(_session(task)[1])
    taken_memory = None if before is None or peak is None or inputs is None else peak - before
    print(json.dumps({"load": min(times), "peak": taken_memory}))


if __name__ == "__main__":
    main()
