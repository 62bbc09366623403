# fmt: off
import asyncio

from flowfabric import App, race, step
from tests.end_to_end.programs.effects import record_effect

app = App("race.db")
async def call(provider: str, prompt: str) -> str:
    record_effect(f"asked {provider}")
    await asyncio.sleep({"a": 30, "b": 0.5, "c": 20}[provider])
    return f"{provider} answered"

@app.task(retries=0)
async def ask(provider: str, prompt: str) -> str:
    return await step(call, provider, prompt)

@app.task
async def fastest(prompt: str) -> str:
    won = await race(*(ask.run(name, prompt) for name in ("a", "b", "c")))
    return f"{won.index}: {won.value}"
