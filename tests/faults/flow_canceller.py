"""A process that cancels a flow and stops inside a transaction of the cancellation. The test then kills the process.

usage: python -m tests.faults.flow_canceller URL OPTIONS FLOW NUMBER
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from dataclasses import replace
from typing import Any

from flowfabric.engine import Engine, connect
from flowfabric.store.ports import Body, Store
from flowfabric.store.transaction import Transaction


class StoppingStore:
    """A store whose N-th transaction writes but never commits."""

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self._left = number

    async def run(self, body: Body[Any]) -> Any:
        self._left -= 1
        return await self._store.run(self._stopped(body) if self._left == 0 else body)

    def _stopped(self, body: Body[Any]) -> Body[Any]:
        async def stopped(tx: Transaction) -> Any:
            await body(tx)
            write_line("inside")
            threading.Event().wait()

        return stopped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def write_line(word: str) -> None:
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


async def main(url: str, options: str, flow: str, number: str) -> None:
    async with connect(url, **json.loads(options)) as engine:
        store: Any = StoppingStore(engine._context.store, int(number))
        stopping = Engine(replace(engine._context, store=store, batchers={}))
        write_line("ready")
        sys.stdin.readline()
        result = await stopping.flows.cancel(flow, "enough", source="child", wait="1m")
        write_line(repr(result))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
