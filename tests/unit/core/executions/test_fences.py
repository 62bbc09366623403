"""Tests for fence checks, the order of rejection reasons, and the recognition of repeated requests."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import (
    digest,
    execution_not_found,
    explain_fence,
    find_repeated,
    owns,
    require_owner,
)
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
    get_fence,
    make_former_lease,
    make_leased,
    make_live_lease,
    make_new,
    make_started,
)

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


def _make_fence(lease_id: str, epoch: str) -> Fence:
    return Fence(ID, EPOCHS[epoch], LEASE_IDS[lease_id])


def _get_error_code(execution: Execution, fence: Fence) -> str:
    with pytest.raises(Refused) as refused:
        require_owner(execution, fence, T0)
    assert refused.value.fields["state"] == execution.state
    assert refused.value.fields["epoch"] == execution.epoch
    assert "outcome" in refused.value.fields
    return refused.value.code


@pytest.mark.parametrize(("lease_id", "epoch"), list(product(LEASE_IDS, EPOCHS)))
@pytest.mark.parametrize("seconds_left", [1, 0, -1])
def test_only_the_live_fence_of_an_unexpired_lease_is_the_owner(lease_id: str, epoch: str, seconds_left: int) -> None:
    execution = make_leased(
        lease=make_live_lease(expires_at=T0 + seconds_left * SECOND), former=make_former_lease(end="lease_revoked")
    )
    fence = _make_fence(lease_id, epoch)
    is_live = (lease_id, epoch) == ("live", "live")
    assert owns(execution, fence, T0) == (is_live and seconds_left > 0)
    if is_live and seconds_left > 0:
        assert require_owner(execution, fence, T0) is execution
    elif is_live:
        assert _get_error_code(execution, fence) == "lease_expired"
    elif (lease_id, epoch) == ("former", "former"):
        assert _get_error_code(execution, fence) == "lease_revoked"
    else:
        assert _get_error_code(execution, fence) == "stale_lease"


@pytest.mark.parametrize("situation", WITHOUT_LEASE)
@pytest.mark.parametrize("end", ENDS)
def test_former_fence_is_rejected_with_the_end_of_its_lease(situation: str, end: str) -> None:
    execution = SITUATIONS[situation](former=make_former_lease(end=end))
    assert not owns(execution, _make_fence("former", "former"), T0)
    assert _get_error_code(execution, _make_fence("former", "former")) == ENDS[end]


@pytest.mark.parametrize("end", ENDS)
def test_former_fence_gets_its_reason_even_if_another_owner_is_active(end: str) -> None:
    assert _get_error_code(make_leased(former=make_former_lease(end=end)), _make_fence("former", "former")) == ENDS[end]


@pytest.mark.parametrize("situation", WITHOUT_LEASE)
@pytest.mark.parametrize("lease_id", LEASE_IDS)
def test_fence_without_a_lease_is_stale_if_older_and_not_active_otherwise(situation: str, lease_id: str) -> None:
    execution = SITUATIONS[situation](former=make_former_lease(end="lease_expired"))
    assert _get_error_code(execution, _make_fence(lease_id, "older")) == "stale_lease"
    for epoch in ("live", "future"):
        assert _get_error_code(execution, _make_fence(lease_id, epoch)) == "execution_not_active"
    if lease_id != "former":
        assert _get_error_code(execution, _make_fence(lease_id, "former")) == "execution_not_active"


@pytest.mark.parametrize("epoch", EPOCHS)
def test_execution_that_never_had_a_lease_is_not_active_for_every_fence(epoch: str) -> None:
    assert _get_error_code(make_new(), _make_fence("forged", epoch)) == "execution_not_active"


def test_unprocessed_expired_lease_is_expired_for_its_owner_only() -> None:
    execution = make_leased(lease=make_live_lease(expires_at=T0), former=None)
    assert _get_error_code(execution, get_fence(execution)) == "lease_expired"
    assert _get_error_code(execution, get_fence(execution, lease_id=FORGED)) == "stale_lease"


def test_lease_has_no_owner_from_its_expiry_time_on() -> None:
    execution = make_leased(lease=make_live_lease(expires_at=T0))
    assert owns(execution, get_fence(execution), T0 - SECOND / 1_000_000)
    assert not owns(execution, get_fence(execution), T0)


def test_explanation_has_the_current_state_without_lease_ids() -> None:
    refused = explain_fence(make_leased(), _make_fence("forged", "live"))
    assert refused.fields["execution_id"] == ID
    assert refused.fields["outcome"] == "none"
    assert str(FORGED) not in str(refused) and str(LEASE_ID) not in str(refused), "a lease id is a secret"


def test_missing_execution_is_not_found() -> None:
    with pytest.raises(NotFound) as missing:
        require_owner(None, _make_fence("live", "live"), T0)
    assert missing.value.code == "execution_not_found"
    assert missing.value.fields["execution_id"] == ID
    assert execution_not_found(ID).code == "execution_not_found"


def test_repeated_request_is_recognized_by_fence_and_digest() -> None:
    execution = make_started(former=make_former_lease(digest="d", until=T0 + MINUTE))
    assert find_repeated(execution, _make_fence("former", "former"), "d") == execution.former
    assert find_repeated(execution, _make_fence("former", "former"), "other") is None
    assert find_repeated(execution, _make_fence("forged", "former"), "d") is None
    assert find_repeated(execution, _make_fence("former", "older"), "d") is None
    assert find_repeated(None, _make_fence("former", "former"), "d") is None
    assert find_repeated(replace(execution, former=None), _make_fence("former", "former"), "d") is None


def test_lost_lease_has_no_digest_and_matches_no_request() -> None:
    execution = make_started(former=make_former_lease(end="lease_expired", digest=None))
    assert find_repeated(execution, _make_fence("former", "former"), digest("complete", b"out")) is None


PART = st.one_of(
    st.none(), st.binary(max_size=8), st.sampled_from([b"\x00-", b"\x001:a", b"1:a", b"-", b"\x00", b"0:"])
)
CONTENT = st.lists(PART, max_size=4)


@given(CONTENT, CONTENT)
def test_digests_are_equal_only_for_equal_parts(one: list[bytes | None], two: list[bytes | None]) -> None:
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
def test_digest_depends_on_the_boundaries_of_parts(one: tuple[str | None, ...], two: tuple[str | None, ...]) -> None:
    assert digest("fail", *one) != digest("fail", *two)


def test_digest_depends_on_the_operation_and_is_stable() -> None:
    assert digest("complete", b"x") != digest("fail", b"x")
    assert digest("delay", "grüße") == digest("delay", "grüße".encode())
    # Digests are stored in rows, so every later release must compute the same value.
    assert digest("complete", b"out", None) == hashlib.sha256(b"complete\x003:out\x00-").hexdigest()
