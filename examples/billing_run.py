"""The bills of the month: a gateway that fails now and then, a card that is declined, and money that goes out once."""

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
    """What one customer owes."""

    customer: int
    euros: int


class CardDeclined(Exception):
    """An answer of the bank. Asking again would not change it."""


@app.task(backoff=Backoff(initial="50ms"), raises=[CardDeclined])
async def collect(bill: Bill) -> str:
    """Takes the money and books it, or takes back whatever was done before it went wrong."""
    async with saga() as undo:
        number = await step(next_number, bill)
        undo.add(void_number, number)
        await step(freeze, bill)
        undo.add(unfreeze, bill)
        return await step(charge, bill, number)


@app.task
async def billing_run(bills: list[Bill]) -> dict[str, int]:
    """All bills, four at a time. One that fails takes no other with it."""
    ends = await settle(*(collect.run(bill) for bill in bills), limit=4)
    counted: Counter[str] = Counter()
    for end in ends:
        match end:
            case Completed():
                counted["paid"] += 1
            case Failed(error=error):
                counted[error.message] += 1
    return dict(sorted(counted.items()))


# The world around it: a number range, a ledger, and a bank that knows a payment by its key.

numbers: dict[int, str] = {}
frozen: set[int] = set()
payments: dict[str, int] = {}
requests: list[str] = []


async def next_number(bill: Bill) -> str:
    return numbers.setdefault(bill.customer, f"R-{bill.customer:03}")


async def void_number(number: str) -> None:
    print(f"undo: {number} is void")


async def freeze(bill: Bill) -> None:
    frozen.add(bill.customer)


async def unfreeze(bill: Bill) -> None:
    frozen.discard(bill.customer)
    print(f"undo: the account of customer {bill.customer} is open again")


@step.policy(retries=5, raises=[CardDeclined])
async def charge(bill: Bill, number: str) -> str:
    key = current().idempotency_key
    requests.append(key)
    if bill.customer == DECLINED:
        raise CardDeclined("the card was declined")
    payments[key] = bill.euros
    if bill.customer == UNLUCKY and requests.count(key) < 3:
        raise ConnectionError("the money has gone, but the answer of the bank was lost")
    return number


async def main() -> None:
    bills = [Bill(customer, 10 * customer) for customer in range(1, CUSTOMERS + 1)]
    async with app, app.worker():
        print(f"ended: {await billing_run.run(bills)}")
    repeated = len(requests) - len(set(requests))
    print(f"the bank was asked {len(requests)} times, {repeated} of them again under a key that it knew")
    print(f"{sum(payments.values())} euros of {len(payments)} customers were taken, each once")


if __name__ == "__main__":
    play(main)
