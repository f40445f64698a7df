"""The commands that show rules: stats, show, explain."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from mugraph.lines import counted
from mugraph.terms.term import format_term, format_value
from rulegen.cli.console import check_targets, history_of, name_of, output, rules_file_option, rules_of, store_rules
from rulegen.share.proving import append_rule, parse_when, prove
from rulegen.show.equations import EquationError, parse_let
from rulegen.show.explain import explain
from rulegen.show.origin import origin
from rules_db.exchange import format_rule
from rules_db.files import StoreError, write_text
from rules_db.show.picture import svg
from rules_db.show.words import proof_in_words
from rules_db.trust.certificate import Evidence
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["explain_command", "prove_command", "show_command", "stats_command"]

_IDENTITY = re.compile(r"[0-9a-f]{4,}[<>]?")


@click.command("stats")
@click.argument("rules", required=False, metavar="[FILE|URL]")
def stats_command(rules: str | None) -> None:
    """Counts the rules of a database or file by group.

    Also those with multiple outputs, by float class (exact, reassociates, approximates) and by kind of evidence: proved
    from operator properties, or tested within a bound. Guards and proof steps are averages. The last line says how the rules were
    found: enumerated with a group, spelled from a definition, mined from a model, or lowered to a kernel.
    """
    every = rules_of(rules)
    headings = ("group", "rules", "multi", "exact", "reassoc", "approx", *Evidence, "guards", "steps")
    table = Table(*headings, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    groups: dict[str, list[Rule]] = {}
    for rule in every:
        groups.setdefault(rule.provenance.get("group", "-"), []).append(rule)
    table.columns[0].min_width = max(map(len, ["all", *groups]))
    for name, members in [*sorted(groups.items()), *([("all", every)] if len(groups) > 1 else [])]:
        classes, kinds = Counter(rule.float_class for rule in members), Counter(rule.certificate.evidence for rule in members)
        table.add_row(
            name,
            str(len(members)),
            str(sum(len(rule.source) > 1 for rule in members)),
            *(str(classes[float_class]) for float_class in FloatClass),
            *(str(kinds[kind]) for kind in Evidence),
            f"{sum(len(rule.conditions) for rule in members) / len(members):.1f}",
            f"{sum(len(rule.certificate.instances) for rule in members) / len(members):.1f}",
        )
    console = output()
    console.print(f"{counted(len(every), 'rule')} in {escape(name_of(rules))}")
    console.print(table)
    origins = Counter(origin(rule).kind for rule in every)
    console.print("found: " + ", ".join(f"{count} {kind}" for kind, count in sorted(origins.items())))


def _rule_named(rules: Sequence[Rule], prefix: str, where: str) -> Rule:
    """The only rule whose identity begins with a prefix; that of a direction, as a run tells of it, is the rule's."""
    prefix = prefix.rstrip("<>")
    matching = [rule for rule in rules if rule.id.startswith(prefix)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise StoreError(f"{len(matching)} rules of {where} begin with '{prefix}'; give more digits")
    nearest = get_close_matches(prefix, [rule.id[: len(prefix)] for rule in rules], 1)
    hint = f"did you mean '{nearest[0]}'? " if nearest else ""
    raise StoreError(f"no rule of {where} begins with '{prefix}'; {hint}--rules names another database or file")


@click.command("show")
@click.argument("rule")
@click.option("--rules", metavar="URL", help="Rule database or .rules file; default: the shipped rules.")
@click.option("--svg", "picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw both graphs side by side.")
def show_command(rule: str, rules: str | None, picture: Path | None) -> None:
    """Shows a rule and why it holds.

    Both sides, its conditions in words and its certificate step by step. RULE is an identity or its beginning.
    """
    shown = _rule_named(rules_of(rules), rule, name_of(rules))
    if picture is not None:
        write_text(picture, svg(shown))
    lines = [f"rule {shown.id}   float class: {shown.float_class}"]
    lines.append("variables  " + ", ".join(f"{name}: {type_}" for name, type_ in shown.types.items()))
    for title, side in (("source", shown.source), ("target", shown.target)):
        lines += [f"{title if not number else '':<10} {format_term(root)}" for number, root in enumerate(side)]
    if shown.attrs:
        lines.append("attributes any, such as " + ", ".join(f"${k} = {format_value(v)}" for k, v in shown.attrs.items()))
    lines += proof_in_words(shown.conditions, shown.certificate, tuple(shown.attrs))
    lines.append(f"found      {origin(shown)}")
    lines += [f"log        {entry}" for entry in history_of(rules, shown.id)]
    lines.append("from       " + ", ".join(f"{key} {value}" for key, value in shown.provenance.items()))
    output().print("\n".join(lines), markup=False)


def _no_equation(text: str) -> str | None:
    """What is said of a rule's identity, or of a file or database, in place of an equation; ``None`` of any other text."""
    if _IDENTITY.fullmatch(text):
        shown = text.rstrip("<>")
        return f"{text} is no equation, but a rule's identity: 'rulegen show {shown}' says why it holds"
    if text.endswith((".rules", ".db")) or "://" in text or os.path.isfile(text):
        place = name_of(text)
        return f"{place} is no equation such as 'Relu(Relu(x)) = Relu(x)', but holds rules: 'rulegen audit {place}' checks them"
    return None


@click.command("explain")
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
        raise StoreError(_no_equation(equation) or str(problem)) from None
    if json_file is not None:
        write_text(json_file, json.dumps(answer.as_json(), indent=1) + "\n")
    output().print("\n".join(answer.lines()), markup=False)
    sys.exit(answer.exit_code)


@click.command("prove")
@click.argument("equation")
@click.option("--let", "let", metavar="TYPES", help="Types of variables: 'x:float[m,k], w:float[k,n]'. Default: inferred.")
@click.option("--when", "when", metavar="GUARDS", help="Guards that it is to have, beside what the proof needs: 'positive(y)'.")
@rules_file_option
@click.option("--rules", metavar="URL", help="Rule database (path or URL) that the rule enters.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
def prove_command(equation: str, let: str | None, when: str | None, out: Path | None, rules: str | None, seed: int) -> None:
    """Makes a rule of an equation.

    EQUATION is as of explain. What is proved is printed as a block with its identity, certificate and float class, and added
    to FILE.rules or a database. Exit code: 0 a rule, 1 refuted, with a counterexample, 2 not an equation, 3 undecided.
    """
    check_targets(rules, out)
    try:
        outcome = prove(equation, parse_let(let) if let else None, parse_when(when) if when else (), seed)
    except EquationError as problem:
        raise StoreError(_no_equation(equation) or str(problem)) from None
    console = output()
    if outcome.rule is None:
        lines = [*outcome.answer.lines(), *filter(None, [outcome.problem])]
        console.print("\n".join(lines), markup=False)
        sys.exit(outcome.exit_code)
    console.print(format_rule(outcome.rule), markup=False, end="")
    if out is not None:
        done = "added to" if append_rule(out, outcome.rule) else "stands in"
        console.print(f"rule {outcome.rule.id} {done} {out}", markup=False)
    if rules is not None:
        store_rules(console, rules, [outcome.rule])
