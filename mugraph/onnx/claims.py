"""Claims: shapes that nothing but the file tells of a value that a node makes or a body is fed.

Of most results onnx or the registry says what they are, and the operator is believed (:mod:`mugraph.onnx.inference`). Of
others, the results of foreign operators and of loops above all, a declaration is all there is. It may be false: no runtime
asks whether it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnx import ModelProto, TensorShapeProto, ValueInfoProto, shape_inference

from mugraph.onnx.inference import is_compatible
from mugraph.onnx.model import Model
from mugraph.onnx.parse import without_weights
from mugraph.onnx.scopes import declarations

__all__ = ["claimed"]


def claimed(model: Model) -> frozenset[int]:
    """The values of known type whose shape, or a part of it, rests on the file's word alone.

    Those that a record of the registry makes are none: it computed their types.
    """
    declared = {value.name: value for value in _made(model.proto) if value.type.tensor_type.HasField("shape")}
    tables, suspects = model.tables, dict[str, int]()
    for name in declared.keys() - model.distrusted:
        value = model.values.get(name)
        if value is None or tables.types[value] is None or value in tables.constants:
            continue
        maker = tables.makers.get(value)
        if maker is None or maker[0].is_opaque:
            suspects[name] = value
    if not suspects:
        return frozenset()
    alone, _ = without_weights(model.proto)
    for made in _made(alone):
        made.type.tensor_type.ClearField("shape")
    try:
        told = {made.name: made for made in _made(shape_inference.infer_shapes(alone))}
    except (shape_inference.InferenceError, ValueError, RuntimeError):
        told = {}
    named = Counter(dim.dim_param for value in (*declared.values(), *model.proto.graph.input) for dim in _dims(value))
    return frozenset(
        value for name, value in suspects.items() if name not in told or _tells_more(declared[name], told[name], named)
    )


def _made(model: ModelProto) -> Iterator[ValueInfoProto]:
    """What a model says of tensors that are neither fed to it nor stored in it."""
    given = {value.name for value in model.graph.input} | {tensor.name for tensor in model.graph.initializer}
    for value in declarations(model.graph):
        if value.name not in given and value.type.HasField("tensor_type"):
            yield value


def _dims(value: ValueInfoProto) -> Iterator[TensorShapeProto.Dimension]:
    """The dimensions of a tensor, as far as anything is said of them."""
    yield from value.type.tensor_type.shape.dim


def _tells_more(declared: ValueInfoProto, inferred: ValueInfoProto, named: Counter[str]) -> bool:
    """Whether a declaration says anything of a shape that inference does not.

    Args:
        named: how often the file names a size: one that stands nowhere else says nothing.
    """
    first, second = declared.type.tensor_type, inferred.type.tensor_type
    if not second.HasField("shape") or not is_compatible(first, second):
        return True
    return any(
        not other.HasField("dim_value")
        and (one.HasField("dim_value") or (one.dim_param != other.dim_param and named[one.dim_param] > 1))
        for one, other in zip(_dims(declared), _dims(inferred), strict=True)
    )
