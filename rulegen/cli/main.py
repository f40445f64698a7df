"""``rulegen``: the command line of the rule generator."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import rules_db
from mugraph.onnx import ModelError, load
from mugraph.terms.term import format_term, format_value
from rulegen.grow.growth import Growth
from rulegen.grow.journal import Journal
from rulegen.grow.stages import grow_parts
from rulegen.grow.tested import rules_on_tests
from rulegen.mine.cuts import Cutting
from rulegen.mine.miner import mine
from rulegen.mugraphs.enumerate import GOALS, Goal, search
from rulegen.properties.report import properties_report
from rulegen.rules import GENERATOR_VERSION
from rulegen.share.audit import audit as audit_rules
from rulegen.share.importing import Status, counts, default_rules, import_file, known_rules
from rulegen.share.merge import merge
from rulegen.show.equations import EquationError, parse_let, typing_text
from rulegen.show.explain import explain
from rulegen.show.picture import svg
from rulegen.show.words import proof_in_words
from rulegen.workloads import GROUPS, WORKLOADS
from rulegen.workloads.workload import Workload
from rules_db.entries import by_size
from rules_db.exchange import RuleTextError, format_rules
from rules_db.files import StoreError, check_writable, write_text
from rules_db.library import open_rules, read_entries
from rules_db.store import RuleStore
from rules_db.trust.properties import AxiomError
from rules_db.trust.rule import FloatClass, Rule

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


def _group(context: click.Context, parameter: click.Parameter, name: str | None) -> tuple[str, tuple[Workload, ...]]:
    """The parts of a group, or one part alone; none with ``--levels block``, whose programs have names of their own."""
    if context.params.get("levels") == "block":
        if name is not None and name not in GOALS:
            raise click.BadParameter(f"unknown program '{name}'; known programs: {', '.join(GOALS)}")
        return name or "", ()
    if name is None:
        raise click.MissingParameter(ctx=context, param=parameter)
    if name in GROUPS:
        return name, GROUPS[name]
    if name in WORKLOADS:
        return name, (WORKLOADS[name],)
    nearest = get_close_matches(name, [*GROUPS, *WORKLOADS], 1)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    raise click.BadParameter(f"unknown group '{name}'; known groups: {', '.join(GROUPS)}{hint}")


def shipped_text(name: str, growths: Sequence[Growth]) -> str:
    """The text of a grown group: a header that repeats it, then the rules of its parts."""
    limited = [growth for growth in growths if growth.max_ops != growth.workload.max_ops]
    limit = f" --max-ops {limited[0].max_ops}" if limited else ""
    command = f"rulegen grow --group {name}{limit} --seed {growths[0].seed}"
    header = (
        f"# Grown, not written: {command} (generator {GENERATOR_VERSION}).\n"
        "# To change it, change the workload or the operator properties and run 'make rules'.\n\n"
    )
    return header + format_rules(rule for growth in growths for rule in growth.rules)


def _grow(parts: Sequence[Workload], max_ops: int | None, seed: int, fresh: bool) -> tuple[list[Growth], list[Journal]]:
    """Growths, and the journals to remove when the rules are where they belong."""
    journals: list[Journal] = []

    def journal_of(part: Workload, known: Sequence[Rule]) -> Journal:
        before = ",".join(rule.id for rule in known)
        parameters = {"group": part.name, "ops": max_ops or part.max_ops, "seed": seed, "known": before}
        journals.append(Journal.of(parameters, fresh=fresh))
        return journals[-1]

    with _progress().status("starting") as status:
        return grow_parts(parts, max_ops, seed, journal_of, status.update), journals


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


_fresh = click.option("--fresh", is_flag=True, help="Do not resume: forget what an earlier run finished.")


@cli.command("grow")
@click.option(
    "--levels",
    type=click.Choice(["kernel", "block"]),
    default="kernel",
    show_default=True,
    is_eager=True,
    help="Kernel graphs, or block graphs that compute a given kernel graph.",
)
@click.option("--max-block-ops", type=click.IntRange(min=1), default=4, show_default=True, help="Of a block graph.")
@click.option(
    "--group",
    callback=_group,
    metavar="NAME",
    help=f"One of {', '.join(GROUPS)}, or a part of one; with --levels block one of {', '.join(GOALS)}, all where left out.",
)
@click.option("--max-ops", type=click.IntRange(min=1), help="Greatest number of operators a side; default: the group's.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option("--rules", metavar="URL", help="Rule database (path or URL) that the rules enter.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.rules", help="Write the rules as text.")
@click.option("--unproved", type=click.Path(path_type=Path), metavar="FILE", help="Write what is true as far as tested.")
@click.option("--tested", "with_tests", is_flag=True, help="Take polynomial rules without a proof too, on bounded tests.")
@_fresh
def grow_command(
    levels: str,
    max_block_ops: int,
    group: tuple[str, tuple[Workload, ...]],
    max_ops: int | None,
    seed: int,
    rules: str | None,
    out: Path | None,
    unproved: Path | None,
    with_tests: bool,
    fresh: bool,
) -> None:
    """Grows the rules of an operator group.

    A growth that was interrupted or killed resumes where it stopped, with the same outcome.
    """
    for file in filter(None, (out, unproved)):
        check_writable(file)
    if rules is not None:
        with RuleStore.open(rules) as store:
            store.check_writable()
    name, parts = group
    if levels == "block":
        _grow_blocks([GOALS[name]] if name else list(GOALS.values()), max_block_ops, seed, rules, out)
        return
    growths, journals = _grow(parts, max_ops, seed, fresh)
    for growth in growths if with_tests else ():
        growth.rules += rules_on_tests(growth)
    if out is not None:
        write_text(out, shipped_text(name, growths))
    if unproved is not None:
        write_text(unproved, "".join(f"{candidate}\n" for growth in growths for candidate in growth.unproved))
    console = _out()
    console.print(_table({growth.workload.name: [growth] for growth in growths}))
    found = [rule for growth in growths for rule in growth.rules]
    if rules is not None:
        with RuleStore.open(rules) as store:
            console.print(f"{store.add_all(found)} new rules in {escape(rules)}")
    for journal in journals:
        journal.remove()
    if out is None and rules is None:
        for rule in found:
            console.print(f"{rule.id} {rule.float_class:<12} {rule}", markup=False)
    _contradicted(growths)


def _grow_blocks(goals: Sequence[Goal], max_ops: int, seed: int, rules: str | None, out: Path | None) -> None:
    """Every block graph of at most so many operators that computes one of the programs."""
    with _progress().status("enumerating block graphs"):
        found = [search(goal, max_ops, seed) for goal in goals]
    console = _out()
    headings = ("program", "states", "pruned", "candidates", "refuted", "rules", "seconds")
    table = Table(*headings)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        numbers = (one.states, one.pruned, one.candidates, one.refuted, len(one.rules))
        table.add_row(one.goal.name, *(f"{number:,}" for number in numbers), f"{one.seconds:.1f}")
    console.print(table)
    grown = [rule for one in found for rule in one.rules]
    if out is not None:
        write_text(out, format_rules(grown))
    if rules is not None:
        with RuleStore.open(rules) as store:
            console.print(f"{store.add_all(grown)} new rules in {escape(rules)}")
    if out is None and rules is None:
        for rule in grown:
            console.print(f"{rule.id} {rule.float_class:<12} {rule}", markup=False)


def _contradicted(growths: Iterable[Growth]) -> None:
    """Reports proofs that random inputs contradict: an operator property is wrong. Exits with 1 where there are any."""
    suspicious = [candidate for growth in growths for candidate in growth.suspicious]
    for candidate in suspicious:
        _out().print(f"proof contradicted: {candidate}", markup=False)
    if suspicious:
        sys.exit(1)


def mined_text(rules: Sequence[Rule], seed: int) -> str:
    """The text of mined rules: a header that says how they came about, then the rules."""
    header = (
        f"# Mined, not written: rulegen mine --seed {seed} (generator {GENERATOR_VERSION}) "
        "on the models of tools/ship/spellings.py.\n"
        "# To change it, change these or the operator properties and run 'make rules'.\n\n"
    )
    return header + format_rules(rules)


@cli.command("mine")
@click.argument(
    "models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="MODEL..."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.rules", help="Write the rules as text.")
@click.option("--rules", metavar="URL", help="Rule database (path or URL) that the rules enter.")
@click.option("--unproved", type=click.Path(path_type=Path), metavar="FILE", help="Write what is true as far as tested.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option("--leaves", type=click.IntRange(1, 8), default=Cutting.leaves, show_default=True, help="Of a cone, at most.")
@click.option("--operators", type=click.IntRange(1, 40), default=Cutting.operators, show_default=True, help="Of a cone, at most.")
def mine_command(
    models: tuple[Path, ...],
    out: Path | None,
    rules: str | None,
    unproved: Path | None,
    seed: int,
    leaves: int,
    operators: int,
) -> None:
    """Finds rules for what models spell out.

    The rules lead to composite operators that a runtime has. The pieces of the models (cones) are compared with all of these
    and with smaller pieces; what agrees in numbers and is proved becomes a rule.
    """
    for file in filter(None, (out, unproved)):
        check_writable(file)
    if rules is not None:
        with RuleStore.open(rules) as store:
            store.check_writable()
    graphs = {}
    for path in sorted(models):
        try:
            graphs[path.stem] = load(path).graph
        except ModelError as problem:
            raise StoreError(str(problem)) from None
    with _bar("mine") as show:
        found = mine(graphs, Cutting(leaves=leaves, operators=operators), seed, show)
    if out is not None:
        write_text(out, mined_text(found.rules, seed))
    if unproved is not None:
        write_text(unproved, "".join(f"{pair} | {typing_text(pair.types)}\n" for pair in found.unproved))
    console = _out()
    counted = f"{found.cones:,} cones, {len(found.rules)} rules, {len(found.unproved)} pairs without a proof"
    console.print(f"{len(graphs)} models, {counted}", markup=False)
    if rules is not None:
        with RuleStore.open(rules) as store:
            console.print(f"{store.add_all(found.rules)} new rules in {escape(rules)}")
    if out is None and rules is None:
        for rule in found.rules:
            console.print(f"{rule.id} {rule.float_class:<12} {rule}", markup=False)
    for pair in found.suspicious:
        console.print(f"proof contradicted: {pair}", markup=False)
    if found.suspicious:
        sys.exit(1)


@cli.command("ship")
@click.option("--out", type=click.Path(path_type=Path), default=SHIPPED, metavar="FOLDER", help="Default: the package's own.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@_fresh
def ship_command(out: Path, seed: int, fresh: bool) -> None:
    """Grows every group that ships and writes FOLDER/GROUP.rules.

    It resumes where it stopped, as grow does.
    """
    grown: dict[str, list[Growth]] = {}
    journals: list[Journal] = []
    shipped = {name: parts for name, parts in GROUPS.items() if parts[0].ships}
    for name in shipped:
        check_writable(out / f"{name}.rules")
    for name, parts in shipped.items():
        grown[name], made = _grow(parts, None, seed, fresh)
        journals += made
        write_text(out / f"{name}.rules", shipped_text(name, grown[name]))
    for journal in journals:
        journal.remove()
    _out().print(_table(grown))
    _contradicted(growth for growths in grown.values() for growth in growths)


def _where(rules: str | None) -> str:
    return rules or "the shipped rules"


@cli.command("stats")
@click.argument("rules", required=False, metavar="[FILE|URL]")
def stats_command(rules: str | None) -> None:
    """Counts the rules of a database or file by group.

    Also those with multiple outputs, by float class (exact, reassociates, approximates) and by kind of evidence: proved
    from operator properties, or tested within a bound. Guards and proof steps are averages.
    """
    found = open_rules(rules)
    headings = ("group", "rules", "multi", "exact", "reassoc", "approx", "proved", "tested", "interpreted", "guards", "steps")
    table = Table(*headings, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    groups: dict[str, list[Rule]] = {}
    for rule in found:
        groups.setdefault(rule.provenance.get("group", "-"), []).append(rule)
    table.columns[0].min_width = max(map(len, ["all", *groups]))
    for name, members in [*sorted(groups.items()), *([("all", found)] if len(groups) > 1 else [])]:
        classes, kinds = Counter(rule.float_class for rule in members), Counter(rule.certificate.kind for rule in members)
        table.add_row(
            name,
            str(len(members)),
            str(sum(len(rule.source) > 1 for rule in members)),
            *(str(classes[float_class]) for float_class in FloatClass),
            *(str(kinds[kind]) for kind in ("axioms", "tested", "interpreted")),
            f"{sum(len(rule.conditions) for rule in members) / len(members):.1f}",
            f"{sum(len(rule.certificate.instances) for rule in members) / len(members):.1f}",
        )
    console = _out()
    console.print(f"{len(found)} rules in {escape(_where(rules))}")
    console.print(table)


def _find(rules: Sequence[Rule], prefix: str, where: str) -> Rule:
    found = [rule for rule in rules if rule.id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        raise StoreError(f"{len(found)} rules of {where} begin with '{prefix}'; give more digits")
    nearest = get_close_matches(prefix, [rule.id[: len(prefix)] for rule in rules], 1)
    hint = f"did you mean '{nearest[0]}'? " if nearest else ""
    raise StoreError(f"no rule of {where} begins with '{prefix}'; {hint}--rules names another database or file")


@cli.command("show")
@click.argument("rule")
@click.option("--rules", metavar="URL", help="Rule database or .rules file; default: the shipped rules.")
@click.option("--svg", "picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw both graphs side by side.")
def show_command(rule: str, rules: str | None, picture: Path | None) -> None:
    """Shows a rule and why it holds.

    Both sides, its conditions in words and its certificate step by step. RULE is an identity or its beginning.
    """
    found = _find(open_rules(rules), rule, _where(rules))
    if picture is not None:
        write_text(picture, svg(found))
    lines = [f"rule {found.id}   float class: {found.float_class}"]
    lines.append("variables  " + ", ".join(f"{name}: {type_}" for name, type_ in found.types.items()))
    for title, side in (("source", found.source), ("target", found.target)):
        lines += [f"{title if not number else '':<10} {format_term(root)}" for number, root in enumerate(side)]
    if found.attrs:
        lines.append("attributes any, such as " + ", ".join(f"${k} = {format_value(v)}" for k, v in found.attrs.items()))
    lines += proof_in_words(found.conditions, found.certificate, tuple(found.attrs))
    lines.append("from       " + ", ".join(f"{key} {value}" for key, value in found.provenance.items()))
    _out().print("\n".join(lines), markup=False)


@cli.command("explain")
@click.argument("equation")
@click.option("--let", "let", metavar="TYPES", help="Types of variables: 'x:float[m,k], w:float[k,n]'. Default: inferred.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the answer as JSON too.")
def explain_command(equation: str, let: str | None, json_file: Path | None) -> None:
    """Certifies or refutes an equation.

    EQUATION is such as 'MatMul(MatMul(x, y), z) = MatMul(x, MatMul(y, z))'; several outputs are separated by ';'. Exit code:
    0 proved, under the conditions printed; 1 refuted, with a counterexample; 2 not an equation; 3 undecided.
    """
    try:
        answer = explain(equation, parse_let(let) if let else None)
    except EquationError as problem:
        raise StoreError(str(problem)) from None
    if json_file is not None:
        write_text(json_file, json.dumps(answer.as_json(), indent=1) + "\n")
    _out().print("\n".join(answer.lines()), markup=False)
    sys.exit(answer.exit_code)


@cli.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--rules", metavar="URL", help="Database that proved rules enter; default: the user's own, with the shipped rules.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write what became of each rule.")
@click.option("--dry-run", is_flag=True, help="Examine the rules, change no database.")
def import_command(file: Path, rules: str | None, json_file: Path | None, dry_run: bool) -> None:
    """Examines the rules of FILE and takes those that are proved.

    FILE is a .rules file or one of TASO's (protobuf). A rule is derivable from the database's rules, or new (proved, perhaps
    under guards), or refuted, or undecided. Only new ones enter. The user's own database is rules.sqlite in
    $ONNX_SUPEROPT_CACHE or the cache directory.
    """
    if json_file is not None:
        check_writable(json_file)
    if rules is not None and "://" not in rules and not dry_run:
        check_writable(Path(rules))
    known = known_rules(rules)
    with _bar("import") as show:
        results = import_file(file, known, progress=show)
    if json_file is not None:
        write_text(json_file, json.dumps({"rules": [result.as_json() for result in results]}, indent=1) + "\n")
    console, table = _out(), Table("status", "rules")
    for result in results:
        if result.status in (Status.REFUTED, Status.UNDECIDED):
            why = result.reason or (result.counterexample or {}).get("text", "")
            console.print(f"{result.id} {result.status}: {result.source} = {result.target}: {why}", markup=False)
    for status, count in counts(results).items():
        table.add_row(str(status), str(count))
    console.print(table)
    new = [rule for result in results for rule in result.rules]
    where = rules or default_rules()
    if dry_run:
        console.print(f"{len(new)} rules would enter {escape(where)}")
        return
    if new and rules is None:
        Path(where).parent.mkdir(parents=True, exist_ok=True)
    if new:
        with RuleStore.open(where) as store:
            console.print(f"{store.add_all(new)} new rules in {escape(where)}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the terminal; yields what to call with the number done and the total."""
    console = _progress()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # It draws when told to, not from a thread of its own: processes are forked while it is there.
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task(what)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, refresh=done % 20 == 0)

        yield show


