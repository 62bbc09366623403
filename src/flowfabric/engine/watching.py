"""Waiting for work without asking for it all the time."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from flowfabric.core import limits
from flowfabric.wakeups.bells import Bell
from flowfabric.wakeups.wakeups import Wakeups

_ONE_DAY_S = 86_400.0


class WorkWatch:
    """Tells an idle worker when to claim again. Enter it before the first claim: what is submitted between a claim and
    the wait after it is not missed."""

    def __init__(self, wakeups: Wakeups, bell: Bell) -> None:
        self._wakeups = wakeups
        self._bell = bell

    def __enter__(self) -> Self:
        self._bell.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bell.__exit__(kind, error, traceback)

    async def wait(self, timeout: limits.Duration | None = None) -> bool:  # noqa: ASYNC109 - how long a worker idles
        """True when there may be work, False when it is time to claim anyhow: after `timeout`, or now and then when
        nobody else looks. The reconcilers of a process, while they run, look for everybody in it by one statement."""
        limit_s = _ONE_DAY_S if timeout is None else limits.duration(timeout, "timeout").total_seconds()
        longest_s = limit_s if self._wakeups.patrols else min(limit_s, self._wakeups.look_s)
        return await self._bell.wait(longest_s)
