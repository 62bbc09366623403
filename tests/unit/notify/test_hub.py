"""Tests for notification without a database: waiters, announced due times, and payloads."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import Context, ContextVar
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.backends.postgres.notify import from_payload, to_payload
from flowfabric.core.executions.records import Event
from flowfabric.core.executions.states import State
from flowfabric.notify import hub as hub_module
from flowfabric.notify.hub import Announcer, KnownDueTimes, NotifyHub
from flowfabric.notify.waiters import Waiter, WaiterRegistry, end_topic, events_topic, lane_topic, lease_topic
from flowfabric.store.commit_hints import CommitHints, HintHandler

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ID, OTHER = UUID(int=1), UUID(int=2)


async def was_notified(waiter: Waiter) -> bool:
    return await waiter.wait(0.0)


async def test_waiter_is_notified_of_its_own_topics_only() -> None:
    registry = WaiterRegistry()
    topics = {
        "lane": lane_topic(("a", "x")),
        "events": events_topic("a"),
        "end": end_topic(ID),
        "lease": lease_topic("worker-1"),
    }
    waiters = {name: Waiter(registry, [topic]) for name, topic in topics.items()}
    for waiter in waiters.values():
        registry.add(waiter)
    for hints, expected in (
        (CommitHints(lanes={("a", "x")}), {"lane"}),
        (CommitHints(lanes={("b", "x"), ("a", "y")}), set()),
        (CommitHints(namespaces={"a"}), {"events"}),
        (CommitHints(namespaces={"a"}, ended={ID}), {"events", "end"}),
        (CommitHints(ended={OTHER}), set()),
        (CommitHints(instances={"worker-1", "worker-2"}), {"lease"}),
        (CommitHints(instances={"worker-2"}), set()),
        (CommitHints(due=NOW), set()),
        (CommitHints(anything=True), set(waiters)),
    ):
        registry.notify(hints)
        assert {name for name, waiter in waiters.items() if await was_notified(waiter)} == expected, hints


async def test_notification_before_the_wait_is_kept_and_counts_once() -> None:
    registry = WaiterRegistry()
    with Waiter(registry, [events_topic("a")]) as waiter:
        registry.notify(CommitHints(namespaces={"a"}))
        registry.notify(CommitHints(namespaces={"a"}))
        assert await was_notified(waiter)
        assert not await was_notified(waiter)
        registry.notify(CommitHints(namespaces={"a"}))
        waiter.clear()
        assert not await was_notified(waiter)
    registry.notify(CommitHints(anything=True))
    assert not await was_notified(waiter), "the waiter is no longer registered"
    assert len(registry) == 0


async def test_unnamed_ends_notify_every_waiter_for_an_end_after_a_delay() -> None:
    registry = WaiterRegistry()
    with Waiter(registry, [end_topic(ID)]) as waiter, Waiter(registry, [lane_topic(("a", "x"))]) as other:
        for _ in range(3):
            registry.notify(CommitHints(many_ended=True))
        assert not await was_notified(waiter)
        assert await waiter.wait(5)
        assert not await waiter.wait(0.2)
        assert not await was_notified(other)


async def test_registry_lists_lanes_and_capabilities_that_are_waited_for() -> None:
    registry = WaiterRegistry()
    with (
        Waiter(registry, [lane_topic(("a", "x"))], ["gpu"]) as waiter,
        Waiter(registry, [lane_topic(("a", "y"))], ["eu"]),
    ):
        assert registry.waiting_lanes() == (set(), set())
        waiting = asyncio.create_task(waiter.wait(5))
        await asyncio.sleep(0)
        assert registry.waiting_lanes() == ({("a", "x")}, {"gpu"})
        registry.notify_workers()
        assert await waiting
        assert registry.waiting_lanes() == (set(), set())


class RecordingNotifier:
    """A notifier that records the hints it should announce."""

    can_announce = True

    def __init__(self) -> None:
        self.hints: list[CommitHints] = []

    def on_commit(self, handler: HintHandler) -> None: ...

    async def announce(self, hints: CommitHints) -> None:
        self.hints.append(hints)

    def source(self) -> None:
        return None


async def test_first_hint_is_announced_immediately_and_later_ones_together() -> None:
    notifier = RecordingNotifier()
    announcer = Announcer(notifier, 10, enabled=True)
    for number in range(5):
        announcer.publish(CommitHints(lanes={("a", str(number))}))
        for _ in range(10):
            await asyncio.sleep(0)
    await announcer.close()
    assert [len(hints.lanes) for hints in notifier.hints] == [1, 4]


async def test_unknown_due_times_are_announced_once_and_again_on_close() -> None:
    notifier = RecordingNotifier()
    announcer = Announcer(notifier, 10, enabled=True)
    for _ in range(5):
        announcer.announce_unknown_due(NOW)
        await asyncio.sleep(0.005)
    announcer.announce_due(NOW, timedelta(hours=1))
    assert len(notifier.hints) == 1
    await announcer.close()
    assert [hints.due for hints in notifier.hints] == [NOW, NOW]


async def test_failed_announcement_is_dropped_without_an_error() -> None:
    class Broken(RecordingNotifier):
        async def announce(self, hints: CommitHints) -> None:
            raise OSError

    announcer = Announcer(Broken(), 10, enabled=True)
    announcer.publish(CommitHints(anything=True))
    await announcer.close()
    assert announcer.announced == 0


async def test_disabled_announcer_sends_nothing() -> None:
    notifier = RecordingNotifier()
    announcer = Announcer(notifier, 10, enabled=False)
    announcer.publish(CommitHints(anything=True))
    announcer.announce_unknown_due(NOW)
    await announcer.close()
    assert notifier.hints == []


def test_due_time_is_announced_if_other_processes_would_poll_too_late() -> None:
    times = KnownDueTimes(horizon_s=10)
    assert not times.should_announce(11, now_s=0), "every process polls before that time"
    assert times.should_announce(5, now_s=0)
    assert not times.should_announce(6, now_s=0), "every process polls at 5 and finds it"
    assert times.should_announce(4, now_s=0)
    assert not times.should_announce(0.5, now_s=3.9)
    assert times.should_announce(0.5, now_s=4.0), "the other processes polled at 4"
    assert times.should_announce(-3, now_s=5.0)


@pytest.mark.parametrize(
    "hints",
    [
        CommitHints(lanes={("a", "x"), ("ä", 'y"')}),
        CommitHints(namespaces={"a"}, ended={ID, OTHER}, due=NOW),
        CommitHints(many_ended=True, namespaces={"a"}),
        CommitHints(anything=True),
    ],
)
def test_hints_survive_a_round_trip_through_a_payload(hints: CommitHints) -> None:
    assert from_payload(to_payload(hints)) == hints


def test_process_ignores_its_own_hints() -> None:
    text = to_payload(CommitHints(namespaces={"a"}), "me")
    assert not from_payload(text, "me")
    assert from_payload(text, "you") == from_payload(text) == CommitHints(namespaces={"a"})
    assert from_payload(to_payload(CommitHints(anything=True), "me"), "you").anything


def test_oversized_hints_are_generalized_to_fit_a_payload() -> None:
    many = CommitHints(namespaces={"a"}, ended={UUID(int=number) for number in range(1000)})
    assert from_payload(to_payload(many)) == CommitHints(namespaces={"a"}, many_ended=True)
    huge = CommitHints(lanes={("n" * 256, "\U0001f43e" * 250 + str(number)) for number in range(50)})
    assert len(to_payload(huge).encode()) < 8000
    assert from_payload(to_payload(huge)) == CommitHints(anything=True)


@pytest.mark.parametrize("text", ["", "x", "[]", "7", '{"lanes": 5}', '{"ended": ["x"]}', '{"lanes": [["a"]]}'])
def test_unreadable_payload_counts_as_any_change(text: str) -> None:
    assert from_payload(text).anything


def test_events_produce_lane_namespace_and_end_hints() -> None:
    def event(name: str, family: str, state: State | None) -> Event:
        return Event(namespace="a", family=family, name=name, at=NOW, lane="x", execution_id=ID, version=1, state=state)

    hints = CommitHints()
    hints.note_events([event("acquired", "lease", State.ACTIVE)])
    assert hints == CommitHints(namespaces={"a"})
    hints.note_events([event("resumed", "lifecycle", State.WAITING), event("failed", "completion", State.FAILED)])
    assert hints == CommitHints(lanes={("a", "x")}, namespaces={"a"}, ended={ID})
    assert not CommitHints()
    assert hints


def test_finished_flow_produces_an_end_hint() -> None:
    def event(name: str) -> Event:
        return Event(namespace="a", family="flow", name=name, at=NOW, lane="", flow_id=OTHER)

    hints = CommitHints()
    hints.note_events([event("cancel_requested")])
    assert hints == CommitHints(namespaces={"a"})
    hints.note_events([event("finished")])
    assert hints == CommitHints(namespaces={"a"}, ended={OTHER})


class LocalClock:
    """The module `time` with a monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def local_clock(monkeypatch: pytest.MonkeyPatch) -> LocalClock:
    clock = LocalClock()
    monkeypatch.setattr(hub_module, "time", clock)
    return clock


