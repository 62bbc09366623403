"""Minting tokens with the key ring: new ones with the active key, those that were handed out exactly as they were."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from flowfabric.core.frozen import record
from flowfabric.core.keyring import KeyRing
from flowfabric.core.secret import Secret
from flowfabric.core.tokens import Claims, hash_token, mint_token
from flowfabric.core.waits import TokenParts, Waitpoint


@dataclass(frozen=True, slots=True)
class Minter:
    """Mints for one namespace; what it has just minted it has at hand."""

    ring: KeyRing
    namespace: str
    _fresh: dict[Claims, Secret] = field(default_factory=dict, init=False, repr=False, compare=False)

    def new(self, claims: Claims) -> TokenParts:
        """What to keep of the token for these claims, minted with the active key."""
        active = self.ring.active
        assert active is not None, "whoever mints has made sure that there is a key"
        token = self._fresh[claims] = mint_token(active, claims, self.namespace)
        return TokenParts(
            kid=active.kid, nonce=claims.nonce, hash=hash_token(token), approver=claims.source, ends_at=claims.ends_at
        )

    def token(self, waitpoint: Waitpoint) -> Secret | None:
        """The token of a waitpoint; None if it has none, or if its key is gone and the token with it."""
        parts = waitpoint.token
        key = self.ring.find(parts.kid) if parts else None
        if parts is None or key is None or key.secret is None:
            return None
        claims = _claims(waitpoint.execution_id, waitpoint.id, parts)
        return self._fresh.get(claims) or mint_token(key, claims, self.namespace)


def claims_for(execution_id: UUID, drawn: Drawn, approver: str | None, ends_at: datetime | None) -> Claims:
    """The claims of a token that is about to be minted."""
    return Claims(execution_id=execution_id, waitpoint_id=drawn.id, nonce=drawn.nonce, source=approver, ends_at=ends_at)


@record(frozen=True, slots=True)
class Drawn:
    """The id and the nonce of a waitpoint to be, drawn before the decision."""

    id: UUID
    nonce: bytes


def _claims(execution_id: UUID, waitpoint_id: UUID, parts: TokenParts) -> Claims:
    return Claims(
        execution_id=execution_id, waitpoint_id=waitpoint_id, nonce=parts.nonce, source=parts.approver,
        ends_at=parts.ends_at,
    )  # fmt: skip
