"""Rows of a file through a model in this process: each line of input becomes lines of output, or an error."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tirage.cluster.input_file import Part
from tirage.cluster.openai_rows import OpenAIRoutes
from tirage.cluster.rows import BatchRow, Outcome, check_with_default, named_id, read_row, seed_of
from tirage.engine import Completion, EngineRequest, LogprobEntry, Prompt, Sample, kept_of
from tirage.errors import ParamsError, TirageError
from tirage.llm import LLM
from tirage.params import SamplingParams
from tirage.server.replay import model_info_of

OPEN_PARTS = 8
"""Parts whose rows may run at once: rows of the next ones start while the last rows of the first are drawn."""
_TICK_S = 0.2
"""How long the tokens of running rows wait to be reported."""
NO_PLACE = ("output_kind",)
"""Parameters that say how an answer arrives, which the lines of a file cannot follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPart:
    """A part with its results and its failed rows, both in the order of its lines."""

    index: int
    results: tuple[Mapping[str, Any], ...]
    errors: tuple[Mapping[str, Any], ...]
    rows: int


class RowCounter:
    """Counts the rows that are done; `progress` is given their number, with the running ones in parts, and `total`."""

    def __init__(self, progress: Callable[[float, int], None] = lambda done, total: None, total: int = 0) -> None:
        self._progress, self._total, self._rows = progress, total, 0

    def add(self) -> None:
        """Counts a row that is done."""
        self._rows += 1
        self._progress(self._rows, self._total)

    def running(self, share: float) -> None:
        """Reports the rows that run, each as the share of its tokens that it has."""
        if share:
            self._progress(self._rows + share, self._total)


