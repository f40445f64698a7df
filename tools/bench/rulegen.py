"""The figures of rule generation, with ratios to TASO's where it has them: ``python -m tools.bench.rulegen [--only SECTION]``.

Sections, each runnable alone: ``enumeration`` (terms, time, peak memory), ``groups`` (growth of every group: rules, certified
share, time), ``depth`` (what more operators add to the shipped rules), ``minimal`` (the minimal set of taso-paper),
``certificates``, ``audit``, ``false`` (false rules accepted of many), ``determinism``, ``processes`` (a growth shared among
several) and ``axioms``. What is measured for memory runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from mugraph.starting import rare_collections
from rulegen.enumerate.enumeration import enumerate_terms
from rulegen.grow.stages import grow, grow_parts
from rulegen.properties.report import properties_report
from rulegen.prove.prover import Prover
from rulegen.share.audit import audit
from rulegen.workloads import GROUPS, get_workload
from rules_db.exchange import format_rules
from rules_db.library import shipped_rules
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Verdict
from tools.mutations import attack, corpus

TASO_SECONDS, TASO_MB, TASO_RULES = 113, 7100, 619
"""TASO's generator at three operators (SOSP'19 artefact, measured: facts of the paper's space)."""

console = Console()
Row = Sequence[object]


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _fresh(task: str, *arguments: object, seed: str = "random") -> Any:
    """The JSON that a task of this module prints in a new process."""
    return _printed(["tools.bench.rulegen", "--task", task, *map(str, arguments)], seed)


