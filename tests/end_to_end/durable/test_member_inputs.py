"""The inputs of a flow member are read once and recorded before the member uses them."""

from __future__ import annotations

from flowfabric import App, Handle, sleep, step
from flowfabric.app.flow import FlowHandle
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import statuses


class Pair:
    """A flow of two tasks; the first returns a different value each time that it runs."""

    def __init__(self, app: App) -> None:
        self.results = iter([1, 100])
        self.seen: list[int] = []

        @app.task
        async def before() -> int:
            return next(self.results)

        @app.task
        async def after(number: int, sleeps: bool, records: bool) -> int:
            self.seen.append(number)
            if records:
                await step(str, number)
            if sleeps:
                await sleep("1h")
            return number

        self.flow = app.flow("pair")
        self.first = self.flow.add(before)
        self.after = after

    async def submit(self, **options: bool) -> tuple[FlowHandle, Handle[int]]:
        second = self.flow.add(self.after, self.first.result, **options)
        handle = await self.flow.submit()
        return handle, handle[second]


async def test_recorded_inputs_stay_when_a_replayed_upstream_returns_another_value(app: App, kit: Kit) -> None:
    pair = Pair(app)
    flow, member = await pair.submit(sleeps=True, records=False)
    await kit.work()
    assert set(await statuses(kit, member)) == {"@inputs", "sleep"}
    await flow[pair.first].replay()
    await kit.work()
    assert await flow[pair.first] == 100
    await kit.advance("1h")
    assert (await member, pair.seen) == (1, [1, 1])


async def test_inputs_are_recorded_before_the_first_step(app: App, kit: Kit) -> None:
    pair = Pair(app)
    _, member = await pair.submit(sleeps=False, records=True)
    kit.crash_before("str")
    assert (await kit.finish(member), pair.seen) == (1, [1, 1])
    assert await statuses(kit, member) == {"@inputs": "ok", "str": "ok"}


async def test_repeated_unrecorded_step_gets_the_same_inputs(app: App, kit: Kit) -> None:
    pair = Pair(app)
    flow, member = await pair.submit(sleeps=False, records=True)
    kit.crash_before("str")
    while not pair.seen:
        await kit.work()
    await flow[pair.first].replay()
    assert (await kit.finish(member), pair.seen) == (1, [1, 1])


async def test_crash_before_inputs_are_recorded_has_no_effect(app: App, kit: Kit) -> None:
    pair = Pair(app)
    _, member = await pair.submit(sleeps=False, records=False)
    kit.crash_before("@inputs")
    assert (await kit.finish(member), pair.seen) == (1, [1])
