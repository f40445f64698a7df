"""``rulegen``: the command line of the rule generator."""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import rules_db
from mugraph.node import Term
from mugraph.text import format_term, format_value
from rulegen.audit import audit as audit_rules
from rulegen.grow import GENERATOR_VERSION, Growth, Stage, grow
from rulegen.workloads import WORKLOADS, get_workload
from rules_db.axioms import AxiomError, load_axioms
from rules_db.check import instantiate
from rules_db.condition import PREDICATES, Condition
from rules_db.exchange import RuleTextError, format_rules, read_rules
from rules_db.rule import Rule
from rules_db.store import RuleStore, StoreError, open_rules

__all__ = ["cli", "main"]

SHIPPED = Path(rules_db.__file__).parent / "shipped"

_CONTEXT = {"help_option_names": ["-h", "--help"]}


def _out() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _progress() -> Console:
    return Console(stderr=True, highlight=False)


@click.group(context_settings=_CONTEXT)
@click.version_option(package_name="onnx-superopt")
def cli() -> None:
    """Generates, certifies and audits rewrite rules."""


def _write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError as problem:
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as problem:
        os.unlink(name)
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None


def shipped_text(growth: Growth) -> str:
    """The text of a grown group: a header that repeats it, then the rules."""
    command = f"rulegen grow --group {growth.workload.name} --max-ops {growth.max_ops} --seed {growth.seed}"
    header = (
        f"# Grown, not written: {command} (generator {GENERATOR_VERSION}).\n"
        "# To change it, change the workload or the operator properties and run 'make rules'.\n\n"
    )
    return header + format_rules(growth.rules)


def _grow(group: str, max_ops: int | None, seed: int) -> Growth:
    console, workload = _progress(), get_workload(group)
    with console.status(f"{group}: terms") as status:

        def show(stage: Stage) -> None:
            status.update(f"{group}: {stage.left} left after {stage.name}")

        return grow(workload, max_ops, seed, show)


def _table(growths: Sequence[Growth]) -> Table:
    """Counts per stage, one column a group (TASO, table 3)."""
    table = Table("left after", *(g.workload.name for g in growths))
    for rows in zip(*(g.stages for g in growths), strict=True):
        table.add_row(rows[0].name, *(f"{stage.left:,}" for stage in rows))
    table.add_row("(not proved)", *(f"{len(g.unproved):,}" for g in growths))
    table.add_row("(contradicted)", *(f"{len(g.suspicious):,}" for g in growths))
    table.add_row("seconds", *(f"{g.seconds:.1f}" for g in growths))
    return table


