"""The optimiser's result held against onnxruntime and the float64 reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from mugraph.onnx import ModelError, load
from mugraph.onnx.cleaning.leftovers import drop_leftovers
from rewriter import optimize
from rewriter.reference import Error, compare, identical, is_quantized, reference_outputs
from rewriter.reference.comparison import is_float
from rewriter.run.faults import USER_ERRORS
from rewriter.run.outcome import Outcome
from rewriter.run.sealed_kernels import seal_kernels
from rewriter.search.ranges import Assumption
from tools.fuzz.conditioning import TakesTooLong, processor_seconds, rounding_errors, within_rounding
from tools.fuzz.fates import CaseReport, Fate, origin_of
from tools.fuzz.running import CannotRun, Outputs, at_sizes, computed, drawn, is_for_cuda, run, session, tolerance

__all__ = [
    "EMPTY",
    "EMPTY_UNFITTING",
    "HIDDEN",
    "INFINITE",
    "OVERFLOWING",
    "UNFITTING",
    "Elsewhere",
    "Originals",
    "Verdict",
    "Yardstick",
    "alone",
    "bit_for_bit",
    "compare_models",
    "examine_model",
    "far",
    "words_of",
]

_BLAMES_THE_RUNTIME = "onnxruntime cannot run the original"

Feeds = Mapping[str, Any]
Verdict = tuple[Fate, str]
"""What is wrong, and why, in a line."""

EMPTY = "empty"
"""The kind of inputs without entries."""
UNFITTING = "unfitting"
"""The kind of inputs of sizes at which onnxruntime runs what is not well-typed: a pool whose window does not fit its image."""
EMPTY_UNFITTING = "empty, unfitting"
"""The kind of inputs that are both."""
INFINITE, OVERFLOWING = "infinite", "overflowing"
"""The kinds of inputs that hold infinities and NaN, and of finite ones of which something in the original overflows, or nearly
so. The result need not be right on them, nor on empty ones, where the summary says so."""
HIDDEN = "hidden"
"""Behind the kind of inputs of which a mask hides a row throughout."""
_EXCUSES = {
    EMPTY: {str(Assumption.NONEMPTY)},
    UNFITTING: {str(Assumption.FITTING)},
    HIDDEN: {str(Assumption.ATTENDED)},
    INFINITE: {str(Assumption.FINITE)},
    OVERFLOWING: {str(Assumption.FINITE), str(Assumption.ORDER)},
}
"""Words of kinds of inputs to the assumptions that exclude them, as the summary has them."""
_SLACK = {"extreme": 32.0, OVERFLOWING: 32.0, "large": 8.0}
"""By how much the floors are wider on inputs of some kinds: cancellation there magnifies what another order of sums rounds."""
_STEP = 0.1
"""Relative error of a quantised model's output that a few numbers explain that were rounded to the next step."""
_OTHER_SLACK = 4.0
"""The same for all others: acceptance compared the two models on inputs that are not these."""
_MEASURING = 5.0
"""Processor seconds for what roundings move on all inputs of a case; of most models it takes less than one."""


def words_of(kind: str) -> list[str]:
    """All that inputs are: a kind may be several things at once."""
    return kind.split(", ")


def bit_for_bit(original: bytes, feeds: Sequence[Feeds], folder: Path, **options: Any) -> CaseReport:
    """With options that ask for no rewriting outputs are those of the original, bit for bit."""
    made = _optimized(original, folder, **options)
    try:
        wanted = [run(original, feed) for feed in feeds]
    except CannotRun as problem:
        return made if isinstance(made, CaseReport) and made.fate.is_failure else CaseReport(Fate.NOT_RUNNABLE, str(problem))
    if isinstance(made, CaseReport):
        return made
    _, written = made
    try:
        same = all(identical(run(written, feed), one) for feed, one in zip(feeds, wanted, strict=True))
    except CannotRun as problem:
        return CaseReport(Fate.LOST, str(problem), files={"written.onnx": written})
    return CaseReport(Fate.UNCHANGED) if same else CaseReport(Fate.WRONG, "not identical", files={"written.onnx": written})


