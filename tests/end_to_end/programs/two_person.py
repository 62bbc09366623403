# ruff: noqa: E701, E702, E704 - as short as it can be said
# fmt: off
from flowfabric import App, Approved, Ask, Rejected, TimedOut, approval, step
from tests.end_to_end.programs.world import happen

app = App("shop.db", url="https://shop.example/ff")
def mail(ask: Ask) -> None: happen(f"asked {ask.approver}")
def pay_back(order: str) -> str: happen(f"paid {order}"); return f"{order} paid back"

@app.task
async def refund(order: str) -> str:
    match await approval("refund", by=["ops", "finance"], need=2, timeout="1d", notify=mail):
        case Approved(): return await step(pay_back, order)
        case Rejected(by=who): return f"refused by {who}"
        case TimedOut(): return "nobody answered"
