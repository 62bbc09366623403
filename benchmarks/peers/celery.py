"""Celery: a worker with two processes, late acknowledgement and stored results. Each task appends a byte to a file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from celery import Celery

from benchmarks.peers.protocol import Turn, serve

_URL, _LEDGER = "BENCH_CELERY_URL", "BENCH_CELERY_LEDGER"
_PROCESSES = 2
_LATEST_S = 60.0

app = Celery("bench", broker=os.environ.get(_URL), backend=os.environ.get(_URL))
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)


@app.task(name="trivial")
def trivial() -> float:
    at = time.perf_counter()
    ledger = os.open(os.environ[_LEDGER], os.O_WRONLY | os.O_APPEND)
    os.write(ledger, b"x")
    os.close(ledger)
    return at


def jobs(turn: Turn) -> None:
    with _working(turn) as ledger:
        sent: list[int] = [0]
        threading.Thread(target=_feed, args=(turn, ledger, sent), daemon=True).start()
        _wait_until(lambda: ledger.stat().st_size >= 20)
        turn.begin()
        before = sent[0], ledger.stat().st_size
        time.sleep(turn.request.seconds)
        turn.end(min(sent[0] - before[0], ledger.stat().st_size - before[1]))


def start(turn: Turn) -> None:
    with _working(turn):
        for _ in range(3):
            trivial.delay().get(timeout=_LATEST_S)
        turn.begin()
        times = []
        for _ in range(turn.request.number):
            time.sleep(0.01)
            began = time.perf_counter()
            times.append((trivial.delay().get(timeout=_LATEST_S) - began) * 1000)
        turn.end(len(times), times_ms=times)


def _feed(turn: Turn, ledger: Path, sent: list[int]) -> None:
    while True:
        while sent[0] - ledger.stat().st_size >= turn.request.in_flight:
            time.sleep(0.002)
        trivial.delay()
        sent[0] += 1


@contextmanager
def _working(turn: Turn) -> Iterator[Path]:
    """Start a worker and yield the file that grows by one byte with every task."""
    path, _, number = turn.request.store.removeprefix("unix://").partition("?db=")
    url = f"redis+socket://{path}?virtual_host={number}"
    app.conf.update(broker_url=url, result_backend=url)
    ledger = Path(path).parent / f"celery-{os.getpid()}"
    ledger.touch()
    command = (sys.executable, "-m", "celery", "-A", "benchmarks.peers.celery", "worker", "-c", str(_PROCESSES))
    environment = os.environ | {_URL: url, _LEDGER: str(ledger)}
    with subprocess.Popen([*command, "--loglevel=ERROR"], env=environment) as process:
        try:
            yield ledger
        finally:
            process.kill()


def _wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + _LATEST_S
    while not condition():
        if time.monotonic() > ends:
            raise RuntimeError("the worker did not start")
        time.sleep(0.02)


if __name__ == "__main__":
    serve(f"Celery {version('celery')}, {_PROCESSES} processes", {"jobs": jobs, "start": start})
