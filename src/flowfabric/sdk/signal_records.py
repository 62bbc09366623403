"""Signals as a record remembers them: the whole of each, so that every later run is answered alike."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.waits import Effect, Signal

_TIMES = ("created_at", "accepted_at")
_IDS = ("id", "execution_id", "waitpoint_id")
_NAMES = tuple(item.name for item in fields(Signal))


def to_facts(signal: Signal) -> dict[str, Any]:
    """The signal as JSON; what is absent is left out."""
    found = {name: getattr(signal, name) for name in _NAMES}
    found["payload"] = base64.b64encode(signal.payload).decode()
    for name in _TIMES:
        found[name] = found[name] and found[name].isoformat()
    for name in _IDS:
        found[name] = found[name] and str(found[name])
    return {name: value for name, value in found.items() if value is not None}


def from_facts(documents: Iterable[Mapping[str, Any]]) -> list[Signal]:
    """The signals behind their JSON."""
    return [_signal(document) for document in documents]


def _signal(document: Mapping[str, Any]) -> Signal:
    found: dict[str, Any] = {name: document.get(name) for name in _NAMES}
    found["payload"] = base64.b64decode(document.get("payload", ""))
    found["effect"] = Effect(document["effect"])
    for name in _TIMES:
        found[name] = found[name] and datetime.fromisoformat(found[name])
    for name in _IDS:
        found[name] = found[name] and UUID(found[name])
    return Signal(**found)
