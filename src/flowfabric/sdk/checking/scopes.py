"""What the names of a module stand for, as far as its text alone can tell: imports, functions, and assigned values.

Nothing is imported. A name that is bound in more than one way stands for nothing, so that nothing is said about it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_CLOSED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(eq=False, slots=True)
class Scope:
    """The names of a module or a function, and the scope around it."""

    parent: Scope | None
    functions: dict[str, Function] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    annotations: dict[str, ast.expr] = field(default_factory=dict)

    def find(self, name: str) -> Function | str | Bound | None:
        """A function, the origin of an import, or what was assigned; None for a name that is not bound here."""
        found: list[Function | str | Bound] = []
        if name in self.functions:
            found.append(self.functions[name])
        if name in self.imports:
            found.append(self.imports[name])
        if name in self.values or name in self.annotations:
            found.append(Bound(tuple(self.values.get(name, ())), self.annotations.get(name), self))
        if found:
            return found[0] if len(found) == 1 else Bound((None,), None, self)
        return None if self.parent is None else self.parent.find(name)


@dataclass(frozen=True, slots=True)
class Bound:
    """The values that a name was given, None for those that tell nothing, its annotation, and where that was."""

    values: tuple[ast.expr | None, ...]
    annotation: ast.expr | None
    scope: Scope


@dataclass(eq=False, slots=True)
class Function:
    """A function of the module, with the names inside it."""

    node: FunctionNode
    outer: Scope
    scope: Scope

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_async(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def is_plain(self) -> bool:
        """True without decorators: calling it runs its body, as far as can be told."""
        return not self.node.decorator_list


@dataclass(frozen=True, slots=True)
class Module:
    """The names of a module, and all of its functions wherever they are."""

    scope: Scope
    functions: tuple[Function, ...]


def read_module(tree: ast.Module) -> Module:
    """What the names of a module stand for."""
    functions: list[Function] = []
    scope = Scope(None)
    _fill(scope, tree.body, functions)
    return Module(scope, tuple(functions))


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes that run when these do: functions and lambdas that are only defined there are not entered."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _CLOSED):
            waiting.extend(list(ast.iter_child_nodes(node))[::-1])


def _fill(scope: Scope, body: Iterable[ast.AST], functions: list[Function]) -> None:
    told: set[int] = set()
    for node in own_nodes(body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.functions[node.name] = _function(node, scope, functions)
            case ast.ClassDef():
                scope.values.setdefault(node.name, []).append(None)
                # What is defined in a class is not found by its plain name.
                _fill(Scope(scope), node.body, functions)
            case ast.Import() | ast.ImportFrom():
                scope.imports.update(_imported(node))
            case ast.Assign(targets=[ast.Name() as target], value=value) | ast.NamedExpr(target=target, value=value):
                scope.values.setdefault(target.id, []).append(value)
                told.add(id(target))
            case ast.withitem(context_expr=value, optional_vars=ast.Name() as target):
                scope.values.setdefault(target.id, []).append(value)
                told.add(id(target))
            case ast.AnnAssign(target=ast.Name() as target, annotation=annotation, value=assigned):
                scope.annotations[target.id] = annotation
                scope.values.setdefault(target.id, []).extend([] if assigned is None else [assigned])
                told.add(id(target))
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in told:
                scope.values.setdefault(name, []).append(None)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.values.setdefault(name, []).append(None)


def _function(node: FunctionNode, outer: Scope, functions: list[Function]) -> Function:
    inner = Scope(outer)
    for argument in all_arguments(node):
        inner.values[argument.arg] = [None]
        if argument.annotation is not None:
            inner.annotations[argument.arg] = argument.annotation
    found = Function(node, outer, inner)
    functions.append(found)
    _fill(inner, node.body, functions)
    return found


def all_arguments(node: FunctionNode) -> list[ast.arg]:
    """Every parameter of a function."""
    arguments = node.args
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.ImportFrom):
        origin = "." * node.level + (node.module or "")
        return {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    # `import a.b` binds `a`; `import a.b as c` binds `c` to all of it.
    return {
        alias.asname or _root(alias.name): alias.name if alias.asname else _root(alias.name) for alias in node.names
    }


def _root(name: str) -> str:
    return name.partition(".")[0]
