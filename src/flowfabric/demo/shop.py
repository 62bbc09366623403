"""The shop of the demo: its durable functions, and simulated external systems that log their actions.

Run as a program, this module is a worker. The worker stops when its standard input closes, so it never outlives the
demo.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from pathlib import Path
from typing import NamedTuple

from flowfabric import App, ApprovalRequest, Approved, Rejected, approval, current, race, step

LEASE = "2s"
CARRIERS = ("truck", "bicycle", "ship")
app = App(url=os.environ.get("DEMO_URL"))


@app.task
async def refund(order: str, euros: int) -> str:
    """Pay a customer back after two people have approved."""
    match await approval("refund", by=["ops", "finance"], notify=mail):
        case Approved():
            return await step(pay_back, order, euros)
        case Rejected(by=who):
            return f"not paid back, {who} refused"


@app.task
async def cheapest(parcel: str) -> str:
    """Return the first quote that arrives."""
    won = await race(*(quote.run(carrier, parcel) for carrier in CARRIERS))
    return f"{CARRIERS[won.index]}, {won.value} euros"


@app.task
async def quote(carrier: str, parcel: str) -> int:
    """Return the price of one carrier."""
    return await step(ask_carrier, carrier, parcel)


@app.task
async def pick(item: str) -> str:
    """Take one item from the shelf."""
    return item


@app.task
async def pack(items: list[str]) -> str:
    """Pack all items into one box."""
    return f"a box with {' and '.join(items)}"


@app.task
async def send(box: str, carrier: str) -> str:
    """Send the box to the customer."""
    return f"{box}, by {carrier}"


class Entry(NamedTuple):
    """An entry in the log of the external systems, with the process and the idempotency key."""

    what: str
    about: str
    process: int
    key: str


async def mail(ask: ApprovalRequest) -> None:
    write(f"mail to {ask.approver}", f"{ask.token} {ask.link}")


async def pay_back(order: str, euros: int) -> str:
    """Pay through a bank that recognizes payments by their key. The receipt of the first request never arrives."""
    if any(entry.key == current().idempotency_key for entry in books("paid")):
        write("paid before", order)
        return f"{euros} euros for {order} are paid back"
    write("paid", order)
    await asyncio.sleep(3600)
    raise ConnectionError("the bank sent no receipt")


async def ask_carrier(carrier: str, parcel: str) -> int:
    """Ask a carrier for its price. Only the bicycle replies, when all carriers have been asked."""
    write("asked", carrier)
    try:
        while carrier != "bicycle" or len(books("asked")) < len(CARRIERS):  # noqa: ASYNC110 - other processes write the log
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        write("cancelled", carrier)
        raise
    return 7


def write(what: str, about: str) -> None:
    entry = Entry(what, about, os.getpid(), current().idempotency_key)
    with _file().open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def books(what: str) -> list[Entry]:
    """Return the log entries of one type, oldest first."""
    lines = _file().read_text(encoding="utf-8").splitlines(keepends=True) if _file().exists() else []
    entries = [Entry(*json.loads(line)) for line in lines if line.endswith("\n")]
    return [entry for entry in entries if entry.what == what]


def _file() -> Path:
    return Path(os.environ["DEMO_FOLDER"], "books.txt")


def _end_with_the_demo() -> None:
    # Bypass the buffer of sys.stdin, whose lock would block the exit of the process.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # The demo narrates, so a worker prints only errors.
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    logging.basicConfig()  # Only warnings, so that the log does not mix with the tour.
    app.run(lease=LEASE)
