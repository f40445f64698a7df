"""Steps of transformers' own decoders with a cache, as ``torch.onnx`` exports them (needs the optional extra ``zoo``).

As optimum names them: ``input_ids``, where asked for ``attention_mask`` and ``position_ids``, ``past_key_values.N.key`` and
``.value``; ``logits``, ``present.N.key`` and ``.value``. Batch and length of the cache are dynamic; the weights are random. Of a
cache of a fixed size ``position``, int64[1], says where the word stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.zoo.decoders import cache_names
from tools.zoo.exported import LLAMA, QWEN3_CONFIG
from tools.zoo.running import relative_error, session_of

if TYPE_CHECKING:
    import torch

__all__ = ["STEPS", "StepArchitecture", "export_step"]

_TRACED = (2, 7)
"""Batch and length while tracing, for which torch would take 1 as static."""
_CHECKED = (1, 5)


@dataclass(frozen=True)
class StepArchitecture:
    """A language model of transformers.

    Attributes:
        model: class in transformers.
        config: what differs from the model's default configuration.
        is_padded: the step takes a mask of the cache's positions, and the position of the word.
        is_static: the cache is transformers' StaticCache.
    """

    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    is_padded: bool = False
    is_static: bool = False


_LLAMA_1B = {  # Llama-3.2-1B
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
}
_QWEN3_06B = {**QWEN3_CONFIG, "num_hidden_layers": 28, "vocab_size": 151936}

STEPS: Mapping[str, StepArchitecture] = {
    "llama_step": StepArchitecture("LlamaForCausalLM", LLAMA.config),
    "llama_step_padded": StepArchitecture("LlamaForCausalLM", LLAMA.config, is_padded=True),
    "qwen3_step": StepArchitecture("Qwen3ForCausalLM", QWEN3_CONFIG),
    "llama_step_static": StepArchitecture("LlamaForCausalLM", LLAMA.config, is_static=True),
    "qwen3_step_static": StepArchitecture("Qwen3ForCausalLM", QWEN3_CONFIG, is_static=True),
    "llama32_1b_step": StepArchitecture("LlamaForCausalLM", _LLAMA_1B),
    "qwen3_06b_step": StepArchitecture("Qwen3ForCausalLM", _QWEN3_06B),
}


def export_step(architecture: StepArchitecture, path: Path, fp16: bool = False) -> float:
    """Exports a step and compares the file, run by onnxruntime, with torch.

    Returns:
        The largest relative L2 distance of an output.
    """
    import torch

    module, layers = _step(architecture, fp16)
    names = [before for before, _ in cache_names(layers)]
    of_name = {"attention_mask": {0: "batch", 1: "total"}, "position": {}}
    of_given = (of_name.get(name, {0: "batch"}) for name in _given(architecture))
    sizes = {"inputs": (*of_given, *({0: "batch", 2: "past"} for _ in names))}
    with torch.no_grad():
        inputs = _inputs(module, architecture, names, *_CHECKED)
        fed = {name: value.numpy().copy() for name, value in inputs.items()}
        expected = module(*inputs.values())  # a cache of a fixed size is written in place
        program = torch.onnx.export(
            module,
            tuple(_inputs(module, architecture, names, *_TRACED).values()),
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=["logits", *(after for _, after in cache_names(layers))],
            dynamic_shapes=sizes,
        )
        program.save(path)
    actual = session_of(path).run(None, fed)
    return max(relative_error(np.asarray(a), e.numpy()) for a, e in zip(actual, expected, strict=True))


def _given(architecture: StepArchitecture) -> tuple[str, ...]:
    """The inputs before the cache."""
    told = ("attention_mask", "position_ids") if architecture.is_padded else ("position",) if architecture.is_static else ()
    return ("input_ids", *told)


def _step(architecture: StepArchitecture, fp16: bool) -> tuple[torch.nn.Module, int]:
    """The module to export, in evaluation mode, and its number of layers."""
    import torch
    import transformers

    class Step(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = dict(zip(_given(architecture), inputs, strict=False))
            past = list(zip(inputs[len(given) :: 2], inputs[len(given) + 1 :: 2], strict=True))
            position = given.pop("position", None)
            if position is None:
                cache = transformers.DynamicCache(past)
            else:
                cache, given["position_ids"] = _static_cache(self.model.config, past, position), position[None]
            result = self.model(**given, past_key_values=cache, use_cache=True)
            return result.logits, *(part for layer in result.past_key_values.layers for part in (layer.keys, layer.values))

    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    model = model_class(model_class.config_class(**architecture.config)).eval()
    return Step(model.half() if fp16 else model), model.config.num_hidden_layers


def _static_cache(config: Any, past: Sequence[tuple[torch.Tensor, torch.Tensor]], position: torch.Tensor) -> Any:
    """transformers' cache of a fixed size with keys and values of each layer, in which a word comes next to some place."""
    import transformers

    cache = transformers.StaticCache(config=config, max_cache_len=past[0][0].shape[2])
    for layer, (keys, values) in zip(cache.layers, past, strict=True):
        layer.keys, layer.values, layer.device, layer.is_initialized = keys, values, keys.device, True
        layer.cumulative_length = position.clone()  # the layer counts in place
    return cache


def _inputs(
    module: torch.nn.Module, architecture: StepArchitecture, names: list[str], batch: int, past: int
) -> dict[str, torch.Tensor]:
    """Random inputs by name."""
    import torch

    model: Any = module.model
    config = model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    inputs = {"input_ids": torch.randint(config.vocab_size, (batch, 1))}
    if architecture.is_padded:
        inputs |= {"attention_mask": torch.ones((batch, past + 1), dtype=torch.int64)}
        inputs |= {"position_ids": torch.full((batch, 1), past)}
    if architecture.is_static:
        inputs |= {"position": torch.tensor([past - 2])}
    shape = (batch, config.num_key_value_heads, past, size)
    return {**inputs, **{name: torch.randn(shape).to(model.dtype) for name in names}}
