"""The search for the kernels of a goal: values that compute it, their block graphs, and the rules that these make."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import LIMITS, DeviceLimits
from mugraph.domains.base import Unsupported
from mugraph.terms.shape import ShapeError, Undecided
from rulegen.mugraphs.enumerate import EnumerationLimits, Found
from rulegen.mugraphs.goals import Goal, GoalProgram
from rulegen.mugraphs.kernels import KnownBlocks, kernels_of_values
from rulegen.mugraphs.plans import plan_of
from rulegen.mugraphs.values import Value, closure_of
from rulegen.mugraphs.verification import RandomTests, random_tests
from rulegen.mugraphs.windows import graphs_of
from rules_db.trust.certificate import Evidence
from rules_db.trust.interpreted import LEAST_TESTS, interpret, kernel_rule
from rules_db.trust.rule import Rule

__all__ = ["FoundKernels", "KernelSearch", "search"]

_MOST_TRIED = 32
"""Kernels of a goal that are proved or tested."""
_MOST_MADE = 64
"""Graphs of a goal, those of fewest operators, that kernels are made of."""


@dataclass(frozen=True, slots=True)
class KernelSearch:
    """How kernels are searched for.

    Attributes:
        limits: of the enumeration.
        device: what block graphs have to fit.
        kernels: so many of a goal are looked at, those of least work; of a plan (:mod:`rulegen.mugraphs.plans`) one is kept.
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
    """The kernels of one block graph, and of several, that compute a goal."""
    began, outcome = time.process_time(), FoundKernels(goal)
    try:
        program = GoalProgram(goal)
        outcome.operators = program.operators
        if any(set(axes) != program.values.look(root).axes for root, axes in zip(program.roots, program.outputs, strict=True)):
            raise Unsupported("the result is the same along an axis")
        if len(set(program.roots)) < len(program.roots):
            raise Unsupported("two results are one value")
        found = graphs_of(program, how.limits, how.seed)
    except (Unsupported, ShapeError, Undecided) as reason:
        outcome.note = f"no program of block operators: {reason}"
        return outcome
    outcome.states, outcome.pruned = len(found.values), found.pruned
    outcome.candidates, outcome.refuted = found.candidates, found.refuted
    outcome.note = "; ".join(filter(None, (found.stopped and f"stopped after {found.stopped}", found.rewritten, found.undecided)))
    outcome.results = len(found.results)
    tests: dict[_Roots, RandomTests] = {}
    kept: dict[Hashable, Rule] = {}
    good = 0
    for roots, kernel in _kernels(goal, found, how.device):
        if good == how.kernels or outcome.tried == _MOST_TRIED:
            break
        plan = plan_of(kernel)
        if plan in kept and _is_proved(kept[plan]):
            good += 1
            continue
        if roots not in tests:
            tests[roots] = random_tests(program, found.values, roots, how.seed)
            outcome.refuted += not tests[roots].passed
        if not tests[roots].passed:
            continue
        outcome.tried += 1
        provenance = {"group": "block", "block-ops": str(len(closure_of(roots))), "seed": str(how.seed)}
        if tests[roots].tests:
            provenance |= {"tests": str(tests[roots].tests), "delta": f"2^-{tests[roots].delta}"}
        rule = kernel_rule(kernel, provenance, how.seed)
        if _is_proved(rule) or interpret(kernel, LEAST_TESTS, how.seed) is None:
            good += 1
            kept[plan] = rule if _is_proved(rule) else kept.get(plan, rule)
    outcome.rules = list(kept.values())
    outcome.seconds = time.process_time() - began
    return outcome


_Roots = tuple[Value, ...]


def _is_proved(rule: Rule) -> bool:
    return rule.certificate.evidence is Evidence.PROVED


def _kernels(goal: Goal, found: Found, device: DeviceLimits) -> list[tuple[_Roots, Kernel]]:
    """The kernels of what was found, with what they compute: those of least work first, each once."""
    made: dict[bytes, tuple[float, _Roots, Kernel]] = {}
    known: KnownBlocks = {}
    for roots in found.results[:_MOST_MADE]:
        for each in kernels_of_values(goal, found.program, found.values, roots, device, known):
            made.setdefault(each.kernel.digest, (each.work, roots, each.kernel))
    return [(roots, kernel) for _, roots, kernel in sorted(made.values(), key=lambda item: item[0])]
