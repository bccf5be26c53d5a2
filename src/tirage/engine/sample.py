"""One sample of a request as it grows: its tokens, its text, and why it ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Draw, Status
from tirage.engine.completion import FinishReason, LogprobEntry, Sample, TokenRecord
from tirage.engine.constraint_budget import ConstraintBudget
from tirage.engine.grammar_state import CompiledConstraint, GrammarState
from tirage.engine.reasoning import ReasoningState
from tirage.params import SamplingParams
from tirage.text import BadWords, Detokenizer, Stop, StopChecker, Tokenizer, enforceable_phrases, open_detokenizer
from tirage.text.copies import twin

_LIMITS = ("max_tokens", "context", "cache")
_ABORTS = ("abort",)
_STOPS = ("eos", "token", "string", "regex", "grammar")


def finish_reason_of(stop: Stop) -> FinishReason:
    """The finish reason of a stop, by its kind."""
    if stop.kind in _LIMITS:
        return "length"
    if stop.kind in _ABORTS:
        return "abort"
    return "stop" if stop.kind in _STOPS else "error"


class GrowingSample:
    """The tokens and text of one sample so far.

    `context_ids` are the tokens that its text continues. After `limit` tokens `limit_stop` ends it, unless another stop
    is found on the very last one. `constraint` is what the text must satisfy, if anything, and `budget` what all
    samples of the request may take for it. `draw_params` are what its tokens are drawn with: `params`, or those with
    logprobs that the answer does not show. `reasoning` is where the text begins, if anything depends on that.
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
        constraint: CompiledConstraint | None = None,
        draw_params: SamplingParams | None = None,
        budget: ConstraintBudget | None = None,
        reasoning: ReasoningState | None = None,
    ) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.entries: list[LogprobEntry] = []
        self.records: list[TokenRecord] = []
        self.text = ""
        self.stop: Stop | None = None
        self.cumulative_logprob = 0.0
        self.hidden_states: NDArray[np.float32] | None = None
        self.beam_score: float | None = None
        # Number of characters decoded so far, those held back included: where the next token starts.
        self.offset = 0
        self.forced_tokens = 0
        # Whether the text ends with that of an end token.
        self._ends_otherwise = False
        self.params, self._tokenizer = params, tokenizer
        self.draw_params = params if draw_params is None else draw_params
        self._limit, self._limit_stop = limit, limit_stop
        self._stops = open_stops(params)
        self._detokenizer = open_detokenizer(
            tokenizer,
            context_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        self._bad_words = open_bad_words(params, tokenizer, self._detokenizer)
        drops = self._detokenizer.drops_space
        begun = copy(reasoning)
        # Under a constraint its state holds that of the reasoning.
        self._reasoning = begun if constraint is None else None
        self.grammar = (
            None
            if constraint is None
            else GrammarState(constraint, params, limit=limit, drops_space=drops, budget=budget, reasoning=begun)
        )

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sample ended; None while it runs."""
        return None if self.stop is None else finish_reason_of(self.stop)

    @property
    def tokens_left(self) -> int:
        """How many more tokens it may have."""
        return self._limit - len(self.token_ids)

    @property
    def may_mask(self) -> bool:
        """Whether its text may ever forbid tokens."""
        return not (self._bad_words is None and self.grammar is None and self._reasoning is None)

    def mask(self, vocab_size: int) -> NDArray[np.int32] | None:
        """Bitmask int32 [ceil(V / 32)] of the tokens that its text allows next; None when it allows all."""
        banned = None if self._bad_words is None else self._bad_words.mask(vocab_size)
        source = self.grammar
        if source is None and self._reasoning is not None and self._reasoning.is_spent:
            source = self._reasoning
        if source is None:
            return banned
        mask = np.zeros(-(-vocab_size // 32), np.int32)
        source.fill(mask)
        return mask if banned is None else mask & banned

    def can_close_after(self, token_id: int) -> bool:
        """Whether a constraint that is to be closed before the limit still can be after this token."""
        return self.grammar is None or self.grammar.can_close_after(token_id)

    def is_checked(self, token_id: int) -> bool:
        """Whether `can_close_after` takes no search for this token."""
        return self.grammar is None or self.grammar.is_checked(token_id)

    def closing_mask(self, vocab_size: int) -> NDArray[np.int32]:
        """Bitmask int32 [ceil(V / 32)] that allows only the next token of the closing path of a constraint."""
        mask = np.full(-(-vocab_size // 32), -1, np.int32)
        if self.grammar is not None:
            self.grammar.fill_closing(mask)
        return mask if self._bad_words is None else mask & self._bad_words.mask(vocab_size)

    def is_stuck(self, drawn: Draw, row: int) -> bool:
        """Whether a row of a draw has no token because other parameters forbid the closing path of a constraint."""
        return self.is_closing and int(drawn.status[row]) == Status.no_allowed_token

    @property
    def is_closing(self) -> bool:
        """Whether the last mask allows only the closing path of a constraint."""
        return self.grammar is not None and self.grammar.closing

    def next_closing_mask(self, vocab_size: int, *, last: bool) -> NDArray[np.int32]:
        """Bitmask int32 [ceil(V / 32)] of another closing path; of the constraint alone if none is left or `last`."""
        assert self.grammar is not None
        self.grammar.try_next_path(give_up=last)
        mask = self.closing_mask(vocab_size) if self.grammar.has_path else self.mask(vocab_size)
        assert mask is not None
        return mask

    def accept(self, token_id: int, logprob: float) -> None:
        """Adds the next token, whose log-probability is added to `cumulative_logprob`; may end the sample."""
        self.token_ids.append(token_id)
        if self._bad_words is not None:
            self._bad_words.accept(token_id)
        self.cumulative_logprob += logprob
        count = len(self.token_ids)
        if self.grammar is not None:
            self.grammar.accept(token_id)
        if self._reasoning is not None:
            self._reasoning.accept(token_id)
        stop = self._stops.check_token(token_id, count)
        if stop is not None and stop.kind == "eos" and self.grammar is not None and self.grammar.was_closed:
            self._end(Stop(kind="grammar", matched="close_grammar"), token_id)
        elif stop is not None:
            self._end(dataclasses.replace(stop, matched_text=self._spell(token_id)), token_id)
        elif self._feed(self._detokenizer.push(token_id) if self.params.detokenize else "") is None:
            ended = None if self.grammar is None else self.grammar.end()
            self._check_limit() if ended is None else self._end(ended, None)

    @property
    def may_force(self) -> bool:
        """Whether `take_forced` may add tokens."""
        return self.params.forcing is not None and self.grammar is not None and self.stop is None

    def begin_with(self, token_id: int) -> None:
        """Adds a token that stood before the request, of which no log-probability is known; may end the sample."""
        if self.params.lists_logprobs:
            given = tuple((asked, math.nan) for asked in self.params.logprob_token_ids)
            self.entries.append(
                dataclasses.replace(self._certain_entry(token_id), logprob=math.nan, rank=0, given=given)
            )
        self._record_certain(token_id, math.nan)
        self.accept(token_id, 0.0)

    def take_forced(self) -> list[int]:
        """Adds the tokens that its constraint leaves no choice about, which may end the sample; gives these tokens.

        One that other parameters forbid is not taken, nor one after which the constraint could not be closed in time.
        """
        taken: list[int] = []
        if not self.may_force or self.grammar is None:
            return taken
        for token_id in self.grammar.forced(self._tokenizer):
            if self.stop is not None or not self._may_force(token_id):
                break
            if self.params.lists_logprobs:
                # It was certain, so that there are no others beside it.
                self.entries.append(self._certain_entry(token_id))
            self._record_certain(token_id, 0.0)
            self.accept(token_id, 0.0)
            taken.append(token_id)
        self.forced_tokens += len(taken)
        return taken

    def _record_certain(self, token_id: int, sampled: float) -> None:
        if self.params.return_kept:
            kept = np.array([token_id], np.int32)
            found = {"raw_logprob": math.nan, "processed_logprob": math.nan, "sampled_logprob": sampled}
            self.records.append(TokenRecord(kept_ids=kept, kept_logmass=math.nan, **found))

    def _certain_entry(self, token_id: int) -> LogprobEntry:
        spelled = self._tokenizer.token_bytes(token_id)
        text = spelled.decode("utf-8", "replace")
        return LogprobEntry(token_id=token_id, logprob=0.0, rank=1, text=text, bytes=spelled, offset=self.offset)

    def _may_force(self, token_id: int) -> bool:
        params, grammar = self.params, self.grammar
        allowed = params.allowed_token_ids is None or token_id in params.allowed_token_ids
        biased = (params.logit_bias or {}).get(token_id, 0.0) == -math.inf
        if not allowed or biased or any(word[-1] == token_id for word in params.bad_words_token_ids):
            return False
        if any(ids[-1] == token_id and bias == -math.inf for ids, bias in params.sequence_bias or ()):
            return False
        if self._bad_words is not None:
            mask = self._bad_words.mask(token_id + 1)
            if not mask[token_id // 32] >> (token_id % 32) & 1:
                return False
        return grammar is not None and grammar.can_close_after(token_id)

    def fork(self, *, index: int | None = None) -> GrowingSample:
        """An independent sample with the same tokens and text, and another `index` if given."""
        other = twin(self)
        other.index = self.index if index is None else index
        other.token_ids, other.entries, other.records = [*self.token_ids], [*self.entries], [*self.records]
        other._stops, other._detokenizer = self._stops.copy(), self._detokenizer.copy()
        other._reasoning = None if self._reasoning is None else copy(self._reasoning)
        other._bad_words = None if self._bad_words is None else self._bad_words.copy()
        other.grammar = None if self.grammar is None else self.grammar.fork()
        return other

    def ended(self, stop: Stop) -> GrowingSample:
        """A sample that ends with the text that this one has, which is to get no more tokens."""
        other = twin(self)
        other._stops, other._detokenizer = self._stops.copy(), self._detokenizer.copy()
        other.fail(stop)
        return other

    def renumbered(self, index: int) -> GrowingSample:
        """A sample with another `index` like this one, which has ended: they share what no longer changes."""
        other = twin(self)
        other.index = index
        return other

    def fail(self, stop: Stop) -> None:
        """Ends the sample with the text that it has, without another token; never raises."""
        try:
            self._end(self.cause_of(stop), None)
        except BaseException:  # when the tokenizer fails, the text so far is all there is
            self.stop = stop

    def cause_of(self, stop: Stop) -> Stop:
        """The stop with what caused it: the processors that failed, or the constraint that allowed no token."""
        if stop.kind == "processor_failed" and stop.matched_text is None:
            names = ", ".join(dict.fromkeys(repr(name) for name, _ in self.params.logits_processors))
            return Stop(kind=stop.kind, matched_text=f"logits processor {names} failed; the log says more")
        if stop.kind == "kept_too_wide":
            text = (
                f"more than max_kept_ids = {self.params.max_kept_ids} tokens could have been drawn; raise max_kept_ids"
            )
            return Stop(kind=stop.kind, matched_text=f"{text}, narrow the law, or leave return_kept out")
        if stop.kind != "no_allowed_token" or self.grammar is None:
            return stop
        if self.grammar.exceeded:
            return Stop(kind="constraint_budget", matched_text=self.grammar.exceeded)
        return Stop(kind="grammar_failed", matched_text=self.grammar.error) if self.grammar.error else stop

    def score(self) -> float:
        """The log-probability per token, by which `best_of` ranks (S-T6); -inf for a failed sample."""
        failed = self.finish_reason == "error" or math.isnan(self.cumulative_logprob)
        return -math.inf if failed else self.cumulative_logprob / max(len(self.token_ids), 1)

    def freeze(self, *, index: int | None = None) -> Sample:
        """The sample as it is now, with another `index` if given."""
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
            forced_tokens=self.forced_tokens,
            records=tuple(self.records) if self.params.return_kept else None,
        )

    def _grammar_complete(self) -> bool | None:
        """Whether the text as it is returned satisfies its constraint."""
        if self.grammar is None:
            return None
        stop = "" if self.stop is None else self.stop.kind
        if stop == "token" and not self.params.include_stop_str_in_output:
            return self.grammar.was_complete
        if self._ends_otherwise or (stop in {"string", "regex"} and len(self.text) < self.offset):
            return self.grammar.satisfied_by(self.text)
        return self.grammar.complete

    def _feed(self, text: str) -> Stop | None:
        """Passes decoded text through the stop checker; sets and returns the stop that it completes, if any."""
        self.offset += len(text)
        released, self.stop = self._stops.feed(text, len(self.token_ids))
        self.text += released
        return self.stop

    def _check_limit(self) -> None:
        if len(self.token_ids) >= self._limit:
            self._end(self._limit_stop, None)

    def _end(self, stop: Stop, stop_token: int | None) -> None:
        # An unfinished character and the text held back are released now, unless they complete a stop themselves.
        if not self.params.detokenize:
            self.stop = stop
            return
        if self._feed(self._detokenizer.finish()) is not None:
            return
        self.text += self._stops.finish()
        if stop_token is not None and self.params.include_stop_str_in_output:
            spelled = self._detokenizer.push(stop_token) + self._detokenizer.finish()
            self.text += spelled
            # To the constraint an end token has no text, another one that stops has.
            self._ends_otherwise = bool(spelled) and stop.kind != "token"
        self.stop = stop

    def _spell(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def open_bad_words(params: SamplingParams, tokenizer: Tokenizer, detokenizer: Detokenizer) -> BadWords | None:
    """The matcher of phrases that no spelling may complete; None when there are none to look for in the text.

    The text is that which the detokenizer begins.
    """
    phrases = params.bad_words if params.bad_words_level != "sequence" else ()
    if params.bad_words_level == "auto":
        phrases = enforceable_phrases(tokenizer, phrases)
    if not phrases:
        return None
    skip = params.skip_special_tokens
    return BadWords(tokenizer, phrases, skip_special_tokens=skip, start=detokenizer.start)


def masks_of(samples: Sequence[GrowingSample], vocab_size: int) -> NDArray[np.int32] | None:
    """The masks of samples, int32 [B, ceil(V / 32)]; None when none of them has one."""
    return stack_masks([sample.mask(vocab_size) for sample in samples], vocab_size)


def stack_masks(masks: Sequence[NDArray[np.int32] | None], vocab_size: int) -> NDArray[np.int32] | None:
    """Masks int32 [ceil(V / 32)] as int32 [B, ceil(V / 32)], where None allows all; None when all are None."""
    if all(mask is None for mask in masks):
        return None
    everything = np.full(-(-vocab_size // 32), -1, np.int32)
    return np.stack([everything if mask is None else mask for mask in masks])


def open_stops(params: SamplingParams) -> StopChecker:
    """The stop checker for the stops that the parameters ask for."""
    return StopChecker(
        strings=params.stop,
        pattern=params.stop_pattern,
        token_ids=params.stop_token_ids,
        eos_ids=() if params.ignore_eos else params.eos_token_ids,
        min_tokens=params.min_tokens,
        include=params.include_stop_str_in_output,
    )
