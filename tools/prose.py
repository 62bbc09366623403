#!/usr/bin/env python3
"""Count marker words in the project's prose, show the worst places, and fail above a limit.

A few marker words do no harm. Many of them show that prose reads like a translation: "whoever waits is told", "it goes
on by itself". Well-written projects have 1 to 10 marker words per 10,000 words.

Five kinds of text are measured:

    docstrings   of modules, classes and functions
    comments     in Python files
    strings      literals of three or more words: messages, help texts, log lines (SQL is left out)
    markdown     without code blocks and code spans
    commits      subjects from `git log`, with `--commits`
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

KINDS = ("docstrings", "comments", "strings", "markdown", "commits")
MARKERS = {
    "whoever, whatever": r"\b(whoever|whatever|wherever|whichever)\b",
    "somebody, nobody": r"\b(somebody|nobody|anybody|everybody)\b",
    "answer (for return)": r"\banswer(s|ed|ing)?\b",
    "tell, hear, say": r"\b(tells?|told|hears?|heard|says?|said)\b",
    "go on": r"\b(go(es)?|went|going) on\b",
    "anew": r"\banew\b",
    "any more, no more": r"\b(any more|no more)\b",
    "meanwhile": r"\bmeanwhile\b",
    "at once": r"\bat once\b",
    "so many, so long": r"\bso (many|long|much|often|far)\b",
    "for ever, in vain": r"\b(for ever|in vain|anyhow|by and by)\b",
    "by itself, of its own": r"\b(by (itself|themselves)|of (its|their) own)\b",
    "headless what, those who": r"\b(what (is|was|has|have|they|it|a|the|comes?|came)|those (that|who))\b",
    "comes to, is left": r"\b(c[ao]mes? to|is none|are none|is left|was left)\b",
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in MARKERS.items()}
ANY_MARKER = re.compile("|".join(MARKERS.values()), re.IGNORECASE)
WORD = re.compile(r"[A-Za-z']+")
SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n\s*\n|\n(?=[-|#])")
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|WITH \w+ AS)\b")
SUBJECT = re.compile(r"^[a-z0-9_,/.-]+: \S")
SKIPPED = {".git", ".venv", "__pycache__", "node_modules", "build", "dist"}


class Text(NamedTuple):
    """A piece of prose and its place: a file with a line, or a commit."""

    kind: str
    place: str
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(WORD.findall(self.text))

    def markers(self) -> Counter[str]:
        if ANY_MARKER.search(self.text) is None:
            return Counter()
        return Counter({name: len(pattern.findall(self.text)) for name, pattern in PATTERNS.items()})


def read_python(path: Path) -> Iterator[Text]:
    """Yield the docstrings, comments and longer string literals of a Python file."""
    source = path.read_text()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                docstrings.add(id(first))
                yield Text("docstrings", str(path), first.lineno, first.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text("comments", str(path), token.start[0], token.string.lstrip("# "))
    yield from _literals(path, tree, docstrings)


def _literals(path: Path, tree: ast.Module, docstrings: set[int]) -> Iterator[Text]:
    inside_fstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            inside_fstrings.update(id(part) for part in parts)
            text = " … ".join(str(part.value) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings or id(node) in inside_fstrings:
                continue
            text = node.value
        else:
            continue
        if len(WORD.findall(text)) >= 3 and " " in text.strip() and not SQL.search(text):
            yield Text("strings", str(path), node.lineno, text)


def read_markdown(path: Path) -> Iterator[Text]:
    """Yield the prose of a Markdown file without its code, with the original line numbers."""
    source = path.read_text()
    source = re.sub(r"```.*?```", lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL)
    source = re.sub(r"`[^`\n]*`", "", source)
    line = 1
    for block in re.split(r"(\n\s*\n)", source):
        if block.strip():
            yield Text("markdown", str(path), line + len(block) - len(block.lstrip("\n")), block)
        line += block.count("\n")


def read_commits(revisions: str) -> Iterator[Text]:
    """Yield commit subjects with their short hash as the place."""
    command = ["git", "log", "--no-merges", "--format=%h %s", *revisions.split()]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        commit, _, subject = line.partition(" ")
        yield Text("commits", commit, 0, subject)


def read_paths(paths: Iterable[Path]) -> Iterator[Text]:
    """Yield the prose of the given files and of all files below the given folders."""
    for path in paths:
        if path.is_dir():
            inside = (item for item in sorted(path.rglob("*")) if not SKIPPED & set(item.parts))
            own = Path(__file__).resolve()  # This module lists the markers itself.
            yield from read_paths(item for item in inside if item.suffix in (".py", ".md") and item.resolve() != own)
        elif path.suffix == ".py":
            yield from read_python(path)
        elif path.suffix == ".md":
            yield from read_markdown(path)


def rate(texts: Iterable[Text]) -> tuple[int, int, float]:
    """Return the number of words, the number of markers, and the markers per 10,000 words."""
    words = markers = 0
    for text in texts:
        words += text.words
        markers += text.markers().total()
    return words, markers, 10_000 * markers / max(1, words)


def worst_files(texts: list[Text], count: int, at_least: int = 50) -> list[tuple[float, int, int, str]]:
    """Return the files with the most markers per 10,000 words. Leave out files with fewer than `at_least` words."""
    by_place: defaultdict[str, list[Text]] = defaultdict(list)
    for text in texts:
        if text.kind != "commits":
            by_place[text.place].append(text)
    rows = []
    for place, pieces in by_place.items():
        words, markers, per_10k = rate(pieces)
        if markers and words >= at_least:
            rows.append((per_10k, markers, words, place))
    return sorted(rows, reverse=True)[:count]


def worst_sentences(texts: list[Text], count: int) -> list[tuple[int, str, str]]:
    """Return the sentences with the most markers."""
    rows = []
    for text in texts:
        position = 0
        for sentence in SENTENCE_END.split(text.text):
            offset = text.text.find(sentence, position)
            position = offset + len(sentence)
            markers = sum(len(pattern.findall(sentence)) for pattern in PATTERNS.values())
            if markers:
                line = text.line + text.text.count("\n", 0, offset)
                place = f"{text.place}:{line}" if text.line else text.place
                rows.append((markers, place, " ".join(sentence.split())))
    return sorted(rows, key=lambda row: (-row[0], len(row[2])))[:count]


def report(texts: list[Text], options: argparse.Namespace) -> bool:
    """Print the tables; return True if a limit was exceeded."""
    failed = False
    print(f"{'kind':12} {'words':>8} {'markers':>8} {'per 10,000':>11}")
    for kind in KINDS:
        pieces = [text for text in texts if text.kind == kind]
        if not pieces:
            continue
        words, markers, per_10k = rate(pieces)
        over = options.limit is not None and per_10k > options.limit
        failed = failed or over
        print(f"{kind:12} {words:8,} {markers:8,} {per_10k:11.1f}{'   above the limit' if over else ''}")
    if options.markers:
        totals = sum((text.markers() for text in texts), Counter[str]())
        for name, number in totals.most_common():
            print(f"  {number:6,}  {name}")
    files = worst_files(texts, options.files)
    if files:
        print("\nworst files")
        for per_10k, markers, words, place in files:
            print(f"  {per_10k:7.0f}  {markers:4} in {words:5,} words  {place}")
    if options.file_limit is not None:
        above = [row for row in worst_files(texts, len(texts), at_least=100) if row[0] > options.file_limit]
        failed = failed or bool(above)
        print(f"\n{len(above)} files above {options.file_limit:g}")
    sentences = worst_sentences(texts, options.sentences)
    if sentences:
        print("\nworst sentences")
        for markers, place, sentence in sentences:
            print(f"  {markers}  {place}  {sentence[:160]}")
    return report_subjects([text for text in texts if text.kind == "commits"], options) or failed


def report_subjects(commits: list[Text], options: argparse.Namespace) -> bool:
    """Check the form of commit subjects: `area: imperative`, at most 72 characters."""
    if not commits:
        return False
    long = [text for text in commits if len(text.text) > 72]
    shapeless = [text for text in commits if not SUBJECT.match(text.text)]
    print(f"\n{len(commits)} subjects: {len(long)} longer than 72 characters, {len(shapeless)} without `area: `")
    for text in [*long, *shapeless][: options.sentences]:
        print(f"  {text.place}  {text.text[:110]}")
    return options.subjects and bool(long or shapeless)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (.py and .md); default: src and docs")
    parser.add_argument("--kind", action="append", choices=KINDS, help="measure only this kind; may be repeated")
    parser.add_argument("--commits", metavar="REVISIONS", help="also read commit subjects, as 'main..HEAD' or '-20'")
    parser.add_argument("--limit", type=float, metavar="N", help="fail if a kind has over N markers per 10,000 words")
    parser.add_argument("--file-limit", type=float, metavar="N", help="fail if a file of 100 or more words exceeds N")
    parser.add_argument("--subjects", action="store_true", help="fail on commit subjects of the wrong form")
    parser.add_argument("--files", type=int, default=10, metavar="N", help="show N files (10)")
    parser.add_argument("--sentences", type=int, default=10, metavar="N", help="show N sentences (10)")
    parser.add_argument("--markers", action="store_true", help="show how often each marker occurs")
    options = parser.parse_args()
    paths = options.paths or ([] if options.commits else [Path("src"), Path("docs")])
    missing = [path for path in paths if not path.exists()]
    if missing:
        parser.error(f"no such file or folder: {missing[0]}")
    texts = list(read_paths(paths))
    if options.commits:
        texts += read_commits(options.commits)
    if options.kind:
        texts = [text for text in texts if text.kind in options.kind]
    if not texts:
        parser.error("nothing to measure")
    return 1 if report(texts, options) else 0


if __name__ == "__main__":
    sys.exit(main())
