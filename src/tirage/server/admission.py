"""Which requests are admitted: what one may cost at most, computed before anything is built, against the limits.

Every rule is a row of `PROMPT_RULES` or `REQUEST_RULES`, from which the checks, the refusals and the table in
docs/serving.md come. What a request really spends on its constraint is counted while it runs: `ConstraintBudget`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tirage.llm import LLM
from tirage.params import GuidedDecodingParams, SamplingParams
from tirage.patterns import compile_pattern
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.options import Limits, check_limit

Counted = TypeVar("Counted")
_OWN_LOGPROBS = 20
"""Logprobs of a token of one sample that the context bounds; an answer with more of them counts them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a request may cost at most.

    `samples` are those that run, also where fewer come back, and beams count as samples. `prompt_tokens` are exact for
    ids and embeddings; of a text they are the bytes that it may have, up to the context. `output_tokens` are those of
    all samples. `logprobs` are all that the answer may hold, of prompts, outputs and named tokens, but for 20 of each
    of one sample's own tokens, whose number the context bounds; where each event of a stream has all so far, those of
    outputs count twice.
    `kept_ids` are all that records of tokens may hold. `phrase_chars` are the characters of different stops and bad
    words, which automata are built of, and `stop_states` the states of patterns that a character of every sample
    may visit. `constraints` are different ones, and `constraint_chars` the characters of their texts; `followed_chars`
    counts them for every sample that follows one, and twice for a beam, since a step copies it.
    """

    prompts: int
    samples: int
    prompt_tokens: int
    output_tokens: int
    logprobs: int
    kept_ids: int
    phrase_chars: int
    stop_states: int
    constraints: int
    constraint_chars: int
    followed_chars: int

    @classmethod
    def of(cls, inputs: Sequence[EngineInput], *, context: int) -> Cost:
        """The cost of all prompts of a request, for a model whose prompt and output have at most `context` tokens."""
        counts = [samples_of(each) for each in inputs]
        prompts = [prompt_tokens(each, context) for each in inputs]
        outputs = [output_tokens(*pair, context) for pair in zip(inputs, prompts, strict=True)]
        phrases = {(each.params.stop, each.params.stop_pattern, each.params.bad_words) for each in inputs}
        guided = [each.params.guided_decoding for each in inputs if each.params.guided_decoding is not None]
        chars = {each: constraint_chars(each) for each in dict.fromkeys(guided)}
        return cls(
            prompts=len(inputs),
            samples=sum(counts),
            prompt_tokens=sum(prompts),
            output_tokens=sum(count * each for count, each in zip(counts, outputs, strict=True)),
            logprobs=sum(logprobs(*each) for each in zip(inputs, counts, prompts, outputs, strict=True))
            - max((own_logprobs(*pair) for pair in zip(inputs, outputs, strict=True)), default=0),
            kept_ids=sum(kept_ids(*each) for each in zip(inputs, counts, outputs, strict=True)),
            phrase_chars=sum(map(characters, phrases)),
            stop_states=sum(count * states_of(each.params) for count, each in zip(counts, inputs, strict=True)),
            constraints=len(chars),
            constraint_chars=sum(chars.values()),
            followed_chars=sum(
                followers_of(each) * chars[each.params.guided_decoding]
                for each in inputs
                if each.params.guided_decoding is not None
            ),
        )


@dataclass(frozen=True, slots=True)
class AdmissionRule(Generic[Counted]):
    """`count` of a prompt or of the cost of a request is at most the limit named `limit`; refusals call it `what`."""

    limit: str
    what: str
    count: Callable[[Counted], int]

    def check(self, counted: Counted, limits: Limits) -> None:
        """Raises ParamsError, with the number, the limit and the flag that raises it, for more than the limit."""
        check_limit(limits, self.limit, self.count(counted), self.what)


PROMPT_RULES: tuple[AdmissionRule[EngineInput], ...] = (
    AdmissionRule("max_n", "n", lambda one: one.params.n if one.beams is None else one.beams.num_return_sequences or 1),
    AdmissionRule("max_best_of", "best_of", lambda one: one.params.best_of or 0),
    AdmissionRule("max_beams", "beam_width", lambda one: 0 if one.beams is None else one.beams.beam_width),
    AdmissionRule("max_top_logprobs", "logprobs", lambda one: one.params.logprobs or 0),
    AdmissionRule("max_top_logprobs", "prompt_logprobs", lambda one: one.params.prompt_logprobs or 0),
    AdmissionRule("max_logprob_ids", "number of logprob_token_ids", lambda one: len(one.params.logprob_token_ids)),
    AdmissionRule("max_stop", "stop strings", lambda one: len(one.params.stop)),
    AdmissionRule("max_stop_chars", "stop characters", lambda one: longest(one.params.stop)),
    AdmissionRule("max_bad_words", "number of bad_words", lambda one: len(one.params.bad_words)),
    AdmissionRule("max_bad_words", "number of bad_words_token_ids", lambda one: len(one.params.bad_words_token_ids)),
    AdmissionRule("max_bad_word_chars", "bad_words characters", lambda one: longest(one.params.bad_words)),
    AdmissionRule(
        "max_bad_words", "number of dry_sequence_breakers", lambda one: len(one.params.dry_sequence_breakers or ())
    ),
    AdmissionRule(
        "max_bad_word_chars",
        "dry_sequence_breakers characters",
        lambda one: longest(one.params.dry_sequence_breakers or ()),
    ),
    AdmissionRule("max_logit_bias", "number of logit_bias entries", lambda one: len(one.params.logit_bias or ())),
    AdmissionRule("max_logit_bias", "number of sequence_bias entries", lambda one: len(one.params.sequence_bias or ())),
    AdmissionRule("max_rid", "rid", lambda one: len(one.rid or "")),
)
"""What is counted of each prompt."""

REQUEST_RULES: tuple[AdmissionRule[Cost], ...] = (
    AdmissionRule("max_prompts", "prompts", lambda cost: cost.prompts),
    AdmissionRule("max_samples", "n times the number of prompts", lambda cost: cost.samples),
    AdmissionRule("max_prompt_tokens", "prompt tokens of the request", lambda cost: cost.prompt_tokens),
    AdmissionRule("max_output_tokens", "max_tokens times the number of samples", lambda cost: cost.output_tokens),
    AdmissionRule(
        "max_logprob_entries", "logprob entries of the answer besides one sample's own", lambda cost: cost.logprobs
    ),
    AdmissionRule("max_kept_ids", "tokens that may be recorded times max_kept_ids", lambda cost: cost.kept_ids),
    AdmissionRule("max_phrase_chars", "characters of all stops and bad_words", lambda cost: cost.phrase_chars),
    AdmissionRule("max_stop_states", "states of the stop patterns of all samples", lambda cost: cost.stop_states),
    AdmissionRule("max_constraints", "different constraints of the request", lambda cost: cost.constraints),
    AdmissionRule("max_constraint_chars", "characters of all constraints", lambda cost: cost.constraint_chars),
    AdmissionRule(
        "max_followed_chars",
        "characters of constraints times the samples that follow them",
        lambda cost: cost.followed_chars,
    ),
)
"""What is counted of a request as a whole."""


def check_cost(inputs: Sequence[EngineInput], limits: Limits, *, context: int) -> Cost:
    """The cost of the prompts of a request, of which nothing has been copied or compiled yet.

    Raises ParamsError for one that exceeds a limit.
    """
    check_limit(limits, "max_prompts", len(inputs), "prompts")
    checked = None
    for each in inputs:
        # Prompts of a batch mostly share their parameters.
        if checked is None or each.params is not checked.params or each.beams or each.rid:
            check_prompt(each, limits)
        checked = each
    cost = Cost.of(inputs, context=context)
    for rule in REQUEST_RULES:
        rule.check(cost, limits)
    return cost


def check_prompt(engine_input: EngineInput, limits: Limits) -> None:
    """Raises ParamsError for a prompt of whose parameters one exceeds a limit."""
    for rule in PROMPT_RULES:
        rule.check(engine_input, limits)


def samples_of(engine_input: EngineInput) -> int:
    """How many samples of an input run at once."""
    if engine_input.beams is not None:
        return engine_input.beams.beam_width
    return engine_input.params.best_of or engine_input.params.n


def followers_of(engine_input: EngineInput) -> int:
    """How many states of an input's constraint there may be at once."""
    return samples_of(engine_input) * (1 if engine_input.beams is None else 2)


