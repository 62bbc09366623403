"""The moves of the state machine: everything that clients, workers, operators and time can do, in any order. Those of
many items at once are in `together.py`, those of signals and whole waits in `wait_moves.py`.

Each move is a method with its weight and the strategies of its arguments.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from flowfabric.engine import FailureClass, Fence, RetryScheduled, Step
from tests.model.drawing import (
    LANES,
    MICROSECOND,
    RED,
    WORKERS,
    Arguments,
    Call,
    S,
    any_of_many,
    bends,
    bodies,
    completing,
    failing,
    keeping,
    lanes,
    leaving,
    looking_after,
    mostly_red,
    move,
    offers,
    operating,
    rarely,
    reasons,
    recent,
    steps,
    targets,
    terms,
    workers,
)
from tests.model.sides import Sides
from tests.model.stage import Stage, Target, is_refusal, other
from tests.model.wait_drawing import creating, suspending, timed

anything = st.one_of(keeping, completing, failing, leaving, creating, suspending)


class ClientMoves(Stage):
    """Submitting, again and again."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides)
        self._submitted: list[tuple[str, Arguments]] = []

    @move(
        4, body=bodies, namespace=mostly_red, key=st.sampled_from([None, "k1", "k2"]),
        id=st.sampled_from([None, None, *(UUID(int=number) for number in range(1, 5))]),
        priority=st.sampled_from([0, 0, 5, 9001]), delay=st.sampled_from([None, None, None, 0 * S, 6 * S]),
        deadline=st.sampled_from([None, None, None, None, 20 * S, 0 * S]),
    )  # fmt: skip
    def submit(self, body: Arguments, namespace: str, deadline: timedelta | None, **rest: Any) -> None:
        at = None if deadline is None else self.clock.now() + deadline
        arguments = body | rest | {"deadline": at}
        # What an id means that was purged, while its events are still kept, is not settled.
        if rest["id"] not in self.model.world.gone:
            if rest["id"] or rest["key"]:
                self._submitted.append((namespace, arguments))
            self.act("executions.submit", namespace, **arguments)

    @move(
        2,
        which=recent,
        change=st.sampled_from([{}, {}, {"payload": b"other"}, {"id": None}, {"id": None, "key": "k3"}]),
        foreign=rarely,
    )
    def submit_again(self, which: int, change: Arguments, foreign: bool) -> None:
        """I-17: the same body under its key or id, another body, or the same in another namespace."""
        if not self._submitted:
            return
        namespace, arguments = self._submitted[-1 - which % len(self._submitted)]
        if arguments["id"] not in self.model.world.gone:
            self.act("executions.submit", other(namespace) if foreign else namespace, **arguments | change)

    @move(body=bodies, worker=workers, lease_ttl=terms, namespace=mostly_red)
    def begin(self, body: Arguments, worker: str, lease_ttl: Any, namespace: str) -> None:
        """Submit and claim in one move, so that short examples get far."""
        rest = {"id": None, "key": None, "delay": None, "deadline": None, "priority": 0}
        created = self.act("executions.submit", namespace, **body, **rest)
        if not is_refusal(created):
            wishes = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": lease_ttl}
            self.act("leases.claim_execution", namespace, id=created.id, **wishes)


