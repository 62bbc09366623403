"""Approvals by link: looking changes nothing, the buttons decide, and only the first decision counts."""

from __future__ import annotations

import json
import logging

import pytest

from flowfabric.asgi import asgi_app
from flowfabric.engine import Engine
from flowfabric.sdk.deciding import Decided, decide
from flowfabric.testing import VirtualClock
from tests.end_to_end.asgi.browsing import Browser, asked_of, called_back, path_of, state_of, token_of
from tests.facts import nothing_written
from tests.stores import TestStore


async def test_the_page_says_what_is_asked_of_whom_and_until_when(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops", "finance", timeout="1d", submit={"kind": "pay_back"})
    reply = await browser.get(path_of(token_of(wait, "ops")))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h1>Approval: refund</h1>" in reply.text
    for words in ("pay_back", "<strong>ops</strong>", "2030-01-02 00:00 UTC", "Approve", "Reject"):
        assert words in reply.text
    assert "finance</strong>" not in reply.text


async def test_looking_changes_nothing(browser: Browser, engine: Engine, store: TestStore) -> None:
    wait = await asked_of(engine, "ops")
    async with nothing_written(store):
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            await browser.get(path_of(token_of(wait, "ops")), method)


async def test_head_is_get_without_the_page(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops")
    got, headed = [await browser.get(path_of(token_of(wait, "ops")), method) for method in ("GET", "HEAD")]
    assert (headed.status, headed.headers, headed.body) == (got.status, got.headers, b"")


async def test_the_page_loads_nothing_runs_nothing_and_is_kept_by_nobody(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops")
    token = token_of(wait, "ops")
    for reply in (await browser.get(path_of(token)), await browser.get("/nothing")):
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
        for part in ("<script", "src=", "href=", "url(", "onclick", "http:", "https:"):
            assert part not in reply.text
        assert token.reveal() not in reply.text


async def test_two_approvers_decide_by_the_buttons(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops", "finance")
    first = await browser.post_form(path_of(token_of(wait, "ops")), decision="approve", comment="fine\r\nby me")
    assert (first.status, "approval is recorded" in first.text) == (200, True)
    assert await state_of(engine, wait) == "suspended"
    await browser.post_form(path_of(token_of(wait, "finance")), decision="approve")
    assert await state_of(engine, wait) == "waiting"
    signals = await engine.signals.observe(wait.id)
    assert [(signal.name, signal.source) for signal in signals] == [
        ("approve", "approver:ops"),
        ("approve", "approver:finance"),
    ]
    assert [json.loads(signal.payload) for signal in signals] == [{"comment": "fine\nby me"}, {"comment": ""}]


async def test_programs_decide_with_json(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops")
    reply = await browser.post_json(path_of(token_of(wait, "ops")), {"decision": "reject", "reason": "too much"})
    assert (reply.status, reply.value) == (200, {"decision": "reject", "repeated": False})
    [signal] = await engine.signals.observe(wait.id)
    assert (signal.name, json.loads(signal.payload)) == ("reject", {"comment": "too much"})


async def test_a_second_decision_hears_the_first(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops", "finance")
    path = path_of(token_of(wait, "ops"))
    await browser.post_form(path, decision="approve")
    for second in ("approve", "reject"):
        reply = await browser.post_json(path, {"decision": second}, [("idempotency-key", second)])
        assert reply.value == {"decision": "approve", "repeated": True}
        assert "decided before with this link: approved" in (await browser.post_form(path, decision=second)).text
    assert len(await engine.signals.observe(wait.id, include_unmatched=True)) == 1


async def test_the_first_decision_is_heard_even_when_all_is_over(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops")
    path = path_of(token_of(wait, "ops"))
    await browser.post_form(path, decision="reject")
    await engine.operator.cancel(wait.id)
    reply = await browser.post_json(path, {"decision": "approve"})
    assert (reply.status, reply.value) == (200, {"decision": "reject", "repeated": True})


async def test_a_decision_by_the_program_and_one_by_link_are_one(browser: Browser, engine: Engine) -> None:
    wait = await asked_of(engine, "ops")
    token = token_of(wait, "ops")
    assert await decide(engine, token, "approve", "by hand") == Decided("approve", repeated=False)
    reply = await browser.post_json(path_of(token), {"decision": "reject"})
    assert reply.value == {"decision": "approve", "repeated": True}
    assert await decide(engine, token, "reject") == Decided("approve", repeated=True)


async def test_tokens_that_cannot_be_used_have_one_answer(
    browser: Browser, engine: Engine, clock: VirtualClock
) -> None:
    tokens = [token_of(await asked_of(engine, "ops", "finance", timeout="1h"), "ops").reveal()]
    clock.advance("2h")
    overtaken = await asked_of(engine, "ops", "finance")
    await browser.post_form(path_of(token_of(overtaken, "finance")), decision="reject")
    ended = await asked_of(engine, "ops")
    await engine.operator.cancel(ended.id)
    full = await asked_of(engine, "ops", "finance")
    text = token_of(full, "ops").reveal()
    other = token_of(full, "finance").reveal()
    callback = await called_back(engine)
    tokens += [token_of(wait, "ops").reveal() for wait in (overtaken, ended)]
    tokens += ["x", "ffw1", text[:-1], text + "A", text[:-1] + ("A" if text[-1] != "A" else "B")]
    tokens += [text.rpartition(".")[0] + "." + other.rpartition(".")[2], callback.token("callback:export").reveal()]
    looks = [await browser.get(f"/{token}") for token in tokens]
    forms = [await browser.post_form(f"/{token}", decision="approve") for token in tokens]
    documents = [await browser.post_json(f"/{token}", {"decision": "approve"}) for token in tokens]
    assert looks[0].status == documents[0].status == 404
    assert all(reply == looks[0] for reply in [*looks, *forms])
    assert all(reply == documents[0] for reply in documents)


async def test_a_form_that_says_nothing_decides_nothing(browser: Browser, engine: Engine, store: TestStore) -> None:
    wait = await asked_of(engine, "ops")
    says_nothing: list[dict[str, str]] = [
        {}, {"decision": "maybe"}, {"decision": "Approve"}, {"comment": "x"}, {"decision": "approve", "extra": "1"},
    ]  # fmt: skip
    async with nothing_written(store):
        for fields in says_nothing:
            assert (await browser.post_form(path_of(token_of(wait, "ops")), (), **fields)).status == 400
            assert (await browser.post_json(path_of(token_of(wait, "ops")), fields)).status == 400


async def test_names_are_escaped_where_they_are_shown(browser: Browser, engine: Engine) -> None:
    name, hostile = "<b>'\"&", "<script>alert(1)</script>"
    wait = await asked_of(engine, hostile, name=name, submit={"kind": "<img src=x onerror=y>"})
    reply = await browser.get(path_of(token_of(wait, hostile, name)))
    assert reply.status == 200
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in reply.text
    for part in ("<script", "<img", "<b>"):
        assert part not in reply.text


async def test_what_is_asked_may_be_given_other_words(engine: Engine, clock: VirtualClock) -> None:
    async def engine_of() -> Engine:
        return engine

    wait = await asked_of(engine, "ops", submit={"kind": "pay_back"})
    app = asgi_app(engine_of, title=lambda kind, key: f"<i>{kind}\u202e {key}</i>", now=clock.now)
    reply = await Browser(app).get(path_of(token_of(wait, "ops")))
    assert "<h1>Approval: &lt;i&gt;pay_back  approval:refund[ops]&lt;/i&gt;</h1>" in reply.text


async def test_no_token_is_logged(
    browser: Browser, engine: Engine, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    wait = await asked_of(engine, "ops")
    token = token_of(wait, "ops")
    await browser.get(path_of(token))
    await browser.post_form(path_of(token), decision="approve")
    await browser.get(path_of(token) + "x")
    await engine.close()
    assert (await browser.get(path_of(token))).status == 503
    said = caplog.text + "".join(capsys.readouterr())
    assert "has to wait" in said, "a check of the test itself: something was logged"
    assert token.reveal()[-43:] not in said and token.reveal()[:60] not in said
