#!/usr/bin/env python3
"""Writes the sync face from the async one: the same words, with the value in the place of something to await.

usage: python tools/generate_sync.py [--check]

    sdk/sync_client.py   views of App, Task, Handle, Flow and FlowHandle for plain code: `task.sync.submit(…)`
    sync/calls.py        durable calls for tasks that are plain functions: `sync.step(…)`

A signature is copied with its `Durable[X]` as `X`, and an `Awaitable[T]` among its arguments as `Callable[[], T]`. The
body only hands the call over to the async one. With `--check` nothing is written, and the exit code says whether the
files are as they would be.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "flowfabric"
RUFF = Path(sys.executable).with_name("ruff")

# Which classes have views, from which module, and which of their public words are left out.
VIEWS = {
    "Handle": ("handles", {"app", "sync"}),
    "Task": ("tasks", {"sync", "result_form", "newest", "submission", "submission_of", "call"}),
    "FlowHandle": ("flows", {"sync"}),
    "Flow": ("flows", {"sync", "add", "after", "first", "quorum"}),
    "App": ("app", {"sync", "task", "run", "worker", "flow", "asgi", "check", "engine", "store"}),
}
ARTICLES = {
    "Handle": "a handle", "Task": "a task", "FlowHandle": "the handle of a flow", "Flow": "a flow", "App": "an app",
}  # fmt: skip
GENERIC = {"Handle": "Generic[R_co]", "Task": "Generic[P, R]"}
# What a view does in another way than by awaiting the verb elsewhere.
BODIES = {
    ("Task", "submit"): "return Handle(submit_here(self._inner, args, kwargs))",
    ("Task", "continue_with"): "bridge.answer(lambda: self._inner.continue_with(*args, **kwargs))",
}

# The functions of durable calls, by module; the classes that they answer with; words that are the same in both faces.
CALLS = {
    "sleeping": ("sleep", "sleep_until", "poll"),
    "waits": ("wait_signal", "wait_for"),
    "approvals": ("approval", "callback"),
    "groups": ("gather", "settle", "race"),
    "ambient": ("now", "uuid4", "rng", "changed", "progress"),
}
WAITS = {"Approval": "approvals", "Callback": "approvals"}

CLIENT_HEAD = '''"""The verbs of the client for plain code. Written by tools/generate_sync.py; change what it reads."""

from flowfabric.sdk import bridge
from flowfabric.sdk.client_thread import wait_for
from flowfabric.sdk.submitting import submit_here
'''

CALLS_HEAD = '''"""Durable calls for plain functions. Written by tools/generate_sync.py; change what it reads."""

from flowfabric.sdk import ambient, approvals, bridge, groups, sleeping, steps, waits
'''


def client() -> str:
    """The module of views."""
    sources = {module: _parsed(module) for module, _ in VIEWS.values()}
    nodes: list[ast.stmt] = []
    for name, (module, left_out) in VIEWS.items():
        nodes.append(_view(_class(sources[module], name), left_out))
    imports = [*_imports(sources.values(), without=set(VIEWS)), *_inner_imports()]
    return _text(CLIENT_HEAD, imports, nodes)


def calls() -> str:
    """The module of durable calls."""
    modules = [*CALLS, "steps"]
    sources = {module: _parsed(module) for module in modules}
    nodes: list[ast.stmt] = [_waiting(_class(sources[module], name)) for name, module in WAITS.items()]
    nodes += [_steps(_class(sources["steps"], "Steps")), *ast.parse("step = Steps(steps.step)").body]
    for module, names in CALLS.items():
        for name in names:
            nodes += _functions(sources[module], module, name)
    own = {*WAITS, "Steps", "step", *(name for names in CALLS.values() for name in names)}
    type_variables = [
        node
        for source in sources.values()
        for node in source.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _named(node.value.func) == "TypeVar"
    ]
    aliases = ast.parse("from typing import Generic\nfrom flowfabric.sdk.approvals import Ends, Notify").body
    return _text(CALLS_HEAD, [*_imports(sources.values(), without=own), *aliases], [*_unique(type_variables), *nodes])


def _view(source: ast.ClassDef, left_out: set[str]) -> ast.ClassDef:
    name = source.name
    generic = GENERIC.get(name)
    inner = generic.replace("Generic", f"Async{name}") if generic else f"Async{name}"
    head = f'''
class {name}{f"({generic})" if generic else ""}:
    """What `.sync` of {ARTICLES[name]} is: the same verbs, each of which waits and answers the value."""

    def __init__(self, inner: {inner}) -> None:
        self._inner = inner
'''
    made = ast.parse(head).body[0]
    assert isinstance(made, ast.ClassDef), "a class was written"
    if name in ("Handle", "FlowHandle"):
        made.body += ast.parse('@property\ndef id(self) -> UUID:\n    """The id."""\n    return self._inner.id').body
    for method in _methods(source):
        if method.name not in left_out and (not method.name.startswith("_") or method.name == "__getitem__"):
            made.body.append(_verb(name, method))
    if any(method.name == "__repr__" for method in _methods(source)):
        made.body += ast.parse("def __repr__(self) -> str:\n    return repr(self._inner)").body
    return made


def _verb(owner: str, method: ast.FunctionDef) -> ast.FunctionDef:
    verb = _copied(method)
    if _is_overload(method):
        return verb
    awaited = _is_durable(method.returns)
    handed = f"self._inner.{method.name}({_forwarded(method)})"
    if method.name == "__getitem__":
        handed = "self._inner[node]"
    found = f"wait_for({_thunk(handed)})" if awaited else handed
    body = BODIES.get((owner, method.name), f"return {_wrapped(verb.returns, found)}")
    verb.body = [*_docstring(method), *ast.parse(body).body]
    return verb


def _wrapped(returns: ast.expr | None, found: str) -> str:
    """What the async verb answers, as views where it has one."""
    text = ast.unparse(returns) if returns else ""
    for name in ("Handle", "FlowHandle", "Task"):
        if text == name or text.startswith(f"{name}["):
            return f"{name}({found})"
        if text.startswith(f"list[{name}["):
            return f"[{name}(item) for item in {found}]"
    return found


def _functions(source: ast.Module, module: str, name: str) -> Iterator[ast.FunctionDef]:
    group = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == name]
    durable = any(_is_durable(node.returns) for node in group)
    for node in group:
        made = _copied(node)
        if not _is_overload(node):
            # No overload takes what all of them take together.
            untyped, verb = (f"make: Any = {module}.{name}\n", "make") if len(group) > 1 else ("", f"{module}.{name}")
            found, kind = _thunk(f"{verb}({_forwarded(node)})"), _answer_class(group)
            answer = f"{kind}(bridge.answer({found}))" if kind else f"bridge.{'call' if durable else 'answer'}({found})"
            body = f"{untyped}return {answer}"
            made.body = [*_docstring(node), *ast.parse(body).body]
        yield made


def _answer_class(group: Sequence[ast.FunctionDef]) -> str | None:
    """The class with a face before the wait that these functions answer with, if they do."""
    for node in group:
        if isinstance(node.returns, ast.Subscript) and _named(node.returns.value) in WAITS:
            return _named(node.returns.value)
    return None


def _waiting(source: ast.ClassDef) -> ast.ClassDef:
    name, module = source.name, WAITS[source.name]
    text = f'''
class {name}(Generic[R_co]):
    """{ast.get_docstring(source, clean=False)}"""

    def __init__(self, inner: {module}.{name}[R_co]) -> None:
        self._inner = inner

    def wait(self) -> R_co:
        """Waits for the outcome."""
        outcome: R_co = bridge.call(lambda: self._inner)
        return outcome
'''
    made = ast.parse(text.replace("await it", "`wait`")).body[0]
    assert isinstance(made, ast.ClassDef), "a class was written"
    for method in _methods(source):
        if _is_durable(method.returns) and not method.name.startswith("_"):
            verb = _copied(method)
            found = f"return bridge.call({_thunk(f'self._inner.{method.name}({_forwarded(method)})')})"
            verb.body = [*_docstring(method), *ast.parse(found).body]
            made.body.append(verb)
    return made


def _steps(source: ast.ClassDef) -> ast.ClassDef:
    text = f'''
class Steps:
    """{ast.get_docstring(source, clean=False)}"""

    def __init__(self, inner: steps.Steps) -> None:
        self._inner = inner
'''
    made = ast.parse(text).body[0]
    assert isinstance(made, ast.ClassDef), "a class was written"
    for method in _methods(source):
        if method.name.startswith("_") and method.name != "__call__":
            continue
        verb = _copied(method)
        if not _is_overload(method):
            handed = f"self._inner{'' if method.name == '__call__' else '.' + method.name}({_forwarded(method)})"
            body = f"return bridge.call(lambda: {handed})"
            if method.name == "options":
                body = f"return Steps({handed})"
            elif method.name == "policy":
                body = f"return {handed}"
            verb.body = [*_docstring(method), *ast.parse(body).body]
        made.body.append(verb)
    return made


class _Plain(ast.NodeTransformer):
    """Annotations without what is awaited."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if _named(node.value) == "Durable":
            return node.slice
        if _named(node.value) == "Awaitable":
            return ast.parse(f"Callable[[], {ast.unparse(node.slice)}]", mode="eval").body
        return node


