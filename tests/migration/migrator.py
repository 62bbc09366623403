"""A process of the next release that opens a store on command and prints the outcome.

Usage: `python -m tests.migration.migrator URL SCHEMA`
"""

from __future__ import annotations

import asyncio
import json
import sys

from flowfabric.engine import FlowFabricError, connect
from tests.migration.next_release import next_release


async def main(url: str, schema: str) -> None:
    _print("ready")
    sys.stdin.readline()
    try:
        async with connect(url, schema=schema, durable=False) as engine:
            await engine.executions.submit("job", lane="opened")
    except FlowFabricError as error:
        _print(str(error))
    else:
        _print("opened")


def _print(word: str) -> None:
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with next_release():
        asyncio.run(main(*sys.argv[1:]))
