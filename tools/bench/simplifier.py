"""How many rewrites of XLA's algebraic simplifier are equations here, and how many are proved, as rules that are checked again.

    python -m tools.bench.simplifier

The corpus, ``tools/bench/xla.txt``, is in this project's spelling; its head says where the rewrites come from. Each equation goes
the way of ``rulegen prove``, and the rule that it gives is checked again, which is what a reader of a rule file does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rulegen.cli.console import output
from rulegen.prove.prover import Prover
from rulegen.share.proving import Proving, parse_when, prove
from rulegen.show.equations import EquationError, parse_equation, parse_let
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

__all__ = ["CORPUS", "Rewrite", "corpus", "is_one_term", "proving", "seconds_to_check"]

CORPUS = Path(__file__).with_name("xla.txt")
_REPEATED = 5
_FIELDS = ("let", "when", "open")


@dataclass(frozen=True)
class Rewrite:
    """A rewrite of the corpus.

    Attributes:
        name: section and name.
        equation: as ``rulegen prove`` takes it; empty where the rewrite is not expressed.
        let, when: types of variables, and guards.
        missing: why it is not expressed, or not proved; empty where it is both.
    """

    name: str
    equation: str = ""
    let: str = ""
    when: str = ""
    missing: str = ""


def corpus(path: Path = CORPUS) -> tuple[Rewrite, ...]:
    """The rewrites in the order of the file. Raises ValueError for a line that continues nothing, or a name twice."""
    rewrites = tuple(_read(path))
    if len({rewrite.name for rewrite in rewrites}) < len(rewrites):
        raise ValueError(f"{path}: two rewrites of one name")
    return rewrites


def _read(path: Path) -> Iterator[Rewrite]:
    section, entry = "", dict[str, str]()
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), "["], 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("  "):
            field, _, rest = line.strip().partition(" ")
            if not entry:
                raise ValueError(f"{path}:{number}: a continuation of nothing")
            if field in _FIELDS:
                entry[field] = rest
            else:
                entry["equation"] += f" {line.strip()}"
            continue
        if entry:
            yield Rewrite(entry["name"], entry["equation"], entry.get("let", ""), entry.get("when", ""), entry.get("open", ""))
            entry = {}
        if line.startswith("["):
            section = line.strip("[]")
            continue
        name, _, rest = line.partition(" ")
        if rest.startswith("- "):
            yield Rewrite(f"{section}/{name}", missing=rest[2:])
        else:
            entry = {"name": f"{section}/{name}", "equation": rest}


def is_one_term(rewrite: Rewrite) -> bool:
    """Whether both sides are one program of ONNX, so that nothing is to be proved."""
    source, target = parse_equation(rewrite.equation)
    return source == target


def proving(rewrite: Rewrite, prover: Prover) -> Proving:
    """What ``rulegen prove`` says. Raises EquationError where the equation cannot be read or typed."""
    return prove(
        rewrite.equation,
        parse_let(rewrite.let) if rewrite.let else None,
        parse_when(rewrite.when) if rewrite.when else (),
        prover=prover,
    )


def seconds_to_check(rule: Rule, repeated: int = _REPEATED) -> float:
    """A processor's seconds in the checker, the least of several times. Raises ValueError where it finds the rule not proved."""
    axioms, least = load_axioms(), float("inf")
    for _ in range(repeated):
        start = time.thread_time()
        failures = check(rule, axioms)
        least = min(least, time.thread_time() - start)
        if failures:
            raise ValueError(f"rule {rule.id}: {failures[0]}")
    return least


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """The table of all rewrites, or what comes of those whose names begin with NAMES."""
    prover, console = Prover(), output()
    times: list[float] = []
    sections: dict[str, list[int]] = {}
    for rewrite in corpus():
        if names and not rewrite.name.startswith(names):
            continue
        counts = sections.setdefault(rewrite.name.partition("/")[0], [0, 0, 0])
        counts[0] += 1
        if not rewrite.equation:
            console.print(f"{rewrite.name}: not expressed, {rewrite.missing}", markup=False)
            continue
        counts[1] += 1
        if is_one_term(rewrite):
            counts[2] += 1
            continue
        try:
            outcome = proving(rewrite, prover)
        except EquationError as problem:
            console.print(f"{rewrite.name}: {problem}", markup=False)
            continue
        if outcome.rule is None:
            console.print(
                f"{rewrite.name}: {outcome.answer.status}; {outcome.problem or outcome.answer.difference or ''}", markup=False
            )
            continue
        counts[2] += 1
        times.append(seconds_to_check(outcome.rule))
        if names:
            guards = ", ".join(map(str, outcome.rule.conditions)) or "no guards"
            console.print(f"{rewrite.name}: rule {outcome.rule.id}, {outcome.rule.float_class}, {guards}", markup=False)
    table = Table("section", "rewrites", "expressed", "proved", box=SIMPLE_HEAD)
    for section, counts in [*sections.items(), ("all", [sum(column) for column in zip(*sections.values(), strict=True)])]:
        table.add_row(section, *map(str, counts))
    console.print(table)
    if times:
        slow = sum(seconds > 1e-3 for seconds in times)
        console.print(
            f"checked again in {1e3 * median(times):.2f} ms (median), {1e3 * max(times):.2f} ms at most, {slow} above 1 ms"
        )


if __name__ == "__main__":
    main()
