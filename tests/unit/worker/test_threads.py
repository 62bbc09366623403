"""The threads for plain functions: bounded, apart from each other, and nothing that a process waits for."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from flowfabric.sdk.threads import DaemonThreads, ThreadPools


def test_no_more_threads_than_allowed_and_no_more_than_needed() -> None:
    threads = DaemonThreads(3, "test")
    gate, all_in = threading.Event(), threading.Barrier(4)

    def meet() -> str:
        all_in.wait(10)
        gate.wait(10)
        return threading.current_thread().name

    busy = [threads.submit(meet) for _ in range(3)]
    all_in.wait(10)
    queued = threads.submit(lambda: threading.current_thread().name)
    assert not queued.done()
    gate.set()
    names = {future.result(10) for future in (*busy, queued)}
    assert names == {"test-1", "test-2", "test-3"}
    threads.shutdown()


def test_idle_threads_are_used_again() -> None:
    threads = DaemonThreads(8, "test")
    names = {threads.submit(lambda: threading.current_thread().name).result(10)}
    for _ in range(100):
        names.add(threads.submit(lambda: threading.current_thread().name).result(10))
    assert len(names) == 1
    threads.shutdown()


def test_a_failure_is_the_callers() -> None:
    threads = DaemonThreads(1, "test")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(10)
    with pytest.raises(SystemExit):
        threads.submit(sys.exit).result(10)
    assert threads.submit(lambda: 5).result(10) == 5
    threads.shutdown()


def test_bodies_that_wait_for_their_steps_are_not_in_their_way() -> None:
    pools = ThreadPools(2)
    bodies = [pools.tasks.submit(lambda: pools.steps.submit(lambda: "stepped").result(10)) for _ in range(10)]
    assert {body.result(10) for body in bodies} == {"stepped"}
    pools.close()


def test_what_waits_is_cancelled_when_the_pools_are_closed() -> None:
    pools = ThreadPools(1)
    gate, begun = threading.Event(), threading.Event()

    def stuck() -> bool:
        begun.set()
        return gate.wait(10)

    running = pools.steps.submit(stuck)
    assert begun.wait(10)
    waiting = pools.steps.submit(lambda: None)
    pools.close()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="has ended"):
        pools.steps.submit(lambda: None)
    gate.set()
    assert wait([running], 10).not_done == set()


def test_a_process_ends_although_a_thread_is_stuck() -> None:
    code = (
        "import threading; from flowfabric.sdk.threads import ThreadPools\n"
        "begun = threading.Event()\n"
        "pools = ThreadPools(1)\n"
        "pools.tasks.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait(); pools.close(); print('bye')"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, capture_output=True, check=True).stdout == b"bye\n"
