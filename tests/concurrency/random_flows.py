"""Random concurrent calls on one flow by workers, signal senders and operators."""

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
# Error codes that a call may get because a concurrent call was faster. Any other error code is a fault.
TOO_LATE = {
    "execution_not_active", "execution_not_leaseable", "execution_not_suspended", "execution_not_terminal",
    "lease_expired", "lease_revoked", "stale_lease", "target_not_signalable", "token_expired", "waitpoint_closed",
    "flow_sealed", "flow_already_terminal", "downstream_already_started", "duplicate_edge", "stale_revision",
    "idempotency_mismatch", "cycle", "max_replays_exhausted",
}  # fmt: skip


@dataclass
class World:
    """A flow with the leases and tokens that its callers hold."""

    engines: tuple[Engine, Engine]
    clock: VirtualClock
    chance: random.Random
    outcomes: Counter[str]
    flow: Flow = field(init=False)
    leases: dict[str, Lease] = field(default_factory=dict)
    tokens: dict[str, Secret] = field(default_factory=dict)

    async def run(self) -> None:
        """Bring the members into different states, then run all calls concurrently."""
        engine = self.engines[0]
        self.flow = await built(engine, SHAPE, joins={"race": any_of(), "vote": quorum(2)}, seal=False)
        for name in ("a", "b", "c"):
            self.leases[name] = await self.flow.claim(name)
        result = await engine.leases.suspend(self.leases["b"].fence, ["boss"])
        token = getattr(result, "waitpoints")[0].token  # noqa: B009 - it was suspended
        assert token is not None
        self.tokens["b"] = token
        acts = self._acts()
        await asyncio.gather(
            *(self._perform_shuffled([act, *self.chance.choices(acts, k=2)]) for act in self._required_acts())
        )

    def _required_acts(self) -> list[Callable[[Engine], Awaitable[Any]]]:
        """Return the calls that run concurrently in every run: complete, signal, add an edge, cancel."""
        flow, leases = self.flow, self.leases
        return [
            lambda engine: engine.leases.complete(leases[self.chance.choice("ac")].fence, b""),
            lambda engine: engine.signals.deliver(self.tokens["b"], "go"),
            lambda engine: engine.flows.add_edge(flow.id, *self.chance.choice([("c", "d"), ("b", "end")])),
            self._cancel,
        ]

    async def _cancel(self, engine: Engine) -> Any:
        """Cancel a member or, less often, the flow. Too many cancelled flows would hide other races."""
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
            self._wait_for_child,
            self._wait_for_children,
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

    async def _perform_shuffled(self, acts: list[Callable[[Engine], Awaitable[Any]]]) -> None:
        for act in self.chance.sample(acts, len(acts)):
            await self._try(act)

    async def _finish_b(self, engine: Engine) -> Any:
        lease = await engine.leases.claim_execution(self.flow["b"], "worker-2")
        return await engine.leases.complete(lease.fence, b"")

    async def _wait_for_child(self, engine: Engine) -> Any:
        """Let a running member wait for a child, and complete the child."""
        fence = self.leases["c"].fence
        [result] = await engine.leases.submit_children(fence, [child("part")])
        if isinstance(result, FlowFabricError):
            raise result
        waits = engine.leases.suspend(fence, [Child("kid", result.id)], key="kid")
        inner = engine.leases.claim_execution(result.id, "worker-3")
        _, lease = await asyncio.gather(waits, inner)
        return await engine.leases.complete(lease.fence, b"")

    async def _wait_for_children(self, engine: Engine) -> Any:
        """Suspend a running member for two children, and complete one of them."""
        fence = self.leases["c"].fence
        results = await engine.leases.submit_children(fence, [child("first"), child("second")])
        ids = [result.id for result in results]
        join = self.chance.choice([all_of(), any_of()])
        waits = engine.leases.wait_children(fence, ids, join=join)
        inner = engine.leases.claim_execution(ids[0], "worker-3")
        _, lease = await asyncio.gather(waits, inner)
        return await engine.leases.complete(lease.fence, b"")

    async def _try(self, call: Callable[[Engine], Awaitable[Any]]) -> None:
        try:
            result = await call(self.chance.choice(self.engines))
        except FlowFabricError as error:
            if error.code not in TOO_LATE:
                raise
            self.outcomes[error.code] += 1
        else:
            self.outcomes[type(result).__name__] += 1


POLICIES = ("cancel_all", "cancel_pending", "flow_only")
