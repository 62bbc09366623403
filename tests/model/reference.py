"""The reference model: what every operation of the contract answers and changes, restated from the specification.

It is plain Python over the records of `world.py`, one thread and one clock, and shares no decision with the engine. Its
groups and signatures are those of the engine, so that one call can be made on all sides; the namespace comes first.
Workers are in `working.py`, operators in `operating.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    AttemptOutcome,
    Conflict,
    Created,
    Duplicate,
    FailureClass,
    InvalidRequest,
    LaneState,
    OnAttemptTimeout,
    Policy,
    Refused,
    State,
    Submission,
)
from flowfabric.testing import VirtualClock
from tests.model.operating import Operator
from tests.model.records import Execution
from tests.model.ringing import Keys, collect
from tests.model.sides import answer_or_refusal
from tests.model.signalling import Signals, WaitDuties
from tests.model.waiting import Waitpoints
from tests.model.working import Leases
from tests.model.world import Key, World, may_retry, seconds


class Reference:
    """The model of a store."""

    def __init__(self, clock: VirtualClock) -> None:
        self.world = World(clock)
        self.executions = Executions(self.world)
        self.leases = Leases(self.world)
        self.operator = Operator(self.world)
        self.lanes = Lanes(self.world)
        self.waitpoints = Waitpoints(self.world)
        self.signals = Signals(self.world)
        self.keys = Keys(self.world)
        self.duties = Duties(self.world)


class Executions:
    """Submitting."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(
        self, namespace: str, *, kind: str, payload: bytes, lane: str, priority: int, requires: Collection[str],
        policy: Policy, tags: Mapping[str, str], id: UUID | None, key: str | None, delay: timedelta | None,
        deadline: datetime | None, signals: Sequence[str],
    ) -> Created | Duplicate:  # fmt: skip
        """A key or id that is known answers duplicate, or is refused when the body differs; id, times and priority are
        not compared. A draining lane takes nothing new."""
        world, now = self._world, self._world.now
        names = (*sorted(tags.items()), tuple(signals))
        body = (namespace, kind, payload, lane, frozenset(requires), policy, names)
        window = seconds(policy.dedup_window)
        remembers = key is not None and window > timedelta(0)
        known = world.keys.get((namespace, key or "")) if remembers else None
        if known and known.expires_at > now:
            return _duplicate(known.execution_id, known.body == body)
        existing = world.executions.get(id) if id else None
        if existing and existing.namespace == namespace:
            answer = _duplicate(existing.id, existing.body == body)
        elif deadline is not None and deadline <= now:
            raise InvalidRequest("deadline_in_past", "")
        elif world.lane(namespace, lane) is LaneState.DRAINING:
            raise Refused("lane_draining", "")
        else:
            answer = _duplicate(id, existing is None) if id else Duplicate(world.mint())
        if remembers and key is not None:
            world.keys[namespace, key] = Key(answer.id, body, now + window)
        if existing:
            return answer
        if deadline is None and policy.deadline is not None:
            deadline = now + seconds(policy.deadline)
        ready_at = now + delay if delay else None
        execution = Execution(
            id=answer.id, namespace=namespace, lane=lane, kind=kind, requires=frozenset(requires), payload=payload,
            policy=policy, priority=min(max(priority, 0), 9000), tags=dict(tags), body=body, created_at=now,
            state=State.DELAYED if ready_at else State.WAITING, ready_at=ready_at, deadline_at=deadline,
            declared=tuple(signals),
        )  # fmt: skip
        world.executions[execution.id] = execution
        world.declare(execution)
        return Created(execution.id, execution.state)

    def submit_many(self, namespace: str, *, submissions: Sequence[Submission]) -> list[Any]:
        """Each for itself, in their order; a refusal is its answer."""
        return [answer_or_refusal(self.submit, namespace, **_wishes(item)) for item in submissions]

    def submit_within(self, namespace: str, *, submission: Submission, commit: bool) -> Created | Duplicate:
        """As a submit, if the transaction around it is committed; else nothing has happened."""
        executions, keys = dict(self._world.executions), dict(self._world.keys)
        try:
            return self.submit(namespace, **_wishes(submission))
        finally:
            if not commit:
                self._world.executions, self._world.keys = executions, keys

    def pages(
        self, namespace: str, *, limit: int, state: State | None, lane: str | None, kind: str | None,
        tags: Mapping[str, str] | None,
    ) -> list[list[tuple[UUID, State, int]]]:  # fmt: skip
        """What a list shows page by page: everything that fits, the newest id first."""
        found = [
            (item.id, item.state, item.version)
            for item in sorted(self._world.executions.values(), key=lambda item: item.id, reverse=True)
            if item.namespace == namespace
            and state in (None, item.state)
            and lane in (None, item.lane)
            and kind in (None, item.kind)
            and (tags or {}).items() <= item.tags.items()
        ]
        return [found[start : start + limit] for start in range(0, len(found), limit)] or [[]]

    def set_tags(self, namespace: str, *, id: UUID, tags: Mapping[str, str | None]) -> dict[str, str]:
        """In any state, without an event."""
        execution = self._world.find(namespace, id)
        merged = {**execution.tags, **tags}
        execution.tags = {name: value for name, value in merged.items() if value is not None}
        return execution.tags


