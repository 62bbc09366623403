"""The pages that people see: one file each, no script, nothing loaded from elsewhere, every text escaped."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from html import escape

COMMENT_CHARACTERS = 2000
REFUSED = "That did not work"

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:3rem auto;padding:0 1rem;"
    "color:#222;background:#fff}"
    "h1{font-size:1.4rem;overflow-wrap:anywhere}p{overflow-wrap:anywhere}label{display:block;margin:1rem 0 .3rem}"
    "textarea{width:100%;height:6rem;font:inherit;box-sizing:border-box}"
    "button{font:inherit;padding:.5rem 1.5rem;margin:1rem 1rem 0 0;border:1px solid #555;border-radius:4px;color:#fff}"
    ".approve{background:#176c36}.reject{background:#a11d2a}"
)
STYLE_HASH = "sha256-" + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def ask(title: str, task: str, approver: str | None, expires_at: datetime | None) -> str:
    """The page that asks. Its form goes to its own address, so it works under every prefix."""
    to = f"<p>This is asked of <strong>{_shown(approver)}</strong>.</p>" if approver else ""
    until = f"<p>It can be answered until {expires_at:%Y-%m-%d %H:%M} UTC.</p>" if expires_at else ""
    return _page(
        f"Approval: {_shown(title)}",
        f"<p>The task <strong>{_shown(task)}</strong> waits for a decision.</p>{to}{until}"
        '<form method="post">'
        '<label for="comment">Comment (optional)</label>'
        f'<textarea id="comment" name="comment" maxlength="{COMMENT_CHARACTERS}"></textarea>'
        '<button class="approve" name="decision" value="approve">Approve</button>'
        '<button class="reject" name="decision" value="reject">Reject</button>'
        "</form>",
    )


def message(title: str, words: str) -> str:
    """A page that says one thing."""
    return _page(_shown(title), f"<p>{_shown(words)}</p>")


def _page(title: str, content: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{content}</body></html>"
    )


def _shown(text: str) -> str:
    """Text as it may stand in a page: escaped, and without characters that turn or hide what follows them."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text), quote=True)
