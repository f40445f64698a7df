"""Protocol-buffer wire format, as far as it takes to leave weights in the file they came in.

A model's inline weights are most of its bytes. Reading skips over them and remembers where they lie; writing streams them
from there. Nothing else is interpreted: unknown fields pass through as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Buffer", "Damaged", "Field", "delimited", "encode_varint", "fields", "key"]


class Buffer(Protocol):
    """``bytes`` or a memory map."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> bytes: ...


class Damaged(ValueError):
    """The bytes are no protocol-buffer message; the message says where."""


VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its number, where its key starts, where its payload lies."""

    number: int
    wire: int
    start: int
    payload: int
    end: int


def _decode_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for byte in buffer[position : min(position + 10, end)]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Damaged(f"cut off at byte {position}")


def fields(buffer: Buffer, start: int, end: int) -> Iterator[Field]:
    """The fields of the message in ``buffer[start:end]``, in order.

    Raises:
        Damaged: the bytes end inside a field, or a field has a type that does not exist.
    """
    position = start
    while position < end:
        tag, payload = _decode_varint(buffer, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == DELIMITED:
            length, payload = _decode_varint(buffer, payload, end)
            stop = payload + length
        elif wire == VARINT:
            _, stop = _decode_varint(buffer, payload, end)
        elif wire in _WIDTHS:
            stop = payload + _WIDTHS[wire]
        else:
            raise Damaged(f"no field can begin at byte {position}")
        if number == 0 or stop > end:
            raise Damaged(f"cut off or damaged at byte {position}")
        yield Field(number, wire, position, payload, stop)
        position = stop


def encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def key(number: int, length: int) -> bytes:
    """The bytes that stand before a length-delimited payload of ``length`` bytes."""
    return encode_varint(number << 3 | DELIMITED) + encode_varint(length)


def delimited(number: int, parts: Sequence[bytes]) -> bytes:
    """A length-delimited field whose payload is the concatenation of ``parts``."""
    payload = b"".join(parts)
    return key(number, len(payload)) + payload