@cli.command("grow")
@click.option("--group", required=True, metavar="NAME", help=f"One of {', '.join(WORKLOADS)}.")
@click.option("--max-ops", type=click.IntRange(1, 6), help="Greatest number of operators a side; default: the group's.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option("--rules", metavar="URL", help="Rule database (path or URL) that the rules enter.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.rules", help="Write the rules as text.")
@click.option("--unproved", type=click.Path(path_type=Path), metavar="FILE", help="Write what is true as far as tested.")
def grow_command(group: str, max_ops: int | None, seed: int, rules: str | None, out: Path | None, unproved: Path | None) -> None:
    """Grows the rules of an operator group."""
    growth = _grow(group, max_ops, seed)
    if out is not None:
        _write(out, shipped_text(growth))
    if unproved is not None:
        _write(unproved, "".join(f"{candidate}\n" for candidate in growth.unproved))
    console = _out()
    console.print(_table([growth]))
    if rules is not None:
        with RuleStore.open(rules) as store:
            console.print(f"{store.add_all(growth.rules)} new rules in {escape(rules)}")
    if out is None and rules is None:
        for rule in growth.rules:
            console.print(f"{rule.id} {rule.float_class:<12} {rule}", markup=False)
    for candidate in growth.suspicious:
        console.print(f"proof contradicted: {candidate}", markup=False)
    if growth.suspicious:
        sys.exit(1)


@cli.command("ship")
@click.option("--out", type=click.Path(path_type=Path), default=SHIPPED, metavar="FOLDER", help="Default: the package's own.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
def ship_command(out: Path, seed: int) -> None:
    """Grows every group and writes FOLDER/GROUP.rules."""
    growths = []
    for group in WORKLOADS:
        growths.append(_grow(group, None, seed))
        _write(out / f"{group}.rules", shipped_text(growths[-1]))
    _out().print(_table(growths))
    if any(growth.suspicious for growth in growths):
        sys.exit(1)


def _where(rules: str | None) -> str:
    return rules or "the shipped rules"


@cli.command("stats")
@click.argument("rules", required=False, metavar="[FILE|URL]")
def stats_command(rules: str | None) -> None:
    """Counts the rules of a database or file by group."""
    found = open_rules(rules)
    table = Table("group", "rules", "several outputs", "exact", "reassociates", "approximates", "conditions", "instances")
    groups: dict[str, list[Rule]] = {}
    for rule in found:
        groups.setdefault(rule.provenance.get("group", "-"), []).append(rule)
    for name, members in [*sorted(groups.items()), *([("all", found)] if len(groups) > 1 else [])]:
        classes = Counter(rule.float_class for rule in members)
        table.add_row(
            name,
            str(len(members)),
            str(sum(len(rule.source) > 1 for rule in members)),
            *(str(classes[c]) for c in ("exact", "reassociates", "approximates")),  # type: ignore[index]
            f"{sum(len(rule.conditions) for rule in members) / len(members):.1f} a rule",
            f"{sum(len(rule.certificate.instances) for rule in members) / len(members):.1f} a rule",
        )
    console = _out()
    console.print(f"{len(found)} rules in {escape(_where(rules))}")
    console.print(table)


def _find(rules: Iterable[Rule], prefix: str, where: str) -> Rule:
    found = [rule for rule in rules if rule.id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        raise StoreError(f"{len(found)} rules of {where} begin with '{prefix}'; give more digits")
    raise StoreError(f"no rule of {where} begins with '{prefix}'; 'rulegen stats' counts them, --rules names another database")


def _in_words(condition: Condition) -> str:
    """The definition of the predicate with the condition's arguments for its parameters."""
    predicate = PREDICATES[condition.predicate]
    names = list(inspect.signature(predicate).parameters)[1:]
    words = {n: repr(a) if isinstance(a, Term) else format_value(a) for n, a in zip(names, condition.arguments, strict=True)}
    text = (predicate.__doc__ or condition.predicate).strip().replace("`", "")
    return re.sub(r"\b\w+\b", lambda found: words.get(found.group(), found.group()), text)


@cli.command("show")
@click.argument("rule")
@click.option("--rules", metavar="URL", help="Rule database or .rules file; default: the shipped rules.")
def show_command(rule: str, rules: str | None) -> None:
    """Shows a rule: both sides, its conditions in words and its certificate step by step.

    RULE is an identity or its beginning.
    """
    found = _find(open_rules(rules), rule, _where(rules))
    lines = [f"rule {found.id}   float class: {found.float_class}"]
    lines.append("variables  " + ", ".join(f"{name}: {type_}" for name, type_ in found.types.items()))
    for title, side in (("source", found.source), ("target", found.target)):
        lines += [f"{title if not number else '':<10} {format_term(root)}" for number, root in enumerate(side)]
    if found.conditions:
        lines.append("only if")
        lines += [f"  {condition}: {_in_words(condition)}" for condition in found.conditions]
    lines.append("because, where each line is an operator property with terms for its variables,")
    axioms = load_axioms()
    for number, instance in enumerate(found.certificate.instances, 1):
        axiom, step = axioms.get(instance.axiom), instantiate(instance, axioms)
        assert axiom is not None
        lines += [f"  {number}. {axiom}", f"     {format_term(step.left)}", f"     = {format_term(step.right)}"]
        lines += [f"     where {_in_words(condition)}" for condition in step.conditions]
    lines.append("and equal operands give equal results, so that source and target are equal.")
    lines.append("from       " + ", ".join(f"{key} {value}" for key, value in found.provenance.items()))
    _out().print("\n".join(lines), markup=False)


def _unverified(rules: str | None) -> list[Rule]:
    """Like :func:`open_rules`, but what is not proved stays in, for the audit to say why."""
    if rules is None:
        return open_rules()
    if rules.endswith(".rules"):
        return read_rules(rules)
    with RuleStore.open(rules, create=False) as store:
        return store.rules(verify=False)


@cli.command("audit")
@click.argument("rules", required=False, metavar="[FILE|URL]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random tests.")
def audit_command(rules: str | None, seed: int) -> None:
    """Checks every rule again: text, certificate, typing, Z3 and random tests. Exits with 1 if one fails."""
    found = _unverified(rules)
    with _progress().status("audit") as status:
        report = audit_rules(found, seed=seed, progress=lambda done: status.update(f"audit: {done} of {len(found)}"))
    console = _out()
    for failure in report.failures:
        console.print(str(failure), markup=False)
    bad = len({failure.rule for failure in report.failures})
    console.print(f"{report.checked} rules of {_where(rules)}: {report.checked - bad} stand, {bad} fail", markup=False)
    if not report.passed:
        sys.exit(1)


def _fail(message: str) -> NoReturn:
    print(f"rulegen: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """The console script: one line and exit code 2 for whatever the user can put right."""
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as problem:
        print(problem.format_message())
        sys.exit(0)
    except click.ClickException as problem:
        _fail(problem.format_message())
    except click.Abort:
        sys.exit(130)
    except (StoreError, RuleTextError, AxiomError) as problem:
        _fail(str(problem))
    except KeyError as problem:
        _fail(str(problem.args[0]))
