"""The chapters of the tour. What is told from the margin is the same in every run; what is indented are its facts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from flowfabric import Handle
from flowfabric.engine import State
from tour import stage
from tour.shop import CARRIERS, LEASE, app, books, cheapest, pack, pick, refund, send

ORDER, EUROS = "order 17", 120
TRY_NEXT = (
    ("README.md", "a durable function, and all that it may call"),
    ("docs/examples/index.md", "eight small programs, each with its story"),
    (".venv/bin/python examples/deploy.py", "one of them: flaky tests, two approvals, a rollout"),
    ("examples/tour/shop.py", "the functions of this tour"),
    (".venv/bin/flowfabric --help", "the command line: submit, list, explain, doctor"),
)


async def tour(on: stage.Stage) -> None:
    """Plays all chapters."""
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
        paid = await self.signatures()
        await self.power_cut(paid)
        await self.race()
        await self.flow()
        await self.history(paid)
        self.next()

    async def signatures(self) -> Handle[str]:
        tell = self.tell
        tell.heading("1. Two people must sign")
        tell.say(f"A customer wants {EUROS} euros back. This is the whole function:")
        tell.code(refund.fn)
        tell.say("Submitted, it asks two people and then waits in the store, where it needs no process at all:")
        asked = await refund.submit(ORDER, EUROS)
        token, link = await self.mails(asked)
        tell.fact(await asked.explain())
        tell.say("Each of them got a token, signed for them alone. The program of ops decides with theirs:")
        delivery = await app.approve(token, "the parcel came back")
        tell.fact(f"app.approve(token) -> {type(delivery).__name__}")
        tell.say("Finance got a link. Somebody changes a letter of it:")
        forged = link[:-5] + ("A" if link[-5] != "A" else "B") + link[-4:]
        tell.fact(await stage.visit(forged))
        if not await self.finance(asked, link):
            tell.say("Finance refused, and nothing was paid. For the rest of the tour, somebody else asks again.")
            tell.fact(await asked)
            return await self.signed()
        return asked

    async def finance(self, asked: Handle[str], link: str) -> bool:
        """True if finance approved: by the page, by a key, or by the demo itself."""
        tell = self.tell
        if not tell.has_terminal:
            tell.say("There is no terminal, so the demo opens the real link itself and presses the button:")
            tell.fact(await stage.visit(link))
            tell.fact(await stage.visit(link, decision="approve", comment="fine"))
            return True
        tell.say("You are finance. Open the link and press a button, or decide here: Enter approves, n refuses.")
        tell.fact(link)
        typing = asyncio.create_task(tell.line())
        while not typing.done() and (await asked.status()).state is State.SUSPENDED:
            await asyncio.wait([typing], timeout=0.2)
        if typing.done():
            decision = "reject" if typing.result().lower().startswith("n") else "approve"
            await stage.visit(link, decision=decision)
        typing.cancel()
        await asyncio.wait([typing])
        return await self.goes_on(asked)

    async def goes_on(self, asked: Handle[str]) -> bool:
        """True if the money goes back, once it is known."""
        while not books("paid"):
            if (await asked.status()).state.is_terminal:
                return False
            await asyncio.sleep(0.05)
        return True

    async def signed(self) -> Handle[str]:
        """Another refund, with both signatures."""
        asked = await refund.submit(ORDER, EUROS)
        token, link = await self.mails(asked)
        await app.approve(token)
        await stage.visit(link, decision="approve")
        return asked

    async def mails(self, asked: Handle[str]) -> tuple[str, str]:
        """The token of ops and the link of finance, once the function rests in the store."""
        async with asyncio.timeout(stage.TELLS_WITHIN_S):
            while (await asked.status()).state is not State.SUSPENDED:  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.02)
        ops, finance = books("mail to ops")[-1], books("mail to finance")[-1]
        return ops.about.split()[0], finance.about.split()[1]

    async def power_cut(self, paid: Handle[str]) -> None:
        tell = self.tell
        await tell.turn_the_page()
        tell.heading("2. A worker dies in the middle")
        await stage.until(lambda: books("paid"))
        [payment] = books("paid")
        victim = self.workers.name(payment.process)
        tell.say("Both have signed. The bank has just taken the order to pay, and its receipt is on the way, when")
        self.workers.kill(payment.process)
        tell.fact(f"kill -9 {victim} (process {payment.process})")
        began = time.monotonic()
        tell.say("Nobody tells the engine. It still believes in a lease, which that worker will never renew:")
        tell.fact(await paid.explain())
        tell.fact(f"result: {await paid}")
        [again] = books("paid before")
        tell.say(
            f"The other worker took over when the lease of {LEASE} had run out. Nobody had to sign again: signatures "
            "are recorded. The step that was cut off was done again, under a key that the bank knew from before:"
        )
        tell.fact(f"{self.workers.name(again.process)} took over from {victim} after {time.monotonic() - began:.1f} s")
        tell.fact(f"payments in the books of the bank: {len(books('paid'))}; same key: {payment.key == again.key}")

    async def race(self) -> None:
        tell = self.tell
        await tell.turn_the_page()
        tell.heading("3. Three carriers race")
        tell.say("The same parcel is offered to three carriers at once. The first answer counts:")
        tell.code(cheapest.fn)
        tell.fact(f"winner: {await cheapest.run('a lamp')}")
        await stage.until(lambda: len({entry.about for entry in books("hung up")}) == len(CARRIERS) - 1)
        tell.say("The other two were cancelled, in the store and in their worker, and whatever they write is refused:")
        tell.fact(f"hung up: {', '.join(sorted({entry.about for entry in books('hung up')}))}")
        engine = await app.engine()
        states = Counter(str(each.state) for each in (await engine.executions.list(kind="quote")).items)
        tell.fact(f"executions: {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}")

    async def flow(self) -> None:
        tell = self.tell
        await tell.turn_the_page()
        tell.heading("4. A flow")
        tell.say("A graph of calls, stored at once. An argument may be the result of a call that has not run yet:")
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
        tell.heading("5. What happened")
        tell.say("Every transition wrote an event in its own transaction. This is the life of the refund:")
        events = await paid.history()
        for event in events:
            after = (event.at - events[0].at).total_seconds()
            who = self.workers.name(int(event.worker.instance.split("-")[-2])) if event.worker else ""
            tell.fact(f"+{after:4.1f} s  {f'{event.family}.{event.name}':<24} {event.state or '':<10} {who}".rstrip())
        tell.say("And why is it not running now?")
        tell.fact(await paid.explain())

    def next(self) -> None:
        self.tell.heading("What to try next")
        for what, about in TRY_NEXT:
            self.tell.fact(f"{what:<37} {about}")
