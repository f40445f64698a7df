"""Kernels for a CPU written by hand, compiled, and models of one node that runs them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.terms.shape import DataType
from rewriter.runtime.plan import Argument, Expression, Launch, ObjectImage, Output, Packing, Plan, PlanChoice, cpu_attributes

ROWS, COLUMNS = Expression.dimension(0, 0), Expression.dimension(0, 1)

SUM_TEXT = """
#include <stdint.h>
/* One row a block: out = FACTOR * (a + b). */
void sum(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {
    const float *a = *(const float *const *)arguments[0], *b = *(const float *const *)arguments[1];
    float *out = *(float *const *)arguments[2];
    int64_t columns = *(const int64_t *)arguments[3];
    for (int64_t row = first; row < last && first >= 0 && last <= grid[0] * grid[1] * grid[2]; row++)
        for (int64_t i = 0; i < columns; i++) out[row * columns + i] = FACTOR * (a[row * columns + i] + b[row * columns + i]);
}
"""
SUM = Plan(
    2,
    (Output(DataType.FLOAT, (ROWS, COLUMNS)),),
    (Launch("sum", 1, (ROWS, 1, 1), (Argument.input(0), Argument.input(1), Argument.output(0), Argument.int64(COLUMNS))),),
)

CENTRED_TEXT = """
#include <stdint.h>
/* One row a block, in a grid of two extents: partial sums to scratch memory. */
void part(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {
    const float *a = *(const float *const *)arguments[0];
    float *sums = *(float *const *)arguments[1];
    int32_t columns = *(const int32_t *)arguments[2];
    int64_t rows = grid[0];
    for (int64_t block = first; block < last; block++) {
        int64_t row = block % rows, half = block / rows;
        float sum = 0;
        for (int32_t i = half * columns / 2; i < (half + 1) * columns / 2; i++) sum += a[row * columns + i];
        sums[block] = sum;
    }
}
void centre(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {
    const float *a = *(const float *const *)arguments[0], *sums = *(const float *const *)arguments[1];
    float *out = *(float *const *)arguments[2], scale = *(const float *)arguments[4];
    int32_t columns = *(const int32_t *)arguments[3];
    for (int64_t row = first; row < last; row++)
        for (int32_t i = 0; i < columns; i++)
            out[row * columns + i] = scale * (a[row * columns + i] - (sums[row] + sums[grid[0] + row]) / columns);
}
"""
CENTRED = Plan(
    1,
    (Output(DataType.FLOAT, (ROWS, COLUMNS)),),
    (
        Launch("part", 2, (ROWS, 2, 1), (Argument.input(0), Argument.scratch(0), Argument.int32(COLUMNS))),
        Launch(
            "centre",
            3,
            (ROWS, 1, 1),
            (Argument.input(0), Argument.scratch(0), Argument.output(0), Argument.int32(COLUMNS), Argument.float32(2.0)),
        ),
    ),
    (ROWS * 8,),
)

PACKED_TEXT = """
#include <stdint.h>
/* y[m,n] = x[m,k] w[k,n], of weights that are packed column by column. */
void turn(const void *weights, void *packed, const int64_t *sizes) {
    for (int64_t k = 0; k < sizes[0]; k++)
        for (int64_t n = 0; n < sizes[1]; n++)
            ((float *)packed)[n * sizes[0] + k] = ((const float *)weights)[k * sizes[1] + n];
    ((float *)packed)[sizes[0] * sizes[1]] += 1; /* how often it was packed */
}
void product(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {
    const float *x = *(const float *const *)arguments[0], *w = *(const float *const *)arguments[1];
    float *y = *(float *const *)arguments[2];
    int64_t depth = *(const int64_t *)arguments[3], width = *(const int64_t *)arguments[4];
    for (int64_t row = first; row < last; row++)
        for (int64_t n = 0; n < width; n++) {
            float sum = 0;
            for (int64_t k = 0; k < depth; k++) sum += x[row * depth + k] * w[n * depth + k];
            y[row * width + n] = sum;
        }
}
"""
_DEPTH, _WIDTH = Expression.dimension(1, 0), Expression.dimension(1, 1)
PACKED = Plan(
    2,
    (Output(DataType.FLOAT, (ROWS, _WIDTH)),),
    (
        Launch(
            "product",
            1,
            (ROWS, 1, 1),
            (Argument.input(0), Argument.weights(0), Argument.output(0), Argument.int64(_DEPTH), Argument.int64(_WIDTH)),
        ),
    ),
    packings=(Packing(1, "turn", (_DEPTH * _WIDTH + 1) * 4, (_DEPTH, _WIDTH)),),
)


def compiled(folder: Path, text: str, *flags: str) -> bytes:
    """A shared object of C source."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
    source, made = folder / "kernel.c", folder / "kernel.so"
    source.write_text(text)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", *flags, "-o", made, source], check=True)
    return made.read_bytes()


def cpu_model(
    plan: Plan | PlanChoice,
    objects: Sequence[ObjectImage],
    body: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[str | int] | None],
    weights: Mapping[str, np.ndarray] | None = None,
    copies: int = 1,
    changed: Mapping[str, Any] | None = None,
) -> bytes:
    """y0, y1, ... = CpuKernel(inputs, weights), with a body of them that computes y.

    Args:
        inputs: their shapes; ``None`` where not even the rank is declared.
        changed: attributes of the nodes that are others.
    """
    weights = weights or {}
    names = [*inputs, *weights]
    attributes = {**cpu_attributes(plan, objects), **(changed or {})}
    attributes["images"] = numpy_helper.from_array(np.asarray(attributes["images"]))
    nodes = [
        helper.make_node("CpuKernel", names, [f"y{i}"], domain=KERNEL_DOMAIN, overload="one", **attributes) for i in range(copies)
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(KERNEL_DOMAIN, 1)]
    function = helper.make_function(
        KERNEL_DOMAIN, "CpuKernel", names, ["y"], body, opsets[:1], attributes=list(attributes), overload="one"
    )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [None, None]) for i in range(copies)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return bytes(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10).SerializeToString())
