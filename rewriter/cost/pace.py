"""How fast this processor is beside the one whose figures a roofline has, as measured nodes tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mugraph.ops import Movement, ProductKind, traits_of
from rewriter.cost.devices import Device

__all__ = ["Pace", "pace_of"]


@dataclass(frozen=True, slots=True)
class Pace:
    """What was measured over what the roofline says, of products of matrices and of everything else; 1 where nothing was."""

    products: float = 1.0
    others: float = 1.0

    def of(self, device: Device, speedup: float) -> Device:
        """A device with these figures.

        Args:
            speedup: how many times as fast products are as those that were measured.
        """
        peaks = {dtype: peak * speedup / self.products for dtype, peak in device.peaks.items()}
        return replace(device, peaks=peaks, bandwidth=device.bandwidth / self.others)


def pace_of(measured: Iterable[tuple[str, float, float]]) -> Pace:
    """The pace that nodes tell, of which large ones count for more.

    Args:
        measured: operator, microseconds that it took, and those of the roofline.
    """
    spent = {True: (0.0, 0.0), False: (0.0, 0.0)}
    for op, took, estimate in measured:
        traits = traits_of(op)
        if traits.movement is Movement.VIEW or traits.convolves or traits.attention:
            continue  # neither a product nor what moves its operands once
        kind = traits.product is ProductKind.MATRIX
        spent[kind] = spent[kind][0] + took, spent[kind][1] + estimate
    return Pace(*(took / estimate if took > 0 and estimate > 0 else 1.0 for took, estimate in (spent[True], spent[False])))
