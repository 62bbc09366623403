"""A process that runs the duties until it is killed: `python -m tests.adversity.reconciler_child URL SCHEMA`."""

from __future__ import annotations

import asyncio
import logging
import sys

from flowfabric.engine import connect


async def main(url: str, schema: str) -> None:
    async with connect(url, durable=False, schema=schema) as engine, engine.reconcilers.run_in_background():
        sys.stdout.write('"ready"\n')
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    # Every process logs the poisoned row, and no test reads these logs.
    logging.disable(logging.CRITICAL)
    asyncio.run(main(*sys.argv[1:3]))
