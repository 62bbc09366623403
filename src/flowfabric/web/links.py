"""The request handlers: show an approval, receive a decision, receive a callback.

Unknown and forged tokens all get the same response. The holder of a genuine token sees the request, the decision
of the approver if there is one, or why the approval accepts no further decisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flowfabric.core.errors import InvalidRequest, NotFound, Refused
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.waits.decisions import APPROVAL, DecisionWord, WaitpointDescription
from flowfabric.core.waits.evaluate import APPROVE, REJECT
from flowfabric.engine.engine import Engine
from flowfabric.runtime.signals import CALLBACK, call_back
from flowfabric.web.pages import approval_page, closed_page, decision_page
from flowfabric.web.request import (
    Receive,
    Request,
    read_body,
    read_comment,
    read_form,
    read_key,
    read_payload,
)
from flowfabric.web.responses import HTTPError, Response, html_response, json_response

PayloadCheck = Callable[[str, str, bytes], str | None]

_GONE, _MAX_MESSAGE_CHARACTERS = 410, 2000
_WORDS: dict[str | None, DecisionWord] = {APPROVE: APPROVE, REJECT: REJECT}


@dataclass(frozen=True, slots=True)
class LinkApp:
    """The settings that all request handlers share."""

    get_engine: Callable[[], Awaitable[Engine]]
    check_payload: PayloadCheck | None
    body_timeout_s: float


async def show_approval(links: LinkApp, token: Secret) -> Response:
    """Return the approval page. Do not decide anything here, because mail scanners follow links too."""
    wait = await _describe(await links.get_engine(), token, APPROVAL)
    if wait.decisions:
        return html_response(decision_page(wait, wait.decisions[0], is_new=False))
    return html_response(approval_page(wait)) if wait.end is None else html_response(closed_page(wait), _GONE)


async def receive_decision(links: LinkApp, request: Request, receive: Receive, token: Secret) -> Response:
    """Record a decision. Only the first decision of an approver counts, and the response shows that decision."""
    fields = read_form(request, await read_body(request, receive, links.body_timeout_s))
    word, comment = _WORDS.get(fields.get("decision")), read_comment(fields)
    if word is None or set(fields) - {"decision", "comment", "reason"}:
        raise HTTPError(400, "Send decision=approve or decision=reject, and optionally a comment.")
    read_key(request)
    engine = await links.get_engine()
    try:
        decided = await engine.signals.decide(token, word, comment)
    except (InvalidRequest, NotFound):
        raise link_not_usable() from None
    except Refused as error:
        return await _refuse(engine, token, error, as_json=request.sends_json)
    if request.sends_json:
        counted = APPROVE if decided.decision.approve else REJECT
        return json_response({"decision": counted, "repeated": decided.repeated})
    wait = await _describe(engine, token, APPROVAL)
    return html_response(decision_page(wait, decided.decision, is_new=not decided.repeated))


async def receive_callback(links: LinkApp, request: Request, receive: Receive, token: Secret) -> Response:
    """Deliver the payload of a callback.

    The store checks the payload by the schema that it keeps with the waitpoint. A process that knows the type itself
    checks the payload before, because a schema cannot express every rule of a type.
    """
    payload = read_payload(request, await read_body(request, receive, links.body_timeout_s))
    key = read_key(request)
    engine = await links.get_engine()
    wait = await _describe(engine, token, CALLBACK)
    # Check only payloads for open waitpoints, because a closed waitpoint must still acknowledge a repeated callback.
    if wait.end is None and links.check_payload is not None:
        problem = links.check_payload(wait.task, wait.key, payload)
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


async def _describe(engine: Engine, token: Secret, purpose: str) -> WaitpointDescription:
    """Return the waitpoint of a token. Raise HTTPError if the token is not genuine, or is for another purpose."""
    try:
        wait = await engine.waitpoints.describe(token)
    except (InvalidRequest, NotFound):
        raise link_not_usable() from None
    if wait.purpose not in (purpose, None):
        raise link_not_usable()
    return wait


async def _refuse(engine: Engine, token: Secret, error: Refused, *, as_json: bool) -> Response:
    """Return why a decision was not recorded."""
    if error.code != "approval_closed":
        raise HTTPError(409, "The decision could not be recorded. Ask the people who run the task.") from None
    if as_json:
        return json_response({"error": error.message, "end": error.fields["end"]}, _GONE)
    return html_response(closed_page(await _describe(engine, token, APPROVAL)), _GONE)
