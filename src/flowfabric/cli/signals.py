"""`flowfabric signal`, `approve` and `reject`: what comes from outside to whoever waits for it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from flowfabric.cli.asking import principal
from flowfabric.cli.opening import writing
from flowfabric.cli.reading import is_token, json_bytes, token_of
from flowfabric.cli.saying import say
from flowfabric.core.ids import parse_id
from flowfabric.engine import Accepted, DuplicateSignal, Engine

if TYPE_CHECKING:
    from flowfabric.sdk.deciding import Word


async def signal(arguments: argparse.Namespace) -> None:
    """Delivers a signal, and says what came of it."""
    payload = json_bytes(arguments.payload, "PAYLOAD")
    async with writing(arguments) as engine:
        answer = await _deliver(engine, arguments, payload)
    effect = answer.effect.value if isinstance(answer, Accepted) else None
    said = f"Delivered as signal {answer.signal_id}: {effect.replace('_', ' ')}." if effect else (
        f"It was delivered before, as signal {answer.signal_id}."
    )  # fmt: skip
    say(arguments, said, {"signal_id": answer.signal_id, "repeated": effect is None, "effect": effect})


async def approve(arguments: argparse.Namespace) -> None:
    """Says yes to whoever waits."""
    await _decide(arguments, "approve")


async def reject(arguments: argparse.Namespace) -> None:
    """Says no to whoever waits."""
    await _decide(arguments, "reject")


async def _deliver(
    engine: Engine, arguments: argparse.Namespace, payload: bytes
) -> Accepted | DuplicateSignal:  # fmt: skip
    from flowfabric.sdk.signals import send

    by = principal(arguments)
    if not is_token(arguments.target):
        return await send(engine, parse_id(arguments.target), arguments.name, payload, arguments.key, by=by)
    return await engine.signals.deliver(
        token_of(arguments.target), arguments.name, payload, source_type="operator", source_identity=by,
        key=arguments.key,
    )  # fmt: skip


async def _decide(arguments: argparse.Namespace, word: Word) -> None:
    from flowfabric.sdk.deciding import decide

    token = token_of(arguments.token)
    async with writing(arguments) as engine:
        decided = await decide(
            engine, token, word, arguments.reason, source_type="operator", by=principal(arguments)
        )  # fmt: skip
    done = {"approve": "Approved", "reject": "Rejected", None: "Decided some other way"}[decided.word]
    say(arguments, f"{done} before; that decision counts." if decided.repeated else f"{done}.", decided)
