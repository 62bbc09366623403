"""Check the site that `python3 dev.py docs` has built.

It must load nothing from other hosts, and its search must have every page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
_LOADED = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(https?:)?//|<link\b[^>]*\bhref="(https?:)?//')


def problems(docs: Path, site: Path) -> list[str]:
    """Return the problems of a site that was built from a folder of pages."""
    built = sorted(site.rglob("*.html"))
    loading = [path for path in built if _LOADED.search(path.read_text(encoding="utf-8"))]
    search = (site / "search.json").read_text(encoding="utf-8") if (site / "search.json").exists() else ""
    pages = [page.relative_to(docs).with_suffix(".html") for page in sorted(docs.rglob("*.md"))]
    return [
        *(f"{path.relative_to(site)} loads something from another host" for path in loading),
        *(f"{page} is not built" for page in pages if not (site / page).exists()),
        *(f"{page} is not in the search" for page in pages if f'"{page.as_posix()}' not in search),
    ]


def main() -> int:
    found = problems(ROOT / "docs", SITE)
    sys.stdout.write("\n".join(found or [f"{SITE.relative_to(ROOT)}/index.html is ready."]) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
