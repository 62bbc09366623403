"""list_waitpoints: all waitpoints of an execution, page by page, and never a token."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.core.tokens import fingerprint
from flowfabric.engine import (
    AllOf,
    AnySignal,
    Engine,
    Fresh,
    NotFound,
    OperatorOnly,
    Single,
    Timer,
    WaitpointKind,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import refused
from tests.scenarios import leased, submitted, suspended


async def test_a_waitpoint_shows_everything_but_its_token(engine: Engine, clock: VirtualClock) -> None:
    condition = AllOf([Single("ada", "yes"), Single("ada", "no"), Single("any", AnySignal()), Single("late")])
    bindings = [Fresh("ada", approver="ada"), "any", Timer("late", clock.now())]
    wait = await suspended(engine, bindings, condition, timeout="1h")
    listed = {item.key: item for item in await engine.waitpoints.list(wait.id)}
    [kid] = [key.kid for key in await engine.keys.list()]
    ada = listed["ada"]
    assert (ada.id, ada.execution_id, ada.kind) == (wait.waitpoint("ada"), wait.id, WaitpointKind.ADDRESSED)
    assert (ada.state, ada.approver, ada.names, ada.kid) == (WaitpointState.ACTIVE, "ada", ("yes", "no"), kid)
    assert ada.fingerprint == fingerprint(wait.token("ada"))
    assert (ada.created_at, ada.closed_at, ada.close_reason) == (clock.now(), None, None)
    assert (listed["any"].names, listed["any"].approver) == (None, None)
    assert (listed["late"].kind, listed["late"].fingerprint, listed["late"].kid) == (WaitpointKind.TIMER, None, None)
    text = repr(listed)
    assert all(item.token is None or item.token.reveal() not in text for item in wait.answer.waitpoints)


async def test_names_tell_what_can_help_and_an_operators_wait_takes_none(engine: Engine) -> None:
    wait = await suspended(engine, ["note"], OperatorOnly())
    [shown] = await engine.waitpoints.list(wait.id)
    assert shown.names == ()


async def test_waitpoints_come_page_by_page_in_the_order_of_their_ids_closed_ones_too(engine: Engine) -> None:
    lease = await leased(engine)
    made = [(await engine.waitpoints.create(lease.fence, f"k{number}")).id for number in range(7)]
    await engine.waitpoints.close(made[3])
    first = await engine.waitpoints.list(lease.execution_id, limit=4)
    rest = await engine.waitpoints.list(lease.execution_id, after=first[-1].id, limit=4)
    assert [item.id for item in (*first, *rest)] == sorted(made)
    assert await engine.waitpoints.list(lease.execution_id, after=rest[-1].id) == []


async def test_an_unknown_execution_is_not_found_and_one_without_waitpoints_has_none(engine: Engine) -> None:
    await refused(engine.waitpoints.list(uuid4()), "execution_not_found", NotFound)
    assert await engine.waitpoints.list(await submitted(engine)) == []


async def test_a_wait_of_an_earlier_suspension_does_not_lend_its_names_to_another(engine: Engine) -> None:
    wait = await suspended(engine, ["a"], Single("a", "yes"))
    await engine.signals.deliver(wait.token("a"), "yes")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    await suspended(engine, ["b"], Single("b", "no"), lease=lease)
    shown = {item.key: item.names for item in await engine.waitpoints.list(wait.id)}
    assert shown == {"a": None, "b": ("no",)}
