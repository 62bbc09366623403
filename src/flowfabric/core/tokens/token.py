"""Waitpoint tokens: the holder of a token may send signals to one waitpoint of one execution.

    ffw1.<kid>.<payload>.<mac>          payload and mac in base64url without padding

    payload   1 byte: which optional parts follow │ 16: execution │ 16: waitpoint │ 12: nonce
              │ 8: hard end, microseconds since 1970 (optional) │ 1..256: source in UTF-8 (optional)
    mac       HMAC-SHA256 over version, purpose, kid, namespace and payload, under the kid's key for that purpose

Every token has exactly one spelling: text that does not encode back to itself is malformed. Malformed text, an unknown
key and a wrong mac all raise `invalid_token`, so that guessing reveals nothing. The same claims always give the same
token, so the store need not keep it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest, Refused
from flowfabric.core.fast_dataclass import put, record
from flowfabric.core.tokens.key_ring import KID, Key, KeyRing, verifying_secret
from flowfabric.core.tokens.secret import Secret, derive_key
from flowfabric.core.waits.records import TokenParts, Waitpoint

VERSION = "ffw1"
WAITPOINT = "waitpoint"
MAX_TOKEN_CHARACTERS = 512
NONCE_BYTES = 12
MAX_SOURCE_BYTES = 256

_SHAPE = re.compile(rf"{VERSION}\.({KID})\.([A-Za-z0-9_-]{{60,412}})\.([A-Za-z0-9_-]{{43}})")
_FIXED_BYTES = 1 + 16 + 16 + NONCE_BYTES
_HAS_END, _HAS_SOURCE = 1, 2
_MICROSECOND = timedelta(microseconds=1)


@record(frozen=True, slots=True, kw_only=True)
class TokenClaims:
    """The content of a token: its waitpoint, a nonce, and optionally its source and a hard end."""

    execution_id: UUID
    waitpoint_id: UUID
    nonce: bytes = field(repr=False)
    source: str | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        assert len(self.nonce) == NONCE_BYTES, "a nonce always has this size"
        put(
            self,
            source=None if self.source is None else token_source(self.source),
            ends_at=None if self.ends_at is None else validation.timestamp(self.ends_at, "ends_at"),
        )


@record(frozen=True, slots=True)
class ParsedToken:
    """A well-formed token. Its claims are not trusted until it is verified."""

    kid: str
    unverified: TokenClaims
    mac: Secret


def mint_token(key: Key, claims: TokenClaims, namespace: str, *, purpose: str = WAITPOINT) -> Secret:
    """Return the token for these claims. The same key and claims always give the same token."""
    if key.secret is None:
        message = f"the secret of key {key.kid} is missing; restore its line in the key file"
        raise Refused("key_secret_missing", message, kid=key.kid)
    mac = _mac(key.secret, purpose, (key.kid, namespace), claims)
    return Secret(f"{VERSION}.{key.kid}.{_to_text(_encode(claims))}.{mac.reveal()}")


def read_token(token: str | Secret) -> ParsedToken:
    """Return the parts of a well-formed token; raise `invalid_token` otherwise."""
    parsed = _parse(token)
    # A traceback that shows local variables must not show the text.
    del token
    if parsed is None:
        raise invalid_token()
    return parsed


def signing_secret(parsed: ParsedToken, ring: KeyRing, namespace: str, *, purpose: str = WAITPOINT) -> Secret | None:
    """Return the secret of the key that signed the token, even if the key has expired; None if no key signed it."""
    key = ring.find(parsed.kid)
    return key.secret if key is not None and _is_signed(parsed, key.secret, namespace, purpose) else None


def verify_token(
    parsed: ParsedToken, ring: KeyRing, namespace: str, now: datetime, *, purpose: str = WAITPOINT
) -> TokenClaims:
    """Return the claims of a genuine token; raise `invalid_token` for an unknown or expired key or a wrong mac.

    The time `ends_at` is not checked here, because a repeated signal is acknowledged even after that time. See
    `require_not_ended`.
    """
    # An unknown kid may fail faster than a wrong mac. This reveals only whether a kid exists, and every token shows its
    # kid.
    if not _is_signed(parsed, verifying_secret(ring, parsed.kid, now), namespace, purpose):
        raise invalid_token()
    return parsed.unverified


def require_not_ended(claims: TokenClaims, now: datetime) -> None:
    """Raise `token_expired` if the time `ends_at` of a genuine token has passed."""
    if claims.ends_at is not None and claims.ends_at <= now:
        raise Refused("token_expired", "the token has expired; request a new one", ended_at=claims.ends_at)


def hash_token(token: Secret) -> bytes:
    """Return the hash that the store keeps of a token."""
    return hashlib.sha256(token.reveal().encode()).digest()


def fingerprint(token: Secret) -> str:
    """Return 16 hex characters that identify a token and may be shown."""
    return hash_token(token).hex()[:16]


def token_source(value: object) -> str:
    """Return a source that fits into a token: a name of at most 256 bytes."""
    name = validation.name(value, "source")
    size = len(name.encode())
    if size > MAX_SOURCE_BYTES:
        message = f"source has {size} bytes of UTF-8, the limit in a token is {MAX_SOURCE_BYTES}; shorten it"
        raise InvalidRequest("invalid_name", message, field="source", limit=MAX_SOURCE_BYTES, length=size)
    return name


def invalid_token() -> InvalidRequest:
    """Return the error for a token that is not genuine; it is the same for every cause."""
    return InvalidRequest("invalid_token", "the token is invalid; use the complete token as it was handed out")


def _parse(token: object) -> ParsedToken | None:
    text = token.reveal() if isinstance(token, Secret) else token
    # Check the length first, so that long text is refused at no cost.
    match = _SHAPE.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_TOKEN_CHARACTERS else None
    if match is None:
        return None
    payload, mac = _from_text(match[2]), _from_text(match[3])
    claims = None if payload is None or mac is None else _decode(payload)
    return None if claims is None else ParsedToken(match[1], claims, Secret(match[3]))


def _is_signed(parsed: ParsedToken, secret: Secret | None, namespace: str, purpose: str) -> bool:
    if secret is None:
        return False
    mac = _mac(secret, purpose, (parsed.kid, namespace), parsed.unverified)
    # Compare in constant time, so that the delay does not show how much of a guessed mac is right.
    return hmac.compare_digest(mac.reveal(), parsed.mac.reveal())


def _mac(secret: Secret, purpose: str, names: tuple[str, str], claims: TokenClaims) -> Secret:
    """Return the MAC of the claims, made with the key that is derived from the secret for this purpose.

    Each part is prefixed with its length.
    """
    parts = [VERSION.encode(), purpose.encode(), *(name.encode() for name in names), _encode(claims)]
    message = b"".join(b"%d:" % len(part) + part for part in parts)
    return Secret(_to_text(hmac.digest(derive_key(secret, purpose), message, "sha256")))


def _encode(claims: TokenClaims) -> bytes:
    flags = (claims.ends_at is not None) * _HAS_END | (claims.source is not None) * _HAS_SOURCE
    end = b"" if claims.ends_at is None else ((claims.ends_at - validation.MIN_TIME) // _MICROSECOND).to_bytes(8)
    source = (claims.source or "").encode()
    return bytes([flags]) + claims.execution_id.bytes + claims.waitpoint_id.bytes + claims.nonce + end + source


def _decode(payload: bytes) -> TokenClaims | None:
    """Return the claims that the payload encodes, or None if the payload is malformed."""
    flags, fixed, rest = payload[0], payload[1:_FIXED_BYTES], payload[_FIXED_BYTES:]
    end, source = (rest[:8], rest[8:]) if flags & _HAS_END else (b"", rest)
    try:
        claims = TokenClaims(
            execution_id=UUID(bytes=fixed[:16]),
            waitpoint_id=UUID(bytes=fixed[16:32]),
            nonce=fixed[32:],
            source=source.decode() if flags & _HAS_SOURCE else None,
            ends_at=validation.MIN_TIME + int.from_bytes(end) * _MICROSECOND if flags & _HAS_END else None,
        )
    except (InvalidRequest, UnicodeDecodeError, OverflowError):
        return None
    return claims if _encode(claims) == payload else None


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _from_text(text: str) -> bytes | None:
    """Return the bytes that the base64url text encodes, or None if the text is not in canonical form."""
    if len(text) % 4 == 1:
        return None
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data if _to_text(data) == text else None


# New tokens are minted with the active key. An existing token is minted again with its first key.


@record(frozen=True, slots=True)
class WaitpointSeed:
    """The id and nonce of a new waitpoint, generated in advance because decisions draw no random numbers."""

    id: UUID
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Minter:
    """Mints the tokens of one namespace, and caches the new tokens."""

    ring: KeyRing
    namespace: str
    _fresh: dict[TokenClaims, Secret] = field(default_factory=dict, init=False, repr=False, compare=False)

    def new(
        self, execution_id: UUID, seed: WaitpointSeed, approver: str | None, ends_at: datetime | None
    ) -> TokenParts:
        """Mint the token of a new waitpoint with the active key; return the parts to store."""
        active = self.ring.active
        assert active is not None, "the caller has made sure that the ring has an active key"
        claims = TokenClaims(
            execution_id=execution_id, waitpoint_id=seed.id, nonce=seed.nonce, source=approver, ends_at=ends_at
        )
        token = self._fresh[claims] = mint_token(active, claims, self.namespace)
        return TokenParts(
            kid=active.kid, nonce=claims.nonce, hash=hash_token(token), approver=claims.source, ends_at=claims.ends_at
        )

    def token(self, waitpoint: Waitpoint) -> Secret | None:
        """Return the token of a waitpoint, or None if it has no token or the secret of its key is missing."""
        parts = waitpoint.token
        key = self.ring.find(parts.kid) if parts else None
        if parts is None or key is None or key.secret is None:
            return None
        claims = TokenClaims(
            execution_id=waitpoint.execution_id,
            waitpoint_id=waitpoint.id,
            nonce=parts.nonce,
            source=parts.approver,
            ends_at=parts.ends_at,
        )
        return self._fresh.get(claims) or mint_token(key, claims, self.namespace)
