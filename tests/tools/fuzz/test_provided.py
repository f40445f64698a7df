"""What a provider itself makes of an original is not held against custom kernels; what they make of it still is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from tools.fuzz.elsewhere import WithKernels
from tools.fuzz.fates import Fate
from tools.fuzz.fence import POISON
from tools.fuzz.oracle import Originals
from tools.fuzz.running import run
from tools.fuzz.sessions import Answer, ProcessEnded, Request

FEED = {"x": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)}


def model(factor: float = 0.5) -> bytes:
    """Of which `y` and `z` have nothing in common but the input."""
    return parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[3,4] x) => (float[3,4] y, float[3,4] z) <float half = {{{factor}}}> {{
            a = Neg(x) b = Sigmoid(a) y = Neg(b) c = Softmax(x) z = Mul(c, half)
        }}""").SerializeToString()


ORIGINAL, WRITTEN, WRONG = model(), model(0.5000001), model(0.75)


@dataclass
class LeavesEntriesUnwritten:
    """A provider whose Sigmoid does not write the last column of what it gives, on the CPU provider.

    Attributes:
        fresh: what stands in memory of its own, at first and where there are no custom kernels.
        used: the same where custom kernels ran before.
    """

    fresh: float = 0.0
    used: float = 1e6
    provider: str = "cuda"

    def run(self, request: Request) -> Answer:
        proto = onnx.ModelProto.FromString(request.model)
        found = [at for at, node in enumerate(proto.graph.node) if node.op_type == "Sigmoid"]
        left = self.used if request.library else self.fresh
        if request.fenced:
            left = float(np.frombuffer(bytes([request.poison]) * 4, np.float32)[0])
        for at in reversed(found):
            node = proto.graph.node[at]
            name = node.output[0]
            node.output[0] = f"{name}/whole"
            proto.graph.node.insert(at + 1, helper.make_node("Where", ["written", f"{name}/whole", "left"], [name]))
        proto.graph.initializer.append(numpy_helper.from_array(np.array([True, True, True, False]), "written"))
        proto.graph.initializer.append(numpy_helper.from_array(np.array(left, np.float32), "left"))
        changed = proto.SerializeToString()
        return Answer({kind: run(changed, feed, optimize=False) for kind, feed in request.feeds.items()}, kernels=request.library)


def judged(provider: Any, written: bytes, fenced: bool) -> tuple[tuple[Fate, str] | None, Mapping[str, int]]:
    originals = Originals(ORIGINAL, {"small": (FEED, run(ORIGINAL, FEED, optimize=False))})
    return WithKernels(provider, fenced)(originals, written)


def test_an_operator_that_reads_unwritten_memory_is_named_and_not_held_against_kernels() -> None:
    verdict, counts = judged(LeavesEntriesUnwritten(), WRITTEN, fenced=True)
    assert verdict is not None and verdict[0] is Fate.RUNTIME
    assert verdict[1].startswith("Sigmoid by itself reads memory that nobody wrote: with its kernels on cuda in fenced memory: ")
    assert counts["outputs that the provider alone answers for"] == 2  # in each kind of memory


def test_it_is_seen_by_another_poison_where_the_first_is_right_by_chance() -> None:
    @dataclass
    class Lucky(LeavesEntriesUnwritten):
        def run(self, request: Request) -> Answer:
            if request.fenced and request.poison == POISON:
                return Answer({kind: run(request.model, feed, optimize=False) for kind, feed in request.feeds.items()})
            return super().run(request)

    verdict, _ = judged(Lucky(), WRITTEN, fenced=True)
    assert verdict is not None and verdict[0] is Fate.RUNTIME
    assert verdict[1].startswith("Sigmoid by itself reads memory that nobody wrote: with its kernels on cuda: on small inputs: ")


def test_where_no_fence_can_be_had_it_is_seen_by_what_the_processor_gives() -> None:
    verdict, _ = judged(LeavesEntriesUnwritten(), WRITTEN, fenced=False)
    assert verdict is not None and verdict[0] is Fate.RUNTIME
    assert verdict[1].startswith("Sigmoid by itself gives another thing than on the CPU (")


def test_an_operator_that_passes_the_end_of_a_tensor_answers_for_its_outputs() -> None:
    @dataclass
    class PassesTheEnd(LeavesEntriesUnwritten):
        """In a fence that ends the process, and what is behind is harmless before custom kernels ran. What was written is right
        in the fence."""

        def run(self, request: Request) -> Answer:
            if request.fenced and request.model != WRITTEN and b"Sigmoid" in request.model:
                raise ProcessEnded("signal 11")
            if request.fenced or not request.library:
                return Answer({kind: run(request.model, feed, optimize=False) for kind, feed in request.feeds.items()})
            return super().run(request)

    verdict, _ = judged(PassesTheEnd(), WRITTEN, fenced=True)
    assert verdict is not None and verdict[0] is Fate.RUNTIME
    assert verdict[1].startswith("the original by itself reads or writes past the end of a tensor: with its kernels on cuda: on ")


@pytest.mark.parametrize("fenced", [False, True])
def test_a_kernel_of_another_output_is_still_judged(fenced: bool) -> None:
    @dataclass
    class WrongKernel(LeavesEntriesUnwritten):
        def run(self, request: Request) -> Answer:
            if request.model == WRITTEN and request.library:
                return super().run(Request(WRONG, request.feeds, True, request.optimize, request.fenced, request.poison))
            return super().run(request)

    verdict, _ = judged(WrongKernel(), WRITTEN, fenced)
    assert verdict is not None and verdict[0] is Fate.WRONG and "output 1" in verdict[1]
