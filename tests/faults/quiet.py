"""Waiting until nothing is going on in this event loop any more."""

from __future__ import annotations

import asyncio


async def quiet() -> None:
    """Returns when every other task has ended; what a call left running in the background is then done."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
