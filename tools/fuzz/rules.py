"""False rules, damaged texts and poisoned caches, to see that none gets through and none brings anything down.

*False rules* are made by :mod:`tools.mutations`: of each one that evaluation refutes the checker must say no. *Texts* are blocks
of rules with characters, words, numbers and lines changed; *stores* are verdicts and costs of a cache, changed likewise. Of these
a reader may say anything in one clear error, and nothing else, within two seconds.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from rewriter.cost.store import ProfileError, ProfileStore
from rewriter.cost.table import read_table
from rewriter.run.outcome import Outcome
from rules_db.exchange import RuleTextError, format_rule, parse_rule
from rules_db.library import shipped_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule
from tools.mutations import attack, corpus

__all__ = ["Finding", "attack_stores", "attack_texts", "damaged", "rules_command", "stores_command", "texts_command"]

PATIENCE = 2.0
"""Seconds of processor time that the reading and checking of one text may take."""
_WORDS = (
    "999999999999999999999999",
    "-1",
    "0",
    "-1.0",
    "1e309",
    "nan",
    "inf",
    "true",
    "a^1000000000",
    "min(k,m)",
    "min(k-1,m)",
    "floor((m+1)/2)",
    "floor((m)/0)",
    "(" * 300,
    "((-1,),)",
    "'",
    "$x",
    "float16",
    "bool[]",
    "Kernel",
    "Nothing",
    "x" * 5_000,
    "\u00b2",
    "\x00",
    "",
)
"""What stands in the place of a word."""


@dataclass(frozen=True)
class Finding:
    """A damaged text that was not answered as it should: what happened, and the text."""

    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.what}: {self.text[:200]!r}"


def damaged(text: str, generator: np.random.Generator) -> str:
    """A text with one to three things changed: a word, a character, a line, a piece that goes or comes twice."""
    for _ in range(1 + int(generator.integers(3))):
        lines = text.splitlines() or [""]
        row = int(generator.integers(len(lines)))
        at, to = sorted(int(i) for i in generator.integers(len(text) + 1, size=2))
        to = min(to, at + 40)
        match int(generator.integers(7)):
            case 0:
                words = lines[row].replace("(", " ( ").replace(",", " , ").split(" ")
                words[int(generator.integers(len(words)))] = _WORDS[int(generator.integers(len(_WORDS)))]
                lines[row] = " ".join(words)
                text = "\n".join(lines)
            case 1:
                text = text[:at] + chr(int(generator.integers(1, 0x250))) + text[at + 1 :]
            case 2:
                text = text[:at] + text[to:]
            case 3:
                text = text[:to] + text[at:]
            case 4:
                del lines[row]
                text = "\n".join(lines)
            case 5:
                lines.insert(row, lines[int(generator.integers(len(lines)))])
                text = "\n".join(lines)
            case _:
                text = text[:at] + _WORDS[int(generator.integers(len(_WORDS)))] + text[at:]
    return text


def _answered(what: str, text: str, read: Callable[[], object], expected: tuple[type[Exception], ...]) -> Finding | None:
    """What is wrong with the way in which a text is answered; ``None`` where it is read or refused in time."""
    began = time.process_time()
    try:
        read()
    except expected as problem:
        if "\n" in str(problem) or len(str(problem)) > 2_000:
            return Finding(f"{what}: an error of {len(str(problem))} characters", text)
    except Exception as problem:  # that is what is looked for
        return Finding(f"{what}: {type(problem).__name__}: {str(problem)[:100]}", text)
    spent = time.process_time() - began
    return Finding(f"{what}: {spent:.1f} s", text) if spent > PATIENCE else None


def attack_texts(rules: Sequence[Rule], count: int, seed: int = 0) -> Iterator[Finding]:
    """Damaged blocks of rules, read and checked."""
    generator, axioms = np.random.default_rng([seed, 29]), load_axioms()
    texts = [format_rule(rule) for rule in rules]

    def examine(text: str) -> None:
        """With the identity that the content has, as an author would write it."""
        try:
            rule = parse_rule(text)
        except RuleTextError as problem:
            _, marked, rest = str(problem).partition("has the identity ")
            if not marked:
                raise
            old = text.split("\n", 1)[0]
            rule = parse_rule(text.replace(old, f"rule {rest.split(';')[0]}", 1))
        check(rule, axioms)

    for _ in range(count):
        text = damaged(texts[int(generator.integers(len(texts)))], generator)
        finding = _answered("a rule", text, partial(examine, text), (RuleTextError,))
        if finding is not None:
            yield finding


def _damaged_value(value: Any, generator: np.random.Generator) -> Any:
    """A value of JSON with something in it changed."""
    others = (None, True, -1, 0, 1e300, float("nan"), "x", [], {}, "9" * 5_000, [[[[]]]], -1e-300, 2**70)
    if generator.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return others[int(generator.integers(len(others)))]
    if isinstance(value, dict):
        key = list(value)[int(generator.integers(len(value)))]
        if generator.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _damaged_value(value[key], generator)}
    place = int(generator.integers(len(value)))
    return [*value[:place], _damaged_value(value[place], generator), *value[place + 1 :]]


def attack_stores(folder: Path, count: int, seed: int = 0) -> Iterator[Finding]:
    """Damaged outcomes of verdicts, cost tables and rows of costs, read."""
    generator = np.random.default_rng([seed, 31])
    outcome = json.loads(json.dumps(Outcome("m", "o", notes=("n",)).record()))
    table = {"format": 2, "environment": "e", "onnxruntime": "1", "provider": "cpu", "costs": {"a": 1.0, "b": 2.5}}
    path = folder / "table.json"
    for number in range(count):
        changed = _damaged_value(outcome, generator)
        text = json.dumps(changed)
        refusals = (KeyError, TypeError, ValueError, AttributeError)
        finding = _answered("an outcome", text, partial(_read_outcome, changed), refusals)
        if finding is not None:
            yield finding
        text = damaged(json.dumps(table), generator) if number % 2 else json.dumps(_damaged_value(table, generator))
        path.write_text(text, encoding="utf-8")
        if (finding := _answered("a table", text, lambda: _sound(read_table(path).costs), (ProfileError,))) is not None:
            yield finding
    values = (None, True, -1, 1e300, "x", b"\x00", "9" * 5_000, float("inf"), float("-inf"), -1e-300)
    for value in values:
        store = ProfileStore(folder / "profile.sqlite", "e")
        store.put("sound", 1.0)
        store.close()
        _write_row(folder / "profile.sqlite", value)
        read = partial(_read_costs, folder / "profile.sqlite")
        if (finding := _answered("a row", repr(value), read, (ProfileError,))) is not None:
            yield finding


def _read_outcome(record: Any) -> None:
    Outcome.of_record(record, "m", "o").to_json()


def _read_costs(path: Path) -> None:
    _sound(ProfileStore(path, "e").costs)


def _sound(costs: Mapping[str, float]) -> None:
    """Raises AssertionError where something stands among costs that is none."""
    for cost in costs.values():
        assert 0 <= cost < float("inf"), cost


def _write_row(path: Path, value: object) -> None:
    """A row of costs as somebody else may write it."""
    with sqlite3.connect(path) as connection:
        connection.execute("insert or replace into costs_3 values ('e', 'damaged', coalesce(?, 'null'))", (value,))
    connection.close()


def _told(title: str, count: int, findings: Iterator[Finding], out: Path | None) -> None:
    """Prints what was found and ends the process with its exit code."""
    console, began, kinds = Console(width=150), time.monotonic(), Counter[str]()
    for finding in findings:
        kinds[finding.what[:60]] += 1
        console.print(str(finding), markup=False)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{title}-{kinds.total()}.txt").write_text(f"{finding.what}\n\n{finding.text}", encoding="utf-8")
    console.print(f"{title}: {count} examined, {kinds.total()} findings, {time.monotonic() - began:.0f} s", markup=False)
    sys.exit(1 if kinds else 0)


_count = click.option("--count", default=1_000, show_default=True, help="How many.")
_seed = click.option("--seed", default=0, show_default=True, help="Seed of all of them.")
_out = click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for what was found.")


@click.command("rules")
@_count
@_seed
def rules_command(count: int, seed: int) -> None:
    """Makes false rules from the shipped ones and offers them to the checker."""
    axioms, console, began = load_axioms(), Console(width=150), time.monotonic()
    tally = attack(corpus(shipped_rules(), axioms), axioms, count, seed)
    for mutant in tally.accepted:
        console.print(f"accepted: {mutant}", markup=False)
    made = sum(tally.counts.values())
    line = f"rules: {made} mutants, {tally.false} false, {len(tally.accepted)} accepted, {time.monotonic() - began:.0f} s"
    console.print(line, markup=False)
    sys.exit(1 if tally.accepted else 0)


@click.command("texts")
@_count
@_seed
@_out
def texts_command(count: int, seed: int, out: Path | None) -> None:
    """Damages the text of rules and reads it."""
    _told("texts", count, attack_texts(shipped_rules(), count, seed), out)


@click.command("stores")
@_count
@_seed
@_out
@click.option("--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), required=True, help="For the caches.")
def stores_command(count: int, seed: int, out: Path | None, folder: Path) -> None:
    """Damages verdicts, cost tables and rows of costs and reads them."""
    _told("stores", count, attack_stores(folder, count, seed), out)
