"""Enumeration of terms over a workload, batched: the first step of TASO's generator (section 3.1) without its graphs.

Terms are built bottom-up, level by level (a level is a number of operator applications). Every combination of an
operator and operand types is one *batch*: its terms differ in their operands only and are fingerprinted together
(:mod:`rulegen.enumerate.values`). Terms of equal fingerprint have company: they are evaluated under two further shape
assignments, primes and orders, and those that stay together form a class (:mod:`rulegen.enumerate.classes`). Only one
representative of a class becomes an operand of later levels, unless the workload says ``extend="all"``. Of the last level no
value is made but for the operators that are not linear.

A workload says whether applications are counted as in a tree, or as in a graph, where a node that several operands read counts
once (:mod:`rulegen.enumerate.sharing`).

Typing is symbolic: a dimension symbol equals itself alone, so that equations that hold for one choice of sizes by coincidence
are never typed. Everything about a term is a row of NumPy columns; :meth:`Enumeration.term` makes the Python object of a few.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FieldArray
from mugraph.ops import get_operator
from mugraph.order import operands_first
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, make, var
from rulegen.enumerate.batches import BatchTable, OperatorTemplate
from rulegen.enumerate.classes import KeysOf, LevelPart, classified
from rulegen.enumerate.evaluation import EVALUATIONS, Evaluation, TermBatch, ValueKind
from rulegen.enumerate.fingerprint import mix
from rulegen.enumerate.sharing import SharedNodes
from rulegen.enumerate.space import TermGrid, TermSpace, skipped_variables
from rulegen.enumerate.table import TermTable
from rulegen.enumerate.values import OperandValues
from rulegen.numeric.samples import dim_sizes
from rulegen.workloads.workload import Workload

__all__ = ["SAMPLES", "Enumeration", "Enumerator", "enumerate_terms", "enumerate_under", "evaluations_of"]

SAMPLES, _ORDER_SAMPLES = 32, 32
"""Inputs drawn per evaluation where an operator depends on the order of residues: a scalar shows one bit of it only. Of the
fourth evaluation, which large groups have instead, more."""


@dataclass(frozen=True)
class Enumeration:
    """All terms of a workload up to a number of operators, by class.

    Attributes:
        workload: whose terms they are.
        max_ops: greatest number of operator applications.
        leaves: variables, constants, and the constants of templates: the first rows.
        templates: the workload's operators.
        batches, types: by number.
        table: the columns; terms of the last level without company are counted and dropped.
        evaluations: under which the terms were fingerprinted.
        counts: number of terms fingerprinted per level, leaves first.
        classes: number of classes per level (those first met there).
    """

    workload: Workload
    max_ops: int
    leaves: Sequence[Term]
    templates: Sequence[OperatorTemplate]
    batches: Sequence[TermBatch]
    types: Sequence[TensorType]
    table: TermTable
    evaluations: Sequence[Evaluation]
    counts: list[int]
    classes: list[int]
    _terms: dict[int, Term] = field(default_factory=dict)

    def term(self, index: int) -> Term:
        """The Python object of a row."""
        if index not in self._terms:
            for row in operands_first([index], lambda row: [i for i in self._operands(row) if i not in self._terms]):
                self._terms[row] = self._made(row)
        return self._terms[index]

    def _operands(self, row: int) -> list[int]:
        batch = self.table.batch[row]
        return [] if batch < 0 else [int(i) for i in self.table.operands[row][: len(self.batches[batch].sorts)]]

    def _made(self, row: int) -> Term:
        """The object of a row whose operands have theirs."""
        batch = self.table.batch[row]
        if batch < 0:
            return self.leaves[row]
        template = self.templates[self.batches[batch].template]
        inputs = [self._terms[i] for i in self._operands(row)]
        return make(template.operator.name, inputs, template.attrs, int(self.table.out[row]))

    def skipped_variables(self, mask: np.ndarray) -> np.ndarray:
        """The number of variables of bit sets that stand unused before a used one of their type."""
        return skipped_variables(self.workload.interchangeable, mask)

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
        table = self.table
        needed = np.union1d(rows, np.arange(len(self.leaves)))
        for level in range(self.max_ops, 0, -1):
            operands = table.operands[needed[table.level[needed] == level]]
            needed = np.union1d(needed, operands[operands >= 0])
        hashes = np.zeros((len(needed), len(renamings)), np.uint64)
        hashes[: len(self.leaves)] = mix(7, np.array(renamings, np.uint64).T)
        for level in range(1, self.max_ops + 1):
            at = np.flatnonzero(table.level[needed] == level)
            at = at[np.argsort(table.batch[needed[at]], kind="stable")]
            starts = np.flatnonzero(np.diff(table.batch[needed[at]])) + 1
            for places in np.split(at, starts) if len(at) else []:
                members = needed[places]
                batch = self.batches[table.batch[members[0]]]
                parts = hashes[np.searchsorted(needed, table.operands[members][:, : len(batch.sorts)])]
                if self.templates[batch.template].commutative:
                    parts = np.sort(parts, axis=1)
                state = mix(
                    np.full(parts.shape[::2], batch.template, np.uint64), table.out[members].astype(np.uint64)[:, None] + 11
                )
                for position in range(parts.shape[1]):
                    state = mix(state, parts[:, position])
                hashes[places] = state
        structure: np.ndarray = hashes[np.searchsorted(needed, rows)]
        return structure


def enumerate_terms(workload: Workload, max_ops: int | None = None, seed: int = 0) -> Enumeration:
    """Enumerates a workload.

    Args:
        workload: the operator group.
        max_ops: greatest number of operator applications; the workload's own where left out.
        seed: of all random inputs. Classes do not depend on it beyond the collisions of a fingerprint.
    """
    ops = workload.max_ops if max_ops is None else max_ops
    return enumerate_under(workload, ops, evaluations_of(workload, seed))


def enumerate_under(workload: Workload, max_ops: int, evaluations: Sequence[Evaluation]) -> Enumeration:
    """Enumerates a workload under evaluations that are given: the three of every enumeration, and perhaps a fourth."""
    return Enumerator(workload, max_ops, evaluations).run()


def evaluations_of(workload: Workload, seed: int) -> list[Evaluation]:
    """The evaluations under which a workload is enumerated, each under other sizes."""
    ordered = any(template.ordered for template in _templates(workload))
    samples = workload.samples or (SAMPLES if ordered else 1)
    evaluations = []
    for number in range(EVALUATIONS):
        sizes = dim_sizes(workload.symbols, number) | {name: chosen[number] for name, chosen in workload.sizes.items()}
        evaluations.append(Evaluation(seed, number, sizes, samples))
    if ordered and samples < SAMPLES:
        least = {name: s[EVALUATIONS] if len(s) > EVALUATIONS else min(s) for name, s in workload.sizes.items()}
        sizes = dim_sizes(workload.symbols, 0) | least
        evaluations.append(Evaluation(seed, EVALUATIONS, sizes, _ORDER_SAMPLES))
    return evaluations


def _templates(workload: Workload) -> list[OperatorTemplate]:
    return [OperatorTemplate(get_operator(t.op), t.attrs, t.inputs) for t in workload.operator_terms]


class Enumerator:
    """Enumerates a workload level by level.

    Args:
        workload: whose terms are wanted.
        max_ops: greatest number of operator applications.
        evaluations: under which terms are fingerprinted.
    """

    def __init__(self, workload: Workload, max_ops: int, evaluations: Sequence[Evaluation]) -> None:
        self.workload, self.max_ops, self.evaluations = workload, max_ops, evaluations
        self.leaves = [var(name) for name in workload.variables] + list(workload.constant_terms)
        templates = _templates(workload)
        self.batches = BatchTable(templates, self._within_limits)
        self.applied = np.array([[t.operator.name == name for name in workload.uses] for t in templates], np.int8)
        self.table = self._leaf_table()
        self.nodes = SharedNodes(self.table, max_ops) if workload.shared else None
        self.space = TermSpace(workload, self.leaves, self.batches, self.applied, self.nodes)
        self.values = OperandValues(self.table, self.batches, evaluations)

        self.counts, self.classes = [len(self.leaves)], [len(self.leaves)]

    def run(self) -> Enumeration:
        """Enumerates all levels."""
        self.below()
        return self.finished(self.parts(self.grids(self.max_ops), self.max_ops), self.values.keys)

    def below(self) -> None:
        """Enumerates all levels but the last."""
        self._evaluate_leaves()
        for level in range(1, self.max_ops):
            self._keep(self.parts(self.grids(level), level), level, self.values.keys)

    def grids(self, level: int) -> list[tuple[int, TermGrid]]:
        """The grids of a level, numbered."""
        return list(enumerate(self.space.grids(self.table, level)))

    def finished(self, parts: list[LevelPart], keys: KeysOf) -> Enumeration:
        """The enumeration, given the terms of its last level, and what tells further fingerprints of them."""
        self._keep(parts, self.max_ops, keys)
        return Enumeration(
            self.workload,
            self.max_ops,
            self.leaves,
            self.batches.templates,
            self.batches.batches,
            self.batches.types,
            self.table,
            self.evaluations,
            self.counts,
            self.classes,
        )

    def _within_limits(self, type_: TensorType) -> bool:
        """Small enough, not empty, and no matrix of one entry: such laws hold for it alone."""
        if type_.rank and all(dim == 1 for dim in type_.shape):
            return False
        if any(size < 1 for evaluation in self.evaluations for size in evaluation.shape(type_)):
            return False
        return type_.rank <= self.workload.max_rank and self.evaluations[0].entries(type_) <= self.workload.max_entries

    def _leaf_type(self, leaf: Term) -> TensorType:
        return self.workload.types[leaf.name] if leaf.is_var else self.workload.constant_type(leaf)

    def _leaf_table(self) -> TermTable:
        types = [self.batches.type_number(self._leaf_type(leaf)) for leaf in self.leaves]
        names = self.workload.uses
        return TermTable.of_leaves(
            np.array([1 << i if leaf.is_var else 0 for i, leaf in enumerate(self.leaves)], np.uint64),
            np.array(types, np.int32),
            np.array([[(leaf.name if leaf.is_var else leaf.op) == name for name in names] for leaf in self.leaves], np.int8),
            max((len(template.slots) for template in self.batches.templates), default=0),
            len(self.evaluations),
        )

    def _evaluate_leaves(self) -> None:
        """Draws the values of the leaves; each makes them operands."""
        exponentials = self.workload.exponentials
        for i, leaf in enumerate(self.leaves):
            type_ = self._leaf_type(leaf)
            pair = exponentials or leaf.op == "Const"
            kind: ValueKind = "bool" if type_.dtype == DataType.BOOL else "pair" if pair else "residue"
            self.table.sort[i] = self.batches.sort_number(int(self.table.type[i]), kind)
            for e, evaluation in enumerate(self.evaluations):
                value = evaluation.leaf(leaf, type_, exponentials)
                self.values.store(np.array([i]), value, e)
                self.table.keys[i, e] = self.values.fingerprints[e].of(value, type_)[0]

    def parts(self, grids: Sequence[tuple[int, TermGrid]], level: int) -> list[LevelPart]:
        """The terms of some grids of a level with their fingerprints."""
        parts: list[LevelPart] = []
        for number, grid in grids:
            try:
                for positions, keys, defined in self.values.first_keys(self.space, grid, self.max_ops - level):
                    operands = np.stack([rows[i] for rows, i in zip(grid.columns, positions, strict=True)], axis=1)
                    operands = operands.astype(np.int32)
                    if not defined.all():
                        operands, keys = operands[defined], [k[defined] for k in keys]
                    parts.append(LevelPart(number, grid.batch, operands, keys))
            except Unsupported:
                continue
        return parts

    def _keep(self, parts: list[LevelPart], level: int, keys: KeysOf) -> None:
        """Keeps the terms of a level with their classes, and makes operands of them."""
        self.counts.append(sum(len(each) for part in parts for each in part.keys))
        if not self.counts[-1]:
            self.classes.append(0)
            return
        last = level == self.max_ops
        level_terms = classified(parts, self.values, last, keys)
        self.classes.append(level_terms.fresh)
        before = len(self.table.cls)
        self.table.append(level_terms.rows, level_terms.cls, level_terms.trivial, level, self.batches, self.applied)
        if self.nodes is not None:
            template = np.array([batch.template for batch in self.batches.batches])[level_terms.rows.batch]
            self.nodes.append(self.table, before, self.applied[template])
        if not last:
            self._extend(np.arange(before, len(self.table.cls)), level_terms.first)

    def _extend(self, rows: np.ndarray, start: int) -> None:
        """Makes operands of the new terms, or of the first of every class from ``start`` on."""
        table = self.table
        rows = rows[~table.trivial[rows]]
        if self.workload.extend == "representatives":
            rows = rows[table.cls[rows] >= start]
            _, first = np.unique(table.cls[rows], return_index=True)
            rows = rows[np.sort(first)]
        for members, value in self.values.of(table.rows(rows), 0):
            kind: ValueKind = "bool" if not isinstance(value, FieldArray) else "residue" if value.q is None else "pair"
            table.sort[rows[members]] = self.batches.sort_number(int(table.type[rows[members[0]]]), kind)
            self.values.store(rows[members], value, 0)