class ClaimMoves(Stage):
    """How leases begin."""

    @move(
        3, chosen=st.sampled_from([LANES, LANES, LANES[:1], LANES[1:]]), worker=workers, capabilities=offers,
        limit=st.integers(1, 3), lease_ttl=terms, kinds=st.sampled_from([None, None, ("job",)]), namespace=mostly_red,
    )  # fmt: skip
    def claim(self, namespace: str, chosen: tuple[str, ...], **wishes: Any) -> None:
        leases = self.act("leases.claim", namespace, lanes=chosen, **wishes)
        assert all(lease.namespace == namespace and lease.lane in chosen for lease in leases), "I-08: not asked for"

    @move(2, whom=targets, worker=workers, capabilities=offers, lease_ttl=terms)
    def claim_execution(self, whom: Target, **wishes: Any) -> None:
        self.act_on("leases.claim_execution", whom, **wishes)

    @move(whom=targets, worker=workers, capabilities=offers, lease_ttl=terms)
    def claim_resumed(self, whom: Target, **wishes: Any) -> None:
        self.act_on("leases.claim_resumed", whom, **wishes)

    @move(2, body=bodies, which=recent, worker=workers, limit=st.integers(1, 3), later=st.sampled_from([0 * S, S]))
    def crowd(self, body: Arguments, which: int, worker: str, limit: int, later: timedelta) -> None:
        """New work of several ages and priorities, and work that was given back, wait together for one worker."""
        rest = {"id": None, "key": None, "delay": None, "deadline": None}
        for priority in (0, 0, 5):
            self.act("executions.submit", RED, **body, **rest, priority=priority)
            self.clock.advance(later)
        fence = self.live_fence(which)
        if fence is not None:
            self.act("leases.release", self.namespace_of(fence.execution_id), fence=fence)
        wishes = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": None, "kinds": None}
        self.act("leases.claim", RED, lanes=LANES, limit=limit, **wishes)
        self.act("leases.claim", RED, lanes=LANES, limit=1, **wishes)

    @move(whom=targets, worker=workers, capabilities=offers)
    def grant_reclaim(self, whom: Target, **wishes: Any) -> None:
        self.act_on("operator.grant_reclaim", whom, **wishes)

    @move(which=any_of_many, foreign=rarely, worker=workers, lease_ttl=terms)
    def reclaim(self, which: int, foreign: bool, **wishes: Any) -> None:
        if self.grants:
            grant, id_ = self.grants[-1 - which % len(self.grants)]
            self.act("leases.reclaim", self.namespace_of(id_, foreign), grant=grant, **wishes)

    @move(2, which=recent, worker=workers, revoked=st.booleans())
    def hand_off(self, which: int, worker: str, revoked: bool) -> None:
        """The whole way of a hand-off in one move: the lease is lost, granted and taken over."""
        fence = self.live_fence(which)
        if fence is None:
            return
        id_, namespace = fence.execution_id, self.namespace_of(fence.execution_id)
        if revoked:
            named = {"instance": None, "lease_id": None, "epoch": None}
            self.act("operator.revoke_lease", namespace, id=id_, reason="", **named)
        else:
            self.clock.advance(self.expiry_of(id_) - self.clock.now())
            self.tick()
        grant = self.act("operator.grant_reclaim", namespace, id=id_, worker=worker, capabilities=("gpu",))
        if not is_refusal(grant):
            lease = self.act("leases.reclaim", namespace, grant=grant.id, worker=worker, lease_ttl=None)
            again = self.act("leases.reclaim", namespace, grant=grant.id, worker=worker, lease_ttl=None)
            assert again == lease or is_refusal(again), "a repeated reclaim answers alike"

    @move(2, which=recent, worker=workers)
    def keep_a_grant(self, which: int, worker: str) -> None:
        """A grant is not used until its execution has ended, runs again and is lost again."""
        fence = self.live_fence(which)
        if fence is None:
            return
        id_, namespace = fence.execution_id, self.namespace_of(fence.execution_id)
        revoking = {"id": id_, "reason": "", "instance": None, "lease_id": None, "epoch": None}
        wishes = {"worker": worker, "capabilities": ("gpu",)}
        self.act("operator.revoke_lease", namespace, **revoking)
        grant = self.act("operator.grant_reclaim", namespace, id=id_, **wishes)
        if is_refusal(grant):
            return
        self.act("operator.cancel", namespace, id=id_, reason="")
        self.act("operator.replay", namespace, id=id_, reason="", from_step=None, expected_generation=None)
        self.act("leases.claim_execution", namespace, id=id_, lease_ttl=None, **wishes)
        self.act("operator.revoke_lease", namespace, **revoking)
        self.act("leases.reclaim", namespace, grant=grant.id, worker=worker, lease_ttl=None)


