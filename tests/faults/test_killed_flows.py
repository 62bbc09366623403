"""Workers killed in the middle of flows leave no flow half resolved."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

from flowfabric.engine import Engine, Graph
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.random_graphs import draw_members
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer
from tests.faults.kit.ledgers import Ledger, Run
from tests.faults.store_dump import Camera, camera_on
from tests.faults.storm import PATIENCE_S, POLICY, UNFINISHED, Crew, all_ended, killed_inside, retry_until_available
from tests.sizes import Size
from tests.stores import TestStore, opened

WORKERS = 4
PAUSE_S = 0.1
MOST_WAITING = 120
MEMBERS = 30
PLANS = ("plain",) * 7 + ("steps", "retry", "rest", "break", "break", "give up")


async def test_workers_killed_at_random_leave_no_flow_half_resolved(
    store: TestStore, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    seconds, least, least_inside = size.of((1.0, 4, 0), (5.0, 20, 3), (60.0, 250, 40))
    run = Run(tmp_path / "run")
    async with opened(store) as engine:
        camera, crew, stop = await camera_on(store), Crew(forks, run, store), asyncio.Event()
        crew.hire(WORKERS)
        submitting = asyncio.create_task(submit_until(stop, engine, run.client(), camera))
        while len(crew.kills) < least or (_inside(crew) < least_inside and len(crew.kills) < 5 * least):
            await asyncio.to_thread(crew.kill_for, seconds, PAUSE_S)
        stop.set()
        flows = await submitting
        settled_s = await all_ended(camera, PATIENCE_S)
        crew.dismiss()
        findings = await Findings.gather(run, camera)
        await camera.close()
        inside = _inside(crew)
        states = Counter(row["state"] for row in findings.executions.values())
        scoreboard(
            f"{len(crew.kills)} kills (at least {least}), {inside} of them inside a transaction (at least "
            f"{least_inside}), {flows} flows with {dict(states)}; all ended {settled_s:.1f} s after the last kill"
        )
        assert violations(findings) == []
        assert inside >= least_inside
        assert settled_s < PATIENCE_S
        rows = await store.query("SELECT finished FROM ff.flow")
        assert {row["finished"] for row in rows} <= {"completed", "failed"}
    await assert_flows_sound(store)


def _inside(crew: Crew) -> int:
    return killed_inside(crew.kills)[0]


async def submit_until(stop: asyncio.Event, engine: Engine, ledger: Ledger, camera: Camera) -> int:
    """Submit flows while the backlog is small. Return the number of submitted flows."""
    flows, chance = 0, random.Random()
    while not stop.is_set() or not flows:
        [row] = await camera.rows(UNFINISHED)
        if row["number"] < MOST_WAITING:
            await submit(engine, ledger, uuid4(), chance)
            flows += 1
        await asyncio.sleep(0.02)
    return flows


async def submit(engine: Engine, ledger: Ledger, id_: UUID, chance: random.Random) -> None:
    graph = Graph("storm")
    for item in draw_members(chance, MEMBERS):
        payload = json.dumps({"plan": chance.choice(PLANS)}).encode()
        graph.add(item.name, "job", payload, after=item.after, join=item.join, policy=POLICY)
        ledger.write("asked", asked=f"{id_} {item.name}")
    result = await retry_until_available(partial(engine.flows.submit, graph, id=id_))
    for name, member in result.members.items():
        ledger.write("acknowledged", asked=f"{id_} {name}", execution=member)
