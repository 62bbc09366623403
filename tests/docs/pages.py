"""The documents as the tests read them: pages, the fences on them, and where their links lead."""

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
    """A block between two fences: its language, its text, the line it begins at, and what stands before it."""

    language: str
    text: str
    line: int
    before: str

    @property
    def follows_code(self) -> bool:
        """True if nothing but space is between it and the fence before it."""
        return self.before.rstrip("\n").endswith("```")


def pages() -> list[Path]:
    """Every document of the project."""
    return sorted([*ROOT.glob("*.md"), ROOT / "llms.txt", ROOT / "benchmarks" / "README.md", *DOCS.rglob("*.md")])


def fences(page: Path) -> list[Fence]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Fence(found[1], found[2], text.count("\n", 0, found.start()) + 2, text[: found.start()])
        for found in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its blocks and without code inside of sentences."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> list[str]:
    """Where a page links to, other sites left out."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target and not target.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    """What can be linked to on a page: its headings as site generators name them, and marks of its own."""
    text = page.read_text(encoding="utf-8")
    named = {_slug(heading) for heading in _HEADING.findall(_FENCE.sub("", text))}
    return named | set(re.findall(r'<a id="([^"]+)">', text))


def name(page: Path) -> str:
    """The path of a page as people know it."""
    return str(page.relative_to(ROOT))


def _slug(heading: str) -> str:
    words = re.sub(r"<[^>]*>|[`*]", "", heading).strip().lower()
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", words))
