"""close_waitpoint: a waitpoint takes no more signals; whoever waits on others too waits on."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.engine import (
    Accepted,
    AnyOf,
    DuplicateSignal,
    Effect,
    Engine,
    NotFound,
    Pending,
    Single,
    State,
    WaitpointClosed,
    WaitpointState,
)  # fmt: skip
from tests.facts import last_event, nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_a_closed_waitpoint_refuses_what_is_new_and_still_answers_what_it_had(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    made = await engine.waitpoints.create(lease.fence, "go")
    assert made.token is not None
    first = await engine.signals.deliver(made.token, "go", key="evt")
    answer = await engine.waitpoints.close(made.id, "sent to the wrong address", principal="ada")
    assert answer == WaitpointClosed(made.id, already=False)
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.principal) == ("operator", "waitpoint_closed", "ada")
    assert (event.reason, event.details) == ("sent to the wrong address", {"waitpoint": "go"})
    async with nothing_written(store):
        await refused(engine.signals.deliver(made.token, "go"), "waitpoint_closed")
        assert await engine.signals.deliver(made.token, "go", key="evt") == DuplicateSignal(first.signal_id)
        assert await engine.waitpoints.close(made.id) == WaitpointClosed(made.id, already=True)
        await refused(engine.leases.suspend(lease.fence, [Pending("go")]), "waitpoint_not_found", NotFound)
    [shown] = await engine.waitpoints.list(lease.execution_id)
    assert (shown.state, shown.close_reason) == (WaitpointState.CLOSED, "closed")


async def test_the_wait_goes_on_for_the_rest(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b"], AnyOf([Single("a"), Single("b")]))
    await engine.waitpoints.close(wait.waitpoint("a"))
    found = await engine.executions.describe(wait.id)
    assert (found.state, [item.key for item in found.waitpoints]) == (State.SUSPENDED, ["b"])
    answer = await engine.signals.deliver(wait.token("b"), "go")
    assert isinstance(answer, Accepted)
    assert answer.effect is Effect.SATISFIED
    reasons = {item.key: item.close_reason for item in await engine.waitpoints.list(wait.id)}
    assert reasons == {"a": "closed", "b": "resumed"}


async def test_a_wait_whose_only_waitpoint_was_closed_is_left_to_the_operator(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.waitpoints.close(wait.waitpoint())
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    await engine.operator.resume(wait.id)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_a_signal_that_had_counted_counts_on_after_its_waitpoint_is_closed(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b"])
    await engine.signals.deliver(wait.token("a"), "go")
    await engine.waitpoints.close(wait.waitpoint("a"))
    answer = await engine.signals.deliver(wait.token("b"), "go")
    assert isinstance(answer, Accepted)
    assert answer.effect is Effect.SATISFIED


async def test_what_is_unknown_or_has_ended(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine)
    await engine.operator.cancel(wait.id)
    async with nothing_written(store):
        await refused(engine.waitpoints.close(uuid4()), "waitpoint_not_found", NotFound)
        assert await engine.waitpoints.close(wait.waitpoint()) == WaitpointClosed(wait.waitpoint(), already=True)
