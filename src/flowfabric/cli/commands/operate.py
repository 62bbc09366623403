"""`flowfabric cancel`, `revoke`, `replay`, `resume`, `priority`, `hold` and `unhold`: change executions and flows.

Commands that cannot be undone ask for confirmation.
"""

from __future__ import annotations

import argparse

from flowfabric.cli import exit_codes
from flowfabric.cli.commands.bulk import CANCEL, HOLD, REPLAY, run_bulk, takes_all
from flowfabric.cli.inputs import audit_args, confirm, require_confirmation
from flowfabric.cli.output import format_count, format_time, print_result, to_json
from flowfabric.cli.targets import find_execution, find_flow, open_for_writing
from flowfabric.core.errors import InvalidRequest
from flowfabric.engine import AlreadySatisfied, CancelPending, CancelScheduled, FlowCancelled, State


async def cancel(arguments: argparse.Namespace) -> int:
    """Cancel an execution, a flow with --flow, or with --all the executions that match the filters."""
    if arguments.flow and not arguments.all and arguments.id is not None:
        await _cancel_flow(arguments)
        return exit_codes.OK
    if arguments.flow or arguments.policy is not None or arguments.wait is not None:
        message = "cancel a flow with --flow, its ID and optionally --policy and --wait, without --all"
        raise InvalidRequest("invalid_request", message)
    if takes_all(arguments):
        return await run_bulk(arguments, CANCEL)
    require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        execution = await engine.executions.describe(await find_execution(engine, arguments.id))
        children = " and its children" if arguments.children else ""
        confirm(arguments, f"Cancel {execution.kind} {execution.id}{children}, which is {execution.state}?")
        outcome = await engine.operator.cancel(
            execution.id, children=arguments.children, grace=arguments.grace, **audit_args(arguments)
        )
    if isinstance(outcome, CancelPending):
        sentence = f"The worker was asked to stop. Unfinished work is cancelled at {format_time(outcome.due_at)}."
        print_result(arguments, sentence, {"id": execution.id, "state": None, "cancelled_at": outcome.due_at})
    else:
        print_result(arguments, "Cancelled.", {"id": execution.id, "state": outcome.state, "cancelled_at": None})
    return exit_codes.OK


async def _cancel_flow(arguments: argparse.Namespace) -> None:
    if arguments.grace is not None or arguments.children:
        raise InvalidRequest("invalid_request", "--grace and --children are for one execution; leave out --flow")
    require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        flow = await engine.flows.describe(await find_flow(engine, arguments.id))
        members = format_count(sum(flow.counts.values()), "member")
        confirm(arguments, f"Cancel flow {flow.name} {flow.id} with {members}, which is {flow.state}?")
        policy = arguments.policy or "cancel_all"
        outcome = await engine.flows.cancel(flow.id, policy=policy, wait=arguments.wait, **audit_args(arguments))
    if isinstance(outcome, FlowCancelled):
        sentence = f"Cancelled, with {format_count(outcome.cancelled, 'member')}."
    elif isinstance(outcome, CancelScheduled):
        sentence = f"Cancelled. {format_count(outcome.remaining, 'member')} will follow in the background."
    elif outcome.policy is None:
        sentence = f"Nothing to do: the flow has {outcome.state}."
    else:
        sentence = f"Already cancelled by {outcome.source} ({outcome.policy})."
    print_result(arguments, sentence, {"id": flow.id, "outcome": type(outcome).__name__, **to_json(outcome)})


async def revoke(arguments: argparse.Namespace) -> None:
    """Revoke the lease of an execution. The execution's policy decides what happens then."""
    require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        execution = await engine.executions.describe(await find_execution(engine, arguments.id))
        holder = f"worker {execution.lease.worker.name!r}" if execution.lease else "its worker"
        confirm(arguments, f"Revoke the lease of {holder} on {execution.kind} {execution.id}?")
        outcome = await engine.operator.revoke_lease(
            execution.id,
            instance=arguments.instance,
            lease_id=arguments.lease,
            epoch=arguments.epoch,
            **audit_args(arguments),
        )
    if isinstance(outcome, AlreadySatisfied):
        _print_nothing_to_do(arguments, outcome, "revoked")
    else:
        sentence = f"Revoked. The execution is now at epoch {outcome.epoch}."
        print_result(arguments, sentence, {"revoked": True, **to_json(outcome)})


async def replay(arguments: argparse.Namespace) -> int:
    """Run an ended execution again, the failed members of a flow, or with --all each execution that matches."""
    if arguments.flow and not arguments.all and arguments.id is not None:
        await _replay_flow(arguments)
        return exit_codes.OK
    if arguments.flow or arguments.failed:
        message = "replay the failed members of a flow with --flow, its ID and --failed, without --all"
        raise InvalidRequest("invalid_request", message)
    if takes_all(arguments):
        return await run_bulk(arguments, REPLAY)
    require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        execution = await engine.executions.describe(await find_execution(engine, arguments.id))
        start = f"from step {arguments.from_step}" if arguments.from_step else "from the start"
        confirm(arguments, f"Run {execution.kind} {execution.id}, which is {execution.state}, again {start}?")
        outcome = await engine.operator.replay(
            execution.id,
            from_step=arguments.from_step,
            expected_generation=arguments.generation,
            downstream=not arguments.no_downstream,
            **audit_args(arguments),
        )
    sentence = f"Replayed as generation {outcome.generation}; it is {outcome.state}."
    print_result(arguments, sentence + _describe_revived(outcome.revived), outcome)
    return exit_codes.OK


