"""What an assembler made of products of warpgroups, read again.

``wgmma.mma_async`` takes its left operand from registers where that is computed. ptxas before CUDA 13.3 may take those registers
for others while they are still needed: an operand that is made before a loop and read in each of its iterations is overwritten
in the first. So where a text has such an operand, it is looked for in the machine code.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["keeps_operands", "overwritten_operands"]

_INPUT_REGISTERS = 4
"""Of a product in machine code, whatever its element type."""

_PTX_JUMP = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")
_PTX_LABEL = re.compile(r"(\$\w+):")
_PTX_PRODUCT = re.compile(r"wgmma\.mma_async\S*\s+\{[^}]*\},\s*\{([^}]*)\}")
_PTX_WRITES = re.compile(r"(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(%\w+|\{[^}]*\})")
_PTX_FRESH = re.compile(r"ld|wgmma|mma|shfl|atom|red")
_PTX_REGISTER = re.compile(r"%\w+")

_JUMP = re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
_LABEL = re.compile(r"(\.\w+(?:\.\w+)*):")
_SECTION = ".text."
_INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_REGISTER = re.compile(r"R(\d+)")
_TRUTH_VALUES = re.compile(r"SETP|^FCHK\b")
"""Instructions that write predicates alone."""
_PRODUCT = re.compile(r"[A-Z]+GMMA\.64x(\d+)x")
_WIDTHS = (
    (re.compile(r"\.128\b|MT?88\.4\b|^[HI]MMA\b"), 4),
    (re.compile(r"\.64\b|\.WIDE\b|MT?88\.2\b|^CS2R$|^D[A-Z]+\b|\.F64\b"), 2),
)


def keeps_operands(ptx: str) -> bool:
    """Whether a loop of a text has a product whose left operand stands in registers and is the same in every iteration."""
    lines = [line.strip() for line in ptx.splitlines()]
    for first, last in _loops(lines, _PTX_LABEL, _PTX_JUMP):
        body = lines[first : last + 1]
        operands = [set(_PTX_REGISTER.findall(found[1])) for line in body if (found := _PTX_PRODUCT.match(line))]
        if operands and not all(map(_changing(body).intersection, operands)):
            return True
    return False


def _changing(lines: Sequence[str]) -> set[str]:
    """The registers that hold something else in each iteration of a loop: what is loaded in it, and what is computed of that."""
    writes = [(found[1], _PTX_REGISTER.findall(found[2]), line) for line in lines if (found := _PTX_WRITES.match(line))]
    changing = {register for name, targets, _ in writes if _PTX_FRESH.match(name) for register in targets}
    known = -1
    while len(changing) > known:
        known = len(changing)
        for _, targets, line in writes:
            if not changing.isdisjoint(_PTX_REGISTER.findall(line)):
                changing.update(targets)
    return changing


def overwritten_operands(image: bytes, disassembler: str) -> list[str]:
    """The functions of a cubin in which a loop overwrites the left operand of a product that it reads again.

    Args:
        disassembler: path of ``nvdisasm``.

    Raises:
        ValueError: it does not read the image.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        done = subprocess.run([disassembler, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"nvdisasm: {done.stderr.strip()}")
    return [name for name, lines in _functions(done.stdout) if _overwrites(lines)]


def _functions(text: str) -> Iterator[tuple[str, list[str]]]:
    """The functions of machine code as text, and their lines."""
    name, lines = "", list[str]()
    for line in map(str.strip, text.splitlines()):
        if line.startswith(_SECTION) and line.endswith(":"):
            if name:
                yield name, lines
            name, lines = line.removeprefix(_SECTION).removesuffix(":"), []
        elif _LABEL.match(line) or _INSTRUCTION.match(line):
            lines.append(line)
    if name:
        yield name, lines


def _loops(lines: Sequence[str], label: re.Pattern[str], jump: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The first and last lines of what is jumped back over."""
    places = {found[1]: number for number, line in enumerate(lines) if (found := label.match(line.strip()))}
    for number, line in enumerate(lines):
        found = jump.search(line)
        if found and places.get(found[1], number) < number:
            yield places[found[1]], number


def _overwrites(lines: Sequence[str]) -> bool:
    """Whether a loop has a product of whose left operand it writes a register from there on alone: in the next iteration it is
    another. What is written in front of the product under a condition may not be."""
    for first, last in _loops(lines, _LABEL, _JUMP):
        body = [found.groups() for line in lines[first : last + 1] if (found := _INSTRUCTION.match(line))]
        written = [_written(operation, operands) for _, operation, operands in body]
        surely = [frozenset() if condition else of_it for (condition, _, _), of_it in zip(body, written, strict=True)]
        for number, (_, operation, operands) in enumerate(body):
            operand = _left_operand(operation, operands)
            if operand & frozenset().union(*written[number:]) - frozenset().union(*surely[:number]):
                return True
    return False


def _left_operand(operation: str, operands: str) -> frozenset[int]:
    """The registers of a product's left operand; none where it stands in shared memory."""
    second = operands.split(",")[1:2]
    if not _PRODUCT.match(operation) or not (found := _REGISTER.fullmatch(second[0].strip().removesuffix(".reuse"))):
        return frozenset()
    return frozenset(range(int(found[1]), int(found[1]) + _INPUT_REGISTERS))


def _written(operation: str, operands: str) -> frozenset[int]:
    """The registers that an instruction writes."""
    targets = [] if _TRUTH_VALUES.search(operation) else [operand.strip() for operand in operands.split(",")]
    while targets and re.fullmatch(r"U?PT?\d*", targets[0]):
        targets = targets[1:]
    found = _REGISTER.fullmatch(targets[0]) if targets else None
    if found is None:
        return frozenset()
    if product := _PRODUCT.match(operation):
        width = int(product[1]) // (2 if ".F32" in operation or operation.startswith("I") else 4)
    else:
        width = next((width for pattern, width in _WIDTHS if pattern.search(operation)), 1)
    return frozenset(range(int(found[1]), int(found[1]) + width))
