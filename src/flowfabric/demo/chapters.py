"""The chapters of the tour. Unindented sentences are the same in every run; indented facts may vary."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from flowfabric import Handle
from flowfabric.demo import stage
from flowfabric.demo.shop import CARRIERS, LEASE, app, books, cheapest, pack, pick, refund, send
from flowfabric.engine import State

_ORDER, _EUROS = "order 17", 120
_TRY_NEXT = (
    ("https://github.com/flowfabric/flowfabric-python", "a tutorial, guides and examples"),
    ("flowfabric/demo/shop.py", "the functions of this tour"),
    ("flowfabric --help", "submit, list, explain, doctor"),
)


async def tour(on: stage.Stage) -> None:
    """Run all chapters."""
    async with app, stage.website():
        await Tour(on.tell, on.workers).run()


class Tour:
    """The chapters, one after another."""

    def __init__(self, tell: stage.Narrator, workers: stage.Workers) -> None:
        self.tell, self.workers = tell, workers

    async def run(self) -> None:
        self.tell.say("FlowFabric makes Python functions durable. This is a shop on one SQLite file, with two workers.")
        for _ in range(2):
            self.workers.start()
        paid = await self.approvals()
        await self.power_cut(paid)
        await self.race()
        await self.flow()
        await self.history(paid)
        self.next()

    async def approvals(self) -> Handle[str]:
        tell = self.tell
        tell.heading("1. Two people must approve")
        tell.say(f"A customer wants {_EUROS} euros back. This is the whole function:")
        tell.code(refund.fn)
        tell.say("It asks two people and then waits in the store. It needs no process while it waits:")
        handle = await refund.submit(_ORDER, _EUROS)
        token, link = await self.mails(handle)
        tell.fact(await handle.explain())
        tell.say("Each approver received a separate signed token. Ops approves from a program:")
        delivery = await app.approve(token, "the parcel came back")
        tell.fact(f"app.approve(token) -> {type(delivery).__name__}")
        tell.say("Finance received a link. A forged link, with one letter changed, is refused:")
        forged = link[:-5] + ("A" if link[-5] != "A" else "B") + link[-4:]
        tell.fact(await stage.visit(forged))
        if not await self.finance(handle, link):
            tell.say("Finance refused, and nothing was paid. The rest of the tour uses a second refund.")
            tell.fact(await handle)
            return await self.approved_refund()
        return handle

    async def finance(self, handle: Handle[str], link: str) -> bool:
        """Return True if finance approved: on the web page, by the keyboard, or automatically through the demo."""
        tell = self.tell
        if not tell.has_terminal:
            tell.say("There is no terminal, so the demo opens the real link and presses the button for you:")
            tell.fact(await stage.visit(link))
            tell.fact(await stage.visit(link, decision="approve", comment="fine"))
            return True
        tell.say("You are finance. Open the link and press a button, or decide here: Enter approves, n refuses.")
        tell.fact(link)
        typing = asyncio.create_task(tell.line())
        while not typing.done() and (await handle.status()).state is State.SUSPENDED:
            await asyncio.wait([typing], timeout=0.2)
        if typing.done():
            decision = "reject" if typing.result().lower().startswith("n") else "approve"
            await stage.visit(link, decision=decision)
        typing.cancel()
        await asyncio.wait([typing])
        return await self.is_paid(handle)

    async def is_paid(self, handle: Handle[str]) -> bool:
        """Wait for the decision, and return True if the money is paid back."""
        while not books("paid"):
            if (await handle.status()).state.is_terminal:
                return False
            await asyncio.sleep(0.05)
        return True

    async def approved_refund(self) -> Handle[str]:
        """Submit another refund and approve it for both people."""
        handle = await refund.submit(_ORDER, _EUROS)
        token, link = await self.mails(handle)
        await app.approve(token)
        await stage.visit(link, decision="approve")
        return handle

    async def mails(self, handle: Handle[str]) -> tuple[str, str]:
        """Wait until the refund is suspended, and return the token of ops and the link of finance."""
        async with asyncio.timeout(stage.TIMEOUT_S):
            while (await handle.status()).state is not State.SUSPENDED:  # noqa: ASYNC110 - another process suspends it
                await asyncio.sleep(0.02)
        ops, finance = books("mail to ops")[-1], books("mail to finance")[-1]
        return ops.about.split()[0], finance.about.split()[1]

    async def power_cut(self, paid: Handle[str]) -> None:
        tell = self.tell
        await tell.turn_the_page()
        tell.heading("2. A worker dies")
        await stage.until(lambda: books("paid"))
        [payment] = books("paid")
        victim = self.workers.name(payment.process)
        tell.say("Both have approved. The bank has accepted the payment, but not confirmed it. Now the worker dies:")
        self.workers.kill(payment.process)
        tell.fact(f"kill -9 {victim} (process {payment.process})")
        began = time.monotonic()
        tell.say("The engine does not know this yet. The dead worker still holds a lease, which it cannot renew:")
        tell.fact(await paid.explain())
        tell.fact(f"result: {await paid}")
        [again] = books("paid before")
        tell.say(
            f"The other worker took over when the lease of {LEASE} expired. The approvals are recorded, so it did not "
            "ask again. It repeated the interrupted step with the same idempotency key, which the bank recognized:"
        )
        tell.fact(f"{self.workers.name(again.process)} took over from {victim} after {time.monotonic() - began:.1f} s")
        tell.fact(f"payments recorded by the bank: {len(books('paid'))}; same key: {payment.key == again.key}")

    async def race(self) -> None:
        tell = self.tell
        await tell.turn_the_page()
        tell.heading("3. Three carriers race")
        tell.say("Three carriers are asked for a price at the same time. The first reply wins:")
        tell.code(cheapest.fn)
        tell.fact(f"winner: {await cheapest.run('a lamp')}")
        await stage.until(lambda: len({entry.about for entry in books("cancelled")}) == len(CARRIERS) - 1)
        tell.say("The other two calls were cancelled in the store and in their worker. Their writes are refused:")
        tell.fact(f"cancelled calls: {', '.join(sorted({entry.about for entry in books('cancelled')}))}")
        engine = await app.engine()
        states = Counter(str(each.state) for each in (await engine.executions.list(kind="quote")).items)
        tell.fact(f"executions: {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}")

    async def flow(self) -> None:
        tell = self.tell
        await tell.turn_the_page()
        tell.heading("4. A flow")
        tell.say("A flow is a graph of calls, stored as a whole. An argument can be the result of another call:")
        flow = app.flow("parcel")
        lamp, bulb = flow.add(pick, "a lamp"), flow.add(pick, "a bulb")
        box = flow.add(pack, [lamp.result, bulb.result])
        sent = flow.add(send, box.result, "bicycle")
        for line in ("pick a lamp --+", "              +-- pack -- send", "pick a bulb --+"):
            tell.fact(line)
        submitted = await flow.submit()
        tell.fact(f"sent: {await submitted[sent]}")

    async def history(self, paid: Handle[str]) -> None:
        tell = self.tell
        await tell.turn_the_page()
        tell.heading("5. History")
        tell.say("Every transition writes an event in the same transaction. This is the history of the refund:")
        events = await paid.history()
        for event in events:
            after = (event.at - events[0].at).total_seconds()
            who = self.workers.name(int(event.worker.instance.split("-")[-2])) if event.worker else ""
            tell.fact(f"+{after:4.1f} s  {f'{event.family}.{event.name}':<24} {event.state or '':<10} {who}".rstrip())
        tell.say("Why is it not running now?")
        tell.fact(await paid.explain())

    def next(self) -> None:
        self.tell.heading("What to try next")
        for what, about in _TRY_NEXT:
            self.tell.fact(f"{what:<49} {about}")
