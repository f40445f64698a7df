"""What a model takes from one of other depth: ``python -m tools.bench.families MODEL...``, which are of one family.

Each is searched from nothing, with custom kernels, at the prices of a device that need not be here; then what was found for the
first is made again in each, its kernels checked by another process. Seconds are of the processor, that process not included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table

from mugraph.onnx import load, open_in
from mugraph.onnx.cleaning import clean
from mugraph.onnx.kinds import opaque_kind
from rewriter.run.cleaning import computed
from rewriter.run.clock import Clock
from rewriter.run.options import Options
from rewriter.run.records import CandidateRecord
from rewriter.run.rules_ahead import begin_objections
from rewriter.run.searching import ModelSearch, new_search
from rewriter.run.target import choose_target
from rewriter.run.task import read_task
from rewriter.run.workbench import open_workbench
from rewriter.search.candidate import Candidate
from rewriter.search.families import ModelFamily, family_of
from rewriter.search.layers import ShortModel
from rules_db.trust.certificate import Trust

_NEAR = 1.01
"""Of the best cost of a search: what comes so near is almost as good."""


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """A model of the family: its search, its short graph, and names in it."""

    search: ModelSearch
    short: ShortModel
    family: ModelFamily

    def whole(self, candidate: Candidate) -> float:
        """Microseconds of the whole model with what was found on the short one."""
        return self.search.lifted(self.short, candidate).candidate.cost


@contextmanager
def member(path: Path, device: str) -> Iterator[FamilyMember]:
    """A model, cleaned up and opened as a run that reads no clock opens it."""
    options = Options(device=device, deterministic=True)
    with TemporaryDirectory() as folder:
        cleaned = clean(load(path), computed)
        source = path if cleaned is None else open_in(cleaned.model, cleaned.model.graph, Path(folder))
        task = read_task(source, Path(folder) / "out.onnx", options, choose_target(options))
        with open_workbench(task, Clock(options.budget), lambda _: None, searches=True) as bench:
            search = new_search(bench)
            short = search.shortened()
            family = None if short is None else family_of(short, opaque_kind(task.model))
            if short is None or family is None:
                raise click.ClickException(f"{path}: has no four equal layers; give a deeper model")
            yield FamilyMember(search, short, family)


def searched(one: FamilyMember) -> tuple[Candidate, float]:
    """The best candidate of the short model, from nothing, and the processor seconds until one was almost as good."""
    told: list[tuple[float, float]] = []
    began = time.process_time()

    def tell(cost: float) -> None:
        told.append((cost, time.process_time() - began))

    search = replace(one.search.search, progress=lambda _, start, best: tell(best), met=lambda candidate: tell(candidate.cost))
    best = search.run(one.short.graph).better[0]
    tell(best.cost)
    return best, next(seconds for cost, seconds in told if cost <= _NEAR * best.cost)


def made_again(one: FamilyMember, found: CandidateRecord) -> tuple[Candidate, float]:
    """The candidate of the short model that what was found elsewhere leads to, and the processor seconds until it is there.

    Raises:
        click.ClickException: a kernel does not stand.
    """
    began = time.process_time()
    objections = begin_objections(found.kernels, Trust.PROVED)
    candidate = one.search.retraced_in(one.short.graph, found, one.family.key)
    for rule, reason in objections().items():
        raise click.ClickException(f"the kernel of rule {rule} does not stand: {reason}")
    return candidate, time.process_time() - began


def table(models: Sequence[Path], device: str) -> Table:
    """By model: of the same family or not, and what is predicted, searched from nothing and made again."""
    columns = ("model", "as it came, µs", "searched, µs", f"s to {_NEAR:g} of it", "made again, µs", "s", "kernels")
    made = Table(*columns, title=f"predicted for {device}")
    found, family = CandidateRecord([], []), ""
    for path in models:
        again, seconds = "", ""
        if found.moves:
            with member(path, device) as one:
                if one.family.digest != family:
                    raise click.ClickException(f"{path}: is of another family than {models[0]}; leave it out")
                candidate, spent = made_again(one, found)
                again, seconds = f"{one.whole(candidate):.1f}", f"{spent:.2f}"
        with member(path, device) as one:
            start = one.search.start().cost
            best, near = searched(one)
            if not found.moves:
                found, family = CandidateRecord.of(best, one.family.key), one.family.digest
            made.add_row(
                *(path.stem, f"{start:.1f}", f"{one.whole(best):.1f}", f"{near:.2f}", again, seconds),
                str(len(found.kernels)),
            )
    return made


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--device", default="h200", show_default=True, help="At whose prices.")
def main(models: tuple[Path, ...], device: str) -> None:
    """Prints what MODELS of one family take from the first of them."""
    Console(soft_wrap=True).print(table(models, device))


if __name__ == "__main__":
    main()
