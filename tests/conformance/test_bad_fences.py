"""Tests that every fenced write refuses a forged fence, alone and in a batch with good fences."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from flowfabric.engine import Ended, Engine, Fence, InvalidRequest, NotFound, Refused, Renewed, State, Suspended
from tests.bad_input import shown
from tests.expectations import FENCED, error_of, nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

LARGEST = 2**63 - 1


async def _forge_fences(engine: Engine) -> dict[str, Fence]:
    """Return well-formed fences that match no live lease, built from the fences of two leased executions."""
    first, second = (await leased(engine)).fence, (await leased(engine)).fence
    return {
        "lease of the other execution": replace(first, lease_id=second.lease_id),
        "id of the other execution": replace(first, execution_id=second.execution_id),
        "random lease": replace(first, lease_id=uuid4()),
        "execution id as lease": replace(first, lease_id=first.execution_id),
        "previous epoch": replace(first, epoch=first.epoch - 1),
        "next epoch": replace(first, epoch=first.epoch + 1),
        "largest epoch": replace(first, epoch=LARGEST),
    }


async def test_every_write_refuses_a_forged_fence_as_stale(engine: Engine, store: TestStore) -> None:
    forgeries = await _forge_fences(engine)
    async with nothing_written(store):
        for forgery, fence in forgeries.items():
            for write, call in FENCED.items():
                error = await error_of(call(engine, fence))
                assert (type(error), error.code) == (Refused, "stale_lease"), f"{write} with {forgery}: {shown(error)}"


async def test_every_write_refuses_an_impossible_epoch(engine: Engine, store: TestStore) -> None:
    fence = (await leased(engine)).fence
    async with nothing_written(store):
        for epoch in (-1, -(2**63), 2**63, 2**64, 10**400):
            for write, call in FENCED.items():
                error = await error_of(call(engine, replace(fence, epoch=epoch)))
                assert (type(error), error.code) == (InvalidRequest, "out_of_range"), write


async def test_bad_fence_in_a_batch_affects_only_itself(engine: Engine) -> None:
    forgeries = await _forge_fences(engine)
    good, absent = (await leased(engine)).fence, Fence(uuid4(), 1, uuid4())
    fences = [*forgeries.values(), good, absent]
    renewed = await engine.leases.renew_many(fences)
    completed = await engine.leases.complete_many([(fence, b"out") for fence in fences])
    for outcomes in (renewed, completed):
        *refused, outcome, missing = outcomes
        assert [error.code for error in refused if isinstance(error, Refused)] == ["stale_lease"] * len(forgeries)
        assert isinstance(missing, NotFound)
        assert isinstance(outcome, Renewed | Ended)
    assert (await engine.executions.describe(good.execution_id)).state is State.COMPLETED


async def test_refusal_never_shows_the_valid_lease_id(engine: Engine) -> None:
    fence = (await leased(engine)).fence
    for call in FENCED.values():
        error = await error_of(call(engine, replace(fence, lease_id=uuid4())))
        assert str(fence.lease_id) not in str(error)
        assert fence.lease_id not in error.fields.values()


async def test_suspend_refuses_a_forged_lease_id_and_epoch(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        for forged in (replace(lease.fence, lease_id=uuid4()), replace(lease.fence, epoch=lease.epoch + 1)):
            await refused(engine.leases.suspend(forged, ["go"]), "stale_lease")
    assert isinstance(await engine.leases.suspend(lease.fence, ["go"]), Suspended)
