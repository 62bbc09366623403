"""A later release for tests: both backends ship one more migration, which exists only here.

The extra migration lets the tests upgrade a store. It adds a column, an index,
and a table that it fills from existing rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flowfabric.backends.postgres import migrate as postgres
from flowfabric.backends.sqlite import migrate as sqlite
from flowfabric.store.migrations import Migration, load_migrations

SCRIPT = """
ALTER TABLE ff.lane ADD COLUMN remark TEXT NOT NULL DEFAULT 'none';
CREATE TABLE ff.lane_count (
    lane TEXT NOT NULL PRIMARY KEY,
    executions INTEGER NOT NULL
);
INSERT INTO ff.lane_count (lane, executions) SELECT lane, COUNT(*) FROM ff.execution GROUP BY lane;
CREATE INDEX lane_count_executions ON ff.lane_count (executions);
"""


def load_next_migrations(backend_package: str) -> list[Migration]:
    """Return the shipped migrations of a backend and the one of the next release."""
    shipped = load_migrations(backend_package)
    version = shipped[-1].version + 1
    digest = hashlib.sha256(SCRIPT.encode()).hexdigest()
    return [*shipped, Migration(version, f"{version:04}_next_release", digest, SCRIPT)]


@contextmanager
def next_release() -> Iterator[None]:
    """Make this process the next release until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "load_migrations", load_next_migrations)
        patch.setattr(sqlite, "load_migrations", load_next_migrations)
        yield
