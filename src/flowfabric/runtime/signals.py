"""Signals: their typed names and delivery, decisions and callbacks with a token, and links that contain a token.

Links lead to `app.asgi()`. A link contains its token, so it is as secret as the token.

    BASE/TOKEN             an approval: a page that asks; only its buttons decide
    BASE/callback/TOKEN    a callback: accepts the payload that is posted to it
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID

from typing_extensions import TypeForm

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.outcomes import Accepted, DuplicateSignal
from flowfabric.core.ids import derive_id
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.waits.decisions import DecisionWord
from flowfabric.core.waits.sources import EXECUTION, OPERATOR, PROGRAM, UNKNOWN
from flowfabric.runtime.branch import BRANCH, STEP, current_branch
from flowfabric.values import ValueCodec, codec_for
from flowfabric.values.aliases import T, awaited_as
from flowfabric.values.schemas import schema_for

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine


EngineFactory: TypeAlias = "Callable[[], Awaitable[Engine]]"
Delivery: TypeAlias = Accepted | DuplicateSignal


class Signal(Generic[T]):
    """The name of a signal, and its payload type. A task that declares the signal accepts it from the submit on."""

    def __init__(self, name: str, payload_type: TypeForm[T]) -> None:
        self.name = validation.name(name, "signal name")
        self.annotation = payload_type

    @cached_property
    def payload_type(self) -> ValueCodec[T]:
        """The codec of the payload."""
        codec: ValueCodec[T] = codec_for(self.annotation, what=f"signal {self.name!r}")
        return codec

    @cached_property
    def schema(self) -> str | None:
        """The schema of the payload, which the store keeps so that every process can refuse a wrong payload."""
        return schema_for(self.annotation)

    def __repr__(self) -> str:
        return f"Signal({self.name!r}, {getattr(self.annotation, '__name__', self.annotation)})"


@awaited_as("App.approve or App.reject")
async def send_decision(opening: EngineFactory, token: str, decision: DecisionWord, comment: str) -> Delivery:
    """Deliver an approver's decision. A second decision of the same approver is a duplicate of the first."""
    engine = await opening()
    return (await engine.signals.decide(token, decision, comment)).delivery


@awaited_as("App.signal")
async def deliver(
    opening: EngineFactory, token: str, name: str, payload: object, signal_id: UUID | str | None = None
) -> Delivery:
    """Deliver plain JSON to the waitpoint of the token. Inside a step, every try delivers the same signal."""
    codec: ValueCodec[object] = codec_for(Any, what=f"the payload of {name!r}")
    data = codec.store(payload)
    engine = await opening()
    key = idempotency_key("signal", None)
    return await engine.signals.deliver(token, name, data, source_type="token", signal_id=signal_id, key=key)


async def send(
    engine: Engine,
    id_: UUID,
    name: str,
    payload: bytes,
    key: str | None,
    *,
    by: str | None = None,
    signal_id: UUID | str | None = None,
) -> Delivery:
    """Deliver a signal to the waitpoint that the task declares for this name, or else to the oldest open wait for it.

    `by` names the operator who sends the signal. Without `by`, the sender is the current execution or a program.
    """
    kind, identity = _current_sender() if by is None else (OPERATOR, by)
    return await engine.signals.send(
        id_,
        name,
        payload,
        key=key,
        signal_id=signal_id,
        source_type=kind,
        source_identity=identity,
        or_wait=True,
    )


def _current_sender() -> tuple[str, str]:
    """Return the type and identity of the sender: the execution whose code runs here, or else an unknown program."""
    branch = BRANCH.get()
    return (PROGRAM, UNKNOWN) if branch is None else (EXECUTION, str(branch.run.lease.execution_id))


# Callbacks that arrive with a token.

CALLBACK = "callback"


async def call_back(engine: Engine, token: str | Secret, payload: bytes, *, key: str | None = None) -> None:
    """Deliver the payload of a callback.

    Without a key, requests with equal payloads count as the same request. A sender that repeats a request after a lost
    reply gets the same reply.
    """
    same = f"sha256 {hashlib.sha256(payload).hexdigest()}" if key is None else key
    await engine.signals.deliver(token, CALLBACK, payload, category="callback", source_type="callback", key=same)


# Links that contain a token.

CALLBACK_FOLDER = "callback"


def link(base_url: str, token: str | Secret) -> str:
    """Return the URL where an approver decides."""
    return f"{validate_base_url(base_url)}/{_token_text(token)}"


def callback_url(base_url: str, token: str | Secret) -> str:
    """Return the URL that accepts the payload of a callback."""
    return f"{validate_base_url(base_url)}/{CALLBACK_FOLDER}/{_token_text(token)}"


def validate_base_url(base_url: str) -> str:
    """Return the base URL without trailing slashes. Raise unless it is an http or https URL without a query."""
    try:
        parts = urlsplit(base_url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and base_url.isprintable()
    except (ValueError, AttributeError, TypeError):
        is_valid = False
    if not is_valid or not {" ", "?", "#"}.isdisjoint(base_url):
        message = "the base of links must look like 'https://shop.example/ff', without query and fragment"
        raise InvalidRequest("invalid_url", message, field="url")
    return base_url.rstrip("/")


def _token_text(token: str | Secret) -> str:
    return token.reveal() if isinstance(token, Secret) else token


# Client calls inside tasks. A client call in a step is part of that step, and has the same key in every try. A client
# call in the task's function itself runs as a separate step.


def is_in_task() -> bool:
    """Return True if the caller is a task's function and not a step, so that effects must be recorded."""
    return STEP.get() is None and current_branch() is not None


def idempotency_key(verb: str, key: str | None) -> str | None:
    """Return `key`. Without a key inside a step, return a key that is the same in every try of the step."""
    step = STEP.get()
    return step.idempotency_key(verb) if key is None and step is not None else key


def step_derived_id(verb: str) -> UUID | None:
    """Return an id for an object that a step creates, the same id in every try. Return None outside of steps."""
    step = STEP.get()
    return None if step is None else derive_id(step.run.lease.execution_id, step.idempotency_key(verb))