async def _replay_flow(arguments: argparse.Namespace) -> None:
    if not arguments.failed:
        raise InvalidRequest("invalid_request", "only the failed members of a flow can be replayed; add --failed")
    if arguments.from_step is not None or arguments.generation is not None or arguments.no_downstream:
        message = "--from-step, --generation and --no-downstream are for one execution; leave out --flow"
        raise InvalidRequest("invalid_request", message)
    require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        flow = await engine.flows.describe(await find_flow(engine, arguments.id))
        failed = sum(flow.counts.get(state, 0) for state in (State.FAILED, State.EXPIRED))
        members = format_count(failed, "failed member")
        confirm(arguments, f"Run {members} of flow {flow.name} {flow.id}, which is {flow.state}, again?")
        outcome = await engine.flows.replay(flow.id, failed=True, **audit_args(arguments))
    sentence = f"Replayed {format_count(outcome.replayed, 'failed member')}.{_describe_revived(outcome.revived)}"
    if outcome.exhausted:
        exhausted = format_count(len(outcome.exhausted), "failed member")
        sentence += f" {exhausted} reached the limit of replays and did not run again."
    print_result(arguments, sentence, {"id": flow.id, **to_json(outcome)})


def _describe_revived(number: int) -> str:
    return f" {format_count(number, 'skipped member')} came back." if number else ""


async def resume(arguments: argparse.Namespace) -> None:
    """End the wait of a suspended execution."""
    require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        execution = await engine.executions.describe(await find_execution(engine, arguments.id))
        missing = " and ".join(execution.suspension.missing) if execution.suspension else "nothing"
        confirm(arguments, f"End the wait of {execution.kind} {execution.id} for {missing}?")
        outcome = await engine.operator.resume(
            execution.id, suspension=arguments.suspension, delay=arguments.delay, **audit_args(arguments)
        )
    if isinstance(outcome, AlreadySatisfied):
        _print_nothing_to_do(arguments, outcome, "resumed")
    else:
        print_result(arguments, f"Resumed; it is {outcome.state}.", {"resumed": True, **to_json(outcome)})


def _print_nothing_to_do(arguments: argparse.Namespace, outcome: AlreadySatisfied, key: str) -> None:
    sentence = f"Nothing to do: {outcome.reason.replace('_', ' ')}."
    print_result(arguments, sentence, {key: False, **to_json(outcome)})


async def priority(arguments: argparse.Namespace) -> None:
    """Change the priority of a waiting execution."""
    async with open_for_writing(arguments) as engine:
        id_ = await find_execution(engine, arguments.id)
        outcome = await engine.operator.change_priority(id_, arguments.priority, **audit_args(arguments))
    print_result(arguments, f"The priority is {outcome.new}; it was {outcome.old}.", outcome)


async def hold(arguments: argparse.Namespace) -> int:
    """Hold an execution that is waiting or delayed, or with --all each one that matches the filters."""
    if takes_all(arguments):
        return await run_bulk(arguments, HOLD)
    async with open_for_writing(arguments) as engine:
        id_ = await find_execution(engine, arguments.id)
        outcome = await engine.operator.hold(id_, **audit_args(arguments))
    print_result(arguments, "Held.", {"id": id_, **to_json(outcome)})
    return exit_codes.OK


async def unhold(arguments: argparse.Namespace) -> None:
    """Unhold one execution, or with --all every held execution that matches the filters."""
    if (arguments.id is None) is not arguments.all:
        raise InvalidRequest("invalid_request", "name an execution, or use --all")
    if arguments.id is not None and (arguments.kind is not None or arguments.held_for is not None):
        raise InvalidRequest("invalid_request", "--kind and --held-for need --all; leave out the execution")
    if arguments.all:
        await _unhold_all(arguments)
        return
    async with open_for_writing(arguments) as engine:
        id_ = await find_execution(engine, arguments.id)
        outcome = await engine.operator.unhold(id_, **audit_args(arguments))
    if isinstance(outcome, AlreadySatisfied):
        sentence, unheld, state = "Nothing to do: it is not held.", False, None
    else:
        sentence, unheld, state = f"No longer held; it is {outcome.state}.", True, outcome.state
    print_result(arguments, sentence, {"id": id_, "unheld": unheld, "state": state})


async def _unhold_all(arguments: argparse.Namespace) -> None:
    require_confirmation(arguments)
    which = "" if arguments.kind is None else f" of kind {arguments.kind}"
    which += "" if arguments.held_for is None else f" held for {arguments.held_for!r}"
    confirm(arguments, f"Unhold all held executions{which}?")
    async with open_for_writing(arguments) as engine:
        number = await engine.operator.unhold_all(
            kind=arguments.kind, hold_reason=arguments.held_for, **audit_args(arguments)
        )
    print_result(arguments, f"{format_count(number, 'execution')} no longer held.", {"unheld": number})
