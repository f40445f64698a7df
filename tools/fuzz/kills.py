"""Accidents while files are written: processes killed at random moments, disks that are full, two writers of one file.

Each trial does a piece of work in a process of its own in which the accident happens, and looks at what is left: every model that
stood still stands with its data, every database opens, and the same work done again leaves nothing half-made behind.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mugraph.files import Scratch
from mugraph.onnx import copy, load, open_in, save
from mugraph.onnx.weights import is_stored
from rewriter.cost.store import ProfileStore
from rewriter.run.optimize import optimize
from rules_db.files import write_text
from rules_db.library import read_entries
from rules_db.store import RuleStore
from rules_db.trust.rule import Rule

__all__ = ["Scene", "kills_command", "race", "trial"]

_MODELS = 2
"""Models that take turns in being written to one output."""
_ROWS = 300
"""Costs that are written at once."""


@dataclass(frozen=True)
class Scene:
    """A folder with models, an output that one of them was written to, and a copy of that output; caches and scratch folders.

    Attributes:
        folder: where all that is.
        rules: that are entered into a database.
    """

    folder: Path
    rules: tuple[Rule, ...]

    def prepare(self) -> None:
        """Puts everything in its place."""
        for folder in (self.folder / "away", self.scratch):
            folder.mkdir()
        for number in range(_MODELS):
            _write_model(self.model(number), number)
        assert len({*self.contents}) == _MODELS
        saved(self, 0)
        copied(self, 0)
        shutil.copy(self.output, self.earlier)

    @property
    def output(self) -> Path:
        """The file that models are written to."""
        return self.folder / "out.onnx"

    @property
    def earlier(self) -> Path:
        """A copy of an earlier output, which reads that one's data."""
        return self.folder / "earlier.onnx"

    @property
    def scratch(self) -> Path:
        """For temporary files."""
        return self.folder / "scratch"

    def model(self, number: int) -> Path:
        """One of the models."""
        return self.folder / f"model{number % _MODELS}.onnx"

    @cached_property
    def contents(self) -> list[str]:
        """The contents that a written model may have."""
        return [content(self.model(number)) for number in range(_MODELS)]

    def problems(self) -> Iterator[str]:
        """What must not be: models that do not stand with their data, databases that do not open."""
        for number, expected in enumerate(self.contents):
            if content(self.model(number)) != expected:
                yield f"model {number} has changed"
        if content(self.earlier) != self.contents[0]:
            yield "the copy of an earlier output has changed"
        for path in (self.output, self.folder / "away" / "out.onnx"):
            if content(path) not in self.contents:
                yield f"{path.name} in {path.parent.name} is neither the old model nor the new one"
        if (self.folder / "text").exists() and (self.folder / "text").read_text() not in {str(i) * 10**6 for i in range(_MODELS)}:
            yield "a text is half written"
        for path in self.folder.glob("*.sqlite"):
            with sqlite3.connect(path) as connection:
                told = connection.execute("PRAGMA integrity_check").fetchone()[0]
                if told != "ok":
                    yield f"{path.name}: {told}"
        if (self.folder / "costs.sqlite").exists():
            costs = ProfileStore(self.folder / "costs.sqlite", "here")
            count = sum(name.startswith("cost") for name in costs.costs)
            costs.close()
            if count % _ROWS:
                yield f"{count} costs were kept of some that are written at once"

    def leftovers(self) -> list[str]:
        """What is half-made."""
        drafts = [path.name for path in self.folder.rglob("*.tmp")]
        linked = [path.name for path in self.folder.glob("*.data") if path.stat().st_nlink > 1]
        return [*drafts, *linked, *(path.name for path in self.scratch.iterdir())]


