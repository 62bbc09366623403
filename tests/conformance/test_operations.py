"""Tests of `Context.call`, which runs every operation.

An observer sees each call, and each operation counts its paths.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import flowfabric
from flowfabric.engine import (
    Engine,
    Fence,
    FlowFabricError,
    Graph,
    NewWaitpoint,
    NotFound,
    Refused,
    Step,
    Submission,
    Suspended,
)
from flowfabric.ops.executions.submit import SUBMIT
from flowfabric.ops.leases.claim import claim
from flowfabric.ops.leases.complete import COMPLETE
from flowfabric.ops.operation import Operation
from tests.conformance.test_namespaces import OPERATIONS, Target
from tests.scenarios import leased, submitted

SOURCE = Path(flowfabric.__file__).parent
# Operations that take no id. OPERATIONS, from test_namespaces.py, lists the operations that take an id.
UNAIMED = {
    "submit", "submit_flow", "add_member", "claim", "held", "list_executions", "count_by_state",
    "backlog", "erase_next", "list_flows", "list_suspended", "deliver_signal", "unhold_next", "set_lane", "list_lanes",
    "seed_key", "rotate_key", "list_keys", "register_worker", "heartbeat_worker", "list_workers", "mark_worker_dead",
    "start_position", "list_subscribers", "unsubscribe", "outbox_state", "take_subscriber", "read_page",
    "commit_position", "release_subscriber", "peek_leases",
}  # fmt: skip
# Operations that run only when a store is opened, in a caller's transaction, or for more than 1,000 executions.
RARE = {
    "read_time",
    "read_era",
    "renew_era",
    "resume_position",
    "submit_in_transaction",
    "sweep_flow",
    "request_cancel_next",
}


class Seen:
    """An observer that records the name of each operation that ran and how its call ended."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    @contextmanager
    def __call__(self, operation: Operation[object, object], namespace: str, request: object) -> Iterator[None]:
        try:
            yield
        except FlowFabricError as error:
            self.calls.append((operation.name, error.code))
            raise
        self.calls.append((operation.name, "ok"))

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.calls}


def observed(engine: Engine, observer: Seen) -> Engine:
    return Engine(replace(engine._context, observer=observer))


async def test_an_observer_sees_every_operation_of_the_facade_by_name(engine: Engine) -> None:
    seen = Seen()
    side = observed(engine, seen)
    target = Target(uuid4(), Fence(uuid4(), 1, uuid4()), uuid4(), uuid4(), uuid4())
    for name, operate in OPERATIONS.items():
        before = len(seen.calls)
        with suppress(FlowFabricError):
            await operate(side, target)
        assert len(seen.calls) > before, name
    await call_what_needs_no_target(side)
    assert seen.names >= UNAIMED
    assert seen.names | RARE == operation_names(), operation_names() ^ (seen.names | RARE)


async def call_what_needs_no_target(engine: Engine) -> None:
    await engine.executions.submit("job")
    await engine.executions.submit_many([Submission(kind="job")])
    await engine.executions.list()
    with suppress(NotFound):
        await engine.executions.find(key="order-1")
    await engine.executions.count()
    await engine.backlog()
    await engine.held_work()
    await engine.leases.claim(["default"], "w")
    await engine.leases.held("w")
    await engine.leases.peek([])
    flow = await engine.flows.submit(Graph("empty"), seal=False)
    await engine.flows.add(flow.flow_id, "a", "job")
    await engine.flows.list()
    await engine.waitpoints.list_suspended()
    await engine.operator.unhold_all()
    await engine.lanes.pause("quiet")
    await engine.lanes.list()
    await engine.leases.expired()
    await engine.keys.seed("k1", "ab" * 32)
    await engine.keys.rotate("k2")
    await engine.keys.list()
    await engine.workers.register("w", ["default"])
    await engine.workers.heartbeat("w")
    await engine.workers.list()
    await engine.workers.mark_dead("w")
    await engine.events.cursor()
    await engine.events.status()
    async with engine.events.subscribe(name="audit", start="beginning", follow=False) as events:
        async for _ in events:
            await events.commit()
    await engine.events.subscribers()
    await engine.events.unsubscribe("audit")
    async with engine.temporary_namespace():
        pass
    await engine.mark_as_test(adopt=True)


