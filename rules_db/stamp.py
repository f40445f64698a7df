"""The stamp of the trusted base: a digest of all that decides whether a rule stands.

The trusted base is what the checker and the reader of rules import, directly or not, within this project: the checker's own
folder (:mod:`rules_db.trust`), the operator records with their semantics, the number systems, terms and their text; and the
operator properties. A verdict that is remembered holds for one stamp only: whoever changes a line of any of these files has
every rule checked again. What other people's packages do (NumPy, the interpreter) is not part of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

__all__ = ["PACKAGES", "ROOTS", "imported_files", "stamp", "trusted_files"]

ROOTS = ("rules_db.trust.check", "rules_db.trust.verbatim", "rules_db.exchange", "rules_db.stamp")
"""The checker, what tells rules that hold of infinities too, the reader of rules, and this module, which says what else is
trusted."""

PACKAGES = ("mugraph", "rules_db")
"""The packages in which the trusted base stands."""

_DATA = "rules_db/axioms/*.axioms"
_HOME = Path(__file__).parents[1]
_IMPORT = re.compile(r"^(?:from ([\w.]+) import (\([^)]*\)|[^\n#]*)|import ([\w. ,]+))", re.MULTILINE)


def _imported(text: str) -> Iterator[str]:
    """Dotted names that a module's source imports at its top level; of ``from a import b`` both ``a`` and ``a.b``."""
    for match in _IMPORT.finditer(text):
        module, names, plain = match.groups()
        if plain:
            yield from (name.split()[0] for name in plain.split(","))
            continue
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?\s*(?:,|\)|$)", names))


def _file(module: str, packages: Collection[str], home: Path) -> Path | None:
    """The source of a module of some packages; ``None`` for anything else."""
    parts = module.split(".")
    if parts[0] not in packages:
        return None
    base = home.joinpath(*parts)
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def imported_files(
    roots: Iterable[str], packages: Collection[str], home: Path = _HOME, without: Collection[str] = ()
) -> dict[str, Path]:
    """The source of modules and of all that they import, directly or not, by its path below ``home``, in order of that.

    Args:
        roots: names of the modules.
        packages: whose modules count.
        home: the folder in which the packages stand.
        without: modules that are left out, with those that they alone import.
    """
    files: dict[str, Path] = {}
    pending, seen = list(roots), set(without)
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        file = _file(module, packages, home)
        if file is None:
            continue
        files[file.relative_to(home).as_posix()] = file
        pending.extend(_imported(file.read_text(encoding="utf-8")))
        if "." in module:
            pending.append(module.rpartition(".")[0])  # a package's own source runs before its modules'
    return dict(sorted(files.items()))


def trusted_files(home: Path = _HOME) -> Mapping[str, Path]:
    """Every file of the trusted base, by its path below ``home``, the folder in which the packages stand."""
    files = imported_files(ROOTS, PACKAGES, home)
    files.update((file.relative_to(home).as_posix(), file) for file in home.glob(_DATA))
    return dict(sorted(files.items()))


@lru_cache(maxsize=4)
def stamp(home: Path = _HOME) -> str:
    """16 hexadecimal digits of the trusted base below ``home``."""
    content = hashlib.blake2b(digest_size=8)
    for name, file in trusted_files(home).items():
        source = file.read_bytes()
        content.update(f"{name} {len(source)}\n".encode() + source)
    return content.hexdigest()
