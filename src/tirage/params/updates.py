"""New parameters from old ones: what a model's generation config and its tokenizer add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tirage.errors import ParamsError
from tirage.fields.record import specs
from tirage.fields.rules import BrokenRuleError, Ids, shown
from tirage.params.sampling_fields import SamplingFields
from tirage.processors import find_processor

if TYPE_CHECKING:
    from tirage.text.token_lookup import TokenLookup

Params = TypeVar("Params", bound=SamplingFields)

ADOPTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "no_repeat_ngram_size",
)
"""Fields of a generation config that mean the same as the parameter of that name."""


class TokenizerLike(Protocol):
    """The part of a tokenizer that parameters need: `tokenizers` and Hugging Face objects both have it.

    `encode` returns ids, or an object with `.ids`; `decode` takes them back. The size of the vocabulary, added tokens
    included, comes from `get_vocab_size()`, `len()` or `vocab_size`.
    """

    def encode(self, text: str, /, *, add_special_tokens: bool = ...) -> Any: ...


def with_generation_config(
    params: Params, config: Mapping[str, Any] | object, model_eos: Any, adopt_sampling: bool
) -> Params:
    """See `SamplingParams.update_with_generation_config`."""
    eos = set(params.eos_token_ids) | set(_ids("model_eos_token_id", model_eos))
    config_eos = _ids("eos_token_id", _entry(config, "eos_token_id"))
    if not params.ignore_eos:
        eos |= set(config_eos)
    found = tuple(sorted(eos))
    if found != params.eos_token_ids:
        params = params.replace_unchecked(eos_token_ids=found)
    adopted = _sampling_defaults(params, config) if adopt_sampling else {}
    return params.replace(**adopted) if adopted else params


def _entry(config: Mapping[str, Any] | object, name: str) -> Any:
    if isinstance(config, Mapping):
        return config.get(name)
    if config is None or isinstance(config, (str, bytes, int, float, Sequence)):
        raise ParamsError(
            f"generation_config must be a mapping or an object with attributes, got {shown(config)}; use {{}} for none"
        )
    return getattr(config, name, None)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    listed = value if isinstance(value, (list, tuple, set, frozenset, range)) else [value]
    try:
        return Ids().check(listed) or ()
    except BrokenRuleError as broken:
        raise ParamsError(
            f"{name} must be {broken.rule}, got {shown(broken.value)}; use None for no EOS token"
        ) from None


def _sampling_defaults(params: SamplingFields, config: Mapping[str, Any] | object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ADOPTED:
        value = _entry(config, name)
        if value is not None and getattr(params, name) == specs(type(params))[name].default:
            found[name] = value
    if _entry(config, "do_sample") is False and params.temperature == 1.0:
        found["temperature"] = 0.0
    return found


USUAL_BREAKERS = ("\n", ":", '"', "*")
"""llama.cpp's sequence breakers, used where a tokenizer is at hand and the request names none."""


def untokenized(params: SamplingFields) -> tuple[str, ...]:
    """The fields that hold text whose ids are not known yet and that would have an effect."""
    known = set(params.tokenized)
    names = ["bad_words"] if params.bad_words_level != "text" and not known.issuperset(params.bad_words) else []
    if params.dry_multiplier and not known.issuperset(params.dry_sequence_breakers or ()):
        names.append("dry_sequence_breakers")
    if any(find_processor(name).spellings(args) for name, args in params.logits_processors):
        names.append("logits_processors")
    return tuple(names)


def require_tokenized(params: SamplingFields) -> None:
    """Raises ParamsError when some text of `params` has no ids yet."""
    for name in untokenized(params):
        raise ParamsError(
            f"{name} must be tokenised first, got {shown(getattr(params, name))}; "
            "call update_with_tokenizer() or give token ids instead"
        )


def with_tokenizer(params: Params, tokenizer: TokenizerLike) -> Params:
    """See `SamplingParams.update_with_tokenizer`."""
    if params.dry_multiplier and params.dry_sequence_breakers is None:
        params = params.replace(dry_sequence_breakers=USUAL_BREAKERS)
    pending = untokenized(params)
    if not pending:
        return params
    changes: dict[str, Any] = {}
    spellings = _spellings(tokenizer)
    texts = list(params.tokenized)
    if "bad_words" in pending:
        given = params.bad_words_token_ids
        changes["bad_words_token_ids"] = (*given, *spellings.words(params.bad_words, given))
        texts += params.bad_words
    if "dry_sequence_breakers" in pending:
        breakers = spellings.containing(params.dry_sequence_breakers or ())
        changes["dry_breaker_token_ids"] = (*params.dry_breaker_token_ids, *breakers)
        texts += params.dry_sequence_breakers or ()
    if "logits_processors" in pending:
        changes["logits_processors"] = tuple(_with_ids(spellings, *each) for each in params.logits_processors)
    return params.replace(tokenized=tuple(texts), **changes)


def _with_ids(spellings: TokenLookup, name: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A processor with the ids of the tokens that its arguments spell."""
    spelled = find_processor(name).spellings(args)
    return name, {**args, **{key: _token_of(spellings, text, key) for key, text in spelled.items()}}


def _token_of(spellings: TokenLookup, text: str, key: str) -> int:
    token = spellings.token(text)
    if token is None:
        raise ParamsError(
            f"logits_processors argument {key} must be one token of the model, got {shown(text)}, which its tokenizer "
            "does not have as a token; give the id of another"
        )
    return token


def _spellings(tokenizer: Any) -> TokenLookup:
    # Imported here because it brings what reads a vocabulary, which parameters alone never need.
    from tirage.text.token_lookup import token_lookup_of

    return token_lookup_of(tokenizer)
