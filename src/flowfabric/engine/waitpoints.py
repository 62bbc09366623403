"""`engine.waitpoints`: the slots that signals are delivered to, and who waits on them."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits, requests
from flowfabric.core.bindings import Fresh, fresh
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.ids import parse_id
from flowfabric.core.minting import Drawn
from flowfabric.core.outcomes import OpenWaitpoint, WaitpointClosed
from flowfabric.core.records import Fence
from flowfabric.core.requests import Step
from flowfabric.core.secret import Secret
from flowfabric.core.suspending import CreateWaitpoint, CreateWaitpoints
from flowfabric.core.tokens import NONCE_BYTES, token_source
from flowfabric.core.views import SuspendedView, WaitpointView
from flowfabric.engine.context import Context, command
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.create_waitpoint import create_waitpoint, create_waitpoints
from flowfabric.ops.observing import list_suspended, list_waitpoints
from flowfabric.ops.read_tokens import read_tokens
from flowfabric.ops.resume import close_waitpoint

_FIRST_ID = UUID(int=0)


class Waitpoints:
    """Creates, closes and lists waitpoints, and lists what is suspended on them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def create(
        self, fence: Fence, key: str, *, expires: limits.Duration | None = None, expires_at: datetime | None = None,
        approver: str | None = None, token_ends_at: datetime | None = None,
    ) -> OpenWaitpoint:  # fmt: skip
        """A waitpoint before anybody waits, with the token to hand out; repeated, the same one with the same token.

        With an `approver` its signals count as that source, whatever the sender says. It closes when it expires, unless
        a suspension has bound it by then.
        """
        if expires is not None and expires_at is not None:
            raise InvalidRequest("invalid_request", "give expires or expires_at, not both")
        request = CreateWaitpoint(
            fence=requests.fence(fence), key=limits.name(key, "key"),
            expires=None if expires is None else limits.duration(expires, "expires"),
            expires_at=None if expires_at is None else limits.moment(expires_at, "expires_at"),
            approver=None if approver is None else token_source(approver),
            ends_at=None if token_ends_at is None else limits.moment(token_ends_at, "token_ends_at"),
            drawn=draw_waitpoint(self._context),
        )  # fmt: skip
        keys, namespace = self._context.keys, self._context.namespace
        answer = await self._context.store.run(lambda tx: create_waitpoint(tx, namespace, request, keys))
        if answer.expires_at is not None:
            self._context.due_at(answer.expires_at)
        return answer

    async def create_many(
        self, fence: Fence, waitpoints: Sequence[Fresh | str], *, steps: Sequence[Step] = ()
    ) -> builtins.list[OpenWaitpoint]:
        """Several waitpoints, in this order, and the steps that record them, in one commit or not at all. Repeated, the
        same ones with the same tokens."""
        owner = requests.fence(fence)
        request = CreateWaitpoints(
            fence=owner, waitpoints=tuple(self._wish(owner, item) for item in fresh(waitpoints)),
            steps=requests.steps(steps),
        )  # fmt: skip
        keys, namespace = self._context.keys, self._context.namespace
        return await self._context.store.run(lambda tx: create_waitpoints(tx, namespace, request, keys))

    def _wish(self, fence: Fence, item: Fresh) -> CreateWaitpoint:
        return CreateWaitpoint(
            fence=fence, key=item.key, expires=None, expires_at=None, approver=item.approver, ends_at=item.ends_at,
            drawn=draw_waitpoint(self._context),
        )  # fmt: skip

    async def tokens(self, fence: Fence, keys: Sequence[str]) -> dict[str, Secret]:
        """The tokens that were handed out for waitpoints with these keys, in this generation, closed ones too."""
        wanted, owner = limits.names(keys, "keys", most=limits.BATCH), requests.fence(fence)
        source, namespace = self._context.keys, self._context.namespace
        return await self._context.store.run(lambda tx: read_tokens(tx, namespace, owner, wanted, source))

    async def close(
        self, waitpoint_id: UUID | str, reason: str = "", *, principal: str = OPERATOR
    ) -> WaitpointClosed:  # fmt: skip
        """Takes no more signals for it; whoever waits on others too waits on."""
        found, who = parse_id(waitpoint_id, "waitpoint_id"), command(principal, reason)
        return await self._context.store.run(lambda tx: close_waitpoint(tx, self._context.namespace, found, who))

    async def list(
        self, execution_id: UUID | str, *, after: UUID | str | None = None, limit: int = 100
    ) -> builtins.list[WaitpointView]:
        """The waitpoints of an execution, closed ones too, in order of their ids; of a token only its fingerprint."""
        found, start = parse_id(execution_id, "execution_id"), _FIRST_ID if after is None else parse_id(after, "after")
        size = limits.whole(limit, "limit", 1, limits.BATCH)
        return await self._context.store.read(
            lambda tx: list_waitpoints(tx, self._context.namespace, found, start, size)
        )

    async def list_suspended(
        self, *, after: UUID | str | None = None, limit: int = 100
    ) -> builtins.list[SuspendedView]:
        """What is suspended, in order of execution ids, with what is still missing."""
        start = _FIRST_ID if after is None else parse_id(after, "after")
        size = limits.whole(limit, "limit", 1, limits.BATCH)
        return await self._context.store.read(lambda tx: list_suspended(tx, self._context.namespace, start, size))


def draw_waitpoint(context: Context) -> Drawn:
    """An id and a nonce for a waitpoint to be."""
    return Drawn(context.ids.mint(), os.urandom(NONCE_BYTES))
