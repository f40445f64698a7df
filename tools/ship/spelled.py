"""Writes rules_db/shipped/spelled.rules: how models may spell composite operators, enumerated from their definitions.

Each step is a call of ``rulegen spell`` with its limits, behind the rules of the steps before it. Limits count, so that equal
operator properties give equal text; none is one of seconds that a machine could meet.

python -m tools.ship.spelled rules_db/shipped/spelled.rules
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from mugraph.ops import traits_of
from mugraph.ops.traits import Movement
from mugraph.terms.term import Term
from rulegen.cli.console import bar
from rulegen.cli.texts import spelled_text
from rulegen.spell.definition import Definition
from rulegen.spell.extraction import ExtractionLimits
from rulegen.spell.saturation import SaturationLimits
from rulegen.spell.speller import FormSpelling, SpellingLimits, grown_rules, spell
from rules_db.files import write_text
from rules_db.trust.rule import Rule

__all__ = ["STEPS", "SpellingStep", "spelled"]


@dataclass(frozen=True)
class SpellingStep:
    """Operators whose spellings are enumerated with the same limits.

    Attributes:
        operators: their names.
        limits: for each form.
        forms: which of their forms.
    """

    operators: tuple[str, ...]
    limits: SpellingLimits
    forms: Callable[[Definition], bool] = lambda form: True

    def found(self, before: Iterable[Rule]) -> list[FormSpelling]:
        """What the step finds behind the rules of the steps before it.

        Where parts give no rules of their own each rule is one step: no other rule shortens a program first. Where they do, rules
        of the grown groups shorten, too.
        """
        known = grown_rules() if self.limits.parts else ()
        return spell(self.operators, known, before, self.limits, wanted=self.forms)


_NEVER = 3600.0
"""Seconds: a limit that none of the steps comes near."""


def _limits(places: int, half: bool = False, nodes: int = SaturationLimits.nodes) -> SpellingLimits:
    saturation, extraction = SaturationLimits(nodes, _NEVER), ExtractionLimits(places=places)
    return SpellingLimits(saturation, extraction, half=half, parts=False, seconds=_NEVER)


def _in_parts(places: int, slack: int = 0, nodes: int = 1500) -> SpellingLimits:
    """Limits with which rules of their own move numbers through products and movements: attention would need hundreds else."""
    saturation, extraction = SaturationLimits(nodes, _NEVER), ExtractionLimits(_OPERATORS, places)
    return SpellingLimits(saturation, extraction, slack=slack, half=False, seconds=_NEVER)


_OPERATORS = 20
"""More than a definition of attention has."""


def _attention(operands: int, rows: bool = False) -> Callable[[Definition], bool]:
    """Attention with so many operands, none of them a bias, of heads side by side, that gives them so, or rows as a matrix.

    Without a mask there are three, with one to add four; one of truth values has a number beside it, which hides.
    """

    def wanted(form: Definition) -> bool:
        (root,) = form.roots
        counted = len(form.types) == operands and all(type_.rank > 2 or type_.rank == 0 for type_ in form.types.values())
        (applied,) = root.inputs if rows and root.op != form.operator else (root,)
        shaped = (applied is not root) == rows and applied.op == form.operator
        return shaped and counted and all(term.is_var or _is_repeated(term) for term in applied.inputs)

    return wanted


def _is_repeated(term: Term) -> bool:
    return traits_of(term.op).movement is Movement.REPETITION and term.inputs[0].is_var


def _embedded(form: Definition) -> bool:
    """Rotary embedding of heads apart, with tables as wide as a head and an axis for the batch at least."""
    apart = form.roots[0].attr("num_heads") == 0
    return apart and bool(form.assumed) and all(type_.rank > 2 for type_ in form.types.values())


STEPS = (
    SpellingStep(("OrtGelu", "BiasGelu", "QuickGelu"), _limits(3)),
    SpellingStep(("FastGelu",), _limits(1)),
    # Exporters cast around normalisations.
    SpellingStep(("SimplifiedLayerNormalization",), _limits(3, half=True)),
    SpellingStep(("LayerNormalization",), _limits(1, half=True)),
    SpellingStep(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _limits(1, nodes=1500)),
    SpellingStep(("OrtRotaryEmbedding",), _in_parts(0), _embedded),
    # Both operands of the product may be scaled; what that takes is known behind.
    SpellingStep(("MultiHeadAttention",), _in_parts(3), _attention(3)),
    SpellingStep(("MultiHeadAttention",), _in_parts(2), _attention(4)),
    # Keys go through three axes and back, as torch exports them.
    SpellingStep(("MultiHeadAttention",), _in_parts(0, slack=2), _attention(3)),
    SpellingStep(("MultiHeadAttention",), _in_parts(0), _attention(3, rows=True)),
    SpellingStep(("MultiHeadAttention",), _in_parts(0), _attention(4, rows=True)),
    SpellingStep(("MultiHeadAttention",), _in_parts(1), _attention(5)),
    SpellingStep(("MultiHeadAttention",), _in_parts(1), _attention(5, rows=True)),
    # Projections in front of attention that the steps before find.
    SpellingStep(("OrtAttention",), _in_parts(0, nodes=1000)),
)


def spelled(steps: Sequence[SpellingStep], progress: Callable[[int, int], None] = lambda done, total: None) -> list[FormSpelling]:
    """What the steps find, one behind the other."""
    found: list[FormSpelling] = []
    for number, step in enumerate(steps, 1):
        found += step.found([rule for form in found for rule in form.rules])
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
    write_text(file, spelled_text(rules, list(dict.fromkeys(operator for step in STEPS for operator in step.operators)), 0))
    click.echo(f"{len(rules)} rules of {len(forms)} forms in {sum(form.seconds for form in forms):.0f} s of a processor")


if __name__ == "__main__":
    main()
