"""A process that uses a store under a restriction and prints the result: `-m tests.adversity.storage_child HOW URL`.

`limited`: no file may grow beyond a few hundred kilobytes. `unprivileged`: the process must obey file permissions.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from flowfabric.engine import Created, FlowFabricError, connect

MOST_BYTES = 1_000_000
CAPABILITY_VERSION_3 = 0x20080522


async def main(how: str, url: str) -> None:
    _write_line("ready")
    sys.stdin.readline()
    if how == "limited":
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    elif os.geteuid() == 0:
        _give_up_capabilities()
    acknowledged: list[str] = []
    code, log_bytes = "", 0
    try:
        async with connect(url) as engine:
            for _ in range(100):
                result = await engine.executions.submit("job", b"x" * 50_000)
                assert isinstance(result, Created)
                acknowledged.append(str(result.id))
            log_bytes = _log_size(url)
    except FlowFabricError as error:
        code = error.code
    except Exception as error:
        code = repr(error)
    _write_line({"code": code, "acknowledged": acknowledged, "log_bytes": log_bytes})


def _log_size(url: str) -> int:
    return Path(url + "-wal").stat().st_size


def _give_up_capabilities() -> None:
    """Drop the capabilities of root, so that file permissions apply to this process."""
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _write_line(result: Any) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
