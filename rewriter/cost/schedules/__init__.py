"""Schedules of graph-defined kernels: which there are, which fit a device, and what each is likely to take.

The space follows from the block graph and its sizes. An axis along which every tile of the loop differs is a batch axis and is
not tiled: nothing is shared along it. Others take powers of two up to their size, or the least that matrix units need. What does
not fit the device's memories is dropped (:mod:`rewriter.cost.schedules.space`), the rest is ranked by a model of one kernel
(:mod:`rewriter.cost.schedules.times`):

* A multiprocessor runs as many blocks at once as shared memory, registers and threads allow; what is left over runs in further
  waves.
* An iteration takes the longest of four: its tiles through the caches, its products, its scalar arithmetic, and the latency of a
  load where neither other blocks nor the software pipeline hide it.
* All blocks together take at least as long as main memory needs for every tensor once, with enough bytes in flight (by
  Little's law).
* A split adds a second launch and the traffic of the partial states.

Absolute times of single schedules are rough; what counts is the order, that the best is among the first few dozen, and that the
best time is comparable with what a roofline says of other kernels (:mod:`rewriter.cost.roofline`).
"""

from rewriter.cost.schedules.choosing import SchedulePrices, points_of
from rewriter.cost.schedules.ranking import candidates, default_schedules, predict, ranked

__all__ = ["SchedulePrices", "candidates", "default_schedules", "points_of", "predict", "ranked"]
