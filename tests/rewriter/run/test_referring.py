"""The reference in a process of its own: the same as here, and no process is left whatever becomes of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.deadline import BudgetSpent, Deadline
from mugraph.onnx import Model, ModelError, ReadFrom, distrusting, load
from rewriter import optimize
from rewriter.kernels.workers import Worker
from rewriter.reference import NoReference, NoRoom, bind_sizes, identical, process, random_inputs, reference_run
from rewriter.run import accept, cleaning, referring
from rewriter.run.proposing import Proposer
from rewriter.run.referring import operations, referred
from tests.support.graphs import rule
from tests.support.runs import block, ops
from tests.support.work import checks_endlessly

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
BRANCHES = f"""{HEAD}
    g (float[N,4] x, bool c) => (float[N,4] y, int64[K] n, float[0,4] none) <int64[1] zero = {{0}}> {{
        y = If(c) <then_branch = t () => (float[N,4] a) {{ a = Neg(x) }}, else_branch = e () => (float[N,4] b) {{ b = Exp(x) }}>
        found = NonZero(x)
        n = Reshape(found, one)
        none = Slice(x, zero, zero, zero)
    }}"""
TEXTS = f"""{HEAD}
    g (string[4,8] x) => (string[4,8] y, bool[4,8] e) <string[1] a = {{"yes"}}> {{ e = Equal(x, a) y = Where(e, x, a) }}"""
SEQUENCE = f"""{HEAD} g (float[2] x, int64 i) => (float[2] y) {{ s = SequenceConstruct(x, x) y = SequenceAt(s, i) }}"""


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every reference is made in a process of its own; the processes."""
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(Worker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            begun.append(self._process)

    monkeypatch.setattr(referring, "LONG", 0)
    monkeypatch.setattr(referring, "Worker", Noted)
    return begun


def _dies(connection: Connection, *_: object) -> None:
    """In a process."""
    os._exit(9)


def _ends_or_waits(connection: Connection, _: ReadFrom, __: object, path: str, *___: object) -> None:
    """In a process: the second ends, or answers that it has no room, and the others never answer."""
    if path.endswith("outputs1"):
        if os.environ["_SECOND"] == "ends":
            os._exit(9)
        connection.send((NoRoom, "no room for it"))
    checks_endlessly(connection)


def _feeds(model: Model) -> list[dict[str, np.ndarray]]:
    return [random_inputs(model, bind_sizes(model, {})[0], seed) for seed in (1, 2, 3)]


def _text(text: str) -> Model:
    proto = parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "one"))
    return load(proto)


class Importing:
    """A process that reads nothing yet: what is sent to it waits until it is ended."""

    def __init__(self) -> None:
        self.told, self.ended, self.was_awaited = threading.Event(), threading.Event(), False

    def call(self, *_: object) -> None:
        self.told.set()
        self.was_awaited = not self.ended.wait(10)

    def close(self) -> None:
        self.ended.set()


