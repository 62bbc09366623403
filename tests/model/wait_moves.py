"""The moves that affect waits.

They send signals with any token that was ever returned, act as operators, change keys, or run a whole wait in one move.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from flowfabric.engine import (
    Accepted,
    AnyOf,
    Count,
    Effect,
    Fence,
    NewWaitpoint,
    OnTimeout,
    PendingWaitpoint,
    Secret,
    Single,
    State,
    Suspended,
    SuspensionReason,
    Timer,
    UnusedWaitpoints,
)
from tests.model.checks import BaseMachine, Target, is_refusal, other
from tests.model.stores import FORGED, Sides
from tests.model.strategies import (
    MICROSECOND,
    RED,
    Arguments,
    S,
    any_index,
    mostly_red,
    move,
    rarely,
    reasons,
    recent,
    targets,
    workers,
)
from tests.model.wait_records import token_symbol
from tests.model.wait_strategies import (
    graces,
    make_secret,
    names,
    resolve_times,
    senders,
    signal_ids,
    signal_keys,
    suspend_options,
)

optional_delays = st.sampled_from([None, None, 0 * S, 4 * S])
DEFAULT_OPTIONS = Arguments(
    reason=SuspensionReason.WAITING_FOR_SIGNAL, timeout=None, on_timeout=OnTimeout.FAIL, resume_delay=0 * S,
    unused_waitpoints=UnusedWaitpoints.CLOSE, key=None, steps=[],
)  # fmt: skip


class SignalMoves(BaseMachine):
    """The moves of signal senders and of operators."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides)
        self._sent: list[tuple[str, str, Arguments]] = []

    @move(
        8,
        which=st.one_of(recent, any_index),
        any_token=st.booleans(),
        forged=rarely,
        foreign=rarely,
        name=names,
        source_identity=senders,
        signal_id=signal_ids,
        key=signal_keys,
        resume_delay=optional_delays,
    )
    def deliver(self, which: int, any_token: bool, forged: bool, foreign: bool, **fields: Any) -> None:
        """Deliver a signal with any token, even an old one. Sometimes forge the token or use another namespace."""
        useful = {
            token_symbol(slot.id)
            for execution in self.model.world.executions.values()
            for slot in execution.slots
            if slot.is_open
        }
        tokens = [(namespace, token) for namespace, token in self.tokens if any_token or token in useful] or self.tokens
        if tokens:
            namespace, token = tokens[-1 - which % len(tokens)]
            token = Secret(token.reveal() + FORGED) if forged else token
            self._send(
                "signals.deliver", other(namespace) if foreign else namespace, token=token, payload=b"", **fields
            )

    @move(3, which=recent, change=st.sampled_from([{}, {}, {"signal_id": None}, {"key": None}, {"name": "no"}]))
    def deliver_again(self, which: int, change: Arguments) -> None:
        """I-27: send a signal again, with the same id and key, or with one of them changed."""
        if self._sent:
            path, namespace, arguments = self._sent[-1 - which % len(self._sent)]
            changed = {name: value for name, value in change.items() if path == "signals.deliver"}
            self.act(path, namespace, **arguments | changed)

    @move(2, target=targets, which=st.integers(0, 3), name=names, suffix=st.sampled_from([None, "1"]))
    def approve(self, target: Target, which: int, **fields: Any) -> None:
        """Approve a waitpoint of the execution, which may be closed or may not exist."""
        execution = self.execution(self.target("signals.approve", target))
        keys = [slot.key for slot in execution.slots if slot.is_open or target.any_state] if execution else []
        self._send_to("signals.approve", target, fields | {"waitpoint": keys[which % len(keys)] if keys else "a"})

    @move(
        3, target=targets, name=st.sampled_from("sssa"), source_identity=senders, signal_id=signal_ids, key=signal_keys
    )
    def send(self, target: Target, **fields: Any) -> None:
        self._send_to("signals.send", target, fields | {"payload": b"x"})

    @move(2, target=targets, reason=reasons, which=recent, named=st.booleans(), delay=optional_delays)
    def resume(self, target: Target, which: int, named: bool, **fields: Any) -> None:
        """End the current wait as an operator, sometimes only if it is a certain suspension that was seen earlier."""
        suspension = self._suspension(which) if named else None
        self.act_on("operator.resume", target, suspension=suspension, **fields)

    @move(2, which=any_index, foreign=rarely, reason=reasons)
    def close_waitpoint(self, which: int, foreign: bool, reason: str) -> None:
        if self.waitpoints:
            namespace, id_ = self.waitpoints[-1 - which % len(self.waitpoints)]
            self.act("waitpoints.close", other(namespace) if foreign else namespace, waitpoint_id=id_, reason=reason)

    @move(2, target=targets, which=recent, named=st.booleans(), include_unmatched=st.booleans())
    def list_signals(self, target: Target, which: int, named: bool, include_unmatched: bool) -> None:
        suspension = self._suspension(which) if named else None
        self.act_on("signals.list", target, suspension=suspension, include_unmatched=include_unmatched)

    @move(target=targets, namespace=mostly_red)
    def look_at_waits(self, target: Target, namespace: str) -> None:
        self.act_on("waitpoints.list", target)
        self.act("waitpoints.list_suspended", namespace)
        self.act("keys.list", namespace)

    @move(2, kid=st.sampled_from([None, None, None, "kid0", "kid1"]), wrong=rarely, grace=graces)
    def rotate(self, kid: str | None, wrong: bool, grace: timedelta | None) -> None:
        """Rotate to a new key or to an earlier key.

        The engine rejects an earlier key, unless it is the active key with the same secret.
        """
        kid = kid or f"kid{len(self.model.world.ring.keys)}"
        self.act("keys.rotate", RED, kid=kid, secret=make_secret("wrong" if wrong else kid), grace=grace)

    @move(kid=st.sampled_from(["kid0", "kid1", "kid9"]), wrong=st.booleans())
    def seed(self, kid: str, wrong: bool) -> None:
        self.act("keys.seed", RED, kid=kid, secret=make_secret("wrong" if wrong else kid))

    def _send(self, path: str, namespace: str, **arguments: Any) -> Any:
        self._sent.append((path, namespace, arguments))
        return self.act(path, namespace, **arguments)

    def _send_to(self, path: str, target: Target, fields: Arguments) -> None:
        self.act_on(path, target, **fields)
        self._sent.append(self.latest)

    def _suspension(self, which: int) -> UUID:
        return self.suspensions[-1 - which % len(self.suspensions)] if self.suspensions else UUID(int=997)

    def _signal(self, token: tuple[str, Secret], name: str = "go", by: str = "ann") -> Any:
        """Deliver a signal with default values."""
        fields = {"name": name, "payload": b"", "source_identity": by, "signal_id": None, "key": None}
        return self._send("signals.deliver", token[0], token=token[1], resume_delay=None, **fields)


