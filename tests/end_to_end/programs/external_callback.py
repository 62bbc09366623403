# ruff: noqa: E701, E702, E704 - kept as short as possible
# fmt: off
from dataclasses import dataclass

from flowfabric import App, Received, TimedOut, callback, step
from tests.end_to_end.programs.effects import record_effect

app = App("exports.db", url="https://shop.example/ff")
@dataclass
class Export: rows: int; file: str
def order_export(table: str, reply_to: str) -> None: record_effect(f"ordered {table}"); sent.append(reply_to)
sent: list[str] = []

@app.task
async def export(table: str) -> int:
    reply = callback("export", Export, timeout="2h")
    await step(order_export, table, await reply.url())
    match await reply:
        case Received(value=done): return done.rows
        case TimedOut(): return -1
