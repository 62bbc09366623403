"""Where the secrets of the key ring come from: a file, an environment variable, or the store itself."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.key_file import FileKey, parse_key_file
from flowfabric.core.secret import Secret
from flowfabric.ops.key_ring import KeySource, drawn_key

FILE_VARIABLE = "FLOWFABRIC_KEY_FILE"
KEYS_VARIABLE = "FLOWFABRIC_KEYS"


def key_source(key_file: str | None) -> KeySource:
    """The keys of this file; else those that the environment names or holds; else whatever the store has."""
    path = (os.environ.get(FILE_VARIABLE) or None) if key_file is None else limits.text(key_file, "key_file")
    if path is not None:
        return KeySource(draw_key, parse_key_file(_content(path), path), path)
    if text := os.environ.get(KEYS_VARIABLE):
        where = f"the variable {KEYS_VARIABLE}"
        return KeySource(draw_key, parse_key_file(Secret(text), where), where)
    return KeySource(draw_key)


def draw_key() -> FileKey:
    """A kid that tells its day, and a secret of 32 random bytes."""
    return drawn_key(f"{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(4)}", secrets.token_hex(32))


def _content(path: str) -> Secret:
    try:
        return Secret(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        message = f"the key file {path} cannot be read: {reason}"
        raise InvalidRequest("invalid_key_file", message, where=path) from None
