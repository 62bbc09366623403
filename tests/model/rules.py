"""The moves of the state machine: the calls of clients, workers and operators, and the passage of time, in any order.

Each move is a method with its weight and the strategies of its arguments. Moves with several requests are in
`batch_moves.py`. Moves with signals and whole waits are in `wait_moves.py`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from flowfabric.engine import FailureClass, Fence, RetryScheduled, Step
from tests.model.checks import BaseMachine, Target, is_refusal, other
from tests.model.stores import Sides
from tests.model.strategies import (
    LANES,
    MICROSECOND,
    RED,
    WORKERS,
    Arguments,
    Call,
    S,
    admin_calls,
    any_index,
    bodies,
    capability_sets,
    complete_calls,
    fail_calls,
    fence_changes,
    keep_calls,
    lanes,
    lease_ttls,
    leave_calls,
    mostly_red,
    move,
    operator_calls,
    rarely,
    reasons,
    recent,
    steps,
    targets,
    workers,
)
from tests.model.wait_strategies import create_calls, resolve_times, suspend_calls

any_call = st.one_of(keep_calls, complete_calls, fail_calls, leave_calls, create_calls, suspend_calls)


class ClientMoves(BaseMachine):
    """Submit, often repeatedly."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides)
        self._submitted: list[tuple[str, Arguments]] = []

    @move(
        4,
        body=bodies,
        namespace=mostly_red,
        key=st.sampled_from([None, "k1", "k2"]),
        id=st.sampled_from([None, None, *(UUID(int=number) for number in range(1, 5))]),
        priority=st.sampled_from([0, 0, 5, 9001]),
        delay=st.sampled_from([None, None, None, 0 * S, 6 * S]),
        deadline=st.sampled_from([None, None, None, None, 20 * S, 0 * S]),
    )
    def submit(self, body: Arguments, namespace: str, deadline: timedelta | None, **submit_options: Any) -> None:
        at = None if deadline is None else self.clock.now() + deadline
        arguments = body | submit_options | {"deadline": at}
        # The specification does not define a submit with the id of a purged execution whose events remain.
        if submit_options["id"] not in self.model.world.gone:
            if submit_options["id"] or submit_options["key"]:
                self._submitted.append((namespace, arguments))
            self.act("executions.submit", namespace, **arguments)

    @move(
        2,
        which=recent,
        change=st.sampled_from([{}, {}, {"payload": b"other"}, {"id": None}, {"id": None, "key": "k3"}]),
        foreign=rarely,
    )
    def submit_again(self, which: int, change: Arguments, foreign: bool) -> None:
        """I-17: repeat a submit by its key or id, with the same or a different body, or in the other namespace."""
        if not self._submitted:
            return
        namespace, arguments = self._submitted[-1 - which % len(self._submitted)]
        if arguments["id"] not in self.model.world.gone:
            self.act("executions.submit", other(namespace) if foreign else namespace, **arguments | change)

    @move(body=bodies, worker=workers, lease_ttl=lease_ttls, namespace=mostly_red)
    def begin(self, body: Arguments, worker: str, lease_ttl: Any, namespace: str) -> None:
        """Submit and claim in one move, so that short examples reach more states."""
        submit_options = {"id": None, "key": None, "delay": None, "deadline": None, "priority": 0}
        created = self.act("executions.submit", namespace, **body, **submit_options)
        if not is_refusal(created):
            options = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": lease_ttl}
            self.act("leases.claim_execution", namespace, id=created.id, **options)


