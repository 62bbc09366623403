"""The request handlers: show an approval, receive a decision, receive a callback.

Unknown, forged, expired and used tokens all get the same response, and so do refusals of the engine. The only exception
is a token that has already decided: its response repeats that decision.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import InvalidRequest, NotFound, Refused
from flowfabric.core.executions.views import WaitpointView
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import TokenClaims, fingerprint, read_token
from flowfabric.core.waits.records import WaitpointState
from flowfabric.engine.engine import Engine
from flowfabric.runtime.signals import APPROVE, REJECT, DecisionResult, DecisionWord, call_back, decide
from flowfabric.web.request import (
    Receive,
    Request,
    read_body,
    read_comment,
    read_form,
    read_key,
    read_payload,
)
from flowfabric.web.responses import HTTPError, Response, approval_page, html_response, json_response, message_page

APPROVAL, CALLBACK = "approval", "callback"

# Only the first match in a key counts, because the rest of the key is a name that the user chose.
_PURPOSE = re.compile(r"(?:^|/)(approval|callback):")


@dataclass(frozen=True, slots=True)
class TokenLookup:
    """The waitpoint of a genuine token. `is_open` means that the waitpoint probably still accepts signals."""

    kind: str
    key: str
    approver: str | None
    expires_at: datetime | None
    is_open: bool

    def is_for(self, purpose: str) -> bool:
        """Return False if the waitpoint's key names a different purpose. A key without a purpose allows any purpose."""
        match = _PURPOSE.search(self.key)
        return match is None or match[1] == purpose

    @property
    def title(self) -> str:
        """The name in the waitpoint's key, without the purpose and the approver."""
        match = _PURPOSE.search(self.key)
        name = self.key if match is None else self.key[match.end() :]
        return name.removesuffix(f"[{self.approver}]") or self.key


async def look_up_token(engine: Engine, token: Secret, now: datetime) -> TokenLookup | None:
    """Return the waitpoint of a token, or None if the token is not genuine. Change nothing.

    The store has a hash of each issued token. A token without a matching hash is not genuine, even with valid claims.
    """
    try:
        claims = read_token(token).unverified
        waitpoint = await _find_waitpoint(engine, claims)
        if waitpoint is None or waitpoint.fingerprint is None:
            return None
        if not hmac.compare_digest(waitpoint.fingerprint, fingerprint(token)):
            return None
        kind = (await engine.executions.describe(claims.execution_id)).kind
    except (InvalidRequest, NotFound):
        return None
    ends = [time for time in (waitpoint.expires_at, claims.ends_at) if time is not None]
    expires_at = min(ends, default=None)
    is_open = waitpoint.state is not WaitpointState.CLOSED and (expires_at is None or now < expires_at)
    return TokenLookup(kind, waitpoint.key, waitpoint.approver, expires_at, is_open)


async def _find_waitpoint(engine: Engine, claims: TokenClaims) -> WaitpointView | None:
    # The list starts after the id in `after`, so pass the id that precedes the waitpoint's id.
    before = UUID(int=max(claims.waitpoint_id.int - 1, 0))
    views = await engine.waitpoints.list(claims.execution_id, after=before, limit=1)
    return views[0] if views and views[0].id == claims.waitpoint_id else None


PayloadCheck = Callable[[str, str, bytes], str | None]

_MAX_MESSAGE_CHARACTERS = 2000
_REPEATED = {
    APPROVE: "This link was already used to approve.",
    REJECT: "This link was already used to reject.",
    None: "This link was already used.",
}
_THANKS = {APPROVE: "Your approval is recorded.", REJECT: "Your rejection is recorded."}
_WORDS: dict[str | None, DecisionWord] = {APPROVE: APPROVE, REJECT: REJECT}


@dataclass(frozen=True, slots=True)
class LinkApp:
    """The settings that all request handlers share."""

    get_engine: Callable[[], Awaitable[Engine]]
    check_payload: PayloadCheck | None
    title: Callable[[str, str], str] | None
    now: Callable[[], datetime]
    body_timeout_s: float


async def show_approval(links: LinkApp, token: Secret) -> Response:
    """Return the approval page. Do not decide anything here, because mail scanners follow links too."""
    lookup = await look_up_token(await links.get_engine(), token, links.now())
    if lookup is None or not lookup.is_open or not lookup.is_for(APPROVAL):
        raise link_not_usable()
    title = lookup.title if links.title is None else links.title(lookup.kind, lookup.key)
    return html_response(approval_page(title, lookup.kind, lookup.approver, lookup.expires_at))


async def receive_decision(links: LinkApp, request: Request, receive: Receive, token: Secret) -> Response:
    """Record a decision. Only the first decision with a token counts, and the response shows that decision."""
    fields = read_form(request, await read_body(request, receive, links.body_timeout_s))
    word, comment = _WORDS.get(fields.get("decision")), read_comment(fields)
    if word is None or set(fields) - {"decision", "comment", "reason"}:
        raise HTTPError(400, "Send decision=approve or decision=reject, and optionally a comment.")
    read_key(request)
    engine = await links.get_engine()
    await _require_genuine(links, engine, token, APPROVAL)
    try:
        decided = await decide(engine, token, word, comment)
    except (InvalidRequest, NotFound, Refused):
        raise link_not_usable() from None
    return _decision_response(decided, as_json=request.sends_json)


async def receive_callback(links: LinkApp, request: Request, receive: Receive, token: Secret) -> Response:
    """Deliver the payload of a callback.

    The store checks the payload by the schema that it keeps with the waitpoint. A process that knows the type itself
    checks the payload before, because a schema cannot express every rule of a type.
    """
    payload = read_payload(request, await read_body(request, receive, links.body_timeout_s))
    key = read_key(request)
    engine = await links.get_engine()
    lookup = await _require_genuine(links, engine, token, CALLBACK)
    # Check only payloads for open waitpoints, because a closed waitpoint must still acknowledge a repeated callback.
    if lookup.is_open and links.check_payload is not None:
        problem = links.check_payload(lookup.kind, lookup.key, payload)
        if problem is not None:
            return json_response({"error": problem[:_MAX_MESSAGE_CHARACTERS]}, 422)
    try:
        await call_back(engine, token, payload, key=key)
    except (InvalidRequest, NotFound, Refused) as error:
        if error.code == "payload_mismatch":
            return json_response({"error": error.message[:_MAX_MESSAGE_CHARACTERS]}, 422)
        raise link_not_usable() from None
    return json_response({"accepted": True})


def link_not_usable() -> HTTPError:
    """Return the error for an unusable token. It is the same error for every reason."""
    return HTTPError(404, "This link cannot be used. It may be incomplete, already used, or expired.")


async def _require_genuine(links: LinkApp, engine: Engine, token: Secret, purpose: str) -> TokenLookup:
    lookup = await look_up_token(engine, token, links.now())
    if lookup is None or not lookup.is_for(purpose):
        raise link_not_usable()
    return lookup


def _decision_response(decided: DecisionResult, *, as_json: bool) -> Response:
    if as_json:
        return json_response({"decision": decided.word, "repeated": decided.repeated})
    if decided.repeated or decided.word is None:
        return html_response(message_page("Already decided", _REPEATED[decided.word]))
    return html_response(message_page("Thank you", _THANKS[decided.word]))
