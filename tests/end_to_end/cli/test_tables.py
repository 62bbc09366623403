"""The exact layout of tables and drawings at 80 and 120 columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from flowfabric.cli.commands.bench import Figure, figures_table
from flowfabric.cli.commands.doctor import DoctorFinding, format_findings
from flowfabric.cli.commands.flows import flows_table, format_flow
from flowfabric.cli.commands.lanes import LaneView, lanes_table
from flowfabric.cli.commands.show import counts_table, executions_table, format_execution
from flowfabric.cli.commands.signals import waitpoints_table, waits_table
from flowfabric.cli.commands.store import keys_table
from flowfabric.cli.commands.workers import workers_table
from flowfabric.cli.terminal import Screen, display_width
from flowfabric.engine import (
    ApproximateCount,
    Edge,
    EdgeKind,
    Engine,
    Graph,
    KeyState,
    KeyView,
    LaneState,
    NewWaitpoint,
    OnTimeout,
    Single,
    State,
    WorkerId,
    WorkerInfo,
    any_of,
)
from flowfabric.testing import VirtualClock
from tests.scenarios import leased

NOW = datetime(2031, 5, 1, 8, 0, tzinfo=UTC)
WIDTHS = pytest.mark.parametrize("width", [80, 120])
LONG_KIND = "a-kind-with-a-name-that-is-too-long-to-fit-in-one-column"


def assert_fits(lines: Sequence[str], width: int) -> None:
    assert lines and all(display_width(line) <= width for line in lines), lines


def mask_ids(lines: Sequence[str], *ids: UUID) -> list[str]:
    """Return the lines with each id replaced by its number, padded to the same width."""
    masked_lines = []
    for line in lines:
        for number, id_ in enumerate(ids):
            line = line.replace(str(id_), f"<id {number}>".ljust(36))
        masked_lines.append(line.rstrip())
    return masked_lines


async def test_executions_table_at_80_and_120_columns(engine: Engine, clock: VirtualClock) -> None:
    first = await engine.executions.submit("refund", b'{"order":7}', lane="payments")
    clock.advance(timedelta(minutes=5))
    lease = await leased(engine, kind="resize", worker="w1")
    await engine.leases.progress(lease.fence, 40)
    clock.advance(timedelta(seconds=3))
    failed = await leased(engine, kind=LONG_KIND)
    await engine.leases.fail(failed.fence, "declined\x1b[2J by the bank of the customer", failure_class="permanent")
    page = await engine.executions.list()
    ids = [failed.execution_id, lease.execution_id, first.id]
    assert mask_ids(executions_table(page.items, clock.now(), Screen(80)), *ids) == [
        "ID                                    STATE    KIND                LANE      AGE",
        "<id 0>                                failed   a-kind-with-a-nam…  default    0s",
        "<id 1>                                active   resize              default    3s",
        "<id 2>                                waiting  refund              payments   5m",
    ]
    id_ = "<id 0>" + " " * 32
    assert mask_ids(executions_table(page.items, clock.now(), Screen(120)), *ids) == [
        "ID                                    STATE    KIND                          LANE      AGE  DETAIL",
        id_ + r"failed   a-kind-with-a-name-that-is-…  default    0s  declined\x1b[2J by the bank…",
        "<id 1>                                active   resize                        default    3s  40% by w1",
        "<id 2>                                waiting  refund                        payments   5m",
    ]


@WIDTHS
async def test_description_of_an_execution_fits_the_screen(engine: Engine, clock: VirtualClock, width: int) -> None:
    lease = await leased(engine, kind=LONG_KIND, payload=b'{"note":"' + b"x" * 900 + b'"}', tags={"team.owner": "ada"})
    await engine.leases.suspend(
        lease.fence, [NewWaitpoint("sign-off", approver="ops")], Single("sign-off"), timeout="1h"
    )
    execution = await engine.executions.describe(lease.execution_id)
    lines = format_execution(execution, None, [], clock.now(), Screen(width))
    assert_fits(lines, width)
    assert lines[:3] == [f"id         {execution.id}", f"kind       {LONG_KIND}", "state      suspended"]
    assert "waits for  " in "\n".join(lines) and lines[-2].startswith("KEY ") and "sign-off" in lines[-1]


@pytest.mark.parametrize(
    ("on_timeout", "consequence"),
    [
        (OnTimeout.FAIL, "fails"),
        (OnTimeout.CANCEL, "is cancelled"),
        (OnTimeout.EXPIRE, "expires"),
        (OnTimeout.AUTO_RESUME, "continues"),
        (OnTimeout.ESCALATE, "waits for an operator"),
    ],
)
async def test_show_says_in_plain_words_what_follows_a_timeout(
    engine: Engine, clock: VirtualClock, on_timeout: OnTimeout, consequence: str
) -> None:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, [NewWaitpoint("go")], Single("go"), timeout="1h", on_timeout=on_timeout)
    execution = await engine.executions.describe(lease.execution_id)
    lines = format_execution(execution, None, [], clock.now(), Screen(120))
    assert [line for line in lines if line.startswith("times out") and line.endswith(f", then {consequence}")], lines


@WIDTHS
async def test_tables_of_waits_and_waitpoints_fit_the_screen(engine: Engine, clock: VirtualClock, width: int) -> None:
    lease = await leased(engine)
    await engine.leases.suspend(
        lease.fence, [NewWaitpoint("sign-off" * 9, approver="ops")], Single("sign-off" * 9), timeout="1h"
    )
    waits = await engine.waitpoints.list_suspended()
    points = await engine.waitpoints.list(lease.execution_id)
    lines = mask_ids(waits_table(waits, clock.now(), Screen(width)), lease.execution_id)
    assert_fits(lines, width)
    assert lines[0].split() == ["EXECUTION", "REASON", "SINCE", "TIMEOUT", "WAITS", "FOR"]
    assert lines[1].startswith("<id 0> ") and " in 1h  " in lines[1] and lines[1].endswith("…")
    assert_fits(waitpoints_table(points, clock.now(), Screen(width)), width)
    assert str(points[0].id) in waitpoints_table(points, clock.now(), Screen(width))[1]


async def submit_flow(engine: Engine) -> tuple[Engine, UUID]:
    graph = Graph("nightly")
    extract = graph.add("extract", "job")
    clean, index = (graph.add(name, "job", after=[extract]) for name in ("clean", "index"))
    graph.add("report", "job", after=[clean, index], join=any_of())
    graph.add("alarm", "job", after=[Edge(clean, EdgeKind.ON_FAILURE)])
    graph.add("tidy", "job")
    return engine, (await engine.flows.submit(graph)).flow_id


async def test_flow_is_drawn_as_a_tree(engine: Engine) -> None:
    _, id_ = await submit_flow(engine)
    flow, members = await engine.flows.describe(id_), (await engine.flows.members(id_)).items
    assert mask_ids(format_flow(flow, members, Screen(80)), id_)[-7:] == [
        "",
        "● extract       waiting",
        "├─ ● clean      blocked",
        "│  └─ ● alarm   blocked  on failure",
        "└─ ● index      blocked",
        "   └─ ● report  blocked  any_of (0/2), also after clean",
        "● tidy          waiting",
    ]
    plain = format_flow(flow, members, Screen(40, has_unicode=False))[-6:]
    assert plain[:3] == ["* extract       waiting", "|- * clean      blocked", "|  `- * alarm   blocked  on failure"]
    assert plain[4] == "   `- * report  blocked  any_of (0/2)..."
    for width in range(20, 60):
        assert_fits(format_flow(flow, members, Screen(width)), width)


async def test_deep_flow_fits_the_screen(engine: Engine) -> None:
    graph = Graph("deep")
    predecessors: list[str] = []
    for number in range(60):
        graph.add(f"step-{number:02}", "job", after=predecessors)
        predecessors = [f"step-{number:02}"]
    id_ = (await engine.flows.submit(graph)).flow_id
    flow, members = await engine.flows.describe(id_), (await engine.flows.members(id_)).items
    lines = format_flow(flow, members, Screen(80))
    assert_fits(lines, 80)
    assert [f"step-{number:02}" in line for number, line in enumerate(lines[-60:])] == [True] * 60


@WIDTHS
async def test_flows_table_has_the_same_layout_at_both_widths(engine: Engine, clock: VirtualClock, width: int) -> None:
    _, id_ = await submit_flow(engine)
    flows = (await engine.flows.list()).items
    lines = mask_ids(flows_table(flows, clock.now(), Screen(width)), id_)
    assert lines == [
        "ID                                    STATE  NAME     AGE  MEMBERS",
        "<id 0>                                open   nightly   0s  2 waiting, 4 blocked",
    ]


def test_small_tables_have_the_same_layout_at_both_widths() -> None:
    later = NOW + timedelta(hours=5)
    keys = [
        KeyView("2031-05", KeyState.ACTIVE, NOW, None, None, True),
        KeyView("2030-11", KeyState.VERIFYING, NOW - timedelta(days=180), NOW, NOW + timedelta(days=1), False, False),
    ]
    worker = WorkerInfo(
        namespace="default",
        id=WorkerId("shop-1", "shop-1-4711-0a1b2c3d"),
        lanes=("default", "mail"),
        capabilities=("gpu",),
        version="0.1.0",
        host="shop-1",
        slots=16,
        busy=3,
        ttl=timedelta(minutes=1),
        registered_at=NOW,
        seen_at=later,
        expires_at=later,
    )
    counts = {
        State.WAITING: ApproximateCount(3, True),
        State.COMPLETED: ApproximateCount(20_000, False),
        State.FAILED: ApproximateCount(0, True),
    }
    for width in (80, 120):
        screen = Screen(width)
        assert keys_table(keys, later, screen) == [
            "KID      STATE       AGE  VERIFIES FOR  IN USE  SECRET",
            "2031-05  active       5h      no limit  yes     known",
            "2030-11  verifying  180d           19h  no      missing",
        ]
        assert lanes_table([LaneView("default", LaneState.PAUSED, ApproximateCount(1000, False), 2)], screen) == [
            "LANE     STATE   WAITING  WORKERS  WHY",
            "default  paused    1000+        2",
        ]
        paused = LaneView("mail", LaneState.PAUSED, ApproximateCount(0, True), 2, NOW, "ann", "provider outage")
        assert lanes_table([paused], screen)[1].startswith("mail  paused        0        2  by ann at 20")
        assert counts_table(counts, screen) == [
            "STATE      EXECUTIONS",
            "waiting             3  #",
            "completed      ~20000  ####################",
            "all            ~20003",
        ]
        assert figures_table([Figure("submit", 2776.4, 19.94, 24)], screen) == [
            "WHAT    PER SECOND  MEDIAN MS  WORST MS",
            "submit        2776       19.9      24.0",
        ]
        assert workers_table([worker], later, screen) == [
            "INSTANCE              NAME    BUSY  LANES         OFFERS  VERSION  UP  SEEN",
            "shop-1-4711-0a1b2c3d  shop-1  3/16  default,mail  gpu     0.1.0    5h    0s",
        ]
        [_, line] = workers_table([worker], later + timedelta(seconds=40), Screen(160))
        assert line.endswith(f"  not heard from since {later:%Y-%m-%d %H:%M:%S}")


def test_findings_are_wrapped_between_words() -> None:
    findings = [DoctorFinding("store", "ok", "it is open"), DoctorFinding("lanes", "warning", "word " * 20, "do this")]
    assert format_findings(findings, Screen(80)) == [
        "ok       store        it is open",
        "warning  lanes        word word word word word word word word word word word",
        " " * 22 + "word word word word word word word word word",
        " " * 22 + "-> do this",
    ]
