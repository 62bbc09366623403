"""Tests for signal sources, which a sender cannot disguise as an approver or as the engine."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowfabric.core.waits.sources import make_source
from flowfabric.engine import InvalidRequest

NAMES = st.text(st.sampled_from("ab:1/"), min_size=1, max_size=8)


def _make_claimed_source(kind: str, identity: str) -> str:
    return make_source(approver=None, source_type=kind, source_identity=identity)


def test_approver_of_the_token_overrides_the_claimed_source() -> None:
    first = make_source(approver="ops", source_type="user", source_identity="ada")
    second = make_source(approver="ops", source_type="user", source_identity="bob")
    assert first == second == make_source(approver="ops", source_type="x", source_identity="y", known_to_engine=True)


@given(NAMES, NAMES, NAMES, NAMES)
@example("a:b", "c", "a", "b:c")
@example("1", "1:a", "1:1", "a")
def test_different_pairs_are_different_sources(kind: str, identity: str, other_kind: str, other_identity: str) -> None:
    same = (kind, identity) == (other_kind, other_identity)
    assert (_make_claimed_source(kind, identity) == _make_claimed_source(other_kind, other_identity)) == same


@given(NAMES, NAMES, NAMES, NAMES)
def test_claimed_source_never_equals_an_approver_or_an_engine_source(
    kind: str, identity: str, approver: str, engine_identity: str
) -> None:
    bound = make_source(approver=approver, source_type="user", source_identity="ada")
    engine = make_source(approver=None, source_type=kind, source_identity=engine_identity, known_to_engine=True)
    assert len({_make_claimed_source(kind, identity), bound, engine}) == 3


def test_sender_cannot_imitate_an_approver() -> None:
    bound = make_source(approver="ops", source_type="user", source_identity="ada")
    assert bound not in {
        _make_claimed_source("approver", "ops"),
        _make_claimed_source("approver:ops", "ops"),
        _make_claimed_source(bound, bound),
    }


@pytest.mark.parametrize("bad", ["", " a", "a\x00", "x" * 257])
def test_invalid_source_name_is_rejected(bad: str) -> None:
    for kind, identity in ((bad, "a"), ("a", bad)):
        with pytest.raises(InvalidRequest):
            _make_claimed_source(kind, identity)
    with pytest.raises(InvalidRequest):
        make_source(approver=bad, source_type="a", source_identity="a")
