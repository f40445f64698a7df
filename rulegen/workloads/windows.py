"""Operators over images as text, and the sizes under which they are enumerated."""

from __future__ import annotations

__all__ = [
    "BATCH_FACTOR",
    "BATCH_SUMMAND",
    "GROUPS",
    "SPATIAL",
    "VALID",
    "average_pool",
    "batch",
    "conv",
    "max_pool",
    "pad",
    "transposed",
]

SPATIAL = {"n": (2, 1, 1), "c": (2, 3, 2), "h": (3, 2, 4), "w": (2, 4, 3), "d": (2, 3, 3), "e": (3, 2, 4)}
"""Small sizes for images and kernels."""
VALID = SPATIAL | {"h": (4, 3, 5), "w": (3, 5, 4)}
"""The same where a kernel of 3x3 must fit inside."""
BATCH_FACTOR = "Div(g, Sqrt(Add(v, 1e-05)))"
BATCH_SUMMAND = f"Sub(b, Mul(u, {BATCH_FACTOR}))"
"""What a BatchNormalization multiplies each channel by and adds to it, by its scale g, bias b, mean u and variance v."""

GROUPS = {"n": (1, 2, 1), "g": (2, 1, 3), "k": (1, 2, 1), "h": (2, 1, 3), "w": (1, 3, 2)}
"""Of groups of channels: images, groups, channels of one, rows, columns."""


def batch(x: str, spatial: int = 2) -> str:
    return f"BatchNormalization[epsilon=1e-05,spatial={spatial}]({x}, g, b, u, v)"


def conv(group: str = "1", pad: int = 1, stride: int = 1) -> str:
    return f"Conv[dilations=(1,1),group={group},pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})]"


def transposed(group: str = "1", spatial: int = 2) -> str:
    """A transposed convolution with a kernel of 3 along each axis that makes every size twice as large."""
    ones, twos, pads = (
        str((number,) * count).replace(" ", "") for number, count in ((1, spatial), (2, spatial), (1, 2 * spatial))
    )
    return f"ConvTranspose[dilations={ones},group={group},output_padding={ones},pads={pads},strides={twos}]"


def max_pool(pad: int = 1, stride: int = 1) -> str:
    return f"MaxPool[ceil=false,dilations=(1,1),kernel=(3,3),pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})]"


def average_pool(pad: int = 1, stride: int = 1, count: bool = True) -> str:
    where = f"pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})"
    return f"AveragePool[ceil=false,count_include_pad={str(count).lower()},dilations=(1,1),kernel=(3,3),{where}]"


def pad(size: int) -> str:
    return f"Pad[begins=({size},{size}),ends=({size},{size}),mode='constant',value=0.0]"
