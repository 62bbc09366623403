"""`flowfabric bench`: a short benchmark of a store, in a temporary namespace that is removed afterwards."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from flowfabric.cli.output import format_json, print_hint, print_lines, stdout_screen
from flowfabric.cli.targets import open_for_writing
from flowfabric.cli.terminal import Column, ProgressBar, Screen, format_table
from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError
from flowfabric.engine import Engine, Policy, Submission

_MAX_EXECUTIONS = 100_000
_ROUND_TRIPS = 50
# If the benchmark is killed, its executions expire and are soon purged.
_POLICY = Policy(retention="10m", deadline="10m", max_retries=0)
_COLUMNS = (
    Column("WHAT"), Column("PER SECOND", align_right=True), Column("MEDIAN MS", align_right=True),
    Column("WORST MS", align_right=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """The rate of one operation and the duration of its calls."""

    name: str
    per_second: float
    median_ms: float
    worst_ms: float


async def bench(arguments: argparse.Namespace) -> None:
    """Print how fast the store submits, claims and completes executions."""
    number = validation.integer(arguments.executions, "--executions", 1, _MAX_EXECUTIONS)
    batch = validation.integer(arguments.batch, "--batch", 1, validation.MAX_BATCH)
    async with open_for_writing(arguments) as engine:
        info = await engine.store_info()
        async with engine.temporary_namespace() as temporary:
            figures = [*await _measure_singly(temporary), *await _measure_batches(temporary, number, batch)]
    if arguments.json:
        settings = {"backend": info.backend, "version": info.version, "executions": number, "batch": batch}
        print(format_json({**settings, "figures": figures}))
        return
    print_lines(figures_table(figures, stdout_screen()))
    print_hint(f"{info.backend} {info.version}; {number} executions in batches of {batch}, removed again.")


def figures_table(figures: Sequence[Figure], screen: Screen) -> list[str]:
    """Return the measurements as a table."""
    rows = [
        (figure.name, f"{figure.per_second:.0f}", f"{figure.median_ms:.1f}", f"{figure.worst_ms:.1f}")
        for figure in figures
    ]
    return format_table(_COLUMNS, rows, screen)


async def _measure_singly(engine: Engine) -> list[Figure]:
    """Submit, claim and complete executions one after another, as a single caller would."""
    durations: list[float] = []
    for _ in range(_ROUND_TRIPS):
        began = time.perf_counter()
        outcome = await engine.executions.submit("bench", b"{}", policy=_POLICY)
        lease = await engine.leases.claim_execution(outcome.id, "bench")
        await engine.leases.complete(lease.fence, b"{}")
        durations.append(time.perf_counter() - began)
    return [_figure("round trip", _ROUND_TRIPS, durations)]


async def _measure_batches(engine: Engine, number: int, batch: int) -> list[Figure]:
    """Submit, claim and complete all executions in batches."""
    sizes = [min(batch, number - start) for start in range(0, number, batch)]
    submission = Submission(kind="bench", payload=b"{}", policy=_POLICY)
    durations: dict[str, list[float]] = {"submit": [], "claim": [], "complete": []}
    with ProgressBar("bench", 2 * number) as bar:
        for index, size in enumerate(sizes):
            began = time.perf_counter()
            _raise_errors(await engine.executions.submit_many([submission] * size))
            durations["submit"].append(time.perf_counter() - began)
            bar.update(sum(sizes[: index + 1]), "submit")
        done = 0
        while done < number:
            began = time.perf_counter()
            leases = await engine.leases.claim(["default"], "bench", limit=batch)
            claimed = time.perf_counter()
            if not leases:
                break
            _raise_errors(await engine.leases.complete_many([(lease.fence, b"{}") for lease in leases]))
            durations["claim"].append(claimed - began)
            durations["complete"].append(time.perf_counter() - claimed)
            done += len(leases)
            bar.update(number + done, "claim, complete")
    return [_figure(name, number, times) for name, times in durations.items()]


def _raise_errors(outcomes: Sequence[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, FlowFabricError):
            raise outcome


def _figure(name: str, number: int, durations: list[float]) -> Figure:
    ordered = sorted(durations)
    return Figure(name, number / sum(durations), ordered[len(durations) // 2] * 1000, ordered[-1] * 1000)
