"""Where an example runs: on the store that --store or FLOWFABRIC_STORE names, else on a SQLite file that is gone after.

An `App()` without a store takes the one of the environment, so this is all that an example needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

STORE = "FLOWFABRIC_STORE"


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a story to its end."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--store", metavar="URL", help="postgresql://… or the path of a SQLite file")
    chosen = parser.parse_args().store or os.environ.get(STORE)
    with tempfile.TemporaryDirectory(prefix="flowfabric-") as folder:
        os.environ[STORE] = chosen or str(Path(folder, "example.db"))
        try:
            asyncio.run(story())
        except KeyboardInterrupt:
            sys.exit(130)
