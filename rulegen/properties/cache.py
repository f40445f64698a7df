"""Evidence for operator properties on disk, by the digest of the code that it rests on.

That code is the import closure of the module that finds the evidence, and the modules in which the operators that a property
names are written. Each of the ways in which a property is examined has a file of its own, so that a change to what decides
polynomials leaves the samples and the runs valid. The registry of operators imports all of them, so that the closure does not
follow it: a change to one operator leaves the evidence for properties of others valid.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mugraph.ops import REGISTRY, get_operator
from mugraph.terms.term import walk
from rulegen.properties.everywhere import SizesEvidence
from rulegen.properties.runtime import RuntimeEvidence
from rulegen.properties.symbolic import SymbolicEvidence
from rulegen.properties.validate import NumericEvidence
from rules_db.files import write_text
from rules_db.stamp import imported_files
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Verdict

__all__ = ["AuditLimits", "Evidence", "EvidenceCache", "Found", "SetPart"]

Evidence = tuple[SymbolicEvidence, NumericEvidence, RuntimeEvidence, SizesEvidence]
Found = TypeVar("Found", SymbolicEvidence, NumericEvidence, RuntimeEvidence, SizesEvidence)
"""What one of the ways found. The class stands in the module that finds it."""

_SET = "rulegen.properties.consistency"
"""The module that finds evidence for all properties as a set."""
_PACKAGES = ("mugraph", "rules_db", "rulegen")
_REGISTRY = "mugraph.ops"


@dataclass(frozen=True)
class AuditLimits:
    """The amount of evidence that is looked for.

    Attributes:
        samples: typed shapes for the numeric test.
        cases: for the symbolic test.
        runs: samples that onnxruntime is given.
        steps: typings that the search for a proof at all sizes may ask for.
    """

    samples: int = 400
    cases: int = 60
    runs: int = 6
    steps: int = 200_000

    def of(self, kind: type[Found]) -> int:
        """The amount of one kind."""
        return {
            SymbolicEvidence: self.cases,
            NumericEvidence: self.samples,
            RuntimeEvidence: self.runs,
            SizesEvidence: self.steps,
        }[kind]


@dataclass(frozen=True)
class SetPart:
    """A part of a question about all properties: which of some follow from the others, or what follows from some of the terms.

    Attributes:
        question: ``lemmas`` or ``inconsistent``.
        first, last: numbers of the properties, or of the terms, from the first up to but without the last.
    """

    question: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.question}-{self.first}-{self.last}"


class EvidenceCache:
    """A folder of evidence, a file for each property and way and one for each part of a question about all as a set.

    Args:
        folder: of the files.
        limits: of the evidence for each property.
    """

    def __init__(self, folder: Path, limits: AuditLimits) -> None:
        self.folder, self.limits = folder, limits

    def file(self, axiom: Axiom, kind: type[Found]) -> Path:
        """The file of what one way found of a property."""
        way = kind.__module__.rpartition(".")[2]
        return self.folder / f"{axiom.digest}-{way}-{_engine([axiom], kind.__module__)}-{self.limits.of(kind)}.json"

    def read(self, axiom: Axiom, kind: type[Found]) -> Found | None:
        """What one way found of a property; ``None`` where there is nothing that can be read."""
        try:
            content = json.loads(self.file(axiom, kind).read_text(encoding="utf-8"))
            return kind(**(content | {"verdict": Verdict(content["verdict"])} if "verdict" in content else content))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def read_all(self, axiom: Axiom) -> Evidence | None:
        """What all ways found of a property; ``None`` where one is missing."""
        symbolic, numeric = self.read(axiom, SymbolicEvidence), self.read(axiom, NumericEvidence)
        runtime, sizes = self.read(axiom, RuntimeEvidence), self.read(axiom, SizesEvidence)
        if symbolic is None or numeric is None or runtime is None or sizes is None:
            return None
        return symbolic, numeric, runtime, sizes

    def write(self, axiom: Axiom, found: Found) -> None:
        """Records what one way found of a property."""
        _write(self.file(axiom, type(found)), asdict(found))

    def read_part(self, axioms: Mapping[str, Axiom], part: SetPart) -> list[str] | None:
        """The answers to a part of a question about properties as a set; ``None`` where there are none that can be read."""
        try:
            content = json.loads(self._part_file(axioms, part).read_text(encoding="utf-8"))
            return [str(answer) for answer in content["answers"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_part(self, axioms: Mapping[str, Axiom], part: SetPart, answers: list[str]) -> None:
        """Records the answers to a part of a question about properties as a set."""
        _write(self._part_file(axioms, part), {"answers": answers})

    def _part_file(self, axioms: Mapping[str, Axiom], part: SetPart) -> Path:
        return self.folder / f"set-{_engine(axioms.values(), _SET)}-{part}.json"


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(content))


def _engine(axioms: Iterable[Axiom], finder: str) -> str:
    """A digest of the properties, of the module that examines them and of the operators that they name."""
    content = hashlib.blake2b(_closure_digest(finder), digest_size=8)
    operators: set[str] = set()
    for axiom in axioms:
        content.update(axiom.digest.encode())
        cited = [term for condition in axiom.conditions for term in condition.terms()]
        operators |= {t.op for t in walk([axiom.left, axiom.right, *cited]) if t.op not in ("Var", "Const")}
    for module in sorted({module for op in operators for module in _modules(op)}):
        content.update(module.encode())
        content.update(_source(module))
    return content.hexdigest()


@cache
def _closure_digest(finder: str) -> bytes:
    """A digest of all that a module imports, without the operators, and of this module."""
    content = hashlib.blake2b(_source(__name__), digest_size=8)
    for name, file in imported_files((finder,), _PACKAGES, without={_REGISTRY}).items():
        content.update(name.encode())
        content.update(file.read_bytes())
    return content.digest()


@cache
def _source(module: str) -> bytes:
    file = importlib.import_module(module).__file__
    assert file is not None, module
    return Path(file).read_bytes()


@cache
def _modules(op: str) -> frozenset[str]:
    """The modules in which an operator's record is written, with those of the operators that a composite one consists of."""
    record = get_operator(op)
    modules: set[str] = set()
    pending: list[Any] = [record.infer, record.evaluate, record.decomposition]
    seen: list[Any] = []
    while pending:
        value = pending.pop()
        if any(value is other for other in seen):
            continue
        seen.append(value)
        value = inspect.unwrap(value) if callable(value) else value
        if inspect.isfunction(value):
            modules.add(value.__module__)
            pending += [cell.cell_contents for cell in value.__closure__ or ()]
        elif isinstance(value, Mapping):
            pending += value.values()
    if record.composite:
        written = {name for module in modules for name in re.findall(r'"([A-Z]\w+)"', _source(module).decode())}
        plain = {name for name in written & set(REGISTRY) if not REGISTRY[name].composite}
        modules = modules.union(*map(_modules, plain))
    return frozenset(modules)
