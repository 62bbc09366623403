"""Run every planted fault for the scoreboard."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from operator import itemgetter

from tests.faults.planted import PLANTED, run_with_fault
from tests.faults.planted_fault import PlantedFault
from tests.faults.scoreboard.results import PlantedResult
from tests.faults.scoreboard.run_log import Result, RunKey, RunLog


async def find_planted_faults(parallel: int, log: RunLog) -> list[PlantedResult]:
    """Plant each fault in a copy of the sources, and return which of them the tests found."""
    free = asyncio.Semaphore(parallel)

    async def find(fault: PlantedFault) -> PlantedResult:
        async with free:
            key = RunKey(f"planted: {fault.name}")
            result = await log.result_of(key, lambda: asyncio.to_thread(_find, fault), itemgetter("is_found"))
            return PlantedResult(**result)

    return list(await asyncio.gather(*map(find, PLANTED)))


def _find(fault: PlantedFault) -> Result:
    verdict = run_with_fault(fault)
    word = "found" if verdict.caught else "NOT FOUND"
    sys.stdout.write(f"{word:10} {verdict.took_s:6.1f} s  planted: {fault.name}\n")
    sys.stdout.flush()
    return asdict(PlantedResult(fault.name, fault.test, verdict.caught, round(verdict.took_s, 1)))
