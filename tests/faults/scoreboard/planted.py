"""Run every planted fault for the scoreboard."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from tests.faults.planted import PLANTED, run_with_fault
from tests.faults.planted_fault import PlantedFault
from tests.faults.scoreboard.results import PlantedResult


def find_planted_faults(parallel: int) -> list[PlantedResult]:
    """Plant each fault in a copy of the sources, and return which of them the tests found."""
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(_find, PLANTED))


def _find(fault: PlantedFault) -> PlantedResult:
    verdict = run_with_fault(fault)
    word = "found" if verdict.caught else "NOT FOUND"
    sys.stdout.write(f"{word:10} {verdict.took_s:6.1f} s  planted: {fault.name}\n")
    sys.stdout.flush()
    return PlantedResult(fault.name, fault.test, verdict.caught, round(verdict.took_s, 1))
