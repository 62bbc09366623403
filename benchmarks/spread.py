"""The statistics of repeats: medians, percentiles, and how far apart the rounds were."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A figure whose rounds lie further apart than this part of their median says little.
NOISY = 0.4


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure, measured once in each round."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def width(self) -> float:
        """The middle half of the rounds over their median; of fewer than four rounds, all of them."""
        if self.median == 0:
            return 0.0 if self.high == self.low else math.inf
        low, high = self.low, self.high
        if len(self.values) >= 4:
            low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (high - low) / abs(self.median)

    @property
    def is_noisy(self) -> bool:
        """True when the rounds were too far apart for their median to be told."""
        return self.width > NOISY

    def over(self, other: Spread) -> Spread:
        """The ratio in each round that both took part in: what disturbed a round disturbed both."""
        pairs = zip(self.values, other.values, strict=False)
        return Spread(tuple(mine / theirs for mine, theirs in pairs if theirs))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many of all, 0.99 for 99 %, do not exceed."""
    place = math.ceil(share * len(values)) - 1
    return sorted(values)[max(0, place)]
