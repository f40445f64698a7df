"""What was written, run with its custom kernels, and held against the original.

On a GPU first in memory that ends where tensors end (`tools.fuzz.fence`), then as users run it. What is wrong there may be
onnxruntime's own doing: so a model that is not right is run without the library, too, through the bodies of its kernels, and only
what is right then, and what the original by itself is good for (`tools.fuzz.provided`), is held against the kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import CPU_KERNEL, KERNEL, KERNEL_DOMAIN, kernel_of
from mugraph.onnx import load
from mugraph.ops import get_operator, traits_of
from mugraph.terms.term import walk
from tools.fuzz.fates import Fate
from tools.fuzz.oracle import Originals, Verdict
from tools.fuzz.provided import Misfit, Place, Provided
from tools.fuzz.sessions import Request, Sessions

__all__ = ["WithKernels", "counted"]

_FURTHER = 4
"""How often kernels that are held to be wrong are run once more."""


def counted(_: Originals, written: bytes) -> tuple[None, Counter[str]]:
    """The custom kernels of a model that were compiled, by what they compute, and their launches; nothing is run."""
    counts, model = Counter[str](), onnx.ModelProto.FromString(written)
    for node in model.graph.node:
        if node.domain == KERNEL_DOMAIN and node.op_type in (KERNEL, CPU_KERNEL):
            names = [attribute.s for attribute in node.attribute if attribute.name == "kernels"]
            counts["compiled kernels"] += len(names)
            counts["functions in kernels"] += sum(len(name.splitlines()) for name in names)
    if counts:
        counts["models with kernels"] += 1
        for node in load(model).graph.nodes():
            if node.op == KERNEL:
                counts[f"kernels of {kind_of(kernel_of(node.attrs))}"] += 1
    return None, counts


def kind_of(kernel: Kernel) -> str:
    """What a kernel computes."""
    terms = [term for term in walk(kernel.body) if not term.is_var and term.op != "Const"]
    products = sum(traits_of(term.op).product is not None for term in terms)
    rows = any(traits_of(term.op).rows is not None or get_operator(term.op).composite for term in terms)
    reduces = any(traits_of(term.op).monoid is not None for term in terms)
    if any("Attention" in term.op for term in terms) or (products > 1 and any(term.op == "Softmax" for term in terms)):
        return "attention"
    if products:
        return "products with rows" if rows or reduces else "products"
    if rows or reduces:
        return "rows"
    return "movements" if all(traits_of(term.op).addresses for term in terms) else "entries"


@dataclass(frozen=True)
class WithKernels:
    """Runs a model with its kernels by a provider. Called as `tools.fuzz.oracle.Elsewhere`.

    Attributes:
        sessions: where it runs.
        fenced: in fenced memory first.
    """

    sessions: Sessions
    fenced: bool = False

    def __call__(self, originals: Originals, written: bytes) -> tuple[Verdict | None, Counter[str]]:
        _, counts = counted(originals, written)
        if not originals.plain:
            return None, counts
        provided = Provided(self.sessions, originals, self.fenced)
        if broken := provided.begin():
            return (Fate.RUNTIME, f"the original on {self.sessions.provider} by itself: {broken}"), counts
        told = None
        for fenced in (True, False) if self.fenced else (False,):
            judge = _KernelJudge(provided, written, fenced)
            verdict = judge.verdict()
            counts["runs of kernels"] += judge.kernels
            counts["outputs that the provider alone answers for"] += judge.excused
            if verdict is not None and verdict[0].is_failure:
                return verdict, counts
            told = told or verdict
        return told, counts


@dataclass
class _KernelJudge:
    """Of a model in one kind of memory.

    Attributes:
        provided: the original on the provider.
        kernels: how often nodes of custom kernels were run.
        excused: how many outputs are not right, and the provider's own doing.
    """

    provided: Provided
    written: bytes
    fenced: bool
    kernels: int = 0
    excused: int = 0

    def verdict(self) -> Verdict | None:
        """What is wrong with the model, the runtime or the inputs; ``None`` where nothing is."""
        request = Request(self.written, self.provided.feeds, library=True, fenced=self.fenced)
        answer = self.provided.answered(request)
        if isinstance(answer, str):
            fate = Fate.HANG if answer.startswith("no answer") else Fate.DIED
            return self._attributed(request, [Misfit(fate, ("", ""), answer)])
        self.kernels = answer.kernels
        return self._attributed(request, list(self.provided.failures(answer)))

    def _attributed(self, request: Request, failures: Sequence[Misfit]) -> Verdict | None:
        """The first failure that only the kernels explain; else what is to be told of the runtime."""
        own: Verdict | None = None
        if not any(failure.fate.is_failure for failure in failures):
            return (failures[0].fate, f"{self._where}: {failures[0].told}") if failures else None
        bodies = self.provided.answered(replace(request, library=False))
        if isinstance(bodies, str) or bodies.broken:
            words = bodies if isinstance(bodies, str) else bodies.broken
            return Fate.RUNTIME, f"{self._where}, without its kernels, too: {words}"
        without = {failure.place for failure in self.provided.failures(bodies) if failure.fate.is_failure}
        for failure in failures:
            if not failure.fate.is_failure:
                own = own or (failure.fate, f"{self._where}: {failure.told}")
                continue
            why = self.provided.own_doing(failure.place) if failure.fate is Fate.WRONG else ""
            if not why and failure.place not in without:
                often = self._how_often(request, failure.place) if failure.fate is Fate.WRONG else ""
                return failure.fate, f"{self._where}: {failure.told}{often}"
            self.excused += failure.fate is Fate.WRONG
            words = f"{why}: {self._where}" if why else f"{self._where}, without its kernels, too"
            own = own or (Fate.RUNTIME, f"{words}: {failure.told}")
        return own

    def _how_often(self, request: Request, place: Place) -> str:
        """In how many further runs the same is wrong, in words: what a kernel computes is in all, what a race leaves is not."""
        again = 0
        for _ in range(_FURTHER):
            answer = self.provided.answered(request)
            again += not isinstance(answer, str) and (Fate.WRONG, place) in [
                (failure.fate, failure.place) for failure in self.provided.failures(answer)
            ]
        return f"; so in {again} of {_FURTHER} further runs"

    @property
    def _where(self) -> str:
        return f"with its kernels on {self.provided.sessions.provider}{' in fenced memory' if self.fenced else ''}"
