"""Bad input in any argument is refused with a typed error before anything is written, on every surface."""

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
from tests.bad_input import bad_values, parameters, role_of, shown
from tests.facts import taking_part
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
# Good values for arguments that have no default, and for those that a call cannot do without.
GOOD: dict[str, Any] = {
    "kind": "job",
    "submission": Submission(kind="job"),
    "submissions": [],
    "tags": {},
    "lanes": ["default"],
    "worker": "worker-2",
    "grant": UUID(int=1),
    "instance": "worker-2",
    "fences": [],
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
    "kid": "k2",
    "secret": "ab" * 32,
    "graph": Graph("empty"),
    "upstream": "a",
    "downstream": "b",
    "record": lambda _: Step("t"),
    "enough": lambda _: True,
}
COMPANIONS: dict[str, dict[str, Any]] = {
    "delay": {"after": 60},
    "wait": {"timeout": 0},
    "wait_until": {"timeout": 0},
    "look": {"waitpoints": {}},
}


def _methods(engine: Engine, group: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    owner = getattr(engine, group)
    for method in _public(type(owner)):
        yield method.__name__, getattr(owner, method.__name__)


def _public(owner: type) -> list[Callable[..., Any]]:
    """The operations of a group, but for those that need a real connection: test_submit_within has their refusals."""
    calls = inspect.getmembers(owner, inspect.isfunction)
    return [call for name, call in calls if not name.startswith(("_", "submit_within"))]


async def _arguments(engine: Engine, name: str, method: Callable[..., Any]) -> dict[str, Any]:
    """A call of the method that is good in every argument."""
    lease = await leased(engine)
    token = (await engine.waitpoints.create(lease.fence, "early")).token
    good = GOOD | {"id": lease.execution_id, "execution_id": lease.execution_id, "fence": lease.fence, "token": token}
    good |= {"body": taking_part(engine)}
    good |= {"steps": [Step("s")], "children": [], "flow_id": (await engine.flows.create("open")).flow_id}
    required = [item.name for item in parameters(method) if item.default is inspect.Parameter.empty]
    return {name: good[name] for name in required} | COMPANIONS.get(name, {})


async def _problem(call: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
    """What is wrong with the answer to a bad call; None if it is refused as it should be."""
    try:
        answer = call(**arguments)
        if inspect.isawaitable(answer):
            await answer
    except InvalidRequest as refused:
        fine = len(str(refused)) < 600 and str(refused).isprintable() and refused.code.isidentifier()
        return None if fine else f"echoes its input: {ascii(str(refused))[:80]}"
    except FlowFabricError as error:
        return f"raised {type(error).__name__}: {error.code}"
    except Exception as error:
        return f"raised a bare {type(error).__name__}: {str(error)[:60]}"
    return "was accepted"


async def _problems(name: str, call: Callable[..., Any], arguments: dict[str, Any]) -> list[str]:
    problems = []
    for parameter in parameters(call):
        others = {key: value for key, value in arguments.items() if (parameter.name, key) != ("until", "after")}
        for value in bad_values(parameter):
            problem = await _problem(call, others | {parameter.name: value})
            if problem is not None:
                problems.append(f"{name}({parameter.name}={shown(value)}) {problem}")
    return problems


@pytest.mark.parametrize("group", GROUPS)
async def test_every_argument_refuses_bad_input_and_nothing_is_written(
    engine: Engine, store: TestStore, group: str
) -> None:
    calls = [(name, method, await _arguments(engine, name, method)) for name, method in _methods(engine, group)]
    before = await snapshot(store)
    problems = [problem for name, call, good in calls for problem in await _problems(name, call, good)]
    assert problems == []
    assert await snapshot(store) == before


@pytest.mark.parametrize("group", GROUPS)
async def test_the_good_arguments_are_good(engine: Engine, group: str) -> None:
    """A check of the test above: an argument that is bad already would hide whether the others are looked at."""
    for name, method in _methods(engine, group):
        problem = await _problem(method, await _arguments(engine, name, method))
        assert problem is not None and not problem.startswith("raised a bare"), f"{name} {problem}"


@pytest.mark.parametrize("name", RECORDS)
async def test_every_argument_of_a_record_refuses_bad_input(name: str) -> None:
    make, arguments = RECORDS[name]
    assert await _problems(name, make, arguments) == []


async def test_another_namespace_has_a_name(engine: Engine) -> None:
    assert await _problems("within", engine.within, {}) == []


async def test_a_clock_refuses_to_move_by_a_bad_duration() -> None:
    clock = VirtualClock()
    start = clock.now()
    assert await _problems("advance", clock.advance, {}) == []
    assert clock.now() == start


async def test_a_clock_does_not_leave_the_times_that_can_be_stored() -> None:
    clock = VirtualClock()
    for _ in range(800):
        last = clock.now()
        if await _problem(clock.advance, {"duration": "3650d"}) is None:
            break
    else:
        pytest.fail("the clock went on for 8,000 years")
    assert clock.now() == last


def test_every_argument_of_the_contract_has_a_role() -> None:
    methods = [
        call for group in (Executions, Leases, Operator, Lanes, Waitpoints, Signals, Keys) for call in _public(group)
    ]
    calls: list[Callable[..., Any]] = [
        *methods,
        *(make for make, _ in RECORDS.values()),
        connect,
        Engine.within,
        VirtualClock.advance,
    ]
    assert [f"{call}: {item}" for call in calls for item in parameters(call) if role_of(item) is None] == []
    assert sum(len(parameters(call)) for call in calls) > 100, "the search finds what it looks for"


async def test_a_bad_item_of_a_batch_keeps_the_good_ones_from_being_written(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    before = await snapshot(store)
    calls: list[tuple[Callable[..., Any], list[Any]]] = [
        (engine.executions.submit_many, [Submission(kind="good"), "bad"]),
        (engine.leases.renew_many, [lease.fence, "bad"]),
        (engine.leases.complete_many, [(lease.fence, b"out"), (lease.fence, "bad")]),
    ]
    for call, items in calls:
        with pytest.raises(InvalidRequest):
            await call(items)
    assert await snapshot(store) == before


@pytest.mark.parametrize("id_", [UUID(int=0), UUID(int=2**128 - 1)], ids=["nil", "max"])
async def test_an_id_is_refused_or_can_be_listed_and_unheld_like_any_other(engine: Engine, id_: UUID) -> None:
    problem = await _problem(engine.executions.submit, {"kind": "job", "id": id_})
    if problem is None:
        return
    assert problem == "was accepted"
    await engine.operator.hold(id_)
    assert [item.id for item in (await engine.executions.list()).items] == [id_]
    assert await engine.operator.unhold_all() == 1


async def test_a_checkpoint_without_steps_is_refused(engine: Engine) -> None:
    lease = await leased(engine)
    with pytest.raises(InvalidRequest) as refused:
        await engine.leases.checkpoint(lease.fence, [])
    assert refused.value.code == "invalid_request"


async def test_a_delay_has_a_time_or_a_duration_and_not_both(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    both: list[dict[str, Any]] = [{}, {"until": clock.now(), "after": 1}]
    for arguments in both:
        with pytest.raises(InvalidRequest) as refused:
            await engine.leases.delay(lease.fence, **arguments)
        assert refused.value.code == "invalid_request"
