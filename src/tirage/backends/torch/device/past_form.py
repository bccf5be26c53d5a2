"""What a request asks of its newest tokens and their order, as arrays for a device: windows, n-grams, phrases, DRY."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.compiled_params import CompiledParams
from tirage.exact import numbers
from tirage.history import MAX_HISTORY, History
from tirage.operators.bad_words import enforced
from tirage.operators.dry import match_lengths, unbroken

ABSENT, ANY = -1, -1
"""What stands where there is no token, or no phrase; in a phrase what agrees with every token."""
MAX_PHRASES, MAX_PHRASE = 2048, 32
"""Phrases of a request, and tokens of one before its last: beyond these the tables would outweigh the logits."""
MAX_POWERS = 4096
"""Lengths of a match that DRY punishes differently, for a base of 1.022 and above."""
_LARGEST = 3.4028235e38


@dataclass(frozen=True, slots=True, eq=False)
class Phrases:
    """Sequences whose last token is forbidden, or biased, once the tokens before it are the newest ones.

    `tokens` int32 [P, K]: those before the last, the newest first, then ANY; `last` int64 [P];
    `bias` float32 [P], -inf for what is forbidden; `own` bool [P]: whether only the output counts.
    """

    tokens: NDArray[np.int32]
    last: NDArray[np.int64]
    bias: NDArray[np.float32]
    own: NDArray[np.bool_]

    @classmethod
    def of(cls, listed: Sequence[tuple[Sequence[int], float, bool]]) -> Phrases | None:
        """The phrases of (ids, bias, own), or None where tables cannot hold them, or biases would be summed."""
        width = max((len(ids) - 1 for ids, _, _ in listed), default=0) or 1
        biased = [ids[-1] for ids, bias, _ in listed if bias != -math.inf]
        if width > MAX_PHRASE or len(listed) > MAX_PHRASES or len(set(biased)) < len(biased):
            return None
        tokens = np.full((len(listed), width), ANY, np.int32)
        for row, (ids, _, _) in zip(tokens, listed, strict=True):
            row[: len(ids) - 1] = ids[-2::-1] if len(ids) > 1 else ()
        return cls(
            tokens,
            np.array([ids[-1] for ids, _, _ in listed], np.int64),
            np.array([numbers.operand(bias) for _, bias, _ in listed], np.float32),
            np.array([own for _, _, own in listed], bool),
        )

    @property
    def biases(self) -> bool:
        """Whether some phrase has a finite bias."""
        return bool(np.isfinite(self.bias).any())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PastForm:
    """How a request's steps follow from its tokens; each is off where it is 0, or empty.

    `window`: how many tokens penalties count, 0 for all. `averages`: whether its frequency penalty is divided by the
    length. `ngram`: the size of sequences that do not repeat. `powers` float32 [E] is DRY's penalty by length beyond
    `allowed`, `dry_window` how many tokens DRY looks at, `breakers` int32 [n] what its matches do not cross.
    """

    window: int
    averages: bool
    ngram: int
    powers: NDArray[np.float32]
    allowed: int
    dry_window: int
    breakers: NDArray[np.int32]
    phrases: Phrases

    @property
    def matches(self) -> bool:
        """Whether it reads how far earlier tokens agree with the newest."""
        return self.ngram > 0 or self.powers.size > 0

    @property
    def reach(self) -> int:
        """How many of the newest tokens it reads at most."""
        return max(
            self.window,
            MAX_HISTORY if self.ngram else 0,
            self.dry_window if self.powers.size else 0,
            self.phrases.tokens.shape[1] if self.phrases.last.size else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSizes:
    """What the rows of a batch share of it: sizes of tables, 0 where no row needs one, and which there are.

    `ring`: newest tokens of a row, a power of two; `matches`: whether some row reads how far they agree. `windows`,
    `ngrams`: whether some row has one. `powers`: DRY's penalties by length; `phrases`, `phrase`: how many, how long.
    """

    ring: int = 0
    matches: bool = False
    windows: bool = False
    ngrams: bool = False
    powers: int = 0
    phrases: int = 0
    phrase: int = 0

    def joined(self, form: PastForm, most: int) -> PastSizes:
        """The least sizes, in powers of two, that also hold a request of at most `most` tokens for now."""
        phrases, phrase = form.phrases.tokens.shape
        return PastSizes(
            ring=max(self.ring, rounded(min(form.reach, most))),
            matches=self.matches or form.matches,
            windows=self.windows or form.window > 0,
            ngrams=self.ngrams or form.ngram > 0,
            powers=max(self.powers, rounded(form.powers.size)),
            phrases=max(self.phrases, rounded(phrases)),
            phrase=max(self.phrase, rounded(phrase) if phrases else 0),
        )


NO_PAST = PastSizes()
"""Of a batch whose rows read nothing of the order of their tokens."""


def rounded(size: int) -> int:
    """The next power of two; 0 stays."""
    return 1 << (size - 1).bit_length() if size else 0


def past_form(given: CompiledParams) -> PastForm | None:
    """The form of compiled parameters, or None where tables of the sizes above cannot hold it."""
    params, semantics = given.params, given.semantics
    phrases = Phrases.of(_listed(given))
    punishes = params.dry_last_n and not given.is_alone
    powers = _powers(params.dry_multiplier, params.dry_base) if punishes else np.zeros(0, np.float32)
    if phrases is None or powers is None:
        return None
    return PastForm(
        window=(semantics.penalty_window or 0) if given.needs_counts else 0,
        averages=bool(params.frequency_penalty) and semantics.frequency_divisor == "length" and not given.is_alone,
        ngram=params.no_repeat_ngram_size,
        powers=powers,
        allowed=params.dry_allowed_length,
        dry_window=MAX_HISTORY if params.dry_last_n < 0 else params.dry_last_n,
        breakers=np.array(params.dry_breaker_token_ids, np.int32),
        phrases=phrases,
    )


def _listed(given: CompiledParams) -> list[tuple[Sequence[int], float, bool]]:
    """Bad words of several tokens and biases of sequences, as (ids, bias, whether only the output counts)."""
    params, semantics = given.params, given.semantics
    words = enforced(params.bad_words_token_ids, params.eos_token_ids, semantics.bad_words_eos)
    own = semantics.bad_words_history == "output"
    found = [(word, -math.inf, own) for word in words if len(word) > 1]
    biased = ((ids, bias, False) for ids, bias in params.sequence_bias or ())
    return [*found, *(each for each in biased if each[1] == -math.inf or not given.is_alone)]


def _powers(multiplier: float, base: float) -> NDArray[np.float32] | None:
    """DRY's penalties by length, until they grow no more; None where that is not within MAX_POWERS."""
    scale, factor, power = float(numbers.f32(multiplier)), float(numbers.f32(base)), 1.0
    found: list[float] = []
    while multiplier and len(found) < MAX_POWERS:
        found.append(min(scale * power, _LARGEST))
        if factor == 1.0 or _LARGEST in (power, found[-1]):
            return np.array(found, np.float32)
        power = min(power * factor, _LARGEST)
    return None if multiplier else np.zeros(0, np.float32)


