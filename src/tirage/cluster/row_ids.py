"""The ids of a file's rows, which must differ, since the rows' seeds follow from them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator

import numpy as np

from tirage.cluster.input_file import InputFile
from tirage.errors import ParamsError
from tirage.fields.rules import shown


def check_ids(file: InputFile) -> None:
    """Raises ParamsError, which names both lines, when two rows have one id; an integer and its digits are one.

    Lines that are no rows are left for the run to report. Sixteen bytes are kept for each line.
    """
    hashes, numbers = array("q"), array("q")
    for number, row_id in row_ids(file):
        hashes.append(hash(row_id))
        numbers.append(number)
    values, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    twice = values[counts > 1]
    if len(twice):
        at = np.isin(np.frombuffer(hashes, np.int64), twice)
        check_lines(file, set(np.frombuffer(numbers, np.int64)[at].tolist()))


def check_lines(file: InputFile, suspects: set[int]) -> None:
    """Raises ParamsError when two of these lines have one id, and not only one hash."""
    first: dict[str, int] = {}
    for number, row_id in row_ids(file):
        if number in suspects and first.setdefault(row_id, number) != number:
            raise ParamsError(
                f"id must be different for each row, got {shown(row_id)} on lines {first[row_id]} and {number}; "
                "the row's seed follows from it"
            )


def row_ids(file: InputFile) -> Iterator[tuple[int, str]]:
    """The number of each line that has an id, and the id as a text."""
    for part in file.parts():
        for number, line in part.lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                found = row.get("custom_id", row.get("id"))
                if isinstance(found, (str, int)) and not isinstance(found, bool):
                    yield number, str(found)
