"""Warn about files with secrets that every user of the host can read."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

_log = logging.getLogger("flowfabric.store")
_OTHERS_READ = 0o004


def can_others_read(path: str) -> bool:
    """Return whether every user of the host may read the file, as far as its own mode decides."""
    try:
        return bool(Path(path).stat().st_mode & _OTHERS_READ)
    except OSError:
        return False


@cache
def warn_if_readable(path: str) -> None:
    """Log a warning if every user of the host may read the file, once per file and process."""
    if can_others_read(path):
        _log.warning("Every user of this host can read %s, which contains signing keys; run chmod o-rwx on it", path)
