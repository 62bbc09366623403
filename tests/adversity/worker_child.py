"""A process that submits and works on what it finds: `-m tests.adversity.worker_child URL NAME COUNT TTL`.

It says `ready`, waits for a line, then prints one line for every batch: what it has submitted and completed so far. It
goes on until its input ends, or it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from flowfabric.engine import Created, Engine, FlowFabricError, Submission, connect

TOGETHER = 25


async def main(url: str, name: str, count: str, lease_ttl: str) -> None:
    _say("ready")
    sys.stdin.readline()
    async with connect(url, durable=False) as engine, engine.reconcilers.running():
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        left = int(count)
        while not ended.done():
            submitted = await _submit(engine, min(TOGETHER, left))
            left -= len(submitted)
            _say({"submitted": submitted, "completed": await _work(engine, name, lease_ttl)})


async def _submit(engine: Engine, number: int) -> list[str]:
    answers = await engine.executions.submit_many([Submission(kind="job", payload=b"x") for _ in range(number)])
    return [str(answer.id) for answer in answers if isinstance(answer, Created)]


async def _work(engine: Engine, name: str, lease_ttl: str) -> list[str]:
    leases = await engine.leases.claim(["default"], name, limit=TOGETHER, lease_ttl=lease_ttl)
    answers = await asyncio.gather(
        *(engine.leases.complete(lease.fence, name.encode()) for lease in leases), return_exceptions=True
    )
    for answer in answers:
        assert not isinstance(answer, Exception) or isinstance(answer, FlowFabricError), answer
    done = [lease for lease, answer in zip(leases, answers, strict=True) if not isinstance(answer, BaseException)]
    return [str(lease.execution_id) for lease in done]


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
