"""Submits in transactions of Django: `options(connection=django.db.connection)` inside `transaction.atomic()`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.db import connections, transaction

from flowfabric import App, Handle
from flowfabric.engine import Engine, InvalidRequest
from tests.callers import DjangoCaller, django_connection, make_table, notes
from tests.stores import TestStore, opened


@pytest.fixture
async def engine(store: TestStore) -> AsyncIterator[Engine]:
    async with opened(store) as engine:
        await make_table(store)
        yield engine


@pytest.fixture
async def caller(store: Any, engine: Engine) -> AsyncIterator[DjangoCaller]:
    """Yield a program with an open transaction of Django."""
    async with django_connection(store, engine) as caller:
        assert isinstance(caller, DjangoCaller)
        yield caller


@pytest.fixture
async def app(engine: Engine) -> App:
    app = App("never-opened.db")
    app.engines.adopt(engine)

    @app.task
    def job(number: int) -> None: ...

    return app


async def submit(app: App, connection: object, number: int) -> Handle[Any]:
    handle: Handle[Any] = await app.tasks["job"].options(connection=connection).submit(number)
    return handle


async def submitted_ids(engine: Engine) -> list[object]:
    return [execution.id for execution in (await engine.executions.list()).items]


async def test_execution_commits_with_the_rows_of_django(
    store: TestStore, engine: Engine, caller: DjangoCaller, app: App
) -> None:
    handle = await submit(app, caller.connection, 1)
    await caller.note("paid")
    await caller.commit()
    wrapper = await submit(app, connections[caller.alias], 2)
    await caller.rollback()
    assert await notes(store) == ["paid"]
    assert await submitted_ids(engine) == [handle.id] and wrapper.id != handle.id


async def test_inner_atomic_that_is_rolled_back_discards_the_execution(
    engine: Engine, caller: DjangoCaller, app: App
) -> None:
    outer = await submit(app, caller.connection, 1)
    with transaction.atomic(using=caller.alias):
        _ = await submit(app, caller.connection, 2)
        transaction.set_rollback(True, using=caller.alias)
    after = await submit(app, caller.connection, 3)
    await caller.commit()
    assert await submitted_ids(engine) == [after.id, outer.id]


async def test_connection_outside_of_atomic_is_refused_with_advice(
    engine: Engine, caller: DjangoCaller, app: App
) -> None:
    caller.end()
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"enter `with transaction\.atomic\(\):` first") as refused:
            _ = await submit(app, caller.connection, 1)
        assert refused.value.code == "no_transaction"
        caller.connection.close()  # The second time, Django has no open connection.
    assert await submitted_ids(engine) == []


async def test_transaction_that_must_be_rolled_back_is_refused(engine: Engine, caller: DjangoCaller, app: App) -> None:
    transaction.set_rollback(True, using=caller.alias)
    with pytest.raises(InvalidRequest) as refused:
        _ = await submit(app, caller.connection, 1)
    assert refused.value.code == "transaction_aborted"
    caller.end()
    assert await submitted_ids(engine) == []
