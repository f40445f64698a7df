"""The stamp covers the trusted base: whatever the checker imports, and nothing is remembered once a line of it changes."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from rules_db.stamp import PACKAGES, ROOTS, stamp, trusted_files

HOME = Path(__file__).parents[2]
FILES = trusted_files()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("base")
    for package in PACKAGES:
        shutil.copytree(HOME / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    return home


def imports(file: Path) -> set[str]:
    """Names that a module imports anywhere, as the interpreter reads them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{file}: a relative import"
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return names


def source_of(module: str) -> str | None:
    base = HOME.joinpath(*module.split("."))
    return next((p.relative_to(HOME).as_posix() for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def test_the_trusted_base_is_closed_under_imports() -> None:
    for name, file in FILES.items():
        if name.endswith(".py"):
            ours = {module for module in imports(file) if module.split(".")[0] in PACKAGES}
            assert {source_of(module) for module in ours} - {None} <= FILES.keys(), name


def test_the_trusted_base_imports_no_package_above_it() -> None:
    above = {"rulegen", "rewriter", "tools", "z3", "triton", "onnxruntime"}
    for name, file in FILES.items():
        if name.endswith(".py"):
            assert not above & {module.split(".")[0] for module in imports(file)}, name


def test_what_decides_is_in_the_trusted_base() -> None:
    assert {source_of(root) for root in ROOTS} <= FILES.keys()
    folder = {file.relative_to(HOME).as_posix() for file in (HOME / "rules_db" / "trust").rglob("*.py")}
    records = {file.relative_to(HOME).as_posix() for file in (HOME / "mugraph" / "ops").glob("*.py")}
    axioms = {file.relative_to(HOME).as_posix() for file in (HOME / "rules_db" / "axioms").glob("*.axioms")}
    assert axioms and folder | records | axioms <= FILES.keys()
    assert not any("store" in name or "library" in name for name in FILES), "where rules live decides nothing"


@pytest.mark.parametrize("name", FILES)
def test_a_changed_line_in_any_trusted_file_changes_the_stamp(copy: Path, name: str) -> None:
    before = stamp(copy)
    original = (copy / name).read_bytes()
    line = original.index(b"\n", len(original) // 2)
    (copy / name).write_bytes(original[:line] + b" " + original[line:])
    stamp.cache_clear()
    assert stamp(copy) != before
    (copy / name).write_bytes(original)
    stamp.cache_clear()
    assert stamp(copy) == before


def test_what_is_not_trusted_does_not_change_the_stamp(copy: Path) -> None:
    before = stamp(copy)
    (copy / "rules_db" / "store.py").write_text("", encoding="utf-8")
    stamp.cache_clear()
    assert stamp(copy) == before


def test_a_copy_has_the_stamp_of_the_original(copy: Path) -> None:
    stamp.cache_clear()
    assert stamp(copy) == stamp(HOME) == stamp()
