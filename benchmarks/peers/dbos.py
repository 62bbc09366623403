"""DBOS: workflows on a queue that is polled every 10 ms instead of every second, and workflows of steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from dbos import DBOS

from benchmarks.peers.driving import Threads
from benchmarks.peers.protocol import Turn, serve

_POLLING_S = 0.01


def _launch(turn: Turn) -> None:
    store = turn.request.store
    url = store if store.startswith("postgresql") else f"sqlite:///{store}"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    logging.getLogger("dbos").setLevel(logging.ERROR)


def _queued(turn: Turn) -> tuple[Threads, Callable[[], Any]]:
    _launch(turn)
    driver = Threads(turn)

    @DBOS.workflow()
    def trivial(number: int) -> int:
        driver.ran()
        return number

    DBOS.launch()
    _check_durability(turn)
    queue = DBOS.register_queue("bench", polling_interval_sec=_POLLING_S)
    return driver, lambda: queue.enqueue(trivial, 1)


def jobs(turn: Turn) -> None:
    driver, submit = _queued(turn)
    driver.rate(submit)


def start(turn: Turn) -> None:
    driver, submit = _queued(turn)
    driver.starts(submit)


def steps(turn: Turn) -> None:
    _launch(turn)
    driver, number = Threads(turn), turn.request.number

    @DBOS.step()
    def nothing(value: int) -> int:
        return value

    @DBOS.workflow()
    def several_steps() -> int:
        for value in range(number):
            nothing(value)
        driver.ran()
        return number

    DBOS.launch()
    _check_durability(turn)
    driver.rate(lambda: DBOS.start_workflow(several_steps), per_job=number)


def _check_durability(turn: Turn) -> None:
    import sqlalchemy
    from dbos._dbos import _get_dbos_instance

    is_postgres = turn.request.store.startswith("postgresql")
    text, wanted = ("SHOW synchronous_commit", "on") if is_postgres else ("PRAGMA synchronous", "2")
    with _get_dbos_instance()._sys_db.engine.connect() as connection:
        found = connection.execute(sqlalchemy.text(text)).scalar()
    if str(found) != wanted:
        raise RuntimeError(f"{text} is {found}, not {wanted}")


if __name__ == "__main__":
    serve(f"DBOS {version('dbos')}, queue polled every 10 ms", {"jobs": jobs, "start": start, "steps": steps})
