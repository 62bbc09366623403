"""The commit hook accepts `area: imperative` and refuses other forms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOOK = ROOT / "tools" / "hooks" / "commit-msg"
LONGEST = "pool: " + "x" * 66


def check(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    """Run the hook as git does, with the message in a file."""
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message, encoding="utf-8")
    return subprocess.run([sys.executable, str(HOOK), str(file)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "message",
    [
        "pool: drop the connection if BEGIN fails\n",
        "pool: drop the connection if BEGIN fails\n\nIt cannot run the next one either.\n",
        "runtime/calls: process signals in order",
        "store,ops: embed the guard",
        "docs: SQL keywords in upper case",
        LONGEST,
        "pool: drop it\n\n# Please enter the commit message\n",
        "pool: drop it\n# Changes to be committed:\n",
        "pool: drop it\n# ------------------------ >8 ------------------------\ndiff --git a/a b/a\n",
        "Merge branch 'tools'\n",
        'Revert "pool: drop it"\n\nThis reverts commit 1234.\n',
        "fixup! pool: drop it\n",
    ],
)
def test_a_message_of_the_right_form_is_accepted(tmp_path: Path, message: str) -> None:
    done = check(tmp_path, message)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("drop the connection", "`area: imperative`"),
        ("Pool: drop the connection", "`area: imperative`"),
        ("pool:drop the connection", "`area: imperative`"),
        ("", "`area: imperative`"),
        (LONGEST + "x", "73 characters"),
        ("pool: drop it\nbecause it is broken\n", "blank line"),
        ("pool: drops the connection", "imperative instead of `drops`"),
        ("pool: dropped the connection", "imperative instead of `dropped`"),
        ("pool: dropping the connection", "imperative instead of `dropping`"),
        ("pool: Drop the connection", "lower-case"),
        ("pool: drop the connection.", "period"),
    ],
)
def test_a_message_of_another_form_is_refused_with_the_reason(tmp_path: Path, message: str, reason: str) -> None:
    done = check(tmp_path, message)
    assert done.returncode == 1
    assert reason in done.stderr


def test_git_runs_the_hook_once_it_is_installed(tmp_path: Path) -> None:
    def git(*words: str) -> int:
        names = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *names, *words], cwd=tmp_path, capture_output=True, check=False).returncode

    assert git("init") == 0
    assert git("config", "core.hooksPath", str(HOOK.parent)) == 0
    assert git("commit", "--allow-empty", "-m", "no area") != 0
    assert git("commit", "--allow-empty", "-m", "tools: check commit messages") == 0
