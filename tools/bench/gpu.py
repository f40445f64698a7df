"""Single kernels on one GPU in half precision: the six programs of the Mirage paper and MHA decoding, ours beside torch.

    python -m tools.bench.gpu prepare FOLDER --most 120          on any machine: finds kernels, compiles what is worth a trial
    python -m tools.bench.gpu run FOLDER --json FILE             on the GPU machine: measures, compares, prints the table
    python -m tools.bench.gpu run FOLDER --json FILE --only LoRA:1 --only GQA
    python -m tools.bench.gpu table FILE                         prints the table again

Each program starts from its plain ONNX form. ``run`` writes FILE after each row and goes on where an earlier run stopped.
onnxruntime and torch measure in processes of their own: what fails there, or takes too long, leaves its reason in the row.
All times are of the GPU, replayed from a CUDA graph whose launches rotate over copies of all inputs, more than 200 MB together;
errors are relative (L2) against the program in double precision, on the same inputs for all.
"""

from __future__ import annotations

import json
import lzma
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import onnx
import onnx.inliner
from rich.console import Console
from rich.table import Table

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, CompiledKernel, kernel_attrs
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import kernel_from_json, kernel_to_json, schedule_to_json
from mugraph.blocks.variants import Variants
from mugraph.onnx import load
from rewriter.cost.cuda import empty_microseconds, open_session, replay_microseconds
from rewriter.cost.devices import Device, get_device
from rewriter.cost.schedules import ranked
from rewriter.cost.signature import Signature, bytes_of, node_model
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.scope import Form
from rewriter.kernels.measure.bench import COLD_BYTES
from rewriter.kernels.measure.inputs import kernel_inputs, reference_of
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.measure.trials import ScheduleTrial, best_of, trials
from rewriter.kernels.triton.compile import Compiler
from rewriter.kernels.triton.plans import attributes_of
from rewriter.reference import compare
from rules_db.trust.interpreted import kernel_of_rule
from tools.bench.gpu_runners import Remote, RunnerFailed, Spec, one_line
from tools.bench.torch_formulas import FORMULAS, Formula
from tools.mirage import OPSET, MirageProgram, programs

if TYPE_CHECKING:
    import torch

BANDWIDTH, LAUNCH_US = 4.3e12, 0.7
"""Bytes a second that one H200 reaches, and microseconds between kernels of a CUDA graph."""
_LEAST_LAUNCHES, _MOST_COPIES = 40, 128
_MOST_PLAIN_COPIES = 24
"""Of the plain form in onnxruntime: it keeps what the copies compute on the way."""
_ROUNDS = 12
_PEERS = ("eager", "sdpa", "compile", "compile_sdpa")
"""The plain formula and that of torch's attention function, as they are and under torch.compile's max-autotune."""
_ANSWER_SECONDS = 60
"""Time limit of a measurement in onnxruntime or torch, compilation included."""

LEAST_SPEEDUP = {"LoRA": 1.5, "GQA": 1.5, "QKNorm": 1.5, "MHA": 1.5, "GatedMLP": 1.3}
"""How many times faster than the best of torch a program's kernel is meant to be, unless it is within `NEAR` of its floor."""
WRONG = 0.1
"""Relative error from which on a result is no result."""
NEAR = 1.15
MOST_OVER_FLOOR = {"RMSNorm+MatMul": 1.3, "GatedMLP": 1.3}
"""How many times the floor plus launches a program's kernel is meant to take at most."""


# --- the kernel of a program -----------------------------------------------------------------------------------------


def floor_microseconds(program: MirageProgram) -> float:
    """Microseconds to read every input of a program and write its output once."""
    return (sum(map(bytes_of, program.inputs.values())) + bytes_of(program.output)) / BANDWIDTH * 1e6


