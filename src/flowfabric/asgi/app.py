"""The ASGI application that receives approvals by link, and callbacks.

    GET  /TOKEN             shows what is asked, and changes nothing
    POST /TOKEN             decides: a form or JSON with decision=approve|reject and a comment
    POST /callback/TOKEN    takes a JSON payload

It stands alone under any ASGI server, or is mounted under a prefix of a larger application. The token is in the path
and nowhere else; nothing here logs a path, but servers do: their access log is as secret as the links are.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from flowfabric.asgi.answers import Answer, Refusal, Send, refusal, send_answer
from flowfabric.asgi.doors import House, PayloadCheck, no_such_link, show, take_callback, take_decision
from flowfabric.asgi.reading import Gone, Receive, Request, check_size, request_of
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.secret import Secret
from flowfabric.core.tokens import TOKEN_CHARACTERS
from flowfabric.engine.engine import Engine
from flowfabric.sdk.links import CALLBACK_FOLDER

ASGIApp = Callable[[Any, Receive, Send], Awaitable[None]]

_ROUTE = re.compile(rf"/({CALLBACK_FOLDER}/)?([A-Za-z0-9_.-]{{1,{TOKEN_CHARACTERS}}})")
_RETRY_AFTER = (b"retry-after", b"5")
_log = logging.getLogger(__name__)


def asgi_app(
    engine_of: Callable[[], Awaitable[Engine]], *, payload_check: PayloadCheck | None = None,
    title: Callable[[str, str], str] | None = None, close: Callable[[], Awaitable[None]] | None = None,
    now: Callable[[], datetime] | None = None, body_timeout_s: float = 10.0,
) -> ASGIApp:  # fmt: skip
    """An ASGI application on the engine that `engine_of` answers, which is asked for with every request.

    `payload_check(kind, waitpoint key, payload)` says what is wrong with the payload of a callback; None if it fits or
    if the kind is not known here. `title(kind, waitpoint key)` is what a page calls the thing that is asked. `close`
    is called when a server that the application stands alone under shuts down. `now` and `body_timeout_s` are the time
    that pages go by and how long a body may take.
    """
    house = House(engine_of, payload_check, title, now or _utc_now, body_timeout_s)

    async def receive_links(scope: Any, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await _serve(house, scope, receive, send)
            case "lifespan":
                await _live(house, close, receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1008})
            case other:
                raise ValueError(f"links are received over HTTP, not over {other!r}")

    return receive_links


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def _serve(house: House, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    request = request_of(scope)
    as_json = request.sends_json or request.path.startswith(f"/{CALLBACK_FOLDER}/")
    try:
        answer = await _answer(house, scope, request, receive)
    except Gone:
        return
    except Refusal as refused:
        answer = refusal(refused, as_json=as_json)
    await send_answer(send, answer, with_body=request.method != "HEAD")


async def _answer(house: House, scope: Mapping[str, Any], request: Request, receive: Receive) -> Answer:
    check_size(scope)
    found = _ROUTE.fullmatch(request.path)
    if found is None:
        raise no_such_link()
    folder, token = found[1], Secret(found[2])
    del found
    try:
        return await _enter(house, request, receive, token, is_callback=folder is not None)
    except (Gone, Refusal):
        raise
    except FlowFabricError as error:
        # Whatever else the engine says is for whoever runs it: the store is down, closed or not set up.
        _log.warning("a link or callback has to wait: %s", error.code)
        raise Refusal(503, "This cannot be answered at the moment. Try again soon.", _RETRY_AFTER) from None
    except Exception as error:
        # Neither the words of the error nor its traceback are logged: they may hold what the path holds.
        _log.error("a link or callback could not be answered: %s", type(error).__name__)
        raise Refusal(500, "This cannot be answered.") from None


async def _enter(house: House, request: Request, receive: Receive, token: Secret, *, is_callback: bool) -> Answer:
    match request.method, is_callback:
        case "GET" | "HEAD", False:
            return await show(house, token)
        case "POST", False:
            return await take_decision(house, request, receive, token)
        case "POST", True:
            return await take_callback(house, request, receive, token)
    allowed = b"POST" if is_callback else b"GET, HEAD, POST"
    raise Refusal(405, "This method is not for this address.", (b"allow", allowed))


async def _live(house: House, close: Callable[[], Awaitable[None]] | None, receive: Receive, send: Send) -> None:
    """Starts even if the store is down, since it may come; what can never work is told to the server."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send(await _started(house))
        else:
            if close is not None:
                await close()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _started(house: House) -> dict[str, str]:
    try:
        await house.engine_of()
    except Unavailable as error:
        _log.warning("the store cannot be reached yet: %s", error.code)
    except FlowFabricError as error:
        return {"type": "lifespan.startup.failed", "message": str(error)}
    return {"type": "lifespan.startup.complete"}
