"""A growth or mining by so many processes, as JSON: ``python -m tools.bench.sharing {share,play} {GROUP,mine} PROCESSES``.

It imports what the command imports, and no more, since imports are a part of what is measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from mugraph.starting import rare_collections
from rulegen.grow.stages import grow_parts
from rulegen.workers import UnitWorkers, open_workers
from rulegen.workloads import GROUPS
from rules_db.exchange import format_rules
from tools.bench.processes import TracedProcesses, played


def shared(what: str, workers: UnitWorkers, show: Callable[[str], None]) -> str:
    """The rules of a group, or those that are mined from some spellings."""
    if what == "mine":
        rules: str = import_module("tools.bench.mined").mined_rules(workers, show)  # a growth imports nothing of it
        return rules
    return format_rules(rule for growth in grow_parts(GROUPS[what], show=show, workers=workers) for rule in growth.rules)


def share(what: str, jobs: int) -> Mapping[str, Any]:
    """Seconds of the clock, and of processors with imports."""
    start = time.perf_counter()
    with open_workers(jobs) as workers:
        text = shared(what, workers, lambda text: None)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "clock": time.perf_counter() - start,
        "here": time.process_time(),
        "others": others.ru_utime + others.ru_stime,
        "text": text,
    }


def play(what: str, jobs: int) -> Mapping[str, Any]:
    """As it would be were as many processors, or one more, these processes' alone."""
    workers = TracedProcesses(jobs)
    text = shared(what, workers, workers.stage)
    workers.close()
    timeline = workers.timeline
    alone, beside = (played(timeline, jobs, processors) for processors in (jobs, jobs + 1))
    idle = [(stage, at, seconds) for (stage, at), seconds in sorted(alone.idle.items(), key=lambda entry: -entry[1])[:5]]
    return {
        "here": timeline.first,
        "others": timeline.others,
        "seconds": (alone.seconds, beside.seconds),
        "idle": idle,
        "text": text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=("share", "play"))
    parser.add_argument("what", choices=(*GROUPS, "mine"))
    parser.add_argument("processes", type=int)
    arguments = parser.parse_args()
    with rare_collections():
        print(json.dumps({"share": share, "play": play}[arguments.how](arguments.what, arguments.processes)))


if __name__ == "__main__":
    main()
