"""The programs of the Mirage paper (OSDI'25, section 8), and MHA decoding, in half precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from mugraph.onnx.function import function_of
from mugraph.ops import LocalFunction
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, substitute, var
from mugraph.terms.text import parse_term

__all__ = ["OPSET", "MirageProgram", "plain_model", "programs"]

OPSET = 20


@dataclass(frozen=True, slots=True)
class MirageProgram:
    """A program in its plain form.

    Attributes:
        name, batch: of the paper.
        inputs: name to type.
        body: the plain formula.
        output: its type.
    """

    name: str
    batch: int
    inputs: Mapping[str, TensorType]
    body: Term
    output: TensorType

    @property
    def label(self) -> str:
        return f"{self.name}:{self.batch}"

    def model(self) -> onnx.ModelProto:
        """The plain ONNX form; every tensor is an input."""
        return plain_model(self.name, self.inputs, [self.body], [self.output])


def plain_model(
    name: str, inputs: Mapping[str, TensorType], body: Sequence[Term], outputs: Sequence[TensorType]
) -> onnx.ModelProto:
    """Terms over some inputs as a model."""
    order = list(inputs)
    roots = tuple(_by_position(term, order) for term in body)
    function = function_of(LocalFunction("", "body", "", (), tuple(inputs.values()), roots), OPSET)
    infos = [_info(name, t) for name, t in zip(function.input, inputs.values(), strict=True)]
    nodes, last = function.node[: -len(outputs)], function.node[-len(outputs) :]  # the last only give the results their names
    results = [_info(node.input[0], t) for node, t in zip(last, outputs, strict=True)]
    graph = onnx.helper.make_graph(nodes, name, infos, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)


def _info(name: str, type_: TensorType) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, int(type_.dtype), list(type_.shape))


def _by_position(term: Term, order: Sequence[str]) -> Term:
    return substitute(term, {name: var(f"x{i}") for i, name in enumerate(order)})


def _half(*shape: int) -> TensorType:
    return TensorType(DataType.FLOAT16, shape)


def _rms(x: str) -> str:
    return f"Div({x}, Sqrt(Add(ReduceMean[axes=(-1,),keepdims=true](Mul({x}, {x})), 0.00001)))"


def _heads(n: int, s: int) -> dict[str, TensorType]:
    return {"q": _half(n, s, 64), "k": _half(n, 64, 4096), "v": _half(n, 4096, 64)}


def programs() -> list[MirageProgram]:
    """The six programs and MHA decoding, batch 1 and 8 (Mirage's public benchmark scripts)."""
    made = []
    attended = "MatMul(Softmax[axis=-1](MatMul({q}, k)), {v})"
    for b in (1, 8):
        wide = _half(8 * b, 4096)
        normalised = {"q": f"Mul({_rms('q')}, 0.1)", "v": _rms("v")}
        plain = {"q": "q", "v": "v"}
        mlp = "Mul(Mul(MatMul(x, w1), Sigmoid(MatMul(x, w1))), MatMul(x, w2))"
        specifications: list[tuple[str, dict[str, TensorType], str, TensorType]] = [
            (
                "RMSNorm+MatMul",
                {"x": _half(2 * b, 4096), "w": _half(4096, 6144)},
                f"MatMul({_rms('x')}, w)",
                _half(2 * b, 6144),
            ),
            ("GatedMLP", {"x": wide, "w1": _half(4096, 4096), "w2": _half(4096, 4096)}, mlp, wide),
            (
                "LoRA",
                {"x": _half(16 * b, 256), "w": _half(256, 4096), "a": _half(256, 16), "b": _half(16, 4096)},
                "Add(MatMul(x, w), MatMul(MatMul(x, a), b))",
                _half(16 * b, 4096),
            ),
            ("nTrans", {"h": wide, "x": wide, "alpha": wide}, _rms(f"Add(x, Mul(alpha, Add({_rms('h')}, x)))"), wide),
            ("GQA", _heads(2 * b, 256), attended.format(**plain), _half(2 * b, 256, 64)),
            ("QKNorm", _heads(2 * b, 256), attended.format(**normalised), _half(2 * b, 256, 64)),
            ("MHA", _heads(32 * b, 16), attended.format(**plain), _half(32 * b, 16, 64)),
        ]
        made += [MirageProgram(name, b, inputs, parse_term(text), output) for name, inputs, text, output in specifications]
    return made
