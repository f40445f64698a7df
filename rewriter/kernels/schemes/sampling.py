"""Reward-guided sampling (STOF, section 4.4.2): what has paid is tried more often."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

__all__ = ["RewardSampler"]

_REWARD = 8.0
"""By what a gain multiplies the weight of what gained: it goes on before others, as the paper's depth-first search does."""
_HEAVIEST = 64.0
"""Of weights: the rest is tried now and then, whatever gained before."""


class RewardSampler:
    """Draws among things with weights that grow where drawing them paid; equal seeds and questions give equal answers.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._weights: dict[Hashable, float] = {}

    def weight(self, arm: Hashable) -> float:
        """Of something that may be drawn, from 1 on."""
        return self._weights.get(arm, 1.0)

    def draw(self, arms: Sequence[Hashable]) -> int:
        """The index of one of some things, with a probability in proportion to its weight."""
        return self._random.choices(range(len(arms)), [self.weight(arm) for arm in arms])[0]

    def reward(self, arm: Hashable, heir: Hashable) -> None:
        """Something that was drawn paid, and became another, which inherits its weight and the reward."""
        self._weights[heir] = min(_REWARD * self.weight(arm), _HEAVIEST)
