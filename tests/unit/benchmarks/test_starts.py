"""Tests that each start time is compared with the right peers."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.bars import POSTGRES
from benchmarks.bench import Bench, Plan, Turns
from benchmarks.contenders import Answer, Contender
from benchmarks.entrants import PEERS, Entrants
from benchmarks.report import NO_PEERS, Report
from benchmarks.scenarios.starts import _judge_peers


def new_bench(tmp_path: Path, entrants: Entrants) -> Bench:
    return Bench(Plan(), Report(), tmp_path, "postgresql://nowhere", entrants)


def make_turns(**times_ms: float) -> Turns:
    """Return the measurements of one round: one start time for each named contender."""
    return Turns({make_contender(who): [Answer(1, 1.0, [time_ms])] for who, time_ms in times_ms.items()})


def make_contender(who: str) -> Contender:
    async def turn(_: float) -> Answer:
        raise AssertionError("a second turn was requested")

    return Contender(who, POSTGRES, turn, is_peer=who != "FlowFabric")


def find_line(bench: Bench, key: str) -> str:
    [line] = [line for line in bench.report.tables().splitlines() if line.startswith(f"{key} ")]
    return line


def test_only_celery_always_has_its_worker_in_another_process() -> None:
    assert [peer.who for peer in PEERS if peer.is_apart] == ["Celery"]


def test_bar_compares_with_the_best_peer_except_huey(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, Entrants(Path(sys.executable)))
    _judge_peers(bench, "B4.peers.in", make_turns(FlowFabric=2.0, DBOS=9.0, Absurd=3.0, Huey=1.0))
    _judge_peers(bench, "B4.peers.across", make_turns(FlowFabric=4.0, Celery=3.0))
    assert " 1.50 " in find_line(bench, "B4.peers.in") and find_line(bench, "B4.peers.in").endswith("met")
    assert " 0.75 " in find_line(bench, "B4.peers.across") and find_line(bench, "B4.peers.across").endswith("MISSED")


def test_bar_without_a_peer_is_not_measured_with_a_reason(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, Entrants())
    _judge_peers(bench, "B4.peers.in", make_turns(FlowFabric=2.0))
    assert find_line(bench, "B4.peers.in").endswith(f"not measured: {NO_PEERS}")
    bench = new_bench(tmp_path, Entrants(Path(sys.executable)))
    _judge_peers(bench, "B4.peers.across", make_turns(FlowFabric=4.0))
    assert find_line(bench, "B4.peers.across").endswith("not measured: its peers are absent")