def blank_past(sizes: PastSizes, vocab_size: int) -> dict[str, NDArray[Any]]:
    """One row, of any shape, of each table of a request that asks nothing of its past.

    `ring` int32 holds its newest tokens, number p in place p modulo the size, and `ahead` int32 how many tokens before
    each agree with the newest ones. The others are those of PastForm, with the length of the prompt, the place of the
    last of `powers`, `breaks`, the bits of breakers, and `unbroken`, the tokens since one.
    """
    return {
        "ring": np.full(sizes.ring, ABSENT, np.int32),
        "ahead": np.zeros(sizes.ring if sizes.matches else 0, np.int32),
        "prompt": np.zeros(int(sizes.phrases > 0), np.int64),
        "window": np.zeros(int(sizes.windows), np.int64),
        "ngram": np.zeros(int(sizes.ngrams), np.int64),
        "powers": np.zeros(sizes.powers, np.float32),
        "last_power": np.zeros(int(sizes.powers > 0), np.int64),
        "breaks": np.zeros(-(-vocab_size // 32) if sizes.powers else 0, np.int32),
        "unbroken": np.zeros(int(sizes.powers > 0), np.int64),
        "phrases": np.full((sizes.phrases, sizes.phrase), ANY, np.int32),
        "phrase_ids": np.full(sizes.phrases, ABSENT, np.int64),
        "phrase_bias": np.zeros(sizes.phrases, np.float32),
        "phrase_own": np.zeros(sizes.phrases, bool),
    }


def fill_past(out: Mapping[str, NDArray[Any]], form: PastForm, history: History) -> None:
    """Writes a request with this history into one row of each table, of any shape, of `blank_past`, but `breaks`."""
    tokens = history.tokens()
    out["prompt"][:], out["window"][:], out["ngram"][:] = history.prompt_length, form.window, form.ngram
    if form.reach:
        _fill_ring(out, tokens)
    if form.powers.size:
        out["powers"][: form.powers.size], out["last_power"][:] = form.powers, form.powers.size - 1
        out["unbroken"][:] = unbroken(tokens, form.breakers)
    phrases = form.phrases
    n, width = phrases.tokens.shape
    if n:
        out["phrases"][:n, :width] = phrases.tokens
        for name, values in (("phrase_ids", phrases.last), ("phrase_bias", phrases.bias), ("phrase_own", phrases.own)):
            out[name][:n] = values


def _fill_ring(out: Mapping[str, NDArray[Any]], tokens: NDArray[np.int32]) -> None:
    size = out["ring"].size
    kept = tokens[max(0, tokens.size - size) :]
    places = np.arange(tokens.size - kept.size, tokens.size) & (size - 1)
    out["ring"][places] = kept
    if out["ahead"].size:
        out["ahead"][places] = match_lengths(kept)
