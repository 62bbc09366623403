"""The ledgers that show whether a run was correct, and the flags that its processes share.

    client ledger    every submit and whether it was acknowledged; written through to the disk
    witness ledger   the actions of each handler run, one append-only file per process
    fenced service   an external system that refuses effects whose fence is older than the newest it has seen
    flags            one byte per worker in shared memory: whether it is inside a transaction right now

A killed process leaves only complete lines, because each line is one write.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUTSIDE, IN_TRANSACTION, IN_STATEMENT = 0, 1, 2
FLAGS = 64


class Ledger:
    """An append-only file of JSON lines."""

    def __init__(self, path: Path, *, synced: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._synced = synced

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at": time.time()} | facts, default=str)
        os.write(self._file, line.encode() + b"\n")
        if self._synced:
            os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a ledger in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Run:
    """The folder of one run and the files in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("witness", "effects"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        flags = folder / "flags"
        if not flags.exists():
            flags.write_bytes(bytes(FLAGS))

    @property
    def client_path(self) -> Path:
        return self.folder / "client.jsonl"

    def client(self) -> Ledger:
        """The client ledger, for the load generator."""
        return Ledger(self.client_path, synced=True)

    def witness(self, instance: str) -> Ledger:
        """Return the witness ledger of one worker process."""
        return Ledger(self.folder / "witness" / f"{instance}.jsonl")

    def witnessed(self) -> Iterator[dict[str, Any]]:
        """Return the lines that all workers wrote. Each line names its worker."""
        for path in sorted((self.folder / "witness").iterdir()):
            yield from (line | {"instance": path.stem} for line in read_ledger(path))

    def woken_path(self, instance: str) -> Path:
        """Return the path of a file that exists once a frozen worker has been woken."""
        return self.folder / f"woken-{instance}"

    def flags(self) -> mmap.mmap:
        """The shared flags, one byte per worker."""
        with (self.folder / "flags").open("r+b") as file:
            return mmap.mmap(file.fileno(), FLAGS)

    def take_effect(self, execution: str, epoch: int, lease_id: str) -> bool:
        """Record an effect under this fence in the fenced service.

        Return False if the service has seen a newer fence.
        """
        file = os.open(self.folder / "effects" / execution, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            seen = [int(line.split()[0]) for line in os.read(file, 1 << 20).splitlines()]
            if seen and max(seen) > epoch:
                return False
            os.write(file, f"{epoch} {lease_id}\n".encode())
            return True
        finally:
            os.close(file)

    def effects(self, execution: str) -> list[tuple[int, str]]:
        """Return the effects that the service accepted for an execution, in order."""
        path = self.folder / "effects" / execution
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(int(epoch), lease_id) for epoch, lease_id in (line.split() for line in lines)]
