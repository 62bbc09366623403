"""A flow in which type checkers know the type of each result before the flow runs."""

from flowfabric import App

app = App("harvest.db")


@app.task
async def pick(field: str) -> int:
    return len(field)


@app.task
async def add_up(baskets: list[int]) -> int:
    return sum(baskets)


@app.task
async def label(baskets: int, text: str = "apples") -> str:
    return f"{baskets} of {text}"


async def main() -> str:
    flow = app.flow("harvest")
    north, south, west = flow.add(pick, "north"), flow.add(pick, "south"), flow.add(pick, "west")
    total = flow.add(add_up, [north.result, south.result])
    early = flow.add(label, flow.first(north, west, cancel_rest=False), text="pears")
    at_least_two = flow.add(add_up, flow.quorum(2, north, south, west, cancel_rest=False))
    flow.after(at_least_two, total)
    handle = await flow.submit()
    return f"{await handle[total] + await handle[at_least_two]} and {await handle[early]}"
