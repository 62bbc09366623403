"""Cursors: they come back as they were, and those of other places, cut or changed ones are refused."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.positions import FIRST, Place, Position, check_cursor, read_cursor, require_kept, write_cursor

HERE = Place(UUID(int=7), "default")
NUMBERS = st.integers(0, 2**64 - 1)
IDS = st.integers(0, 2**63 - 1)


@given(NUMBERS, IDS, st.uuids(), st.text(min_size=1))
def test_a_cursor_comes_back_as_it_was(xid: int, id_: int, store: UUID, namespace: str) -> None:
    place = Place(store, namespace.encode("utf-8", "ignore").decode() or "x")
    assert read_cursor(write_cursor(place, Position(xid, id_)), place) == Position(xid, id_)


@given(NUMBERS, IDS, st.integers(0, 63), st.characters(codec="ascii"))
def test_a_changed_cursor_is_refused(xid: int, id_: int, place: int, letter: str) -> None:
    cursor = write_cursor(HERE, Position(xid, id_))
    changed = cursor[:place] + letter + cursor[place + 1 :]
    if changed != cursor:
        assert code_of(changed, HERE) == "cursor_invalid"


def test_a_cursor_of_another_place_is_told_so() -> None:
    cursor = write_cursor(HERE, Position(5, 6))
    assert code_of(cursor, Place(UUID(int=8), "default")) == "cursor_foreign"
    assert code_of(cursor, Place(UUID(int=7), "other")) == "cursor_foreign"
    assert check_cursor(cursor) == cursor


def test_positions_are_ordered_by_transaction_and_then_by_id() -> None:
    assert FIRST < Position(1, 9) < Position(2, 1) < Position(2, 2)


def test_a_position_before_what_was_trimmed_has_expired() -> None:
    assert require_kept(Position(2, 2), Position(2, 2)) == Position(2, 2)
    assert require_kept(FIRST, Position(2, 2)) == FIRST
    with pytest.raises(FlowFabricError) as caught:
        require_kept(Position(2, 1), Position(2, 2))
    assert caught.value.code == "cursor_expired"


def code_of(cursor: object, place: Place) -> str:
    with pytest.raises(FlowFabricError) as caught:
        read_cursor(cursor, place)
    return caught.value.code
