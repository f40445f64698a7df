"""What it costs to open a user's database for a run: ``python -m tools.bench.databases [--rules 1000 10000 100000]``.

The rules are true ones, each proved by one property, over the functions that the registry has, such as
F(G(H(x))) + K(y) = K(y) + F(G(H(x))). Each way to open them has a process of its own: every rule read and checked, as all were
before checks were remembered; the same by the first run, which remembers that; a later one, which reads those rules that a model
with the operators of a transformer may call for; and one that reads all, as for a model that has every operator. More rules than
``--checked`` are entered as checked, since that is not what is measured then. Seconds are a processor's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mugraph.ops import REGISTRY
from mugraph.terms.term import make, var
from mugraph.terms.text import parse_type
from rules_db.exchange import format_rule
from rules_db.library import open_presumed, open_rules, read_entries
from rules_db.remembered import RememberedChecks
from rules_db.store import RuleStore
from rules_db.trust.certificate import Certificate, Evidence, Instance, Trust
from rules_db.trust.properties import QUANTIFIERS, load_axioms
from rules_db.trust.rule import FloatClass, Rule

_TRANSFORMER = (
    "MatMul",
    "Add",
    "Mul",
    "Div",
    "Sub",
    "Softmax",
    "Transpose",
    "Reshape",
    "Erf",
    "Tanh",
    "Sqrt",
    "ReduceMean",
    "Pow",
)


def _rules(count: int) -> Iterator[Rule]:
    """True rules, no two of one identity."""
    types = {name: parse_type("[m,n]") for name in "xy"}
    laws = (("Add", "add.commutative"), ("Mul", "mul.commutative"), ("Max", "max.commutative"), ("Min", "min.commutative"))
    functions = [name for name, record in REGISTRY.items() if QUANTIFIERS["entrywise"](record) and not record.defaults]
    names = [n for n in itertools.product(functions, functions, functions, functions, laws) if n[0] != n[3]]
    random.Random(0).shuffle(names)
    for first, second, third, last, (op, law) in names[:count]:
        left, right = make(first, (make(second, (make(third, (var("x"),)),)),)), make(last, (var("y"),))
        proof = Certificate((Instance(law, (("x", left), ("y", right))),))
        yield Rule((make(op, (left, right)),), (make(op, (right, left)),), types, (), FloatClass.EXACT, proof)


def _fill(path: str, count: str, is_checked: str) -> int:
    """A task: writes a database, and where that is wanted, that its rules were checked."""
    RuleStore.open(path).close()
    with sqlite3.connect(path) as database:
        database.executemany("INSERT INTO rules VALUES (?, ?)", ((rule.id, format_rule(rule)) for rule in _rules(int(count))))
    if is_checked == "checked":
        RememberedChecks().put((entry, Evidence.PROVED) for entry in read_entries(path))
    return 0


def _open(path: str, how: str) -> dict[str, float]:
    """A task: opens a database; rules, those that were read, seconds and megabytes, also those of a process that opens none."""
    load_axioms()  # as any run has them
    start, before = time.process_time(), _peak_mb()
    if how == "checked anew":
        rules: Sequence[Rule] = open_rules(path)
    else:
        book = open_presumed(path, Trust.PROVED, print)
        rules = list(book) if how == "read, all" else book.within(_TRANSFORMER)
    return {"read": len(rules), "seconds": time.process_time() - start, "mb": _peak_mb(), "more": _peak_mb() - before}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_TASKS = {"fill": _fill, "open": _open}


def _fresh(cache: Path, task: str, *arguments: object) -> Any:
    """What a task gives in a process of its own."""
    command = [sys.executable, "-m", "tools.bench.databases", "--task", task, *map(str, arguments)]
    environment = {**os.environ, "ONNX_SUPEROPT_CACHE": str(cache)}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", nargs="+", type=int, default=[1_000, 10_000, 100_000], help="rules in the database")
    parser.add_argument("--checked", type=int, default=10_000, help="most rules that are really checked first")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(_TASKS[arguments.task[0]](*arguments.task[1:])))
        return
    table = Table("rules", "opened", "read", "s", "peak MB", "of it for the rules")
    for column in table.columns[2:]:
        column.justify = "right"
    for count in arguments.rules:
        with tempfile.TemporaryDirectory() as folder:
            path, cache, is_few = Path(folder) / "rules.db", Path(folder) / "cache", count <= arguments.checked
            _fresh(cache, "fill", path, count, "unchecked" if is_few else "checked")
            ways = (["checked anew", "first, which remembers"] if is_few else []) + ["for a transformer", "read, all"]
            for how in ways:
                figures = _fresh(cache, "open", path, how)
                numbers = (f"{figures['read']:,}", f"{figures['seconds']:.2f}", f"{figures['mb']:.0f}", f"{figures['more']:.0f}")
                table.add_row(f"{count:,}", how, *numbers)
    Console().print(table)


if __name__ == "__main__":
    main()