def kernel_of_program(program: MirageProgram, device: Device) -> tuple[Kernel, list[int]]:
    """The kernel that the rewriter builds of the whole program, the most promising of its forms.

    Returns:
        the kernel, and which of the program's inputs each of its own is.

    Raises:
        NotFusable: there is none; the message is the last reason.
    """
    graph = load(program.model()).graph
    builder, reason = KernelBuilder(), "no fusable set covers the program"
    candidates: list[tuple[float, int, Kernel, list[int]]] = []
    for fusable in propose(graph):
        if set(fusable.roots) != set(graph.outputs) or not set(fusable.operands.values()) <= set(graph.inputs):
            continue
        for form in (Form(), Form(accumulated=True)):
            try:
                kernel = kernel_of_rule(builder.build(fusable, form).rule)
                assert kernel is not None
                order = [graph.inputs.index(fusable.operands[tensor.name]) for tensor in kernel.inputs]
                candidates.append((ranked(kernel, device, most=1)[0][0], len(candidates), kernel, order))
            except (NotFusable, InvalidBlock) as problem:
                reason = str(problem)
    if not candidates:
        raise NotFusable(f"{program.label}: {reason}")
    return min(candidates)[2:]


# --- preparation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A kernel to be measured: which inputs it takes, its trials, and the reference for the inputs of seed 0."""

    kernel: dict[str, Any]
    order: list[int]
    trials: list[ScheduleTrial]
    problems: list[str]
    seconds: float
    reference: np.ndarray


def _file(folder: Path, program: MirageProgram) -> Path:
    return folder / f"{program.label.replace(':', '-').replace('+', '_')}.xz"


def prepare_program(program: MirageProgram, compiler: Compiler, device: str, architecture: Architecture, most: int) -> Prepared:
    """Finds the kernel of a program and compiles it under the schedules worth a trial."""
    kernel, order = kernel_of_program(program, get_device(device))
    began = time.perf_counter()
    compiled, problems = trials(kernel, [s for _, s in ranked(kernel, get_device(device), {}, most)], compiler, architecture)
    seconds = time.perf_counter() - began
    (reference,) = reference_of(kernel, kernel_inputs(kernel, {}))
    return Prepared(kernel_to_json(kernel), order, compiled, problems, seconds, reference.astype(np.float32))


# --- torch -----------------------------------------------------------------------------------------------------------


