"""Enumeration of terms over a workload, batched: the first step of TASO's generator (section 3.1) without its graphs.

Terms are built bottom-up, level by level (a level is a number of operator applications). Every combination of an
operator and operand types is one *block*: its terms differ in their operands only and are evaluated in one call of the
operator's semantics over a finite field, with a leading axis that counts terms and one that counts inputs. Terms of equal
type and equal random projection form a class; classes with more than one member are evaluated under two further shape
assignments, primes and orders before they are believed. Only one representative of a class becomes an operand of later
levels, unless the workload says ``extend="all"``.

Typing is symbolic: a dimension symbol equals itself alone, so what holds for one choice of sizes by coincidence is
never typed. Everything about a term is a row of NumPy columns; :meth:`Enumeration.term` makes the Python object of a few.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import FieldArray, FiniteField
from mugraph.node import Term, make, var
from mugraph.ops import Operator, get_operator
from mugraph.shape import DataType, ShapeError, SymDim, TensorType, Undecided, evaluate_dim
from rulegen.workloads import Workload

__all__ = ["BatchField", "Enumeration", "assignments", "dim_sizes", "enumerate_terms", "operand_rank_pad"]

Kind = Literal["pair", "residue", "bool"]
"""Pairs of residues, residues below an exponential or another opaque function, truth values."""

EVALUATIONS = 3
NEGATIVE = (0.5, 0.7, 0.93)
"""Fraction of residues ordered below zero, one per evaluation: with a single threshold false merges survive relu."""

_SIZES = ((2, 3, 4, 5, 6, 7, 8, 9), (5, 4, 2, 3, 7, 6, 9, 8), (3, 5, 7, 2, 4, 8, 6, 9))
"""Sizes of a workload's symbols in order, one row per evaluation, distinct in a row."""

_ORDERED = frozenset({"Relu", "LeakyRelu", "Clip", "Max", "Min", "Abs", "ReduceMax", "ReduceMin", "Less", "Greater", "Where"})
SAMPLES = 32
"""Inputs drawn per evaluation where an operator depends on the order of residues: a scalar shows one bit of it only."""

_CHUNK = 1 << 21
"""Field elements of a block's result that are evaluated at once: bounds the memory, not the outcome."""

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def mix(state: np.ndarray | int, value: np.ndarray | int) -> np.ndarray:
    """A pseudo-random function of two 64-bit words (splitmix64), elementwise."""
    with np.errstate(over="ignore"):
        x = (np.asarray(state, np.uint64) * _MIX[2]) ^ (np.asarray(value, np.uint64) + _MIX[0])
        x = (x ^ (x >> np.uint64(30))) * _MIX[1]
        x = (x ^ (x >> np.uint64(27))) * _MIX[2]
        mixed: np.ndarray = x ^ (x >> np.uint64(31))
        return mixed


def dim_sizes(symbols: tuple[str, ...], evaluation: int) -> dict[str, int]:
    """The sizes of the dimension symbols in one evaluation."""
    return dict(zip(symbols, _SIZES[evaluation % len(_SIZES)], strict=False))


def assignments(symbols: tuple[str, ...]) -> list[dict[str, int]]:
    """All shape assignments of an enumeration."""
    return [dim_sizes(symbols, e) for e in range(EVALUATIONS)]


