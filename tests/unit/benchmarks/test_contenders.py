"""Tests for contenders that run as processes: their measurements and their failures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.bars import POSTGRES
from benchmarks.bench import Bench, Plan
from benchmarks.contenders import Answer, Contender, ContenderFailed, Program
from benchmarks.entrants import PEERS, REDIS, Entrants
from benchmarks.peers.protocol import Request
from benchmarks.report import NO_PEERS, Report
from benchmarks.spread import Spread

ROOT = Path(__file__).parent.parent.parent.parent
FAKE = Program(Path(sys.executable), "tests.unit.benchmarks.fake_peer")


def no_server_cpu() -> float | None:
    return None


def new_bench(tmp_path: Path, rounds: int = 2, entrants: Entrants | None = None) -> Bench:
    return Bench(Plan(seconds=0.01, rounds=rounds), Report(), tmp_path, "postgresql://nowhere", entrants or Entrants())


async def test_measure_returns_the_figures_of_the_peer_and_its_cpu_time() -> None:
    readings = iter([1.0, 3.5])
    measurement = await FAKE.measure(Request("jobs", "a store"), lambda: next(readings))
    assert (measurement.jobs, measurement.rate, measurement.version) == (420, 210, "Fake 1.0")
    assert measurement.numbers == {"store": "a store"}
    assert measurement.server_s == 2.5
    assert measurement.client_s is not None and 0.05 <= measurement.client_s < 5


async def test_measure_returns_the_times_of_the_peer() -> None:
    measurement = await FAKE.measure(Request("start", "", number=3), no_server_cpu)
    assert measurement.times_ms == [1.0, 2.0, 3.0] and measurement.jobs == 3


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("raises", "ValueError: no such table"),
        ("raises", "details on stderr"),
        ("dies", "exited without a response"),
        ("ends_first", "sent 'end' instead of 'begin'"),
        ("idles", "finished nothing in a turn of"),
        ("unknown scenario", "does not know the scenario unknown scenario"),
    ],
)
async def test_failing_peer_raises_with_the_reason(scenario: str, message: str) -> None:
    with pytest.raises(ContenderFailed, match=message):
        await FAKE.measure(Request(scenario, ""), no_server_cpu)


async def test_hanging_peer_is_stopped() -> None:
    with pytest.raises(ContenderFailed, match="did not respond in time"):
        await FAKE.measure(Request("hangs", "", seconds=0), no_server_cpu, patience_s=3)


async def test_missing_peer_raises_with_the_missing_module() -> None:
    missing = Program(Path(sys.executable), "benchmarks.peers.dbos")
    with pytest.raises(ContenderFailed, match="No module named 'dbos'"):
        await missing.measure(Request("jobs", ""), no_server_cpu)


async def test_contenders_alternate_in_every_round(tmp_path: Path) -> None:
    order: list[str] = []

    def make_contender(who: str) -> Contender:
        async def turn(_: float) -> Answer:
            order.append(who)
            return Answer(len(order), 1.0)

        return Contender(who, POSTGRES, turn)

    first, second = make_contender("first"), make_contender("second")
    turns = await new_bench(tmp_path).in_turns([first, second])
    assert order == ["first", "second"] * 2
    figure = turns.spread(second, lambda measurement: measurement.rate)
    assert figure is not None and figure.values == (2, 4)


async def test_cpu_ratio_adds_client_and_server(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)

    def make_contender(who: str, client_s: float, server_s: float | None) -> Contender:
        async def turn(_: float) -> Answer:
            return Answer(10, 1.0, client_s=client_s, server_s=server_s)

        return Contender(who, POSTGRES, turn)

    contenders = [
        make_contender("FlowFabric", 0.1, 0.1),
        make_contender("Peer", 0.5, 0.3),
        make_contender("Other", 0.5, None),
    ]
    bench.show("jobs", "jobs/s", await bench.in_turns(contenders))
    ours, peer, other = bench.report.series
    assert ours.cpu_ratio is None and ours.client_us == pytest.approx(1e4)
    assert peer.cpu_ratio == pytest.approx(4) and other.cpu_ratio == pytest.approx(2.5)
    assert (peer.ratio, other.server_us) == (Spread.of([1.0, 1.0]), None)


async def test_failing_peer_is_tried_once_and_reported_absent(tmp_path: Path) -> None:
    bench, attempts = new_bench(tmp_path), 0

    async def ours(_: float) -> Answer:
        return Answer(10, 1.0)

    async def fails(_: float) -> Answer:
        nonlocal attempts
        attempts += 1
        raise ContenderFailed("no wheel for this machine")

    contenders = [Contender("FlowFabric", POSTGRES, ours), Contender("Peer", POSTGRES, fails, is_peer=True)]
    bench.show("jobs", "jobs/s", await bench.in_turns(contenders))
    assert attempts == 1
    assert [series.who for series in bench.report.series] == ["FlowFabric"]
    assert "absent: Peer on PostgreSQL: no wheel for this machine" in bench.report.tables()


async def test_failure_of_flowfabric_is_raised(tmp_path: Path) -> None:
    async def fails(_: float) -> Answer:
        raise ContenderFailed("ours broke")

    with pytest.raises(ContenderFailed, match="ours broke"):
        await new_bench(tmp_path).in_turns([Contender("FlowFabric", POSTGRES, fails)])


def test_all_peers_are_absent_without_the_option(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    assert bench.peers(POSTGRES, Request("jobs", "")) == []
    names = [peer.who for peer in PEERS if POSTGRES in peer.backends]
    assert bench.report.absent == {f"{who} on {POSTGRES}": NO_PEERS for who in names}


def test_redis_peers_are_absent_without_redis(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, entrants=Entrants(Path(sys.executable), None, "no package"))
    assert bench.peers(REDIS, Request("jobs", "")) == []
    assert bench.report.absent == {"Celery on Redis": "no package", "Huey on Redis": "no package"}


def test_every_peer_has_a_program_and_a_pinned_package() -> None:
    lock = (ROOT / "benchmarks" / "peers.lock").read_text(encoding="utf-8")
    assert "://" not in lock and lock.count("==") <= lock.count("--hash=")
    for peer in PEERS:
        assert (ROOT / "benchmarks" / "peers" / f"{peer.module}.py").exists()
        assert f"\n{peer.module}" in f"\n{lock}"
