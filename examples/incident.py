"""An incident at night: page the people on call in turn, and hand the incident over by name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from flowfabric import App, ApprovalRequest, Approved, Refused, Rejected, Signal, TimedOut, approval, step, wait_signal
from stage import play

# The people on call, in order, with the time that each has to respond. Ana has half a second in this example.
ROTA = {"ana": "500ms", "ben": "1h"}
app = App()


@dataclass(frozen=True)
class Note:
    """An update from the responder: the incident is solved, or another person should take it."""

    text: str
    hand_over_to: str | None = None


update = Signal("update", Note)


@app.task(signals=[update])
async def incident(title: str) -> str:
    """Find a responder and follow the incident until it is solved."""
    responder = await first_awake(title)
    while True:
        await step(assign, title, responder)
        note = (await wait_signal(update)).value
        if note.hand_over_to is None:
            return f"solved by {responder}: {note.text}"
        match await approval(f"take over from {responder}", by=note.hand_over_to, notify=page):
            case Approved():
                responder = note.hand_over_to
            case Rejected():
                await step(post, f"{responder} keeps it")


async def first_awake(title: str) -> str:
    """Return the first person on call who accepts in time. The links of people paged earlier have expired by then."""
    while True:
        for who, patience in ROTA.items():
            match await approval(title, by=who, timeout=patience, notify=page):
                case Approved():
                    return who
                case Rejected() | TimedOut():
                    await step(post, f"{who} did not accept")


# The simulated environment: pagers, and a chat channel.

pagers: dict[str, asyncio.Queue[ApprovalRequest]] = {who: asyncio.Queue() for who in (*ROTA, "chiara")}
assigned: asyncio.Queue[str] = asyncio.Queue()


async def page(ask: ApprovalRequest) -> None:
    print(f"pager of {ask.approver}: {ask.name}")
    await pagers[ask.approver].put(ask)


async def assign(title: str, who: str) -> None:
    print(f"channel: {who} is working on {title!r}")
    await assigned.put(who)


async def post(text: str) -> None:
    print(f"channel: {text}")


async def main() -> None:
    async with app, app.worker():
        handle = await incident.submit("checkout is slow")
        asleep, awake = await pagers["ana"].get(), await pagers["ben"].get()
        await app.approve(awake.token)
        await assigned.get()
        try:
            await app.approve(asleep.token)
        except Refused as refusal:
            print(f"ana accepts too late: refused with {refusal.code}")
        await handle.signal(update, Note("it is the database", hand_over_to="chiara"))
        await app.approve((await pagers["chiara"].get()).token, "mine")
        await assigned.get()
        await handle.signal(update, Note("an index was missing"))
        print(await handle)


if __name__ == "__main__":
    play(main)
