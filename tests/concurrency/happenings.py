"""What must have happened for a run at random to say anything, however the dice fall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

# A run goes on at most so many times as long as it should, for what has not happened yet.
_PATIENCE = 10


def until_seen(told: Counter[str], once_in: Mapping[str, int], runs: int, *, at_once: int = 1) -> Iterator[None]:
    """One turn for so many runs at once, until all have been made and each of these has been told often enough for
    them; fails if it never is."""
    rare: dict[str, int] = {}
    for made in range(0, _PATIENCE * runs, at_once):
        rare = {what: told[what] for what, number in once_in.items() if told[what] < runs // number}
        if made >= runs and not rare:
            return
        yield
    raise AssertionError(f"too rare for {runs} runs: {rare}; what happened: {told}")
