"""HTML pages for people who open a link.

Pages are self-contained: no scripts, no external resources, and every text is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from html import escape
from typing import Any

from flowfabric.core.waits.decisions import ApprovalDecision, WaitpointDescription
from flowfabric.core.waits.prompts import ApprovalPrompt

MAX_COMMENT_CHARACTERS = 2000

STYLE = (
    ":root{color-scheme:light dark;--ink:light-dark(#1b1f27,#e8ebf0);--dim:light-dark(#4a5260,#b4bcc9);"
    "--line:light-dark(#d9dde3,#2f3642);--edge:light-dark(#868e9a,#697384);--paper:light-dark(#fff,#191d25);"
    "--yes:light-dark(#1a7443,#6fce96);--no:light-dark(#b3261e,#ff968e);--focus:light-dark(#2f5bd0,#8fb0ff)}"
    "*{box-sizing:border-box}"
    "body{font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif;margin:0;padding:1rem;"
    "color:var(--ink);background:light-dark(#f6f7f9,#12151b);overflow-wrap:anywhere}"
    "main{max-width:36rem;margin:2rem auto;padding:1.5rem;border:1px solid var(--line);border-radius:.625rem;"
    "background:var(--paper)}"
    "h1{font-size:1.5rem;line-height:1.25;margin:0 0 1rem}p{margin:.5rem 0}.dim{color:var(--dim);font-size:.875rem}"
    ".details,blockquote,td{white-space:pre-wrap}"
    "blockquote{margin:.5rem 0;padding-left:1rem;border-left:3px solid var(--line)}"
    "table{width:100%;border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;vertical-align:top;padding:.4rem 1rem .4rem 0;border-top:1px solid var(--line)}"
    "tr:last-child>*{border-bottom:1px solid var(--line)}th{font-weight:400;color:var(--dim);width:30%}"
    "pre{margin:0;font:.8125rem/1.5 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre-wrap}"
    "label{display:block;margin:1.25rem 0 .25rem}"
    "textarea{width:100%;height:5rem;padding:.5rem;font:inherit;color:inherit;background:transparent;"
    "border:1px solid var(--edge);border-radius:.375rem}"
    ".buttons{display:flex;flex-wrap:wrap;gap:.75rem;margin-top:1rem}"
    "button{flex:1 1 10rem;min-height:2.75rem;font:inherit;font-weight:600;border-radius:.375rem;cursor:pointer}"
    ".approve{border:1px solid var(--yes);background:var(--yes);color:var(--paper)}"
    ".reject{border:1px solid var(--no);background:transparent;color:var(--no)}"
    ":focus-visible{outline:2px solid var(--focus);outline-offset:2px}"
    ".approved,.rejected{font-weight:600}.approved{color:var(--yes)}.rejected{color:var(--no)}"
)


def approval_page(wait: WaitpointDescription) -> str:
    """Return the page that asks for a decision. Its form posts to its own address, so any prefix works."""
    return _page(
        _title(wait),
        *_prompt(wait.prompt),
        *_facts(wait),
        '<form method="post"><label for="comment">Comment (optional)</label>'
        f'<textarea id="comment" name="comment" maxlength="{MAX_COMMENT_CHARACTERS}"></textarea><div class="buttons">'
        '<button class="approve" name="decision" value="approve">Approve</button>'
        '<button class="reject" name="decision" value="reject">Reject</button>'
        "</div></form>",
    )


def decision_page(wait: WaitpointDescription, decision: ApprovalDecision, *, is_new: bool) -> str:
    """Return the page that shows the decision of the approver, which is final."""
    word, noun = ("approved", "approval") if decision.approve else ("rejected", "rejection")
    comment = f"<blockquote>{_escape_lines(decision.comment)}</blockquote>" if decision.comment else ""
    content = (comment, *_prompt(wait.prompt), *_facts(wait))
    if is_new:
        title = f"<p><strong>{_escape(_title(wait))}</strong></p>"
        return _page("Thank you", f'<p class="{word}">Your {noun} is recorded.</p>', title, *content)
    sentence = f"You already {word} this." if decision.sender is None else f"Already {word} on your behalf."
    at = f'<p class="dim">At {_time(decision.at)}{_sender(decision)}. The first decision counts.</p>'
    return _page(_title(wait), f'<p class="{word}">{sentence}</p>', at, *content)


def closed_page(wait: WaitpointDescription) -> str:
    """Return the page of an approval that accepts no further decisions."""
    return _page(_title(wait), "<p>Your decision is no longer needed.</p>", *_prompt(wait.prompt), *_facts(wait))


def message_page(title: str, message: str) -> str:
    """Return a page with one message."""
    return _page(title, f"<p>{_escape(message)}</p>")


def _title(wait: WaitpointDescription) -> str:
    title = None if wait.prompt is None else wait.prompt.title
    return f"Approval: {wait.approval}" if title is None else title


def _prompt(prompt: ApprovalPrompt | None) -> Iterator[str]:
    if prompt is None:
        return
    if prompt.details:
        yield f'<p class="details">{_escape_lines(prompt.details)}</p>'
    if prompt.show:
        rows = (f'<th scope="row">{_escape(name)}</th><td>{_value(item)}</td>' for name, item in prompt.show.items())
        yield f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _facts(wait: WaitpointDescription) -> Iterator[str]:
    """Yield the approver, the decisions so far, and the time or the reason at which the approval closes."""
    task, approval = _escape(wait.task), _escape(wait.approval)
    yield f'<p class="dim">The task <strong>{task}</strong> asks for the approval <strong>{approval}</strong>.'
    if wait.approver is not None:
        yield f" You decide as <strong>{_escape(wait.approver)}</strong>."
    if wait.end is not None:
        yield f" It accepts no further decisions: {_escape(wait.end_reason)}."
    elif wait.progress is not None:
        yield f" Approvals: {_escape(wait.progress.counts)}."
    if wait.end is None and wait.expires_at is not None:
        yield f" Open until {_time(wait.expires_at)}."
    yield "</p>"


def _sender(decision: ApprovalDecision) -> str:
    return "" if decision.sender is None else f", by {_escape(decision.sender)}"


def _value(value: Any) -> str:
    """Return a JSON value as HTML: text as it is, the items of a plain list on one line each, other values as JSON."""
    if isinstance(value, str):
        return _escape_lines(value)
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return "\n".join(map(_value, value))
    text = json.dumps(value, ensure_ascii=False, indent=2 if value else None)
    return f"<pre>{_escape_lines(text)}</pre>" if isinstance(value, dict | list) else _escape(text)


def _time(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M} UTC"


def _page(title: str, *content: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{_escape(title)}</h1>{''.join(content)}</main></body></html>"
    )


def _escape_lines(text: str) -> str:
    return "\n".join(map(_escape, text.splitlines()))


def _escape(text: str) -> str:
    """Escape a text for HTML, and replace characters that could hide or reorder the text after them."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text), quote=True)
