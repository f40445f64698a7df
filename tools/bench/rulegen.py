"""Time, memory and counts of rule generation: ``python -m tools.bench.rulegen [GROUP ...]``.

Every group is grown in a process of its own, so that its peak memory is its own. The first columns are the enumeration
alone: terms evaluated, time and terms per second.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from rulegen.enumerate import enumerate_terms
from rulegen.grow import grow
from rulegen.workloads import WORKLOADS, get_workload


def measure(group: str, seed: int) -> dict[str, float]:
    """Grows one group in this process."""
    workload = get_workload(group)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    enumeration = enumerate_terms(workload, seed=seed)
    enumerated = time.perf_counter() - start
    terms, classes = sum(enumeration.counts), sum(enumeration.classes)
    enumeration_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del enumeration
    start = time.perf_counter()
    growth = grow(workload, seed=seed)
    return {
        "terms": terms,
        "classes": classes,
        "enumeration": enumerated,
        "enumeration_kib": enumeration_peak - base,
        "growth": time.perf_counter() - start,
        "growth_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "rules": len(growth.rules),
        "unproved": len(growth.unproved),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.groups[0], arguments.seed)))
        return
    table = Table("group", "terms", "classes", "enumerate s", "terms/s", "MiB", "grow s", "peak MiB", "rules", "unproved")
    totals = dict.fromkeys(("enumeration", "growth", "rules", "unproved"), 0.0)
    for group in arguments.groups:
        command = [sys.executable, "-m", "tools.bench.rulegen", group, "--seed", str(arguments.seed), "--one"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for name in totals:
            totals[name] += found[name]
        table.add_row(
            group,
            f"{found['terms']:,}",
            f"{found['classes']:,}",
            f"{found['enumeration']:.2f}",
            f"{found['terms'] / found['enumeration']:,.0f}",
            f"{found['enumeration_kib'] / 1024:.0f}",
            f"{found['growth']:.1f}",
            f"{found['growth_kib'] / 1024:.0f}",
            str(found["rules"]),
            str(found["unproved"]),
        )
    enumeration, growth, rules, unproved = totals.values()
    table.add_row("all", "", "", f"{enumeration:.2f}", "", "", f"{growth:.1f}", "", f"{rules:.0f}", f"{unproved:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
