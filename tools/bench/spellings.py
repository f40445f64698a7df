"""How many of the spellings written by hand are found by rules that were enumerated without them.

A spelling is found if the rules, applied from source to target as long as they shorten it, turn it into its operator; rules of
the grown groups that name no composite operator take part. None of the rules knows the spellings.

``rulegen spell OrtGelu LayerNormalization --out found.rules``, then ``python -m tools.bench.spellings found.rules``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import onnx
from rich.table import Table

from mugraph.onnx import load
from mugraph.terms.term import walk
from rulegen.cli.console import bar, output
from rulegen.mine.cuts import whole
from rulegen.mine.normalise import Normaliser
from rulegen.mine.numbers import snapped
from rulegen.spell.speller import finding, grown_rules
from rules_db.library import open_rules
from rules_db.trust.rule import Rule
from tools.ship.spellings import SPELLINGS, Spelling

__all__ = ["Share", "is_found", "shares"]


@dataclass
class Share:
    """The spellings of one operator, and those of them that are missing."""

    count: int
    missing: list[str]


def is_found(spelling: Spelling, finder: Normaliser) -> bool:
    """Whether rules turn the model of a spelling into its operator, in whole or in part."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spelling.onnx"
        onnx.save(spelling.build(), path)
        cone = whole(load(path).graph)
    normal = finder.normal(tuple(map(snapped, cone.roots)), cone.types)
    return spelling.expected in {term.op for term in walk(normal)}


def shares(rules: Iterable[Rule]) -> dict[str, Share]:
    """By operator, what the rules find. Those of them that were mined take no part."""
    spelled = [rule for rule in rules if "model" not in rule.provenance]
    plain = grown_rules()
    found: dict[str, Share] = {}
    finders = {name: finding(name, [*spelled, *plain]) for name in sorted({s.expected for s in SPELLINGS.values()})}
    with bar("spellings") as show:
        for done, (name, spelling) in enumerate(SPELLINGS.items(), 1):
            share = found.setdefault(spelling.expected, Share(0, []))
            share.count += 1
            if not is_found(spelling, finders[spelling.expected]):
                share.missing.append(name)
            show(done, len(SPELLINGS))
    return found


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE.rules...")
@click.option("--missing", "tells", is_flag=True, help="Name the spellings that are not found.")
def main(files: tuple[str, ...], tells: bool) -> None:
    """Counts the spellings of tools.ship.spellings that the rules in FILES find."""
    found = shares(rule for file in files for rule in open_rules(file))
    table = Table("operator", "found", "of")
    for name, share in sorted(found.items()):
        table.add_row(name, str(share.count - len(share.missing)), str(share.count))
    total, missing = (sum(share.count for share in found.values()), sum(len(share.missing) for share in found.values()))
    table.add_row("all", str(total - missing), str(total))
    output().print(table)
    for share in found.values() if tells else ():
        for name in share.missing:
            output().print(name, markup=False)


if __name__ == "__main__":
    main()
