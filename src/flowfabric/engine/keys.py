"""`engine.keys`: the key ring that signs the tokens of waitpoints. It serves all namespaces of the store."""

from __future__ import annotations

from functools import partial

from flowfabric.core import limits
from flowfabric.core.key_file import FileKey
from flowfabric.core.keyring import (
    AlreadySeeded,
    KeyView,
    Rotated,
    Rotation,
    Seeded,
    Unchanged,
    parse_kid,
    parse_secret,
)
from flowfabric.core.secret import Secret
from flowfabric.engine.context import Context, command
from flowfabric.engine.key_source import draw_key
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.key_ring import list_keys, rotate_key, seed_key


class Keys:
    """Seeds, rotates and lists keys; a store without one draws its first when it must mint a token."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def seed(
        self, kid: str, secret: str | Secret, *, reason: str = "", principal: str = OPERATOR
    ) -> Seeded | AlreadySeeded:
        """The first key, of 64 hex characters; the same kid again is answered, another one refused: rotate."""
        key, who = FileKey(parse_kid(kid), parse_secret(secret)), command(principal, reason)
        del secret
        source, namespace = self._context.keys, self._context.namespace
        return await self._context.store.run(lambda tx: seed_key(tx, namespace, source, key, who))

    async def rotate(
        self, kid: str, secret: str | Secret | None = None, *, grace: limits.Duration | None = None, reason: str = "",
        principal: str = OPERATOR,
    ) -> Rotated | Unchanged:  # fmt: skip
        """Another key, drawn unless given, becomes active. The old one verifies for 24 hours and as long as an open
        waitpoint has its token from it; with a `grace`, exactly that long."""
        drawn = secret is None
        found = draw_key().secret if secret is None else parse_secret(secret)
        del secret
        rotation = Rotation(kid=kid, secret=found, drawn=drawn, grace=grace)
        who, source, namespace = command(principal, reason), self._context.keys, self._context.namespace
        answer = await self._context.store.run(lambda tx: rotate_key(tx, namespace, source, rotation, who))
        self._context.due_at(None)
        return answer

    async def list(self) -> tuple[KeyView, ...]:
        """All keys, the newest first, without their secrets."""
        return await self._context.store.read(partial(list_keys, source=self._context.keys))
