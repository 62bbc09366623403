"""The completion of shells, made from the registry; bash is asked what it would complete."""

from __future__ import annotations

import re
import subprocess

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
