"""ONNX's conformance cases: what the onnx package tests its backends with, on the inputs that it tests them with."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tools.fuzz.campaign import Show
from tools.fuzz.fates import CaseReport
from tools.fuzz.oracle import bit_for_bit, examine_model

__all__ = ["KINDS", "MODES", "ConformanceCase", "cases", "examine_case", "names"]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
"""The kinds of cases that the package holds; those of kind ``real`` have to be downloaded."""
MODES = ("plain", "clean", "deterministic")
"""Budget 0, cleaning up only, and a run that measures nothing."""


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One case of the package's."""

    kind: str
    source: TestCase

    @property
    def operators(self) -> frozenset[str]:
        """The operators of its model's main graph."""
        return frozenset(node.op_type for node in self.proto().graph.node if not node.domain)

    def proto(self) -> onnx.ModelProto:
        """The model."""
        if self.source.model is not None:
            return self.source.model
        return onnx.load(Path(self.source.model_dir) / "model.onnx")

    def feeds(self) -> list[Mapping[str, Any]]:
        """The inputs of each of its tests."""
        initialized = {tensor.name for tensor in self.proto().graph.initializer}
        inputs = [value for value in self.proto().graph.input if value.name not in initialized]
        if self.source.data_sets is not None:
            return [dict(zip((v.name for v in inputs), given, strict=False)) for given, _ in self.source.data_sets]
        folders = sorted(Path(self.source.model_dir).glob("test_data_set_*"))
        feeds = [
            {v.name: _read(folder / f"input_{i}.pb", v.type) for i, v in enumerate(inputs) if (folder / f"input_{i}.pb").exists()}
            for folder in folders
        ]
        return [feed for feed in feeds if len(feed) == len(inputs)] or [_drawn(inputs)]


def _read(path: Path, type_: onnx.TypeProto) -> Any:
    """The value of a file of a test's."""
    content = path.read_bytes()
    match type_.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        case _:
            return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def _drawn(inputs: list[onnx.ValueInfoProto]) -> Mapping[str, Any]:
    """Normal floats: the large models come without inputs."""
    generator = np.random.default_rng(0)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inputs}
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@cache
def cases() -> Mapping[str, ConformanceCase]:
    """All cases by name."""
    found = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # expected values of extreme inputs overflow
        for kind in KINDS:
            for source in load_model_tests(kind=kind):
                if source.url is None or source.model_dir is not None:
                    found[f"{kind}/{source.name}"] = ConformanceCase(kind, source)
    return found


def names(mode: str, share: int = 1) -> list[str]:
    """``MODE CASE`` of the cases to run.

    Args:
        share: one of so many cases, in the order of their names; 1 takes all.
    """
    return [f"{mode} {name}" for name in sorted(cases())[::share]]


def examine_case(name: str, show: Show) -> CaseReport:
    """Runs one case of :func:`names`."""
    mode, case = name.split(" ", 1)
    original, feeds = cases()[case].proto().SerializeToString(), cases()[case].feeds()
    show({"model.onnx": original})
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        if mode != "deterministic":
            options = {"budget": 0} if mode == "plain" else {"clean": True, "deterministic": True}
            return bit_for_bit(original, feeds, Path(folder), provider="cpu", **options)
        sets = {f"set {i}": feed for i, feed in enumerate(feeds)}
        return examine_model(original, sets, Path(folder), deterministic=True, provider="cpu")
