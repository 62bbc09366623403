"""Named SQL statements, loaded from `.sql` files and put into a backend's dialect.

A file holds `-- name: …` blocks and `-- fragment: …` blocks; `{fragment}` is replaced by the latter. A hot batch is
bound as arrays on PostgreSQL, sent as text, and as the rows of `item (…) AS (VALUES :items)` on SQLite. Shared
statements over rows give their columns types, `item (id UUID, …) AS (VALUES :items)`: PostgreSQL takes all rows as one
JSON document, so that several such statements can be one (`together`). Three more things differ between the backends
and are written only once:

    ff.execution        "schema".execution     or  ff_execution
    id IN :ids          id = ANY($1)           or  id IN (SELECT value FROM json_each(:ids))
    FOR NO KEY UPDATE   as it is               or  nothing, since there is one writer; FOR SHARE alike
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
_UNNEST = re.compile(r"\bunnest\([^()]*\)")
# Bytes are left to the driver: as text they would be twice as long.
_ARRAY = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)::(TEXT|UUID|BIGINT|INTEGER|BOOLEAN|TIMESTAMPTZ)\[\]")
_NUMBER = re.compile(r"\$(\d+)")
_ITEM = re.compile(r"\bitem\b")
_SET = re.compile(r"^    (\w+) = item\.\1\b", re.MULTILINE)
_LAST_SET = re.compile(r",\nFROM item\b")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """One SQL statement in the words of its database, with the names of its parameters in order: those of each item,
    if it is a statement over the rows of a batch. `rows` and `body` are the halves of one over a JSON document. `kinds`
    says of each parameter of what it is an array that is bound as text."""

    text: str
    parameters: tuple[str, ...]
    rows: str = ""
    body: str = ""
    kinds: tuple[str | None, ...] = ()

    def over(self, rows: int) -> str:
        """The text of a statement over a batch, with room for that many rows."""
        return _over(self, rows)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement; a script of several goes on only if its first part returned a row."""

    name: str
    parts: tuple[Part, ...]
    text: str = ""
    dialect: Dialect | None = None

    def over(self, names: Iterable[str]) -> Part:
        """The statement over rows that have these columns: an update sets no others."""
        [part] = self.parts
        given = frozenset(names)
        return part if given.issuperset(part.parameters) else _setting(self, given)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a backend writes tables and parameters."""

    table_prefix: str
    numbered: bool

    def translate(self, text: str) -> Part:
        """The statement in this dialect."""
        text = _TABLE.sub(lambda match: f"{self.table_prefix}{match[1]}", _COMMENT.sub("", text)).strip()
        if not self.numbered:
            listed = r"\1IN (SELECT value FROM json_each(:\2))"
            text = _IN_LIST.sub(lambda match: match.expand(listed).replace("None", ""), _ROW_LOCK.sub("", text))
            items = _ITEMS.search(text)
            if items is None:
                return Part(text, tuple(dict.fromkeys(_PARAMETER.findall(text))))
            names = tuple(name for name, _ in _item_columns(items[1]))
            return Part(_ITEMS.sub(f"item ({', '.join(names)}) AS (VALUES :items)", text), names)
        items = _ITEMS.search(text)
        if items is not None:
            return _over_document(text, items)
        text = _IN_LIST.sub(lambda match: f"<> ALL(:{match[2]})" if match[1] else f"= ANY(:{match[2]})", text)
        # Elsewhere an array may be looked into for every row, and would be read as often.
        kinds = {name: kind for rows in _UNNEST.findall(text) for name, kind in _ARRAY.findall(rows)}
        text = _UNNEST.sub(lambda rows: _ARRAY.sub(r":\1::TEXT::\2[]", rows[0]), text)
        names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        numbers = {name: str(number) for number, name in enumerate(names, start=1)}
        numbered = _PARAMETER.sub(lambda match: "$" + numbers[match[1]], text)
        return Part(numbered, names, kinds=tuple(kinds.get(name) for name in names))


def load(dialect: Dialect, backend_package: str) -> Mapping[str, Statement]:
    """All statements of a backend: the shared ones, and its own, which win over shared ones of the same name."""
    return _Statements(dialect, _texts(backend_package))


class _Statements(Mapping[str, Statement]):
    """Statements by name, each put into the dialect when it is first asked for: an engine that is opened needs few."""

    def __init__(self, dialect: Dialect, texts: Mapping[str, str]) -> None:
        self._dialect = dialect
        self._texts = texts
        self._found: dict[str, Statement] = {}

    def __getitem__(self, name: str) -> Statement:
        found = self._found.get(name)
        if found is None:
            text = self._texts[name]
            parts = tuple(self._dialect.translate(piece) for piece in split_script(text))
            found = self._found[name] = Statement(name, parts, text, self._dialect)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@cache
def _texts(backend_package: str) -> Mapping[str, str]:
    """The statements by name with their fragments filled in, read once."""
    blocks = read_blocks("flowfabric.sqlstore") | read_blocks(backend_package)
    fragments = {name: text for (kind, name), text in blocks.items() if kind == "fragment"}
    fragments = {name: _filled(text, fragments) for name, text in fragments.items()}
    return {name: _filled(text, fragments) for (kind, name), text in blocks.items() if kind == "name"}


def read_blocks(package: str) -> dict[tuple[str, str], str]:
    """The `name` and `fragment` blocks of a package's `sql` folder."""
    blocks: dict[tuple[str, str], str] = {}
    for file in sorted((files(package) / "sql").iterdir(), key=lambda item: item.name):
        pieces = _BLOCK.split(file.read_text(encoding="utf-8"))
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            assert (kind, name) not in blocks, f"{name} stands twice in the statements of {package}"
            blocks[kind, name] = text
    return blocks


