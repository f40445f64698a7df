"""An ONNX file as a module of torch: a peer for models that torch did not export, with the file's own weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper, numpy_helper

from tools.bench.gpu_runners import Runner, RunnerFailed, TorchRunner

if TYPE_CHECKING:
    import torch

__all__ = ["TorchFileSpec", "module_of"]


@dataclass(frozen=True)
class TorchFileSpec:
    """A file in torch, as it is or compiled, in the file's precision and without TF32; on a GPU as one CUDA graph.

    Attributes:
        path: The file.
        mode: A key of `tools.bench.gpu_runners.TORCH_MODES`.
        device: ``cuda``, or ``cpu`` without a graph and by the host's clock.
        clock: One of `tools.bench.gpu_runners.CLOCKS`.
    """

    path: Path
    mode: str
    device: str = "cuda"
    clock: str = "events"

    def open(self) -> Runner:
        """Builds, compiles and captures it. Raises RunnerFailed: an operator has no spelling here."""
        import torch

        torch.backends.cudnn.allow_tf32 = False
        model = onnx.load(self.path)
        module = module_of(model)
        types = {info.name: info.type.tensor_type for info in model.graph.input}
        inputs = {
            name: torch.from_numpy(_zeros([dim.dim_value for dim in given.shape.dim], given.elem_type))
            for name, given in types.items()
        }
        return TorchRunner(module, copy.deepcopy(module).float(), inputs, self.mode, self.device, self.clock)


def _zeros(shape: list[int], kind: int) -> Any:
    import numpy as np

    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind))


def module_of(model: onnx.ModelProto) -> torch.nn.Module:
    """A module with the model's inputs as positional arguments and its first output as result.

    Raises:
        RunnerFailed: A node's operator, or its padding, has no spelling here.
    """
    import torch

    graph, calls = model.graph, _spellings()
    if missing := sorted({node.op_type for node in graph.node} - calls.keys()):
        raise RunnerFailed(f"no spelling in torch of {', '.join(missing)}")
    steps = [
        (calls[node.op_type], tuple(node.input), node.output[0], {a.name: helper.get_attribute_value(a) for a in node.attribute})
        for node in graph.node
    ]
    if any(pads[: len(pads) // 2] != pads[len(pads) // 2 :] for *_, given in steps if (pads := given.get("pads"))):
        raise RunnerFailed("pads differ before and behind an axis")
    sizes = {t.name: numpy_helper.to_array(t).tolist() for t in graph.initializer if t.data_type == onnx.TensorProto.INT64}
    names, result = [info.name for info in graph.input], graph.output[0].name

    class FileModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for tensor in graph.initializer:
                if tensor.name not in sizes:
                    weight = torch.from_numpy(numpy_helper.to_array(tensor).copy())
                    self.register_parameter(tensor.name, torch.nn.Parameter(weight, requires_grad=False))

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            values: dict[str, Any] = {**sizes, **dict(self.named_parameters()), **dict(zip(names, inputs, strict=True))}
            for call, operands, output, attributes in steps:
                values[output] = call(attributes, *(values[name] for name in operands))
            found: torch.Tensor = values[result]
            return found

    return FileModule().eval()


def _spellings() -> dict[str, Callable[..., torch.Tensor]]:
    """ONNX's operators in torch: attributes, then operands."""
    import torch
    from torch.nn import functional

    def window(given: Mapping[str, Any]) -> dict[str, Any]:
        return {"stride": given["strides"], "padding": given["pads"][: len(given["pads"]) // 2]}

    return {
        "Conv": lambda given, x, w, b=None: functional.conv2d(x, w, b, groups=given.get("group", 1), **window(given)),
        "MaxPool": lambda given, x: functional.max_pool2d(x, given["kernel_shape"], **window(given)),
        "AveragePool": lambda given, x: functional.avg_pool2d(
            x, given["kernel_shape"], count_include_pad=bool(given.get("count_include_pad", 0)), **window(given)
        ),
        "GlobalAveragePool": lambda _, x: functional.adaptive_avg_pool2d(x, 1),
        "LayerNormalization": lambda given, x, w, b: functional.layer_norm(x, w.shape, w, b, given["epsilon"]),
        "Softmax": lambda given, x: torch.softmax(x, given["axis"]),
        "Gelu": lambda _, x: functional.gelu(x),
        "Relu": lambda _, x: torch.relu(x),
        "Sigmoid": lambda _, x: torch.sigmoid(x),
        "Tanh": lambda _, x: torch.tanh(x),
        "Add": lambda _, x, y: x + y,
        "Mul": lambda _, x, y: x * y,
        "MatMul": lambda _, x, y: x @ y,
        "Concat": lambda given, *images: torch.cat(images, given["axis"]),
        "Reshape": lambda _, x, shape: x.reshape(shape),
        "Transpose": lambda given, x: x.permute(given["perm"]),
    }
