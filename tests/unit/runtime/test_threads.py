"""Tests for the thread pools of plain functions: bounds, separation and shutdown."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from flowfabric.runtime.threads import DaemonThreads, ThreadPools


def test_pool_starts_threads_on_demand_up_to_its_maximum() -> None:
    threads = DaemonThreads(3, "test")
    gate, all_in = threading.Event(), threading.Barrier(4)

    def meet_and_name_thread() -> str:
        all_in.wait(10)
        gate.wait(10)
        return threading.current_thread().name

    busy = [threads.submit(meet_and_name_thread) for _ in range(3)]
    all_in.wait(10)
    queued = threads.submit(lambda: threading.current_thread().name)
    assert not queued.done()
    gate.set()
    names = {future.result(10) for future in (*busy, queued)}
    assert names == {"test-1", "test-2", "test-3"}
    threads.shutdown()


def test_pool_reuses_idle_threads() -> None:
    threads = DaemonThreads(8, "test")
    names = {threads.submit(lambda: threading.current_thread().name).result(10)}
    for _ in range(100):
        names.add(threads.submit(lambda: threading.current_thread().name).result(10))
    assert len(names) == 1
    threads.shutdown()


def test_future_raises_the_error_of_its_function() -> None:
    threads = DaemonThreads(1, "test")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(10)
    with pytest.raises(SystemExit):
        threads.submit(sys.exit).result(10)
    assert threads.submit(lambda: 5).result(10) == 5
    threads.shutdown()


def test_waiting_task_bodies_do_not_block_their_steps() -> None:
    pools = ThreadPools(2)
    bodies = [pools.tasks.submit(lambda: pools.steps.submit(lambda: "stepped").result(10)) for _ in range(10)]
    assert {body.result(10) for body in bodies} == {"stepped"}
    pools.close()


def test_closing_the_pools_cancels_queued_calls() -> None:
    pools = ThreadPools(1)
    gate, started = threading.Event(), threading.Event()

    def block() -> bool:
        started.set()
        return gate.wait(10)

    running = pools.steps.submit(block)
    assert started.wait(10)
    queued = pools.steps.submit(lambda: None)
    pools.close()
    assert queued.cancelled()
    with pytest.raises(RuntimeError, match="has ended"):
        pools.steps.submit(lambda: None)
    gate.set()
    assert wait([running], 10).not_done == set()


def test_process_exits_although_a_thread_is_stuck() -> None:
    code = (
        "import threading; from flowfabric.runtime.threads import ThreadPools\n"
        "begun = threading.Event()\n"
        "pools = ThreadPools(1)\n"
        "pools.tasks.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait(); pools.close(); print('bye')"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, capture_output=True, check=True).stdout == b"bye\n"
