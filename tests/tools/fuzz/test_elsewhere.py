"""What was written run with its kernels: a wrong kernel is told, and what is onnxruntime's own doing is told apart."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from mugraph.blocks.operator import CPU_KERNEL
from mugraph.domains import Real
from mugraph.ops import get_operator
from rewriter.kernels.c.objects import levels_here
from rewriter.runtime import is_built
from rewriter.runtime_env import c_compiler, usable_providers
from tests.support.fuzzing import attack
from tests.support.wrong_kernels import FEED, softmax_times, with_another_body, with_kernel
from tools.fuzz.elsewhere import WithKernels, counted
from tools.fuzz.fates import Fate
from tools.fuzz.models.attack import Mode, names
from tools.fuzz.oracle import Originals, Yardstick
from tools.fuzz.running import CannotRun, run
from tools.fuzz.sessions import Answer, ProcessEnded, Request, Sessions, self_test

in_c = pytest.mark.skipif(not (is_built() and c_compiler() and levels_here()), reason="no kernels in C here")


def originals(model: bytes, feeds: Mapping[str, Any] = {"measured": FEED}) -> Originals:
    return Originals(model, {kind: (feed, run(model, feed, optimize=False)) for kind, feed in feeds.items()})


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    process = Sessions("cpu")
    yield process
    process.close()


@in_c
@pytest.mark.usefixtures("own_cache")
def test_a_kernel_that_computes_another_thing_than_its_body_is_told(tmp_path: Path, sessions: Sessions) -> None:
    written = with_kernel(tmp_path, provider="cpu", cpu_kernels=True)
    assert any(node.op_type == CPU_KERNEL for node in written.graph.node)
    verdict, counts = WithKernels(sessions)(originals(softmax_times("0.5")), written.SerializeToString())
    assert verdict is None
    assert counts["models with kernels"] == counts["runs of kernels"] == counts["kernels of rows"] == 1
    another, quarter = with_another_body(written), softmax_times("0.25")
    assert np.array_equal(run(another, FEED)[0], run(quarter, FEED)[0])
    verdict, _ = WithKernels(sessions)(originals(quarter), another)
    assert verdict is not None and verdict[0] is Fate.WRONG
    assert verdict[1].startswith("with its kernels on cpu: on measured inputs: output 0")


def test_a_process_that_ended_is_told_and_replaced(sessions: Sessions) -> None:
    request = Request(softmax_times("0.5"), {"measured": FEED})
    assert list(sessions.run(request).outputs) == ["measured"]
    assert sessions._worker is not None
    os.kill(sessions._worker._process.pid, signal.SIGKILL)
    with pytest.raises(ProcessEnded, match="signal 9"):
        sessions.run(request)
    assert list(sessions.run(request).outputs) == ["measured"]


def test_what_does_not_load_and_what_does_not_run_is_refused(sessions: Sessions) -> None:
    misfit = {"measured": FEED, "other": {"x": np.ones((2, 2), np.float32)}}
    answer = sessions.run(Request(softmax_times("0.5"), misfit))
    assert list(answer.outputs) == ["measured"] and "other" in answer.refused and not answer.broken
    answer = sessions.run(Request(b"nothing", misfit))
    assert not answer.outputs and all(reason.startswith("does not load") for reason in answer.refused.values())


# --- whose doing it is ----------------------------------------------------------------------------------------------


@dataclass
class Scripted:
    """Answers as a table says, by whether the library and the fence are asked for; an answer in words ends the process."""

    answers: Mapping[tuple[bool, bool], Answer | str]
    provider: str = "cuda"
    asked: list[tuple[bool, bool]] = field(default_factory=list)

    def run(self, request: Request) -> Answer:
        if request.model == MODEL:  # the original by itself
            return Answer({"measured": RIGHT})
        self.asked.append((request.library, request.fenced))
        answer = self.answers[request.library, request.fenced]
        if isinstance(answer, str):
            raise ProcessEnded(answer)
        return answer


MODEL = softmax_times("0.5")
WRITTEN = softmax_times("0.50001")
RIGHT = run(MODEL, FEED)
ROUGH = [RIGHT[0] * np.float32(1.01)]


def right() -> Answer:
    return Answer({"measured": RIGHT}, kernels=1)


def wrong() -> Answer:
    return Answer({"measured": ROUGH})


def refused() -> Answer:
    return Answer(refused={"measured": "no kernel"})


def broken() -> Answer:
    return Answer(refused={"measured": "the launch"}, broken="cuCtxSynchronize: error 700")


def beside() -> Answer:
    return Answer({"measured": RIGHT}, beside={"measured": "something was written behind a tensor"})


@pytest.mark.parametrize(
    ("with_kernels", "without", "fate"),
    [
        (right(), None, None),
        (wrong(), right(), Fate.WRONG),
        (wrong(), wrong(), Fate.RUNTIME),
        (refused(), right(), Fate.LOST),
        (refused(), refused(), Fate.RUNTIME),
        (broken(), right(), Fate.DIED),
        (broken(), broken(), Fate.RUNTIME),
        ("signal 6", right(), Fate.DIED),
        ("signal 6", "signal 6", Fate.RUNTIME),
        ("no answer in 60 s", right(), Fate.HANG),
        (beside(), right(), Fate.WRONG),
        (beside(), beside(), Fate.RUNTIME),
        (wrong(), refused(), Fate.WRONG),
    ],
)
@pytest.mark.parametrize("fenced", [False, True])
def test_only_what_is_right_without_kernels_is_held_against_them(
    with_kernels: Answer | str, without: Answer | str, fate: Fate | None, fenced: bool
) -> None:
    table = {(True, fenced): with_kernels, (False, fenced): without, (True, not fenced): right()}
    scripted = Scripted(table)
    verdict, _ = WithKernels(scripted, fenced)(originals(MODEL), WRITTEN)  # type: ignore[arg-type]
    assert (None if verdict is None else verdict[0]) is fate
    assert (True, fenced) in scripted.asked


def test_a_kernel_may_be_wrong_in_the_runtime_s_own_memory_alone() -> None:
    """There launches follow without a pause, and memory serves several tensors."""
    scripted = Scripted({(True, True): right(), (True, False): wrong(), (False, False): right()})
    verdict, counts = WithKernels(scripted, fenced=True)(originals(MODEL), WRITTEN)  # type: ignore[arg-type]
    assert verdict is not None and verdict[0] is Fate.WRONG and "fenced" not in verdict[1]
    assert counts["runs of kernels"] == 1


@pytest.mark.parametrize(("times", "further"), [(1, 0), (3, 2), (100, 4)])
def test_it_is_told_how_often_a_kernel_is_wrong(times: int, further: int) -> None:
    class Seldom(Scripted):
        def run(self, request: Request) -> Answer:
            answer = super().run(request)
            return right() if request.library and self.asked.count((True, False)) > times else answer

    scripted = Seldom({(True, False): wrong(), (False, False): right()})
    verdict, _ = WithKernels(scripted)(originals(MODEL), WRITTEN)  # type: ignore[arg-type]
    assert verdict is not None and verdict[0] is Fate.WRONG and verdict[1].endswith(f"; so in {further} of 4 further runs")


def test_what_the_provider_itself_gives_of_the_original_is_as_good() -> None:
    class Rough(Scripted):
        def run(self, request: Request) -> Answer:
            return wrong() if request.model == MODEL else super().run(request)

    verdict, _ = WithKernels(Rough({(True, False): wrong()}))(originals(MODEL), WRITTEN)  # type: ignore[arg-type]
    assert verdict is None


def test_what_differs_from_run_to_run_without_kernels_is_the_runtime_s_own() -> None:
    class Unsteady(Scripted):
        runs = 0

        def run(self, request: Request) -> Answer:
            if request.model != MODEL:
                return super().run(request)
            self.runs += 1
            return wrong() if self.runs == 5 else right()

    unsteady = Unsteady({(True, False): wrong(), (False, False): right()})
    verdict, _ = WithKernels(unsteady)(originals(MODEL), WRITTEN)  # type: ignore[arg-type]
    assert verdict is not None and verdict[0] is Fate.RUNTIME and unsteady.runs > 5


def test_a_tie_may_be_decided_as_the_exact_numbers_decide_it() -> None:
    exact, original = np.array([True, False, True]), np.array([False, False, True])
    yardstick = Yardstick(exact, slack=4.0, steps=False)
    assert yardstick.accepts(exact, original) and yardstick.accepts(original, original)
    assert not yardstick.accepts(np.array([False, True, True]), original)
    assert not Yardstick(None, slack=4.0, steps=False).accepts(exact, original)


def test_an_original_that_ends_the_provider_is_the_runtime_s_own() -> None:
    class Deadly(Scripted):
        def run(self, request: Request) -> Answer:
            raise ProcessEnded("signal 11")

    verdict, _ = WithKernels(Deadly({}))(originals(MODEL), WRITTEN)  # type: ignore[arg-type]
    assert verdict == (Fate.RUNTIME, "the original on cuda by itself: signal 11")


# --- the command ----------------------------------------------------------------------------------------------------


def test_a_case_s_name_says_how_it_is_tried() -> None:
    mode = Mode("h100", "cuda", "fenced")
    assert names(3, 2, mode) == ["3 0 h100 cuda fenced", "3 1 h100 cuda fenced"] and names(3, 1) == ["3 0"]
    assert Mode.of(["h100", "cuda", "fenced"]) == mode and Mode.of([]) == Mode()


def test_a_machine_without_a_gpu_is_told_in_a_line() -> None:
    if "cuda" in usable_providers():
        pytest.skip("there is one")
    done = attack("models", "--provider", "cuda", "--count", "1")
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines() == ["Error: provider cuda: onnxruntime finds no such device on this machine"]
    with pytest.raises(CannotRun):
        self_test("cuda")


@in_c
@pytest.mark.usefixtures("own_cache")
def test_random_models_are_run_with_kernels_in_c() -> None:
    done = attack("models", "--cpu-kernels", "--count", "6", "--seed", "1")
    assert done.returncode == 0 and "models with kernels" in done.stdout and "runs of kernels" in done.stdout, done.stdout


@pytest.mark.usefixtures("own_cache")
def test_random_models_are_compiled_for_a_gpu_that_is_not_here() -> None:
    done = attack("models", "--device", "h100", "--count", "3", "--seed", "1")
    assert done.returncode == 0 and "compiled kernels" in done.stdout, done.stdout


def test_nothing_is_counted_of_a_model_without_kernels() -> None:
    assert not counted(originals(MODEL), MODEL)[1]


def test_what_only_cuda_runs_is_compared_on_the_cpu() -> None:
    """NhwcConv, which a file for CUDA may hold, is another spelling of Conv there, with its bias and attributes."""
    head = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
    head += " g (float[2,5,6,4] x, float[6,3,3,2] w, float[6] b) => (float[p,q,r,s] y)"
    attributes = "<group = 2, pads = [1, 0, 1, 0], strides = [2, 1]>"
    nhwc = parse_model(f"{head} {{ y = com.microsoft.NhwcConv{attributes}(x, w, b) }}")
    plain = parse_model(
        f"{head} {{ u = Transpose<perm = [0, 3, 1, 2]>(x) v = Transpose<perm = [0, 3, 1, 2]>(w) c = Conv{attributes}(u, v, b)"
        " y = Transpose<perm = [0, 2, 3, 1]>(c) }"
    )
    generator = np.random.default_rng(0)
    shapes = {"x": (2, 5, 6, 4), "w": (6, 3, 3, 2), "b": (6,)}
    feed = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (given,), (wanted,) = (run(model.SerializeToString(), feed, optimize=False) for model in (nhwc, plain))
    np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("half", [False, True])
def test_groups_that_only_cuda_normalises_are_compared_on_the_cpu(activation: int, half: bool) -> None:
    """Against the record's own evaluation, which has the channels last throughout."""
    dtype, image = (np.float16, "float16") if half else (np.float32, "float")
    model = parse_model(
        f'<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> g ({image}[2,5,3,12] x, float[12] s, float[12] b)'
        f" => ({image}[2,5,3,12] y)"
        f" {{ y = com.microsoft.GroupNorm<groups = 3, epsilon = 0.01, activation = {activation}>(x, s, b) }}"
    )
    draw = np.random.default_rng(0)
    shapes = {"x": (2, 5, 3, 12), "s": (12,), "b": (12,)}
    feed = {name: draw.standard_normal(shape).astype(dtype if name == "x" else np.float32) for name, shape in shapes.items()}
    (given,) = run(model.SerializeToString(), feed, optimize=False)
    attrs = {"group": 3, "epsilon": 0.01, "silu": bool(activation)}
    (wanted,) = get_operator("GroupNorm").evaluate(Real(), attrs, [value.astype(np.float64) for value in feed.values()])
    assert given.dtype == dtype
    np.testing.assert_allclose(given.astype(np.float64), wanted, rtol=0, atol=1e-2 if half else 1e-5)
