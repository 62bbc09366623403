"""A program for a child process: submit one execution after another, and write a ledger of what was acknowledged.

Each line of the ledger is `ack ID STARTED` or `error CODE STARTED`, where STARTED is the monotonic time before the
call. The file is written by the child only, and not by the engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any
from uuid import UUID

from flowfabric.engine import Created, Engine, FlowFabricError, connect

_PAUSE_AFTER_ERROR_S = 0.02


def main(order: dict[str, Any]) -> None:
    """Submit until the process is killed."""
    asyncio.run(_submit(str(order["url"]), str(order["ledger"]), int(order["payload_bytes"])))


async def _submit(url: str, ledger_path: str, payload_bytes: int) -> None:
    ledger = os.open(ledger_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        started = time.monotonic()
        try:
            async with connect(url, durable=False) as engine:
                await _submit_all(engine, ledger, b"x" * payload_bytes)
        except FlowFabricError as error:
            os.write(ledger, f"error {error.code} {started}\n".encode())
        await asyncio.sleep(_PAUSE_AFTER_ERROR_S)


async def _submit_all(engine: Engine, ledger: int, payload: bytes) -> None:
    """Submit, and complete what was submitted, until the store is lost. Repeat the failed call once first."""
    errors = 0
    while errors < 2:
        started = time.monotonic()
        try:
            created = await engine.executions.submit("job", payload)
            assert isinstance(created, Created), "no id was given"
            os.write(ledger, f"ack {created.id} {started}\n".encode())
            await _complete(engine, created.id)
        except FlowFabricError as error:
            errors += 1
            os.write(ledger, f"error {error.code} {started}\n".encode())


async def _complete(engine: Engine, id_: UUID) -> None:
    lease = await engine.leases.claim_execution(id_, f"w-{os.getpid()}")
    await engine.leases.complete(lease.fence, b"done")
