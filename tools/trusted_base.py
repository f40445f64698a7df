"""The trusted base in figures: the table of docs/rules.md, printed as it should stand there.

python -m tools.trusted_base
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rules_db.stamp import trusted_files

__all__ = ["PARTS", "counted", "table"]

PARTS: Mapping[str, tuple[str, ...]] = {
    "the checker, the guards with their laws, evidence": ("rules_db/trust/",),
    "the reader of rules, the stamp": ("rules_db/exchange.py", "rules_db/stamp.py", "rules_db/__init__.py"),
    "the operator properties": ("rules_db/axioms/",),
    "terms, dimensions, their text": ("mugraph/terms/", "mugraph/order.py", "mugraph/__init__.py"),
    "the operators: types, semantics, decompositions": ("mugraph/ops/",),
    "the number systems in which tests are repeated": ("mugraph/domains/",),
    "block graphs and their interpretation": ("mugraph/blocks/",),
}
"""The parts of the trusted base, each with its files or the folders in which they stand."""


def counted() -> dict[str, tuple[int, int]]:
    """Files and lines of each part. Raises ValueError where a trusted file belongs to none."""
    counts = dict.fromkeys(PARTS, (0, 0))
    for name, path in trusted_files().items():
        part = next((part for part, places in PARTS.items() if name.startswith(places)), None)
        if part is None:
            raise ValueError(f"{name} belongs to no part of the trusted base; enter it in tools/trusted_base.py")
        files, lines = counts[part]
        counts[part] = files + 1, lines + _lines(path)
    return counts


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def table() -> str:
    """The table, with lines rounded to hundreds."""
    rows = ["| part | where | files | lines |", "|---|---|---|---|"]
    for part, (files, lines) in counted().items():
        places = ", ".join(f"`{place}`" for place in PARTS[part] if not place.endswith("__init__.py"))
        rows.append(f"| {part} | {places} | {files} | {round(lines, -2):,} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
