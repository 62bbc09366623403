"""A fence owns or is refused for the reason that the order of refusals gives, and a lost reply is recognised."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.fences import digest, execution_not_found, explain, owns, repeated, require_owner
from flowfabric.core.records import Execution
from flowfabric.engine import Fence, NotFound, Refused
from tests.unit.builders import (
    EPOCH,
    FORMER_ID,
    ID,
    LEASE_ID,
    MINUTE,
    SECOND,
    SITUATIONS,
    T0,
    fence_of,
    former_lease,
    fresh,
    leased,
    live_lease,
    started,
)  # fmt: skip

FORGED = UUID(int=0xBAD)
ENDS = {
    "lease_expired": "lease_expired",
    "lease_revoked": "lease_revoked",
    "complete": "execution_not_active",
    "fail": "execution_not_active",
    "retry": "execution_not_active",
    "delay": "execution_not_active",
    "release": "execution_not_active",
    "cancel": "execution_not_active",
    "expire": "execution_not_active",
    "attempt_timeout": "execution_not_active",
}
LEASE_IDS = {"live": LEASE_ID, "former": FORMER_ID, "forged": FORGED}
EPOCHS = {"live": EPOCH, "former": EPOCH - 1, "older": EPOCH - 2, "future": EPOCH + 1}
WITHOUT_LEASE = sorted(set(SITUATIONS) - {"leased"})


def _at(lease_id: str, epoch: str) -> Fence:
    return Fence(ID, EPOCHS[epoch], LEASE_IDS[lease_id])


def _code(execution: Execution, fence: Fence) -> str:
    with pytest.raises(Refused) as refused:
        require_owner(execution, fence, T0)
    assert refused.value.fields["state"] == execution.state
    assert refused.value.fields["epoch"] == execution.epoch
    assert "outcome" in refused.value.fields
    return refused.value.code


@pytest.mark.parametrize(("lease_id", "epoch"), list(product(LEASE_IDS, EPOCHS)))
@pytest.mark.parametrize("left", [1, 0, -1])
def test_of_a_leased_execution_only_the_live_fence_within_its_time_is_the_owner(
    lease_id: str, epoch: str, left: int
) -> None:
    execution = leased(lease=live_lease(expires_at=T0 + left * SECOND), former=former_lease(end="lease_revoked"))
    fence = _at(lease_id, epoch)
    is_live = (lease_id, epoch) == ("live", "live")
    assert owns(execution, fence, T0) == (is_live and left > 0)
    if is_live and left > 0:
        assert require_owner(execution, fence, T0) is execution
    elif is_live:
        assert _code(execution, fence) == "lease_expired"
    elif (lease_id, epoch) == ("former", "former"):
        assert _code(execution, fence) == "lease_revoked"
    else:
        assert _code(execution, fence) == "stale_lease"


@pytest.mark.parametrize("situation", WITHOUT_LEASE)
@pytest.mark.parametrize("end", ENDS)
def test_the_last_fence_that_lost_or_gave_up_the_lease_is_told_why(situation: str, end: str) -> None:
    execution = SITUATIONS[situation](former=former_lease(end=end))
    assert not owns(execution, _at("former", "former"), T0)
    assert _code(execution, _at("former", "former")) == ENDS[end]


@pytest.mark.parametrize("end", ENDS)
def test_the_last_fence_is_told_why_even_when_another_owner_is_active(end: str) -> None:
    assert _code(leased(former=former_lease(end=end)), _at("former", "former")) == ENDS[end]


@pytest.mark.parametrize("situation", WITHOUT_LEASE)
@pytest.mark.parametrize("lease_id", LEASE_IDS)
def test_without_a_lease_an_older_fence_is_stale_and_any_other_not_active(situation: str, lease_id: str) -> None:
    execution = SITUATIONS[situation](former=former_lease(end="lease_expired"))
    assert _code(execution, _at(lease_id, "older")) == "stale_lease"
    for epoch in ("live", "future"):
        assert _code(execution, _at(lease_id, epoch)) == "execution_not_active"
    if lease_id != "former":
        assert _code(execution, _at(lease_id, "former")) == "execution_not_active"


@pytest.mark.parametrize("epoch", EPOCHS)
def test_what_never_had_a_lease_is_not_active_to_every_fence(epoch: str) -> None:
    assert _code(fresh(), _at("forged", epoch)) == "execution_not_active"


def test_a_lease_past_its_time_that_nobody_has_touched_is_expired_to_its_owner_only() -> None:
    execution = leased(lease=live_lease(expires_at=T0), former=None)
    assert _code(execution, fence_of(execution)) == "lease_expired"
    assert _code(execution, fence_of(execution, lease_id=FORGED)) == "stale_lease"


def test_the_moment_of_expiry_belongs_to_nobody() -> None:
    execution = leased(lease=live_lease(expires_at=T0))
    assert owns(execution, fence_of(execution), T0 - SECOND / 1_000_000)
    assert not owns(execution, fence_of(execution), T0)


def test_an_explanation_says_what_it_is_now() -> None:
    refused = explain(leased(), _at("forged", "live"))
    assert refused.fields["execution_id"] == ID
    assert refused.fields["outcome"] == "none"
    assert str(FORGED) not in str(refused) and str(LEASE_ID) not in str(refused), "a lease id is a secret"


def test_an_execution_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound) as missing:
        require_owner(None, _at("live", "live"), T0)
    assert missing.value.code == "execution_not_found"
    assert missing.value.fields["execution_id"] == ID
    assert execution_not_found(ID).code == "execution_not_found"


def test_the_same_request_again_is_recognised_by_fence_and_digest() -> None:
    execution = started(former=former_lease(digest="d", until=T0 + MINUTE))
    assert repeated(execution, _at("former", "former"), "d") == execution.former
    assert repeated(execution, _at("former", "former"), "other") is None
    assert repeated(execution, _at("forged", "former"), "d") is None
    assert repeated(execution, _at("former", "older"), "d") is None
    assert repeated(None, _at("former", "former"), "d") is None
    assert repeated(replace(execution, former=None), _at("former", "former"), "d") is None


def test_a_lease_that_was_lost_has_no_digest_and_no_request_repeats_it() -> None:
    execution = started(former=former_lease(end="lease_expired", digest=None))
    assert repeated(execution, _at("former", "former"), digest("complete", b"out")) is None


PART = st.one_of(
    st.none(), st.binary(max_size=8), st.sampled_from([b"\x00-", b"\x001:a", b"1:a", b"-", b"\x00", b"0:"])
)
CONTENT = st.lists(PART, max_size=4)


@given(CONTENT, CONTENT)
def test_different_content_has_a_different_digest_however_it_is_split(
    one: list[bytes | None], two: list[bytes | None]
) -> None:
    assert (digest("fail", *one) == digest("fail", *two)) == (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("ab", "c"), ("a", "bc")),
        (("abc",), ("abc", "")),
        ((None,), ("",)),
        ((None,), ("None",)),
        ((None,), ("-",)),
        ((None, ""), ("", None)),
        (("a\x001:b",), ("a", "b")),
        ((), (None,)),
    ],
)
def test_a_digest_is_not_fooled_by_joining_parts(one: tuple[str | None, ...], two: tuple[str | None, ...]) -> None:
    assert digest("fail", *one) != digest("fail", *two)


def test_a_digest_tells_operations_apart_and_never_changes() -> None:
    assert digest("complete", b"x") != digest("fail", b"x")
    assert digest("delay", "grüße") == digest("delay", "grüße".encode())
    # Stored on rows, so a program of another release must find the same value.
    assert digest("complete", b"out", None) == hashlib.sha256(b"complete\x003:out\x00-").hexdigest()
