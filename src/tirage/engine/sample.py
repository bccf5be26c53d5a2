"""One sample as it grows: its tokens, its text, and whether it has ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Draw, Status
from tirage.engine.completion import FinishReason, LogprobEntry, Sample
from tirage.engine.grammar_state import Constrained, GrammarState
from tirage.params import SamplingParams
from tirage.text import BadWords, Stop, StopChecker, Tokenizer, enforceable_phrases, open_detokenizer

_LIMITS = ("max_tokens", "context", "cache")
_ABORTS = ("abort",)
_STOPS = ("eos", "token", "string", "regex", "grammar")


def finish_reason_of(stop: Stop) -> FinishReason:
    """The finish reason that a kind of stop belongs to."""
    if stop.kind in _LIMITS:
        return "length"
    if stop.kind in _ABORTS:
        return "abort"
    return "stop" if stop.kind in _STOPS else "error"


class GrowingSample:
    """The tokens and text of one sample so far.

    `context_ids` are the tokens its text continues. `limit` is the number of tokens after which `limit_stop`
    ends it; a stop found on that very token wins. `constrained` is the constraint that the text must satisfy, if any.
    `row_params` are what its row is drawn with: `params`, perhaps with logprobs that nobody lists.
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
        constrained: Constrained | None = None,
        row_params: SamplingParams | None = None,
    ) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.entries: list[LogprobEntry] = []
        self.text = ""
        self.stop: Stop | None = limit_stop if limit <= 0 else None
        self.cumulative_logprob = 0.0
        self.hidden_states: NDArray[np.float32] | None = None
        self.beam_score: float | None = None
        # Characters decoded so far, those held back included: where the next token starts.
        self.offset = 0
        self.params, self._tokenizer = params, tokenizer
        self.row_params = params if row_params is None else row_params
        self._limit, self._limit_stop = limit, limit_stop
        self._checker = open_stops(params)
        self._bad_words = open_bad_words(params, tokenizer)
        self._detokenizer = open_detokenizer(
            tokenizer,
            context_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        drops = self._detokenizer.drops_space
        self.guide = None if constrained is None else GrammarState(constrained, params, limit=limit, drops_space=drops)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sample ended, or None while it runs."""
        return None if self.stop is None else finish_reason_of(self.stop)

    def mask(self, vocab_size: int) -> NDArray[np.int32] | None:
        """Bitmask int32 [ceil(V / 32)] of the tokens that the text lets come next; None when it lets all."""
        banned = None if self._bad_words is None else self._bad_words.mask(vocab_size)
        if self.guide is None:
            return banned
        mask = np.zeros(-(-vocab_size // 32), np.int32)
        self.guide.fill(mask)
        return mask if banned is None else mask & banned

    def keeps(self, token_id: int) -> bool:
        """Whether a text that must be closed in time still can be after this token."""
        return self.guide is None or self.guide.keeps(token_id)

    def closing_mask(self, vocab_size: int) -> NDArray[np.int32]:
        """The mask that leaves only the next token of the way to the end of a constraint."""
        mask = np.full(-(-vocab_size // 32), -1, np.int32)
        if self.guide is not None:
            self.guide.force(mask)
        return mask if self._bad_words is None else mask & self._bad_words.mask(vocab_size)

    def is_stuck(self, drawn: Draw, row: int) -> bool:
        """Whether no token could be drawn because other parameters forbid the way to the end of a constraint."""
        return self.is_forced and int(drawn.status[row]) == Status.no_allowed_token

    @property
    def is_forced(self) -> bool:
        """Whether the mask made last leaves nothing but the way to the end of a constraint."""
        return self.guide is not None and self.guide.forcing

    def other_mask(self, vocab_size: int, *, last: bool) -> NDArray[np.int32]:
        """The mask of another way to the end than the one just tried; with `last`, or without one, of no way."""
        assert self.guide is not None
        self.guide.turn(give_up=last)
        mask = self.closing_mask(vocab_size) if self.guide.closes else self.mask(vocab_size)
        assert mask is not None
        return mask

    def accept(self, token_id: int, logprob: float) -> None:
        """Takes the next token, with the log-probability to add for it; may end the sample."""
        self.token_ids.append(token_id)
        if self._bad_words is not None:
            self._bad_words.accept(token_id)
        self.cumulative_logprob += logprob
        count = len(self.token_ids)
        if self.guide is not None:
            self.guide.accept(token_id)
        stop = self._checker.check_token(token_id, count)
        if stop is not None and stop.kind == "eos" and self.guide is not None and self.guide.forced:
            self._end(Stop(kind="grammar", matched="close_grammar"), token_id)
        elif stop is not None:
            self._end(dataclasses.replace(stop, matched_text=self._spell(token_id)), token_id)
        elif self._feed(self._detokenizer.push(token_id) if self.params.detokenize else "") is None:
            ended = None if self.guide is None else self.guide.end()
            self._check_limit() if ended is None else self._end(ended, None)

    def fork(self) -> GrowingSample:
        """An independent sample with the same past."""
        other = copy(self)
        other.token_ids, other.entries = [*self.token_ids], [*self.entries]
        other._checker, other._detokenizer = self._checker.copy(), self._detokenizer.copy()
        other._bad_words = None if self._bad_words is None else self._bad_words.copy()
        other.guide = None if self.guide is None else self.guide.fork()
        return other

    def fail(self, stop: Stop) -> None:
        """Ends the sample without a token, with the text it has; never raises."""
        try:
            self._end(self.blame(stop), None)
        except BaseException:  # a tokenizer that fails has given the text that it could
            self.stop = stop

    def blame(self, stop: Stop) -> Stop:
        """Why no token could be drawn: a constraint that can no longer be followed, or what was found."""
        if stop.kind == "no_allowed_token" and self.guide is not None and self.guide.error:
            return Stop(kind="grammar_failed", matched_text=self.guide.error)
        return stop

    def score(self) -> float:
        """Log-probability per token, by which `best_of` ranks (S-T6); failed samples come last."""
        failed = self.finish_reason == "error" or math.isnan(self.cumulative_logprob)
        return -math.inf if failed else self.cumulative_logprob / max(len(self.token_ids), 1)

    def freeze(self, *, index: int | None = None) -> Sample:
        """The sample as it stands."""
        return Sample(
            index=self.index if index is None else index,
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stop=self.stop,
            logprobs=tuple(self.entries) if self.params.lists_logprobs else None,
            cumulative_logprob=self.cumulative_logprob,
            hidden_states=self.hidden_states,
            score=self.beam_score,
            grammar_complete=self._grammar_complete(),
        )

    def _grammar_complete(self) -> bool | None:
        """Whether the text satisfies its constraint; a text that a stop has cut short does only if nothing was cut."""
        if self.guide is None:
            return None
        included = self.params.include_stop_str_in_output
        if self.stop is not None and self.stop.kind == "token" and not included:
            return self.guide.was_complete
        cut = self.stop is not None and self.stop.kind in {"string", "regex"} and len(self.text) < self.offset
        return self.guide.complete and not cut

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
        if not self.params.detokenize:
            self.stop = stop
            return
        if self._feed(self._detokenizer.finish()) is not None:
            return
        self.text += self._checker.finish()
        if stop_token is not None and self.params.include_stop_str_in_output:
            self.text += self._detokenizer.push(stop_token) + self._detokenizer.finish()
        self.stop = stop

    def _spell(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def open_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> BadWords | None:
    """The phrases that no spelling may complete; None when there are none to look for in the text."""
    phrases = params.bad_words if params.bad_words_level != "sequence" else ()
    if params.bad_words_level == "auto":
        phrases = enforceable_phrases(tokenizer, phrases)
    return BadWords(tokenizer, phrases, skip_special_tokens=params.skip_special_tokens) if phrases else None


def masks_of(samples: Sequence[GrowingSample], vocab_size: int) -> NDArray[np.int32] | None:
    """The masks of samples as rows int32 [B, ceil(V / 32)]; None when none of them has one."""
    return stack_masks([sample.mask(vocab_size) for sample in samples], vocab_size)


def stack_masks(masks: Sequence[NDArray[np.int32] | None], vocab_size: int) -> NDArray[np.int32] | None:
    """The masks as rows int32 [B, ceil(V / 32)], where None allows everything; None when all are None."""
    if all(mask is None for mask in masks):
        return None
    everything = np.full(-(-vocab_size // 32), -1, np.int32)
    return np.stack([everything if mask is None else mask for mask in masks])


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
