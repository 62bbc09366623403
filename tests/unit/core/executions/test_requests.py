"""Tests for validating and normalizing requests and for their digests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core import validation
from flowfabric.core.executions import requests
from flowfabric.core.executions.requests import CancelOwnRequest, Completion, DelayRequest, FailureReport, digest
from flowfabric.engine import (
    Backoff,
    FailureClass,
    Fence,
    InvalidRequest,
    Policy,
    Step,
    StepStatus,
    Submission,
    WorkerId,
)

FENCE = Fence(UUID(int=1), 2, UUID(int=3))
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
OTHER_TYPES: list[Any] = [None, True, 1, 1.5, "x", b"x", [], {}, object()]


def _get_error_code(call: Callable[..., object], *values: Any, **named: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        call(*values, **named)
    assert len(str(refused.value)) < 400
    return refused.value.code


def _make_submission(**changes: Any) -> Submission:
    values: dict[str, Any] = {"kind": "job"}
    return Submission(**(values | changes))


def test_submission_has_the_documented_defaults() -> None:
    assert {field.name: getattr(_make_submission(), field.name) for field in fields(Submission)} == {
        "kind": "job",
        "payload": b"",
        "encoding": "json",
        "lane": "default",
        "priority": 0,
        "requires": (),
        "policy": Policy(),
        "tags": {},
        "id": None,
        "key": None,
        "ready_at": None,
        "delay": None,
        "deadline": None,
        "signals": (),
        "creator": None,
    }


def test_submission_is_normalized_and_frozen() -> None:
    east = timezone(timedelta(hours=2))
    tags = {"b.c": "2", "a.b": "1"}
    submission = _make_submission(
        priority=99_999,
        requires=["gpu", "arm", "gpu"],
        tags=tags,
        id=str(UUID(int=7)),
        delay="1.5m",
        deadline=datetime(2030, 1, 1, 14, tzinfo=east),
    )
    tags["x.y"] = "later"
    assert (submission.priority, submission.requires) == (9000, ("arm", "gpu"))
    assert (submission.id, submission.delay) == (UUID(int=7), timedelta(seconds=90))
    assert submission.tags == {"a.b": "1", "b.c": "2"}
    assert submission.deadline == NOON
    with pytest.raises(FrozenInstanceError):
        submission.kind = "other"  # type: ignore[misc]


BAD_SUBMISSIONS: list[tuple[str, Any, str]] = [
    ("kind", "", "invalid_name"), ("kind", "a\x00", "invalid_name"), ("kind", "x" * 257, "invalid_name"),
    ("kind", 1, "invalid_type"), ("lane", " a", "invalid_name"), ("encoding", "", "invalid_name"),
    ("key", "", "invalid_name"), ("key", "\ud800", "invalid_name"), ("key", 1, "invalid_type"),
    ("payload", "text", "invalid_type"), ("payload", None, "invalid_type"), ("payload", {"a": 1}, "invalid_type"),
    ("payload", bytes(2**20 + 1), "payload_too_large"), ("priority", "1", "invalid_type"),
    ("priority", True, "invalid_type"), ("requires", "gpu", "invalid_type"),
    ("requires", ["a b"], "invalid_capabilities"),
    ("policy", None, "invalid_policy"), ("policy", {}, "invalid_policy"), ("policy", Policy, "invalid_policy"),
    ("policy", Backoff(), "invalid_policy"), ("tags", None, "invalid_type"), ("tags", {"A.b": "c"}, "invalid_tag_key"),
    ("tags", {"a.b": "\x00"}, "invalid_text"), ("id", "no id", "invalid_id"), ("id", 7, "invalid_id"),
    ("ready_at", datetime(2030, 1, 1), "naive_datetime"),  # noqa: DTZ001
    ("ready_at", "2030-01-01", "invalid_type"), ("ready_at", datetime(1969, 1, 1, tzinfo=UTC), "time_out_of_range"),
    ("deadline", datetime(9999, 1, 1, tzinfo=UTC), "time_out_of_range"), ("deadline", 5, "invalid_type"),
    ("delay", -1, "out_of_range"), ("delay", "soon", "invalid_duration"), ("delay", float("nan"), "invalid_duration"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "code"), BAD_SUBMISSIONS, ids=lambda value: ascii(value)[:30])
def test_invalid_submission_is_rejected_on_creation(name: str, value: Any, code: str) -> None:
    assert _get_error_code(_make_submission, **{name: value}) == code


def test_with_input_returns_a_validated_copy() -> None:
    submission = Submission(kind="a", lane="b", requires=["gpu"], tags={"team.owner": "c"}, delay="5s", signals=["go"])
    other = submission.with_input(b"1", "text")
    assert other == replace(submission, payload=b"1", encoding="text")
    assert submission.payload == b""
    with pytest.raises(FrozenInstanceError):
        other.payload = b"2"  # type: ignore[misc]
    for payload, encoding in ((b"1" * 2_000_000, "json"), ("text", "json"), (b"1", " ")):
        with pytest.raises(InvalidRequest):
            submission.with_input(payload, encoding)  # type: ignore[arg-type]


def test_submission_cannot_have_both_ready_at_and_delay() -> None:
    assert _get_error_code(_make_submission, ready_at=NOON, delay=1) == "invalid_request"
    assert _get_error_code(_make_submission, ready_at=NOON, delay=0) == "invalid_request"


COMPARED: list[dict[str, Any]] = [
    {"kind": "other"}, {"payload": b"y"}, {"encoding": "text"}, {"lane": "other"}, {"requires": ["gpu"]},
    {"policy": Policy(max_retries=9)}, {"policy": Policy(backoff=Backoff(jitter=False))}, {"tags": {"a.b": "c"}},
    {"tags": {"a.b": ""}},
]  # fmt: skip
NOT_COMPARED: list[dict[str, Any]] = [
    {"id": UUID(int=9)}, {"key": "k"}, {"priority": 5}, {"ready_at": NOON}, {"delay": 5}, {"deadline": NOON},
    {"requires": []}, {"policy": Policy(lease_ttl="30s")},
]  # fmt: skip


@pytest.mark.parametrize("change", COMPARED, ids=str)
def test_fingerprint_depends_on_the_body(change: dict[str, Any]) -> None:
    assert _make_submission(**change).fingerprint("default") != _make_submission().fingerprint("default")


@pytest.mark.parametrize("change", NOT_COMPARED, ids=str)
def test_fingerprint_ignores_id_times_and_priority(change: dict[str, Any]) -> None:
    assert _make_submission(**change).fingerprint("default") == _make_submission().fingerprint("default")


def test_fingerprint_ignores_the_order_of_tags_and_capabilities() -> None:
    one = _make_submission(requires=["a", "b"], tags={"a.b": "1", "c.d": "2"})
    two = _make_submission(requires=["b", "a"], tags={"c.d": "2", "a.b": "1"})
    assert one.fingerprint("default") == two.fingerprint("default")


def test_fingerprint_depends_on_the_boundaries_of_parts() -> None:
    bodies = [
        _make_submission(kind="ab", encoding="c"),
        _make_submission(kind="a", encoding="bc"),
        _make_submission(requires=["a", "b"]),
        _make_submission(requires=["ab"]),
        _make_submission(payload=b'["x"]'),
        _make_submission(payload=b'["x"'),
        _make_submission(tags={"a.b": "c"}),
        _make_submission(tags={"a.bc": ""}),
    ]
    assert len({body.fingerprint("default") for body in bodies}) == len(bodies)


def test_step_is_validated_and_its_status_is_a_member_or_its_value() -> None:
    step = Step("s", b"1", status="failed")  # type: ignore[arg-type]
    assert step == Step("s", b"1", "json", StepStatus.FAILED)
    assert Step("s").status is StepStatus.OK
    assert set(StepStatus) == {"open", "ok", "failed", "abandoned", "cancelled"}
    for bad in (*OTHER_TYPES, "OK", ""):
        assert _get_error_code(Step, "s", status=bad) == "invalid_choice"
    for name in ("", " s", "a\x00", "\ud800", "x" * 257):
        assert _get_error_code(Step, name) == "invalid_name"
        assert _get_error_code(Step, "s", encoding=name) == "invalid_name"
    assert _get_error_code(Step, "s", bytes(2**20 + 1)) == "payload_too_large"
    assert Step("s", bytes(2**20)).payload


def test_digest_of_a_step_depends_on_its_content() -> None:
    base = Step("s", b"1")
    assert base.digest() == Step("s", b"1").digest() == digest("step", "ok", "json", b"1")
    others = [Step("s", b"2"), Step("s", b"1", "text"), Step("s", b"1", status=StepStatus.FAILED)]
    assert len({step.digest() for step in (base, *others)}) == 4


def _make_completion(**changes: Any) -> Completion:
    return replace(Completion(fence=FENCE, result=b"out", encoding="json"), **changes)


def _make_failure_report(**changes: Any) -> FailureReport:
    report = FailureReport(
        fence=FENCE, message="no", failure_class=FailureClass.TRANSIENT, category="net", detail=None, chance=0.5
    )
    return replace(report, **changes)


STEPS = (Step("s", b"1"),)
CONTENT: dict[str, list[Any]] = {
    "complete": [
        _make_completion(),
        _make_completion(result=b""),
        _make_completion(encoding="text"),
        _make_completion(steps=STEPS),
        _make_completion(steps=(Step("s", b"2"),)),
        _make_completion(steps=(Step("t", b"1"),)),
    ],
    "fail": [
        _make_failure_report(),
        _make_failure_report(message="yes"),
        _make_failure_report(failure_class=FailureClass.TIMEOUT),
        _make_failure_report(category="disk"),
        _make_failure_report(detail=b""),
        _make_failure_report(detail=b"x"),
        _make_failure_report(steps=STEPS),
    ],
    "delay": [
        DelayRequest(fence=FENCE),
        DelayRequest(fence=FENCE, until=NOON),
        DelayRequest(fence=FENCE, after=timedelta(0)),
        DelayRequest(fence=FENCE, after=timedelta(seconds=1)),
        DelayRequest(fence=FENCE, until=NOON, steps=STEPS),
    ],
    "cancel": [
        CancelOwnRequest(fence=FENCE, reason=""),
        CancelOwnRequest(fence=FENCE, reason="x"),
        CancelOwnRequest(fence=FENCE, reason="x", steps=STEPS),
    ],
}


def test_requests_with_different_content_have_different_digests() -> None:
    bare = [request for group in CONTENT.values() for request in group if not request.steps]
    assert len({request.digest() for request in bare}) == len(bare)


@pytest.mark.parametrize("operation", CONTENT)
def test_digest_includes_the_steps_of_a_request(operation: str) -> None:
    digests = [request.digest() for request in CONTENT[operation]]
    assert len(set(digests)) == len(digests)


def test_digest_does_not_depend_on_the_fence() -> None:
    other = Fence(UUID(int=1), 9, UUID(int=9))
    assert _make_completion().digest() == _make_completion(fence=other).digest()
    assert _make_failure_report().digest() == _make_failure_report(chance=0.1, fence=other).digest(), (
        "the random draw is not part of the request"
    )
    assert DelayRequest(fence=FENCE).digest() == DelayRequest(fence=other).digest()


def test_fence_is_normalized() -> None:
    assert requests.parse_fence(FENCE) == FENCE
    by_text: Any = Fence(str(FENCE.execution_id), 2, str(FENCE.lease_id))  # type: ignore[arg-type]
    assert requests.parse_fence(by_text) == FENCE
    assert requests.parse_fence(replace(FENCE, epoch=2**63 - 1)).epoch == 2**63 - 1


@pytest.mark.parametrize("odd", [*OTHER_TYPES, (UUID(int=1), 2, UUID(int=3))], ids=lambda value: ascii(value)[:12])
def test_fence_of_another_type_is_rejected(odd: Any) -> None:
    assert _get_error_code(requests.parse_fence, odd) == "invalid_fence"
    for part in ("execution_id", "lease_id"):
        assert _get_error_code(requests.parse_fence, replace(FENCE, **{part: odd})) == "invalid_id"
    if type(odd) is not int:
        assert _get_error_code(requests.parse_fence, replace(FENCE, epoch=odd)) == "invalid_type"


@pytest.mark.parametrize("epoch", [-1, 2**63, 2**64, -(2**63), 10**400], ids=["-1", "2^63", "2^64", "-2^63", "huge"])
def test_epoch_out_of_range_is_rejected(epoch: int) -> None:
    assert _get_error_code(requests.parse_fence, replace(FENCE, epoch=epoch)) == "out_of_range"


def test_steps_must_be_a_list_of_distinct_names() -> None:
    assert requests.parse_steps([]) == ()
    assert requests.parse_steps([Step("a"), Step("b")]) == (Step("a"), Step("b"))
    assert len(requests.parse_steps([Step(f"s{number}") for number in range(1000)])) == 1000
    assert _get_error_code(requests.parse_steps, [Step(f"s{number}") for number in range(1001)]) == "out_of_range"
    assert _get_error_code(requests.parse_steps, [Step("a"), Step("a", b"2")]) == "invalid_request"


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "x", b"y", {}, object(), Step("a"), {Step("a")}, [None], ["a"]])
def test_steps_of_another_type_are_rejected(odd: Any) -> None:
    assert _get_error_code(requests.parse_steps, odd) == "invalid_type"


def test_worker_is_a_worker_id_or_a_name() -> None:
    assert requests.parse_worker("w") == WorkerId("w", "w")
    assert requests.parse_worker(WorkerId("w", "i")) == WorkerId("w", "i")


@pytest.mark.parametrize(
    "bad", [None, True, 1, 1.5, b"w", [], {}, object(), ("w", "i")], ids=lambda value: ascii(value)[:9]
)
def test_worker_of_another_type_is_rejected(bad: Any) -> None:
    assert _get_error_code(requests.parse_worker, bad) == "invalid_type"
    assert _get_error_code(requests.parse_worker, WorkerId(bad, "i")) == "invalid_type"
    assert _get_error_code(requests.parse_worker, WorkerId("w", bad)) == "invalid_type"


@pytest.mark.parametrize("bad", ["", " w", "a\nb", "\x00", "\ud800", "x" * 257], ids=lambda value: ascii(value)[:9])
def test_worker_with_an_invalid_name_is_rejected(bad: str) -> None:
    for worker in (bad, WorkerId(bad, "i"), WorkerId("w", bad)):
        assert _get_error_code(requests.parse_worker, worker) == "invalid_name"


def test_choice_is_an_enum_member_or_its_value() -> None:
    assert validation.parse_choice(FailureClass, "timeout", "failure_class") is FailureClass.TIMEOUT
    for odd in (*OTHER_TYPES, "TIMEOUT", "x" * 10**6, "\ud800"):
        assert _get_error_code(validation.parse_choice, FailureClass, odd, "failure_class") == "invalid_choice"
