"""The outcome of a run as a value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rewriter.reference import Error
from rewriter.run import timings
from rewriter.run.faults import Fault
from rewriter.run.footprint import ModelFootprint
from rewriter.search.misses import NearMiss

__all__ = ["Assumed", "Fired", "OperatorTime", "Outcome", "OutputError", "Tried"]

_SHOWN = 5
"""Most nodes that a line of the summary names."""


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule that the written model uses.

    Attributes:
        evidence: on what it stands: ``proved``, ``tested`` or ``interpreted``.
    """

    rule: str
    text: str
    evidence: str
    sites: int
    gain_microseconds: float
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assumed:
    """An assumption about inputs that the written model rests on.

    Attributes:
        assumption: in words.
        option: the flag that drops it.
        rules: the rules that needed it.
        nodes: names of the values at which they were applied.
    """

    assumption: str
    option: str
    rules: tuple[str, ...]
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.nodes) - _SHOWN} more" if len(self.nodes) > _SHOWN else ""
        nodes = f"{', '.join(self.nodes[:_SHOWN])}{more}"
        return f"assumes that {self.assumption}: {', '.join(self.rules)} at {nodes}; {self.option} drops it"


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Where the time of a run of the model goes, by operator or custom kernel, as the runtime is expected to execute it.

    Attributes:
        nodes_before, nodes_after: that are executed.
        microseconds_before, microseconds_after: by the cost model: measured, or estimated where they were not.
        roofline_before, roofline_after: microseconds that the device needs at least, by its roofline.
    """

    operator: str
    nodes_before: int
    nodes_after: int
    microseconds_before: float
    microseconds_after: float
    roofline_before: float
    roofline_after: float


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one output against the float64 reference, of the original and of the written model."""

    output: str
    before: Error
    after: Error


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate that was tried end to end, or that its price kept from that.

    Attributes:
        rules: ids of those that lead to it.
        predicted: microseconds by the cost model.
        fate: what came of it, in words.
        timing: beside the original, by which it was judged; ``None`` where it was not timed.
    """

    rules: tuple[str, ...]
    predicted: float
    fate: str
    timing: timings.Timing | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run, its measurements and its reasons; ``--json`` writes it.

    Attributes:
        improved: the written model is the rewritten one: faster beyond noise, or by the cost model where nothing was measured.
        speed: beside the original, as a user runs it, or a first impression of that where the device chose; on the device, which
            decides where it leaves no doubt; and as a first impression. JSON has its parts beside other fields (``latency``,
            ``on_device``, ``paired``).
        overall: the written model beside the file that came, under default settings, where it is made of a clean model, with
            which candidates are compared; ``None`` where that was not measured.
        error_before, error_after: against the float64 reference.
        output_errors: the same of each output, where the model was rewritten.
        assumed: what the written model takes for granted of the inputs.
        kernels: custom kernels that the written model holds.
        cleaned: the written model is cleaned up: the original without what no run needs, or made of that.
        domains: operator sets beside ai.onnx that the written model needs.
        shared_buffers: inputs of the written model, each with an output that may be bound to the same buffer.
        before, after: what the original and the written model take beside time; ``None`` where that was not measured.
        message: why the original was kept, where it was.
        fault: the internal error that ended the run early, where one did: the original was written.
        predicted_before, predicted_after: microseconds by the cost model.
        times: where these go.
        tried: the candidates that this run tried end to end, in order, and those that their price kept from that.
        expanded, generated: candidates of the search.
        rules: that the search could use.
        measured_costs, estimated_costs: of operators: measured in this run, and by a roofline for want of measurements.
        calibrated_costs: of the latter, those that what was measured of their kind has calibrated.
        dropped: rules and kernels that could not be used, and why.
        notes: what the user should know beside that.
        file_notes: what the user should know of files: caches that could not be used, data files that were left or are shared.
        seconds: by stage, and ``total``.
        cached_verdict: the decision is that of an earlier run with the same rules, options and environment, on this model or on
            one that differs in its weights alone.
        explanations: why rules did not fire, where that was asked.
    """

    model: str
    output: str
    improved: bool = False
    message: str = ""
    fault: Fault | None = None
    provider: str = "cpu"
    environment: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    kernels: int = 0
    cleaned: bool = False
    domains: tuple[str, ...] = ()
    shared_buffers: Mapping[str, str] = field(default_factory=dict)
    before: ModelFootprint | None = None
    after: ModelFootprint | None = None
    fired: tuple[Fired, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    speed: timings.Speed = timings.UNTIMED
    overall: timings.Timing | None = None
    error_before: Error | None = None
    error_after: Error | None = None
    output_errors: tuple[OutputError, ...] = ()
    predicted_before: float = 0.0
    predicted_after: float = 0.0
    times: tuple[OperatorTime, ...] = ()
    tried: tuple[Tried, ...] = ()
    expanded: int = 0
    generated: int = 0
    rules: int = 0
    measured_costs: int = 0
    estimated_costs: int = 0
    calibrated_costs: int = 0
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    file_notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    cached_verdict: bool = False
    explanations: tuple[NearMiss, ...] = ()

    @property
    def latency(self) -> timings.Timing | None:
        """Of :attr:`speed`."""
        return self.speed.latency

    @property
    def on_device(self) -> timings.Timing | None:
        """Of :attr:`speed`."""
        return self.speed.on_device

    @property
    def gain_over_what_came(self) -> float | None:
        """How many times as fast it is as the file that came, where cleaning up has a part in that; ``None`` within noise."""
        overall = self.overall
        return 1 / overall.ratio if overall is not None and (overall.faster or overall.slower) else None

    def to_json(self) -> str:
        """All fields; numbers that JSON lacks are ``null``."""
        return json.dumps(_finite(self._flat()), indent=2, allow_nan=False)

    def record(self) -> dict[str, Any]:
        """The fields that hold for later runs on the same task, too."""
        return {name: value for name, value in self._flat().items() if name not in _VOLATILE}

    def _flat(self) -> dict[str, Any]:
        """All fields for JSON, those of the speed in its place."""
        flat: dict[str, Any] = {}
        for name, value in asdict(self).items():
            flat.update(value if name == "speed" else {name: value})
        return flat

    @staticmethod
    def of_record(record: Mapping[str, Any], model: str, output: str) -> Outcome:
        """The outcome of a run that reuses the verdict of an earlier one.

        Args:
            record: the earlier run's :meth:`record`, read from JSON.
            model, output: of the later run.

        Raises:
            KeyError, TypeError, AttributeError: it is none, or holds numbers that no run measures.
        """
        plain = {field.name: type(field.default) for field in fields(Outcome) if isinstance(field.default, str | int | float)}
        names = {field.name for field in fields(Outcome)} - {*_VOLATILE, "speed"}
        values: dict[str, Any] = {name: record[name] for name in names & {*record}}
        for name in names & {*record} & {*plain}:
            values[name] = _checked(values[name], plain[name])
        values["fired"] = tuple(map(_fired, record["fired"]))
        values["assumed"] = tuple(
            Assumed(_checked(a["assumption"], str), _checked(a["option"], str), _texts(a["rules"]), _texts(a["nodes"]))
            for a in record["assumed"]
        )
        if "times" in values:
            values["times"] = tuple(OperatorTime(**_row(row)) for row in record["times"])
        if "output_errors" in values:
            pairs = ((row["output"], row["before"], row["after"]) for row in record["output_errors"])
            values["output_errors"] = tuple(OutputError(_checked(n, str), _error(b), _error(a)) for n, b, a in pairs)
        for name in ("dropped", "notes"):
            values[name] = _texts(record[name])
        values["overall"] = _timing(record.get("overall"))
        values["speed"] = timings.Speed(**{part.name: _timing(record[part.name]) for part in fields(timings.Speed)})
        for name in ("error_before", "error_after"):
            values[name] = _error(record[name]) if record[name] else None
        return Outcome(model, output, **values, cached_verdict=True)


_VOLATILE = (
    *("model", "output", "fault", "seconds", "file_notes", "explanations", "cached_verdict", "tried"),
    *("cleaned", "domains", "shared_buffers", "before", "after"),
)
"""Fields that are each run's own."""


_MOST = 1e12
"""Of whatever a run counts or measures but for errors: as microseconds eleven days. What comes from a cache may be any number."""


def _timing(record: Mapping[str, Any] | None) -> timings.Timing | None:
    """A timing of JSON. Raises TypeError, AttributeError."""
    if not record:
        return None
    ratios = tuple(_checked(ratio, float) for ratio in record.get("ratios", ()))
    timing = timings.Timing(**_numbers({name: value for name, value in record.items() if name != "ratios"}), ratios=ratios)
    if min(timing.original, timing.candidate, timing.ratio) < 1 / _MOST:
        raise TypeError("what was measured took no time")
    return timing


def _fired(record: Mapping[str, Any]) -> Fired:
    """A rule that fired, in JSON. Raises KeyError, TypeError, AttributeError."""
    fired = Fired(**{**record, "where": _texts(record["where"])})
    for value, kind in ((fired.rule, str), (fired.text, str), (fired.evidence, str), (fired.sites, int)):
        _checked(value, kind)
    _checked(fired.gain_microseconds, float)
    return fired


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an :class:`OperatorTime` in JSON. Raises TypeError, AttributeError."""
    numbers = _numbers({name: value for name, value in record.items() if name != "operator"})
    if min(numbers.values(), default=0.0) < 0:
        raise TypeError("a time is negative")
    return {"operator": _checked(record["operator"], str), **numbers}


def _checked(value: Any, kind: type) -> Any:
    """A value of JSON that is of a kind; a whole number is a number, and none is beyond `_MOST`. Raises TypeError."""
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, int | float if kind is float else kind):
        raise TypeError(f"{repr(value)[:80]} is no {kind.__name__}")
    if isinstance(value, int | float) and not -_MOST <= value <= _MOST:
        raise TypeError("no run counts so many")
    return value


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """An object of JSON that holds numbers alone. Raises TypeError, AttributeError."""
    return {name: _checked(value, float) for name, value in record.items()}


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    """An array of JSON that holds texts alone. Raises TypeError."""
    return tuple(_checked(value, str) for value in values)


def _error(record: Mapping[str, Any]) -> Error:
    """An error in JSON, which may be infinite. Raises TypeError, AttributeError."""
    return Error(**{name: value if isinstance(value, float) else _checked(value, float) for name, value in record.items()})


def _finite(value: Any) -> Any:
    """JSON has no infinities: ``null`` stands for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
