"""Schedules of graph-defined kernels: which there are, which fit a device, and what each is likely to take.

The space follows from the block graph and its sizes. An axis along which every tile of the loop differs is a batch axis and is
not tiled: nothing is shared along it. Others take powers of two up to their size, or the least that matrix units need. What does
not fit the device's memories is dropped (:mod:`rewriter.cost.schedules.space`), the rest is ranked by a model of one kernel
(:mod:`rewriter.cost.schedules.times`):

* A multiprocessor runs as many blocks at once as shared memory, registers and threads allow; what is left over runs in further
  waves.
* An iteration takes the longest of four: its tiles through the caches, its arithmetic, a chain of operations that wait for each
  other, and the latency of a load where neither other blocks nor the software pipeline hide it.
* Arithmetic is products, whose operands come from shared memory as often as warps take them, and instructions of scalar work,
  as many as operators say. Those of one block wait for each other; other blocks, or other groups of four warps, fill the gaps. A
  warp that is alone on its scheduler waits for its own results.
* An operand of a product that is computed in the loop is computed by every warp that takes it. What a statistic of whole rows is
  an operand of is computed in the layout of those rows, several times where that is wider than the tile.
* All blocks together take at least as long as main memory needs for every tensor once, with enough bytes in flight (by
  Little's law).
* A split adds a second launch, each of whose blocks reads the partial states of its tile.

Absolute times of single schedules are rough; what counts is the order, that the best is among the first few dozen, and that the
best time is comparable with what a roofline says of other kernels (:mod:`rewriter.cost.roofline`).
"""

from rewriter.cost.schedules.choosing import SchedulePrices, points_of
from rewriter.cost.schedules.products import least_of_product
from rewriter.cost.schedules.ranking import candidates, default_schedules, least_time, predict, ranked
from rewriter.cost.schedules.times import least_of_any

__all__ = [
    "SchedulePrices",
    "candidates",
    "default_schedules",
    "least_of_any",
    "least_of_product",
    "least_time",
    "points_of",
    "predict",
    "ranked",
]
