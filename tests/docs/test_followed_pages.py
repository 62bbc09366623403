"""A reader who follows a page in an empty folder sees what the page shows."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.follow import follow, follow_blocks, with_port
from tests.docs.pages import DOCS, ROOT, fences, name
from tests.docs.run_blocks import PageMismatch

TUTORIAL = DOCS / "tutorial.md"
FRAMEWORKS = tuple(DOCS / "guides" / f"{name}.md" for name in ("fastapi", "flask", "django"))
# The pages whose programs are saved as files, so that other tests do not run their blocks one by one.
FOLLOWED = (TUTORIAL, *FRAMEWORKS)


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.long
def test_tutorial_shows_what_its_reader_sees(tmp_path: Path) -> None:
    assert follow(TUTORIAL, tmp_path, until="## Upgrade") == 5
    # The killed worker counts as live for a while. A reader is slower than this test, which takes a new store instead.
    (tmp_path / "flowfabric.db").unlink()
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert follow(TUTORIAL, tmp_path, since="## Upgrade", until="## Deploy") == 3


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("page", FRAMEWORKS, ids=name)
def test_guide_of_a_framework_shows_what_its_reader_sees(page: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert follow_blocks(page, with_port(fences(page), port), tmp_path) == 1


def test_reader_who_sees_something_else_is_noticed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "page.md"
    text = "Save this as `a.py`:\n\n```python\nprint(1)\n```\n\n```console\npython a.py\n```\n\n```text\n{}\n```\n"
    for number, shown in enumerate(("1", "2")):
        copy = tmp_path / f"page{number}.md"
        copy.write_text(text.format(shown), encoding="utf-8")
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        if shown == "1":
            assert follow_blocks(page, fences(copy), folder) == 1
        else:
            with pytest.raises(PageMismatch):
                follow_blocks(page, fences(copy), folder)
