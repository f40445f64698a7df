"""The command that finds rules in models: mine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from mugraph.blocks.schedule import LIMITS
from mugraph.console import FiniteRange
from mugraph.lines import counted
from mugraph.onnx import Model, ModelError, load
from mugraph.starting import INTERRUPTED_EXIT
from rulegen.cli.console import (
    ShowProgress,
    bar,
    check_targets,
    fresh_option,
    jobs_option,
    output,
    print_rules,
    rules_file_option,
    scheduler_option,
    store_rules,
    tell,
    together_option,
    working,
    write_rules,
)
from rulegen.cli.texts import kernels_text, mined_text
from rulegen.journal import Journal
from rulegen.mine.cuts import Cutting
from rulegen.mine.miner import mine
from rulegen.mine.remaining import remaining
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.lax import SubprogramBounds
from rulegen.mugraphs.mining import mine_kernels
from rulegen.mugraphs.search import FoundKernels, KernelSearch
from rulegen.show.equations import typing_text
from rulegen.workers import UnitWorkers
from rules_db.files import StoreError, write_text
from rules_db.library import open_rules
from rules_db.trust.certificate import Evidence, Trust

__all__ = ["mine_command"]


@click.command("mine")
@click.argument(
    "models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="MODEL..."
)
@rules_file_option
@click.option("--rules", metavar="URL", help="Rule database (path or URL) that the rules enter.")
@click.option("--unproved", type=click.Path(path_type=Path), metavar="FILE", help="Write what is true as far as tested.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random inputs.")
@click.option(
    "--after",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.rules",
    multiple=True,
    help="Rules that are there: what they derive at once is no rule.",
)
@click.option("--leaves", type=click.IntRange(1, 8), default=Cutting.leaves, show_default=True, help="Of a cone, at most.")
@click.option("--operators", type=click.IntRange(1, 40), default=Cutting.operators, show_default=True, help="Of a cone, at most.")
@click.option("--kernels", is_flag=True, help="Search kernels for the Lax subprograms of the models instead.")
@click.option("--block-ops", type=click.IntRange(1, 20), default=11, show_default=True, help="With --kernels: of a block graph.")
@click.option(
    "--seconds",
    type=FiniteRange(min=0.1),
    default=10.0,
    show_default=True,
    help="With --kernels: for a subprogram, of a processor.",
)
@click.option(
    "--device", type=click.Choice(list(LIMITS)), default="h200", show_default=True, help="With --kernels: whose memory they fit."
)
@jobs_option
@scheduler_option
@together_option
@fresh_option
def mine_command(
    models: tuple[Path, ...],
    out: Path | None,
    rules: str | None,
    unproved: Path | None,
    seed: int,
    after: tuple[Path, ...],
    leaves: int,
    operators: int,
    kernels: bool,
    block_ops: int,
    seconds: float,
    device: str,
    jobs: int,
    scheduler: str | None,
    together: str | None,
    fresh: bool,
) -> None:
    """Finds rules for what models spell out.

    The rules lead to composite operators that a runtime has. The pieces of the models (cones) are compared with all of these
    and with smaller pieces; what agrees in numbers and is proved becomes a rule. With --kernels they lead to kernels: block
    graphs that compute a subprogram are enumerated. Ctrl-C ends the search with what was found by then; the same command resumes
    a search that was interrupted or killed where it stopped.
    """
    if kernels and (unproved is not None or after):
        raise click.UsageError("--unproved and --after are for spellings: of kernels, what is not computed right is no rule")
    check_targets(rules, out, unproved)
    with working(jobs, scheduler, together) as workers:  # what is found is written before they end, which may take them a while
        if kernels:
            how = KernelSearch(EnumerationLimits(operators=block_ops, seconds=seconds), LIMITS[device], seed=seed)
            is_whole = _mine_kernels(models, how, workers, fresh, rules, out)
        else:
            cutting = Cutting(leaves=leaves, operators=operators)
            is_whole = _mine_spellings(models, cutting, seed, workers, fresh, after, rules, out, unproved)
        if not is_whole:
            sys.exit(INTERRUPTED_EXIT)


def _read(models: Sequence[Path], show: ShowProgress) -> dict[str, Model]:
    """The models by name. Raises StoreError."""
    loaded = {}
    for number, path in enumerate(sorted(models)):
        show(number, len(models), f"reading {path.name}")
        try:
            loaded[path.stem] = load(path)
        except ModelError as problem:
            raise StoreError(str(problem)) from None
    return loaded


def _mine_spellings(
    models: Sequence[Path],
    cutting: Cutting,
    seed: int,
    workers: UnitWorkers,
    fresh: bool,
    after: Sequence[Path],
    rules: str | None,
    out: Path | None,
    unproved: Path | None,
) -> bool:
    """Finds rules to composite operators and writes them; whether that came to its end."""
    with bar("mine") as show:
        loaded = _read(models, show)
        graphs = {name: model.graph for name, model in loaded.items()}
        digests = {name: model.digest() for name, model in loaded.items()}
        journal = Journal.of({"group": "mine", "how": cutting, "seed": seed, "models": digests}, fresh=fresh)
        mining = mine(graphs, cutting, seed, show, journal, workers)
    if after:
        mining.rules = remaining(mining.rules, (rule for file in after for rule in open_rules(str(file))))
    if unproved is not None:
        write_text(unproved, "".join(f"{pair} | {typing_text(pair.types)}\n" for pair in mining.unproved))
    console = output()
    found = f"{counted(len(graphs), 'model')}, {counted(mining.cones, 'cone')}, {counted(len(mining.rules), 'rule')}"
    console.print(f"{found}, {counted(len(mining.unproved), 'pair')} without a proof", markup=False)
    if out is not None:
        write_rules(console, out, mined_text(mining.rules, loaded, seed, mining.interrupted), mining.rules)
    if rules is not None:
        store_rules(console, rules, mining.rules)
    if out is None and rules is None:
        print_rules(console, mining.rules)
    for pair in mining.suspicious:
        console.print(f"proof contradicted: {pair}", markup=False)
    if mining.interrupted:
        _tell_interrupted(mining.interrupted, journal)
        return False
    journal.remove()
    if mining.suspicious:
        sys.exit(1)
    return True


def _tell_interrupted(how_far: str, journal: Journal) -> None:
    """Says what an interrupted search leaves."""
    way_on = "the same command goes on from there" if journal.path is not None else "the same command begins anew"
    tell(f"interrupted: {how_far}; what was found by then is above or written, and {way_on}")
    journal.close()


def _mine_kernels(
    models: Sequence[Path], how: KernelSearch, workers: UnitWorkers, fresh: bool, rules: str | None, out: Path | None
) -> bool:
    """Searches kernels for the subprograms of models, and writes the rules that lead to them; whether that came to its end."""
    journal, outcomes, interrupted = Journal.of({"group": "kernels", "how": how}, fresh=fresh), list[FoundKernels](), ""
    with bar("search kernels") as show:
        graphs = {name: model.graph for name, model in _read(models, show).items()}
        show(0, None, "looking for subprograms")
        try:
            for outcome in mine_kernels(graphs, SubprogramBounds(), how, journal, show, workers):
                outcomes.append(outcome)
        except KeyboardInterrupt:
            interrupted = f"{len(outcomes):,} subprograms were searched"
    found = list({rule.id: rule for one in outcomes for rule in one.rules}.values())
    console = output()
    table = Table("subprogram", "operators", "states", "pruned", "candidates", "refuted", "rules", "seconds", "note")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for one in outcomes:
        numbers = (one.operators, one.states, one.pruned, one.candidates, one.refuted, len(one.rules))
        table.add_row(one.goal.name, *(f"{number:,}" for number in numbers), f"{one.seconds:.1f}", one.note)
    console.print(table)
    proved = sum(rule.certificate.evidence is Evidence.PROVED for rule in found)
    searched = f"{counted(len(graphs), 'model')}, {counted(len(outcomes), 'subprogram')}"
    console.print(f"{searched}, {counted(len(found), 'rule')}, {proved} of them proved", markup=False)
    if out is not None:
        write_rules(console, out, kernels_text(found, graphs, how.seed, interrupted), found)
    if rules is not None:
        store_rules(console, rules, found, Trust.TESTED)
    if out is None and rules is None:
        print_rules(console, found)
    if interrupted:
        _tell_interrupted(interrupted, journal)
    else:
        journal.remove()
    return not interrupted
