"""Writes rules_db/shipped/spelled.rules: how models may spell composite operators, enumerated from their definitions.

Each step is a call of ``rulegen spell`` with its limits, behind the rules of the steps before it. Limits count, so that equal
operator properties give equal text; none is one of seconds that a machine could meet.

python -m tools.ship.spelled rules_db/shipped/spelled.rules
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rulegen.cli.console import bar
from rulegen.cli.texts import spelled_text
from rulegen.spell.extraction import ExtractionLimits
from rulegen.spell.saturation import SaturationLimits
from rulegen.spell.speller import FormSpelling, SpellingLimits, spell
from rules_db.files import write_text

__all__ = ["STEPS", "SpellingStep", "spelled"]


@dataclass(frozen=True)
class SpellingStep:
    """Operators whose spellings are enumerated with the same limits."""

    operators: tuple[str, ...]
    limits: SpellingLimits


_NEVER = 3600.0
"""Seconds: a limit that none of the steps comes near."""


def _limits(places: int, half: bool = False, nodes: int = SaturationLimits.nodes) -> SpellingLimits:
    saturation, extraction = SaturationLimits(nodes, _NEVER), ExtractionLimits(places=places)
    return SpellingLimits(saturation, extraction, half=half, parts=False, seconds=_NEVER)


STEPS = (
    SpellingStep(("OrtGelu", "BiasGelu", "QuickGelu"), _limits(3)),
    SpellingStep(("FastGelu",), _limits(1)),
    SpellingStep(("SimplifiedLayerNormalization",), _limits(3)),
    # Exporters cast around normalisations.
    SpellingStep(("SimplifiedLayerNormalization", "LayerNormalization"), _limits(1, half=True)),
    SpellingStep(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _limits(1, nodes=1500)),
)


def spelled(steps: Sequence[SpellingStep], progress: Callable[[int, int], None] = lambda done, total: None) -> list[FormSpelling]:
    """What the steps find, one behind the other, each rule in one step: no other rule shortens a program first."""
    found: list[FormSpelling] = []
    for number, step in enumerate(steps, 1):
        before = [rule for form in found for rule in form.rules]
        found += spell(step.operators, before=before, limits=step.limits)
        progress(number, len(steps))
    return found


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Writes what the steps find to FILE."""
    with bar("spell") as show:
        forms = spelled(STEPS, show)
    for form in forms:
        if form.suspicious:
            raise click.ClickException(f"proof contradicted: {form.suspicious[0]}")
    rules = [rule for form in forms for rule in form.rules]
    write_text(file, spelled_text(rules, [operator for step in STEPS for operator in step.operators], 0))
    click.echo(f"{len(rules)} rules of {len(forms)} forms in {sum(form.seconds for form in forms):.0f} s of a processor")


if __name__ == "__main__":
    main()
