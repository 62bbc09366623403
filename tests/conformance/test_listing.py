"""list: pages of executions by lane, kind, state, tag and time, with cursors that fit one query only."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, InvalidRequest, Page, State, Summary
from flowfabric.testing import VirtualClock
from tests.facts import error_of
from tests.scenarios import SITUATIONS, submitted


async def listed(engine: Engine, **filters: Any) -> list[UUID]:
    """The ids of one page, in its order."""
    return ids(await engine.executions.list(**filters))


def ids(page: Page) -> list[UUID]:
    return [item.id for item in page.items]


async def test_the_newest_come_first_and_the_last_page_has_no_cursor(engine: Engine) -> None:
    made = [await submitted(engine) for _ in range(3)]
    page = await engine.executions.list()
    assert ids(page) == made[::-1]
    assert page.next_cursor is None
    assert (await engine.executions.list(limit=3)).next_cursor is None
    assert (await engine.executions.list(limit=2)).next_cursor is not None


async def test_a_listed_execution_is_shown_as_described(engine: Engine, clock: VirtualClock) -> None:
    for situation in ("active", "delayed: retrying", "cancelled"):
        id_ = await SITUATIONS[situation](engine, clock)
        described = await engine.executions.describe(id_)
        [item] = (await engine.executions.list(limit=1)).items
        for name in Summary.__slots__:
            assert getattr(item, name) == getattr(described, name), (situation, name)


async def test_lane_kind_and_tag_narrow_the_list(engine: Engine) -> None:
    mail = await submitted(engine, kind="mail", lane="slow", tags={"team.owner": "ada", "team.cost": "7"})
    sms = await submitted(engine, kind="sms", lane="slow", tags={"team.owner": "ada"})
    other = await submitted(engine, kind="mail", lane="fast", tags={"team.owner": "bob"})
    assert await listed(engine, lane="slow") == [sms, mail]
    assert await listed(engine, kind="mail") == [other, mail]
    assert await listed(engine, tags={"team.owner": "ada"}) == [sms, mail]
    assert await listed(engine, tags={"team.owner": "ada", "team.cost": "7"}) == [mail]
    assert await listed(engine, tags={"team.cost": "8"}) == []
    assert await listed(engine, kind="mail", lane="slow", tags={"team.owner": "ada"}) == [mail]
    assert await listed(engine, kind="sms", lane="fast") == []
    id_ = await submitted(engine, tags={"team.owner": 'a"%_\\é'})
    assert await listed(engine, tags={"team.owner": 'a"%_\\é'}) == [id_]
    assert await listed(engine, tags={"team.owner": "a%"}) == []
    await engine.executions.set_tags(id_, {"team.owner": "cyd"})
    assert await listed(engine, tags={"team.owner": "cyd"}) == [id_]


async def test_every_state_can_be_listed_alone(engine: Engine, clock: VirtualClock) -> None:
    made: dict[str, UUID] = {}
    for situation in ("completed", "failed", "cancelled", "expired", "waiting", "delayed", "blocked: held", "active"):
        made[situation.partition(":")[0]] = await SITUATIONS[situation](engine, clock)
    for state in State:
        assert await listed(engine, state=state) == ([made[state.value]] if state.value in made else []), state
    assert await listed(engine, state="delayed") == [made["delayed"]]
    assert len(await listed(engine)) == len(made)


async def test_the_time_of_submission_narrows_the_list(engine: Engine, clock: VirtualClock) -> None:
    made, times = [], []
    for _ in range(3):
        made.append(await submitted(engine))
        times.append(clock.now())
        clock.advance("1m")
    assert await listed(engine, created_from=times[1]) == [made[2], made[1]]
    assert await listed(engine, created_until=times[1]) == [made[0]]
    assert await listed(engine, created_from=times[1], created_until=times[2]) == [made[1]]
    assert await listed(engine, created_from=times[1] + timedelta(microseconds=1)) == [made[2]]


async def test_pages_stay_stable_while_rows_are_added_and_change(engine: Engine) -> None:
    made = [await submitted(engine) for _ in range(5)][::-1]
    first = await engine.executions.list(limit=2)
    await submitted(engine)
    second = await engine.executions.list(limit=2, cursor=first.next_cursor)
    await submitted(engine)
    await engine.operator.cancel(made[4])
    third = await engine.executions.list(limit=2, cursor=second.next_cursor)
    assert ids(first) + ids(second) + ids(third) == made
    assert third.next_cursor is None
    assert ids(await engine.executions.list(limit=2, cursor=first.next_cursor)) == ids(second)


async def test_pages_of_a_filtered_list_hold_every_match_once(engine: Engine, clock: VirtualClock) -> None:
    made = []
    for number in range(9):
        made.append(await submitted(engine, kind=("mail", "sms")[number % 2]))
        if number % 3 == 0:
            await engine.operator.cancel(made[-1])
    found: list[UUID] = []
    cursor: str | None = None
    while True:
        page = await engine.executions.list(kind="mail", limit=2, cursor=cursor)
        found += ids(page)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == made[::2][::-1]


async def test_a_cursor_of_another_query_or_namespace_is_refused(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(2):
        await submitted(engine, kind="mail")
    cursor = (await engine.executions.list(kind="mail", limit=1)).next_cursor
    others: Sequence[dict[str, Any]] = (
        {}, {"kind": "sms"}, {"kind": "mail", "lane": "default"}, {"kind": "mail", "state": "waiting"},
        {"kind": "mail", "tags": {"team.owner": "ada"}}, {"kind": "mail", "created_from": clock.now()},
        {"kind": "mail", "created_until": clock.now()}, {"lane": "mail"},
    )  # fmt: skip
    for filters in others:
        await refused_cursor(engine, cursor, **filters)
    assert len(await listed(engine, kind="mail", cursor=cursor, limit=7)) == 1
    await refused_cursor(engine.within("other"), cursor, kind="mail")


async def test_a_garbled_cursor_is_refused(engine: Engine) -> None:
    for _ in range(2):
        await submitted(engine)
    cursor = (await engine.executions.list(limit=1)).next_cursor
    assert cursor is not None
    shorter = base64.urlsafe_b64encode(base64.urlsafe_b64decode(cursor)[:-1]).decode()
    for garbled in (
        "",
        "x",
        cursor[:-2],
        cursor + "AAAA",
        shorter,
        f" {cursor}",
        cursor.swapcase(),
        "é" * 32,
        "\x00",
        7,
    ):
        await refused_cursor(engine, garbled)


async def test_a_limit_is_between_one_and_a_thousand(engine: Engine) -> None:
    id_ = await submitted(engine)
    refused: tuple[Any, ...] = (0, -1, 1001, True, "10", 1.5)
    for limit in refused:
        assert isinstance(await error_of(engine.executions.list(limit=limit)), InvalidRequest), limit
    assert await listed(engine, limit=1) == await listed(engine, limit=1000) == [id_]


async def test_each_namespace_lists_its_own(engine: Engine) -> None:
    other = engine.within("other")
    mine, theirs = await submitted(engine), await submitted(other)
    assert await listed(engine) == [mine]
    assert await listed(other) == [theirs]
    assert await listed(engine.within("empty")) == []


async def refused_cursor(engine: Engine, cursor: Any, **filters: Any) -> None:
    error = await error_of(engine.executions.list(cursor=cursor, **filters))
    assert isinstance(error, InvalidRequest), filters
    assert error.code == "cursor_invalid", filters
