from flowfabric import App, step

app = App("hello.db")


@app.task
async def hello(name: str) -> str:
    return await step("Hello, {}!".format, name)


if __name__ == "__main__":
    print(app.run(hello, "world"))  # noqa: T201
