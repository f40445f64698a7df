"""Small models to be compared, and what a comparison says in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from modeldiff.compare import ModelComparison, compare_models
from modeldiff.telling import region_lines

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'


def written(path: Path, text: str, **tensors: np.ndarray) -> Path:
    """Writes a model of onnx's text with stored tensors; its path."""
    model = parse_model(f"{HEAD} g {text}")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    onnx.save(model, path)
    return path


def compared(tmp_path: Path, before: ModelProto, after: ModelProto, **options: Any) -> ModelComparison:
    """Writes two models and compares them."""
    paths = [tmp_path / f"{place}.onnx" for place in range(2)]
    for path, proto in zip(paths, (before, after), strict=True):
        onnx.save(proto, path)
    return compare_models(*paths, **options)


def text_of(comparison: ModelComparison) -> str:
    """All lines about the regions in which two models differ."""
    return "\n".join(line for region in comparison.regions for line in region_lines(comparison, region))
