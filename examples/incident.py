"""An incident at night: who is on call is paged, then the next one, and one by name when it is handed over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from flowfabric import App, Approved, Ask, Refused, Rejected, Signal, TimedOut, approval, step, wait_signal
from stage import play

# Who is called in which order, and how long each has: hours in a real night, half a second for ana in this one.
ROTA = {"ana": "500ms", "ben": "1h"}
app = App()


@dataclass(frozen=True)
class Note:
    """What the responder says: it is solved, or somebody else is the right one."""

    text: str
    hand_over_to: str | None = None


said = Signal("said", Note)


@app.task(signals=[said])
async def incident(title: str) -> str:
    """Finds somebody who takes it, and stays with it until it is solved."""
    responder = await first_awake(title)
    while True:
        await step(assign, title, responder)
        note = (await wait_signal(said)).value
        if note.hand_over_to is None:
            return f"solved by {responder}: {note.text}"
        match await approval(f"take over from {responder}", by=note.hand_over_to, notify=page):
            case Approved():
                responder = note.hand_over_to
            case Rejected():
                await step(tell, f"{responder} keeps it")


async def first_awake(title: str) -> str:
    """The first of the rota who takes it in time; the link of one who slept is worth nothing any more."""
    while True:
        for who, patience in ROTA.items():
            match await approval(title, by=who, timeout=patience, notify=page):
                case Approved():
                    return who
                case Rejected() | TimedOut():
                    await step(tell, f"{who} does not answer")


# The world around it: pagers, and a channel where everybody reads.

pagers: dict[str, asyncio.Queue[Ask]] = {who: asyncio.Queue() for who in (*ROTA, "chiara")}
assigned: asyncio.Queue[str] = asyncio.Queue()


async def page(ask: Ask) -> None:
    print(f"pager of {ask.approver}: {ask.name}")
    await pagers[ask.approver].put(ask)


async def assign(title: str, who: str) -> None:
    print(f"channel: {who} has {title!r}")
    await assigned.put(who)


async def tell(text: str) -> None:
    print(f"channel: {text}")


async def main() -> None:
    async with app, app.worker():
        open_ = await incident.submit("checkout is slow")
        asleep, awake = await pagers["ana"].get(), await pagers["ben"].get()
        await app.approve(awake.token)
        await assigned.get()
        try:
            await app.approve(asleep.token)
        except Refused as refusal:
            print(f"ana, at breakfast: refused, {refusal.code}")
        await open_.signal(said, Note("it is the database", hand_over_to="chiara"))
        await app.approve((await pagers["chiara"].get()).token, "mine")
        await assigned.get()
        await open_.signal(said, Note("an index was missing"))
        print(await open_)


if __name__ == "__main__":
    play(main)
