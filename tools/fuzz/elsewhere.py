"""What was written, run with its custom kernels, and held against the original.

On a GPU first in memory that ends where tensors end (`tools.fuzz.fence`), then as users run it. What is wrong there may be
onnxruntime's own doing: so a model that is not right is run without the library, too, through the bodies of its kernels, and only
what is right then is held against the kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import CPU_KERNEL, KERNEL, KERNEL_DOMAIN, kernel_of
from mugraph.onnx import load
from mugraph.ops import get_operator, traits_of
from mugraph.terms.term import walk
from tools.fuzz.fates import Fate
from tools.fuzz.oracle import Originals, Verdict, far
from tools.fuzz.running import CannotRun, Outputs, run
from tools.fuzz.sessions import Answer, ProcessEnded, Request, Sessions

__all__ = ["WithKernels", "counted"]

_REPEATS = 4
"""How often the original is run once more, with onnxruntime's optimisers and without, where a kernel is held to be wrong."""
_FURTHER = 4
"""How often the kernels are run once more then."""


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
        feeds = {kind: feed for kind, (feed, _) in originals.plain.items()}
        if not feeds:
            return None, counts
        theirs = [self._theirs(originals, feeds, optimize) for optimize in (True, False)]
        broken = next((one for one in theirs if isinstance(one, str)), None)
        if broken is not None:
            return (Fate.RUNTIME, f"the original on {self.sessions.provider} by itself: {broken}"), counts
        bases = {kind: [*_on_cpu(originals, kind), *_given(theirs, kind)] for kind in feeds}
        told = None
        for fenced in (True, False) if self.fenced else (False,):
            judge = _KernelJudge(self.sessions, originals, written, bases, fenced)
            verdict = judge.verdict()
            counts["runs of kernels"] += judge.kernels
            if verdict is not None and verdict[0].is_failure:
                return verdict, counts
            told = told or verdict
        return told, counts

    def _theirs(self, originals: Originals, feeds: Mapping[str, Any], optimize: bool) -> Answer | str:
        """What the provider gives of the original, or how that ended it."""
        if self.sessions.provider == "cpu":
            return Answer()
        try:
            answer = self.sessions.run(Request(originals.model, feeds, optimize=optimize))
        except ProcessEnded as problem:
            return str(problem)
        return answer.broken or answer


def _on_cpu(originals: Originals, kind: str) -> list[Outputs]:
    """What the CPU provider gives of the original, with its optimisers where they do not break it, and without."""
    feed, without = originals.plain[kind]
    try:
        return [without, run(originals.model, feed)]
    except CannotRun:
        return [without]


def _given(answers: Any, kind: str) -> list[Outputs]:
    return [answer.outputs[kind] for answer in answers if kind in answer.outputs]


@dataclass
class _KernelJudge:
    """Of a model in one kind of memory.

    Attributes:
        bases: what the original gives, by the kind of inputs, in all ways in which it was run.
        kernels: how often nodes of custom kernels were run.
    """

    sessions: Sessions
    originals: Originals
    written: bytes
    bases: Mapping[str, list[Outputs]]
    fenced: bool
    kernels: int = 0

    def verdict(self) -> Verdict | None:
        """What is wrong with the model, the runtime or the inputs; ``None`` where nothing is."""
        feeds = {kind: feed for kind, (feed, _) in self.originals.plain.items()}
        request = Request(self.written, feeds, library=True, fenced=self.fenced)
        answer = self._answered(request)
        if isinstance(answer, str):
            fate = Fate.HANG if answer.startswith("no answer") else Fate.DIED
            return self._attributed(request, [(fate, "", answer)])
        self.kernels = answer.kernels
        return self._attributed(request, self._failures(answer))

    def _answered(self, request: Request) -> Answer | str:
        try:
            return self.sessions.run(request)
        except ProcessEnded as problem:
            return str(problem)

    def _attributed(self, request: Request, failures: Any) -> Verdict | None:
        """The first failure that only the kernels explain; else what is to be told of the runtime."""
        own: Verdict | None = None
        failures = list(failures)
        if not any(fate.is_failure for fate, _, _ in failures):
            return (failures[0][0], f"{self._where}: {failures[0][2]}") if failures else None
        bodies = self._answered(replace(request, library=False))
        if isinstance(bodies, str) or bodies.broken:
            words = bodies if isinstance(bodies, str) else bodies.broken
            return Fate.RUNTIME, f"{self._where}, without its kernels, too: {words}"
        without = {place for fate, place, _ in self._failures(bodies) if fate.is_failure} | self._unsteady(request)
        for fate, place, told in failures:
            if fate.is_failure and place not in without:
                often = self._how_often(request, place) if fate is Fate.WRONG else ""
                return fate, f"{self._where}: {told}{often}"
            own = own or (Fate.RUNTIME, f"{self._where}, without its kernels, too: {told}")
        return own

    def _unsteady(self, request: Request) -> set[str]:
        """Where the original's own results differ from run to run: by the order of writes to one place, by unwritten memory."""
        places = set[str]()
        for optimize in (True, False) * _REPEATS:
            answer = self._answered(replace(request, model=self.originals.model, library=False, optimize=optimize))
            if not isinstance(answer, str):
                places |= {place for fate, place, _ in self._failures(answer) if fate is Fate.WRONG}
        return places

    def _how_often(self, request: Request, place: str) -> str:
        """In how many further runs the same is wrong, in words: what a kernel computes is in all, what a race leaves is not."""
        again = 0
        for _ in range(_FURTHER):
            answer = self._answered(request)
            again += not isinstance(answer, str) and (Fate.WRONG, place) in [found[:2] for found in self._failures(answer)]
        return f"; so in {again} of {_FURTHER} further runs"

    @property
    def _where(self) -> str:
        return f"with its kernels on {self.sessions.provider}{' in fenced memory' if self.fenced else ''}"

    def _failures(self, answer: Answer) -> Iterator[tuple[Fate, str, str]]:
        """What is wrong with an answer: what that is, where, and in words."""
        if answer.broken:
            kinds = ", ".join(answer.refused)
            yield (
                Fate.DIED,
                "",
                f"the device is of no use after {kinds} inputs: {answer.broken}; {'; '.join(answer.refused.values())}",
            )
            return
        for kind, bases in self.bases.items():
            if kind in answer.refused:
                yield Fate.LOST, kind, f"does not run on {kind} inputs: {answer.refused[kind]}"
                continue
            if kind in answer.beside:
                yield Fate.WRONG, f"{kind} beside", f"on {kind} inputs {answer.beside[kind]}"
            for position, one in enumerate(answer.outputs[kind]):
                yardstick = self.originals.yardstick(kind, position)
                originals = [outputs[position] for outputs in bases]
                if not yardstick.accepts(one, *originals):
                    told = f"on {kind} inputs: output {position}, {far(one, originals[0])}"
                    yield self.originals.fate_by_rounding(kind, position, one, *originals), f"{kind} {position}", told
