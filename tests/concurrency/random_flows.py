"""One flow and everybody who deals with it at the same time: workers, senders, growers and operators."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from flowfabric.engine import Child, Edge, EdgeKind, Engine, FlowFabricError, Lease, Secret, all_of, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.concurrency.waits import duty
from tests.flows import Flow, Shape, built, child

JOBS = ("a", "b", "c", "d")
SHAPE: Shape = {
    "a": [], "b": [], "c": [], "d": ["a"], "race": ["a", "b"], "vote": ["a", "b", "c"],
    "end": [Edge("race", EdgeKind.ON_COMPLETION), Edge("vote", EdgeKind.ON_COMPLETION)],
}  # fmt: skip
DUTIES = ("flow_cancellation", "suspension_timeout", "lease_expiry", "deadline")
# What a caller may be told because somebody else was faster; anything else is a fault.
TOO_LATE = {
    "execution_not_active", "execution_not_leaseable", "execution_not_suspended", "execution_not_terminal",
    "lease_expired", "lease_revoked", "stale_lease", "target_not_signalable", "token_expired", "waitpoint_closed",
    "flow_sealed", "flow_already_terminal", "downstream_already_started", "duplicate_edge", "stale_revision",
    "idempotency_mismatch", "cycle", "max_replays_exhausted",
}  # fmt: skip


@dataclass
class World:
    """A flow, and what those who deal with it have in their hands."""

    engines: tuple[Engine, Engine]
    clock: VirtualClock
    chance: random.Random
    told: Counter[str]
    flow: Flow = field(init=False)
    leases: dict[str, Lease] = field(default_factory=dict)
    tokens: dict[str, Secret] = field(default_factory=dict)

    async def live(self) -> None:
        """Brings the members into different states, and then lets everybody act at once."""
        engine = self.engines[0]
        self.flow = await built(engine, SHAPE, joins={"race": any_of(), "vote": quorum(2)}, seal=False)
        for name in ("a", "b", "c"):
            self.leases[name] = await self.flow.claim(name)
        answer = await engine.leases.suspend(self.leases["b"].fence, ["boss"])
        token = getattr(answer, "waitpoints")[0].token  # noqa: B009 - it was suspended
        assert token is not None
        self.tokens["b"] = token
        acts = self._acts()
        await asyncio.gather(*(self._several([act, *self.chance.choices(acts, k=2)]) for act in self._always()))

    def _always(self) -> list[Callable[[Engine], Awaitable[Any]]]:
        """One of each of those that must meet in every run: complete, signal, add an edge, cancel."""
        flow, leases = self.flow, self.leases
        return [
            lambda engine: engine.leases.complete(leases[self.chance.choice("ac")].fence, b""),
            lambda engine: engine.signals.deliver(self.tokens["b"], "go"),
            lambda engine: engine.flows.add_edge(flow.id, *self.chance.choice([("c", "d"), ("b", "end")])),
            self._cancel,
        ]

    async def _cancel(self, engine: Engine) -> Any:
        """A member or, not so often that little else is seen, the flow."""
        if self.chance.random() < 0.3:
            return await engine.flows.cancel(self.flow.id, "enough", policy=self.chance.choice(POLICIES))
        return await engine.operator.cancel(self.flow[self.chance.choice([*SHAPE])], "by chance")

    def _acts(self) -> list[Callable[[Engine], Awaitable[Any]]]:
        flow, leases = self.flow, self.leases
        anybody = self.chance.choice([*SHAPE])
        return [
            lambda engine: engine.leases.complete(leases["a"].fence, b""),
            lambda engine: engine.leases.complete(leases["a"].fence, b""),
            lambda engine: engine.leases.complete(leases["c"].fence, b""),
            lambda engine: engine.leases.fail(leases["c"].fence, "broken", failure_class="permanent"),
            lambda engine: engine.signals.deliver(self.tokens["b"], "go"),
            lambda engine: engine.signals.deliver(self.tokens["b"], "go"),
            self._finish_b,
            self._with_a_child,
            self._with_children,
            lambda engine: engine.flows.add_edge(flow.id, "c", "d"),
            lambda engine: engine.flows.add_edge(flow.id, "b", "end"),
            lambda engine: engine.flows.add(flow.id, "late", "job", after=["a", "c"]),
            lambda engine: engine.flows.seal(flow.id),
            lambda engine: engine.operator.cancel(flow[anybody], "by chance"),
            lambda engine: engine.operator.cancel(flow["a"], "all of it", children=True),
            lambda engine: engine.operator.replay(flow[anybody]),
            lambda engine: engine.operator.replay(flow["a"]),
            lambda engine: engine.flows.cancel(flow.id, "enough", policy=self.chance.choice(POLICIES)),
            duty(self.chance.choice(DUTIES)),
        ]

    async def _several(self, acts: list[Callable[[Engine], Awaitable[Any]]]) -> None:
        for act in self.chance.sample(acts, len(acts)):
            await self._try(act)

    async def _finish_b(self, engine: Engine) -> Any:
        lease = await engine.leases.claim_execution(self.flow["b"], "worker-2")
        return await engine.leases.complete(lease.fence, b"")

    async def _with_a_child(self, engine: Engine) -> Any:
        """The member that runs waits for a child of its own, which is done by the one who made it."""
        fence = self.leases["c"].fence
        [answer] = await engine.leases.submit_children(fence, [child("part")])
        if isinstance(answer, FlowFabricError):
            raise answer
        waits = engine.leases.suspend(fence, [Child("kid", answer.id)], key="kid")
        inner = engine.leases.claim_execution(answer.id, "worker-3")
        _, lease = await asyncio.gather(waits, inner)
        return await engine.leases.complete(lease.fence, b"")

    async def _with_children(self, engine: Engine) -> Any:
        """The member that runs gives its lease up for children; one of them is done, the other if somebody comes by."""
        fence = self.leases["c"].fence
        answers = await engine.leases.submit_children(fence, [child("first"), child("second")])
        ids = [answer.id for answer in answers]
        join = self.chance.choice([all_of(), any_of()])
        waits = engine.leases.wait_children(fence, ids, join=join)
        inner = engine.leases.claim_execution(ids[0], "worker-3")
        _, lease = await asyncio.gather(waits, inner)
        return await engine.leases.complete(lease.fence, b"")

    async def _try(self, call: Callable[[Engine], Awaitable[Any]]) -> None:
        try:
            answer = await call(self.chance.choice(self.engines))
        except FlowFabricError as error:
            if error.code not in TOO_LATE:
                raise
            self.told[error.code] += 1
        else:
            self.told[type(answer).__name__] += 1


POLICIES = ("cancel_all", "cancel_pending", "flow_only")
