"""The rules of the page, as functions from a text to what is wrong with it. tests/test_tidy.py applies them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

FILE_LINES = 400
FUNCTION_LINES = 60
CLASS_METHODS = 15
POSITIONAL_ARGUMENTS = 6
VAGUE_NAMES = frozenset({"common", "helper", "helpers", "misc", "util", "utils"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def size_problems(source: str) -> list[str]:
    """Files, functions, classes and signatures that outgrew their page."""
    problems = []
    if (lines := source.count("\n")) > FILE_LINES:
        problems.append(f"1: {lines} lines, {FILE_LINES} at most")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            problems += _function_problems(node)
        elif isinstance(node, ast.ClassDef) and (count := _method_count(node)) > CLASS_METHODS:
            problems.append(f"{node.lineno}: {node.name} has {count} methods, {CLASS_METHODS} at most")
    return problems


def name_problems(path: PurePath) -> list[str]:
    """Modules and packages whose name does not say what they hold."""
    return [f"1: {part} says nothing" for part in (*path.parts[:-1], path.stem) if part.strip("_") in VAGUE_NAMES]


def marker_problems(text: str) -> list[str]:
    """Notes to oneself."""
    marker = re.compile(r"\b(TODO|FIXME|XXX)\b")
    return [f"{number}: {found[0]}" for number, line in _lines(text) if (found := marker.search(line))]


def await_problems(source: str) -> list[str]:
    """Awaits in an operation on anything but its transaction, directly or through another operation.

    SQLite runs an operation to its end in one go, which works only if nothing else can suspend it.
    """
    module = ast.parse(source)
    operations = _operation_names(module)
    return [
        f"{awaited.lineno}: awaits `{ast.unparse(awaited)}`, which is not rooted at tx"
        for awaited in _awaited(module)
        if not _is_transaction(awaited) and not _is_operation_on_tx(awaited, operations)
    ]


def foreign_problems(text: str) -> list[str]:
    """Traces of one machine or one package index."""
    # The words are put together here, or this file would break the rule.
    hosts = [re.escape(".".join(parts)) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))]
    machine = [rf"(?<![\w.])/{folder}/" for folder in ("work", "root")]
    foreign = re.compile("|".join([*hosts, *machine, re.escape("../") + "shared"]))
    return [f"{number}: {found[0]}" for number, line in _lines(text) if (found := foreign.search(line))]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def _function_problems(node: Function) -> Iterator[str]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > FUNCTION_LINES:
        yield f"{node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES} at most"
    positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    count = len(positional) - (positional[:1] in (["self"], ["cls"]))
    if count > POSITIONAL_ARGUMENTS:
        yield f"{node.lineno}: {node.name} takes {count} positional arguments, {POSITIONAL_ARGUMENTS} at most"


def _method_count(node: ast.ClassDef) -> int:
    """Methods by name, so that overloads and a property's setter count once; dunder methods do not count."""
    names = {item.name for item in node.body if isinstance(item, Function)}
    return sum(1 for name in names if not (name.startswith("__") and name.endswith("__")))


def _awaited(module: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        match node:
            case ast.Await(value=value):
                yield value
            case ast.AsyncFor(iter=iterated) | ast.comprehension(iter=iterated, is_async=1):
                yield iterated
            case ast.AsyncWith(items=items):
                yield from (item.context_expr for item in items)


def _operation_names(module: ast.Module) -> set[str]:
    """What the module itself defines, and what it imports from flowfabric.ops."""
    names = set()
    for node in ast.walk(module):
        match node:
            case ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ImportFrom(module=origin, level=level) if level == 1 or f"{origin}.".startswith("flowfabric.ops."):
                names |= {alias.asname or alias.name for alias in node.names}
    return names


def _is_transaction(awaited: ast.expr) -> bool:
    return _root(awaited) == "tx"


def _is_operation_on_tx(awaited: ast.expr, operations: set[str]) -> bool:
    match awaited:
        case ast.Call(func=function, args=[ast.Name(id="tx"), *_]):
            return _root(function) in operations
    return False


def _root(node: ast.expr) -> str | None:
    """The name an expression such as `a.b(c)[d].e` begins with."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner):
            return _root(inner)
    return None


# Reserved words only: none of them can be the name of a column or of a common table expression.
SQL_KEYWORDS = re.compile(
    "ALL|ALTER|AND|AS|ASC|BEGIN|BETWEEN|BY|CASE|CHECK|COLLATE|COMMIT|CONFLICT|CONSTRAINT|CREATE|CROSS|DEFAULT|DELETE|DESC"
    "|DISTINCT|DO|DROP|ELSE|END|EXCEPT|EXISTS|FOR|FOREIGN|FROM|FULL|GROUP|HAVING|IN|INDEX|INNER|INSERT|INTERSECT|INTO|IS"
    "|JOIN|LATERAL|LEFT|LIKE|LIMIT|MATERIALIZED|NOT|NOTHING|NULL|ON|OR|ORDER|OUTER|OVER|PARTITION|PRIMARY|REFERENCES"
    "|RETURNING|RIGHT|SELECT|SET|TABLE|THEN|UNION|UNIQUE|UPDATE|USING|VALUES|VIEW|WHEN|WHERE|WITH",
    re.IGNORECASE,
)

_SQL_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^']|'')*' | "[^"]*" )
    | (?P<parameter> ::?\w+ | \$\d+ )
    | (?P<word> [A-Za-z_]\w* )
    | (?P<sign> [();,.*] )
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A word or a sign, and the line it stands on."""

    kind: str
    text: str
    line: int


def sql_problems(source: str) -> list[str]:
    """Keywords in lower case, stars for columns, and limits without an order."""
    tokens = list(_sql_tokens(source))
    return [*_keyword_problems(tokens), *_star_problems(tokens), *_limit_problems(tokens)]


def _sql_tokens(source: str) -> Iterator[Token]:
    """Words and signs. A comment that begins its line stands between statements and is passed on as a `;`."""
    for found in _SQL_TOKEN.finditer(source):
        begins_line = found.start() == 0 or source[found.start() - 1] == "\n"
        line = source.count("\n", 0, found.start()) + 1
        if found.lastgroup in ("word", "sign"):
            yield Token(found.lastgroup, found[0], line)
        elif found.lastgroup == "comment" and begins_line:
            yield Token("sign", ";", line)


def _keyword_problems(tokens: list[Token]) -> Iterator[str]:
    for before, token in pairwise([Token("sign", ";", 0), *tokens]):
        is_keyword = token.kind == "word" and before.text != "." and SQL_KEYWORDS.fullmatch(token.text)
        if is_keyword and token.text != token.text.upper():
            yield f"{token.line}: keyword `{token.text}` in lower case"


def _star_problems(tokens: list[Token]) -> Iterator[str]:
    for before, token in pairwise(tokens):
        if token.text == "*" and before.text.upper() in ("SELECT", "RETURNING", "DISTINCT", "ALL", ",", "."):
            yield f"{token.line}: `*` instead of the columns"


def _limit_problems(tokens: list[Token]) -> Iterator[str]:
    """Each pair of brackets is a scope of its own: the order of a subquery says nothing about the query around it."""
    ordered = [False]
    for token in tokens:
        match token.text.upper():
            case "(":
                ordered.append(False)
            case ")":
                ordered.pop()
            case ";":
                ordered[-1] = False
            case "ORDER":
                ordered[-1] = True
            case "LIMIT" if not ordered[-1]:
                yield f"{token.line}: LIMIT without ORDER BY"
