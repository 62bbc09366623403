"""Named SQL statements, loaded from `.sql` files and translated into a backend's dialect.

A file contains `-- name: …` and `-- fragment: …` blocks. `{fragment}` is replaced by the text of that fragment.

A hot statement receives a batch as arrays on PostgreSQL, and as the rows of `item (…) AS (VALUES :items)` on SQLite.
A shared statement over rows also declares column types: `item (id UUID, …) AS (VALUES :items)`. PostgreSQL receives its
rows as one JSON document, so that `combine_batches` can combine several statements into one.

Three more differences are translated. Each line shows the shared SQL, the PostgreSQL form and the SQLite form:

    ff.execution        "schema".execution     or  ff_execution
    id IN :ids          id = ANY($1)           or  id IN (SELECT value FROM json_each(:ids))
    FOR NO KEY UPDATE   unchanged              or  removed, like FOR SHARE, since SQLite has one writer
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_TABLE = re.compile(r"\bff\.(\w+)")
_IN_LIST = re.compile(r"\b(NOT )?IN :(\w+)")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_ROW_LOCK = re.compile(r"\s*\bFOR (?:NO KEY UPDATE|SHARE)\b[\w ]*")
_ITEMS = re.compile(r"\bitem \(([^)]*)\) AS \(\s*VALUES :items\s*\)")
_NUMBER = re.compile(r"\$(\d+)")
_ITEM = re.compile(r"\bitem\b")
_SET = re.compile(r"^    (\w+) = item\.\1\b", re.MULTILINE)
_LAST_SET = re.compile(r",\nFROM item\b")
# A fragment may contain a fragment that contains another one.
_FRAGMENT_DEPTH = 2
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """One translated SQL statement with the names of its parameters in order.

    If the statement works on a batch of rows, its parameters are the columns of each row. If the rows come as a JSON
    document, `rows` is the SQL that unpacks the document, and `body` is the rest of the statement.
    """

    text: str
    parameters: tuple[str, ...]
    rows: str = ""
    body: str = ""

    def over(self, rows: int) -> str:
        """Return the text of a statement over a batch of `rows` rows."""
        return _repeat_rows(self, rows)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement. If it has several parts, the later parts run only if the first part returns a row."""

    name: str
    parts: tuple[Part, ...]
    text: str = ""
    dialect: Dialect | None = None

    def over(self, names: Iterable[str]) -> Part:
        """Return the statement for rows that have only these columns. If it is an update, it sets no other columns."""
        [part] = self.parts
        columns = frozenset(names)
        return part if columns.issuperset(part.parameters) else _restrict_update(self, columns)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a backend writes tables and parameters."""

    table_prefix: str
    numbered: bool
    # Texts that this server does not accept, and what to write instead.
    replacements: tuple[tuple[str, str], ...] = ()

    def translate(self, text: str) -> Part:
        """Return the statement in this dialect."""
        for old, new in self.replacements:
            text = text.replace(old, new)
        text = _TABLE.sub(lambda match: f"{self.table_prefix}{match[1]}", _COMMENT.sub("", text)).strip()
        if not self.numbered:
            json_list = r"\1IN (SELECT value FROM json_each(:\2))"
            text = _IN_LIST.sub(lambda match: match.expand(json_list).replace("None", ""), _ROW_LOCK.sub("", text))
            items = _ITEMS.search(text)
            if items is None:
                return Part(text, tuple(dict.fromkeys(_PARAMETER.findall(text))))
            names = tuple(name for name, _ in _item_columns(items[1]))
            return Part(_ITEMS.sub(f"item ({', '.join(names)}) AS (VALUES :items)", text), names)
        items = _ITEMS.search(text)
        if items is not None:
            return _translate_batch(text, items)
        text = _IN_LIST.sub(lambda match: f"<> ALL(:{match[2]})" if match[1] else f"= ANY(:{match[2]})", text)
        names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        numbers = {name: str(number) for number, name in enumerate(names, start=1)}
        numbered = _PARAMETER.sub(lambda match: "$" + numbers[match[1]], text)
        return Part(numbered, names)


@cache
def load_statements(dialect: Dialect, backend_package: str) -> Mapping[str, Statement]:
    """Return all statements of a backend. The backend's own statements replace shared statements of the same name."""
    return _Statements(dialect, _read_statements(backend_package))


