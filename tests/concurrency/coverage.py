"""Repeat randomised runs until every required event has occurred often enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

# If required events are still too rare, a randomised test makes up to this many times the planned number of runs.
_PATIENCE = 10


def repeat_until_covered(
    outcomes: Counter[str], once_in: Mapping[str, int], runs: int, *, at_once: int = 1
) -> Iterator[None]:
    """Yield once per batch of runs until `runs` are done and every event is frequent enough.

    Raise AssertionError if an event stays too rare.
    """
    rare: dict[str, int] = {}
    for done in range(0, _PATIENCE * runs, at_once):
        rare = {what: outcomes[what] for what, number in once_in.items() if outcomes[what] < runs // number}
        if done >= runs and not rare:
            return
        yield
    raise AssertionError(f"too rare for {runs} runs: {rare}; all outcomes: {outcomes}")
