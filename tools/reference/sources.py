"""Read error codes, messages and event names from the sources without running them.

An argument of a call can be a string, a conditional expression, a table look-up, or a parameter of the enclosing
function. `words` finds the possible strings in all these cases. For other expressions it returns an empty set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "flowfabric"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A call with its module and the enclosing functions and classes, innermost last."""

    call: ast.Call
    module: ast.Module
    around: tuple[ast.AST, ...]

    @property
    def name(self) -> str:
        """The last part of the name that is called, such as `path` in `call.path()`."""
        match self.call.func:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name
        return ""

    @property
    def function(self) -> Function | None:
        """The innermost function around the call."""
        found = [node for node in self.around if isinstance(node, Function)]
        return found[-1] if found else None

    @property
    def owner(self) -> ast.ClassDef | None:
        """The innermost class around the call."""
        found = [node for node in self.around if isinstance(node, ast.ClassDef)]
        return found[-1] if found else None


@cache
def places() -> tuple[Place, ...]:
    """Return every call in the package."""
    return tuple(place for path in sorted(PACKAGE.rglob("*.py")) for place in _places(ast.parse(path.read_text())))


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return the argument with this keyword, or else the argument at this position, or else None."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if position < len(call.args) else None


def words(expression: ast.expr | None, place: Place) -> set[str]:
    """Return all strings that the expression can evaluate to."""
    match expression:
        case ast.Constant(value=str(word)):
            return {word}
        case ast.IfExp(body=one, orelse=other):
            return words(one, place) | words(other, place)
        case ast.Name(id=name):
            return _named(name, place)
        case ast.Subscript(value=ast.Name(id=table)):
            return _table(table, place)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="get"), args=[_, *default]):
            return _table(table, place).union(*(words(item, place) for item in default))
    return set()


def texts(expression: ast.expr | None, place: Place) -> list[str]:
    """Return all messages that the expression can evaluate to, with {placeholders} for inserted values."""
    match expression:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(_part(part) for part in parts)]
        case ast.IfExp(body=one, orelse=other):
            return texts(one, place) + texts(other, place)
        case ast.Name(id=name):
            return [text for value in _assigned(name, place) for text in texts(value, place)]
        case ast.Call(func=ast.Name(id="_prefix_path"), args=[_, said]):
            return [f"{{path}}: {text}" for text in texts(said, place)]
    return []


def filled_in(place: Place, name: str) -> Iterator[tuple[Place, ast.expr]]:
    """Yield each call of the enclosing function, with the argument that it passes for the parameter `name`."""
    function = place.function
    if function is None:
        return
    parameters = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    if name not in (*parameters, *(item.arg for item in function.args.kwonlyargs)):
        return
    called = place.owner.name if function.name == "__init__" and place.owner else function.name
    skipped = 1 if parameters[:1] == ["self"] else 0
    position = parameters.index(name) - skipped if name in parameters else 10_000
    for caller in _calls_of(called):
        found = argument(caller.call, position, name)
        if found is not None:
            yield caller, found


def default_of(place: Place, name: str) -> ast.expr | None:
    """Return the default value of the keyword parameter `name` of the enclosing function."""
    function = place.function
    if function is None:
        return None
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return next((default for parameter, default in pairs if parameter.arg == name), None)


def advice_beside(word: str, place: Place) -> str | None:
    """Return the last text of the table row that contains `word`, if the call's arguments come from such a table."""
    for _, rows in _unpackings(place):
        for row in rows:
            said = [item.value for item in row.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
            if word in said[:-1]:
                return said[-1]
    return None


@cache
def _calls_of(name: str) -> tuple[Place, ...]:
    return tuple(place for place in places() if place.name == name)


def _places(module: ast.Module) -> Iterator[Place]:
    def walk(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[Place]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield Place(child, module, around)
            inner = (*around, child) if isinstance(child, (*Function.__args__, ast.ClassDef)) else around
            yield from walk(child, inner)

    yield from walk(module, ())


def _named(name: str, place: Place) -> set[str]:
    found = {word for value in _assigned(name, place) for word in words(value, place)}
    for caller, value in filled_in(place, name):
        found |= words(value, caller)
    return found | words(default_of(place, name), place) | _unpacked(name, place)


def _assigned(name: str, place: Place) -> list[ast.expr]:
    """Return the last value assigned to a name in the enclosing function before the call, or else in the module."""
    scopes: tuple[ast.AST | None, ...] = (place.function, place.module)
    for scope in scopes:
        if scope is None:
            continue
        found = [
            node
            for node in (ast.walk(scope) if isinstance(scope, Function.__args__) else ast.iter_child_nodes(scope))
            if isinstance(node, ast.Assign)
            and _is_name(node.targets[0], name)
            and (scope is place.module or node.lineno <= place.call.lineno)
        ]
        if found:
            last = max(found, key=lambda node: node.lineno)
            return [last.value]
    return []


def _table(name: str, place: Place) -> set[str]:
    return {
        item.value
        for value in _assigned(name, place)
        if isinstance(value, ast.Dict)
        for entry in value.values
        for item in (entry.elts if isinstance(entry, ast.Tuple) else [entry])[:1]
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    }


def _unpacked(name: str, place: Place) -> set[str]:
    """Return the possible values of a name that a loop or a look-up unpacks from table rows."""
    for target, rows in _unpackings(place):
        names = [item.id if isinstance(item, ast.Name) else "" for item in target.elts]
        if name in names:
            cells = [row.elts[names.index(name)] for row in rows if len(row.elts) == len(names)]
            return {cell.value for cell in cells if isinstance(cell, ast.Constant) and isinstance(cell.value, str)}
    return set()


def _unpackings(place: Place) -> Iterator[tuple[ast.Tuple, list[ast.Tuple]]]:
    for node in ast.walk(place.function) if place.function else ():
        match node:
            case ast.For(target=ast.Tuple() as target, iter=ast.Name(id=table)):
                yield target, _rows(table, place)
            case ast.Assign(
                targets=[ast.Tuple() as target], value=ast.Call(func=ast.Attribute(value=ast.Name(id=table)))
            ):
                default = [item for item in node.value.args if isinstance(item, ast.Tuple)]  # type: ignore[attr-defined]
                yield target, _rows(table, place) + default


def _looked_up(call: ast.Call, place: Place) -> list[ast.Tuple]:
    match call.func:
        case ast.Attribute(value=ast.Name(id=table), attr="get"):
            return _rows(table, place) + [item for item in call.args if isinstance(item, ast.Tuple)]
    return []


def _rows(name: str, place: Place) -> list[ast.Tuple]:
    rows: list[ast.Tuple] = []
    for node in place.module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                rows += _tuples(value)
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                rows += _tuples(value)
    return rows


def _tuples(value: ast.expr) -> list[ast.Tuple]:
    items: Iterable[ast.expr] = ()
    match value:
        case ast.Dict(values=entries):
            items = entries
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            items = entries
    return [item for item in items if isinstance(item, ast.Tuple)]


def _part(part: ast.expr) -> str:
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=value):
            return f"{{{_short(value)}}}"
    return ""


def _short(value: ast.expr) -> str:
    """Return a placeholder for an expression.

    It is the last part of the first dotted name, such as `path` for `call.path`. Wrappers such as `len` are skipped.
    """
    names = [
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute | ast.Name)
    ]
    plain = [name for name in names if name not in ("shown", "limits", "self", "len", "type", "str", "join")]
    return (plain or ["…"])[0].strip("_").lower()


def _is_name(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name
