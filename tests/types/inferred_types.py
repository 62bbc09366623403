"""The types that checkers must infer. This module is never run."""
# mypy: disable-error-code="unused-awaitable"

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type

from flowfabric import (
    App,
    Approved,
    Call,
    Cancelled,
    Completed,
    Expired,
    Failed,
    Handle,
    Node,
    RaceResult,
    Received,
    Rejected,
    Signal,
    Skipped,
    TimedOut,
    approval,
    callback,
    gather,
    poll,
    race,
    settle,
    sleep,
    step,
    sync,
    wait_signal,
)

app = App()
paid = Signal("paid", int)
maybe = Signal("maybe", int | None)


@dataclass
class Order:
    id: str


async def count(order: Order, *, fast: bool = False) -> int:
    return 1


def debit(db: sqlite3.Connection, account: str, *, amount: int) -> int:
    return amount


async def debit_async(db: object, account: str, *, amount: int) -> int:
    return amount


def describe(order: Order) -> str:
    return order.id


def find_price(order: Order) -> float | None:
    return None


@app.task
async def refund(order: Order, n: int = 1) -> str:
    return order.id


@app.task(retries=1)
def plain(order: Order) -> int:
    return 1


assert_type(maybe, Signal[int | None])


async def check_tasks(order: Order) -> None:
    assert_type(await refund.submit(order), Handle[str])
    assert_type(await refund.submit(order, n=2), Handle[str])
    assert_type(await refund.run(order), str)
    assert_type(await plain.run(order), int)
    assert_type(await refund.options(lane="slow").run(order), str)
    assert_type(refund.call(order), Call[str])
    assert_type(await app.submit_many([refund.call(order)]), list[Handle[str]])
    assert_type(refund.handle("x"), Handle[str])
    assert_type(app.handle("x"), Handle[Any])
    assert_type(app.run(refund, order), str)
    app.run(concurrency=3)


async def check_handles(handle: Handle[str]) -> None:
    assert_type(await handle, str)
    assert_type(await handle.result("1m"), str)
    assert_type(await handle.outcome(), Completed[str] | Failed | Cancelled | Expired | Skipped)
    assert_type(await handle.outcome("1m"), Completed[str] | Failed | Cancelled | Expired | Skipped | TimedOut)
    await handle.signal(maybe, None)


async def check_steps(order: Order) -> None:
    assert_type(await step(count, order), int)
    assert_type(await step(count, order, fast=True), int)
    assert_type(await step(describe, order), str)
    assert_type(await step.options(key="a", retries=1)(count, order), int)
    assert_type(await step.tx(debit, "a", amount=1), int)
    assert_type(await step.tx(debit_async, "a", amount=1), int)
    assert_type(await poll("1s", find_price, order), float)
    await sleep("1s")


@step.policy(retries=2, raises=[KeyError])
async def careful(order: Order) -> int:
    return 1


async def check_policies(order: Order) -> None:
    assert_type(await careful(order), int)
    assert_type(await step(careful, order), int)


async def check_waits() -> None:
    assert_type(await wait_signal(paid), Received[int])
    assert_type(await wait_signal(paid, timeout="1d"), Received[int] | TimedOut)
    assert_type(await approval("x", by=["a"]), Approved | Rejected)
    assert_type(await approval("x", by=["a"], timeout="1d"), Approved | Rejected | TimedOut)
    assert_type(await approval("x", by=["a"], timeout="1d", on_timeout="fail"), Approved | Rejected)
    assert_type(await approval("x", by=["a"]).tokens(), dict[str, str])
    assert_type(await callback("x", Order), Received[Order])
    assert_type(await callback("x", list[int], timeout="1d"), Received[list[int]] | TimedOut)
    assert_type(await callback("x", Order).url(), str)


async def check_groups(order: Order) -> None:
    assert_type(await gather(step(count, order), step(describe, order)), tuple[int, str])
    assert_type(await gather(step(count, order), step(describe, order), sleep(1)), tuple[int, str, None])
    assert_type(await gather(*[refund.run(order)], limit=3), tuple[str, ...])
    assert_type(await race(step(count, order), step(describe, order)), RaceResult[int | str])
    assert_type(await race(*[refund.run(order)]), RaceResult[str])
    assert_type(await settle(refund.run(order)), tuple[Completed[str] | Failed, ...])
    assert_type(await settle(*[refund.run(order)], limit=3), tuple[Completed[str] | Failed, ...])
    both = await settle(step(count, order), step(describe, order))
    assert_type(both, tuple[Completed[int] | Failed, Completed[str] | Failed])
    three = await settle(step(count, order), step(describe, order), sleep(1))
    assert_type(three, tuple[Completed[int] | Failed, Completed[str] | Failed, Completed[None] | Failed])
    four = await settle(step(count, order), sleep(1), step(describe, order), refund.run(order))
    assert_type(
        four,
        tuple[Completed[int] | Failed, Completed[None] | Failed, Completed[str] | Failed, Completed[str] | Failed],
    )


async def check_flows(order: Order) -> None:
    flow = app.flow()
    a = flow.add(refund, order)
    assert_type(a, Node[str])
    assert_type(a.result, str)
    assert_type(flow.first(a, a), str)
    assert_type(flow.quorum(1, a), list[str])
    handle = await flow.submit()
    assert_type(handle[a], Handle[str])


def check_plain_code(order: Order, when: datetime) -> None:
    assert_type(refund.sync.submit(order), sync.Handle[str])
    assert_type(refund.sync.submit(order).result(), str)
    assert_type(refund.sync.run(order), str)
    assert_type(refund.sync.options(key="a").run(order), str)
    assert_type(app.sync.submit_many([plain.call(order)]), list[sync.Handle[int]])
    assert_type(sync.step(count, order), int)
    assert_type(sync.step(describe, order), str)
    assert_type(sync.step.tx(debit, "a", amount=1), int)
    assert_type(sync.step.tx(debit_async, "a", amount=1), int)
    assert_type(sync.gather(lambda: 1, lambda: "a"), tuple[int, str])
    assert_type(sync.settle(lambda: 1, lambda: "a"), tuple[Completed[int] | Failed, Completed[str] | Failed])
    assert_type(sync.race(lambda: 1, lambda: "a"), RaceResult[int | str])
    assert_type(sync.wait_signal(paid, timeout=1), Received[int] | TimedOut)
    assert_type(sync.approval("x", by="a").wait(), Approved | Rejected)
    assert_type(sync.callback("x", Order).wait(), Received[Order])
    assert_type(sync.now(), datetime)
