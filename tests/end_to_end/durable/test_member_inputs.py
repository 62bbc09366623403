"""The inputs of a member are read once, and recorded before anything is done with them."""

from __future__ import annotations

from flowfabric import App, Handle, sleep, step
from flowfabric.sdk.flows import FlowHandle
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import statuses


class Pair:
    """One task after another; the first one answers otherwise each time that it runs."""

    def __init__(self, app: App) -> None:
        self.answers = iter([1, 100])
        self.seen: list[int] = []

        @app.task
        async def before() -> int:
            return next(self.answers)

        @app.task
        async def after(number: int, rests: bool, records: bool) -> int:
            self.seen.append(number)
            if records:
                await step(str, number)
            if rests:
                await sleep("1h")
            return number

        self.flow = app.flow("pair")
        self.first = self.flow.add(before)
        self.after = after

    async def submit(self, **how: bool) -> tuple[FlowHandle, Handle[int]]:
        second = self.flow.add(self.after, self.first.result, **how)
        handle = await self.flow.submit()
        return handle, handle[second]


async def test_inputs_that_were_recorded_stay_when_the_upstream_answers_otherwise(app: App, kit: Kit) -> None:
    pair = Pair(app)
    flow, member = await pair.submit(rests=True, records=False)
    await kit.work()
    assert set(await statuses(kit, member)) == {"@inputs", "sleep"}
    await flow[pair.first].replay()
    await kit.work()
    assert await flow[pair.first] == 100
    await kit.advance("1h")
    assert (await member, pair.seen) == (1, [1, 1])


async def test_they_are_recorded_before_anything_is_done_with_them(app: App, kit: Kit) -> None:
    pair = Pair(app)
    _, member = await pair.submit(rests=False, records=True)
    kit.crash_before("str")
    assert (await kit.finish(member), pair.seen) == (1, [1, 1])
    assert await statuses(kit, member) == {"@inputs": "ok", "str": "ok"}


async def test_an_effect_that_was_not_recorded_has_the_same_input_when_it_is_repeated(app: App, kit: Kit) -> None:
    pair = Pair(app)
    flow, member = await pair.submit(rests=False, records=True)
    kit.crash_before("str")
    while not pair.seen:
        await kit.work()
    await flow[pair.first].replay()
    assert (await kit.finish(member), pair.seen) == (1, [1, 1])


async def test_a_crash_before_they_are_recorded_costs_nothing(app: App, kit: Kit) -> None:
    pair = Pair(app)
    _, member = await pair.submit(rests=False, records=False)
    kit.crash_before("@inputs")
    assert (await kit.finish(member), pair.seen) == (1, [1])
