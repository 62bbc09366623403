"""What is answered, and the headers that go with everything: nothing is kept, framed, sniffed or passed on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from flowfabric.asgi import pages

Send = Callable[[Any], Awaitable[None]]

_POLICY = (
    f"default-src 'none'; style-src '{pages.STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_ALWAYS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"x-robots-tag", b"noindex, nofollow"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body of a type, and headers beside those that all answers have."""

    status: int
    body: bytes
    content_type: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def with_headers(self, *headers: tuple[bytes, bytes]) -> Answer:
        """The same answer with these headers too."""
        return replace(self, headers=(*self.headers, *headers))


class Refusal(Exception):
    """A request that is refused whatever token it has; the words are ours, never the sender's."""

    def __init__(self, status: int, words: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(words)
        self.status, self.words, self.headers = status, words, headers


def page(text: str, status: int = 200) -> Answer:
    """An HTML page for people."""
    return Answer(status, text.encode(errors="replace"), b"text/html; charset=utf-8")


def document(value: dict[str, Any], status: int = 200) -> Answer:
    """A JSON document for programs."""
    return Answer(status, json.dumps(value).encode(), b"application/json")


def refusal(refused: Refusal, *, as_json: bool) -> Answer:
    """A refusal in the form that its sender reads."""
    answer = (
        document({"error": refused.words}, refused.status)
        if as_json
        else page(pages.message(pages.REFUSED, refused.words), refused.status)
    )
    return answer.with_headers(*refused.headers)


async def send_answer(send: Send, answer: Answer, *, with_body: bool = True) -> None:
    """Sends an answer, to HEAD without its body."""
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", b"%d" % len(answer.body)),
        *_ALWAYS,
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if with_body else b""})