async def test_slow_reply_does_not_move_the_known_time(local_clock: LocalClock) -> None:
    hub = NotifyHub(RecordingNotifier())
    hub.learn_time(NOW, local_clock.now_s)
    sent_at = local_clock.now_s
    local_clock.now_s += 10
    hub.learn_time(NOW + timedelta(seconds=1), sent_at)
    assert hub.store_now() == NOW + timedelta(seconds=10)


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
async def test_jump_of_the_stores_clock_moves_the_known_time_and_wakes_the_reconcilers(
    local_clock: LocalClock, jump: timedelta
) -> None:
    hub, wakes = NotifyHub(RecordingNotifier()), list[datetime | None]()
    hub.on_due(wakes.append)
    hub.learn_time(NOW, local_clock.now_s)
    local_clock.now_s += 10
    hub.learn_time(NOW + timedelta(seconds=10), local_clock.now_s)
    assert wakes == []
    hub.learn_time(NOW + timedelta(seconds=10) + jump, local_clock.now_s)
    assert hub.store_now() == NOW + timedelta(seconds=10) + jump
    assert wakes == [None]


async def test_announced_due_time_that_seems_far_away_wakes_the_reconcilers(local_clock: LocalClock) -> None:
    notifier = RecordingNotifier()
    hub, wakes = NotifyHub(notifier), list[datetime | None]()
    hub.on_due(wakes.append)
    hub.learn_time(NOW, local_clock.now_s)
    hub._receive(CommitHints(due=NOW + timedelta(seconds=5)))
    assert wakes == [NOW + timedelta(seconds=5)]
    hub._receive(CommitHints(due=NOW + timedelta(hours=1)))
    assert None in wakes


async def test_timer_of_waiting_calls_uses_the_latest_interval() -> None:
    registry, loop = WaiterRegistry(), asyncio.get_running_loop()
    _ = registry.expect_end(uuid4(), loop, 0.01)
    last = registry.expect_end(uuid4(), loop, 60)
    await asyncio.sleep(0.05)
    assert not last.done()


async def test_timer_of_waiting_calls_does_not_keep_the_context_of_a_caller() -> None:
    request: ContextVar[object] = ContextVar("request")
    registry, loop = WaiterRegistry(), asyncio.get_running_loop()

    class Request: ...

    async def call() -> weakref.ref[Request]:
        value = Request()
        request.set(value)
        _ = registry.expect_end(uuid4(), loop, 60)
        return weakref.ref(value)

    kept = await asyncio.create_task(call(), context=Context())
    await asyncio.sleep(0)
    gc.collect()
    assert kept() is None