class _Statements(Mapping[str, Statement]):
    """Statements by name. Each is translated on first use, because an engine needs only a few when it opens."""

    def __init__(self, dialect: Dialect, texts: Mapping[str, str]) -> None:
        self._dialect = dialect
        self._texts = texts
        self._found: dict[str, Statement] = {}

    def __getitem__(self, name: str) -> Statement:
        statement = self._found.get(name)
        if statement is None:
            text = self._texts[name]
            parts = tuple(self._dialect.translate(piece) for piece in split_script(text))
            statement = self._found[name] = Statement(name, parts, text, self._dialect)
        return statement

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@cache
def _read_statements(backend_package: str) -> Mapping[str, str]:
    """Return the statements by name with their fragments filled in."""
    blocks = read_blocks("flowfabric.store") | read_blocks(backend_package)
    fragments = {name: text for (kind, name), text in blocks.items() if kind == "fragment"}
    for _ in range(_FRAGMENT_DEPTH):
        fragments = {name: _fill_fragments(text, fragments) for name, text in fragments.items()}
    return {name: _fill_fragments(text, fragments) for (kind, name), text in blocks.items() if kind == "name"}


def read_blocks(package: str) -> dict[tuple[str, str], str]:
    """Return the `name` and `fragment` blocks of a package's `sql` folder."""
    blocks: dict[tuple[str, str], str] = {}
    for file in sorted((files(package) / "sql").iterdir(), key=lambda item: item.name):
        pieces = _BLOCK.split(file.read_text(encoding="utf-8"))
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            assert (kind, name) not in blocks, f"{package} defines the statement {name} twice"
            blocks[kind, name] = text
    return blocks


def split_script(text: str) -> list[str]:
    """Return the statements of a script, which end with a semicolon at the end of a line."""
    return [piece for piece in re.split(r";\s*(?:\n|$)", _COMMENT.sub("", text)) if piece.strip()]


@cache
def combine_batches(parts: tuple[Part, ...]) -> str:
    """Return one PostgreSQL statement that runs several statements over JSON documents and counts the rows of each.

    The statements see the same snapshot and run in no fixed order, so none may depend on what another one writes.
    """
    tables: list[str] = []
    for number, part in enumerate(parts, start=1):
        rows, body = (_ITEM.sub(f"item_{number}", half).replace("$1", f"${number}") for half in (part.rows, part.body))
        tables += [rows, f"written_{number} AS (\n{body}\n)"]
    counts = [f"(SELECT COUNT(*) FROM written_{number})" for number in range(1, len(parts) + 1)]
    return f"WITH {', '.join(tables)}\nSELECT ARRAY[{', '.join(counts)}] AS written"


@cache
def combine_batches_if_held(first: Part, parts: tuple[Part, ...]) -> str:
    """Return one PostgreSQL statement that writes only rows of executions whose ids `first` returns.

    Its parameters are the parameters of `first`, and then one JSON document for each of `parts`.
    """
    tables = [f"held AS MATERIALIZED (\n{first.text}\n)"]
    before = len(first.parameters)
    for number, part in enumerate(parts, start=1):
        rows = _ITEM.sub(f"given_{number}", part.rows).replace("$1", f"${before + number}")
        # PostgreSQL would plan a plain IN as a join that works row by row.
        condition = f"WHERE (given_{number}.execution_id IN (SELECT held.id FROM held)) IS TRUE"
        body = _ITEM.sub(f"item_{number}", part.body)
        tables += [rows, f"item_{number} AS MATERIALIZED (\nSELECT *\nFROM given_{number}\n{condition}\n)"]
        tables += [f"written_{number} AS (\n{body}\n)"]
    counts = [f"(SELECT COUNT(*) FROM written_{number})" for number in range(1, len(parts) + 1)]
    selected = f"ARRAY(SELECT held.id FROM held) AS held, ARRAY[{', '.join(counts)}]::BIGINT[] AS written"
    return f"WITH {', '.join(tables)}\nSELECT {selected}"


