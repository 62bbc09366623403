"""Random concurrent calls on the waits of one execution."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Condition,
    Count,
    DuplicateSignal,
    Engine,
    Fence,
    FlowFabricError,
    Lease,
    NewWaitpoint,
    PendingWaitpoint,
    Satisfied,
    Secret,
    Single,
    StandingWaitpoint,
    Timer,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.waits import duty
from tests.scenarios import submitted

KEYS = ("boss", "chief")
STANDING = "inbox"
NAMES = ("go", "stop", STANDING)
DUTIES = ("suspension_timeout", "timers", "waitpoint_expiry", "lease_expiry")
# Error codes that a call may get because a concurrent call was faster. Any other error code is a fault.
TOO_LATE = {
    "execution_not_active", "execution_not_leaseable", "execution_not_suspended", "execution_not_found",
    "lease_expired", "lease_revoked", "stale_lease", "target_not_signalable", "token_expired", "waitpoint_closed",
    "waitpoint_not_found", "waitpoint_already_exists", "idempotency_mismatch",
}  # fmt: skip


@dataclass
class Ledger:
    """The accepted signals and the outcomes of all calls, collected from all worlds of the test."""

    accepted: dict[UUID, UUID] = field(default_factory=dict)
    in_order: list[list[UUID]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


@dataclass
class World:
    """An execution, the tokens that its workers have published, and the signals that were sent."""

    engines: tuple[Engine, Engine]
    clock: VirtualClock
    ledger: Ledger
    chance: random.Random
    id: UUID = field(init=False)
    tokens: list[Secret] = field(default_factory=list)
    sent: list[tuple[Secret, UUID]] = field(default_factory=list)

    async def run(self) -> None:
        """Run a worker, two senders and an operator concurrently."""
        self.id = await submitted(self.engines[0], signals=[STANDING])
        senders = [self._send(self.chance.randint(2, 4)) for _ in range(2)]
        await asyncio.gather(self._work(3), *senders, self._operate(3))

    async def _work(self, times: int) -> None:
        for number in range(times):
            lease = await self._try(lambda engine: engine.leases.claim_execution(self.id, "w"))
            if lease is None:
                await self._try(duty(self.chance.choice(DUTIES)))
            else:
                await self._attempt(lease, number)

    async def _attempt(self, lease: Lease, number: int) -> None:
        """Run one attempt that sometimes publishes a token and suspends at most twice."""
        for turn in range(2):
            early = self.chance.choice([None, *KEYS])
            if early is not None:
                waitpoint = await self._try(partial(created, fence=lease.fence, key=early))
                self._publish([waitpoint] if waitpoint else [])
                await asyncio.sleep(0)
            result = await self._suspend(lease, early, key=self.chance.choice([None, "same", f"{number}-{turn}"]))
            if not isinstance(result, Satisfied):
                self._publish(getattr(result, "waitpoints", []))
                return
        leave = self.chance.choice(["release", "complete", "keep"])
        if leave != "keep":
            await self._try(lambda engine: getattr(engine.leases, leave)(lease.fence))

    async def _suspend(self, lease: Lease, early: str | None, key: str | None) -> Any:
        bindings, condition = self._wait(early)
        options = {
            "timeout": self.chance.choice([None, "2s", "5s"]),
            "unused_waitpoints": self.chance.choice(["close", "keep"]),
            "on_timeout": self.chance.choice(["auto_resume", "auto_resume", "escalate", "fail"]),
        }
        call = lambda engine: engine.leases.suspend(lease.fence, bindings, condition, key=key, **options)  # noqa: E731
        result = await self._try(call)
        if result is not None and self.chance.random() < 0.2:
            # Repeat the call as if its reply had been lost. A suspend whose condition is already satisfied keeps the
            # lease. Repeating it without a key would create a second wait.
            again = await self._try(call) if key or not isinstance(result, Satisfied) else result
            assert again is None or again.suspension_id == result.suspension_id
        return result

    def _wait(self, early: str | None) -> tuple[list[Any], Condition]:
        bindings: list[Any] = [PendingWaitpoint(key) if key == early else NewWaitpoint(key) for key in KEYS]
        if self.chance.random() < 0.5:
            bindings.append(StandingWaitpoint(STANDING))
        if self.chance.random() < 0.3:
            bindings.append(Timer("alarm", self.clock.now()))
        keys = [item.key for item in bindings]
        members: list[Condition] = [Single(key, self.chance.choice([None, "go"])) for key in keys if key in KEYS]
        members += [Single(key) for key in keys if key not in KEYS]
        number = self.chance.randint(1, 2)
        conditions: list[Condition] = [
            AnyOf(members), AllOf(members), Count(number, "signals", keys), Count(2, "waitpoints", keys),
            AnyOf([AllOf(members[:2]), *members[2:]]),
        ]  # fmt: skip
        return bindings, self.chance.choice(conditions)

    def _publish(self, waitpoints: Any) -> None:
        self.tokens += [item.token for item in waitpoints if item.token is not None]

    async def _send(self, times: int) -> None:
        """Send signals to published tokens. Some signals are sent twice, either concurrently or later."""
        order: list[UUID] = []
        self.ledger.in_order.append(order)
        for _ in range(times):
            await asyncio.sleep(0)
            if not self.tokens or self.chance.random() < 0.2:
                await self._deliver(order, lambda engine: engine.signals.send(self.id, STANDING))
                continue
            token, id_ = self.chance.choice(self.tokens), self.engines[0]._context.ids.mint()
            if self.sent and self.chance.random() < 0.2:
                token, id_ = self.chance.choice(self.sent)
            self.sent.append((token, id_))
            name = self.chance.choice(NAMES)
            call = lambda engine: engine.signals.deliver(token, name, signal_id=id_)  # noqa: B023, E731
            copies = [self._deliver(order, call) for _ in range(self.chance.choice([1, 1, 2]))]
            await asyncio.gather(*copies)

    async def _deliver(self, order: list[UUID], call: Callable[[Engine], Awaitable[Any]]) -> None:
        result = await self._try(call)
        if isinstance(result, Accepted):
            assert result.signal_id not in self.ledger.accepted, "one signal was accepted twice"
            self.ledger.accepted[result.signal_id] = self.id
            order.append(result.signal_id)
            self.ledger.outcomes[result.effect.value] += 1
        assert result is None or isinstance(result, Accepted | DuplicateSignal)

    async def _operate(self, times: int) -> None:
        acts: list[Callable[[Engine], Awaitable[Any]]] = [
            *[lambda engine: engine.operator.resume(self.id)] * 3,
            lambda engine: engine.operator.revoke_lease(self.id),
            lambda engine: engine.operator.cancel(self.id),
            self._close_a_waitpoint,
            *(duty(name) for name in DUTIES),
            *(duty(name) for name in DUTIES),
        ]
        for _ in range(times):
            await asyncio.sleep(0)
            if self.chance.random() < 0.5:
                self.clock.advance("1s")
            if self.chance.random() < 0.02:
                await self._try(lambda engine: engine.keys.rotate(f"k{self.chance.randrange(2**40)}"))
            await self._try(self.chance.choice(acts))

    async def _close_a_waitpoint(self, engine: Engine) -> None:
        waitpoints = await engine.waitpoints.list(self.id)
        if waitpoints:
            await engine.waitpoints.close(self.chance.choice(waitpoints).id)

    async def _try(self, call: Callable[[Engine], Awaitable[Any]]) -> Any:
        """Make the call on a random engine. Return its result, or None if a concurrent call was faster."""
        try:
            result = await call(self.chance.choice(self.engines))
        except FlowFabricError as error:
            if error.code not in TOO_LATE:
                raise
            self.ledger.outcomes[error.code] += 1
            return None
        self.ledger.outcomes[type(result).__name__] += 1
        return result


async def created(engine: Engine, fence: Fence, key: str) -> Any:
    return await engine.waitpoints.create(fence, key)
