"""Steps in a transaction of the store. Their rows and their record are committed together, or not at all."""

from __future__ import annotations

import inspect
from contextvars import copy_context
from typing import Any

from flowfabric.core.errors import Conflict
from flowfabric.core.executions.requests import Step
from flowfabric.runtime.branch import STEP, StepContext
from flowfabric.runtime.calls.step import StepCall
from flowfabric.runtime.journal import Record
from flowfabric.runtime.record_writer import retry_while_owned, shield
from flowfabric.runtime.results import store_result
from flowfabric.values import guards, return_codec
from flowfabric.values.errors import Unwind


class TransactionCall(StepCall):
    """One call of a function that gets the store's connection and runs in a transaction."""

    kind = "transaction"

    async def _succeed(self) -> Any:
        # The transaction stores only the record of this step, so first store the records of earlier calls.
        await self.run.record_writer.flush()
        self.run.calls.check_over()
        token = STEP.set(StepContext(self.run, self.path))
        try:
            record = await self._transact()
        finally:
            STEP.reset(token)
        # An earlier try that failed may have left an unwritten record of this call, so discard that record.
        self.run.record_writer.discard(record)
        self.warn_if_changed()
        self.run.hooks.record_stored(self.run, record)
        self.run.calls.check_over()
        return return_codec(self.fn).restore(record.value)

    async def _transact(self) -> Record:
        run, codec, records = self.run, return_codec(self.fn), list[Record]()
        # On SQLite the function runs in the writer thread, which needs the context of this step.
        context = copy_context()

        def body(connection: Any) -> Any:
            try:
                return context.run(self.fn, connection, *self.args, **self.kwargs)
            except BaseException as error:
                _refuse_hidden_class(error)
                raise
            finally:
                run.exit_if_forked(self.path)

        async def async_body(connection: Any) -> Any:
            try:
                return await self.fn(connection, *self.args, **self.kwargs)
            except BaseException as error:
                _refuse_hidden_class(error)
                raise
            finally:
                run.exit_if_forked(self.path)

        # The store refuses a function whose kind, plain or async, does not suit the database driver.
        chosen = async_body if inspect.iscoroutinefunction(self.fn) else body

        def record(result: Any) -> Step:
            self.end_try()
            records[:] = [self.record_result(store_result(result, codec, self).data)]
            run.hooks.record_starting(run, records[0])
            return records[0].to_step()

        repeated_step: str | None = None

        async def transact() -> Any:
            nonlocal repeated_step
            name, repeated_step = repeated_step, self.path
            return await run.engine.leases.transact(run.lease.fence, chosen, record, repeated_step=name)

        try:
            # Finish even if this call is cancelled, since the rows may already be committed.
            await shield(run.loop.create_task(retry_while_owned(run, transact)))
        except Conflict as error:
            if error.code != "step_already_recorded":
                raise
            return await self._find_record()
        if not records or run.loss is not None:
            raise Unwind
        return records[0]

    async def _find_record(self) -> Record:
        """Return the record that an earlier try stored, although the store's reply to that try was lost."""
        steps = await retry_while_owned(self.run, lambda: self.run.engine.leases.journal(self.run.lease.fence))
        for step in steps or ():
            if step.name == self.path:
                return Record.from_step(step)
        raise Unwind


def _refuse_hidden_class(error: BaseException) -> None:
    """Raise a substitute if neither the store nor a future could handle the error, because its `__class__` is wrong."""
    if not guards.has_own_class(error):
        text = guards.text_of(error) or "its attributes raise"
        raise RuntimeError(f"{guards.type_name(error)}: {text}") from None
