"""A forked process never uses the connections of its parent, and never continues a run of its parent."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowfabric.engine import FlowFabricError
from tests.faults.kit.processes import run_program
from tests.scenarios import submitted
from tests.stores import TestStore, opened

KINDS_OF_CODE = 6
PATIENCE_S = 20.0


async def test_child_forked_in_a_task_exits_with_one_log_line_and_the_worker_records_each_step_once(
    store: TestStore,
) -> None:
    report, log = await run_program(store, "forks", KINDS_OF_CODE, PATIENCE_S)
    assert report["results"] == list(range(KINDS_OF_CODE))
    assert sorted(report["begun"]) == [str(n) for n in range(KINDS_OF_CODE)]
    assert report["exit_codes"] == [1] * KINDS_OF_CODE
    assert len([line for line in log if "was forked inside" in line]) == KINDS_OF_CODE
    assert not [line for line in log if "Traceback" in line or "lost" in line]


async def test_engine_is_refused_in_a_forked_child_and_works_in_its_parent(store: TestStore) -> None:
    async with opened(store) as engine:
        assert run_in_fork(lambda: first_step(engine.executions.count())) == "store_forked"
        assert run_in_fork(lambda: first_step(engine.operator.cancel(engine.mint_id()))) == "store_forked"
        assert run_in_fork(lambda: first_step(engine._context.store.close())) == "closed"
        await submitted(engine)
    if store.name == "sqlite":
        assert await store.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


async def test_forked_child_holds_no_connection_to_the_server(store: TestStore) -> None:
    sockets_of_others = server_sockets()  # Stores of earlier tests stay open.
    async with opened(store) as engine:
        with engine.leases.watch(["default"]):
            await submitted(engine)
            sockets = server_sockets()
            assert run_in_fork(lambda: len(sockets & server_sockets())) == "0"
            assert server_sockets() >= sockets
        await submitted(engine)
    assert bool(sockets - sockets_of_others) is (store.name == "postgres")


def server_sockets() -> set[str]:
    """Return the Unix and TCP sockets of this process that belong to connections of engines."""
    from flowfabric.store import forks

    connections: list[Any] = [each for each in (*forks._open, *forks._left) if hasattr(each, "get_server_pid")]
    numbers = [each._transport.get_extra_info("socket").fileno() for each in connections if not each.is_closed()]
    targets = {str(Path(f"/proc/self/fd/{number}").readlink()) for number in numbers}
    return targets - {os.devnull}


def first_step(coroutine: Any) -> str:
    """Return the code of the error that a call raises before its first await."""
    try:
        coroutine.send(None)
    except FlowFabricError as error:
        return error.code
    except StopIteration:
        return "closed"
    return "no error"


def run_in_fork(look: Callable[[], object]) -> str:
    """Run the check in a forked child and return its result."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # A child that hangs must not block its parent. A child that fails must exit here and not continue with the
        # tests.
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            os.write(writing, str(look()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as result:
        return result.read()
