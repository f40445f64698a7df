"""The models of times beside what was measured: that of kernels' schedules, and the roofline of operators.

    python -m tools.bench.schedules PROFILE.sqlite...
    python -m tools.bench.schedules tests/rewriter/cost/timed_kernels.jsonl
    python -m tools.bench.schedules rewriter/cost/known/nvidia-h200.json

Takes profile stores of runs on a GPU, or lines of kernels with the times of their schedules. Prints each kernel's best time as
predicted and as measured, and for every kind of kernel how far the two are apart, and what the schedule that the model likes best
of those that were timed takes over the fastest of them (*regret*).

Of a cost table it prints what each class of operators takes over its roofline, and over the roofline that the table's other
entries calibrate (:mod:`rewriter.cost.calibration`): all others, and those alone that are not near.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import Reduce
from mugraph.blocks.text import kernel_from_json, schedule_from_json
from mugraph.ops import RowRole, traits_of
from rewriter.cost import CostTable, ProfileError, get_device, read_table
from rewriter.cost.calibration import Calibration
from rewriter.cost.devices import DEVICES, Device, default_device
from rewriter.cost.kernel_times import Measured, TimedKernel, timed_kernels
from rewriter.cost.model import NODE_OVERHEAD
from rewriter.cost.roofline import node_microseconds
from rewriter.cost.schedules import ranked
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.ranking import predict_all
from rewriter.cost.signature import Signature, parse_signature
from rewriter.cost.store import ProfileStore

__all__ = ["Forecast", "OperatorForecast", "compared", "forecasts", "kind_of", "read_timed"]

_APART = 4.0
"""Octaves within which measurements are near each other."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the model says of one kernel beside what was measured.

    Attributes:
        predicted, measured: microseconds under the best of all schedules, and under the best that were timed.
        ratios: predicted over measured, of every schedule that was timed.
        regret: the time of the schedule that the model likes best of these over that of the fastest.
    """

    timed: TimedKernel
    kind: str
    predicted: float
    measured: float
    ratios: Sequence[float]
    regret: float


def kind_of(timed: TimedKernel) -> str:
    """What a kernel does, as far as it matters for its time."""
    kinds = [_kind(BlockFigures(timed.kernel, block, timed.sizes)) for block in timed.kernel.blocks]
    return " and ".join(dict.fromkeys(kinds))


def _kind(figures: BlockFigures) -> str:
    reduces = bool(figures.block.accumulators) or any(isinstance(s, Reduce) for s in figures.block.statements)
    if figures.attends:
        return "attention"
    if not figures.products:
        return "norms, softmax" if reduces else "elementwise"
    if figures.under_statistics and figures.prepared:
        return "statistics within a product"
    return "product of computed operands" if figures.prepared else "product"


def compared(timed: TimedKernel, device: Device) -> Forecast:
    """The model's times beside those that are known."""
    measured = np.array([result.microseconds for result in timed.results])
    predicted = predict_all(timed.kernel, [result.schedules for result in timed.results], device, timed.sizes)
    best = ranked(timed.kernel, device, timed.sizes, most=1)[0][0]
    regret = float(measured[np.argmin(predicted)] / measured.min())
    return Forecast(timed, kind_of(timed), best, float(measured.min()), (predicted / measured).tolist(), regret)


@dataclass(frozen=True, slots=True)
class OperatorForecast:
    """What an operator took, over three estimates of it.

    Attributes:
        kind: its class.
        alone: over the roofline.
        calibrated: over that roofline as all other measurements calibrate it.
        far: over it as only those do that are not near.
    """

    kind: str
    alone: float
    calibrated: float
    far: float


def forecasts(table: CostTable) -> Iterator[OperatorForecast]:
    """The operators of a table whose signatures can be read, each beside estimates that its own time plays no part in."""
    device, overhead = default_device(table.provider, table.environment), NODE_OVERHEAD[table.provider]
    calibration = Calibration(table.costs, device, overhead)
    for key, microseconds in table.costs.items():
        signature = parse_signature(key)
        if signature is None:
            continue
        estimate = node_microseconds(device, signature.op, signature.attrs, signature.operands, leaves_model=True)
        distances, ratios = calibration.alike(signature, estimate)
        far = distances >= _APART
        alone = (microseconds + overhead) / estimate
        near_factor, far_factor = Calibration.joined(distances, ratios), Calibration.joined(distances[far], ratios[far])
        yield OperatorForecast(_class(signature), alone, alone / near_factor, alone / far_factor)


