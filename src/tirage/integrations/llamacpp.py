"""tirage inside llama-cpp-python: a processor for `logits_processor=` of `Llama.__call__` and its other methods."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Status
from tirage.errors import ParamsError, RowError
from tirage.integrations.params import read_params
from tirage.integrations.rows import EngineRows
from tirage.params import SamplingParams

ENGINE = "llama-cpp-python"
_log = logging.getLogger("tirage")


def logits_processor(
    params: SamplingParams | Mapping[str, Any] | str, *, llama: Any = None, tokenizer: Any = None
) -> LlamaLogitsProcessor:
    """The processor of one request: `llama(prompt, logits_processor=LogitsProcessorList([processor]))`.

    `params` are fields of SamplingParams that a draw reads; llama-cpp-python's own are for the rest: `max_tokens`,
    `stop`, `logprobs`. `llama` is the `Llama`, whose EOS token ends a request that cannot go on. With a `tokenizer`,
    words in `bad_words` become ids. Raises ParamsError for parameters that break a rule or that no draw reads.
    """
    end = None if llama is None else int(llama.token_eos())
    return LlamaLogitsProcessor(read_params(params, ENGINE, tokenizer=tokenizer), end=end)


class LlamaLogitsProcessor:
    """Draws each token of one request of llama-cpp-python, and leaves only its logit.

    The ids of the first call are the prompt. Ids that do not continue those of the last call begin a new request, with
    the same seed if the parameters have one. `failure` is the error that ended the request, or None: llama-cpp-python
    swallows what a processor raises, so the row is left with the EOS token (without `llama` with token 0), and
    `stop_on_failure`, given as a stopping criterion, raises the error where it is seen.
    """

    def __init__(self, params: SamplingParams, *, end: int | None = None) -> None:
        self._params, self._end = params, end
        self._rows: EngineRows | None = None
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._prompt = 0
        self.failure: Exception | None = None

    @property
    def seed(self) -> int:
        """The seed of the request, given or fresh. Raises ParamsError before the first token."""
        if self._rows is None:
            raise ParamsError("seed must be asked for after the first token; until then there is none")
        return self._rows.seed(ENGINE)

    def __call__(self, input_ids: Any, scores: Any) -> NDArray[np.float32]:
        """Logits float32 [V], all -inf but that of the token drawn from `scores` [V] after `input_ids` [T]."""
        logits = np.array(scores, np.float32)
        try:
            token = self._draw(np.array(input_ids, np.int64), logits)
        except Exception as error:  # it would be swallowed, and the engine would draw by itself
            _log.error("a request of %s cannot go on: %s", ENGINE, error)
            self.failure, token = error, self._end or 0
        left = np.full(logits.shape, -np.inf, np.float32)
        left[token] = 0.0
        return left

    def stop_on_failure(self, input_ids: Any, logits: Any) -> bool:
        """False, for ids [T] and logits [V]: a criterion of `StoppingCriteriaList`. Raises RowError for a `failure`."""
        if self.failure is not None:
            raise RowError(str(self.failure)) from self.failure
        return False

    def __iter__(self) -> Iterator[LlamaLogitsProcessor]:
        """The processor itself, which is a list of one where llama-cpp-python wants a list."""
        return iter((self,))

    def extend(self, others: Any) -> NoReturn:
        """Raises ParamsError, always: llama-cpp-python extends the list for its `logit_bias`, and then drops it."""
        raise ParamsError(f"logit_bias must be given to tirage, not to {ENGINE}, got {others!r:.60}")

    def _draw(self, ids: NDArray[np.int64], logits: NDArray[np.float32]) -> int:
        self._follow(ids, logits.size)
        assert self._rows is not None
        drawn = self._rows.draw(logits[None], [ENGINE], [ids[self._prompt :]])
        status = Status(int(drawn.status[0]))
        if status is not Status.ok:
            raise RowError(f"token {len(ids) - self._prompt} cannot be drawn: {status.name}")
        return int(drawn.token_ids[0])

    def _follow(self, ids: NDArray[np.int64], vocab_size: int) -> None:
        """Finds out whether the ids continue the request; if not, they are the prompt of a new one."""
        known = len(self._ids)
        continues = self._rows is not None and np.array_equal(ids[:known], self._ids)
        if continues and len(ids) > known + 1:
            raise RowError(
                f"a processor must see every token of its request, got {len(ids) - known} at once; make a new one for "
                "each request, and use no draft_model"
            )
        if not continues:
            self._rows, self._prompt, self.failure = EngineRows(vocab_size), len(ids), None
            self._rows.add(ENGINE, self._params, ids)
        self._ids = ids
