"""Tests for the submissions that a task builds and for the codec of handles."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from flowfabric import App, Backoff, Handle, InvalidRequest, Signal, ValueRefused
from flowfabric.values import codec_for

app = App("tasks.db")
ID = UUID("01890000-0000-7000-8000-000000000001")


@dataclass
class Order:
    id: str
    total: int = 0


paid = Signal("paid", Order)


@app.task(
    retries=5,
    backoff=Backoff(initial="2s"),
    timeout="1m",
    deadline="1d",
    lane="slow",
    priority=7,
    requires=["gpu"],
    retention="7d",
    signals=[paid],
    raises=[KeyError],
    cancel_grace="10s",
)
async def refund(order: Order, *, fast: bool = False) -> str:
    return order.id


@app.task
def plain(number: int = 3) -> int:
    return number


def test_inputs_are_stored_by_name_with_their_defaults() -> None:
    submission = refund.submission((Order("a"),), {})
    assert submission.payload == b'{"order":{"id":"a","total":0},"fast":false}'
    assert submission.encoding == "json"


def test_submission_has_the_settings_of_the_task() -> None:
    submission = refund.submission((Order("a"),), {})
    assert (submission.kind, submission.lane, submission.priority) == ("refund", "slow", 7)
    assert (submission.requires, list(submission.signals)) == (("gpu",), ["paid"])
    policy = submission.policy
    assert (policy.max_retries, policy.backoff.initial) == (5, timedelta(seconds=2))
    assert (policy.attempt_timeout, policy.deadline) == (timedelta(minutes=1), timedelta(days=1))
    assert policy.retention == timedelta(days=7)


def test_options_override_the_settings_of_the_task() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    changed = refund.options(lane="fast", priority=1, retries=0, requires=[], tags={"team.owner": "me"}, deadline="1h")
    submission = changed.options(at=at).submission((Order("a"),), {})
    assert (submission.lane, submission.priority, submission.requires) == ("fast", 1, ())
    assert (submission.policy.max_retries, submission.policy.deadline) == (0, timedelta(hours=1))
    assert (submission.tags, submission.ready_at) == ({"team.owner": "me"}, at)
    assert refund.submission((Order("a"),), {}).lane == "slow"


def test_options_rejects_invalid_values() -> None:
    for options in ({"delay": "soon"}, {"lane": ""}, {"tags": {"X": "y"}}, {"retries": -1}):
        with pytest.raises(InvalidRequest):
            plain.options(**options)
    with pytest.raises(InvalidRequest, match="not both"):
        plain.options(delay=1, at=datetime.now(UTC))
    with pytest.raises(InvalidRequest, match="at has no time zone"):
        plain.options(at=datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake under test


def test_call_rejects_arguments_that_cannot_be_stored() -> None:
    with pytest.raises(ValueRefused, match="order"):
        refund.call("a")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="missing"):
        refund.call()  # type: ignore[call-arg]


def test_connection_is_accepted_by_submit_only() -> None:
    with pytest.raises(InvalidRequest, match="connection="):
        plain.options(connection=object()).call(1)
    with pytest.raises(InvalidRequest, match="connection="):
        _ = plain.options(connection=object()).run(1)


def test_sync_views_have_the_repr_of_their_async_object() -> None:
    assert repr(refund.sync) == repr(refund) == "<task refund>"
    assert repr(refund.handle(ID).sync) == f"<handle of refund {ID}>"


def test_a_handle_is_stored_as_its_id() -> None:
    codec = codec_for(Handle[str], what="a handle")
    data = codec.store(refund.handle(ID))
    assert data == f'"{ID}"'.encode()
    assert codec.restore(data) == refund.handle(ID)
    assert codec.restore(data).annotation is str


def test_a_handle_may_be_a_field() -> None:
    @dataclass
    class Job:
        child: Handle[int]

    codec = codec_for(Job, what="a job")
    assert codec.restore(codec.store(Job(plain.handle(ID)))) == Job(plain.handle(ID))


def test_handle_rejects_an_invalid_id() -> None:
    with pytest.raises(InvalidRequest):
        _ = app.handle("17")
