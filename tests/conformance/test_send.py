"""send: signals to a standing waitpoint, declared by name at submit and open for the whole life."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.errors import Conflict
from flowfabric.core.outcomes import Satisfied
from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Count,
    Counted,
    Duplicate,
    DuplicateSignal,
    Effect,
    Engine,
    Lease,
    NotFound,
    Single,
    Standing,
    State,
    Submission,
    Suspended,
    WaitpointKind,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import leased, submitted, suspended
from tests.stores import TestStore


async def next_mail(engine: Engine, lease: Lease) -> str:
    """The payload of the next mail, which must be there."""
    answer = await engine.leases.suspend(lease.fence, [Standing("mail")])
    assert isinstance(answer, Satisfied)
    [signal] = answer.signals
    return signal.payload.decode()


async def test_a_standing_waitpoint_is_open_from_the_submit_on(engine: Engine) -> None:
    id_ = await submitted(engine, signals=["mail", "stop"])
    shown = (await engine.executions.describe(id_)).waitpoints
    assert [(item.key, item.kind, item.state, item.fingerprint) for item in shown] == [
        ("mail", WaitpointKind.STANDING, WaitpointState.PENDING, None),
        ("stop", WaitpointKind.STANDING, WaitpointState.PENDING, None),
    ]
    answer = await engine.signals.send(id_, "mail", b"1")
    assert isinstance(answer, Accepted)
    assert (answer.effect, answer.counted) == (Effect.BUFFERED, None)


async def test_its_signals_are_kept_in_order_and_each_is_used_by_one_wait(engine: Engine) -> None:
    lease = await leased(engine, signals=["mail"])
    for number in range(3):
        await engine.signals.send(lease.execution_id, "mail", str(number).encode())
    assert [await next_mail(engine, lease) for _ in range(3)] == ["0", "1", "2"]
    wait = await suspended(engine, [Standing("mail")], lease=lease)
    answer = await engine.signals.send(wait.id, "mail", b"3")
    assert isinstance(answer, Accepted)
    assert answer.effect is Effect.SATISFIED
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    await engine.signals.send(wait.id, "mail", b"4")
    assert await next_mail(engine, later) == "4"


async def test_what_a_wait_does_not_use_stays_for_the_next_one(engine: Engine) -> None:
    lease = await leased(engine, signals=["mail"])
    wait = await suspended(engine, [Standing("mail"), "go"], AllOf([Single("mail"), Single("go")]), lease=lease)
    counted = [await engine.signals.send(wait.id, "mail", str(number).encode()) for number in range(2)]
    assert [getattr(answer, "counted", None) for answer in counted] == [Counted.YES, Counted.NOTHING_NEW]
    await engine.signals.deliver(wait.token(), "go")
    assert [signal.payload for signal in await engine.signals.observe(wait.id)] == [b"0", b""]
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert await next_mail(engine, later) == "1"


async def test_what_a_wait_counted_but_did_not_need_is_not_lost(engine: Engine, clock: VirtualClock) -> None:
    for ending in ("operator", "timeout", "other member"):
        lease = await leased(engine, signals=["mail"])
        condition = AnyOf([Count(2, "signals", ["mail"]), Single("go")])
        wait = await suspended(
            engine, [Standing("mail"), "go"], condition, lease=lease, timeout="1m", on_timeout="auto_resume"
        )
        await engine.signals.send(wait.id, "mail", b"kept")
        if ending == "operator":
            await engine.operator.resume(wait.id)
        elif ending == "timeout":
            clock.advance("1m")
            await engine.reconcilers.tick()
        else:
            await engine.signals.deliver(wait.token(), "go")
        later = await engine.leases.claim_resumed(wait.id, "worker-2")
        assert await next_mail(engine, later) == "kept", ending


async def test_it_is_not_closed_by_a_resume_and_closes_with_the_execution(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    first = await engine.signals.send(lease.execution_id, "mail", key="evt")
    for number in range(3):
        wait = await suspended(engine, [Standing("mail"), f"k{number}"], lease=lease)
        await engine.operator.resume(wait.id)
        lease = await engine.leases.claim_resumed(wait.id, "worker-2")
        [mail] = (await engine.executions.describe(wait.id)).waitpoints
        assert (mail.key, mail.state) == ("mail", WaitpointState.PENDING)
    await engine.leases.complete(lease.fence)
    async with nothing_written(store):
        again = await engine.signals.send(lease.execution_id, "mail", key="evt")
        assert again == DuplicateSignal(first.signal_id)
        await refused(engine.signals.send(lease.execution_id, "mail"), "target_not_signalable")


async def test_only_a_declared_name_can_be_sent_to(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    await engine.waitpoints.create(lease.fence, "early")
    async with nothing_written(store):
        for name in ("early", "unknown"):
            await refused(engine.signals.send(lease.execution_id, name), "waitpoint_not_found", NotFound)


async def test_an_execution_that_waits_on_something_else_is_left_alone(engine: Engine) -> None:
    wait = await suspended(engine, submit={"signals": ["mail"]})
    answer = await engine.signals.send(wait.id, "mail")
    assert isinstance(answer, Accepted)
    assert answer.effect is Effect.BUFFERED
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED


async def test_its_token_if_it_has_one_brings_signals_of_any_name(engine: Engine) -> None:
    lease = await leased(engine, signals=["mail"])
    made = await engine.waitpoints.create(lease.fence, "mail")
    wait = await suspended(engine, [Standing("mail")], Single("mail", "urgent"), lease=lease)
    assert made.token is not None
    assert wait.token("mail") == made.token
    await engine.signals.deliver(made.token, "dull")
    await engine.signals.deliver(made.token, "urgent")
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    answer = await engine.leases.suspend(later.fence, [Standing("mail")])
    assert isinstance(answer, Satisfied), "the dull one is still in the queue"
    assert [signal.name for signal in answer.signals] == ["dull"]


async def test_of_two_that_it_could_repeat_a_signal_repeats_the_one_with_its_id(engine: Engine) -> None:
    """As by token: ids are asked first, then keys."""
    id_ = await submitted(engine, signals=["go"])
    first, second = UUID(int=1), UUID(int=2)
    await engine.signals.send(id_, "go", signal_id=first, key="once")
    await engine.signals.send(id_, "go", signal_id=second)
    assert await engine.signals.send(id_, "go", signal_id=second, key="once") == DuplicateSignal(second)


async def test_a_repeated_submit_declares_nothing_twice_and_other_names_are_another_submission(
    engine: Engine, store: TestStore
) -> None:
    id_ = await submitted(engine, signals=["mail"], key="once")
    async with nothing_written(store):
        assert await engine.executions.submit("job", b"in", signals=["mail"], key="once") == Duplicate(id_)
        other = engine.executions.submit("job", b"in", signals=["post"], key="once")
        await refused(other, "idempotency_mismatch", Conflict)


async def test_submissions_of_a_batch_declare_their_own(engine: Engine) -> None:
    answers = await engine.executions.submit_many(
        [Submission(kind="a"), Submission(kind="b", signals=["x"]), Submission(kind="c", signals=["y", "x"])]
    )
    keys = []
    for answer in answers:
        assert not isinstance(answer, Exception)
        keys.append([item.key for item in (await engine.executions.describe(answer.id)).waitpoints])
    assert keys == [[], ["x"], ["x", "y"]]


async def test_bound_with_a_timeout_it_does_not_expire_with_it(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, signals=["mail"])
    wait = await suspended(engine, [Standing("mail")], lease=lease, timeout="1m", on_timeout="auto_resume")
    clock.advance("1m")
    await engine.reconcilers.tick()
    clock.advance("1d")
    await engine.reconcilers.tick()
    assert isinstance(await engine.signals.send(wait.id, "mail"), Accepted)
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert await next_mail(engine, later) == ""
    assert isinstance(await engine.leases.suspend(later.fence, [Standing("mail")]), Suspended)
