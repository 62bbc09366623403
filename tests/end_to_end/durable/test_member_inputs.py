"""The inputs of a member: read once, kept with the first record, and not kept where nothing is left to answer."""

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


async def test_they_are_the_first_record_beside_that_of_a_step(app: App, kit: Kit) -> None:
    pair = Pair(app)
    _, member = await pair.submit(rests=False, records=True)
    await kit.work()
    assert list(await statuses(kit, member)) == ["@inputs", "str"]
    [inputs, made] = await kit.engine.executions.steps(member.id)
    assert inputs.recorded_at == made.recorded_at


async def test_a_member_that_recorded_nothing_ends_without_them(app: App, kit: Kit) -> None:
    pair = Pair(app)
    _, member = await pair.submit(rests=False, records=False)
    await kit.work()
    assert (await member, await statuses(kit, member)) == (1, {})


async def test_a_member_that_crashed_before_its_first_record_reads_them_again(app: App, kit: Kit) -> None:
    pair = Pair(app)
    _, member = await pair.submit(rests=False, records=True)
    kit.crash_before("str")
    assert (await kit.finish(member), pair.seen) == (1, [1, 1])
    assert await statuses(kit, member) == {"@inputs": "ok", "str": "ok"}
