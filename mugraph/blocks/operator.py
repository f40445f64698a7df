"""A graph-defined kernel as an operator of the kernel graph (Mirage, OSDI'25, section 2).

The one attribute of a node is its kernel, which text names by digest. Typing, semantics and cost are those of the kernel's
body, as of any composite. In a file it is a node of a domain of its own that calls a model-local function: one op type, the
digest as overload, the body in plain ONNX as the function. Attributes of that node hold the μGraph as text and, where the kernel
was compiled, what a runtime launches; a kernel that was compiled for processors has an op type of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.mask_lists import mask_tables
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import kernel_from_json, kernel_to_json, variants_from_json, variants_to_json
from mugraph.blocks.validity import check_kernel
from mugraph.blocks.variants import Variants, check_variants
from mugraph.ops.composite import define
from mugraph.ops.forms import AttrMap, Contract, ForeignNode, LocalFunction, NotUnderstood, OnnxForm, Reading, attributes_of
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, evaluate_dim, same_dim
from mugraph.terms.term import Attrs, Term, make, substitute, var
from mugraph.terms.text import TextError

__all__ = [
    "CPU_KERNEL",
    "KERNEL",
    "KERNEL_DOMAIN",
    "MUGRAPH_FORMAT",
    "VARIANTS_FORMAT",
    "CompiledKernel",
    "Programs",
    "compiled_kernel",
    "kernel_attrs",
    "kernel_form",
    "kernel_of",
    "kernel_terms",
]

KERNEL_DOMAIN, KERNEL, CPU_KERNEL = "onnx.superopt", "Kernel", "CpuKernel"
MUGRAPH_FORMAT, VARIANTS_FORMAT = 1, 2
"""Versions of the text in the ``mugraph`` attribute, for one variant and for several; a node of another one is read as opaque."""

_MOST_INPUTS = 1 << 10
_EVERY_TYPE = frozenset(DataType)
_RUN_ATTRIBUTES = ("version", "kernels", "plan", "images")
_ALL_ATTRIBUTES = ("mugraph", *_RUN_ATTRIBUTES, "compiler")


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as a runtime launches it.

    Attributes:
        variants: under which it was compiled.
        attributes: of the node: ``version``, ``kernels``, ``plan``, ``images``, and ``compiler``, what made the images, in words.
        tables: of stored masks, for one variant after the other: further inputs of the node, which are constants.
        on_cpu: it is launched on a processor.
    """

    variants: Variants
    attributes: Mapping[str, Any]
    tables: tuple[np.ndarray, ...] = ()
    on_cpu: bool = False

    @property
    def op_type(self) -> str:
        """Of the node."""
        return CPU_KERNEL if self.on_cpu else KERNEL


Programs = Mapping[Kernel, CompiledKernel]
"""How the nodes of kernels are launched; those of others run through their body."""


def kernel_attrs(kernel: Kernel) -> Attrs:
    """The attributes of a kernel's nodes."""
    return (("digest", kernel),)


def kernel_of(attrs: AttrMap | Attrs) -> Kernel:
    """The kernel of a node with these attributes. Raises KeyError where they only name one, as a term read from text does."""
    kernel = dict(attrs)["digest"]
    if not isinstance(kernel, Kernel):
        raise KeyError(f"no kernel of digest {kernel}")
    return kernel


def kernel_terms(kernel: Kernel) -> tuple[Term, ...]:
    """A kernel applied to variables named as its inputs: one term an output."""
    operands = [var(tensor.name) for tensor in kernel.inputs]
    return tuple(make(KERNEL, operands, kernel_attrs(kernel), i) for i in range(len(kernel.outputs)))


def _bound(kernel: Kernel, types: Sequence[TensorType]) -> dict[str, Any]:
    """The kernel's symbols by the operands' dimensions."""
    pairs = zip(kernel.inputs, types, strict=False)
    return solve((e for tensor, type_ in pairs for e in equations(tensor.type.shape, type_.shape)), {})


