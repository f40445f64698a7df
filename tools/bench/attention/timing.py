"""A case on the GPU: what is compiled for it, the peers, and what each takes."""

from __future__ import annotations

import lzma
import math
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mugraph.blocks.block import Kernel
from mugraph.blocks.text import kernel_from_json, kernel_to_json, schedule_to_json
from rewriter.cost.devices import get_device
from rewriter.cost.schedules import ranked
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.measure.inputs import kernel_inputs
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.measure.trials import ScheduleTrial, best_of, trials
from rewriter.kernels.triton.compile import Compiler
from rewriter.reference import compare
from tools.bench.attention.cases import HEADS, TOLD, MaskCase, kernels_of_case, plain_model, told_kernel
from tools.bench.gpu import Hosted, OnnxBench, copies_for, torch_microseconds
from tools.bench.gpu_runners import OnnxSpec, Remote, RunnerFailed

if TYPE_CHECKING:
    import torch


_SECONDS = 180.0
"""Limit of one answer of a process, compilation included."""


@dataclass(frozen=True)
class PreparedCase:
    """The kernels of a case, compiled.

    Attributes:
        kernels: by kind, as JSON, each with its trials.
        predicted: microseconds of the best schedule of any of them.
    """

    kernels: dict[str, tuple[dict[str, Any], list[ScheduleTrial]]]
    predicted: float
    problems: list[str]


def prepare_kernels(
    every: Mapping[str, Kernel], compiler: Compiler, device: str, architecture: Architecture, most: int
) -> PreparedCase:
    """Compiles kernels under the schedules worth a trial."""
    kernels, problems, predicted = {}, list[str](), math.inf
    for kind, kernel in every.items():
        worth = ranked(kernel, get_device(device), {}, most)
        compiled, failed = trials(kernel, [schedules for _, schedules in worth], compiler, architecture)
        kernels[kind] = kernel_to_json(kernel), compiled
        problems += failed
        predicted = min(predicted, worth[0][0])
    return PreparedCase(kernels, predicted, problems)


def _file(folder: Path, case: MaskCase) -> Path:
    return folder / f"{case.label.replace(':', '-')}.xz"


def prepared_case(
    folder: Path, case: MaskCase, compiler: Compiler, device: str, architecture: Architecture, most: int
) -> PreparedCase:
    """What a folder has of a case, else what is compiled now and put there."""
    path = _file(folder, case)
    if path.exists():
        return PreparedCase(**pickle.loads(lzma.decompress(path.read_bytes())))
    prepared = prepare_kernels(kernels_of_case(case), compiler, device, architecture, most)
    path.write_bytes(lzma.compress(pickle.dumps(vars(prepared)), preset=1))
    return prepared


