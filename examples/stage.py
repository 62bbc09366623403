"""Run an example on the store that --store or FLOWFABRIC_STORE names, or else on a temporary SQLite file.

An `App()` without an address reads FLOWFABRIC_STORE, so an example needs no other configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

STORE = "FLOWFABRIC_STORE"


def play(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the main function of an example."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--store", metavar="URL", help="postgresql://… or the path of a SQLite file")
    chosen = parser.parse_args().store or os.environ.get(STORE)
    # Some examples fail on purpose, so keep the log out of their output.
    logging.basicConfig(level=logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="flowfabric-") as folder:
        os.environ[STORE] = chosen or str(Path(folder, "example.db"))
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            sys.exit(130)
