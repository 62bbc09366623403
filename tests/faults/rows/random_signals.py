"""Random signals against loops of `race`, `gather` and single waits, while leases are revoked and replies get lost.

Each execution knows how many signals of each name it will get. It makes random waits until it has received them, and
returns their values in the order in which it received them. A revoked lease makes another run replay its journal.
The sender is the ledger: every acknowledged signal must be received once, in order per name.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from flowfabric import (
    App,
    Count,
    Received,
    Signal,
    TimedOut,
    gather,
    race,
    sleep,
    wait_for,
    wait_signal,
)
from flowfabric.engine import Engine, Revoked, Satisfied, StandingWaitpoint, StoreOptions, Unavailable
from tests.faults.kit.replies import Losing, lose_each, losing_engine
from tests.faults.rows.row import Row, Tally, Trial
from tests.scenarios import leased
from tests.stores import PostgresTestStore, opened

NAMES = ("a", "b", "c")
SIGNALS = {name: Signal(name, int) for name in NAMES}
SIGNALS_PER_FAULT = 8
FAULTS_PER_EXECUTION = 4
CONCURRENCY = 25
LOST_REPLIES = 0.01
PATIENCE_S = 60.0
LEASE_S = 1
# A burst is handled in some milliseconds, so its lease must be revoked within them.
REVOKES = 150

Got = list[tuple[str, int]]


@dataclass
class Ledger:
    """The signals of one execution that the sender got acknowledged, and what the execution returned."""

    id: UUID
    planned: list[str]
    sent: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in NAMES})
    revoked: int = 0


def add_tasks(app: App) -> Any:
    """Register the task that receives signals by random waits, and return it."""

    @app.task(signals=list(SIGNALS.values()), retries=0)
    async def receive(seed: int, expected: dict[str, int], got: Got) -> Got:
        chance, got = random.Random(f"{seed} {len(got)}"), [(name, value) for name, value in got]
        began = len(got)
        while left := _left(expected, got):
            got += await _receive_some(chance, left)
            if len(got) - began >= 30:
                receive.continue_with(seed, expected, got)
        return got

    return receive


def _left(expected: dict[str, int], got: Got) -> dict[str, int]:
    received = Counter(name for name, _ in got)
    return {name: number - received[name] for name, number in expected.items() if number > received[name]}


async def _receive_some(chance: random.Random, left: dict[str, int]) -> Got:
    """Wait in a random way that the signals that are still to come can end."""
    names = chance.sample(sorted(left), chance.randint(1, len(left)))
    match chance.randrange(6):
        case 0:
            winner = await race(*(wait_signal(SIGNALS[name]) for name in names))
            return [(names[winner.index], winner.value.value)]
        case 1:
            values = await gather(*(wait_signal(SIGNALS[name]) for name in names))
            return [(name, received.value) for name, received in zip(names, values, strict=True)]
        case 2:
            first = await wait_signal(SIGNALS[names[0]], timeout=chance.choice(["1ms", "10ms"]))
            return [] if isinstance(first, TimedOut) else [(names[0], first.value)]
        case 3 if sum(left[name] for name in names) >= 2:
            met = await wait_for(Count(2, "signals", names))
            return [(signal.waitpoint, int(signal.payload)) for signal in met.signals]
        case 4:
            either = await race(*(wait_signal(SIGNALS[name]) for name in names), sleep(chance.choice(["1ms", "10ms"])))
            received: Any = either.value
            return [(names[either.index], received.value)] if isinstance(received, Received) else []
    return [(names[0], (await wait_signal(SIGNALS[names[0]])).value)]


async def _run_signals(trial: Trial) -> Tally:
    store, chance, tally = trial.new_store(), trial.random(), Tally()
    options: StoreOptions = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    async with opened(store) as engine:
        lossy, losing = losing_engine(engine, lose_share(LOST_REPLIES, trial.random("replies")))
        app = App(store.url, options=options)
        receive = add_tasks(app)
        app.engines.adopt(Engine(replace(lossy._context, retry_for_s=0.0)))
        ledgers = await _submit(engine, app, receive, trial, chance)
        async with app.worker(concurrency=CONCURRENCY, lease=f"{LEASE_S}s"):
            limit = asyncio.Semaphore(CONCURRENCY)
            await asyncio.gather(*(_drive(engine, ledger, limit, chance) for ledger in ledgers))
            await asyncio.gather(*(_judge(engine, ledger, tally) for ledger in ledgers))
        app.engines.adopt(None)
    tally.injected = sum(ledger.revoked for ledger in ledgers) + losing.lost
    tally.executions = len(ledgers)
    tally.signals = sum(len(values) for ledger in ledgers for values in ledger.sent.values())
    return tally


def lose_share(share: float, chance: random.Random) -> Losing:
    """Return a function that loses this share of the replies."""
    return lambda: "reply" if chance.random() < share else None


async def _submit(engine: Engine, app: App, receive: Any, trial: Trial, chance: random.Random) -> list[Ledger]:
    ledgers, bursts = list[Ledger](), trial.faults + trial.faults // 2
    for start in range(0, bursts, FAULTS_PER_EXECUTION):
        number = min(FAULTS_PER_EXECUTION, bursts - start) * SIGNALS_PER_FAULT
        planned = [chance.choice(NAMES) for _ in range(number)]
        task: Any = receive
        submission = task.submission((trial.seed + start, dict(Counter(planned)), []), {})
        outcome = await engine.executions.submit(submission)
        ledgers.append(Ledger(outcome.id, planned))
    return ledgers


async def _drive(engine: Engine, ledger: Ledger, limit: asyncio.Semaphore, chance: random.Random) -> None:
    """Send the signals in bursts. After each burst, revoke the lease under which they are received."""
    async with limit:
        for start in range(0, len(ledger.planned), SIGNALS_PER_FAULT):
            for number, name in enumerate(ledger.planned[start : start + SIGNALS_PER_FAULT], start):
                await engine.signals.send(ledger.id, name, b"%d" % number)
                ledger.sent[name].append(number)
                if chance.random() < 0.1:
                    await asyncio.sleep(chance.uniform(0, 0.01))
            await _revoke(engine, ledger, chance)


async def _revoke(engine: Engine, ledger: Ledger, chance: random.Random) -> None:
    for _ in range(REVOKES):
        await asyncio.sleep(chance.uniform(0, 0.004))
        if isinstance(await engine.operator.revoke_lease(ledger.id, "fault"), Revoked):
            ledger.revoked += 1
            return


async def _judge(engine: Engine, ledger: Ledger, tally: Tally) -> None:
    id_ = ledger.id
    outcome = await engine.executions.wait(id_, PATIENCE_S)
    if outcome is None or outcome.result is None:
        state = "did not end" if outcome is None else f"ended {outcome.state}"
        tally.stuck.append(f"{id_} {state} {PATIENCE_S:g} s after its last signal")
        return
    got = json.loads(outcome.result)
    for name, sent in ledger.sent.items():
        received = [value for other, value in got if other == name]
        tally.lost += [f"{id_}: signal {value} of {name} was never received" for value in set(sent) - set(received)]
        repeated = [value for value, times in Counter(received).items() if times > 1]
        tally.doubled += [f"{id_}: signal {value} of {name} was received twice" for value in repeated]
        if received != sorted(received):
            tally.wrong.append(f"{id_}: the signals of {name} were received in the order {received}")


async def _run_lost_replies(trial: Trial) -> Tally:
    """Lose the reply to suspends that keep their lease and consume a signal, and repeat them with their ids."""
    executions = -(-trial.faults // 3)
    tally = Tally(injected=3 * executions, executions=executions, signals=3 * executions)
    async with opened(trial.new_store()) as engine:
        limit = asyncio.Semaphore(CONCURRENCY)

        async def suspend(number: int) -> None:
            async with limit:
                await _suspend_three_times(engine, number, tally)

        await asyncio.gather(*(suspend(number) for number in range(executions)))
    return tally


async def _suspend_three_times(engine: Engine, number: int, tally: Tally) -> None:
    lease = await leased(engine, signals=["go"])
    for index in range(3):
        await engine.signals.send(lease.execution_id, "go", b"%d" % index)
    positions = number % 2 == 1
    for index in range(3):
        lossy, _ = losing_engine(engine, lose_each("reply"))
        binding = StandingWaitpoint("go", after=index) if positions else StandingWaitpoint("go")
        try:
            await Engine(replace(lossy._context, retry_for_s=0.0)).leases.suspend(lease.fence, [binding])
            tally.wrong.append(f"{lease.execution_id}: the reply was not lost")
            return
        except Unavailable as error:
            began, id_ = time.monotonic(), error.fields["id"]
            outcomes = [await engine.leases.suspend(lease.fence, [binding], id=id_) for _ in range(2)]
        tally.recoveries_s.append(time.monotonic() - began)
        payloads = [_payloads(outcome) for outcome in outcomes]
        if payloads != [[b"%d" % index]] * 2:
            tally.lost.append(f"{lease.execution_id}: the repeats returned {payloads} instead of signal {index}")
            return


def _payloads(outcome: Any) -> Sequence[bytes] | None:
    return [signal.payload for signal in outcome.signals] if isinstance(outcome, Satisfied) else None


ROWS = (
    Row(
        "random signals against race, gather and single waits",
        "Leases are revoked while their run receives queued signals, and 1 % of replies are lost",
        _run_signals,
        minimum=1_000,
        short_minimum=12,
    ),
    Row(
        "reply of a satisfied suspend lost",
        "The reply to a suspend that consumed a signal and kept its lease is lost, and the call is repeated",
        _run_lost_replies,
        minimum=1_000,
        short_minimum=20,
    ),
)