def operation_names() -> set[str]:
    """Return the names of all operations, read from the source."""
    names: set[str] = set()
    for file in (SOURCE / "ops").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.AsyncFunctionDef(name=name, decorator_list=[ast.Call(func=ast.Name(id="operation"))]):
                    names.add(name)
                case ast.ClassDef(body=body):
                    names |= set(_class_names(body))
    return names


def _class_names(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="name")], value=ast.Constant(value=str(value))):
                yield value


async def test_an_observer_sees_how_a_call_ended_and_may_refuse_it(engine: Engine) -> None:
    seen = Seen()
    lease = await leased(engine)
    await observed(engine, seen).leases.checkpoint(lease.fence, [Step("one", b"1")])
    await observed(engine, seen).leases.complete_many([(lease.fence, b"")])
    with pytest.raises(Refused):
        await observed(engine, seen).leases.fail(lease.fence, "too late")
    assert seen.calls == [("checkpoint", "ok"), ("complete", "ok"), ("fail", "execution_not_active")]

    @contextmanager
    def deny(operation: Operation[object, object], namespace: str, request: object) -> Iterator[None]:
        raise Refused("denied", f"{operation.name} is not allowed in {namespace}")
        yield

    with pytest.raises(Refused, match="submit is not allowed in default"):
        await Engine(replace(engine._context, observer=deny)).executions.submit("job")


def test_only_the_context_and_the_batcher_open_transactions_in_the_facade() -> None:
    opening = {"run", "run_single", "run_shared", "read", "read_single", "run_within", "run_within_sync"}
    found = {
        file.name
        for file in (SOURCE / "engine").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in opening and "store" in ast.unparse(node.value)
    }
    assert found == {"context.py", "batcher.py", "repeats.py"}


async def test_operations_count_their_paths(engine: Engine) -> None:
    before = SUBMIT.paths.copy(), COMPLETE.paths.copy(), claim.paths.copy()
    await submitted(engine)
    await submitted(engine, key="once")
    await submitted(engine, signals=["go"])
    leases = await engine.leases.claim(["default"], "w", limit=3)
    for lease in leases:
        await engine.leases.complete(lease.fence)
    taken = SUBMIT.paths - before[0], COMPLETE.paths - before[1], claim.paths - before[2]
    assert taken[0] == {"insert_batch": 1, "locked_single": 1, "standing_batch": 1}
    assert taken[1] == {"standalone_batch": 2, "linked_batch": 1}
    assert taken[2] == {"by_route": 1}


async def test_suspend_and_signal_count_their_paths(engine: Engine) -> None:
    suspend, deliver = engine._context.waits.suspend, engine._context.waits.deliver
    lease = await leased(engine)
    suspended = await engine.leases.suspend(lease.fence, [NewWaitpoint("go")])
    assert isinstance(suspended, Suspended)
    # The store has no key yet, so the first token is minted alone.
    assert suspend.paths == {"locked_single": 1, "locked_batch": 0}
    await asyncio.gather(*(wait(engine) for _ in range(3)))
    assert suspend.paths == {"locked_single": 1, "locked_batch": 3}
    await engine.signals.deliver(suspended.waitpoints[0].token or "", "go")
    await engine.signals.approve(await wait(engine), "go")
    await engine.signals.approve(await wait(engine), "go", suffix="once")
    assert deliver.paths == {"optimistic": 2, "locked_batch": 1}


async def wait(engine: Engine) -> UUID:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, [NewWaitpoint("go")])
    return lease.execution_id