@dataclass
class TorchAttention:
    """Torch in a process of its own: the reference of a case, and its peers."""

    note: str = ""
    _case: MaskCase | None = None
    _inputs: Sequence[torch.Tensor] = ()
    _reference: np.ndarray | None = None

    def open(self) -> TorchAttention:
        """Imports what takes long."""
        import torch._dynamo
        import torch._inductor
        import torch.nn.attention.flex_attention

        torch.set_grad_enabled(False)
        return self

    def reference(self, case: MaskCase) -> np.ndarray:
        """The output in double precision, rounded to single."""
        import torch

        if self._case != case or self._reference is None:
            self._inputs = ()
            drawn = kernel_inputs(kernels_of_case(case)["list"], {})
            self._inputs = [torch.from_numpy(drawn[name]).cuda() for name in "qkv"]
            mask, parts = torch.from_numpy(np.ascontiguousarray(case.entries)).cuda(), []
            for q, k, v in zip(*self._inputs, strict=True):  # one of the batch at a time: scores are large
                for head in range(HEADS):
                    scores = q[head].double() @ k[head].double().T * 0.125
                    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), -1)
                    parts.append((weights @ v[head].double()).float().cpu())
            self._reference = torch.stack(parts).reshape(self._inputs[0].shape).numpy()
            self._case = case
        return self._reference

    def measure(self, case: MaskCase, peer: str) -> tuple[float, float]:
        """Microseconds and error of a peer."""
        import torch

        reference = self.reference(case)
        torch._dynamo.reset()
        formula = self._flex(case) if peer == "flex" else self._sdpa(case)
        first = list(self._inputs)
        copies = [first, *([x.clone() for x in first] for _ in range(copies_for(sum(x.nbytes for x in first)) - 1))]
        microseconds, result = torch_microseconds(formula, copies, None)
        return microseconds, compare(result, reference).relative_l2

    @staticmethod
    def _sdpa(case: MaskCase) -> Callable[..., torch.Tensor]:
        import torch
        import torch.nn.functional as f

        mask = torch.from_numpy(np.ascontiguousarray(case.entries)).cuda()
        if case.name == "causal":
            return lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.125)
        return lambda q, k, v: f.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.125)

    @staticmethod
    def _flex(case: MaskCase) -> Callable[..., torch.Tensor]:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        rule = case.rule(None if case.table is None else torch.from_numpy(case.table).cuda())

        def shows(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            shown: torch.Tensor = rule(i, j)
            return shown

        mask = create_block_mask(shows, None, None, case.length, case.length, device="cuda")
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda q, k, v: compiled(q, k, v, block_mask=mask, scale=0.125)


def file_microseconds(path: Path, case: MaskCase) -> tuple[float, np.ndarray, str]:
    """Microseconds of a model file in onnxruntime, its output, and what is to be known of the time. Raises RunnerFailed."""
    drawn = kernel_inputs(kernels_of_case(case)["list"], {})
    poison = [np.full(drawn["q"].shape, np.nan, np.float16)]
    remote = Remote(OnnxSpec(path, "cuda", drawn, poison), _SECONDS, _SECONDS)
    try:
        remote.wait()
        (result,) = remote.ask("outputs")
        once = remote.ask("milliseconds", 3)
        count = max(3, math.ceil(30 / max(once, 0.01)))
        times = [remote.ask("milliseconds", count) * 1000 for _ in range(5)]
    finally:
        remote.close()
    return min(times), result, remote.note


class CaseBench:
    """Measures the parts of cases, each in a process of its own that is started anew where it failed."""

    def __init__(self) -> None:
        self._torch: Remote | None = None
        self._timer = KernelTimer()
        self._reference: tuple[MaskCase, np.ndarray] | None = None

    def ask(self, method: str, *arguments: Any) -> Any:
        """What torch's process answers. Raises RunnerFailed."""
        if self._torch is None:
            self._torch = Remote(TorchAttention(), _SECONDS, _SECONDS)
            try:
                self._torch.wait()
            except RunnerFailed:
                self._torch = None
                raise
        try:
            return self._torch.ask(method, *arguments)
        except RunnerFailed:
            self._torch = None
            raise

    def reference(self, case: MaskCase) -> np.ndarray:
        if self._reference is None or self._reference[0] != case:
            self._reference = case, self.ask("reference", case)
        return self._reference[1]

    def ours(self, case: MaskCase, prepared: PreparedCase) -> dict[str, Any]:
        """The fastest trial of each kind of kernel, and of all."""
        found: dict[str, Any] = {"predicted": prepared.predicted, "kinds": {}, "problems": prepared.problems[:3]}
        fastest = math.inf
        for kind, (text, compiled) in prepared.kernels.items():
            results = self._timer.measure(kernel_from_json(text), compiled, {}, [self.reference(case)])
            best = best_of(results)
            assert best.microseconds is not None
            tried = [(r.microseconds, [schedule_to_json(s) for s in r.schedules]) for r in results if r.microseconds is not None]
            found["kinds"][kind] = {"us": best.microseconds, "error": best.error, "tried": sorted(tried, key=lambda t: t[0])[:8]}
            found["problems"] += [r.problem for r in results if r.problem][:3]
            if best.microseconds < fastest:
                fastest = best.microseconds
                schedules = [schedule_to_json(s) for s in best.schedules]
                found |= {"us": best.microseconds, "error": best.error, "kind": kind, "schedules": schedules}
        return found

    def told(self, case: MaskCase, compiler: Compiler, device: str, architecture: Architecture, most: int) -> dict[str, Any]:
        """The fastest trial of the kernel whose mask an input tells. Raises RunnerFailed where no input tells the mask."""
        made = told_kernel(case)
        if made is None:
            raise RunnerFailed("no input tells this mask")
        kernel, given = made
        prepared = prepare_kernels({TOLD: kernel}, compiler, device, architecture, most)
        results = self._timer.measure(kernel, prepared.kernels[TOLD][1], {}, [self.reference(case)], given)
        best = best_of(results)
        schedules = [schedule_to_json(schedule) for schedule in best.schedules]
        problems = [*prepared.problems[:3], *[r.problem for r in results if r.problem][:3]]
        return {
            "predicted": prepared.predicted,
            "us": best.microseconds,
            "error": best.error,
            "schedules": schedules,
            "problems": problems,
        }

    def hosted(self, case: MaskCase, prepared: PreparedCase, ours: dict[str, Any]) -> dict[str, Any]:
        """The fastest trial as a node of stock onnxruntime."""
        text, compiled = prepared.kernels[ours["kind"]]
        trial = next(t for t in compiled if [schedule_to_json(s) for s in t.schedules] == ours["schedules"])
        remote = Remote(OnnxBench(), _SECONDS, _SECONDS)
        try:
            remote.wait()
            microseconds, error = remote.ask("measure", Hosted(text, trial, self.reference(case), plain=False))
        finally:
            remote.close()
        return {"us": microseconds, "error": error}

    def plain(self, case: MaskCase) -> dict[str, Any]:
        """onnxruntime with the model as it is."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plain.onnx"
            onnx.save(plain_model(case), path)
            microseconds, result, note = file_microseconds(path, case)
        return {"us": microseconds, "error": compare(result, self.reference(case)).relative_l2, "note": note}

    def peer(self, case: MaskCase, peer: str) -> dict[str, Any]:
        if peer == "ort":
            return self.plain(case)
        microseconds, error = self.ask("measure", case, peer)
        return {"us": microseconds, "error": error}

    def close(self) -> None:
        """Ends all processes."""
        self._timer.close()
        if self._torch is not None:
            self._torch.close()