class ClaimMoves(BaseMachine):
    """The moves that begin leases."""

    @move(
        3,
        chosen=st.sampled_from([LANES, LANES, LANES[:1], LANES[1:]]),
        worker=workers,
        capabilities=capability_sets,
        limit=st.integers(1, 3),
        lease_ttl=lease_ttls,
        kinds=st.sampled_from([None, None, ("job",)]),
        namespace=mostly_red,
    )
    def claim(self, namespace: str, chosen: tuple[str, ...], **options: Any) -> None:
        leases = self.act("leases.claim", namespace, lanes=chosen, **options)
        assert all(lease.namespace == namespace and lease.lane in chosen for lease in leases), (
            "I-08: a claim returned an execution of another namespace or lane"
        )

    @move(2, target=targets, worker=workers, capabilities=capability_sets, lease_ttl=lease_ttls)
    def claim_execution(self, target: Target, **options: Any) -> None:
        self.act_on("leases.claim_execution", target, **options)

    @move(target=targets, worker=workers, capabilities=capability_sets, lease_ttl=lease_ttls)
    def claim_resumed(self, target: Target, **options: Any) -> None:
        self.act_on("leases.claim_resumed", target, **options)

    @move(2, body=bodies, which=recent, worker=workers, limit=st.integers(1, 3), later=st.sampled_from([0 * S, S]))
    def crowd(self, body: Arguments, which: int, worker: str, limit: int, later: timedelta) -> None:
        """Submit executions of different ages and priorities, release a lease, and let one worker claim some of all
        waiting executions.
        """
        submit_options = {"id": None, "key": None, "delay": None, "deadline": None}
        for priority in (0, 0, 5):
            self.act("executions.submit", RED, **body, **submit_options, priority=priority)
            self.clock.advance(later)
        fence = self.live_fence(which)
        if fence is not None:
            self.act("leases.release", self.namespace_of(fence.execution_id), fence=fence)
        options = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": None, "kinds": None}
        self.act("leases.claim", RED, lanes=LANES, limit=limit, **options)
        self.act("leases.claim", RED, lanes=LANES, limit=1, **options)

    @move(target=targets, worker=workers, capabilities=capability_sets)
    def grant_reclaim(self, target: Target, **options: Any) -> None:
        self.act_on("operator.grant_reclaim", target, **options)

    @move(which=any_index, foreign=rarely, worker=workers, lease_ttl=lease_ttls)
    def reclaim(self, which: int, foreign: bool, **options: Any) -> None:
        if self.grants:
            grant, id_ = self.grants[-1 - which % len(self.grants)]
            self.act("leases.reclaim", self.namespace_of(id_, foreign), grant=grant, **options)

    @move(2, which=recent, worker=workers, revoked=st.booleans())
    def hand_off(self, which: int, worker: str, revoked: bool) -> None:
        """In one move, revoke a lease or let it expire, grant a reclaim, and use the grant."""
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
            repeated = self.act("leases.reclaim", namespace, grant=grant.id, worker=worker, lease_ttl=None)
            assert repeated == lease or is_refusal(repeated), "a repeated reclaim returns the same lease"

    @move(2, which=recent, worker=workers)
    def keep_a_grant(self, which: int, worker: str) -> None:
        """Keep a grant until its execution was cancelled, replayed, claimed and revoked again. Then use the grant."""
        fence = self.live_fence(which)
        if fence is None:
            return
        id_, namespace = fence.execution_id, self.namespace_of(fence.execution_id)
        revocation = {"id": id_, "reason": "", "instance": None, "lease_id": None, "epoch": None}
        options = {"worker": worker, "capabilities": ("gpu",)}
        self.act("operator.revoke_lease", namespace, **revocation)
        grant = self.act("operator.grant_reclaim", namespace, id=id_, **options)
        if is_refusal(grant):
            return
        self.act("operator.cancel", namespace, id=id_, reason="")
        self.act("operator.replay", namespace, id=id_, reason="", from_step=None, expected_generation=None)
        self.act("leases.claim_execution", namespace, id=id_, lease_ttl=None, **options)
        self.act("operator.revoke_lease", namespace, **revocation)
        self.act("leases.reclaim", namespace, grant=grant.id, worker=worker, lease_ttl=None)


