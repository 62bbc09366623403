"""A shop with FastAPI. Refunds above 100 euros need the approval of two people, by link or on the command line.

SHOP_STORE=shop.db SHOP_URL=http://127.0.0.1:8000 uvicorn fastapi_shop:web
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from flowfabric import App, ApprovalRequest, Approved, NotFound, Rejected, TimedOut, approval, step

LIMIT_CENTS = 10_000

app = App(
    os.environ["SHOP_STORE"],
    url=f"{os.environ['SHOP_URL']}/decide",
    options=json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
)
orders: dict[str, int] = {}
mails: dict[str, str] = {}
paid: list[str] = []


class Order(BaseModel):
    number: str
    cents: int


def mail(request: ApprovalRequest) -> None:
    """Send the link to the approver. This shop keeps its mails in a mailbox that the test can read."""
    assert request.link is not None, "the app has a url"
    mails[f"{request.show['order']} {request.approver}"] = request.link


def pay_back(number: str, cents: int) -> str:
    paid.append(number)
    return f"{number}: {cents / 100:.2f} paid back"


@app.task
async def refund(number: str, cents: int) -> str:
    if cents > LIMIT_CENTS:
        outcome = await approval(
            "refund",
            by=["ops", "finance"],
            timeout="1d",
            notify=mail,
            title=f"Refund {cents / 100:.2f} euros?",
            details="The customer returned the order.\nIt arrived broken.",
            show={"order": number, "cents": cents},
        )
        match outcome:
            case Approved():
                pass
            case Rejected(by=who, reason=why):
                return f"{number}: rejected by {who} ({why})"
            case TimedOut():
                return f"{number}: nobody decided"
    return await step(pay_back, number, cents)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app, app.worker():
        yield


web = FastAPI(lifespan=lifespan)
web.mount("/decide", app.asgi())


@web.post("/orders", status_code=201)
async def place_order(order: Order) -> Order:
    orders[order.number] = order.cents
    return order


@web.post("/orders/{number}/refund", status_code=202)
async def request_refund(number: str) -> dict[str, str]:
    if number not in orders:
        raise HTTPException(404, "no such order")
    handle = await refund.options(key=f"refund-{number}").submit(number, orders[number])
    return {"id": str(handle.id)}


@web.get("/refunds/{id}")
async def read_refund(id: UUID) -> dict[str, Any]:
    handle = refund.handle(id)
    try:
        status = await handle.status()
    except NotFound:
        raise HTTPException(404, "no such refund") from None
    result = await handle.result() if status.state == "completed" else None
    return {"state": status.state, "why": str(await handle.explain()), "result": result}


@web.get("/mails")
async def read_mails() -> dict[str, str]:
    return mails


@web.get("/paid")
async def read_paid() -> list[str]:
    return paid
