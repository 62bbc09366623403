"""Prompts for approvers: a title, details and values. They are stored with the waitpoint as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.fast_dataclass import put

MAX_SHOW_BYTES = 16 * 1024
MAX_SHOW_VALUES = 64


@dataclass(frozen=True, slots=True)
class ApprovalPrompt:
    """The description of a decision for its approver.

    `title` is one line, `details` is free text, and `show` has JSON values by name.
    """

    title: str | None = None
    details: str | None = None
    show: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.title is not None:
            validation.name(self.title, "title")
        if self.details is not None:
            validation.text(self.details, "details")
        put(self, show=_parse_show(self.show))


def check_prompt(value: object) -> None:
    """Raise unless the value is an `ApprovalPrompt` or None."""
    if not isinstance(value, ApprovalPrompt | None):
        raise validation.wrong_type("prompt", "an ApprovalPrompt", value)


def prompt_json(prompt: ApprovalPrompt | None) -> str | None:
    """Return a prompt as JSON text. Return None for a prompt without content."""
    check_prompt(prompt)
    if prompt is None or prompt == ApprovalPrompt():
        return None
    parts = {"title": prompt.title, "details": prompt.details, "show": prompt.show}
    return _to_json({name: value for name, value in parts.items() if value})


def read_prompt(text: str | None) -> ApprovalPrompt | None:
    """Return a prompt from its JSON text."""
    return None if text is None else ApprovalPrompt(**json.loads(text))


def _parse_show(value: object) -> dict[str, Any]:
    """Return a copy of the values, which a later change of the caller's objects does not affect."""
    if not isinstance(value, Mapping):
        raise validation.wrong_type("show", "a mapping of names to JSON values", value)
    validation.integer(len(value), "number of values in show", 0, MAX_SHOW_VALUES)
    for name, item in value.items():
        validation.name(name, "a name in show")
        try:
            _to_json(item).encode()
        except (TypeError, ValueError, RecursionError):
            kinds = "text, numbers, True, False, None, and lists and dicts of them"
            message = f"show[{name!r}] must be JSON ({kinds}), not {type(item).__name__}; convert it first"
            raise InvalidRequest("invalid_json", message, field="show", name=name) from None
    text = _to_json(dict(value))
    if (size := len(text.encode())) > MAX_SHOW_BYTES:
        raise validation.too_large("show", size, MAX_SHOW_BYTES)
    values: dict[str, Any] = json.loads(text)
    return values


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
