"""A deployment: test suites run concurrently, and two people must approve a release whose suites all pass."""

from __future__ import annotations

import asyncio

from flowfabric import App, ApprovalRequest, Approved, Backoff, Rejected, TimedOut, approval, gather, sleep, step
from stage import play

SUITES = ("unit", "integration", "browser")
APPROVERS = ("release manager", "security")
app = App()


class SuiteFailed(Exception):
    """A suite failed. This is an expected result, so it is not retried."""


@app.task(backoff=Backoff(initial="50ms"), raises=[SuiteFailed])
async def check(release: str, suite: str) -> str:
    """Run one suite on any free machine."""
    return await step(run_suite, release, suite)


@app.task
async def deploy(release: str) -> str:
    """Test the release, ask for approval, and roll it out in two stages."""
    try:
        await gather(*(check.run(release, suite) for suite in SUITES))
    except SuiteFailed as failure:
        return f"not deployed, tests failed: {failure}"
    match await approval(f"deploy {release}", by=APPROVERS, timeout="1d", notify=mail):
        case Approved():
            await step(roll_out, release, 5)
            await sleep("200ms")
            await step(roll_out, release, 100)
            return "live"
        case Rejected(by=who, reason=why):
            return f"not deployed, rejected by {who}: {why}"
        case TimedOut(decisions=decisions):
            return f"not deployed, only {len(decisions)} of {len(APPROVERS)} decided within a day"


# The simulated environment: three suites, one of them flaky, two inboxes, and a cluster.

inboxes: dict[str, asyncio.Queue[ApprovalRequest]] = {who: asyncio.Queue() for who in APPROVERS}
tries: list[str] = []


@step.policy(raises=[SuiteFailed])
async def run_suite(release: str, suite: str) -> str:
    tries.append(f"{suite} {release}")
    if suite == "browser" and tries.count(f"{suite} {release}") == 1:
        raise ConnectionError("the browser did not start")
    if suite == "integration" and release == "1.9":
        raise SuiteFailed("integration: orders are charged twice")
    return "passed"


async def mail(ask: ApprovalRequest) -> None:
    await inboxes[ask.approver].put(ask)


async def roll_out(release: str, percent: int) -> None:
    print(f"{release}: deployed to {percent} % of the machines")


async def main() -> None:
    async with app, app.worker():
        first = await deploy.submit("1.8")
        manager, security = [await inboxes[who].get() for who in APPROVERS]
        print(f"1.8: all suites passed after {tries.count('browser 1.8') - 1} retry; two people must approve")
        await app.approve(manager.token)
        again = await app.approve(manager.token, "also for my colleague")
        print(f"1.8: the release manager approves twice; the second result is {type(again).__name__}")
        await app.approve(security.token)
        print(f"1.8: {await first}")
        print(f"1.9: {await deploy.run('1.9')}")
        last = await deploy.submit("2.0")
        await app.reject((await inboxes["security"].get()).token, "the certificate expires on Friday")
        print(f"2.0: {await last}")


if __name__ == "__main__":
    play(main)
