"""`flowfabric cancel`, `revoke`, `replay` and `resume`: what cannot be taken back is asked for first."""

from __future__ import annotations

import argparse

from flowfabric.cli.asking import confirm, must_be_told, who
from flowfabric.cli.documents import plain
from flowfabric.cli.opening import writing
from flowfabric.cli.saying import count_of, moment, say
from flowfabric.core.errors import InvalidRequest
from flowfabric.engine import (
    AlreadySatisfied,
    CancelRequested,
    CancelScheduled,
    Engine,
    FlowAlreadyCancelled,
    FlowCancelled,
)


async def cancel(arguments: argparse.Namespace) -> None:
    """Cancels an execution, or with --flow a flow."""
    if arguments.flow:
        await _cancel_flow(arguments)
        return
    if arguments.policy is not None or arguments.wait is not None:
        raise InvalidRequest("invalid_request", "--policy and --wait are for flows; say --flow too")
    must_be_told(arguments)
    async with writing(arguments) as engine:
        found = await engine.executions.describe(arguments.id)
        children = " and its children" if arguments.children else ""
        confirm(arguments, f"Cancel {found.kind} {found.id}{children}, which is {found.state}?")
        answer = await engine.operator.cancel(
            arguments.id, children=arguments.children, grace=arguments.grace, **who(arguments)
        )
    if isinstance(answer, CancelRequested):
        said = f"Its worker is asked to stop; what has not ended by {moment(answer.due_at)} is cancelled."
        say(arguments, said, {"id": found.id, "state": None, "cancelled_at": answer.due_at})
    else:
        say(arguments, "Cancelled.", {"id": found.id, "state": answer.state, "cancelled_at": None})


async def revoke(arguments: argparse.Namespace) -> None:
    """Takes a lease away; the policy of the execution says what follows."""
    must_be_told(arguments)
    async with writing(arguments) as engine:
        found = await engine.executions.describe(arguments.id)
        holder = f"worker {found.lease.worker.name!r}" if found.lease else "whoever has it"
        confirm(arguments, f"Take the lease on {found.kind} {found.id} away from {holder}?")
        answer = await engine.operator.revoke_lease(
            arguments.id, instance=arguments.instance, lease_id=arguments.lease, epoch=arguments.epoch,
            **who(arguments),
        )  # fmt: skip
    if isinstance(answer, AlreadySatisfied):
        say(arguments, f"Nothing to do: {answer.reason.replace('_', ' ')}.", {"revoked": False, **plain(answer)})
    else:
        said = f"Revoked; the execution is at epoch {answer.epoch} now."
        say(arguments, said, {"revoked": True, **plain(answer)})


async def replay(arguments: argparse.Namespace) -> None:
    """Runs an ended execution again."""
    must_be_told(arguments)
    async with writing(arguments) as engine:
        found = await engine.executions.describe(arguments.id)
        start = f"from step {arguments.from_step}" if arguments.from_step else "from its start"
        confirm(arguments, f"Run {found.kind} {found.id} again {start}? It has ended {found.state}.")
        answer = await engine.operator.replay(
            arguments.id, from_step=arguments.from_step, expected_generation=arguments.generation, **who(arguments)
        )
    say(arguments, f"It runs again, as generation {answer.generation}: {answer.state}.", answer)


async def resume(arguments: argparse.Namespace) -> None:
    """Ends a wait, whatever it waits for."""
    must_be_told(arguments)
    async with writing(arguments) as engine:
        found = await engine.executions.describe(arguments.id)
        missing = " and ".join(found.suspension.missing) if found.suspension else "nothing"
        confirm(arguments, f"End the wait of {found.kind} {found.id}, which waits for {missing}?")
        answer = await engine.operator.resume(
            arguments.id, suspension=arguments.suspension, delay=arguments.delay, **who(arguments)
        )
    if isinstance(answer, AlreadySatisfied):
        say(arguments, f"Nothing to do: {answer.reason.replace('_', ' ')}.", {"resumed": False, **plain(answer)})
    else:
        say(arguments, f"It goes on: {answer.state}.", {"resumed": True, **plain(answer)})


async def _cancel_flow(arguments: argparse.Namespace) -> None:
    if arguments.grace is not None or arguments.children:
        raise InvalidRequest("invalid_request", "--grace and --children are for one execution; leave out --flow")
    must_be_told(arguments)
    async with writing(arguments) as engine:
        found = await engine.flows.describe(arguments.id)
        members = count_of(sum(found.counts.values()), "member")
        confirm(arguments, f"Cancel flow {found.name} {found.id} of {members}, which is {found.state}?")
        answer = await _cancelled(engine, arguments)
    if isinstance(answer, FlowCancelled):
        said = f"Cancelled, with {count_of(answer.cancelled, 'member')}."
    elif isinstance(answer, CancelScheduled):
        said = f"Cancelled; {count_of(answer.left, 'member')} follow in the background."
    else:
        said = f"It was cancelled before, by {answer.source} ({answer.policy})."
    say(arguments, said, {"id": found.id, "answer": type(answer).__name__, **plain(answer)})


async def _cancelled(
    engine: Engine, arguments: argparse.Namespace
) -> FlowCancelled | CancelScheduled | FlowAlreadyCancelled:
    policy = arguments.policy or "cancel_all"
    return await engine.flows.cancel(arguments.id, policy=policy, wait=arguments.wait, **who(arguments))