_jobs = click.option(
    "--jobs", type=click.IntRange(1), default=_cores, show_default="one per core", metavar="N", help="Processes to work in."
)


@cli.command("audit")
@click.argument("rules", required=False, metavar="[FILE|URL]")
@click.option("--deep", is_flag=True, help="Many more random tests, with fresh seeds.")
@click.option("--axioms", is_flag=True, help="Examine the operator properties instead, three ways; minutes the first time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="With --axioms: write the table.")
@_jobs
@click.option(
    "--seed", type=click.IntRange(0), help="Of the random tests; default: 0, and with --deep a fresh one, which is told."
)
def audit_command(rules: str | None, deep: bool, axioms: bool, json_file: Path | None, jobs: int, seed: int | None) -> None:
    """Checks every rule again, whatever it claims.

    Text, guards, typing and certificate, by two checkers, then random tests and the float class. One line says why a
    rule fails; exit code 1 if one does. Without FILE or URL the shipped rules are audited.
    """
    if json_file is not None and not axioms:
        raise click.UsageError("--json goes with --axioms")
    if axioms:
        _audit_axioms(rules, jobs, json_file)
        return
    if seed is None:
        seed = secrets.randbits(31) if deep else 0
    entries = read_entries(rules)
    with _bar("audit") as show:
        report = audit_rules(entries, seed=seed, progress=lambda done: show(done, len(entries)), deep=deep, jobs=jobs)
    console = _out()
    for failure in report.failures:
        console.print(str(failure), markup=False)
    names, bad = {entry.name for entry in entries}, {failure.rule for failure in report.failures}
    told = f" (random tests with --deep --seed {seed})" if deep else ""
    console.print(f"{len(names)} rules of {_where(rules)}: {len(names - bad)} stand, {len(bad)} fail{told}", markup=False)
    if not report.passed:
        sys.exit(1)


def _audit_axioms(rules: str | None, jobs: int, json_file: Path | None) -> None:
    """Validates the operator properties and counts who cites them (TASO, table 2)."""
    with _bar("axioms") as show:
        report = properties_report(rules=open_rules(rules), processes=jobs, progress=show)
    table = Table("property", "symbolic", "cases", "parameters", "by Z3", "numeric hits", "of samples", "lemma", "cited by")
    for record in report.properties:
        symbolic, numeric = record.symbolic, record.numeric
        table.add_row(
            record.name,
            symbolic.verdict,
            f"{symbolic.cases}{' (all)' if symbolic.exhaustive else ''}",
            str(symbolic.parameters),
            str(symbolic.by_z3),
            "refuted" if numeric.counterexample else str(numeric.hits),
            str(numeric.samples),
            "lemma" if record.lemma else "",
            str(record.needed_by),
        )
    console = _out()
    console.print(table)
    for record in report.properties:
        if record.symbolic.reason:
            console.print(f"{record.name}: {record.symbolic.verdict}: {record.symbolic.reason}", markup=False)
        if record.numeric.counterexample:
            console.print(f"{record.name}: refuted: {record.numeric.counterexample}", markup=False)
    for derivation in report.inconsistent:
        console.print(f"inconsistent: {derivation}", markup=False)
    if json_file is not None:
        write_text(str(json_file), json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    verdicts = Counter(record.symbolic.verdict for record in report.properties)
    counted = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    lemmas = sum(bool(record.lemma) for record in report.properties)
    console.print(f"{len(report.properties)} properties: {counted}; {lemmas} follow from others", markup=False)
    if not report.passed:
        sys.exit(1)


@cli.command("export")
@click.argument("file", metavar="FILE.rules")
@click.option("--rules", metavar="URL", help="Rule database or .rules file; default: the shipped rules.")
def export_command(file: str, rules: str | None) -> None:
    """Writes the rules of a database as text.

    Equal rules give equal text, byte for byte.
    """
    if not file.endswith(".rules"):
        raise click.BadParameter(f"'{file}' does not end in .rules, by which text files are known", param_hint="FILE.rules")
    found = by_size(open_rules(rules))
    write_text(file, format_rules(found))
    _out().print(f"{len(found)} rules in {file}", markup=False)


@cli.command("merge")
@click.argument("sources", nargs=-1, required=True, metavar="(FILE|URL)...")
@click.option(
    "--out", required=True, metavar="FILE|URL", help="A .rules file, written anew, or a database, which keeps what it holds."
)
@_jobs
def merge_command(sources: tuple[str, ...], out: str, jobs: int) -> None:
    """Unites several files and databases of rules.

    The order does not matter: of two rules with one identity the more careful float class and the shorter proof stay.
    Every rule is audited before it is taken. One line says why a rule is rejected; exit code 1 if one is.
    """
    with _bar("merge") as show:
        report = merge(sources, out, jobs=jobs, progress=show)
    console = _out()
    for failure in report.failures:
        console.print(str(failure), markup=False)
    console.print(f"{out}: {report.new} new, {report.known} known, {report.rejected} rejected", markup=False)
    if report.rejected:
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
    except BrokenProcessPool:
        _fail("a process of the audit died, perhaps for want of memory; try --jobs 1")
