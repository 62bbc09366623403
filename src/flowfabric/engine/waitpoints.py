"""`engine.waitpoints`: the slots that signals are delivered to, and the executions that wait on them."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions import requests
from flowfabric.core.executions.outcomes import OpenWaitpoint, WaitpointClosed
from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.requests import Step
from flowfabric.core.executions.views import SuspendedView, WaitpointView
from flowfabric.core.ids import parse_id
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import NONCE_BYTES, VERSION, ParsedToken, WaitpointSeed, read_token, token_source
from flowfabric.core.waits.bindings import NewWaitpoint, parse_new_waitpoints
from flowfabric.core.waits.decisions import WaitpointDescription
from flowfabric.core.waits.declare import DeclareSignals
from flowfabric.core.waits.prompts import ApprovalPrompt, prompt_json
from flowfabric.core.waits.schemas import DeclaredSignals, parse_declared, parse_schema
from flowfabric.core.waits.suspend import CreateWaitpoint, CreateWaitpoints
from flowfabric.engine.context import Context, audit_info
from flowfabric.engine.operator import OPERATOR
from flowfabric.ops.keys import WithKeys
from flowfabric.ops.operator.hold import OperatorRequest
from flowfabric.ops.waits.decide import WaitpointQuery, describe_wait
from flowfabric.ops.waits.read import SuspendedPage, WaitpointPage, list_suspended, list_waitpoints
from flowfabric.ops.waits.resume import close_waitpoint
from flowfabric.ops.waits.waitpoints import (
    TokenQuery,
    create_waitpoint,
    create_waitpoints,
    declare_signals,
    read_tokens,
)

_FIRST_ID = UUID(int=0)


class Waitpoints:
    """Creates, closes and lists waitpoints, and lists suspended executions."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def create(
        self,
        fence: Fence,
        key: str,
        *,
        expires: validation.Duration | None = None,
        expires_at: datetime | None = None,
        approver: str | None = None,
        token_ends_at: datetime | None = None,
        schema: Mapping[str, Any] | str | None = None,
        prompt: ApprovalPrompt | None = None,
    ) -> OpenWaitpoint:
        """Create a waitpoint before the execution waits on it, and return it with the token to hand out.

        A repeated call returns the same waitpoint with the same token. With an `approver`, all signals at the waitpoint
        have the approver as their source, regardless of the sender's claim. The waitpoint closes when it expires,
        unless a suspension has bound it by then. With a JSON `schema`, a signal whose payload does not fit is refused
        with `payload_mismatch`. The check knows a part of JSON schema and ignores the rest. `prompt` is
        shown to the approver.
        """
        if expires is not None and expires_at is not None:
            raise InvalidRequest("invalid_request", "give expires or expires_at, not both")
        request = CreateWaitpoint(
            fence=requests.parse_fence(fence),
            key=validation.name(key, "key"),
            expires=None if expires is None else validation.duration(expires, "expires"),
            expires_at=None if expires_at is None else validation.timestamp(expires_at, "expires_at"),
            approver=None if approver is None else token_source(approver),
            ends_at=None if token_ends_at is None else validation.timestamp(token_ends_at, "token_ends_at"),
            seed=draw_waitpoint(self._context),
            schema=parse_schema(schema),
            prompt=prompt_json(prompt),
        )
        waitpoint = await self._context.call(create_waitpoint, WithKeys(request, self._context.keys))
        if waitpoint.expires_at is not None:
            self._context.due_at(waitpoint.expires_at)
        return waitpoint

    async def create_many(
        self, fence: Fence, waitpoints: Sequence[NewWaitpoint | str], *, steps: Sequence[Step] = ()
    ) -> builtins.list[OpenWaitpoint]:
        """Create waitpoints and record `steps` in one commit, and return the waitpoints in the given order.

        A repeated call returns the same waitpoints with the same tokens.
        """
        owner = requests.parse_fence(fence)
        request = CreateWaitpoints(
            fence=owner,
            waitpoints=tuple(self._create_request(owner, waitpoint) for waitpoint in parse_new_waitpoints(waitpoints)),
            steps=requests.parse_steps(steps),
        )
        return await self._context.call(create_waitpoints, WithKeys(request, self._context.keys))

    def _create_request(self, fence: Fence, waitpoint: NewWaitpoint) -> CreateWaitpoint:
        return CreateWaitpoint(
            fence=fence,
            key=waitpoint.key,
            expires=None,
            expires_at=None,
            approver=waitpoint.approver,
            ends_at=waitpoint.ends_at,
            seed=draw_waitpoint(self._context),
            schema=parse_schema(waitpoint.schema),
            prompt=prompt_json(waitpoint.prompt),
        )

    async def declare(self, fence: Fence, signals: DeclaredSignals) -> tuple[str, ...]:
        """Accept signals that the submission did not declare, and return the names that are new.

        From then on, the execution keeps them as if the submission had declared them. A mapping also has the JSON
        schemas of the payloads. A repeated call changes nothing.
        """
        parsed = parse_declared(signals)
        declared = dict(parsed) if isinstance(parsed, Mapping) else dict.fromkeys(parsed)
        request = DeclareSignals(fence=requests.parse_fence(fence), declared=declared)
        return await self._context.call(declare_signals, request)

    async def tokens(self, fence: Fence, keys: Sequence[str]) -> dict[str, Secret]:
        """Return the tokens of the waitpoints with these keys in this generation, including closed waitpoints."""
        query = TokenQuery(requests.parse_fence(fence), validation.names(keys, "keys", maximum=validation.MAX_BATCH))
        return await self._context.call(read_tokens, WithKeys(query, self._context.keys))

    async def close(self, waitpoint_id: UUID | str, reason: str = "", *, principal: str = OPERATOR) -> WaitpointClosed:
        """Close a waitpoint, so that it accepts no signals.

        An execution that also waits on other waitpoints keeps waiting.
        """
        request = OperatorRequest(parse_id(waitpoint_id, "waitpoint_id"), audit_info(principal, reason))
        return await self._context.call(close_waitpoint, request)

    async def describe(self, waitpoint: UUID | str | Secret) -> WaitpointDescription:
        """Return a waitpoint with its prompt, its decisions, and the reason if it accepts no further signals.

        `waitpoint` is its id or its token.
        """
        id_, token = parse_waitpoint(waitpoint)
        del waitpoint
        return await self._context.call(describe_wait, WithKeys(WaitpointQuery(id_, token), self._context.keys))

    async def list(
        self, execution_id: UUID | str, *, after: UUID | str | None = None, limit: int = 100
    ) -> builtins.list[WaitpointView]:
        """Return the waitpoints of an execution, including closed waitpoints, in order of their ids.

        Only the fingerprints of their tokens are returned, not the tokens.
        """
        id_, start = parse_id(execution_id, "execution_id"), _FIRST_ID if after is None else parse_id(after, "after")
        size = validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        return await self._context.call(list_waitpoints, WaitpointPage(id_, start, size))

    async def list_suspended(
        self, *, after: UUID | str | None = None, limit: int = 100
    ) -> builtins.list[SuspendedView]:
        """Return suspended executions in order of their ids, each with the signals that it still needs."""
        start = _FIRST_ID if after is None else parse_id(after, "after")
        size = validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        return await self._context.call(list_suspended, SuspendedPage(start, size))


def parse_waitpoint(value: object) -> tuple[UUID, ParsedToken | None]:
    """Return the id of a waitpoint, and the token if the value is one."""
    if not isinstance(value, Secret) and not (isinstance(value, str) and value.startswith(f"{VERSION}.")):
        return parse_id(value, "waitpoint"), None
    token = read_token(value)
    return token.unverified.waitpoint_id, token


def draw_waitpoint(context: Context) -> WaitpointSeed:
    """Return an id and a nonce for a new waitpoint."""
    return WaitpointSeed(context.ids.mint(), os.urandom(NONCE_BYTES))
