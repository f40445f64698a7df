"""The commands that grow groups: grow, ship."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import click
from rich.table import Table

import rules_db
from rulegen.cli.console import (
    bar,
    check_targets,
    fresh_option,
    jobs_option,
    output,
    print_rules,
    rules_file_option,
    scheduler_option,
    store_rules,
    together_option,
    working,
    write_rules,
)
from rulegen.cli.texts import shipped_text
from rulegen.grow.growth import Growth
from rulegen.grow.stages import grow_parts
from rulegen.grow.tested import rules_on_tests
from rulegen.journal import Journal
from rulegen.workers import UnitWorkers
from rulegen.workloads import GROUPS, WORKLOADS
from rulegen.workloads.workload import Workload
from rules_db.files import check_writable, write_text
from rules_db.library import shipped_rules
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["SHIPPED", "grow_command", "ship_command"]

SHIPPED = Path(rules_db.__file__).parent / "shipped"
"""The folder of the rules that come with the package."""


def _group(context: click.Context, parameter: click.Parameter, name: str | None) -> tuple[str, tuple[Workload, ...]]:
    """The parts of a group, or one part alone."""
    if name is None:
        raise click.MissingParameter(ctx=context, param=parameter)
    if name in GROUPS:
        return name, GROUPS[name]
    if name in WORKLOADS:
        return name, (WORKLOADS[name],)
    nearest = get_close_matches(name, [*GROUPS, *WORKLOADS], 1)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    raise click.BadParameter(f"unknown group '{name}'; known groups: {', '.join(GROUPS)}{hint}")


def _grow(
    parts: Sequence[Workload],
    max_ops: int | None,
    seed: int,
    fresh: bool,
    workers: UnitWorkers,
    known: Sequence[Rule] = (),
) -> tuple[list[Growth], list[Journal]]:
    """Growths, and the journals to remove when the rules are where they belong."""
    journals: list[Journal] = []

    def journal_of(part: Workload, before: Sequence[Workload]) -> Journal:
        parameters: dict[str, object] = {"group": part.name, "ops": max_ops or part.max_ops, "shared": part.shared, "seed": seed}
        parameters |= {"behind": [other.name for other in before], "known": ",".join(rule.id for rule in known)}
        journals.append(Journal.of(parameters, fresh=fresh))
        return journals[-1]

    with bar("grow") as show:
        show(0, None, "starting")
        return grow_parts(parts, max_ops, seed, journal_of, lambda words: show(0, None, words), workers, known), journals


def _table(columns: Mapping[str, Sequence[Growth]]) -> Table:
    """Counts per stage (TASO, table 3); a column may sum several growths."""
    table = Table("left after", *columns)
    for column in table.columns[1:]:
        column.justify = "right"
    stages = [stage.name for stage in next(iter(columns.values()))[0].stages]
    for place, name in enumerate(stages):
        table.add_row(name, *(f"{sum(g.stages[place].left for g in growths):,}" for growths in columns.values()))
    shares = [(sum(len(g.unproved) for g in growths), sum(g.survivors for g in growths)) for growths in columns.values()]
    table.add_row("certified", *(f"{100 * (1 - unproved / max(survivors, 1)):.1f} %" for unproved, survivors in shares))
    table.add_row("(contradicted)", *(f"{sum(len(g.suspicious) for g in growths):,}" for growths in columns.values()))
    table.add_row("seconds", *(f"{sum(g.seconds for g in growths):.1f}" for growths in columns.values()))
    return table


@click.command("grow")
@click.option(
    "--group",
    callback=_group,
    metavar="NAME",
    help=f"One of {', '.join(GROUPS)}, or a part of one.",
)
@click.option("--max-ops", type=click.IntRange(min=1), help="Greatest number of operators a side; default: the group's.")
@click.option("--shared", is_flag=True, help="Count an operator that several read once, as in a graph.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option("--rules", metavar="URL", help="Rule database (path or URL) that the rules enter.")
@rules_file_option
@click.option("--unproved", type=click.Path(path_type=Path), metavar="FILE", help="Write what is true as far as tested.")
@click.option("--beyond-shipped", is_flag=True, help="Only rules that those that ship do not derive.")
@click.option("--tested", "with_tests", is_flag=True, help="Take polynomial rules without a proof too, on bounded tests.")
@jobs_option
@scheduler_option
@together_option
@fresh_option
def grow_command(
    group: tuple[str, tuple[Workload, ...]],
    max_ops: int | None,
    shared: bool,
    seed: int,
    rules: str | None,
    out: Path | None,
    unproved: Path | None,
    beyond_shipped: bool,
    with_tests: bool,
    jobs: int,
    scheduler: str | None,
    together: str | None,
    fresh: bool,
) -> None:
    """Grows the rules of an operator group.

    A growth that was interrupted or killed resumes where it stopped, with the same outcome.
    """
    check_targets(rules, out, unproved)
    name, parts = group
    if shared:
        parts = tuple(replace(part, shared=True) for part in parts)
    known = shipped_rules() if beyond_shipped else ()
    with working(jobs, scheduler, together) as workers:
        growths, journals = _grow(parts, max_ops, seed, fresh, workers, known)
    for growth in growths if with_tests else ():
        growth.rules += rules_on_tests(growth)
    if unproved is not None:
        write_text(unproved, "".join(f"{candidate}\n" for growth in growths for candidate in growth.unproved))
    console = output()
    console.print(_table({growth.workload.name: [growth] for growth in growths}))
    grown = [rule for growth in growths for rule in growth.rules]
    if out is not None:
        write_rules(console, out, shipped_text(name, growths), grown)
    if rules is not None:
        store_rules(console, rules, grown, Trust.TESTED if with_tests else Trust.PROVED)
    for journal in journals:
        journal.remove()
    if out is None and rules is None:
        print_rules(console, grown)
    _tell_contradicted(growths)


def _tell_contradicted(growths: Iterable[Growth]) -> None:
    """Reports proofs that random inputs contradict: an operator property is wrong. Exits with 1 where there are any."""
    suspicious = [candidate for growth in growths for candidate in growth.suspicious]
    for candidate in suspicious:
        output().print(f"proof contradicted: {candidate}", markup=False)
    if suspicious:
        sys.exit(1)


@click.command("ship")
@click.option("--out", type=click.Path(path_type=Path), default=SHIPPED, metavar="FOLDER", help="Default: the package's own.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@jobs_option
@scheduler_option
@together_option
@fresh_option
def ship_command(out: Path, seed: int, jobs: int, scheduler: str | None, together: str | None, fresh: bool) -> None:
    """Grows every group that ships and writes FOLDER/GROUP.rules.

    It resumes where it stopped, as grow does.
    """
    grown: dict[str, list[Growth]] = {}
    journals: list[Journal] = []
    shipped = {name: parts for name, parts in GROUPS.items() if parts[0].ships}
    for name in shipped:
        check_writable(out / f"{name}.rules")
    with working(jobs, scheduler, together) as workers:
        for name, parts in shipped.items():
            grown[name], made = _grow(parts, None, seed, fresh, workers)
            journals += made
            write_text(out / f"{name}.rules", shipped_text(name, grown[name]))
    for journal in journals:
        journal.remove()
    output().print(_table(grown))
    _tell_contradicted(growth for growths in grown.values() for growth in growths)
