"""What the package knows from the start: times that were taken on a device of a name, and what an onnxruntime fuses by itself.

``python -m tools.ship.known`` writes the files beside this module, of caches that runs have filled.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources

import onnxruntime as ort

from rewriter.cost.devices import Device, find_device
from rewriter.cost.table import CostTable, read_table

__all__ = ["device_in", "known_directions", "known_table"]

_FOLDER = resources.files(__name__)


def known_table(environment: str) -> CostTable | None:
    """The costs that ship for the GPU of an environment; ``None`` where none do.

    They were taken on another of its name, and what no such table has, on a GPU of the same architecture with as many
    multiprocessors, whose memory alone differs: of an H100 and an H200 the same schedules are the fastest (docs/measuring.md). Of
    another onnxruntime only kernels: they are not onnxruntime's.
    """
    own = device_in(environment)
    here = find_device(own)
    names = sorted(name for file in _FOLDER.iterdir() if (name := file.name.removesuffix(".json")) != file.name)
    alike = [name for name in names if name != own and here is not None and _are_alike(find_device(name), here)]
    tables = [_table(name) for name in (own, *alike) if name in names]
    if not tables:
        return None
    costs, schedules = ChainMap(*(dict(t.costs) for t in tables)), ChainMap(*(dict(t.schedules) for t in tables))
    return replace(tables[0], costs=dict(costs), schedules={k: schedules[k] for k in schedules if k in costs})


def _are_alike(device: Device | None, other: Device) -> bool:
    """Whether two GPUs take the same time for whatever memory does not bound."""
    return device is not None and (device.architecture, device.units) == (other.architecture, other.units)


def _table(name: str) -> CostTable:
    """A file's table, of this onnxruntime."""
    with resources.as_file(_FOLDER / f"{name}.json") as path:
        table = read_table(path)
    if table.version == ort.__version__:
        return table
    return replace(table, version=ort.__version__, costs={kernel: table.costs[kernel] for kernel in table.schedules})


def device_in(environment: str) -> str:
    """The name of an environment's GPU as that of a file, such as ``nvidia-h200``; that of the processor where it has none."""
    device = environment.split(" | ")[0]
    name = device.split(" + ")[-1].split(", driver ")[0]
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def known_directions(provider: str) -> Mapping[str, bool]:
    """Whether this onnxruntime applies a direction by itself on a provider, by the direction's id; empty where nothing ships."""
    return _directions(f"onnxruntime-{ort.__version__}-{provider}.json")


@cache
def _directions(name: str) -> Mapping[str, bool]:
    file = _FOLDER / name
    if not file.is_file():
        return {}
    answers: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    return {**dict.fromkeys(answers["left"], False), **dict.fromkeys(answers["applied"], True)}
