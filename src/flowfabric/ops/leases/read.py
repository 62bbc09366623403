"""Reads that concurrent callers share. One statement reads for all callers of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.executions.records import RecordedStep
from flowfabric.core.executions.requests import execution_not_found
from flowfabric.core.executions.views import LeaseSnapshot, StateSnapshot, Summary, summarize
from flowfabric.core.flows.outcomes import Input
from flowfabric.core.waits.snapshot import MAX_SIGNALS, JournalRequest, WaitSnapshot, WaitSnapshotRequest
from flowfabric.ops.operation import BatchOperation, operation
from flowfabric.store.transaction import Transaction

Request = TypeVar("Request")
Snapshot = TypeVar("Snapshot")


class SharedRead(BatchOperation[Request, Snapshot]):
    """A read of many executions by one statement; unknown ids are refused with `execution_not_found`."""

    read_only = True
    single_path = "single"

    @abstractmethod
    async def read(self, tx: Transaction, namespace: str, requests: Sequence[Any]) -> Mapping[UUID, Snapshot]:
        """Read the executions of these requests, and return a snapshot of each by execution id."""

    def execution_id(self, request: Any) -> UUID:
        """Return the execution that a request is about."""
        id_: UUID = request.execution_id
        return id_

    def key(self, request: Request) -> Hashable:
        return self.execution_id(request)

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Request]
    ) -> list[Snapshot | FlowFabricError]:
        snapshots = await self.read(tx, namespace, requests)
        ids = map(self.execution_id, requests)
        return [snapshots[id_] if id_ in snapshots else execution_not_found(id_) for id_ in ids]

    async def run_one(self, tx: Transaction, namespace: str, request: Request) -> Snapshot:
        snapshots, id_ = await self.read(tx, namespace, [request]), self.execution_id(request)
        if id_ not in snapshots:
            raise execution_not_found(id_)
        return snapshots[id_]


class _ReadById(SharedRead[UUID, Snapshot]):
    """A read by execution id. A batch may contain the same id several times."""

    def execution_id(self, request: UUID) -> UUID:
        return request

    def key(self, request: UUID) -> Hashable:
        return object()


class ReadWaits(SharedRead[WaitSnapshotRequest, WaitSnapshot]):
    """Read what running workers wait for: signals, ends of children, and overrides by an operator."""

    name = "read_waits"

    async def read(
        self, tx: Transaction, namespace: str, requests: Sequence[WaitSnapshotRequest]
    ) -> Mapping[UUID, WaitSnapshot]:
        return await tx.snapshots.read_waits(namespace, requests, MAX_SIGNALS)


class ReadJournal(SharedRead[JournalRequest, list[RecordedStep]]):
    """Read the valid recorded steps of executions."""

    name = "journal"

    async def read(
        self, tx: Transaction, namespace: str, requests: Sequence[JournalRequest]
    ) -> Mapping[UUID, list[RecordedStep]]:
        return await tx.snapshots.read_journals(namespace, requests)


class Peek(_ReadById[StateSnapshot]):
    """Read the state of executions, and their outcome if they have ended."""

    name = "peek"

    async def read(self, tx: Transaction, namespace: str, requests: Sequence[UUID]) -> Mapping[UUID, StateSnapshot]:
        return await tx.snapshots.peek(namespace, requests)


class ReadInputs(_ReadById[dict[str, Input]]):
    """Read the inputs of flow members, which are the results of their upstream members."""

    name = "inputs"

    async def read(self, tx: Transaction, namespace: str, requests: Sequence[UUID]) -> Mapping[UUID, dict[str, Input]]:
        return await tx.snapshots.read_inputs(namespace, requests)


@operation(read_only=True, single_statement=True)
async def peek_leases(tx: Transaction, namespace: str, ids: Sequence[UUID]) -> dict[UUID, LeaseSnapshot]:
    """Read the live leases and the requested cancels of executions. Leave out executions that do not exist."""
    return await tx.snapshots.peek_leases(namespace, ids)


@dataclass(frozen=True, slots=True)
class IdPage:
    """A page of executions: at most `limit` with an id below `before`."""

    before: UUID
    limit: int


@operation(read_only=True)
async def list_expired(tx: Transaction, namespace: str, page: IdPage) -> list[Summary]:
    """Return executions whose lease is past its time but not ended yet, newest first."""
    executions = await tx.executions.list_expired(namespace, page.before, await tx.now(), page.limit)
    return [summarize(execution) for execution in executions]


READ_WAITS = ReadWaits()
READ_JOURNAL = ReadJournal()
PEEK = Peek()
READ_INPUTS = ReadInputs()