class WorkerMoves(Stage):
    """What workers do with any fence that was ever handed out."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides)
        self._presented: list[tuple[str, str, Arguments]] = []

    @move(4, which=recent, bent=bends, foreign=rarely, called=keeping)
    def keep(self, called: Call, **how: Any) -> None:
        """Renew, report and record under a lease."""
        self._present(called, **how)

    @move(3, which=recent, bent=bends, foreign=rarely, called=completing)
    def complete(self, called: Call, **how: Any) -> None:
        self._present(called, **how)

    @move(3, which=recent, bent=bends, foreign=rarely, called=failing)
    def fail(self, called: Call, **how: Any) -> None:
        self._present(called, **how)

    @move(3, which=recent, bent=bends, foreign=rarely, called=leaving)
    def leave(self, called: Call, **how: Any) -> None:
        """Delay, release or cancel."""
        self._present(called, **how)

    @move(3, which=recent, bent=bends, foreign=rarely, called=creating)
    def create_waitpoint(self, called: Call, **how: Any) -> None:
        self._present(called, **how)

    @move(7, which=recent, bent=bends, foreign=rarely, called=suspending)
    def suspend(self, called: Call, **how: Any) -> None:
        self._present(called, **how)

    @move(5, which=any_of_many, called=anything)
    def come_back(self, which: int, called: Call) -> None:
        """A worker that slept presents a fence that it once had."""
        if self.fences:
            fence, (path, arguments) = self.fences[-1 - which % len(self.fences)], timed(called, self.clock.now())
            self.act(path, self.namespace_of(fence.execution_id), fence=fence, **arguments)

    @move(4, which=recent, called=anything, early=st.sampled_from([0, 0, 1]))
    def oversleep(self, which: int, called: Call, early: int) -> None:
        """A worker acts in the very moment in which its lease runs out, or just before; nobody has noticed."""
        fence = self.live_fence(which)
        if fence is not None:
            self.clock.advance(self.expiry_of(fence.execution_id) - self.clock.now() - early * MICROSECOND)
            path, arguments = timed(called, self.clock.now())
            self.act(path, self.namespace_of(fence.execution_id), fence=fence, **arguments)

    @move(2, which=recent)
    def outlive(self, which: int) -> None:
        """A lease that was renewed is left alone when its first term ends."""
        fence = self.live_fence(which)
        if fence is None:
            return
        first_end = self.expiry_of(fence.execution_id)
        self.clock.advance(min(S, first_end - self.clock.now() - MICROSECOND))
        self.act("leases.renew", self.namespace_of(fence.execution_id), fence=fence)
        self.clock.advance(first_end - self.clock.now())
        self.tick()

    @move(2, which=recent, worker=workers)
    def retry(self, which: int, worker: str) -> None:
        """A failure, its backoff and the next attempt in one move, as far as the policy allows."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace = self.namespace_of(fence.execution_id)
        failure = {"message": "broken", "failure_class": FailureClass.TRANSIENT, "category": "flaky", "steps": []}
        answer = self.act("leases.fail", namespace, fence=fence, **failure)
        if isinstance(answer, RetryScheduled):
            self.clock.advance(max(answer.at - self.clock.now(), 0 * S))
            self.tick()
            wishes = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": None}
            self.act("leases.claim_execution", namespace, id=fence.execution_id, **wishes)

    @move(2, which=recent, worker=workers, recorded=steps, from_step=st.sampled_from([None, None, "one", "two"]))
    def run_again(self, which: int, worker: str, recorded: list[Step], from_step: str | None) -> None:
        """An end, a replay and its first claim in one move, as far as the policy allows."""
        fence = self.live_fence(which)
        if fence is None:
            return
        id_, namespace = fence.execution_id, self.namespace_of(fence.execution_id)
        self.act("leases.checkpoint", namespace, fence=fence, steps=recorded)
        self.act("leases.complete", namespace, fence=fence, result=b"z", steps=[])
        wishes = {"from_step": from_step, "expected_generation": None, "reason": ""}
        if not is_refusal(self.act("operator.replay", namespace, id=id_, **wishes)):
            self.act("leases.claim_execution", namespace, id=id_, worker=worker, capabilities=("gpu",), lease_ttl=None)

    @move(2, which=recent, change=rarely)
    def repeat(self, which: int, change: bool) -> None:
        """I-14: the same request again, or nearly the same, whatever has happened since."""
        if not self._presented:
            return
        path, namespace, arguments = self._presented[-1 - which % len(self._presented)]
        if change and path != "leases.checkpoint" and "steps" in arguments:
            arguments = arguments | {"steps": [] if arguments["steps"] else [Step("one", b"2")]}
        self.act(path, namespace, **arguments)

    def _present(self, called: Call, which: int, bent: str, foreign: bool) -> None:
        """A call under a live lease, now and then with a part of the fence that is wrong."""
        fence = self.live_fence(which)
        if fence is None:
            return
        match bent:
            case "older":
                fence = replace(fence, epoch=max(0, fence.epoch - 1))
            case "newer":
                fence = replace(fence, epoch=fence.epoch + 1)
            case "forged":
                fence = replace(fence, lease_id=UUID(int=998))
        namespace = self.namespace_of(fence.execution_id, foreign)
        path, arguments = timed(called, self.clock.now(), self.execution(fence.execution_id))
        self._presented.append((path, namespace, arguments | {"fence": fence}))
        self.act(path, namespace, fence=fence, **arguments)


