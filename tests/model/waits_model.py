"""The reference model of waits: creating waitpoints, suspending under a lease, and ending a suspension."""

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
    InvalidRequest,
    NewWaitpoint,
    NotFound,
    OnTimeout,
    OpenWaitpoint,
    PendingWaitpoint,
    Resumption,
    Satisfied,
    StandingWaitpoint,
    State,
    Step,
    StoredSignal,
    Suspended,
    SuspendedView,
    SuspensionReason,
    TimeoutOnly,
    Timer,
    Trigger,
    UnusedWaitpoints,
    WaitpointClosed,
    WaitpointKind,
    WaitpointState,
    WaitpointView,
)
from tests.model.keys_model import active_key, find_key
from tests.model.records import Execution
from tests.model.wait_records import (
    Slot,
    TokenFacts,
    Wait,
    find_counting,
    is_satisfied,
    keys_of,
    leaves,
    needed_keys,
    token_symbol,
)
from tests.model.world import World

Bound = NewWaitpoint | PendingWaitpoint | StandingWaitpoint | Timer
_KINDS = {
    NewWaitpoint: WaitpointKind.ADDRESSED,
    PendingWaitpoint: WaitpointKind.ADDRESSED,
    StandingWaitpoint: WaitpointKind.STANDING,
    Timer: WaitpointKind.TIMER,
}
_CLOSED_BY = {Trigger.SIGNALS: "resumed", Trigger.OPERATOR: "resumed", Trigger.TIMEOUT: "timed_out"}


class Waitpoints:
    """The calls that create, close and list waitpoints."""

    def __init__(self, world: World) -> None:
        self._world = world

    def create(
        self,
        namespace: str,
        *,
        fence: Fence,
        key: str,
        expires: timedelta | None,
        approver: str | None,
        token_ends_at: datetime | None,
    ) -> OpenWaitpoint:
        """Create a pending waitpoint with its token, or return the matching open waitpoint that has this key."""
        world, execution = self._world, self._world.find_owned(namespace, fence)
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
        return view_waitpoint(world, slot)

    def close(self, namespace: str, *, waitpoint_id: UUID, reason: str) -> WaitpointClosed:
        """Close a waitpoint for signals. A suspension on this waitpoint continues."""
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
        """Return all waitpoints of an execution without fingerprints."""
        execution = self._world.find(namespace, execution_id)
        views = [
            WaitpointView(
                id=slot.id,
                execution_id=execution.id,
                key=slot.key,
                kind=slot.kind,
                state=slot.state,
                approver=slot.approver,
                kid=slot.kid,
                names=_names(execution, slot),
                fingerprint=None,
                created_at=slot.created_at,
                expires_at=slot.expires_at,
                closed_at=slot.closed_at,
                close_reason=slot.close_reason,
            )
            for slot in execution.slots
        ]
        return sorted(views, key=lambda view: str(view.id))

    def list_suspended(self, namespace: str) -> builtins.list[SuspendedView]:
        """Return all open suspensions of a namespace."""
        executions = [execution for execution in self._world.executions.values() if execution.namespace == namespace]
        views = [
            SuspendedView(
                id=wait.id,
                execution_id=execution.id,
                reason=wait.reason,
                condition=wait.condition,
                missing=(),
                opened_at=wait.opened_at,
                timeout_at=wait.timeout_at,
                on_timeout=wait.on_timeout,
            )
            for execution in executions
            for wait in execution.waits
            if wait.closed_at is None
        ]
        return sorted(views, key=lambda view: str(view.id))


@dataclass(frozen=True, kw_only=True)
class SuspendOptions:
    """The arguments of a suspend."""

    waitpoints: Sequence[Bound]
    condition: Condition
    reason: SuspensionReason
    timeout: timedelta | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    unused_waitpoints: UnusedWaitpoints
    key: str | None
    id: UUID | None = None


