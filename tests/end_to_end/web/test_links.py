"""Approvals by link: reading a page changes nothing, a posted form decides, and only the first decision counts."""

from __future__ import annotations

import json
import logging

import pytest

from flowfabric.engine import ApprovalPrompt, Engine
from flowfabric.testing import VirtualClock
from tests.end_to_end.web.browser import (
    Browser,
    path_of,
    state_of,
    suspend_for_approvals,
    suspend_for_callback,
    token_of,
)
from tests.expectations import nothing_written
from tests.stores import TestStore


async def test_page_shows_the_approval_its_approver_and_its_deadline(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops", "finance", timeout="1d", submit={"kind": "pay_back"})
    reply = await browser.get(path_of(token_of(wait, "ops")))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h1>Approval: refund</h1>" in reply.text
    for words in ("pay_back", "<strong>ops</strong>", "2030-01-02 00:00 UTC", "Approve", "Reject"):
        assert words in reply.text
    assert "finance</strong>" not in reply.text


async def test_requests_other_than_post_change_nothing(browser: Browser, engine: Engine, store: TestStore) -> None:
    wait = await suspend_for_approvals(engine, "ops")
    async with nothing_written(store):
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            await browser.get(path_of(token_of(wait, "ops")), method)


async def test_head_returns_the_headers_of_get_without_a_body(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops")
    get_reply, head_reply = [await browser.get(path_of(token_of(wait, "ops")), method) for method in ("GET", "HEAD")]
    assert (head_reply.status, head_reply.headers, head_reply.body) == (get_reply.status, get_reply.headers, b"")


async def test_page_loads_no_resources_runs_no_scripts_and_is_not_cached(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops")
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


async def test_two_approvers_decide_by_form(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops", "finance")
    first = await browser.post_form(path_of(token_of(wait, "ops")), decision="approve", comment="fine\r\nby me")
    assert (first.status, "approval is recorded" in first.text) == (200, True)
    assert await state_of(engine, wait) == "suspended"
    await browser.post_form(path_of(token_of(wait, "finance")), decision="approve")
    assert await state_of(engine, wait) == "waiting"
    signals = await engine.signals.list(wait.id)
    assert [(signal.name, signal.source) for signal in signals] == [
        ("approve", "approver:ops"),
        ("approve", "approver:finance"),
    ]
    assert [json.loads(signal.payload) for signal in signals] == [{"comment": "fine\nby me"}, {"comment": ""}]


async def test_decision_can_be_posted_as_json(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops")
    reply = await browser.post_json(path_of(token_of(wait, "ops")), {"decision": "reject", "reason": "too much"})
    assert (reply.status, reply.value) == (200, {"decision": "reject", "repeated": False})
    [signal] = await engine.signals.list(wait.id)
    assert (signal.name, json.loads(signal.payload)) == ("reject", {"comment": "too much"})


async def test_second_decision_returns_the_first(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops", "finance")
    path = path_of(token_of(wait, "ops"))
    await browser.post_form(path, decision="approve")
    for second in ("approve", "reject"):
        reply = await browser.post_json(path, {"decision": second}, [("idempotency-key", second)])
        assert reply.value == {"decision": "approve", "repeated": True}
        assert "You already approved this." in (await browser.post_form(path, decision=second)).text
    assert len(await engine.signals.list(wait.id, include_unmatched=True)) == 1


async def test_first_decision_is_returned_after_the_execution_ended(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops")
    path = path_of(token_of(wait, "ops"))
    await browser.post_form(path, decision="reject")
    await engine.operator.cancel(wait.id)
    reply = await browser.post_json(path, {"decision": "approve"})
    assert (reply.status, reply.value) == (200, {"decision": "reject", "repeated": True})


async def test_decisions_by_api_and_by_link_are_the_same_decision(browser: Browser, engine: Engine) -> None:
    wait = await suspend_for_approvals(engine, "ops")
    token = token_of(wait, "ops")
    first = await engine.signals.decide(token, "approve", "by hand")
    assert not first.repeated
    reply = await browser.post_json(path_of(token), {"decision": "reject"})
    assert reply.value == {"decision": "approve", "repeated": True}
    again = await engine.signals.decide(token, "reject")
    assert (again.decision, again.repeated) == (first.decision, True)


async def test_all_unusable_tokens_get_the_same_reply(browser: Browser, engine: Engine) -> None:
    pending = await suspend_for_approvals(engine, "ops", "finance")
    text = token_of(pending, "ops").reveal()
    other = token_of(pending, "finance").reveal()
    callback = await suspend_for_callback(engine)
    tokens = ["x", "ffw1", text[:-1], text + "A", text[:-1] + ("A" if text[-1] != "A" else "B")]
    tokens += [text.rpartition(".")[0] + "." + other.rpartition(".")[2], callback.token("callback:export").reveal()]
    page_replies = [await browser.get(f"/{token}") for token in tokens]
    form_replies = [await browser.post_form(f"/{token}", decision="approve") for token in tokens]
    json_replies = [await browser.post_json(f"/{token}", {"decision": "approve"}) for token in tokens]
    assert page_replies[0].status == json_replies[0].status == 404
    assert all(reply == page_replies[0] for reply in [*page_replies, *form_replies])
    assert all(reply == json_replies[0] for reply in json_replies)


async def test_closed_wait_says_why_it_is_closed(browser: Browser, engine: Engine, clock: VirtualClock) -> None:
    expired = token_of(await suspend_for_approvals(engine, "ops", "finance", timeout="1h"), "ops")
    clock.advance("2h")
    wait = await suspend_for_approvals(engine, "ops", "finance")
    await browser.post_form(path_of(token_of(wait, "finance")), decision="reject")
    decided = token_of(wait, "ops")
    wait = await suspend_for_approvals(engine, "ops")
    ended = token_of(wait, "ops")
    await engine.operator.cancel(wait.id)
    wait = await suspend_for_approvals(engine, "ops")
    resumed = token_of(wait, "ops")
    await engine.operator.resume(wait.id)
    expected = [
        (expired, "expired", "it expired at 2030-01-01 01:00 UTC"),
        (decided, "decided", "finance rejected it"),
        (ended, "ended", "its task has ended (cancelled)"),
        (resumed, "closed", "the task no longer waits for it"),
    ]
    for token, end, reason in expected:
        for reply in (await browser.get(path_of(token)), await browser.post_form(path_of(token), decision="approve")):
            assert (reply.status, "<form" in reply.text) == (410, False)
            assert "Your decision is no longer needed." in reply.text and reason in reply.text
        reply = await browser.post_json(path_of(token), {"decision": "approve"})
        assert (reply.status, reply.value["end"], reason in reply.value["error"]) == (410, end, True)


async def test_opening_a_link_again_shows_the_decision(browser: Browser, engine: Engine, store: TestStore) -> None:
    wait = await suspend_for_approvals(engine, "ops", "finance")
    path = path_of(token_of(wait, "ops"))
    await browser.post_form(path, decision="approve", comment="fine <by> me")
    async with nothing_written(store):
        page = await browser.get(path)
    assert (page.status, "<form" in page.text) == (200, False)
    for words in ("You already approved this.", "fine &lt;by&gt; me", "2030-01-01 00:00 UTC", "1 of 2 (ops approved"):
        assert words in page.text
    await browser.post_form(path_of(token_of(wait, "finance")), decision="reject")
    page = await browser.get(path)
    assert page.status == 200
    assert "You already approved this." in page.text and "finance rejected it" in page.text


async def test_page_shows_title_details_and_values(browser: Browser, engine: Engine) -> None:
    show = {"order": "o-17", "sum": 120.5, "paid": True, "note": None, "items": ["screen", 2], "box": {"kg": [1]}}
    wait = await suspend_for_approvals(
        engine, "ops", prompt=ApprovalPrompt("Refund \u20ac120.50?", "It arrived\nbroken.", show)
    )
    page = await browser.get(path_of(token_of(wait, "ops")))
    assert "<h1>Refund \u20ac120.50?</h1>" in page.text and "It arrived\nbroken." in page.text
    for name, value in (
        ("order", "o-17"),
        ("sum", "120.5"),
        ("paid", "true"),
        ("note", "null"),
        ("items", "screen\n2"),
    ):
        assert f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' in page.text
    assert "&quot;kg&quot;" in page.text


async def test_prompt_is_escaped_in_every_page(browser: Browser, engine: Engine, clock: VirtualClock) -> None:
    hostile = "<script>alert(1)</script>\u202e\"'&"
    prompt = ApprovalPrompt("<b>" + hostile[:20], hostile, {hostile[:24]: hostile, "deep": {hostile: [hostile]}})
    wait = await suspend_for_approvals(engine, "ops", "finance", prompt=prompt, timeout="1d")
    path = path_of(token_of(wait, "ops"))
    pages = [await browser.get(path), await browser.post_form(path, decision="reject", comment=hostile)]
    pages += [await browser.get(path), await browser.get(path_of(token_of(wait, "finance")))]
    assert [page.status for page in pages] == [200, 200, 200, 410]
    for page in pages:
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
        for part in ("<script", "<b>", "\u202e"):
            assert part not in page.text


async def test_form_without_a_valid_decision_changes_nothing(
    browser: Browser, engine: Engine, store: TestStore
) -> None:
    wait = await suspend_for_approvals(engine, "ops")
    invalid_forms: list[dict[str, str]] = [
        {}, {"decision": "maybe"}, {"decision": "Approve"}, {"comment": "x"}, {"decision": "approve", "extra": "1"},
    ]  # fmt: skip
    async with nothing_written(store):
        for fields in invalid_forms:
            assert (await browser.post_form(path_of(token_of(wait, "ops")), (), **fields)).status == 400
            assert (await browser.post_json(path_of(token_of(wait, "ops")), fields)).status == 400


async def test_names_are_escaped_in_the_page(browser: Browser, engine: Engine) -> None:
    name, hostile = "<b>'\"&", "<script>alert(1)</script>"
    wait = await suspend_for_approvals(engine, hostile, name=name, submit={"kind": "<img src=x onerror=y>"})
    reply = await browser.get(path_of(token_of(wait, hostile, name)))
    assert reply.status == 200
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in reply.text
    for part in ("<script", "<img", "<b>"):
        assert part not in reply.text


async def test_no_token_is_logged(
    browser: Browser, engine: Engine, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    wait = await suspend_for_approvals(engine, "ops")
    token = token_of(wait, "ops")
    await browser.get(path_of(token))
    await browser.post_form(path_of(token), decision="approve")
    await browser.get(path_of(token) + "x")
    await engine.close()
    assert (await browser.get(path_of(token))).status == 503
    output = caplog.text + "".join(capsys.readouterr())
    assert "link or callback failed" in output, "nothing was logged, so this test checks nothing"
    assert token.reveal()[-43:] not in output and token.reveal()[:60] not in output
