"""Tests that every public call refuses bad input with a typed error before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import Backoff, Engine, FlowFabricError, Graph, InvalidRequest, Policy, Step, Submission, connect
from flowfabric.engine.executions import Executions
from flowfabric.engine.keys import Keys
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.leases import Leases
from flowfabric.engine.operator import Operator
from flowfabric.engine.signals import Signals
from flowfabric.engine.waitpoints import Waitpoints
from flowfabric.testing import VirtualClock
from flowfabric.worker.leases import LeaseTable
from tests.bad_input import bad_values, parameters, role_of, shown
from tests.expectations import taking_part
from tests.scenarios import leased
from tests.stores import TestStore, snapshot

GROUPS = ("executions", "leases", "flows", "operator", "lanes", "waitpoints", "signals", "keys", "workers", "events")
RECORDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Submission": (Submission, {"kind": "job"}),
    "Policy": (Policy, {}),
    "Backoff": (Backoff, {}),
    "Step": (Step, {"name": "s"}),
    "VirtualClock": (VirtualClock, {}),
}
# Valid values for required arguments, and for optional arguments that some calls cannot do without.
GOOD: dict[str, Any] = {
    "failed": True,
    "kind": "job",
    "submission": Submission(kind="job"),
    "submissions": [],
    "tags": {},
    "lanes": ["default"],
    "worker": "worker-2",
    "grant": UUID(int=1),
    "instance": "worker-2",
    "fences": [],
    "ids": [],
    "seq": 1,
    "signals": ["paid"],
    "version": "v1",
    "retries": [],
    "results": [],
    "message": "broken",
    "reason": "diverged",
    "report": "look at it",
    "payload": b"next",
    "priority": 5,
    "lane": "quiet",
    "waitpoints": ["go"],
    "key": "later",
    "keys": ["early"],
    "waitpoint": "go",
    "waitpoint_id": UUID(int=1),
    "name": "approved",
    "decision": "approve",
    "kid": "k2",
    "secret": "ab" * 32,
    "graph": Graph("empty"),
    "upstream": "a",
    "downstream": "b",
    "record": lambda _: Step("t"),
    "listener": LeaseTable(),
    "until": lambda _: True,
}
REQUIRED_TOGETHER: dict[str, dict[str, Any]] = {
    "delay": {"after": 60},
    "wait": {"timeout": 0},
    "wait_until": {"timeout": 0},
    "read_waits": {"waitpoints": {}},
}


def _iterate_methods(engine: Engine, group: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    owner = getattr(engine, group)
    for method in _public_methods(type(owner)):
        yield method.__name__, getattr(owner, method.__name__)


def _public_methods(owner: type) -> list[Callable[..., Any]]:
    """Return the operations of a group without `submit_in_transaction`, which has separate tests."""
    calls = inspect.getmembers(owner, inspect.isfunction)
    return [call for name, call in calls if not name.startswith(("_", "submit_in_transaction"))]


async def _make_good_arguments(engine: Engine, name: str, method: Callable[..., Any]) -> dict[str, Any]:
    """Return valid arguments for the method."""
    lease = await leased(engine)
    token = (await engine.waitpoints.create(lease.fence, "early")).token
    good = GOOD | {"id": lease.execution_id, "execution_id": lease.execution_id, "fence": lease.fence, "token": token}
    good |= {"body": taking_part(engine)}
    good |= {"steps": [Step("s")], "children": [], "flow_id": (await engine.flows.create("open")).flow_id}
    good |= {item.name: token for item in parameters(method) if str(item.annotation) == "UUID | str | Secret"}
    required = [parameter.name for parameter in parameters(method) if parameter.default is inspect.Parameter.empty]
    return {name: good[name] for name in required} | REQUIRED_TOGETHER.get(name, {})


async def _find_problem(call: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
    """Return the problem with the response to a bad call, or None if the call is refused correctly."""
    try:
        result = call(**arguments)
        if inspect.isawaitable(result):
            await result
    except InvalidRequest as refused:
        fine = len(str(refused)) < 600 and str(refused).isprintable() and refused.code.isidentifier()
        return None if fine else f"echoes its input: {ascii(str(refused))[:80]}"
    except FlowFabricError as error:
        return f"raised {type(error).__name__}: {error.code}"
    except Exception as error:
        return f"raised a bare {type(error).__name__}: {str(error)[:60]}"
    return "was accepted"


async def _find_problems(name: str, call: Callable[..., Any], arguments: dict[str, Any]) -> list[str]:
    problems = []
    for parameter in parameters(call):
        other_arguments = {
            key: value for key, value in arguments.items() if (parameter.name, key) != ("until", "after")
        }
        for value in bad_values(parameter):
            problem = await _find_problem(call, other_arguments | {parameter.name: value})
            if problem is not None:
                problems.append(f"{name}({parameter.name}={shown(value)}) {problem}")
    return problems


@pytest.mark.parametrize("group", GROUPS)
async def test_every_argument_refuses_bad_input_and_nothing_is_written(
    engine: Engine, store: TestStore, group: str
) -> None:
    calls = [
        (name, method, await _make_good_arguments(engine, name, method))
        for name, method in _iterate_methods(engine, group)
    ]
    before = await snapshot(store)
    problems = [problem for name, call, good in calls for problem in await _find_problems(name, call, good)]
    assert problems == []
    assert await snapshot(store) == before


@pytest.mark.parametrize("group", GROUPS)
async def test_good_arguments_are_accepted(engine: Engine, group: str) -> None:
    """Check the arguments of the test above. If a good argument were bad, it would hide a missing check of another."""
    for name, method in _iterate_methods(engine, group):
        problem = await _find_problem(method, await _make_good_arguments(engine, name, method))
        assert problem is not None and not problem.startswith("raised a bare"), f"{name} {problem}"


@pytest.mark.parametrize("name", RECORDS)
async def test_every_argument_of_a_record_refuses_bad_input(name: str) -> None:
    make, arguments = RECORDS[name]
    assert await _find_problems(name, make, arguments) == []


async def test_for_namespace_refuses_bad_names(engine: Engine) -> None:
    assert await _find_problems("within", engine.for_namespace, {}) == []


async def test_clock_refuses_to_advance_by_a_bad_duration() -> None:
    clock = VirtualClock()
    start = clock.now()
    assert await _find_problems("advance", clock.advance, {}) == []
    assert clock.now() == start


async def test_clock_stays_within_the_range_that_can_be_stored() -> None:
    clock = VirtualClock()
    for _ in range(800):
        last = clock.now()
        if await _find_problem(clock.advance, {"duration": "3650d"}) is None:
            break
    else:
        pytest.fail("the clock advanced 8,000 years")
    assert clock.now() == last


def test_every_public_argument_has_a_role() -> None:
    methods = [
        call
        for group in (Executions, Leases, Operator, Lanes, Waitpoints, Signals, Keys)
        for call in _public_methods(group)
    ]
    calls: list[Callable[..., Any]] = [
        *methods,
        *(make for make, _ in RECORDS.values()),
        connect,
        Engine.for_namespace,
        VirtualClock.advance,
    ]
    assert [
        f"{call}: {parameter}" for call in calls for parameter in parameters(call) if role_of(parameter) is None
    ] == []
    assert sum(len(parameters(call)) for call in calls) > 100, "parameters were found"


async def test_bad_entry_in_a_batch_prevents_every_write(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    before = await snapshot(store)
    calls: list[tuple[Callable[..., Any], list[Any]]] = [
        (engine.executions.submit_many, [Submission(kind="good"), "bad"]),
        (engine.leases.renew_many, [lease.fence, "bad"]),
        (engine.leases.complete_many, [(lease.fence, b"out"), (lease.fence, "bad")]),
    ]
    for call, entries in calls:
        with pytest.raises(InvalidRequest):
            await call(entries)
    assert await snapshot(store) == before


@pytest.mark.parametrize("id_", [UUID(int=0), UUID(int=2**128 - 1)], ids=["nil", "max"])
async def test_extreme_id_is_refused_or_works_like_any_other(engine: Engine, id_: UUID) -> None:
    problem = await _find_problem(engine.executions.submit, {"kind": "job", "id": id_})
    if problem is None:
        return
    assert problem == "was accepted"
    await engine.operator.hold(id_)
    assert [execution.id for execution in (await engine.executions.list()).items] == [id_]
    assert await engine.operator.unhold_all() == 1


async def test_checkpoint_without_steps_is_refused(engine: Engine) -> None:
    lease = await leased(engine)
    with pytest.raises(InvalidRequest) as refused:
        await engine.leases.checkpoint(lease.fence, [])
    assert refused.value.code == "invalid_request"


async def test_delay_needs_exactly_one_of_time_and_duration(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    invalid: list[dict[str, Any]] = [{}, {"until": clock.now(), "after": 1}]
    for arguments in invalid:
        with pytest.raises(InvalidRequest) as refused:
            await engine.leases.delay(lease.fence, **arguments)
        assert refused.value.code == "invalid_request"
