"""The fields of SamplingParams: name, type, default, rule and meaning of each."""

# ruff: noqa: RUF009 - param() returns a dataclass field, as dataclasses.field() does.

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tirage.fields.accepts import Accepts, Biases, Boolean, IdLists, Integer, Number, SequenceBiases, Strings, TokenIds
from tirage.fields.record import Record, check_fields, param
from tirage.fields.rules import (
    TOKEN_ID_LIMIT,
    Bool,
    BrokenRuleError,
    Custom,
    EnumMember,
    Ids,
    IdWords,
    Int,
    OneOf,
    PatternRule,
    Texts,
)
from tirage.operators import declared
from tirage.params.guided import GuidedDecodingParams
from tirage.params.other_names import OTHER_NAMES
from tirage.params.reasoning_parsers import REASONING_PARSERS
from tirage.semantics import Semantics, resolve
from tirage.watermarks import Watermark


class RequestOutputKind(enum.Enum):
    """What comes with each piece of streamed text: all so far, the last piece only, or nothing until the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


def _guided(value: Any) -> GuidedDecodingParams | None:
    if value is None or isinstance(value, GuidedDecodingParams):
        return value
    raise BrokenRuleError("a GuidedDecodingParams or None", value)


def _load_guided(plain: Any) -> Any:
    return GuidedDecodingParams.from_dict(plain) if isinstance(plain, Mapping) else plain


def _semantics(value: Any) -> str | Semantics:
    if not isinstance(value, (str, Semantics)):
        raise BrokenRuleError("a preset name, name@version or a Semantics", value)
    resolve(value)
    return value


def _load_semantics(plain: Any) -> Any:
    if not isinstance(plain, Mapping):
        return plain
    try:
        return Semantics.from_dict(dict(plain))
    except TypeError:
        raise BrokenRuleError("the options of a Semantics", plain) from None


def _is_longer_than_a_token(words: Sequence[Sequence[int]]) -> bool:
    return any(len(word) > 1 for word in words)


_COUNT_OF_IDS = Int(low=0, high=TOKEN_ID_LIMIT, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SamplingFields(Record):
    """What a request asks, each field checked by its own rule; SamplingParams also checks them together."""

    other_names: ClassVar[Mapping[str, str]] = OTHER_NAMES

    n: Accepts[int, Integer] = param(1, Int(low=1), "completions per prompt", source="OpenAI, EasyDeL")
    best_of: Accepts[int | None, Integer | None] = param(
        None,
        Int(low=1, optional=True),
        "completions drawn; where more than `n`, the `n` with the highest log-probability per token are returned",
        source="OpenAI, EasyDeL",
        off=None,
    )
    presence_penalty: Accepts[float, Number] = declared("presence_penalty")
    frequency_penalty: Accepts[float, Number] = declared("frequency_penalty")
    repetition_penalty: Accepts[float, Number] = declared("repetition_penalty")
    temperature: Accepts[float, Number | None] = declared("temperature")
    top_p: Accepts[float, Number] = declared("top_p")
    min_p: Accepts[float, Number] = declared("min_p")
    top_k: Accepts[int, Integer | None] = declared("top_k")
    seed: Accepts[int | None, Integer | None] = param(
        None,
        Int(low=-(2**63), high=2**63 - 1, optional=True),
        "makes the draw repeatable; None takes a fresh seed, which is reported; -1 is a seed like any other",
        source="OpenAI, EasyDeL",
    )
    stop: Accepts[Sequence[str], Strings] = param(
        (), Texts(), "strings that end the text", source="OpenAI, EasyDeL", off=()
    )
    stop_token_ids: Accepts[Sequence[int], TokenIds] = param(
        (), Ids(), "tokens that end the text", source="vLLM, EasyDeL", off=()
    )
    stop_pattern: str | None = param(
        None,
        PatternRule(),
        "regular expression, without look-ahead or back-references, whose match ends the text",
        source="EasyDeL, SGLang",
        off=None,
    )
    bad_words: Accepts[Sequence[str], Strings] = param(
        (),
        Texts(),
        "strings that are never generated, as `bad_words_level` says; `update_with_tokenizer` finds their ids",
        source="EasyDeL, FastDeploy",
        off=(),
    )
    ignore_eos: Accepts[bool, Boolean] = param(
        False,
        Bool(),
        "EOS is an ordinary token and ends nothing; other stops still do",
        source="EasyDeL",
        off=False,
    )
    max_tokens: Accepts[int | None, Integer | None] = param(
        16,
        Int(low=0, optional=True),
        "largest number of new tokens; None fills the context, 0 gives an empty completion",
        source="OpenAI, EasyDeL",
    )
    min_tokens: Accepts[int, Integer] = param(
        0, Int(low=0), "no stop of any kind before this many new tokens", source="vLLM, EasyDeL", off=0
    )
    logprobs: Accepts[int | None, Integer | None] = param(
        None,
        _COUNT_OF_IDS,
        "report the log-probability of each drawn token and of this many most likely ones",
        source="OpenAI, EasyDeL",
        off=None,
    )
    prompt_logprobs: Accepts[int | None, Integer | None] = param(
        None, _COUNT_OF_IDS, "the same for the tokens of the prompt", source="vLLM, EasyDeL", off=None
    )
    detokenize: Accepts[bool, Boolean] = param(True, Bool(), "turn tokens into text", source="vLLM, EasyDeL")
    skip_special_tokens: Accepts[bool, Boolean] = param(
        True, Bool(), "leave special tokens out of the text", source="EasyDeL"
    )
    spaces_between_special_tokens: Accepts[bool, Boolean] = param(
        True, Bool(), "put spaces between special tokens that are shown", source="Hugging Face, EasyDeL"
    )
    include_stop_str_in_output: Accepts[bool, Boolean] = param(
        False, Bool(), "the text keeps the stop string that ended it", source="vLLM, EasyDeL", off=False
    )
    output_kind: Accepts[RequestOutputKind, RequestOutputKind | str] = param(
        RequestOutputKind.CUMULATIVE,
        EnumMember(RequestOutputKind),
        "what comes with each piece of streamed text",
        source="vLLM, EasyDeL",
    )
    truncate_prompt_tokens: Accepts[int | None, Integer | None] = param(
        None,
        Int(low=1, optional=True),
        "keep only the last tokens of the prompt",
        source="vLLM, EasyDeL",
        off=None,
    )
    guided_decoding: GuidedDecodingParams | None = param(
        None,
        Custom(
            "a GuidedDecodingParams or None",
            _guided,
            lambda value: None if value is None else value.to_dict(),
            _load_guided,
        ),
        "a constraint that the text must satisfy",
        source="vLLM, EasyDeL",
        off=None,
    )
    logit_bias: Accepts[Mapping[int, float] | None, Biases | None] = declared("logit_bias")
    allowed_token_ids: Accepts[Sequence[int] | None, TokenIds | None] = param(
        None,
        Ids(optional=True, empty=False),
        "only these tokens can be drawn",
        source="vLLM, EasyDeL",
        off=None,
    )
    extra_args: Mapping[str, Any] | None = declared("extra_args")
    bad_words_token_ids: Accepts[Sequence[Any], IdLists] = param(
        (),
        IdWords(),
        "token sequences that are never generated; a bare id is a word of one token",
        source="SGLang, FastDeploy",
        off=(),
        needs_history=_is_longer_than_a_token,
    )
    bad_words_level: str = param(
        "auto",
        OneOf(("auto", "sequence", "text")),
        "what of `bad_words` is forbidden: 'sequence' the tokens and token sequences by which the tokenizer writes a "
        "word, 'text' every spelling of its text, which takes `LLM` or the server, 'auto' both, as far as possible",
        source="tirage",
        off="auto",
    )
    logprob_token_ids: Accepts[Sequence[int], TokenIds] = param(
        (), Ids(), "report the log-probabilities of these tokens at every step", source="SGLang", off=()
    )
    logprobs_mode: str = param(
        "raw",
        OneOf(("raw", "processed", "sampled")),
        "which law is reported: the model's, after penalties and masks, or the one the draw used",
        source="vLLM",
    )
    return_kept: Accepts[bool, Boolean] = param(
        False,
        Bool(),
        "record with each token the ids that could have been drawn, their mass, and its logprob in all three modes",
        source="tirage",
        off=False,
    )
    max_kept_ids: Accepts[int, Integer] = param(
        4096,
        Int(low=1, high=TOKEN_ID_LIMIT),
        "most ids that the record of a token may hold; a token that could have been more of them is an error",
        source="tirage",
    )
    logits_processors: Sequence[tuple[str, Mapping[str, Any]]] = declared("logits_processors")
    close_grammar: Accepts[bool, Boolean] = param(
        False, Bool(), "near `max_tokens`, steer a constraint to its end", source="tirage", off=False
    )
    forcing: str | None = param(
        None,
        OneOf((None, "canonical")),
        "'canonical': text that a constraint leaves no choice about is taken without a draw, in the tokenizer's tokens",
        source="llguidance, SGLang",
        off=None,
    )
    reasoning_parser: str | None = param(
        None,
        OneOf((None, *REASONING_PARSERS)),
        "names the tags around reasoning, after which constraints hold; None is the parser of the LLM or the server",
        source="vLLM, SGLang",
        off=None,
    )
    thinking_budget: Accepts[int | None, Integer | None] = param(
        None,
        Int(low=0, optional=True),
        "tokens of reasoning after which its end tag is forced",
        source="SGLang, vLLM",
        off=None,
    )
    semantics: str | Semantics = param(
        "canonical",
        Custom(
            "a preset name, name@version or a Semantics",
            _semantics,
            lambda value: value if isinstance(value, str) else value.to_dict(),
            _load_semantics,
        ),
        "whose meaning the parameters have: stage order and the rule of each stage",
        source="tirage",
    )
    top_a: Accepts[float, Number] = declared("top_a")
    typical_p: Accepts[float, Number] = declared("typical_p")
    epsilon_cutoff: Accepts[float, Number] = declared("epsilon_cutoff")
    eta_cutoff: Accepts[float, Number] = declared("eta_cutoff")
    top_n_sigma: Accepts[float, Number] = declared("top_n_sigma")
    top_h: Accepts[float, Number] = declared("top_h")
    xtc_probability: Accepts[float, Number] = declared("xtc_probability")
    xtc_threshold: Accepts[float, Number] = declared("xtc_threshold")
    xtc_protected_ids: Accepts[Sequence[int], TokenIds] = declared("xtc_protected_ids")
    mirostat: Accepts[int, Integer] = declared("mirostat")
    mirostat_tau: Accepts[float, Number] = declared("mirostat_tau")
    mirostat_eta: Accepts[float, Number] = declared("mirostat_eta")
    adaptive_target: Accepts[float, Number] = declared("adaptive_target")
    adaptive_decay: Accepts[float, Number] = declared("adaptive_decay")
    dry_multiplier: Accepts[float, Number] = declared("dry_multiplier")
    dry_base: Accepts[float, Number] = declared("dry_base")
    dry_allowed_length: Accepts[int, Integer] = declared("dry_allowed_length")
    dry_last_n: Accepts[int, Integer] = declared("dry_last_n")
    dry_sequence_breakers: Accepts[Sequence[str] | None, Strings | None] = declared("dry_sequence_breakers")
    dry_breaker_token_ids: Accepts[Sequence[int], TokenIds] = declared("dry_breaker_token_ids")
    no_repeat_ngram_size: Accepts[int, Integer] = declared("no_repeat_ngram_size")
    dynatemp_range: Accepts[float, Number] = declared("dynatemp_range")
    dynatemp_exponent: Accepts[float, Number] = declared("dynatemp_exponent")
    sequence_bias: Accepts[Sequence[tuple[Sequence[int], float]] | None, SequenceBiases | None] = declared(
        "sequence_bias"
    )
    min_keep: Accepts[int, Integer] = declared("min_keep")
    p_less: str | None = declared("p_less")
    tfs: Accepts[float, Number] = declared("tfs")
    smoothing_factor: Accepts[float, Number] = declared("smoothing_factor")
    smoothing_curve: Accepts[float, Number] = declared("smoothing_curve")
    watermark: Accepts[Watermark | None, Watermark | Mapping[str, Any] | None] = declared("watermark")
    eos_token_ids: Accepts[Sequence[int], TokenIds] = param(
        (),
        Ids(),
        "EOS tokens of the model, set by `update_with_generation_config`",
        source="EasyDeL",
        public=False,
    )
    tokenized: Accepts[Sequence[str], Strings] = param(
        (),
        Texts(),
        "bad words and DRY breakers whose ids are known, set by `update_with_tokenizer`",
        source="tirage",
        public=False,
    )

    def __post_init__(self) -> None:
        check_fields(self)
