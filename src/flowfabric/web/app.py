"""The ASGI application that receives approvals by link, and callbacks.

    GET  /TOKEN             show the approval request, or its decision, without changing anything
    POST /TOKEN             decide: a form or JSON with decision=approve|reject and a comment
    POST /callback/TOKEN    receive a JSON payload

It runs alone under any ASGI server, or mounted under a prefix of a larger application. The token is only in the path.
This module never logs a path, but servers do, so their access logs are as secret as the links.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import MAX_TOKEN_CHARACTERS
from flowfabric.engine.engine import Engine
from flowfabric.runtime.signals import CALLBACK_FOLDER
from flowfabric.web.links import (
    LinkApp,
    PayloadCheck,
    link_not_usable,
    receive_callback,
    receive_decision,
    show_approval,
)
from flowfabric.web.request import ClientDisconnected, Receive, Request, check_header_size, parse_request
from flowfabric.web.responses import HTTPError, Response, Send, error_response, send_response

ASGIApp = Callable[[Any, Receive, Send], Awaitable[None]]

_ROUTE = re.compile(rf"/({CALLBACK_FOLDER}/)?([A-Za-z0-9_.-]{{1,{MAX_TOKEN_CHARACTERS}}})")
_RETRY_AFTER = (b"retry-after", b"5")
_log = logging.getLogger(__name__)


def asgi_app(
    get_engine: Callable[[], Awaitable[Engine]],
    *,
    check_payload: PayloadCheck | None = None,
    close: Callable[[], Awaitable[None]] | None = None,
    body_timeout_s: float = 10.0,
) -> ASGIApp:
    """Return an ASGI application. It calls `get_engine` for every request.

    `check_payload(kind, waitpoint key, payload)` returns a message about an invalid payload of a callback. It returns
    None if the payload is valid or its type is unknown. `close` is called when a server that runs only this application
    shuts down. `body_timeout_s` limits the time to receive a request body.
    """
    links = LinkApp(get_engine, check_payload, body_timeout_s)

    async def receive_links(scope: Any, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await _serve(links, scope, receive, send)
            case "lifespan":
                await _lifespan(links, close, receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1008})
            case other:
                raise ValueError(f"links need HTTP, not {other!r}")

    return receive_links


async def _serve(links: LinkApp, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    request = parse_request(scope)
    as_json = request.sends_json or request.path.startswith(f"/{CALLBACK_FOLDER}/")
    try:
        response = await _respond(links, scope, request, receive)
    except ClientDisconnected:
        return
    except HTTPError as error:
        response = error_response(error, as_json=as_json)
    await send_response(send, response, with_body=request.method != "HEAD")


async def _respond(links: LinkApp, scope: Mapping[str, Any], request: Request, receive: Receive) -> Response:
    check_header_size(scope)
    match_ = _ROUTE.fullmatch(request.path)
    if match_ is None:
        raise link_not_usable()
    folder, token = match_[1], Secret(match_[2])
    del match_
    try:
        return await _dispatch(links, request, receive, token, is_callback=folder is not None)
    except (ClientDisconnected, HTTPError):
        raise
    except FlowFabricError as error:
        # The store is unavailable, closed or not set up. Show this only to the operator, not to the client.
        _log.warning("Request for a link or callback failed: %s", error.code)
        raise HTTPError(503, "The service is not available at the moment. Try again soon.", _RETRY_AFTER) from None
    except Exception as error:
        # The message and the traceback may contain the token, so only the class is logged.
        _log.error("Request for a link or callback failed unexpectedly: %s", type(error).__name__)
        raise HTTPError(500, "The request failed.") from None


async def _dispatch(
    links: LinkApp, request: Request, receive: Receive, token: Secret, *, is_callback: bool
) -> Response:
    match request.method, is_callback:
        case "GET" | "HEAD", False:
            return await show_approval(links, token)
        case "POST", False:
            return await receive_decision(links, request, receive, token)
        case "POST", True:
            return await receive_callback(links, request, receive, token)
    allowed = b"POST" if is_callback else b"GET, HEAD, POST"
    raise HTTPError(405, "The method is not allowed for this address.", (b"allow", allowed))


async def _lifespan(links: LinkApp, close: Callable[[], Awaitable[None]] | None, receive: Receive, send: Send) -> None:
    """Handle startup and shutdown. An unavailable store does not prevent startup, but an invalid setup does."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send(await _start(links))
        else:
            if close is not None:
                await close()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _start(links: LinkApp) -> dict[str, str]:
    try:
        await links.get_engine()
    except Unavailable as error:
        _log.warning("Store is not available yet: %s", error.code)
    except FlowFabricError as error:
        return {"type": "lifespan.startup.failed", "message": str(error)}
    return {"type": "lifespan.startup.complete"}
