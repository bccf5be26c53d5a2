"""One prompt with its parameters, and everything that has come of it so far."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tirage.engine.completion import Completion, LogprobEntry, Timings, Usage
from tirage.engine.constraint_budget import ConstraintBudget
from tirage.engine.fairness import Tenant
from tirage.engine.grammar_state import CompiledConstraint
from tirage.engine.reasoning import ReasoningState
from tirage.engine.sample import GrowingSample
from tirage.errors import ParamsError
from tirage.history import History
from tirage.models import Inputs
from tirage.params import BeamSearchParams, SamplingParams
from tirage.processors.builtin import check_ids
from tirage.sampling_batch import SamplingRow
from tirage.text import Stop, Tokenizer


class EngineRequest:
    """A checked prompt with its parameters, and its samples as they grow.

    `params` come with EOS ids and tokenised words filled in; an unseeded request gets its seed here, one for all its
    samples. `context_ids` are the tokens that the text continues: by default the prompt, and none for a text that
    stands alone, such as a chat's reply. `inputs` hold what the model reads besides ids; a prompt of embeddings has no
    ids. `constraint` is the compiled `params.guided_decoding`, `reasoning` where the texts begin, if anything depends
    on it. `cache_length`, where it is less than the model's `max_length`, bounds prompt and output instead. `tenant`
    says who asks, for fair shares. With `beams` the samples are the hypotheses of a search, one without tokens until
    the search ends; `live` are those that may still be returned, or continued into ones that are. All samples begin
    with `output_ids`. With `keep_logits` the model's logits float32 [V] after the prompt are kept as `prompt_logits`.

    Of `sample_count` samples a waiting request holds one. `samples` are those that have started and, until the last
    has, the one that starts last, which has no token of its own and stands for those that are not made yet.

    Raises ParamsError for a prompt that is empty or too long, for ids that the vocabulary does not have, and for
    `output_ids` that leave no token to draw.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        vocab_size: int,
        max_length: int,
        prompt: str | None = None,
        context_ids: Sequence[int] | None = None,
        inputs: Inputs | None = None,
        constraint: CompiledConstraint | None = None,
        cache_length: int | None = None,
        beams: BeamSearchParams | None = None,
        reasoning: ReasoningState | None = None,
        output_ids: Sequence[int] = (),
    ) -> None:
        draw_params = with_ranking_logprobs(params)
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.tenant, self.keep_logits = Tenant(), False
        self.prompt_logits: NDArray[np.float32] | None = None
        self.params = params if params.seed is not None else params.replace_unchecked(seed=self.seed)
        given = Inputs(token_ids=()) if inputs is None else inputs
        budget = TokenBudget.of(max_length, cache_length)
        self.prompt, self.prompt_ids = prompt, cut_prompt(params, prompt_ids, budget, given)
        self.is_cut = len(self.prompt_ids) < len(prompt_ids)
        """Whether the prompt lacks its first tokens, because of `truncate_prompt_tokens`."""
        self._sampling_row = SamplingRow.of(draw_params, History.of(self.prompt_ids, output_ids, vocab_size=vocab_size))
        self._sampling_row.compiled.check(vocab_size)
        check_ids(params.logits_processors, vocab_size)
        scored = params.prompt_logprobs is not None
        self.inputs = dataclasses.replace(given, token_ids=tuple(self.prompt_ids), score=scored)
        self.cached_tokens = 0
        self.prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
        self._started, self._first_token, self._ended = time.perf_counter(), None, None
        self.prompt_tokens = self.inputs.length
        self.limit, self.limit_stop = budget.limit(params, self.prompt_tokens)
        self.beams = beams
        self.constraint, self.constraint_budget = constraint, ConstraintBudget()
        self.sample_count = params.best_of or params.n
        first = GrowingSample(
            self.params,
            tokenizer,
            index=0,
            context_ids=self.prompt_ids if context_ids is None else context_ids,
            limit=self.limit,
            limit_stop=self.limit_stop,
            constraint=constraint,
            draw_params=draw_params,
            budget=self.constraint_budget,
            reasoning=reasoning,
        )
        self.samples = [first]
        if output_ids:
            self._begin(output_ids)
        self.live: Sequence[GrowingSample] = ()
        if beams is not None:
            first.beam_score = 0.0

    def _begin(self, output_ids: Sequence[int]) -> None:
        """Gives the samples their first tokens, and the prefill the same ones behind the prompt."""
        check_beginning(self)
        first = self.samples[0]
        for token_id in output_ids:
            with self.constraint_budget.taking("output_ids"):
                first.begin_with(token_id)
            if first.stop is not None:
                raise ParamsError(f"output_ids must leave a token to draw, got a text that ends: {first.stop.kind}")
        self.inputs = dataclasses.replace(self.inputs, token_ids=(*self.inputs.token_ids, *output_ids))

    @property
    def carries_state(self) -> bool:
        """Whether a sample carries a state from token to token."""
        return self._sampling_row.compiled.carrier is not None

    @property
    def finished(self) -> bool:
        """Whether all samples have ended."""
        return all(sample.stop is not None for sample in self.samples)

    @property
    def done_share(self) -> float:
        """How much of the answer is there, 0.0 to 1.0: of each sample its tokens among the most that it may have."""
        most = max(self.limit, 1)
        shares = [1.0 if each.stop is not None else len(each.token_ids) / most for each in self.all_samples()]
        return sum(shares) / len(shares)

    @property
    def output_tokens(self) -> int:
        """The number of tokens of all samples so far."""
        return sum(len(sample.token_ids) for sample in self.all_samples())

    def start_next(self) -> GrowingSample:
        """The sample that starts now: a copy of the one that stands for it and others, and at last that one itself."""
        last = self.samples[-1]
        if len(self.samples) == self.sample_count:
            return last
        sample = last.fork()
        if sample.grammar is not None:
            sample.grammar.work_alone()
        self._insert(sample)
        return sample

    def end(self, stop: Stop) -> Iterator[GrowingSample]:
        """Ends the samples that have not ended, in order, and gives each when it has."""
        *started, last = self.samples
        for sample in started:
            if sample.stop is None:
                sample.fail(stop)
                yield sample
        if len(self.samples) < self.sample_count:
            # Those that never start differ in nothing but their indices.
            ended = last.ended(stop)
            while len(self.samples) < self.sample_count:
                sample = ended.renumbered(last.index)
                self._insert(sample)
                yield sample
        if last.stop is None:
            last.fail(stop)
            yield last

    def end_empty(self) -> Iterator[GrowingSample]:
        """Ends the samples of a request that may have no tokens, and gives each.

        Of a beam search all hypotheses that were asked for are the empty text, and only the first is given.
        """
        if self.beams is None:
            yield from self.end(self.limit_stop)
            return
        [empty] = self.samples
        empty.fail(self.limit_stop)
        self.set_hypotheses([(0.0, empty.renumbered(index)) for index in range(self.beams.returned)])
        yield self.samples[0]

    def _insert(self, sample: GrowingSample) -> None:
        """Adds a sample before the one that stands for those that are not made."""
        self.samples[-1].index = len(self.samples)
        self.samples.insert(-1, sample)

    def all_samples(self) -> list[GrowingSample]:
        """All samples in order, of which the last that is made stands for those that are not."""
        samples = [*self.samples]
        return samples + samples[-1:] * (self.sample_count - len(samples))

    def sampling_row(self, sample_index: int) -> SamplingRow:
        """A row of the sampler for one of the samples, with a history of its own that ends with the prompt."""
        checked = self._sampling_row
        history = checked.history.copy()
        return SamplingRow(checked.compiled, history, self.seed, sample_index, checked.step, checked.state)

    def mark_token(self, now: float | None = None) -> float | None:
        """Notes the time of a token; returns the seconds since the request was made for the first one, else None."""
        self._ended = time.perf_counter() if now is None else now
        if self._first_token is not None:
            return None
        self._first_token = self._ended
        return self._first_token - self._started

    def set_hypotheses(self, hypotheses: Sequence[tuple[float, GrowingSample]]) -> None:
        """Makes the hypotheses of a beam search, (score, sample) with the best first, the samples of the request."""
        for index, (score, sample) in enumerate(hypotheses):
            sample.index, sample.beam_score = index, score
        self.samples, self.live = [sample for _, sample in hypotheses], ()
        self.sample_count = len(self.samples)

    def completion(self) -> Completion:
        """The answer so far; it is complete once the request is `finished`."""
        now = time.perf_counter() if self._ended is None or not self.finished else self._ended
        first = None if self._first_token is None else self._first_token - self._started
        return Completion(
            prompt=self.prompt,
            prompt_token_ids=tuple(self.prompt_ids),
            samples=tuple(sample.freeze(index=rank) for rank, sample in enumerate(self._returned())),
            seed=self.seed,
            usage=Usage(
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.output_tokens,
                cached_tokens=self.cached_tokens,
            ),
            timings=Timings(first_token_s=first, total_s=now - self._started),
            prompt_logprobs=self.prompt_logprobs,
        )

    def _returned(self) -> list[GrowingSample]:
        """The samples that the answer has: all, or the best `n` of `best_of`, best first."""
        if not _ranks(self.params):
            return self.all_samples()
        # The sort is stable, so equal samples keep the order in which they were drawn.
        ranked = sorted(self.all_samples(), key=lambda sample: -sample.score())
        return ranked[: self.params.n]


