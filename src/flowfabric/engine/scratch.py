"""A namespace for trying something out, of which nothing is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

from flowfabric.core import limits
from flowfabric.engine.context import Context
from flowfabric.ops.erase import erase_next


@asynccontextmanager
async def scratch_context(context: Context) -> AsyncIterator[Context]:
    """The same surroundings in a namespace whose name nobody else knows; what is in it is removed at the end."""
    scratch = context.within(f"scratch-{uuid4()}")
    try:
        yield scratch
    finally:
        erase = partial(erase_next, namespace=scratch.namespace, limit=limits.BATCH)
        while await scratch.store.run(erase):
            pass
