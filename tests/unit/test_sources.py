"""A sender chooses what its source is called, never who vouches for it, and no two sources read alike."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowfabric.core.sources import source_of
from flowfabric.engine import InvalidRequest

NAMES = st.text(st.sampled_from("ab:1/"), min_size=1, max_size=8)


def _claimed(kind: str, identity: str) -> str:
    return source_of(approver=None, source_type=kind, source_identity=identity)


def test_the_approver_of_the_token_is_the_source_whatever_the_sender_claims() -> None:
    honest = source_of(approver="ops", source_type="user", source_identity="ada")
    other = source_of(approver="ops", source_type="user", source_identity="bob")
    assert honest == other == source_of(approver="ops", source_type="x", source_identity="y", known_to_engine=True)


@given(NAMES, NAMES, NAMES, NAMES)
@example("a:b", "c", "a", "b:c")
@example("1", "1:a", "1:1", "a")
def test_different_pairs_are_different_sources(kind: str, identity: str, other_kind: str, other_identity: str) -> None:
    same = (kind, identity) == (other_kind, other_identity)
    assert (_claimed(kind, identity) == _claimed(other_kind, other_identity)) == same


@given(NAMES, NAMES, NAMES, NAMES)
def test_a_claimed_source_is_never_an_approver_nor_known_to_the_engine(
    kind: str, identity: str, approver: str, engine_identity: str
) -> None:
    bound = source_of(approver=approver, source_type="user", source_identity="ada")
    engine = source_of(approver=None, source_type=kind, source_identity=engine_identity, known_to_engine=True)
    assert len({_claimed(kind, identity), bound, engine}) == 3


def test_a_sender_cannot_spell_an_approver() -> None:
    bound = source_of(approver="ops", source_type="user", source_identity="ada")
    assert bound not in {_claimed("approver", "ops"), _claimed("approver:ops", "ops"), _claimed(bound, bound)}


@pytest.mark.parametrize("bad", ["", " a", "a\x00", "x" * 257])
def test_a_source_has_the_limits_of_a_name(bad: str) -> None:
    for kind, identity in ((bad, "a"), ("a", bad)):
        with pytest.raises(InvalidRequest):
            _claimed(kind, identity)
    with pytest.raises(InvalidRequest):
        source_of(approver=bad, source_type="a", source_identity="a")
