"""Bad words, breakers and tokens named by their text, with a tokenizer of every family."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import Letters, every_family, wordpiece_tokenizer

import tirage
from tirage import LLM, ParamsError, SamplingParams
from tirage.operators.bad_words import completing
from tirage.text import BadWords, Tokenizer, enforceable_phrases, open_detokenizer, wrap_tokenizer
from tirage.text.token_lookup import TokenLookup, folded

FAMILIES = every_family() | {"tiny": LLM("tiny").tokenizer}
WORDS = (",", ".", "ed", "lived", "bad", "the", "a shy girl", "old man, one", "don't", "badly")
"""Words of one letter and of several, of one token and of several, inside words and between them."""


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """What the library's own decoder writes for tokens inside a text."""
    before = tokenizer.encode("ll", add_special_tokens=False)
    alone = tokenizer.decode(before, skip_special_tokens=False)
    whole = tokenizer.decode([*before, *ids], skip_special_tokens=False)
    assert whole.startswith(alone)
    return whole[len(alone) :]


def sequences(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    return SamplingParams(bad_words=words).update_with_tokenizer(tokenizer).bad_words_token_ids


def blocked(words: Sequence[tuple[int, ...]], ids: Sequence[int]) -> bool:
    """Whether a token of the ids is forbidden after those before it."""
    before = np.array(ids, np.int32)
    return any(token in completing(words, before[:at]) for at, token in enumerate(ids))


def wholly_inside(tokenizer: Tokenizer, ids: Sequence[int], word: str) -> bool:
    """Whether some tokens in a row write exactly the word, with or without a space before it, and nothing else."""
    pieces = [tokenizer.inner_bytes(token) for token in ids]
    spans = ((i, j) for i in range(len(ids)) for j in range(i + 1, len(ids) + 1))
    joined = (b"".join(pieces[i:j]).decode("utf-8", "replace") for i, j in spans)
    return any(text.strip(" ") and folded(text) == folded(word) for text in joined)


@pytest.mark.parametrize("name", FAMILIES)
def test_inner_bytes_are_what_the_decoder_adds_to_a_text(name: str) -> None:
    tokenizer, chance = FAMILIES[name], random.Random(1)
    # Parts of characters come out as signs for broken bytes, of which decoders put different numbers.
    whole = [token for token in tokenizer.token_ids() if "\ufffd" not in text_of(tokenizer, [token])]
    for _ in range(60):
        some = chance.choices(whole, k=4)
        assert text_of(tokenizer, some).encode() == b"".join(map(tokenizer.inner_bytes, some))
    assert tokenizer.adds_up


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_forbidden_wherever_the_tokenizer_writes_it_with_tokens_of_its_own(name: str, word: str) -> None:
    tokenizer = FAMILIES[name]
    words, seen = sequences(tokenizer, [word]), 0
    befores = ("", " ", "\n", "he ", "he", "x", "b", "one, ", "7", "(", '"', "the end.", "an old", "日本")
    for before in befores:
        for after in ("", " ", " man", ".", "s", "7", "\n"):
            ids = tokenizer.encode(before + word + after, add_special_tokens=False)
            if wholly_inside(tokenizer, ids, word):
                seen += 1
                assert blocked(words, ids), (before, after, ids)
    assert seen


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("word", WORDS)
def test_every_token_that_spells_a_word_is_forbidden_and_no_other_single_one(name: str, word: str) -> None:
    tokenizer = FAMILIES[name]
    single = {ids[0] for ids in sequences(tokenizer, [word]) if len(ids) == 1}
    spelled = {token: text_of(tokenizer, [token]) for token in tokenizer.token_ids()}
    assert single == {token for token, text in spelled.items() if text in {word, f" {word}"}}


@pytest.mark.parametrize("name", FAMILIES)
def test_sequences_are_those_of_the_words_and_none_ends_with_another(name: str) -> None:
    tokenizer = FAMILIES[name]
    words = sequences(tokenizer, WORDS)
    assert len(set(words)) == len(words)
    for ids in words:
        assert {folded(text_of(tokenizer, ids))} <= {folded(word) for word in WORDS}
        assert not any(ids[at:] in words for at in range(1, len(ids)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=15)
@given(
    words=st.lists(st.sampled_from(WORDS) | st.text("abdelth ,.", min_size=1, max_size=3), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_no_spelling_of_a_word_is_written_at_the_level_of_text(name: str, words: list[str], seed: int) -> None:
    tokenizer, chance = FAMILIES[name], random.Random(seed)
    phrases, drawn = BadWords(tokenizer, words, skip_special_tokens=False), list[int]()
    every = np.array(tokenizer.token_ids())
    # Tokens that could spell the words are drawn most of the time.
    likely = [t for t in every.tolist() if any(text_of(tokenizer, [t]).strip() in word for word in words)]
    for _ in range(12):
        forbidden = set(phrases.forbidden().tolist())
        choices = [t for t in (likely if chance.random() < 0.8 else every.tolist()) if t not in forbidden]
        if not choices:
            break
        drawn.append(chance.choice(choices))
        phrases.accept(drawn[-1])
    text = text_of(tokenizer, drawn)
    assert not any(word in text for word in words), (text, words)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("words", [(" the",), (" ", "lived"), ("a", " b"), ("ed", " old man")])
def test_a_space_that_the_start_of_a_text_loses_does_not_count(name: str, words: tuple[str, ...]) -> None:
    tokenizer, chance = FAMILIES[name], random.Random(repr(words))
    every = tokenizer.token_ids()

    def occurrences(ids: list[int]) -> int:
        text = tokenizer.decode(ids, skip_special_tokens=False)
        return sum(text.startswith(word, at) for word in words for at in range(len(text)))

    # Of tokens of spaces alone the start of a text may be several.
    spaces = [token for token in every if not tokenizer.inner_bytes(token).strip(b" ")]
    # After part of a character the library's decoder has no text for a byte.
    whole = [token for token in every if tokenizer.inner_bytes(token).decode("utf-8", "ignore")]
    for begin in ([], *([token] for token in spaces), *([chance.choice(whole)] for _ in range(3))):
        start = open_detokenizer(tokenizer, skip_special_tokens=False).start
        phrases, drawn = BadWords(tokenizer, words, skip_special_tokens=False, start=start), list[int]()
        for token in begin:
            phrases.accept(token)
            drawn.append(token)
        before = occurrences(drawn)
        expected = [token for token in every if occurrences([*drawn, token]) > before]
        assert phrases.forbidden().tolist() == expected


@pytest.mark.slow
def test_a_chat_may_begin_with_a_word_whose_space_it_loses() -> None:
    llm = LLM("tiny")
    params = SamplingParams(temperature=0, max_tokens=4, bad_words_level="text")
    free = llm.chat([{"role": "user", "content": "Once"}], params).text
    first = free.split()[0]
    assert free.startswith(first)
    assert llm.chat([{"role": "user", "content": "Once"}], params.replace(bad_words=[f" {first}"])).text == free


@pytest.mark.parametrize("name", FAMILIES)
def test_breakers_are_the_tokens_whose_text_holds_one(name: str) -> None:
    tokenizer = FAMILIES[name]
    params = SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=[",", "ed", "##"])
    found = params.update_with_tokenizer(tokenizer).dry_breaker_token_ids
    spelled = {token: text_of(tokenizer, [token]) for token in tokenizer.token_ids()}
    # The special tokens of BERT write what they are called, too.
    assert list(found) == [t for t, text in spelled.items() if any(part in text for part in (",", "ed", "##"))]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", [",", ".", "d"])
def test_a_token_is_found_by_its_text(name: str, text: str) -> None:
    tokenizer = FAMILIES[name]
    token = TokenLookup(tokenizer).token(text)
    assert token is not None
    assert text_of(tokenizer, [token]) in {text, f" {text}"}
    assert TokenLookup(tokenizer).token("two words") is None


def test_the_default_level_bans_punctuation_and_endings_of_words() -> None:
    words = [",", ".", "ed"]
    params = SamplingParams(temperature=0, max_tokens=30, bad_words=words)
    text = LLM("tiny").generate("Once upon a time", params)[0].text
    assert len(text) > 60
    assert not any(word in text for word in words)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["sequence", "text", "auto"])
def test_no_word_of_a_greedy_text_comes_back_when_it_is_forbidden(level: str) -> None:
    llm = LLM("tiny")
    greedy = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=12))[0]
    for token in set(greedy.token_ids):
        word = llm.tokenizer.token_bytes(token).decode().strip()
        params = SamplingParams(temperature=0, max_tokens=12, bad_words=[word], bad_words_level=level)
        found = llm.generate("Once upon a time", params)[0]
        spelled = [llm.tokenizer.token_bytes(t).decode("utf-8", "replace").strip() for t in found.token_ids]
        assert word not in spelled
        assert level == "sequence" or word not in found.text


