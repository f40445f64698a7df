"""Compiled kernels of a file, rebuilt from the μGraphs that stand beside them and compared byte by byte.

A node is what it says if three things are so: its plan and its images are those that the generator and the compiler here make of
its μGraph, its tables are those of its masks, and the function by which it runs elsewhere is the body of that μGraph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN, CompiledKernel, compiled_kernel, kernel_form, kernel_of
from mugraph.onnx.calls import called_name, functions_of
from mugraph.onnx.foreign import ProtoNode
from mugraph.onnx.function import function_of
from mugraph.onnx.parse import opset_of, parse
from mugraph.onnx.scopes import nested_nodes, nested_tensors
from mugraph.onnx.weights import Weights
from mugraph.ops import NotExpressible, NotUnderstood, get_operator
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.objects import FEATURES, ObjectCompiler
from rewriter.kernels.programs import Scheduled, compile_kernels, compile_on_cpu
from rewriter.kernels.triton.compile import Compiler, compiler_is_here
from rewriter.runtime.plan import unpack_images, unpack_objects
from rewriter.runtime_env import c_compiler_version

__all__ = ["Compilers", "Rebuilding", "VerifiedKernel", "verify"]


class Rebuilding(Enum):
    """What came of rebuilding a kernel."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "other compiler"


@dataclass(frozen=True, slots=True)
class VerifiedKernel:
    """A kernel of a file, its verdict and the reason.

    Attributes:
        nodes: how many hold it, byte by byte alike.
        targets: what it was compiled for.
    """

    label: str
    nodes: int
    targets: tuple[str, ...]
    verdict: Rebuilding
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Compilers:
    """Of Triton source, and of C."""

    triton: Compiler
    objects: ObjectCompiler


_Build = Callable[[Sequence[Scheduled]], tuple[dict[Kernel, CompiledKernel], dict[Kernel, str]]]


class _Tensors:
    """The initializers of a model by name; those of a name that several have are none."""

    def __init__(self, weights: Weights, proto: ModelProto) -> None:
        self._weights = weights
        self._named: dict[str, list[TensorProto]] = {}
        for tensor in (*proto.graph.initializer, *nested_tensors(proto)):
            self._named.setdefault(tensor.name, []).append(tensor)

    def __call__(self, name: str) -> np.ndarray | None:
        found = self._named.get(name, [])
        return self._weights.array(found[0]) if len(found) == 1 else None


def verify(path: Path, compilers: Compilers) -> list[VerifiedKernel]:
    """Rebuilds the compiled kernels of a model's file, wherever in it they are.

    Args:
        compilers: such that keep nothing from before, so that what they say was made now.

    Raises:
        ModelError: the file cannot be read.
    """
    weights, proto = parse(path)
    opset, tensors = opset_of(proto, str(path)), _Tensors(weights, proto)
    functions = functions_of(proto)
    alike: dict[bytes, list[NodeProto]] = {}
    for node in nested_nodes(proto):
        if node.domain == KERNEL_DOMAIN and any(attribute.name == "images" for attribute in node.attribute):
            bare = NodeProto(op_type=node.op_type, overload=node.overload, attribute=node.attribute)
            alike.setdefault(bare.SerializeToString(deterministic=True), []).append(node)
    verified = []
    for nodes in alike.values():
        function = functions.get(called_name(nodes[0]))
        verified.append(_verified(nodes, function, opset, tensors, compilers))
    return verified


def _verified(
    nodes: Sequence[NodeProto], function: FunctionProto | None, opset: int, tensors: _Tensors, compilers: Compilers
) -> VerifiedKernel:
    """The verdict on nodes that differ in their inputs alone."""
    node, targets = nodes[0], tuple[str, ...]()
    label = f"kernel {node.overload[:16]}"

    def verdict(verdict: Rebuilding, reason: str = "") -> VerifiedKernel:
        return VerifiedKernel(label, len(nodes), targets, verdict, reason)

    try:
        for node in nodes:
            foreign = ProtoNode(node, 1, [None] * len(node.input), partial(_input, node, tensors))
            kernel = kernel_of(get_operator(KERNEL).read(foreign).attrs)
        label = f"kernel {kernel.label}"
        program = compiled_kernel(foreign)
        if program is None:
            return verdict(Rebuilding.DIFFERENT, "it does not say all that a runtime needs")
        build, targets = _builder(program, compilers)
    except (NotUnderstood, ValueError) as problem:
        return verdict(Rebuilding.DIFFERENT, f"it cannot be read: {problem}")
    if foreign_body := _body_problem(kernel, program, node, function, opset):
        return verdict(Rebuilding.DIFFERENT, foreign_body)
    if obstacle := _obstacle(program):
        return verdict(Rebuilding.UNKNOWN, obstacle)
    programs, problems = build([Scheduled(kernel, program.variants)])
    if kernel not in programs:
        return verdict(Rebuilding.UNKNOWN, problems[kernel])
    rebuilt = programs[kernel].attributes
    made, here = program.attributes.get("compiler"), rebuilt["compiler"]
    differing = [name for name in rebuilt if name != "compiler" and not np.array_equal(program.attributes[name], rebuilt[name])]
    if not differing:
        return verdict(Rebuilding.EQUAL)
    if made == here:
        return verdict(Rebuilding.DIFFERENT, f"its {' and '.join(differing)} are not what {here} gives")
    return verdict(Rebuilding.UNKNOWN, f"made by {made or 'what the file does not tell'}; here is {here}")


def _input(node: NodeProto, tensors: _Tensors, index: int) -> np.ndarray | None:
    return tensors(node.input[index])


def _builder(program: CompiledKernel, compilers: Compilers) -> tuple[_Build, tuple[str, ...]]:
    """What compiles a kernel for all that a program was compiled for, and for what. Raises ValueError for unreadable images."""
    images = np.asarray(program.attributes["images"])
    if program.on_cpu:
        named = {features: name for name, features in FEATURES.items()}
        levels = tuple(dict.fromkeys(named.get(image.features, "") for image in unpack_objects(images)))
        if "" in levels:
            raise ValueError("an object for processors of which nothing is known")
        return partial(compile_on_cpu, compiler=compilers.objects, levels=[LEVELS[name] for name in levels]), levels
    kernels = len(str(program.attributes["kernels"]).splitlines())
    architectures = tuple(dict.fromkeys(Architecture(i.architecture, i.is_ptx) for i in unpack_images(images, kernels)))
    build = partial(compile_kernels, compiler=compilers.triton, architectures=architectures)
    return build, tuple(map(str, architectures))


def _obstacle(program: CompiledKernel) -> str:
    """Why nothing can be compiled here; empty where it can."""
    if program.on_cpu:
        return "" if c_compiler_version() else "there is no C compiler here"
    return "" if compiler_is_here() else "Triton is not installed here"


def _body_problem(kernel: Kernel, program: CompiledKernel, node: NodeProto, function: FunctionProto | None, opset: int) -> str:
    """What is wrong with the function by which a node runs elsewhere; empty where it is the kernel's body."""
    wanted = kernel_form(kernel, program).function
    assert wanted is not None
    if function is None or wanted.overload != node.overload:
        return "it calls another function than that of its body"
    try:
        body = function_of(wanted, opset)
    except NotExpressible as problem:
        return f"its body cannot be written: {problem}"
    same = body.SerializeToString(deterministic=True) == function.SerializeToString(deterministic=True)
    return "" if same else "the function by which it runs elsewhere is not its body"
