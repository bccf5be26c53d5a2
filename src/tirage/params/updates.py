"""New parameters from old ones: what a model's generation config and its tokenizer add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tirage.errors import ParamsError
from tirage.params.record import specs
from tirage.params.rules import BrokenRuleError, Ids, shown
from tirage.processors import find_processor

if TYPE_CHECKING:
    from tirage.params.sampling import SamplingParams

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


class Tokenizer(Protocol):
    """The part of a tokenizer that parameters need: `tokenizers` and Hugging Face objects both have it.

    `encode` returns ids, or an object with `.ids`. The size of the vocabulary, added tokens included, comes
    from `get_vocab_size()`, `len()` or `vocab_size`; the text of a token from `token_bytes` or `decode`.
    """

    def encode(self, text: str, /, *, add_special_tokens: bool = ...) -> Any: ...


def with_generation_config(
    params: SamplingParams, config: Mapping[str, Any] | object, model_eos: Any, adopt_sampling: bool
) -> SamplingParams:
    """See `SamplingParams.update_with_generation_config`."""
    eos = set(params.eos_token_ids) | set(_ids("model_eos_token_id", model_eos))
    config_eos = _ids("eos_token_id", _entry(config, "eos_token_id"))
    if not params.ignore_eos:
        eos |= set(config_eos)
    changes: dict[str, Any] = {"eos_token_ids": tuple(sorted(eos))}
    if adopt_sampling:
        changes |= _sampling_defaults(params, config)
    return params.replace(**changes)


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


def _sampling_defaults(params: SamplingParams, config: Mapping[str, Any] | object) -> dict[str, Any]:
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


def untokenized(params: SamplingParams) -> tuple[str, ...]:
    """The fields that hold text whose ids are not known yet and that would have an effect."""
    known = set(params.tokenized)
    by_sequence = params.bad_words_level == "sequence"
    names = ["bad_words"] if by_sequence and not known.issuperset(params.bad_words) else []
    if params.dry_multiplier and not known.issuperset(params.dry_sequence_breakers or ()):
        names.append("dry_sequence_breakers")
    if any(find_processor(name).spellings(args) for name, args in params.logits_processors):
        names.append("logits_processors")
    return tuple(names)


def require_tokenized(params: SamplingParams) -> None:
    """Raises ParamsError when some text of `params` has no ids yet."""
    for name in untokenized(params):
        raise ParamsError(
            f"{name} must be tokenised first, got {shown(getattr(params, name))}; "
            "call update_with_tokenizer() or give token ids instead"
        )


def with_tokenizer(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """See `SamplingParams.update_with_tokenizer`."""
    if params.dry_multiplier and params.dry_sequence_breakers is None:
        params = params.replace(dry_sequence_breakers=USUAL_BREAKERS)
    pending = untokenized(params)
    if not pending:
        return params
    changes: dict[str, Any] = {}
    texts = list(params.tokenized)
    if "bad_words" in pending:
        words = _words(tokenizer, params.bad_words)
        changes["bad_words_token_ids"] = (*params.bad_words_token_ids, *words)
        texts += params.bad_words
    if "dry_sequence_breakers" in pending:
        breakers = _containing(tokenizer, params.dry_sequence_breakers or ())
        changes["dry_breaker_token_ids"] = (*params.dry_breaker_token_ids, *breakers)
        texts += params.dry_sequence_breakers or ()
    if "logits_processors" in pending:
        changes["logits_processors"] = tuple(_with_ids(tokenizer, *each) for each in params.logits_processors)
    return params.replace(tokenized=tuple(texts), **changes)


def _with_ids(tokenizer: Tokenizer, name: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A processor with the ids of the tokens that its arguments spell."""
    spelled = find_processor(name).spellings(args)
    return name, {**args, **{key: _token_of(tokenizer, text, key) for key, text in spelled.items()}}


def _token_of(tokenizer: Tokenizer, text: str, key: str) -> int:
    """The token that spells exactly this text, perhaps with the space that an encoding puts before it."""
    found = [token for token in encode(tokenizer, text) if text.encode() in _spellings(tokenizer, token)]
    if len(found) != 1:
        raise ParamsError(
            f"logits_processors argument {key} must be one token of the model, got {shown(text)}, which its tokenizer "
            "does not have as a token; give the id of another"
        )
    return found[0]


def _words(tokenizer: Tokenizer, words: Iterable[str]) -> Iterator[tuple[int, ...]]:
    """The id sequences of each word, at the start of a text and after a space.

    A word that is only whitespace stands for itself; of any other, leading whitespace is dropped, for both
    forms are forbidden anyway.
    """
    size, unknown = vocabulary_size(tokenizer), getattr(tokenizer, "unk_token_id", None)
    for word in words:
        bare = word.lstrip()
        forms = [encode(tokenizer, text) for text in ((bare, f" {bare}") if bare else (word,))]
        spelled = [ids for ids in forms if unknown not in ids]
        if not spelled:
            raise ParamsError(
                f"bad_words must be text that this tokenizer can spell, got {word!r}, which needs its unknown "
                f"token {unknown}; leave the word out"
            )
        for ids in spelled:
            if not ids or not all(0 <= token < size for token in ids):
                raise ParamsError(
                    f"bad_words must be text that this tokenizer encodes to ids in [0, {size}), got {word!r}, "
                    f"which gives {shown(list(ids))}; leave the word out"
                )
            yield ids


def _containing(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Every token of the vocabulary whose text contains one of `texts`."""
    wanted = [text.encode() for text in texts]
    pieces = ((token, _bytes(tokenizer, token)) for token in range(vocabulary_size(tokenizer)))
    return [token for token, piece in pieces if any(part in piece for part in wanted)]


def _spellings(tokenizer: Any, token: int) -> set[bytes]:
    """A token's text, and its name, which it has as a special token even where those are left out of texts."""
    name_of = getattr(tokenizer, "id_to_token", None) or getattr(tokenizer, "convert_ids_to_tokens", str)
    piece = _bytes(tokenizer, token)
    return {piece, piece.removeprefix(b" "), str(name_of(token)).encode()}


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The token ids of `text`, without special tokens."""
    encoded = tokenizer.encode(text, add_special_tokens=False)
    return tuple(int(token) for token in getattr(encoded, "ids", encoded))


def vocabulary_size(tokenizer: Any) -> int:
    """How many ids the tokenizer knows, added tokens included; ParamsError when it does not tell."""
    if hasattr(tokenizer, "get_vocab_size"):
        return int(tokenizer.get_vocab_size(with_added_tokens=True))
    if hasattr(tokenizer, "__len__"):
        return len(tokenizer)
    if getattr(tokenizer, "vocab_size", None) is not None:
        return int(tokenizer.vocab_size)
    raise ParamsError(f"tokenizer must have get_vocab_size(), len() or vocab_size, got {shown(tokenizer)}; wrap it")


def _bytes(tokenizer: Any, token: int) -> bytes:
    if hasattr(tokenizer, "token_bytes"):
        return bytes(tokenizer.token_bytes(token))
    return str(tokenizer.decode([token])).encode()
