"""Who owns an execution, and why a fence is refused.

A fence owns the execution while it is active under the very lease it names and that lease has not run out. A miss is
explained in this order:

1. The fence is the last one that lost or gave up the lease: the answer is why (`lease_expired`, `lease_revoked`, else
   `execution_not_active`), unless it is the same request again, which is answered as the first time.
2. The lease it names is the live one but past its time: `lease_expired`.
3. It is older than the last one, or another owner is active: `stale_lease`.
4. Otherwise: `execution_not_active`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from flowfabric.core.errors import NotFound, Refused
from flowfabric.core.records import Execution, Fence, FormerLease
from flowfabric.core.transitions import refusal

_WHY = {"lease_expired": "lease_expired", "lease_revoked": "lease_revoked"}


def owns(execution: Execution, fence: Fence, now: datetime) -> bool:
    """True while the fence names the live lease and that lease has time left."""
    lease = execution.lease
    return (
        lease is not None and lease.id == fence.lease_id and execution.epoch == fence.epoch and lease.expires_at > now
    )


def require_owner(execution: Execution | None, fence: Fence, now: datetime) -> Execution:
    """The execution, if the fence owns it; raises the refusal that explains why not otherwise."""
    if execution is None:
        raise not_found(fence)
    if not owns(execution, fence, now):
        raise explain(execution, fence)
    return execution


def repeated(execution: Execution | None, fence: Fence, digest: str) -> FormerLease | None:
    """The former lease, if this very request gave it up before: its reply was lost, and it is answered again."""
    former = execution.former if execution else None
    if former and _is_former(former, fence) and former.digest == digest:
        return former
    return None


def explain(execution: Execution, fence: Fence) -> Refused:
    """Why a fence that does not own the execution is refused."""
    lease, former = execution.lease, execution.former
    if former and _is_former(former, fence):
        return refusal(execution, _WHY.get(former.end, "execution_not_active"), f"this lease ended by {former.end}")
    if lease and lease.id == fence.lease_id and execution.epoch == fence.epoch:
        return refusal(execution, "lease_expired", "this lease ran out of time")
    if lease or (former and fence.epoch < former.epoch):
        return refusal(execution, "stale_lease", "this lease is not the latest one")
    return refusal(execution, "execution_not_active", "there is no such lease")


def not_found(fence: Fence) -> NotFound:
    """The answer to a fence of an execution that does not exist in this namespace."""
    return execution_not_found(fence.execution_id)


def execution_not_found(id_: object) -> NotFound:
    """The answer to an id that does not exist in this namespace, whoever else may have it."""
    return NotFound("execution_not_found", f"there is no execution {id_} in this namespace", execution_id=id_)


def digest(operation: str, *content: bytes | str | None) -> str:
    """A digest of an operation and its content, by which the same request is recognised when it is repeated."""
    parts = [operation.encode()]
    for part in content:
        data = part.encode() if isinstance(part, str) else part
        parts.append(b"\x00-" if data is None else b"\x00%d:%b" % (len(data), data))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _is_former(former: FormerLease, fence: Fence) -> bool:
    return former.id == fence.lease_id and former.epoch == fence.epoch