def concrete_value(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute value with the dimension symbols replaced by sizes."""
    if isinstance(value, tuple):
        return tuple(concrete_value(item, sizes) for item in value)
    return evaluate_dim(value, sizes) if isinstance(value, SymDim) else value


class BatchField(FiniteField):
    """A finite field in which the first axis counts programs: a zero divisor spoils its own program only.

    The second axis of all values counts independent inputs.
    """

    undefined: np.ndarray

    def start(self, count: int) -> None:
        """Prepares for a batch of ``count`` programs, none of them undefined so far."""
        self.undefined = np.zeros(count, bool)

    def div(self, a: Any, b: Any) -> Any:
        zero = b.p == 0 if b.q is None else (b.p == 0) | (b.q == 0)
        if zero.any():
            self.undefined |= zero.reshape(zero.shape[0], -1).any(axis=1) if zero.ndim else True
            b = FieldArray(np.where(zero, 1, b.p), None if b.q is None else np.where(zero, 1, b.q))
        return super().div(a, b)


def operand_rank_pad(operator: Operator, values: list[Array]) -> list[Array]:
    """Inserts axes of size 1 after the two leading axes, so that operands of unequal rank broadcast from the right."""
    if not operator.elementwise and operator.name != "MatMul":
        return values
    rank = max(value_ndim(v) for v in values)

    def pad(value: Array) -> Array:
        def reshape(x: np.ndarray) -> np.ndarray:
            return x.reshape(x.shape[:2] + (1,) * (rank - x.ndim) + x.shape[2:])

        if isinstance(value, FieldArray):
            return FieldArray(reshape(value.p), None if value.q is None else reshape(value.q))
        return reshape(value)

    return [pad(v) for v in values]


def value_ndim(value: Array) -> int:
    return len(value.shape)


def _broadcast_rows(value: Array, shape: tuple[int, ...]) -> Array:
    """A result in full size: an operator whose result does not depend on the batch returns a smaller one."""
    if isinstance(value, FieldArray):
        if value.shape == shape:
            return value
        return FieldArray(np.broadcast_to(value.p, shape), None if value.q is None else np.broadcast_to(value.q, shape))
    return np.broadcast_to(value, shape)


def _part(value: Array) -> np.ndarray:
    """What the fingerprint sees: the residues modulo p, or truth values as 0 and 1."""
    return value.p if isinstance(value, FieldArray) else np.asarray(value, np.float64)


def _is_trivial(value: Array) -> np.ndarray:
    """Rows whose entries are all 0 or all 1: x - x and x / x in all their forms are not worth extending."""
    if not isinstance(value, FieldArray):
        return np.zeros(len(value), bool)
    flat = value.p.reshape(len(value.p), -1)
    trivial: np.ndarray = (flat == 0).all(axis=1) | (flat == 1).all(axis=1)
    return trivial


def _join(values: list[Array]) -> Array:
    if isinstance(values[0], FieldArray):
        q = None if values[0].q is None else np.concatenate([v.q for v in values])
        return FieldArray(np.concatenate([v.p for v in values]), q)
    return np.concatenate(values)


@dataclass(frozen=True, slots=True)
class Template:
    """An operator of a workload with its attributes; ``slots`` holds per operand a fixed constant or a filter's name."""

    operator: Operator
    attrs: tuple[tuple[str, Any], ...]
    slots: tuple[Term, ...]

    @property
    def commutative(self) -> bool:
        return self.operator.commutative and all(slot.is_var and slot.name == self.slots[0].name for slot in self.slots)


@dataclass(frozen=True, slots=True)
class Block:
    """Terms that differ in their operands only."""

    template: int
    sorts: tuple[int, ...]
    types: tuple[TensorType, ...]


_Stored = list[tuple[np.ndarray, list[Array]]]
"""Positions among a level's terms and their values under every evaluation."""


@dataclass
class _Rows:
    """The terms of one level under construction, column by column."""

    block: np.ndarray
    out: np.ndarray
    operands: np.ndarray
    mask: np.ndarray
    uses: np.ndarray
    type: np.ndarray
    key: np.ndarray
    trivial: np.ndarray

    def __getitem__(self, index: np.ndarray) -> _Rows:
        return _Rows(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @staticmethod
    def join(parts: list[_Rows]) -> _Rows:
        return _Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Rows.__dataclass_fields__))