@cache
def _restrict_update(statement: Statement, names: frozenset[str]) -> Part:
    """Return the update statement without assignments to columns that are not in `names`."""
    assert statement.dialect is not None, "load_statements sets the dialect"
    left_out = {name for name in _SET.findall(statement.text) if name not in names}
    lines = [line for line in statement.text.splitlines() if not (match := _SET.match(line)) or match[1] in names]
    text = _LAST_SET.sub("\nFROM item", "\n".join(lines))
    items = _ITEMS.search(text)
    assert items is not None, f"{statement.name} has no item rows"
    kept_columns = [f"{name} {kind}" for name, kind in _item_columns(items[1]) if name not in left_out]
    return statement.dialect.translate(text.replace(items[1], ", ".join(kept_columns)))


@cache
def combine_reads(parts: tuple[Part, ...]) -> str:
    """Return one PostgreSQL statement that returns the rows of several statements, each as a JSON array."""
    arrays = [f"(\nSELECT json_agg(found)\nFROM (\n{text}\n) AS found\n)" for text in _renumber(parts)]
    return f"SELECT {', '.join(arrays)}"


@cache
def combine_writes(parts: tuple[Part, ...]) -> str:
    """Return one PostgreSQL statement that runs several statements in no fixed order and returns none of their rows."""
    tables = [f"written_{number} AS (\n{text}\n)" for number, text in enumerate(_renumber(parts), start=1)]
    return f"WITH {', '.join(tables)}\nSELECT 1"


def _renumber(parts: Iterable[Part]) -> list[str]:
    """Return the texts of several statements, with all parameters numbered from `$1` upward across the statements."""
    texts, before = [], 0
    for part in parts:
        pieces = _NUMBER.split(part.text)
        numbers = [f"${int(number) + before}" for number in pieces[1::2]]
        texts.append("".join(piece for pair in zip(pieces[::2], [*numbers, ""], strict=True) for piece in pair))
        before += len(part.parameters)
    return texts


def _translate_batch(text: str, items: re.Match[str]) -> Part:
    """Return a statement whose items are the objects of a JSON array. JSON columns arrive as text."""
    typed = _item_columns(items[1])
    selected = ", ".join(f"item.{name}::JSONB AS {name}" if kind == "JSONB" else f"item.{name}" for name, kind in typed)
    declared = ", ".join(f"{name} {'TEXT' if kind == 'JSONB' else kind}" for name, kind in typed)
    source = f"json_to_recordset($1::JSON) AS item ({declared}){_one_row_hint(*typed[0])}"
    rows = f"item AS (\nSELECT {selected}\nFROM {source}\n)"
    body = text[items.end() :].strip()
    return Part(f"WITH {rows}\n{body}", tuple(name for name, _ in typed), rows, body)


def _one_row_hint(name: str, kind: str) -> str:
    """Return a condition that makes the planner expect one row.

    Without the condition, the planner expects a hundred rows in any JSON document, and would read whole tables instead
    of using indexes. With a condition on a range of ids, it expects one row. The range used here includes all ids.
    """
    first, last = (f"'{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}'::UUID" for digit in "0f")
    return f"\nWHERE item.{name} BETWEEN {first} AND {last}" if kind == "UUID" else ""


def _item_columns(declared: str) -> list[tuple[str, str]]:
    columns = (column.split() for column in declared.split(","))
    return [(column[0], " ".join(column[1:])) for column in columns]


@cache
def _repeat_rows(part: Part, rows: int) -> str:
    row = f"({', '.join('?' * len(part.parameters))})"
    return part.text.replace(":items", ", ".join([row] * rows))


def _fill_fragments(text: str, fragments: Mapping[str, str]) -> str:
    for name, fragment in fragments.items():
        text = text.replace("{" + name + "}", _COMMENT.sub("", fragment).strip())
    return text


def to_columns(items: Sequence[Mapping[str, object]]) -> dict[str, Sequence[object]]:
    """Return one column per parameter."""
    return {key: to_column([item[key] for item in items]) for key in items[0]}


def to_column(values: Sequence[object]) -> Sequence[object]:
    """Return the values of one parameter. A column of only nulls becomes empty, because `unnest` fills in nulls."""
    return [] if values[0] is None and all(value is None for value in values) else values
