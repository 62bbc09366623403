"""Each installed shell completes real command lines. bash is always installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from flowfabric.cli.command_table import COMMANDS, FAMILIES
from flowfabric.cli.commands.completion import read_script
from flowfabric.cli.spec import COMMON, Argument, CommandSpec
from tests.end_to_end.cli.shell import Shell
from tools import generate_completion

ASK_BASH = """
{script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_flowfabric; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
SOURCED = "autoload -Uz compinit && compinit -u -D && source <(cat ../_flowfabric)"
AUTOLOADED = "fpath=(.. $fpath) && autoload -Uz compinit && compinit -u -D"
# The configuration of an interactive zsh that writes the matches to a file and exits after the first completion.
ZSHRC = """
{setup}
compadd() {{
    if [[ ${{@[1,(i)(-|--)]}} != *-(O|A|D)\\ * ]]; then
        local -a matches
        builtin compadd -A matches "$@"
        print -rl -- $matches >> ../matches
    fi
    builtin compadd "$@"
}}
finish() {{ exit }}
comppostfuncs=(finish)
"""
ASK_ZSH = """
zmodload zsh/zpty
zpty shell zsh -i
zpty -w -n shell "$1"$'\\t'
while zpty -r shell chunk; do print -rn -- $chunk; done
"""
ASK_FISH = """
{script}
complete -C '{line}'
"""
LINES = [
    ("flowfabric ex", ["explain"]),
    ("ff sub", ["submit"]),
    ("flowfabric list --st", ["--state", "--store"]),
    ("flowfabric list --state s", ["skipped", "suspended"]),
    ("flowfabric lanes list --st", ["--store"]),
    ("flowfabric --store list lanes p", ["pause"]),
    ("flowfabric lanes pause --re", ["--reason"]),
    ("flowfabric submit --app m:a k --pri", ["--priority"]),
    ("flowfabric submit --app stor", []),
    ("flowfabric completion b", ["bash"]),
    ("flowfabric --store stor", ["store.db"]),
    ("flowfabric check x.py stor", ["store.db"]),
]

for_every_line = pytest.mark.parametrize(("line", "matches"), LINES)


def requires_shell(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run shells in a folder with one file, without the configuration of the user."""
    for variable in ("HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "store.db").touch()
    return tmp_path


def run(*command_line: str, folder: Path, stdin: str = "") -> str:
    """Return the output of a shell, which must neither fail nor print an error."""
    process = subprocess.run(
        command_line, input=stdin, cwd=folder / "work", capture_output=True, text=True, check=True, timeout=60
    )
    assert process.stderr == ""
    return process.stdout


def complete_in_bash(*words: str, folder: Path) -> list[str]:
    """Return the completions that bash offers for the last word of a command line."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = ASK_BASH.format(script=read_script("bash"), words=quoted)
    return run("bash", "--norc", "-c", script, folder=folder).split()


@for_every_line
def test_bash_completes(line: str, matches: list[str], folder: Path) -> None:
    assert sorted(complete_in_bash(*line.split(" "), folder=folder)) == matches


def complete_in_zsh(line: str, setup: str, folder: Path) -> list[str]:
    """Return the completions that an interactive zsh offers at the end of a line."""
    matches = folder / "matches"
    matches.touch()
    (folder / "_flowfabric").write_text(read_script("zsh"), encoding="utf-8")
    (folder / "home" / ".zshrc").write_text(ZSHRC.format(setup=setup), encoding="utf-8")
    screen = run("zsh", "-f", "-c", ASK_ZSH, "zsh", line, folder=folder)
    assert "not found" not in screen
    return matches.read_text(encoding="utf-8").split()


@requires_shell("zsh")
@for_every_line
def test_zsh_completes(line: str, matches: list[str], folder: Path) -> None:
    assert sorted(complete_in_zsh(line, SOURCED, folder)) == matches


@requires_shell("zsh")
@pytest.mark.parametrize("program", ["flowfabric", "ff"])
def test_zsh_loads_the_script_from_its_function_path(program: str, folder: Path) -> None:
    assert complete_in_zsh(f"{program} ex", AUTOLOADED, folder) == ["explain"]


@requires_shell("fish")
@for_every_line
def test_fish_completes(line: str, matches: list[str], folder: Path) -> None:
    script = ASK_FISH.format(script=read_script("fish"), line=line)
    lines = run("fish", "--no-config", folder=folder, stdin=script).splitlines()
    assert sorted(line.partition("\t")[0] for line in lines) == matches


def test_bash_completes_both_names_of_the_program_and_falls_back_to_files(folder: Path) -> None:
    registrations = run("bash", "--norc", "-c", f"{read_script('bash')}\ncomplete -p flowfabric ff", folder=folder)
    options = "-o bashdefault -o default -F _shtab_flowfabric"
    assert registrations.splitlines() == [f"complete {options} flowfabric", f"complete {options} ff"]


def test_bash_offers_all_commands_and_values(folder: Path) -> None:
    def complete(*words: str) -> list[str]:
        return complete_in_bash("flowfabric", *words, folder=folder)

    assert complete("") == [spec.name for spec in COMMANDS]
    assert complete("events", "--family", "") == list(FAMILIES)
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("submit", "--lane", "") == complete("show", "") == []


def test_bash_offers_every_option_and_command_everywhere(folder: Path) -> None:
    for path, arguments, commands in all_completion_points():
        options = {name for option in arguments if option.is_option for name in option.names}
        assert set(complete_in_bash("flowfabric", *path, "-", folder=folder)) >= options | {"--help"}, path
        if commands:
            assert complete_in_bash("flowfabric", *path, "", folder=folder) == commands, path


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_every_option_and_command_is_in_the_script(shell: str) -> None:
    script = read_script(shell)
    for _, arguments, commands in all_completion_points():
        names = [name for option in arguments if option.is_option for name in option.names]
        for name in [*names, *commands]:
            word = f"-l {name[2:]} " if name.startswith("--") else f"-s {name[1:]} " if name.startswith("-") else name
            assert (word if shell == "fish" else name) in script, name


def test_completion_scripts_are_up_to_date() -> None:
    message = "run python tools/generate_completion.py"
    assert generate_completion.main(["--check"]) == 0, message


def test_outdated_script_is_detected_and_regenerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_completion, "FOLDER", tmp_path / "completions")
    assert generate_completion.main(["--check"]) == 1
    assert generate_completion.main([]) == 0
    assert generate_completion.main(["--check"]) == 0
    (tmp_path / "completions" / "flowfabric.zsh").write_text("old", encoding="utf-8")
    assert generate_completion.main(["--check"]) == 1


def test_generator_rejects_an_unknown_change_of_shtab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate_completion.EDITS, "fish", [("not in the script", "")])
    with pytest.raises(ValueError, match="not in the script"):
        generate_completion.generate("fish")


async def test_completion_prints_the_script(bare_shell: Shell) -> None:
    output = await bare_shell.run("completion", "bash")
    assert (output.code, output.lines, output.error) == (0, read_script("bash").splitlines(), "")


def all_completion_points(
    path: tuple[str, ...] = (), specs: Sequence[CommandSpec] = COMMANDS, arguments: tuple[Argument, ...] = ()
) -> Iterator[tuple[tuple[str, ...], tuple[Argument, ...], list[str]]]:
    """Yield the words, the arguments and the subcommands of every command, starting with the program itself."""
    yield path, arguments + COMMON, [spec.name for spec in specs]
    for spec in specs:
        yield from all_completion_points((*path, spec.name), spec.subcommands, spec.all_arguments)
