"""Who is compared with whom where the start of a job is timed."""

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


def turns(**times_ms: float) -> Turns:
    """One round of each; the first one is ours."""
    return Turns({contender(who): [Answer(1, 1.0, [time_ms])] for who, time_ms in times_ms.items()})


def contender(who: str) -> Contender:
    async def turn(_: float) -> Answer:
        raise AssertionError("it has had its turn")

    return Contender(who, POSTGRES, turn, is_peer=who != "FlowFabric")


def told(bench: Bench, key: str) -> str:
    [line] = [line for line in bench.report.tables().splitlines() if line.startswith(f"{key} ")]
    return line


def test_only_celery_has_its_worker_always_in_another_process() -> None:
    assert [peer.who for peer in PEERS if peer.is_apart] == ["Celery"]


def test_the_best_peer_but_huey_is_judged_over_ours_of_the_same_kind(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, Entrants(Path(sys.executable)))
    _judge_peers(bench, "B4.peers.in", turns(FlowFabric=2.0, DBOS=9.0, Absurd=3.0, Huey=1.0))
    _judge_peers(bench, "B4.peers.across", turns(FlowFabric=4.0, Celery=3.0))
    assert " 1.50 " in told(bench, "B4.peers.in") and told(bench, "B4.peers.in").endswith("met")
    assert " 0.75 " in told(bench, "B4.peers.across") and told(bench, "B4.peers.across").endswith("MISSED")


def test_without_a_peer_of_its_kind_the_bar_says_why(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, Entrants())
    _judge_peers(bench, "B4.peers.in", turns(FlowFabric=2.0))
    assert told(bench, "B4.peers.in").endswith(f"not measured: {NO_PEERS}")
    bench = new_bench(tmp_path, Entrants(Path(sys.executable)))
    _judge_peers(bench, "B4.peers.across", turns(FlowFabric=4.0))
    assert told(bench, "B4.peers.across").endswith("not measured: its peers are absent")
