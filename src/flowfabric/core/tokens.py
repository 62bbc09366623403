"""Waitpoint tokens: who holds one may send signals to one waitpoint of one execution.

    ffw1.<kid>.<payload>.<mac>          payload and mac in base64url without padding

    payload   1 byte: which optional parts follow │ 16: execution │ 16: waitpoint │ 12: nonce
              │ 8: hard end, microseconds since 1970 (optional) │ 1..256: source in UTF-8 (optional)
    mac       HMAC-SHA256 over version, purpose, kid, namespace and payload, under the kid's key for that purpose

Every token has exactly one spelling: text that does not encode back to itself is malformed. Everything that is wrong up
to the mac has one answer, `invalid_token`, so that nobody learns anything by trying. The same claims give the same
token again, which is why a token never has to be stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import field
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest, Refused
from flowfabric.core.frozen import put, record
from flowfabric.core.keyring import KID, Key, KeyRing, verifying_secret
from flowfabric.core.secret import Secret, derive_key

VERSION = "ffw1"
WAITPOINT = "waitpoint"
TOKEN_CHARACTERS = 512
NONCE_BYTES = 12
SOURCE_BYTES = 256

_SHAPE = re.compile(rf"{VERSION}\.({KID})\.([A-Za-z0-9_-]{{60,412}})\.([A-Za-z0-9_-]{{43}})")
_FIXED_BYTES = 1 + 16 + 16 + NONCE_BYTES
_HAS_END, _HAS_SOURCE = 1, 2
_MICROSECOND = timedelta(microseconds=1)


@record(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a token says: its waitpoint, a nonce, and, if they were asked for, its source and a hard end."""

    execution_id: UUID
    waitpoint_id: UUID
    nonce: bytes = field(repr=False)
    source: str | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        assert len(self.nonce) == NONCE_BYTES, "whoever mints draws a nonce of the right size"
        put(
            self,
            source=None if self.source is None else token_source(self.source),
            ends_at=None if self.ends_at is None else limits.moment(self.ends_at, "ends_at"),
        )


@record(frozen=True, slots=True)
class ParsedToken:
    """A well-formed token. Nothing that it says is true before it is verified."""

    kid: str
    unverified: Claims
    mac: Secret


def mint_token(key: Key, claims: Claims, namespace: str, *, purpose: str = WAITPOINT) -> Secret:
    """The token for these claims; the same key and claims always give the same one."""
    if key.secret is None:
        message = f"the secret of key {key.kid} is not known here; put its line back into the key file"
        raise Refused("key_secret_missing", message, kid=key.kid)
    mac = _mac(key.secret, purpose, (key.kid, namespace), claims)
    return Secret(f"{VERSION}.{key.kid}.{_to_text(_encode(claims))}.{mac.reveal()}")


def read_token(token: str | Secret) -> ParsedToken:
    """The parts of a well-formed token; anything else is answered with `invalid_token`."""
    parsed = _parse(token)
    # Whoever prints this frame with its variables must not see the text.
    del token
    if parsed is None:
        raise invalid_token()
    return parsed


def signing_secret(parsed: ParsedToken, ring: KeyRing, namespace: str, *, purpose: str = WAITPOINT) -> Secret | None:
    """The secret of this ring that has signed the token, inside its window or not; None if there is none."""
    key = ring.find(parsed.kid)
    secret = None if key is None else key.secret
    if secret is None or not _is_genuine(parsed, _mac(secret, purpose, (parsed.kid, namespace), parsed.unverified)):
        return None
    return secret


def verify(parsed: ParsedToken, ring: KeyRing, namespace: str, now: datetime, *, purpose: str = WAITPOINT) -> Claims:
    """What a genuine token says; `invalid_token` if its key is unknown or retired, or if the mac is not ours.

    A hard end is not looked at: a repeated signal is answered before it matters. See `require_not_ended`.
    """
    # An unknown kid may answer sooner than a wrong mac: kids are no secret, every token shows one.
    secret = verifying_secret(ring, parsed.kid, now)
    if secret is None or not _is_genuine(parsed, _mac(secret, purpose, (parsed.kid, namespace), parsed.unverified)):
        raise invalid_token()
    return parsed.unverified


