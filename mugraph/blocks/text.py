"""Text and JSON of graph-defined kernels, and JSON of their schedules and variants; all round-trip.

One line a tensor and a statement::

    kernel causal
    input q: float16[h,s,64]
    output y: float16[h,s,64] = MatMul(...)
    block causal
    axes h=h, s=s, d=64, t=t, e=64
    grid h, s
    loop t
    q_tile = load q[h, s, d]
    k_tile = load k[h{divide=4}:4, t, d]
    qk = dot(q_tile, k_tile, d)
    keep = holds [1*s, -1*t; t-s]
    shown = mask 4x4:eNrreQAAAfoBbQ== 4 4 [s, t]
    scores = Mul(qk, 0.125)
    shift, total, weighted = softmax(scores, v_tile) where keep
    attended = Div(weighted, total)
    y_max = reduce max(attended; e)
    size = extent t
    store y[h, s, e] = attended

A data dimension of a view is an index, with its size where that is not its axis's: ``m``, ``d{shift=32,modulo=64}``,
``{offset=1}:3``. A condition ``[1*s, -1*t; 16]`` holds where s - t + 16 >= 0; of several
all have to hold, or behind ``any`` one. A constant mask
is its text (:mod:`mugraph.ops.masks`), rows and columns, and a view of them. In JSON statements are these lines too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import (
    MONOIDS,
    Accumulate,
    Affine,
    Compute,
    Dot,
    Extent,
    Factor,
    Index,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    Tensor,
    View,
)
from mugraph.blocks.variants import Variants
from mugraph.terms.shape import Dim
from mugraph.terms.term import Term, format_term
from mugraph.terms.text import Parser, TextError, parse_term

__all__ = [
    "format_kernel",
    "format_statement",
    "kernel_from_json",
    "kernel_to_json",
    "parse_kernel",
    "parse_statement",
    "schedule_from_json",
    "schedule_to_json",
    "tensors_from_json",
    "variants_from_json",
    "variants_to_json",
]

_FIELDS = ("shift", "divide", "modulo", "offset")
_DEFAULTS: dict[str, Dim | None] = {"shift": 0, "divide": 1, "modulo": None, "offset": 0}


def _index(index: Index) -> str:
    fields = ",".join(f"{name}={getattr(index, name)}" for name in _FIELDS if getattr(index, name) != _DEFAULTS[name])
    return (index.axis or "") + (f"{{{fields}}}" if fields or index.axis is None else "")


def _view(factors: View, sizes: Mapping[str, Dim]) -> str:
    parts = []
    for factor in factors:
        same = factor.index.axis is not None and sizes[factor.index.axis] == factor.size
        parts.append(_index(factor.index) + ("" if same else f":{factor.size}"))
    return "[" + ", ".join(parts) + "]"


def format_statement(statement: Statement, sizes: Mapping[str, Dim]) -> str:
    """The line of a statement; ``sizes`` are those of the block's axes."""
    if isinstance(statement, Load):
        return f"{statement.name} = load {statement.tensor}{_view(statement.view, sizes)}"
    if isinstance(statement, Store):
        return f"store {statement.tensor}{_view(statement.view, sizes)} = {statement.value}"
    if isinstance(statement, Compute):
        return f"{statement.name} = {format_term(statement.term)}"
    if isinstance(statement, Dot):
        return f"{statement.name} = dot({statement.left}, {statement.right}, {statement.over})"
    if isinstance(statement, Reduce):
        return f"{statement.name} = reduce {statement.kind}({statement.operand}; {', '.join(statement.over)})"
    if isinstance(statement, Extent):
        return f"{statement.name} = extent {statement.size}"
    if isinstance(statement, PlaceTile):
        return f"{statement.name} = place {_affine(statement.place)}"
    if isinstance(statement, Predicate):
        conditions = " ".join(map(_affine, statement.conditions))
        return f"{statement.name} = holds {'any ' if statement.is_any else ''}{conditions}"
    if isinstance(statement, MaskTile):
        sizes_of_mask = f"{statement.rows} {statement.columns}"
        return f"{statement.name} = mask {statement.entries} {sizes_of_mask} {_view(statement.view, sizes)}"
    keep = f" where {statement.keep}" if statement.keep is not None else ""
    return f"{', '.join(statement.names)} = {statement.monoid}({', '.join(statement.operands)}){keep}"