def split_script(text: str) -> list[str]:
    """The statements of a script, which end with a semicolon at the end of a line."""
    return [piece for piece in re.split(r";\s*(?:\n|$)", _COMMENT.sub("", text)) if piece.strip()]


@cache
def together(parts: tuple[Part, ...]) -> str:
    """One PostgreSQL statement that runs several over a JSON document each and counts the rows that each returned.

    They see the same snapshot and run in no order, so none may depend on what another writes.
    """
    tables: list[str] = []
    for number, part in enumerate(parts, start=1):
        rows, body = (_ITEM.sub(f"item_{number}", half).replace("$1", f"${number}") for half in (part.rows, part.body))
        tables += [rows, f"written_{number} AS (\n{body}\n)"]
    counts = [f"(SELECT COUNT(*) FROM written_{number})" for number in range(1, len(parts) + 1)]
    return f"WITH {', '.join(tables)}\nSELECT ARRAY[{', '.join(counts)}] AS written"


@cache
def together_if_held(first: tuple[tuple[str, Part], ...], parts: tuple[Part, ...]) -> str:
    """The same behind statements of which the one called `held` answers ids of executions: nothing else is written. The
    parameters of the first ones come before the documents."""
    texts = _numbered_on(part for _, part in first)
    tables = [f"{title} AS MATERIALIZED (\n{text}\n)" for (title, _), text in zip(first, texts, strict=True)]
    before = sum(len(part.parameters) for _, part in first)
    for number, part in enumerate(parts, start=1):
        rows = _ITEM.sub(f"given_{number}", part.rows).replace("$1", f"${before + number}")
        # Not a plain IN, which would be joined row by row.
        among = f"WHERE (given_{number}.execution_id IN (SELECT held.id FROM held)) IS TRUE"
        body = _ITEM.sub(f"item_{number}", part.body)
        tables += [rows, f"item_{number} AS MATERIALIZED (\nSELECT *\nFROM given_{number}\n{among}\n)"]
        tables += [f"written_{number} AS (\n{body}\n)"]
    counts = [f"(SELECT COUNT(*) FROM written_{number})" for number in range(1, len(parts) + 1)]
    answers = f"ARRAY(SELECT held.id FROM held) AS held, ARRAY[{', '.join(counts)}]::BIGINT[] AS written"
    return f"WITH {', '.join(tables)}\nSELECT {answers}"


