"""A process that claims an execution with a lease of one second: `-m tests.adversity.lease_child URL SCHEMA [mute]`.

It prints `ready`, claims when it reads a line, prints `claimed` once the claim is announced, and waits to be killed.
With `mute` it claims without a notification to other processes.
"""

from __future__ import annotations

import asyncio
import sys

from flowfabric.engine import Engine, connect


async def main(url: str, schema: str, *options: str) -> None:
    async with connect(url, durable=False, schema=schema, notify="mute" not in options) as engine:
        write_line("ready")
        sys.stdin.readline()
        assert await engine.leases.claim(["default"], "dead", lease_ttl="1s")
        if url.startswith("postgresql:") and "mute" not in options:
            await wait_until_announced(engine)
        write_line("claimed")
        sys.stdin.readline()


async def wait_until_announced(engine: Engine) -> None:
    while not (await engine.events.status()).listener.sent:  # noqa: ASYNC110 - no event to await
        await asyncio.sleep(0.005)


def write_line(word: str) -> None:
    sys.stdout.write(f'"{word}"\n')
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
