"""Two approvers release a payment, and each gets a link by mail."""

from flowfabric import App, ApprovalRequest, Approved, Rejected, TimedOut, approval, step

app = App("release.db", url="https://bank.example/ff")
mailed: list[str] = []


def mail(request: ApprovalRequest) -> None:
    mailed.append(f"to {request.approver}: {request.link}")


def transfer(payment: str) -> str:
    return f"{payment} is on its way"


@app.task
async def release(payment: str) -> str:
    match await approval("release", by=["desk", "audit"], need=2, timeout="1d", notify=mail):
        case Approved():
            return await step(transfer, payment)
        case Rejected(by=who):
            return f"stopped by {who}"
        case TimedOut():
            return "no decision"
