"""Where tests look into a run: around every commit, at every step, and where a body begins or comes to rest. Production
runs have silent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flowfabric.sdk.journal import Record
    from flowfabric.sdk.run import Run


class Probe(Protocol):
    """What is told of a run. It may call `run.restart()` or `run.lease_lost(…)` from anywhere."""

    is_strict: bool

    def begins(self, run: Run) -> None:
        """The body is about to run from its top."""

    def performing(self, run: Run, path: str) -> None:
        """The function of a step is about to be called."""

    def recording(self, run: Run, record: Record) -> None:
        """What the record tells has happened; it is about to be stored."""

    def recorded(self, run: Run, record: Record) -> None:
        """The record is stored, and the run goes on. Not told of commits that give the lease up."""

    def resting(self, run: Run) -> None:
        """Every branch waits; the lease is about to be given up."""


class Silent:
    """Is told everything and does nothing. A strict probe has values that change on the way refused."""

    is_strict = False

    def begins(self, run: Run) -> None: ...

    def performing(self, run: Run, path: str) -> None: ...

    def recording(self, run: Run, record: Record) -> None: ...

    def recorded(self, run: Run, record: Record) -> None: ...

    def resting(self, run: Run) -> None: ...


SILENT = Silent()
