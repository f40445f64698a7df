"""Small models for whole runs, and runs whose stopwatch is replaced: what is tested is what is decided from its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import load
from mugraph.onnx.cleaning import clean
from rewriter.run import timings
from rewriter.run.cleaning import computed
from rewriter.run.clock import Clock
from rewriter.run.options import Options
from rewriter.run.target import choose_target
from rewriter.run.task import read_task
from rewriter.run.workbench import Workbench, open_workbench
from rules_db.trust.rule import Rule
from tools.zoo.built import lora_block

FASTER = timings.Timing(2.0, 1.0, 0.1, 0.1, 0.5, 0.45, 0.55)
SAME = timings.Timing(1.0, 1.0, 0.1, 0.1, 1.0, 0.95, 1.05)


def block(path: Path) -> Path:
    """A transformer block with adapters and a guard against NaN."""
    onnx.save(lora_block(hidden=64, heads=2, sequence=16, intermediate=96, rank=4), path)
    return path


def lora(path: Path) -> Path:
    """X·W + ((X·A)·B)·2, with a dynamic batch."""
    generator = np.random.default_rng(0)
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        lora (float[N,4,32] x) => (float[N,4,48] y) {
            base = MatMul(x, W)
            low = MatMul(x, A)
            high = MatMul(low, B)
            scaled = Mul(high, two)
            y = Add(base, scaled)
        }""")
    weights = {"W": (32, 48), "A": (32, 4), "B": (4, 48)}
    arrays = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    arrays["two"] = np.asarray(2.0, np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    onnx.save(model, path)
    return path


def untidy(path: Path, first: np.ndarray, second: np.ndarray, more: str = "") -> Path:
    """Work for cleaning: two products behind an identity, plus a constant that has to be computed; and ``more`` nodes."""
    model = parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,64] x) => (float[N,64] y) {{
            one = Constant<value_float = 1.0>()
            two = Add(one, one)
            a = Identity(x)
            b = MatMul(a, w)
            c = MatMul(b, v)
            {more}
            y = Add(c, two)
        }}""")
    weights = {"w": first, "v": second}
    model.graph.initializer.extend(numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items())
    onnx.save(model, path)
    return path


def run_model(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a model gives on the CPU."""
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)


def cleaned_ops(path: Path) -> list[str]:
    """The operators of a model that is cleaned up and not searched."""
    cleaned = clean(load(path), computed)
    return ops(path) if cleaned is None else sorted(node.op_type for node in cleaned.model.proto.graph.node)


def ops(path: Path) -> list[str]:
    """The operators of a file."""
    return [node.op_type for node in onnx.load(path).graph.node]


def small(path: Path) -> Path:
    """Two independent savings: a double negation and a square."""
    onnx.save(
        parse_model("""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[64,64] x) => (float[64,64] y) {
                two = Constant<value_float = 2.0>()
                a = Neg(x)
                b = Neg(a)
                c = Pow(b, two)
                y = Tanh(c)
            }"""),
        path,
    )
    return path


@contextmanager
def workbench(source: Path, rules: Sequence[Rule] = (), **options: Any) -> Iterator[Workbench]:
    """The workbench of a run that writes ``out.onnx`` beside its file; nothing is measured unless ``options`` ask for it."""
    asked = Options(**{"device": "cpu", "deterministic": True, "rules": rules, **options})
    task = read_task(source, source.with_name("out.onnx"), asked, choose_target(asked))
    with open_workbench(task, Clock(asked.budget), lambda _: None, searches=asked.searches) as bench:
        yield bench