class Worker:
    """Answers rows with a model. `params` are those of every row, which a row's own add to and replace.

    Their seed, if any, is the base of the rows' seeds. At most `window` rows are prepared or run at once; by default
    twice as many as run, so that the engine never waits.
    """

    def __init__(self, llm: LLM, params: SamplingParams | None = None, *, window: int | None = None) -> None:
        self._llm = llm
        self._common = {} if params is None else given_fields(params)
        self._base = self._common.pop("seed", None) or 0
        self._routes = OpenAIRoutes(llm, self._base, self._common)
        self._window = window or 2 * llm.max_running

    @property
    def window(self) -> int:
        """How many rows are prepared or run at once."""
        return self._window

    @property
    def identity(self) -> dict[str, str]:
        """What two copies of a model have in common: the folder's name and the fingerprint of its files."""
        info = model_info_of(self._llm, "" if self._llm.folder is None else self._llm.folder.name)
        return {"name": info.name, "fingerprint": info.fingerprint}

    def run(self, parts: Iterator[Part], counter: RowCounter | None = None) -> Iterator[FinishedPart]:
        """The finished parts, in the order in which they finish; `counter` is told of rows and of their tokens."""
        loop = asyncio.new_event_loop()
        finished = self._run(parts, RowCounter() if counter is None else counter)
        try:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield loop.run_until_complete(anext(finished))
        finally:
            loop.run_until_complete(finished.aclose())
            loop.run_until_complete(self._routes.close())
            loop.close()

    async def _run(self, parts: Iterator[Part], counter: RowCounter) -> AsyncGenerator[FinishedPart, None]:
        window, running = asyncio.Semaphore(self._window), set[asyncio.Task[FinishedPart]]()
        try:
            while True:
                while len(running) < OPEN_PARTS and (part := next(parts, None)) is not None:
                    running.add(asyncio.create_task(self.run_part(part, window, counter.add)))
                if not running:
                    return
                done, running = await asyncio.wait(running, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
                counter.running(self._llm.engine.running_share())
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def run_part(
        self, part: Part, window: asyncio.Semaphore | None = None, on_row: Callable[[], None] = lambda: None
    ) -> FinishedPart:
        """The part when all of its rows are answered; parts that run at once share `window`, the rows in work."""
        outcomes = await self.outcomes(part, window or asyncio.Semaphore(self._window), on_row)
        return FinishedPart(
            index=part.index,
            results=tuple(result for outcome in outcomes for result in outcome.results),
            errors=tuple(outcome.error for outcome in outcomes if outcome.error is not None),
            rows=len(outcomes),
        )

    async def outcomes(
        self, part: Part, window: asyncio.Semaphore, on_row: Callable[[], None] = lambda: None
    ) -> list[Outcome]:
        """What becomes of each line of a part, in order."""

        async def one(number: int, line: bytes) -> Outcome:
            async with window:
                outcome = await self.answer(number, line)
            on_row()
            return outcome

        return await asyncio.gather(*(one(*each) for each in part.lines))

    async def answer(self, number: int, line: bytes) -> Outcome:
        """What becomes of the line with that number; a row that cannot be answered says why, and nothing is raised."""
        try:
            row = read_row(line)
            if row.form == "openai":
                return await self._routes.answer(number, row)
            request = self.request(row)
            stream = self._llm.engine.submit(request, buffer=0)
            return outcome_of(number, row, await stream.result())
        except TirageError as error:
            return failed(number, named_id(line), str(error))

    def request(self, row: BatchRow) -> EngineRequest:
        """The engine's request for a row in our own form. Raises ParamsError and GrammarError."""
        own = row.params or {}
        for name in NO_PLACE:
            if name in own:
                raise ParamsError(f"{name} must be left out here, got {own[name]!r}")
        for name in own:
            if name in self._common:
                check_with_default(name, own[name], default=self._common[name])
        given = {**self._common, **own}
        if given.get("seed") is None:
            given["seed"] = seed_of(row.id, self._base)
        params = SamplingParams.from_dict(given)
        if row.messages is not None:
            return self._llm.chat_request(row.messages, params)
        return self._llm.request(prompt_of(row.prompt), params)


def given_fields(params: SamplingParams) -> dict[str, Any]:
    """The limit and the fields that are not at their defaults, as plain JSON values; ParamsError for `NO_PLACE`.

    Routes have limits of their own, so that one at its default says something, too.
    """
    plain, default = params.to_dict(), SamplingParams().to_dict()
    given = {name: value for name, value in plain.items() if name == "max_tokens" or value != default[name]}
    for name in NO_PLACE:
        if name in given:
            raise ParamsError(f"{name} must be left out here, got {given[name]!r}")
    return given


def prompt_of(given: Any) -> str | list[int] | Prompt:
    """The prompt of a row. Raises ParamsError unless it is a text or a list of ids."""
    if isinstance(given, (str, list)):
        return given
    raise ParamsError(f"prompt must be a text or a list of token ids, got {given!r:.80}")


def outcome_of(number: int, row: BatchRow, completion: Completion) -> Outcome:
    """The results of a completion, one for each of its samples, or the error that ended one of them."""
    broken = next((each for each in completion.samples if each.finish_reason in ("error", "abort")), None)
    if broken is not None:
        stop = broken.stop
        return failed(
            number, {"id": row.id}, "the text ended early" if stop is None else stop.matched_text or stop.kind
        )
    several = len(completion.samples) > 1
    return Outcome(results=tuple(result_of(row, completion, sample, several) for sample in completion.samples))


def result_of(row: BatchRow, completion: Completion, sample: Sample, several: bool) -> dict[str, Any]:
    """A line of the output: a sample of a row, with its `index` where the row has several."""
    return {"id": row.id, **({"index": sample.index} if several else {}), **sample_fields(completion, sample)}


def sample_fields(completion: Completion, sample: Sample) -> dict[str, Any]:
    """What a line of results says of a sample, as plain values for JSON."""
    result: dict[str, Any] = {"text": sample.text, "token_ids": list(sample.token_ids)}
    result |= {"finish_reason": sample.finish_reason, "seed": completion.seed}
    if sample.logprobs is not None:
        result["logprobs"] = [entry_of(entry) for entry in sample.logprobs]
    if sample.records is not None:
        result["kept"] = kept_of(sample.records)
    if completion.prompt_logprobs is not None:
        result["prompt_logprobs"] = [None if each is None else entry_of(each) for each in completion.prompt_logprobs]
    return result


def entry_of(entry: LogprobEntry) -> dict[str, Any]:
    """A logprob entry as JSON: token, log-probability (null for -inf), rank, and the others that were asked for."""
    found: dict[str, Any] = {"token_id": entry.token_id, "logprob": finite(entry.logprob), "rank": entry.rank}
    if entry.top:
        found["top"] = [[each.token_id, finite(each.logprob)] for each in entry.top]
    if entry.given:
        found["given"] = [[token_id, finite(logprob)] for token_id, logprob in entry.given]
    return found


def finite(value: float) -> float | None:
    """The number, or None for an infinite one, which JSON does not have."""
    return value if math.isfinite(value) else None


def failed(number: int, named: Mapping[str, Any], message: str) -> Outcome:
    """A row that failed, with the number of its line and its id, by the name that its form has for it."""
    return Outcome(error={"line": number, **named, "error": message})
