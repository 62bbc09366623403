"""Style rules as functions from a text to its problems. tests/test_tidy.py applies them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from tests.tidy_limits import FILE_LINES, FUNCTION_LINES, MIN_TABLE_ENTRIES, POSITIONAL_ARGUMENTS

VAGUE_NAMES = frozenset({"common", "helper", "helpers", "misc", "util", "utils"})

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FORMATTER = re.compile(r"#\s*fmt:\s*(skip|off)\b")


def size_problems(source: str) -> list[str]:
    """Return files, functions and signatures that are too long."""
    problems = []
    if (lines := source.count("\n")) > FILE_LINES:
        problems.append(f"1: {lines} lines, {FILE_LINES} at most")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            problems += _function_problems(node)
    return problems


def formatter_problems(source: str) -> list[str]:
    """Return the comments that switch the formatter off for anything other than a table (see `_is_table`)."""
    if not _FORMATTER.search(source):
        return []
    tree = ast.parse(source)
    return [
        f"{line}: `fmt: {word}` is for literal tables; let the formatter lay this out"
        for line, word in formatter_switches(source)
        if not _is_table(_switched(tree, line, word))
    ]


def formatter_switches(source: str) -> list[tuple[int, str]]:
    """Return the line number of each `fmt: skip` or `fmt: off` comment, with the word `skip` or `off`."""
    if not _FORMATTER.search(source):
        return []  # Most files have no such comment, and tokenizing is slow.
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = ((token.start[0], _FORMATTER.search(token.string)) for token in tokens if token.type == tokenize.COMMENT)
    return [(line, found[1]) for line, found in comments if found]


def name_problems(path: PurePath) -> list[str]:
    """Return modules and packages with meaningless names."""
    return [f"1: {part} says nothing" for part in (*path.parts[:-1], path.stem) if part.strip("_") in VAGUE_NAMES]


def marker_problems(text: str) -> list[str]:
    """Return leftover notes such as to-do comments."""
    marker = re.compile(r"\b(TODO|FIXME|XXX)\b")
    return [f"{number}: {found[0]}" for number, line in _lines(text) if (found := marker.search(line))]


def await_problems(source: str) -> list[str]:
    """Return the awaits of an operation that belong neither to its transaction nor to another operation.

    SQLite runs an operation to its end without suspending it. That works only if everything the operation awaits
    belongs to its transaction.
    """
    module = ast.parse(source)
    operations = _operation_names(module)
    return [
        f"{awaited.lineno}: awaits `{ast.unparse(awaited)}`, which is not rooted at tx"
        for awaited in _awaited(module)
        if not _is_transaction(awaited) and not _is_operation_on_tx(awaited, operations)
    ]


def foreign_problems(text: str) -> list[str]:
    """Return text that works only on one machine or with one package index, such as its paths or host names."""
    # The host names are put together from parts, because this file would otherwise break its own rule.
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


def _is_table(statement: ast.stmt | None) -> bool:
    """Return True for an assignment whose value is written as a table.

    A table is a collection of at least MIN_TABLE_ENTRIES entries, or a record assigned to a constant of the module.
    """
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    match statement.value:
        case ast.Dict(values=entries) | ast.List(elts=entries) | ast.Tuple(elts=entries) | ast.Set(elts=entries):
            return len(entries) >= MIN_TABLE_ENTRIES
        case ast.Call(args=[ast.Set(elts=entries) | ast.List(elts=entries) | ast.Tuple(elts=entries)]):
            return len(entries) >= MIN_TABLE_ENTRIES
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name[:1].isupper() and statement.col_offset == 0
    return False


def _switched(tree: ast.Module, line: int, word: str) -> ast.stmt | None:
    """Return the statement that a comment exempts from the formatter.

    A `skip` comment exempts the statement that ends on its line; an `off` comment exempts the next statement.
    """
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    if word == "skip":
        # Of the statements that end on this line, the innermost one begins last.
        ending = [statement for statement in statements if statement.end_lineno == line]
        return max(ending, key=lambda statement: statement.lineno, default=None)
    later = [statement for statement in statements if statement.lineno > line]
    return min(later, key=lambda statement: statement.lineno, default=None)


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
    """Return the names that the module defines, and those it imports from flowfabric.ops."""
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
            match function:
                case ast.Attribute(value=ast.Name(id="self") | ast.Call(func=ast.Name(id="super")), attr=method):
                    return method in operations
            return _root(function) in operations
    return False


def _root(node: ast.expr) -> str | None:
    """Return the name at the start of an expression such as `a.b(c)[d].e`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner):
            return _root(inner)
    return None


# Only reserved words are listed, because other keywords may also name a column or a common table expression.
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
    """A word or a sign with its line number."""

    kind: str
    text: str
    line: int


def sql_problems(source: str) -> list[str]:
    """Return SQL keywords in lower case, `*` in place of columns, and LIMIT without ORDER BY."""
    tokens = list(_sql_tokens(source))
    return [*_keyword_problems(tokens), *_star_problems(tokens), *_limit_problems(tokens)]


def _sql_tokens(source: str) -> Iterator[Token]:
    """Yield the words and signs of SQL text. Yield `;` for a comment at the start of a line, which ends a statement."""
    for match in _SQL_TOKEN.finditer(source):
        begins_line = match.start() == 0 or source[match.start() - 1] == "\n"
        line = source.count("\n", 0, match.start()) + 1
        if match.lastgroup in ("word", "sign"):
            yield Token(match.lastgroup, match[0], line)
        elif match.lastgroup == "comment" and begins_line:
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
    """Yield each LIMIT without ORDER BY.

    Check each pair of brackets separately, because the order of a subquery does not order the outer query.
    """
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
