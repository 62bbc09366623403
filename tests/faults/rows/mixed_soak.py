"""One worker runs a mixed load with children, and its memory stays the same after a warm-up."""

from __future__ import annotations

from tests.faults.kit.soak import EXECUTIONS_PER_PERIOD, Memory, MixedLoad, come_to_rest, fill_tables
from tests.faults.rows.row import Row, Tally, Trial

CONCURRENCY = 64
WARM_UP_SHARE = 10
MEASUREMENTS = 8
# What is allowed to differ between two measurements, however many executions lie between them.
MAX_GAINED_OBJECTS = 100
MAX_GAINED_KB = 4_000


async def _run(trial: Trial) -> Tally:
    periods = -(-trial.faults // EXECUTIONS_PER_PERIOD)
    load = MixedLoad(trial.new_store())
    memories: list[Memory] = []
    async with load.app, load.app.worker(concurrency=CONCURRENCY) as worker:
        await load.run(max(2, periods // WARM_UP_SHARE))
        fill_tables(worker)
        memories.append(await _measure())
        for part in range(min(MEASUREMENTS, periods)):
            await load.run(_part(periods, part), at_once=10)
            memories.append(await _measure())
    tally = Tally(injected=load.executions, executions=load.executions, wrong=load.wrong)
    _judge(tally, memories, load.executions)
    return tally


def _part(periods: int, part: int) -> int:
    """Return how many periods to run before the next measurement."""
    parts = min(MEASUREMENTS, periods)
    return periods * (part + 1) // parts - periods * part // parts


async def _measure() -> Memory:
    await come_to_rest()
    return Memory.measure()


def _judge(tally: Tally, memories: list[Memory], executions: int) -> None:
    """Compare the last measurement with an early one: after the warm-up, the allocator of Python may still grow."""
    first, early, last = memories[0], memories[min(2, len(memories) - 1)], memories[-1]
    gained = last.gained_since(first)
    if gained.total() > MAX_GAINED_OBJECTS:
        tally.wrong.append(f"{gained.total()} more objects after {executions} executions: {gained.most_common(5)}")
    if last.resident_kb > early.resident_kb + MAX_GAINED_KB:
        sizes = [memory.resident_kb for memory in memories]
        tally.wrong.append(f"the process grew with the number of executions; KB in memory: {sizes}")


ROWS = (
    Row(
        "mixed soak",
        "One worker runs jobs, steps, sleeps, signals, children, races and failures, and its memory must not grow",
        _run,
        minimum=50_000,
        short_minimum=100,
    ),
)
