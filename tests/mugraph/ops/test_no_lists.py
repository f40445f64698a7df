"""What is true of operators stands in their records: no module beside them keeps a list of their names.

A list is a literal collection at module or class level, or within what is assigned there, that names two operators of the
registry or more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from mugraph.ops import REGISTRY

ROOT = Path(__file__).parents[3]
PACKAGES = ("mugraph", "rules_db", "rulegen", "rewriter", "tools")
RECORDS = Path("mugraph/ops")

ALLOWED = {
    ("rulegen/workloads/activation.py", "ACTIVATION"): "a workload: operators of a group, with attributes",
    ("rulegen/workloads/attention.py", "ATTENTION"): "a workload",
    ("rulegen/workloads/conv.py", "CONV"): "a workload",
    ("rulegen/workloads/layout.py", "LAYOUT"): "a workload",
    ("rulegen/workloads/layout.py", "_ENTRYWISE"): "a workload: the functions that others move past",
    ("rulegen/workloads/layout.py", "_POOLS"): "a workload: windows of image models",
    ("rulegen/workloads/linear.py", "LINEAR"): "a workload",
    ("rulegen/workloads/normal.py", "NORMAL"): "a workload",
    ("rulegen/workloads/taso.py", "TASO"): "a workload",
    ("rulegen/workloads/taso.py", "TASO_PAPER"): "a workload: TASO's own space",
    ("tools/ship/spelled.py", "STEPS"): "what is spelled from definitions, with limits",
    ("tools/zoo/exporters.py", "FAMILIES"): "what regions of exported models are",
    ("tools/zoo/exporters.py", "_ATTENTION"): "what regions of exported models are",
    ("tools/zoo/exporters.py", "_GELU"): "what regions of exported models are",
    ("tools/zoo/exporters.py", "_LAYER"): "what regions of exported models are",
    ("tools/zoo/exporters.py", "_RMS"): "what regions of exported models are",
    ("tools/bench/databases.py", "_TRANSFORMER"): "what a transformer holds, which a database is asked about",
    ("tools/fuzz/diff_changes.py", "_FAMILIES"): "changes that are made: another operator in place of one",
    ("rulegen/taso/operators.py", "_ACTIVATIONS"): "codes of TASO's files, by their number",
    ("rewriter/reference/uses.py", "_PASSING"): "ONNX operators of nodes that may be opaque: these have no record to ask",
    ("rewriter/reference/uses.py", "_PICKING"): "likewise",
    ("rewriter/reference/uses.py", "_ORDERS"): "likewise",
    ("rewriter/reference/uses.py", "_SIZING"): "likewise",
    ("rewriter/reference/uses.py", "_LOGIC"): "likewise",
    ("rewriter/reference/uses.py", "_TABLES"): "likewise",
    ("tools/bench/cpu_nodes.py", "CASES"): "what is measured",
    ("tools/fuzz/running.py", "_SPELLED"): "how a runtime's operators that one provider lacks are written for it",
    ("mugraph/onnx/cleaning/absorbing.py", "_CONVOLUTIONS"): "nodes of a file that was not read yet: ONNX's own names",
    ("mugraph/onnx/cleaning/absorbing.py", "_FOLLOWERS"): "likewise",
    ("mugraph/onnx/cleaning/folding.py", "_GROWING"): "likewise",
    ("mugraph/onnx/cleaning/folding.py", "_KEPT"): "likewise",
    ("mugraph/onnx/parse.py", "_EXTENDED"): "likewise",
    ("mugraph/onnx/cleaning/simplifying.py", "_KEEPS_ZERO"): "likewise",
    ("mugraph/onnx/cleaning/simplifying.py", "_NEUTRAL"): "likewise",
    ("mugraph/onnx/cleaning/simplifying.py", "_RESHAPES"): "likewise",
    ("mugraph/onnx/cleaning/simplifying.py", "_SINGLE"): "likewise",
    ("tools/fuzz/models/generate.py", "_DEADLY_WHERE_EMPTY"): "defects of a runtime, not of operators",
    ("rewriter/run/runtime_fusions.py", "_PARAMETERS"): "what a runtime's optimisers make, in files that it writes",
    ("rewriter/run/probes.py", "_TABLES"): "where ONNX's own operators read by place",
    ("rewriter/run/probes.py", "_PLACES"): "likewise",
    ("tools/bench/cpu_bound.py", "(_PRODUCTS, _CONVOLUTIONS)"): "what a runtime runs, by its own names",
    ("tools/bench/diff_faults.py", "_SWAPS"): "faults that are planted in files",
    ("tools/bench/diff_faults.py", "_WEIGHED"): "likewise",
    ("rewriter/search/ranges.py", "_ESCAPING"): "the arithmetic of ranges, written for these operators",
}
"""Data that name operators by purpose."""


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names and values that are assigned at module level, or at the level of a class."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _assignments(statement.body)
        elif isinstance(statement, ast.Assign):
            yield from ((ast.unparse(target), statement.value) for target in statement.targets)
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign) and statement.value is not None:
            yield ast.unparse(statement.target), statement.value


def lists(source: str) -> dict[str, set[str]]:
    """Assigned names to the operators that their values name, where they are two or more."""
    named: dict[str, set[str]] = {}
    for target, value in _assignments(ast.parse(source).body):
        words = {node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        operators = {part for word in words for part in word.split() if part in REGISTRY}
        if len(operators) > 1:
            named.setdefault(target, set()).update(operators)
    return named


def test_no_module_keeps_a_list_of_operators() -> None:
    kept = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT)
            if RECORDS not in file.parents:
                kept |= {(file.as_posix(), target) for target in lists(path.read_text(encoding="utf-8"))}
    assert not kept - ALLOWED.keys(), f"ask a trait instead: {sorted(kept - ALLOWED.keys())}"
    assert not ALLOWED.keys() - kept, f"allowed, and not there: {sorted(ALLOWED.keys() - kept)}"


def test_a_list_is_noticed() -> None:
    assert lists('_A = frozenset({"Add", "Mul"})') == {"_A": {"Add", "Mul"}}
    assert lists('class C:\n    a: tuple[str, ...] = ("Relu", "x", "Tanh")') == {"a": {"Relu", "Tanh"}}
    assert lists('_B = {"Sub": "Add"}\n_B |= {"Relu": "x"}') == {"_B": {"Sub", "Add"}}
    assert lists('_C = frozenset("Add Sub Neg".split())') == {"_C": {"Add", "Sub", "Neg"}}
    assert lists('_D = ("Add",)\n_E = ("add", "mul")\n\ndef f(): return ("Add", "Mul")') == {}
