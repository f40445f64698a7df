"""Other runtimes of ONNX models, each as a session that the harness runs in turn with onnxruntime's, in one process.

They take the file as it came, with as many threads as onnxruntime has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewriter.runtime_env import usual_threads
from tools.bench.peers import PeerFailed

__all__ = ["RUNTIMES", "OpenVino"]


class OpenVino:
    """OpenVINO on the processor.

    Args:
        precision: in which it computes: ``f32``, or ``bf16``, its own default where the processor has units for that.

    Raises:
        PeerFailed: it is not installed, or does not read the model.
    """

    def __init__(self, model: Path, precision: str) -> None:
        try:
            import openvino
        except ImportError:
            raise PeerFailed("openvino is not installed") from None
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": usual_threads()}
        try:
            self._request = openvino.Core().compile_model(str(model), "CPU", settings).create_infer_request()
        except RuntimeError as problem:
            raise PeerFailed(" ".join(str(problem).split())[:300]) from None

    def run(self, names: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """All outputs, in the model's order."""
        results = self._request.infer(feed, share_inputs=True)
        return [np.asarray(results[i]) for i in range(len(results))]


RUNTIMES: dict[str, Callable[[Path], Any]] = {
    "OpenVINO": lambda model: OpenVino(model, "f32"),
    "OpenVINO bf16": lambda model: OpenVino(model, "bf16"),
}
"""Name to what opens a model file."""