def examine_model(
    original: bytes, feeds: Mapping[str, Feeds], folder: Path, elsewhere: Elsewhere | None = None, **options: Any
) -> CaseReport:
    """The model that the optimiser writes computes what the original does, on every input.

    Right is what is as near to the float64 reference as the original is, with or without onnxruntime's optimisers, or what
    either of the two gives. Where the optimisers break another part of the original, what they make of an output alone counts.
    Where the two disagree, the model that was written may be right without the optimisers alone. An entry
    of an output that is none of this may be as far off as roundings move the original's.

    Args:
        feeds: inputs by their kind; those that the original cannot run on are left out, and those of which the summary says
            that the result assumes otherwise.
        elsewhere: runs what was written in another way, too, once it is right on the CPU provider.
        options: of the optimiser.
    """
    made = _optimized(original, folder, **options)
    plain: dict[str, tuple[Feeds, Outputs]] = {}
    refusal = "no inputs"
    for kind, feed in feeds.items():
        try:
            plain[kind] = feed, run(original, feed, optimize=False)
        except CannotRun as problem:
            refusal = str(problem)
    if isinstance(made, CaseReport):
        return CaseReport(Fate.NOT_RUNNABLE, refusal) if not (plain or made.fate.is_failure) else made
    outcome, written = made
    if plain and outcome.message.startswith(_BLAMES_THE_RUNTIME):
        try:
            for feed, _ in plain.values():
                run(original, feed)
        except CannotRun as problem:
            return CaseReport(Fate.RUNTIME, f"its optimisers break the original: {problem}")
        given = [feed for feed, _ in plain.values() if all(isinstance(value, np.ndarray) for value in feed.values())]
        again = _optimized(original, folder, **options, data=given)
        if isinstance(again, CaseReport):
            return again
        outcome, written = again
    if plain and outcome.message.startswith(_BLAMES_THE_RUNTIME) and is_for_cuda(original):
        return CaseReport(Fate.NOT_RUNNABLE, outcome.message)
    if plain and outcome.message.startswith(_BLAMES_THE_RUNTIME):
        return CaseReport(Fate.TRACEBACK, outcome.message, files={"written.onnx": written})
    fired = tuple(rule.rule for rule in outcome.fired)
    if not plain:
        return CaseReport(Fate.NOT_RUNNABLE, refusal)
    if not outcome.improved:
        if not _computes_the_same(original, written, [feed for feed, _ in plain.values()]):
            verdict = _compared(Originals(original, plain), written)
            if verdict is None or verdict[0].is_failure:
                return CaseReport(Fate.LOST, "the original was not written", outcome.message, files={"written.onnx": written})
            return CaseReport(*verdict, files={"written.onnx": written})
        if outcome.dropped:
            return CaseReport(Fate.DOUBTED, "; ".join(outcome.dropped), files={"written.onnx": written})
        return CaseReport(Fate.UNCHANGED)
    assumed = {one.assumption for one in outcome.assumed}
    originals = Originals(original, {kind: tried for kind, tried in plain.items() if not _excuses(kind) & assumed})
    verdict, counts = _compared(originals, written), Counter[str]()
    if verdict is None or not verdict[0].is_failure:
        verdict = _compared_sealed(originals, written) or verdict
    if elsewhere is not None and (verdict is None or not verdict[0].is_failure):
        other, counts = elsewhere(originals, written)
        verdict = other if verdict is None or (other is not None and other[0].is_failure) else verdict
    if verdict is None and outcome.dropped:
        verdict = Fate.DOUBTED, "; ".join(outcome.dropped)
    if verdict is None:
        return CaseReport(Fate.REWRITTEN, fired=fired, counts=counts)
    fate, reason = verdict
    detail = "\n".join([reason, *(f"{rule.rule} {rule.text}" for rule in outcome.fired), *outcome.notes])
    short = f"{reason.split(':')[0]} ({', '.join(sorted(set(fired)))})"
    return CaseReport(fate, short, detail, fired, {"written.onnx": written}, counts)


def _excuses(kind: str) -> set[str]:
    """The assumptions that exclude a kind of inputs."""
    return {assumption for word in words_of(kind) for assumption in _EXCUSES.get(word, set())}


def compare_models(original: bytes, written: bytes, feed: Feeds | None = None) -> CaseReport:
    """Compares two models on inputs, as far as onnxruntime runs the first.

    Args:
        feed: inputs; drawn from the types that the first declares where left out.
    """
    try:
        running = session(original, optimize=False)
        feed = drawn(running) if feed is None else feed
        plain = run(running, feed)
    except CannotRun as problem:
        return CaseReport(Fate.NOT_RUNNABLE, str(problem)[:60])
    verdict = _compared(Originals(original, {"given": (feed, plain)}), written)
    return CaseReport(Fate.REWRITTEN) if verdict is None else CaseReport(*verdict, files={"written.onnx": written})


