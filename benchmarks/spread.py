"""Statistics of repeated rounds: medians, percentiles, and the spread of the rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A figure whose rounds are spread wider than this fraction of their median is not meaningful.
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
        """The interquartile range divided by the median. With fewer than four rounds, the full range is used."""
        if self.median == 0:
            return 0.0 if self.high == self.low else math.inf
        low, high = self.low, self.high
        if len(self.values) >= 4:
            low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (high - low) / abs(self.median)

    @property
    def is_noisy(self) -> bool:
        """True if the rounds are spread too widely to quote their median."""
        return self.width > NOISY

    def over(self, other: Spread) -> Spread:
        """Return the ratio in each round that both figures have. A disturbance in a round affects both figures."""
        pairs = zip(self.values, other.values, strict=False)
        return Spread(tuple(mine / theirs for mine, theirs in pairs if theirs))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of the values, where 0.99 stands for the 99th. The result is always one of the values."""
    place = math.ceil(share * len(values)) - 1
    return sorted(values)[max(0, place)]
