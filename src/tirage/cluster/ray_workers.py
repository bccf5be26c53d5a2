"""Copies of a model on a Ray cluster: they answer the parts of a file, or the rows of a dataset."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirage.cluster.input_file import Part, as_line
from tirage.cluster.output_folder import table_of
from tirage.cluster.ray_cluster import cluster, located, require_ray
from tirage.cluster.worker import FinishedPart, RowCounter, Worker, given_fields
from tirage.errors import ModelError, ParamsError, TirageError
from tirage.llm import LLM
from tirage.params import SamplingParams

OPEN_PARTS = 2
"""Parts that a worker has at once: rows of the second start while the last ones of the first are drawn."""
_TRIES = 4
_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster and what a run takes of it: `workers` copies of the model, each with so many CPUs and GPUs.

    Without an `address` it is the one that this process belongs to, or that of RAY_ADDRESS, or one of this machine.
    """

    address: str | None = None
    workers: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise ParamsError(f"workers must be an integer of at least 1, got {self.workers!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What a worker is made of, where it runs: the model by name, the options of `LLM`, the parameters of all rows."""

    model: str
    options: Mapping[str, Any]
    params: Mapping[str, Any] | None

    @classmethod
    def of(cls, model: Any, options: Mapping[str, Any], params: SamplingParams | None) -> WorkerSetup:
        """The setup; ParamsError for a model that is open already, which cannot travel."""
        if not isinstance(model, (str, Path)):
            raise ParamsError(f"model must be a name or a folder for a cluster, got {type(model).__name__}")
        return cls(model=located(model), options=options, params=None if params is None else given_fields(params))

    def open(self) -> tuple[LLM, Worker]:
        """The model, and the worker that answers rows with it."""
        llm = LLM(self.model, **self.options)
        return llm, Worker(llm, None if self.params is None else SamplingParams.from_dict(self.params))


class PartWorker:
    """An actor that answers parts of a file."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._llm, self._worker = setup.open()
        self._window = asyncio.Semaphore(self._worker.window)
        self._identity = self._worker.identity

    async def identity(self) -> dict[str, str]:
        """The identity of this copy of the model."""
        return self._identity

    async def run(self, part: Part, expected: Mapping[str, str]) -> FinishedPart:
        """The part when all of its rows are answered. Raises ModelError when this copy is of another model."""
        check_identity(self._identity, expected)
        return await self._worker.run_part(part, self._window)


def check_identity(found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Raises ModelError unless both are one model: other weights would give other texts."""
    if dict(found) != dict(expected):
        raise ModelError(
            f"the model must be the same on every machine, got {found['fingerprint']} for {found['name']} beside "
            f"{expected['fingerprint']}; copy the same files everywhere"
        )


class PartWorkers:
    """The workers of a run. A part whose worker is lost is given to the one that Ray starts in its place.

    Raises TirageError when they do not start.
    """

    def __init__(self, wanted: Cluster, setup: WorkerSetup) -> None:
        self._ray = require_ray()
        actor = self._ray.remote(PartWorker).options(
            num_cpus=wanted.num_cpus,
            num_gpus=wanted.num_gpus,
            max_restarts=-1,
            max_task_retries=_TRIES - 1,
        )
        self._actors = [actor.remote(setup) for _ in range(wanted.workers)]
        identities = [self._get(each.identity.remote(), "a worker does not start") for each in self._actors]
        self.identity: dict[str, str] = identities[0]
        for each in identities:
            check_identity(each, self.identity)

    def run(self, parts: Iterator[Part], counter: RowCounter) -> Iterator[FinishedPart]:
        """The finished parts, in the order in which they finish. Raises TirageError for one that ends its workers."""
        free = deque(list(range(len(self._actors))) * OPEN_PARTS)
        pending: dict[Any, tuple[int, Part]] = {}
        while True:
            while free and (part := next(parts, None)) is not None:
                number = free.popleft()
                pending[self._actors[number].run.remote(part, self.identity)] = number, part
            if not pending:
                return
            (done,), _ = self._ray.wait(list(pending), num_returns=1)
            number, part = pending.pop(done)
            free.append(number)
            finished = self._get(done, f"lines {part.lines[0][0]} to {part.lines[-1][0]} cannot be answered")
            for _ in range(finished.rows):
                counter.add()
            yield finished

    def close(self) -> None:
        """Ends the workers, so that others may have their CPUs and GPUs."""
        for each in self._actors:
            self._ray.kill(each)

    def _get(self, answer: Any, what: str) -> Any:
        """The value of an answer; raises TirageError with its reason, the last line of what Ray tells."""
        try:
            return self._ray.get(answer)
        except TirageError:
            raise
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = next((line for line in reversed(lines) if "Error: " in line), lines[0] if lines else repr(error))
            raise TirageError(f"{what}: {reason}") from error


@contextlib.contextmanager
def part_workers(wanted: Cluster, setup: WorkerSetup) -> Iterator[PartWorkers]:
    """A block with the workers of a run."""
    with cluster(wanted.address):
        workers = PartWorkers(wanted, setup)
        try:
            yield workers
        finally:
            workers.close()


class DatasetWorker:
    """A worker of `map_batches`: a table of rows in, one of results out, failed rows among them with their error."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._llm, self._worker = setup.open()

    def __call__(self, table: Any) -> Any:
        lines = tuple(enumerate(map(as_line, table.to_pylist()), 1))
        outcomes = asyncio.run(self._answered(Part(0, lines)))
        rows = [row for each in outcomes for row in (each.results if each.error is None else (as_failed(each.error),))]
        return table_of(rows)

    async def _answered(self, part: Part) -> list[Any]:
        return await self._worker.outcomes(part, asyncio.Semaphore(self._worker.window))


def as_failed(error: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a dataset that failed; its line would be that of a batch, and is left out."""
    return {"id": error.get("id", error.get("custom_id")), "error": error["error"]}


def mapped(dataset: Any, wanted: Cluster, setup: WorkerSetup) -> Any:
    """The dataset of the results of a dataset's rows, which Ray Data makes when it is read."""
    data = require_ray().data
    return dataset.map_batches(
        DatasetWorker,
        fn_constructor_args=(setup,),
        batch_size=_BATCH_ROWS,
        batch_format="pyarrow",
        compute=data.ActorPoolStrategy(size=wanted.workers),
        num_cpus=wanted.num_cpus,
        num_gpus=wanted.num_gpus,
    )
