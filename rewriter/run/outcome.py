"""What a run did and measured."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rewriter.reference import Error
from rewriter.run import accept
from rewriter.search.explain import NearMiss

__all__ = ["Fired", "Outcome"]


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule that the written model uses."""

    rule: str
    text: str
    sites: int
    gain_microseconds: float
    where: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """What was done and measured; ``--json`` writes it.

    Attributes:
        improved: the written model is the rewritten one: faster beyond noise, or by the cost model where nothing was measured.
        latency: beside the original under default settings, as a user runs it: the basis of the decision.
        paired: the first impression, with spinning off.
        error_before, error_after: against the float64 reference.
        kernels: custom kernels that the written model holds.
        message: why the original was kept, where it was.
    """

    model: str
    output: str
    improved: bool = False
    message: str = ""
    provider: str = "cpu"
    environment: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    kernels: int = 0
    fired: list[Fired] = field(default_factory=list)
    latency: accept.Timing | None = None
    paired: accept.Timing | None = None
    error_before: Error | None = None
    error_after: Error | None = None
    predicted_before: float = 0.0
    predicted_after: float = 0.0
    expanded: int = 0
    generated: int = 0
    rules: int = 0
    measured_costs: int = 0
    estimated_costs: int = 0
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cached_verdict: bool = False
    explanations: list[NearMiss] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(_finite(asdict(self)), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no infinities: ``null`` stands for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
