"""Which events may go: what every named subscriber has passed."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.positions import Position
from flowfabric.core.trimming import Buried, decide_trim, passed_by

A, B, C = (UUID(int=number) for number in (1, 2, 3))
DUE = [Buried(A, Position(1, 1), (1, 3)), Buried(B, Position(5, 2), (1, 2)), Buried(C, None)]


def test_without_subscribers_everything_that_is_due_goes() -> None:
    trim = decide_trim(DUE, None, 100)
    assert (trim.part, trim.gone) == ((), (A, B, C))
    assert (trim.postpone, trim.last) == ((), Position(5, 2))


def test_what_the_slowest_has_not_passed_is_looked_at_later() -> None:
    trim = decide_trim(DUE, Position(5, 1), 100)
    assert (trim.part, trim.gone) == ((), (A, C))
    assert (trim.postpone, trim.last) == ((B,), Position(1, 1))


def test_no_more_than_so_many_events_go_at_a_time() -> None:
    assert decide_trim(DUE, None, 4).part == ((B, 1),)
    assert decide_trim(DUE, None, 4).gone == (A, C)
    assert decide_trim(DUE, None, 2).part == ((A, 2),)
    assert decide_trim(DUE, None, 2).gone == (C,)
    left = [Buried(A, Position(1, 1), (3, 3)), DUE[1]]
    assert (decide_trim(left, None, 2).gone, decide_trim(left, None, 2).part) == ((A,), ((B, 1),))


def test_what_has_to_wait_for_the_next_page_is_not_noted_as_gone() -> None:
    assert decide_trim(DUE, None, 3).last == Position(1, 1)


def test_nothing_that_goes_leaves_nothing_to_note() -> None:
    assert decide_trim([], None, 100).last is None
    assert decide_trim([Buried(C, None)], None, 100).last is None


def test_events_apart_go_up_to_the_slowest() -> None:
    positions = [Position(1, 1), Position(2, 1)]
    assert passed_by(positions, Position(1, 1)) == positions[:1]
    assert passed_by(positions, None) == positions
