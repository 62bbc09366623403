"""Executions begin with one program and continue with a changed one, as after a deployment."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flowfabric import Diverged, Handle
from flowfabric.engine import FlowFabricError
from flowfabric.testing import Kit, VirtualClock
from tests.faults.kit.changed_code import CHANGES, COMPLETES, DIVERGES, Change, effects, make_app
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore


async def change_code(trial: Trial) -> Tally:
    """Change the code of sleeping executions, and compare how they end with the table."""
    tally, store, clock = Tally(), trial.new_store(), VirtualClock()
    options: dict[str, Any] = {"schema": store.schema} if isinstance(store, PostgresTestStore) else {}
    cases = trial.random().sample(CHANGES, min(trial.faults, len(CHANGES)))
    handles = dict[str, Handle[None]]()
    effects.clear()
    old, tasks = make_app("never-opened.db", None, is_changed=False)
    async with Kit(old, store.url, clock=clock, durable=False, **options) as kit:
        for case in cases:
            handles[case.name] = await kit.start(tasks[case.name])
    new, _ = make_app("never-opened.db", None, is_changed=True)
    async with Kit(new, store.url, clock=clock, durable=False, **options) as kit:
        for case in cases:
            await _continue(kit, case, new.handle(handles[case.name].id), tally)
    return tally


async def _continue(kit: Kit, case: Change, handle: Handle[Any], tally: Tally) -> None:
    tally.injected += 1
    tally.executions += 1
    try:
        await kit.finish(handle)
        end = COMPLETES
    except Diverged:
        end = DIVERGES
    except (FlowFabricError, TimeoutError) as error:
        end = f"{type(error).__name__}: {error}"
    if end.startswith("Stuck"):
        tally.stuck.append(f"{case.name}: {end}")
    elif end != case.end:
        tally.wrong.append(f"{case.name}: ended {end} instead of {case.end}")
    counts, expected = Counter(effects[case.kind]), Counter(case.effects)
    tally.doubled += [f"{case.name}: effect {label} {number} times" for label, number in counts.items() if number > 1]
    tally.lost += [f"{case.name}: effect {label} is missing" for label in expected - counts]
    tally.wrong += [f"{case.name}: unexpected effect {label}" for label in counts.keys() - expected.keys()]


ROWS = (
    Row(
        "changed code",
        "The code of waiting executions changes in 54 ways, from a new last step to swapped members of a race",
        change_code,
        minimum=len(CHANGES),
        short_minimum=len(CHANGES),
    ),
)
