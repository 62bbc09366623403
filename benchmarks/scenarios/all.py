"""Every scenario by name, in the order of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.bench import Bench
from benchmarks.scenarios.counters import counters
from benchmarks.scenarios.flows import chains, races
from benchmarks.scenarios.jobs import batches, jobs, queue
from benchmarks.scenarios.queues import backlog, leases, routing
from benchmarks.scenarios.starts import starts
from benchmarks.scenarios.steady import steady
from benchmarks.scenarios.steps import steps
from benchmarks.scenarios.waits import signals, timers, waits
from benchmarks.scenarios.workers import idle, memory, processes, wakeups

Scenario = Callable[[Bench], Awaitable[None]]

# Scenarios that need a quiet store run before scenarios that leave much to vacuum.
_ORDER: tuple[Scenario, ...] = (
    starts, waits, timers, races, chains, routing, jobs, queue, batches, steps, counters, wakeups, idle, leases,
    signals, processes, memory, steady, backlog,
)  # fmt: skip
SCENARIOS: dict[str, Scenario] = {getattr(scenario, "__name__", ""): scenario for scenario in _ORDER}
