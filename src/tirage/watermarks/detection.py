"""`detect`: how unlikely a text would be, had it been written without a watermark."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.history import token_array
from tirage.text.tokenizer import Tokenizer, wrap_tokenizer
from tirage.watermarks import Watermark, green_list, gumbel, synthid
from tirage.watermarks.tails import binomial_tail, gamma_tail, sum_tail

_MOST_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What a detector found in a text of `token_count` tokens, of which `scored` could be judged.

    `score` is the number of green tokens (kgw), of won matches (synthid), or the sum of -ln(1 - U) (gumbel); `expected`
    is its mean over texts without this watermark. `p_value` in [0, 1] is the probability that such a text scores at
    least as high.
    """

    scheme: str
    token_count: int
    scored: int
    score: float
    expected: float
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def detect(
    text: str | Iterable[int],
    watermark: Watermark,
    *,
    tokenizer: Any = None,
    vocab_size: int | None = None,
    fingerprint: str | None = None,
) -> Detection:
    """The Detection of a watermark in a text, or in token ids [n] without those of the prompt.

    Every p-value counts each context once, the first time, as a repeated one says nothing new. A text needs the
    `tokenizer` that wrote it: a `Tokenizer`, one of Hugging Face or of `tokenizers`. `vocab_size` is the number of
    columns of the model's logits, which 'kgw' needs, and ids must lie below it; without it, below the tokenizer's size.
    `fingerprint` is what `tokenizer_fingerprint` gave for the tokenizer that wrote the text, where that is known.
    Raises ParamsError for ids outside the vocabulary, for another tokenizer, for a text too short to have a scored
    token, and for what is missing. SPEC.md S-M7.
    """
    if not isinstance(watermark, Watermark):
        raise ParamsError(f"watermark must be a Watermark, got {type(watermark).__name__}")
    wrapped = None if tokenizer is None else wrap_tokenizer(tokenizer)
    _check_fingerprint(wrapped, fingerprint)
    size = _size(watermark, wrapped, vocab_size)
    tokens = _tokens(text, wrapped, size)
    found = _SCORERS[watermark.scheme](watermark, tokens, size)
    if not found.scored:
        raise ParamsError(
            f"text must have more than {watermark.width} tokens for a watermark of scheme {watermark.scheme!r}, got "
            f"{tokens.size}; a p-value that convinces takes about a hundred"
        )
    return found


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A digest of a tokenizer's vocabulary: equal for tokenizers that give every id the same bytes.

    `tokenizer` is a `Tokenizer`, one of Hugging Face or of `tokenizers`.
    """
    wrapped = wrap_tokenizer(tokenizer)
    found = hashlib.sha256()
    for token_id in sorted(wrapped.token_ids()):
        spelled = wrapped.token_bytes(token_id)
        found.update(f"{token_id}:{len(spelled)}:".encode() + spelled)
    return f"sha256:{found.hexdigest()[:32]}"


def _check_fingerprint(tokenizer: Tokenizer | None, fingerprint: str | None) -> None:
    if fingerprint is None:
        return
    if tokenizer is None:
        raise ParamsError("fingerprint must come with a tokenizer to compare, got tokenizer None")
    own = tokenizer_fingerprint(tokenizer)
    if own != fingerprint:
        raise ParamsError(
            f"tokenizer must be the one that wrote the text, whose fingerprint is {fingerprint!r:.60}, got {own!r}"
        )


def _size(watermark: Watermark, tokenizer: Tokenizer | None, vocab_size: int | None) -> int | None:
    if vocab_size is not None:
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, (int, np.integer)) or vocab_size < 1:
            raise ParamsError(f"vocab_size must be an integer >= 1, got {vocab_size!r:.60}")
        return int(vocab_size)
    if watermark.scheme == "kgw":
        raise ParamsError("vocab_size must be the number of columns of the model's logits for 'kgw', got None")
    return None if tokenizer is None else tokenizer.vocab_size


def _tokens(text: str | Iterable[int], tokenizer: Tokenizer | None, size: int | None) -> NDArray[np.int32]:
    if isinstance(text, str):
        if tokenizer is None:
            raise ParamsError("text must come with the tokenizer that wrote it, got tokenizer None; or give token ids")
        text = tokenizer.encode(text, add_special_tokens=False)
    try:
        return token_array(text, "text's token ids", _MOST_TOKENS if size is None else size)
    except ParamsError as error:
        raise ParamsError(f"{error}, or give the tokenizer and the vocabulary of the model that wrote it") from None


# --- the schemes ----------------------------------------------------------------------------------------------------


def _kgw(mark: Watermark, tokens: NDArray[np.int32], size: int | None) -> Detection:
    assert size is not None
    own = mark.seeding_scheme == "selfhash"
    length = mark.width if own else 2
    grams = _different(tokens, length)
    count = green_list.green_count(size, mark.greenlist_ratio)
    green = sum(_is_green(mark, gram, size, count, own=own) for gram in grams)
    p = count / size
    tail = binomial_tail(green, len(grams), p) if 0 < p < 1 else 1.0
    return _detection(mark, tokens, len(grams), green, len(grams) * p, tail)


def _is_green(mark: Watermark, gram: NDArray[np.int64], size: int, count: int, *, own: bool) -> bool:
    if own:
        return green_list.is_green(mark.keys[0], gram, size, count)
    return green_list.is_green_after(mark.keys[0], int(gram[-2]), int(gram[-1]), size, count)


def _synthid(mark: Watermark, tokens: NDArray[np.int32], size: int | None) -> Detection:
    grams = _first_of_contexts(tokens, mark.ngram_len)
    table = synthid.g_table(mark.sampling_table_seed, mark.sampling_table_size)
    state = np.ones(len(grams), np.uint64)
    for column in grams.T:
        state = synthid.hashed(state, column.astype(np.uint64))
    won = sum(int(synthid.g_layer(state, key, table).sum()) for key in mark.keys)
    law = synthid.score_law(mark.keys, mark.sampling_table_seed, mark.sampling_table_size)
    mean = float(np.arange(law.size) @ law) * len(grams)
    return _detection(mark, tokens, len(grams), won, mean, sum_tail(law, len(grams), won) if len(grams) else 1.0)


def _gumbel(mark: Watermark, tokens: NDArray[np.int32], size: int | None) -> Detection:
    grams = _first_of_contexts(tokens, mark.width + 1)
    contexts = gumbel.context_hashes(mark.keys[0], grams[:, :-1])
    u = gumbel.uniforms(mark.keys[0], contexts, grams[:, -1])
    total = sum(-math.log(((1 << 64) - each - 0.5) / (1 << 64)) for each in u.tolist())
    return _detection(mark, tokens, len(grams), total, float(len(grams)), gamma_tail(total, len(grams)))


def _detection(
    mark: Watermark, tokens: NDArray[np.int32], scored: int, score: float, expected: float, p_value: float
) -> Detection:
    return Detection(
        scheme=mark.scheme,
        token_count=int(tokens.size),
        scored=scored,
        score=float(score),
        expected=expected,
        p_value=p_value,
    )


def _grams(tokens: NDArray[np.int32], length: int) -> NDArray[np.int64]:
    if tokens.size < length:
        return np.zeros((0, length), np.int64)
    return np.lib.stride_tricks.sliding_window_view(tokens.astype(np.int64), length)


def _different(tokens: NDArray[np.int32], length: int) -> NDArray[np.int64]:
    """The n-grams of a text, each once, int64 [n, length]."""
    return np.unique(_grams(tokens, length), axis=0)


def _first_of_contexts(tokens: NDArray[np.int32], length: int) -> NDArray[np.int64]:
    """The n-grams whose first tokens stand in the text for the first time, int64 [n, length]: only these are marked."""
    grams = _grams(tokens, length)
    _, first = np.unique(grams[:, :-1], axis=0, return_index=True)
    return grams[np.sort(first)]


_SCORERS: Mapping[str, Callable[[Watermark, NDArray[np.int32], int | None], Detection]] = {
    "kgw": _kgw,
    "synthid": _synthid,
    "gumbel": _gumbel,
}
