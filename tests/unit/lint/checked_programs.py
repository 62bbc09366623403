"""Programs in which `flowfabric check` finds nothing, and programs whose mistakes are marked with their error code."""

from __future__ import annotations

GOOD = {
    "hello": """
from flowfabric import App, step
app = App("hello.db")
@app.task
async def greet(name: str) -> str:
    return await step("Good morning, {}.".format, name)
if __name__ == "__main__":
    print(app.run(greet, "world"))
""",
    "two approvers": """
from flowfabric import App, ApprovalRequest, Approved, Rejected, TimedOut, approval, step
app = App("leave.db", url="https://people.example/ff")
def mail(request: ApprovalRequest) -> None: print(request.link)
def grant(who: str, days: int) -> str: return f"{who} may go for {days} days"
@app.task
async def leave(who: str, days: int) -> str:
    match await approval("leave", by=["lead", "people"], need=2, timeout="7d", notify=mail):
        case Approved(): return await step(grant, who, days)
        case Rejected(by=by): return f"rejected by {by}"
        case TimedOut(): return "ask again"
""",
    "a callback": """
from dataclasses import dataclass
from flowfabric import App, Received, TimedOut, callback, step
app = App()
@dataclass
class Scan:
    clean: bool
async def order_scan(path: str, reply_to: str) -> None: ...
@app.task
async def upload(path: str) -> bool:
    reply = callback("scan", Scan, timeout="1h")
    await step.options(retries=1)(order_scan, path, await reply.url())
    match await reply:
        case Received(value=scan): return scan.clean
        case TimedOut(): return False
""",
    "a race, a fan-out and raw steps": """
import asyncio
from flowfabric import App, gather, race, settle, step
app = App()
async def call(provider: str, prompt: str) -> str:
    try: await asyncio.sleep(0.5)
    except asyncio.CancelledError: print("lost"); raise
    return provider
def price(item: str) -> int: return len(item)
@app.task(retries=0)
async def complete(provider: str, prompt: str) -> str:
    return await step(call, provider, prompt)
@app.task
async def fastest(prompt: str, items: list[str]) -> str:
    won = await race(*(complete.run(p, prompt) for p in ("a", "b")))
    total = sum(await gather(*(step(price, item) for item in sorted(set(items))), limit=4))
    x, y = await asyncio.gather(step(price, "x"), step(price, "y"))
    async with asyncio.TaskGroup() as group:
        later = group.create_task(step(price, "z"))
    both = await settle(one(prompt), one(prompt))
    return f"{won.value} {total} {x + y + await later} {len(both)}"
async def one(prompt: str) -> str:
    handle = await complete.options(lane="slow").submit("c", prompt)
    await asyncio.sleep(0)
    return await handle
""",
    "compensations": """
import contextlib
from flowfabric import App, PermanentError, StepFailed, Unwind, current, now, rng, saga, step, uuid4
app = App()
@step.policy(retries=5, timeout="30s")
def book(what: str) -> str: return what
def cancel(ref: str) -> None: ...
@app.task
async def trip(parts: list[str], spare: set[str]) -> list[str]:
    booked: list[str] = []
    async with saga() as undo:
        for part in parts:
            booked.append(await step(book, part))
            undo.add(cancel, booked[-1])
    try:
        await step(book, str(uuid4()))
    except StepFailed as failure:
        raise PermanentError(f"{failure} at {now()} by {rng().random()} in {current().attempt}") from failure
    except BaseException:
        print("on the way out")
        raise
    finally:
        await step(cancel, "spare")
    try:
        await step(book, "car")
    except Unwind:
        raise
    except BaseException:
        pass
    with contextlib.suppress(Exception):
        await step(book, "boat")
    for name in spare:
        print(name)
    return sorted(name for name in spare)
""",
    "plain functions": """
import random
import time
from flowfabric import App, sync
app = App()
def load(path: str) -> str:
    time.sleep(1)
    return path + str(random.random())
@app.task
def resize(path: str) -> str:
    data = sync.step(load, path)
    sync.sleep("1h")
    sync.gather(lambda: sync.step(load, "a"), lambda: sync.step(load, str(time.time())))
    try:
        sync.approval("publish", by="editor", timeout="1d").wait()
    except Exception:
        return "no"
    return data + random.Random(7).choice("ab")
""",
    "a poller and an agent": """
import httpx
from flowfabric import App, Approved, Rejected, approval, poll, sleep, step
app = App()
async def ready(job: str) -> str | None:
    async with httpx.AsyncClient() as client:
        return (await client.get(job)).text or None
async def think(goal: str, notes: list[str]) -> str: return goal
@app.task
async def watch(job: str, seen: int = 0) -> str:
    for n in range(50):
        if done := await step(ready, job): return done
        await sleep("30s")
    watch.continue_with(job, seen + 50)
@app.task
async def agent(goal: str) -> str:
    notes: list[str] = []
    await poll("30s", ready, goal)
    while True:
        draft = await step(think, goal, notes)
        match await approval("review", by="editor"):
            case Approved(): return draft
            case Rejected(reason=why): notes = [*notes, why]
""",
    "calls into other modules": """
import contextlib
import billing
import flowfabric as ff
from billing.tasks import charge
app = ff.App()
client = billing.Client()
class Clock:
    async def tick(self) -> None: ...
@app.task
async def close_month(clock: Clock, handle: ff.Handle[int], time: float) -> int:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        await charge.run("a")
        child = await charge.options(key="b").submit("b")
        await clock.tick()
        await client.aclose()
        await app.submit_many([charge.call("c")])
        return await child + await handle + await handle.result("1h") + int(time)
def make(app: ff.App) -> None:
    @app.task
    async def inner(name: str) -> None:
        async def again() -> None:
            await ff.sleep("1s")
        await ff.gather(again(), again())
""",
}

