"""The search for the kernels of a goal: values that compute it, their block graphs, and the rules that these make."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import LIMITS, DeviceLimits
from mugraph.domains.base import Unsupported
from mugraph.terms.shape import ShapeError, Undecided
from rulegen.mugraphs.blocks import kernels_of_value, work
from rulegen.mugraphs.enumerate import EnumerationLimits, Found, enumerate_values
from rulegen.mugraphs.goals import Goal, GoalProgram
from rulegen.mugraphs.values import Value
from rulegen.mugraphs.verification import RandomTests, random_tests
from rules_db.trust.certificate import Evidence
from rules_db.trust.interpreted import LEAST_TESTS, interpret, kernel_rule
from rules_db.trust.rule import Rule

__all__ = ["FoundKernels", "KernelSearch", "search"]

_MOST_TRIED = 32
"""Kernels of a goal that are proved or tested."""


@dataclass(frozen=True, slots=True)
class KernelSearch:
    """How kernels are searched for.

    Attributes:
        limits: of the enumeration.
        device: what block graphs have to fit.
        kernels: at most so many are kept of a goal, those of least work.
        seed: of all random choices.
    """

    limits: EnumerationLimits = field(default_factory=EnumerationLimits)
    device: DeviceLimits = LIMITS["h200"]
    kernels: int = 4
    seed: int = 0


@dataclass
class FoundKernels:
    """The outcome of a search.

    Attributes:
        rules: kernel graph and kernel, those of least work first.
        operators: of the goal as it is written.
        states: values that were made; ``pruned`` applications were excluded by expressions.
        candidates: values of the goal's expression; ``refuted`` of them compute something else.
        results: values that compute the goal in fields; ``tried`` kernels of them fit the device and are valid.
        note: why the search is not complete, or why nothing was searched; nothing where it is.
    """

    goal: Goal
    rules: list[Rule] = field(default_factory=list)
    operators: int = 0
    states: int = 0
    pruned: int = 0
    candidates: int = 0
    refuted: int = 0
    results: int = 0
    tried: int = 0
    seconds: float = 0.0
    note: str = ""


def search(goal: Goal, how: KernelSearch) -> FoundKernels:
    """The kernels of one block graph that compute a goal."""
    began, outcome = time.monotonic(), FoundKernels(goal)
    try:
        program = GoalProgram(goal)
        outcome.operators = len(program.values[program.root.number].closure)
        if set(program.output) != program.values.look(program.root).axes:
            raise Unsupported("the result is the same along an axis")
        found = enumerate_values(program, how.limits, how.seed)
    except (Unsupported, ShapeError, Undecided) as reason:
        outcome.note = f"no program of block operators: {reason}"
        return outcome
    outcome.states, outcome.pruned = len(found.values), found.pruned
    outcome.candidates, outcome.refuted = found.candidates, found.refuted
    outcome.note = "; ".join(filter(None, (found.stopped and f"stopped after {found.stopped}", found.undecided)))
    outcome.results = len(found.results)
    tests: dict[int, RandomTests] = {}
    for value, kernel in _kernels(goal, found, how.device):
        if len(outcome.rules) == how.kernels or outcome.tried == _MOST_TRIED:
            break
        if value.number not in tests:
            tests[value.number] = random_tests(program, found.values, value, how.seed)
            outcome.refuted += not tests[value.number].passed
        if not tests[value.number].passed:
            continue
        outcome.tried += 1
        provenance = {"group": "block", "block-ops": str(len(value.closure)), "seed": str(how.seed)}
        if tests[value.number].tests:
            provenance |= {"tests": str(tests[value.number].tests), "delta": f"2^-{tests[value.number].delta}"}
        rule = kernel_rule(kernel, provenance, how.seed)
        if rule.certificate.evidence is Evidence.PROVED or interpret(kernel, LEAST_TESTS, how.seed) is None:
            outcome.rules.append(rule)
    outcome.seconds = time.monotonic() - began
    return outcome


def _kernels(goal: Goal, found: Found, device: DeviceLimits) -> Iterator[tuple[Value, Kernel]]:
    """The kernels of what was found, with what they compute: those of least work first, each once."""
    program, values = found.program, found.values
    order = sorted(found.results, key=lambda value: (work(goal, program, values, value), len(value.closure), value.number))
    seen = set()
    for value in order:
        for kernel in kernels_of_value(goal, program, values, value, device):
            if kernel.digest not in seen:
                seen.add(kernel.digest)
                yield value, kernel
