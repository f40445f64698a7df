"""What the shipped rules recognise of what exporters write: regions by model family and by exporter.

A region is recognised if the rules, applied from source to target as long as they shorten it, turn it into one of the operators
that it is, in whole or in its main part. A search may find more: it takes steps that do not shorten.

``python -m tools.bench.exporters``
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import onnx
from rich.table import Table

from mugraph.onnx import load
from mugraph.terms.term import Term, walk
from rulegen.cli.console import bar, output
from rulegen.mine.composites import is_composite, is_product
from rulegen.mine.cuts import whole
from rulegen.mine.normalise import Normaliser
from rulegen.mine.numbers import snapped
from rulegen.spell.speller import finding
from rules_db.library import shipped_rules
from tools.zoo.exporters import FAMILIES, ExportedRegion, regions

__all__ = ["Recognition", "recognition"]


@dataclass(frozen=True)
class Recognition:
    """The regions that were looked at, and those of them that no rule knows."""

    regions: tuple[ExportedRegion, ...]
    missing: tuple[ExportedRegion, ...]

    @property
    def share(self) -> float:
        """Of the regions those that are recognised."""
        return 1 - len(self.missing) / len(self.regions)


def recognition(wanted: Iterable[ExportedRegion], progress: Callable[[int, int], None] = lambda done, total: None) -> Recognition:
    """What the shipped rules recognise of some regions. Regions that are one model are looked at once."""
    looked = tuple(wanted)
    # A composite product, which takes the scale, stands in the way of attention.
    rules = [rule for rule in shipped_rules() if not any(map(_takes_all, walk(rule.target)))]
    finders: dict[str, Normaliser] = {}
    answers: dict[tuple[bytes, tuple[str, ...]], bool] = {}
    missing = []
    for number, region in enumerate(looked, 1):
        model = region.build()
        key = (model.SerializeToString(deterministic=True), region.expected)
        if key not in answers:
            for operator in region.expected:
                finders.setdefault(operator, finding(operator, rules))
            answers[key] = any(_is_found(model, region, finders[operator]) for operator in region.expected)
        if not answers[key]:
            missing.append(region)
        progress(number, len(looked))
    return Recognition(looked, tuple(missing))


def _takes_all(term: Term) -> bool:
    return bool(term.inputs) and is_composite(term.op) and is_product(term.op)


def _is_found(model: onnx.ModelProto, region: ExportedRegion, finder: Normaliser) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "region.onnx"
        onnx.save(model, path)
        cone = whole(load(path).graph)
    normal = finder.normal(tuple(map(snapped, cone.roots)), cone.types)
    return not {term.op for term in walk(normal)}.isdisjoint(region.expected)


@click.command()
@click.argument("families", nargs=-1, type=click.Choice([*FAMILIES]))
def main(families: tuple[str, ...]) -> None:
    """Counts the regions of FAMILIES, by default of all, that the shipped rules recognise; names the others."""
    wanted = [region for region in regions() if not families or region.family in families]
    with bar("regions") as show:
        found = recognition(wanted, show)
    exporters = list(dict.fromkeys(region.dialect.exporter for region in wanted))
    counted = Counter((region.family, region.dialect.exporter) for region in wanted)
    missed = Counter((region.family, region.dialect.exporter) for region in found.missing)
    table = Table("family", *exporters)
    for family in dict.fromkeys(region.family for region in wanted):
        cells = [(counted[family, exporter], missed[family, exporter]) for exporter in exporters]
        table.add_row(family, *(f"{count - lost}/{count}" for count, lost in cells))
    output().print(table)
    output().print(f"{len(wanted) - len(found.missing)} of {len(wanted)} ({100 * found.share:.1f} %)", markup=False)
    for name in dict.fromkeys(f"{region.family} {region.dialect.exporter}: {region.name}" for region in found.missing):
        output().print(f"no rule knows {name}", markup=False)


if __name__ == "__main__":
    main()
