"""Attention under constant masks on one GPU in half precision: ours beside torch and onnxruntime (STOF's grid of cases).

    python -m tools.bench.attention prepare FOLDER --most 24        on any machine: builds and compiles the kernels of the cases
    python -m tools.bench.attention run FOLDER --json FILE          on the GPU machine: measures, compares, prints the table
    python -m tools.bench.attention run FOLDER --json FILE --only bigbird --only sliding:8x512 --seconds 300
    python -m tools.bench.attention example FOLDER --json FILE      on the GPU machine: two whole models through onnx-superopt
    python -m tools.bench.attention rows --json FILE                on the GPU machine: tiles of few rows beside larger ones
    python -m tools.bench.attention predict                         what the model of schedules says, anywhere
    python -m tools.bench.attention table FILE                      prints the table again

A case is a mask, a batch and a length, with 12 heads of 64. ``run`` compiles what was not prepared, appends a line to FILE for
each figure as soon as it is there, and goes on where an earlier run stopped; what fails leaves its reason. Ours is the fastest of
the schedules that were compiled, of the kernel whose loop goes along a list of tiles and, where the mask is a band, of the one
that knows its formula; ``in ort`` is the same as a custom node of stock onnxruntime. ``told`` is the kernel of documents that an
input numbers, or of a prefix of keys that one tells, for the same mask; it is compared with nobody's, as theirs know the mask.
All times are of the GPU, replayed from a CUDA graph whose launches rotate over copies of the inputs (onnxruntime's plain model
has one). Errors are relative (L2) against the formula in double precision on the same random inputs.

Widths are √length, as in the paper: a window of that many positions, as many global positions, and 10 % random blocks, of 64
positions here (of 16 where there are 128).

``rows`` times what docs/attention.md says of rows and blocks: of each mask for one sequence of 128 and of 256 positions, the
schedules with tiles of fewer than 16 rows, which do without matrix units, and all others, each beside its prediction.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from rich.console import Console

from rewriter.cost.devices import get_device
from rewriter.cost.schedules import ranked
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.triton.compile import Compiler
from rewriter.reference import compare
from tools.bench.attention.cases import (
    EXAMPLES,
    PEERS,
    TOLD,
    chosen_cases,
    kernels_of_case,
    plain_model,
    told_kernel,
)
from tools.bench.attention.rows import BLOCKS, FEW_ROWS, row_cases, rows_of_case, show_rows
from tools.bench.attention.tables import in_digits, read_lines, show
from tools.bench.attention.timing import CaseBench, file_microseconds, prepared_case
from tools.bench.gpu import WRONG
from tools.bench.gpu_runners import RunnerFailed, one_line


@click.group(help=__doc__.split("\n")[0])
def main() -> None:
    pass


_ONLY = click.option("--only", multiple=True, metavar="MASK[:SHAPE]|SHAPE", help="Only these cases.")
_MOST = click.option("--most", default=24, show_default=True, help="Schedules of each kernel.")
_DEVICE = click.option("--device", default="h200", show_default=True)
_ARCHITECTURE = click.option("--architecture", default=90, show_default=True)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@_ONLY
@_MOST
@_DEVICE
@_ARCHITECTURE
@click.option("--workers", type=int, help="Processes; one a core unless given.")
def prepare(folder: Path, only: Sequence[str], most: int, device: str, architecture: int, workers: int | None) -> None:
    """Builds and compiles the kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    with Compiler(workers=workers) as compiler:
        for case in chosen_cases(only):
            prepared = prepared_case(folder, case, compiler, device, Architecture(architecture), most)
            counts = ", ".join(f"{len(compiled)} {kind}" for kind, (_, compiled) in prepared.kernels.items())
            print(f"{case.label}: {counts}, {len(prepared.problems)} not compiled, {prepared.predicted:.1f} µs", flush=True)
            for problem in prepared.problems[:2]:
                print(f"  {problem}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where lines are appended.")
