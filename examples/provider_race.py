"""Send one prompt to three providers, take the first good reply, and cancel the others."""

from __future__ import annotations

import asyncio

from flowfabric import AllFailed, App, race, step
from stage import play

app = App()


class Busy(Exception):
    """A provider is overloaded. The other providers stay in the race."""


@app.task
async def complete(prompt: str, providers: list[str]) -> str:
    """Return the reply of the fastest provider."""
    try:
        won = await race(*(ask.run(provider, prompt) for provider in providers))
    except AllFailed as failure:
        return f"all providers failed: {' and '.join(error.message for error in failure.failures)}"
    return f"{won.value}, from {providers[won.index]}"


@app.task(raises=[Busy])
async def ask(provider: str, prompt: str) -> str:
    """Ask one provider. In a race this is a child, and its lease is revoked when another child wins."""
    return await step(call, provider, prompt)


# The simulated environment: north is overloaded, east is fast, and west never replies.

connected, cancelled = asyncio.Event(), asyncio.Event()


@step.policy(raises=[Busy])
async def call(provider: str, prompt: str) -> str:
    if provider.startswith("north"):
        raise Busy(f"{provider} is busy")
    if provider == "west":
        connected.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
    await connected.wait()
    return "42"


async def main() -> None:
    # A worker learns that its lease was revoked when it next tries to renew the lease, after a third of the lease
    # period.
    async with app, app.worker(lease="2s"):
        print(await complete.run("six times seven?", ["north", "east", "west"]))
        await cancelled.wait()
        print("west: the connection was closed, so nothing is billed")
        print(await complete.run("six times eight?", ["north", "north-east"]))


if __name__ == "__main__":
    play(main)