MISTAKES = {
    "swallowed unwinds": """
@app.task
async def job(order: str) -> None:
    try: await step(pay, order)
    except: pass  # E swallowed_unwind
    try: await branch(1)
    except (ValueError, BaseException) as error:  # E swallowed_unwind
        print(error)
    try:
        await job.run(order)
    finally:
        return None  # E swallowed_unwind
    with contextlib.suppress(BaseException):  # E swallowed_unwind
        await wait_signal(paid)
    await asyncio.gather(step(pay, order), return_exceptions=True)  # E swallowed_unwind
    await asyncio.gather(step(pay, order), return_exceptions=False)
    try: await step(pay, order)
    except ff.Unwind: raise
    except BaseException: pass
    finally: return None  # E swallowed_unwind
@app.task
def plain(order: str) -> None:
    try: sync.step(pay, order)
    except BaseException: print("so")  # E swallowed_unwind
""",
    "raw tasks": """
@app.task
async def job(order: str) -> None:
    await asyncio.gather(branch(1), step(pay, order))  # E raw_task
    await asyncio.gather(*[branch(n) for n in range(3)], return_exceptions=True)  # E raw_task swallowed_unwind
    first = asyncio.create_task(approval("x", by="ops"))  # E raw_task
    async with asyncio.TaskGroup() as tg:
        tg.create_task(job.run(order))  # E raw_task
        tg.create_task(gather(step(pay, order)))  # E raw_task
        tg.create_task(step(pay, order))
    await first
""",
    "clocks and randomness": """
@app.task
async def job(order: str) -> None:
    a = time.time(), datetime.now(UTC), date.today()  # E clock
    b = random.random(), random.Random()  # E randomness
    c = uuid.uuid4()  # E randomness
    d = os.urandom(8)  # E randomness
    print(a, b, c, d, stamp(), await later())
def stamp() -> float:
    return time.time()  # E clock
async def later() -> float:
    await step(pay, "x")
    return stamp() + random.random()  # E randomness
""",
    "awaits that are not durable": """
client = httpx.AsyncClient()
async def fetch(order: str) -> str:
    await asyncio.sleep(1)
    return str(time.time())
@app.task
async def job(order: str) -> None:
    await fetch(order)  # E not_durable
    await client.get(order)  # E not_durable
    async with httpx.AsyncClient() as other:
        await other.post(order)  # E not_durable
        async for line in other.stream(order): print(line)  # E not_durable
    await asyncio.to_thread(pay, order)  # E not_durable
    await asyncio.gather(client.get("a"), client.get("b"))  # E not_durable
    await helper(client, order)
async def helper(session: httpx.AsyncClient, order: str) -> None:
    await step(pay, order)
    await session.get(order)  # E not_durable
""",
    "missing annotations": """
def guess(order): return order  # E no_annotation
def notify(request) -> None: ...  # E no_annotation
def undone(ref: str): ...  # E no_annotation
@step.policy(retries=1)
async def charge(order: str, *rest, fast=False) -> None: ...  # E no_annotation
@app.task(retries=1)
async def job(order, n: int = 1, **more):  # E no_annotation
    await step(guess, order)
    await approval("x", by="ops", notify=notify)
    async with saga() as undo: undo.add(undone, order)
def untouched(a, b): ...
""",
    "sleeps": """
@app.task
async def job(order: str) -> None:
    await asyncio.sleep(5)  # E plain_sleep
    time.sleep(1)  # E plain_sleep
    nap()
def nap() -> None:
    time.sleep(1)  # E plain_sleep
""",
    "calls that are not awaited": """
@app.task
async def job(order: str) -> None:
    step(pay, order)  # E not_awaited
    step.options(key="a")(pay, order)  # E not_awaited
    ff.sleep("1s")  # E not_awaited
    job.submit(order)  # E not_awaited
    branch(1)  # E not_awaited
    reply = callback("x", int)  # E not_awaited
    used = callback("y", int)
    print(await used.token(), await used)
    job.sync.submit(order)
""",
    "timers": """
@app.task
async def job(order: str) -> None:
    async with asyncio.timeout(5):  # E asyncio_timeout
        await approval("x", by="ops")
    async with asyncio.timeout(5):
        await gather(step(pay, order), step(pay, "x"))
    async with asyncio.timeout(5):  # E asyncio_timeout
        await gather(branch(1), branch(2))
    await asyncio.wait_for(sleep("1d"), 5)  # E asyncio_timeout
    await asyncio.wait_for(step(pay, order), 5)
""",
    "the order of sets": """
@app.task
async def job(order: str, names: set[str]) -> None:
    for name in names:  # E set_order
        await step(pay, name)
    some = {"a", "b"} | set(order)
    for number, name in enumerate(some):  # E set_order
        if number: await branch(1)
    await gather(*(step(pay, name) for name in list(some.union("c"))))  # E set_order
    await gather(*[step(pay, name) for name in sorted(some)])
    for name in some: print(name)
""",
    "steps inside steps": """
async def both(order: str) -> str:
    await branch(1)  # E step_in_step
    await job.submit(order)
    await job.run(order)  # E step_in_step
    return await step(pay, order)  # E step_in_step
@app.task
async def job(order: str) -> None:
    await step(both, order)
    await poll("1s", waits)
async def waits() -> bool:
    await sleep("1s")  # E step_in_step
    return True
""",
}