class WaitMoves(SignalMoves):
    """Whole waits in one move each, so that short examples reach more states."""

    @move(5, which=recent, options=suspend_options, worker=workers, order=st.permutations(range(4)))
    def wait_through(self, which: int, options: Arguments, worker: str, order: list[int]) -> None:
        """Signal a wait until it ends, claim the execution, and repeat the suspend with the old and the new fence."""
        fence = self.live_fence(which)
        if fence is None:
            return
        options = resolve_times(("", options), self.clock.now(), self.execution(fence.execution_id))[1] | {
            "key": options["key"] or "w3"
        }
        namespace = self.namespace_of(fence.execution_id)
        outcome = self.act("leases.suspend", namespace, fence=fence, **options)
        if isinstance(outcome, Suspended):
            for index in order:
                self._signal_wait(namespace, outcome, index)
        lease = self._claim_again(fence.execution_id, worker)
        self.act("leases.suspend", namespace, fence=fence, **options)
        if lease is not None:
            self.act("leases.suspend", namespace, fence=lease, **options)

    @move(3, which=recent, sent=st.integers(0, 3), keeps=st.booleans(), expires=st.sampled_from([None, 6 * S]))
    def answer_early(self, which: int, sent: int, keeps: bool, expires: timedelta | None) -> None:
        """I-33: use a token before any suspension, then suspend until two of its signals have arrived."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace, options = (
            self.namespace_of(fence.execution_id),
            DEFAULT_OPTIONS | {"unused_waitpoints": UnusedWaitpoints.KEEP if keeps else UnusedWaitpoints.CLOSE},
        )
        waitpoint_options = {"key": "a", "expires": expires, "approver": None, "token_ends_at": None}
        waitpoint = self.act("waitpoints.create", namespace, fence=fence, **waitpoint_options)
        if is_refusal(waitpoint) or waitpoint.token is None:
            return
        for _ in range(sent):
            self._signal((namespace, waitpoint.token))
        condition = AnyOf([Count(2, "signals", ["a"]), Single("b")])
        outcome = self.act(
            "leases.suspend",
            namespace,
            fence=fence,
            waitpoints=[PendingWaitpoint("a"), NewWaitpoint("b")],
            condition=condition,
            **options,
        )
        if isinstance(outcome, Suspended):
            self._signal_wait(namespace, outcome, sent % 2)

    @move(
        4, which=recent, options=suspend_options, early=st.sampled_from([0, 0, 1]), ticks=st.booleans(), worker=workers
    )
    def time_out(self, which: int, options: Arguments, early: int, ticks: bool, worker: str) -> None:
        """Advance to the timeout of a wait or just before it, and signal before or after the duty runs."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace = self.namespace_of(fence.execution_id)
        options = resolve_times(("", options), self.clock.now(), self.execution(fence.execution_id))[1] | {
            "timeout": 7 * S
        }
        outcome = self.act("leases.suspend", namespace, fence=fence, **options)
        self.clock.advance(7 * S - early * MICROSECOND)
        if ticks:
            self.tick()
        if isinstance(outcome, Suspended):
            self._signal_wait(namespace, outcome, 0)
        self.tick()
        self._claim_again(fence.execution_id, worker)

    @move(
        3, which=recent, kept=st.booleans(), early=st.sampled_from([0, 0, 1]), worker=workers, by=st.sampled_from("at")
    )
    def race_a_timer(self, which: int, kept: bool, early: int, worker: str, by: str) -> None:
        """Wait for a signal or a timer. Afterwards, start the same wait again, sometimes with a later timer."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace, at = self.namespace_of(fence.execution_id), self.clock.now() + 5 * S
        options = DEFAULT_OPTIONS | {"unused_waitpoints": UnusedWaitpoints.KEEP if kept else UnusedWaitpoints.CLOSE}
        bound, condition = [NewWaitpoint("a"), Timer("t", at)], AnyOf([Single("a"), Single("t")])
        request = {"waitpoints": bound, "condition": condition} | options
        outcome = self.act("leases.suspend", namespace, fence=fence, **request)
        if by == "a" and isinstance(outcome, Suspended):
            self._signal_wait(namespace, outcome, 0)
        self.clock.advance(5 * S - early * MICROSECOND)
        self.tick()
        lease = self._claim_again(fence.execution_id, worker)
        if lease is not None:
            timer = Timer("t", at) if early else Timer("t", self.clock.now() + 2 * S)
            self.act("leases.suspend", namespace, fence=lease, **request | {"waitpoints": [NewWaitpoint("a"), timer]})

    @move(2, which=recent, grace=graces, early=st.sampled_from([0, 0, 1]), ticks=st.booleans(), closes=st.booleans())
    def outlive_a_key(self, which: int, grace: timedelta | None, early: int, ticks: bool, closes: bool) -> None:
        """Use a token right after its key was retired. Use it again when the grace ends or a microsecond before."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace = self.namespace_of(fence.execution_id)
        waitpoint_options = {"key": "b", "expires": None, "approver": None, "token_ends_at": None}
        waitpoint = self.act("waitpoints.create", namespace, fence=fence, **waitpoint_options)
        if is_refusal(waitpoint) or waitpoint.token is None:
            return
        self.rotate(None, False, grace)
        self._signal((namespace, waitpoint.token))
        if closes:
            self.act("waitpoints.close", namespace, waitpoint_id=waitpoint.id, reason="")
        self.clock.advance((86400 * S if grace is None else grace) - early * MICROSECOND if grace != 0 * S else 0 * S)
        if ticks:
            self.tick()
        self._signal((namespace, waitpoint.token))
        self.deliver_again(1, {})
        self.act("waitpoints.list_suspended", namespace)

    @move(
        2, which=recent, options=suspend_options, how=st.sampled_from(["cancel", "replay", "deadline"]), worker=workers
    )
    def end_while_waiting(self, which: int, options: Arguments, how: str, worker: str) -> None:
        """I-30: end a suspended execution. Its tokens are no longer valid, not even after a replay."""
        fence = self.live_fence(which)
        if fence is None:
            return
        id_, namespace = fence.execution_id, self.namespace_of(fence.execution_id)
        operation = resolve_times(("leases.suspend", options), self.clock.now(), self.execution(id_))
        outcome = self.act(operation[0], namespace, fence=fence, **operation[1])
        execution = self.execution(id_)
        if how == "deadline" and execution and execution.deadline_at:
            self.clock.advance(max(execution.deadline_at - self.clock.now(), 0 * S))
            self.tick()
        else:
            self.act("operator.cancel", namespace, id=id_, reason="")
        if isinstance(outcome, Suspended):
            self._signal_wait(namespace, outcome, 0)
        if how == "replay":
            self.act("operator.replay", namespace, id=id_, reason="", from_step=None, expected_generation=None)
            self._claim_again(id_, worker)
            if isinstance(outcome, Suspended):
                self._signal_wait(namespace, outcome, 0)
            self.act("leases.suspend", namespace, fence=self.live_fence(0) or fence, **operation[1])

    def _signal_wait(self, namespace: str, suspended: Suspended, index: int) -> None:
        """Signal one of the waitpoints that have a token. From the third signal on, use another source."""
        tokens = [waitpoint.token for waitpoint in suspended.waitpoints if waitpoint.token]
        if tokens:
            outcome = self._signal((namespace, tokens[index % len(tokens)]), by="ann" if index < 2 else "ben")
            assert not isinstance(outcome, Accepted) or outcome.effect in tuple(Effect)

    def _claim_again(self, id_: UUID, worker: str) -> Fence | None:
        """Wait for the delay of the execution and claim it. Return the fence, or None if the claim is refused."""
        execution = self.execution(id_)
        if execution is not None and execution.state is State.DELAYED and execution.ready_at:
            self.clock.advance(max(execution.ready_at - self.clock.now(), 0 * S))
            self.tick()
        claim_options = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": None}
        lease = self.act("leases.claim_execution", self.namespace_of(id_), id=id_, **claim_options)
        return None if is_refusal(lease) else lease.fence
