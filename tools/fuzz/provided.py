"""What a provider gives of an original by itself: what else it gives is held against that, and where it is no yardstick is told.

A kernel of the runtime's own may read memory that nobody wrote, or compute another thing than the CPU provider's. What such an
operator gives depends on what lay there before, which other nodes in front of it change: so a model with custom kernels may
differ from its original in outputs that none of them has a part in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from rewriter.reference import compare, identical
from tools.fuzz.fates import Fate
from tools.fuzz.fence import OTHER_POISON, POISON
from tools.fuzz.oracle import Originals, alone, far
from tools.fuzz.running import CannotRun, Outputs, run
from tools.fuzz.sessions import Answer, ProcessEnded, Request, Sessions

__all__ = ["Misfit", "Place", "Provided"]

_REPEATS = 4
"""How often the original is run once more, with onnxruntime's optimisers and without, where a kernel is held to be wrong."""

Place = tuple[str, int | str]
"""The kind of inputs, and the number of an output or what else is wrong there."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """What is wrong with an answer: what that is, where, and in words."""

    fate: Fate
    place: Place
    told: str


@dataclass
class Provided:
    """An original as a provider runs it.

    Attributes:
        sessions: where it runs.
        fences: whether fenced memory can be had.
        given: what the provider gives in its own memory, with onnxruntime's optimisers and without; none of the CPU provider.
    """

    sessions: Sessions
    originals: Originals
    fences: bool
    given: Sequence[Answer] = ()
    _bases: dict[str, list[Outputs]] = field(default_factory=dict)
    _further: list[tuple[Answer | str, bool]] = field(default_factory=list)
    _own: dict[Place, str] = field(default_factory=dict)

    @property
    def feeds(self) -> Mapping[str, Any]:
        """Inputs by their kind."""
        return {kind: feed for kind, (feed, _) in self.originals.plain.items()}

    def begin(self) -> str:
        """Runs the original; how it ended the provider, or empty where it did not."""
        if self.sessions.provider == "cpu":
            return ""
        given = [self.answered(Request(self.originals.model, self.feeds, optimize=optimize)) for optimize in (True, False)]
        broken = next((one if isinstance(one, str) else one.broken for one in given if isinstance(one, str) or one.broken), "")
        self.given = [one for one in given if isinstance(one, Answer)]
        return broken

    def answered(self, request: Request) -> Answer | str:
        """What comes of a request, or how that ended the process."""
        try:
            return self.sessions.run(request)
        except ProcessEnded as problem:
            return str(problem)

    def failures(self, answer: Answer) -> Iterator[Misfit]:
        """What is wrong with an answer."""
        if answer.broken:
            kinds = ", ".join(answer.refused)
            told = f"the device is of no use after {kinds} inputs: {answer.broken}; {'; '.join(answer.refused.values())}"
            yield Misfit(Fate.DIED, ("", ""), told)
            return
        for kind in self.feeds:
            if kind in answer.refused:
                yield Misfit(Fate.LOST, (kind, ""), f"does not run on {kind} inputs: {answer.refused[kind]}")
                continue
            if kind in answer.beside:
                yield Misfit(Fate.WRONG, (kind, "beside"), f"on {kind} inputs {answer.beside[kind]}")
            for position, one in enumerate(answer.outputs[kind]):
                fate = self._fate(kind, position, one, self._as_provided(kind))
                if fate is not None:
                    told = f"on {kind} inputs: output {position}, {far(one, self._on_cpu(kind)[0][position])}"
                    yield Misfit(fate, (kind, position), told)

    def _fate(self, kind: str, position: int, one: Any, bases: Sequence[Outputs]) -> Fate | None:
        """What is told of an output that is none of those that the original has, within roundings or not."""
        originals = [outputs[position] for outputs in bases]
        if self.originals.yardstick(kind, position).accepts(one, *originals):
            return None
        return self.originals.fate_by_rounding(kind, position, one, *originals)

    def _on_cpu(self, kind: str) -> list[Outputs]:
        """What the CPU provider gives of the original, with its optimisers where they do not break it, and without."""
        if kind not in self._bases:
            feed, without = self.originals.plain[kind]
            self._bases[kind] = [without]
            with suppress(CannotRun):
                self._bases[kind].append(run(self.originals.model, feed))
        return self._bases[kind]

    def _as_provided(self, kind: str) -> list[Outputs]:
        """The same, and what the provider itself gives."""
        return [*self._on_cpu(kind), *(one.outputs[kind] for one in self.given if kind in one.outputs)]

    def own_doing(self, place: Place) -> str:
        """Why what is wrong at a place is the provider's own doing, in words; empty where it is not.

        The original by itself is run again, in memory full of one byte and of another where such can be had. An output that is
        then not what it was, or that never was what the CPU provider gives, is no yardstick.
        """
        if place not in self._own:
            self._own[place] = self._unsteady(place)
            if not self._own[place] and isinstance(place[1], int):
                self._own[place] = self._past_the_end(place[0], place[1]) or self._otherwise(place[0], place[1])
        return self._own[place]

    def _unsteady(self, place: Place) -> str:
        """Of what is wrong in some further run of the original."""
        for answer, is_fenced in self._run_again():
            if isinstance(answer, str) or (Fate.WRONG, place) not in [(one.fate, one.place) for one in self.failures(answer)]:
                continue
            if not is_fenced:
                return "the original by itself differs from run to run"
            if not isinstance(place[1], int):
                return "the original by itself writes beside a tensor"
            return f"{self._unsteady_operator(place[0], place[1]) or 'the original'} by itself reads memory that nobody wrote"
        return ""

    def _past_the_end(self, kind: str, position: int) -> str:
        """Of an output whose nodes end the device or the process in fenced memory."""
        if not any(isinstance(answer, str) or answer.broken for answer, is_fenced in self._run_again() if is_fenced):
            return ""
        part, feeds = alone(self.originals.model, position), {kind: self.feeds[kind]}
        for poison in (POISON, OTHER_POISON):
            answer = self.answered(Request(part, feeds, fenced=True, poison=poison))
            if isinstance(answer, str) or answer.broken:
                return "the original by itself reads or writes past the end of a tensor"
        return ""

    def _otherwise(self, kind: str, position: int) -> str:
        """Of an output that the provider never gave as the CPU provider does."""
        for answer in self.given:
            if kind not in answer.outputs:
                continue
            one = answer.outputs[kind][position]
            if self._fate(kind, position, one, self._on_cpu(kind)) is Fate.WRONG:
                named = self._odd_operator(kind, position) or "the original"
                return f"{named} by itself gives another thing than on the CPU ({far(one, self._on_cpu(kind)[0][position])})"
        return ""

    def _run_again(self) -> list[tuple[Answer | str, bool]]:
        """Further runs of the original, and whether each was one in fenced memory; they are made once."""
        if not self._further:
            plain = Request(self.originals.model, self.feeds)
            fenced = [replace(plain, fenced=True, poison=poison) for poison in (POISON, OTHER_POISON)] if self.fences else []
            for request in [*fenced, *[plain] * _REPEATS]:
                for optimize in (True, False):
                    self._further.append((self.answered(replace(request, optimize=optimize)), request.fenced))
        return self._further

    def _unsteady_operator(self, kind: str, position: int) -> str:
        """The first operator on the way to an output whose results are others where memory was, and the same where it was not."""
        if not self.fences:
            return ""
        model = _with_all_outputs(alone(self.originals.model, position))
        first, second, other = (self._values(model, kind, poison) for poison in (POISON, POISON, OTHER_POISON))
        return _first_operator(
            model, lambda at: not identical(first[at], other[at]) and identical(first[at], second[at]), first, second, other
        )

    def _odd_operator(self, kind: str, position: int) -> str:
        """The first operator on the way to an output whose results are far from the CPU provider's."""
        model = _with_all_outputs(alone(self.originals.model, position))
        answer = self.answered(Request(model, {kind: self.feeds[kind]}, optimize=False))
        try:
            wanted = run(model, self.feeds[kind], optimize=False)
        except CannotRun:
            return ""
        values = [] if isinstance(answer, str) else answer.outputs.get(kind, [])
        return _first_operator(model, lambda at: _is_far(values[at], wanted[at]), values, wanted)

    def _values(self, model: bytes, kind: str, poison: int) -> Outputs:
        """All outputs of a model in fenced memory; none where it does not run there."""
        request = Request(model, {kind: self.feeds[kind]}, optimize=False, fenced=True, poison=poison)
        answer = self.answered(request)
        return [] if isinstance(answer, str) else answer.outputs.get(kind, [])


def _is_far(one: Any, other: Any) -> bool:
    return isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and not compare(one, other).is_small


def _with_all_outputs(model: bytes) -> bytes:
    """A model that gives all values that its nodes make, in their order, in place of its outputs."""
    proto = onnx.ModelProto.FromString(model)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for node in proto.graph.node for name in node.output if name)
    return bytes(proto.SerializeToString())


def _first_operator(model: bytes, differs: Callable[[int], bool], *runs: Outputs) -> str:
    """The operator that makes the first output that differs; empty where none does, or where a run gave nothing."""
    nodes = onnx.ModelProto.FromString(model).graph.node
    makers = [node for node in nodes for name in node.output if name]
    if any(len(outputs) != len(makers) for outputs in runs):
        return ""
    return next((".".join(filter(None, (node.domain, node.op_type))) for at, node in enumerate(makers) if differs(at)), "")
