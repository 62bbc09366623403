"""The kit for tests that are plain functions."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from flowfabric.sdk.aliases import Duration, P, R, T
from flowfabric.sdk.client_thread import wait_for
from flowfabric.sdk.handles import Handle as AsyncHandle
from flowfabric.sdk.signals import Delivery, Signal
from flowfabric.sdk.sync_client import Handle
from flowfabric.sdk.tasks import Task
from flowfabric.testing.watching import Watch

if TYPE_CHECKING:
    from flowfabric.testing.kit import Kit


class SyncKit:
    """A kit whose verbs answer the value instead of something to await. Handles are those of `task.sync.submit`."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    def __enter__(self) -> Self:
        wait_for(self._kit.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_for(lambda: self._kit.__aexit__(kind, error, traceback))

    def start(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Submits an execution and performs what can be performed."""
        return Handle(wait_for(lambda: self._kit.start(task, *args, **kwargs)))

    def run(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submits an execution and answers its result, skipping time."""
        return wait_for(lambda: self._kit.run(task, *args, **kwargs))

    def work(self) -> None:
        """Performs what can be performed."""
        wait_for(self._kit.work)

    def advance(self, duration: Duration) -> None:
        """Lets this much time go by, and performs what becomes possible on the way."""
        wait_for(lambda: self._kit.advance(duration))

    def finish(self, handle: Handle[R]) -> R:
        """The result of an execution, skipping time."""
        return wait_for(lambda: self._kit.finish(self._same(handle)))

    def now(self) -> datetime:
        """The present time of the kit."""
        return self._kit.now()

    def signal(self, handle: Handle[Any], signal: Signal[T], value: T, *, key: str | None = None) -> Delivery:
        """Sends a signal, and performs what it makes possible."""
        return wait_for(lambda: self._kit.signal(self._same(handle), signal, value, key=key))

    def approve(self, handle: Handle[Any], name: str, *, by: str, comment: str = "") -> Delivery:
        """Approves what is open under this name, and performs what that makes possible."""
        return wait_for(lambda: self._kit.approve(self._same(handle), name, by=by, comment=comment))

    def reject(self, handle: Handle[Any], name: str, *, by: str, reason: str = "") -> Delivery:
        """Rejects what is open under this name, and performs what that makes possible."""
        return wait_for(lambda: self._kit.reject(self._same(handle), name, by=by, reason=reason))

    def crash_after(self, path: str) -> None:
        """Kills the run that records this path next, right after that."""
        self._kit.crash_after(path)

    def crash_before(self, path: str) -> None:
        """Kills the run that is about to record this path next."""
        self._kit.crash_before(path)

    def duplicate_delivery(self) -> None:
        """From now on every signal and decision is delivered twice."""
        self._kit.duplicate_delivery()

    def steps(self, handle: Handle[Any]) -> list[str]:
        """The paths of everything that is recorded of an execution, in order."""
        return wait_for(lambda: self._kit.steps(self._same(handle)))

    @property
    def watch(self) -> Watch:
        """What the kit saw."""
        return self._kit.watch

    def _same(self, handle: Handle[R]) -> AsyncHandle[R]:
        return AsyncHandle(self._kit.app, handle.id)
