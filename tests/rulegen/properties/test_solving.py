"""Operands that are solved from what a property's terms ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mugraph.ops.interp import infer_types
from rulegen.properties import solving
from rulegen.properties.case_typing import TypedSides
from rulegen.properties.solving import SMALL, SolvedSampler, solutions
from tests.support.properties import AXIOMS, one

HARD = (
    "contrib.multi_head_mask",
    "contrib.conv_residual",
    "contrib.rotary_tables",
    "conv.bias_shift.Conv",
    "fused.embed_segments",
    "fused.heads_bias_mask",
    "fused.packed_parts",
    "fused.grouped_mask",
    "fused.group_query_keys",
    "fused.group_rotary",
)


@pytest.mark.parametrize("name", HARD)
def test_what_random_types_hardly_ever_meet_is_solved(name: str) -> None:
    """Hidden sizes that are heads times their size, tables, places in them, residuals, operands side by side."""
    axiom, generator = AXIOMS[name], np.random.default_rng(0)
    found = solutions(axiom)
    assert found
    drawn = [found[i % len(found)].draw(generator, SMALL) for i in range(60)]
    assert sum(TypedSides(axiom, attrs).of(types) is not None for types, attrs in drawn) >= 5


def test_sizes_are_those_of_real_heads_too() -> None:
    sampler = SolvedSampler(AXIOMS["fused.heads"], np.random.default_rng(0))
    drawn = [sample for sample in (sampler.draw() for _ in range(100)) if sample is not None]
    assert {64, 128} <= {attrs["d"] for _, attrs in drawn}


def test_what_cannot_be_typed_has_no_solution() -> None:
    assert solutions(one("a: MatMul(x, y) = Neg(x) when typed(MatMul(x, y)), rank(y, 0)")) == ()
    assert SolvedSampler(one("a: Neg(x) = x when rank(x, 2), rank(x, 3)"), np.random.default_rng(0)).draw() is None


def test_ranks_that_contradict_each_other_in_a_part_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two convolutions side by side: four operands of up to four dimensions each, of which each convolution admits few."""
    typings = []

    def counted(*arguments: Any) -> Any:
        typings.append(arguments)
        return infer_types(*arguments)

    monkeypatch.setattr(solving, "infer_types", counted)
    assert solving.solutions.__wrapped__(AXIOMS["conv.concat_groups"])
    assert len(typings) < 30_000
