"""Wrong kernels made from right ones, to see that none is proved.

``tools.fuzz.kernel_changes`` changes one thing in a kernel. Many mutants are still right (operands of a sum swapped), so that
only those count as *false* of which exact interpretation shows a difference from the body, at sizes past every number that was
put in.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.interp import evaluate_body, evaluate_kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import format_kernel, kernel_from_json
from mugraph.blocks.validity import check_kernel
from mugraph.domains.base import WHOLE_NUMBERS, Unsupported
from mugraph.domains.field import FieldArray, FiniteField, ZeroDivision
from mugraph.domains.real import Real
from mugraph.terms.shape import Dim, ShapeError, Undecided, concrete
from rulegen.workers import new_pool
from rules_db.exchange import read_rules
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, Residues, interpret, kernel_of_rule, random_operand
from tools.fuzz.kernel_changes import KernelMutant, kernel_mutants

__all__ = ["KernelFate", "KernelTally", "attack_kernels", "kernels_command", "shipped_kernels"]

_SMALL = 5
"""Of sizes that are tried, the largest of the first ones."""


class KernelFate(StrEnum):
    """What became of a mutant."""

    INVALID = "invalid"
    TRUE = "true"
    REJECTED = "rejected"
    ACCEPTED = "accepted"


@dataclass
class KernelTally:
    """What became of the mutants, and the false ones that were proved."""

    fates: Counter[KernelFate]
    by_change: Counter[tuple[str, KernelFate]]
    proved: list[KernelMutant]

    @property
    def false(self) -> int:
        return self.fates[KernelFate.REJECTED] + self.fates[KernelFate.ACCEPTED]


def shipped_kernels(path: str | Path = "rules_db/shipped/kernels.rules") -> list[Kernel]:
    """The kernels of a file of rules."""
    kernels = [kernel_of_rule(rule) for rule in read_rules(str(path))]
    return [kernel for kernel in kernels if kernel is not None]


def attack_kernels(
    kernels: Sequence[Kernel],
    count: int,
    seed: int,
    *,
    tested: bool = False,
    seconds: float = math.inf,
    jobs: int = 1,
    journal: Path | None = None,
) -> KernelTally:
    """Makes mutants until so many are false or the time is over, and asks the proof for each of them.

    Args:
        tested: what is not proved is accepted, too, where the tests pass it that stand in for a proof.
        jobs: processes that ask.
        journal: keeps what became of each mutant; those that it has are not asked again.

    Raises:
        ValueError: the journal is of other questions, or none.
    """
    ends = time.monotonic() + seconds
    tally = KernelTally(Counter(), Counter(), [])
    with _Fates(journal, tested, seed) as known, new_pool(jobs) if jobs > 1 else nullcontext() as pool:
        for mutant, fate in _asked(_distinct(kernels, seed), known, pool, jobs, ends):
            tally.fates[fate] += 1
            tally.by_change[mutant.change, fate] += 1
            if fate is KernelFate.ACCEPTED:
                tally.proved.append(mutant)
            if tally.false >= count:
                break
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return tally


def _distinct(kernels: Sequence[Kernel], seed: int) -> Iterator[KernelMutant]:
    seen: set[bytes] = {kernel.digest for kernel in kernels}
    for mutant in kernel_mutants(kernels, np.random.default_rng(seed)):
        if mutant.kernel.digest not in seen:
            seen.add(mutant.kernel.digest)
            yield mutant


def _asked(
    mutants: Iterator[KernelMutant], known: _Fates, pool: ProcessPoolExecutor | None, jobs: int, ends: float
) -> Iterator[tuple[KernelMutant, KernelFate]]:
    """Mutants with what became of them, until the time is over: in order here, as they are answered where there is a pool."""
    waiting: dict[Future[KernelFate], KernelMutant] = {}
    while time.monotonic() < ends:
        while len(waiting) < 4 * jobs:
            mutant = next(mutants)
            fate = known.fates.get(mutant.kernel.digest.hex())
            if fate is not None:
                yield mutant, fate
            elif pool is None:
                yield mutant, known.kept(mutant, _fate(mutant.kernel, known.seed, known.tested))
                break
            else:
                waiting[pool.submit(_fate, mutant.kernel, known.seed, known.tested)] = mutant
        for done in wait(waiting, max(0.0, min(ends - time.monotonic(), threading.TIMEOUT_MAX)), FIRST_COMPLETED).done:
            mutant = waiting.pop(done)
            yield mutant, known.kept(mutant, done.result())


class _Fates:
    """What became of mutants, by their digests; kept in a file, one a line, where there is one.

    Attributes:
        fates: by digest.
        tested, seed: of what is asked.
    """

    def __init__(self, path: Path | None, tested: bool, seed: int) -> None:
        self.tested, self.seed = tested, seed
        self.fates: dict[str, KernelFate] = {}
        self._head = {"tested": tested, "seed": seed}
        self._path, self._file = path, nullcontext(None) if path is None else path.open("a+", encoding="utf-8")

    def __enter__(self) -> _Fates:
        out = self._file.__enter__()
        if out is not None:
            out.seek(0)
            lines = out.read().splitlines(keepends=True)
            if lines and json.loads(lines[0]) != self._head:
                raise ValueError(f"{self._path}: kept for other questions, {lines[0].strip()}: name another file")
            whole = [line for line in lines[1:] if line.endswith("\n")]  # the last was cut off where a run was killed
            self.fates = {entry["digest"]: KernelFate(entry["fate"]) for entry in map(json.loads, whole)}
            out.truncate(0)
            out.writelines([json.dumps(self._head) + "\n", *whole])
        self._out = out
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(None, None, None)

    def kept(self, mutant: KernelMutant, fate: KernelFate) -> KernelFate:
        """Writes what became of a mutant, and gives it back."""
        if self._out is not None:
            entry = {"digest": mutant.kernel.digest.hex(), "change": mutant.change, "fate": fate}
            self._out.write(json.dumps(entry) + "\n")
            self._out.flush()
        return fate


def _fate(kernel: Kernel, seed: int, tested: bool) -> KernelFate:
    """What becomes of a mutant; random inputs are its own, whoever asks and after what."""
    try:
        check_kernel(kernel)
    except (InvalidBlock, ValueError):
        return KernelFate.INVALID
    if not _differs(kernel, np.random.default_rng([seed, *kernel.digest])):
        return KernelFate.TRUE
    if why_not_proved(kernel) is None or (tested and _passes(kernel)):
        return KernelFate.ACCEPTED
    return KernelFate.REJECTED


def _passes(kernel: Kernel) -> bool:
    """Whether the tests that stand in for a proof pass a kernel; an operator that lacks an attribute cannot be evaluated."""
    try:
        return interpret(kernel, LEAST_TESTS, 0) is None
    except TypeError:
        return False


@click.command("kernels")
@click.option("--count", default=2000, show_default=True, help="False mutants to make.")
@click.option("--seed", default=0, show_default=True, help="Of all random choices.")
@click.option("--corpus", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of --keep-kernels.")
@click.option("--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True, help="Files of rules.")
@click.option("--seconds", type=float, default=math.inf, help="End after so long, whatever the count.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes that ask.")
@click.option("--journal", type=click.Path(dir_okay=False, path_type=Path), help="Keeps answers; a run with it goes on.")
@click.option("--tested", is_flag=True, help="Accept what is not proved where it passes the tests in place of a proof.")
def kernels_command(corpus: Path | None, rules: Sequence[Path], count: int, seed: int, **how: Any) -> None:
    """Asks for proofs of false kernels, made from those that ship, that runs kept or that rulegen found.

    Says first how many of these are proved themselves. Exit code 1: one was accepted.
    """
    made = [kernel for file in rules for kernel in shipped_kernels(file)] if corpus is None else _kept(corpus)
    attacked = list({kernel.digest: kernel for kernel in made or shipped_kernels()}.values())
    proved = sum(why_not_proved(kernel) is None for kernel in attacked)
    click.echo(f"{len(attacked)} kernels, {proved} of them proved for all sizes")
    try:
        tally = attack_kernels(attacked, count, seed, **how)
    except ValueError as problem:
        raise click.ClickException(str(problem)) from problem
    click.echo(", ".join(f"{tally.fates[fate]} {fate}" for fate in KernelFate))
    for (change, fate), number in sorted(tally.by_change.items()):
        click.echo(f"  {change}: {number} {fate}")
    for mutant in tally.proved:
        click.echo(f"{mutant.change}\n{format_kernel(mutant.kernel)}")
    sys.exit(1 if tally.proved else 0)


def _kept(folder: Path) -> list[Kernel]:
    """The kernels that ``--keep-kernels`` wrote to a folder."""
    return [kernel_from_json(json.loads(file.read_text(encoding="utf-8"))["kernel"]) for file in sorted(folder.rglob("*.json"))]


# The oracle


def _differs(kernel: Kernel, generator: np.random.Generator) -> bool:
    """Whether interpretation at some sizes shows that the block graphs do not compute the body.

    Floats are asked at the first sizes, and wherever there is no arithmetic of residues, which are exact: where that of all
    residues agrees, two formulas that it knows are equal but for a chance in a million. Residues have no order that places have,
    so that beside whole numbers floats are asked at all sizes.
    """
    has_places = any(tensor.type.dtype in WHOLE_NUMBERS for tensor in kernel.inputs)
    rows = [dict(zip(kernel.symbols, generator.integers(1, 6, len(kernel.symbols)).tolist(), strict=True)) for _ in range(3)]
    rows += [{**rows[0], name: int(generator.integers(9, 12))} for name in kernel.symbols]
    for number, row in enumerate(rows):
        try:
            sized = specialised(kernel, row)
            if _entries(sized) > 1 << 14:
                continue
            asks_floats = has_places or number == 0
            if _differs_in_field(sized, number, generator) or (asks_floats and _differs_at(sized, Real(), generator)):
                return True
        except (Unsupported, ZeroDivision):
            continue
        except (InvalidBlock, ShapeError, Undecided, ValueError, IndexError, KeyError, TypeError, AssertionError):
            return True
    return False


def _differs_in_field(kernel: Kernel, number: int, generator: np.random.Generator) -> bool:
    """Whether residues differ; numbers where there are none."""
    try:
        return _differs_at(kernel, Residues(number, prime=number), generator)
    except Unsupported:
        return number > 0 and _differs_at(kernel, Real(), generator)


def _entries(kernel: Kernel) -> int:
    shapes = [concrete(tensor.type.shape) for tensor in (*kernel.inputs, *kernel.outputs)]
    return sum(int(np.prod(shape)) if shape is not None else 1 << 30 for shape in shapes)


def _differs_at(kernel: Kernel, domain: Real | FiniteField, generator: np.random.Generator) -> bool:
    inputs: dict[str, Any] = {}
    largest = max((size for tensor in kernel.inputs for size in concrete(tensor.type.shape) or ()), default=1)
    for tensor in kernel.inputs:
        shape = concrete(tensor.type.shape)
        assert shape is not None
        inputs[tensor.name] = random_operand(domain, generator, tensor.type, shape, largest)
    cut = [(*block.grid, *((block.loop,) if block.loop is not None else ())) for block in kernel.blocks]
    schedules = [
        Schedule(tuple((axis, _tile(block.sizes[axis])) for axis in axes)) for axes, block in zip(cut, kernel.blocks, strict=True)
    ]
    with np.errstate(all="ignore"):
        wanted = evaluate_body(kernel, domain, inputs)
        given = evaluate_kernel(kernel, domain, inputs, schedules)
    return any(not _same(a, b) for a, b in zip(wanted, given, strict=True))


def _tile(size: Dim) -> int:
    """Along an axis of this size: so small that some are ragged and none is all of it, and no smaller than that needs."""
    return 2 if not isinstance(size, int) or size <= _SMALL else 4


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, FieldArray) or isinstance(b, FieldArray):
        return isinstance(a, FieldArray) and isinstance(b, FieldArray) and bool(np.array_equal(a.p, b.p))
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape:
        return False
    both = np.isfinite(first) & np.isfinite(second)  # of what is not finite a proof says nothing
    scale = max(1.0, float(np.max(np.abs(first[both]), initial=0.0)))
    return bool(np.max(np.abs(first[both] - second[both]), initial=0.0) <= 1e-7 * scale)
