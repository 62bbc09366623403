"""The moves of waits: signals by every token that was ever handed out, operators, keys, and whole waits in one move."""

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
    Fresh,
    OnTimeout,
    Pending,
    Rest,
    Secret,
    Single,
    State,
    Suspended,
    SuspensionReason,
    Timer,
)  # fmt: skip
from tests.model.drawing import (
    MICROSECOND,
    RED,
    Arguments,
    S,
    any_of_many,
    mostly_red,
    move,
    rarely,
    reasons,
    recent,
    targets,
    workers,
)
from tests.model.sides import FORGED, Sides
from tests.model.stage import Stage, Target, is_refusal, other
from tests.model.wait_drawing import (
    graces,
    names,
    secret_of,
    senders,
    signal_ids,
    signal_keys,
    timed,
    wishes,
)
from tests.model.waits import token_symbol

sometimes = st.sampled_from([None, None, 0 * S, 4 * S])
ANYTHING = Arguments(
    reason=SuspensionReason.WAITING_FOR_SIGNAL, timeout=None, on_timeout=OnTimeout.FAIL, resume_delay=0 * S,
    rest=Rest.CLOSE, key=None, steps=[],
)  # fmt: skip


class SignalMoves(Stage):
    """What comes from outside, and operators."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides)
        self._sent: list[tuple[str, str, Arguments]] = []

    @move(
        8, which=st.one_of(recent, any_of_many), anyhow=st.booleans(), forged=rarely, foreign=rarely, name=names,
        source_identity=senders, signal_id=signal_ids, key=signal_keys, resume_delay=sometimes,
    )  # fmt: skip
    def deliver(self, which: int, anyhow: bool, forged: bool, foreign: bool, **said: Any) -> None:
        """By any token, however old, now and then a forged one or one of another namespace."""
        useful = {token_symbol(slot.id) for item in self.model.world.executions.values() for slot in item.slots
                  if slot.is_open}  # fmt: skip
        tokens = [item for item in self.tokens if anyhow or item[1] in useful] or self.tokens
        if tokens:
            namespace, token = tokens[-1 - which % len(tokens)]
            token = Secret(token.reveal() + FORGED) if forged else token
            self._send("signals.deliver", other(namespace) if foreign else namespace, token=token, payload=b"", **said)

    @move(3, which=recent, change=st.sampled_from([{}, {}, {"signal_id": None}, {"key": None}, {"name": "no"}]))
    def deliver_again(self, which: int, change: Arguments) -> None:
        """I-27: the same signal again, by its id, by its key, or by neither."""
        if self._sent:
            path, namespace, arguments = self._sent[-1 - which % len(self._sent)]
            changed = {name: value for name, value in change.items() if path == "signals.deliver"}
            self.act(path, namespace, **arguments | changed)

    @move(2, whom=targets, which=st.integers(0, 3), name=names, suffix=st.sampled_from([None, "1"]))
    def approve(self, whom: Target, which: int, **said: Any) -> None:
        """Of a waitpoint that is there, by its key, or of one that may not be there."""
        found = self.execution(self.target("signals.approve", whom))
        keys = [slot.key for slot in found.slots if slot.is_open or whom.anyone] if found else []
        self._sent_to("signals.approve", whom, said | {"waitpoint": keys[which % len(keys)] if keys else "a"})

    @move(3, whom=targets, name=st.sampled_from("sssa"), source_identity=senders, signal_id=signal_ids, key=signal_keys)
    def send(self, whom: Target, **said: Any) -> None:
        self._sent_to("signals.send", whom, said | {"payload": b"x"})

    @move(2, whom=targets, reason=reasons, which=recent, named=st.booleans(), delay=sometimes)
    def resume(self, whom: Target, which: int, named: bool, **said: Any) -> None:
        """An operator ends whatever wait there is, or only one that was once seen."""
        suspension = self._suspension(which) if named else None
        self.act_on("operator.resume", whom, suspension=suspension, **said)

    @move(2, which=any_of_many, foreign=rarely, reason=reasons)
    def close_waitpoint(self, which: int, foreign: bool, reason: str) -> None:
        if self.waitpoints:
            namespace, id_ = self.waitpoints[-1 - which % len(self.waitpoints)]
            self.act("waitpoints.close", other(namespace) if foreign else namespace, waitpoint_id=id_, reason=reason)

    @move(2, whom=targets, which=recent, named=st.booleans(), include_unmatched=st.booleans())
    def observe(self, whom: Target, which: int, named: bool, include_unmatched: bool) -> None:
        suspension = self._suspension(which) if named else None
        self.act_on("signals.observe", whom, suspension=suspension, include_unmatched=include_unmatched)

    @move(whom=targets, namespace=mostly_red)
    def look_at_waits(self, whom: Target, namespace: str) -> None:
        self.act_on("waitpoints.list", whom)
        self.act("waitpoints.list_suspended", namespace)
        self.act("keys.list", namespace)

    @move(2, kid=st.sampled_from([None, None, None, "kid0", "kid1"]), wrong=rarely, grace=graces)
    def rotate(self, kid: str | None, wrong: bool, grace: timedelta | None) -> None:
        """A new key mints from now on; or one that was there before, which is refused unless nothing would change."""
        kid = kid or f"kid{len(self.model.world.ring.keys)}"
        self.act("keys.rotate", RED, kid=kid, secret=secret_of("wrong" if wrong else kid), grace=grace)

    @move(kid=st.sampled_from(["kid0", "kid1", "kid9"]), wrong=st.booleans())
    def seed(self, kid: str, wrong: bool) -> None:
        self.act("keys.seed", RED, kid=kid, secret=secret_of("wrong" if wrong else kid))

    def _send(self, path: str, namespace: str, **arguments: Any) -> Any:
        self._sent.append((path, namespace, arguments))
        return self.act(path, namespace, **arguments)

    def _sent_to(self, path: str, whom: Target, said: Arguments) -> None:
        self.act_on(path, whom, **said)
        self._sent.append(self.latest)

    def _suspension(self, which: int) -> UUID:
        return self.suspensions[-1 - which % len(self.suspensions)] if self.suspensions else UUID(int=997)

    def _signal(self, token: tuple[str, Secret], name: str = "go", by: str = "ann") -> Any:
        """A signal that nothing is special about."""
        said = {"name": name, "payload": b"", "source_identity": by, "signal_id": None, "key": None}
        return self._send("signals.deliver", token[0], token=token[1], resume_delay=None, **said)


class WaitMoves(SignalMoves):
    """Whole waits in one move each, so that short examples get far."""

    @move(5, which=recent, wish=wishes, worker=workers, order=st.permutations(range(4)))
    def wait_through(self, which: int, wish: Arguments, worker: str, order: list[int]) -> None:
        """A wait is answered until it ends, taken up again, and asked for again by the old and by the new fence."""
        fence = self.live_fence(which)
        if fence is None:
            return
        wish = timed(("", wish), self.clock.now(), self.execution(fence.execution_id))[1] | {"key": wish["key"] or "w3"}
        namespace = self.namespace_of(fence.execution_id)
        answer = self.act("leases.suspend", namespace, fence=fence, **wish)
        if isinstance(answer, Suspended):
            for place in order:
                self._answer(namespace, answer, place)
        lease = self._take_up(fence.execution_id, worker)
        self.act("leases.suspend", namespace, fence=fence, **wish)
        if lease is not None:
            self.act("leases.suspend", namespace, fence=lease, **wish)

    @move(3, which=recent, sent=st.integers(0, 3), keeps=st.booleans(), expires=st.sampled_from([None, 6 * S]))
    def answer_early(self, which: int, sent: int, keeps: bool, expires: timedelta | None) -> None:
        """I-33: a token is handed out and used before anybody waits; then somebody waits for two of its signals."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace, wish = self.namespace_of(fence.execution_id), ANYTHING | {"rest": Rest.KEEP if keeps else Rest.CLOSE}
        given = {"key": "a", "expires": expires, "approver": None, "token_ends_at": None}
        made = self.act("waitpoints.create", namespace, fence=fence, **given)
        if is_refusal(made) or made.token is None:
            return
        for _ in range(sent):
            self._signal((namespace, made.token))
        condition = AnyOf([Count(2, "signals", ["a"]), Single("b")])
        answer = self.act(
            "leases.suspend", namespace, fence=fence, waitpoints=[Pending("a"), Fresh("b")], condition=condition, **wish
        )
        if isinstance(answer, Suspended):
            self._answer(namespace, answer, sent % 2)

    @move(4, which=recent, wish=wishes, early=st.sampled_from([0, 0, 1]), ticks=st.booleans(), worker=workers)
    def time_out(self, which: int, wish: Arguments, early: int, ticks: bool, worker: str) -> None:
        """A wait reaches its timeout, or almost; a signal comes in that moment, before or after the duty."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace = self.namespace_of(fence.execution_id)
        wish = timed(("", wish), self.clock.now(), self.execution(fence.execution_id))[1] | {"timeout": 7 * S}
        answer = self.act("leases.suspend", namespace, fence=fence, **wish)
        self.clock.advance(7 * S - early * MICROSECOND)
        if ticks:
            self.tick()
        if isinstance(answer, Suspended):
            self._answer(namespace, answer, 0)
        self.tick()
        self._take_up(fence.execution_id, worker)

    @move(
        3, which=recent, kept=st.booleans(), early=st.sampled_from([0, 0, 1]), worker=workers, by=st.sampled_from("at")
    )
    def race_a_timer(self, which: int, kept: bool, early: int, worker: str, by: str) -> None:
        """Somebody or a time, whichever comes first; the other may be waited for again."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace, at = self.namespace_of(fence.execution_id), self.clock.now() + 5 * S
        wish = ANYTHING | {"rest": Rest.KEEP if kept else Rest.CLOSE}
        bound, condition = [Fresh("a"), Timer("t", at)], AnyOf([Single("a"), Single("t")])
        asked = {"waitpoints": bound, "condition": condition} | wish
        answer = self.act("leases.suspend", namespace, fence=fence, **asked)
        if by == "a" and isinstance(answer, Suspended):
            self._answer(namespace, answer, 0)
        self.clock.advance(5 * S - early * MICROSECOND)
        self.tick()
        lease = self._take_up(fence.execution_id, worker)
        if lease is not None:
            again = Timer("t", at) if early else Timer("t", self.clock.now() + 2 * S)
            self.act("leases.suspend", namespace, fence=lease, **asked | {"waitpoints": [Fresh("a"), again]})

    @move(2, which=recent, grace=graces, early=st.sampled_from([0, 0, 1]), ticks=st.booleans(), closes=st.booleans())
    def outlive_a_key(self, which: int, grace: timedelta | None, early: int, ticks: bool, closes: bool) -> None:
        """A token is used when the key that signed it is retired, up to the last moment of its window and after it."""
        fence = self.live_fence(which)
        if fence is None:
            return
        namespace = self.namespace_of(fence.execution_id)
        given = {"key": "b", "expires": None, "approver": None, "token_ends_at": None}
        made = self.act("waitpoints.create", namespace, fence=fence, **given)
        if is_refusal(made) or made.token is None:
            return
        self.rotate(None, False, grace)
        self._signal((namespace, made.token))
        if closes:
            self.act("waitpoints.close", namespace, waitpoint_id=made.id, reason="")
        self.clock.advance((86400 * S if grace is None else grace) - early * MICROSECOND if grace != 0 * S else 0 * S)
        if ticks:
            self.tick()
        self._signal((namespace, made.token))
        self.deliver_again(1, {})
        self.act("waitpoints.list_suspended", namespace)

    @move(2, which=recent, wish=wishes, how=st.sampled_from(["cancel", "replay", "deadline"]), worker=workers)
    def end_while_waiting(self, which: int, wish: Arguments, how: str, worker: str) -> None:
        """I-30: a suspended execution ends; its tokens are of no use any more, not even when it runs again."""
        fence = self.live_fence(which)
        if fence is None:
            return
        id_, namespace = fence.execution_id, self.namespace_of(fence.execution_id)
        called = timed(("leases.suspend", wish), self.clock.now(), self.execution(id_))
        answer = self.act(called[0], namespace, fence=fence, **called[1])
        found = self.execution(id_)
        if how == "deadline" and found and found.deadline_at:
            self.clock.advance(max(found.deadline_at - self.clock.now(), 0 * S))
            self.tick()
        else:
            self.act("operator.cancel", namespace, id=id_, reason="")
        if isinstance(answer, Suspended):
            self._answer(namespace, answer, 0)
        if how == "replay":
            self.act("operator.replay", namespace, id=id_, reason="", from_step=None, expected_generation=None)
            self._take_up(id_, worker)
            if isinstance(answer, Suspended):
                self._answer(namespace, answer, 0)
            self.act("leases.suspend", namespace, fence=self.live_fence(0) or fence, **called[1])

    def _answer(self, namespace: str, suspended: Suspended, place: int) -> None:
        """Somebody signals at one of the waitpoints that has a token; every second one by another name."""
        tokens = [item.token for item in suspended.waitpoints if item.token]
        if tokens:
            answer = self._signal((namespace, tokens[place % len(tokens)]), by="ann" if place < 2 else "ben")
            assert not isinstance(answer, Accepted) or answer.effect in tuple(Effect)

    def _take_up(self, id_: UUID, worker: str) -> Fence | None:
        """The fence of a worker that goes on with an execution, after its delay, if that can be."""
        found = self.execution(id_)
        if found is not None and found.state is State.DELAYED and found.ready_at:
            self.clock.advance(max(found.ready_at - self.clock.now(), 0 * S))
            self.tick()
        wishes = {"worker": worker, "capabilities": ("gpu",), "lease_ttl": None}
        lease = self.act("leases.claim_execution", self.namespace_of(id_), id=id_, **wishes)
        return None if is_refusal(lease) else lease.fence
