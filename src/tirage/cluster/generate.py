"""`generate`: the texts of a file's or a dataset's prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

from tirage.cluster.input_file import PART_LINES, InputFile, Part
from tirage.cluster.output_folder import OutputFolder
from tirage.cluster.ray_workers import Cluster, WorkerSetup, mapped, part_workers
from tirage.cluster.row_ids import check_ids
from tirage.cluster.worker import FinishedPart, RowCounter, Worker, given_fields
from tirage.errors import ModelError, ParamsError
from tirage.llm import LLM, is_address
from tirage.params import SamplingParams
from tirage.server.replay import own_version

_VERSION = 2
OUTPUTS = ("jsonl", "parquet")
Run = Callable[[Iterator[Part], RowCounter], Iterable[FinishedPart]]
"""What answers parts: it is given them, and what counts their rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A finished run: the rows that it answered, the lines of parts that were done before, and the rows that failed."""

    rows: int
    earlier: int
    failed: int


class RowDataset(Protocol):
    """A dataset of rows, such as `ray.data.Dataset`."""

    def map_batches(self, fn: Any, **options: Any) -> Any:
        """The dataset of what `fn` makes of the rows."""
        ...


@overload
def generate(
    source: str | Path,
    params: SamplingParams | None = None,
    *,
    out: str | Path,
    model: str | Path | LLM = "tiny",
    output: str = "jsonl",
    progress: Callable[[float, int], None] = lambda done, total: None,
    cluster: Cluster | None = None,
    **options: Any,
) -> Summary: ...


@overload
def generate(
    source: RowDataset,
    params: SamplingParams | None = None,
    *,
    model: str | Path = "tiny",
    cluster: Cluster | None = None,
    **options: Any,
) -> Any: ...


def generate(source: Any, params: SamplingParams | None = None, **given: Any) -> Any:
    """What became of the rows of a file, whose results are in the folder `out`; of a Ray dataset, that of its results.

    A file is JSON lines `{"id", "prompt" or "messages", "params"}`, the same as Parquet, or OpenAI's batch format; no
    two rows have one id. `params` hold for every row, and a row's own add to them. A row without a seed gets one that
    follows from its id and the seed of `params` (`seed_of`), so that a rerun, or one interrupted anywhere and started
    again, gives the same files. A row that fails is in `out/errors` with its line, and the rest is done. `output` is
    "jsonl" or "parquet". `model` is an `LLM` or what it is made of, with its `options`; with a `cluster` a name or
    folder, as every machine of it finds it. `progress` is called with the number of rows done and of lines that were to
    do: at the beginning and after every row, on a cluster after the rows of every part, and in between a few times a
    second with running rows counted as the share of their tokens.

    Of a dataset the columns are those of a file, and those of the results are `id`, `index`, `text`, `token_ids`,
    `finish_reason`, `seed`, `logprobs`, `kept`, `prompt_logprobs`, `response` and, for a row that failed, `error`.

    Raises ParamsError for a file that cannot be read, two rows with one id, and a folder that belongs to another run;
    ModelError for the model; TirageError for the cluster; OSError when the folder cannot be written, after which the
    same call goes on.
    """
    if is_address(model := given.get("model")):
        raise ModelError(f"model must be in this process here, got {model!r:.80}; give its folder")
    if isinstance(source, (str, Path)):
        return generate_file(Path(source), params, **given)
    return generate_dataset(source, params, **given)


def generate_dataset(
    source: RowDataset,
    params: SamplingParams | None,
    *,
    model: str | Path = "tiny",
    cluster: Cluster | None = None,
    **options: Any,
) -> Any:
    """The dataset of the results of a dataset's rows."""
    return mapped(source, cluster or Cluster(), WorkerSetup.of(model, options, params))


def generate_file(
    source: Path,
    params: SamplingParams | None,
    *,
    out: str | Path,
    model: str | Path | LLM = "tiny",
    output: str = "jsonl",
    progress: Callable[[float, int], None] = lambda done, total: None,
    cluster: Cluster | None = None,
    **options: Any,
) -> Summary:
    """What became of the rows of a file. Raises ParamsError for an output of another form, and for two equal ids."""
    file = InputFile(source)
    if output not in OUTPUTS:
        raise ParamsError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}")
    check_ids(file)
    if cluster is None:
        workers = local_worker(model, options, params)
    else:
        workers = part_workers(cluster, WorkerSetup.of(model, options, params))
    with workers as found:
        folder = OutputFolder(Path(out), described(file, params, found.identity, output), parquet=output == "parquet")
        with folder:
            return write_all(folder, file, found.run, progress)


@contextlib.contextmanager
def local_worker(
    model: str | Path | LLM, options: Mapping[str, Any], params: SamplingParams | None
) -> Iterator[Worker]:
    """A block with a worker of this process, over a model that is closed at its end unless it was given open."""
    llm = model if isinstance(model, LLM) else LLM(model, **options)
    try:
        yield Worker(llm, params)
    finally:
        if llm is not model:
            llm.close()


def write_all(folder: OutputFolder, file: InputFile, run: Run, progress: Callable[[float, int], None]) -> Summary:
    """Runs the parts of a file that are not done yet, and writes each as it finishes."""
    done = {index for index in range(file.part_count) if folder.is_done(index)}
    earlier = sum(file.lines_of(index) for index in done)
    progress(0, file.count - earlier)
    rows = 0
    todo = (part for part in file.parts() if part.index not in done)
    for part in run(todo, RowCounter(progress, file.count - earlier)):
        folder.write(part.index, part.results, part.errors)
        rows += part.rows
    failed = sum(1 for _ in folder.failed_rows())
    return Summary(rows=rows, earlier=earlier, failed=failed)


def without_key(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of parameters with null for the key of a watermark, as a file may hold them."""
    mark = given.get("watermark")
    return {**given, "watermark": {**mark, "key": None}} if mark else given


def described(
    file: InputFile, params: SamplingParams | None, model: Mapping[str, str], output: str
) -> Mapping[str, Any]:
    """What two runs must have in common for their parts to belong together."""
    return {
        "version": _VERSION,
        "tirage": own_version(),
        "input": {"sha256": file.digest, "lines": file.count, "lines_of_a_part": PART_LINES},
        "model": model,
        "params": {} if params is None else without_key(given_fields(params)),
        "output": output,
    }
