"""Children that run concurrently: all of many, and the first of three."""

from flowfabric import App, gather, race, settle, step

app = App("quotes.db")


def ask(dealer: str, item: str) -> float:
    return float(len(dealer) + len(item))


@app.task(retries=0)
async def quote(dealer: str, item: str) -> float:
    return await step(ask, dealer, item)


@app.task
async def cheapest(item: str) -> float:
    return min(await gather(*(quote.run(dealer, item) for dealer in ("a", "b", "c"))))


@app.task
async def fastest(item: str) -> str:
    winner = await race(quote.run("a", item), quote.run("b", item), quote.run("c", item))
    return f"dealer {winner.index}: {winner.value:.2f}"


@app.task
async def all_of_them(item: str) -> int:
    return len(await settle(*(quote.run(dealer, item) for dealer in ("a", "b")), limit=1))
