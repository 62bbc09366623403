"""A process that submits and completes work: `-m tests.adversity.worker_child URL NAME COUNT TTL`.

It prints `ready`, waits for a line, and then prints one line per batch with the submitted and completed ids. It runs
until its input closes or it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from flowfabric.engine import Created, Engine, FlowFabricError, Submission, connect

TOGETHER = 25


async def main(url: str, name: str, count: str, lease_ttl: str) -> None:
    _write_line("ready")
    sys.stdin.readline()
    async with connect(url, durable=False) as engine, engine.reconcilers.run_in_background():
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        left = int(count)
        while not ended.done():
            submitted = await _submit(engine, min(TOGETHER, left))
            left -= len(submitted)
            _write_line({"submitted": submitted, "completed": await _work(engine, name, lease_ttl)})


async def _submit(engine: Engine, number: int) -> list[str]:
    results = await engine.executions.submit_many([Submission(kind="job", payload=b"x") for _ in range(number)])
    return [str(result.id) for result in results if isinstance(result, Created)]


async def _work(engine: Engine, name: str, lease_ttl: str) -> list[str]:
    leases = await engine.leases.claim(["default"], name, limit=TOGETHER, lease_ttl=lease_ttl)
    results = await asyncio.gather(
        *(engine.leases.complete(lease.fence, name.encode()) for lease in leases), return_exceptions=True
    )
    for result in results:
        assert not isinstance(result, Exception) or isinstance(result, FlowFabricError), result
    done = [lease for lease, result in zip(leases, results, strict=True) if not isinstance(result, BaseException)]
    return [str(lease.execution_id) for lease in done]


def _write_line(result: Any) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
