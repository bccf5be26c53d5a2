"""The rows of a file, JSON lines or Parquet, in parts of a fixed number of lines."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tirage.errors import ParamsError, TirageError
from tirage.server import strict_json

PART_LINES = 256
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Successive lines of the input: the part's index, and each line's number, from 1, with its bytes."""

    index: int
    lines: tuple[tuple[int, bytes], ...]


class InputFile:
    """A file of rows. `digest` is that of its bytes, `count` the number of its lines.

    A name that ends in `.parquet` is read with pyarrow: columns `id`, `prompt` or `messages`, and `params`, a struct or
    a text of JSON; anything else as JSON lines, of which empty ones are skipped. Raises ParamsError when it cannot be
    read, here or where the rows are asked for, and for a table that has two columns of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parquet = path.suffix == ".parquet"
        if path.exists() and not (path.is_file() or path.is_dir()):
            # A pipe would be empty when its rows are read.
            raise ParamsError(f"input must be a file, which is read several times, got {path}; write its rows to one")
        try:
            self.digest, newlines = _digest(path)
            self.count = _parquet(path).metadata.num_rows if self._parquet else newlines
            if self._parquet:
                _check_columns(path)
        except OSError as error:
            raise ParamsError(f"input must be a readable file, got {path}: {error.strerror or error}") from error

    def parts(self) -> Iterator[Part]:
        """All parts, in order, read as they are asked for; the same for the same file.

        Raises ParamsError where the file has not the number of rows that it had, or that its metadata declare.
        """
        rows = self._parquet_rows() if self._parquet else self._json_lines()
        numbered = ((number, line) for number, line in enumerate(rows, 1))
        for index in range(self.part_count):
            lines = tuple(islice(numbered, PART_LINES))
            if len(lines) != self.lines_of(index):
                raise self._of_another_length()
            yield Part(index, tuple((number, line) for number, line in lines if line.strip()))
        if next(numbered, None) is not None:
            raise self._of_another_length()

    def _of_another_length(self) -> ParamsError:
        what = "metadata declare" if self._parquet else "count was when it was opened"
        return ParamsError(f"input must have as many rows as its {what}, {self.count}, got others in {self.path}")

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return -(-self.count // PART_LINES)

    def lines_of(self, index: int) -> int:
        """The number of lines of a part, empty ones included."""
        return min(PART_LINES, self.count - index * PART_LINES)

    def _json_lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from file

    def _parquet_rows(self) -> Iterator[bytes]:
        batches = _parquet(self.path).iter_batches(batch_size=PART_LINES)
        while (rows := self._next_rows(batches)) is not None:
            yield from map(as_line, rows)

    def _next_rows(self, batches: Iterator[Any]) -> list[dict[str, Any]] | None:
        """The rows of the next batch, None after the last; ParamsError for a damaged one, or values out of range."""
        from pyarrow import ArrowException

        try:
            batch = next(batches, None)
            return None if batch is None else batch.to_pylist()
        except (ArrowException, OSError, ValueError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise ParamsError(f"input must be a Parquet file that can be read, got {self.path}: {reason}") from error


def as_line(row: dict[str, Any]) -> bytes:
    """A row of a table as a line of JSON: columns without a value are left out, also those of a struct of parameters.

    Parameters may be a text of JSON, as strict as a line of JSON is. What JSON cannot hold, bytes among it, becomes an
    object with its type and text, which the row's rules then refuse.
    """
    given = {name: value for name, value in row.items() if value is not None}
    params = given.get("params")
    if isinstance(params, str):
        # A text that is no such JSON stays a text, which the row's rules refuse.
        with contextlib.suppress(ParamsError):
            given["params"] = strict_json.parse(params.encode("utf-8", "surrogatepass"))
    elif isinstance(params, dict):
        given["params"] = {name: value for name, value in params.items() if value is not None}
    return json.dumps(given, default=_as_object).encode()


def _as_object(value: Any) -> dict[str, str]:
    """A value that JSON cannot hold, in a form that no prompt, id or parameter has."""
    return {type(value).__name__: str(value)}


def _digest(path: Path) -> tuple[str, int]:
    """The SHA-256 of a file, and its number of lines."""
    found, lines, last = hashlib.sha256(), 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return found.hexdigest(), lines + (last != b"\n")


def _check_columns(path: Path) -> None:
    """Raises ParamsError for two columns of one name, of which a row could have only one."""
    names = Counter(_parquet(path).schema_arrow.names)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ParamsError(f"input must name each column once, got {twice!r:.60} twice in {path}; take one away")


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise TirageError("Parquet needs the package 'pyarrow'; run: pip install 'tirage[parquet]'") from error
    try:
        return ParquetFile(path)
    except (ArrowException, ValueError) as error:
        raise ParamsError(f"input must be a Parquet file, got {path}: {error}") from error
