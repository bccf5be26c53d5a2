"""The rows of a file, JSON lines or Parquet, in parts of a fixed number of lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tirage.errors import ParamsError, TirageError

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
    read.
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
        except OSError as error:
            raise ParamsError(f"input must be a readable file, got {path}: {error.strerror or error}") from error

    def parts(self) -> Iterator[Part]:
        """All parts, in order, read as they are asked for; the same for the same file."""
        rows = self._parquet_rows() if self._parquet else self._json_lines()
        numbered = ((number, line) for number, line in enumerate(rows, 1))
        for index in range(self.part_count):
            lines = islice(numbered, PART_LINES)
            yield Part(index, tuple((number, line) for number, line in lines if line.strip()))

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
        for batch in _parquet(self.path).iter_batches(batch_size=PART_LINES):
            yield from map(as_line, batch.to_pylist())


def as_line(row: dict[str, Any]) -> bytes:
    """A row of a table as a line of JSON: columns without a value are left out, also those of a struct of parameters.

    Parameters may be a text of JSON. What JSON cannot hold becomes text, which the row's rules then refuse.
    """
    given = {name: value for name, value in row.items() if value is not None}
    params = given.get("params")
    if isinstance(params, str):
        try:
            given["params"] = json.loads(params)
        except ValueError:
            return json.dumps(given, default=str).encode()
    elif isinstance(params, dict):
        given["params"] = {name: value for name, value in params.items() if value is not None}
    return json.dumps(given, default=str).encode()


def _digest(path: Path) -> tuple[str, int]:
    """The SHA-256 of a file, and its number of lines."""
    found, lines, last = hashlib.sha256(), 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return found.hexdigest(), lines + (last != b"\n")


def _parquet(path: Path) -> Any:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise TirageError("Parquet needs the package 'pyarrow'; run: pip install 'tirage[parquet]'") from error
    try:
        return ParquetFile(path)
    except ValueError as error:
        raise ParamsError(f"input must be a Parquet file, got {path}: {error}") from error
