"""Whole models: the optimised file against onnxruntime with all its optimisations on the original.

Each model is optimised in a process of its own (cold, then warm), then original and result are timed again by this
script, alternating under default settings, beside the original against itself (A/A) for the noise.

    python -m tools.bench.models zoo_models/bert.onnx zoo_models/llama.onnx ... [--json FILE]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mugraph.onnx_io import load
from rewriter.accept import Timing, confirm
from rewriter.reference import bind_sizes, random_inputs


def _optimise(source: Path, target: Path, cache: Path, budget: float) -> tuple[dict[str, Any], float, float]:
    """Runs the command line; returns its JSON summary, wall seconds and peak resident MB."""
    summary = target.with_suffix(".json")
    command = [
        sys.executable,
        "-m",
        "rewriter.cli",
        str(source),
        "-o",
        str(target),
        "--json",
        str(summary),
        "--provider",
        "cpu",
        "--budget",
        str(budget),
    ]
    script = (
        "import resource,subprocess,sys; r=subprocess.run(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss//1024, file=sys.stderr); sys.exit(r.returncode)"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "ONNX_SUPEROPT_CACHE": str(cache)},
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise click.ClickException(f"{source}: {done.stderr.strip()}")
    return json.loads(summary.read_text()), seconds, float(done.stderr.strip().splitlines()[-1])


def _ratio(timing: Timing | None) -> str:
    return "-" if timing is None else f"{timing.ratio:.3f} [{timing.low:.2f}, {timing.high:.2f}]"


@click.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--seconds", default=20.0, show_default=True, help="Timing budget a pair.")
@click.option("--budget", default=60.0, show_default=True, help="Given to onnx-superopt.")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option(
    "--peer",
    nargs=2,
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Also compare the result of the first model with the second, unoptimised one (LoRA against no LoRA).",
)
def main(
    models: tuple[Path, ...], seconds: float, budget: float, json_file: Path | None, peer: tuple[tuple[Path, Path], ...]
) -> None:
    """Prints latency ratios, optimisation time, nodes, rules and errors of MODELS."""
    console = Console(width=200)
    table = Table(
        "model",
        "ratio (after/before)",
        "A/A",
        "ms before",
        "ms after",
        "cold s",
        "warm s",
        "peak MB",
        "nodes",
        "rules",
        "error before",
        "error after",
        title=f"onnx-superopt, {os.cpu_count()} cores",
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
        for source in models:
            target, cache = Path(folder) / f"{source.stem}.superopt.onnx", Path(folder) / f"cache-{source.stem}"
            first, cold, peak = _optimise(source, target, cache, budget)
            _, warm, _ = _optimise(source, target, cache, budget)
            model = load(source)
            feeds = [random_inputs(model, bind_sizes(model, {})[0], seed) for seed in (11, 12)]
            again = confirm(source, source, feeds, "cpu", seconds)
            timing = confirm(source, target, feeds, "cpu", seconds) if first["improved"] else None
            before, after = first["error_before"], first["error_after"] or first["error_before"]
            table.add_row(
                source.stem,
                _ratio(timing) if timing else "1 (original kept)",
                _ratio(again),
                f"{again.original:.2f}",
                f"{(timing or again).candidate:.2f}",
                f"{cold:.1f}",
                f"{warm:.1f}",
                f"{peak:.0f}",
                f"{first['nodes_before']} -> {first['nodes_after']}",
                ", ".join(f"{f['rule'][:8]}x{f['sites']}" for f in first["fired"]) or first["message"][:40],
                f"{before['relative_l2']:.1e}" if before else "-",
                f"{after['relative_l2']:.1e}" if after else "-",
            )
            rows.append(
                {
                    "model": source.stem,
                    "cold": cold,
                    "warm": warm,
                    "peak_mb": peak,
                    "summary": first,
                    "ratio": timing.ratio if timing else 1.0,
                    "aa": again.ratio,
                }
            )
            for left, right in peer:
                if left == source:
                    against = confirm(right, target if first["improved"] else source, feeds, "cpu", seconds)
                    table.add_row(
                        f"{source.stem} against {right.stem}",
                        _ratio(against),
                        "",
                        f"{against.original:.2f}",
                        f"{against.candidate:.2f}",
                    )
            console.print(f"{source.stem}: done")
    console.print(table)
    ratios = [row["ratio"] for row in rows]
    console.print(f"geometric mean of the ratios: {float(np.exp(np.mean(np.log(ratios)))):.3f}")
    console.print(f"peak of this script: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
