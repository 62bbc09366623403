"""The reference model of waits: creating waitpoints and suspending under a lease, and how a suspension ends."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    AnyOf,
    AttemptState,
    ByName,
    Condition,
    Conflict,
    Count,
    Fence,
    Fresh,
    InvalidRequest,
    NotFound,
    OnTimeout,
    OpenWaitpoint,
    Pending,
    Rest,
    Resumption,
    Satisfied,
    Signal,
    Standing,
    State,
    Step,
    Suspended,
    SuspendedView,
    SuspensionReason,
    TimeoutOnly,
    Timer,
    Trigger,
    WaitpointClosed,
    WaitpointKind,
    WaitpointState,
    WaitpointView,
)
from tests.model.records import Execution
from tests.model.ringing import active_key, known_key
from tests.model.waits import Slot, TokenFacts, Wait, counting, holds, keys_of, leaves, needed_keys, token_symbol
from tests.model.world import World

Bound = Fresh | Pending | Standing | Timer
_KINDS = {
    Fresh: WaitpointKind.ADDRESSED, Pending: WaitpointKind.ADDRESSED, Standing: WaitpointKind.STANDING,
    Timer: WaitpointKind.TIMER,
}  # fmt: skip
_CLOSED_BY = {Trigger.SIGNALS: "resumed", Trigger.OPERATOR: "resumed", Trigger.TIMEOUT: "timed_out"}


class Waitpoints:
    """Slots for signals."""

    def __init__(self, world: World) -> None:
        self._world = world

    def create(
        self, namespace: str, *, fence: Fence, key: str, expires: timedelta | None, approver: str | None,
        token_ends_at: datetime | None,
    ) -> OpenWaitpoint:  # fmt: skip
        """A pending one with its token; the open one under this key, if there is one and it is such a one."""
        world, execution = self._world, self._world.owned(namespace, fence)
        slot = open_slot(execution, key, world.now)
        if slot is None:
            close_overdue(execution, key, world.now)
            slot = world.new_slot(execution, key, WaitpointKind.ADDRESSED)
            slot.expires_at = None if expires is None else world.now + expires
            mint(world, execution, slot, approver, token_ends_at)
        elif slot.kind is WaitpointKind.STANDING and slot.kid is None:
            mint(world, execution, slot, approver, token_ends_at)
        elif slot.kid is None or approver not in (None, slot.approver):
            raise Conflict("waitpoint_already_exists", "")
        return shown(world, slot)

    def close(self, namespace: str, *, waitpoint_id: UUID, reason: str) -> WaitpointClosed:
        """It takes no more signals; whoever waits on it waits on."""
        for execution in self._world.executions.values():
            for slot in execution.slots:
                if slot.id == waitpoint_id and execution.namespace == namespace:
                    already = not slot.is_open
                    if slot.is_open:
                        slot.close(self._world.now, "closed")
                        self._world.note(execution, "operator.waitpoint_closed", replace(execution), "operator", reason)
                    return WaitpointClosed(slot.id, already=already)
        raise NotFound("waitpoint_not_found", "")

    def list(self, namespace: str, *, execution_id: UUID) -> list[WaitpointView]:
        """All of an execution, without what is for people's eyes."""
        execution = self._world.find(namespace, execution_id)
        views = [
            WaitpointView(
                id=slot.id, execution_id=execution.id, key=slot.key, kind=slot.kind, state=slot.state,
                approver=slot.approver, kid=slot.kid, names=_names(execution, slot), fingerprint=None,
                created_at=slot.created_at, expires_at=slot.expires_at, closed_at=slot.closed_at,
                close_reason=slot.close_reason,
            )
            for slot in execution.slots
        ]  # fmt: skip
        return sorted(views, key=lambda view: str(view.id))

    def list_suspended(self, namespace: str) -> builtins.list[SuspendedView]:
        """What is suspended on what."""
        here = [item for item in self._world.executions.values() if item.namespace == namespace]
        views = [
            SuspendedView(
                id=wait.id, execution_id=item.id, reason=wait.reason, condition=wait.condition, missing=(),
                opened_at=wait.opened_at, timeout_at=wait.timeout_at, on_timeout=wait.on_timeout,
            )
            for item in here
            for wait in item.waits
            if wait.closed_at is None
        ]  # fmt: skip
        return sorted(views, key=lambda view: str(view.id))


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a worker wants to wait for."""

    waitpoints: Sequence[Bound]
    condition: Condition
    reason: SuspensionReason
    timeout: timedelta | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    rest: Rest
    key: str | None


def suspend(world: World, namespace: str, fence: Fence, wish: Wish, steps: list[Step]) -> Suspended | Satisfied:
    """The lease is given up until the condition holds. A key that is known, and the same request by the last fence, are
    answered from what they once opened."""
    if isinstance(wish.condition, TimeoutOnly) and wish.timeout is None:
        raise InvalidRequest("timeout_only_without_deadline", "")
    execution = world.find(namespace, fence.execution_id)
    request = ("suspend", wish, *((step.name, step.status, step.payload) for step in steps))
    known = _known(execution, fence, wish.key, request)
    if known is not None:
        return _answer_again(world, namespace, known, fence, request)
    world.owned(namespace, fence)
    existing = [_fitting(execution, binding, world.now) for binding in wish.waitpoints]
    _check_sources(wish, existing)
    world.record(execution, steps)
    before = replace(execution)
    wait = Wait(
        id=world.mint(), number=len(execution.waits) + 1, generation=execution.generation, fence=fence, key=wish.key,
        request=request, condition=wish.condition, reason=wish.reason, rest=wish.rest, opened_at=world.now,
        timeout_at=None if wish.timeout is None else world.now + wish.timeout, on_timeout=wish.on_timeout,
        resume_delay=wish.resume_delay,
    )  # fmt: skip
    execution.waits.append(wait)
    execution.plain = False
    bound = [_bind(world, execution, wait, *pair) for pair in zip(wish.waitpoints, existing, strict=True)]
    waiting = [item for item in execution.signals if item.suspension is None and _came_to(bound, item)]
    _join(execution, wait, bound, waiting)
    if holds(wait.condition, waiting):
        wait.at_once = True
        close(world, execution, wait, Trigger.SIGNALS, needed_keys(wait.condition, waiting))
        world.note(execution, "lifecycle.resumed", before)
        return Satisfied(wait.id, Trigger.SIGNALS, observed(execution, wait))
    answer = Suspended(wait.id, tuple(shown(world, slot) for slot in bound))
    wait.bound = answer.waitpoints
    world.end_lease(execution, "execution_not_active", request=request, answer=answer)
    execution.state, execution.attempt_state = State.SUSPENDED, AttemptState.INTERRUPTED
    execution.is_escalated = False
    world.note(execution, "lease.suspended", before)
    return answer


def close(
    world: World, execution: Execution, wait: Wait, trigger: Trigger, used: Collection[str] = ()
) -> None:  # fmt: skip
    """The suspension ends with what it has bound. What stands goes on standing; what an AnyOf did not need is kept if
    that was wished. What came to these and was not used may count again."""
    wait.closed_at, wait.closed_by = world.now, trigger
    keeps = wait.rest is Rest.KEEP and trigger is Trigger.SIGNALS and isinstance(wait.condition, AnyOf)
    for slot in execution.slots:
        if slot.state is not WaitpointState.ACTIVE:
            continue
        if slot.kind is not WaitpointKind.STANDING and not (keeps and slot.key not in used):
            slot.close(world.now, _CLOSED_BY[trigger])
            continue
        slot.state, slot.expires_at = WaitpointState.PENDING, None
        if slot.key not in used:
            execution.signals[:] = [
                replace(item, suspension=None, counts=False)
                if item.suspension == wait.number and item.waitpoint_id == slot.id
                else item
                for item in execution.signals
            ]
    execution.resumption = Resumption(wait.id, trigger.value)


def go_on(world: World, execution: Execution, delay: timedelta) -> None:
    """The execution waits for a worker, or for the delay to pass."""
    later = delay > timedelta(0)
    execution.state = State.DELAYED if later else State.WAITING
    execution.ready_at = world.now + delay if later else None


def observed(execution: Execution, wait: Wait, *, include_unmatched: bool = False) -> tuple[Signal, ...]:
    """The signals that belong to a suspension."""
    mine = (item for item in execution.signals if item.suspension == wait.number)
    return tuple(item for item in mine if item.counts or include_unmatched)


def open_slot(execution: Execution, key: str, now: datetime) -> Slot | None:
    """The open waitpoint under a key, if its time is not over."""
    found = (slot for slot in execution.slots if slot.is_open and slot.key == key)
    return next((slot for slot in found if slot.expires_at is None or slot.expires_at > now), None)


def close_overdue(execution: Execution, key: str, now: datetime) -> None:
    """What is past its time makes room for another under its key, whether or not the duty has been there."""
    for slot in execution.slots:
        if slot.is_open and slot.key == key:
            slot.close(now, "expired")


def mint(world: World, execution: Execution, slot: Slot, approver: str | None, ends_at: datetime | None) -> None:
    """The waitpoint gets its token, signed with the active key."""
    kid = active_key(world).kid
    slot.kid, slot.approver, slot.token_ends_at = kid, approver, ends_at
    world.ring.tokens[token_symbol(slot.id)] = TokenFacts(execution.namespace, execution.id, slot.id, kid)


def shown(world: World, slot: Slot) -> OpenWaitpoint:
    """A waitpoint with its token, unless that went with its key."""
    key = known_key(world, slot.kid)
    return OpenWaitpoint(
        slot.id, slot.key, token_symbol(slot.id) if key and key.collected_at is None else None, slot.expires_at
    )


def _as_it_was(world: World, execution: Execution, known: Wait, first: OpenWaitpoint) -> OpenWaitpoint:
    """What was answered when a suspension bound a waitpoint; only its token may be gone with its key."""
    slot = next(slot for slot in execution.slots if slot.id == first.id)
    is_kept = slot.is_open and slot.kind is not WaitpointKind.STANDING and known.closed_at is not None
    ends = known.timeout_at if is_kept else first.expires_at
    return OpenWaitpoint(first.id, first.key, shown(world, slot).token, ends)


def _names(execution: Execution, slot: Slot) -> tuple[str, ...] | None:
    """The names of the signals that help at a waitpoint of the open suspension; None: any, or nobody waits."""
    wait = execution.wait
    if wait is None or slot.suspension != wait.number:
        return None
    matchers = [leaf.matcher for leaf in leaves(wait.condition) if slot.key in keys_of(leaf)]
    names = [matcher.name if isinstance(matcher, ByName) else None for matcher in matchers]
    return None if None in names else tuple(dict.fromkeys(name for name in names if name is not None))


def _known(execution: Execution, fence: Fence, key: str | None, request: tuple[Any, ...]) -> Wait | None:
    """The suspension that a request is about: by its key, or, without one, what the last lease was given up for."""
    if key is not None:
        same = (wait for wait in execution.waits if (wait.generation, wait.key) == (execution.generation, key))
        return next(same, None)
    former = execution.former
    if former is None or former.fence != fence or former.request != request:
        return None
    return next(wait for wait in reversed(execution.waits) if wait.fence == fence)


def _answer_again(
    world: World, namespace: str, known: Wait, fence: Fence, request: tuple[Any, ...]
) -> Suspended | Satisfied:
    """To whom opened it, what was answered first; to a later owner, how it ended."""
    execution = world.find(namespace, fence.execution_id)
    if known.fence != fence:
        world.owned(namespace, fence)
    elif known.request != request:
        raise Conflict("idempotency_mismatch", "")
    elif not known.at_once:
        return Suspended(known.id, tuple(_as_it_was(world, execution, known, first) for first in known.bound))
    assert known.closed_by is not None, "whoever asks has a lease, so nothing is open"
    return Satisfied(known.id, known.closed_by, observed(execution, known))


def _fitting(execution: Execution, binding: Bound, now: datetime) -> Slot | None:
    """The open waitpoint that a binding means; None if a new one is to be made."""
    slot = open_slot(execution, binding.key, now)
    if slot is None and isinstance(binding, Pending | Standing):
        raise NotFound("waitpoint_not_found", "")
    if slot is None:
        return None
    if slot.kind is not _KINDS[type(binding)] or not _is_meant(binding, slot, now):
        raise Conflict("waitpoint_already_exists", "")
    return slot


def _is_meant(binding: Bound, slot: Slot, now: datetime) -> bool:
    """The same approver, if one is named; the same time, or one that is past if the timer has fired."""
    if isinstance(binding, Fresh):
        return binding.approver in (None, slot.approver)
    if isinstance(binding, Timer):
        return binding.at == slot.fires_at or (slot.fires_at is None and binding.at <= now)
    return True


def _check_sources(wish: Wish, existing: Sequence[Slot | None]) -> None:
    """More sources than approvers can never come."""
    pairs = zip(wish.waitpoints, existing, strict=True)
    approvers = {binding.key: slot.approver if slot else getattr(binding, "approver", None) for binding, slot in pairs}
    for leaf in leaves(wish.condition):
        if isinstance(leaf, Count) and leaf.distinct == "sources":
            named = [approvers[key] for key in leaf.waitpoints]
            if None not in named and leaf.n > len(set(named)):
                raise InvalidRequest("count_exceeds_sources", "")


def _bind(world: World, execution: Execution, wait: Wait, binding: Bound, slot: Slot | None) -> Slot:
    if slot is None:
        close_overdue(execution, binding.key, world.now)
        slot = world.new_slot(execution, binding.key, _KINDS[type(binding)])
        if isinstance(binding, Timer):
            slot.fires_at = binding.at
        if isinstance(binding, Fresh):
            mint(world, execution, slot, binding.approver, binding.ends_at)
    slot.state, slot.suspension = WaitpointState.ACTIVE, wait.number
    slot.expires_at = None if slot.kind is WaitpointKind.STANDING else wait.timeout_at
    return slot


def _join(execution: Execution, wait: Wait, bound: Sequence[Slot], waiting: Sequence[Signal]) -> None:
    """What came before joins the suspension; what a standing waitpoint has in its queue, only if it counts."""
    counts = counting(wait.condition, waiting)
    standing = {slot.id for slot in bound if slot.kind is WaitpointKind.STANDING}
    for place, item in enumerate(execution.signals):
        if item in waiting and (item.id in counts or item.waitpoint_id not in standing):
            execution.signals[place] = replace(item, suspension=wait.number, counts=item.id in counts)


def _came_to(bound: Sequence[Slot], item: Signal) -> bool:
    return any(slot.id == item.waitpoint_id for slot in bound)