def _class(signature: Signature) -> str:
    """What kind of operator it is, as a reader would say."""
    op, traits = signature.op, traits_of(signature.op)
    if traits.product is not None:
        return f"{op}, grouped" if dict(signature.attrs).get("group", 1) != 1 else op
    if traits.rows is RowRole.SOFTMAX:
        return "Softmax"
    if traits.rows is not None or op.startswith("Skip"):
        return "normalisations"
    roles = {"attention": traits.attention, "elementwise": traits.entrywise, "movement": traits.movement}
    return next((name for name, has in {**roles, "reductions": traits.reduction}.items() if has), op)


def _operators_table(found: Sequence[OperatorForecast], title: str) -> Table:
    columns = [f"{of}, {what}" for of in ("roofline", "calibrated", "not by near ones") for what in ("mean", "spread", "error")]
    table = Table("class", "measured", *columns, title=f"measured over estimated, {title}")
    for kind in [*sorted({each.kind for each in found}), "all"]:
        mine = [each for each in found if kind in (each.kind, "all")]
        numbers = []
        for ratios in ([m.alone for m in mine], [m.calibrated for m in mine], [m.far for m in mine]):
            numbers += [_mean(ratios), math.exp(float(np.std(np.log(ratios)))), mean_error(ratios)]
        table.add_row(kind, str(len(mine)), *(f"{number:.2f}" for number in numbers))
    return table


def read_timed(path: Path) -> Iterator[TimedKernel]:
    """Kernels with times from a profile store, or from lines of JSON.

    Raises:
        click.ClickException: the file is neither.
    """
    if path.suffix == ".jsonl":
        yield from map(_timed, path.read_text(encoding="utf-8").splitlines())
        return
    environments = ProfileStore(path, "").environments()
    if not environments:
        raise click.ClickException(f"{path}: no profile store, or one without times")
    for environment in environments:
        yield from timed_kernels(ProfileStore(path, environment))


def _timed(line: str) -> TimedKernel:
    about = json.loads(line)
    kernel: Kernel = kernel_from_json(about["kernel"])
    results = [Measured(tuple(map(schedule_from_json, kept["schedules"])), kept["microseconds"]) for kept in about["times"]]
    return TimedKernel(kernel, about["sizes"], results)


def mean_error(ratios: Sequence[float]) -> float:
    """The geometric mean of how many times too large or too small."""
    return math.exp(float(np.mean(np.abs(np.log(ratios)))))


def _mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))


def _kernels_table(found: Sequence[Forecast]) -> Table:
    table = Table("kernel", "kind", "schedules", "measured", "model", "ratio", "regret", title="best times, µs")
    for each in sorted(found, key=lambda each: each.predicted / each.measured):
        ratio = each.predicted / each.measured
        numbers = (f"{each.measured:.1f}", f"{each.predicted:.1f}", f"{ratio:.2f}", f"{each.regret:.2f}")
        table.add_row(each.timed.kernel.label, each.kind, str(len(each.ratios)), *numbers)
    return table


def _kinds_table(found: Sequence[Forecast]) -> Table:
    columns = ("kind", "kernels", "error of the best", "least", "most", "schedules", "error of all", "regret", "largest")
    table = Table(*columns, title="predicted over measured")
    for kind in [*sorted({each.kind for each in found}), "all"]:
        mine = [each for each in found if kind in (each.kind, "all")]
        best = [each.predicted / each.measured for each in mine]
        every = [ratio for each in mine for ratio in each.ratios]
        regrets = [each.regret for each in mine if len(each.ratios) > 1] or [1.0]
        numbers = (mean_error(best), min(best), max(best), len(every), mean_error(every), _mean(regrets), max(regrets))
        table.add_row(kind, str(len(mine)), *(str(n) if isinstance(n, int) else f"{n:.2f}" for n in numbers))
    return table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--device",
    type=click.Choice(list(DEVICES)),
    default="h200",
    show_default=True,
    help="Whose model of schedules to compare with.",
)
def main(files: tuple[Path, ...], device: str) -> None:
    """How far the model of kernels' schedules, and the roofline of operators, are from what was measured."""
    console = Console()
    tables = [path for path in files if path.suffix == ".json"]
    for path in tables:
        console.print(_operators_table(list(forecasts(_table_in(path))), path.stem))
    found = [compared(timed, get_device(device)) for path in files if path not in tables for timed in read_timed(path)]
    if found:
        console.print(_kernels_table(found))
        console.print(_kinds_table(found))
    elif not tables:
        raise click.ClickException("none of the files describes a kernel that was timed")


def _table_in(path: Path) -> CostTable:
    try:
        return read_table(path)
    except ProfileError as problem:
        raise click.ClickException(str(problem)) from None


if __name__ == "__main__":
    main()
