"""Calls of a model's functions, written out, as runtimes do before they optimise."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import FunctionProto, ModelProto, inliner

from mugraph.onnx.calls import called_name, functions_called, functions_of, is_kernel, node_count
from mugraph.onnx.model import Model
from mugraph.onnx.parse import DEFAULT_DOMAINS
from mugraph.onnx.read import reread
from mugraph.onnx.scopes import nested_nodes
from mugraph.onnx.weights import ModelError
from mugraph.ops.composite import RUNTIME_DOMAIN

__all__ = ["without_calls"]

_MOST_NODES = 1 << 14
"""Nodes of a model with all calls written out: of more, reading alone would take longer than most searches."""
_RUNTIMES = frozenset({*DEFAULT_DOMAINS, RUNTIME_DOMAIN})
"""Domains in which a runtime may have a kernel for what a function defines, too."""


def without_calls(model: Model) -> Model:
    """A model with the nodes of its functions in place of their calls; the model itself where there are none to write out.

    Custom kernels stay calls, as do functions of a runtime's own domains, and those of another opset than the model's.
    """
    proto = model.proto
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    kept = [(f.domain, f.name) for f in proto.functions if f.domain in _RUNTIMES or is_kernel(f) or not _fits(f, versions)]
    called = functions_called(proto.graph.node, functions_of(proto))
    if {(domain, name) for domain, name, _ in called} <= set(kept) or node_count(proto) > _MOST_NODES:
        return model
    try:
        return reread(model, inliner.inline_selected_functions(_with_defaults(proto), kept, exclude=True))
    except (ModelError, RuntimeError):  # what the inliner refuses is no reason to fail: functions are opaque then
        return model


def _with_defaults(proto: ModelProto) -> ModelProto:
    """A copy whose calls name every attribute that their function has a default of: onnx's inliner knows of no defaults."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    functions = functions_of(copy)
    for node in nested_nodes(copy):
        given = {attribute.name for attribute in node.attribute}
        defaults = functions[called_name(node)].attribute_proto if called_name(node) in functions else ()
        node.attribute.extend(attribute for attribute in defaults if attribute.name not in given)
    return copy


def _fits(function: FunctionProto, versions: Mapping[str, int]) -> bool:
    """Whether a function means operators of the versions that the model around it does."""
    return all(versions.get(entry.domain, entry.version) == entry.version for entry in function.opset_import)