def prompt_tokens(engine_input: EngineInput, context: int) -> int:
    """The most tokens that an input's prompt can have; longer ones are refused once they are counted."""
    prompt = engine_input.prompt
    if prompt is None or prompt.images or prompt.audio:
        return context
    given = prompt.token_ids if prompt.text is None else prompt.text
    given = prompt.embeds if given is None else given
    # A token of a text takes a byte at least, but for those that begin and end it.
    length = len(given.encode("utf-8", "replace")) + 2 if isinstance(given, str) else len(given)
    return min(length, context, engine_input.params.truncate_prompt_tokens or context)


def output_tokens(engine_input: EngineInput, prompt_tokens: int, context: int) -> int:
    """The most tokens that a sample of an input can have."""
    exact = engine_input.prompt is not None and engine_input.prompt.token_ids is not None
    left = max(0, context - prompt_tokens) if exact else context
    asked = engine_input.params.max_tokens if engine_input.beams is None else engine_input.beams.max_tokens
    return left if asked is None else min(asked, left)


def logprobs(engine_input: EngineInput, samples: int, prompt_tokens: int, output_tokens: int) -> int:
    """How many logprobs the answer to an input may hold, with those of the tokens themselves.

    Those that each event of a stream repeats are held as JSON too, and counted twice.
    """
    params, found = engine_input.params, 0
    named = len(params.logprob_token_ids)
    if params.prompt_logprobs is not None:
        found += prompt_tokens * (1 + params.prompt_logprobs + named)
    if params.lists_logprobs:
        found += copies(engine_input) * samples * output_tokens * (1 + (params.logprobs or 0) + named)
    return found


