"""Tests of list, which returns pages of executions by filter, with a cursor that is valid only for the same filters."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, InvalidRequest, Page, State, Summary
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, refused
from tests.flows import built
from tests.scenarios import SITUATIONS, submitted


async def list_ids(engine: Engine, **filters: Any) -> list[UUID]:
    """Return the ids of one page, in order."""
    return page_ids(await engine.executions.list(**filters))


def page_ids(page: Page) -> list[UUID]:
    return [execution.id for execution in page.items]


async def test_newest_executions_come_first_and_the_last_page_has_no_cursor(engine: Engine) -> None:
    submitted_ids = [await submitted(engine) for _ in range(3)]
    page = await engine.executions.list()
    assert page_ids(page) == submitted_ids[::-1]
    assert page.next_cursor is None
    assert (await engine.executions.list(limit=3)).next_cursor is None
    assert (await engine.executions.list(limit=2)).next_cursor is not None


async def test_listed_execution_has_the_fields_of_its_description(engine: Engine, clock: VirtualClock) -> None:
    for situation in ("active", "delayed: retrying", "cancelled"):
        id_ = await SITUATIONS[situation](engine, clock)
        description = await engine.executions.describe(id_)
        [summary] = (await engine.executions.list(limit=1)).items
        for name in Summary.__slots__:
            assert getattr(summary, name) == getattr(description, name), (situation, name)


async def test_lane_kind_and_tag_filter_the_list(engine: Engine) -> None:
    mail = await submitted(engine, kind="mail", lane="slow", tags={"team.owner": "ada", "team.cost": "7"})
    sms = await submitted(engine, kind="sms", lane="slow", tags={"team.owner": "ada"})
    other_id = await submitted(engine, kind="mail", lane="fast", tags={"team.owner": "bob"})
    assert await list_ids(engine, lane="slow") == [sms, mail]
    assert await list_ids(engine, kind="mail") == [other_id, mail]
    assert await list_ids(engine, tags={"team.owner": "ada"}) == [sms, mail]
    assert await list_ids(engine, tags={"team.owner": "ada", "team.cost": "7"}) == [mail]
    assert await list_ids(engine, tags={"team.cost": "8"}) == []
    assert await list_ids(engine, kind="mail", lane="slow", tags={"team.owner": "ada"}) == [mail]
    assert await list_ids(engine, kind="sms", lane="fast") == []
    id_ = await submitted(engine, tags={"team.owner": 'a"%_\\é'})
    assert await list_ids(engine, tags={"team.owner": 'a"%_\\é'}) == [id_]
    assert await list_ids(engine, tags={"team.owner": "a%"}) == []
    await engine.executions.set_tags(id_, {"team.owner": "cyd"})
    assert await list_ids(engine, tags={"team.owner": "cyd"}) == [id_]


async def test_every_state_can_be_listed_alone(engine: Engine, clock: VirtualClock) -> None:
    ids_by_state: dict[str, UUID] = {}
    for situation in ("completed", "failed", "cancelled", "expired", "waiting", "delayed", "blocked: held", "active"):
        ids_by_state[situation.partition(":")[0]] = await SITUATIONS[situation](engine, clock)
    for state in State:
        assert await list_ids(engine, state=state) == (
            [ids_by_state[state.value]] if state.value in ids_by_state else []
        ), state
    assert await list_ids(engine, state="delayed") == [ids_by_state["delayed"]]
    assert len(await list_ids(engine)) == len(ids_by_state)


async def test_several_states_can_be_listed_together(engine: Engine, clock: VirtualClock) -> None:
    ids = {name: await SITUATIONS[name](engine, clock) for name in ("completed", "failed", "waiting", "cancelled")}
    for states in (
        ["failed", "cancelled"],
        (State.FAILED, "cancelled"),
        {"failed": 1, "cancelled": 2, State.FAILED: 3},
    ):
        assert set(await list_ids(engine, state=states)) == {ids["failed"], ids["cancelled"]}, states
    first = await engine.executions.list(state=["failed", "cancelled"], limit=1)
    second = await engine.executions.list(state=["failed", "cancelled"], limit=1, cursor=first.next_cursor)
    assert {*page_ids(first), *page_ids(second)} == {ids["failed"], ids["cancelled"]} and second.next_cursor is None
    await refused(engine.executions.list(state=["failed", "broken"]), "invalid_choice", InvalidRequest)


async def test_members_of_a_flow_can_be_listed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
    other = await built(engine, {"a": []})
    await submitted(engine)
    await flow.complete("a")
    assert set(await list_ids(engine, flow=flow.id)) == {flow["a"], flow["b"], flow["c"]}
    assert await list_ids(engine, flow=str(other.id)) == [other["a"]]
    assert await list_ids(engine, flow=flow.id, state="completed") == [flow["a"]]
    assert set(await list_ids(engine, flow=flow.id, state=["completed", "waiting"])) == {flow["a"], flow["b"]}
    assert await list_ids(engine, flow=flow.id, kind="none") == []
    assert await list_ids(engine, flow=flow.id, tags={"team.owner": "ada"}) == []
    assert await list_ids(engine.for_namespace("other"), flow=flow.id) == []
    newest_first = await list_ids(engine, flow=flow.id)
    assert newest_first == sorted(newest_first, reverse=True)
    page = await engine.executions.list(flow=flow.id, limit=2)
    assert page_ids(page) == newest_first[:2]
    assert await list_ids(engine, flow=flow.id, limit=2, cursor=page.next_cursor) == newest_first[2:]
    await assert_cursor_refused(engine, page.next_cursor, flow=other.id)


async def test_start_of_an_id_filters_the_list(engine: Engine) -> None:
    for text in ("aaaa1111-0000-7000-8000-000000000000", "aaaa1111-0000-7000-8000-ffffffffffff"):
        await submitted(engine, id=text)
    await submitted(engine, id="aaaa2222-0000-7000-8000-000000000000")
    assert len(await list_ids(engine, id_prefix="aaaa")) == 3
    assert (
        len(await list_ids(engine, id_prefix="AAAA1111-00")) == len(await list_ids(engine, id_prefix="aaaa111100")) == 2
    )
    [id_] = await list_ids(engine, id_prefix="aaaa1111-0000-7000-8000-f")
    assert str(id_).endswith("ffff")
    assert await list_ids(engine, id_prefix=str(id_)) == await list_ids(engine, id_prefix=id_.hex) == [id_]
    assert await list_ids(engine, id_prefix="bbbb") == []
    assert await list_ids(engine.for_namespace("other"), id_prefix="aaaa") == []
    await submitted(engine, id="aaaa1111-0000-7000-8000-0000000000aa", key="k")
    assert len(await list_ids(engine, id_prefix="aaaa", key="k")) == 1
    assert await list_ids(engine, id_prefix="aaaa2", key="k") == []


async def test_time_of_submission_filters_the_list(engine: Engine, clock: VirtualClock) -> None:
    submitted_ids, times = [], []
    for _ in range(3):
        submitted_ids.append(await submitted(engine))
        times.append(clock.now())
        clock.advance("1m")
    assert await list_ids(engine, created_from=times[1]) == [submitted_ids[2], submitted_ids[1]]
    assert await list_ids(engine, created_until=times[1]) == [submitted_ids[0]]
    assert await list_ids(engine, created_from=times[1], created_until=times[2]) == [submitted_ids[1]]
    assert await list_ids(engine, created_from=times[1] + timedelta(microseconds=1)) == [submitted_ids[2]]


async def test_pages_are_stable_while_rows_are_added_and_changed(engine: Engine) -> None:
    submitted_ids = [await submitted(engine) for _ in range(5)][::-1]
    first = await engine.executions.list(limit=2)
    await submitted(engine)
    second = await engine.executions.list(limit=2, cursor=first.next_cursor)
    await submitted(engine)
    await engine.operator.cancel(submitted_ids[4])
    third = await engine.executions.list(limit=2, cursor=second.next_cursor)
    assert page_ids(first) + page_ids(second) + page_ids(third) == submitted_ids
    assert third.next_cursor is None
    assert page_ids(await engine.executions.list(limit=2, cursor=first.next_cursor)) == page_ids(second)


async def test_pages_of_a_filtered_list_contain_every_match_once(engine: Engine, clock: VirtualClock) -> None:
    submitted_ids = []
    for number in range(9):
        submitted_ids.append(await submitted(engine, kind=("mail", "sms")[number % 2]))
        if number % 3 == 0:
            await engine.operator.cancel(submitted_ids[-1])
    list_ids: list[UUID] = []
    cursor: str | None = None
    while True:
        page = await engine.executions.list(kind="mail", limit=2, cursor=cursor)
        list_ids += page_ids(page)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert list_ids == submitted_ids[::2][::-1]


async def test_cursor_of_another_query_or_namespace_is_refused(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(2):
        await submitted(engine, kind="mail")
    cursor = (await engine.executions.list(kind="mail", limit=1)).next_cursor
    other_filters: Sequence[dict[str, Any]] = (
        {}, {"kind": "sms"}, {"kind": "mail", "lane": "default"}, {"kind": "mail", "state": "waiting"},
        {"kind": "mail", "tags": {"team.owner": "ada"}}, {"kind": "mail", "created_from": clock.now()},
        {"kind": "mail", "created_until": clock.now()}, {"lane": "mail"},
    )  # fmt: skip
    for filters in other_filters:
        await assert_cursor_refused(engine, cursor, **filters)
    assert len(await list_ids(engine, kind="mail", cursor=cursor, limit=7)) == 1
    await assert_cursor_refused(engine.for_namespace("other"), cursor, kind="mail")


async def test_malformed_cursor_is_refused(engine: Engine) -> None:
    for _ in range(2):
        await submitted(engine)
    cursor = (await engine.executions.list(limit=1)).next_cursor
    assert cursor is not None
    shorter = base64.urlsafe_b64encode(base64.urlsafe_b64decode(cursor)[:-1]).decode()
    for malformed in (
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
        await assert_cursor_refused(engine, malformed)


async def test_limit_is_between_one_and_a_thousand(engine: Engine) -> None:
    id_ = await submitted(engine)
    bad_limits: tuple[Any, ...] = (0, -1, 1001, True, "10", 1.5)
    for limit in bad_limits:
        assert isinstance(await error_of(engine.executions.list(limit=limit)), InvalidRequest), limit
    assert await list_ids(engine, limit=1) == await list_ids(engine, limit=1000) == [id_]


async def test_each_namespace_lists_its_own_executions(engine: Engine) -> None:
    other_namespace = engine.for_namespace("other")
    mine, theirs = await submitted(engine), await submitted(other_namespace)
    assert await list_ids(engine) == [mine]
    assert await list_ids(other_namespace) == [theirs]
    assert await list_ids(engine.for_namespace("empty")) == []


async def assert_cursor_refused(engine: Engine, cursor: Any, **filters: Any) -> None:
    error = await error_of(engine.executions.list(cursor=cursor, **filters))
    assert isinstance(error, InvalidRequest), filters
    assert error.code == "cursor_invalid", filters
