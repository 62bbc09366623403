"""A worker played by the test: it claims one execution and ends it as told, with nothing of the runner in between."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, FailureClass, Lease
from flowfabric.sdk import failures


async def claimed(engine: Engine, id_: UUID) -> Lease:
    """The lease of this execution."""
    return await engine.leases.claim_execution(id_, "by-hand", capabilities=["gpu"])


async def complete(engine: Engine, id_: UUID, result: Any) -> None:
    """Ends the execution with a plain JSON result."""
    lease = await claimed(engine, id_)
    await engine.leases.complete(lease.fence, json.dumps(result).encode())


async def fail(engine: Engine, id_: UUID, error: Exception, raises: tuple[type[Exception], ...] = ()) -> None:
    """Ends the execution by an error, for good."""
    lease = await claimed(engine, id_)
    detail = failures.to_json(failures.error_info(error)) | (failures.declared(error, raises) or {})
    await engine.leases.fail(
        lease.fence, str(error), failure_class=FailureClass.PERMANENT, detail=json.dumps(detail).encode()
    )
