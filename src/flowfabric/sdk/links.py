"""Where a token leads to over HTTP: the addresses that people and other programs are given.

    BASE/TOKEN             an approval: a page that asks; only its buttons decide
    BASE/callback/TOKEN    a callback: takes the payload that is posted to it

What answers there is `app.asgi()`. An address holds its token, so it is as secret as the token.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.secret import Secret

CALLBACK_FOLDER = "callback"


def link(base_url: str, token: str | Secret) -> str:
    """The address where an approver decides."""
    return f"{checked_base(base_url)}/{_text(token)}"


def callback_url(base_url: str, token: str | Secret) -> str:
    """The address that a payload is posted to."""
    return f"{checked_base(base_url)}/{CALLBACK_FOLDER}/{_text(token)}"


def checked_base(base_url: str) -> str:
    """The address of `app.asgi()` as links begin with it: http or https, with a host, without query and fragment."""
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and base_url.isprintable()
    except (ValueError, AttributeError, TypeError):
        raise _wrong_base() from None
    if not good or " " in base_url or "?" in base_url or "#" in base_url:
        raise _wrong_base()
    return base_url.rstrip("/")


def _text(token: str | Secret) -> str:
    return token.reveal() if isinstance(token, Secret) else token


def _wrong_base() -> InvalidRequest:
    message = "the base of links must look like 'https://shop.example/ff', without a query and a fragment"
    return InvalidRequest("invalid_url", message, field="url")