class OperatorMoves(Stage):
    """What operators do."""

    @move(4, whom=targets, called=operating)
    def operate(self, whom: Target, called: Call) -> None:
        """Cancel, hold, unhold, reprioritise, tag."""
        self.act_on(called[0], whom, **called[1])

    @move(
        2, whom=targets, reason=reasons, which=any_of_many, named=st.sampled_from(["", "", "", "epoch", "id", "worker"])
    )
    def revoke(self, whom: Target, reason: str, which: int, named: str) -> None:
        """Whatever lease is live, or only one that is named by a part of a fence that was ever handed out."""
        fence = self.fences[-1 - which % len(self.fences)] if self.fences else Fence(UUID(int=1), 1, UUID(int=998))
        self.act_on(
            "operator.revoke_lease", whom, reason=reason, epoch=fence.epoch if named == "epoch" else None,
            lease_id=fence.lease_id if named == "id" else None, instance=WORKERS[0] if named == "worker" else None,
        )  # fmt: skip

    @move(
        3, whom=targets, reason=reasons, from_step=st.sampled_from([None, None, "one", "two"]),
        expected_generation=st.sampled_from([None, None, None, None, None, 0, 1]),
    )  # fmt: skip
    def replay(self, whom: Target, **wishes: Any) -> None:
        self.act_on("operator.replay", whom, **wishes)

    @move(2, lane=lanes, how=st.sampled_from(["pause", "drain"]), body=bodies, reason=reasons)
    def close_lane(self, lane: str, how: str, body: Arguments, reason: str) -> None:
        """A lane is paused or drained, work is asked of it and brought to it, and it is open again."""
        self.act(f"lanes.{how}", RED, lane=lane, reason=reason)
        wishes = {"worker": WORKERS[0], "capabilities": ("gpu",), "lease_ttl": None}
        self.act("leases.claim", RED, lanes=LANES, limit=1, kinds=None, **wishes)
        rest = {"id": None, "key": "k1", "delay": None, "deadline": None, "priority": 0}
        self.act("executions.submit", RED, **body | {"lane": lane}, **rest)
        self.act("lanes.resume", RED, lane=lane, reason=reason)

    @move(2, namespace=mostly_red, called=looking_after)
    def look_after(self, namespace: str, called: Call) -> None:
        """Lanes, everything that is held, what a worker has."""
        self.act(called[0], namespace, **called[1])


class TimeMoves(Stage):
    """What the clock does."""

    @move(2, step=st.sampled_from([MICROSECOND, S, S, 4 * S, 4 * S, 30 * S, 2 * 86400 * S]), ticks=st.booleans())
    def advance(self, step: timedelta, ticks: bool) -> None:
        self._pass(step)
        if ticks:
            self.tick()

    @move(5, before=st.sampled_from([0, 0, 1]), ticks=st.sampled_from([True, True, False]))
    def advance_to_next_due(self, before: int, ticks: bool) -> None:
        """To the moment at which something is due, or a microsecond before it."""
        coming = [time for time in self.model.duties.due_times() if time > self.clock.now()]
        if coming:
            self._pass(max(coming[0] - self.clock.now() - before * MICROSECOND, 0 * S))
        if ticks:
            self.tick()

    def _pass(self, step: timedelta) -> None:
        """Time passes, but not a week in all: then events are trimmed, of which the model knows nothing."""
        if self.clock.now() + step < self.began + timedelta(days=6, hours=12):
            self.clock.advance(step)
