"""A process that opens a store when told, and says how that went: `python -m tests.migration.migrator URL SCHEMA`."""

from __future__ import annotations

import asyncio
import json
import sys

from flowfabric.engine import FlowFabricError, connect


async def main(url: str, schema: str) -> None:
    _say("ready")
    sys.stdin.readline()
    try:
        async with connect(url, schema=schema, durable=False) as engine:
            await engine.executions.submit("job", lane="opened")
    except FlowFabricError as error:
        _say(str(error))
    else:
        _say("opened")


def _say(word: str) -> None:
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
