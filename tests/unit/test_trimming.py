"""Which events may go: what every named subscriber has passed."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.positions import Position
from flowfabric.core.trimming import decide_trim, passed_by

A, B, C = (UUID(int=number) for number in (1, 2, 3))
DUE = [(A, Position(1, 1)), (B, Position(5, 2)), (C, None)]


def test_without_subscribers_everything_that_is_due_goes() -> None:
    trim = decide_trim(DUE, None)
    assert (trim.remove, trim.postpone, trim.last) == ((A, B, C), (), Position(5, 2))


def test_what_the_slowest_has_not_passed_is_looked_at_later() -> None:
    trim = decide_trim(DUE, Position(5, 1))
    assert (trim.remove, trim.postpone, trim.last) == ((A, C), (B,), Position(1, 1))


def test_nothing_that_goes_leaves_nothing_to_note() -> None:
    assert decide_trim([], None).last is None
    assert decide_trim([(C, None)], None).last is None


def test_events_apart_go_up_to_the_slowest() -> None:
    positions = [Position(1, 1), Position(2, 1)]
    assert passed_by(positions, Position(1, 1)) == positions[:1]
    assert passed_by(positions, None) == positions
