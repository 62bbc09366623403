"""Functions with which a test acts as a worker: they claim an execution and end it without a runner."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, FailureClass, Lease
from flowfabric.values import failures


async def claim(engine: Engine, id_: UUID) -> Lease:
    """Return a lease of this execution."""
    return await engine.leases.claim_execution(id_, "by-hand", capabilities=["gpu"])


async def complete(engine: Engine, id_: UUID, result: Any) -> None:
    """Complete the execution with a plain JSON result."""
    lease = await claim(engine, id_)
    await engine.leases.complete(lease.fence, json.dumps(result).encode())


async def fail(engine: Engine, id_: UUID, error: Exception, raises: tuple[type[Exception], ...] = ()) -> None:
    """Fail the execution permanently with an error."""
    lease = await claim(engine, id_)
    detail = failures.to_json(failures.error_info(error)) | (failures.encode_declared(error, raises) or {})
    await engine.leases.fail(
        lease.fence, str(error), failure_class=FailureClass.PERMANENT, detail=json.dumps(detail).encode()
    )
