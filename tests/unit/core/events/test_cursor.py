"""Tests for cursors: round trips, and the rejection of foreign, truncated or changed ones."""

from __future__ import annotations

import base64
import hashlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.events.cursor import (
    FIRST,
    CursorScope,
    Position,
    check_cursor,
    read_cursor,
    require_kept,
    write_cursor,
)

SCOPE = CursorScope(UUID(int=7), "default")
NUMBERS = st.integers(0, 2**64 - 1)
IDS = st.integers(0, 2**63 - 1)


@given(NUMBERS, IDS, st.uuids(), st.text(min_size=1), IDS)
def test_cursor_survives_a_round_trip(xid: int, id_: int, store: UUID, namespace: str, era: int) -> None:
    scope = CursorScope(store, namespace.encode("utf-8", "ignore").decode() or "x", era)
    assert read_cursor(write_cursor(scope, Position(xid, id_)), scope) == (era, Position(xid, id_))


def test_cursor_from_before_eras_is_accepted_as_era_zero() -> None:
    body = SCOPE.store.bytes + SCOPE.namespace_digest + (5).to_bytes(8) + (6).to_bytes(8)
    old = "ffc1." + base64.urlsafe_b64encode(body + hashlib.sha256(body).digest()[:4]).decode().rstrip("=")
    assert read_cursor(old, SCOPE) == (0, Position(5, 6))
    assert write_cursor(SCOPE, Position(5, 6)) == old
    assert write_cursor(CursorScope(SCOPE.store, SCOPE.namespace, 1), Position(5, 6)).startswith("ffc2.")


@given(NUMBERS, IDS, st.integers(0, 63), st.characters(codec="ascii"))
def test_changed_cursor_is_rejected(xid: int, id_: int, index: int, character: str) -> None:
    cursor = write_cursor(SCOPE, Position(xid, id_))
    changed = cursor[:index] + character + cursor[index + 1 :]
    if changed != cursor:
        assert get_error_code(changed, SCOPE) == "cursor_invalid"


def test_cursor_of_another_scope_is_rejected_as_foreign() -> None:
    cursor = write_cursor(SCOPE, Position(5, 6))
    assert get_error_code(cursor, CursorScope(UUID(int=8), "default")) == "cursor_foreign"
    assert get_error_code(cursor, CursorScope(UUID(int=7), "other")) == "cursor_foreign"
    assert check_cursor(cursor) == cursor


def test_positions_are_ordered_by_transaction_and_then_by_id() -> None:
    assert FIRST < Position(1, 9) < Position(2, 1) < Position(2, 2)


def test_position_before_trimmed_events_has_expired() -> None:
    assert require_kept(Position(2, 2), Position(2, 2)) == Position(2, 2)
    assert require_kept(FIRST, Position(2, 2)) == FIRST
    with pytest.raises(FlowFabricError) as caught:
        require_kept(Position(2, 1), Position(2, 2))
    assert caught.value.code == "cursor_expired"


def get_error_code(cursor: object, scope: CursorScope) -> str:
    with pytest.raises(FlowFabricError) as caught:
        read_cursor(cursor, scope)
    return caught.value.code