class Enumeration:
    """All terms of a workload up to a number of operators, by class.

    Columns, one row per kept term (last-level terms without company are counted and dropped): ``block``, ``out``,
    ``operands`` (row numbers, -1 where there is none), ``level``, ``cls`` (class number), ``mask`` (bit set of
    variables), ``type`` (index into ``types``), ``trivial`` (all entries 0 or all 1), ``sort`` and ``row`` (where an
    operand's values lie).

    Attributes:
        counts: number of terms evaluated per level, leaves first.
        classes: number of classes per level (those first met there).
    """

    def __init__(self, workload: Workload, max_ops: int, seed: int) -> None:
        self.workload, self.max_ops, self.seed = workload, max_ops, seed
        self.symbols = workload.symbols
        self.samples = SAMPLES if any(t.op in _ORDERED for t in workload.operator_terms) else 1
        self.sizes = assignments(self.symbols)
        self.leaves = [var(name) for name in workload.variables] + list(workload.constant_terms)
        self.types: list[TensorType] = []
        self.sorts: list[tuple[int, Kind]] = []
        self.blocks: list[Block] = []
        self._block_ids: dict[tuple[int, tuple[int, ...]], int | None] = {}
        self.templates = [Template(get_operator(t.op), t.attrs, t.inputs) for t in workload.operator_terms]
        self.counts: list[int] = []
        self.classes: list[int] = []
        self._terms: dict[int, Term] = {}

    # Construction

    def run(self) -> Enumeration:
        """Enumerates level by level."""
        self._start()
        for level in range(1, self.max_ops + 1):
            self._level(level, last=level == self.max_ops)
        return self

    def _type_id(self, type_: TensorType) -> int:
        if type_ not in self.types:
            self.types.append(type_)
        return self.types.index(type_)

    def _sort_id(self, type_id: int, kind: Kind) -> int:
        if (type_id, kind) not in self.sorts:
            self.sorts.append((type_id, kind))
        return self.sorts.index((type_id, kind))

    def _start(self) -> None:
        self.fields = [BatchField(_field_seed(self.seed, e), e, NEGATIVE[e]) for e in range(EVALUATIONS)]
        self._generators = [np.random.default_rng([self.seed, e]) for e in range(EVALUATIONS)]
        self._projections: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self.values: list[dict[int, Array]] = [{} for _ in range(EVALUATIONS)]
        self.blocks, self._block_ids, self.counts, self.classes = [], {}, [len(self.leaves)], [len(self.leaves)]
        n, workload = len(self.leaves), self.workload
        types = [workload.types[leaf.name] if leaf.is_var else workload.constant_type(leaf) for leaf in self.leaves]
        self.type = np.array([self._type_id(t) for t in types], np.int32)
        self.level = np.zeros(n, np.int8)
        self.cls = np.arange(n, dtype=np.int32)
        self.block, self.out = np.full(n, -1, np.int32), np.zeros(n, np.int8)
        self.operands = np.full((n, 3), -1, np.int32)
        count = len(workload.variables)
        self.mask = np.array([1 << i if i < count else 0 for i in range(n)], np.uint64)
        self.trivial = np.zeros(n, bool)
        self.uses = np.zeros((n, count), np.int8)
        self.uses[np.arange(count), np.arange(count)] = 1
        rows: list[dict[int, list[Array]]] = [{} for _ in range(EVALUATIONS)]
        self.sort, self.row = np.zeros(n, np.int32), np.zeros(n, np.int32)
        for i, (leaf, type_) in enumerate(zip(self.leaves, types, strict=True)):
            pair = self.workload.exponentials or not leaf.is_var  # an exponent is recognised by both residues
            kind: Kind = "bool" if type_.dtype == DataType.BOOL else "pair" if pair else "residue"
            self.sort[i] = self._sort_id(int(self.type[i]), kind)
            self.row[i] = len(rows[0].get(int(self.sort[i]), []))
            for e in range(EVALUATIONS):
                rows[e].setdefault(int(self.sort[i]), []).append(self._leaf(leaf, type_, e))
        for e in range(EVALUATIONS):
            self.values[e] = {sort: _join(parts) for sort, parts in rows[e].items()}
        self.key = np.zeros((n, EVALUATIONS), np.uint64)
        for e in range(EVALUATIONS):
            for i in range(n):
                value = self.values[e][int(self.sort[i])][self.row[i] : self.row[i] + 1]
                self.key[i, e] = self._fingerprint(value, int(self.type[i]), e)[0]

    def _leaf(self, leaf: Term, type_: TensorType, e: int) -> Array:
        """The value of a variable or constant: one row."""
        shape = (1, self.samples, *self._shape(type_, e))
        if leaf.is_var:
            if type_.dtype == DataType.BOOL:
                return self._generators[e].integers(0, 2, shape).astype(bool)
            drawn = self.fields[e].random(self._generators[e], shape)
            return drawn if self.workload.exponentials else FieldArray(drawn.p, None)
        value = self.fields[e].const(leaf.attr("value"))
        return _broadcast_rows(value, shape)

    def _shape(self, type_: TensorType, e: int) -> tuple[int, ...]:
        return tuple(int(evaluate_dim(d, self.sizes[e])) for d in type_.shape)  # type: ignore[arg-type]

    def _fingerprint(self, value: Array, type_id: int, e: int) -> np.ndarray:
        """64 bits a row: three random projections modulo p, of the entries and then of the samples, and the type."""
        p, samples = self.fields[e].p, self.samples
        flat = _part(value).reshape(value.shape[0], samples, -1)
        if (type_id, e) not in self._projections:
            generator = np.random.default_rng([self.seed, e, *str(self.types[type_id].shape).encode()])
            entries = generator.integers(1, p, (flat.shape[2], 3)).astype(np.float64)
            self._projections[type_id, e] = entries, generator.integers(1, p, (samples, 3)).astype(np.float64)
        entries, across = self._projections[type_id, e]
        projected = np.mod(np.mod(flat @ entries, p) * across, p).sum(axis=1)
        word = np.mod(projected, p).astype(np.uint64)
        return mix(word[:, 0] | (word[:, 1] << np.uint64(22)) | (word[:, 2] << np.uint64(44)), type_id + 1)

    def _block(self, template: int, sorts: tuple[int, ...]) -> int | None:
        """The block of an operator and operand sorts, or ``None`` where the application is ill-typed."""
        key = (template, sorts)
        if key in self._block_ids:
            return self._block_ids[key]
        record, block = self.templates[template], None
        try:
            types = [self.types[self.sorts[s][0]] for s in sorts]
            if record.operator.name == "MatMul" and min(t.rank for t in types) < 2:
                raise ShapeError("vectors have no place beside a batch axis")
            outputs = record.operator.types(record.attrs, types)
            if all(self._within_limits(t) for t in outputs):
                self.blocks.append(Block(template, sorts, outputs))
                block = len(self.blocks) - 1
        except (ShapeError, Undecided):
            pass
        self._block_ids[key] = block
        return block

    def _within_limits(self, type_: TensorType) -> bool:
        """Small enough, and no matrix of one entry: such laws hold for it alone."""
        if type_.rank and all(dim == 1 for dim in type_.shape):
            return False
        return type_.rank <= self.workload.max_rank and int(np.prod(self._shape(type_, 0))) <= self.workload.max_entries

    def _evaluate(self, block: Block, operands: np.ndarray, e: int) -> tuple[list[Array], np.ndarray]:
        """The outputs of a block for rows of operands, and which rows are undefined."""
        record, field = self.templates[block.template], self.fields[e]
        field.start(len(operands))
        values = [self.values[e][sort][self.row[operands[:, i]]] for i, sort in enumerate(block.sorts)]
        attrs = tuple((name, concrete_value(value, self.sizes[e])) for name, value in record.attrs)
        results = record.operator.run(field, attrs, operand_rank_pad(record.operator, values))
        shapes = [(len(operands), self.samples, *self._shape(t, e)) for t in block.types]
        return [_broadcast_rows(v, s) for v, s in zip(results, shapes, strict=True)], field.undefined

    def _combinations(self, level: int, last: bool) -> Iterator[tuple[int, np.ndarray]]:
        """Blocks with the operand rows of this level: every split of ``level - 1`` applications over the operands."""
        by_sort: list[dict[int, np.ndarray]] = [
            {s: np.flatnonzero((self.level == n) & (self.sort == s)) for s in range(len(self.sorts))} for n in range(level)
        ]
        for number, template in enumerate(self.templates):
            for levels in itertools.product(range(level - 1, -1, -1), repeat=len(template.slots)):
                if sum(levels) != level - 1 or (template.commutative and list(levels) != sorted(levels, reverse=True)):
                    continue
                choices = [
                    [(s, rows) for s, every in by_sort[n].items() if len(rows := self._admitted(slot, n, s, every))]
                    for slot, n in zip(template.slots, levels, strict=True)
                ]
                for choice in itertools.product(*choices):
                    block = self._block(number, tuple(s for s, _ in choice))
                    if block is None:
                        continue
                    chunk = _CHUNK // self._block_size(self.blocks[block])
                    for operands in self._grid([rows for _, rows in choice], chunk):
                        if template.commutative and levels[0] == levels[1]:
                            operands = operands[operands[:, 0] <= operands[:, 1]]
                        operands = operands[self._wanted(operands, last)]
                        if len(operands):
                            yield block, operands

    def _admitted(self, slot: Term, level: int, sort: int, rows: np.ndarray) -> np.ndarray:
        """The rows that may stand in a slot of a template."""
        if not slot.is_var:
            return rows[rows == self.leaves.index(slot)] if level == 0 else rows[:0]
        if level == 0:  # the constants of templates stand nowhere else
            rows = rows[rows < len(self.workload.variables) + len(self.workload.constants)]
        rank = self.types[self.sorts[sort][0]].rank
        if (slot.name == "scalar" and rank) or (slot.name == "tensor" and not rank) or (slot.name == "leaf" and level):
            return rows[:0]
        return rows

    @staticmethod
    def _grid(columns: list[np.ndarray], chunk: int) -> Iterator[np.ndarray]:
        total = int(np.prod([len(c) for c in columns]))
        for start in range(0, total, chunk):
            index = np.unravel_index(np.arange(start, min(start + chunk, total)), [len(c) for c in columns])
            yield np.stack([c[i] for c, i in zip(columns, index, strict=True)], axis=1)

    def _wanted(self, operands: np.ndarray, last: bool) -> np.ndarray:
        """Terms with a variable, within the limits of use; at the last level only the first of all renamings."""
        mask = np.bitwise_or.reduce(self.mask[operands], axis=1)
        wanted: np.ndarray = mask != 0
        if self.workload.uses:
            limits = np.array([self.workload.uses.get(name, 127) for name in self.workload.variables])
            wanted &= (self.uses[operands].sum(axis=1) <= limits).all(axis=1)
        if last:
            for group in self.workload.interchangeable:
                for first, second in itertools.pairwise(group):
                    bits = (mask >> np.uint64(second)) & ~(mask >> np.uint64(first)) & np.uint64(1)
                    wanted &= bits == 0
        return wanted

    def _level(self, level: int, last: bool) -> None:
        parts: list[_Rows] = []
        for number, operands in self._combinations(level, last):
            block = self.blocks[number]
            try:
                results, undefined = self._evaluate(block, operands, 0)
            except Unsupported:
                continue
            for out, result in enumerate(results):
                kept = ~undefined
                padded = np.full((int(kept.sum()), 3), -1, np.int32)
                padded[:, : operands.shape[1]] = operands[kept]
                type_id = self._type_id(block.types[out])
                parts.append(
                    _Rows(
                        np.full(len(padded), number, np.int32),
                        np.full(len(padded), out, np.int8),
                        padded,
                        np.bitwise_or.reduce(self.mask[operands[kept]], axis=1),
                        self.uses[operands[kept]].sum(axis=1).astype(np.int8),
                        np.full(len(padded), type_id, np.int32),
                        self._fingerprint(result, type_id, 0)[kept],
                        _is_trivial(result)[kept],
                    )
                )
        rows = _Rows.join(parts) if parts else None
        self.counts.append(0 if rows is None else len(rows.key))
        self.classes.append(0 if rows is None else self._classify(rows, level, last))

    def _classify(self, rows: _Rows, level: int, last: bool) -> int:
        """Assigns classes to the terms of a level and keeps them; returns the number of classes that are new."""
        known = self._representatives()
        _, inverse, count = np.unique(np.concatenate([self.key[known, 0], rows.key]), return_inverse=True, return_counts=True)
        in_company = count[inverse[len(known) :]] > 1
        keys = np.zeros((len(rows.key), EVALUATIONS), np.uint64)
        keys[:, 0] = rows.key
        index = np.flatnonzero(in_company) if last else np.arange(len(rows.key))
        values = self._store(rows, index, keys, keep_values=not last)
        company, alone = np.flatnonzero(in_company & (keys[:, 0] != 0)), np.flatnonzero(~in_company & (keys[:, 0] != 0))
        full = mix(mix(keys[:, 0], keys[:, 1]), keys[:, 2])
        reference = mix(mix(self.key[known, 0], self.key[known, 1]), self.key[known, 2])
        cls = np.full(len(rows.key), -1, np.int64)
        order = np.argsort(reference)
        place = np.searchsorted(reference[order], full[company])
        place[place == len(order)] = 0
        old = reference[order][place] == full[company]
        cls[company[old]] = self.cls[known[order[place[old]]]]
        fresh = np.sort(company[~old] if last else np.concatenate([company[~old], alone]))
        _, first, inverse = np.unique(full[fresh], return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        cls[fresh] = rank[inverse] + int(self.cls.max()) + 1
        new_classes = len(first) + (len(alone) if last else 0)
        keep = np.flatnonzero(cls >= 0)
        if last:  # a class of one that only a collision of the first evaluation gave company
            sizes = np.bincount(cls[keep], minlength=int(cls.max(initial=0)) + 1)
            keep = keep[(sizes[cls[keep]] > 1) | (cls[keep] <= int(self.cls.max()))]
        self._append(rows, keep, keys, cls, level, values)
        return new_classes

    def _representatives(self) -> np.ndarray:
        """The first term of every class."""
        _, first = np.unique(self.cls, return_index=True)
        return first

    def _store(self, rows: _Rows, index: np.ndarray, keys: np.ndarray, keep_values: bool) -> _Stored:
        """Fills in the fingerprints of further evaluations; a term undefined in one of them loses its key.

        Returns the values under every evaluation where they are wanted, part by part.
        """
        found: _Stored = []
        group = rows.block[index].astype(np.int64) * 8 + rows.out[index]
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        for members in np.split(index[order], starts[1:]) if len(index) else []:
            block, out = self.blocks[int(rows.block[members[0]])], int(rows.out[members[0]])
            for part in np.array_split(members, 1 + len(members) * self._block_size(block) // _CHUNK):
                values: list[Array] = []
                for e in range(0 if keep_values else 1, EVALUATIONS):
                    results, undefined = self._evaluate(block, rows.operands[part][:, : len(block.sorts)], e)
                    values.append(results[out])
                    if e:
                        keys[part, e] = self._fingerprint(results[out], int(rows.type[part[0]]), e)
                        keys[part[undefined], 0] = 0
                if keep_values:
                    found.append((part, values))
        return found

    def _block_size(self, block: Block) -> int:
        """Entries of a row of a block's results under the first assignment, at least 8, over all samples."""
        return max(8, self.samples * int(sum(np.prod(self._shape(t, 0)) for t in block.types)))

    def _append(
        self,
        rows: _Rows,
        keep: np.ndarray,
        keys: np.ndarray,
        cls: np.ndarray,
        level: int,
        values: _Stored,
    ) -> None:
        base = len(self.cls)
        sort, row = np.full(len(rows.key), -1, np.int32), np.full(len(rows.key), -1, np.int32)
        if values:
            node = np.zeros(len(rows.key), bool)
            if self.workload.extend == "all":
                node[keep] = True
            else:
                _, first = np.unique(cls[keep], return_index=True)
                node[keep[first]] = cls[keep[first]] > int(self.cls.max())
            node &= ~rows.trivial
            collected: list[dict[int, list[Array]]] = [{} for _ in range(EVALUATIONS)]
            filled: dict[int, int] = {}
            for part, results in values:
                chosen = np.flatnonzero(node[part])
                if not len(chosen):
                    continue
                type_id = int(rows.type[part[0]])
                kind: Kind = "bool" if not isinstance(results[0], FieldArray) else "residue" if results[0].q is None else "pair"
                sort_id = self._sort_id(type_id, kind)
                if sort_id not in filled:
                    filled[sort_id] = self.values[0][sort_id].shape[0] if sort_id in self.values[0] else 0
                sort[part[chosen]] = sort_id
                row[part[chosen]] = filled[sort_id] + np.arange(len(chosen))
                filled[sort_id] += len(chosen)
                for e in range(EVALUATIONS):
                    collected[e].setdefault(sort_id, []).append(results[e][chosen])
            for e in range(EVALUATIONS):
                for sort_id, parts in collected[e].items():
                    old = [self.values[e][sort_id]] if sort_id in self.values[e] else []
                    self.values[e][sort_id] = _join(old + parts)
        kept = rows[keep]
        self.block = np.concatenate([self.block, kept.block])
        self.out = np.concatenate([self.out, kept.out])
        self.operands = np.concatenate([self.operands, kept.operands])
        self.mask = np.concatenate([self.mask, kept.mask])
        self.uses = np.concatenate([self.uses, kept.uses])
        self.type = np.concatenate([self.type, kept.type])
        self.trivial = np.concatenate([self.trivial, kept.trivial])
        self.key = np.concatenate([self.key, keys[keep]])
        self.cls = np.concatenate([self.cls, cls[keep].astype(np.int32)])
        self.level = np.concatenate([self.level, np.full(len(keep), level, np.int8)])
        self.sort = np.concatenate([self.sort, sort[keep]])
        self.row = np.concatenate([self.row, row[keep]])
        assert len(self.cls) == base + len(keep)

    # Reading

    def term(self, index: int) -> Term:
        """The Python object of a row."""
        stack = [index]
        while stack:
            top = stack[-1]
            if top in self._terms:
                stack.pop()
            elif self.block[top] < 0:
                self._terms[top] = self.leaves[top]
            else:
                block = self.blocks[self.block[top]]
                operands = [int(i) for i in self.operands[top][: len(block.sorts)]]
                missing = [i for i in operands if i not in self._terms]
                if missing:
                    stack.extend(missing)
                    continue
                template = self.templates[block.template]
                inputs = [self._terms[i] for i in operands]
                self._terms[top] = make(template.operator.name, inputs, template.attrs, int(self.out[top]))
        return self._terms[index]

    @cached_property
    def permutations(self) -> list[tuple[int, ...]]:
        """The renamings of variables of equal type, the identity first."""
        count = len(self.workload.variables)
        result = []
        groups = self.workload.interchangeable
        for choice in itertools.product(*(itertools.permutations(group) for group in groups)):
            image = list(range(count))
            for group, permuted in zip(groups, choice, strict=True):
                for a, b in zip(group, permuted, strict=True):
                    image[a] = b
            result.append(tuple(image))
        return result

    @cached_property
    def structure(self) -> np.ndarray:
        """Structural hashes [term, renaming]: equal exactly when the terms are equal after the renaming.

        Operands of commutative operators are unordered.
        """
        hashes = np.zeros((len(self.cls), len(self.permutations)), np.uint64)
        count = len(self.workload.variables)
        for i in range(len(self.leaves)):
            for p, image in enumerate(self.permutations):
                hashes[i, p] = mix(7, image[i] if i < count else i)
        for level in range(1, self.max_ops + 1):
            rows = np.flatnonzero(self.level == level)
            for number in np.unique(self.block[rows]):
                block = self.blocks[number]
                members = rows[self.block[rows] == number]
                template = self.templates[block.template]
                parts = hashes[self.operands[members][:, : len(block.sorts)]]
                if template.commutative:
                    parts = np.sort(parts, axis=1)
                state = mix(
                    np.full(parts.shape[::2], block.template, np.uint64), self.out[members].astype(np.uint64)[:, None] + 11
                )
                for position in range(parts.shape[1]):
                    state = mix(state, parts[:, position])
                hashes[members] = state
        return hashes


def _field_seed(seed: int, evaluation: int) -> int:
    """A seed for the domain of one evaluation."""
    return int(np.random.default_rng([seed, evaluation, 0xF1E1D]).integers(1 << 62))


def enumerate_terms(workload: Workload, max_ops: int | None = None, seed: int = 0) -> Enumeration:
    """Enumerates a workload.

    Args:
        workload: the operator group.
        max_ops: greatest number of operator applications; the workload's own where left out.
        seed: of all random inputs. Classes do not depend on it beyond the collisions of a fingerprint.
    """
    return Enumeration(workload, workload.max_ops if max_ops is None else max_ops, seed).run()
