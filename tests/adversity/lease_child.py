"""A process that claims for one second and does nothing more: `-m tests.adversity.lease_child URL SCHEMA [mute]`.

It says `ready`, claims when it is told, says `claimed` once others were told of it (a mute one tells nobody), and waits
to be killed.
"""

from __future__ import annotations

import asyncio
import sys

from flowfabric.engine import Engine, connect


async def main(url: str, schema: str, *options: str) -> None:
    async with connect(url, durable=False, schema=schema, notify="mute" not in options) as engine:
        say("ready")
        sys.stdin.readline()
        assert await engine.leases.claim(["default"], "dead", lease_ttl="1s")
        if url.startswith("postgresql:") and "mute" not in options:
            await told(engine)
        say("claimed")
        sys.stdin.readline()


async def told(engine: Engine) -> None:
    while not (await engine.events.status()).listener.announced:  # noqa: ASYNC110 - the announcer rings no bell
        await asyncio.sleep(0.005)


def say(word: str) -> None:
    sys.stdout.write(f'"{word}"\n')
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
