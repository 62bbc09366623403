"""Failures of a group that nothing has recorded: whether they decide it depends on what the function makes of them.

If the function fails with them, its next attempt tries the whole group again, so what the other members wait for must
stay. If it goes on, the group has failed like any other: that is recorded, and its members are ended. Code that still
handles the failure may yet raise it again, so it has not gone on.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from flowfabric.sdk.units import Unit

Decide: TypeAlias = Callable[[], Awaitable[None]]


class Accidents:
    """Groups of a run that failed by accident, each with how it is decided if the function goes on."""

    def __init__(self) -> None:
        self._open: list[tuple[Unit, BaseException, Decide]] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, unit: Unit, error: BaseException, decide: Decide) -> None:
        """Notes a group that this branch waited for."""
        self._open.append((unit, error, decide))

    def forget(self, unit: Unit) -> None:
        """The code of this branch begins anew, and may come to something else."""
        self._open = [item for item in self._open if not _is_within(item[0], unit)]

    def gone_by(self, unit: Unit | None = None) -> list[Decide]:
        """Takes out those that this branch goes on after, or all of them at the end of the function."""
        handled = _handled()
        gone = [item for item in self._open if _is_within(item[0], unit) and item[1] not in handled]
        self._open = [item for item in self._open if item not in gone]
        return [decide for _, _, decide in gone]


def _is_within(unit: Unit | None, outer: Unit | None) -> bool:
    while outer is not None and unit is not None and unit is not outer:
        unit = unit.parent
    return unit is not None


def _handled() -> list[BaseException]:
    """What the code that runs just now has caught and not yet left behind."""
    found, error = list[BaseException](), sys.exc_info()[1]
    while error is not None and error not in found:
        found.append(error)
        error = error.__context__
    return found
