"""Where tests look into a run: around every record, and when a body begins. Production runs have silent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flowfabric.sdk.journal import Record
    from flowfabric.sdk.run import Run


class Probe(Protocol):
    """What is told of a run; raising from it ends the run there."""

    is_strict: bool

    def begins(self, run: Run) -> None:
        """The body is about to run from its top."""

    def recording(self, run: Run, record: Record) -> None:
        """What the record tells has happened; it is not stored yet."""

    def recorded(self, run: Run, record: Record) -> None:
        """The record is stored."""


class Silent:
    """Is told everything and does nothing. A strict probe has values that change on the way refused."""

    is_strict = False

    def begins(self, run: Run) -> None: ...

    def recording(self, run: Run, record: Record) -> None: ...

    def recorded(self, run: Run, record: Record) -> None: ...


SILENT = Silent()
