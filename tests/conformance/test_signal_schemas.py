"""Tests of schemas: the store refuses a payload that the waiting code cannot read, and the wait stays open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric.core.waits.schemas import MAX_SCHEMA_BYTES
from flowfabric.engine import Accepted, DuplicateSignal, Engine, InvalidRequest, NewWaitpoint, State
from tests.expectations import nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

SCHEMA = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}


async def test_payload_that_does_not_fit_a_declared_signal_is_refused_and_nothing_is_stored(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine, signals={"paid": SCHEMA, "other": None})
    for payload in (b"", b"no JSON", b"{}", b'{"cents": "much"}'):
        async with nothing_written(store):
            await refused(engine.signals.send(lease.execution_id, "paid", payload), "payload_mismatch", InvalidRequest)
    assert isinstance(await engine.signals.send(lease.execution_id, "paid", b'{"cents": 1}'), Accepted)
    assert isinstance(await engine.signals.send(lease.execution_id, "other", b"no JSON"), Accepted)


@pytest.mark.parametrize("opens", ["suspend", "create", "create_many"])
async def test_payload_that_does_not_fit_a_waitpoint_is_refused_and_the_wait_stays_open(
    engine: Engine, opens: str
) -> None:
    lease = await leased(engine)
    waitpoint = NewWaitpoint("reply", schema=SCHEMA)
    if opens == "create":
        await engine.waitpoints.create(lease.fence, "reply", schema=json.dumps(SCHEMA))
    elif opens == "create_many":
        await engine.waitpoints.create_many(lease.fence, [waitpoint])
    suspended: Any = await engine.leases.suspend(lease.fence, [waitpoint])
    [opened] = suspended.waitpoints
    for token in (opened.token, opened.token.reveal()):
        error = await refused(
            engine.signals.deliver(token, "reply", b'{"cents": []}'), "payload_mismatch", InvalidRequest
        )
        assert error.fields["problem"] == "cents: expected integer, not array"
    assert (await engine.executions.describe(lease.execution_id)).state is State.SUSPENDED
    await refused(
        engine.signals.approve(lease.execution_id, "reply", "reply", b"1"), "payload_mismatch", InvalidRequest
    )
    accepted = await engine.signals.deliver(opened.token, "reply", b'{"cents": 5}', key="once")
    assert isinstance(accepted, Accepted)
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING
    repeated = await engine.signals.deliver(opened.token, "reply", b"no JSON", key="once")
    assert repeated == DuplicateSignal(accepted.signal_id)


async def test_declared_schema_is_kept_by_a_replay_and_ignored_by_a_repeated_submit(engine: Engine) -> None:
    lease = await leased(engine, signals={"paid": SCHEMA})
    await engine.leases.complete(lease.fence, b"1")
    await engine.operator.replay(lease.execution_id)
    await refused(engine.signals.send(lease.execution_id, "paid", b"1"), "payload_mismatch", InvalidRequest)
    first = await engine.executions.submit("order", key="o-1", signals={"paid": SCHEMA})
    assert (await engine.executions.submit("order", key="o-1", signals=["paid"])).id == first.id


async def test_schema_that_is_no_object_or_too_large_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    large = {"enum": ["x" * MAX_SCHEMA_BYTES]}
    async with nothing_written(store):
        for schema, code in (
            (b"{}", "invalid_schema"),
            ("[]", "invalid_type"),
            ("{", "invalid_schema"),
            (large, "invalid_schema"),
        ):
            call = engine.waitpoints.create(lease.fence, "reply", schema=schema)  # type: ignore[arg-type]
            await refused(call, code, InvalidRequest)