def check_beginning(request: EngineRequest) -> None:
    """Raises ParamsError for a request that cannot have `output_ids`."""
    params, inputs = request.params, request.inputs
    wrong = {
        "beams": request.beams is not None,
        "best_of": _ranks(params),
        "prompt_logprobs": inputs.score,
        "mirostat, whose state after them is not known": request.carries_state,
        "hidden states": inputs.hidden_states,
        "images, audio or embeddings": bool(inputs.media) or inputs.embeds is not None,
    }
    for name, given in wrong.items():
        if given:
            raise ParamsError(f"output_ids must come without {name}; leave one of them out")


def with_ranking_logprobs(params: SamplingParams) -> SamplingParams:
    """The parameters, with logprobs for `best_of` to rank by where the request itself asks for none."""
    return params.replace_unchecked(logprobs=0) if _ranks(params) and not params.lists_logprobs else params


def _ranks(params: SamplingParams) -> bool:
    """Whether more samples are drawn than returned; while they run, all are kept in the order of their indices."""
    return params.best_of is not None and params.best_of > params.n


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The largest number of tokens that prompt and output may have together, and what sets it."""

    length: int
    kind: Literal["context", "cache"] = "context"

    @classmethod
    def of(cls, max_length: int, cache_length: int | None) -> TokenBudget:
        """The smaller of the model's context and the cache of one request."""
        return cls(max_length) if cache_length is None or cache_length >= max_length else cls(cache_length, "cache")

    def limit(self, params: SamplingParams, prompt_length: int) -> tuple[int, Stop]:
        """The largest number of output tokens of a sample, and the stop that tells what limits it."""
        left = self.length - prompt_length
        if params.max_tokens is None or params.max_tokens > left:
            return left, Stop(kind=self.kind)
        return params.max_tokens, Stop(kind="max_tokens")


def cut_prompt(params: SamplingParams, prompt_ids: Sequence[int], budget: TokenBudget, inputs: Inputs) -> list[int]:
    """The prompt's ids, cut to the last `truncate_prompt_tokens`.

    Raises ParamsError for a prompt that is empty or longer than the budget, and for one that cannot be cut because it
    holds images, audio or embeddings.
    """
    keep = params.truncate_prompt_tokens
    if keep is not None and (inputs.media or inputs.embeds is not None):
        raise ParamsError(f"truncate_prompt_tokens must be None for images, audio and embeds, got {keep}")
    ids = list(prompt_ids if keep is None else prompt_ids[-keep:])
    length = len(ids) if inputs.embeds is None else len(inputs.embeds)
    if not length:
        raise ParamsError("prompt must hold at least one token, got none; begin it with a BOS token or some text")
    if length > budget.length:
        name = "the model's context" if budget.kind == "context" else "the cache_length"
        raise ParamsError(
            f"prompt must hold at most {budget.length} tokens, {name}, got {length}; "
            f"shorten it or set truncate_prompt_tokens"
        )
    return ids
