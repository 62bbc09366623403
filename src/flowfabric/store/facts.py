"""What a store says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What the store runs on, the version of its schema, the settings that durability hangs on, and its time."""

    backend: str
    version: str
    schema_version: int
    settings: Mapping[str, str]
    now: datetime
