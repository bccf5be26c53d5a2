"""One sample as it grows: its tokens, its text, and whether it has ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tirage.engine.completion import FinishReason, LogprobEntry, Sample
from tirage.params import SamplingParams
from tirage.text import Stop, StopChecker, Tokenizer, open_detokenizer

_LIMITS = ("max_tokens", "context", "cache")
_STOPS = ("eos", "token", "string", "regex", "grammar")


def finish_reason_of(stop: Stop) -> FinishReason:
    """The finish reason that a kind of stop belongs to."""
    if stop.kind in _LIMITS:
        return "length"
    return "stop" if stop.kind in _STOPS else "error"


class GrowingSample:
    """The tokens and text of one sample so far.

    `context_ids` are the tokens its text continues. `limit` is the number of tokens after which `limit_stop`
    ends it; a stop found on that very token wins.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        index: int,
        context_ids: Sequence[int],
        limit: int,
        limit_stop: Stop,
    ) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.entries: list[LogprobEntry] = []
        self.text = ""
        self.stop: Stop | None = limit_stop if limit <= 0 else None
        self.cumulative_logprob = 0.0
        # Characters decoded so far, those held back included: where the next token starts.
        self.offset = 0
        self._params, self._tokenizer = params, tokenizer
        self._limit, self._limit_stop = limit, limit_stop
        self._checker = open_stops(params)
        self._detokenizer = open_detokenizer(
            tokenizer,
            context_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sample ended, or None while it runs."""
        return None if self.stop is None else finish_reason_of(self.stop)

    def accept(self, token_id: int, logprob: float) -> None:
        """Takes the next token, drawn with that log-probability; may end the sample."""
        self.token_ids.append(token_id)
        self.cumulative_logprob += logprob
        count = len(self.token_ids)
        stop = self._checker.check_token(token_id, count)
        if stop is not None:
            self._end(dataclasses.replace(stop, matched_text=self._spell(token_id)), token_id)
            return
        if self._feed(self._detokenizer.push(token_id) if self._params.detokenize else "") is None:
            self._check_limit()

    def fail(self, stop: Stop) -> None:
        """Ends the sample without a token, with the text it has."""
        self._end(stop, None)

    def score(self) -> float:
        """Cumulative log-probability, by which `best_of` ranks; failed samples come last."""
        failed = self.finish_reason == "error" or math.isnan(self.cumulative_logprob)
        return -math.inf if failed else self.cumulative_logprob

    def freeze(self, *, index: int | None = None) -> Sample:
        """The sample as it stands."""
        wants = self._params.logprobs is not None or bool(self._params.logprob_token_ids)
        return Sample(
            index=self.index if index is None else index,
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stop=self.stop,
            logprobs=tuple(self.entries) if wants else None,
            cumulative_logprob=self.cumulative_logprob,
        )

    def _feed(self, text: str) -> Stop | None:
        """Passes decoded text through the stops; sets and returns the stop that it completes."""
        self.offset += len(text)
        released, self.stop = self._checker.feed(text, len(self.token_ids))
        self.text += released
        return self.stop

    def _check_limit(self) -> None:
        if len(self.token_ids) >= self._limit:
            self._end(self._limit_stop, None)

    def _end(self, stop: Stop, stop_token: int | None) -> None:
        # An unfinished character and the text held back come out now, unless they complete a stop themselves.
        if not self._params.detokenize:
            self.stop = stop
            return
        if self._feed(self._detokenizer.finish()) is not None:
            return
        self.text += self._checker.finish()
        if stop_token is not None and self._params.include_stop_str_in_output:
            self.text += self._detokenizer.push(stop_token) + self._detokenizer.finish()
        self.stop = stop

    def _spell(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def open_stops(params: SamplingParams) -> StopChecker:
    """The stop rules that the parameters ask for."""
    return StopChecker(
        strings=params.stop,
        pattern=params.stop_pattern,
        token_ids=params.stop_token_ids,
        eos_ids=() if params.ignore_eos else params.eos_token_ids,
        min_tokens=params.min_tokens,
        include=params.include_stop_str_in_output,
    )