def _affine(affine: Affine) -> str:
    return f"[{', '.join(f'{c}*{_index(i)}' for i, c in affine.terms)}; {affine.constant}]"


class _BlockReader(Parser):
    """Reads the pieces of a line."""

    def __init__(self, text: str, sizes: Mapping[str, Dim]) -> None:
        super().__init__(text)
        self.sizes = sizes

    def index(self) -> Index:
        axis = self.name() if self.kind == "name" else None
        fields: dict[str, Any] = {}
        if self.accept("{"):
            while not self.accept("}"):
                name = self.name("shift, divide, modulo or offset")
                if name not in _FIELDS:
                    self.fail("shift, divide, modulo or offset")
                self.expect("=")
                fields[name] = self.dim()
                if not self.accept(","):
                    self.expect("}")
                    break
        elif axis is None:
            self.fail("an index")
        return Index(axis, **fields)

    def view(self) -> View:
        factors = []
        self.expect("[")
        while not self.accept("]"):
            index = self.index()
            if self.accept(":"):
                size = self.dim()
            elif index.axis in self.sizes and index.axis is not None:
                size = self.sizes[index.axis]
            else:
                self.fail("a size")
            factors.append(Factor(index, size))
            if not self.accept(","):
                self.expect("]")
                break
        return tuple(factors)

    def names(self, end: str) -> tuple[str, ...]:
        names = [self.name()]
        while self.accept(","):
            names.append(self.name())
        if end:
            self.expect(end)
        return tuple(names)

    def condition(self) -> Affine:
        terms = []
        self.expect("[")
        while not self.accept(";"):
            coefficient = int(self.number())
            self.expect("*")
            terms.append((self.index(), coefficient))
            if not self.accept(","):
                self.expect(";")
                break
        constant = self.dim()
        self.expect("]")
        return Affine(tuple(terms), constant)


_MONOID = re.compile(rf"({'|'.join(MONOIDS)})\(")


def parse_statement(line: str, sizes: Mapping[str, Dim]) -> Statement:
    """Reads a statement. Raises :class:`TextError`."""
    match = re.fullmatch(r"store (\w+)(\[.*\]) = (\w+)", line)
    if match:
        return Store(match[1], match[3], _read(match[2], sizes, "view"))
    left, equals, right = line.partition(" = ")
    names = tuple(name.strip() for name in left.split(","))
    if not equals or not all(name.isidentifier() for name in names):
        raise TextError(f"expected 'name = ...' or 'store ...' in {line!r}")
    match = _MONOID.match(right)
    if match:
        reader = _BlockReader(right[match.end() :], sizes)
        operands = reader.names(")")
        keep = reader.name() if reader.accept("where") else None
        reader.end()
        return Accumulate(names, match[1], operands, keep)
    if len(names) != 1:
        raise TextError(f"expected an accumulator of several values in {line!r}")
    name = names[0]
    if match := re.fullmatch(r"load (\w+)(\[.*\])", right):
        return Load(name, match[1], _read(match[2], sizes, "view"))
    if match := re.fullmatch(r"dot\((\w+), (\w+), (\w+)\)", right):
        return Dot(name, match[1], match[2], match[3])
    if match := re.fullmatch(r"reduce (\w+)\((\w+); (.*)\)", right):
        return Reduce(name, match[1], match[2], tuple(axis.strip() for axis in match[3].split(",")))
    if match := re.fullmatch(r"mask (\d[\w:+/=]*) (\S+) (\S+) (\[.*\])", right):
        rows, columns = (_read(match[i], sizes, "dim") for i in (2, 3))
        return MaskTile(name, match[1], rows, columns, _read(match[4], sizes, "view"))
    if right.startswith("extent "):
        return Extent(name, _read(right.removeprefix("extent "), sizes, "dim"))
    if right.startswith("place "):
        return PlaceTile(name, _read(right.removeprefix("place "), sizes, "condition"))
    if right.startswith("holds "):
        is_any = right.startswith("holds any ")
        reader = _BlockReader(right.removeprefix("holds any " if is_any else "holds "), sizes)
        conditions = [reader.condition()]
        while reader.kind != "end":
            conditions.append(reader.condition())
        return Predicate(name, tuple(conditions), is_any)
    return Compute(name, parse_term(right))


