"""What the package knows from the start: times that were taken on a device of a name, and what an onnxruntime fuses by itself.

``python -m tools.ship.known`` writes the files beside this module, of caches that runs have filled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources

import onnxruntime as ort

from rewriter.cost.table import CostTable, read_table

__all__ = ["device_in", "known_directions", "known_table"]

_FOLDER = resources.files(__name__)


def known_table(environment: str) -> CostTable | None:
    """The costs that ship for the GPU of an environment, taken on another of its name; ``None`` where none do.

    Of another onnxruntime only its kernels: they are not onnxruntime's.
    """
    with resources.as_file(_FOLDER / f"{device_in(environment)}.json") as path:
        if not path.exists():
            return None
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
