"""Views of recorded steps with payloads of any format."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flowfabric.core.executions.records import RecordedStep
from flowfabric.core.executions.steps import failed_tries, view_step


def _recorded(payload: bytes, *, status: str = "ok", encoding: str = "json") -> RecordedStep:
    return RecordedStep(
        seq=1,
        name="charge",
        status=status,
        payload=payload,
        encoding=encoding,
        attempt_index=0,
        generation=0,
        recorded_at=datetime(2030, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize("payload", [b"", b"7", b"[1,2]", b'[{"kind": 3', b'[{"kind":}]', b"\xff", b'{"kind": "step"}'])
def test_payload_in_another_format_is_all_value(payload: bytes) -> None:
    view = view_step(_recorded(payload))
    assert (view.value, view.kind, view.tries, view.started_at, view.error) == (payload, None, None, None, None)


@pytest.mark.parametrize(
    "data",
    [
        '"facts":{"due":"garbage","error":1}',
        '"facts":{"due":"2030-01-01T00:00:00","error":1}',
        '"facts":{"due":7,"error":1}',
        '"facts":{"due":"2030-01-01T00:00:00+00:00","error":1,"retries":"x"}',
        '"facts":[1]',
        '"facts":{"tries":{}}',
        '"facts":{"tries":Infinity}',
        '"ran":7',
        '"ran":[1]',
        '"ran":[1e300,1]',
    ],
)
def test_call_with_data_of_another_program_is_all_value(data: str) -> None:
    payload = f'[{{"kind":"step",{data}}},null]'.encode()
    step = _recorded(payload, status="open")
    view = view_step(step)
    assert (view.value, view.kind, view.next_try_at, view.error) == (payload, None, None, None)
    assert failed_tries(step) == 0


@pytest.mark.parametrize("kind", ["[]", "{}", "[" * 100_000])
def test_call_whose_kind_is_no_text_is_all_value(kind: str) -> None:
    payload = f'[{{"kind":{kind}}},null]'.encode()
    assert view_step(_recorded(payload)).value == payload


def test_value_in_another_encoding_is_not_decoded() -> None:
    payload = b'[{"kind": "step", "index": 0},7]'
    assert view_step(_recorded(payload, encoding="pickle")).value == payload
    assert view_step(_recorded(payload)).value == b"7"


@pytest.mark.parametrize(
    ("status", "kind", "facts", "tries"),
    [
        ("ok", "step", "{}", 1),
        ("ok", "step", '{"tries": 2}', 3),
        ("failed", "step", '{"tries": 3}', 3),
        ("failed", "step", '{"tries": 0}', 1),
        ("open", "step", '{"tries": 1, "due": "2030-01-01T00:00:00+00:00", "error": {}}', 1),
        ("open", "step", '{"tries": 1, "begun": true}', 2),
        ("abandoned", "step", "{}", 1),
        ("ok", "poll", '{"asked": 4}', 4),
        ("ok", "sleep", "{}", None),
    ],
)
def test_tries_are_counted_from_the_record(status: str, kind: str, facts: str, tries: int | None) -> None:
    payload = f'[{{"kind":"{kind}","index":0,"facts":{facts}}},null]'.encode()
    assert view_step(_recorded(payload, status=status)).tries == tries