def suspend(
    world: World, namespace: str, fence: Fence, options: SuspendOptions, steps: list[Step]
) -> Suspended | Satisfied:
    """Release the lease until the condition is satisfied.

    A repeated call returns the outcome of the suspension that the first call opened. A call is a repetition if it has
    the same key, or if it has the last fence and the same request.
    """
    if isinstance(options.condition, TimeoutOnly) and options.timeout is None:
        raise InvalidRequest("timeout_only_without_deadline", "")
    execution = world.find(namespace, fence.execution_id)
    request = ("suspend", options, *((step.name, step.status, step.payload) for step in steps))
    earlier = _find_earlier(execution, fence, options, request)
    if earlier is not None:
        return _repeat_outcome(world, namespace, earlier, fence, request)
    world.find_owned(namespace, fence)
    existing = [_find_slot(execution, binding, world.now) for binding in options.waitpoints]
    _check_sources(options, existing)
    world.record(execution, steps)
    before = replace(execution)
    wait = Wait(
        id=options.id or world.mint(),
        number=len(execution.waits) + 1,
        generation=execution.generation,
        fence=fence,
        key=options.key,
        request=request,
        condition=options.condition,
        reason=options.reason,
        unused_waitpoints=options.unused_waitpoints,
        opened_at=world.now,
        timeout_at=None if options.timeout is None else world.now + options.timeout,
        on_timeout=options.on_timeout,
        resume_delay=options.resume_delay,
    )
    execution.waits.append(wait)
    execution.is_standalone = False
    bound = [_bind(world, execution, wait, *pair) for pair in zip(options.waitpoints, existing, strict=True)]
    earlier_signals = [item for item in execution.signals if item.suspension is None and _arrived_at(bound, item)]
    _join(execution, wait, bound, earlier_signals)
    if is_satisfied(wait.condition, earlier_signals):
        wait.is_immediate = True
        close(world, execution, wait, Trigger.SIGNALS, needed_keys(wait.condition, earlier_signals))
        world.note(execution, "lifecycle.resumed", before)
        return Satisfied(wait.id, Trigger.SIGNALS, list_signals(execution, wait))
    outcome = Suspended(wait.id, tuple(view_waitpoint(world, slot) for slot in bound))
    wait.bound = outcome.waitpoints
    world.end_lease(execution, "execution_not_active", request=request, outcome=outcome)
    execution.state, execution.attempt_state = State.SUSPENDED, AttemptState.INTERRUPTED
    execution.is_escalated = False
    world.note(execution, "lease.suspended", before)
    return outcome


def close(world: World, execution: Execution, wait: Wait, trigger: Trigger, used: Collection[str] = ()) -> None:
    """Close the suspension and its waitpoints.

    Standing waitpoints stay open. Unused waitpoints of an `AnyOf` also stay open if the suspend requested it. Signals
    at the unused waitpoints that stay open may count again in a later suspension.
    """
    wait.closed_at, wait.closed_by = world.now, trigger
    keeps_unused = (
        wait.unused_waitpoints is UnusedWaitpoints.KEEP
        and trigger is Trigger.SIGNALS
        and isinstance(wait.condition, AnyOf)
    )
    for slot in execution.slots:
        if slot.state is not WaitpointState.ACTIVE:
            continue
        if slot.kind is not WaitpointKind.STANDING and not (keeps_unused and slot.key not in used):
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


def continue_execution(world: World, execution: Execution, delay: timedelta) -> None:
    """Make the execution wait for a worker, or delay it first."""
    is_delayed = delay > timedelta(0)
    execution.state = State.DELAYED if is_delayed else State.WAITING
    execution.ready_at = world.now + delay if is_delayed else None


def list_signals(execution: Execution, wait: Wait, *, include_unmatched: bool = False) -> tuple[StoredSignal, ...]:
    """Return the signals that belong to a suspension."""
    signals = (signal for signal in execution.signals if signal.suspension == wait.number)
    return tuple(signal for signal in signals if signal.counts or include_unmatched)


def open_slot(execution: Execution, key: str, now: datetime) -> Slot | None:
    """Return the open waitpoint with this key that is not overdue, or None."""
    slots = (slot for slot in execution.slots if slot.is_open and slot.key == key)
    return next((slot for slot in slots if slot.expires_at is None or slot.expires_at > now), None)


def close_overdue(execution: Execution, key: str, now: datetime) -> None:
    """Close an overdue waitpoint to free its key, even if the duty has not run yet."""
    for slot in execution.slots:
        if slot.is_open and slot.key == key:
            slot.close(now, "expired")


def mint(world: World, execution: Execution, slot: Slot, approver: str | None, ends_at: datetime | None) -> None:
    """Give the waitpoint its token, signed with the active key."""
    kid = active_key(world).kid
    slot.kid, slot.approver, slot.token_ends_at = kid, approver, ends_at
    world.ring.tokens[token_symbol(slot.id)] = TokenFacts(execution.namespace, execution.id, slot.id, kid)


def view_waitpoint(world: World, slot: Slot) -> OpenWaitpoint:
    """Return a waitpoint with its token, unless the key of the token was collected."""
    key = find_key(world, slot.kid)
    return OpenWaitpoint(
        slot.id, slot.key, token_symbol(slot.id) if key and key.collected_at is None else None, slot.expires_at
    )


def _repeat_waitpoint(world: World, execution: Execution, earlier: Wait, first: OpenWaitpoint) -> OpenWaitpoint:
    """Return a waitpoint as the first call returned it, but without its token if the signing key was collected."""
    slot = next(slot for slot in execution.slots if slot.id == first.id)
    is_kept = slot.is_open and slot.kind is not WaitpointKind.STANDING and earlier.closed_at is not None
    ends = earlier.timeout_at if is_kept else first.expires_at
    return OpenWaitpoint(first.id, first.key, view_waitpoint(world, slot).token, ends)


