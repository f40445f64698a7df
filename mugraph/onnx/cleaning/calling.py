"""Calls of a model's functions, written out, as runtimes do before they optimise."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onnx import FunctionProto, ModelProto, OperatorSetIdProto

from mugraph.onnx.calls import (
    DEFAULT_DOMAINS,
    FunctionName,
    called_name,
    functions_called,
    functions_of,
    is_kernel,
    node_count,
    with_bodies,
)
from mugraph.onnx.model import Model
from mugraph.onnx.read import reread
from mugraph.onnx.scopes import NameSupply, graphs_of, nested_nodes
from mugraph.onnx.weights import ModelError
from mugraph.ops.composite import RUNTIME_DOMAIN

__all__ = ["without_calls"]

_MOST_NODES = 1 << 14
"""Nodes of a model with all calls written out: of more, reading alone would take longer than most searches."""
_RUNTIMES = frozenset({*DEFAULT_DOMAINS, RUNTIME_DOMAIN})
"""Domains in which a runtime may have a kernel for what a function defines, too."""


def without_calls(model: Model) -> Model:
    """A model with the nodes of its functions in place of their calls; the model itself where there are none to write out.

    Custom kernels stay calls, as do functions of a runtime's own domains, those of another opset than the model's, and those with
    a default for what a caller of theirs may leave out.
    """
    proto, functions = model.proto, functions_of(model.proto)
    versions = _versions(proto)
    kept = _calls_without_default(functions)
    kept |= {_name(f) for f in proto.functions if f.domain in _RUNTIMES or is_kernel(f) or not _fits(f, versions)}
    called = functions_called(proto.graph.node, functions)
    if {(domain, name) for domain, name, _ in called} <= kept or node_count(proto) > _MOST_NODES:
        return model
    from onnx import inliner  # hardly a model needs it

    try:
        return reread(model, inliner.inline_selected_functions(_prepared(proto, kept, versions), sorted(kept), exclude=True))
    except (ModelError, RuntimeError):  # what the inliner refuses is no reason to fail: functions are opaque then
        return model


def _name(function: FunctionProto) -> tuple[str, str]:
    """As onnx's inliner has it, of all overloads."""
    return function.domain, function.name


def _versions(proto: ModelProto) -> dict[str, int]:
    """The opsets of a model, and of functions those of domains that it does not import itself."""
    versions = {_domain(entry): entry.version for entry in proto.opset_import}
    for function in proto.functions:
        for entry in function.opset_import:
            versions.setdefault(_domain(entry), entry.version)
    return versions


def _domain(entry: OperatorSetIdProto) -> str:
    return "" if entry.domain in DEFAULT_DOMAINS else entry.domain


def _calls_without_default(functions: Mapping[FunctionName, FunctionProto]) -> set[tuple[str, str]]:
    """The functions to which another one hands on an attribute that it may lack itself, and for which they have a default.

    onnx's inliner would drop the attribute, and the default with it.
    """
    found = set()
    for function in functions.values():
        for node in with_bodies(function.node):
            callee = functions.get(called_name(node))
            handed = {attribute.name for attribute in node.attribute if attribute.ref_attr_name in function.attribute}
            if callee is not None and not handed.isdisjoint(attribute.name for attribute in callee.attribute_proto):
                found.add(_name(callee))
    return found


def _prepared(proto: ModelProto, kept: Collection[tuple[str, str]], versions: Mapping[str, int]) -> ModelProto:
    """A copy as onnx's inliner needs it: it knows of no defaults, imports no domain, and renames a body's input by its output.

    Calls of functions that are not kept name every attribute that has a default, opsets of these functions are the model's, and
    a body within them gives no input as it came.
    """
    copy = ModelProto()
    copy.CopyFrom(proto)
    functions = functions_of(copy)
    wanted = {_domain(entry) for f in functions.values() if _name(f) not in kept for entry in f.opset_import}
    for domain in sorted(wanted.difference(map(_domain, proto.opset_import))):
        copy.opset_import.add(domain=domain, version=versions[domain])
    for node in nested_nodes(copy):
        function = functions.get(called_name(node))
        if function is not None and _name(function) not in kept:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(attribute for attribute in function.attribute_proto if attribute.name not in given)
    for function in copy.functions:
        _name_what_passes(function)
    return copy


def _name_what_passes(function: FunctionProto) -> None:
    """Puts an Identity where a body within a function gives an input of its own."""
    nodes = list(with_bodies(function.node))
    supply = NameSupply(name for node in nodes for name in (*node.input, *node.output))
    for body in (body for node in nodes for body in graphs_of(node)):
        fed = {value.name for value in body.input}
        for output in body.output:
            if output.name in fed:
                body.node.add(op_type="Identity", input=[output.name], output=[name := supply.fresh(output.name)])
                output.name = name


def _fits(function: FunctionProto, versions: Mapping[str, int]) -> bool:
    """Whether a function means operators of the versions that the model around it does."""
    return all(versions[_domain(entry)] == entry.version for entry in function.opset_import)
