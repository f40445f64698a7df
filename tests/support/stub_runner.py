"""Models with custom kernels, run in processes of their own on a driver that stands for CUDA's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RUN = """
import json, os, sys
import numpy as np, onnxruntime as ort
from rewriter.runtime import register
ort.set_default_logger_severity(4)
options = ort.SessionOptions()
try:
    register(options)
    session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    outputs, pages = [], []
    for rows in map(int, sys.argv[2:]):
        a = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        given = {"a": a, "b": 10 * a}
        binding, buffers = session.io_binding(), {n: ort.OrtValue.ortvalue_from_numpy(x) for n, x in given.items()}
        for name, buffer in buffers.items():
            binding.bind_ortvalue_input(name, buffer)
        if "STUB_SHARED" in os.environ:
            binding.bind_ortvalue_output(session.get_outputs()[0].name, buffers[os.environ["STUB_SHARED"]])
            session.run_with_iobinding(binding)
            outputs.append(binding.get_outputs()[0].numpy().tolist())
        else:
            outputs.append(session.run(None, given)[0].tolist())
        pages.append(int(open("/proc/self/statm").read().split()[0]))
    print(json.dumps({"outputs": outputs, "shape": session.get_outputs()[0].shape, "pages": pages}))
except Exception as problem:
    print(json.dumps({"error": str(problem)}))
"""


class StubRunner:
    """Runs a model in a process of its own: the library asks for its driver once.

    The output is bound to the buffer of the input that STUB_SHARED names.
    """

    def __init__(self, driver: Path, folder: Path) -> None:
        self.driver, self.folder, self.log = driver, folder, folder / "log"

    def __call__(self, content: bytes, *rows: int, **environment: str) -> dict[str, Any]:
        path = self.folder / "model.onnx"
        path.write_bytes(content)
        self.log.unlink(missing_ok=True)
        variables: Mapping[str, str] = {
            "ONNX_SUPEROPT_DRIVER": str(self.driver),
            "ONNX_SUPEROPT_PROVIDER": "CPUExecutionProvider",
            "STUB_LOG": str(self.log),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **environment,
        }
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(path), *map(str, rows)], env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []
