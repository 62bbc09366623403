"""The operations of waits and of the key ring, with the state that each operation needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from flowfabric.engine import (
    AnyOf,
    Count,
    Engine,
    Fence,
    Lease,
    OpenWaitpoint,
    PendingWaitpoint,
    Secret,
    Single,
    StandingWaitpoint,
    Suspended,
    Timer,
)
from flowfabric.engine.batcher import run_batch
from flowfabric.engine.lease_requests import suspend_request
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.faults.operations import STEPS, Arrange, Operation, duty, lease, nothing, three_leases

SECRET = "5" * 64
DEFAULTS = {"reason": "waiting_for_signal", "on_timeout": "fail", "resume_delay": 0, "rest": "close", "key": None}


@dataclass(frozen=True)
class Slot:
    """A waitpoint of an execution, its token, and an id for a signal to this waitpoint."""

    fence: Fence
    waitpoint_id: UUID
    token: Secret
    suspension_id: UUID | None
    signal_id: UUID

    @property
    def execution_id(self) -> UUID:
        return self.fence.execution_id


async def handed_out(engine: Engine, clock: VirtualClock) -> Slot:
    """Return a waitpoint that was created before any suspension. The execution's worker keeps its lease."""
    held_lease = await lease(engine, clock)
    return _slot(held_lease, await engine.waitpoints.create(held_lease.fence, "boss"))


async def signalled_early(engine: Engine, clock: VirtualClock) -> Slot:
    slot = await handed_out(engine, clock)
    await engine.signals.deliver(slot.token, "go")
    return slot


async def declared(engine: Engine, clock: VirtualClock) -> Slot:
    """Return an execution with two unused signals that were sent by name."""
    held_lease = await scenarios.leased(engine, signals=["go"])
    slot = _slot(held_lease, await engine.waitpoints.create(held_lease.fence, "go"))
    for _ in range(2):
        await engine.signals.send(slot.execution_id, "go")
    return slot


def suspended(**options: Any) -> Arrange:
    """Return a function that creates an execution that waits on the waitpoint `boss`."""

    async def arrange(engine: Engine, clock: VirtualClock) -> Slot:
        held_lease = await lease(engine, clock)
        result = await engine.leases.suspend(held_lease.fence, ["boss"], **options)
        assert isinstance(result, Suspended)
        return _slot(held_lease, result.waitpoints[0], result.suspension_id)

    return arrange


def overdue(on_timeout: str) -> Arrange:
    """Return a function that creates two suspensions past their timeout. A duty ends both in one transaction."""

    async def arrange(engine: Engine, clock: VirtualClock) -> None:
        for _ in range(2):
            await suspended(timeout="1m", on_timeout=on_timeout)(engine, clock)
        clock.advance("2m")

    return arrange


async def due_timer(engine: Engine, clock: VirtualClock) -> None:
    found, at = await lease(engine, clock), VirtualClock(clock.now())
    at.advance("1m")
    either = AnyOf([Single("boss"), Single("alarm")])
    await engine.leases.suspend(found.fence, ["boss", Timer("alarm", at.now())], either)
    clock.advance("2m")


async def expired_waitpoint(engine: Engine, clock: VirtualClock) -> None:
    held_lease = await scenarios.leased(engine, lease_ttl="10m")
    await engine.waitpoints.create(held_lease.fence, "boss", expires="1m")
    clock.advance("2m")


async def listening(engine: Engine, clock: VirtualClock) -> UUID:
    return await scenarios.submitted(engine, signals=["go"])


async def listened(engine: Engine, clock: VirtualClock) -> UUID:
    id_ = await listening(engine, clock)
    held_lease = await engine.leases.claim_execution(id_, scenarios.WORKER)
    await engine.leases.complete(held_lease.fence, b"out")
    return id_


async def three_suspends(engine: Engine, clock: VirtualClock) -> list[Any]:
    settings = DEFAULTS | {"steps": STEPS}
    # Seed a key first. Without a key, the first token would be minted alone and the other two in a batch.
    await engine.keys.seed("first", "0" * 64)
    leases = await three_leases(engine, clock)
    return [suspend_request(engine._context, item.fence, ["boss"], None, "1h", None, **settings) for item in leases]


async def seeded(engine: Engine, clock: VirtualClock) -> None:
    await engine.keys.seed("first", SECRET)


async def minted(engine: Engine, clock: VirtualClock) -> None:
    await seeded(engine, clock)
    await suspended()(engine, clock)


async def retired(engine: Engine, clock: VirtualClock) -> None:
    await seeded(engine, clock)
    await engine.keys.rotate("second", SECRET, grace="1m")
    clock.advance("2m")


def _slot(held_lease: Lease, waitpoint: OpenWaitpoint, suspension_id: UUID | None = None) -> Slot:
    assert waitpoint.token is not None, "the token was just minted"
    return Slot(held_lease.fence, waitpoint.id, waitpoint.token, suspension_id, uuid4())


WAITS: dict[str, Operation] = {
    "submit with a standing waitpoint": Operation(
        nothing, lambda e, id_: e.executions.submit("job", b"in", id=id_, signals=["go", "stop"])
    ),
    "create_waitpoint": Operation(lease, lambda e, found: e.waitpoints.create(found.fence, "boss", expires="1h")),
    "create_waitpoints": Operation(
        handed_out, lambda e, slot: e.waitpoints.create_many(slot.fence, ["boss", "chief"], steps=STEPS)
    ),
    "declare_signals": Operation(lease, lambda e, found: e.waitpoints.declare(found.fence, ["go", "stop"])),
    "continue_with": Operation(
        signalled_early, lambda e, slot: e.leases.continue_with(slot.fence, b"next", steps=STEPS)
    ),
    "suspend": Operation(
        lease, lambda e, found: e.leases.suspend(found.fence, ["boss", "chief"], timeout="1h", steps=STEPS)
    ),
    "suspend with a key": Operation(
        handed_out, lambda e, slot: e.leases.suspend(slot.fence, [PendingWaitpoint("boss")], key="wait", steps=STEPS)
    ),
    "suspend, already satisfied": Operation(
        signalled_early,
        lambda e, slot: e.leases.suspend(slot.fence, [PendingWaitpoint("boss")], key="wait", steps=STEPS),
    ),
    "suspend, already satisfied, without a key": Operation(
        signalled_early,
        lambda e, slot: e.leases.suspend(slot.fence, [PendingWaitpoint("boss")], id=slot.signal_id, steps=STEPS),
    ),
    "suspend, satisfied by a declared signal": Operation(
        declared,
        lambda e, slot: e.leases.suspend(slot.fence, [StandingWaitpoint("go")], id=slot.signal_id, steps=STEPS),
    ),
    "suspends of one caller": Operation(
        three_suspends, lambda e, items: run_batch(e._context.store, e.namespace, e._context.waits.suspend, items)
    ),
    "deliver_signal, buffered": Operation(
        handed_out, lambda e, slot: e.signals.deliver(slot.token, "go", signal_id=slot.signal_id)
    ),
    "deliver_signal, appended": Operation(
        suspended(condition=Count(2, "signals", ["boss"])),
        lambda e, slot: e.signals.deliver(slot.token, "go", signal_id=slot.signal_id),
    ),
    "deliver_signal, satisfying": Operation(
        suspended(timeout="1h"), lambda e, slot: e.signals.deliver(slot.token, "go", b"yes", key="once")
    ),
    "deliver_signal, satisfying with a delay": Operation(
        suspended(resume_delay="1m"), lambda e, slot: e.signals.deliver(slot.token, "go", signal_id=slot.signal_id)
    ),
    "approve": Operation(suspended(), lambda e, slot: e.signals.approve(slot.execution_id, "boss", suffix="once")),
    "decide": Operation(suspended(), lambda e, slot: e.signals.decide(slot.waitpoint_id, "approve", principal="ann")),
    "send": Operation(listening, lambda e, id_: e.signals.send(id_, "go", key="once")),
    "skip": Operation(declared, lambda e, slot: e.signals.skip(slot.fence, 1, "not readable")),
    "operator resume": Operation(
        suspended(timeout="1h"), lambda e, slot: e.operator.resume(slot.execution_id, suspension=slot.suspension_id)
    ),
    "close_waitpoint": Operation(suspended(), lambda e, slot: e.waitpoints.close(slot.waitpoint_id)),
    "operator cancel, suspended": Operation(
        suspended(timeout="1h"), lambda e, slot: e.operator.cancel(slot.execution_id)
    ),
    "complete with an open waitpoint": Operation(signalled_early, lambda e, slot: e.leases.complete(slot.fence)),
    "replay with a standing waitpoint": Operation(
        listened, lambda e, id_: e.operator.replay(id_, expected_generation=0)
    ),
    "suspension timeout, failing": Operation(overdue("fail"), duty("suspension_timeout")),
    "suspension timeout, cancelling": Operation(overdue("cancel"), duty("suspension_timeout")),
    "suspension timeout, expiring": Operation(overdue("expire"), duty("suspension_timeout")),
    "suspension timeout, resuming": Operation(overdue("auto_resume"), duty("suspension_timeout")),
    "suspension timeout, escalating": Operation(overdue("escalate"), duty("suspension_timeout")),
    "timers": Operation(due_timer, duty("timers")),
    "waitpoint expiry": Operation(expired_waitpoint, duty("waitpoint_expiry")),
    "seed": Operation(nothing, lambda e, _: e.keys.seed("first", SECRET)),
    "rotate": Operation(minted, lambda e, _: e.keys.rotate("second", SECRET, grace="1h")),
    "rotate to a drawn key": Operation(seeded, lambda e, _: e.keys.rotate("second")),
    "key collection": Operation(retired, duty("key_collection")),
}
