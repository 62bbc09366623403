"""`flowfabric bench`: a short measurement on a store of one's own, in a namespace of which nothing is left."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from flowfabric.cli.bar import Bar
from flowfabric.cli.documents import document
from flowfabric.cli.opening import writing
from flowfabric.cli.saying import hint, on_screen, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.core import limits
from flowfabric.core.errors import FlowFabricError
from flowfabric.engine import Engine, Policy, Submission

_MOST = 100_000
_ROUND_TRIPS = 50
# Whatever a killed bench leaves behind ends by itself, and is removed soon.
_POLICY = Policy(retention="10m", deadline="10m", max_retries=0)
_COLUMNS = (
    Column("WHAT"), Column("PER SECOND", right=True), Column("MEDIAN MS", right=True), Column("WORST MS", right=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """How many a second, and how long one call took."""

    name: str
    per_second: float
    median_ms: float
    worst_ms: float


async def bench(arguments: argparse.Namespace) -> None:
    """Prints how fast this store takes work in, gives it out and ends it."""
    number = limits.whole(arguments.executions, "--executions", 1, _MOST)
    batch = limits.whole(arguments.batch, "--batch", 1, limits.BATCH)
    async with writing(arguments) as engine:
        facts = await engine.facts()
        async with engine.scratch() as scratch:
            figures = [*await _one_by_one(scratch), *await _in_batches(scratch, number, batch)]
    if arguments.json:
        print(document({"backend": facts.backend, "version": facts.version, "executions": number, "batch": batch,
                        "figures": figures}))  # fmt: skip
        return
    say_lines(figures_table(figures, on_screen()))
    hint(f"{facts.backend} {facts.version}; {number} executions, {batch} at once; nothing is left of them")


def figures_table(figures: Sequence[Figure], screen: Screen) -> list[str]:
    """Figures as people see them."""
    rows = [(item.name, f"{item.per_second:.0f}", f"{item.median_ms:.1f}", f"{item.worst_ms:.1f}") for item in figures]
    return table(_COLUMNS, rows, screen)


async def _one_by_one(engine: Engine) -> list[Figure]:
    """Whole lives, one after another: what a single caller waits for."""
    took: list[float] = []
    for _ in range(_ROUND_TRIPS):
        began = time.perf_counter()
        answer = await engine.executions.submit("bench", b"{}", policy=_POLICY)
        lease = await engine.leases.claim_execution(answer.id, "bench")
        await engine.leases.complete(lease.fence, b"{}")
        took.append(time.perf_counter() - began)
    return [_figure("one life", _ROUND_TRIPS, took)]


async def _in_batches(engine: Engine, number: int, batch: int) -> list[Figure]:
    """All of them, by as many in a call as the batch says."""
    sizes = [min(batch, number - start) for start in range(0, number, batch)]
    work = Submission(kind="bench", payload=b"{}", policy=_POLICY)
    took: dict[str, list[float]] = {"submit": [], "claim": [], "complete": []}
    with Bar("bench", 2 * number) as bar:
        for place, size in enumerate(sizes):
            began = time.perf_counter()
            _all_good(await engine.executions.submit_many([work] * size))
            took["submit"].append(time.perf_counter() - began)
            bar.to(sum(sizes[: place + 1]), "submit")
        done = 0
        while done < number:
            began = time.perf_counter()
            leases = await engine.leases.claim(["default"], "bench", limit=batch)
            claimed = time.perf_counter()
            if not leases:
                break
            _all_good(await engine.leases.complete_many([(lease.fence, b"{}") for lease in leases]))
            took["claim"].append(claimed - began)
            took["complete"].append(time.perf_counter() - claimed)
            done += len(leases)
            bar.to(number + done, "claim, complete")
    return [_figure(name, number, times) for name, times in took.items()]


def _all_good(answers: Sequence[object]) -> None:
    for answer in answers:
        if isinstance(answer, FlowFabricError):
            raise answer


def _figure(name: str, number: int, took: list[float]) -> Figure:
    ordered = sorted(took)
    return Figure(name, number / sum(took), ordered[len(took) // 2] * 1000, ordered[-1] * 1000)
