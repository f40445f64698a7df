"""A process that opens a model in onnxruntime, for :func:`mugraph.limited.run_limited`; it imports nothing of the project.

It reads JSON: ``model``, ``providers`` and ``library`` of custom kernels or nothing. That onnxruntime refuses the model is no
concern of its own: who opens it next is told why.
"""

import contextlib
import json
import sys

import onnxruntime as ort

if sys.platform != "win32":
    import resource


def main() -> None:
    """Opens the model, and survives that or does not."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task = json.load(sys.stdin)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for entry, value in task["entries"].items():
        options.add_session_config_entry(entry, value)
    if task["library"]:
        options.register_custom_ops_library(task["library"])
    with contextlib.suppress(Exception):  # onnxruntime raises many types
        ort.InferenceSession(task["model"], options, providers=task["providers"])


if __name__ == "__main__":
    main()
