"""Watermarks: what is left is weighed anew, or drawn by a keyed race (S-M1 ... S-M5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from functools import cache
from typing import Any

from reference.arithmetic import OCTAVE, f32, philox, tiny, weight

WORD, LONG = 2**32, 2**64
LOG2E = float.fromhex("0x1.71547652b82fep+0")


# --- generators of PyTorch (S-M2) -------------------------------------------------------------------------------------


def words(seed: int) -> Iterator[int]:
    """The 32-bit words of MT19937, initialised by the low 32 bits of a seed."""
    state = [seed % WORD]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) % WORD)
    while True:
        for i in range(624):
            y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7FFFFFFF)
            state[i] = state[(i + 397) % 624] ^ y >> 1 ^ (0x9908B0DF if y & 1 else 0)
            z = state[i] ^ state[i] >> 11
            z ^= z << 7 & 0x9D2C5680
            z ^= z << 15 & 0xEFC60000
            yield z ^ z >> 18


@cache
def perm(seed: int, n: int) -> tuple[int, ...]:
    order, random = list(range(n)), words(seed)
    for i in range(n - 1):
        j = i + next(random) % (n - i)
        order[i], order[j] = order[j], order[i]
    return tuple(order)


# --- green lists (S-M3) -----------------------------------------------------------------------------------------------


def is_green(mark: Any, said: Sequence[int], token: int, size: int) -> bool:
    """Whether a token is green after what was said."""
    count = int(size * mark.greenlist_ratio)
    if mark.seeding_scheme == "lefthash":
        return token in perm(mark.key * said[-1] % (LONG - 1), size)[:count]
    table = perm(mark.key, 1_000_003)
    gram = [*said[len(said) - mark.width + 1 :], token]
    factors = [table[t % 1_000_003] + 1 for t in gram]
    seed = min(_signed(_signed(mark.key * a) * factors[-1]) for a in factors)
    return token in perm(seed % (LONG - 1), size)[:count]


def _signed(n: int) -> int:
    return (n + 2**63) % LONG - 2**63


def green_tokens(mark: Any, said: Sequence[int], ranked: Sequence[int], size: int) -> set[int]:
    """Which of the ranked tokens are green, none where the context is too short; `selfhash` looks at 40."""
    if len(said) < mark.width:
        return set()
    looked_at = ranked if mark.seeding_scheme == "lefthash" else ranked[:40]
    return {t for t in looked_at if is_green(mark, said, t, size)}


def bias_of(mark: Any) -> float:
    """What is added to the logits of green tokens where T = 0."""
    return tiny(f32(mark.bias))


def _kgw(mark: Any, w: dict[int, int], green: set[int]) -> dict[int, int]:
    factor = weight(round(f32(mark.bias) * LOG2E * OCTAVE)) // 2**10
    return {t: v if t in green else max(v * factor // 2**30, min(v, 1)) for t, v in w.items()}


# --- tournaments (S-M4) -----------------------------------------------------------------------------------------------


def _hash(state: int, token: int) -> int:
    return ((state + token) * 6364136223846793005 + 1) % LONG


def _contexts(mark: Any, output: Sequence[int]) -> list[int]:
    """The hash of the context before each output token and before the next one."""
    width = mark.ngram_len - 1
    padded, found = [0] * width + list(output), []
    for end in range(len(output) + 1):
        state = 1
        for token in padded[end : end + width]:
            state = _hash(state, token)
        found.append(state)
    return found[width:] if mark.skip_first_ngram_calls else found


def _synthid(mark: Any, w: dict[int, int], output: Sequence[int]) -> dict[int, int]:
    hashes = _contexts(mark, output)
    *before, last = [0] * mark.context_history_size + hashes
    if last in before[len(before) - mark.context_history_size :]:
        return w
    random = words(mark.sampling_table_seed)
    table = [next(random) % 2 for _ in range(mark.sampling_table_size)]
    for key in mark.keys:
        g = {t: table[_signed(_hash(_hash(last, t), key)) % len(table)] for t in w}
        total = sum(w.values())
        won = sum(v for t, v in w.items() if g[t])
        w = {t: v * (((1 + g[t]) * total - won) * 2**30 // total) // 2**30 for t, v in w.items()}
    return w


# --- races (S-M5) -----------------------------------------------------------------------------------------------------


def _race(mark: Any, w: dict[int, int], said: Sequence[int], prompt_length: int) -> int | None:
    """The first token of the race; None where the context stood before an earlier output token."""
    padded = [-1] * mark.width + list(said)
    contexts = [padded[end : end + mark.width] for end in range(prompt_length, len(said) + 1)]
    if contexts[-1] in contexts[:-1]:
        return None
    state = 0
    for token in contexts[-1]:
        state = _words64(mark.key, token % WORD, state, 7)
    exact = Context(prec=80)

    def arrival(token: int) -> Decimal:
        share = exact.divide(Decimal(2 * _words64(mark.key, token, state, 6) + 1), Decimal(2**65))
        return exact.divide(-exact.ln(share), Decimal(w[token]))

    return min((t for t in sorted(w) if w[t]), key=lambda t: (arrival(t), t))


def _words64(key: int, first: int, state: int, domain: int) -> int:
    high, low = philox((first, state % WORD, state // WORD, domain), key)[:2]
    return high * WORD + low


# --- the step ---------------------------------------------------------------------------------------------------------


def marked(
    mark: Any, w: dict[int, int], ranked: Sequence[int], prompt: Sequence[int], output: Sequence[int], size: int
) -> tuple[dict[int, int], int | None]:
    """The weights after the mark, which are those given where it marks nothing, and the token that a race draws."""
    said = [*prompt, *output]
    if mark.scheme == "gumbel":
        return w, _race(mark, w, said, len(prompt))
    wide = {t: v << 60 - sum(w.values()).bit_length() for t, v in w.items()}
    if mark.scheme == "synthid":
        if mark.skip_first_ngram_calls and len(output) < mark.ngram_len - 1:
            return w, None
        new = _synthid(mark, wide, output)
        return (w if new is wide else new), None
    if len(said) < mark.width:
        return w, None
    return _kgw(mark, wide, green_tokens(mark, said, ranked, size)), None