@cache
def _setting(statement: Statement, names: frozenset[str]) -> Part:
    """An update that sets only what it is given."""
    assert statement.dialect is not None, "a statement that was loaded has a dialect"
    left_out = {name for name in _SET.findall(statement.text) if name not in names}
    lines = [line for line in statement.text.splitlines() if not (found := _SET.match(line)) or found[1] in names]
    text = _LAST_SET.sub("\nFROM item", "\n".join(lines))
    items = _ITEMS.search(text)
    assert items is not None, f"{statement.name} is not a statement over rows"
    kept = [f"{name} {kind}" for name, kind in _item_columns(items[1]) if name not in left_out]
    return statement.dialect.translate(text.replace(items[1], ", ".join(kept)))


@cache
def reading(parts: tuple[Part, ...]) -> str:
    """One PostgreSQL statement that answers the rows of several as a JSON array each."""
    arrays = [f"(\nSELECT json_agg(found)\nFROM (\n{text}\n) AS found\n)" for text in _numbered_on(parts)]
    return f"SELECT {', '.join(arrays)}"


@cache
def writing(parts: tuple[Part, ...]) -> str:
    """One PostgreSQL statement that runs several that answer nothing, in no order."""
    tables = [f"written_{number} AS (\n{text}\n)" for number, text in enumerate(_numbered_on(parts), start=1)]
    return f"WITH {', '.join(tables)}\nSELECT 1"


def _numbered_on(parts: Iterable[Part]) -> list[str]:
    """The texts with the parameters of each numbered on from those of the one before."""
    texts, before = [], 0
    for part in parts:
        pieces = _NUMBER.split(part.text)
        numbers = [f"${int(number) + before}" for number in pieces[1::2]]
        texts.append("".join(piece for pair in zip(pieces[::2], [*numbers, ""], strict=True) for piece in pair))
        before += len(part.parameters)
    return texts


def _over_document(text: str, items: re.Match[str]) -> Part:
    """A statement whose items are the objects of a JSON array; what is JSON itself comes as text."""
    typed = _item_columns(items[1])
    shown = ", ".join(f"item.{name}::JSONB AS {name}" if kind == "JSONB" else f"item.{name}" for name, kind in typed)
    declared = ", ".join(f"{name} {'TEXT' if kind == 'JSONB' else kind}" for name, kind in typed)
    rows = f"item AS (\nSELECT {shown}\nFROM json_to_recordset($1::JSON) AS item ({declared}){_few(*typed[0])}\n)"
    body = text[items.end() :].strip()
    return Part(f"WITH {rows}\n{body}", tuple(name for name, _ in typed), rows, body)


def _few(name: str, kind: str) -> str:
    """The planner expects a hundred rows of any document, and would rather read whole tables than look each row up by
    its id; behind a range of ids, here that of all ids, it expects one."""
    first, last = (f"'{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}'::UUID" for digit in "0f")
    return f"\nWHERE item.{name} BETWEEN {first} AND {last}" if kind == "UUID" else ""


def _item_columns(declared: str) -> list[tuple[str, str]]:
    columns = (column.split() for column in declared.split(","))
    return [(column[0], " ".join(column[1:])) for column in columns]


@cache
def _over(part: Part, rows: int) -> str:
    row = f"({', '.join('?' * len(part.parameters))})"
    return part.text.replace(":items", ", ".join([row] * rows))


def _filled(text: str, fragments: Mapping[str, str]) -> str:
    for name, fragment in fragments.items():
        text = text.replace("{" + name + "}", _COMMENT.sub("", fragment).strip())
    return text


def columns(items: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """A batch of items turned into one list per parameter; it is empty if all are null, as `unnest` fills it up."""
    lists = {key: [item[key] for item in items] for key in items[0]}
    return {key: [] if values[0] is None and not _any(values) else values for key, values in lists.items()}


def _any(values: Sequence[object]) -> bool:
    return any(value is not None for value in values)
