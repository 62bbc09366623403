"""Huey: tasks run by eight threads. Redis pushes jobs; SQLite is polled every 10 ms instead of every 100 ms or more."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks.peers.driving import Threads
from benchmarks.peers.protocol import Turn, serve

_THREADS = 8
_POLLING_S = 0.01


def _working(turn: Turn) -> tuple[Threads, Callable[[], Any]]:
    driver, store = Threads(turn), turn.request.store
    logging.getLogger("huey").setLevel(logging.ERROR)
    if store.startswith("unix:"):
        huey = RedisHuey("bench", url=store, blocking=True)
    else:
        huey = SqliteHuey("bench", filename=store, fsync=True)

    @huey.task()
    def trivial(number: int) -> int:
        driver.ran()
        return number

    options = {"periodic": False, "initial_delay": _POLLING_S, "max_delay": _POLLING_S, "check_worker_health": False}
    huey.create_consumer(workers=_THREADS, worker_type="thread", **options).start()
    return driver, lambda: trivial(1)


def jobs(turn: Turn) -> None:
    driver, submit = _working(turn)
    driver.rate(submit, callers=2)


def start(turn: Turn) -> None:
    driver, submit = _working(turn)
    driver.starts(submit)


if __name__ == "__main__":
    serve(f"Huey {version('huey')}, {_THREADS} threads", {"jobs": jobs, "start": start})
