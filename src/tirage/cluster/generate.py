"""`generate`: the texts of a file's or a dataset's prompts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirage.cluster.input_file import PART_LINES, InputFile, Part
from tirage.cluster.output_folder import OutputFolder
from tirage.cluster.worker import FinishedPart, Worker, given_fields
from tirage.errors import ParamsError
from tirage.llm import LLM
from tirage.params import SamplingParams
from tirage.server.replay import model_info_of, own_version

_VERSION = 1
OUTPUTS = ("jsonl", "parquet")
Run = Callable[[Iterator[Part], Callable[[], None]], Iterable[FinishedPart]]
"""What answers parts: it is given them, and what to call after every row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A finished run: the rows that it answered, the lines of parts that were done before, and the rows that failed."""

    rows: int
    earlier: int
    failed: int


def generate(
    source: str | Path,
    params: SamplingParams | None = None,
    *,
    out: str | Path,
    model: str | Path | LLM = "tiny",
    output: str = "jsonl",
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> Summary:
    """What became of the rows of a file; their results are in the folder `out`.

    `source` is JSON lines `{"id", "prompt" or "messages", "params"}`, the same as Parquet, or OpenAI's batch format.
    `params` hold for every row, and a row's own add to them. A row without a seed gets one that follows from its id and
    the seed of `params` (`seed_of`), so that a rerun, or one interrupted anywhere and started again, gives the same
    files. A row that fails is in `out/errors` with its line, and the rest is done. `output` is "jsonl" or "parquet".
    `model` is an `LLM` or what it is made of, with its `options`. `progress` is called after every row with the number
    of rows done and of lines that were to do.

    Raises ParamsError for a file that cannot be read, and a folder that belongs to another run; ModelError for the
    model; OSError when the folder cannot be written, after which the same call goes on.
    """
    file = InputFile(Path(source))
    if output not in OUTPUTS:
        raise ParamsError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}")
    llm = model if isinstance(model, LLM) else LLM(model, **options)
    try:
        with OutputFolder(Path(out), described(file, params, llm, output), parquet=output == "parquet") as folder:
            worker = Worker(llm, params)
            return write_all(folder, file, worker.run, progress)
    finally:
        if llm is not model:
            llm.close()


def write_all(folder: OutputFolder, file: InputFile, run: Run, progress: Callable[[int, int], None]) -> Summary:
    """Runs the parts of a file that are not done yet, and writes each as it finishes."""
    done = {index for index in range(file.part_count) if folder.is_done(index)}
    earlier = sum(file.lines_of(index) for index in done)
    counted = itertools.count(1)
    rows = 0
    todo = (part for part in file.parts() if part.index not in done)
    for part in run(todo, lambda: progress(next(counted), file.count - earlier)):
        folder.write(part.index, part.results, part.errors)
        rows += part.rows
    failed = sum(1 for _ in folder.failed_rows())
    return Summary(rows=rows, earlier=earlier, failed=failed)


def described(file: InputFile, params: SamplingParams | None, llm: LLM, output: str) -> Mapping[str, Any]:
    """What two runs must have in common for their parts to belong together."""
    info = model_info_of(llm, "" if llm.folder is None else llm.folder.name)
    return {
        "version": _VERSION,
        "tirage": own_version(),
        "input": {"sha256": file.digest, "lines": file.count, "lines_of_a_part": PART_LINES},
        "model": {"name": info.name, "fingerprint": info.fingerprint},
        "params": {} if params is None else given_fields(params),
        "output": output,
    }
