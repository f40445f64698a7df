"""Enumeration of terms over a workload, batched: the first step of TASO's generator (section 3.1) without its graphs.

Terms are built bottom-up, level by level (a level is a number of operator applications). Every combination of an
operator and operand types is one *block*: its terms differ in their operands only and are fingerprinted together
(:mod:`rulegen.enumerate.fingerprint`). Terms of equal fingerprint have company: they are evaluated under two further shape
assignments, primes and orders, and those that stay together form a class. Only one representative of a class becomes an
operand of later levels, unless the workload says ``extend="all"``. Values are kept of representatives alone, and of the
further evaluations only while they are needed; of the last level none is made but for the operators that are not linear.

Typing is symbolic: a dimension symbol equals itself alone, so what holds for one choice of sizes by coincidence is
never typed. Everything about a term is a row of NumPy columns; :meth:`Enumeration.term` makes the Python object of a few.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import FieldArray
from mugraph.ops import Operator, get_operator
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, make, var
from rulegen.enumerate.fingerprint import EVALUATIONS, Block, Evaluation, Kind, mix, residues
from rulegen.numeric.samples import dim_sizes
from rulegen.workloads.workload import Workload, slot_admits

__all__ = ["Enumeration", "assignments", "enumerate_terms"]

_ORDERED = frozenset({"Relu", "LeakyRelu", "Clip", "Max", "Min", "Abs", "ReduceMax", "ReduceMin", "Less", "Greater", "Where"})
_ORDERED |= {"MaxPool", "GlobalMaxPool", "FusedConv", "HardSigmoid", "HardSwish", "Elu", "Selu", "PRelu"}
"""Operators that depend on the order of residues."""
SAMPLES, _ORDER_SAMPLES = 32, 32
"""Inputs drawn per evaluation where an operator depends on the order of residues: a scalar shows one bit of it only. Of the
fourth evaluation, which large groups have instead, more."""

_CHUNK = 1 << 18
"""Field elements of a block's results, and terms, that are made at once: bounds the memory, not the outcome."""

_FEW = 256
"""Terms of a block that are evaluated sooner than their operator is tried for being linear."""


def assignments(symbols: tuple[str, ...]) -> list[dict[str, int]]:
    """All shape assignments of an enumeration."""
    return [dim_sizes(symbols, e) for e in range(EVALUATIONS)]


def _shared(values: np.ndarray) -> np.ndarray:
    """Which entries occur more than once."""
    order = np.argsort(values)
    ordered = values[order]
    same = ordered[1:] == ordered[:-1]
    found = np.zeros(len(values), bool)
    found[order[1:][same]] = True
    found[order[:-1][same]] = True
    return found


class _Values:
    """Values of one evaluation by sort, in half the memory: single precision holds residues exactly."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Array]] = {}
        self._counts: dict[int, int] = {}

    def append(self, sort: int, value: Array) -> int:
        """Stores rows; returns the place of the first."""
        if isinstance(value, FieldArray):
            value = FieldArray(value.p.astype(np.float32), None if value.q is None else value.q.astype(np.float32))
        self._parts.setdefault(sort, []).append(value)
        first = self._counts.get(sort, 0)
        self._counts[sort] = first + len(residues(value))
        return first

    def take(self, sort: int, rows: np.ndarray) -> Array:
        parts = self._parts[sort]
        if len(parts) > 1:
            if isinstance(parts[0], FieldArray):
                q = None if parts[0].q is None else np.concatenate([part.q for part in parts])
                parts[:] = [FieldArray(np.concatenate([part.p for part in parts]), q)]
            else:
                parts[:] = [np.concatenate(parts)]
        value = parts[0]
        if not isinstance(value, FieldArray):
            return value[rows]
        q = None if value.q is None else value.q[rows].astype(np.float64)
        return FieldArray(value.p[rows].astype(np.float64), q)


@dataclass(frozen=True, slots=True)
class Template:
    """An operator of a workload with its attributes; ``slots`` holds per operand a fixed constant or a filter's name."""

    operator: Operator
    attrs: tuple[tuple[str, object], ...]
    slots: tuple[Term, ...]

    @property
    def commutative(self) -> bool:
        return self.operator.commutative and all(slot.is_var and slot.name == self.slots[0].name for slot in self.slots)


