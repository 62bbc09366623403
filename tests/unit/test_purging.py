"""How much is removed at once."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.core.limits import EARLIEST
from flowfabric.core.purging import Remains, due_by, fitting

NOW = EARLIEST + timedelta(days=1)


def remains(*rows: int) -> list[Remains]:
    return [Remains(UUID(int=number), NOW, size) for number, size in enumerate(rows, start=1)]


def test_only_those_whose_time_is_over_are_due() -> None:
    [item] = remains(1)
    later, never = Remains(item.id, NOW + timedelta(seconds=1), 1), Remains(item.id, None, 1)
    assert due_by([later, item, never], NOW) == [item]


def test_as_many_as_fit_go_together() -> None:
    found = remains(4, 3, 3, 1)
    assert fitting(found, 10) == found[:3]
    assert fitting(found, 11) == found
    assert fitting([], 10) == []


def test_one_goes_however_many_rows_it_has() -> None:
    found = remains(1_000, 1)
    assert fitting(found, 10) == found[:1]
    assert fitting(found, 0) == found[:1]
