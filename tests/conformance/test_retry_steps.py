"""Tests of `leases.retry_steps`: the failed tries of steps are visible while the steps wait for their next try."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from flowfabric.engine import Engine, InvalidRequest, Lease, State, Step, StepRetry, StepStatus
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, nothing_written, refused, step_retry
from tests.scenarios import leased
from tests.stores import TestStore

ERROR = '"error":{"type":"ConnectionError","message":"refused","category":"net","traceback":"File pay.py, line 3"}'


def report(engine: Engine, name: str = "charge", tries: int = 1) -> tuple[StepRetry, Step]:
    """Return the report of a failed try, as a worker of the library makes it."""
    at = engine.now().replace(microsecond=0) + timedelta(minutes=tries)
    head = f'"kind":"step","index":0,"facts":{{"due":"{at.isoformat()}","retries":3,"tries":{tries},{ERROR}}}'
    message = "ConnectionError: refused"
    retry = StepRetry(step=name, tries=tries, max_tries=4, at=at, message=message, category="net")
    return retry, Step(name, f"[{{{head}}},null]".encode(), status=StepStatus.OPEN)


async def retried(engine: Engine, lease: Lease, name: str = "charge", tries: int = 1) -> int:
    retry, step = report(engine, name, tries)
    return await engine.leases.retry_steps(lease.fence, [retry], [step])


async def test_failed_try_is_in_the_history_and_is_the_last_failure(engine: Engine) -> None:
    lease = await leased(engine)
    assert await retried(engine, lease) == 1
    assert await retried(engine, lease, tries=2) == 1
    execution = await engine.executions.describe(lease.execution_id)
    assert execution.state is State.ACTIVE
    assert execution.last_failure is not None
    assert execution.last_failure.message == "step charge, try 2 of 4: ConnectionError: refused"
    assert execution.last_failure.category == "net"
    events = await engine.executions.history(lease.execution_id)
    tries = [event for event in events if (event.family, event.name) == ("lease", "step_retry_scheduled")]
    assert [event.reason for event in tries] == [
        f"step charge, try {number} of 4: ConnectionError: refused" for number in (1, 2)
    ]
    details = tries[0].details or {}
    assert (details["step"], details["tries"], details["max_tries"], details["category"]) == ("charge", 1, 4, "net")
    assert details["retry_at"] == report(engine)[0].at.isoformat()
    assert [event.version for event in events] == list(range(1, execution.version + 1))


async def test_report_stores_its_records_in_order(engine: Engine) -> None:
    lease = await leased(engine)
    retry, step = report(engine)
    await engine.leases.retry_steps(lease.fence, [retry], [Step("before", b"1"), step, Step("after", b"2")])
    steps = await engine.executions.steps(lease.execution_id)
    assert [(each.name, each.status) for each in steps] == [("before", "ok"), ("charge", "open"), ("after", "ok")]


async def test_repeated_report_has_no_effect(engine: Engine) -> None:
    lease = await leased(engine)
    assert await retried(engine, lease) == 1
    before = await engine.executions.history(lease.execution_id)
    assert await retried(engine, lease) == 0
    assert await engine.executions.history(lease.execution_id) == before


async def test_late_repeat_of_an_earlier_report_has_no_effect(engine: Engine) -> None:
    lease = await leased(engine)
    for tries in (1, 2):
        assert await retried(engine, lease, tries=tries) == 1
    history = await engine.executions.history(lease.execution_id)
    steps = await engine.executions.steps(lease.execution_id)
    assert await retried(engine, lease, tries=1) == 0
    assert await engine.executions.history(lease.execution_id) == history
    assert await engine.executions.steps(lease.execution_id) == steps


async def test_report_is_refused_if_it_names_a_step_twice(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    retry, step = report(engine)
    async with nothing_written(store):
        error = await error_of(engine.leases.retry_steps(lease.fence, [retry, retry], [step]))
    assert isinstance(error, InvalidRequest)


async def test_explain_ignores_an_open_step_of_another_program(engine: Engine) -> None:
    lease = await leased(engine)
    payload = b'[{"kind":"step","facts":{"due":"garbage","error":1}},null]'
    await engine.leases.checkpoint(lease.fence, [Step("odd", payload, status=StepStatus.OPEN)])
    assert "odd" not in str(await engine.operator.explain(lease.execution_id))


async def test_report_needs_the_open_record_of_its_step(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    retry, step = report(engine)
    async with nothing_written(store):
        for steps in ([], [Step("other")], [Step("charge", b"1")]):
            error = await error_of(engine.leases.retry_steps(lease.fence, [retry], steps))
            assert isinstance(error, InvalidRequest)
        for wrong in (replace(retry, tries=0), replace(retry, max_tries=0), replace(retry, message="\x00"), "charge"):
            with pytest.raises(InvalidRequest):
                await engine.leases.retry_steps(lease.fence, [wrong], [step])  # type: ignore[list-item]


async def test_report_is_refused_after_the_lease(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    async with nothing_written(store):
        await refused(engine.leases.retry_steps(lease.fence, *step_retry("late")), "lease_revoked")


async def test_explain_names_the_step_its_next_try_and_its_failure(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await retried(engine, lease)
    at = report(engine)[0].at
    explanation = await engine.operator.explain(lease.execution_id)
    sentence = f'Step "charge": retry 1 of 3 at {at:%H:%M:%S} UTC. Last failure: ConnectionError: refused.'
    assert explanation.sentence.startswith('Running on worker "')
    assert explanation.sentence.endswith(sentence)
    await engine.leases.delay(lease.fence, until=at)
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.sentence == sentence
    assert explanation.facts["retrying"] == [
        {"step": "charge", "tries": 1, "next_try_at": at, "error": "ConnectionError: refused"}
    ]


async def test_explain_names_the_start_of_a_retry_that_is_due(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    await retried(engine, lease)
    at = report(engine)[0].at
    clock.advance(at - engine.now())
    explanation = await engine.operator.explain(lease.execution_id)
    assert f'Step "charge": retry 1 of 3 since {at:%H:%M:%S} UTC.' in explanation.sentence
    await engine.leases.release(lease.fence)
    explanation = await engine.operator.explain(lease.execution_id)
    assert f'Step "charge": retry 1 of 3 due since {at:%H:%M:%S} UTC.' in explanation.sentence


async def test_explain_counts_the_other_steps_that_are_retried(engine: Engine) -> None:
    lease = await leased(engine)
    first = report(engine, "charge")[0].at
    for name in ("charge", "mail", "log"):
        await retried(engine, lease, name, tries=1 if name == "charge" else 2)
    explanation = await engine.operator.explain(lease.execution_id)
    assert f'Step "charge": retry 1 of 3 at {first:%H:%M:%S} UTC. 2 other steps are retried too.' in str(explanation)


async def test_explain_forgets_a_retry_once_the_step_has_ended(engine: Engine) -> None:
    lease = await leased(engine)
    await retried(engine, lease)
    await engine.leases.checkpoint(lease.fence, [Step("charge", b"1")])
    assert "charge" not in str(await engine.operator.explain(lease.execution_id))
