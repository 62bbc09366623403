"""Collect a month of bills through an unreliable bank, with one declined card, and charge each customer once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flowfabric import App, Backoff, Completed, Failed, current, saga, settle, step
from stage import play

CUSTOMERS = 12
DECLINED, UNLUCKY = 4, 7
app = App()


@dataclass(frozen=True)
class Bill:
    """The amount that one customer owes."""

    customer: int
    euros: int


class CardDeclined(Exception):
    """The bank declined the card. A retry would be declined too."""


@app.task(backoff=Backoff(initial="50ms"), raises=[CardDeclined])
async def collect(bill: Bill) -> str:
    """Charge the customer. If a step fails, undo all completed steps."""
    async with saga() as undo:
        number = await step(next_number, bill)
        undo.add(void_number, number)
        await step(freeze, bill)
        undo.add(unfreeze, bill)
        return await step(charge, bill, number)


@app.task
async def billing_run(bills: list[Bill]) -> dict[str, int]:
    """Collect all bills, four at a time. A failed bill does not affect the others."""
    outcomes = await settle(*(collect.run(bill) for bill in bills), limit=4)
    counted: Counter[str] = Counter()
    for outcome in outcomes:
        match outcome:
            case Completed():
                counted["paid"] += 1
            case Failed(error=error):
                counted[error.message] += 1
    return dict(sorted(counted.items()))


# The simulated environment: invoice numbers, accounts, and a bank that recognizes a payment by its key.

numbers: dict[int, str] = {}
frozen: set[int] = set()
payments: dict[str, int] = {}
requests: list[str] = []


async def next_number(bill: Bill) -> str:
    return numbers.setdefault(bill.customer, f"R-{bill.customer:03}")


async def void_number(number: str) -> None:
    print(f"undo: invoice {number} is void")


async def freeze(bill: Bill) -> None:
    frozen.add(bill.customer)


async def unfreeze(bill: Bill) -> None:
    frozen.discard(bill.customer)
    print(f"undo: the account of customer {bill.customer} is unfrozen")


@step.policy(retries=5, raises=[CardDeclined])
async def charge(bill: Bill, number: str) -> str:
    key = current().idempotency_key
    requests.append(key)
    if bill.customer == DECLINED:
        raise CardDeclined("the card was declined")
    payments[key] = bill.euros
    if bill.customer == UNLUCKY and requests.count(key) < 3:
        raise ConnectionError("the bank took the money, but its reply was lost")
    return number


async def main() -> None:
    bills = [Bill(customer, 10 * customer) for customer in range(1, CUSTOMERS + 1)]
    async with app, app.worker():
        print(f"outcomes: {await billing_run.run(bills)}")
    repeated = len(requests) - len(set(requests))
    print(f"the bank received {len(requests)} requests, {repeated} of them with a key that it had seen")
    print(f"{len(payments)} customers paid {sum(payments.values())} euros in total, each exactly once")


if __name__ == "__main__":
    play(main)
