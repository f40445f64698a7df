"""How much memory it takes to import and export a large model: ``python -m tools.bench.memory``.

The model has external data and no rewrite touches its weights, so none of them needs to be in memory. A process of its
own (Linux) imports it and exports it; what it held at most (resident, file mappings included) is compared with the limit of
300 MB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from tools.zoo.built import write_big

LIMIT = 300_000_000
"""Bytes that import and export may hold beyond the weights touched."""

_CHILD = """
import json, re, sys, time
from pathlib import Path
import mugraph.onnx as io

def peak():  # getrusage would count what the parent held before this process began
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

source, target = map(Path, sys.argv[1:])
start, started = peak(), time.perf_counter()
model = io.load(source)
imported, loaded = time.perf_counter(), peak()
nodes = io.save(model, model.graph, target).nodes
ended = time.perf_counter()
print(json.dumps(dict(start=start, loaded=loaded, peak=peak(), load_s=imported - started, save_s=ended - imported, nodes=nodes)))
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resident bytes of a process, at most, and how long it took.

    Attributes:
        start: after Python and the libraries were loaded.
        loaded: after the model was read.
        peak: after it was written.
        load_s, save_s: seconds.
        nodes: nodes written.
    """

    start: int
    loaded: int
    peak: int
    load_s: float
    save_s: float
    nodes: int


def measure(source: Path, target: Path) -> Footprint:
    """Imports and exports a model in a fresh process.

    Raises:
        CalledProcessError: it failed; its traceback is on standard error.
    """
    command = [sys.executable, "-c", _CHILD, str(source), str(target)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[2])
    return Footprint(**json.loads(run.stdout))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gigabytes", default=3.0, show_default=True, help="Size of the model's weights, where none is given.")
@click.option("--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where temporary files go.")
def main(model: Path | None, gigabytes: float, folder: Path | None) -> None:
    """Measures the memory of importing and exporting MODEL, or of a model made for the purpose."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        if model is None:
            model = Path(temporary) / "big.onnx"
            write_big(model, gigabytes)
        footprint = measure(model.resolve(), Path(temporary) / "out.onnx")
        written = sum(path.stat().st_size for path in Path(temporary).glob("out.onnx*"))
    click.echo(f"{model.name}: {written / 1e9:.2f} GB written, {footprint.nodes} nodes")
    click.echo(
        f"resident: {footprint.start / 1e6:.0f} MB before, {footprint.loaded / 1e6:.0f} MB read, "
        f"{footprint.peak / 1e6:.0f} MB at most"
    )
    click.echo(f"time: {footprint.load_s:.2f} s to read, {footprint.save_s:.2f} s to write")
    if footprint.peak > LIMIT:
        raise click.ClickException(f"{footprint.peak / 1e6:.0f} MB are more than {LIMIT / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