def _read(text: str, sizes: Mapping[str, Dim], what: str) -> Any:
    reader = _BlockReader(text, sizes)
    result = getattr(reader, what)()
    reader.end()
    return result


@lru_cache(maxsize=1 << 11)
def _known(text: str, what: str) -> Any:
    """A type or a dimension, which the kernels of a file ask for again and again."""
    return _read(text, {}, what)


def format_kernel(kernel: Kernel) -> str:
    """The text of a kernel."""
    lines = [f"kernel {kernel.name}"]
    lines += [f"input {t.name}: {t.type}" for t in kernel.inputs]
    lines += [f"scratch {t.name}: {t.type}" for t in kernel.scratch]
    lines += [f"output {t.name}: {t.type} = {format_term(b)}" for t, b in zip(kernel.outputs, kernel.body, strict=True)]
    for block in kernel.blocks:
        lines.append(f"block {block.name}")
        lines.append("axes " + ", ".join(f"{name}={size}" for name, size in block.axes))
        if block.grid:
            lines.append("grid " + ", ".join(block.grid))
        if block.loop is not None:
            lines.append(f"loop {block.loop}")
        lines += [format_statement(statement, block.sizes) for statement in block.statements]
    return "\n".join(lines) + "\n"


def parse_kernel(text: str) -> Kernel:
    """Reads a kernel; it is not checked. Raises :class:`TextError` with the line's number."""
    name = ""
    tensors: dict[str, list[Tensor]] = {"input": [], "scratch": [], "output": []}
    body: list[Term] = []
    blocks: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        keyword, _, rest = line.strip().partition(" ")
        try:
            if not keyword:
                continue
            if blocks and " = " in line:
                blocks[-1]["statements"].append(parse_statement(line.strip(), blocks[-1]["axes"]))
            elif keyword == "kernel":
                name = rest
            elif keyword in tensors and not blocks:
                reader = Parser(rest)
                label = reader.name()
                reader.expect(":")
                tensors[keyword].append(Tensor(label, reader.type()))
                if keyword == "output":
                    reader.expect("=")
                    body.append(reader.term())
                reader.end()
            elif keyword == "block":
                blocks.append({"name": rest, "axes": {}, "grid": [], "loop": None, "statements": []})
            elif not blocks:
                raise TextError(f"expected 'block' before {line!r}")
            else:
                _block_line(blocks[-1], keyword, rest)
        except TextError as problem:
            raise TextError(f"line {number}: {problem}") from None
    return _kernel(name, tensors, body, blocks)


def _block_line(block: dict[str, Any], keyword: str, rest: str) -> None:
    if keyword == "axes":
        reader = Parser(rest)
        while reader.kind != "end":
            axis = reader.name()
            reader.expect("=")
            block["axes"][axis] = reader.dim()
            if not reader.accept(","):
                reader.end()
    elif keyword == "grid":
        block["grid"] = [axis.strip() for axis in rest.split(",")]
    elif keyword == "loop":
        block["loop"] = rest
    else:
        raise TextError(f"expected axes, grid, loop or a statement before {keyword!r}")


def _kernel(name: str, tensors: dict[str, list[Tensor]], body: list[Term], blocks: list[dict[str, Any]]) -> Kernel:
    """Raises TypeError where a name is none."""
    names = [name, *(tensor.name for group in tensors.values() for tensor in group)]
    names += [part for block in blocks for part in (block["name"], *block["grid"], block["loop"]) if part is not None]
    if not all(isinstance(part, str) for part in names):
        raise TypeError("a name that is no text")
    made = tuple(Block(b["name"], tuple(b["axes"].items()), tuple(b["grid"]), b["loop"], tuple(b["statements"])) for b in blocks)
    return Kernel(name, tuple(tensors["input"]), tuple(tensors["output"]), tuple(body), made, tuple(tensors["scratch"]))


def kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    """A kernel as JSON values."""

    def tensors(group: tuple[Tensor, ...]) -> list[dict[str, str]]:
        return [{"name": t.name, "type": str(t.type)} for t in group]

    return {
        "name": kernel.name,
        "inputs": tensors(kernel.inputs),
        "scratch": tensors(kernel.scratch),
        "outputs": [{**t, "body": format_term(b)} for t, b in zip(tensors(kernel.outputs), kernel.body, strict=True)],
        "blocks": [
            {
                "name": block.name,
                "axes": {name: str(size) for name, size in block.axes},
                "grid": list(block.grid),
                "loop": block.loop,
                "statements": [format_statement(statement, block.sizes) for statement in block.statements],
            }
            for block in kernel.blocks
        ],
    }


def tensors_from_json(value: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """The inputs, scratch tensors and outputs of a kernel, by ``input``, ``scratch`` and ``output``; nothing else is read.

    Raises:
        TextError, KeyError, TypeError, AttributeError: it is none of :func:`kernel_to_json`.
    """
    kinds = ("input", "inputs"), ("scratch", "scratch"), ("output", "outputs")
    return {kind: [Tensor(t["name"], _known(t["type"], "type")) for t in value[key]] for kind, key in kinds}


def kernel_from_json(value: Mapping[str, Any]) -> Kernel:
    """Reads what :func:`kernel_to_json` gives. Raises :class:`TextError`."""
    try:
        tensors = tensors_from_json(value)
        blocks = []
        for block in value["blocks"]:
            axes = {name: _known(size, "dim") for name, size in block["axes"].items()}
            blocks.append({**block, "axes": axes, "statements": [parse_statement(line, axes) for line in block["statements"]]})
        return _kernel(value["name"], tensors, [parse_term(t["body"]) for t in value["outputs"]], blocks)
    except (KeyError, TypeError, AttributeError) as problem:
        raise TextError(f"no kernel: {type(problem).__name__} {problem}") from None


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON values."""
    return {
        "tiles": dict(schedule.tiles),
        "split": schedule.split,
        "warps": schedule.warps,
        "stages": schedule.stages,
        "group": schedule.group,
        **({"ahead": list(schedule.ahead)} if schedule.ahead else {}),
        **({"parts": schedule.parts} if schedule.parts > 1 else {}),
    }


def _whole(value: Any) -> int:
    """A number of JSON that is whole. Raises TypeError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{str(value)[:20]} is no whole number")
    return value


def schedule_from_json(value: Mapping[str, Any]) -> Schedule:
    """Reads what :func:`schedule_to_json` gives. Raises :class:`TextError`."""
    try:
        numbers = {name: _whole(value[name]) for name in ("split", "warps", "stages", "group")}
        tiles = tuple((str(axis), _whole(tile)) for axis, tile in value["tiles"].items())
        return Schedule(tiles, **numbers, ahead=tuple(map(str, value.get("ahead", ()))), parts=_whole(value.get("parts", 1)))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise TextError(f"no schedule: {type(problem).__name__} {problem}") from None


def variants_to_json(variants: Variants) -> dict[str, Any]:
    """Variants as JSON values; where there is one alone, its schedules."""
    several = [[schedule_to_json(schedule) for schedule in schedules] for schedules in variants.schedules]
    if len(several) == 1:
        return {"schedules": several[0]}
    return {"variants": several, "measure": str(variants.measure), "limits": list(variants.limits)}


def variants_from_json(value: Mapping[str, Any]) -> Variants:
    """Reads what :func:`variants_to_json` gives. Raises :class:`TextError`."""
    try:
        if "schedules" in value:
            return Variants.one(map(schedule_from_json, value["schedules"]))
        several = tuple(tuple(map(schedule_from_json, schedules)) for schedules in value["variants"])
        return Variants(several, _read(value["measure"], {}, "dim"), tuple(map(_whole, value["limits"])))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise TextError(f"no variants: {type(problem).__name__} {problem}") from None
