"""Contenders that are processes: what they answer is taken, what goes wrong with them is told."""

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


def nobody() -> float | None:
    return None


def new_bench(tmp_path: Path, rounds: int = 2, entrants: Entrants | None = None) -> Bench:
    return Bench(Plan(seconds=0.01, rounds=rounds), Report(), tmp_path, "postgresql://nowhere", entrants or Entrants())


async def test_a_turn_answers_what_the_peer_measured_and_the_cpu_that_it_used() -> None:
    readings = iter([1.0, 3.5])
    answer = await FAKE.measure(Request("jobs", "a store"), lambda: next(readings))
    assert (answer.jobs, answer.rate, answer.version) == (420, 210, "Fake 1.0")
    assert answer.numbers == {"store": "a store"}
    assert answer.server_s == 2.5
    assert answer.client_s is not None and 0.05 <= answer.client_s < 5


async def test_times_come_as_they_were_measured() -> None:
    answer = await FAKE.measure(Request("start", "", number=3), nobody)
    assert answer.times_ms == [1.0, 2.0, 3.0] and answer.jobs == 3


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        ("raises", "ValueError: no such table"),
        ("raises", "a word of explanation"),
        ("dies", "ended without an answer"),
        ("ends_first", "said 'end' instead of 'begin'"),
        ("idles", "finished nothing in a turn of"),
        ("unheard of", "does not know the scenario unheard of"),
    ],
)
async def test_a_peer_that_fails_says_why(scenario: str, told: str) -> None:
    with pytest.raises(ContenderFailed, match=told):
        await FAKE.measure(Request(scenario, ""), nobody)


async def test_a_peer_that_hangs_is_ended() -> None:
    with pytest.raises(ContenderFailed, match="did not answer in time"):
        await FAKE.measure(Request("hangs", "", seconds=0), nobody, patience_s=3)


async def test_a_peer_that_is_not_installed_says_what_is_missing() -> None:
    missing = Program(Path(sys.executable), "benchmarks.peers.dbos")
    with pytest.raises(ContenderFailed, match="No module named 'dbos'"):
        await missing.measure(Request("jobs", ""), nobody)


async def test_contenders_take_turns_round_by_round(tmp_path: Path) -> None:
    order: list[str] = []

    def contender(who: str) -> Contender:
        async def turn(_: float) -> Answer:
            order.append(who)
            return Answer(len(order), 1.0)

        return Contender(who, POSTGRES, turn)

    first, second = contender("first"), contender("second")
    turns = await new_bench(tmp_path).in_turns([first, second])
    assert order == ["first", "second"] * 2
    figure = turns.spread(second, lambda answer: answer.rate)
    assert figure is not None and figure.values == (2, 4)


async def test_cpu_is_compared_as_that_of_client_and_server_together(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)

    def contender(who: str, client_s: float, server_s: float | None) -> Contender:
        async def turn(_: float) -> Answer:
            return Answer(10, 1.0, client_s=client_s, server_s=server_s)

        return Contender(who, POSTGRES, turn)

    contenders = [contender("FlowFabric", 0.1, 0.1), contender("Peer", 0.5, 0.3), contender("Other", 0.5, None)]
    bench.show("jobs", "jobs/s", await bench.in_turns(contenders))
    ours, peer, other = bench.report.series
    assert ours.cpu_ratio is None and ours.client_us == pytest.approx(1e4)
    assert peer.cpu_ratio == pytest.approx(4) and other.cpu_ratio == pytest.approx(2.5)
    assert (peer.ratio, other.server_us) == (Spread.of([1.0, 1.0]), None)


async def test_a_failing_peer_is_absent_with_its_reason_and_asked_once(tmp_path: Path) -> None:
    bench, asked = new_bench(tmp_path), 0

    async def ours(_: float) -> Answer:
        return Answer(10, 1.0)

    async def fails(_: float) -> Answer:
        nonlocal asked
        asked += 1
        raise ContenderFailed("no wheel for this machine")

    contenders = [Contender("FlowFabric", POSTGRES, ours), Contender("Peer", POSTGRES, fails, is_peer=True)]
    bench.show("jobs", "jobs/s", await bench.in_turns(contenders))
    assert asked == 1
    assert [series.who for series in bench.report.series] == ["FlowFabric"]
    assert "absent: Peer on PostgreSQL: no wheel for this machine" in bench.report.tables()


async def test_our_own_failure_is_not_hidden(tmp_path: Path) -> None:
    async def fails(_: float) -> Answer:
        raise ContenderFailed("ours broke")

    with pytest.raises(ContenderFailed, match="ours broke"):
        await new_bench(tmp_path).in_turns([Contender("FlowFabric", POSTGRES, fails)])


def test_without_peers_everyone_of_them_is_told_to_be_absent(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    assert bench.peers(POSTGRES, Request("jobs", "")) == []
    able = [peer.who for peer in PEERS if POSTGRES in peer.backends]
    assert bench.report.absent == {f"{who} on {POSTGRES}": NO_PEERS for who in able}


def test_without_redis_its_peers_are_absent_for_that_reason(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, entrants=Entrants(Path(sys.executable), None, "no package"))
    assert bench.peers(REDIS, Request("jobs", "")) == []
    assert bench.report.absent == {"Celery on Redis": "no package", "Huey on Redis": "no package"}


def test_every_peer_has_a_program_and_a_pinned_package() -> None:
    lock = (ROOT / "benchmarks" / "peers.lock").read_text(encoding="utf-8")
    assert "://" not in lock and lock.count("==") <= lock.count("--hash=")
    for peer in PEERS:
        assert (ROOT / "benchmarks" / "peers" / f"{peer.module}.py").exists()
        assert f"\n{peer.module}" in f"\n{lock}"
