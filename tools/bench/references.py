"""What the float64 reference of a run takes: ``python -m tools.bench.references [--built SHAPE]... [MODEL]...``.

For the four inputs of a comparison (two random ones, two probes) it is made here, as runs once did, and in a process of its
own, as they do now; each alone, and beside a thread that computes in Python as a search does. Processor seconds are those of the
reference, its process included; on a busy machine they tell more than seconds. ``--operators`` says what becomes of them instead:
a core for each input, node by node and block by block (:mod:`rewriter.reference.blocks`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from mugraph.onnx import Model, load
from mugraph.ops import Operator
from rewriter.reference import (
    References,
    bind_sizes,
    blocks,
    few_parts,
    identical,
    keeps_parts_apart,
    random_inputs,
    reference_run,
)
from rewriter.run.background import taking_turns
from rewriter.run.referring import operations, referred
from tools.zoo.masked import MASKED, masked_model

Make = Callable[[Model, Sequence[Mapping[str, np.ndarray]]], References]
_INPUTS = ((1, 1.0), (2, 1.0), (3, 100.0), (4, 0.01))
"""Seeds and scales of the inputs."""
_SHOWN = 0.005
"""Seconds of an operator that is shown at least."""
_TURN = 1000
"""Entries that the thread beside makes before it counts."""


class _Turns(threading.Thread):
    """Computes in Python until it is ended.

    Attributes:
        turns: how often it counted.
        seconds: of processor time that it took.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turns, self.seconds, self._ended = 0, 0.0, threading.Event()

    def run(self) -> None:
        table = {}
        while not self._ended.is_set():
            for entry in range(_TURN):
                table[entry] = (entry, entry + 1)
            self.turns += 1
        self.seconds = time.thread_time()

    def end(self) -> None:
        """Returns when it has ended."""
        self._ended.set()
        self.join()


def _processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def measure(model: Model, feeds: Sequence[Mapping[str, np.ndarray]], make: Make, *, beside: bool) -> tuple[References, str]:
    """References, and what they took in words."""
    search, processor, began = _Turns(), _processor_seconds(), time.perf_counter()
    with taking_turns():
        if beside:
            search.start()
        references = make(model, feeds)
        seconds = time.perf_counter() - began
        if beside:
            search.end()
    processor = _processor_seconds() - processor - search.seconds
    turns = f", {search.turns / seconds:,.0f} turns of the search a second" if beside else ""
    return references, f"{processor:.1f} s of processor time, {seconds:.1f} s{turns}"


def by_operator(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> tuple[References, dict[str, float]]:
    """References, and the processor seconds of each operator, a core for each input; under no name those between operators."""
    seconds, lock, plain = defaultdict[str, float](float), threading.Lock(), Operator.run

    def timed(self: Operator, *operands: Any) -> Any:
        began = time.thread_time()
        results = plain(self, *operands)
        taken = time.thread_time() - began
        with lock:
            seconds[self.name] += taken
        return results

    with patch.object(Operator, "run", timed), patch("rewriter.reference.threads.cores", lambda: len(feeds)):
        began = time.process_time()
        references = reference_run(model, feeds)
        seconds[""] = time.process_time() - began - sum(seconds.values())
    return references, seconds


def show_operators(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Prints a table of operators, those that take most first."""
    with patch.object(blocks, "ENTRIES", 1 << 62):
        wanted, nodes = by_operator(model, feeds)
    given, together = by_operator(model, feeds)
    _, once = by_operator(model, _as_in_runs(model, feeds))
    click.echo("  processor seconds node by node, block by block, and of equal parts of probes one:")
    for name in sorted(nodes, key=nodes.__getitem__, reverse=True):
        if max(nodes[name], together[name]) >= _SHOWN:
            click.echo(f"  {name or 'between them':24}{nodes[name]:8.2f}{together[name]:8.2f}{once[name]:8.2f}")
    same = "the same bits" if identical(given.outputs, wanted.outputs) else "other bits"
    sums = "".join(f"{sum(each.values()):8.2f}" for each in (nodes, together, once))
    click.echo(f"  {'together':24}{sums}; block by block {same}")


def _as_in_runs(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[Mapping[str, np.ndarray]]:
    """Inputs of which those at another scale have as few parts as probes have."""
    parts = keeps_parts_apart(model, bind_sizes(model, {})[0])
    return [feed if scale == 1 else few_parts(feed, parts) for feed, (_, scale) in zip(feeds, _INPUTS, strict=True)]


def built(shape: str) -> Model:
    """A transformer that needs no file: KIND:LAYERSxWIDTH:BATCHxLENGTH, such as bert:2x768:8x512, without a mask."""
    kind, *sizes = shape.split(":")
    try:
        (layers, width), (batch, length) = (map(int, size.split("x")) for size in sizes)
    except ValueError:
        raise click.BadParameter(f"{shape} is no KIND:LAYERSxWIDTH:BATCHxLENGTH") from None
    like = next((which for which in MASKED.values() if which.kind == kind), None)
    if like is None:
        raise click.BadParameter(f"{shape}: there are {', '.join({which.kind: None for which in MASKED.values()})}")
    return load(masked_model(replace(like, layers=layers, width=width), np.ones((length, length), bool), batch))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", metavar="[MODEL]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--built", "shapes", multiple=True, metavar="KIND:LAYERSxWIDTH:BATCHxLENGTH", help="bert:2x768:8x512, say.")
@click.option("--operators", is_flag=True, help="What the operators take instead.")
def main(models: Sequence[Path], shapes: Sequence[str], operators: bool) -> None:
    """Measures the reference of each MODEL, and of models that are built."""
    for name, model in (*((path.name, load(path)) for path in models), *((shape, built(shape)) for shape in shapes)):
        sizes, _ = bind_sizes(model, {})
        feeds: list[Mapping[str, np.ndarray]] = [random_inputs(model, sizes, seed, scale) for seed, scale in _INPUTS]
        click.echo(f"{name}: {operations(model, feeds) / 1e9:,.0f} billion operations")
        if operators:
            show_operators(model, feeds)
            continue
        feeds = _as_in_runs(model, feeds)
        first: References | None = None
        for beside in (False, True):
            for where, make in (("here", reference_run), ("process", referred)):
                references, words = measure(model, feeds, make, beside=beside)
                first = first or references
                same = identical(first.outputs, references.outputs)
                click.echo(
                    f"  {where:8}{'beside' if beside else 'alone':8}{words}{'' if same else ', other bits than the first'}"
                )


if __name__ == "__main__":
    main()
