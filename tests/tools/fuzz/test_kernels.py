"""No false kernel is proved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mugraph.blocks.statements import Compute, PlaceTile
from mugraph.blocks.text import kernel_to_json
from mugraph.ops.masks import mask_text
from mugraph.terms.shape import DataType, symbol
from mugraph.terms.text import parse_term
from rules_db.trust import interpreted
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.block_kernels import F32, kernel_of_terms, tensor
from tools.fuzz import kernel_changes, kernels
from tools.fuzz.kernel_changes import kernel_mutants
from tools.fuzz.kernels import KernelFate, attack_kernels, kernels_command, shipped_kernels

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "rules_db" / "shipped" / "kernels.rules"


def test_false_mutants_of_the_shipped_kernels_are_not_proved() -> None:
    tally = attack_kernels(shipped_kernels(SHIPPED), 100, 7)
    assert tally.false >= 100 and tally.fates[KernelFate.TRUE] > 0 and not tally.proved
    assert {change for change, fate in tally.by_change if fate is KernelFate.REJECTED} >= {
        "cut_off",
        "change_term",
        "change_body",
    }


def test_false_mutants_of_a_kernel_with_a_mask_are_not_proved() -> None:
    b, h, s, t = map(symbol, "bhst")
    types = {name: tensor(F32, b, h, n, 4) for name, n in (("q", s), ("k", t), ("v", t))}
    mask = mask_text(np.random.default_rng(2).random((4, 5)) < 0.7)
    scores = f"Where(StoredMask[columns=t,entries='{mask}',rows=s](), MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    kernel = kernel_of_terms("stored", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    tally = attack_kernels([kernel], 150, 7)
    assert not tally.proved and tally.by_change["change_mask", KernelFate.REJECTED] > 5


def test_false_mutants_of_a_kernel_with_places_are_neither_proved_nor_do_they_pass_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many keys count, and which entry of a cache is new, is told by integers that places are compared with."""
    b, s, t = map(symbol, "bst")
    place = "Unsqueeze[axes=(-1,)](Range[dtype=int64,limit=t,start=0]())"
    after = f"Sub({place}, Range[dtype=int64,limit=3+s,start=3]())"
    count, one = tensor(DataType.INT64, b), tensor(DataType.INT64)
    counted = kernel_of_terms(
        "counted",
        {"x": tensor(F32, b, t, s), "i": count},
        {"y": f"Where(Less({after}, Unsqueeze[axes=(-2,-1)](i)), x, 0.0)"},
    )
    written = kernel_of_terms(
        "written",
        {"old": tensor(F32, b, t, 4), "new": tensor(F32, b, 1, 4), "i": one},
        {"y": f"Where(Equal({place}, i), new, old)"},
    )
    monkeypatch.setattr(kernel_changes, "_CHANGES", (kernel_changes._change_place,))
    assert not attack_kernels([counted, written], 60, 5).proved
    for module in (kernels, interpreted):
        monkeypatch.setattr(module, "why_not_proved", lambda kernel: "nothing is")
    tally = attack_kernels([counted, written], 60, 5, tested=True)
    assert tally.false >= 60 and not tally.proved


@pytest.mark.parametrize("wrong", ["saves places", "chooses places", "counts four at most"])
def test_tests_tell_what_is_wrong_with_places(wrong: str) -> None:
    """Numbers of another kind than the body's, or a graph that is right as long as the run tells a small number."""
    t = symbol("t")
    place = "Range[dtype=int64,limit=t,start=0]()"
    inputs = {"i": tensor(DataType.INT64), "x": tensor(F32, t)}
    kernel = kernel_of_terms("k", inputs, {"y": f"Where(Less({place}, i), x, Neg(x))"})
    assert interpret(kernel, LEAST_TESTS, 0) is None
    (block,) = kernel.blocks
    (tile,) = (s for s in block.statements if isinstance(s, PlaceTile))
    (store,) = block.stores
    text = {
        "saves places": tile.name,
        "chooses places": f"Where(Less({tile.name}, i_tile), x_tile, {tile.name})",
        "counts four at most": f"Where(Less({tile.name}, Min(i_tile, 4.0)), x_tile, Neg(x_tile))",
    }[wrong]
    statements = (
        *(s for s in block.statements if s is not store),
        Compute("other", parse_term(text)),
        replace(store, value="other"),
    )
    assert interpret(replace(kernel, blocks=(replace(block, statements=statements),)), LEAST_TESTS, 0) is not None


def test_a_proof_that_accepts_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "why_not_proved", lambda kernel: None)
    tally = attack_kernels(shipped_kernels(SHIPPED)[:1], 5, 0)
    assert len(tally.proved) == 5 == tally.fates[KernelFate.ACCEPTED]


def test_it_is_told_how_many_kernels_are_proved_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, kernel in enumerate([*(kept := shipped_kernels(SHIPPED)[:3]), kept[0]]):
        (tmp_path / f"{number}.json").write_text(json.dumps({"kernel": kernel_to_json(kernel)}), encoding="utf-8")
    honest, unproved = kernels.why_not_proved, kept[1].digest
    monkeypatch.setattr(kernels, "why_not_proved", lambda kernel: "it is not" if kernel.digest == unproved else honest(kernel))
    told = CliRunner().invoke(kernels_command, ["--corpus", str(tmp_path), "--count", "0"], catch_exceptions=False)
    assert told.output.splitlines()[0] == "3 kernels, 2 of them proved for all sizes"


def test_mutants_repeat_from_their_seed() -> None:
    def some() -> list[str]:
        mutants = kernel_mutants(shipped_kernels(SHIPPED), np.random.default_rng(3))
        return [next(mutants).kernel.digest.hex() for _ in range(10)]

    assert some() == some()


def test_tests_in_place_of_a_proof_are_attacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nothing proves is accepted where interpretation passes it: of false mutants none."""
    monkeypatch.setattr(kernels, "why_not_proved", lambda kernel: "nothing is")
    assert not attack_kernels(shipped_kernels(SHIPPED)[:2], 10, 1, tested=True).proved
    monkeypatch.setattr(kernels, "interpret", lambda *arguments: None)
    assert len(attack_kernels(shipped_kernels(SHIPPED)[:2], 3, 1, tested=True).proved) >= 3


def test_an_attack_that_was_cut_off_goes_on_and_processes_tell_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, journal = shipped_kernels(SHIPPED)[:1], tmp_path / "journal"
    alone = attack_kernels(chosen, 12, 0)
    attack_kernels(chosen, 6, 0, jobs=2, journal=journal)
    kept = journal.read_text(encoding="utf-8").splitlines()
    with journal.open("a", encoding="utf-8") as out:
        out.write('{"digest"')  # killed while it wrote
    asked: list[KernelFate] = []
    honest = kernels._fate
    monkeypatch.setattr(kernels, "_fate", lambda *arguments: asked.append(honest(*arguments)) or asked[-1])
    again = attack_kernels(chosen, 12, 0, journal=journal)
    assert again == alone
    assert journal.read_text(encoding="utf-8").splitlines()[: len(kept)] == kept
    assert 0 < len(asked) < again.fates.total()
    with pytest.raises(ValueError, match="name another file"):
        attack_kernels(chosen, 12, 1, journal=journal)
