"""A driver for tests of the append job: one table, its source files and runs of the job in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.append_rows import EMPTY, HEADER, ROWS


@dataclass
class AppendDriver:
    """The append job on one table, and a source file with rows for it."""

    table: Path
    source: Path
    append: Callable[..., Any]
    csv: Callable[..., Path]
    read: Callable[..., list[tuple[Any, ...]]]
    copy: Callable[..., Path]

    @classmethod
    def create(cls, request: pytest.FixtureRequest) -> Self:
        """Return a driver for a path without a table."""
        append, csv, read, copy = map(request.getfixturevalue, ("append", "csv_file", "rows_of", "copy_of"))
        folder: Path = request.getfixturevalue("tmp_path")
        return cls(folder / "table", csv("source.csv", HEADER, ROWS), append, csv, read, copy)

    @property
    def uri(self) -> str:
        return f"file:{self.table}"

    def create_table(self, statement: str = EMPTY) -> None:
        """Create the table by a SQL statement; the default creates an empty table."""
        self.copy(statement, to=self.table.name)

    def run(self, *arguments: object, **options: Any) -> Any:
        """Run the job on the table; return exit code, output lines and error text."""
        return self.append("--table", self.table, *map(str, arguments), **options)

    def succeed(self, *arguments: object, **options: Any) -> Any:
        """Run the job, and check that it ends without an error."""
        outcome = self.run(*arguments, **options)
        assert (outcome.code, outcome.error) == (0, "")
        return outcome

    def refuse(self, code: int, message: str, *arguments: object, **options: Any) -> Any:
        """Run the job; check that it fails with this exit code and an error that contains this message."""
        outcome = self.run(*arguments, **options)
        assert outcome.code == code, outcome.error
        assert message in outcome.error
        return outcome

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return self.read(self.table, *columns)

    def version_count(self) -> int:
        """Return the number of version files."""
        return len(list(self.table.glob("_delta_log/*.json")))
