"""The heads of multi-level rules: what they compute, of which types, and who found them. Their block graphs are not read.

A head is no part of what is trusted: it tells where a rule may match. What rests on the rule rests on the rule that is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL
from mugraph.blocks.text import tensors_from_json
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import walk
from mugraph.terms.text import TextError
from rules_db.exchange import FIELDS, read_fields
from rules_db.trust.interpreted import calls_one_kernel
from rules_db.trust.rule import Side

__all__ = ["KernelTypes", "RuleHead", "parse_head"]


@dataclass(frozen=True, slots=True)
class KernelTypes:
    """The element types of a kernel's tensors.

    Attributes:
        every: of all of them.
        outputs: of each output.
    """

    every: frozenset[DataType]
    outputs: tuple[DataType, ...]

    @staticmethod
    def of(kernel: Kernel) -> KernelTypes:
        every = frozenset(type_.dtype for type_ in kernel.tensors.values())
        return KernelTypes(every, tuple(tensor.type.dtype for tensor in kernel.outputs))


@dataclass(frozen=True, slots=True)
class RuleHead:
    """What a multi-level rule says before its block graphs are read: a place is looked for with it.

    Attributes:
        id: that its text claims.
        source, types, provenance: as of the rule.
        kernel: the element types of the kernel that its target is.
    """

    id: str
    source: Side
    types: Mapping[str, TensorType]
    kernel: KernelTypes
    provenance: Mapping[str, str]


def _kernel_types(text: str) -> KernelTypes:
    """The element types of a kernel of which nothing else is read. Raises TextError."""
    try:
        tensors = tensors_from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise TextError(f"a μGraph that cannot be read: {problem}") from None
    every = frozenset(tensor.type.dtype for kind in tensors.values() for tensor in kind)
    return KernelTypes(every, tuple(tensor.type.dtype for tensor in tensors["output"]))


_READERS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(FIELDS, str),
    **{name: FIELDS[name] for name in ("let", "source", "target", "from")},
    "kernel": _kernel_types,
}


def parse_head(block: str, file: str = "<text>", line: int = 1) -> RuleHead | None:
    """Reads the head of one block, which begins at that line of the file; ``None`` where its target is no kernel.

    Raises:
        RuleTextError: what is read of it cannot be.
    """
    _, identity, fields = read_fields(block, file, line, _READERS, has_kernel=False)
    source, target = cast(Side, fields["source"]), cast(Side, fields["target"])
    if "kernel" not in fields or not calls_one_kernel(target) or any(term.op == KERNEL for term in walk(source)):
        return None
    types, _ = cast(tuple[dict[str, TensorType], object], fields["let"])
    provenance = cast(dict[str, str], fields.get("from", {}))
    return RuleHead(identity, source, types, cast(KernelTypes, fields["kernel"]), provenance)