def _decompose(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    kernel = kernel_of(attrs)
    operands = {tensor.name: var(f"x{i}") for i, tensor in enumerate(kernel.inputs)}
    return tuple(substitute(term, operands, dims=_bound(kernel, types)) for term in kernel.body)


def _check(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    kernel = kernel_of(attrs)
    if len(types) != len(kernel.inputs):
        raise ShapeError(f"kernel {kernel.name} of {len(types)} operands, not {len(kernel.inputs)}")
    sizes = _bound(kernel, types)
    for tensor, type_ in zip(kernel.inputs, types, strict=True):
        if type_.dtype != tensor.type.dtype or type_.rank != tensor.type.rank:
            raise ShapeError(f"kernel {kernel.name} takes {tensor.name}: {tensor.type}, not {type_}")
        for dim, size in zip(tensor.type.shape, type_.shape, strict=True):
            same = same_dim(evaluate_dim(dim, sizes), size)
            if same is None:
                raise Undecided(f"whether {size} is {dim} of kernel {kernel.name}")
            if not same:
                raise ShapeError(f"kernel {kernel.name} takes {tensor.name}: {tensor.type}, not {type_}")


def _mugraph(node: ForeignNode) -> tuple[Kernel, Variants]:
    """The kernel and the variants that a node's text holds. Raises NotUnderstood."""
    content = attributes_of(node, **dict.fromkeys(_ALL_ATTRIBUTES))["mugraph"]
    if content is None:
        raise NotUnderstood("a kernel without its μGraph")
    try:
        text = json.loads(content)
        if not isinstance(text, dict) or text.get("format") not in (MUGRAPH_FORMAT, VARIANTS_FORMAT):
            raise NotUnderstood(f"a μGraph that is not of format {MUGRAPH_FORMAT} or {VARIANTS_FORMAT}")
        kernel = kernel_from_json(text["kernel"])
        check_kernel(kernel)
        variants = variants_from_json(text)
        if variants.schedules != ((),):
            check_variants(kernel, variants)
        return kernel, variants
    except (ValueError, KeyError, TypeError, TextError, InvalidBlock, RecursionError) as problem:
        raise NotUnderstood(f"a μGraph that cannot be read: {problem}") from None


def compiled_kernel(node: ForeignNode) -> CompiledKernel | None:
    """How a node says that its kernel is launched; ``None`` where it does not. Raises NotUnderstood as reading it does."""
    attributes = attributes_of(node, **dict.fromkeys(_ALL_ATTRIBUTES))
    if any(attributes[name] is None for name in _RUN_ATTRIBUTES):
        return None
    kernel, variants = _mugraph(node)
    launching = {name: value for name, value in attributes.items() if name != "mugraph" and value is not None}
    return CompiledKernel(variants, launching, _tables(kernel, variants), node.op_type == CPU_KERNEL)


def _read(node: ForeignNode) -> Reading:
    kernel, variants = _mugraph(node)
    count = len(kernel.inputs)
    is_compiled = all(name in node.attributes for name in _RUN_ATTRIBUTES)
    tables = _tables(kernel, variants) if is_compiled else ()
    if len(node.types) != count + len(tables) or node.output_count > len(kernel.outputs):
        raise NotUnderstood(f"a μGraph of {count} inputs, {len(tables)} tables and {len(kernel.outputs)} outputs")
    for index, table in enumerate(tables, start=count):
        stored = node.constant(index)
        if stored is None or stored.dtype != table.dtype or not np.array_equal(stored, table):
            raise NotUnderstood(f"input {index} of kernel {kernel.name} is not the table of its mask")
    return Reading(dict(kernel_attrs(kernel)), tuple(range(count)))


def _tables(kernel: Kernel, variants: Variants) -> tuple[np.ndarray, ...]:
    """The tables of all variants. Raises NotUnderstood where a schedule does not say which."""
    try:
        return tuple(table for schedules in variants.schedules for table in mask_tables(kernel, schedules))
    except (InvalidBlock, ValueError) as problem:
        raise NotUnderstood(f"a kernel whose masks have no tables: {problem}") from None


def kernel_form(kernel: Kernel, compiled: CompiledKernel | None) -> OnnxForm:
    """The ONNX node of a kernel, launched as ``compiled`` says; without that its body runs."""
    variants = compiled.variants if compiled is not None else Variants.one(())
    version = MUGRAPH_FORMAT if len(variants.schedules) == 1 else VARIANTS_FORMAT
    text = {"format": version, "kernel": kernel_to_json(kernel), **variants_to_json(variants)}
    attributes = {"mugraph": json.dumps(text, separators=(",", ":")), **(compiled.attributes if compiled is not None else {})}
    tables = compiled.tables if compiled is not None else ()
    op_type = compiled.op_type if compiled is not None else KERNEL
    further = tuple(TensorType(DataType.from_numpy(table.dtype), table.shape) for table in tables)
    function = _function(kernel, op_type, further)
    return OnnxForm(op_type, (*range(len(kernel.inputs)), *tables), attributes, KERNEL_DOMAIN, function=function)


@lru_cache(maxsize=256)
def _function(kernel: Kernel, op_type: str, further: tuple[TensorType, ...]) -> LocalFunction:
    """The kernel's body over its own types and symbols: sizes are asked of the inputs at run time. It reads no further inputs."""
    types = tuple(tensor.type for tensor in kernel.inputs)
    body = _decompose(dict(kernel_attrs(kernel)), types)
    return LocalFunction(KERNEL_DOMAIN, op_type, kernel.text_name, _ALL_ATTRIBUTES, (*types, *further), body)


define(
    KERNEL,
    (1, _MOST_INPUTS),
    _decompose,
    read=_read,
    write=lambda attrs, types, opset: kernel_form(kernel_of(attrs), None),
    check=_check,
    contract=Contract(KERNEL, KERNEL_DOMAIN, frozenset(_ALL_ATTRIBUTES), (_EVERY_TYPE,) * _MOST_INPUTS, (CPU_KERNEL,)),
    ranks=lambda attrs, count: [tensor.type.rank for tensor in kernel_of(attrs).inputs],
)
