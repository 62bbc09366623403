"""Results on their way into the journal and back: what is stored is what the first run sees."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowfabric.sdk.errors import ValueRefused
from flowfabric.sdk.values import Form, Stored, return_form

if TYPE_CHECKING:
    from flowfabric.sdk.durable import DurableCall

LOG = logging.getLogger("flowfabric")


@dataclass(frozen=True, slots=True)
class ResultForm:
    """How the result of a function is stored."""

    form: Form[Any]

    def restore(self, data: bytes) -> Any:
        """The result behind its stored form."""
        return self.form.restore(data)

    def stored(self, value: Any, call: DurableCall[Any]) -> Stored[Any]:
        """The result stored and restored. One that comes back changed is an error in tests, and a warning once per
        step elsewhere: the effect has happened and must not be repeated."""
        found = self.form.stored(value)
        if found.lossy is not None:
            if call.run.probe.is_strict:
                raise ValueRefused(f"{call.path}: {found.lossy}", path=call.path)
            _warn_once(
                call.run.task.name, call.path.rpartition("/")[2].partition("#")[0].partition("[")[0], found.lossy
            )
        return found


def checked_result(fn: Callable[..., Any]) -> ResultForm:
    """How the results of a function are stored, by its return annotation."""
    return ResultForm(return_form(fn))


_warned: set[tuple[str, str]] = set()


def _warn_once(task: str, name: str, why: str) -> None:
    if (task, name) not in _warned:
        _warned.add((task, name))
        LOG.warning("the result of %s in %s changes when it is stored: %s", name, task, why)
