"""The house is in order: imports stand at the top and go one way, a class name means one thing, tests share through support."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("mugraph", "rules_db", "rulegen", "rewriter", "modeldiff", "tools")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def place(file: Path, node: ast.AST) -> str:
    return f"{file.relative_to(ROOT).as_posix()}:{getattr(node, 'lineno', 0)}"


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def below_the_top(module: ast.Module) -> Iterator[ast.AST]:
    """Statements within functions, classes and conditions."""
    for statement in module.body:
        for node in ast.walk(statement):
            if node is not statement:
                yield node


def hidden_imports(module: ast.Module) -> list[ast.AST]:
    """Imports of the project within a function, or for type checkers alone: they hide an arrow that goes the wrong way."""
    return [node for node in below_the_top(module) if any(name.split(".")[0] in PACKAGES for name in imported(node))]


def addresses(module: ast.Module) -> list[ast.AST]:
    """Calls of ``id``, which means another object once the first is gone."""
    calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "id"]


def rebound(module: ast.Module) -> list[ast.AST]:
    """Statements that let a function bind a module's name anew."""
    return [node for node in ast.walk(module) if isinstance(node, ast.Global)]


def test_what_is_ours_is_imported_at_the_top() -> None:
    assert [place(file, node) for file in SOURCES for node in hidden_imports(tree(file))] == []


def test_nothing_is_remembered_by_address() -> None:
    assert [place(file, node) for file in SOURCES for node in addresses(tree(file))] == []


def test_no_name_of_a_module_is_bound_anew_while_it_runs() -> None:
    assert [place(file, node) for file in SOURCES for node in rebound(tree(file))] == []


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in SOURCES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(place(file, node))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_tests_share_through_support() -> None:
    """What two modules of tests need stands in tests/support."""
    shared = [(file, node, name) for file in TESTS for node in ast.walk(tree(file)) for name in imported(node)]
    strays = [
        place(file, node) for file, node, name in shared if name.startswith("tests.") and not name.startswith("tests.support")
    ]
    assert strays == []


def test_tests_stand_where_their_subject_stands() -> None:
    """A folder of tests is the folder of what it tests."""
    folders = {file.parent.relative_to(ROOT / "tests") for file in TESTS if file.name.startswith("test_")}
    assert [folder.as_posix() for folder in sorted(folders) if folder.parts and not (ROOT / folder).is_dir()] == []


def test_what_is_out_of_order_is_noticed() -> None:
    module = ast.parse("""
import mugraph.graph
if TYPE_CHECKING:
    from rewriter.run import optimize
def function(x):
    global STATE
    import rulegen
    import torch
    return id(x)
""")
    assert [node.lineno for node in hidden_imports(module)] == [4, 7]  # type: ignore[attr-defined]
    assert len(addresses(module)) == len(rebound(module)) == 1