def _computes_the_same(original: bytes, written: bytes, feeds: Sequence[Feeds]) -> bool:
    """Whether a model that was kept is the original: byte for byte, or at least by what it computes.

    With the runtime's optimisers or without: what they fuse in a model that was cleaned up, they may not fuse in the original.
    """
    return written == original or any(_are_the_same(original, written, feeds, on) for on in (True, False))


def _are_the_same(original: bytes, written: bytes, feeds: Sequence[Feeds], optimize: bool) -> bool:
    try:
        return all(identical(run(original, feed, optimize), run(written, feed, optimize)) for feed in feeds)
    except CannotRun:
        return False


def _optimized(original: bytes, folder: Path, **options: Any) -> tuple[Outcome, bytes] | CaseReport:
    """The outcome and the bytes of the written model, or the report of a refusal."""
    source, target = folder / "model.onnx", folder / "written.onnx"
    source.write_bytes(original)
    target.unlink(missing_ok=True)
    try:
        outcome = optimize(source, target, debug=True, **options)
    except USER_ERRORS as problem:
        text = str(problem)
        if str(source) not in text:
            return CaseReport(Fate.TRACEBACK, f"an error that does not name the file: {text[:200]}", origin_of(problem))
        return CaseReport(Fate.REFUSED, " ".join(text.replace(str(source), "MODEL").split())[:200])
    if not target.exists():
        return CaseReport(Fate.LOST, "nothing was written")
    return outcome, target.read_bytes()


def _compared(originals: Originals, written: bytes) -> Verdict | None:
    """What is wrong with a written model, with the runtime, or with the inputs; ``None`` where nothing is."""
    own = None
    for kind, (feed, without) in originals.plain.items():
        breaks = False
        try:
            optimized = run(originals.model, feed)
        except CannotRun as problem:
            optimized, own, breaks = without, (Fate.RUNTIME, f"its optimisers break the original: {problem}"), True
        try:
            actual = run(written, feed, optimize=not breaks)
        except CannotRun as problem:
            if EMPTY in words_of(kind) and _same_without_optimisers(written, feed, without):
                own = own or (Fate.RUNTIME, f"its optimisers break the written model on {kind} inputs: {problem}")
            elif misshapen := _misshapen(originals.model, feed):
                own = own or (Fate.RUNTIME, f"on {kind} inputs {misshapen}")
            else:
                return Fate.LOST, f"does not run on {kind} inputs: {problem}"
            continue
        for position, (one, a, b) in enumerate(zip(actual, without, optimized, strict=True)):
            yardstick = originals.yardstick(kind, position)
            if breaks and not yardstick.accepts(one, a):
                b = originals.optimized_alone(kind, position)
            disagree = not yardstick.accepts(b, a)
            excused = disagree and yardstick.accepts(_output_without_optimisers(written, feed, position), a)
            if not yardstick.accepts(one, a, b) and not excused:
                fate, told = _misfit(originals, kind, position, one, a, b)
                if fate not in (Fate.ILL_CONDITIONED, Fate.RUNTIME):
                    return fate, told
                own = own or (fate, told)
            if own is None and disagree:
                own = Fate.RUNTIME, f"its optimisers change the original on {kind} inputs: output {position}, {far(b, a)}"
    return own


def _misfit(originals: Originals, kind: str, position: int, actual: Any, *own: Any) -> Verdict:
    """What is told of an output that is none of what the original gives as a whole.

    The runtime's own is what its optimisers make of the original's output where no other stands beside it: whether they change
    what it computes may depend on who else reads a value. So is an output of which a part has other sizes than ONNX gives it.
    """
    feed, _ = originals.plain[kind]
    told, where = f"output {position}, {far(actual, own[0])}", f"on {kind} inputs"
    if originals.yardstick(kind, position).accepts(actual, originals.optimized_alone(kind, position)):
        return Fate.RUNTIME, f"its optimisers change the original where an output is alone {where}: {told}"
    if misshapen := _misshapen(alone(originals.model, position), feed):
        return Fate.RUNTIME, f"{where} {misshapen}"
    return originals.fate_by_rounding(kind, position, actual, *own), f"{where}: {told}"


