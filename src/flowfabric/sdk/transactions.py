"""Steps inside the store's own transaction: what they write and their record commit together, or neither."""

from __future__ import annotations

import inspect
from contextvars import copy_context
from typing import Any

from flowfabric.core.errors import Conflict
from flowfabric.core.requests import Step, StepStatus
from flowfabric.sdk.commits import insist, undisturbed
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.journal import Record
from flowfabric.sdk.steps import StepCall
from flowfabric.sdk.storing import checked_result
from flowfabric.sdk.units import STEP, StepContext


class TransactionCall(StepCall):
    """One call of a function with the store's connection."""

    kind = "transaction"

    async def _succeed(self) -> Any:
        # Its record comes with a transaction of its own, so what it may depend on is stored before.
        await self.run.commits.flushed()
        self.run.calls.check_over()
        token = STEP.set(StepContext(self.run, self.path))
        try:
            record = await self._transact()
        finally:
            STEP.reset(token)
        # A try that failed before is over now, and must not be written any more.
        self.run.commits.forget(record)
        self.run.probe.recorded(self.run, record)
        self.run.calls.check_over()
        return checked_result(self.fn).restore(record.value)

    async def _transact(self) -> Record:
        run, form, made = self.run, checked_result(self.fn), list[Record]()
        # On SQLite it runs in the thread that writes, which knows of no step unless it is told.
        context = copy_context()

        def body(connection: Any) -> Any:
            return context.run(self.fn, connection, *self.args, **self.kwargs)

        async def async_body(connection: Any) -> Any:
            return await self.fn(connection, *self.args, **self.kwargs)

        # The store tells by the function itself whether it is of the colour that its driver needs.
        chosen = async_body if inspect.iscoroutinefunction(self.fn) else body

        def record(result: Any) -> Step:
            made[:] = [self.made.record(StepStatus.OK, value=form.stored(result, self).data)]
            run.probe.recording(run, made[0])
            return made[0].to_step()

        try:
            # Whoever cancels it meanwhile is too late: what it has written is there.
            transacting = insist(run, lambda: run.engine.leases.transact(run.lease.fence, chosen, record))
            await undisturbed(run.loop.create_task(transacting))
        except Conflict as error:
            if error.code != "step_already_recorded":
                raise
            return await self._recorded()
        if not made or run.loss is not None:
            raise Unwind
        return made[0]

    async def _recorded(self) -> Record:
        """What an earlier try has stored whose reply was lost."""
        steps = await insist(self.run, lambda: self.run.engine.leases.recorded(self.run.lease.fence))
        for step in steps or ():
            if step.name == self.path:
                return Record.from_step(step)
        raise Unwind
