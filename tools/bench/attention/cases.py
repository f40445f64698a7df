"""The cases: masks, batches and lengths of STOF's grid, as formulas, as kernels of ours and as ONNX models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click
import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from mugraph.blocks.block import Kernel
from mugraph.ops.masks import mask_text
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import parse_term
from rewriter.kernels.fuse.lower import lower

HEADS, WIDTH = 12, 64
SHAPES = ((1, 128), (1, 1024), (8, 512), (16, 2048), (16, 4096))
"""Batch and length of the paper's grid."""
_RANDOM_BLOCK, _RANDOM_SHARE, _DOCUMENTS = 64, 0.1, 8
TOLD = "told"
PEERS = ("flex", "sdpa", "ort")
"""torch's FlexAttention with a BlockMask, its SDPA with a mask, and onnxruntime with the model as it is."""


@dataclass(frozen=True)
class MaskCase:
    """One row of the table.

    Attributes:
        name: of the mask: one of `MASKS`, ``window`` of 64, or ``random`` and the percentage of blocks of 128 that are full.
    """

    name: str
    batch: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.name}:{self.batch}x{self.length}"

    @property
    def width(self) -> int:
        return 64 if self.name == "window" else math.isqrt(self.length)

    @property
    def random_block(self) -> int:
        """Positions of a side of BigBird's random blocks."""
        return min(_RANDOM_BLOCK, self.length // 8)

    @cached_property
    def blocks(self) -> np.ndarray:
        """Which blocks of its own size BigBird draws, or of 128 a random mask has."""
        generator = np.random.default_rng(self.length)
        size, share = (
            (self.random_block, _RANDOM_SHARE) if self.name == "bigbird" else (128, int(self.name.removeprefix("random")) / 100)
        )
        count = -(-self.length // size)
        chosen = np.zeros(count * count, bool)
        chosen[generator.permutation(count * count)[: round(share * count * count)]] = True
        drawn = chosen.reshape(count, count)
        return drawn if self.name == "bigbird" else drawn | np.eye(count, dtype=bool)

    @cached_property
    def documents(self) -> np.ndarray:
        """The document of each position: of unequal lengths."""
        generator = np.random.default_rng(self.length)
        ends = np.sort(generator.choice(np.arange(1, self.length), _DOCUMENTS - 1, replace=False))
        return np.searchsorted(ends, np.arange(self.length), side="right")

    @property
    def table(self) -> np.ndarray | None:
        """What the mask looks up: blocks or documents."""
        if self.name == "document":
            return self.documents
        return self.blocks if self.name.startswith(("bigbird", "random")) else None

    def rule(self, table: Any) -> Callable[[Any, Any], Any]:
        """Whether query i sees key j, of NumPy arrays or of torch's tensors: a function of numbers and a table, to be traced."""
        width, quarter, side = self.width, self.length // 4, self.random_block
        half = width // 2
        match self.name:
            case "sliding" | "window":
                return lambda i, j: (i - j <= half) & (j - i <= half)
            case "dilated":
                return lambda i, j: (i - j <= 2 * half) & (j - i <= 2 * half) & ((i - j) % 2 == 0)
            case "longformer":
                return lambda i, j: ((i - j <= half) & (j - i <= half)) | (i < width) | (j < width)
            case "bigbird":
                return lambda i, j: ((i - j <= half) & (j - i <= half)) | (i < width) | (j < width) | table[i // side, j // side]
            case "causal":
                return lambda i, j: j <= i
            case "prefix":
                return lambda i, j: (j <= i) | (j < quarter)
            case "document":
                return lambda i, j: table[i] == table[j]
        return lambda i, j: table[i // 128, j // 128]

    @cached_property
    def entries(self) -> np.ndarray:
        """The mask, [length, length]."""
        shown: np.ndarray = self.rule(self.table)(np.arange(self.length)[:, None], np.arange(self.length)[None, :])
        return np.broadcast_to(shown, (self.length, self.length))

    @cached_property
    def density(self) -> float:
        """The share of pairs that count."""
        return float(self.entries.mean())


MASKS = ("sliding", "dilated", "longformer", "bigbird", "causal", "prefix", "document")
"""The paper's masks, and those of language models."""
DENSITIES = ("random5", "random10", "random25", "random50", "random75", "random100")
"""At (8, 2048): time is meant to be proportional to the blocks that are not empty."""


EXAMPLES = (MaskCase("window", 8, 2048), MaskCase("bigbird", 8, 2048))
"""Whole models."""


def every_case() -> list[MaskCase]:
    """The cases, the smaller ones first."""
    grid = [MaskCase(name, *shape) for shape in SHAPES for name in MASKS]
    return [*grid, *(MaskCase(name, 8, 2048) for name in DENSITIES)]


def chosen_cases(only: Sequence[str], every: Sequence[MaskCase] | None = None) -> list[MaskCase]:
    """Those of names, shapes or both, of all cases or those given. Raises click.BadParameter for one that is none."""
    every = every_case() if every is None else every
    for word in only:
        if not any(word in (c.name, c.label, c.label.partition(":")[2]) for c in every):
            raise click.BadParameter(f"no case {word}; there are {', '.join((*MASKS, *DENSITIES))} and such as sliding:8x512")
    return [c for c in every if not only or any(word in (c.name, c.label, c.label.partition(":")[2]) for word in only)]


def kernels_of_case(case: MaskCase) -> dict[str, Kernel]:
    """Our kernels of a case over q, k and v, each [batch, heads, length, width]: ``list``, and ``band`` where it is one."""
    size, half = case.length, case.width // 2
    masks = {"list": f"StoredMask[columns={size},entries='{mask_text(case.entries)}',rows={size}]()"}
    if case.name == "sliding":
        masks["band"] = f"BandMask[after={half},before={half},columns={size},rows={size}]()"
    if case.name == "causal":
        masks["band"] = f"CausalMask[columns={size},rows={size}]()"
    types = {name: TensorType(DataType.FLOAT16, (case.batch, HEADS, size, WIDTH)) for name in "qkv"}
    kernels = {}
    for kind, mask in masks.items():
        scores = f"Where({mask}, Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.125), -inf)"
        kernels[kind] = lower(f"attention_{kind}", types, [("y", parse_term(f"MatMul(Softmax[axis=-1]({scores}), v)"))])
    return kernels


def told_kernel(case: MaskCase) -> tuple[Kernel, dict[str, np.ndarray]] | None:
    """The kernel of a case whose mask an input of the run tells, and that input; ``None`` where it is none of that kind."""
    size, batch = case.length, case.batch
    if case.name == "document":
        told = np.ascontiguousarray(np.broadcast_to(case.documents, (batch, size)))
        mask = "Unsqueeze[axes=(-3,)](Equal(Unsqueeze[axes=(-1,)](told), Unsqueeze[axes=(-2,)](told)))"
    elif case.name == "prefix":
        told = np.ascontiguousarray(np.broadcast_to(np.arange(size) < size // 4, (batch, size)))
        mask = f"Or(Unsqueeze[axes=(-3,-2)](told), CausalMask[columns={size},rows={size}]())"
    else:
        return None
    types = {name: TensorType(DataType.FLOAT16, (batch, HEADS, size, WIDTH)) for name in "qkv"}
    types["told"] = TensorType(DataType.INT64 if told.dtype != bool else DataType.BOOL, (batch, size))
    scores = f"Where({mask}, Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.125), -inf)"
    kernel = lower("attention_told", types, [("y", parse_term(f"MatMul(Softmax[axis=-1]({scores}), v)"))])
    return kernel, {"told": told}


def plain_model(case: MaskCase) -> ModelProto:
    """The case as an ONNX model: products, scale, a boolean mask in a Where, softmax."""
    type_ = f"float16[{case.batch},{HEADS},{case.length},{WIDTH}]"
    proto = parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g ({type_} q, {type_} k, {type_} v) => ({type_} y) {{
            keys = Transpose<perm = [0,1,3,2]>(k) scores = MatMul(q, keys) scaled = Mul(scores, scale)
            masked = Where(seen, scaled, low) weights = Softmax<axis: int = -1>(masked) y = MatMul(weights, v)
        }}"""
    )
    values = {"scale": np.float16(0.125), "low": np.float16(-np.inf), "seen": np.ascontiguousarray(case.entries[None, None])}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())
    return proto
