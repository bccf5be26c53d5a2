"""The folder of a run's results: a file for each part of the input, written whole or not at all.

An interrupted run goes on where it stopped: parts whose file is there are done. Since the rows' seeds follow from their
ids, the files are those of a run that was never interrupted, byte for byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tirage.errors import ParamsError
from tirage.fields.rules import shown

RUN_FILE = "run.json"
ERRORS = "errors"
_TEMPORARY = ".tmp"
_AS_JSON = ("logprobs", "kept", "prompt_logprobs", "response")


class OutputFolder:
    """The folder of one run, which `described` identifies; a folder of another run is refused.

    `PART.jsonl` or `PART.parquet` holds the results of a part, `errors/PART.jsonl` its rows that failed. One process
    may write at a time. Raises ParamsError for a folder that holds anything else, or in which another run writes.
    """

    def __init__(self, path: Path, described: Mapping[str, Any], *, parquet: bool = False) -> None:
        self.path, self._suffix = path, ".parquet" if parquet else ".jsonl"
        for each in (path, path / ERRORS):
            if each.exists() and not each.is_dir():
                raise ParamsError(f"out must be a folder, with one for errors, got the file {each}; take another name")
        path.mkdir(parents=True, exist_ok=True)
        (path / ERRORS).mkdir(exist_ok=True)
        self._lock = self._locked()
        try:
            self._check_run(json.loads(json.dumps(described)))
            for left in path.rglob(f"*{_TEMPORARY}"):
                left.unlink()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _locked(self) -> int:
        """The descriptor of a lock that ends with the process, however that ends."""
        lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ParamsError(f"out must be a folder in which no other run writes, got {self.path}") from None
        return lock

    def _check_run(self, described: Mapping[str, Any]) -> None:
        file = self.path / RUN_FILE
        if not file.exists():
            if any(self.path.glob("*.jsonl")) or any(self.path.glob("*.parquet")):
                raise ParamsError(f"out must be a new folder or one of an interrupted run, got {self.path}")
            write_whole(file, json.dumps(described, indent=1).encode() + b"\n")
            return
        before = read_json(file)
        if not isinstance(before, dict):
            raise ParamsError(
                f"{file} must be what a run wrote, a JSON object, got {shown(before)}; take another folder"
            )
        for name in sorted({*before, *described}):
            if before.get(name) != described.get(name):
                raise ParamsError(
                    f"out must be a folder of the same run, got {self.path}, whose {name} differs; take another folder"
                )

    def is_done(self, part: int) -> bool:
        """Whether the results of a part are there."""
        return self._file(part).exists()

    def write(self, part: int, results: Sequence[Mapping[str, Any]], errors: Sequence[Mapping[str, Any]]) -> None:
        """Writes a part's rows, the results last: they say that the part is done. OSError when there is no room."""
        if errors:
            write_whole(self.path / ERRORS / f"part-{part:06d}.jsonl", json_lines(errors))
        write_whole(self._file(part), json_lines(results) if self._suffix == ".jsonl" else parquet_table(results))

    def _file(self, part: int) -> Path:
        return self.path / f"part-{part:06d}{self._suffix}"

    def failed_rows(self) -> Iterator[Mapping[str, Any]]:
        """The rows of all parts that failed, each with its `line`, `id` and `error`, in order."""
        for file in sorted((self.path / ERRORS).glob("*.jsonl")):
            with file.open("rb") as lines:
                yield from (read_json(file, line) for line in lines)


def read_json(file: Path, line: bytes | None = None) -> Any:
    """The JSON value of a file of a run, or of a line of it. Raises ParamsError for one that no run wrote."""
    try:
        return json.loads(file.read_bytes() if line is None else line)
    except (ValueError, RecursionError) as error:
        raise ParamsError(
            f"{file} must be JSON as a run wrote it, got other text ({error}); take another folder"
        ) from None


def write_whole(file: Path, content: bytes) -> None:
    """Writes a file so that it is there with all of its content or not at all, also after a loss of power."""
    temporary = file.with_name(f".{file.name}{_TEMPORARY}")
    try:
        with temporary.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as lines of strict JSON."""
    return b"".join(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n" for row in rows)


def parquet_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as a Parquet file, with the columns of `table_of`."""
    import io

    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(table_of(rows), out)
    return out.getvalue()


def table_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a table of pyarrow. Ids are texts; logprobs, and answers in OpenAI's form, are texts of JSON."""
    import pyarrow

    whole, text = pyarrow.int32(), pyarrow.string()
    schema = pyarrow.schema([
        ("id", text),
        ("index", whole),
        ("text", text),
        ("token_ids", pyarrow.list_(whole)),
        ("finish_reason", text),
        ("seed", pyarrow.int64()),
        *((name, text) for name in (*_AS_JSON, "error")),
    ])
    return pyarrow.Table.from_pylist([columns_of(row) for row in rows], schema=schema)


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of results as columns of a table."""
    found = {**row, "id": str(row.get("custom_id", row["id"])), "index": row.get("index", 0)}
    for name in _AS_JSON:
        if name in found:
            found[name] = json.dumps(found[name], ensure_ascii=False, allow_nan=False)
    return found
