"""The text of rule files that ship: a header that says how they are made again, then the rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mugraph.lines import in_a_line
from rulegen.grow.growth import Growth
from rulegen.rules import GENERATOR_VERSION
from rulegen.workloads import WORKLOADS
from rules_db.exchange import format_rules
from rules_db.trust.rule import Rule

__all__ = ["kernels_text", "mined_text", "shipped_text", "spelled_text"]

_NAMED = 3
"""Models that a header names, at most."""


def shipped_text(name: str, growths: Sequence[Growth]) -> str:
    """The text of a grown group, with the rules of its parts one after the other."""
    limited = [growth for growth in growths if growth.max_ops != growth.workload.max_ops]
    limit = f" --max-ops {limited[0].max_ops}" if limited else ""
    counted = " --shared" if growths[0].workload.shared != WORKLOADS[growths[0].workload.name].shared else ""
    command = f"rulegen grow --group {name}{limit}{counted} --seed {growths[0].seed}"
    header = (
        f"# Grown, not written: {command} (generator {GENERATOR_VERSION}).\n"
        "# To change it, change the workload or the operator properties and run 'make rules'.\n\n"
    )
    return header + format_rules(rule for growth in growths for rule in growth.rules)


def mined_text(rules: Sequence[Rule], models: Collection[str], seed: int, interrupted: str = "") -> str:
    """The text of mined rules.

    Args:
        models: the names of those that they were mined from.
        interrupted: how far it had come when the user stopped it, in words.
    """
    header = (
        f"# Mined, not written: rulegen mine --seed {seed} (generator {GENERATOR_VERSION}) {_on(models)}.\n"
        "# To change it, change these or the operator properties and mine again.\n"
    )
    return f"{header}{_incomplete(interrupted)}\n{format_rules(rules)}"


def kernels_text(rules: Sequence[Rule], models: Collection[str], seed: int, interrupted: str = "") -> str:
    """The text of multi-level rules that a search found, as :func:`mined_text`."""
    header = f"# Found, not written: rulegen mine --kernels --seed {seed} (generator {GENERATOR_VERSION}) {_on(models)}.\n"
    return f"{header}{_incomplete(interrupted)}\n{format_rules(rules)}"


def _on(models: Collection[str]) -> str:
    names = sorted(in_a_line(name) for name in models)
    if len(names) > _NAMED:
        return f"on {len(names)} models, {names[0]} to {names[-1]}"
    return f"on {', '.join(names)}"


def _incomplete(interrupted: str) -> str:
    return f"# Not complete: it was interrupted when {interrupted}.\n" if interrupted else ""


def spelled_text(rules: Sequence[Rule], operators: Sequence[str], seed: int) -> str:
    """The text of rules that were found from definitions."""
    header = (
        f"# Spelled, not written: rulegen spell {' '.join(operators)} --seed {seed} (generator {GENERATOR_VERSION}).\n"
        "# To change it, change the operator properties and find them again.\n\n"
    )
    return header + format_rules(rules)
