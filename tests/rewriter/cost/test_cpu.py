"""Measuring on the CPU provider: cold operands, what is divided, and which of several runs count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from mugraph.terms.shape import DataType
from mugraph.terms.text import parse_type
from rewriter.cost import cpu
from rewriter.cost.signature import Signature, node_model, random_array
from rewriter.runtime_env import RuntimeFailure


def signature(op: str, *types: str, constant: tuple[int, ...] = (), **attrs: Any) -> Signature:
    operands = tuple(map(parse_type, types))
    return Signature(op, tuple(sorted(attrs.items())), operands, tuple(i in constant for i in range(len(operands))))


@pytest.mark.parametrize(("side", "copies"), [(16, 32), (512, 8), (1024, 2), (4096, 1)])
def test_copies_exceed_the_caches_of_the_cores(side: int, copies: int) -> None:
    """16 MB in all, from one node to 32; an exponential of 512x512 moves 2 MB."""
    assert cpu.copies_of(signature("Exp", f"float[{side},{side}]")) == copies


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Nanoseconds that only a run moves on."""
    now = [0]
    monkeypatch.setattr(cpu.time, "perf_counter_ns", lambda: now[0])
    yield now


@pytest.mark.parametrize(("microseconds", "sessions"), [(7.0, [1, 8]), (200.0, [1, 3, 3, 3]), (900.0, [1] * 9)])
def test_a_node_takes_its_share_of_a_short_run(
    clock: list[int], monkeypatch: pytest.MonkeyPatch, microseconds: float, sessions: list[int]
) -> None:
    """One shows how many fill half a millisecond; all of eight copies run in turn, so that each finds its operands cold."""
    opened, runs = list[onnx.ModelProto](), list[int]()

    def opens(model: onnx.ModelProto) -> Callable[[], None]:
        number = len(opened)
        opened.append(model)

        def run() -> None:
            runs.append(number)
            clock[0] += int(1000 * (5.0 + microseconds * len(model.graph.node)))

        return run

    monkeypatch.setattr(cpu, "_opened", opens)
    assert cpu.time_on_cpu(signature("Exp", "float[512,512]"), 20, empty=5.0) == pytest.approx(microseconds)
    assert [len(model.graph.node) for model in opened] == sessions
    last, turns = [number for number in runs if number], len(sessions) - 1
    assert last == [1 + at % turns for at in range(len(last))] and len(last) >= turns + 2 + 5


def test_weights_keep_the_scores_of_attention_together() -> None:
    """Scores far apart make denormal numbers of a softmax: attention then took half as long again as within a model."""
    attrs = {"given": (), "mask_filter_value": -10000.0, "num_heads": 8, "scale": 1.0, "unidirectional": False}
    types = ("float[1,128,512]", "float[512,1536]", "float[1536]")
    node = signature("OrtAttention", *types, constant=(1, 2), qkv_hidden_sizes=(512, 512, 512), **attrs)
    model = node_model(node, 20)
    assert model is not None
    weights, bias = map(onnx.numpy_helper.to_array, model.graph.initializer)
    x = random_array(node.operands[0], np.random.default_rng(0))[0]
    q, k, _ = (part.reshape(128, 8, 64).swapaxes(0, 1) for part in np.split(x @ weights + bias, 3, axis=-1))
    scores = q @ k.swapaxes(1, 2)
    probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
    assert (probabilities / probabilities.sum(axis=-1, keepdims=True)).min() > np.finfo(np.float32).tiny
    assert bias.min() > 0, "a vector may be what a division or a root takes"


@pytest.mark.parametrize("dtype", [DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.INT64, DataType.BOOL])
def test_operands_of_every_type_can_be_bound(dtype: DataType) -> None:
    time = cpu.time_on_cpu(signature("Transpose", f"{dtype.name.lower()}[8,16]", perm=(1, 0)), 20, 0.0)
    assert time is not None and time > 0


def test_what_the_provider_cannot_run_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu.time_on_cpu(signature("MatMul", "float[8,8]", "float[4,8]"), 20, 0.0) is None, "ill-typed"

    def refuse(model: bytes, provider: str, *, lingering: bool) -> Any:
        raise RuntimeFailure("no kernel")

    monkeypatch.setattr(cpu, "new_session", refuse)
    assert cpu.time_on_cpu(signature("Exp", "float[8,8]"), 20, 0.0) is None


def timed(clock: list[int], *microseconds: float) -> tuple[float, int]:
    """What :func:`fastest` makes of runs of these times, the last of them repeated; and how many runs it took."""
    taken = 0

    def run() -> None:
        nonlocal taken
        clock[0] += int(microseconds[min(taken, len(microseconds) - 1)] * 1000)
        taken += 1

    return cpu.fastest(run), taken


def test_the_second_fastest_run_counts(clock: list[int]) -> None:
    assert timed(clock, 9e6, 9e6, 5000, 9000, 5100, 5050, 30000, 40000)[0] == 5050


def test_steady_runs_are_repeated_for_a_while(clock: list[int]) -> None:
    assert timed(clock, 1000) == (1000, 2 + 20)
    assert timed(clock, 50000) == (50000, 2 + 5)


def test_disturbed_runs_are_repeated_for_longer(clock: list[int]) -> None:
    """Until three agree, or patience ends."""
    disturbed = [20000 + 4000 * i for i in range(6)]
    assert timed(clock, 1, 1, *disturbed, 10000) == (10000, 2 + 6 + 3)
    assert timed(clock, 1, 1, *(20000 * 2**i for i in range(10)))[1] == 2 + 5
