"""The documents as the tests read them: pages, their code blocks, and the targets of their links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: its language, its text, the number of its first line, and the page's text before it."""

    language: str
    text: str
    line: int
    before: str

    @property
    def follows_code(self) -> bool:
        """Return True if only white space separates this block from the previous block."""
        return self.before.rstrip("\n").endswith("```")


def pages() -> list[Path]:
    """Return every document of the project."""
    return sorted([*ROOT.glob("*.md"), ROOT / "llms.txt", ROOT / "benchmarks" / "README.md", *DOCS.rglob("*.md")])


def fences(page: Path) -> list[Fence]:
    """Return the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Fence(match[1], match[2], text.count("\n", 0, match.start()) + 2, text[: match.start()])
        for match in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """Return a page without its blocks and its inline code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> list[str]:
    """Return the link targets of a page, without links to other sites."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target and not target.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings as site generators name them, and explicit ones."""
    text = page.read_text(encoding="utf-8")
    heading_anchors = {_slug(heading) for heading in _HEADING.findall(_FENCE.sub("", text))}
    return heading_anchors | set(re.findall(r'<a id="([^"]+)">', text))


def name(page: Path) -> str:
    """Return the path of a page below the root of the project."""
    return str(page.relative_to(ROOT))


def _slug(heading: str) -> str:
    words = re.sub(r"<[^>]*>|[`*]", "", heading).strip().lower()
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", words))
