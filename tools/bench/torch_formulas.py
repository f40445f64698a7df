"""The programs of the Mirage paper (OSDI'25, section 8), and MHA decoding, as plain functions of torch: `FORMULAS`.

Generated kernels are measured beside them. torch is imported when a formula runs: preparing and printing do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["FORMULAS", "Formula"]

Formula = Callable[..., "torch.Tensor"]
"""A program: its inputs in order to its output."""

SCALE = float(np.float16(0.1))
"""QKNorm's factor as a half-precision model holds it."""


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """Rows over their root mean square."""
    import torch.nn.functional as f

    return f.rms_norm(x, (x.shape[-1],), eps=1e-5)


def rms_norm_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return rms_norm(x) @ w


def gated_mlp(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    import torch.nn.functional as f

    return f.silu(x @ w1) * (x @ w2)


def lora(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x @ w + (x @ a) @ b


def n_trans(h: torch.Tensor, x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return rms_norm(x + alpha * (rms_norm(h) + x))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention, written out; ``k`` is transposed already."""
    import torch

    return torch.softmax(q @ k, -1) @ v


def attention_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention by torch's function; ``k`` is transposed already."""
    import torch.nn.functional as f

    return f.scaled_dot_product_attention(q, k.transpose(-1, -2), v, scale=1.0)


def qk_norm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(SCALE * rms_norm(q), k, rms_norm(v))


def qk_norm_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention_sdpa(SCALE * rms_norm(q), k, rms_norm(v))


FORMULAS: Mapping[str, tuple[Formula, Formula | None]] = {
    "RMSNorm+MatMul": (rms_norm_matmul, None),
    "GatedMLP": (gated_mlp, None),
    "LoRA": (lora, None),
    "nTrans": (n_trans, None),
    "GQA": (attention, attention_sdpa),
    "QKNorm": (qk_norm, qk_norm_sdpa),
    "MHA": (attention, attention_sdpa),
}
"""The name of each program to the plain formula and, where there is attention, the one with torch's attention function."""
