"""The reference model: the outcome and effect of every operation, written from the specification.

It is plain Python over the records of `world.py`, with one thread and one clock, and shares no decision with the
engine. It has the same method groups and signatures as the engine, with the namespace as first argument. A test can
therefore make the same call on the engine and the model. `leases_model.py` and `operator_model.py` contain the calls of
workers and operators.
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
from tests.model.keys_model import Keys, collect
from tests.model.leases_model import Leases
from tests.model.operator_model import Operator
from tests.model.records import Execution
from tests.model.signals_model import Signals, WaitDuties
from tests.model.stores import outcome_or_refusal
from tests.model.waits_model import Waitpoints
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
    """Submit, list and tag executions."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(
        self,
        namespace: str,
        *,
        kind: str,
        payload: bytes,
        lane: str,
        priority: int,
        requires: Collection[str],
        policy: Policy,
        tags: Mapping[str, str],
        id: UUID | None,
        key: str | None,
        delay: timedelta | None,
        deadline: datetime | None,
        signals: Sequence[str],
    ) -> Created | Duplicate:
        """Submit an execution.

        A known key or id returns a duplicate, or is rejected if the body differs. The comparison ignores the id, the
        times and the priority. A draining lane rejects new executions.
        """
        world, now = self._world, self._world.now
        names = (*sorted(tags.items()), tuple(signals))
        body = (namespace, kind, payload, lane, frozenset(requires), policy, names)
        window = seconds(policy.dedup_window)
        is_remembered = key is not None and window > timedelta(0)
        remembered = world.keys.get((namespace, key or "")) if is_remembered else None
        if remembered and (remembered.expires_at > now or remembered.execution_id in world.executions):
            return _duplicate(remembered.execution_id, remembered.body == body)
        existing = world.executions.get(id) if id else None
        if existing and existing.namespace == namespace:
            outcome = _duplicate(existing.id, existing.body == body)
        elif deadline is not None and deadline <= now:
            raise InvalidRequest("deadline_in_past", "")
        elif world.lane(namespace, lane) is LaneState.DRAINING:
            raise Refused("lane_draining", "")
        else:
            outcome = _duplicate(id, existing is None) if id else Duplicate(world.mint())
        if is_remembered and key is not None:
            world.keys[namespace, key] = Key(outcome.id, body, now + window)
        if existing:
            return outcome
        if deadline is None and policy.deadline is not None:
            deadline = now + seconds(policy.deadline)
        ready_at = now + delay if delay else None
        execution = Execution(
            id=outcome.id,
            namespace=namespace,
            lane=lane,
            kind=kind,
            requires=frozenset(requires),
            payload=payload,
            policy=policy,
            priority=min(max(priority, 0), 9000),
            tags=dict(tags),
            body=body,
            created_at=now,
            state=State.DELAYED if ready_at else State.WAITING,
            ready_at=ready_at,
            deadline_at=deadline,
            declared=tuple(signals),
        )
        world.executions[execution.id] = execution
        world.declare(execution)
        return Created(execution.id, execution.state)

    def submit_many(self, namespace: str, *, submissions: Sequence[Submission]) -> list[Any]:
        """Submit each execution independently, in order. A refused submission has its refusal as its outcome."""
        return [
            outcome_or_refusal(self.submit, namespace, **_get_submit_arguments(submission))
            for submission in submissions
        ]

    def submit_in_transaction(self, namespace: str, *, submission: Submission, commit: bool) -> Created | Duplicate:
        """Submit in a transaction, which has no effect unless it is committed."""
        executions, keys = dict(self._world.executions), dict(self._world.keys)
        try:
            return self.submit(namespace, **_get_submit_arguments(submission))
        finally:
            if not commit:
                self._world.executions, self._world.keys = executions, keys

    def pages(
        self,
        namespace: str,
        *,
        limit: int,
        state: State | None,
        lane: str | None,
        kind: str | None,
        tags: Mapping[str, str] | None,
    ) -> list[list[tuple[UUID, State, int]]]:
        """Return the pages of a list of all matching executions, newest id first."""
        rows = [
            (execution.id, execution.state, execution.version)
            for execution in sorted(self._world.executions.values(), key=lambda execution: execution.id, reverse=True)
            if execution.namespace == namespace
            and state in (None, execution.state)
            and lane in (None, execution.lane)
            and kind in (None, execution.kind)
            and (tags or {}).items() <= execution.tags.items()
        ]
        return [rows[start : start + limit] for start in range(0, len(rows), limit)] or [[]]

    def set_tags(self, namespace: str, *, id: UUID, tags: Mapping[str, str | None]) -> dict[str, str]:
        """Change the tags of an execution in any state. This writes no event."""
        execution = self._world.find(namespace, id)
        merged = {**execution.tags, **tags}
        execution.tags = {name: value for name, value in merged.items() if value is not None}
        return execution.tags


def _get_submit_arguments(submission: Submission) -> dict[str, Any]:
    names = "kind payload lane priority requires policy tags id key delay deadline signals"
    return {name: getattr(submission, name) for name in names.split()}


def _duplicate(id_: UUID, same: bool) -> Duplicate:
    if not same:
        raise Conflict("idempotency_mismatch", "", execution_id=id_)
    return Duplicate(id_)


class Lanes:
    """Pause, drain and resume lanes. Each change writes an event."""

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
    """The model of the duties, which act at every due time, never early and never twice."""

    def __init__(self, world: World) -> None:
        self._world = world

    def tick(self) -> None:
        """Run each duty over all executions: leases, delays, timeouts, deadlines, waits, keys and retention."""
        waits = WaitDuties(self._world)
        for duty in (self._lease_expiry, self._delayed_work, self._attempt_timeout, self._deadline, *waits.all):
            for execution in list(self._world.executions.values()):
                duty(execution)
        collect(self._world)
        for execution in list(self._world.executions.values()):
            self._retention(execution)
        now = self._world.now
        self._world.keys = {
            name: key for name, key in self._world.keys.items() if key.drop_at is None or key.drop_at > now
        }

    def due_times(self) -> list[datetime]:
        """Return every future time at which a duty has something to check or change."""
        times: list[datetime | None] = [key.expires_at for key in self._world.keys.values()]
        times += [grant.expires_at for grant in self._world.grants.values()]
        for execution in self._world.executions.values():
            times += [
                execution.lease.expires_at if execution.lease else None,
                execution.ready_at,
                execution.attempt_timeout_at,
                execution.deadline_at,
            ]
            # Include the end of a lease's first term. The duty checks a renewed lease then, and must not change it.
            times += [
                execution.purge_at,
                execution.lease.acquired_at + execution.lease.ttl if execution.lease else None,
            ]
            times += [execution.wait.timeout_at if execution.wait else None]
            times += [time for slot in execution.slots if slot.is_open for time in (slot.fires_at, slot.expires_at)]
            times += [slot.token_ends_at for slot in execution.slots if slot.is_open]
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
        """Delete the execution with its attempts, steps, grants and keys. Its events stay, and keys in their window."""
        world, id_ = self._world, execution.id
        if execution.purge_at is None or execution.purge_at > world.now:
            return
        world.gone[id_] = world.executions.pop(id_).events
        owned = {name: key for name, key in world.keys.items() if key.execution_id == id_}
        outlasting = {
            name: replace(key, drop_at=key.expires_at) for name, key in owned.items() if key.expires_at > world.now
        }
        world.keys = {name: key for name, key in world.keys.items() if name not in owned} | outlasting
        world.grants = {name: grant for name, grant in world.grants.items() if grant.execution_id != id_}
