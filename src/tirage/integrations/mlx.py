"""Drawing inside mlx-lm: `logits_processors=` for every parameter, `sampler=` for those that read no token.

Each is made for one generation: mlx-lm hands it the rows of that generation, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Status
from tirage.errors import ParamsError, RowError
from tirage.integrations.params import read_params, readers
from tirage.integrations.rows import EngineRows, Ids
from tirage.params import SamplingParams

Given = SamplingParams | Mapping[str, Any] | str

_log = logging.getLogger(__name__)


def logits_processors(
    params: Given, *, prompt_ids: Sequence[int] | None = None, eos_token_id: int | None = None, tokenizer: Any = None
) -> list[Callable[[Any, Any], Any]]:
    """The `logits_processors=` of one generation: one that leaves each row [1, V] its drawn token alone, 0 and -inf.

    `sampler=` stays mlx-lm's default, which takes the largest logit. Drafts of a `draft_model` are judged by the token
    that is drawn in their place. `prompt_ids` [T] is the whole prompt, by default what mlx-lm shows: it leaves out what
    a `prompt_cache` holds, and with a draft model all but the last token, so there a parameter that reads tokens needs
    it. `eos_token_id` ends a row that cannot be drawn, with a warning in the log; without it such a row is a RowError.
    `tokenizer` is for parameters that hold words.
    Raises ParamsError for parameters that break a rule or belong to mlx-lm itself, and when a processor is given rows
    of another generation.
    """
    return [_RowProcessor(read_params(params, "mlx-lm", tokenizer=tokenizer), prompt_ids, eos_token_id)]


def sampler(params: Given, *, eos_token_id: int | None = None) -> Callable[[Any], Any]:
    """The `sampler=` of one generation: from logprobs [1, V] or [V] to its token, uint32 [1], one call per token.

    mlx-lm has normalised the logits, which moves them by a rounding error, so a draw at the edge of a filter may differ
    from that of `logits_processors`, which sees what the model gave. Raises ParamsError for parameters that read the
    tokens so far, for those that belong to mlx-lm itself, and when it is given several rows: a batch needs a sampler
    for each prompt, `samplers=`, and a draft model `logits_processors`. `eos_token_id` as there.
    """
    checked = read_params(params, "mlx-lm")
    if names := readers(checked):
        raise ParamsError(f"{', '.join(names)} must be given to logits_processors, which sees the tokens so far")
    return _RowSampler(checked, eos_token_id)


class _OneRow:
    """The one request of a generation."""

    def __init__(self, params: SamplingParams, eos: int | None) -> None:
        self.params = params
        self._eos = eos
        self._rows: EngineRows | None = None

    def start(self, vocab_size: int, prompt: Sequence[int] | NDArray[Any] = ()) -> None:
        self._rows = EngineRows(vocab_size)
        self._rows.add(0, self.params, prompt)

    @property
    def started(self) -> bool:
        return self._rows is not None

    def draw(self, logits: Any, output: Ids) -> int:
        """The token of logits [1, V] after `output`."""
        assert self._rows is not None
        draw = self._rows.draw(logits, [0], [output])
        if status := int(draw.status.item()):
            reason = f"the row cannot be drawn: {Status(status).name}"
            if self._eos is None:
                raise RowError(f"{reason}; eos_token_id ends the generation")
            _log.warning("%s; it ends with token %d", reason, self._eos)
            return self._eos
        return int(draw.token_ids.item())


class _RowSampler:
    def __init__(self, params: SamplingParams, eos: int | None) -> None:
        self._row = _OneRow(params, eos)
        self._step = 0

    def __call__(self, logprobs: Any) -> Any:
        rows = logprobs[None] if logprobs.ndim == 1 else logprobs
        if rows.ndim != 2 or rows.shape[0] != 1:
            raise ParamsError(
                f"logprobs must be one row, got {list(logprobs.shape)}; a batch needs samplers=, one for each prompt, "
                "and a draft model logits_processors="
            )
        if not self._row.started:
            self._row.start(rows.shape[1])
        token = self._row.draw(rows, range(self._step))
        self._step += 1
        mx = _mx()
        return mx.array([token], dtype=mx.uint32)


class _RowProcessor:
    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int] | None, eos: int | None) -> None:
        self._row = _OneRow(params, eos)
        self._prompt_ids = prompt_ids
        self._shown: NDArray[np.int64] = np.zeros(0, np.int64)
        self._length = 0

    def __call__(self, tokens: Any, logits: Any) -> Any:
        ids = np.asarray(tokens).astype(np.int64)
        if not self._row.started:
            self._shown = ids
            self._row.start(logits.shape[-1], ids if self._prompt_ids is None else self._prompt_ids)
        else:
            self._check(ids)
        self._length = len(ids)
        token = self._row.draw(logits, ids[len(self._shown) :])
        left = _mx().full(logits.shape, -np.inf, dtype=logits.dtype)
        left[0, token] = 0.0
        return left

    def _check(self, ids: NDArray[np.int64]) -> None:
        """Raises ParamsError for rows of another generation, and where a draft model hides tokens that are read."""
        shown = len(self._shown)
        if not (shown <= len(ids) <= self._length + 1 and (ids[:shown] == self._shown).all()):
            raise ParamsError("logits_processors must be made anew for each generation and each prompt of a batch")
        if len(ids) <= self._length and self._prompt_ids is None and (names := readers(self._row.params)):
            raise ParamsError(
                f"prompt_ids must be given where {', '.join(names)} read the tokens of the prompt beside a draft "
                "model; and each generation needs logits_processors of its own"
            )


def _mx() -> Any:
    """`mlx.core`, which is installed where this is called."""
    return import_module("mlx.core")