def _misshapen(model: bytes, feed: Feeds) -> str:
    """A value of a model whose sizes onnxruntime has otherwise than ONNX, without optimisers; empty where there is none."""
    proto = onnx.ModelProto.FromString(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(at_sizes(proto, feed), strict_mode=True, data_prop=True).graph
        values = computed(proto, feed)
    except (CannotRun, onnx.shape_inference.InferenceError):
        return ""
    for value in (*inferred.value_info, *inferred.output):
        tensor, one = value.type.tensor_type, values.get(value.name)
        if not tensor.HasField("shape") or not isinstance(one, np.ndarray | np.generic):
            continue
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if len(sizes) != one.ndim or any(size not in (None, own) for size, own in zip(sizes, one.shape, strict=True)):
            return f"onnxruntime makes '{value.name}' of the sizes {list(one.shape)}, where ONNX has {sizes}"
    return ""


def _compared_sealed(originals: Originals, written: bytes) -> Verdict | None:
    """What is wrong with a written model as it is run where the library of its custom kernels is; ``None`` where nothing is.

    Nothing is where the runtime's optimisers change nothing: the CPU provider rounds halves where a sealed kernel ends, and not
    within what it does not seal, so that a number may round up that did not.
    """
    model = onnx.ModelProto.FromString(written)
    if not seal_kernels(model):
        return None
    sealed = model.SerializeToString()
    verdict = _compared(originals, sealed)
    if verdict is None or not verdict[0].is_failure or _optimisers_change_nothing(originals, sealed):
        return None
    return verdict[0], f"with kernels sealed, {verdict[1]}"


def _optimisers_change_nothing(originals: Originals, model: bytes) -> bool:
    """Whether a model gives the same with the runtime's optimisers as without, on every input."""
    try:
        for kind, (feed, _) in originals.plain.items():
            pairs = zip(run(model, feed), run(model, feed, optimize=False), strict=True)
            if not all(originals.yardstick(kind, at).accepts(one, other) for at, (one, other) in enumerate(pairs)):
                return False
    except CannotRun:
        return False
    return True


@dataclass(frozen=True)
class Originals:
    """A model, and what it gives on inputs: what other models are held against.

    Attributes:
        model: the original.
        plain: inputs by their kind, and what onnxruntime's CPU provider computes of them without its optimisers.
    """

    model: bytes
    plain: Mapping[str, tuple[Feeds, Outputs]]

    @cached_property
    def _references(self) -> Mapping[str, list[Any]]:
        """The float64 outputs by kind, where they can be had."""
        references = _references(self.model, [feed for feed, _ in self.plain.values()])
        return {} if references is None else dict(zip(self.plain, references, strict=True))

    @cached_property
    def _quantizes(self) -> bool:
        return _quantizes(self.model)

    @cached_property
    def _errors(self) -> dict[str, list[np.ndarray | None]]:
        """How far roundings move outputs, for the kinds of inputs for which that was asked."""
        return {}

    @cached_property
    def _end(self) -> float:
        """The instant of :func:`processor_seconds` at which measuring that ends, for all kinds together."""
        return processor_seconds() + _MEASURING

    def optimized_alone(self, kind: str, position: int) -> Any:
        """An output of a model that onnxruntime's optimisers break elsewhere: as they have it alone, or else without them."""
        feed, without = self.plain[kind]
        try:
            return run(alone(self.model, position), feed)[0]
        except CannotRun:
            return without[position]

    def yardstick(self, kind: str, position: int) -> Yardstick:
        """For an output on a kind of inputs."""
        reference = self._references[kind][position] if kind in self._references else None
        slack = max(_SLACK.get(word, _OTHER_SLACK) for word in words_of(kind))
        return Yardstick(reference, slack, self._quantizes)

    def fate_by_rounding(self, kind: str, position: int, actual: Any, *originals: Any) -> Fate:
        """What is told of a value of an output that is not as good as one of the original's.

        Ill-conditioned where it is but for entries that roundings move so far, wrong where it is not, and unmeasured where how
        far they move was not measured to the end.
        """
        feed, without = self.plain[kind]
        if kind not in self._errors:
            try:
                self._errors[kind] = rounding_errors(self.model, feed, without, self._end) or [None] * len(without)
            except TakesTooLong:
                return Fate.UNMEASURED
        errors, yardstick = self._errors[kind][position], self.yardstick(kind, position)
        explained = any(yardstick.accepts(within_rounding(actual, by, errors), by) for by in originals)
        return Fate.ILL_CONDITIONED if explained else Fate.WRONG


Elsewhere = Callable[[Originals, bytes], tuple[Verdict | None, Counter[str]]]
"""Runs a written model in another way than on the CPU provider alone: what is wrong, if anything is, and what to count."""


def alone(model: bytes, position: int) -> bytes:
    """What makes one output of a model, and nothing else."""
    part = onnx.ModelProto.FromString(model)
    output = onnx.ValueInfoProto.FromString(part.graph.output[position].SerializeToString())
    del part.graph.output[:]
    part.graph.output.append(output)
    drop_leftovers(part)
    return bytes(part.SerializeToString())


def _references(original: bytes, feeds: Sequence[Feeds]) -> list[list[Any]] | None:
    """The float64 outputs, where they can be had."""
    try:
        return reference_outputs(load(onnx.ModelProto.FromString(original)), feeds)
    except (ModelError, ArithmeticError, ValueError, TypeError, LookupError, RuntimeError):
        return None
    except Exception:  # onnxruntime raises many types for an opaque node; without a reference the runtime itself is one
        return None


def _quantizes(original: bytes) -> bool:
    """Whether a model quantises, so that rounding elsewhere may take a number to the next step."""
    try:
        return is_quantized(load(onnx.ModelProto.FromString(original)).graph)
    except ModelError:
        return False


def _a_step_off(actual: Any, original: Any) -> bool:
    """Whether steps of quantisation that went the other way explain the difference."""
    if not isinstance(actual, np.ndarray) or actual.shape != original.shape or actual.dtype != original.dtype:
        return False
    if actual.dtype.kind in "iu":
        return bool(np.abs(actual.astype(np.int64) - original.astype(np.int64)).max(initial=0) <= 1)
    return actual.dtype.kind == "f" and compare(actual, original).relative_l2 <= _STEP


def _output_without_optimisers(written: bytes, feed: Feeds, position: int) -> Any:
    """An output of the written model without onnxruntime's optimisers; ``None`` where it does not run."""
    try:
        return run(written, feed, optimize=False)[position]
    except CannotRun:
        return None


def _same_without_optimisers(written: bytes, feed: Feeds, outputs: Outputs) -> bool:
    """Whether the written model gives these outputs without onnxruntime's optimisers, bit for bit."""
    try:
        return identical(run(written, feed, optimize=False), outputs)
    except CannotRun:
        return False


def far(actual: Any, original: Any) -> str:
    """How far a value is from the original's, in words."""
    return str(compare(actual, original)) if isinstance(actual, np.ndarray) else "differs"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Says whether values of an output are as good as the original's.

    Attributes:
        reference: the float64 value, where it can be had.
        slack: by how much the floors are wider.
        steps: whether the model quantises.
    """

    reference: Any
    slack: float
    steps: bool

    def accepts(self, actual: Any, *originals: Any) -> bool:
        """Whether a value is as good as one of the original's."""
        if any(identical(actual, original) for original in originals):
            return True
        if not isinstance(actual, np.ndarray):
            return False
        floor = self.slack * tolerance(actual)
        for original in originals:
            if self._is_as_chosen(actual, original):
                return True
            if compare(actual, original).within(Error(0.0, 0.0), floor) or (self.steps and _a_step_off(actual, original)):
                return True
            if self.reference is None:
                continue
            own, found = compare(original, self.reference), compare(actual, self.reference)
            if own.is_small and found.within(own, floor):
                return True
            if _finite_alike(actual, original) and found.within(Error(0.0, 0.0), floor):
                return True  # the original has lost what this one kept
        return False

    def _is_as_chosen(self, actual: np.ndarray, original: Any) -> bool:
        """Whether each truth value or whole number is the original's or the exact one: ties are decided by what rounds least."""
        arrays = (actual, original, self.reference)
        if actual.dtype.kind not in "biu" or any(getattr(one, "shape", None) != actual.shape for one in arrays):
            return False
        return original.dtype == actual.dtype and bool(np.all((actual == original) | (actual == self.reference)))


def _finite_alike(one: np.ndarray, other: Any) -> bool:
    """Whether two arrays are numbers in the same places."""
    if not isinstance(other, np.ndarray) or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return not is_float(one) or bool((np.isfinite(one) == np.isfinite(other)).all())
