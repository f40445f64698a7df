"""Files and databases that an import reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from rulegen.prove.prover import Prover
from rulegen.share.imported import Imported
from rulegen.share.importing import Importer
from rulegen.taso.file import read_taso
from rules_db.databases import without_password
from rules_db.entries import Entry
from rules_db.files import StoreError, cache_folder, is_text
from rules_db.library import open_rules, shipped_rules
from rules_db.trust.certificate import Evidence, Trust
from rules_db.trust.rule import Rule

__all__ = ["default_rules", "existing_rules", "import_file"]


def default_rules() -> str:
    """The user's own database: ``rules.sqlite`` in ``$ONNX_SUPEROPT_CACHE`` or the user's cache directory."""
    return str(cache_folder() / "rules.sqlite")


def existing_rules(url: str | None, tell: Callable[[str], None]) -> list[Rule]:
    """The rules that a database holds; the user's own database stands beside the shipped rules.

    Args:
        tell: told in one sentence what this version cannot use.
    """
    where = url or default_rules()
    if is_text(where):
        raise StoreError(f"{without_password(where)}: rules enter a database, not a text file; give a path such as rules.sqlite")
    every = [] if "://" not in where and not os.path.exists(where) else open_rules(where, Trust.TESTED, tell)
    rules = [rule for rule in every if rule.certificate.evidence is Evidence.PROVED]  # what tests derive is not proved
    return rules if url else [*shipped_rules(), *rules]


def _is_text(path: Path) -> bool:
    """Whether a file holds rules as text; by its first bytes where its name does not say so."""
    if is_text(path):
        return True
    try:
        with path.open("rb") as file:
            return file.read(4096).lstrip().startswith((b"rule ", b"#"))
    except OSError as problem:
        raise StoreError(f"{path}: cannot be read ({problem.strerror}); give a file of TASO's or a .rules file") from None


def _text_rules(path: Path) -> list[Rule]:
    """Rules of a text file, those without a certificate or class too."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise StoreError(f"{path}: cannot be read ({reason}); give a file of TASO's or a .rules file") from None
    rules, block, start = [], list[str](), 0
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            start = start if block else number
            block.append(line)
        elif block:
            for name in ("class  exact", "proof"):
                if any(part.startswith("rule ") for part in block) and not any(
                    part.split()[:1] == name.split()[:1] for part in block
                ):
                    block.append(f"  {name}  ")
            if any(not part.startswith("#") for part in block):
                rules.append(Entry(str(path), "\n".join(block) + "\n", start).read())
            block = []
    if not rules:
        raise StoreError(f"{path}: it holds no rules; give a file of TASO's or a .rules file")
    return rules


def import_file(
    path: Path,
    existing: Iterable[Rule],
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    prover: Prover | None = None,
) -> list[Imported]:
    """Examines all rules of a file; nothing is stored.

    Args:
        path: of a file of TASO's or a .rules file.
        existing: rules that are there already.
        seed: of random tests.
        progress: called with the number of rules examined and that of all.
        prover: to reuse.

    Raises:
        StoreError, RuleTextError: the file cannot be read; one line.
    """
    results = []
    if _is_text(path):
        rules = _text_rules(path)
        importer = Importer(existing, path.name, seed, prover)
        for number, rule in enumerate(rules, 1):
            results.append(importer.text(rule))
            progress(number, len(rules))
        return results
    taso = read_taso(path)
    importer = Importer(existing, path.name, seed, prover)
    for index, one in enumerate(taso):
        results.append(importer.taso(str(index), one))
        progress(index + 1, len(taso))
    return results