@pytest.mark.parametrize("ending", ["unwanted", "time"])
def test_nobody_waits_for_a_process_that_imports_once_the_run_is_over(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds is sent to it."""
    monkeypatch.setattr(referring, "LONG", 0)
    worker, model, deadline = Importing(), _text(BRANCHES), Deadline()
    monkeypatch.setattr(referring, "_begun", lambda: worker)
    if ending == "time":
        deadline.end_in(0.0)
    with deadline.heeded(), pytest.raises(BudgetSpent if ending == "time" else NoReference):
        referred(model, _feeds(model), lambda: ending == "time" or not worker.told.is_set())
    assert worker.ended.is_set() and not worker.was_awaited


@pytest.mark.parametrize("which", ["file", "data file", "branches", "texts"])
def test_it_is_the_same_bit_for_bit(tmp_path: Path, always: list[subprocess.Popen[bytes]], which: str) -> None:
    if "file" in which:
        path = block(tmp_path / "block.onnx")
        if which == "data file":
            onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
        model = load(path)
    else:
        model = _text(BRANCHES if which == "branches" else TEXTS)
    feeds = _feeds(model)
    here, there = reference_run(model, feeds), referred(model, feeds)
    assert len(always) == 1 and always[0].poll() is not None, "a process made it and has ended"
    assert all(map(identical, here.outputs, there.outputs)) and len(there.outputs) == len(feeds)
    assert (here.entered, here.sizes) == (there.entered, there.sizes)
    assert which != "branches" or (here.entered and here.sizes)


@pytest.mark.parametrize("which", ["block", "branches", "texts"])
def test_several_processes_share_the_inputs(
    tmp_path: Path, always: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """As many as there are inputs, or cores for; references are in the order of the inputs, and branches that any took count."""
    monkeypatch.setattr(referring, "_LONG_FOR_ONE", 0)
    monkeypatch.setattr(referring, "_FOR_AN_ENTRY", 0)
    monkeypatch.setattr(referring, "free_cores", lambda: 14)
    model = load(block(tmp_path / "block.onnx")) if which == "block" else _text(BRANCHES if which == "branches" else TEXTS)
    feeds, sizes = _feeds(model), bind_sizes(model, {})[0]
    if which == "branches":
        feeds = [{**feed, "c": np.array(truth)} for feed, truth in zip(feeds, (False, True, False), strict=True)]
    with closing(referring.Ahead(model, sizes, is_needed=True, has_device=False)) as ahead:
        here, there = reference_run(model, feeds), referred(model, feeds, ahead=ahead)
    assert len(always) == 5 and all(begun.poll() is not None for begun in always)
    for mine, theirs in zip(here.outputs, there.outputs, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.dtype == other.dtype and (one.dtype.kind != "f" or np.allclose(one, other, rtol=1e-13, atol=1e-13))
            assert one.dtype.kind == "f" or identical(one, other)
    assert (here.entered, here.sizes) == (there.entered, there.sizes) and len(here.entered) == 2 * (which == "branches")


def test_inputs_are_shared_out_by_the_work_that_they_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch of equal texts one is work; cores go with the work."""
    monkeypatch.setattr(referring, "free_cores", lambda: 14)
    texts = np.arange(8 * 64).reshape(8, 64)
    equal = np.repeat(texts[:1], 8, axis=0)
    shares = referring._shared_out([{"x": equal}, {"x": texts}, {"x": equal}, {"x": texts}], 3)
    assert sorted((list(share.feeds), share.cores) for share in shares) == [([0, 2], 2), ([1], 6), ([3], 6)]
    assert [share.cores for share in referring._shared_out([{"x": texts}] * 2, 5)] == [7, 7]


@pytest.mark.parametrize(
    ("cores", "room", "device", "long", "begun"),
    [
        (14, 1 << 40, False, 1e11, 5),
        (14, 1 << 40, False, 1e10, 0),
        (14, 1 << 40, False, 1.5e11, 1),
        (14, 1 << 40, False, 3e10, 1),
        (14, 1 << 10, False, 1e11, 1),
        (14, None, False, 1e11, 5),
        (1, 1 << 40, False, 1e11, 1),
        (4, 1 << 40, False, 1e11, 1),
        (6, 1 << 40, False, 1e11, 2),
        (14, 1 << 40, True, 6e11, 5),
        (14, 1 << 40, True, 1e12, 1),
        (2, 1 << 40, True, 2e11, 1),
    ],
)
def test_as_many_processes_begin_as_pay(
    cores: int, room: int | None, device: bool, long: float, begun: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One where cores are few, where each could not hold a weight, or where a GPU makes products, which pays beside few cores.

    And where what each widens for itself is more than what it computes.
    """
    started: list[object] = []
    monkeypatch.setattr(referring, "_begun", lambda: started.append(Importing()) or started[-1])
    monkeypatch.setattr(referring, "_at_sizes", lambda *_: long / 2)
    monkeypatch.setattr(referring, "free_cores", lambda: cores)
    monkeypatch.setattr(referring, "memory_limit", lambda: room)
    model = load(block(tmp_path / "block.onnx"))
    if long == 1.5e11:
        monkeypatch.setattr(referring, "_FOR_AN_ENTRY", long)
    with closing(referring.Ahead(model, {}, is_needed=True, has_device=device)) as ahead:
        assert ahead.on_device == (device and long >= max(1.5e11, 5e10 * cores))
    assert len(started) == begun and all(worker.ended.is_set() for worker in started)


def test_a_model_that_came_from_no_file_is_held_three_times_by_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it is sent as, what arrives, and what is read: of a file each reads what it needs."""
    path = block(tmp_path / "block.onnx")
    in_file, in_memory = load(path), load(onnx.load(path))
    most = max(constant.type.size() for constant in in_file.tables.constants.values())
    assert in_memory.weights.memory and not in_file.weights.memory
    monkeypatch.setattr(referring, "free_cores", lambda: 14)
    monkeypatch.setattr(referring, "memory_limit", lambda: 4 * 5 * (8 * most + 1))
    assert (referring._processes(in_file, 1e12), referring._processes(in_memory, 1e12)) == (5, 1)
    monkeypatch.setattr(referring, "memory_limit", lambda: 4 * 2 * (8 * most + 3 * len(in_memory.weights.memory) + 1))
    assert referring._processes(in_memory, 1e12) == 2


def test_what_is_distrusted_here_is_distrusted_there(always: list[subprocess.Popen[bytes]]) -> None:
    text = f"{HEAD} g (float[2,3] x) => (float[M,5] y) {{ [made] v = Hardmax(x) y = Neg(v) }}"
    model = _text(text)
    model = distrusting(model, ["y"])
    assert ReadFrom.of(model).again().distrusted == {"y"}
    assert identical(referred(model, _feeds(model)).outputs, reference_run(model, _feeds(model)).outputs)


def test_what_has_no_reference_says_why(tmp_path: Path, always: list[subprocess.Popen[bytes]]) -> None:
    model = _text(SEQUENCE)
    with pytest.raises(NoReference, match=r"'s'.*no tensor"):
        referred(model, [{"x": np.ones(2, np.float32), "i": np.array(0)}])
    block(tmp_path / "block.onnx")
    model = load(tmp_path / "block.onnx")
    feeds = _feeds(model)
    os.utime(tmp_path / "block.onnx", (1, 1))
    with pytest.raises(ModelError, match="has changed since the model was read"):
        referred(model, feeds)
    with pytest.raises(RuntimeError, match=r"KeyError: 'x'"):
        referred(_text(TEXTS), [{}])
    assert len(always) == 3 and all(begun.poll() is not None for begun in always)


def test_a_process_that_dies_leaves_no_reference(monkeypatch: pytest.MonkeyPatch, always: list[subprocess.Popen[bytes]]) -> None:
    monkeypatch.setattr(referring, "serve", _dies)
    with pytest.raises(NoRoom, match="was ended, for want of memory perhaps"):
        referred(_text(TEXTS), _feeds(_text(TEXTS)))


@pytest.mark.parametrize(("second", "told"), [("ends", "was ended, for want of memory perhaps"), ("refuses", "no room for it")])
def test_nobody_waits_for_the_others_where_one_makes_no_reference(
    second: str, told: str, monkeypatch: pytest.MonkeyPatch, always: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(referring, "_LONG_FOR_ONE", 0)
    monkeypatch.setattr(referring, "_FOR_AN_ENTRY", 0)
    monkeypatch.setattr(referring, "free_cores", lambda: 9)
    monkeypatch.setattr(referring, "serve", _ends_or_waits)
    monkeypatch.setenv("_SECOND", second)
    model, ends = _text(TEXTS), Deadline()
    ends.end_in(20.0)
    several = closing(referring.Ahead(model, bind_sizes(model, {})[0], is_needed=True, has_device=False))
    with several as ahead, ends.heeded(), pytest.raises(NoRoom, match=told):
        referred(model, _feeds(model), ahead=ahead)
    assert len(always) == 3 and all(begun.poll() is not None for begun in always)


def test_what_cannot_be_started_or_written_leaves_no_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: list[subprocess.Popen[bytes]]
) -> None:
    model = load(block(tmp_path / "block.onnx"))
    made = reference_run(model, _feeds(model))
    answer = process._written(made, tmp_path / "outputs")
    assert identical(process.received(answer, tmp_path / "outputs").outputs, made.outputs)
    with pytest.raises(NoRoom, match=r"cannot be written to .* \(No such file or directory\); set TMPDIR"):
        process._written(made, tmp_path / "nowhere" / "outputs")

    def refuses(*_: object, **__: object) -> Worker:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(referring, "Worker", refuses)
    with pytest.raises(NoRoom, match=r"no process can be started .* \(Resource temporarily unavailable\)"):
        referred(model, _feeds(model))


def test_a_reference_that_nobody_wants_any_more_keeps_no_process(
    monkeypatch: pytest.MonkeyPatch, always: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(referring, "serve", checks_endlessly)
    model, given_up, ends = _text(TEXTS), threading.Event(), Deadline()
    timer = threading.Timer(0.3, given_up.set)
    timer.start()
    with pytest.raises(NoReference, match="nobody asks"):
        referred(model, _feeds(model), lambda: not given_up.is_set())
    ends.end_in(0.3)
    with ends.heeded(), pytest.raises(BudgetSpent):
        referred(model, _feeds(model))
    assert len(always) == 2 and all(begun.poll() is not None for begun in always)


def test_an_interrupted_run_keeps_no_process(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, always: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(referring, "serve", checks_endlessly)

    def interrupted(*_: object) -> None:
        until = time.monotonic() + 60
        while not always and time.monotonic() < until:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(Proposer, "propose", interrupted)
    block(tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", rules=[], budget=60)
    assert "interrupted" in outcome.message and always and all(begun.poll() is not None for begun in always)


def test_what_is_done_in_no_time_is_done_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(referring, "Worker", lambda *_, **__: pytest.fail("a process was started"))
    model = load(block(tmp_path / "block.onnx"))
    assert len(referred(model, _feeds(model)).outputs) == 3


def test_operations_are_those_of_products_at_the_sizes_that_are_fed() -> None:
    text = f"{HEAD} g (float[N,64] x, float[64,32] w) => (float[N,32] y) {{ p = MatMul(x, w) y = Neg(p) }}"
    model = _text(text)
    feeds = [{"x": np.ones((n, 64), np.float32), "w": np.ones((64, 32), np.float32)} for n in (1, 100)]
    assert operations(model, feeds) == 101 * (2 * 64 * 32 + 32)
    assert operations(_text(SEQUENCE), [{"x": np.ones(2, np.float32), "i": np.array(0)}]) == 0


def test_a_run_whose_reference_a_process_makes_goes_on_as_ever(
    tmp_path: Path, own_cache: Path, always: list[subprocess.Popen[bytes]]
) -> None:
    text = f"{HEAD} g (float[64,64] x) => (float[64,64] y) {{ a = Neg(x) b = Neg(a) y = Tanh(b) }}"
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    for name in ("right", "wrong"):
        rules = [rule("Neg(Neg(X))" if name == "right" else "Tanh(X)", "X", "X:[m,n]")]
        outcome = optimize(tmp_path / "m.onnx", tmp_path / f"{name}.onnx", provider="cpu", deterministic=True, rules=rules)
        assert outcome.improved == (name == "right") and bool(outcome.dropped) == (name == "wrong")
    assert ops(tmp_path / "right.onnx") == ["Tanh"]
    assert len(always) == 2 and all(begun.poll() is not None for begun in always)


@pytest.mark.parametrize(("budget", "least", "begun"), [(20, 2.0, [1]), (20, 1000.0, [0]), (0, 2.0, [])])
def test_the_process_begins_with_the_run(
    budget: int,
    least: float,
    begun: list[int],
    tmp_path: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    always: list[subprocess.Popen[bytes]],
) -> None:
    """What it imports takes seconds where files are read slowly, and a second run of a command waits for the reference.

    Where there is no time for a reference it would take from the little that there is.
    """
    there, real, whole_run = list[int](), cleaning.clean_tasks, sys.modules["rewriter.run.optimize"]
    monkeypatch.setattr(whole_run, "_REFERENCE", least)
    monkeypatch.setattr(whole_run, "clean_tasks", lambda *given: there.append(len(always)) or real(*given))
    text = f"{HEAD} g (float[64,64] x) => (float[64,64] y) {{ a = Neg(x) b = Neg(a) y = Tanh(b) }}"
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    rules = [rule("Neg(Neg(X))", "X", "X:[m,n]")]
    optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", budget=budget, rules=rules)
    assert there == begun and len(always) == len(there) and all(process.poll() is not None for process in always)


def test_no_process_begins_for_a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referring, "Worker", lambda *_, **__: pytest.fail("begun"))
    model = load(block(tmp_path / "block.onnx"))
    with closing(referring.Ahead(model, bind_sizes(model, {})[0], is_needed=True, has_device=False)) as ahead:
        assert not ahead.taken()


def test_it_is_asked_for_by_whoever_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the inputs of the comparison and the first of each list of probes."""
    asked: list[int] = []
    monkeypatch.setattr(accept, "referred", lambda model, feeds, *rest: asked.append(len(feeds)))
    model = load(block(tmp_path / "block.onnx"))
    accept.first_reference(model, _feeds(model), [], lambda: True)
    assert asked == [3]
