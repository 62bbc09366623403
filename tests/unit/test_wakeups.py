"""Wake-ups without a database: which bells ring, which due times are told, what fits into a payload."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from flowfabric.backends.postgres.wakeups import news_payload, read_payload
from flowfabric.core.records import Event
from flowfabric.core.states import State
from flowfabric.store.news import News, Tell
from flowfabric.wakeups.announcing import Announcer
from flowfabric.wakeups.bells import Bell, Bells, end_of, events_of, lane_of
from flowfabric.wakeups.due_times import DueTimes

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ID, OTHER = UUID(int=1), UUID(int=2)


async def rung(bell: Bell) -> bool:
    return await bell.wait(0.0)


async def test_a_bell_rings_for_what_it_wants_and_for_nothing_else() -> None:
    bells = Bells()
    wants = {"lane": lane_of(("a", "x")), "events": events_of("a"), "end": end_of(ID)}
    hung = {name: Bell(bells, [want]) for name, want in wants.items()}
    for bell in hung.values():
        bells.hang(bell)
    for news, expected in (
        (News(lanes={("a", "x")}), {"lane"}),
        (News(lanes={("b", "x"), ("a", "y")}), set()),
        (News(namespaces={"a"}), {"events"}),
        (News(namespaces={"a"}, ended={ID}), {"events", "end"}),
        (News(ended={OTHER}), set()),
        (News(due=NOW), set()),
        (News(anything=True), set(hung)),
    ):
        bells.ring(news)
        assert {name for name, bell in hung.items() if await rung(bell)} == expected, news


async def test_what_rang_before_the_wait_is_not_lost_and_counts_once() -> None:
    bells = Bells()
    with Bell(bells, [events_of("a")]) as bell:
        bells.ring(News(namespaces={"a"}))
        bells.ring(News(namespaces={"a"}))
        assert await rung(bell)
        assert not await rung(bell)
        bells.ring(News(namespaces={"a"}))
        bell.clear()
        assert not await rung(bell)
    bells.ring(News(anything=True))
    assert not await rung(bell), "it does not hang any more"
    assert len(bells) == 0


async def test_too_many_ends_ring_everybody_who_waits_for_one_but_not_at_once() -> None:
    bells = Bells()
    with Bell(bells, [end_of(ID)]) as bell, Bell(bells, [lane_of(("a", "x"))]) as other:
        for _ in range(3):
            bells.ring(News(many_ended=True))
        assert not await rung(bell)
        assert await bell.wait(5)
        assert not await bell.wait(0.2)
        assert not await rung(other)


async def test_who_waits_for_work_at_this_moment() -> None:
    bells = Bells()
    with Bell(bells, [lane_of(("a", "x"))], ["gpu"]) as bell, Bell(bells, [lane_of(("a", "y"))], ["eu"]):
        assert bells.waited_for() == (set(), set())
        waiting = asyncio.create_task(bell.wait(5))
        await asyncio.sleep(0)
        assert bells.waited_for() == ({("a", "x")}, {"gpu"})
        bells.ring_for_work()
        assert await waiting
        assert bells.waited_for() == (set(), set())


class Told:
    """A way to tell others that only remembers what was told."""

    can_announce = True

    def __init__(self) -> None:
        self.news: list[News] = []

    def on_commit(self, tell: Tell) -> None: ...

    async def announce(self, news: News) -> None:
        self.news.append(news)

    def ear(self) -> None:
        return None


async def test_the_first_is_told_at_once_and_what_comes_meanwhile_together() -> None:
    told = Told()
    announcer = Announcer(told, 10, enabled=True)
    for number in range(5):
        announcer.tell(News(lanes={("a", str(number))}))
        for _ in range(10):
            await asyncio.sleep(0)
    await announcer.close()
    assert [len(news.lanes) for news in told.news] == [1, 4]


async def test_due_times_that_nobody_knows_are_told_once_and_when_it_closes() -> None:
    told = Told()
    announcer = Announcer(told, 10, enabled=True)
    for _ in range(5):
        announcer.tell_unknown_due(NOW)
        await asyncio.sleep(0.005)
    announcer.tell_due(NOW, timedelta(hours=1))
    assert len(told.news) == 1
    await announcer.close()
    assert [news.due for news in told.news] == [NOW, NOW]


async def test_an_announcement_that_fails_is_lost_and_harms_nobody() -> None:
    class Broken(Told):
        async def announce(self, news: News) -> None:
            raise OSError

    announcer = Announcer(Broken(), 10, enabled=True)
    announcer.tell(News(anything=True))
    await announcer.close()
    assert announcer.announced == 0


async def test_nothing_is_told_when_it_is_switched_off() -> None:
    told = Told()
    announcer = Announcer(told, 10, enabled=False)
    announcer.tell(News(anything=True))
    announcer.tell_unknown_due(NOW)
    await announcer.close()
    assert told.news == []


def test_a_due_time_is_told_if_others_would_look_too_late() -> None:
    times = DueTimes(horizon_s=10)
    assert not times.is_news(11, now_s=0), "everybody looks before that"
    assert times.is_news(5, now_s=0)
    assert not times.is_news(6, now_s=0), "everybody looks at 5 and will find it"
    assert times.is_news(4, now_s=0)
    assert not times.is_news(0.5, now_s=3.9)
    assert times.is_news(0.5, now_s=4.0), "they have looked at 4"
    assert times.is_news(-3, now_s=5.0)


@pytest.mark.parametrize(
    "news",
    [
        News(lanes={("a", "x"), ("ä", 'y"')}),
        News(namespaces={"a"}, ended={ID, OTHER}, due=NOW),
        News(many_ended=True, namespaces={"a"}),
        News(anything=True),
    ],
)
def test_news_come_back_from_a_payload(news: News) -> None:
    assert read_payload(news_payload(news)) == news


def test_nobody_hears_of_his_own_news() -> None:
    text = news_payload(News(namespaces={"a"}), "me")
    assert not read_payload(text, "me")
    assert read_payload(text, "you") == read_payload(text) == News(namespaces={"a"})
    assert read_payload(news_payload(News(anything=True), "me"), "you").anything


def test_what_does_not_fit_into_a_payload_is_said_in_general() -> None:
    many = News(namespaces={"a"}, ended={UUID(int=number) for number in range(1000)})
    assert read_payload(news_payload(many)) == News(namespaces={"a"}, many_ended=True)
    huge = News(lanes={("n" * 256, "\U0001f43e" * 250 + str(number)) for number in range(50)})
    assert len(news_payload(huge).encode()) < 8000
    assert read_payload(news_payload(huge)) == News(anything=True)


@pytest.mark.parametrize("text", ["", "x", "[]", "7", '{"lanes": 5}', '{"ended": ["x"]}', '{"lanes": [["a"]]}'])
def test_a_payload_that_cannot_be_read_makes_everybody_look(text: str) -> None:
    assert read_payload(text).anything


def test_what_follows_from_events() -> None:
    def event(name: str, family: str, state: State | None) -> Event:
        return Event(namespace="a", family=family, name=name, at=NOW, lane="x", execution_id=ID, version=1, state=state)

    news = News()
    news.note_events([event("acquired", "lease", State.ACTIVE)])
    assert news == News(namespaces={"a"})
    news.note_events([event("resumed", "lifecycle", State.WAITING), event("failed", "completion", State.FAILED)])
    assert news == News(lanes={("a", "x")}, namespaces={"a"}, ended={ID})
    assert not News()
    assert news


def test_a_flow_that_has_finished_is_told_as_an_end() -> None:
    def event(name: str) -> Event:
        return Event(namespace="a", family="flow", name=name, at=NOW, lane="", flow_id=OTHER)

    news = News()
    news.note_events([event("cancel_requested")])
    assert news == News(namespaces={"a"})
    news.note_events([event("finished")])
    assert news == News(namespaces={"a"}, ended={OTHER})