class WorkerMoves(BaseMachine):
    """The calls of workers, with the live fences, changed fences, and any fence that was ever returned."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides)
        self._presented: list[tuple[str, str, Arguments]] = []

    @move(4, which=recent, fence_change=fence_changes, foreign=rarely, operation=keep_calls)
    def keep(self, operation: Call, **fence_options: Any) -> None:
        """Renew, report progress and record steps under a lease."""
        self._present(operation, **fence_options)

    @move(3, which=recent, fence_change=fence_changes, foreign=rarely, operation=complete_calls)
    def complete(self, operation: Call, **fence_options: Any) -> None:
        self._present(operation, **fence_options)

    @move(3, which=recent, fence_change=fence_changes, foreign=rarely, operation=fail_calls)
    def fail(self, operation: Call, **fence_options: Any) -> None:
        self._present(operation, **fence_options)

    @move(3, which=recent, fence_change=fence_changes, foreign=rarely, operation=leave_calls)
    def leave(self, operation: Call, **fence_options: Any) -> None:
        """Delay, release or cancel."""
        self._present(operation, **fence_options)

    @move(3, which=recent, fence_change=fence_changes, foreign=rarely, operation=create_calls)
    def create_waitpoint(self, operation: Call, **fence_options: Any) -> None:
        self._present(operation, **fence_options)

    @move(7, which=recent, fence_change=fence_changes, foreign=rarely, operation=suspend_calls)
    def suspend(self, operation: Call, **fence_options: Any) -> None:
        self._present(operation, **fence_options)

    @move(5, which=any_index, operation=any_call)
    def come_back(self, which: int, operation: Call) -> None:
        """Present any earlier fence, as a worker process that was frozen for a while would."""
        if self.fences:
            fence, (path, arguments) = (
                self.fences[-1 - which % len(self.fences)],
                resolve_times(operation, self.clock.now()),
            )
            self.act(path, self.namespace_of(fence.execution_id), fence=fence, **arguments)

    @move(4, which=recent, operation=any_call, early=st.sampled_from([0, 0, 1]))
    def oversleep(self, which: int, operation: Call, early: int) -> None:
        """Make a call exactly when the lease expires or a microsecond before. No duty has processed the expiry yet."""
        fence = self.live_fence(which)
        if fence is not None:
            self.clock.advance(self.expiry_of(fence.execution_id) - self.clock.now() - early * MICROSECOND)
            path, arguments = resolve_times(operation, self.clock.now())
            self.act(path, self.namespace_of(fence.execution_id), fence=fence, **arguments)

    @move(2, which=recent)
    def outlive(self, which: int) -> None:
        """Check that a renewed lease is unchanged when its first term ends."""
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
        """In one move, fail the attempt and, if the policy allows a retry, wait for the backoff and claim the next
        attempt.
        """
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace = self.namespace_of(fence.execution_id)
        failure = {"message": "broken", "failure_class": FailureClass.TRANSIENT, "category": "flaky", "steps": []}
        outcome = self.act("leases.fail", namespace, fence=fence, **failure)
        if isinstance(outcome, RetryScheduled):
            self.clock.advance(max(outcome.at - self.clock.now(), 0 * S))
            self.tick()
            options = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": None}
            self.act("leases.claim_execution", namespace, id=fence.execution_id, **options)

    @move(2, which=recent, worker=workers, recorded=steps, from_step=st.sampled_from([None, None, "one", "two"]))
    def run_again(self, which: int, worker: str, recorded: list[Step], from_step: str | None) -> None:
        """In one move, complete the execution, replay it and, if the policy allows the replay, claim it."""
        fence = self.live_fence(which)
        if fence is None:
            return
        id_, namespace = fence.execution_id, self.namespace_of(fence.execution_id)
        self.act("leases.checkpoint", namespace, fence=fence, steps=recorded)
        self.act("leases.complete", namespace, fence=fence, result=b"z", steps=[])
        options = {"from_step": from_step, "expected_generation": None, "reason": ""}
        if not is_refusal(self.act("operator.replay", namespace, id=id_, **options)):
            self.act("leases.claim_execution", namespace, id=id_, worker=worker, capabilities=("gpu",), lease_ttl=None)

    @move(2, which=recent, change=rarely)
    def repeat(self, which: int, change: bool) -> None:
        """I-14: repeat an earlier request after any other moves, sometimes with different steps."""
        if not self._presented:
            return
        path, namespace, arguments = self._presented[-1 - which % len(self._presented)]
        if change and path != "leases.checkpoint" and "steps" in arguments:
            arguments = arguments | {"steps": [] if arguments["steps"] else [Step("one", b"2")]}
        self.act(path, namespace, **arguments)

    def _present(self, operation: Call, which: int, fence_change: str, foreign: bool) -> None:
        """Make a call under a live lease, sometimes with a wrong epoch or lease id in the fence."""
        fence = self.live_fence(which)
        if fence is None:
            return
        match fence_change:
            case "older":
                fence = replace(fence, epoch=max(0, fence.epoch - 1))
            case "newer":
                fence = replace(fence, epoch=fence.epoch + 1)
            case "forged":
                fence = replace(fence, lease_id=UUID(int=998))
        namespace = self.namespace_of(fence.execution_id, foreign)
        path, arguments = resolve_times(operation, self.clock.now(), self.execution(fence.execution_id))
        self._presented.append((path, namespace, arguments | {"fence": fence}))
        self.act(path, namespace, fence=fence, **arguments)


class OperatorMoves(BaseMachine):
    """The calls of operators."""

    @move(4, target=targets, operation=operator_calls)
    def operate(self, target: Target, operation: Call) -> None:
        """Cancel, hold or unhold an execution, or change its priority or tags."""
        self.act_on(operation[0], target, **operation[1])

    @move(
        2, target=targets, reason=reasons, which=any_index, named=st.sampled_from(["", "", "", "epoch", "id", "worker"])
    )
    def revoke(self, target: Target, reason: str, which: int, named: str) -> None:
        """Revoke the live lease, or only a lease that matches a part of an earlier fence."""
        fence = self.fences[-1 - which % len(self.fences)] if self.fences else Fence(UUID(int=1), 1, UUID(int=998))
        self.act_on(
            "operator.revoke_lease",
            target,
            reason=reason,
            epoch=fence.epoch if named == "epoch" else None,
            lease_id=fence.lease_id if named == "id" else None,
            instance=WORKERS[0] if named == "worker" else None,
        )

    @move(
        3,
        target=targets,
        reason=reasons,
        from_step=st.sampled_from([None, None, "one", "two"]),
        expected_generation=st.sampled_from([None, None, None, None, None, 0, 1]),
    )
    def replay(self, target: Target, **options: Any) -> None:
        self.act_on("operator.replay", target, **options)

    @move(2, lane=lanes, how=st.sampled_from(["pause", "drain"]), body=bodies, reason=reasons)
    def close_lane(self, lane: str, how: str, body: Arguments, reason: str) -> None:
        """Pause or drain a lane, claim from it and submit to it, and resume it."""
        self.act(f"lanes.{how}", RED, lane=lane, reason=reason)
        options = {"worker": WORKERS[0], "capabilities": ("gpu",), "lease_ttl": None}
        self.act("leases.claim", RED, lanes=LANES, limit=1, kinds=None, **options)
        submit_options = {"id": None, "key": "k1", "delay": None, "deadline": None, "priority": 0}
        self.act("executions.submit", RED, **body | {"lane": lane}, **submit_options)
        self.act("lanes.resume", RED, lane=lane, reason=reason)

    @move(2, namespace=mostly_red, operation=admin_calls)
    def look_after(self, namespace: str, operation: Call) -> None:
        """Manage lanes, unhold all executions, or list the leases of a worker."""
        self.act(operation[0], namespace, **operation[1])


class TimeMoves(BaseMachine):
    """The passage of time."""

    @move(2, step=st.sampled_from([MICROSECOND, S, S, 4 * S, 4 * S, 30 * S, 2 * 86400 * S]), ticks=st.booleans())
    def advance(self, step: timedelta, ticks: bool) -> None:
        self._pass(step)
        if ticks:
            self.tick()

    @move(5, before=st.sampled_from([0, 0, 1]), ticks=st.sampled_from([True, True, False]))
    def advance_to_next_due(self, before: int, ticks: bool) -> None:
        """Advance to the next due time, or to a microsecond before it."""
        future_times = [time for time in self.model.duties.due_times() if time > self.clock.now()]
        if future_times:
            self._pass(max(future_times[0] - self.clock.now() - before * MICROSECOND, 0 * S))
        if ticks:
            self.tick()

    def _pass(self, step: timedelta) -> None:
        """Advance the clock, but by less than a week in total.

        After a week events are trimmed, which the model does not cover.
        """
        if self.clock.now() + step < self.began + timedelta(days=6, hours=12):
            self.clock.advance(step)
