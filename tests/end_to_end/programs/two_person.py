# ruff: noqa: E701, E702, E704 - kept as short as possible
# fmt: off
from flowfabric import App, ApprovalRequest, Approved, Rejected, TimedOut, approval, step
from tests.end_to_end.programs.effects import record_effect

app = App("shop.db", url="https://shop.example/ff")
def mail(ask: ApprovalRequest) -> None: record_effect(f"asked {ask.approver}")
def pay_back(order: str) -> str: record_effect(f"paid {order}"); return f"{order} paid back"

@app.task
async def refund(order: str) -> str:
    match await approval("refund", by=["ops", "finance"], need=2, timeout="1d", notify=mail):
        case Approved(): return await step(pay_back, order)
        case Rejected(by=who): return f"refused by {who}"
        case TimedOut(): return "no decision"