def _wishes(submission: Submission) -> dict[str, Any]:
    names = "kind payload lane priority requires policy tags id key delay deadline signals"
    return {name: getattr(submission, name) for name in names.split()}


def _duplicate(id_: UUID, same: bool) -> Duplicate:
    if not same:
        raise Conflict("idempotency_mismatch", "", execution_id=id_)
    return Duplicate(id_)


class Lanes:
    """Pausing gives nothing out, draining takes nothing in; each change leaves an event."""

    def __init__(self, world: World) -> None:
        self._world = world

    def pause(self, namespace: str, *, lane: str, reason: str) -> LaneState:
        return self._set(namespace, lane, LaneState.PAUSED, "lane_paused")

    def resume(self, namespace: str, *, lane: str, reason: str) -> LaneState:
        return self._set(namespace, lane, LaneState.ACTIVE, "lane_resumed")

    def drain(self, namespace: str, *, lane: str, reason: str) -> LaneState:
        return self._set(namespace, lane, LaneState.DRAINING, "lane_draining")

    def _set(self, namespace: str, lane: str, state: LaneState, event: str) -> LaneState:
        if self._world.lane(namespace, lane) is not state:
            self._world.lanes[namespace, lane] = state
            self._world.lane_events.append((namespace, lane, event))
        return state


class Duties:
    """What becomes due with time. Nothing happens early, and nothing twice."""

    def __init__(self, world: World) -> None:
        self._world = world

    def tick(self) -> None:
        """Lease expiry, delayed work, attempt timeouts, deadlines, waits, keys, retention; each over everything."""
        waits = WaitDuties(self._world)
        for duty in (self._lease_expiry, self._delayed_work, self._attempt_timeout, self._deadline, *waits.all):
            for execution in list(self._world.executions.values()):
                duty(execution)
        collect(self._world)
        for execution in list(self._world.executions.values()):
            self._retention(execution)
        now = self._world.now
        self._world.keys = {name: key for name, key in self._world.keys.items() if key.expires_at > now}

    def due_times(self) -> list[datetime]:
        """Every moment at which something is going to change."""
        times: list[datetime | None] = [key.expires_at for key in self._world.keys.values()]
        times += [grant.expires_at for grant in self._world.grants.values()]
        for item in self._world.executions.values():
            times += [
                item.lease.expires_at if item.lease else None,
                item.ready_at,
                item.attempt_timeout_at,
                item.deadline_at,
            ]
            # A renewed lease is looked at when its first term ends, and must be left alone then.
            times += [item.purge_at, item.lease.acquired_at + item.lease.ttl if item.lease else None]
            times += [item.wait.timeout_at if item.wait else None]
            times += [time for slot in item.slots if slot.is_open for time in (slot.fires_at, slot.expires_at)]
            times += [slot.token_ends_at for slot in item.slots if slot.is_open]
        times += [key.verifies_until for key in self._world.ring.keys if key.collected_at is None]
        return sorted({time for time in times if time is not None})

    def _lease_expiry(self, execution: Execution) -> None:
        if execution.lease and execution.lease.expires_at <= self._world.now:
            self._world.lose_lease(execution, "lease.expired")

    def _delayed_work(self, execution: Execution) -> None:
        if execution.state is State.DELAYED and execution.ready_at and execution.ready_at <= self._world.now:
            execution.state, execution.ready_at = State.WAITING, None
            self._world.note(execution, "lifecycle.ready", replace(execution))

    def _attempt_timeout(self, execution: Execution) -> None:
        due = execution.attempt_timeout_at
        if due is None or due > self._world.now:
            return
        expires = execution.policy.on_attempt_timeout is OnAttemptTimeout.EXPIRE
        retried = not expires and may_retry(execution, FailureClass.TIMEOUT, "attempt_timeout")
        ends = State.EXPIRED if expires else State.FAILED
        self._world.fail_attempt(execution, "attempt_timeout", retried=retried, ends=ends, moves=True)

    def _deadline(self, execution: Execution) -> None:
        due = execution.deadline_at
        if execution.state.is_terminal or due is None or due > self._world.now:
            return
        before = replace(execution)
        execution.category = "deadline"
        self._world.end_attempt(execution, AttemptOutcome.FAILURE, category="deadline")
        self._world.end_lease(execution, "execution_not_active")
        self._world.terminate(execution, State.EXPIRED)
        self._world.note(execution, "completion.expired", before)

    def _retention(self, execution: Execution) -> None:
        """The execution goes with its attempts, steps, grants and keys; its events stay."""
        world, id_ = self._world, execution.id
        if execution.purge_at is None or execution.purge_at > world.now:
            return
        world.gone[id_] = world.executions.pop(id_).events
        world.keys = {name: key for name, key in world.keys.items() if key.execution_id != id_}
        world.grants = {name: grant for name, grant in world.grants.items() if grant.execution_id != id_}
