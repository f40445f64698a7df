"""What a search's way down to its first kernels finds in a layer, as exporters write it: all that it needs, proved."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from rewriter.kernels.fuse import kernels as building
from rewriter.kernels.within import kernels_of
from rewriter.run.kernels import has_kernels
from rewriter.run.searching import new_search
from rewriter.search.candidate import Candidate
from rewriter.search.expansion import Expansion
from tests.support.runs import workbench

SEQUENCE, HEADS, WIDTH, MIDDLE = 64, 4, 64, 512
HIDDEN = HEADS * WIDTH
HALF = f"float16[1,{SEQUENCE},{HIDDEN}]"


def _normalised(result: str, x: str, scale: str) -> str:
    """A root-mean-square normalisation of whole rows, in single precision (OLMo-2, Llama)."""
    return f"""
        {result}_wide = Cast<to = 1>({x})
        {result}_squares = Pow({result}_wide, two)
        {result}_mean = ReduceMean<keepdims = 1>({result}_squares, last)
        {result}_shifted = Add({result}_mean, epsilon)
        {result}_root = Sqrt({result}_shifted)
        {result}_inverse = Reciprocal({result}_root)
        {result}_scaled = Mul({result}_wide, {result}_inverse)
        {result}_half = Cast<to = 10>({result}_scaled)
        {result} = Mul({scale}, {result}_half)"""


def _heads(result: str, x: str) -> str:
    return f"""
        {result}_split = Reshape({x}, split)
        {result} = Transpose<perm = [0, 2, 1, 3]>({result}_split)"""


def _rotated(result: str, x: str, rotated: int) -> str:
    """A rotary embedding of the first entries of each head, or of all."""
    half = rotated // 2
    part = x if rotated == WIDTH else f"{result}_part"
    taken = "" if rotated == WIDTH else f"{part}, {result}_rest = Split<axis = -1>({x}, parts)"
    whole = result if rotated == WIDTH else f"{result}_rotated"
    joined = "" if rotated == WIDTH else f"{result} = Concat<axis = -1>({whole}, {result}_rest)"
    return f"""
        {taken}
        {result}_first, {result}_second = Split<axis = -1>({part}, halves{half})
        {result}_negative = Neg({result}_second)
        {result}_exchanged = Concat<axis = -1>({result}_negative, {result}_first)
        {result}_by_cosine = Mul({part}, cosine)
        {result}_by_sine = Mul({result}_exchanged, sine)
        {whole} = Add({result}_by_cosine, {result}_by_sine)
        {joined}"""


def _attention(rotated: int) -> str:
    return f"""{_rotated("q", "q_heads", rotated)}{_rotated("k", "k_heads", rotated)}
        k_turned = Transpose<perm = [0, 1, 3, 2]>(k)
        q_scaled = Mul(q, scale)
        k_scaled = Mul(k_turned, scale)
        scores = MatMul(q_scaled, k_scaled)
        masked = Add(scores, mask)
        weights = Softmax<axis = -1>(masked)
        mixed = MatMul(weights, v_heads)
        together = Transpose<perm = [0, 2, 1, 3]>(mixed)
        rows = Reshape(together, whole)"""


def olmo() -> str:
    """Norms behind products: of queries and keys as whole rows, and of what each half of the layer adds."""
    return f"""
        q_rows = MatMul(x, wq)
        k_rows = MatMul(x, wk)
        v_rows = MatMul(x, wv)
        {_normalised("q_normed", "q_rows", "nq")}{_normalised("k_normed", "k_rows", "nk")}
        {_heads("q_heads", "q_normed")}{_heads("k_heads", "k_normed")}{_heads("v_heads", "v_rows")}
        {_attention(WIDTH)}
        projected = MatMul(rows, wo)
        {_normalised("attended", "projected", "na")}
        between = Add(x, attended)
        gate = MatMul(between, wg)
        sigmoid = Sigmoid(gate)
        activated = Mul(gate, sigmoid)
        up = MatMul(between, wu)
        gated = Mul(activated, up)
        down = MatMul(gated, wd)
        {_normalised("fed", "down", "nf")}
        y = Add(between, fed)"""


def phi() -> str:
    """Queries and keys with biases, of which half of each head is rotated."""
    return f"""
        q_plain = MatMul(x, wq)
        q_rows = Add(nq, q_plain)
        k_plain = MatMul(x, wk)
        k_rows = Add(nk, k_plain)
        v_plain = MatMul(x, wv)
        v_rows = Add(na, v_plain)
        {_heads("q_heads", "q_rows")}{_heads("k_heads", "k_rows")}{_heads("v_heads", "v_rows")}
        {_attention(WIDTH // 2)}
        projected = MatMul(rows, wo)
        y = Add(projected, x)"""


def first_with_kernels(path: Path, body: str, rotated: int) -> Candidate:
    """The first candidate with kernels on the way down from a layer."""
    generator = np.random.default_rng(0)
    angles = np.arange(SEQUENCE)[:, None] / 10000 ** (np.arange(rotated // 2) / (rotated // 2))
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN)}
    shapes |= {"g": (HIDDEN, MIDDLE), "u": (HIDDEN, MIDDLE), "d": (MIDDLE, HIDDEN)}
    half = {f"w{name}": generator.standard_normal(shape) / 16 for name, shape in shapes.items()}
    half |= {f"n{name}": generator.standard_normal(HIDDEN) for name in "qkaf"}
    half |= {"cosine": np.tile(np.cos(angles), 2), "sine": np.tile(np.sin(angles), 2), "scale": np.asarray(WIDTH**-0.25)}
    half["mask"] = np.where(np.tri(SEQUENCE, dtype=bool), 0.0, -math.inf)[None, None]
    arrays = {name: array.astype(np.float16) for name, array in half.items()}
    arrays |= {"two": np.asarray(2, np.float32), "epsilon": np.asarray(1e-6, np.float32), "last": np.array([-1])}
    arrays |= {"split": np.array([1, SEQUENCE, HEADS, WIDTH]), "whole": np.array([1, SEQUENCE, HIDDEN])}
    arrays |= {f"halves{rotated // 2}": np.array([rotated // 2] * 2), "parts": np.array([rotated, WIDTH - rotated])}
    model = parse_model(f'<ir_version: 10, opset_import: ["" : 18]> layer ({HALF} x) => ({HALF} y) {{{body}}}')
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items() if n in body)
    onnx.save(model, path)
    with workbench(path, rules=None, device="h100", deterministic=True) as bench:
        search = new_search(bench).search
        expansion = Expansion(search.moves, search.strategy.phases[0], layouts=search.layouts, kernels=search.kernels)
        start = search.moves.start(bench.task.model.graph)
        return next(child for child in expansion.descent(start, math.inf) if has_kernels(child))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("body", "rotated", "kernels"), [(olmo, WIDTH, 7), (phi, WIDTH // 2, 3)])
def test_the_way_down_finds_a_layers_kernels(
    body: Callable[[], str], rotated: int, kernels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is proved: to test what is not was a quarter of a first search, and some have more entries than can be tested."""
    monkeypatch.setattr(building, "interpret", lambda *_: pytest.fail("tested"))
    graph = first_with_kernels(tmp_path / "layer.onnx", body(), rotated).graph
    computed = [node.op for node in graph.nodes() if not all(graph.tables.constant[value] for value in node.values)]
    assert computed == ["Kernel"] * kernels, "nothing is left to the runtime"
    assert sum("attention" in kernel.name for kernel in kernels_of(graph)) == 1
