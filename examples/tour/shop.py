"""The shop of the demo: its durable functions, and the world around them, which keeps books of its own.

Run as a program it is a worker, which ends when its input does: so it never outlives the demo.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from typing import NamedTuple

from flowfabric import App, Approved, Ask, Rejected, approval, current, race, step

LEASE = "2s"
CARRIERS = ("truck", "bicycle", "ship")
app = App(url=os.environ.get("DEMO_URL"))


@app.task
async def refund(order: str, euros: int) -> str:
    """Two people must sign before the money goes back."""
    match await approval("refund", by=["ops", "finance"], notify=mail):
        case Approved():
            return await step(pay_back, order, euros)
        case Rejected(by=who):
            return f"not paid back, {who} refused"


@app.task
async def cheapest(parcel: str) -> str:
    """The first carrier that answers."""
    won = await race(*(quote.run(carrier, parcel) for carrier in CARRIERS))
    return f"{CARRIERS[won.index]}, {won.value} euros"


@app.task
async def quote(carrier: str, parcel: str) -> int:
    """What one carrier wants for it."""
    return await step(ask_carrier, carrier, parcel)


@app.task
async def pick(item: str) -> str:
    """One thing from the shelf."""
    return item


@app.task
async def pack(items: list[str]) -> str:
    """All of them in one box."""
    return f"a box with {' and '.join(items)}"


@app.task
async def send(box: str, carrier: str) -> str:
    """To the customer."""
    return f"{box}, by {carrier}"


class Entry(NamedTuple):
    """A line in the books of the outside world: who did it, and under which key."""

    what: str
    about: str
    process: int
    key: str


async def mail(ask: Ask) -> None:
    write(f"mail to {ask.approver}", f"{ask.token} {ask.link}")


async def pay_back(order: str, euros: int) -> str:
    """Asks the bank, which knows payments by their key. The receipt of a payment never comes."""
    if any(entry.key == current().idempotency_key for entry in books("paid")):
        write("paid before", order)
        return f"{euros} euros for {order} are paid back"
    write("paid", order)
    await asyncio.sleep(3600)
    raise ConnectionError("the bank has sent no receipt")


async def ask_carrier(carrier: str, parcel: str) -> int:
    """Only the bicycle answers, and only when everybody has been asked."""
    write("asked", carrier)
    try:
        while carrier != "bicycle" or len(books("asked")) < len(CARRIERS):  # noqa: ASYNC110 - other processes ask too
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        write("hung up", carrier)
        raise
    return 7


def write(what: str, about: str) -> None:
    entry = Entry(what, about, os.getpid(), current().idempotency_key)
    with _file().open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def books(what: str) -> list[Entry]:
    """The entries about one thing, oldest first."""
    lines = _file().read_text(encoding="utf-8").splitlines(keepends=True) if _file().exists() else []
    entries = [Entry(*json.loads(line)) for line in lines if line.endswith("\n")]
    return [entry for entry in entries if entry.what == what]


def _file() -> Path:
    return Path(os.environ["DEMO_FOLDER"], "books.txt")


def _end_with_the_demo() -> None:
    # Without the buffer of sys.stdin, whose lock would be in the way when the process ends.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    app.run(lease=LEASE)