def _write_model(path: Path, number: int) -> None:
    """A model whose weights lie in ``weights.bin`` or the like."""
    weights = {name: np.random.default_rng((number, i)).standard_normal((400, 400), np.float32) for i, name in enumerate("abc")}
    nodes = [helper.make_node("MatMul", [before, name], [after]) for before, name, after in (("x", "a", "h"), ("h", "b", "i"))]
    nodes.append(helper.make_node("MatMul", ["i", "c"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 400]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(w, name) for name, w in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location=f"weights{number}.bin", size_threshold=0)


def content(path: Path) -> str:
    """A digest of a model's nodes and weights, or why there is none."""
    try:
        model = load(path)
        digest = hashlib.sha256(repr([node.SerializeToString() for node in model.proto.graph.node]).encode())
        for tensor in model.proto.graph.initializer:
            for chunk in model.weights.chunks(tensor) if is_stored(tensor) else [tensor.raw_data]:
                digest.update(chunk)
    except (OSError, ValueError) as problem:
        return str(problem)
    return digest.hexdigest()


# The work


def saved(scene: Scene, number: int) -> None:
    """A model with data is written over another."""
    model = load(scene.model(number))
    save(model, model.graph, scene.output)


def copied(scene: Scene, number: int) -> None:
    """A model is copied to another folder, over another."""
    copy(load(scene.model(number)), scene.folder / "away" / "out.onnx")


def tried(scene: Scene, number: int) -> None:
    """Candidates are written to a scratch folder."""
    model = load(scene.model(number))
    with Scratch() as scratch:
        for _ in range(2):
            open_in(model, model.graph, scratch.path)
        shutil.copy(scene.model(number).with_name(f"weights{number % _MODELS}.bin"), scratch.path / "large")


def costed(scene: Scene, number: int) -> None:
    """Costs and a verdict are kept."""
    store = ProfileStore(scene.folder / "costs.sqlite", "here")
    for row in range(_ROWS):
        store.put(f"cost {number % _MODELS} {row}", 1.0)
    store.close()


def learned(scene: Scene, number: int) -> None:
    """Rules enter a database."""
    with RuleStore.open(str(scene.folder / "rules.sqlite")) as store:
        store.add_all(scene.rules[number % _MODELS :: _MODELS])


def noted(scene: Scene, number: int) -> None:
    """A text is written over another."""
    write_text(scene.folder / "text", str(number % _MODELS) * 10**6)


def optimised(scene: Scene, number: int) -> None:
    """A whole run, with measurements; there is nothing to find."""
    optimize(scene.model(number), scene.output, rules=[], provider="cpu", budget=0.5, cache=scene.folder / "profile.sqlite")


WORK: Mapping[str, Callable[[Scene, int], None]] = {
    "save": saved,
    "copy": copied,
    "candidates": tried,
    "costs": costed,
    "rules": learned,
    "text": noted,
    "run": optimised,
}


# The accidents


def _started(scene: Scene, work: Callable[[Scene, int], None], number: int, file_limit: int | None = None) -> int:
    """A process that does a piece of work; its id. It exits with 0, or with 1 where the work raised an error."""
    process = os.fork()
    if process:
        return process
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        if file_limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        work(scene, number)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def trial(scene: Scene, name: str, number: int, generator: random.Random, seconds: float, *, full_disk: bool) -> list[str]:
    """Does a piece of work in which an accident happens, then once more without; what was lost, or left.

    Args:
        number: of the model.
        seconds: that the work takes at most, about: it is killed at a random moment of these.
        full_disk: files cannot grow beyond a random size; otherwise it is killed.
    """
    if full_disk:
        _ended(_started(scene, WORK[name], number, file_limit=int(generator.uniform(0, 2.2e6))))
    else:
        process = _started(scene, WORK[name], number)
        time.sleep(generator.uniform(0, seconds))
        os.kill(process, signal.SIGKILL)
        _ended(process)
    problems = [*scene.problems(), *(scene.leftovers() if full_disk else ())]
    if _ended(_started(scene, WORK[name], number + 1)) != 0:
        problems.append("the same work does not succeed afterwards")
    return [*problems, *scene.problems(), *scene.leftovers()]


def race(scene: Scene, name: str) -> list[str]:
    """Two processes do a piece of work for different models at the same time; what was lost, or left."""
    first, second = (_started(scene, WORK[name], number) for number in range(_MODELS))
    ends = _ended(first), _ended(second)
    problems = [f"the writers ended with {ends}"] if any(ends) else []
    return [*problems, *scene.problems(), *scene.leftovers()]


@click.command("kills")
@click.option("--count", default=500, show_default=True, help="Processes to kill.")
@click.option("--full-disks", default=100, show_default=True, help="Processes that meet a full disk.")
@click.option("--races", default=100, show_default=True, help="Pairs of processes that write the same file.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", type=click.Choice(list(WORK)), multiple=True, help="Kinds of work; all by default.")
def kills_command(count: int, full_disks: int, races: int, seed: int, only: tuple[str, ...]) -> None:
    """Kills processes that write files at random moments, and sees that nothing is lost."""
    generator, names = random.Random(seed), list(only or WORK)
    losses: Counter[str] = Counter()
    rules = tuple(islice((entry.read() for entry in read_entries()), 6))
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), rules)
        os.environ["TMPDIR"] = str(scene.scratch)
        tempfile.tempdir = str(scene.scratch)
        scene.prepare()
        seconds = {name: _duration(scene, name) for name in names}
        accidents = ["kill"] * count + ["full disk"] * full_disks + ["race"] * races
        for number, accident in enumerate(accidents):
            name = names[number % len(names)]
            if accident == "race":
                problems = race(_fresh(scene), name)
            else:
                problems = trial(scene, name, number // len(names), generator, seconds[name], full_disk=accident == "full disk")
            for problem in problems:
                losses[f"{accident}, {name}: {problem}"] += 1
    for loss, times in losses.items():
        click.echo(f"{loss} ({times} times)")
    click.echo(f"{count} kills, {full_disks} full disks and {races} races: {sum(losses.values())} losses")
    sys.exit(bool(losses))


def _duration(scene: Scene, name: str) -> float:
    """Seconds that a piece of work takes, and a little more."""
    started = time.monotonic()
    if _ended(_started(scene, WORK[name], 0)) != 0:
        raise RuntimeError(f"the work '{name}' does not succeed without an accident")
    return 1.2 * (time.monotonic() - started)


def _fresh(scene: Scene) -> Scene:
    """The scene without databases, so that both of two processes make them."""
    for path in scene.folder.glob("*.sqlite"):
        path.unlink()
    return scene
