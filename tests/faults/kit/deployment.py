"""A worker process of a deployment: it runs the old or the new code of a task until it gets SIGTERM.

Each effect is a line in a ledger that the engine does not write.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from flowfabric import App, Task, changed, gather, sleep, step
from flowfabric.worker.worker import stop_on_signals

NAP = "30ms"


class Ledger:
    """The effects of the steps, in the file of one deployment."""

    def __init__(self) -> None:
        self.path = Path()

    def note(self, number: int, effect: str) -> str:
        """Write one effect."""
        with self.path.open("a") as file:
            file.write(f"{number} {effect}\n")
        return effect


ledger = Ledger()


def make_app(url: str, options: Any, version: str) -> tuple[App, Task[[int], list[str]]]:
    """Return the app with the code of this version. The new code guards its new calls with `changed`."""
    app, is_new = App(url, options=options, code_version=version), version == "new"

    async def ship(number: int) -> list[str]:
        done = [await step(ledger.note, number, "pack")]
        if is_new and changed("label"):
            done.append(await step.options(name="label")(ledger.note, number, "label"))
        await sleep(NAP)
        return [*done, await step.options(name="ship")(ledger.note, number, "ship")]

    async def pay(number: int) -> list[str]:
        if is_new and changed("quote"):
            await sleep(NAP)
        return [await step.options(name="pay")(ledger.note, number, "pay")]

    @app.task
    async def order(number: int) -> list[str]:
        done = [await step.options(name="check")(ledger.note, number, "check")]
        await sleep(NAP)
        if is_new and changed("audit"):
            done.append(await step.options(name="audit")(ledger.note, number, "audit"))
        await sleep(NAP)
        for part in await gather(ship(number), pay(number)):
            done += part
        await sleep(NAP)
        if is_new and changed("thank"):
            done.append(await step.options(name="thank")(ledger.note, number, "thank"))
        return done

    return app, order


def main(order: dict[str, Any]) -> None:
    """Run a worker until SIGTERM."""
    ledger.path = Path(order["ledger"])
    app, _ = make_app(order["url"], order["options"], order["version"])
    asyncio.run(_work(app, order["lane"], Path(order["ready"])))


async def _work(app: App, lane: str, ready: Path) -> None:
    async with app, app.worker(lanes=[lane], concurrency=8) as worker:
        with stop_on_signals(worker):
            await asyncio.to_thread(ready.touch)
            await worker.run()
