"""TASO's substitution files: protobuf records of operators, parameters and edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from mugraph.onnx.wire import DELIMITED, VARINT, Damaged, Field, fields
from rules_db.files import StoreError

__all__ = ["Parameter", "Place", "TasoGraph", "TasoKind", "TasoNode", "TasoRule", "decode", "describe", "read_taso"]


class TasoKind(IntEnum):
    """Operator types."""

    INPUT = 0
    WEIGHT = 1
    ANY = 2
    CONV2D = 3
    DROPOUT = 4
    LINEAR = 5
    POOL2D_MAX = 6
    POOL2D_AVG = 7
    RELU = 8
    SIGMOID = 9
    TANH = 10
    BATCHNORM = 11
    CONCAT = 12
    SPLIT = 13
    RESHAPE = 14
    TRANSPOSE = 15
    EW_ADD = 16
    EW_MUL = 17
    MATMUL = 18
    MUL = 19
    ENLARGE = 20
    MERGE_GCONV = 21
    CONSTANT_IMM = 22
    CONSTANT_ICONV = 23
    CONSTANT_ONE = 24
    CONSTANT_POOL = 25


class Parameter(IntEnum):
    """Keys of parameters."""

    OP_TYPE = 0
    NUM_INPUTS = 1
    NUM_OUTPUTS = 2
    GROUP = 3
    KERNEL_H = 4
    KERNEL_W = 5
    STRIDE_H = 6
    STRIDE_W = 7
    PAD = 8
    ACTI = 9
    NUMDIM = 10
    AXIS = 11
    PERM = 12
    OUTSHUFFLE = 13
    MERGE_GCONV_COUNT = 14


Place = tuple[int, int]
"""An operator and one of its outputs; a negative operator is an input variable."""


@dataclass(frozen=True)
class TasoNode:
    """An operator of a file."""

    kind: TasoKind
    inputs: tuple[Place, ...]
    parameters: Mapping[int, int]


TasoGraph = tuple[TasoNode, ...]
"""Operators, operands before their users."""


@dataclass(frozen=True)
class TasoRule:
    """A substitution of a file: two graphs and which output of the one is which of the other."""

    source: TasoGraph
    target: TasoGraph
    outputs: tuple[tuple[Place, Place], ...]


# Wire format


def _signed(value: int) -> int:
    """An int32 as the wire has it: the low 32 bits, two's complement."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _number(data: bytes, field_: Field) -> int:
    """A field that holds a number."""
    if field_.wire != VARINT:
        raise Damaged(f"a message instead of a number at byte {field_.start}")
    value = shift = 0
    for byte in data[field_.payload : field_.end]:
        value |= (byte & 0x7F) << shift
        shift += 7
    return _signed(value)


def _message(data: bytes, span: tuple[int, int], is_message: Mapping[int, bool]) -> dict[int, list[Any]]:
    """The fields of a message: numbers, or (start, end) of the messages inside where ``is_message`` says so."""
    contents: dict[int, list[Any]] = {number: [] for number in is_message}
    for part in fields(data, *span):
        if part.number not in is_message:
            raise Damaged(f"a field {part.number} at byte {part.start}, which the format does not have")
        if not is_message[part.number]:
            contents[part.number].append(_number(data, part))
        elif part.wire == DELIMITED:
            contents[part.number].append((part.payload, part.end))
        else:
            raise Damaged(f"a number instead of a message at byte {part.start}")
    return contents


def _record(data: bytes, span: tuple[int, int], size: int) -> list[int]:
    """A message of ``size`` numbers, zero where they are left out."""
    numbers = _message(data, span, {number: False for number in range(1, size + 1)})
    return [numbers[number][-1] if numbers[number] else 0 for number in range(1, size + 1)]


def _operator(data: bytes, span: tuple[int, int]) -> TasoNode:
    """A message that holds an operator."""
    contents = _message(data, span, {1: False, 2: True, 3: True})
    kind = contents[1][-1] if contents[1] else 0
    if kind not in TasoKind._value2member_map_:
        raise Damaged(f"an operator of type {kind} at byte {span[0]}; the last known is {max(TasoKind)}")
    inputs = tuple((op, out if op >= 0 else 0) for op, out in (_record(data, part, 2) for part in contents[2]))
    return TasoNode(TasoKind(kind), inputs, {key: value for key, value in (_record(data, part, 2) for part in contents[3])})


def _check_places(rule: TasoRule, number: int) -> None:
    """Raises Damaged where operators or outputs name operators that are not there."""
    for graph in (rule.source, rule.target):
        for position, node in enumerate(graph):
            if any(op >= position for op, _ in node.inputs):
                raise Damaged(f"rule {number}: operator {position} takes an operand that does not come before it")
    for source, target in rule.outputs:
        if source[0] >= len(rule.source) or target[0] >= len(rule.target):
            raise Damaged(f"rule {number}: an output of an operator that it does not have")


def decode(data: bytes) -> list[TasoRule]:
    """The rules of a serialised collection. Raises :class:`mugraph.onnx.wire.Damaged` where it is none."""
    rules = []
    for number, span in enumerate(_message(data, (0, len(data)), {1: True})[1]):
        contents = _message(data, span, {1: True, 2: True, 3: True})
        maps = [_record(data, part, 4) for part in contents[3]]
        outputs = tuple(((s, st if s >= 0 else 0), (d, dt if d >= 0 else 0)) for s, d, st, dt in maps)
        graphs = [tuple(_operator(data, part) for part in contents[side]) for side in (1, 2)]
        rules.append(TasoRule(graphs[0], graphs[1], outputs))
        _check_places(rules[-1], number)
        if not outputs:
            raise Damaged(f"rule {number} maps no output")
    if not rules:
        raise Damaged("it holds no rules")
    return rules


def read_taso(path: Path) -> list[TasoRule]:
    """Reads a file. Raises :class:`rules_db.files.StoreError`, one line, where that fails."""
    try:
        return decode(path.read_bytes())
    except OSError as problem:
        raise StoreError(f"{path}: cannot be read ({problem.strerror}); give a file of TASO's or a .rules file") from None
    except Damaged as problem:
        raise StoreError(
            f"{path}: no complete file of TASO's substitutions ({problem}); give one that TASO's generator wrote, "
            "or a .rules file"
        ) from None


def describe(graph: TasoGraph) -> str:
    """A graph as the file has it, operator by operator."""
    return "; ".join(
        f"{position}: {node.kind.name}({', '.join(f'x{-op}' if op < 0 else f'{op}.{out}' for op, out in node.inputs)})"
        for position, node in enumerate(graph)
    )