def _names(execution: Execution, slot: Slot) -> tuple[str, ...] | None:
    """Return the signal names that count at a waitpoint.

    Return None if any name counts, or if no open suspension uses the waitpoint.
    """
    wait = execution.wait
    if wait is None or slot.suspension != wait.number:
        return None
    matchers = [leaf.matcher for leaf in leaves(wait.condition) if slot.key in keys_of(leaf)]
    names = [matcher.name if isinstance(matcher, ByName) else None for matcher in matchers]
    return None if None in names else tuple(dict.fromkeys(name for name in names if name is not None))


def _find_earlier(execution: Execution, fence: Fence, options: SuspendOptions, request: tuple[Any, ...]) -> Wait | None:
    """Return the suspension that this request repeats, or None.

    Find it by the key, by the id of the suspension, or without both by the fence of the last lease.
    """
    if options.key is not None:
        key = execution.generation, options.key
        return next((wait for wait in execution.waits if (wait.generation, wait.key) == key), None)
    if options.id is not None:
        return next((wait for wait in execution.waits if wait.id == options.id), None)
    former = execution.former
    if former is None or former.fence != fence or former.request != request:
        return None
    return next(wait for wait in reversed(execution.waits) if wait.fence == fence)


def _repeat_outcome(
    world: World, namespace: str, earlier: Wait, fence: Fence, request: tuple[Any, ...]
) -> Suspended | Satisfied:
    """For the fence that opened the suspension, return the first outcome.

    For the fence of a later lease, return how the wait ended.
    """
    execution = world.find(namespace, fence.execution_id)
    if earlier.fence != fence:
        world.find_owned(namespace, fence)
    elif earlier.request != request:
        raise Conflict("idempotency_mismatch", "")
    elif not earlier.is_immediate:
        return Suspended(
            earlier.id, tuple(_repeat_waitpoint(world, execution, earlier, first) for first in earlier.bound)
        )
    assert earlier.closed_by is not None, "the caller has a lease, so no suspension is open"
    return Satisfied(earlier.id, earlier.closed_by, list_signals(execution, earlier))


def _find_slot(execution: Execution, binding: Bound, now: datetime) -> Slot | None:
    """Return the open waitpoint that a binding refers to, or None if a new waitpoint is needed."""
    slot = open_slot(execution, binding.key, now)
    if slot is None and isinstance(binding, PendingWaitpoint | StandingWaitpoint):
        raise NotFound("waitpoint_not_found", "")
    if slot is None:
        return None
    if slot.kind is not _KINDS[type(binding)] or not _matches(binding, slot, now):
        raise Conflict("waitpoint_already_exists", "")
    return slot


def _matches(binding: Bound, slot: Slot, now: datetime) -> bool:
    """Return True if the binding's approver or timer, if it has one, agrees with the waitpoint."""
    if isinstance(binding, NewWaitpoint):
        return binding.approver in (None, slot.approver)
    if isinstance(binding, Timer):
        return binding.at == slot.fires_at or (slot.fires_at is None and binding.at <= now)
    return True


def _check_sources(options: SuspendOptions, existing: Sequence[Slot | None]) -> None:
    """Reject a condition that counts more distinct sources than its waitpoints have approvers."""
    pairs = zip(options.waitpoints, existing, strict=True)
    approvers = {binding.key: slot.approver if slot else getattr(binding, "approver", None) for binding, slot in pairs}
    for leaf in leaves(options.condition):
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
        if isinstance(binding, NewWaitpoint):
            mint(world, execution, slot, binding.approver, binding.ends_at)
    slot.state, slot.suspension = WaitpointState.ACTIVE, wait.number
    slot.expires_at = None if slot.kind is WaitpointKind.STANDING else wait.timeout_at
    return slot


def _join(execution: Execution, wait: Wait, bound: Sequence[Slot], earlier_signals: Sequence[StoredSignal]) -> None:
    """Attach earlier signals to the suspension. Signals of standing waitpoints are attached only if they count."""
    counts = find_counting(wait.condition, earlier_signals)
    standing = {slot.id for slot in bound if slot.kind is WaitpointKind.STANDING}
    for index, signal in enumerate(execution.signals):
        if signal in earlier_signals and (signal.id in counts or signal.waitpoint_id not in standing):
            execution.signals[index] = replace(signal, suspension=wait.number, counts=signal.id in counts)


def _arrived_at(bound: Sequence[Slot], signal: StoredSignal) -> bool:
    return any(slot.id == signal.waitpoint_id for slot in bound)
