"""The same prompt goes to three providers at once; the first good answer counts, and the others are cancelled."""

from __future__ import annotations

import asyncio

from flowfabric import AllFailed, App, race, step
from stage import play

app = App()


class Busy(Exception):
    """A provider that says no has answered; the others are still in the race."""


@app.task
async def answer(prompt: str, providers: list[str]) -> str:
    """The first answer of whichever provider is quickest today."""
    try:
        won = await race(*(ask.run(provider, prompt) for provider in providers))
    except AllFailed as failure:
        return f"nobody answered: {' and '.join(error.message for error in failure.failures)}"
    return f"{won.value}, says {providers[won.index]}"


@app.task(raises=[Busy])
async def ask(provider: str, prompt: str) -> str:
    """One provider. In a race it is a child: its lease is taken away when another has won."""
    return await step(call, provider, prompt)


# The world around it: the north is overloaded, the east is quick, and the west never comes to an end.

connected, hung_up = asyncio.Event(), asyncio.Event()


@step.policy(raises=[Busy])
async def call(provider: str, prompt: str) -> str:
    if provider.startswith("north"):
        raise Busy(f"{provider} is busy")
    if provider == "west":
        connected.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            hung_up.set()
            raise
    await connected.wait()
    return "42"


async def main() -> None:
    # A worker hears that a lease was taken away when it renews it, after a third of its time.
    async with app, app.worker(lease="2s"):
        print(await answer.run("six times seven?", ["north", "east", "west"]))
        await hung_up.wait()
        print("west: the connection was closed, nothing is billed")
        print(await answer.run("six times eight?", ["north", "north-east"]))


if __name__ == "__main__":
    play(main)