def require_not_ended(claims: Claims, now: datetime) -> None:
    """Refuses a genuine token past the hard end that its minter asked for."""
    if claims.ends_at is not None and claims.ends_at <= now:
        raise Refused("token_expired", "the token is past its end; ask for a new one", ended_at=claims.ends_at)


def hash_token(token: Secret) -> bytes:
    """What the store keeps of a token."""
    return hashlib.sha256(token.reveal().encode()).digest()


def fingerprint(token: Secret) -> str:
    """What may be shown of a token: 16 hex characters by which two can be told apart."""
    return hash_token(token).hex()[:16]


def token_source(value: object) -> str:
    """A source that fits into a token: a name of at most 256 bytes."""
    name = limits.name(value, "source")
    size = len(name.encode())
    if size > SOURCE_BYTES:
        message = f"a source in a token has at most {SOURCE_BYTES} bytes of UTF-8, this one has {size}"
        raise InvalidRequest("invalid_name", message, field="source", limit=SOURCE_BYTES, length=size)
    return name


def invalid_token() -> InvalidRequest:
    """The one answer to whatever is wrong with a token that is not genuine."""
    return InvalidRequest("invalid_token", "the token is not valid; use the whole token as it was handed out")


def _parse(token: object) -> ParsedToken | None:
    text = token.reveal() if isinstance(token, Secret) else token
    # The length is looked at first: no amount of text costs more than that.
    found = _SHAPE.fullmatch(text) if isinstance(text, str) and len(text) <= TOKEN_CHARACTERS else None
    if found is None:
        return None
    payload, mac = _from_text(found[2]), _from_text(found[3])
    claims = None if payload is None or mac is None else _decode(payload)
    return None if claims is None else ParsedToken(found[1], claims, Secret(found[3]))


def _is_genuine(parsed: ParsedToken, mac: Secret) -> bool:
    # In constant time, or the answer's delay would tell how much of a guess is right.
    return hmac.compare_digest(mac.reveal(), parsed.mac.reveal())


def _mac(secret: Secret, purpose: str, names: tuple[str, str], claims: Claims) -> Secret:
    """The mac of claims under the key for a purpose; the lengths keep the parts apart."""
    parts = [VERSION.encode(), purpose.encode(), *(name.encode() for name in names), _encode(claims)]
    message = b"".join(b"%d:" % len(part) + part for part in parts)
    return Secret(_to_text(hmac.digest(derive_key(secret, purpose), message, "sha256")))


def _encode(claims: Claims) -> bytes:
    flags = (claims.ends_at is not None) * _HAS_END | (claims.source is not None) * _HAS_SOURCE
    end = b"" if claims.ends_at is None else ((claims.ends_at - limits.EARLIEST) // _MICROSECOND).to_bytes(8)
    source = (claims.source or "").encode()
    return bytes([flags]) + claims.execution_id.bytes + claims.waitpoint_id.bytes + claims.nonce + end + source


def _decode(payload: bytes) -> Claims | None:
    """The claims of which these are the bytes, or None if there are none."""
    flags, fixed, rest = payload[0], payload[1:_FIXED_BYTES], payload[_FIXED_BYTES:]
    end, source = (rest[:8], rest[8:]) if flags & _HAS_END else (b"", rest)
    try:
        claims = Claims(
            execution_id=UUID(bytes=fixed[:16]),
            waitpoint_id=UUID(bytes=fixed[16:32]),
            nonce=fixed[32:],
            source=source.decode() if flags & _HAS_SOURCE else None,
            ends_at=limits.EARLIEST + int.from_bytes(end) * _MICROSECOND if flags & _HAS_END else None,
        )
    except (InvalidRequest, UnicodeDecodeError, OverflowError):
        return None
    return claims if _encode(claims) == payload else None


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _from_text(text: str) -> bytes | None:
    """The bytes of which this is the one spelling, or None."""
    if len(text) % 4 == 1:
        return None
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data if _to_text(data) == text else None
