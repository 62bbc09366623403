"""Tests that wrong options are refused where they are written, with the name of the option and an example."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import App, InvalidRequest, Signal, step
from flowfabric.core import validation
from flowfabric.runtime.options import TASK_SETTINGS
from flowfabric.runtime.runner import CallOptions, TaskSettings

app = App(":memory:")


@app.task
def job() -> None: ...


TASK_MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "retries": ({"retries": -1}, "for example retries=5"),
    "signals": ({"signals": ["paid"]}, 'for example signals=[Signal("paid", Payment)]'),
    "one signal": ({"signals": Signal("paid", int)}, "signals must be a collection of Signal objects, not Signal"),
    "timeout": ({"timeout": "soon"}, 'for example timeout="30s"'),
    "deadline": ({"deadline": -1}, 'for example deadline="1d"'),
    "raises": ({"raises": ValueError}, "raises must be a collection of exception classes, not ValueError"),
    "retry_on": ({"retry_on": "busy"}, "for example retry_on=[TimeoutError]"),
    "backoff": ({"backoff": "1s"}, 'for example backoff=Backoff(initial="2s")'),
    "requires": ({"requires": "gpu"}, 'for example requires=["gpu"]'),
    "version": ({"version": 0}, "for example version=2"),
    "lane": ({"lane": ""}, 'for example lane="mail"'),
    "cancel_grace": ({"cancel_grace": "x"}, 'for example cancel_grace="10s"'),
    "unknown": ({"retry": 3}, "app.task has no option 'retry'; its options are name, version, retries"),
}
CALL_MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "retries": ({"retries": -1}, "retries must be between 0 and 1000000; it is -1; for example retries=5"),
    "delay": ({"delay": "soon"}, 'for example delay="15m"'),
    "at": ({"at": "now"}, "for example at=datetime(2031, 5, 1, tzinfo=UTC)"),
    "key": ({"key": ""}, 'for example key="order-17"'),
    "tags": ({"tags": {"Team": "a"}}, 'for example tags={"customer": "c-7"}'),
    "detached": ({"detached": "yes"}, "for example detached=True"),
    "priority": ({"priority": "high"}, "for example priority=10"),
}


@pytest.mark.parametrize("mistake", TASK_MISTAKES)
def test_bad_option_of_a_task_is_refused_at_decoration_with_its_name_and_an_example(mistake: str) -> None:
    options, message = TASK_MISTAKES[mistake]
    with pytest.raises(InvalidRequest) as refused:
        app.task(**options)
    assert message in refused.value.message
    assert refused.value.fields["field"] == next(iter(options))


@pytest.mark.parametrize("mistake", CALL_MISTAKES)
def test_bad_option_of_a_call_is_refused_with_its_name_and_an_example(mistake: str) -> None:
    options, message = CALL_MISTAKES[mistake]
    with pytest.raises(InvalidRequest) as refused:
        job.options(**options)
    assert message in refused.value.message
    assert refused.value.fields["field"] == next(iter(options))


def test_bad_option_of_a_step_is_refused_with_its_name_and_an_example() -> None:
    with pytest.raises(InvalidRequest, match=r"retries must be between .* for example retries=5"):
        step.options(retries=-1)
    with pytest.raises(InvalidRequest, match=r'timeout must look like .* for example timeout="30s"'):
        step.policy(timeout="soon")
    with pytest.raises(InvalidRequest, match="raises must be a collection of exception classes, not ValueError"):
        step.policy(raises=ValueError)  # type: ignore[arg-type]


def test_every_example_is_valid() -> None:
    """Check the durations and names of the examples with the rules that they illustrate."""
    job.options(retries=5, delay="15m", deadline="1d", key="order-17", lane="mail", tags={"customer": "c-7"})
    for example in ("30s", "1d", "15m", "10s", "90d"):
        assert validation.duration(example, "example")


def test_every_setting_and_option_is_checked() -> None:
    assert set(TASK_SETTINGS) == set(TaskSettings.__dataclass_fields__)
    for name in CallOptions.__dataclass_fields__:
        if name != "connection":
            with pytest.raises(InvalidRequest, match="for example"):
                job.options(**dict[str, Any]({name: object()}))