def _copied(function: ast.FunctionDef) -> ast.FunctionDef:
    made = deepcopy(function)
    made.args = _Plain().visit(made.args)
    made.returns = _Plain().visit(made.returns) if made.returns else None
    return made


def _thunk(call: str) -> str:
    """A function without arguments that makes the call."""
    return call.removesuffix("()") if call.endswith("()") else f"lambda: {call}"


def _forwarded(function: ast.FunctionDef) -> str:
    """The arguments of a function as it hands them on."""
    given = function.args
    positional = (*given.posonlyargs, *given.args)
    found = [_handed(argument, argument.arg) for argument in positional if argument.arg != "self"]
    if given.vararg:
        is_branch = _is_awaitable(given.vararg)
        name = given.vararg.arg
        found.append(f"*(bridge.branch(call) for call in {name})" if is_branch else f"*{name}")
    found += [f"{argument.arg}={argument.arg}" for argument in given.kwonlyargs]
    if given.kwarg:
        found.append(f"**{given.kwarg.arg}")
    return ", ".join(found)


def _handed(argument: ast.arg, name: str) -> str:
    return f"bridge.branch({name})" if _is_awaitable(argument) else name


def _is_awaitable(argument: ast.arg) -> bool:
    note = argument.annotation
    return isinstance(note, ast.Subscript) and _named(note.value) == "Awaitable"


