"""Named devices and the roofline that stands in for a measurement (Williams, Waterman and Patterson, CACM 2009).

A kernel takes the time of its arithmetic at the device's peak or of its traffic at the device's bandwidth, whichever is
longer, and a launch. Peaks are the vendors' dense figures, without sparsity; products use the matrix units where the
element type has them, everything else is bound by bandwidth long before arithmetic matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mugraph.shape import DataType

__all__ = ["DEVICES", "Device", "get_device"]

_HALF = (DataType.FLOAT16, DataType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Device:
    """What a roofline needs to know.

    Attributes:
        name: what ``--device`` takes.
        provider: the execution provider that runs there.
        bandwidth: of main memory, in GB/s.
        peaks: arithmetic of products in TFLOP/s by element type; others take the figure of ``FLOAT``.
        launch: microseconds that any node costs beside its kernel.
    """

    name: str
    provider: str
    bandwidth: float
    peaks: Mapping[DataType, float]
    launch: float

    def microseconds(self, flops: float, moved: float, dtype: DataType) -> float:
        """Time of a kernel with so many operations on so many bytes."""
        peak = self.peaks.get(dtype, self.peaks[DataType.FLOAT])
        return max(flops / (peak * 1e6), moved / (self.bandwidth * 1e3))


def _gpu(name: str, bandwidth: float, single: float, half: float, launch: float = 0.7) -> Device:
    return Device(name, "cuda", bandwidth, {DataType.FLOAT: single, **dict.fromkeys(_HALF, half)}, launch)


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("cpu", "cpu", 8.0, {DataType.FLOAT: 0.04}, 1.0),  # a modest core: only the order of magnitude matters
        _gpu("t4", 320, 8.1, 65),
        _gpu("a10", 600, 31.2, 125),
        _gpu("l4", 300, 30.3, 121),
        _gpu("rtx-4090", 1008, 82.6, 165),
        _gpu("a100-40gb", 1555, 19.5, 312),
        _gpu("a100-80gb", 2039, 19.5, 312),
        _gpu("h100", 3350, 67, 989),
        _gpu("h200", 4800, 67, 989),
    )
}
"""Device name to figures."""


def get_device(name: str) -> Device:
    """Looks a device up. Raises KeyError with the known names."""
    if name not in DEVICES:
        raise KeyError(f"unknown device '{name}'; known devices: {', '.join(DEVICES)}")
    return DEVICES[name]