def _printed(module: Sequence[str], seed: str = "random") -> Any:
    """The JSON that a module with its arguments prints in a new process."""
    command = [sys.executable, "-m", *module]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def _show(title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(
            *(f"{cell:,.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        )
    console.print(table)


# Tasks for a process of their own


def _enumerate(group: str, max_ops: str) -> Mapping[str, Any]:
    workload = get_workload(group)
    base, start = _peak_mb(), time.perf_counter()
    enumeration = enumerate_terms(workload, int(max_ops))
    return {
        "terms": sum(enumeration.counts),
        "seconds": time.perf_counter() - start,
        "base": base,
        "peak": _peak_mb(),
    }


def _grow(group: str, max_ops: str = "", seed: str = "0") -> Mapping[str, Any]:
    start = time.perf_counter()
    growths = grow_parts(GROUPS[group], int(max_ops) if max_ops else None, int(seed))
    stages = list(zip(*(growth.stages for growth in growths), strict=True))
    return {
        "seconds": time.perf_counter() - start,
        "peak": _peak_mb(),
        "unproved": sum(len(growth.unproved) for growth in growths),
        "suspicious": sum(len(growth.suspicious) for growth in growths),
        "survivors": sum(growth.survivors for growth in growths),
        "stages": [(parts[0].name, sum(s.left for s in parts), sum(s.seconds for s in parts)) for parts in stages],
        "text": format_rules(rule for growth in growths for rule in growth.rules),
    }


def _deeper(part: str, max_ops: str, counted: str) -> Mapping[str, Any]:
    """The growth of a part behind all shipped rules, counted as trees or graphs: seconds of this processor."""
    known = shipped_rules()
    start = time.process_time()
    growth = grow(replace(get_workload(part), shared=counted == "graphs"), int(max_ops), before=known)
    return {
        "seconds": time.process_time() - start,
        "peak": _peak_mb(),
        "stages": [(stage.name, stage.left, stage.seconds) for stage in growth.stages],
        "unproved": len(growth.unproved),
        "survivors": growth.survivors,
        "derived": len(growth.derived),
    }


def _left(growth: Mapping[str, Any], stage: str) -> int:
    return next(int(left) for name, left, _ in growth["stages"] if name == stage)


def _classes(group: str, max_ops: str, seed: str) -> Mapping[str, Any]:
    """The partition of a group's terms: for every term the first one of its class."""
    enumeration = enumerate_terms(get_workload(group), int(max_ops), int(seed))
    _, first, inverse = np.unique(enumeration.table.cls, return_index=True, return_inverse=True)
    return {"counts": enumeration.counts, "partition": first[inverse].tolist()}


def _attack(count: str, seed: str) -> Mapping[str, Any]:
    axioms = load_axioms()
    tally = attack(corpus(shipped_rules(), axioms), axioms, int(count), int(seed), Prover(axioms))
    return {
        "false": tally.false,
        "accepted": [str(mutant) for mutant in tally.accepted],
        "kinds": [(kind, outcome, number) for (kind, outcome), number in sorted(tally.counts.items())],
    }


TASKS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "enumerate": _enumerate,
    "grow": _grow,
    "deeper": _deeper,
    "classes": _classes,
    "attack": _attack,
}


# Sections


def enumeration() -> None:
    rows: list[Row] = []
    for group, max_ops in (("taso-paper", 3), ("taso-paper", 4), ("taso", 3)):
        figures = _fresh("enumerate", group, max_ops)
        compared = f"{TASO_SECONDS / figures['seconds']:.0f} x, {TASO_MB / figures['peak']:.0f} x" if max_ops == 3 else ""
        rows.append((f"{group}, {max_ops} operators", figures["terms"], figures["seconds"], figures["peak"], compared))
    _show("Enumeration", ["space", "terms", "s", "peak MB", "TASO's time, memory"], rows)


def minimal() -> None:
    growth = _fresh("grow", "taso-paper", 3)
    _show("Stages, taso-paper at 3 operators", ["left after", "number", "s"], growth["stages"])
    rules, macros = _left(growth, "minimal"), _left(growth, "macros")
    row = ("3 operators", rules, macros, growth["survivors"], growth["unproved"], growth["seconds"], growth["peak"], TASO_RULES)
    _show("Minimal set of taso-paper", ["space", "rules", "macros", "derive", "unproved", "s", "peak MB", "TASO's rules"], [row])


def groups() -> None:
    rows: list[Row] = []
    total = 0.0
    for group in GROUPS:
        growth = _fresh("grow", group)
        total += growth["seconds"]
        certified = 100 * (1 - growth["unproved"] / max(growth["survivors"], 1))
        rules, macros = _left(growth, "minimal"), _left(growth, "macros")
        rows.append((group, rules, macros, growth["survivors"], f"{certified:.1f} %", growth["seconds"], growth["peak"]))
        console.print(f"{group}: {rules} rules, {growth['seconds']:.1f} s", style="dim")
    rows.append(("all", "", "", "", "", total, ""))
    _show("Growth of all groups", ["group", "rules", "macros", "after the gate", "certified", "s", "peak MB"], rows)


DEPTHS = (
    ("taso", 4, "trees"),
    ("taso-parts", 4, "trees"),
    ("taso-constants", 3, "trees"),
    ("conv-channels", 4, "graphs"),
    ("conv-channels", 5, "trees"),
    ("conv-scale", 4, "graphs"),
    ("conv-scale", 5, "trees"),
    ("guard", 5, "trees"),
    ("linear-gemm", 4, "graphs"),
    ("linear-gemm", 5, "trees"),
    ("lowrank", 5, "trees"),
)


def depth() -> None:
    """What parts add at depths, of which the shipped rules derive nothing; a row is printed when it is there."""
    rows: list[Row] = []
    for part, max_ops, counted in DEPTHS:
        figures = _fresh("deeper", part, max_ops, counted)
        counts = [_left(figures, stage) for stage in ("terms", "field", "proved", "minimal", "macros")]
        rows.append((f"{part}, {max_ops}, {counted}", *counts, figures["unproved"], figures["seconds"], figures["peak"]))
        console.print(*rows[-1], style="dim")
    columns = ["part, operators", "terms", "candidates", "proved, not derived", "minimal", "macros", "unproved", "s", "peak MB"]
    _show("Beyond what ships", columns, rows)


def certificates() -> None:
    rules = [rule.sample() for rule in shipped_rules()]
    start = time.perf_counter()
    prover = Prover()
    compiled = time.perf_counter() - start
    start = time.perf_counter()
    certified = sum(prover.certify(rule.source, rule.target, rule.types) is not None for rule in rules)
    seconds = time.perf_counter() - start
    row = (len(rules), certified, compiled, seconds, 1000 * seconds / len(rules))
    _show("Certificates", ["rules", "certified", "compiling s", "s", "s per 1,000 rules"], [row])


def audits() -> None:
    rules = shipped_rules()
    rows: list[Row] = []
    for jobs in (1, 2):
        start = time.perf_counter()
        report = audit(rules, jobs=jobs)
        seconds = time.perf_counter() - start
        rows.append((jobs, report.checked, len(report.failures), seconds, 1000 * seconds / report.checked))
    _show("Audit, both checkers and random tests", ["processes", "rules", "failures", "s", "s per 1,000 rules"], rows)


def false_rules(count: int = 10_000) -> None:
    start = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        halves = list(pool.map(_fresh, ["attack"] * 2, [count // 2, count - count // 2], [0, 1]))
    kinds: dict[tuple[str, str], int] = {}
    for half in halves:
        for kind, outcome, number in half["kinds"]:
            kinds[kind, outcome] = kinds.get((kind, outcome), 0) + number
    outcomes = sorted({outcome for _, outcome in kinds})
    rows = [(kind, *(kinds.get((kind, outcome), 0) for outcome in outcomes)) for kind in sorted({kind for kind, _ in kinds})]
    _show("Mutants", ["kind", *outcomes], rows)
    accepted = [text for half in halves for text in half["accepted"]]
    for text in accepted:
        console.print(text, markup=False)
    false = sum(half["false"] for half in halves)
    _show("False rules", ["false", "accepted", "s"], [(false, len(accepted), time.perf_counter() - start)])


def determinism(group: str = "lowrank", max_ops: int = 3) -> None:
    texts = {_fresh("grow", group, max_ops, 0, seed=str(hash_seed))["text"] for hash_seed in (1, 2)}
    partitions = [_fresh("classes", group, max_ops, seed) for seed in range(5)]
    same = all(each == partitions[0] for each in partitions)
    rows = [("same seed, same text", "yes" if len(texts) == 1 else "NO"), ("five seeds, same classes", "yes" if same else "NO")]
    _show(f"Determinism, {group} at {max_ops} operators", ["what", "holds"], rows)


def processes(whats: Sequence[str] = ("taso", "attention", "linear", "conv", "mine")) -> None:
    """What several processes gain: were so many processors, or one more for the first process, theirs alone; and by the clock."""
    rows: list[Row] = []
    for what in whats:
        alone = _printed(["tools.bench.sharing", "share", what, "1"])
        rows.append((what, 1, alone["here"], 0.0, *[""] * 5))
        for jobs in (2, 8):
            model = _printed(["tools.bench.sharing", "play", what, str(jobs)])
            each = [cell for seconds in model["seconds"] for cell in (seconds, alone["here"] / seconds)]
            rows.append((what, jobs, model["here"], model["others"], *each, _same(model, alone)))
            console.print(*rows[-1], style="dim")
            for stage, at, seconds in model["idle"]:
                console.print(
                    f"  idle {seconds:.2f} s before {stage}, while the first process is at {at}", style="dim", markup=False
                )
        shared = _printed(["tools.bench.sharing", "share", what, "2"])
        console.print(f"{what}: by the clock {alone['clock']:.1f} / {shared['clock']:.1f} s, {_same(shared, alone)}", style="dim")
    columns = ["what", "processes", "processor s, first", "others", "s", "times", "s, one more processor", "times", "same rules"]
    _show("Processes", columns, rows)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return "yes" if one["text"] == other["text"] else "NO"


def axioms() -> None:
    start = time.perf_counter()
    report = properties_report(rules=shipped_rules())
    verdicts = [record.symbolic.verdict for record in report.properties]
    row = (
        len(verdicts),
        *(verdicts.count(verdict) for verdict in (Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN)),
        sum(record.numeric.hits for record in report.properties),
        sum(bool(record.lemma) for record in report.properties),
        len(report.inconsistent),
        time.perf_counter() - start,
    )
    _show("Operator properties", ["all", "proved", "refuted", "unknown", "numeric hits", "lemmas", "inconsistent", "s"], [row])


SECTIONS: dict[str, Callable[[], None]] = {
    "enumeration": enumeration,
    "minimal": minimal,
    "groups": groups,
    "depth": depth,
    "certificates": certificates,
    "audit": audits,
    "false": false_rules,
    "determinism": determinism,
    "processes": processes,
    "axioms": axioms,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections; default: all")
    parser.add_argument("--false-rules", type=int, default=10_000, help="false rules wanted in section 'false'")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        with rare_collections():
            print(json.dumps(TASKS[arguments.task[0]](*arguments.task[1:])))
        return
    for name in arguments.only:
        if name == "false":
            false_rules(arguments.false_rules)
        else:
            SECTIONS[name]()


if __name__ == "__main__":
    main()
