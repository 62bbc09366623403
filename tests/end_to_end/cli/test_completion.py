"""The completion of shells, made from the registry. Each shell that there is on this machine is asked what it would
complete; bash is on every one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flowfabric.cli.completion import places, script_of
from flowfabric.cli.verbs import VERBS
from flowfabric.cli.verbs.executions import FAMILIES
from tests.end_to_end.cli.shell import Shell

ASK = """
{script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); _flowfabric; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in ("flowfabric", *words))
    script = ASK.format(script=script_of("bash"), words=quoted)
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_bash_completes_verbs_options_and_values() -> None:
    assert completed("") == [verb.name for verb in VERBS]
    assert completed("ex") == ["explain"]
    assert completed("list", "--st") == ["--state", "--store"]
    assert completed("list", "--state", "s") == ["suspended", "skipped"]
    assert completed("--store", "list", "lanes", "p") == ["pause"]
    assert completed("lanes", "pause", "--re") == ["--reason"]
    assert completed("events", "--family", "") == list(FAMILIES)
    assert completed("completion", "") == ["bash", "zsh", "fish"]
    assert completed("submit", "--lane", "") == completed("show", "") == []


# zsh itself chooses among what it is offered, and its own functions are not there without a terminal.
ASK_ZSH = """
compdef() {{ :; }}; _files() {{ :; }}; compadd() {{ shift; print -l -- "$@"; }}
{script}
words=({words}); CURRENT=$#words; _flowfabric
"""
ASK_FISH = """
{script}
complete -C {words}
"""
OFFERED = [
    ("flowfabric ex", ["explain"]),
    ("ff sub", ["submit"]),
    ("flowfabric list --st", ["--state", "--store"]),
    ("flowfabric list --state s", ["skipped", "suspended"]),
    ("flowfabric lanes list --st", ["--store"]),
    ("flowfabric --store list lanes p", ["pause"]),
    ("flowfabric lanes pause --re", ["--reason"]),
    ("flowfabric completion b", ["bash"]),
]


def there_is(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not on this machine")


@there_is("zsh")
@pytest.mark.parametrize(("words", "offered"), OFFERED)
def test_zsh_completes_the_same(words: str, offered: list[str]) -> None:
    script = ASK_ZSH.format(script=script_of("zsh"), words=words)
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    begun = words.rpartition(" ")[2]
    assert sorted(word for word in done.stdout.split() if word.startswith(begun)) == offered


@there_is("fish")
@pytest.mark.parametrize(("words", "offered"), OFFERED)
def test_fish_completes_the_same(
    words: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = ASK_FISH.format(script=script_of("fish"), words=f"'{words}'")
    done = subprocess.run(["fish", "--no-config"], input=script, capture_output=True, text=True, check=True, timeout=60)
    assert sorted(line.partition("\t")[0] for line in done.stdout.splitlines()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_and_option_is_in_every_script(shell: str) -> None:
    script = script_of(shell)
    for place in places():
        for word in place.words:
            assert re.search(rf"\b{word}\b", script), (shell, word)
        for option in place.options:
            name = option.names[-1]
            found = f"-l {name[2:]} " in script or f"-s {name[1:]} " in script if shell == "fish" else name in script
            assert found, (shell, name)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_scripts_have_no_mistakes_of_syntax(shell: str) -> None:
    # zsh shares the words that are used here, but for the way it splits a text.
    script = script_of(shell).replace("${=found}", "$found")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


async def test_the_script_is_printed(bare: Shell) -> None:
    said = await bare.run("completion", "bash")
    assert (said.code, "\n".join(said.lines), said.error) == (0, script_of("bash"), "")
