"""create_waitpoint: open waitpoints before an execution waits, so that their tokens can be handed out early."""

from __future__ import annotations

from dataclasses import dataclass

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.outcomes import OpenWaitpoint
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import Minter
from flowfabric.core.waits.declare import DeclareSignals, decide_declare_signals
from flowfabric.core.waits.suspend import (
    NO_INPUTS,
    CreateWaitpoint,
    CreateWaitpoints,
    decide_create_waitpoint,
    decide_create_waitpoints,
)
from flowfabric.ops.apply import write_one
from flowfabric.ops.keys import WithKeys, ensure_minting_ring, read_ring
from flowfabric.ops.leases.checkpoint import record_steps
from flowfabric.ops.locks import lock_owned
from flowfabric.ops.operation import operation
from flowfabric.ops.waits.load import load_suspend_inputs
from flowfabric.store.transaction import Transaction


@operation()
async def create_waitpoint(tx: Transaction, namespace: str, create: WithKeys[CreateWaitpoint]) -> OpenWaitpoint:
    """Create a waitpoint, and return it with its token. If this key has an open waitpoint, return that instead."""
    execution, now = await lock_owned(tx, namespace, create.request.fence)
    inputs = await load_suspend_inputs(tx, await tx.waits.open_waitpoints([execution.id]), {})
    minter = Minter(await ensure_minting_ring(tx, create.keys, now), namespace)
    own_inputs = inputs.get(execution.id, NO_INPUTS)
    return await write_one(tx, decide_create_waitpoint(execution, create.request, own_inputs, minter, now))


@operation()
async def create_waitpoints(tx: Transaction, namespace: str, create: WithKeys[CreateWaitpoints]) -> list[OpenWaitpoint]:
    """Create several waitpoints, and return them with their tokens. Record the request's steps in the same commit."""
    request, keys = create.request, create.keys
    execution, now = await lock_owned(tx, namespace, request.fence)
    inputs = await load_suspend_inputs(tx, await tx.waits.open_waitpoints([execution.id]), {})
    await record_steps(tx, execution, request.steps, now)
    ring = await ensure_minting_ring(tx, keys, now) if request.waitpoints else await read_ring(tx, keys)
    minter = Minter(ring, namespace)
    decision = decide_create_waitpoints(execution, request.waitpoints, inputs.get(execution.id, NO_INPUTS), minter, now)
    return await write_one(tx, decision)


@operation()
async def declare_signals(tx: Transaction, namespace: str, request: DeclareSignals) -> tuple[str, ...]:
    """Open waitpoints for signals that the submission did not declare, and return their names."""
    execution, now = await lock_owned(tx, namespace, request.fence)
    inputs = await load_suspend_inputs(tx, await tx.waits.open_waitpoints([execution.id]), {})
    known = (await tx.waits.declared_signals([execution.id])).get(execution.id, {})
    own_inputs = inputs.get(execution.id, NO_INPUTS)
    return await write_one(tx, decide_declare_signals(execution, request, own_inputs, known, now))


@dataclass(frozen=True, slots=True)
class TokenQuery:
    """The keys of waitpoints whose tokens the owner of a lease wants again."""

    fence: Fence
    waitpoints: tuple[str, ...]


@operation()
async def read_tokens(tx: Transaction, namespace: str, query: WithKeys[TokenQuery]) -> dict[str, Secret]:
    """For each key, return the token of its latest waitpoint in this generation, unchanged since it was minted."""
    execution, now = await lock_owned(tx, namespace, query.request.fence)
    minter = Minter(await read_ring(tx, query.keys), namespace)
    tokens: dict[str, Secret] = {}
    for key in query.request.waitpoints:
        waitpoint = await tx.waits.last_waitpoint(execution.id, key, now)
        token = None
        if waitpoint is not None and waitpoint.generation == execution.generation:
            token = minter.token(waitpoint)
        if token is None:
            raise _no_token(execution, key)
        tokens[key] = token
    return tokens


def _no_token(execution: Execution, key: str) -> NotFound:
    message = f"execution {execution.id} has no token at waitpoint {key!r}: it was never opened, or its key is gone"
    return NotFound("token_not_found", message, execution_id=execution.id, waitpoint=key)
