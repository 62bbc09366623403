"""Tests for the statistics of the benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.spread import Spread, percentile


def test_spread_has_median_low_and_high() -> None:
    figure = Spread.of([3, 1, 2])
    assert (figure.median, figure.low, figure.high) == (2, 1, 3)


def test_width_covers_all_of_few_rounds_and_the_middle_half_of_more() -> None:
    assert Spread.of([90, 100, 110]).width == pytest.approx(0.2)
    assert Spread.of([100, 100, 100, 100, 1_000]).width == 0


@pytest.mark.parametrize(
    ("values", "noisy"),
    [([100], False), ([90, 100, 110], False), ([50, 100, 150], True), ([0, 0], False), ([0, 0, 1], True)],
)
def test_distant_rounds_are_noisy(values: list[float], noisy: bool) -> None:
    assert Spread.of(values).is_noisy is noisy


def test_ratio_is_taken_per_round() -> None:
    # In the second round other load halved the figures of both contenders, which does not change their ratio.
    ours, theirs = Spread.of([100, 50, 100]), Spread.of([10, 5, 10])
    assert ours.over(theirs).values == (10, 10, 10)


def test_ratio_has_the_rounds_that_both_sides_have() -> None:
    assert Spread.of([8, 6]).over(Spread.of([2])).values == (4,)


def test_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (50, 99, 100)
    assert percentile([7], 0.99) == 7
