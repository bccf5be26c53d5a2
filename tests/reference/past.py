"""Rules of the reference that read the tokens of the past (S-H1 ... S-H5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reference.arithmetic import FLT_MAX, f32
from tirage.params import SamplingParams
from tirage.semantics import Semantics


def counted(scope: str, window: int | None, prompt: Sequence[int], output: Sequence[int]) -> Counter[int]:
    """How often each token occurs in the scope of a penalty; a window counts the tail, whoever said it."""
    if window is not None:
        return Counter([*prompt, *output][-window:])
    return Counter({"prompt": list(prompt), "output": list(output), "both": [*prompt, *output]}[scope])


def frequency_penalty(params: SamplingParams, semantics: Semantics, length: int) -> float:
    """The penalty per occurrence, divided by the number of counted tokens where the semantics says so."""
    penalty = f32(params.frequency_penalty)
    if semantics.frequency_divisor == "none":
        return penalty
    return f32(penalty / max(1, min(length, semantics.penalty_window or length)))


def banned_tokens(
    params: SamplingParams, semantics: Semantics, prompt: Sequence[int], output: Sequence[int], step: int
) -> set[int]:
    """Tokens that a parameter forbids at this step: biases of -inf, bad words, stops before min_tokens, n-grams."""
    banned = {token for token, bias in dict(params.logit_bias or {}).items() if bias == float("-inf")}
    for (*opening, last), bias in params.sequence_bias or ():
        whole = [*prompt, *output]
        if bias == float("-inf") and len(whole) >= len(opening) and whole[len(whole) - len(opening) :] == opening:
            banned.add(last)
    said = [*prompt, *output] if semantics.bad_words_history == "both" else list(output)
    for *opening, last in params.bad_words_token_ids:
        if semantics.bad_words_eos == "dropped" and not opening and last in params.eos_token_ids:
            continue
        if said[len(said) - len(opening) :] == opening and len(said) >= len(opening):
            banned.add(last)
    if step < params.min_tokens:
        banned |= params.all_stop_token_ids
    return banned | _repeating(params.no_repeat_ngram_size, [*prompt, *output])


def _repeating(size: int, tokens: list[int]) -> set[int]:
    """Tokens that would complete an n-gram of `size` tokens which `tokens` holds already."""
    if size == 0 or len(tokens) < size:
        return set()
    opening = tokens[len(tokens) - size + 1 :]
    grams = (tokens[i : i + size] for i in range(len(tokens) - size + 1))
    return {gram[-1] for gram in grams if gram[:-1] == opening}


def dry_penalties(params: SamplingParams, tokens: list[int]) -> dict[int, float]:
    """What DRY subtracts from each token that would prolong a repetition."""
    n = params.dry_last_n
    seen = tokens if n < 0 else tokens[max(0, len(tokens) - n) :]
    longest: dict[int, int] = {}
    for end in range(len(seen) - 1):
        token, length = seen[end + 1], _common_suffix(seen, end, params.dry_breaker_token_ids)
        if length >= params.dry_allowed_length and token not in params.dry_breaker_token_ids:
            longest[token] = max(longest.get(token, 0), length)
    return {t: _dry_penalty(params, length - params.dry_allowed_length) for t, length in longest.items()}


def _common_suffix(tokens: list[int], end: int, breakers: Sequence[int]) -> int:
    """How many tokens up to `end` agree with the end of `tokens`, not crossing a breaker."""
    length = 0
    while length <= end and tokens[end - length] == tokens[-1 - length] not in breakers:
        length += 1
    return length


def _dry_penalty(params: SamplingParams, extra: int) -> float:
    power = 1.0
    for _ in range(extra):
        power = min(power * f32(params.dry_base), 3.4028235e38)
    return min(f32(f32(params.dry_multiplier) * power), FLT_MAX)
