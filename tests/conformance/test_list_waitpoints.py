"""Tests of list_waitpoints, which returns all waitpoints of an execution in pages and never a token."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.core.tokens.token import fingerprint
from flowfabric.engine import (
    AllOf,
    AnySignal,
    Engine,
    NewWaitpoint,
    NotFound,
    OperatorOnly,
    Single,
    Timer,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased, submitted, suspended


async def test_waitpoint_shows_everything_but_its_token(engine: Engine, clock: VirtualClock) -> None:
    condition = AllOf([Single("ada", "yes"), Single("ada", "no"), Single("any", AnySignal()), Single("late")])
    bindings = [NewWaitpoint("ada", approver="ada"), "any", Timer("late", clock.now())]
    wait = await suspended(engine, bindings, condition, timeout="1h")
    waitpoints = {waitpoint.key: waitpoint for waitpoint in await engine.waitpoints.list(wait.id)}
    [kid] = [key.kid for key in await engine.keys.list()]
    ada = waitpoints["ada"]
    assert (ada.id, ada.execution_id, ada.kind) == (wait.waitpoint("ada"), wait.id, WaitpointKind.ADDRESSED)
    assert (ada.state, ada.approver, ada.names, ada.kid) == (WaitpointState.ACTIVE, "ada", ("yes", "no"), kid)
    assert ada.fingerprint == fingerprint(wait.token("ada"))
    assert (ada.created_at, ada.closed_at, ada.close_reason) == (clock.now(), None, None)
    assert (waitpoints["any"].names, waitpoints["any"].approver) == (None, None)
    assert (waitpoints["late"].kind, waitpoints["late"].fingerprint, waitpoints["late"].kid) == (
        WaitpointKind.TIMER,
        None,
        None,
    )
    text = repr(waitpoints)
    assert all(waitpoint.token is None or waitpoint.token.reveal() not in text for waitpoint in wait.answer.waitpoints)


async def test_waitpoint_of_an_operator_wait_has_no_names(engine: Engine) -> None:
    wait = await suspended(engine, ["note"], OperatorOnly())
    [waitpoint] = await engine.waitpoints.list(wait.id)
    assert waitpoint.names == ()


async def test_pages_are_in_id_order_and_include_closed_waitpoints(engine: Engine) -> None:
    lease = await leased(engine)
    ids = [(await engine.waitpoints.create(lease.fence, f"k{number}")).id for number in range(7)]
    await engine.waitpoints.close(ids[3])
    first = await engine.waitpoints.list(lease.execution_id, limit=4)
    rest = await engine.waitpoints.list(lease.execution_id, after=first[-1].id, limit=4)
    assert [waitpoint.id for waitpoint in (*first, *rest)] == sorted(ids)
    assert await engine.waitpoints.list(lease.execution_id, after=rest[-1].id) == []


async def test_unknown_execution_is_not_found_and_one_without_waitpoints_has_an_empty_list(engine: Engine) -> None:
    await refused(engine.waitpoints.list(uuid4()), "execution_not_found", NotFound)
    assert await engine.waitpoints.list(await submitted(engine)) == []


async def test_names_of_an_earlier_suspension_do_not_apply_to_a_later_one(engine: Engine) -> None:
    wait = await suspended(engine, ["a"], Single("a", "yes"))
    await engine.signals.deliver(wait.token("a"), "yes")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    await suspended(engine, ["b"], Single("b", "no"), lease=lease)
    names = {waitpoint.key: waitpoint.names for waitpoint in await engine.waitpoints.list(wait.id)}
    assert names == {"a": None, "b": ("no",)}
