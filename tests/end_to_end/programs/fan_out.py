# fmt: off
from flowfabric import App, gather

app = App("fan.db")

@app.task
async def square(n: int) -> int:
    return n * n

@app.task
async def total(n: int) -> int:
    return sum(await gather(*(square.run(i) for i in range(n))))
