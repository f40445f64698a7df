"""The command that finds how models may spell composite operators: spell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from mugraph.console import FiniteRange
from mugraph.terms.term import walk
from rulegen.cli.console import bar, check_targets, output, print_rules, store_rules
from rulegen.cli.texts import spelled_text
from rulegen.spell.extraction import ExtractionLimits
from rulegen.spell.saturation import SaturationLimits
from rulegen.spell.speller import FormSpelling, SpellingLimits, grown_rules, spell
from rules_db.files import StoreError, write_text
from rules_db.library import open_rules

__all__ = ["spell_command"]


@click.command("spell")
@click.argument("operators", nargs=-1, required=True, metavar="OPERATOR...")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.rules", help="Write the rules as text.")
@click.option("--rules", metavar="URL", help="Rule database (path or URL) that the rules enter.")
@click.option("--after", metavar="FILE.rules", multiple=True, help="Rules that were spelled before: what they find is found.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option(
    "--operators",
    "most",
    type=click.IntRange(1, 40),
    default=ExtractionLimits.operators,
    show_default=True,
    help="Of a spelling, at most; as many as the definition has are always admitted.",
)
@click.option(
    "--slack", type=click.IntRange(0, 10), default=SpellingLimits.slack, show_default=True, help="Beyond the definition's."
)
@click.option(
    "--places",
    type=click.IntRange(0, 10),
    default=ExtractionLimits.places,
    show_default=True,
    help="Operators that the definition does not have.",
)
@click.option("--half/--no-half", default=SpellingLimits.half, show_default=True, help="Forms in float16, too.")
@click.option("--nodes", type=click.IntRange(10), default=SaturationLimits.nodes, show_default=True, help="Of an e-graph.")
@click.option("--seconds", type=FiniteRange(1), default=SpellingLimits.seconds, show_default=True, help="For each form.")
def spell_command(
    operators: tuple[str, ...],
    out: Path | None,
    rules: str | None,
    after: tuple[str, ...],
    seed: int,
    most: int,
    slack: int,
    places: int,
    half: bool,
    nodes: int,
    seconds: float,
) -> None:
    """Finds how models may spell composite operators.

    The definition of each OPERATOR (LayerNormalization, OrtGelu, ...) is saturated with the operator properties; the programs
    that are equal to it become certified rules, unless others lead to it from there. The table says which limits were met.
    """
    check_targets(rules, out)
    saturation, extraction = SaturationLimits(nodes, seconds), ExtractionLimits(most, places)
    limits = SpellingLimits(saturation, extraction, slack, half, seconds=seconds)
    before = [rule for file in after for rule in open_rules(file)]
    try:
        with bar("spell") as show:
            forms = spell(operators, grown_rules(), before, limits, seed, show)
    except (KeyError, ValueError) as problem:
        raise StoreError(problem.args[0]) from None
    found = [rule for form in forms for rule in form.rules]
    if out is not None:
        write_text(out, spelled_text(found, operators, seed))
    console = output()
    console.print(_table(forms))
    if rules is not None:
        store_rules(console, rules, found)
    if out is None and rules is None:
        print_rules(console, found)
    suspicious = [pair for form in forms for pair in form.suspicious]
    for pair in suspicious:
        console.print(f"proof contradicted: {pair}", markup=False)
    if suspicious:
        sys.exit(1)


def _table(forms: Sequence[FormSpelling]) -> Table:
    headings = ("form", "nodes", "programs", "derived", "rules", "lost", "seconds", "limits met")
    table = Table(*headings, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:-1]:
        column.justify = "right"
    for form in forms:
        composite = next(t for t in walk(form.definition.roots) if t.op == form.definition.operator)
        (dtype,) = {type_.dtype.name.lower() for type_ in form.definition.types.values()}
        outputs = f", {len(form.definition.roots)} outputs" if len(form.definition.roots) > 1 else ""
        counts = (form.nodes, form.programs, form.derived, len(form.rules), form.lost)
        table.add_row(
            f"{composite.op} of {len(composite.inputs)} {dtype}{outputs}",
            *(f"{count:,}" for count in counts),
            f"{form.seconds:.1f}",
            ", ".join(form.limits) or "none",
        )
    return table