def copies(engine_input: EngineInput) -> int:
    """How often the logprobs of an output are held."""
    return 2 if engine_input.repeats_logprobs else 1


def kept_ids(engine_input: EngineInput, samples: int, output_tokens: int) -> int:
    """How many ids the records of an input's tokens may hold."""
    params = engine_input.params
    return samples * output_tokens * params.max_kept_ids if params.return_kept else 0


def own_logprobs(engine_input: EngineInput, output_tokens: int) -> int:
    """How many logprobs the tokens of one sample may have, without named tokens and those beyond OpenAI's 20."""
    params = engine_input.params
    own = 1 + min(params.logprobs or 0, _OWN_LOGPROBS)
    return copies(engine_input) * output_tokens * own if params.lists_logprobs else 0


def states_of(params: SamplingParams) -> int:
    """The states of the pattern at which a text stops, all of which one character may visit; 0 without one."""
    return 0 if params.stop_pattern is None else compile_pattern(params.stop_pattern).size


def constraint_chars(guided: GuidedDecodingParams) -> int:
    """The number of characters of a constraint's text, which is JSON where an object or a list is given."""
    given = getattr(guided, guided.mode)
    size = len(given) if isinstance(given, str) else json_chars(given)
    return size + len(guided.whitespace_pattern or "")


def json_chars(value: Any) -> int:
    """The number of characters of a value in JSON, nearly: an object costs as much as the text of it would."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Mapping):
        return 2 + sum(json_chars(name) + json_chars(each) + 2 for name, each in value.items())
    return 2 + sum(json_chars(each) + 1 for each in value) if isinstance(value, (list, tuple)) else 4


def longest(texts: Sequence[str]) -> int:
    """The number of characters of the longest of some texts; 0 without any."""
    return max(map(len, texts), default=0)


def characters(value: Any) -> int:
    """The number of characters of all texts in a value; its nesting is limited as that of a JSON body is."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(characters(each) for pair in value.items() for each in pair)
    return sum(map(characters, value)) if isinstance(value, (list, tuple)) else 0


def longest_text(llm: LLM, limits: Limits) -> int:
    """The most characters that a text for this model may have."""
    return limits.max_chars_per_token * llm.model.max_length


def check_length(engine_input: EngineInput, llm: LLM, limits: Limits) -> None:
    """Raises Refusal for a text that is certainly too long for the model, before time is spent on tokenising it."""
    most, prompt = longest_text(llm, limits), engine_input.prompt
    texts = [engine_input.messages, engine_input.tools, engine_input.template_args] if prompt is None else prompt.text
    # A prompt that will be truncated is tokenised as a whole all the same.
    if (length := characters(texts)) > most:
        raise too_many_characters(length, most, code="context_length_exceeded")


def too_many_characters(length: int, most: int, *, code: str | None = None) -> Refusal:
    """The refusal of a text beyond `longest_text`."""
    text = f"prompt must hold at most {most} characters, got {length}; the operator can raise it with"
    return Refusal(400, f"{text} --max-chars-per-token", param="prompt", code=code)
