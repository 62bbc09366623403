"""explain: members say whom they wait for, and what became of it."""

from __future__ import annotations

from flowfabric.engine import Engine, any_of, quorum
from tests.flows import built, created, ended, with_children
from tests.scenarios import leased


async def told(engine: Engine, id_: object) -> str:
    return (await engine.operator.explain(id_)).sentence  # type: ignore[arg-type]


async def test_a_blocked_member_names_whom_it_waits_for(engine: Engine) -> None:
    flow = await built(engine, {"extract": [], "check": [], "load": ["extract", "check"]})
    await flow.complete("extract")
    await flow.claim("check")
    sentence = await told(engine, flow["load"])
    assert "check" in sentence
    assert "active" in sentence
    assert "'extract'" not in sentence
    facts = (await engine.operator.explain(flow["load"])).facts
    assert "check" in str(facts)


async def test_races_and_quorums_say_how_many_are_needed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "any": ["a", "b"], "two": ["a", "b", "c"]},
                       joins={"any": any_of(), "two": quorum(2)})  # fmt: skip
    assert "a" in await told(engine, flow["any"])
    assert "2" in await told(engine, flow["two"])


async def test_a_draft_says_so(engine: Engine) -> None:
    flow = await created(engine)
    await flow.add("a", draft=True)
    assert "seal" in await told(engine, flow["a"])


async def test_a_parent_names_the_children_it_waits_for(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await ended(engine, children["a"])
    facts = (await engine.operator.explain(lease.execution_id)).facts
    assert str(children["b"]) in str(facts) or "b" in str(facts)
    assert str(children["a"]) not in str(facts)


async def test_what_was_skipped_says_why(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    assert "skipped" in await told(engine, flow["b"])


async def test_a_cancel_with_grace_shows_until_when(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "enough", grace="1h")
    assert "cancel" in await told(engine, lease.execution_id)
