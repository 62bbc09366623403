"""The names of a module, read from its source: imports, functions and assigned values.

No code is imported. A name that is bound in more than one way resolves to an unknown value, so no rule reports it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_NESTED_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(eq=False, slots=True)
class PythonScope:
    """The names of a module or function, and the enclosing scope."""

    parent: PythonScope | None
    functions: dict[str, Function] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    annotations: dict[str, ast.expr] = field(default_factory=dict)

    def find(self, name: str) -> Function | str | BoundName | None:
        """Return the bindings of a name: a function, an import or assignments.

        Return None if the name is not bound.
        """
        bindings: list[Function | str | BoundName] = []
        if name in self.functions:
            bindings.append(self.functions[name])
        if name in self.imports:
            bindings.append(self.imports[name])
        if name in self.values or name in self.annotations:
            bindings.append(BoundName(tuple(self.values.get(name, ())), self.annotations.get(name), self))
        if bindings:
            return bindings[0] if len(bindings) == 1 else BoundName((None,), None, self)
        return None if self.parent is None else self.parent.find(name)


@dataclass(frozen=True, slots=True)
class BoundName:
    """The values assigned to a name (None if unknown), its annotation, and its scope."""

    values: tuple[ast.expr | None, ...]
    annotation: ast.expr | None
    scope: PythonScope


@dataclass(eq=False, slots=True)
class Function:
    """A function of the module, with its outer and inner scope."""

    node: FunctionNode
    outer: PythonScope
    scope: PythonScope

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_async(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def is_plain(self) -> bool:
        """True if the function has no decorators, so that a call certainly runs its body."""
        return not self.node.decorator_list


@dataclass(frozen=True, slots=True)
class Module:
    """The scope of a module, and all of its functions, nested ones included."""

    scope: PythonScope
    functions: tuple[Function, ...]


def read_module(tree: ast.Module) -> Module:
    """Return the names and functions of a module."""
    functions: list[Function] = []
    scope = PythonScope(None)
    _add_names(scope, tree.body, functions)
    return Module(scope, tuple(functions))


def walk_own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield these nodes and all nodes in them, without the bodies of nested functions, lambdas and classes."""
    pending = list(nodes)[::-1]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _NESTED_SCOPES):
            pending.extend(list(ast.iter_child_nodes(node))[::-1])


def _add_names(scope: PythonScope, body: Iterable[ast.AST], functions: list[Function]) -> None:
    handled: set[int] = set()
    for node in walk_own_nodes(body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.functions[node.name] = _add_function(node, scope, functions)
            case ast.ClassDef():
                scope.values.setdefault(node.name, []).append(None)
                # Names that a class body defines are not visible outside the class by their plain name.
                _add_names(PythonScope(scope), node.body, functions)
            case ast.Import() | ast.ImportFrom():
                scope.imports.update(_read_import(node))
            case ast.Assign(targets=[ast.Name() as target], value=value) | ast.NamedExpr(target=target, value=value):
                scope.values.setdefault(target.id, []).append(value)
                handled.add(id(target))
            case ast.withitem(context_expr=value, optional_vars=ast.Name() as target):
                scope.values.setdefault(target.id, []).append(value)
                handled.add(id(target))
            case ast.AnnAssign(target=ast.Name() as target, annotation=annotation, value=assigned):
                scope.annotations[target.id] = annotation
                scope.values.setdefault(target.id, []).extend([] if assigned is None else [assigned])
                handled.add(id(target))
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in handled:
                scope.values.setdefault(name, []).append(None)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.values.setdefault(name, []).append(None)


def _add_function(node: FunctionNode, outer: PythonScope, functions: list[Function]) -> Function:
    inner = PythonScope(outer)
    for argument in all_parameters(node):
        inner.values[argument.arg] = [None]
        if argument.annotation is not None:
            inner.annotations[argument.arg] = argument.annotation
    function = Function(node, outer, inner)
    functions.append(function)
    _add_names(inner, node.body, functions)
    return function


def all_parameters(node: FunctionNode) -> list[ast.arg]:
    """Return every parameter of a function."""
    arguments = node.args
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def _read_import(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.ImportFrom):
        origin = "." * node.level + (node.module or "")
        return {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    # `import a.b` binds `a`. `import a.b as c` binds `c` to `a.b`.
    return {
        alias.asname or _root(alias.name): alias.name if alias.asname else _root(alias.name) for alias in node.names
    }


def _root(name: str) -> str:
    return name.partition(".")[0]
