"""The operators and element types that onnxruntime's execution providers run, as probed (``python -m tools.ship.probe``), and
operators of which it is known what they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mugraph.terms.shape import DataType

__all__ = ["FILE", "RECURRENT", "providers_of"]

FILE = Path(__file__).with_name("support.json")

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""ONNX's recurrent operators: their kernels refuse an input that has not three dimensions, as their schemas do.

That is not so of all operators: kernels of Gemm, Expand, ConstantOfShape and Dropout take ranks that the schemas refuse.
"""


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}


@lru_cache(maxsize=1024)
def providers_of(operator: str, kernels_only: bool) -> Mapping[str, frozenset[DataType] | None]:
    """Provider to the element types in which it runs an operator; ``None`` where that has not been probed.

    Args:
        operator: name of the record.
        kernels_only: only with a kernel of the provider's own, neither inlined nor between casts.
    """
    types: dict[str, frozenset[DataType] | None] = {}
    for provider in ("cpu", "cuda"):
        probed = _table().get(provider, {}).get("operators", {}).get(operator)
        names = None if probed is None else [*probed["kernel"], *([] if kernels_only else probed["runs"])]
        types[provider] = None if names is None else frozenset(DataType[name.upper()] for name in names)
    return types
