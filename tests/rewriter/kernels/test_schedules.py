"""The schedule space, its model, and measuring with a driver that pretends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import kernel_attrs
from mugraph.blocks.schedule import LIMITS, Schedule, check_fits
from mugraph.blocks.statements import InvalidBlock
from mugraph.terms.shape import Undecided, symbol
from rewriter.cost import get_device
from rewriter.cost.kernel_times import Measured, recall_all, record
from rewriter.cost.roofline import node_microseconds
from rewriter.cost.schedules import candidates, default_schedules, predict, ranked
from rewriter.cost.store import ProfileStore
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.custom import CustomKernels
from rewriter.kernels.measure import processes
from rewriter.kernels.measure.inputs import kernel_inputs
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.measure.trials import NotMeasured, ScheduleTrial, best_of
from rewriter.kernels.programs import scheduled
from rewriter.kernels.triton import generate
from rewriter.kernels.workers import Worker
from rewriter.runtime.plan import Argument, Image, Launch, Output, Plan
from tests.support.block_kernels import (
    F16,
    F32,
    causal_attention,
    gated_mlp,
    heads_attention,
    kernel_of_terms,
    lora,
    rms_norm_matmul,
    skip_layer_norm,
    softmax,
    tensor,
)
from tests.support.kernel_help import with_kernel

H200 = get_device("h200")

SKINNY = rms_norm_matmul(16, 4096, 6144, F16)
DECODE = heads_attention(1, 1, 4096, 32, 64, F16)
KERNELS = {
    "skinny": SKINNY,
    "decode": DECODE,
    "gated": gated_mlp(64, 512, 512, F16),
    "lora": lora(16, 256, 4096, 16, F16),
    "norm": skip_layer_norm(8, 512, 768, F16),
}


# The space


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_ranked_fits_generates_and_is_in_order(name: str) -> None:
    kernel = KERNELS[name]
    found = ranked(kernel, H200, most=12)
    times = [time for time, _ in found]
    assert times == sorted(times) and len({schedules for _, schedules in found}) == len(found) == min(12, len(found))
    every = candidates(kernel, H200)
    for time, schedules in found:
        check_fits(kernel, schedules, LIMITS["h200"])
        assert all(s in mine for s, mine in zip(schedules, every, strict=True))
        assert time == pytest.approx(predict(kernel, schedules, H200))
        assert generate(kernel, schedules).launches
    floor = sum(2 * int(np.prod([int(str(d)) for d in t.type.shape])) for t in (*kernel.inputs, *kernel.outputs)) / 4.8e6
    assert times[0] >= floor


def test_the_space_knows_what_tiles_are_for() -> None:
    (decode,) = candidates(DECODE, H200)
    assert {s.tile("b0") for s in decode} == {1}  # heads share nothing
    assert max(s.split for s in decode) > 4  # 32 blocks do not fill 132 multiprocessors
    (few,) = candidates(heads_attention(2, 2, 4096, 16, 64, F16), H200)
    assert {s.tile("b1") for s in few} == {s.tile("b0") for s in few} == {1}  # nor do sequences
    assert {1, 16} <= {s.tile("s") for s in few}  # one row at a time, or what matrix units need
    (normal,) = candidates(KERNELS["norm"], H200)
    assert {s.split for s in normal} == {1} == {s.stages for s in normal}
    (wide,) = candidates(rms_norm_matmul(4096, 512, 6144, F16), H200)
    assert {s.group for s in wide} == {1, 8} and {s.group for s in candidates(SKINNY, H200)[0]} == {1}  # one row of tiles
    assert max(s.split for s in wide) == 1  # there are blocks enough


def test_a_loop_without_products_takes_large_tiles_that_its_pipeline_can_hold() -> None:
    def total(*names: str) -> Kernel:
        inputs = {name: tensor(F32, 1024, 512) for name in names}
        return kernel_of_terms("total", inputs, {"y": f"ReduceSum[axes=(-2,-1),keepdims=false](Sum({', '.join(names)}))"})

    shared = LIMITS["h200"].shared
    for kernel in (total("a"), total("a", "b", "c")):
        (found,) = candidates(kernel, H200)
        held = [4 * len(kernel.inputs) * s.tile("k") * max(s.stages - 1, 1) for s in found]
        assert shared // 2 < max(held) <= shared and max(s.tile("k") for s in found) == 1 << 14
        assert {s.split > 1 for s in found} == {False, True}
    assert ranked(total("a"), H200, most=1)[0][1][0].split > 1  # one multiprocessor reads 2 MB too slowly


def test_the_trials_differ_in_more_than_detail() -> None:
    found = [schedules[0] for _, schedules in ranked(SKINNY, H200, most=40)]
    assert len({(s.tiles, s.split) for s in found}) >= 16
    assert len({s.warps for s in found}) >= 2 and len({s.stages for s in found}) >= 3


def masked_attention(b: int, s: int) -> Kernel:
    """Twelve heads of 64 side by side, as models have them, and a mask over all pairs of positions."""
    types = {x: tensor(F16, b, s, 768) for x in "qkv"} | {"m": tensor(F16, b, 1, s, s)}
    heads = {x: f"Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(12,64)]({x}))" for x in "qkv"}
    scores = f"Add(Mul(MatMul({heads['q']}, Transpose[perm=(1,0)]({heads['k']})), 0.125), m)"
    attended = f"Transpose[perm=(1,0,2)](MatMul(Softmax[axis=-1]({scores}), {heads['v']}))"
    return kernel_of_terms("attention", types, {"y": f"Reshape[drop=2,shape=(768,)]({attended})"})


def test_attention_gets_the_schedules_that_are_fastest() -> None:
    """Of 48 timed on an H200, with 8 sequences of 512, the three fastest have tiles of 64 and four warps."""
    kernel = masked_attention(8, 512)
    found = [schedules[0] for _, schedules in ranked(kernel, H200, most=24)]
    assert {(s.tile("s"), s.tile("t"), s.warps, s.stages) for s in found} >= {(64, 64, 4, 3), (128, 64, 8, 4)}
    assert {s.group for s in candidates(kernel, H200)[0]} == {1}  # heads share nothing that an order of tiles brings together


def test_large_products_are_priced_as_they_are_timed() -> None:
    """Timed on an H200: 43.9 µs."""
    types = {"x": tensor(F16, 4096, 768), "w": tensor(F16, 768, 3072), "b": tensor(F16, 3072)}
    ((time, (best,)),) = ranked(kernel_of_terms("gelu", types, {"y": "Gelu(Add(MatMul(x, w), b))"}), H200, most=1)
    assert 40 < time < 48 and best.tile("m") * best.tile("n") == 1 << 15


def test_warps_without_rows_of_their_own_repeat_the_work() -> None:
    kernel, tiles = masked_attention(8, 512), (("b1", 1), ("b0", 1), ("s", 64), ("t", 64))
    few, many = (predict(kernel, [Schedule(tiles, warps=warps, stages=3)], H200) for warps in (4, 8))
    assert many > 1.4 * few
    short = (("b1", 1), ("b0", 1), ("s", 16), ("t", 64))  # too few rows for the units anyway
    few, many = (predict(kernel, [Schedule(short, warps=warps, stages=3)], H200) for warps in (4, 8))
    assert many < 1.2 * few


def test_masks_go_through_the_pipeline_too() -> None:
    (found,) = candidates(masked_attention(8, 512), H200)
    stages = {s.tiles: max(other.stages for other in found if other.tiles == s.tiles) for s in found if s.warps == 8}
    (large,) = [most for tiles, most in stages.items() if dict(tiles)["s"] == dict(tiles)["t"] == 128]
    assert large == 3  # four stages of 32 KB of mask and as much of keys and values are too many


def test_smaller_devices_get_smaller_tiles() -> None:
    small = get_device("t4")
    for schedule in candidates(SKINNY, small)[0]:
        check_fits(SKINNY, [schedule], LIMITS["t4"])
    assert any(True for s in candidates(SKINNY, H200)[0] if s not in candidates(SKINNY, small)[0])


@pytest.mark.parametrize("device", ["h200", "t4"])
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_left_out_does_not_fit(name: str, device: str) -> None:
    """The space holds what :func:`check_fits` admits, up to the buffer that asynchronous products take besides."""
    kernel, left_out = KERNELS[name], 0
    (fitting,) = candidates(kernel, get_device(device))
    kept = {(s.tiles, s.warps, s.stages) for s in fitting}
    for tiles, warps, stages in itertools.product(sorted({s.tiles for s in fitting}), (1, 2, 4, 8), (2, 3, 4, 5)):
        schedule = Schedule(tiles, 1, warps, stages)
        try:
            check_fits(kernel, [schedule], LIMITS[device])
        except InvalidBlock:
            assert (tiles, warps, stages) not in kept
            left_out += 1
        else:
            fits = (tiles, warps, stages) in kept or stages not in {s.stages for s in fitting if s.tiles == tiles}
            assert fits or (device == "h200" and warps >= 4)
    assert left_out > 0 or name in ("norm", "lora")


def test_what_fits_nowhere_is_an_error() -> None:
    huge = softmax(4, 1 << 20)
    with pytest.raises(InvalidBlock, match="no schedule fits h200"):
        ranked(huge, H200)


# The model


def test_predictions_follow_the_machine() -> None:
    (schedules,) = [s for _, s in ranked(SKINNY, H200, most=1)]
    times = {name: predict(SKINNY, schedules, get_device(name)) for name in ("h200", "h100", "a100-40gb")}
    assert times["h200"] < times["h100"] < times["a100-40gb"]
    big = rms_norm_matmul(16, 4096, 4 * 6144, F16)
    assert 3 < predict(big, schedules, H200) / times["h200"] < 5
    alone = Schedule((("m", 16), ("n", 256), ("k", 64)), 1, 4, 2)
    assert predict(SKINNY, [replace(alone, split=8)], H200) < predict(SKINNY, [alone], H200)  # 24 blocks leave it idle
    few = Schedule((("b0", 1), ("t", 64)), 1, 4, 3)
    assert predict(DECODE, [replace(few, split=8)], H200) < predict(DECODE, [few], H200)
    assert predict(SKINNY, [replace(alone, tiles=(("m", 16), ("n", 16), ("k", 64)))], H200) > times["h200"]


def test_tiles_of_keys_that_are_skipped_are_not_charged() -> None:
    """Of n tiles in a row causal attention computes (n+1)/2; in a single wave the longest block counts, and it skips nothing."""

    def share(heads: int, rows: int, keys: int, queries: int = 1024) -> float:
        causal = causal_attention(heads, queries, 1024, 64, F16)
        (block,) = causal.blocks
        (step,) = block.accumulators
        everything = replace(
            causal,
            blocks=(replace(block, statements=tuple(replace(s, keep=None) if s == step else s for s in block.statements)),),
        )
        schedule = [Schedule((("b0", 1), ("s", rows), ("t", keys)), 1, 4, 2)]
        return predict(causal, schedule, H200) / predict(everything, schedule, H200)

    assert share(512, 128, 64) == pytest.approx(9 / 16, abs=0.06)
    assert share(512, 512, 64) == pytest.approx(3 / 4, abs=0.06)
    assert share(2048, 128, 64, queries=128) > 0.9  # the last queries see all keys but a few
    assert share(2, 128, 64) > 0.95


def test_sizes_that_are_symbols_must_be_given() -> None:
    kernel = rms_norm_matmul(symbol("m"), 512, 512, F16)
    with pytest.raises(Undecided, match="size m"):
        default_schedules(kernel, H200)
    assert predict(kernel, default_schedules(kernel, H200, {"m": 512}), H200, {"m": 4096}) > predict(
        kernel, default_schedules(kernel, H200, {"m": 512}), H200, {"m": 512}
    )


def test_a_node_of_a_kernel_is_priced_by_its_best_schedules() -> None:
    attrs = kernel_attrs(SKINNY)
    types = [t.type for t in SKINNY.inputs]
    assert node_microseconds(H200, "Kernel", attrs, types) == pytest.approx(ranked(SKINNY, H200, most=1)[0][0])
    parts = node_microseconds(H200, "MatMul", (), [tensor(F16, 16, 4096), tensor(F16, 4096, 6144)])
    assert parts < node_microseconds(H200, "Kernel", attrs, types) < 2 * parts
    assert node_microseconds(get_device("cpu"), "Kernel", attrs, types) > 1000  # its body, operator by operator


# Measuring


def double() -> Kernel:
    return kernel_of_terms("double", {"x": tensor(F32, 4, 8)}, {"y": "Mul(x, 2.0)"})


def trial(image: str, number: int, shared: int = 0, launches: int = 1) -> ScheduleTrial:
    nothing = (Argument.nothing(), Argument.nothing())
    launch = Launch("double", 32, (4, 1, 1), (Argument.input(0), Argument.output(0), *nothing))
    plan = Plan(1, (Output(double().outputs[0].type.dtype, (4, 8)),), (launch,) * launches)
    code = Image(90, False, image.encode(), (shared,), waits=image.startswith("OVERLAPS"))
    return ScheduleTrial((Schedule((("m", 1 << number),)),), plan, code)


def measured(*images: str) -> list[Measured]:
    with KernelTimer("tests.support.stub_cuda") as timer:
        return timer.measure(double(), [trial(image, i) for i, image in enumerate(images)])


def test_only_what_is_right_is_timed() -> None:
    found = measured("TIMES 2 9", "WRONG 0 1", "TIMES 2 4", "TIMES 3 1", "REFUSED")
    assert [m.microseconds for m in found] == [pytest.approx(9), None, pytest.approx(4), None, None]
    assert "is wrong, relative error" in found[1].problem and found[3].error == pytest.approx(0.5)
    assert "cuLaunchKernelEx: 701" in found[4].problem
    assert [m.schedules for m in found] == [(Schedule((("m", 1 << i),)),) for i in range(5)]
    assert best_of(found).microseconds == pytest.approx(4)
    with pytest.raises(NotMeasured, match="is wrong"):
        best_of(found[1:2])


def test_kernels_that_wait_for_the_launch_before_them_overlap() -> None:
    (found,) = measured("OVERLAPS 2 5")
    assert found.microseconds == pytest.approx(5)


def test_launches_add_up_and_shared_memory_is_asked_for() -> None:
    with KernelTimer("tests.support.stub_cuda") as timer:
        (found,) = timer.measure(double(), [trial("TIMES 2 3", 0, shared=60_000, launches=2)])
    assert found.microseconds == pytest.approx(6)


def test_a_trial_reads_its_tables_behind_the_inputs() -> None:
    given = kernel_inputs(double(), {})["x"]
    trials = []
    for number, table in enumerate((given, given + 1)):
        plain = trial("TIMES 2 3", number)
        launch = replace(plain.plan.launches[0], arguments=(Argument.input(1), *plain.plan.launches[0].arguments[1:]))
        trials.append(replace(plain, plan=replace(plain.plan, inputs=2, launches=(launch,)), tables=(table,)))
    with KernelTimer("tests.support.stub_cuda") as timer:
        right, wrong = timer.measure(double(), trials)
    assert right.microseconds == pytest.approx(3) and "is wrong" in wrong.problem


@pytest.mark.parametrize("image", ["DIES", "BREAKS"])
def test_a_trial_that_kills_its_process_is_refused_and_the_rest_goes_on(image: str) -> None:
    found = measured("TIMES 2 5", image, "TIMES 2 7")
    assert [m.microseconds for m in found] == [pytest.approx(5), None, pytest.approx(7)]
    assert "died or hung" in found[1].problem


def test_without_a_gpu_there_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_CUDA", "absent")
    with pytest.raises(NotMeasured, match="nothing can be measured on a GPU here: cuInit: 100"):
        measured("TIMES 2 5")
    with KernelTimer("no_such_driver") as timer, pytest.raises(NotMeasured, match="No module named 'no_such_driver'"):
        timer.measure(double(), [trial("TIMES 2 5", 0)])


def test_one_process_times_all_kernels_until_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    class Counted(Worker):
        def __init__(self, *arguments: Any) -> None:
            started.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(processes, "Worker", Counted)
    with KernelTimer("tests.support.stub_cuda") as timer:
        for _ in range(3):
            (found,) = timer.measure(double(), [trial("TIMES 2 5", 0)])
            assert found.microseconds == pytest.approx(5)
        assert len(started) == 1
        timer.measure(double(), [trial("DIES", 0)])
        timer.measure(double(), [trial("TIMES 2 5", 0)])
        assert len(started) == 2


@pytest.mark.parametrize(
    "damage",
    [
        '"split": Infinity',
        '"group": true',
        f'"stages": {10**400}',
        f'"tiles": {{"m": {1 << 70}}}',
        '"tiles": {"m": 1e999}',
        '"tiles": {"z": 2}',
        '"warps": ' + "[" * 100_000,
    ],
)
def test_what_a_store_holds_that_is_no_schedule_is_timed_again(damage: str) -> None:
    kernel, store = rms_norm_matmul(16, 64, 64, F16), ProfileStore(None, "a GPU")
    record(store, kernel, {}, [Measured((Schedule((("m", 16),)),), 12.5)])
    ((key, text),) = store.schedules.items()
    assert recall_all(store, kernel, {}) and scheduled(kernel, get_device("h200"), {}, store)
    store.put_schedules(key, text.replace('"group": 1', f'"group": 1, {damage}'))
    assert not recall_all(store, kernel, {}) and scheduled(kernel, get_device("h200"), {}, store)


def test_the_best_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = rms_norm_matmul(symbol("m"), 64, 64, F16)
    store = ProfileStore(tmp_path / "profile.sqlite", "a GPU")
    best = Measured((Schedule((("m", 16), ("n", 32), ("k", 32)), 2, 4, 3),), 12.5)
    slower = Measured((Schedule((("m", 16), ("n", 16), ("k", 32))),), 13)
    slowest = Measured((Schedule((("m", 16), ("n", 64), ("k", 32))),), 14)
    record(store, kernel, {"m": 16}, [Measured(best.schedules, None, problem="wrong"), slower, slowest, best])
    store.close()
    again = ProfileStore(tmp_path / "profile.sqlite", "a GPU")
    assert recall_all(again, kernel, {"m": 16})[0].schedules == best.schedules
    assert [m.microseconds for m in recall_all(again, kernel, {"m": 16})] == [12.5, 13, 14]
    assert not recall_all(again, kernel, {"m": 32})
    assert not recall_all(ProfileStore(tmp_path / "profile.sqlite", "another GPU"), kernel, {"m": 16})

    def no_measuring(*arguments: object) -> Sequence[Measured]:
        raise AssertionError("measured again")

    monkeypatch.setattr(processes.KernelTimer, "measure", no_measuring)
    _, graph = with_kernel(kernel)
    kernels = CustomKernels(H200, again, {"m": 16}, (), [Architecture(90)], strict=True)
    assert not kernels.tune(graph, math.inf) and kernels.timed == 0
    kernels.close()
