"""A graph-defined kernel as an operator of the kernel graph (Mirage, OSDI'25, section 2).

A node of it names its kernel by digest. Typing, semantics and cost are those of the kernel's body, as of any composite. In a
file it is a node of a domain of its own that calls a model-local function: one op type, the digest as overload, the body in
plain ONNX as the function. Attributes of the node hold the μGraph as text and, once compiled, what a runtime launches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mugraph.blocks.block import InvalidBlock, Kernel, Schedule
from mugraph.blocks.text import kernel_from_json, kernel_to_json, schedule_from_json, schedule_to_json
from mugraph.ops.composite import define
from mugraph.ops.forms import AttrMap, Contract, ForeignNode, LocalFunction, NotUnderstood, OnnxForm, Reading, attributes_of
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, evaluate_dim, same_dim
from mugraph.terms.term import Term, substitute, var
from mugraph.terms.text import TextError

__all__ = ["DOMAIN", "MUGRAPH_FORMAT", "OP_TYPE", "Program", "attach", "intern_kernel", "kernel_of", "program_of"]

DOMAIN, OP_TYPE = "onnx.superopt", "Kernel"
MUGRAPH_FORMAT = 1
"""Version of the text in the ``mugraph`` attribute; a node of another one is read as opaque."""

_MOST_INPUTS = 64
_EVERY_TYPE = frozenset(DataType)
_RUN_ATTRIBUTES = ("version", "kernels", "plan", "images")


@dataclass(frozen=True)
class Program:
    """A kernel as a runtime launches it.

    Attributes:
        schedules: one a block graph.
        attributes: of the node: ``version``, ``kernels``, ``plan`` and ``images``.
    """

    schedules: tuple[Schedule, ...]
    attributes: Mapping[str, Any]


_KERNELS: dict[str, Kernel] = {}
_PROGRAMS: dict[str, Program] = {}


def intern_kernel(kernel: Kernel) -> str:
    """Enters a kernel under its digest, which is the attribute of its nodes; the first of a digest stays."""
    digest = kernel.digest.hex()
    _KERNELS.setdefault(digest, kernel)
    return digest


def kernel_of(digest: str) -> Kernel:
    """The kernel of a digest. Raises KeyError where none was entered."""
    if digest not in _KERNELS:
        raise KeyError(f"no kernel of digest {digest}")
    return _KERNELS[digest]


def attach(kernel: Kernel, program: Program) -> str:
    """Says how nodes of a kernel are launched, from now on; the kernel's digest."""
    digest = intern_kernel(kernel)
    _PROGRAMS[digest] = program
    return digest


def program_of(digest: str) -> Program | None:
    """How nodes of a kernel are launched, or ``None`` where it has not been compiled."""
    return _PROGRAMS.get(digest)


def _bound(kernel: Kernel, types: Sequence[TensorType]) -> dict[str, Any]:
    """The kernel's symbols by the operands' dimensions."""
    pairs = zip(kernel.inputs, types, strict=False)
    return solve((e for tensor, type_ in pairs for e in equations(tensor.type.shape, type_.shape)), {})


def _decompose(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    kernel = kernel_of(attrs["digest"])
    operands = {tensor.name: var(f"x{i}") for i, tensor in enumerate(kernel.inputs)}
    return tuple(substitute(term, operands, dims=_bound(kernel, types)) for term in kernel.body)


def _check(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    kernel = kernel_of(attrs["digest"])
    if len(types) != len(kernel.inputs):
        raise ShapeError(f"kernel {kernel.name} of {len(types)} operands, not {len(kernel.inputs)}")
    bound = _bound(kernel, types)
    for tensor, type_ in zip(kernel.inputs, types, strict=True):
        if type_.dtype != tensor.type.dtype or type_.rank != tensor.type.rank:
            raise ShapeError(f"kernel {kernel.name} takes {tensor.name}: {tensor.type}, not {type_}")
        for own, given in zip(tensor.type.shape, type_.shape, strict=True):
            same = same_dim(evaluate_dim(own, bound), given)
            if same is None:
                raise Undecided(f"whether {given} is {own} of kernel {kernel.name}")
            if not same:
                raise ShapeError(f"kernel {kernel.name} takes {tensor.name}: {tensor.type}, not {type_}")


def _read(node: ForeignNode) -> Reading:
    given = attributes_of(node, mugraph=None, **dict.fromkeys(_RUN_ATTRIBUTES))
    if given["mugraph"] is None:
        raise NotUnderstood("a kernel without its μGraph")
    try:
        text = json.loads(given["mugraph"])
        if not isinstance(text, dict) or text.get("format") != MUGRAPH_FORMAT:
            raise NotUnderstood(f"a μGraph that is not of format {MUGRAPH_FORMAT}")
        kernel = kernel_from_json(text["kernel"])
        kernel.check()
        schedules = tuple(map(schedule_from_json, text["schedules"]))
    except (ValueError, KeyError, TypeError, TextError, InvalidBlock) as problem:
        raise NotUnderstood(f"a μGraph that cannot be read: {problem}") from None
    if len(node.types) != len(kernel.inputs) or node.output_count > len(kernel.outputs):
        raise NotUnderstood(f"a μGraph of {len(kernel.inputs)} inputs and {len(kernel.outputs)} outputs")
    digest = intern_kernel(kernel)
    if digest not in _PROGRAMS and all(given[name] is not None for name in _RUN_ATTRIBUTES):
        attach(kernel, Program(schedules, {name: given[name] for name in _RUN_ATTRIBUTES}))
    return Reading({"digest": digest}, tuple(range(len(node.types))))


def _write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    digest = attrs["digest"]
    kernel, program = kernel_of(digest), program_of(digest)
    schedules = [schedule_to_json(s) for s in program.schedules] if program is not None else []
    text = {"format": MUGRAPH_FORMAT, "kernel": kernel_to_json(kernel), "schedules": schedules}
    attributes = {"mugraph": json.dumps(text, separators=(",", ":")), **(program.attributes if program is not None else {})}
    return OnnxForm(OP_TYPE, tuple(range(len(types))), attributes, DOMAIN, function=_function(digest))


@lru_cache(maxsize=256)
def _function(digest: str) -> LocalFunction:
    """The kernel's body over its own types and symbols: sizes are asked of the inputs at run time."""
    types = tuple(tensor.type for tensor in kernel_of(digest).inputs)
    return LocalFunction(DOMAIN, OP_TYPE, digest, ("mugraph", *_RUN_ATTRIBUTES), types, _decompose({"digest": digest}, types))


define(
    "Kernel",
    (1, _MOST_INPUTS),
    _decompose,
    read=_read,
    write=_write,
    check=_check,
    contract=Contract(OP_TYPE, DOMAIN, frozenset({"mugraph", *_RUN_ATTRIBUTES}), (_EVERY_TYPE,) * _MOST_INPUTS),
    ranks=lambda attrs, count: [tensor.type.rank for tensor in kernel_of(attrs["digest"]).inputs],
)
