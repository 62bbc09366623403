"""`engine.keys`: the key ring that signs the tokens of waitpoints. All namespaces of the store share one key ring."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.tokens.key_file import FileKey, parse_key_file
from flowfabric.core.tokens.key_ring import (
    AlreadySeeded,
    KeyView,
    Rotated,
    Rotation,
    Seeded,
    Unchanged,
    parse_kid,
    parse_secret,
)
from flowfabric.core.tokens.secret import Secret
from flowfabric.engine.context import Context, audit_info
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.keys import KeySource, RotateRequest, SeedRequest, WithKeys, list_keys, rotate_key, seed_key
from flowfabric.store.file_permissions import warn_if_readable

FILE_VARIABLE = "FLOWFABRIC_KEY_FILE"
KEYS_VARIABLE = "FLOWFABRIC_KEYS"


def key_source(key_file: str | None) -> KeySource:
    """Return the source of the signing keys: this key file, or else the environment variables, or else the store."""
    path = (os.environ.get(FILE_VARIABLE) or None) if key_file is None else validation.text(key_file, "key_file")
    if path is not None:
        warn_if_readable(path)
        return KeySource(draw_key, parse_key_file(_read_file(path), path), path)
    if text := os.environ.get(KEYS_VARIABLE):
        where = f"the variable {KEYS_VARIABLE}"
        return KeySource(draw_key, parse_key_file(Secret(text), where), where)
    return KeySource(draw_key)


def draw_key() -> FileKey:
    """Return a new key with today's date in its kid (key id) and a secret of 32 random bytes."""
    return FileKey(f"{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(4)}", Secret(secrets.token_hex(32)))


def _read_file(path: str) -> Secret:
    try:
        return Secret(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        message = f"the key file {path} cannot be read: {reason}"
        raise InvalidRequest("invalid_key_file", message, where=path) from None


class Keys:
    """Seeds, rotates and lists keys. If a store has no key, its first key is created when the first token is signed."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def seed(
        self, kid: str, secret: str | Secret, *, reason: str = "", principal: str = OPERATOR
    ) -> Seeded | AlreadySeeded:
        """Store the first key, whose secret has 64 hex characters.

        If the store already has a key with this kid (key id), return `AlreadySeeded`. If it has only keys with other
        kids, the call is refused; use `rotate` instead.
        """
        request = SeedRequest(FileKey(parse_kid(kid), parse_secret(secret)), audit_info(principal, reason))
        del secret
        return await self._context.call(seed_key, WithKeys(request, self._context.keys))

    async def rotate(
        self,
        kid: str,
        secret: str | Secret | None = None,
        *,
        grace: validation.Duration | None = None,
        reason: str = "",
        principal: str = OPERATOR,
    ) -> Rotated | Unchanged:
        """Make a new key the active key, with a random secret unless `secret` is set.

        The old key still verifies tokens for 24 hours, or longer while an open waitpoint has a token signed with it.
        With a `grace`, the old key verifies tokens for exactly that time.
        """
        is_random = secret is None
        new_secret = draw_key().secret if secret is None else parse_secret(secret)
        del secret
        rotation = Rotation(kid=kid, secret=new_secret, is_generated=is_random, grace=grace)
        request = RotateRequest(rotation, audit_info(principal, reason))
        outcome = await self._context.call(rotate_key, WithKeys(request, self._context.keys))
        self._context.due_at(None)
        return outcome

    async def list(self) -> tuple[KeyView, ...]:
        """Return all keys without their secrets, the newest first."""
        return await self._context.call(list_keys, self._context.keys)
