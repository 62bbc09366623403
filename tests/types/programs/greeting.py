"""The smallest program: one task, one step."""

from flowfabric import App, step

app = App("greeting.db")


@app.task
async def greet(name: str) -> str:
    return await step("Good morning, {}!".format, name)


if __name__ == "__main__":
    text: str = app.run(greet, "world")
