"""Signals: typed names shared by who sends and who waits, and the decisions of approvers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias
from uuid import UUID

from typing_extensions import TypeForm

from flowfabric.core import limits
from flowfabric.core.errors import NotFound
from flowfabric.core.outcomes import Accepted, DuplicateSignal
from flowfabric.core.views import WaitpointView
from flowfabric.core.waits import WaitpointKind, WaitpointState
from flowfabric.sdk import senders
from flowfabric.sdk.aliases import T
from flowfabric.sdk.deciding import Word, deliver_decision
from flowfabric.sdk.values import Form, form_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowfabric.engine.engine import Engine

Opening: TypeAlias = "Callable[[], Awaitable[Engine]]"
Delivery: TypeAlias = Accepted | DuplicateSignal


class Signal(Generic[T]):
    """A name, and the type of what is sent under it. Tasks that declare it take it from the submit on."""

    def __init__(self, name: str, form: TypeForm[T]) -> None:
        self.name = limits.name(name, "signal name")
        self.annotation = form

    @cached_property
    def form(self) -> Form[T]:
        """How values are stored and restored."""
        form: Form[T] = form_of(self.annotation, what=f"signal {self.name!r}")
        return form

    def __repr__(self) -> str:
        return f"Signal({self.name!r}, {getattr(self.annotation, '__name__', self.annotation)})"


def wait_key(name: str) -> str:
    """The name under which a wait for a signal is recorded, and from which the key of its waitpoint is made."""
    return f"signal:{name}"


async def decide(opening: Opening, token: str, word: Word, comment: str) -> Delivery:
    """Delivers an approver's decision; a second one by the same token answers as a duplicate with the first."""
    return await deliver_decision(await opening(), token, word, limits.text(comment, "comment"), "token")


async def deliver(opening: Opening, token: str, name: str, payload: object) -> Delivery:
    """Delivers plain JSON to the waitpoint that the token is for."""
    form: Form[object] = form_of(Any, what=f"the payload of {name!r}")
    data = form.store(payload)
    engine = await opening()
    return await engine.signals.deliver(token, name, data, source_type="token")


async def send(
    engine: Engine, id_: UUID, name: str, payload: bytes, key: str | None, *, by: str | None = None
) -> Delivery:  # fmt: skip
    """Delivers to the waitpoint that stands under this name, or else to the wait that is open for it right now; `by`
    is whoever sends it, if that is not a program."""
    kind, identity = senders.sender() if by is None else ("operator", by)
    try:
        return await engine.signals.send(id_, name, payload, key=key, source_type=kind, source_identity=identity)
    except NotFound as error:
        if error.code != "waitpoint_not_found":
            raise
    waitpoint = await _open_wait(engine, id_, name)
    return await engine.signals.approve(
        id_, waitpoint.key, name, payload, suffix=key, principal=by or senders.principal()
    )


async def _open_wait(engine: Engine, id_: UUID, name: str) -> WaitpointView:
    """The oldest wait for this signal that is open; it must be awaited now, since nobody declared it."""
    after: UUID | None = None
    while True:
        page = await engine.waitpoints.list(id_, after=after)
        for waitpoint in _waits_for(page, name):
            return waitpoint
        if not page:
            break
        after = page[-1].id
    message = (
        f"execution {id_} neither declares signal {name!r} nor waits for it now; "
        f"@app.task(signals=[…]) takes it from the submit on"
    )
    raise NotFound("signal_not_expected", message, execution_id=id_, signal=name)


def _waits_for(waitpoints: list[WaitpointView], name: str) -> Iterator[WaitpointView]:
    wanted = wait_key(name)
    for waitpoint in waitpoints:
        # Both the scope of a branch and the name of a signal may have slashes.
        scope, found, more = waitpoint.key.rpartition(wanted)
        is_wanted = bool(found) and scope[-1:] in ("", "/") and more[:1] in ("", "#", "[")
        is_open = waitpoint.state is not WaitpointState.CLOSED and waitpoint.kind is WaitpointKind.ADDRESSED
        if is_open and is_wanted:
            yield waitpoint
