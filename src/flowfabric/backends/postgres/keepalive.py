"""Connections that notice when the other side has vanished.

A host that loses its power or its network sends neither a message nor a reset. Without these settings, the system
notices after two hours, and until then the server keeps the rows of an open transaction locked:

| side | what vanished | setting | noticed after |
|---|---|---|---|
| server | the host of the client | TCP keepalives and user timeout, requested for the session | `VANISHED_S` |
| server | a client that sends nothing inside a transaction | idle-in-transaction timeout | `VANISHED_S` |
| client | the host of the server | TCP keepalives and user timeout of the socket | `VANISHED_S` |

A pooler has its own connections to both sides, so it needs its own keepalives.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import asyncpg

VANISHED_S = 20.0
_IDLE_S = 10
_INTERVAL_S = 5
_PROBES = 2
_USER_TIMEOUT_MS = int(VANISHED_S * 1000)
# The server ignores these settings for a Unix socket.
SERVER_KEEPALIVES: Mapping[str, str] = {
    "tcp_keepalives_idle": str(_IDLE_S),
    "tcp_keepalives_interval": str(_INTERVAL_S),
    "tcp_keepalives_count": str(_PROBES),
    "tcp_user_timeout": str(_USER_TIMEOUT_MS),
}
# The same settings of a socket. Some systems lack some of them.
_SOCKET_OPTIONS = {
    "TCP_KEEPIDLE": _IDLE_S, "TCP_KEEPINTVL": _INTERVAL_S, "TCP_KEEPCNT": _PROBES, "TCP_USER_TIMEOUT": _USER_TIMEOUT_MS,
}  # fmt: skip


def idle_limit_s(statement_timeout_s: float) -> float:
    """Return how long a session may send nothing inside a transaction, or inside a statement."""
    return min(VANISHED_S, 2 * statement_timeout_s)


class WatchedConnection(asyncpg.Connection):
    """A connection that breaks soon after the server's host has vanished."""

    def __init__(self, protocol: Any, transport: Any, *arguments: Any) -> None:
        super().__init__(protocol, transport, *arguments)
        _watch(transport)


def _watch(transport: Any) -> None:
    watched = transport.get_extra_info("socket")
    if watched is None or watched.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # uvloop does not let callers set options of its socket. Options of a copy apply to the same connection.
    with socket.fromfd(watched.fileno(), watched.family, socket.SOCK_STREAM) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SOCKET_OPTIONS.items():
            with suppress(OSError):
                if hasattr(socket, name):
                    copy.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
