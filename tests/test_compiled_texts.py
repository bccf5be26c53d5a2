"""What bad words, stops and patterns are compiled to: made once for all samples, small, and gone with the request."""

from __future__ import annotations

import gc
import random
import string
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import trained_byte_level
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel
from tries import tries

from tirage import LLM, ParamsError, SamplingParams, patterns
from tirage.patterns import compile_pattern
from tirage.server.admission import check_cost
from tirage.server.engine_input import EngineInput
from tirage.server.options import Limits
from tirage.text import BadWords, StopChecker, wrap_tokenizer
from tirage.text.aho_corasick import START, PhraseAutomaton
from tirage.text.bad_words import MASK_BYTES, phrase_masks_of
from tirage.text.stops import automaton_of
from tirage.text.vocabulary import vocabulary_of


def random_words(seed: int, *, count: int = 128, length: int = 250) -> tuple[str, ...]:
    chance = random.Random(seed)
    return tuple("".join(chance.choices(string.ascii_lowercase, k=length)) for _ in range(count))


def bytes_of(make: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that stay when something is made, and the most that there were meanwhile."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        kept, most = tracemalloc.get_traced_memory()
        del made
        return kept, most
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_samples_of_a_request_share_what_its_words_are_compiled_to() -> None:
    llm = LLM("tiny")
    llm.request("Once", SamplingParams(bad_words=["x"], stop=["y"]))

    def of(n: int) -> tuple[int, int]:
        params = SamplingParams(bad_words=random_words(n), bad_words_level="text", n=n, seed=1)
        return bytes_of(lambda: llm.request("Once", params))

    (one, most_of_one), (many, most_of_many) = of(1), of(128)
    assert one > 500_000
    assert many < 1.2 * one
    assert most_of_many < 1.2 * most_of_one
    # 36 bytes for each of 32,000 letters, and little besides.
    assert most_of_one < 4_000_000


@pytest.mark.slow
def test_prompts_of_one_call_share_it_too_and_nothing_stays_afterwards() -> None:
    llm = LLM("tiny")
    params = SamplingParams(bad_words=random_words(3, count=20), bad_words_level="text", seed=1)
    first, second = llm.request("Once", params), llm.request("A dog", params)
    compiled = [request.samples[0]._bad_words._phrases for request in (first, second)]  # type: ignore[union-attr]
    assert compiled[0] is compiled[1]
    kept = llm.tokenizer.memo["phrases"]
    assert compiled[0] in kept.values()
    held = len(kept)
    del first, second, compiled
    gc.collect()
    assert len(kept) == held - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"strings": random_words(5, count=32)}, {"pattern": "(a?){600}b"}], ids=["strings", "pattern"]
)
def test_stops_of_samples_share_what_they_are_compiled_to(options: dict[str, Any]) -> None:
    one, _ = bytes_of(lambda: StopChecker(**options))
    patterns._COMPILED.clear()
    many, _ = bytes_of(lambda: [StopChecker(**options) for _ in range(128)])
    # A place in a text is a few numbers, and for a pattern where each of its parts stands.
    assert many < one + 128 * 2_000


def test_a_matcher_goes_its_own_way_from_a_shared_start() -> None:
    pattern = compile_pattern("(?<=x)ab+")
    one, other = pattern.matcher(), pattern.matcher()
    assert [one.feed(letter) for letter in "xab"] == [None, None, 1]
    assert [other.feed(letter) for letter in "yabxab"] == [None] * 5 + [4]


def test_masks_of_many_places_are_bounded_in_bytes() -> None:
    width = 200_000
    raw = FastTokenizer(WordLevel({f"w{i}": i for i in range(200)}, unk_token="w0"))
    tokenizer = wrap_tokenizer(raw)
    phrases = phrase_masks_of(tokenizer, ["".join(f" w{i}" for i in range(100, 190)) + " w7"], skip_special_tokens=True)
    node, masks = START, list[np.ndarray]()
    for token in range(100, 190):
        masks.append(phrases.mask(node, width))
        node = phrases.after(node, token)
    assert len(masks) * masks[0].nbytes > 2 * MASK_BYTES
    assert sum(mask.nbytes for mask in phrases._masks.values()) <= MASK_BYTES
    last = np.unpackbits(phrases.mask(node, width).view(np.uint8), bitorder="little")
    assert np.flatnonzero(last[:200] == 0).tolist() == [7, *range(70, 80)]


