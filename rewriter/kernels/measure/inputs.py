"""Inputs of kernels that are measured, and the outputs that they have to compute from them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.interp import evaluate_body
from mugraph.domains import Real
from mugraph.terms.shape import DataType, evaluate_dim
from rewriter.reference.floats import RandomFloats

__all__ = ["TOLERANCES", "kernel_inputs", "reference_of"]

TOLERANCES = {DataType.FLOAT: 1e-4, DataType.FLOAT16: 5e-3, DataType.BFLOAT16: 3e-2}
"""Largest relative error (L2) of an output beside the body in double precision."""
_SIGNED = (DataType.INT4, DataType.INT8)
_NO_PLACES = 8
"""Bits of integers that no operator takes for places in a tensor."""
_DRAWN = (1 << 20) + 7
"""Such integers that are drawn for a tensor, which repeats them where it is larger."""


def kernel_inputs(
    kernel: Kernel, sizes: Mapping[str, int], seed: int = 0, given: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Fresh random inputs: normal floats of deviation 1/2, booleans that are mostly true, all numbers of four and eight bits.

    Products of such floats over thousands of terms stay within half precision. Wider integers are 0 or 1, as they may be places.

    Args:
        given: inputs that are not drawn.
    """
    generator, drawn = np.random.default_rng([seed, 0xC0DE]), {}
    shapes = {x.name: tuple(int(str(evaluate_dim(dim, sizes))) for dim in x.type.shape) for x in kernel.inputs}
    floats = RandomFloats(generator, map(math.prod, shapes.values()), 0.5)
    for tensor in kernel.inputs:
        if given is not None and tensor.name in given:
            drawn[tensor.name] = given[tensor.name]
            continue
        shape = shapes[tensor.name]
        if tensor.type.dtype == DataType.BOOL:
            drawn[tensor.name] = np.asarray(generator.random(shape) < 0.9)
        elif tensor.type.dtype in TOLERANCES:
            drawn[tensor.name] = floats.of(shape, tensor.type.dtype.numpy())
        elif (bits := tensor.type.dtype.bitwidth) <= _NO_PLACES:
            least = -(1 << bits - 1) if tensor.type.dtype in _SIGNED else 0
            numbers = generator.integers(least, least + (1 << bits), min(math.prod(shape), _DRAWN))
            drawn[tensor.name] = np.resize(numbers.astype(tensor.type.dtype.numpy()), shape)
        else:
            drawn[tensor.name] = generator.integers(0, 2, shape).astype(tensor.type.dtype.numpy())
    return drawn


def reference_of(kernel: Kernel, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The body in double precision."""
    wide = {n: x if x.dtype.kind in "biu" else x.astype(np.float64) for n, x in inputs.items()}
    return [np.asarray(value) for value in evaluate_body(kernel, Real(), wide)]
