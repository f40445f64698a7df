"""One step of decoding as it is run and timed on a GPU: in onnxruntime from a file, or in torch with the file's weights.

Each lives in a process of its own (`tools.bench.gpu_runners.Remote`). Inputs and the reference are files there: a cache of many
positions is too large to be sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from rewriter.reference import compare
from tools.bench.gpu_runners import Feed, OnnxRunner, OnnxSpec, Runner, TorchRunner
from tools.zoo.decoders import FIXED, Decoder, cache_names, rotary_frequencies, step_weights

if TYPE_CHECKING:
    import torch

__all__ = ["StepRunner", "StepSpec", "read_arrays"]


def read_arrays(path: Path) -> Feed:
    """The arrays of a file that ``np.savez`` wrote, by name."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


@dataclass(frozen=True)
class StepSpec:
    """A step, with what it is fed. A cache of a fixed size is written in place.

    Attributes:
        which: the decoder, of fixed sizes.
        path: the file that has its weights.
        feed: the file of the inputs that it begins with.
        provider, clock: as of an `OnnxSpec`.
        compiled: the folder for what torch compiles, where the step is torch's with a cache that it writes in place. ``None``
            where it is the file's, in onnxruntime.
    """

    which: Decoder
    path: Path
    feed: Path
    provider: str
    clock: str
    compiled: Path | None = None

    def open(self) -> Runner:
        """Builds, compiles and captures it."""
        if self.compiled is None:
            feed, batch, new = read_arrays(self.feed), self.which.batch or 1, self.which.new or 1
            total = (batch, self.which.key_heads, (self.which.past or 0) + new, self.which.size)
            names, is_fixed = cache_names(self.which.layers), self.which.spelling in FIXED
            poison = [np.full((batch, new, self.which.words), np.nan, np.float16)]
            poison += [np.full(total, np.nan, np.float16) for _ in names if not is_fixed]
            shared = {after: before for before, after in names if is_fixed}
            inner: Runner = OnnxSpec(self.path, self.provider, feed, poison, self.clock, shared).open()
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.compiled)
            inner = _TorchStep(self)
        return StepRunner(inner, self.feed)


class StepRunner:
    """A step whose inputs are read from files, and whose outputs are compared where they are.

    Args:
        inner: what runs it.
        loaded: the file that ``inner`` was opened with.
    """

    def __init__(self, inner: Runner, loaded: Path) -> None:
        self.inner, self.note, self._loaded = inner, inner.note, loaded
        if not isinstance(inner, OnnxRunner):
            inner.load(read_arrays(loaded))

    def load(self, feed: Path) -> None:
        """Copies the inputs in a file to the device, unless they are there."""
        if feed != self._loaded:
            self.inner.load(read_arrays(feed))
            self._loaded = feed

    def milliseconds(self, count: int) -> float:
        """Replays ``count`` times without a pause; milliseconds of one replay."""
        return self.inner.milliseconds(count)

    def errors(self, reference: Path) -> list[float]:
        """Relative errors (L2) of the outputs against those in a file, in its order; infinite where one is no number."""
        outputs = self.inner.outputs()
        return [compare(mine, right).relative_l2 for mine, right in zip(outputs, read_arrays(reference).values(), strict=False)]


class _TorchStep(TorchRunner):
    """A step in torch, which writes the cache in place and returns the logits."""

    def __init__(self, spec: StepSpec) -> None:
        import torch

        stored = step_weights(onnx.load(spec.path, load_external_data=False), spec.path.parent)
        module = _step_module(spec.which, {name: torch.from_numpy(array.copy()) for name, array in stored}, torch.float16)
        words = torch.zeros((spec.which.batch or 1, spec.which.new or 1), dtype=torch.int64)
        mode = "max-autotune" if spec.provider == "cuda" else "eager"
        self.module, self.past = module, spec.which.past or 0
        self.names = [before for before, _ in cache_names(spec.which.layers)]
        super().__init__(module, module, {"input_ids": words}, mode, spec.provider, spec.clock)

    def load(self, feed: Feed) -> None:
        """Copies words and cache to the device."""
        import torch

        super().load({"input_ids": feed["input_ids"]})
        for name, buffer in zip(self.names, self.module.caches(), strict=True):
            buffer[:, :, : self.past].copy_(torch.from_numpy(feed[name][:, :, : self.past]))


def _step_module(which: Decoder, weights: Mapping[str, torch.Tensor], kind: torch.dtype) -> torch.nn.Module:
    """The step as a module, from words to logits; matrices lie as those of torch's linear layers do, [columns, rows]."""
    import torch
    from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

    batch, past, new, size = which.batch or 1, which.past or 0, which.new or 1, which.size
    positions = torch.arange(past, past + new, dtype=torch.float64)
    angles = positions[:, None] * torch.from_numpy(rotary_frequencies(which)).double()
    both = torch.cat([angles, angles], dim=-1)
    is_causal = new > 1 and not past

    class LlamaStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in weights.items():
                turns = tensor.ndim == 2 and name != "words"
                self.register_buffer(name, (tensor.T.contiguous() if turns else tensor).to(kind))
            for name in self.cache_buffers():
                self.register_buffer(name, torch.zeros((batch, which.key_heads, past + new, size), dtype=kind))
            self.register_buffer("cos", both.cos().to(kind))
            self.register_buffer("sin", both.sin().to(kind))
            seen = torch.ones((new, past + new), dtype=torch.bool).tril(past)
            self.register_buffer("seen", seen if new > 1 and past else None)

        @staticmethod
        def cache_buffers() -> list[str]:
            return [f"{part}_cache{n}" for n in range(which.layers) for part in "kv"]

        def caches(self) -> list[torch.Tensor]:
            return [getattr(self, name) for name in self.cache_buffers()]

        def turned(self, x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * self.cos + torch.cat([-second, first], dim=-1) * self.sin

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            w = dict(self.named_buffers())
            x = w["words"][input_ids]
            for n in range(which.layers):
                y = rms_norm(x, (which.hidden,), w[f"beforew{n}"], 1e-6)
                q, k, v = (linear(y, w[f"{name}w{n}"]).view(batch, new, -1, size) for name in ("q", "k", "v"))
                if which.normalises_heads:
                    q, k = (rms_norm(x, (size,), w[f"{name}gainw{n}"], 1e-6) for name, x in (("q", q), ("k", k)))
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
                keys, values = w[f"k_cache{n}"], w[f"v_cache{n}"]
                keys[:, :, past:] = self.turned(k)
                values[:, :, past:] = v
                seen = scaled_dot_product_attention(
                    self.turned(q), keys, values, attn_mask=self.seen, is_causal=is_causal, enable_gqa=True
                )
                x = x + linear(seen.transpose(1, 2).reshape(batch, new, -1), w[f"ow{n}"])
                y = rms_norm(x, (which.hidden,), w[f"betweenw{n}"], 1e-6)
                x = x + linear(silu(linear(y, w[f"gatew{n}"])) * linear(y, w[f"upw{n}"]), w[f"downw{n}"])
            return linear(rms_norm(x, (which.hidden,), w["lastw"], 1e-6), w["words" if which.shares_words else "headw"])

    return LlamaStep().eval()
