"""Parts of a group side by side, by units of work: the same rules whoever does them, is killed at them, or sends nonsense."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rulegen.grow import candidates, certification, selection, shards, stages
from rulegen.grow.recorded import recorded
from rulegen.grow.stages import grow_parts
from rulegen.journal import Journal
from rulegen.workers import Processes, UnitWorkers
from rulegen.workloads import WORKLOADS
from rules_db.exchange import format_rule, format_rules, parse_rule
from rules_db.files import StoreError
from rules_db.trust.certificate import Certificate
from tests.support.candidates import candidate_of, proved

PARTS = [
    WORKLOADS["linear"],
    replace(WORKLOADS["lowrank"], equations=("Mul(s, 1.0) = s", "Mul(X, 1.0) = X", "Mul(X, s) = X")),
]

TASKS = {
    "paired_data": candidates,
    "general_data": candidates,
    "most_general_data": candidates,
    "delta_data": candidates,
    "declared_data": stages,
    "prospect_data": stages,
    "derivable_data": selection,
    "macro_data": selection,
    "wider_data": selection,
}
"""Every kind of unit after the terms, and the module that asks for it."""


def grown(workers: UnitWorkers | None = None) -> str:
    """All that a group of several parts gives, with two operators."""
    growths = grow_parts(PARTS, 2, workers=workers)
    told = []
    for growth in growths:
        stages_told = " ".join(f"{stage.name}={stage.left}" for stage in growth.stages)
        others = [*growth.unproved, *growth.suspicious, *growth.derived]
        told.append("\n".join([format_rules(growth.rules), stages_told, str(growth.terms), *map(str, others)]))
    return "\n\n".join(told)


@pytest.fixture(scope="module")
def alone() -> str:
    return grown()


class Afar(UnitWorkers):
    """Does units here, behind JSON, and counts them; may change what they give."""

    def __init__(self, count: int, change: Callable[[str, Any], Any] = lambda task, result: result) -> None:
        self.count, self._change = count, change
        self.units: Counter[str] = Counter()

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        self.units[function.__name__] += len(units)
        for unit in units:
            result = json.loads(json.dumps(function(json.loads(json.dumps(unit)))))
            yield self._change(function.__name__, result)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_units_of_every_kind_give_the_same_rules(count: int, alone: str) -> None:
    workers = Afar(count)
    assert grown(workers) == alone
    assert {*TASKS} - {*workers.units} == ({"prospect_data"} if count == 1 else set())
    assert workers.units["paired_data"] == len(PARTS) - 1, "the first is shared among all"


REFRESHES = ("refreshes", "processes")


class Noting(UnitWorkers):
    """Does units when their results are asked for, and notes what is asked for and waited for."""

    count = 2
    are_own = True

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    def refresh(self) -> None:
        self.notes.append(REFRESHES)

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        self.notes += [("asks", function.__name__)] * len(units)
        return self._given(function, units)

    def _given(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        for unit in units:
            self.notes.append(("waits", function.__name__))
            yield function(unit)


def test_others_have_something_to_do_where_one_process_is_alone_at_something(monkeypatch: pytest.MonkeyPatch, alone: str) -> None:
    monkeypatch.setattr(shards, "PIECE", 300 * 8)
    workers = Noting()
    assert grown(workers) == alone
    notes, last = workers.notes, {note: place for place, note in enumerate(workers.notes)}
    refreshes = [place for place, note in enumerate(notes) if note == REFRESHES]
    assert last["asks", "paired_data"] < refreshes[0] < notes.index(("asks", "first_keys_data")), (
        "while the first levels are made"
    )
    assert last["waits", "first_keys_data"] < notes.index(("asks", "general_data")), "while the first part is paired"
    assert last["asks", "most_general_data"] < refreshes[1] < last["waits", "most_general_data"], "while the prover is made"
    assert refreshes[1] < notes.index(("asks", "prospect_data"))
    assert last["asks", "declared_data"] < notes.index(("waits", "delta_data")), "until the last candidate passes the gate"
    many = Noting()
    many.count = 5  # so many do not spare proofs
    assert grown(many) == alone
    counts = Counter(many.notes)
    assert 0 < counts["waits", "prospect_data"] < counts["asks", "prospect_data"], "what is derived meanwhile is not waited for"


def test_proofs_are_not_asked_of_what_others_under_way_seem_to_derive() -> None:
    plain, wide = (candidate_of(f"Concat[axis={axis}](Neg(x), Neg(u)) = Neg(Concat[axis={axis}](x, u))") for axis in (-1, -2))
    renamed = candidate_of("Concat[axis=-1](Neg(u), Neg(x)) = Neg(Concat[axis=-1](u, x))")
    exchanged = candidate_of("Concat[axis=-1](Neg(u), Neg(x)) = Neg(Concat[axis=-1](x, u))")
    twice, other = candidate_of("Neg(Neg(x)) = x"), candidate_of("Neg(Neg(Neg(Neg(x)))) = x")
    guess = stages._Guess([], True)
    assert not guess.is_like_another(renamed)
    assert guess.asks(plain) and guess.is_like_another(renamed) and not guess.is_like_another(exchanged)
    assert guess.is_like_another(wide) and not guess.is_like_another(twice)
    assert guess.asks(twice) and not guess.asks(other)  # applied twice it derives that
    guess.forget(twice)
    guess.forget(plain)
    assert not guess.is_like_another(renamed)
    assert not guess.is_like_another(wide) and guess.asks(other)
    guess.learn(proved("Neg(Neg(x)) = x"))
    assert not guess.asks(candidate_of("Neg(Neg(Relu(x))) = Relu(x)"))
    assert stages._Guess([], True, [plain]).is_like_another(wide)
    many = stages._Guess([], False)
    assert many.asks(plain) and many.asks(twice) and many.asks(other) and not many.is_like_another(wide)


def test_pieces_name_variables_as_one_would(monkeypatch: pytest.MonkeyPatch, alone: str) -> None:
    monkeypatch.setattr(candidates, "PIECE", 7)
    assert grown(Afar(2)) == alone


def deadly_once(module: str, name: str, mark: str, unit: Any) -> Any:
    """The function of a module; kills its process when it is asked for the first time."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return ORIGINALS[name](unit)
    os.kill(os.getpid(), signal.SIGKILL)


