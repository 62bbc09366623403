"""What is done at each address: a link asks and decides, a callback's address takes a payload.

A token that is unknown, forged, expired or used up has one answer, whatever is wrong with it; so have all refusals of
the engine. Only whoever decided before hears that decision again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from flowfabric.asgi import pages
from flowfabric.asgi.answers import Answer, Refusal, document, page
from flowfabric.asgi.asking import APPROVAL, CALLBACK, Asked, asked
from flowfabric.asgi.reading import (
    Receive,
    Request,
    read_body,
    read_comment,
    read_form,
    read_key,
    read_payload,
)  # fmt: skip
from flowfabric.core.errors import InvalidRequest, NotFound, Refused
from flowfabric.core.secret import Secret
from flowfabric.engine.engine import Engine
from flowfabric.sdk.deciding import APPROVE, REJECT, Decided, Word, call_back, decide

PayloadCheck = Callable[[str, str, bytes], str | None]

_MESSAGE_CHARACTERS = 2000
_REPEATED = {
    APPROVE: "This was decided before with this link: approved.",
    REJECT: "This was decided before with this link: rejected.",
    None: "This was decided before.",
}
_THANKS = {APPROVE: "Your approval is recorded.", REJECT: "Your rejection is recorded."}
_WORDS: dict[str | None, Word] = {APPROVE: APPROVE, REJECT: REJECT}


@dataclass(frozen=True, slots=True)
class House:
    """What all doors share: the engine, how payloads are checked, how things are called, the time, and patience."""

    engine_of: Callable[[], Awaitable[Engine]]
    payload_check: PayloadCheck | None
    title: Callable[[str, str], str] | None
    now: Callable[[], datetime]
    body_timeout_s: float


async def show(house: House, token: Secret) -> Answer:
    """The page that asks. It changes nothing: those who look through mail follow every link."""
    found = await asked(await house.engine_of(), token, house.now())
    if found is None or not found.is_open or not found.is_for(APPROVAL):
        raise no_such_link()
    title = found.title if house.title is None else house.title(found.kind, found.key)
    return page(pages.ask(title, found.kind, found.approver, found.expires_at))


async def take_decision(house: House, request: Request, receive: Receive, token: Secret) -> Answer:
    """Takes the decision of whoever holds the token. The first one counts; the answer says which that was."""
    fields = read_form(request, await read_body(request, receive, house.body_timeout_s))
    word, comment = _WORDS.get(fields.get("decision")), read_comment(fields)
    if word is None or set(fields) - {"decision", "comment", "reason"}:
        raise Refusal(400, "Say decision=approve or decision=reject, and if you like a comment.")
    read_key(request)
    engine = await house.engine_of()
    await _genuine(house, engine, token, APPROVAL)
    try:
        decided = await decide(engine, token, word, comment)
    except (InvalidRequest, NotFound, Refused):
        raise no_such_link() from None
    return _told(decided, as_json=request.sends_json)


async def take_callback(house: House, request: Request, receive: Receive, token: Secret) -> Answer:
    """Takes the payload of a callback, if it fits where that is known."""
    payload = read_payload(request, await read_body(request, receive, house.body_timeout_s))
    key = read_key(request)
    engine = await house.engine_of()
    found = await _genuine(house, engine, token, CALLBACK)
    # What is closed may still answer the repeat of what it took, so only what is open is looked at.
    if found.is_open and house.payload_check is not None:
        wrong = house.payload_check(found.kind, found.key, payload)
        if wrong is not None:
            return document({"error": wrong[:_MESSAGE_CHARACTERS]}, 422)
    try:
        await call_back(engine, token, payload, key=key)
    except (InvalidRequest, NotFound, Refused):
        raise no_such_link() from None
    return document({"accepted": True})


def no_such_link() -> Refusal:
    """The one answer to every token that cannot be used."""
    return Refusal(404, "This link cannot be used. It may be incomplete, used up, or past its time.")


async def _genuine(house: House, engine: Engine, token: Secret, purpose: str) -> Asked:
    found = await asked(engine, token, house.now())
    if found is None or not found.is_for(purpose):
        raise no_such_link()
    return found


def _told(decided: Decided, *, as_json: bool) -> Answer:
    if as_json:
        return document({"decision": decided.word, "repeated": decided.repeated})
    if decided.repeated or decided.word is None:
        return page(pages.message("Decided before", _REPEATED[decided.word]))
    return page(pages.message("Thank you", _THANKS[decided.word]))