@dataclass(frozen=True, slots=True)
class _Grid:
    """A block with the rows that may stand for each operand; all combinations are terms.

    ``ordered``: of two operands from the same rows the first must not come after the second.
    """

    block: int
    columns: list[np.ndarray]
    ordered: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """Terms of one grid: operands [terms, arity] and a fingerprint per output."""

    grid: int
    block: int
    operands: np.ndarray
    keys: list[np.ndarray]


@dataclass
class _Rows:
    """The terms of one level under construction, column by column; ``keys`` of an evaluation not made are 0."""

    block: np.ndarray
    out: np.ndarray
    operands: np.ndarray
    keys: np.ndarray

    def __getitem__(self, index: np.ndarray) -> _Rows:
        return _Rows(self.block[index], self.out[index], self.operands[index], self.keys[index])

    def __len__(self) -> int:
        return len(self.block)


class Enumeration:
    """All terms of a workload up to a number of operators, by class.

    Columns, one row per kept term (last-level terms without company are counted and dropped): ``block``, ``out``,
    ``operands`` (row numbers, -1 where there is none), ``level``, ``cls`` (class number), ``mask`` (bit set of
    variables), ``type`` (index into ``types``), ``trivial`` (all entries 0 or all 1), ``keys`` (fingerprints per
    evaluation, 0 where none was needed), ``sort`` (type and kind of a term that may be an operand, else -1).

    Attributes:
        counts: number of terms fingerprinted per level, leaves first.
        classes: number of classes per level (those first met there).
    """

    def __init__(self, workload: Workload, max_ops: int, seed: int) -> None:
        self.workload, self.max_ops, self.seed = workload, max_ops, seed
        ordered = any(t.op in _ORDERED for t in workload.operator_terms)
        self.samples = workload.samples or (SAMPLES if ordered else 1)
        self._orders = np.array([t.op in _ORDERED for t in workload.operator_terms])
        self.leaves = [var(name) for name in workload.variables] + list(workload.constant_terms)
        self.types: list[TensorType] = []
        self.sorts: list[tuple[int, Kind]] = []
        self.blocks: list[Block] = []
        self._type_ids: dict[TensorType, int] = {}
        self._block_ids: dict[tuple[int, tuple[int, ...]], int | None] = {}
        self.templates = [Template(get_operator(t.op), t.attrs, t.inputs) for t in workload.operator_terms]
        self.arity = max((len(template.slots) for template in self.templates), default=0)
        self.applied = np.array([[t.operator.name == name for name in workload.uses] for t in self.templates], np.int8)
        self.counts: list[int] = []
        self.classes: list[int] = []
        self._terms: dict[int, Term] = {}
        self._values: list[_Values] = []
        self.evaluations = [
            Evaluation(seed, e, sizes | {name: own[e] for name, own in workload.sizes.items()}, self.samples)
            for e, sizes in enumerate(assignments(workload.symbols))
        ]
        if ordered and self.samples < SAMPLES:
            small = {name: own[EVALUATIONS] if len(own) > EVALUATIONS else min(own) for name, own in workload.sizes.items()}
            sizes = dim_sizes(workload.symbols, 0) | small
            self.evaluations.append(Evaluation(seed, EVALUATIONS, sizes, _ORDER_SAMPLES))

    # Construction

    def run(self) -> Enumeration:
        """Enumerates level by level."""
        self._start()
        for level in range(1, self.max_ops + 1):
            self._level(level)
        self._values.clear()
        return self

    def _type_id(self, type_: TensorType) -> int:
        if type_ not in self._type_ids:
            self._type_ids[type_] = len(self.types)
            self.types.append(type_)
        return self._type_ids[type_]

    def _sort_id(self, type_id: int, kind: Kind) -> int:
        if (type_id, kind) not in self.sorts:
            self.sorts.append((type_id, kind))
        return self.sorts.index((type_id, kind))

    def _start(self) -> None:
        n, workload = len(self.leaves), self.workload
        self._values = [_Values() for _ in self.evaluations]
        self.counts, self.classes = [n], [n]
        types = [workload.types[leaf.name] if leaf.is_var else workload.constant_type(leaf) for leaf in self.leaves]
        self.type = np.array([self._type_id(t) for t in types], np.int32)
        self.level = np.zeros(n, np.int8)
        self.cls = np.arange(n, dtype=np.int32)
        self.block, self.out = np.full(n, -1, np.int32), np.zeros(n, np.int8)
        self.operands = np.full((n, self.arity), -1, np.int32)
        self.mask = np.array([1 << i if leaf.is_var else 0 for i, leaf in enumerate(self.leaves)], np.uint64)
        self.trivial = np.zeros(n, bool)
        self._undefined, self._ordered = np.zeros(n, bool), np.zeros(n, bool)
        self.uses = np.array([[leaf.is_var and leaf.name == name for name in workload.uses] for leaf in self.leaves], np.int8)
        self.keys = np.zeros((n, len(self.evaluations)), np.uint64)
        self.sort, self._place = np.zeros(n, np.int32), np.zeros(self.keys.shape, np.int32)
        for i, (leaf, type_) in enumerate(zip(self.leaves, types, strict=True)):
            pair = workload.exponentials or leaf.op == "Const"
            kind: Kind = "bool" if type_.dtype == DataType.BOOL else "pair" if pair else "residue"
            self.sort[i] = self._sort_id(int(self.type[i]), kind)
            for e, evaluation in enumerate(self.evaluations):
                value = evaluation.leaf(leaf, type_, workload.exponentials)
                self._place[i, e] = self._values[e].append(int(self.sort[i]), value)
                self.keys[i, e] = evaluation.fingerprint(value, type_)[0]

    def _block(self, template: int, sorts: tuple[int, ...]) -> int | None:
        """The block of an operator and operand sorts, or ``None`` where the application is ill-typed."""
        key = (template, sorts)
        if key in self._block_ids:
            return self._block_ids[key]
        record, block = self.templates[template], None
        try:
            types = tuple(self.types[self.sorts[s][0]] for s in sorts)
            if len({t for t, slot in zip(types, record.slots, strict=True) if slot.is_var and slot.name == "same"}) > 1:
                raise ShapeError("operands of one type are wanted")
            if record.operator.name == "MatMul" and min(t.rank for t in types) < 2:
                raise ShapeError("vectors have no place beside a batch axis")
            outputs = record.operator.types(record.attrs, types)
            if all(self._within_limits(t) for t in outputs):
                kinds = tuple(self.sorts[s][1] for s in sorts)
                self.blocks.append(Block(template, sorts, record.operator, record.attrs, types, kinds, outputs))
                block = len(self.blocks) - 1
        except (ShapeError, Undecided):
            pass
        self._block_ids[key] = block
        return block

    def _within_limits(self, type_: TensorType) -> bool:
        """Small enough, not empty, and no matrix of one entry: such laws hold for it alone."""
        if type_.rank and all(dim == 1 for dim in type_.shape):
            return False
        if any(size < 1 for evaluation in self.evaluations for size in evaluation.shape(type_)):
            return False
        return type_.rank <= self.workload.max_rank and self.evaluations[0].entries(type_) <= self.workload.max_entries

    # Which terms

    def _grids(self, level: int) -> Iterator[_Grid]:
        """The terms of a level: every split of ``level - 1`` applications over the operands of every operator."""
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
                    if block is not None:
                        ordered = template.commutative and levels[0] == levels[1]
                        yield _Grid(block, [rows for _, rows in choice], ordered)

    def _admitted(self, slot: Term, level: int, sort: int, rows: np.ndarray) -> np.ndarray:
        """The rows that may stand in a slot of a template."""
        if not slot.is_var:
            return rows[rows == self.leaves.index(slot)] if level == 0 else rows[:0]
        if slot.name in self.workload.variables:
            return rows[rows == list(self.workload.variables).index(slot.name)] if level == 0 else rows[:0]
        if level == 0:  # the constants of templates stand nowhere else
            rows = rows[rows < len(self.workload.variables) + len(self.workload.constants)]
        admitted = slot_admits(slot.name, self.types[self.sorts[sort][0]]) and not (slot.name == "leaf" and level)
        return rows if admitted else rows[:0]

    def _wanted(self, grid: _Grid, spare: int, room: int) -> Iterator[list[np.ndarray]]:
        """Positions in the columns of a grid of the terms that are wanted, at most about ``room`` combinations at a time.

        Terms of more than constants, within the limits of use, and of all renamings only those that a term of the last
        level may need: each of the ``spare`` applications above a term brings in at most one variable that it lacks.
        Constant tensors may meet under operators that do not ask for the order of numbers.
        """
        columns, block = grid.columns, self.blocks[grid.block]
        masks = [np.unique(self.mask[rows], return_inverse=True) for rows in columns]
        joint: np.ndarray = masks[0][0]
        for own, _ in masks[1:]:
            joint = joint[..., None] | own
        admitted: np.ndarray = np.less_equal(self.missing(joint), spare)
        if not any(type_.rank for type_ in block.inputs) or block.operator.name in _ORDERED:
            admitted &= joint != 0  # a number has its own order, which the field does not know
        longest = max(range(len(columns)), key=lambda i: len(columns[i]))
        others = tuple(i for i in range(len(columns)) if i != longest)
        alive = np.flatnonzero(np.any(admitted, axis=others, keepdims=True).ravel()[masks[longest][1]])
        step = max(1, room // int(np.prod([len(columns[i]) for i in others])))
        limits = np.array(list(self.workload.uses.values())) - self.applied[block.template]
        for start in range(0, len(alive), step):
            rows = alive[start : start + step]
            inverse = [rows_of[1] if i != longest else rows_of[1][rows] for i, rows_of in enumerate(masks)]
            positions = list(np.nonzero(admitted[np.ix_(*inverse)]))
            positions[longest] = rows[positions[longest]]
            kept = np.ones(len(positions[0]), bool)
            if grid.ordered:
                kept &= columns[0][positions[0]] <= columns[1][positions[1]]
            if self.workload.uses:
                uses = sum(self.uses[rows[index]] for rows, index in zip(columns, positions, strict=True))
                kept &= (uses <= limits).all(axis=1)
            if not kept.all():
                positions = [index[kept] for index in positions]
            if len(positions[0]):
                yield positions

    def missing(self, mask: np.ndarray) -> np.ndarray:
        """How many variables stand unused before a used one of their type: 0 for the first of all renamings."""
        count = np.zeros(mask.shape, np.int8)
        for group in self.workload.interchangeable:
            later = np.zeros(mask.shape, np.uint64)
            for position in reversed(group):
                bit = mask >> np.uint64(position) & np.uint64(1)
                count += (later > bit).astype(np.int8)
                later |= bit
        return count

    # Their fingerprints

    def _level(self, level: int) -> None:
        parts: list[_Part] = []
        for number, grid in enumerate(self._grids(level)):
            try:
                for positions, keys, kept in self._fingerprints(grid, self.max_ops - level):
                    operands = np.stack([rows[i] for rows, i in zip(grid.columns, positions, strict=True)], axis=1)
                    operands = operands.astype(np.int32)
                    if not kept.all():
                        operands, keys = operands[kept], [k[kept] for k in keys]
                    parts.append(_Part(number, grid.block, operands, keys))
            except Unsupported:
                continue
        self.counts.append(sum(len(keys) for part in parts for keys in part.keys))
        self.classes.append(self._classify(parts, level) if self.counts[-1] else 0)

    def _fingerprints(self, grid: _Grid, spare: int) -> Iterator[tuple[list[np.ndarray], list[np.ndarray], np.ndarray]]:
        """Positions of terms in the columns of a grid, a fingerprint per output and which terms are defined."""
        block, first = self.blocks[grid.block], self.evaluations[0]
        lengths = [len(rows) for rows in grid.columns]
        combinations, outs = int(np.prod(lengths)), range(len(block.types))
        degree = first.degree(block) if combinations > _FEW else "other"
        if degree == "bilinear" and combinations * self.samples < first.bilinear_effort(block):
            degree = "other"
        if degree == "linear":
            parts = [
                first.linear_parts(block, i, outs, partial(self._residues, rows, 0, block.sorts[i]), len(rows))
                for i, rows in enumerate(grid.columns)
            ]
            for positions in self._wanted(grid, spare, _CHUNK):
                keys = [
                    first.linear_keys(block, out, [part[out][index] for part, index in zip(parts, positions, strict=True)])
                    for out in outs
                ]
                yield positions, keys, np.ones(len(positions[0]), bool)
        elif degree == "bilinear":
            long = int(lengths[1] > lengths[0])
            fixed = self._residues(grid.columns[1 - long], 0, block.sorts[1 - long], slice(None))
            weights = [first.bilinear_weights(block, out, 1 - long, fixed) for out in outs]
            for positions in self._wanted(grid, spare, _CHUNK // 4):
                rows, index = np.unique(positions[long], return_inverse=True)
                value = self._residues(grid.columns[long], 0, block.sorts[long], rows)
                keys = [first.bilinear_keys(block, out, value, weights[out])(index, positions[1 - long]) for out in outs]
                yield positions, keys, np.ones(len(index), bool)
        else:
            for positions in self._wanted(grid, spare, max(1, _CHUNK // self._block_size(block, 0))):
                operands = [rows[index] for rows, index in zip(grid.columns, positions, strict=True)]
                results, undefined = first.apply(block, self._take(operands, 0, block.sorts))
                yield positions, [first.fingerprint(r, t) for r, t in zip(results, block.types, strict=True)], ~undefined

    def _take(self, operands: Sequence[np.ndarray], e: int, sorts: Sequence[int]) -> list[Array]:
        """Values of operands under an evaluation, from their row numbers and sorts."""
        return [self._values[e].take(sort, self._place[rows, e]) for rows, sort in zip(operands, sorts, strict=True)]

    def _residues(self, rows: np.ndarray, e: int, sort: int, which: slice | np.ndarray) -> np.ndarray:
        return residues(self._take([rows[which]], e, [sort])[0])

    def _block_size(self, block: Block, e: int) -> int:
        """Entries of a row of a block's results and operands under an evaluation, over all samples."""
        evaluation = self.evaluations[e]
        return evaluation.samples * sum(evaluation.entries(t) for t in (*block.types, *block.inputs))

    def _by_block(self, rows: _Rows, e: int) -> Iterator[tuple[Block, int, np.ndarray, np.ndarray]]:
        """Blocks and outputs with positions among the rows and operands; only what is defined under an evaluation.

        Operands get their values first, where they have none yet.
        """
        self._ensure(np.unique(rows.operands[rows.operands >= 0]), e)
        order = np.lexsort((rows.out, rows.block))
        starts = np.flatnonzero((np.diff(rows.block[order]) != 0) | (np.diff(rows.out[order]) != 0)) + 1
        for members in np.split(order, starts) if len(order) else []:
            block, out = self.blocks[int(rows.block[members[0]])], int(rows.out[members[0]])
            operands = rows.operands[members][:, : len(block.sorts)]
            defined = ~self._undefined[operands].any(axis=1)
            if defined.any():
                yield block, out, members[defined], operands[defined]

    def _evaluate(self, block: Block, out: int, operands: np.ndarray, e: int) -> Iterator[tuple[np.ndarray, Array]]:
        """Positions among operands of those that are defined and the values, part by part."""
        step = max(1, _CHUNK // self._block_size(block, e))
        for start in range(0, len(operands), step):
            part = np.arange(start, min(start + step, len(operands)))
            results, undefined = self.evaluations[e].apply(block, self._take(list(operands[part].T), e, block.sorts))
            if not undefined.all():
                yield part[~undefined], results[out][~undefined] if undefined.any() else results[out]

    def _ensure(self, rows: np.ndarray, e: int) -> None:
        """Makes the values of operands under an evaluation."""
        rows = rows[(self._place[rows, e] < 0) & ~self._undefined[rows]]
        if not len(rows):
            return
        for block, out, members, operands in self._by_block(self._rows(rows), e):
            for part, value in self._evaluate(block, out, operands, e):
                self._store(rows[members[part]], value, e)
        self._undefined[rows[self._place[rows, e] < 0]] = True

    def _store(self, rows: np.ndarray, value: Array, e: int) -> None:
        first = self._values[e].append(int(self.sort[rows[0]]), value)
        self._place[rows, e] = first + np.arange(len(rows))

    def _rows(self, index: np.ndarray) -> _Rows:
        return _Rows(self.block[index], self.out[index], self.operands[index], self.keys[index])

    # Classes

    def _classify(self, parts: list[_Part], level: int) -> int:
        """Assigns classes to the terms of a level and keeps them; returns the number of classes that are new.

        Of the last level only terms with company are kept.
        """
        last = level == self.max_ops
        _, known = np.unique(self.cls, return_index=True)  # representatives, by class
        company = _shared(np.concatenate([self.keys[known, 0], *(keys for part in parts for keys in part.keys)]))
        known, company = known[company[: len(known)]], company[len(known) :]
        alone = int((~company).sum()) if last else 0
        rows, company = self._select(parts, company, last)
        del parts[:]
        if last:
            self._values[0] = _Values()
        trivial = self._looks_trivial(rows.keys[:, 0], 0)
        company |= trivial
        member = np.flatnonzero(company)
        code, reference = rows.keys[:, 0], self.keys[known, 0]
        for e in range(1, EVALUATIONS):
            self._verify(rows, member, known, e, last)
            trivial[trivial] = self._looks_trivial(rows.keys[trivial, e], e)
            code, reference = mix(code, rows.keys[:, e]), mix(reference, self.keys[known, e])
        defined = ~company | (rows.keys[:, :EVALUATIONS] != 0).all(axis=1)
        for e in range(EVALUATIONS, len(self.evaluations)):
            codes = np.concatenate([code, reference])
            asks = np.concatenate([company & self._depends_on_order(rows), np.zeros(len(known), bool)])
            doubtful = _shared(codes) | np.concatenate([trivial, np.zeros(len(known), bool)])
            again = np.isin(codes, codes[doubtful & asks])
            mine, theirs = again[: len(code)] & company, np.flatnonzero(again[len(code) :])
            self._verify(rows, np.flatnonzero(mine), known[theirs], e, last)
            defined &= ~mine | (rows.keys[:, e] != 0)
            both = mine & trivial
            trivial[both] = self._looks_trivial(rows.keys[both, e], e)
            code[mine] = mix(code[mine], rows.keys[mine, e])
            reference[theirs] = mix(reference[theirs], self.keys[known[theirs], e])
        order = np.argsort(reference)
        place = np.searchsorted(reference[order], code)
        place[place == len(order)] = 0
        old = company & defined & (reference[order][place] == code) if len(order) else np.zeros(len(rows), bool)
        cls = np.full(len(rows), -1, np.int64)
        cls[old] = self.cls[known[order[place[old]]]]
        fresh = np.flatnonzero(~old & defined)
        _, first, inverse, count = np.unique(code[fresh], return_index=True, return_inverse=True, return_counts=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        start = int(self.cls.max()) + 1
        cls[fresh] = start + rank[inverse]
        if last:  # a class of one that only a collision of the first evaluation gave company
            cls[fresh[count[inverse] == 1]] = -1
        keep = np.flatnonzero(cls >= 0)
        self._append(rows[keep], cls[keep].astype(np.int32), trivial[keep], level)
        if not last:
            self._extend(np.arange(len(self.cls) - len(keep), len(self.cls)), start)
        return len(first) + alone

    def _select(self, parts: list[_Part], company: np.ndarray, last: bool) -> tuple[_Rows, np.ndarray]:
        """The terms of a level, of the last those with company alone, in an order that does not depend on their making."""
        grids, columns, flags, at = [], [], [], 0
        for part in parts:
            for out, keys in enumerate(part.keys):
                own = company[at : at + len(keys)]
                at += len(keys)
                chosen = np.flatnonzero(own) if last else np.arange(len(keys))
                operands = np.full((len(chosen), self.arity), -1, np.int32)
                operands[:, : part.operands.shape[1]] = part.operands[chosen]
                table = np.zeros((len(chosen), len(self.evaluations)), np.uint64)
                table[:, 0] = keys[chosen]
                grids.append(np.full(len(chosen), part.grid, np.int32))
                columns.append(
                    _Rows(np.full(len(chosen), part.block, np.int32), np.full(len(chosen), out, np.int8), operands, table)
                )
                flags.append(own[chosen])
        rows = _Rows(
            np.concatenate([c.block for c in columns]),
            np.concatenate([c.out for c in columns]),
            np.concatenate([c.operands for c in columns]),
            np.concatenate([c.keys for c in columns]),
        )
        order = np.lexsort((*rows.operands.T[::-1], rows.out, np.concatenate(grids)))
        return rows[order], np.concatenate(flags)[order]

    def _looks_trivial(self, keys: np.ndarray, e: int) -> np.ndarray:
        """Numbers that an evaluation cannot tell from all zeros or all ones: x - x and x / x in all their forms."""
        types = {type_ for block in self.blocks for type_ in block.types if type_.dtype != DataType.BOOL}
        words = [self.evaluations[e].uniform(type_, entry) for type_ in types for entry in (0, 1)]
        ordered = np.sort(np.array(words, np.uint64))
        place = np.searchsorted(ordered, keys)
        place[place == len(ordered)] = 0
        found: np.ndarray = ordered[place] == keys
        return found

    def _depends_on_order(self, rows: _Rows) -> np.ndarray:
        templates = np.array([block.template for block in self.blocks])[rows.block]
        below = (self._ordered[np.maximum(rows.operands, 0)] & (rows.operands >= 0)).any(axis=1)
        found: np.ndarray = self._orders[templates] | below
        return found

    def _verify(self, rows: _Rows, member: np.ndarray, known: np.ndarray, e: int, last: bool) -> None:
        """Fills in the fingerprints of some rows and of known terms under a further evaluation, 0 where it is undefined.

        After the last level the values are of no more use.
        """
        unverified = known[self.keys[known, e] == 0]
        self.keys[unverified, e] = self._further_keys(self._rows(unverified), e)
        rows.keys[member, e] = self._further_keys(rows[member], e)
        if last:
            self._values[e] = _Values()

    def _further_keys(self, rows: _Rows, e: int) -> np.ndarray:
        keys, evaluation = np.zeros(len(rows), np.uint64), self.evaluations[e]
        for block, out, members, operands in self._by_block(rows, e):
            if len(members) > _FEW and self.evaluations[0].degree(block) == "linear":
                parts = []
                for i, sort in enumerate(block.sorts):
                    own, inverse = np.unique(operands[:, i], return_inverse=True)
                    (part,) = evaluation.linear_parts(block, i, [out], partial(self._residues, own, e, sort), len(own))
                    parts.append(part[inverse])
                keys[members] = evaluation.linear_keys(block, out, parts)
                continue
            for part, value in self._evaluate(block, out, operands, e):
                keys[members[part]] = evaluation.fingerprint(value, block.types[out])
        return keys

    def _append(self, rows: _Rows, cls: np.ndarray, trivial: np.ndarray, level: int) -> None:
        n = len(rows)
        operands, real = np.maximum(rows.operands, 0), rows.operands >= 0
        mask, uses = np.zeros(n, np.uint64), np.zeros((n, self.uses.shape[1]), np.int8)
        for i in range(self.arity):
            mask |= np.where(real[:, i], self.mask[operands[:, i]], np.uint64(0))
            uses += np.where(real[:, i : i + 1], self.uses[operands[:, i]], np.int8(0))
        uses += self.applied[np.array([block.template for block in self.blocks])[rows.block]]
        types = np.zeros((len(self.blocks), max(len(block.types) for block in self.blocks)), np.int32)
        for number, block in enumerate(self.blocks):
            types[number, : len(block.types)] = [self._type_id(t) for t in block.types]
        self.block = np.concatenate([self.block, rows.block])
        self.out = np.concatenate([self.out, rows.out])
        self.operands = np.concatenate([self.operands, rows.operands])
        self.mask = np.concatenate([self.mask, mask])
        self.uses = np.concatenate([self.uses, uses])
        self.type = np.concatenate([self.type, types[rows.block, rows.out]])
        self.trivial = np.concatenate([self.trivial, trivial])
        self.keys = np.concatenate([self.keys, rows.keys])
        self.cls = np.concatenate([self.cls, cls])
        self.level = np.concatenate([self.level, np.full(n, level, np.int8)])
        self.sort = np.concatenate([self.sort, np.full(n, -1, np.int32)])
        self._undefined = np.concatenate([self._undefined, np.zeros(n, bool)])
        self._ordered = np.concatenate([self._ordered, self._depends_on_order(rows)])
        self._place = np.concatenate([self._place, np.full((n, len(self.evaluations)), -1, np.int32)])

    def _extend(self, rows: np.ndarray, start: int) -> None:
        """Makes operands of the new terms, or of the first of every class from ``start`` on."""
        rows = rows[~self.trivial[rows]]
        if self.workload.extend == "representatives":
            rows = rows[self.cls[rows] >= start]
            _, first = np.unique(self.cls[rows], return_index=True)
            rows = rows[np.sort(first)]
        for block, out, members, operands in self._by_block(self._rows(rows), 0):
            for part, value in self._evaluate(block, out, operands, 0):
                own = rows[members[part]]
                kind: Kind = "bool" if not isinstance(value, FieldArray) else "residue" if value.q is None else "pair"
                self.sort[own] = self._sort_id(int(self.type[own[0]]), kind)
                self._store(own, value, 0)

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

    def renamings(self, mask: int) -> list[tuple[int, ...]]:
        """The renamings of the variables of a mask among those of equal type, the identity first."""
        image = list(range(len(self.leaves)))
        result = []
        used = [[v for v in group if mask >> v & 1] for group in self.workload.interchangeable]
        for choice in itertools.product(*map(itertools.permutations, used)):
            for group, permuted in zip(used, choice, strict=True):
                for a, b in zip(group, permuted, strict=True):
                    image[a] = b
            result.append(tuple(image))
        return result

    def structure(self, rows: np.ndarray, renamings: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Structural hashes [*rows, renaming]: equal exactly when the terms are equal after the renaming.

        Operands of commutative operators are unordered.
        """
        needed = np.union1d(rows, np.arange(len(self.leaves)))
        for level in range(self.max_ops, 0, -1):
            operands = self.operands[needed[self.level[needed] == level]]
            needed = np.union1d(needed, operands[operands >= 0])
        hashes = np.zeros((len(needed), len(renamings)), np.uint64)
        hashes[: len(self.leaves)] = mix(7, np.array(renamings, np.uint64).T)
        for level in range(1, self.max_ops + 1):
            own = np.flatnonzero(self.level[needed] == level)
            own = own[np.argsort(self.block[needed[own]], kind="stable")]
            starts = np.flatnonzero(np.diff(self.block[needed[own]])) + 1
            for places in np.split(own, starts) if len(own) else []:
                members = needed[places]
                block = self.blocks[self.block[members[0]]]
                template = self.templates[block.template]
                parts = hashes[np.searchsorted(needed, self.operands[members][:, : len(block.sorts)])]
                if template.commutative:
                    parts = np.sort(parts, axis=1)
                state = mix(
                    np.full(parts.shape[::2], block.template, np.uint64), self.out[members].astype(np.uint64)[:, None] + 11
                )
                for position in range(parts.shape[1]):
                    state = mix(state, parts[:, position])
                hashes[places] = state
        found: np.ndarray = hashes[np.searchsorted(needed, rows)]
        return found


def enumerate_terms(workload: Workload, max_ops: int | None = None, seed: int = 0) -> Enumeration:
    """Enumerates a workload.

    Args:
        workload: the operator group.
        max_ops: greatest number of operator applications; the workload's own where left out.
        seed: of all random inputs. Classes do not depend on it beyond the collisions of a fingerprint.
    """
    return Enumeration(workload, workload.max_ops if max_ops is None else max_ops, seed).run()