ORIGINALS: dict[str, Callable[[Any], Any]] = {name: getattr(module, name) for name, module in TASKS.items()}


@pytest.mark.parametrize("task", TASKS)
def test_a_process_that_is_killed_at_a_unit_costs_no_rule(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: str
) -> None:
    mark = tmp_path / "killed"
    monkeypatch.setattr(TASKS[task], task, partial(deadly_once, TASKS[task].__name__, task, str(mark)))
    workers = Processes(2)
    try:
        assert grown(workers) == alone
    finally:
        workers.close()
    assert mark.exists()


PACKED = [["Neg(Neg(x))"], ["x"], {"x": "float[m,n]"}]

READERS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "paired_data": (candidates._read_paired, []),
    "general_data": (candidates._read_general, [{"x": "float[m,n]"}, 0, [PACKED]]),
    "most_general_data": (candidates._read_places, [{"x": "float[m,n]"}, [PACKED]]),
    "delta_data": (candidates._read_deltas, [[PACKED, PACKED], 0]),
    "declared_data": (certification.read_declared, [[], "x = x"]),
    "derivable_data": (selection._read_answers, [[], [0, 1]]),
    "macro_data": (selection._read_macros, [[], [], []]),
    "wider_data": (selection._read_rules, [[], PACKED, "0123"]),
}

NO_RESULTS = [
    *(None, 7, [7], [[7]], {}, "text", ["none"], [None, "2^-x"], [True, 1], [["proved", "no rule"]]),
    *(["proved", "no rule"], ["no fate", PACKED], ["unproved", 7], {"candidates": [7]}),
    {"candidates": [], "variables": [["t0", "float["]]},
    {"candidates": [], "variables": [["x", "float[m,n]"]]},
    {"candidates": [[["x"], [7], {}]], "variables": []},
    {"terms": [1], "classes": [1], "left": [1, 1, 1], "candidates": []},
    {"terms": [1], "classes": ["1"], "left": [1, 1, 1, 1], "candidates": []},
    *({"common subgraph": 1, "instances": 1, "places": places} for places in ([1], [-1], [0, 0], ["0"], 7)),
]


@pytest.mark.parametrize("task", READERS)
def test_what_is_no_result_ends_in_one_line(task: str) -> None:
    read, unit = READERS[task]
    for result in NO_RESULTS:
        workers = Afar(2)
        workers.map = lambda function, units, result=result: iter([result])  # type: ignore[method-assign, assignment, misc]
        with pytest.raises(StoreError, match=f"a worker sent what is no result of {task}") as caught:
            list(recorded(Journal(), "key", workers, ORIGINALS[task], [unit], read))
        assert "\n" not in str(caught.value)


NO_CANDIDATES = [["Nothing(x"], ["x"], {"x": "float[m,n]"}], [["x"], ["y"], {"x": "float[m,n]", "y": "float["}]


@pytest.mark.parametrize("packed", NO_CANDIDATES)
def test_what_are_no_candidates_ends_in_one_line(packed: Any) -> None:
    """Also where every worker in turn passes it on."""

    def changed(task: str, given: Any) -> Any:
        return {**given, "candidates": [packed] * len(given["candidates"])} if task == "general_data" else given

    class Passing(Afar):
        def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
            if function is candidates.most_general_data:
                firsts = [[0] if unit[1] else [] for unit in units]
                return iter([{"common subgraph": len(first), "instances": len(first), "places": first} for first in firsts])
            if function is candidates.delta_data:
                return iter([["none"] * len(unit[0]) for unit in units])
            return super().map(function, units)

    with pytest.raises(StoreError, match=r"a worker sent what are no candidates .*--fresh"):
        grown(Passing(2, changed))


@pytest.mark.parametrize("task", ["macro_data", "wider_data", "declared_data"])
def test_a_rule_without_a_proof_is_not_taken(task: str) -> None:
    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(bare, value))
        return format_rule(replace(parse_rule(value), certificate=Certificate(()))) if str(value).startswith("rule ") else value

    with pytest.raises(StoreError, match=r"a worker sent rule \w+, which is not taken: not proved"):
        grown(Afar(2, lambda name, given: bare(given) if name == task else given))
