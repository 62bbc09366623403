"""Random flows that run to their end while their members end with random outcomes and random statements fail.

After each call the test takes a picture of the flow and checks it against the model.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    Edge,
    EdgeKind,
    Engine,
    FlowFabricError,
    Graph,
    Join,
    Lease,
    Refused,
    Siblings,
    TimeoutOnly,
    Unavailable,
    all_of,
    any_of,
    quorum,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_model import (
    FAILED,
    NO_REPLAYS,
    FlowPicture,
    Replays,
    find_hanging_members,
    find_problems,
    find_step_problems,
    left_behind,
)
from tests.concurrency.flow_soundness import flow_pictures
from tests.concurrency.waits import duty
from tests.faults.failing_driver import FAILURES, Fuse
from tests.faults.store_dump import Camera

MOST = 60
OUTCOMES = ("complete",) * 13 + ("fail",) * 4 + ("expire",) * 2 + ("cancel",) * 2
KINDS = (
    *(EdgeKind.ON_SUCCESS,) * 5,
    EdgeKind.ON_FAILURE,
    EdgeKind.ON_FAILURE_OR_SKIP,
    *(EdgeKind.ON_COMPLETION,) * 2,
)
FUSED = 0.25
CALM = 0.4
MOST_REPLAYS = 8
AGAIN = 0.3
STATEMENTS = 30
_FINISHED = "SELECT id FROM ff.event WHERE flow_id = '{flow_id}' AND family = 'flow' AND name = 'finished'"


@dataclass(frozen=True)
class PlannedMember:
    """A planned member with its upstream members and its join."""

    name: str
    after: tuple[Edge, ...]
    join: Join


def draw_members(chance: random.Random, most: int = MOST) -> list[PlannedMember]:
    """Draw members in topological order. Small graphs are more frequent than large ones."""
    number = 2 + int((most - 1) * chance.random() ** 3)
    return [_draw(chance, place) for place in range(number)]


def _draw(chance: random.Random, place: int) -> PlannedMember:
    wide = chance.random() < 0.1
    edges = 0 if chance.random() < 0.15 else chance.randint(1, 20 if wide else 4)
    upstreams = chance.sample(range(place), min(place, edges))
    after = tuple(Edge(f"m{upstream}", chance.choice(KINDS)) for upstream in upstreams)
    siblings = chance.choice(list(Siblings))
    joins = [all_of(siblings=siblings), all_of()]
    if after:
        joins += [any_of(siblings=siblings), quorum(chance.randint(1, len(after)), siblings=siblings)]
    return PlannedMember(f"m{place}", after, chance.choice(joins))


@dataclass
class Run:
    """One flow from its first member to its end. In a calm run no member fails."""

    engine: Engine
    backend: str
    clock: VirtualClock
    camera: Camera
    fuse: Fuse
    chance: random.Random
    outcomes: Counter[str]
    most: int
    flow_id: UUID = field(init=False)
    members: dict[str, UUID] = field(default_factory=dict)
    later: list[PlannedMember] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    last: FlowPicture = field(init=False)
    calm: bool = field(init=False)
    replays: int = 0
    finishes: int = 0

    def __post_init__(self) -> None:
        self.calm = self.chance.random() < CALM

    async def run(self) -> FlowPicture:
        """Run the flow to its end and return its last picture."""
        await self._begin(draw_members(self.chance, self.most))
        await self._run_to_end()
        while self.replays < MOST_REPLAYS and self.chance.random() < AGAIN:
            # A run in which no member failed may have failures after a replay.
            self.calm = self.calm and self.chance.random() < CALM
            self.outcomes["finished again"] += 1
            await self._replay()
            await self._run_to_end()
        events = await self.camera.rows(_FINISHED.format(flow_id=self.flow_id))
        assert len(events) == self.finishes, f"{self.finishes} finishes but {len(events)} events"
        await self._assert_zombies_cannot_complete()
        return self.last

    async def _run_to_end(self) -> None:
        while self.later or any(not member.ended for member in self.last.members.values()):
            await self._perform_action()
        if not self.last.sealed:
            await self._call(lambda: self.engine.flows.seal(self.flow_id))
        assert self.last.finished is not None, "all members ended but the flow has not finished"

    async def _begin(self, drawn: list[PlannedMember]) -> None:
        at_once = self.chance.randint(1, len(drawn)) if self.chance.random() < 0.5 else len(drawn)
        graph = Graph("random")
        for item in drawn[:at_once]:
            graph.add(item.name, "job", after=item.after, join=item.join)
        self.later = drawn[at_once:]
        result = await self._call_with_faults(
            lambda: self.engine.flows.submit(graph, id=self._id(), seal=not self.later)
        )
        self.flow_id, self.members = result.flow_id, dict(result.members)
        self.last = await self._picture()
        wrong = find_problems(self.last)
        assert not wrong, "; ".join(wrong[:5])

    async def _perform_action(self) -> None:
        """Perform one random action."""
        names = {str(id_): name for name, id_ in self.members.items()}
        states = {names[member.id]: member.state for member in self.last.members.values()}
        ready = [name for name, state in states.items() if state == "waiting"]
        running = [name for name, state in states.items() if state == "active"]
        alive = [name for name, state in states.items() if state in ("waiting", "active", "blocked")]
        dice = self.chance.random()
        if self.later and (dice < 0.3 or not (ready or running)):
            await self._grow()
        elif self.later and dice < 0.35:
            await self._add_edge(states)
        elif alive and dice < 0.38 and not self.calm:
            name = self.chance.choice(alive)
            await self._call(lambda: self.engine.operator.cancel(self.members[name], "by chance"))
        elif dice > 0.96 and self.replays < MOST_REPLAYS and len(alive) < len(states):
            await self._replay()
        elif ready and (dice < 0.65 or not running):
            name = self.chance.choice(ready)
            await self._claim(name)
        elif running:
            await self._end(self.chance.choice(running))
        else:
            assert not find_hanging_members(self.last), f"unfinished flow without a member that can run: {states}"
            await self._cancel_blocked(alive)

    async def _replay(self) -> None:
        """Replay an ended member, or all failed members. Prefer members that never started."""
        self.replays += 1
        if self.chance.random() < 0.3:
            await self._replay_failed()
            return
        ended = [picture for picture in self.last.members.values() if picture.ended]
        unstarted = [picture for picture in ended if not picture.started]
        member = self.chance.choice(unstarted if unstarted and self.chance.random() < 0.5 else ended)
        self.outcomes["replay"] += 1
        self.outcomes["replay of an unstarted member"] += not member.started
        blocked = {picture.id for picture in self.last.members.values() if picture.state == "blocked"}
        downstream = self.chance.random() < 0.8
        replay = lambda: self.engine.operator.replay(  # noqa: E731
            member.id, expected_generation=member.generation, downstream=downstream
        )
        replays = Replays(frozenset({member.id}), downstream=downstream)
        self.outcomes["revived"] += len(replays.running(self.last)) > 1
        await self._call(replay, replays=replays)
        again = [
            picture
            for picture in self.last.members.values()
            if picture.state == "blocked" and picture.id not in blocked
        ]
        self.outcomes["blocked again"] += any(picture.id != member.id for picture in again)

    async def _replay_failed(self) -> None:
        """Replay all members that failed or expired, and bring back those that earlier replays left behind."""
        failed = frozenset(id_ for id_, member in self.last.members.items() if member.state in FAILED)
        behind = frozenset(left_behind(self.last))
        until = self.clock.now()
        self.outcomes["replay of all failed"] += bool(failed)
        self.outcomes["left behind"] += bool(behind)
        await self._call(
            lambda: self.engine.flows.replay(self.flow_id, failed=True, ended_until=until),
            replays=Replays(failed, behind),
        )

    async def _cancel_blocked(self, alive: list[str]) -> None:
        """Cancel a blocked member, because the ended member it waits for will not be replayed."""
        self.outcomes["stuck"] += 1
        name = self.chance.choice(alive)
        await self._call(lambda: self.engine.operator.cancel(self.members[name], "cannot be unblocked"))

    async def _claim(self, name: str) -> None:
        """Claim a member and record its start in the last picture.

        A full picture is not needed, because a claim changes no other member. If the member was not allowed to start,
        the check of the next full picture detects it.
        """
        id_ = self.members[name]
        self.leases[name] = await self.engine.leases.claim_execution(id_, "w", lease_ttl="1d")
        started = replace(self.last.members[str(id_)], state="active", blocking_reason="none", started=True)
        self.last = replace(self.last, members={**self.last.members, str(id_): started})

    async def _grow(self) -> None:
        item = self.later.pop(0)
        add = lambda: self.engine.flows.add(self.flow_id, item.name, "job", after=item.after, join=item.join)  # noqa: E731
        self.members[item.name] = (await self._call(add)).execution_id
        if not self.later:
            await self._call(lambda: self.engine.flows.seal(self.flow_id))

    async def _add_edge(self, states: dict[str, str]) -> None:
        names = sorted(self.members, key=lambda name: int(name[1:]))
        place = self.chance.randrange(len(names))
        if place:
            kind, upstream, downstream = self.chance.choice(KINDS), self.chance.choice(names[:place]), names[place]
            refusal = await self._call(
                lambda: self.engine.flows.add_edge(self.flow_id, upstream, downstream, kind=kind),
                {"downstream_already_started", "duplicate_edge"},
            )
            assert refusal != "downstream_already_started" or states[downstream] != "blocked"

    async def _end(self, name: str) -> None:
        fence, outcome = self.leases[name].fence, "complete" if self.calm else self.chance.choice(OUTCOMES)
        self.outcomes[outcome] += 1
        leases = self.engine.leases
        if outcome == "complete":
            await self._call(lambda: leases.complete(fence, name.encode()))
            if self.chance.random() < 0.1:
                await self._call(lambda: leases.complete(fence, name.encode()))
        elif outcome == "fail":
            await self._call(lambda: leases.fail(fence, "broken", failure_class="permanent"))
        elif outcome == "cancel":
            await self._call(lambda: leases.cancel(fence, "own wish"))
        else:
            wait = lambda: leases.suspend(fence, [], TimeoutOnly(), timeout="1s", on_timeout="expire")  # noqa: E731
            await self._call(wait)
            self.clock.advance("1s")
            await self._call(self._time_out)

    async def _time_out(self) -> None:
        await duty("suspension_timeout")(self.engine)

    async def _assert_zombies_cannot_complete(self) -> None:
        """Assert that the former worker of a cancelled member cannot complete it."""
        for name, lease in self.leases.items():
            if self.last.members[str(self.members[name])].state == "cancelled":
                try:
                    await self.engine.leases.complete(lease.fence, b"late")
                except Refused:
                    self.outcomes["zombie"] += 1
                else:
                    raise AssertionError(f"{name} was completed after its cancellation")

    async def _call(
        self, call: Callable[[], Awaitable[Any]], allowed: set[str] | None = None, replays: Replays = NO_REPLAYS
    ) -> Any:
        """Make a call and check the flow afterwards. Return the result of the call, or the code of an allowed error."""
        result: Any
        try:
            result = await self._call_with_faults(call)
        except FlowFabricError as error:
            if error.code not in (allowed or ()):
                raise
            result = error.code
        before, self.last = self.last, await self._picture()
        wrong = [*find_problems(self.last), *find_step_problems(before, self.last, replays)]
        assert not wrong, "; ".join(wrong[:5])
        self.finishes += before.finished is None and self.last.finished is not None
        self.outcomes["cancelled siblings"] += sum(
            now.cancelled_by == "flow_sibling" and id_ in before.members and not before.members[id_].ended
            for id_, now in self.last.members.items()
        )
        return result

    async def _call_with_faults(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make the call. In some cases let one statement fail first, then retry."""
        if self.chance.random() < FUSED:
            kind = self.chance.choice(list(FAILURES[self.backend]))
            self.fuse.arm(
                self.chance.randint(1, STATEMENTS), FAILURES[self.backend][kind], after=self.chance.random() < 0.5
            )
            try:
                return await call()
            except Unavailable:
                self.outcomes["failed statements"] += 1
            finally:
                self.fuse.disarm()
        return await call()

    async def _picture(self) -> FlowPicture:
        [picture] = (await flow_pictures(self.camera.rows, self.flow_id)).values()
        return picture

    def _id(self) -> UUID:
        return UUID(int=self.chance.getrandbits(128), version=4)
