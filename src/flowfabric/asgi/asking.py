"""What a token asks: read from the store without changing anything, and only for whoever holds the very token."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import InvalidRequest, NotFound
from flowfabric.core.secret import Secret
from flowfabric.core.tokens import Claims, fingerprint, read_token
from flowfabric.core.views import WaitpointView
from flowfabric.core.waits import WaitpointState
from flowfabric.engine.engine import Engine

APPROVAL, CALLBACK = "approval", "callback"

# The first of the two words decides: what follows it is a name that people have chosen.
_PURPOSE = re.compile(r"(?:^|/)(approval|callback):")


@dataclass(frozen=True, slots=True)
class Asked:
    """A genuine token's waitpoint. `is_open`: it takes signals, as far as can be told without trying."""

    kind: str
    key: str
    approver: str | None
    expires_at: datetime | None
    is_open: bool

    def is_for(self, purpose: str) -> bool:
        """False for what was opened for the other purpose; a key that names neither is good for both."""
        found = _PURPOSE.search(self.key)
        return found is None or found[1] == purpose

    @property
    def title(self) -> str:
        """What is asked, in as few words as the key has for it."""
        found = _PURPOSE.search(self.key)
        name = self.key if found is None else self.key[found.end() :]
        return name.removesuffix(f"[{self.approver}]") or self.key


async def asked(engine: Engine, token: Secret, now: datetime) -> Asked | None:
    """What this token asks; None for any token that is not a waitpoint's own.

    The store has a hash of each token that was handed out, so nothing is believed that a forged one says.
    """
    try:
        claims = read_token(token).unverified
        found = await _waitpoint(engine, claims)
        if found is None or found.fingerprint is None or not hmac.compare_digest(found.fingerprint, fingerprint(token)):
            return None
        kind = (await engine.executions.describe(claims.execution_id)).kind
    except (InvalidRequest, NotFound):
        return None
    ends = [moment for moment in (found.expires_at, claims.ends_at) if moment is not None]
    expires_at = min(ends, default=None)
    is_open = found.state is not WaitpointState.CLOSED and (expires_at is None or now < expires_at)
    return Asked(kind, found.key, found.approver, expires_at, is_open)


async def _waitpoint(engine: Engine, claims: Claims) -> WaitpointView | None:
    # The list begins after an id, so the one before it leads to this one alone.
    before = UUID(int=max(claims.waitpoint_id.int - 1, 0))
    views = await engine.waitpoints.list(claims.execution_id, after=before, limit=1)
    return views[0] if views and views[0].id == claims.waitpoint_id else None
