"""Runs the programs of `tests.faults.process_programs` in their own processes."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from tests.stores import PostgresTestStore, TestStore

ROOT = Path(__file__).parents[3]
MODULE = "tests.faults.process_programs"
PATIENCE_S = 170.0


async def start_program(store: TestStore, program: str, argument: object) -> Process:
    """Start a program on a store, with pipes for its output."""
    schema = store.schema if isinstance(store, PostgresTestStore) else "flowfabric"
    command = [sys.executable, "-m", MODULE, program, store.url, schema, str(argument)]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)


async def run_program(
    store: TestStore, program: str, argument: object, patience_s: float = PATIENCE_S
) -> tuple[dict[str, Any], list[str]]:
    """Run a program to its end. Return its report and the lines of its log."""
    process = await start_program(store, program, argument)
    try:
        async with asyncio.timeout(patience_s):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    log = errors.decode().splitlines()
    if process.returncode != 0:
        raise RuntimeError(f"the program {program} exited with {process.returncode}: {log}")
    report: dict[str, Any] = json.loads(output)
    return report, log