def test_small_letters_of_a_tokenizer_count_and_other_changes_do_not() -> None:
    tokenizer = wordpiece_tokenizer()
    name_of = tokenizer.raw.id_to_token
    assert {name_of(ids[0]) for ids in sequences(tokenizer, ["THE"]) if len(ids) == 1} == {"the"}
    # Accents are dropped, but the token `e` is not the word `é`.
    assert {name_of(token) for ids in sequences(tokenizer, ["é"]) for token in ids} == {"é", "##é"}
    with pytest.raises(ParamsError, match=r"must be text that this tokenizer can spell, got '\\n', for which"):
        sequences(tokenizer, ["\n"])


def test_a_tokenizer_of_ones_own_keeps_to_sequences_by_default() -> None:
    assert enforceable_phrases(wrap_tokenizer(Letters()), ["a"]) == ()
    assert enforceable_phrases(FAMILIES["tiny"], ["a", "b\ufffd"]) == ("a",)


def test_words_with_ids_need_no_mask_unless_the_level_is_text() -> None:
    params = SamplingParams(bad_words=["ed"]).update_with_tokenizer(FAMILIES["tiny"])
    logits = np.zeros(1536, np.float32)
    assert tirage.law(logits, params)[0, params.bad_words_token_ids[0][0]] == 0
    with pytest.raises(ParamsError, match="must come with a mask"):
        tirage.law(logits, params.replace(bad_words_level="text"))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_longest_token_completes_a_phrase_too(name: str) -> None:
    tokenizer = FAMILIES[name]
    longest = max(tokenizer.token_ids(), key=lambda token: len(tokenizer.inner_bytes(token)))
    first = tokenizer.encode(".", add_special_tokens=False)[-1]
    begun = tokenizer.inner_bytes(first).decode()
    words = BadWords(tokenizer, [begun + tokenizer.inner_bytes(longest).decode()], skip_special_tokens=False)
    assert longest not in words.forbidden()
    words.accept(first)
    assert longest in words.forbidden()
