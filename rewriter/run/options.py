"""The options of a run.

A new option is a field here, the place where it acts, and a row of the table in README.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewriter.cost.devices import DEVICES
from rewriter.kernels.architecture import Architecture
from rewriter.reference import InputError
from rewriter.run.fields import APath, AtLeast, Flag, OneOf, check_options, option, same, verdict_values
from rewriter.run.parse import load_data, parse_arch, parse_shapes
from rewriter.runtime_env import PROVIDERS, digest
from rewriter.search.strategy import BACKTRACKING, STRATEGIES
from rules_db.trust.certificate import Trust

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Options"]

_SECONDS_AND_FACTOR = "budget {budget} and alpha {alpha}: give seconds from 0 on and a factor from 1 on"

# Headings of options
_OUTPUT, _TARGET, _INPUTS = "What is written", "What it is for", "What it is measured on"
_SEARCH, _RULES, _KERNELS = "How it is searched", "Rules", "Custom kernels"
_ASSUMED, _TELLING = "What may be assumed", "What is told"
_EFFORT = frozenset({"data", "budget", "alpha", "top", "strategy", "reuse_layers", "search_kernels"})
"""Options that say how a result is looked for and tried."""
_FIRST_PARTS = (
    "shapes",
    "data",
    ("budget", "alpha", "top", ("assume_finite", "assume_attended"), "strategy", "reuse_layers"),
    ("kernels", "architectures"),
)
"""The first options, nested as digests have had them from the start, so that verdicts stay valid; others follow by name."""


def _sorted_shapes(shapes: Mapping[str, Sequence[int]] | None) -> object:
    return sorted((name, tuple(shape)) for name, shape in (shapes or {}).items())


def _hashes(data: Sequence[Mapping[str, np.ndarray]]) -> object:
    return [hashlib.sha256(feed[name].tobytes()).hexdigest() for feed in data for name in sorted(feed)]


def _names(architectures: Sequence[Architecture] | None) -> object:
    return [str(architecture) for architecture in architectures or ()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that a user may ask of a run, but for the model and the file to write.

    Raises:
        InputError: a value that its field does not admit.
    """

    provider: str = option(
        "auto", flag=Flag("--provider", "Execution provider to measure costs on.", choices=(*PROVIDERS, "auto"), group=_TARGET)
    )
    """Execution provider that costs are measured on: ``cpu``, ``cuda`` or ``auto``."""

    shapes: Mapping[str, Sequence[int]] | None = option(
        None,
        flag=Flag(
            "--input",
            "Size of an input for measuring; repeatable.",
            metavar="NAME=2x128",
            is_repeatable=True,
            read=parse_shapes,
            group=_INPUTS,
        ),
        verdict=_sorted_shapes,
    )
    """Sizes of inputs for measuring; the written model keeps its dynamic dimensions."""

    data: Sequence[Mapping[str, np.ndarray]] = option(
        (),
        flag=Flag(
            "--data",
            "An .npz file of real inputs to test and measure with.",
            is_path=True,
            is_repeatable=True,
            read=load_data,
            group=_INPUTS,
        ),
        verdict=_hashes,
    )
    """User-given inputs, tested beside the random ones, which have the sizes of the first that are not empty where :attr:`shapes`
    gives none."""

    rules: str | Sequence[Any] | None = option(
        None,
        flag=Flag(
            "--rules", "Rule database or .rules file; default: the rules that the package ships.", metavar="URL", group=_RULES
        ),
    )
    """URL or path of a rule database, rules, or ``None`` for those that the package ships."""

    trust: str = option(
        str(Trust.PROVED),
        flag=Flag("--trust", "Evidence that the rules of --rules need: a proof, or tests in its place.", group=_RULES),
        check=OneOf(tuple(map(str, Trust))),
        verdict=same,
    )
    """The evidence that rules of a database or file need: ``proved``, or ``tested`` to take those that stand by tests."""

    budget: float = option(
        60.0,
        flag=Flag("--budget", "For the whole run; 0 writes the plain round trip.", metavar="SECONDS", group=_SEARCH),
        check=AtLeast(0, _SECONDS_AND_FACTOR),
        verdict=same,
    )
    """Seconds for the whole run; 0 writes the plain round trip."""

    alpha: float = option(
        1.05,
        flag=Flag("--alpha", "Explore candidates up to this factor of the best cost.", group=_SEARCH),
        check=AtLeast(1.0, _SECONDS_AND_FACTOR),
        verdict=same,
    )
    """How much worse than the best a candidate may be to be explored further."""

    top: int = option(5, flag=Flag("--top", "Candidates measured end to end.", group=_SEARCH), check=AtLeast(1), verdict=same)
    """How many candidates are measured end to end."""

    assume_finite: bool = option(
        True,
        flag=Flag(
            "--inputs-may-be-infinite",
            "Do not assume that model inputs are finite numbers, and that nothing computed of them overflows.",
            negates=True,
            group=_ASSUMED,
        ),
        verdict=same,
    )
    """Model inputs hold no NaN and no infinity, and nothing that is computed of them overflows."""

    assume_attended: bool = option(
        True,
        flag=Flag(
            "--no-assume-attended",
            "Do not assume that masks let every position attend to something.",
            negates=True,
            group=_ASSUMED,
        ),
        verdict=same,
    )
    """Masks that are computed from model inputs let every position attend to something."""

    explain: str | None = option(
        None, flag=Flag("--explain", "Say why rules did not fire.", metavar="[RULE|NODE]", alone="all", group=_TELLING)
    )
    """``"all"``, a rule's id or a node's or value's name: fills ``Outcome.explanations``."""

    cache: Path | None = option(None, check=APath())
    """File of measured costs and verdicts; default is in the user's cache directory."""

    costs: Path | None = option(
        None,
        flag=Flag("--costs", "Optimise for the device of this cost table.", metavar="FILE", is_path=True, group=_TARGET),
        check=APath(),
    )
    """A cost table, such as ``superopt-costs export`` writes: the model is optimised for the device it was measured on."""

    device: str | None = option(
        None,
        flag=Flag("--device", f"Optimise for a device by its roofline: {', '.join(DEVICES)}.", metavar="NAME", group=_TARGET),
    )
    """Name of a device that is not here: its roofline stands in for measurements."""

    deterministic: bool = option(
        False, flag=Flag("--deterministic", "Measure nothing: equal arguments write equal bytes.", group=_SEARCH)
    )
    """Nothing is measured and no clock is read, so that equal arguments write equal bytes."""

    strategy: str = option(
        BACKTRACKING.name, flag=Flag("--strategy", "How to search.", group=_SEARCH), check=OneOf(tuple(STRATEGIES)), verdict=same
    )
    """Name of one of :data:`rewriter.search.strategy.STRATEGIES`."""

    reuse_layers: bool = option(
        True,
        flag=Flag("--no-layer-reuse", "Search every one of equal layers instead of one for all.", negates=True, group=_SEARCH),
        verdict=same,
    )
    """Repeated layers are searched once."""

    kernels: bool = option(
        True, flag=Flag("--kernels/--no-kernels", "Custom kernels, where the model is for a GPU.", group=_KERNELS), verdict=same
    )
    """Regions may become custom kernels, where the model is for a GPU."""

    architectures: Sequence[Architecture] | None = option(
        None,
        flag=Flag(
            "--arch",
            "Compile custom kernels for these; default: the device's own, and PTX.",
            metavar="sm_80,sm_90",
            read=parse_arch,
            group=_KERNELS,
        ),
        verdict=_names,
    )
    """To compile custom kernels for; default is the device's own, and PTX for those to come."""

    cpu_kernels: bool = option(
        False,
        flag=Flag("--cpu-kernels", "Custom kernels where the model is for a processor, too.", group=_KERNELS),
        verdict=same,
    )
    """Regions may become custom kernels in C, where the model is for a processor. Who runs the model has to register the library
    that runs them."""

    kernels_folder: Path | None = option(
        None,
        flag=Flag("--keep-kernels", "Write source and picture of each kernel.", metavar="DIR", is_path=True, group=_KERNELS),
        check=APath(),
    )
    """Where the custom kernels of the written model are kept for people to read."""

    search_kernels: float = option(
        0.0,
        flag=Flag(
            "--search-kernels",
            "Search kernels for the model's subprograms first, for so long at most.",
            metavar="SECONDS",
            group=_KERNELS,
        ),
        check=AtLeast(0),
        verdict=same,
    )
    """Seconds of the budget for searching kernels of the model's subprograms, which then stand beside those that are built."""

    clean: bool = option(
        False, flag=Flag("--clean", "Only clean up: fold constants, drop what nobody reads, share what is equal.", group=_SEARCH)
    )
    """The model is cleaned up and not searched; what is left of it computes the same."""

    precision: float = option(
        0.0,
        flag=Flag(
            "--precision",
            "Relative error that a float32 output may have on top of twice the original's own.",
            metavar="5e-6",
            group=_ASSUMED,
        ),
        check=AtLeast(0),
        verdict=same,
    )
    """Relative error (L2, against float64) that a float32 output may have on top of twice the original's own, where that is more
    than rounding is. From 5e-6 on, products in kernels for processors may take two bfloat16 parts of a number for the whole."""

    standard: bool = option(
        False,
        flag=Flag("--standard-ops", "Add no operators that ONNX lacks; the model's own stay.", group=_TARGET),
        verdict=same,
    )
    """The result uses no operators outside the default domain beside those that the model came with."""

    in_place: bool = option(False, flag=Flag("--in-place", "The output replaces the model itself.", group=_OUTPUT))
    """The output is the model's own file, or may be."""

    use_verdicts: bool = option(
        True, flag=Flag("--no-verdict-cache", "Search and measure again, whatever was remembered.", negates=True, group=_SEARCH)
    )
    """Whether a remembered verdict on the same model, rules, options and environment may be reused."""

    debug: bool = option(False, flag=Flag("--debug", "Stop at an internal error with its traceback.", group=_TELLING))
    """An internal error is raised; without it the original is written and the outcome names the fault."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.explain and not self.searches:
            raise InputError("--explain tells of a search, and with --clean or --budget 0 there is none; leave one of them out")
        if self.search_kernels and self.deterministic:
            raise InputError(
                "--search-kernels reads a clock, --deterministic none: search first, with "
                "rulegen mine --kernels MODEL --out FILE, and give --rules FILE"
            )

    @property
    def searches(self) -> bool:
        """Whether a better model is looked for."""
        return self.budget > 0 and not self.clean

    @property
    def keeps_to_budget(self) -> bool:
        """Whether the budget ends the run: one that only cleans up, or reads no clock, takes as long as it takes."""
        return self.searches and not self.deterministic

    def narrower(self) -> Iterator[Options]:
        """Options that differ in one thing and allow less to be written: what is written under them may be under these, too."""
        for name, value in _LEAST.items():
            if getattr(self, name) != value:
                yield replace(self, **{name: value})

    def result_digest(self) -> str:
        """A digest of all that says which results may be written; how they are looked for and tried plays no part."""
        values = verdict_values(self)
        return digest(*(f"{name}={value}" for name, (value, _) in sorted(values.items()) if name not in _EFFORT))

    def digest(self) -> str:
        """A digest of all that a verdict depends on: equal for equal options, in every version that knows them.

        An option that came later takes part where it has another value than its default.
        """
        values = verdict_values(self)
        first = [str(_nested(part, values)) for part in _FIRST_PARTS]
        later = [f"{name}={value}" for name, (value, is_default) in values.items() if not is_default and not _holds(name)]
        return digest(*first, *later)


_LEAST: Mapping[str, Any] = {
    "assume_finite": False,
    "assume_attended": False,
    "kernels": False,
    "cpu_kernels": False,
    "precision": 0.0,
    "standard": True,
}
"""Options by the value that allows least: all that may be written with it may be with every other."""

_Part = str | tuple["_Part", ...]


def _nested(part: _Part, values: Mapping[str, tuple[object, bool]]) -> object:
    """Values in the place of their names."""
    return values[part][0] if isinstance(part, str) else tuple(_nested(inner, values) for inner in part)


def _holds(name: str, part: _Part = _FIRST_PARTS) -> bool:
    """Whether a field is one of the first."""
    return name == part if isinstance(part, str) else any(_holds(name, inner) for inner in part)
