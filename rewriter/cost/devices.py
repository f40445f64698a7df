"""Named devices: what a roofline (:mod:`rewriter.cost.roofline`) needs to know of them.

Peaks are the vendors' dense figures, without sparsity; products use the matrix units where the element type has them,
everything else is bound by bandwidth long before arithmetic matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mugraph.terms.shape import DataType

__all__ = ["DEVICES", "Device", "default_device", "find_device", "get_device"]

_HALF = (DataType.FLOAT16, DataType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Device:
    """The figures of a device by which a roofline prices nodes.

    Attributes:
        name: what ``--device`` takes.
        provider: the execution provider that runs there.
        bandwidth: of main memory, in GB/s.
        peaks: arithmetic of products in TFLOP/s by element type; others take the figure of ``FLOAT``.
        launch: microseconds between two kernels, replayed from a graph.
        latency: microseconds of the shortest kernel that reads and writes anything, beside its launch.
        units: multiprocessors, among which the tiles of a product are dealt out; 1 where tiles do not matter.
        view: microseconds of a node that has no kernel.
        architecture: a GPU's compute capability as one number, such as 90; 0 for what is none.
    """

    name: str
    provider: str
    bandwidth: float
    peaks: Mapping[DataType, float] = field(hash=False)
    launch: float
    latency: float
    units: int
    view: float
    architecture: int = 0

    def microseconds(self, flops: float, moved: float, dtype: DataType) -> float:
        """Time of a kernel with so many operations on so many bytes."""
        peak = self.peaks.get(dtype, self.peaks[DataType.FLOAT])
        return max(flops / (peak * 1e6), moved / (self.bandwidth * 1e3))


def _gpu(name: str, architecture: int, units: int, bandwidth: float, single: float, half: float) -> Device:
    peaks = {DataType.FLOAT: single, **dict.fromkeys(_HALF, half)}
    return Device(name, "cuda", bandwidth, peaks, 0.7, 1.3, units, 0.0, architecture)


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # A modest core: only the order of magnitude matters.
        Device("cpu", "cpu", 8.0, {DataType.FLOAT: 0.04}, launch=1.0, latency=0.5, units=1, view=1.0),
        _gpu("t4", 75, 40, 320, 8.1, 65),
        _gpu("a10", 86, 72, 600, 31.2, 125),
        _gpu("l4", 89, 58, 300, 30.3, 121),
        _gpu("rtx-4090", 89, 128, 1008, 82.6, 165),
        _gpu("a100-40gb", 80, 108, 1555, 19.5, 312),
        _gpu("a100-80gb", 80, 108, 2039, 19.5, 312),
        _gpu("h100", 90, 132, 3350, 67, 989),
        _gpu("h200", 90, 132, 4800, 67, 989),
    )
}
"""Device name to figures."""


def find_device(words: str) -> Device | None:
    """The device that a machine names in its own words, such as ``NVIDIA A100-SXM4-80GB``; ``None`` where none is known."""
    told = set(re.findall(r"[a-z0-9]+", words.lower()))
    return next((d for d in DEVICES.values() if d.provider == "cuda" and told.issuperset(d.name.split("-"))), None)


def default_device(provider: str, words: str = "") -> Device:
    """Whose roofline stands in where a provider is asked for and no device is named.

    Args:
        words: what the machine says of its device.
    """
    return DEVICES["cpu"] if provider != "cuda" else find_device(words) or DEVICES["h200"]


def get_device(name: str) -> Device:
    """Looks a device up. Raises KeyError with the known names."""
    if name not in DEVICES:
        raise KeyError(f"unknown device '{name}'; known devices: {', '.join(DEVICES)}")
    return DEVICES[name]
