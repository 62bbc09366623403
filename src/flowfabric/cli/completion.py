"""`flowfabric completion`: the completion of a shell, made from the registry of verbs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flowfabric.cli.documents import document
from flowfabric.cli.verbs import VERBS
from flowfabric.cli.verbs.declaring import COMMON, Argument, Verb

PROGRAMS = ("flowfabric", "ff")


@dataclass(frozen=True, slots=True)
class Place:
    """A point of the command line behind some verbs: which verbs and which arguments may follow."""

    verbs: tuple[str, ...]
    below: tuple[Verb, ...]
    arguments: tuple[Argument, ...]

    @property
    def path(self) -> str:
        return " ".join(self.verbs)

    @property
    def options(self) -> list[Argument]:
        return [item for item in self.arguments if item.is_option]

    @property
    def words(self) -> list[str]:
        """What may stand there without a dash."""
        fixed = [word for item in self.arguments if not item.is_option for word in item.choices]
        return [*(verb.name for verb in self.below), *fixed]


def print_completion(arguments: argparse.Namespace) -> None:
    """Prints the script of a shell."""
    script = script_of(arguments.shell)
    print(document({"shell": arguments.shell, "script": script}) if arguments.json else script)


def script_of(shell: str) -> str:
    """The script for bash, zsh or fish."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def places() -> list[Place]:
    """Every point of the command line, the beginning first."""
    return [Place((), VERBS, COMMON), *_places((), VERBS)]


def _places(before: tuple[str, ...], verbs: Sequence[Verb]) -> Iterator[Place]:
    for verb in verbs:
        path = (*before, verb.name)
        yield Place(path, verb.verbs, verb.all_arguments + COMMON)
        yield from _places(path, verb.verbs)


def _bash() -> str:
    return "\n".join([
        "# Completion of flowfabric for bash.",
        "_flowfabric() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local path="" known="" word="" number=1',
        "    while [ $number -lt $COMP_CWORD ]; do",
        '        word="${COMP_WORDS[number]}"',
        *_walk("$word", "number=$((number + 1))"),
        "        number=$((number + 1))",
        "    done",
        *_choices('words="%s"', "words"),
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        f"complete -o default -F _flowfabric {' '.join(PROGRAMS)}",
    ])  # fmt: skip


def _zsh() -> str:
    return "\n".join([
        f"#compdef {' '.join(PROGRAMS)}",
        "# Completion of flowfabric for zsh.",
        "_flowfabric() {",
        '    local current="${words[CURRENT]}" previous="${words[CURRENT-1]}"',
        '    local path="" known="" word="" number=2 found=""',
        "    while [ $number -lt $CURRENT ]; do",
        '        word="${words[number]}"',
        *_walk("$word", "number=$((number + 1))"),
        "        number=$((number + 1))",
        "    done",
        *_choices('found="%s"', "found"),
        '    if [ -n "$found" ]; then',
        "        compadd -- ${=found}",
        "    else",
        "        _files",
        "    fi",
        "}",
        f"compdef _flowfabric {' '.join(PROGRAMS)}",
    ]).replace("path", "place")  # zsh keeps the search path in a variable of that name  # fmt: skip


def _walk(word: str, skip: str) -> list[str]:
    """Follows the words before the cursor: an option with a value takes the next one too, a verb goes deeper."""
    return [
        f'        case "{word}" in',
        f"            {'|'.join(_valued())}) {skip} ;;",
        "            -*) ;;",
        f'            *) known="${{path:+$path }}{word}"',
        '               case "$known" in',
        *(f'                   "{path}") path="$known" ;;' for path in _deeper()),
        "               esac ;;",
        "        esac",
    ]


def _valued() -> list[str]:
    """The options that take the next word."""
    return sorted({name for place in places() for item in place.options if item.takes_value for name in item.names})


def _deeper() -> list[str]:
    """The paths that verbs lead to."""
    return sorted(place.path for place in places() if place.verbs)


def _choices(setting: str, variable: str) -> list[str]:
    """What may follow: the values of the option before, else options behind a dash, else words."""
    lines = [f'    local {variable}=""', '    case "$path:$previous" in']
    for place in places():
        for item in place.options:
            if item.takes_value:
                names = "|".join(f'"{place.path}:{name}"' for name in item.names)
                lines.append(f"        {names}) {setting % ' '.join(item.choices)} ;;")
    lines += ["        *)", '            case "$path:$current" in']
    for place in places():
        options = " ".join([name for item in place.options for name in item.names] + ["--help"])
        lines.append(f'                "{place.path}:"-*) {setting % options} ;;')
        lines.append(f'                "{place.path}:"*) {setting % " ".join(place.words)} ;;')
    return [*lines, "            esac ;;", "    esac"]


def _fish() -> str:
    lines = ["# Completion of flowfabric for fish.", *_fish_walk()]
    for program in PROGRAMS:
        for place in places():
            lines += _fish_place(program, place)
    return "\n".join(lines)


def _fish_place(program: str, place: Place) -> Iterator[str]:
    start = f"complete -c {program} -n {_quoted(f'__flowfabric_at {_quoted(place.path)}')}"
    for verb in place.below:
        yield f"{start} -f -a {verb.name} -d {_quoted(verb.help)}"
    for item in place.arguments:
        if not item.is_option and item.choices:
            yield f"{start} -f -a {_quoted(' '.join(item.choices))} -d {_quoted(item.help)}"
        elif item.is_option:
            names = " ".join(_fish_names(item.names))
            value = f" -x -a {_quoted(' '.join(item.choices))}" if item.choices else " -r" if item.takes_value else ""
            yield f"{start} {names}{value} -d {_quoted(item.help)}"


def _fish_walk() -> list[str]:
    """The same walk over the words before the cursor, which tells whether it came to this place."""
    return [
        "function __flowfabric_at",
        "    set -l place ''",
        "    set -l is_value no",
        "    for word in (commandline -opc)[2..-1]",
        "        if test $is_value = yes",
        "            set is_value no",
        "            continue",
        "        end",
        "        switch $word",
        f"            case {' '.join(_valued())}",
        "                set is_value yes",
        "            case '-*'",
        "            case '*'",
        '                set -l known (string trim -- "$place $word")',
        "                switch $known",
        f"                    case {' '.join(map(_quoted, _deeper()))}",
        "                        set place $known",
        "                end",
        "        end",
        "    end",
        '    test "$place" = "$argv[1]"',
        "end",
    ]


def _fish_names(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
