"""Zoo models run and described."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

Array = np.ndarray[Any, Any]


def session_of(model: Path | bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def random_inputs(session: ort.InferenceSession, rng: np.random.Generator) -> dict[str, Array]:
    """Standard normal inputs for a session whose inputs are float32 of static shape."""
    return {value.name: rng.standard_normal(value.shape, np.float32) for value in session.get_inputs()}


def relative_error(actual: Array, expected: Array) -> float:
    """The L2 norm of the difference over that of the expected values, in float64."""
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def describe(path: Path) -> str:
    """One line on a model file: node count, size on disk with external data, operators by frequency."""
    model = onnx.load(path, load_external_data=False)
    counts = Counter(node.op_type for node in model.graph.node)
    size = sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))
    operators = ", ".join(f"{op_type} {count}" for op_type, count in counts.most_common())
    return f"{path}: {counts.total()} nodes, {size / 2**20:.1f} MiB: {operators}"
