"""Transformers' own models, as ``torch.onnx`` exports them today (needs the optional extra ``zoo``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.zoo.running import relative_error, session_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ZooArchitecture:
    """A model of transformers and how to export it; dimensions named by a string are dynamic.

    Attributes:
        model: Class in transformers.
        inputs: Names and shapes of the arguments that become graph inputs.
        config: What differs from the model's default configuration.
        part: Attribute holding the submodule to export, or "" for the whole model.
        lora_rank: Rank of unmerged LoRA adapters on every linear layer, or 0 for none.
    """

    model: str
    inputs: Mapping[str, tuple[int | str, ...]]
    config: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    lora_rank: int = 0


TOKENS = {"input_ids": (1, 128)}
BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
IMAGE = {"pixel_values": (1, 3, 224, 224)}

LLAMA = ZooArchitecture(
    "LlamaModel",
    TOKENS,
    {
        "num_hidden_layers": 4,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
    },
)
SMALL_LLAMA_CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
QWEN3_CONFIG = {  # Qwen3-0.6B, with fewer layers and words
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1000,
}
GEMMA2_CONFIG = {  # Gemma-2-2B, with fewer layers and words
    "num_hidden_layers": 4,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 1000,
}
ROBERTA_CONFIG = {  # RoBERTa-large, with fewer layers and words
    "num_hidden_layers": 6,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "vocab_size": 1000,
}
PHI_CONFIG = {  # Phi-1.5, with fewer layers and words: attention and MLP side by side, rotary embedding of half a head
    "num_hidden_layers": 4,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "vocab_size": 1000,
}
OLMO2_CONFIG = {  # OLMo-2 1B, fewer layers and words: queries and keys normalised as whole rows, norms behind attention and MLP
    "num_hidden_layers": 4,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 1000,
    "pad_token_id": 0,
}
DEBERTA_CONFIG = {  # DeBERTa-v3-base, with fewer layers and words: each layer attends to contents and to relative positions
    "num_hidden_layers": 4,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "relative_attention": True,
    "position_buckets": 256,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "vocab_size": 1000,
}
COHERE_CONFIG = {  # Command R's form: one normalisation without a bias before attention and MLP, rotary pairs side by side
    "num_hidden_layers": 4,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 1000,
}
NEOX_CONFIG = {  # Pythia-410M, with fewer layers and words: rotary embedding of a quarter of a head
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "vocab_size": 1000,
}

ARCHITECTURES: Mapping[str, ZooArchitecture] = {
    "bert": ZooArchitecture("BertModel", dict.fromkeys(BERT_INPUTS, (1, 128))),
    "gpt2": ZooArchitecture("GPT2Model", TOKENS),
    "llama": LLAMA,
    "llama_lora": replace(LLAMA, lora_rank=16),
    "qwen3": ZooArchitecture("Qwen3Model", TOKENS, QWEN3_CONFIG),
    "t5_encoder": ZooArchitecture("T5EncoderModel", TOKENS),
    "whisper_encoder": ZooArchitecture("WhisperModel", {"input_features": (1, 80, 3000)}, part="encoder"),
    "vit": ZooArchitecture("ViTModel", IMAGE),
    "swin": ZooArchitecture("SwinModel", IMAGE),
    "convnext": ZooArchitecture("ConvNextModel", IMAGE),
    "resnet50": ZooArchitecture("ResNetModel", IMAGE),
    "regnet": ZooArchitecture("RegNetModel", IMAGE),
    "bert_dynamic": ZooArchitecture("BertModel", dict.fromkeys(BERT_INPUTS, ("batch", "sequence"))),
    "bert6_dynamic": ZooArchitecture("BertModel", dict.fromkeys(BERT_INPUTS, ("batch", "sequence")), {"num_hidden_layers": 6}),
    "llama_dynamic": ZooArchitecture("LlamaModel", {"input_ids": ("batch", "sequence")}, SMALL_LLAMA_CONFIG),
}

SMALL_CONFIG = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 1000}
SMALL_STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 48, 64]}
SMALL_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("bert", "gpt2", "vit", "bert_dynamic"), SMALL_CONFIG),
    **{name: {**SMALL_CONFIG, "num_key_value_heads": 2} for name in ("llama", "llama_lora", "llama_dynamic")},
    "qwen3": {**SMALL_CONFIG, "num_key_value_heads": 2, "head_dim": 16},
    "t5_encoder": {"num_layers": 2, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "vocab_size": 1000},
    "whisper_encoder": {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_ffn_dim": 128,
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    },
    "swin": {"embed_dim": 16, "depths": [1, 2, 2], "num_heads": [2, 2, 4]},
    "convnext": SMALL_STAGES,
    "resnet50": {**SMALL_STAGES, "embedding_size": 16, "hidden_sizes": [32, 64, 96, 128]},
    "regnet": {**SMALL_STAGES, "embedding_size": 16, "groups_width": 8},
}
SMALL_ARCHITECTURES: Mapping[str, ZooArchitecture] = {
    f"small_{name}": replace(ARCHITECTURES[name], config={**ARCHITECTURES[name].config, **config})
    for name, config in SMALL_CONFIGS.items()
}
"""The same at a few layers and channels: what tools make of their spellings is seen in seconds."""

LANGUAGE_SIZES = ((1, 128), (8, 512))

SIZED_ARCHITECTURES: Mapping[str, ZooArchitecture] = {
    **{f"bert_{b}x{s}": replace(ARCHITECTURES["bert"], inputs=dict.fromkeys(BERT_INPUTS, (b, s))) for b, s in LANGUAGE_SIZES},
    **{f"gpt2_{b}x{s}": replace(ARCHITECTURES["gpt2"], inputs={"input_ids": (b, s)}) for b, s in LANGUAGE_SIZES},
    **{f"llama_1x{s}": replace(LLAMA, inputs={"input_ids": (1, s)}) for s in (128, 8)},
    **{f"t5_encoder_{b}x{s}": replace(ARCHITECTURES["t5_encoder"], inputs={"input_ids": (b, s)}) for b, s in LANGUAGE_SIZES},
    **{f"resnet50_{b}": replace(ARCHITECTURES["resnet50"], inputs={"pixel_values": (b, 3, 224, 224)}) for b in (1, 16)},
    **{f"vit_{b}": replace(ARCHITECTURES["vit"], inputs={"pixel_values": (b, 3, 224, 224)}) for b in (1, 8)},
    "whisper_encoder_1": ARCHITECTURES["whisper_encoder"],
    "qwen3_1x256": replace(ARCHITECTURES["qwen3"], inputs={"input_ids": (1, 256)}),
    "gemma2_1x512": ZooArchitecture("Gemma2Model", {"input_ids": (1, 512)}, GEMMA2_CONFIG),
    "roberta_4x256": ZooArchitecture("RobertaModel", dict.fromkeys(("input_ids", "attention_mask"), (4, 256)), ROBERTA_CONFIG),
    "phi_1x128": ZooArchitecture("PhiModel", TOKENS, PHI_CONFIG),
    "dinov2_1": ZooArchitecture("Dinov2Model", IMAGE),
    "olmo2_1x256": ZooArchitecture("Olmo2Model", {"input_ids": (1, 256)}, OLMO2_CONFIG),
    "wav2vec2_1": ZooArchitecture("Wav2Vec2Model", {"input_values": (1, 16000)}),
    "deberta_1x128": ZooArchitecture("DebertaV2Model", dict.fromkeys(("input_ids", "attention_mask"), (1, 128)), DEBERTA_CONFIG),
    "bloom_1x128": ZooArchitecture(  # BLOOM-560M, with fewer layers and words: a slope per head instead of positions
        "BloomModel",
        dict.fromkeys(("input_ids", "attention_mask"), (1, 128)),
        {"n_layer": 4, "hidden_size": 1024, "n_head": 16, "vocab_size": 1000},
    ),
    "xlnet_1x128": ZooArchitecture(
        "XLNetModel", TOKENS, {"n_layer": 4, "d_model": 768, "n_head": 12, "d_inner": 3072, "vocab_size": 1000}
    ),
    "cohere_1x128": ZooArchitecture("CohereModel", TOKENS, COHERE_CONFIG),
    "neox_1x128": ZooArchitecture("GPTNeoXModel", TOKENS, NEOX_CONFIG),
    "beit_1": ZooArchitecture("BeitModel", IMAGE, {"num_hidden_layers": 4, "use_relative_position_bias": True}),
    "siglip_1": ZooArchitecture("SiglipVisionModel", IMAGE, {"num_hidden_layers": 4}),
    "segformer_1": ZooArchitecture("SegformerModel", IMAGE),
    "mamba_1x64": ZooArchitecture(
        "MambaModel", {"input_ids": (1, 64)}, {"num_hidden_layers": 2, "hidden_size": 768, "vocab_size": 1000}
    ),
}
"""The models that `tools.bench.gpu_models` measures, named by batch and, for texts, sequence length."""

# What dynamic dimensions are while tracing (torch would take 1 for static) and when the exported file is checked.
TRACED_SIZE = {"batch": 2, "sequence": 128}
CHECKED_SIZE = {"batch": 1, "sequence": 77}

# Relative L2 error that an export may have against torch, by whether it is fp16.
EXPORT_TOLERANCE = {False: 1e-5, True: 1e-2}


def export_model(name: str, path: Path, fp16: bool = False) -> float:
    """Exports a model with ``torch.onnx`` and compares the file, run by onnxruntime, with torch.

    Args:
        name: A key of `ARCHITECTURES`, `SMALL_ARCHITECTURES` or `SIZED_ARCHITECTURES`.
        path: The file to write; weights stay inside it below 2 GB and go to external data above.
        fp16: Whether weights, floating-point inputs and outputs are half precision.

    Returns:
        The relative L2 distance between the outputs of onnxruntime and torch.
    """
    import torch

    architecture = {**ARCHITECTURES, **SMALL_ARCHITECTURES, **SIZED_ARCHITECTURES}[name]
    model = build_module(architecture)
    if fp16:
        model = model.half()
    example = example_inputs(architecture, TRACED_SIZE, fp16)
    inputs = example_inputs(architecture, CHECKED_SIZE, fp16)
    with torch.no_grad():
        expected = model(*inputs.values()).numpy()
        program = torch.onnx.export(
            model,
            tuple(example.values()),
            dynamo=True,
            verbose=False,
            input_names=list(example),
            output_names=["output"],
            dynamic_shapes={"inputs": tuple(_dynamic_dimensions(shape) for shape in architecture.inputs.values())},
        )
        program.save(path)
    (actual,) = session_of(path).run(None, {key: value.numpy() for key, value in inputs.items()})
    return relative_error(actual, expected)


def build_module(architecture: ZooArchitecture) -> torch.nn.Module:
    """The module to export, random weights: evaluation mode, positional inputs, one output (the last hidden state)."""
    import torch
    import transformers

    names = tuple(architecture.inputs)

    class FirstOutput(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.model(**dict(zip(names, inputs, strict=True)))[0]
            return output

    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    config = model_class.config_class(**architecture.config, use_cache=False)
    model = model_class(config)
    if architecture.part:
        model = model.get_submodule(architecture.part)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                # Fresh biases are all zero and gains all one: the exporter would drop the ones and merge the others.
                parameter += 0.02 * torch.randn_like(parameter)
    if architecture.lora_rank:
        import peft

        # init_lora_weights=False leaves both factors random; peft's own start would be a zero that folds away.
        rank = architecture.lora_rank
        lora = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", init_lora_weights=False)
        model = peft.get_peft_model(model, lora).base_model.model
    return FirstOutput(model).eval()


def example_inputs(architecture: ZooArchitecture, sizes: Mapping[str, int], fp16: bool = False) -> dict[str, torch.Tensor]:
    """Random inputs; `sizes` are those of the dynamic dimensions."""
    import torch

    torch.manual_seed(0)
    example: dict[str, torch.Tensor] = {}
    for name, symbolic_shape in architecture.inputs.items():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in symbolic_shape]
        match name:
            case "input_ids":
                example[name] = torch.randint(1000, shape)
            case "attention_mask":
                example[name] = torch.ones(shape, dtype=torch.int64)
            case "token_type_ids":
                example[name] = torch.zeros(shape, dtype=torch.int64)
            case _:
                example[name] = torch.randn(shape, dtype=torch.float16 if fp16 else torch.float32)
    return example


def _dynamic_dimensions(shape: Sequence[int | str]) -> dict[int, str]:
    return {axis: dim for axis, dim in enumerate(shape) if isinstance(dim, str)}
