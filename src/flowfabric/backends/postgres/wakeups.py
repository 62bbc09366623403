"""How wake-ups travel: one NOTIFY channel per schema, and the lane that has work as the payload."""

from __future__ import annotations

import hashlib
import json

_LONGEST = 63


def wake_channel(schema: str) -> str:
    """The channel that the workers of a schema listen on."""
    channel = f"flowfabric.{schema}"
    if len(channel) <= _LONGEST:
        return channel
    return f"flowfabric.{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


def wake_payload(namespace: str, lane: str) -> str:
    """Which lane has work. Equal payloads of one transaction are delivered once, so it holds nothing else."""
    return json.dumps([namespace, lane], ensure_ascii=False)
