"""What the float64 reference of a run takes: ``python -m tools.bench.references MODEL...``.

For the four inputs of a comparison (two random ones, two probes) it is made here, as runs once did, and in a process of its
own, as they do now; each alone, and beside a thread that computes in Python as a search does. Processor seconds are those of the
reference, its process included; on a busy machine they tell more than seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from mugraph.onnx import Model, load
from rewriter.reference import References, bind_sizes, identical, random_inputs, reference_run
from rewriter.run.background import taking_turns
from rewriter.run.referring import operations, referred

Make = Callable[[Model, Sequence[Mapping[str, np.ndarray]]], References]
_INPUTS = ((1, 1.0), (2, 1.0), (3, 100.0), (4, 0.01))
"""Seeds and scales of the inputs."""
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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def main(models: Sequence[Path]) -> None:
    """Measures the reference of each MODEL."""
    for path in models:
        model = load(path)
        sizes, _ = bind_sizes(model, {})
        feeds = [random_inputs(model, sizes, seed, scale) for seed, scale in _INPUTS]
        click.echo(f"{path.name}: {operations(model, feeds) / 1e9:,.0f} billion operations")
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