def _is_durable(returns: ast.expr | None) -> bool:
    return isinstance(returns, ast.Subscript) and _named(returns.value) == "Durable"


def _is_overload(function: ast.FunctionDef) -> bool:
    return any(_named(decorator) == "overload" for decorator in function.decorator_list)


def _named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _docstring(function: ast.FunctionDef) -> list[ast.stmt]:
    first = function.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return [first] if is_text else []


def _methods(source: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in source.body if isinstance(node, ast.FunctionDef)]


def _class(source: ast.Module, name: str) -> ast.ClassDef:
    [found] = [node for node in source.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def _imports(sources: Iterable[ast.Module], without: set[str]) -> Iterator[ast.ImportFrom]:
    """What the sources import, of which ruff removes what is not used; the names of views mean the views."""
    for source in sources:
        for node in ast.walk(source):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                names = [alias for alias in node.names if alias.name not in without and alias.asname is None]
                if names:
                    yield ast.ImportFrom(node.module, names, node.level)


def _inner_imports() -> Iterator[ast.stmt]:
    for name, (module, _) in VIEWS.items():
        yield from ast.parse(f"from flowfabric.sdk.{module} import {name} as Async{name}").body
    yield from ast.parse("from flowfabric.sdk.handles import Status").body
    yield from ast.parse("from flowfabric.sdk.flows import Node").body
    yield from ast.parse("from typing import Generic, NoReturn").body


def _unique(nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
    return list({ast.unparse(node): node for node in nodes}.values())


def _text(head: str, imports: Sequence[ast.stmt], nodes: Sequence[ast.stmt]) -> str:
    documentation, _, rest = head.partition('"""\n\n')
    parts = [f'{documentation}"""', "from __future__ import annotations", rest]
    parts += [ast.unparse(ast.fix_missing_locations(node)) for node in _unique([*imports])]
    parts += [ast.unparse(ast.fix_missing_locations(node)) for node in nodes]
    # Sorted after what is not used is gone, or lines stay broken that have become short.
    used = _ruff("\n\n".join(parts) + "\n", "check", "--fix-only", "--quiet", "--select", "F401")
    return _ruff(_ruff(used, "check", "--fix-only", "--quiet", "--select", "I"), "format")


def _ruff(text: str, *command: str) -> str:
    place = str(PACKAGE / "sync" / "generated.py")
    words = [str(RUFF), *command, "--stdin-filename", place, "-"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / "sdk" / f"{module}.py").read_text())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


FILES = {PACKAGE / "sdk" / "sync_client.py": client, PACKAGE / "sync" / "calls.py": calls}


def main(arguments: list[str]) -> int:
    stale = [path for path, write in FILES.items() if not path.exists() or path.read_text() != write()]
    for path in stale:
        if "--check" in arguments:
            _say(f"{path.relative_to(ROOT)} is not what tools/generate_sync.py writes; run it")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(FILES[path]())
            _say(f"wrote {path.relative_to(ROOT)}")
    return int("--check" in arguments and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
