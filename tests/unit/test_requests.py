"""What callers ask for is checked and normalised when it is made, and recognised when it comes again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core import requests
from flowfabric.core.requests import Completion, FailureReport, OwnCancel, Pause
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
ODD: list[Any] = [None, True, 1, 1.5, "x", b"x", [], {}, object()]


def _code(call: Callable[..., object], *values: Any, **named: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        call(*values, **named)
    assert len(str(refused.value)) < 400
    return refused.value.code


def _submission(**changes: Any) -> Submission:
    values: dict[str, Any] = {"kind": "job"}
    return Submission(**(values | changes))


def test_a_submission_has_the_documented_defaults() -> None:
    assert {item.name: getattr(_submission(), item.name) for item in fields(Submission)} == {
        "kind": "job", "payload": b"", "encoding": "json", "lane": "default", "priority": 0, "requires": (),
        "policy": Policy(), "tags": {}, "id": None, "key": None, "ready_at": None, "delay": None, "deadline": None,
        "signals": (),
    }  # fmt: skip


def test_a_submission_is_normalised_and_cannot_be_changed() -> None:
    east = timezone(timedelta(hours=2))
    tags = {"b.c": "2", "a.b": "1"}
    submission = _submission(
        priority=99_999, requires=["gpu", "arm", "gpu"], tags=tags, id=str(UUID(int=7)), delay="1.5m",
        deadline=datetime(2030, 1, 1, 14, tzinfo=east),
    )  # fmt: skip
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
def test_a_bad_submission_is_refused_when_it_is_made(name: str, value: Any, code: str) -> None:
    assert _code(_submission, **{name: value}) == code


def test_a_submission_for_other_input_is_as_if_it_had_been_made_for_it() -> None:
    made = Submission(kind="a", lane="b", requires=["gpu"], tags={"team.owner": "c"}, delay="5s", signals=["go"])
    other = made.with_input(b"1", "text")
    assert other == replace(made, payload=b"1", encoding="text")
    assert made.payload == b""
    with pytest.raises(FrozenInstanceError):
        other.payload = b"2"  # type: ignore[misc]
    for payload, encoding in ((b"1" * 2_000_000, "json"), ("text", "json"), (b"1", " ")):
        with pytest.raises(InvalidRequest):
            made.with_input(payload, encoding)  # type: ignore[arg-type]


def test_a_submission_is_ready_at_a_time_or_after_a_delay() -> None:
    assert _code(_submission, ready_at=NOON, delay=1) == "invalid_request"
    assert _code(_submission, ready_at=NOON, delay=0) == "invalid_request"


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
def test_a_repeated_submit_is_compared_by_its_body(change: dict[str, Any]) -> None:
    assert _submission(**change).fingerprint("default") != _submission().fingerprint("default")


@pytest.mark.parametrize("change", NOT_COMPARED, ids=str)
def test_a_repeated_submit_is_not_compared_by_id_times_and_priority(change: dict[str, Any]) -> None:
    assert _submission(**change).fingerprint("default") == _submission().fingerprint("default")


def test_the_order_of_tags_and_capabilities_does_not_matter_to_the_comparison() -> None:
    one = _submission(requires=["a", "b"], tags={"a.b": "1", "c.d": "2"})
    two = _submission(requires=["b", "a"], tags={"c.d": "2", "a.b": "1"})
    assert one.fingerprint("default") == two.fingerprint("default")


def test_no_two_bodies_are_mixed_up_by_joining_their_parts() -> None:
    bodies = [
        _submission(kind="ab", encoding="c"), _submission(kind="a", encoding="bc"), _submission(requires=["a", "b"]),
        _submission(requires=["ab"]), _submission(payload=b'["x"]'), _submission(payload=b'["x"'),
        _submission(tags={"a.b": "c"}), _submission(tags={"a.bc": ""}),
    ]  # fmt: skip
    assert len({body.fingerprint("default") for body in bodies}) == len(bodies)


def test_a_step_is_checked_and_its_status_is_a_member_or_its_word() -> None:
    step = Step("s", b"1", status="failed")  # type: ignore[arg-type]
    assert step == Step("s", b"1", "json", StepStatus.FAILED)
    assert Step("s").status is StepStatus.OK
    assert set(StepStatus) == {"open", "ok", "failed", "abandoned", "cancelled"}
    for bad in (*ODD, "OK", ""):
        assert _code(Step, "s", status=bad) == "invalid_choice"
    for name in ("", " s", "a\x00", "\ud800", "x" * 257):
        assert _code(Step, name) == "invalid_name"
        assert _code(Step, "s", encoding=name) == "invalid_name"
    assert _code(Step, "s", bytes(2**20 + 1)) == "payload_too_large"
    assert Step("s", bytes(2**20)).payload


def test_the_digest_of_a_step_tells_repeated_from_contradicting() -> None:
    base = Step("s", b"1")
    assert base.digest() == Step("s", b"1").digest()
    others = [Step("s", b"2"), Step("s", b"1", "text"), Step("s", b"1", status=StepStatus.FAILED)]
    assert len({item.digest() for item in (base, *others)}) == 4


def _completion(**changes: Any) -> Completion:
    return replace(Completion(fence=FENCE, result=b"out", encoding="json"), **changes)


def _failure(**changes: Any) -> FailureReport:
    report = FailureReport(
        fence=FENCE, message="no", failure_class=FailureClass.TRANSIENT, category="net", detail=None, chance=0.5
    )
    return replace(report, **changes)


STEPS = (Step("s", b"1"),)
CONTENT: dict[str, list[Any]] = {
    "complete": [_completion(), _completion(result=b""), _completion(encoding="text"), _completion(steps=STEPS),
                 _completion(steps=(Step("s", b"2"),)), _completion(steps=(Step("t", b"1"),))],
    "fail": [_failure(), _failure(message="yes"), _failure(failure_class=FailureClass.TIMEOUT),
             _failure(category="disk"), _failure(detail=b""), _failure(detail=b"x"), _failure(steps=STEPS)],
    "delay": [Pause(fence=FENCE), Pause(fence=FENCE, until=NOON), Pause(fence=FENCE, after=timedelta(0)),
              Pause(fence=FENCE, after=timedelta(seconds=1)), Pause(fence=FENCE, until=NOON, steps=STEPS)],
    "cancel": [OwnCancel(fence=FENCE, reason=""), OwnCancel(fence=FENCE, reason="x"),
               OwnCancel(fence=FENCE, reason="x", steps=STEPS)],
}  # fmt: skip


def test_requests_with_other_content_have_another_digest() -> None:
    bare = [request for group in CONTENT.values() for request in group if not request.steps]
    assert len({request.digest() for request in bare}) == len(bare)


@pytest.mark.parametrize("operation", CONTENT)
def test_the_steps_that_ride_along_are_content_too(operation: str) -> None:
    digests = [request.digest() for request in CONTENT[operation]]
    assert len(set(digests)) == len(digests)


def test_the_same_request_has_the_same_digest_whoever_sends_it() -> None:
    other = Fence(UUID(int=1), 9, UUID(int=9))
    assert _completion().digest() == _completion(fence=other).digest()
    assert _failure().digest() == _failure(chance=0.1, fence=other).digest(), "the draw is not the caller's word"
    assert Pause(fence=FENCE).digest() == Pause(fence=other).digest()


def test_a_fence_is_taken_by_its_parts() -> None:
    assert requests.fence(FENCE) == FENCE
    by_text: Any = Fence(str(FENCE.execution_id), 2, str(FENCE.lease_id))  # type: ignore[arg-type]
    assert requests.fence(by_text) == FENCE
    assert requests.fence(replace(FENCE, epoch=2**63 - 1)).epoch == 2**63 - 1


@pytest.mark.parametrize("odd", [*ODD, (UUID(int=1), 2, UUID(int=3))], ids=lambda value: ascii(value)[:12])
def test_anything_else_is_no_fence(odd: Any) -> None:
    assert _code(requests.fence, odd) == "invalid_fence"
    for part in ("execution_id", "lease_id"):
        assert _code(requests.fence, replace(FENCE, **{part: odd})) == "invalid_id"
    if type(odd) is not int:
        assert _code(requests.fence, replace(FENCE, epoch=odd)) == "invalid_type"


@pytest.mark.parametrize("epoch", [-1, 2**63, 2**64, -(2**63), 10**400], ids=["-1", "2^63", "2^64", "-2^63", "huge"])
def test_an_epoch_that_cannot_be_is_refused(epoch: int) -> None:
    assert _code(requests.fence, replace(FENCE, epoch=epoch)) == "out_of_range"


def test_steps_are_a_list_of_distinctly_named_steps() -> None:
    assert requests.steps([]) == ()
    assert requests.steps([Step("a"), Step("b")]) == (Step("a"), Step("b"))
    assert len(requests.steps([Step(f"s{number}") for number in range(1000)])) == 1000
    assert _code(requests.steps, [Step(f"s{number}") for number in range(1001)]) == "out_of_range"
    assert _code(requests.steps, [Step("a"), Step("a", b"2")]) == "invalid_request"


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "x", b"y", {}, object(), Step("a"), {Step("a")}, [None], ["a"]])
def test_anything_else_is_not_a_list_of_steps(odd: Any) -> None:
    assert _code(requests.steps, odd) == "invalid_type"


def test_a_worker_is_a_record_or_one_text() -> None:
    assert requests.worker("w") == WorkerId("w", "w")
    assert requests.worker(WorkerId("w", "i")) == WorkerId("w", "i")


@pytest.mark.parametrize(
    "bad", [None, True, 1, 1.5, b"w", [], {}, object(), ("w", "i")], ids=lambda value: ascii(value)[:9]
)
def test_a_worker_of_another_type_is_refused(bad: Any) -> None:
    assert _code(requests.worker, bad) == "invalid_type"
    assert _code(requests.worker, WorkerId(bad, "i")) == "invalid_type"
    assert _code(requests.worker, WorkerId("w", bad)) == "invalid_type"


@pytest.mark.parametrize("bad", ["", " w", "a\nb", "\x00", "\ud800", "x" * 257], ids=lambda value: ascii(value)[:9])
def test_a_worker_has_names(bad: str) -> None:
    for worker in (bad, WorkerId(bad, "i"), WorkerId("w", bad)):
        assert _code(requests.worker, worker) == "invalid_name"


def test_a_choice_is_a_member_or_its_word() -> None:
    assert requests.choice(FailureClass, "timeout", "failure_class") is FailureClass.TIMEOUT
    for odd in (*ODD, "TIMEOUT", "x" * 10**6, "\ud800"):
        assert _code(requests.choice, FailureClass, odd, "failure_class") == "invalid_choice"
