"""A coding agent whose drafts a person reviews. A recorded reply of the model is never requested again."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from flowfabric import App, Approved, Rejected, approval, step
from stage import play

GOAL = "turn titles into slugs"
TESTS = 'assert slug("Hello World") == "hello-world", f"{slug(\'Hello World\')} is not in lower case"'
app = App()


@app.task
async def write_code(goal: str) -> str:
    """Prompt the model until the tests pass and the reviewer approves. Every complaint goes into the next prompt."""
    notes: list[str] = []
    while True:
        draft = await step(think, goal, notes)
        complaint = await step(run_tests, draft)
        if complaint is not None:
            notes = [*notes, complaint]
            continue
        review = approval("review", by="reviewer")
        await step(show, draft, (await review.tokens())["reviewer"])
        match await review:
            case Approved():
                return await step(merge, draft)
            case Rejected(reason=why):
                notes = [*notes, why]


# The simulated environment: a model that uses the notes, a sandbox for the tests, and the reviewer's inbox.

prompts: list[list[str]] = []
inbox: asyncio.Queue[tuple[str, str]] = asyncio.Queue()


async def think(goal: str, notes: list[str]) -> str:
    prompts.append(notes)
    print(f"model   prompt {len(prompts)}: {goal}" + "".join(f"; {note}" for note in notes))
    if len(notes) == 0:
        return 'def slug(title): return title.replace(" ", "-")'
    if len(notes) == 1:
        return 'def slug(title): return title.lower().replace(" ", "-")'
    return 'import re\ndef slug(title): return "-".join(re.findall("[a-z0-9]+", title.lower()))'


def run_tests(draft: str) -> str | None:
    """Run the tests in a separate process, since generated code is not trusted, and return the complaint."""
    ran = subprocess.run([sys.executable, "-I", "-c", f"{draft}\n{TESTS}"], capture_output=True, text=True, check=False)
    complaint = None if ran.returncode == 0 else ran.stderr.splitlines()[-1].removeprefix("AssertionError: ")
    print(f"tests   {complaint or 'pass'}")
    return complaint


async def show(draft: str, token: str) -> None:
    await inbox.put((draft, token))


async def merge(draft: str) -> str:
    return draft.splitlines()[-1]


async def main() -> None:
    async with app:
        async with app.worker():
            job = await write_code.submit(GOAL)
            draft, token = await inbox.get()
            print(f"review  {draft}")
        print("worker  stopped; the agent waits in the store and uses no resources")
        await app.reject(token, "what about 'C++ & Rust'?")
        print("review  rejected, while no worker is running")
        async with app.worker():
            draft, token = await inbox.get()
            await app.approve(token)
            print(f"merged  {await job}")
        print(f"the model received {len(prompts)} prompts, although the function ran from the top again")


if __name__ == "__main__":
    play(main)