def test_one_vocabulary_serves_every_face_of_a_tokenizer_until_tokens_are_added() -> None:
    raw = FastTokenizer.from_str(trained_byte_level().raw.to_str())
    first = vocabulary_of(wrap_tokenizer(raw), skip_special_tokens=False)
    assert vocabulary_of(wrap_tokenizer(raw), skip_special_tokens=False) is first
    raw.add_tokens(["zebra"])
    token = raw.token_to_id("zebra")
    assert vocabulary_of(wrap_tokenizer(raw), skip_special_tokens=False).exact(b"zebra").tolist() == [token]
    params = SamplingParams(bad_words=["zebra"]).update_with_tokenizer(raw)
    assert (token,) in params.bad_words_token_ids


# Bounds.


@pytest.mark.slow
def test_the_most_words_are_taken_and_hold_and_a_neighbour_says_the_same() -> None:
    llm = LLM("tiny")
    greedy = SamplingParams(temperature=0, max_tokens=6)
    alone = llm.generate("Once upon a time", greedy)[0]
    words = [*random_words(7, count=127, length=256), alone.text[:5]]
    params = greedy.replace(bad_words=words)
    check_cost([EngineInput(params=params)], Limits(), context=100)
    banned, other = llm.generate(["Once upon a time"] * 2, [params, greedy])
    assert alone.text[:5] not in banned.text
    assert other.token_ids == alone.token_ids


@pytest.mark.parametrize(
    ("words", "name"),
    [(random_words(1, count=129, length=3), "--max-bad-words"), (["x" * 257], "--max-bad-word-chars")],
)
def test_more_words_and_longer_ones_are_refused_by_the_server(words: Sequence[str], name: str) -> None:
    with pytest.raises(ParamsError, match=name):
        check_cost([EngineInput(params=SamplingParams(bad_words=words))], Limits(), context=100)


# The automaton against plain search.


@pytest.mark.slow
@tries(150)
@given(
    phrases=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=6),
    text=st.text("abé", max_size=12),
    as_bytes=st.booleans(),
)
def test_an_automaton_finds_what_a_search_finds(phrases: list[str], text: str, as_bytes: bool) -> None:
    wanted: list[Any] = [p.encode() for p in phrases] if as_bytes else phrases
    letters: Any = text.encode() if as_bytes else text
    automaton, node = PhraseAutomaton(wanted), START
    for end in range(1, len(letters) + 1):
        node = automaton.step(node, letters[end - 1] if as_bytes else ord(letters[end - 1]))
        so_far = letters[:end]
        ends = [p for p in automaton.phrases if so_far.endswith(p)]
        assert automaton.complete[node] == (automaton.phrases.index(max(ends, key=len)) if ends else -1)
        begun = {p[d:] for p in wanted for d in range(1, len(p)) if so_far.endswith(p[:d])}
        assert automaton.rests(node, 9) == begun
        assert automaton.rests(node, 1) == {rest for rest in begun if len(rest) == 1}
        claimed = max((d for p in wanted for d in range(1, len(p)) if so_far.endswith(p[:d])), default=0)
        assert automaton.claimed(node) == claimed


def test_equal_stops_are_one_automaton_while_a_sample_has_it() -> None:
    one = automaton_of(("abc", "b"))
    assert automaton_of(["abc", "b"]) is one
    assert automaton_of(("abc",)) is not one


def test_a_place_in_a_text_is_not_shared() -> None:
    tokenizer = trained_byte_level()
    one, other = BadWords(tokenizer, ["ab"]), BadWords(tokenizer, ["ab"])
    one.accept(tokenizer.encode("a")[0])
    assert set(one.forbidden().tolist()) > set(other.forbidden().tolist())
