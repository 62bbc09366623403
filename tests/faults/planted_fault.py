"""A planted fault: the edits in the sources, and the test that must find it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """A text replacement in a file of the package.

    It replaces every occurrence, or only the first one after the text `after`.
    """

    file: str
    text: str
    other: str
    after: str = ""

    def apply(self, source: Path) -> None:
        """Change the file.

        Raise an error if the text is missing, because the planted fault must then be adapted to the new code.
        """
        path = source / "flowfabric" / self.file
        before, mark, behind = path.read_text().partition(self.after) if self.after else ("", "", path.read_text())
        if self.text not in behind:
            raise LookupError(f"{self.file} no longer contains {self.text!r}")
        path.write_text(before + mark + behind.replace(self.text, self.other, 1 if self.after else -1))


class PlantedFault:
    """A fault: the test that finds it and the edits that plant it."""

    def __init__(self, name: str, test: str, *edits: Edit) -> None:
        self.name = name
        self.test = test
        self.edits = edits