@_ONLY
@_MOST
@_DEVICE
@_ARCHITECTURE
@click.option("--part", "parts", multiple=True, type=click.Choice(["ours", "in ort", TOLD, *PEERS]), help="All unless given.")
@click.option("--seconds", default=480.0, show_default=True, help="Nothing is begun after so long.")
def run(
    folder: Path,
    path: Path,
    only: Sequence[str],
    most: int,
    device: str,
    architecture: int,
    parts: Sequence[str],
    seconds: float,
) -> None:
    """Measures ours and the peers; goes on where an earlier run stopped."""
    deadline, found, bench = time.monotonic() + seconds, read_lines(path), CaseBench()
    folder.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Compiler() as compiler:
        for case in chosen_cases(only):
            row = found.setdefault(case.label, {})
            for part in parts or ("ours", "flex", "sdpa", "in ort", "ort", *([TOLD] if told_kernel(case) else [])):
                if "us" in row.get(part, {}) or time.monotonic() > deadline:
                    continue
                began = time.perf_counter()
                try:
                    prepared = None
                    if part in ("ours", "in ort"):
                        prepared = prepared_case(folder, case, compiler, device, Architecture(architecture), most)
                    if part == "ours" and prepared is not None:
                        entry = bench.ours(case, prepared)
                    elif part == "in ort" and prepared is not None:
                        if "us" not in row.get("ours", {}):
                            raise RunnerFailed("no kernel was measured that could run there")
                        entry = bench.hosted(case, prepared, row["ours"])
                    elif part == TOLD:
                        entry = bench.told(case, compiler, device, Architecture(architecture), most)
                    else:
                        entry = bench.peer(case, part)
                    if not entry["error"] < WRONG:
                        entry["problem"] = f"wrong: relative error {entry['error']:.1e}, {entry.pop('us'):.1f} µs"
                except Exception as problem:  # the other parts go on
                    entry = {"problem": one_line(problem)}
                entry = {"case": case.label, "part": part, "seconds": time.perf_counter() - began, **entry}
                row[part] = entry
                with path.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                print(case.label, part, in_digits(entry.get("us"), 2) or entry.get("problem", ""), flush=True)
            if not row:
                del found[case.label]
    bench.close()
    show(found, Console(width=200))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where lines are appended.")
@click.option("--seconds", default=240.0, show_default=True, help="Limit of onnx-superopt for each.")
@click.option("--superopt", "options", default="--budget 60", show_default=True, help="Arguments of onnx-superopt.")
def example(folder: Path, path: Path, seconds: float, options: str) -> None:
    """Optimises two whole models and measures them before and after."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in EXAMPLES:
        before, after = (folder / f"{case.name}{end}.onnx" for end in ("", ".superopt"))
        onnx.save(plain_model(case), before)
        command = [sys.executable, "-m", "rewriter.cli", str(before), "--output", str(after), *options.split()]
        entry: dict[str, Any] = {"case": case.label, "part": "whole"}
        try:
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
            entry["seconds"], entry["said"] = time.perf_counter() - began, (done.stdout + done.stderr)[-1500:]
            if done.returncode:
                raise RunnerFailed(f"onnx-superopt: exit code {done.returncode}")
            entry["ort"], plain, entry["ort note"] = file_microseconds(before, case)
            entry["us"], result, entry["note"] = file_microseconds(after, case)
            entry["error"] = compare(result, plain.astype(np.float64)).relative_l2
        except Exception as problem:  # the other goes on
            entry["problem"] = one_line(problem)
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print({name: value for name, value in entry.items() if name != "said"}, entry.get("said", ""), sep="\n", flush=True)


@main.command()
@_ONLY
@_DEVICE
@click.option("--batch", type=int, help="Instead of that of each case.")
def predict(only: Sequence[str], device: str, batch: int | None) -> None:
    """Prints what the model of schedules expects of each kernel."""
    for case in chosen_cases(only):
        case = replace(case, batch=batch) if batch is not None else case
        for kind, kernel in kernels_of_case(case).items():
            ((time_us, schedules),) = ranked(kernel, get_device(device), {}, most=1)
            tiles = ", ".join(f"{axis}={tile}" for axis, tile in schedules[0].tiles if tile > 1)
            print(f"{case.label:22} {case.density:6.3f} {kind:5} {time_us:8.1f} µs  {tiles}")


@main.command()
@click.option("--json", "path", type=click.Path(path_type=Path), required=True, help="Where lines are appended.")
@_ONLY
@click.option("--most", default=12, show_default=True, help="Schedules of each kind.")
@_DEVICE
@_ARCHITECTURE
@click.option("--seconds", default=240.0, show_default=True, help="Nothing is begun after so long.")
def rows(path: Path, only: Sequence[str], most: int, device: str, architecture: int, seconds: float) -> None:
    """Compiles and measures tiles of few rows beside larger ones."""
    deadline, found, timer = time.monotonic() + seconds, read_lines(path), KernelTimer()
    path.parent.mkdir(parents=True, exist_ok=True)
    with Compiler() as compiler:
        for case in chosen_cases(only, row_cases()):
            if FEW_ROWS in found.get(case.label, {}).get("rows", {}) or time.monotonic() > deadline:
                continue
            entry: dict[str, Any] = {"case": case.label, "part": "rows"}
            try:
                entry |= rows_of_case(case, timer, compiler, device, Architecture(architecture), most)
            except Exception as problem:  # the other cases go on
                entry["problem"] = one_line(problem)
            found.setdefault(case.label, {})["rows"] = entry
            with path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(case.label, *(in_digits(entry.get(kind, {}).get("us"), 2) for kind in (FEW_ROWS, BLOCKS)), flush=True)
    timer.close()
    show_rows(found, Console(width=200))


@main.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def table(path: Path) -> None:
    """Prints the tables of lines that were kept."""
    found, console = read_lines(path), Console(width=200)
    show(found, console)
    if any("rows" in parts for parts in found.values()):
        show_rows(found, console)


if __name__ == "__main__":
    main()
