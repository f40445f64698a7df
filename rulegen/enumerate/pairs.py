"""From classes of terms to pairs worth a rule.

Single-output candidates pair a class's representative with each other member. Multi-output candidates are of the
essential kind only: several programs on one side, and on the other terms that share a node which none of the programs alone
could become without the others' variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from mugraph.ops import get_operator
from rulegen.enumerate.enumeration import Enumeration
from rulegen.enumerate.fingerprint import mix

__all__ = ["multi_output_pairs", "single_pairs", "unique_up_to_renaming", "worthwhile"]


def single_pairs(enumeration: Enumeration) -> np.ndarray:
    """Rows (member, representative), as indices of terms [pairs, 2]; the representative is the smaller or earlier one."""
    _, first, inverse = np.unique(enumeration.table.cls, return_index=True, return_inverse=True)
    members = np.flatnonzero(first[inverse] != np.arange(len(inverse)))
    pairs = np.stack([members, first[inverse[members]]], axis=1)
    saving = enumeration.table.level[pairs[:, 0]] - enumeration.table.level[pairs[:, 1]]
    kept: np.ndarray = pairs[saving >= enumeration.workload.min_saving]
    return kept


def multi_output_pairs(enumeration: Enumeration) -> list[np.ndarray]:
    """Rows (sources, then as many parts), as indices of terms [pairs, 2 * outputs], an array for each number of outputs.

    The parts read one node that they share, which counts once: outputs of one operator, or terms that each leave some of the
    node's variables without effect. Each part equals its source. Two kinds are essential: contractions that share an operand,
    of which each lacks a variable that the node holds; and equal operators on all outputs of one operator, which single rules
    would only undo one by one. Sums and products entry by entry that share an operand gain nothing by concatenation. Any other
    rule with several outputs is made of rules with one: where the sources have the variables of all that the parts share, each
    part replaces its source by itself, and what is shared is shared then.
    """
    table = enumeration.table
    _, first, inverse = np.unique(table.cls, return_index=True, return_inverse=True)
    representative = first[inverse]
    outputs = np.array([len(batch.types) for batch in enumeration.batches] + [1])[table.batch]
    idle = (table.mask & ~table.mask[representative]) != 0
    reads_one = (table.operands >= 0).sum(axis=1) == 1
    is_part = reads_one & (idle | (outputs > 1)) & (table.level[representative] > 0)
    rows = np.flatnonzero(is_part & (representative != np.arange(len(representative))))
    readers: dict[int, dict[int, int]] = {}
    for row in rows.tolist():
        readers.setdefault(int(table.operands[row, 0]), {}).setdefault(int(table.cls[row]), row)
    found: dict[int, list[list[int]]] = {}
    for whole, by_class in readers.items():
        for parts in _essential(enumeration, representative, whole, list(by_class.values())):
            found.setdefault(len(parts), []).append([*representative[parts].tolist(), *parts])
    return [np.array(found[count], np.int64) for count in sorted(found)]


_MOST_OUTPUTS = 4


def _essential(enumeration: Enumeration, representative: np.ndarray, whole: int, rows: list[int]) -> Iterator[list[int]]:
    """The sets of terms that read ``whole`` which are worth a rule."""
    table, template = enumeration.table, _template_numbers(enumeration)
    masks = {row: int(table.mask[representative[row]]) for row in rows}
    by_operator: dict[str, list[int]] = {}
    for row in rows:
        name = enumeration.templates[template[representative[row]]].operator.name
        if name != enumeration.templates[template[row]].operator.name:
            by_operator.setdefault(name, []).append(row)
    for name, alike in by_operator.items():
        for applied in {int(table.batch[row]) for row in alike}:
            parts = [row for row in alike if table.batch[row] == applied]
            if len(parts) == len(enumeration.batches[applied].types) > 1 and {masks[row] for row in parts} == {
                int(table.mask[whole])
            }:
                yield parts
        if get_operator(name).elementwise:
            continue
        for count in range(2, _MOST_OUTPUTS + 1):
            for chosen in map(list, itertools.combinations(alike, count)):
                joint, common = 0, -1
                for row in chosen:
                    joint, common = joint | masks[row], common & masks[row]
                distinct = len({masks[row] for row in chosen}) == count
                if distinct and common and joint == int(table.mask[whole]) and _divide(enumeration, whole, chosen):
                    yield chosen


def _divide(enumeration: Enumeration, whole: int, parts: list[int]) -> bool:
    """Whether the parts divide an axis of what they are parts of, so that nothing is computed in vain."""
    shape, *shapes = (enumeration.types[enumeration.table.type[row]].shape for row in (whole, *parts))
    if any(len(part) != len(shape) for part in shapes):
        return False
    axes = {axis for part in shapes for axis in range(len(shape)) if part[axis] != shape[axis]}
    return len(axes) == 1 and all(sum(part[axis] for part in shapes) == shape[axis] for axis in axes)


def _template_numbers(enumeration: Enumeration) -> np.ndarray:
    """Per term the number of its operator's template, -1 for a leaf."""
    numbers: np.ndarray = np.array([batch.template for batch in enumeration.batches] + [-1])[enumeration.table.batch]
    return numbers


def worthwhile(enumeration: Enumeration, pairs: np.ndarray) -> np.ndarray:
    """Drops single-output pairs that no program needs, except where one side is a leaf.

    These are pairs in which a side has a variable that does not matter to it (x + y - x), which the pair with a leaf and
    congruence cover; the countless spellings of a tensor of zeros or ones; and f(.., a) = f(.., b) where a = b is a pair.
    """
    table = enumeration.table
    mask, level = table.mask[pairs], table.level[pairs]
    plain = (mask[:, 0] == mask[:, 1]) & ~table.trivial[pairs].any(axis=1)
    template, operands = _template_numbers(enumeration)[pairs], table.operands[pairs]
    operand_classes = np.where(operands >= 0, table.cls[operands], -1)
    congruent = (template[:, 0] == template[:, 1]) & (table.out[pairs[:, 0]] == table.out[pairs[:, 1]])
    congruent &= (operand_classes[:, 0] == operand_classes[:, 1]).all(axis=1)
    kept: np.ndarray = pairs[(plain & ~congruent) | (level.min(axis=1) == 0)]
    return kept


def unique_up_to_renaming(enumeration: Enumeration, pairs: np.ndarray) -> np.ndarray:
    """The first of all rows that a renaming of variables of equal type, another order of outputs and a swap of sides make equal.

    ``pairs`` holds the outputs of one side, then as many of the other in the same order. Of every type the first variables are
    used: other rows are renamings of such ones.
    """
    masks = np.bitwise_or.reduce(enumeration.table.mask[pairs], axis=1)
    first_renamings = enumeration.skipped_variables(masks) == 0
    pairs, masks = pairs[first_renamings], masks[first_renamings]
    half, codes = pairs.shape[1] // 2, np.zeros(len(pairs), np.uint64)
    for mask in np.unique(masks):
        rows = np.flatnonzero(masks == mask)
        hashes = enumeration.structure(pairs[rows], enumeration.renamings(int(mask)))
        forth, back = (np.zeros(hashes.shape[::2], np.uint64) for _ in range(2))
        for i in range(half):
            forth += mix(hashes[:, i], hashes[:, i + half])
            back += mix(hashes[:, i + half], hashes[:, i])
        codes[rows] = np.minimum(forth, back).min(axis=1)
    _, first = np.unique(codes, return_index=True)
    kept: np.ndarray = pairs[np.sort(first)]
    return kept
