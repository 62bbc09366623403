"""A process that runs the duties until it is killed: `python -m tests.adversity.reconciler_child URL SCHEMA`."""

from __future__ import annotations

import asyncio
import logging
import sys

from flowfabric.engine import connect


async def main(url: str, schema: str) -> None:
    async with connect(url, durable=False, schema=schema) as engine, engine.reconcilers.running():
        sys.stdout.write('"ready"\n')
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    # The poisoned row is told of by every process, and there is nobody to read it.
    logging.disable(logging.CRITICAL)
    asyncio.run(main(*sys.argv[1:3]))
