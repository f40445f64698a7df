"""What an assembler made of products of warpgroups, read again.

``wgmma.mma_async`` takes its left operand from registers where that is computed. ptxas before CUDA 13.3 may take those registers
for others while they are still needed: an operand that is made before a loop and read in each of its iterations is overwritten
in the first. So where a function of a text has such an operand, it is looked for in its machine code. What is loaded ahead for
the next iteration is written from the product on, too, and rightly so: functions that have no other operands are not looked at;
in others it is refused like what is wrong, for the assembler's order of products is its own. So is what is not understood.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["kept_operands", "overwritten_operands"]

_INPUT_REGISTERS = 4
"""Of a product in machine code, whatever its element type."""

_PTX_JUMP = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")
_PTX_LABEL = re.compile(r"(\$\w+):")
_PTX_PRODUCT = re.compile(r"wgmma\.mma_async\S*\s+\{[^}]*\},\s*\{([^}]*)\}")
_PTX_FUNCTION = re.compile(r"(?:\.\w+\s+)*\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)")
_PTX_WRITES = re.compile(r"(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(%\w+|\{[^}]*\})")
_PTX_FRESH = re.compile(r"ld|wgmma|mma|shfl|atom|red")
_PTX_REGISTER = re.compile(r"%\w+")

_JUMP = re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
_OTHER_JUMP = re.compile(r"(?:BRA|BRX|JMP|JMX|CALL)\b")
"""Of which a loop may be made that is not seen."""
_LABEL = re.compile(r"(\.\w+(?:\.\w+)*):")
_SECTION = ".text."
_INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_REGISTER = re.compile(r"R(\d+)")
_OTHER_REGISTER = re.compile(r"[%$]?[Rr](?!Z\b)")
"""What is a register in a way of writing that is not known."""
_DIRECTIVE = re.compile(r"$|//|\.(?!L)|/\*\s*0x[0-9a-f]+\s*\*/$|\w+:$|[{}]")
"""Lines of a listing that are no instruction."""
_TRUTH_VALUES = re.compile(r"SETP|^FCHK\b")
"""Instructions that write predicates alone."""
_PRODUCT = re.compile(r"[A-Z]+GMMA\.64x(\d+)x")
_DESCRIPTOR = re.compile(r"g?desc\[.*")
_WIDTHS = (
    (re.compile(r"\.128\b|MT?88\.4\b|^[HI]MMA\b"), 4),
    (re.compile(r"\.64\b|\.WIDE\b|MT?88\.2\b|^CS2R$|^D[A-Z]+\b|\.F64\b"), 2),
)


def kept_operands(ptx: str) -> list[str]:
    """The functions of a text in which a loop has a product and registers of its left operand are the same in every iteration."""
    return [name for name, lines in _ptx_functions(ptx) if _keeps(lines)]


def _keeps(lines: Sequence[str]) -> bool:
    """Whether a loop of a function does."""
    for first, last in _loops(lines, _PTX_LABEL, _PTX_JUMP):
        body = lines[first : last + 1]
        operands = [_PTX_REGISTER.findall(found[1]) for line in body if (found := _PTX_PRODUCT.match(line))]
        if operands and not all(map(_changing(body).issuperset, operands)):
            return True
    return False


def _ptx_functions(ptx: str) -> Iterator[tuple[str, list[str]]]:
    """The functions of a text, and their lines."""
    name, lines = "", list[str]()
    for line in map(str.strip, ptx.splitlines()):
        if found := _PTX_FUNCTION.match(line):
            yield name, lines
            name, lines = found[1], []
        lines.append(line)
    yield name, lines


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


def overwritten_operands(image: bytes, kept: Sequence[str], disassembler: str) -> list[str]:
    """The functions of a cubin in which a loop overwrites the left operand of a product that it reads again.

    Args:
        kept: the functions to look at, as :func:`kept_operands` gives them.
        disassembler: path of ``nvdisasm``.

    Raises:
        ValueError: it does not read the image, or what it writes is not understood.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        done = subprocess.run([disassembler, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"nvdisasm: {done.stderr.strip()}")
    functions = dict(_functions(done.stdout))
    if missing := [name for name in kept if name not in functions]:
        raise _not_understood(f"function {missing[0]} is not in it")
    return [name for name in kept if _overwrites(_understood(functions[name]))]


def _not_understood(reason: str) -> ValueError:
    """The error to be raised where machine code cannot be read: what it does with operands is not known."""
    return ValueError(f"the machine code cannot be read again, which products that keep operands in a loop need: {reason}")


def _functions(text: str) -> Iterator[tuple[str, list[str]]]:
    """The functions of machine code as text, and their lines."""
    name, lines = "", list[str]()
    for line in map(str.strip, text.splitlines()):
        if line.startswith(_SECTION) and line.endswith(":"):
            if name:
                yield name, lines
            name, lines = line.removeprefix(_SECTION).removesuffix(":"), []
        elif line.startswith(".section"):
            if name:
                yield name, lines
            name, lines = "", []
        else:
            lines.append(line)
    if name:
        yield name, lines


def _understood(lines: Sequence[str]) -> list[str]:
    """The labels and instructions among a function's lines. Raises ValueError where a line is neither, nor known otherwise."""
    told: list[str] = []
    for line in lines:
        if _LABEL.match(line):
            told.append(line)
        elif found := _INSTRUCTION.match(line):
            if _OTHER_JUMP.match(found[2]) and not _JUMP.search(line):
                raise _not_understood(f"where {line!r} goes is not told")
            told.append(line)
        elif not _DIRECTIVE.match(line):
            raise _not_understood(f"{line!r} is no instruction")
    return told


def _loops(lines: Sequence[str], label: re.Pattern[str], jump: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The first and last lines of what is jumped back over."""
    places = {found[1]: number for number, line in enumerate(lines) if (found := label.match(line.strip()))}
    for number, line in enumerate(lines):
        found = jump.search(line)
        if found and places.get(found[1], number) < number:
            yield places[found[1]], number


def _overwrites(lines: Sequence[str]) -> bool:
    """Whether a loop has a product of whose left operand it writes a register from there on alone: in the next iteration it is
    another. What is written in front of the product under a condition may not be.

    Raises ValueError where the function has no such product.
    """
    code = [found.groups() if (found := _INSTRUCTION.match(line)) else ("", "", "") for line in lines]
    read = [_left_operand(operation, operands) for _, operation, operands in code]
    if not any(read):
        raise _not_understood("no product of registers is in it")
    written = [_written(operation, operands) for _, operation, operands in code]
    surely = [frozenset() if condition else of_it for (condition, _, _), of_it in zip(code, written, strict=True)]
    for first, last in _loops(lines, _LABEL, _JUMP):
        for number in range(first, last + 1):
            if not read[number]:
                continue
            if read[number] & frozenset().union(*written[number : last + 1]) - frozenset().union(*surely[first:number]):
                return True
    return False


def _left_operand(operation: str, operands: str) -> frozenset[int]:
    """The registers of a product's left operand; none where it is in shared memory. Raises ValueError where that is unknown."""
    if not _PRODUCT.match(operation):
        if "GMMA" in operation:
            raise _not_understood(f"{operation} is no product that is known")
        return frozenset()
    second = operands.split(",")[1:2]
    operand = second[0].strip().removesuffix(".reuse") if second else ""
    if found := _REGISTER.fullmatch(operand):
        return frozenset(range(int(found[1]), int(found[1]) + _INPUT_REGISTERS))
    if not _DESCRIPTOR.fullmatch(operand):
        raise _not_understood(f"{operand!r} is no operand that is known")
    return frozenset()


def _written(operation: str, operands: str) -> frozenset[int]:
    """The registers that an instruction writes. Raises ValueError where that is unknown."""
    targets = [] if _TRUTH_VALUES.search(operation) else [operand.strip() for operand in operands.split(",")]
    while targets and re.fullmatch(r"U?PT?\d*", targets[0]):
        targets = targets[1:]
    if not targets:
        return frozenset()
    found = _REGISTER.fullmatch(targets[0].removesuffix(".reuse"))
    if found is None:
        if _OTHER_REGISTER.match(targets[0]):
            raise _not_understood(f"what {operation} {operands.strip()} writes is not known")
        return frozenset()
    if product := _PRODUCT.match(operation):
        width = int(product[1]) // (2 if ".F32" in operation or operation.startswith("I") else 4)
    else:
        width = next((width for pattern, width in _WIDTHS if pattern.search(operation)), 1)
    return frozenset(range(int(found[1]), int(found[1]) + width))
