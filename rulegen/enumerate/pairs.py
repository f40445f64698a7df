"""From classes of terms to pairs worth a rule.

Single-output candidates pair a class's representative with each other member. Multi-output candidates are of the
essential kind only: two programs on one side, and on the other the two parts of a split of one common term, which neither
program alone could become without the other's variables.
"""

from __future__ import annotations

import numpy as np

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


def multi_output_pairs(enumeration: Enumeration) -> np.ndarray:
    """Rows (first source, second source, first part, second part), as indices of terms [pairs, 4].

    The parts split one term. Two kinds are essential: contractions that share an operand, of which each lacks a variable
    that the split term holds; and equal operators on the two parts of a split, which two single rules would only undo one
    by one. Sums and products entry by entry that share an operand gain nothing by concatenation.
    """
    table, templates, template = enumeration.table, enumeration.templates, _template_numbers(enumeration)
    is_split = np.array([t.operator.name == "Split" for t in templates] + [False])[template]
    _, first, inverse = np.unique(table.cls, return_index=True, return_inverse=True)
    representative = first[inverse]
    rows = np.flatnonzero(is_split & (representative != np.arange(len(representative))))
    splits: dict[tuple[int, int], dict[int, int]] = {}
    for row in rows:
        parts = splits.setdefault((int(template[row]), int(table.operands[row, 0])), {})
        parts[int(table.out[row])] = int(row)
    result = []
    for (_, whole), parts in splits.items():
        if len(parts) != 2:
            continue
        a, b = int(representative[parts[0]]), int(representative[parts[1]])
        variables = [int(table.mask[a]), int(table.mask[b])]
        if a == b or min(table.level[[a, b]]) == 0:
            continue
        operator = templates[template[a]].operator
        if operator is not templates[template[b]].operator or operator.name == "Split":
            continue
        shared = variables[0] != variables[1] and bool(variables[0] & variables[1]) and not operator.elementwise
        if variables[0] | variables[1] == int(table.mask[whole]) and (shared or variables[0] == variables[1]):
            result.append((a, b, parts[0], parts[1]))
    return np.array(result, np.int64).reshape(-1, 4)


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
    """The first of all rows that a renaming of variables of equal type and a swap of sides make equal.

    ``pairs`` holds the outputs of one side, then as many of the other. Of every type the first variables are used:
    other rows are renamings of such ones.
    """
    masks = np.bitwise_or.reduce(enumeration.table.mask[pairs], axis=1)
    first_renamings = enumeration.skipped_variables(masks) == 0
    pairs, masks = pairs[first_renamings], masks[first_renamings]
    half, codes = pairs.shape[1] // 2, np.zeros(len(pairs), np.uint64)
    for mask in np.unique(masks):
        rows = np.flatnonzero(masks == mask)
        hashes = enumeration.structure(pairs[rows], enumeration.renamings(int(mask)))
        sides = []
        for columns in (hashes[:, :half], hashes[:, half:]):
            state = columns[:, 0]
            for position in range(1, half):
                state = mix(state, columns[:, position])
            sides.append(state)
        codes[rows] = mix(np.minimum(*sides), np.maximum(*sides)).min(axis=1)
    _, first = np.unique(codes, return_index=True)
    kept: np.ndarray = pairs[np.sort(first)]
    return kept
