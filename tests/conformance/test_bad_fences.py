"""A fence that was made up, mixed from two leases or sent in a batch with good ones owns nothing."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from flowfabric.engine import Ended, Engine, Fence, InvalidRequest, NotFound, Refused, Renewed, State
from tests.bad_input import shown
from tests.facts import FENCED, error_of, nothing_written
from tests.scenarios import leased
from tests.stores import TestStore

LARGEST = 2**63 - 1


async def _forgeries(engine: Engine) -> dict[str, Fence]:
    """Fences that look well but are nobody's, of two executions that are both leased."""
    one, two = (await leased(engine)).fence, (await leased(engine)).fence
    return {
        "the other's lease": replace(one, lease_id=two.lease_id),
        "the other's execution": replace(one, execution_id=two.execution_id),
        "a forged lease": replace(one, lease_id=uuid4()),
        "the execution's id as lease": replace(one, lease_id=one.execution_id),
        "the epoch before": replace(one, epoch=one.epoch - 1),
        "the next epoch": replace(one, epoch=one.epoch + 1),
        "the largest epoch": replace(one, epoch=LARGEST),
    }


async def test_a_forged_fence_is_stale_to_every_write(engine: Engine, store: TestStore) -> None:
    forgeries = await _forgeries(engine)
    async with nothing_written(store):
        for forgery, fence in forgeries.items():
            for write, call in FENCED.items():
                error = await error_of(call(engine, fence))
                assert (type(error), error.code) == (Refused, "stale_lease"), f"{write} with {forgery}: {shown(error)}"


async def test_an_epoch_that_cannot_be_is_refused_by_every_write(engine: Engine, store: TestStore) -> None:
    fence = (await leased(engine)).fence
    async with nothing_written(store):
        for epoch in (-1, -(2**63), 2**63, 2**64, 10**400):
            for write, call in FENCED.items():
                error = await error_of(call(engine, replace(fence, epoch=epoch)))
                assert (type(error), error.code) == (InvalidRequest, "out_of_range"), write


async def test_in_a_batch_a_bad_fence_is_answered_for_itself(engine: Engine) -> None:
    forgeries = await _forgeries(engine)
    good, absent = (await leased(engine)).fence, Fence(uuid4(), 1, uuid4())
    fences = [*forgeries.values(), good, absent]
    renewed = await engine.leases.renew_many(fences)
    completed = await engine.leases.complete_many([(fence, b"out") for fence in fences])
    for answers in (renewed, completed):
        *refused, answered, missing = answers
        assert [error.code for error in refused if isinstance(error, Refused)] == ["stale_lease"] * len(forgeries)
        assert isinstance(missing, NotFound)
        assert isinstance(answered, Renewed | Ended)
    assert (await engine.executions.describe(good.execution_id)).state is State.COMPLETED


async def test_a_refusal_never_shows_the_lease_that_would_do(engine: Engine) -> None:
    fence = (await leased(engine)).fence
    for call in FENCED.values():
        error = await error_of(call(engine, replace(fence, lease_id=uuid4())))
        assert str(fence.lease_id) not in str(error)
        assert fence.lease_id not in error.fields.values()
