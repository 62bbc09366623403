"""One SQLite file, two worker processes, one of them killed at work: nothing is lost, and nothing counts twice.

Twelve orders are shipped by durable functions. One printer jams, one order needs a signature, and the worker that packs
order 5 is killed. Run it with `python3 dev.py demo`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flowfabric import App, Approved, Ask, Backoff, Handle, approval, current, step

ORDERS = 12
JAMMED, UNLUCKY, PRECIOUS = 3, 5, 9
FOLDER = Path(os.environ.get("DEMO_FOLDER", "."))
LEDGER, LETTER = FOLDER / "ledger.txt", FOLDER / "letter.txt"
app = App(str(FOLDER / "shop.db"))


@app.task(backoff=Backoff(initial="100ms"))
async def ship(order: int) -> str:
    """Prints a label, asks for a signature if the order is precious, and packs it."""
    await step(print_label, order)
    if order == PRECIOUS:
        match await approval("ship", by="the boss", notify=send_letter):
            case Approved():
                pass
            case _:
                return "sent back"
    await step(pack, order)
    return "shipped"


async def print_label(order: int) -> None:
    if order == JAMMED and times("jammed", order) == 0:
        write("jammed", order)
        raise OSError("the printer jammed")
    write("label", order)


async def pack(order: int) -> None:
    if order == UNLUCKY and times("opened", order) == 0:
        write("opened", order)
        await asyncio.sleep(60)
    write("parcel", order)


def send_letter(ask: Ask) -> None:
    LETTER.write_text(ask.token, encoding="utf-8")


class Entry(NamedTuple):
    """A line in the books of the outside world, which it keeps by itself."""

    what: str
    order: int
    process: int
    key: str


def write(what: str, order: int) -> None:
    """Enters it under the key of the step, which is the same in every try: who sees it twice knows."""
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(Entry(what, order, os.getpid(), current().idempotency_key)) + "\n")


def entries() -> list[Entry]:
    lines = LEDGER.read_text(encoding="utf-8").splitlines() if LEDGER.exists() else []
    return [Entry(*json.loads(line)) for line in lines]


def times(what: str, order: int) -> int:
    return sum((entry.what, entry.order) == (what, order) for entry in entries())


async def main() -> None:
    async with app:
        orders = await submit_orders()
        workers = [start_worker() for _ in range(2)]
        try:
            await watch(orders)
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


async def watch(orders: list[Handle[str]]) -> None:
    await kill_whoever_packs()
    began = time.monotonic()
    await sign_the_letter()
    results = Counter([await order for order in orders])
    assert results == {"shipped": ORDERS}, results
    say(f"all {ORDERS} orders were shipped, {time.monotonic() - began:.1f} s after the kill")
    tell_the_books()
    await tell_the_history(orders[UNLUCKY])


async def submit_orders() -> list[Handle[str]]:
    first = [await ship.options(key=f"order-{number}").submit(number) for number in range(ORDERS)]
    again = [await ship.options(key=f"order-{number}").submit(number) for number in range(ORDERS)]
    assert [handle.id for handle in first] == [handle.id for handle in again]
    say(f"submitted {ORDERS} orders; the same {ORDERS} again were recognised as duplicates")
    return first


async def kill_whoever_packs() -> None:
    """Waits until a worker is in the middle of the unlucky order, then kills that process."""
    await until(lambda: times("opened", UNLUCKY) > 0)
    [opened] = [entry for entry in entries() if entry.what == "opened"]
    os.kill(opened.process, signal.SIGKILL)
    say(f"killed the worker that was packing order {UNLUCKY}; nobody tells the engine")


async def sign_the_letter() -> None:
    """The boss has a token that nobody else has, and signs."""
    await until(lambda: LETTER.exists() and LETTER.read_text(encoding="utf-8") != "")
    await app.approve(LETTER.read_text(encoding="utf-8"), "careful with it")
    say(f"the boss signed for order {PRECIOUS}")


def tell_the_books() -> None:
    """A step that was cut off before it was recorded is done again, under the same key."""
    made = [entry for entry in entries() if entry.what in ("label", "parcel")]
    keys = {entry.key for entry in made}
    assert len(keys) == 2 * ORDERS, keys
    say(f"the books have {len(keys)} labels and parcels; {len(made) - len(keys)} came twice and were told by their key")


async def tell_the_history(unlucky: Handle[str]) -> None:
    say(f"history of the order whose worker died ({unlucky.id}):")
    for event in await unlucky.history():
        name, worker = f"{event.family}.{event.name}", event.worker.instance if event.worker else "-"
        say(f"  {event.version:>2}  {name:<22} attempt {event.attempt_index}  worker {worker}")


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - another process tells by a file
        await asyncio.sleep(0.01)


def start_worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "worker"])


def say(text: str) -> None:
    print(text, flush=True)


def in_a_folder_of_its_own() -> int:
    with tempfile.TemporaryDirectory() as folder:
        surroundings = {**os.environ, "DEMO_FOLDER": folder}
        return subprocess.call([sys.executable, __file__, "shop"], env=surroundings)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker"]:
            app.run(lease="2s")
        case ["shop"]:
            asyncio.run(main())
        case _:
            sys.exit(in_a_folder_of_its_own())