def copies_for(moved: int) -> int:
    """How many copies of the inputs are needed to exceed the cache several times."""
    return min(max(-(-COLD_BYTES // max(moved, 1)), 4), _MOST_COPIES)


def torch_microseconds(formula: Formula, copies: Sequence[Sequence[torch.Tensor]], mode: str | None) -> tuple[float, np.ndarray]:
    """Microseconds of a formula in a captured graph over the copies, and its result on the first."""
    import torch

    function = torch.compile(formula, mode=mode, dynamic=False) if mode else formula
    with torch.no_grad():
        result = function(*copies[0]).float().cpu().numpy()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for copy in copies[:3]:
                function(*copy)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        turns = max(1, -(-_LEAST_LAUNCHES // len(copies)))
        with torch.cuda.graph(graph):
            for number in range(turns * len(copies)):
                function(*copies[number % len(copies)])
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replays(count: int) -> float:
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000

    once = min(replays(1) for _ in range(3))
    count = max(1, math.ceil(1500 / once))
    times = [replays(count) / count / turns / len(copies) for _ in range(_ROUNDS)]
    return float(np.quantile(times, 0.25)), result


@dataclass(frozen=True)
class _TorchBench:
    """Torch in a process of its own."""

    note: str = ""

    def open(self) -> _TorchBench:
        """Imports what takes long."""
        import torch._dynamo
        import torch._inductor  # noqa: F401

        return self

    def measure(self, label: str, peer: str, inputs: Sequence[np.ndarray], reference: np.ndarray) -> tuple[float, float]:
        """Microseconds and error of a program's formula."""
        import torch

        program = next(p for p in programs() if p.label == label)
        plain, sdpa = FORMULAS[program.name]
        formula = sdpa if "sdpa" in peer else plain
        assert formula is not None
        first = [torch.from_numpy(x).cuda() for x in inputs]
        copies = [first, *([x.clone() for x in first] for _ in range(copies_for(sum(x.nbytes for x in inputs)) - 1))]
        torch._dynamo.reset()
        mode = "max-autotune-no-cudagraphs" if peer.startswith("compile") else None
        microseconds, result = torch_microseconds(formula, copies, mode)
        return microseconds, compare(result, reference).relative_l2


# --- onnxruntime -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hosted:
    """A kernel to be measured within onnxruntime."""

    kernel: dict[str, Any]
    trial: ScheduleTrial
    reference: np.ndarray
    plain: bool


def in_onnxruntime(job: Hosted) -> tuple[float, float]:
    """Microseconds and error of a kernel as a custom node of stock onnxruntime, or of its body there instead."""
    import onnxruntime as ort

    kernel, trial, reference = kernel_from_json(job.kernel), job.trial, job.reference
    inputs = kernel_inputs(kernel, {})
    compiled = CompiledKernel(Variants.one(trial.schedules), attributes_of(trial.plan, [trial.image]), trial.tables)
    types = tuple(t.type for t in kernel.inputs)
    signature = Signature(KERNEL, kernel_attrs(kernel), types, (False,) * len(types))

    def model(copies: int) -> onnx.ModelProto:
        made = node_model(signature, OPSET, copies, compiled)
        assert made is not None
        return onnx.inliner.inline_local_functions(made) if job.plain else made

    session = open_session(model(1).SerializeToString(), has_kernels=not job.plain)
    binding = session.io_binding()
    held = [ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0) for x in inputs.values()]
    for info, value in zip(session.get_inputs(), held, strict=True):
        binding.bind_ortvalue_input(info.name, value)
    poison = np.full(reference.shape, np.nan, np.float16)
    result = ort.OrtValue.ortvalue_from_numpy(poison, "cuda", 0)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, result)
    for _ in range(3):
        session.run_with_iobinding(binding)
    result.update_inplace(poison)
    session.run_with_iobinding(binding)
    error = compare(result.numpy(), reference).relative_l2
    copies = min(copies_for(sum(x.nbytes for x in inputs.values())), _MOST_PLAIN_COPIES if job.plain else _MOST_COPIES)
    return (replay_microseconds(model(copies)) - empty_microseconds()) / copies, error


@dataclass(frozen=True)
class OnnxBench:
    """onnxruntime in a process of its own."""

    note: str = ""

    def open(self) -> OnnxBench:
        return self

    def measure(self, job: Hosted) -> tuple[float, float]:
        """As :func:`in_onnxruntime`."""
        return in_onnxruntime(job)


class Workers:
    """Processes that start when they are first needed, and anew where one has failed."""

    def __init__(self) -> None:
        self._remotes: dict[Spec, Remote] = {}

    def start(self, spec: Spec) -> Remote:
        """The process of a spec, which may still be opening it."""
        if spec not in self._remotes:
            self._remotes[spec] = Remote(spec, _ANSWER_SECONDS, _ANSWER_SECONDS)
        return self._remotes[spec]

    def measure(self, spec: Spec, *arguments: Any) -> tuple[float, float]:
        """Microseconds and error of what a spec's process measures. Raises RunnerFailed."""
        remote = self.start(spec)
        try:
            if not remote.seconds:
                remote.wait()
            measured: tuple[float, float] = remote.ask("measure", *arguments)
        except RunnerFailed:
            del self._remotes[spec]
            raise
        return measured

    def close(self) -> None:
        """Ends all processes."""
        for remote in self._remotes.values():
            remote.close()


# --- a row -----------------------------------------------------------------------------------------------------------


def run_program(
    program: MirageProgram,
    prepared: Prepared,
    row: dict[str, Any],
    part: str,
    wanted: Sequence[str],
    workers: Workers,
    save: Callable[[], None],
    in_time: Callable[[], bool],
) -> None:
    """Fills a part of a row; one that fails leaves its reason.

    Args:
        part: ``ours``, ``onnxruntime`` or ``peers``.
        wanted: The peers; each is kept as soon as it is there, and none is begun once it is not ``in_time``.
    """
    kernel = kernel_from_json(prepared.kernel)
    inputs = kernel_inputs(kernel, {})
    program_inputs = dict(sorted(zip(prepared.order, inputs.values(), strict=True)))  # in the program's order
    reference = prepared.reference
    row["floor"] = floor_microseconds(program)

    def ours() -> None:
        with KernelTimer() as timer:
            results = timer.measure(kernel, prepared.trials, {}, [reference])
        best = best_of(results)
        row["microseconds"]["ours"], row["errors"]["ours"] = best.microseconds, best.error
        row["schedules"] = [schedule_to_json(s) for s in best.schedules]
        row["launches"] = sum(2 if s.split > 1 else 1 for s in best.schedules)
        row["tried"] = [
            [r.microseconds, [schedule_to_json(s) for s in r.schedules], r.problem]
            for r in sorted(results, key=lambda r: r.microseconds or math.inf)
        ]
        row["uncompiled"] = prepared.problems
        row["done"].append(part)

    def timed(name: str, spec: Spec, *arguments: Any) -> None:
        try:
            microseconds, row["errors"][name] = workers.measure(spec, *arguments)
            if not row["errors"][name] < WRONG:
                raise RunnerFailed(f"wrong: relative error {row['errors'][name]:.1e}")
            row["microseconds"][name] = microseconds
            row["problems"].pop(name, None)
        except RunnerFailed as problem:
            row["problems"][name] = str(problem)
        save()

    def runtime() -> None:
        if "schedules" not in row:
            raise RunnerFailed("no kernel was measured that could run there")
        chosen = next(t for t in prepared.trials if [schedule_to_json(s) for s in t.schedules] == row["schedules"])
        for name, plain in (("onnxruntime", False), ("onnxruntime_plain", True)):
            timed(name, OnnxBench(), Hosted(prepared.kernel, chosen, reference, plain))
        if "onnxruntime" in row["microseconds"]:
            row["done"].append(part)

    def peers() -> None:
        applicable = [peer for peer in _PEERS if FORMULAS[program.name][1] is not None or "sdpa" not in peer]
        for peer in applicable:
            if peer in wanted and peer not in row["microseconds"] and in_time():
                timed(peer, _TorchBench(), program.label, peer, list(program_inputs.values()), reference)
        if row["microseconds"].keys() >= set(applicable):
            row["done"].append(part)

    actions = {"ours": ours, "onnxruntime": runtime, "peers": peers}
    began = time.perf_counter()
    try:
        actions[part]()
        row["problems"].pop(part, None)
    except Exception as problem:  # the other parts go on
        row["problems"][part] = one_line(problem)
    row["seconds"][part] = time.perf_counter() - began
    save()


def bound_of(row: Mapping[str, Any]) -> float:
    """Microseconds of the floor and of the launches that our kernel makes."""
    return float(row.get("floor", math.nan)) + LAUNCH_US * float(row.get("launches", math.nan))


def speedup_of(row: Mapping[str, Any]) -> float:
    """How many times faster our kernel is in onnxruntime than the best of torch; NaN where one of them is missing."""
    us = row["microseconds"]
    best: float = min((us[p] for p in _PEERS if p in us), default=math.nan)
    return best / float(us.get("onnxruntime", math.nan))


def targets(name: str, row: Mapping[str, Any]) -> dict[str, bool]:
    """The targets of a program, each with whether its row meets it; a figure that is missing meets none."""
    ours, speedup, bound = row["microseconds"].get("onnxruntime", math.nan), speedup_of(row), bound_of(row)
    errors = row["errors"]
    met = {">= best peer": speedup >= 1.0}
    if name in LEAST_SPEEDUP:
        met[f">= {LEAST_SPEEDUP[name]}x"] = speedup >= LEAST_SPEEDUP[name] or ours <= NEAR * bound
    if name in MOST_OVER_FLOOR:
        met[f"<= {MOST_OVER_FLOOR[name]} floor"] = ours <= MOST_OVER_FLOOR[name] * bound
    met["error"] = errors.get("onnxruntime", math.nan) <= errors.get("eager", math.nan)
    return met


def show(rows: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Prints the table, how many targets are met, and all problems."""
    table = Table(title="microseconds on the GPU; error: relative L2 against double precision")
    columns = (
        "program",
        "floor",
        "+ launches",
        *_PEERS,
        "ort plain",
        "ours",
        "in ort",
        "launches",
        "best peer / in ort",
        "in ort / (floor + launches)",
        "error",
        "eager's error",
        "targets",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("program", "targets") else "right")
    order = [p.label for p in programs()]
    verdicts: list[bool] = []
    for label, row in sorted(rows.items(), key=lambda item: order.index(item[0])):
        us, errors = row["microseconds"], row["errors"]
        verdict_of = targets(label.partition(":")[0], row)
        verdicts += verdict_of.values()
        missed = [target for target, met in verdict_of.items() if not met]
        table.add_row(
            label,
            _number(row.get("floor"), 1),
            _number(bound_of(row), 1),
            *(_number(us.get(p), 1) for p in (*_PEERS, "onnxruntime_plain", "ours", "onnxruntime")),
            str(row.get("launches", "")),
            _number(speedup_of(row), 2),
            _number(us.get("onnxruntime", math.nan) / bound_of(row), 2),
            *("" if name not in errors else f"{errors[name]:.1e}" for name in ("onnxruntime", "eager")),
            "missed: " + ", ".join(missed) if missed else "met",
        )
    console.print(table)
    console.print(
        f"{sum(verdicts)} of {len(verdicts)} targets met; a speedup counts as met within {NEAR} times floor and launches"
    )
    for label, row in rows.items():
        for part, problem in row["problems"].items():
            console.print(f"{label} {part}: {problem}", markup=False)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


# --- the command -----------------------------------------------------------------------------------------------------


@click.group(help=__doc__.split("\n")[0])
def main() -> None:
    pass


_ONLY = click.option("--only", multiple=True, metavar="NAME[:BATCH]", help="Only these programs.")


def _chosen(only: Sequence[str]) -> list[MirageProgram]:
    every = programs()
    unknown = [o for o in only if not any(o in (p.name, p.label) for p in every)]
    if unknown:
        raise click.BadParameter(
            f"no program {unknown[0]}; there are {', '.join(sorted({p.name for p in every}))}, batch 1 and 8"
        )
    return [p for p in every if not only or p.name in only or p.label in only]


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@_ONLY
@click.option("--most", default=120, show_default=True, help="Schedules of each kernel.")
@click.option("--device", default="h200", show_default=True)
@click.option("--architecture", default=90, show_default=True)
@click.option("--workers", type=int, help="Processes; one a core unless given.")
def prepare(folder: Path, only: Sequence[str], most: int, device: str, architecture: int, workers: int | None) -> None:
    """Finds the kernels and compiles them under the schedules worth a trial."""
    folder.mkdir(parents=True, exist_ok=True)
    with Compiler(workers=workers) as compiler:
        for program in _chosen(only):
            prepared = prepare_program(program, compiler, device, Architecture(architecture), most)
            content = lzma.compress(pickle.dumps(vars(prepared)), preset=1)
            _file(folder, program).write_bytes(content)
            print(
                f"{program.label}: {len(prepared.trials)} compiled, {len(prepared.problems)} not, {prepared.seconds:.0f} s, "
                f"{len(content) / 1e3:.0f} kB",
                flush=True,
            )
            for problem in prepared.problems[:3]:
                print(f"  {problem}")


@main.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where rows are kept.")
@_ONLY
@click.option("--part", "parts", multiple=True, type=click.Choice(["ours", "onnxruntime", "peers"]), help="All unless given.")
@click.option("--peer", "wanted_peers", multiple=True, type=click.Choice(_PEERS), help="All unless given.")
@click.option("--seconds", default=480.0, show_default=True, help="Nothing is begun after so long.")
@click.option("--architecture", default=90, show_default=True)
def run(
    folder: Path,
    path: Path,
    only: Sequence[str],
    parts: Sequence[str],
    wanted_peers: Sequence[str],
    seconds: float,
    architecture: int,
) -> None:
    """Measures what was prepared, and the peers; goes on where an earlier run stopped."""
    deadline = time.monotonic() + seconds
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def save() -> None:
        path.write_text(json.dumps(rows, indent=1))

    def in_time() -> bool:
        return time.monotonic() < deadline

    wanted = parts or ("ours", "onnxruntime", "peers")
    workers = Workers()
    if "peers" in wanted:
        workers.start(_TorchBench())  # its imports take a while
    for part in wanted:  # ours first for all programs: the peers take longest
        for program in _chosen(only):
            if not in_time() or not _file(folder, program).exists():
                continue
            fresh = {"microseconds": {}, "errors": {}, "problems": {}, "seconds": {}, "done": [], "architecture": architecture}
            row = rows.setdefault(program.label, fresh)
            if part in row["done"]:
                continue
            prepared = Prepared(**pickle.loads(lzma.decompress(_file(folder, program).read_bytes())))
            run_program(program, prepared, row, part, wanted_peers or _PEERS, workers, save, in_time)
            print(program.label, part, {k: round(v, 2) for k, v in row["microseconds"].items()}, flush=True)
    workers.close()
    show(rows, Console(width=230))


@main.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def table(path: Path) -> None:
    """Prints the table of rows that were kept."""
    show(json.loads(path.read_text()), Console(width=230))


if __name__ == "__main__":
    main()
