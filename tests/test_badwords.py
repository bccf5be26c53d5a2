"""Bad words: what each level forbids, that it forbids no more, and what it cannot enforce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_llama import CONFIG, random_tensors
from small_tokenizers import Letters, byte_level_tokenizer, fallback_tokenizer, trained_byte_level
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel
from tries import tries

import tirage
from tirage import LLM, Completion, ParamsError, SamplingParams
from tirage.models.checkpoint import build_llama
from tirage.models.config import parse_config
from tirage.text import BadWords, Tokenizer, wrap_tokenizer
from tirage.text.vocabulary import TextVocabulary

TOKENIZERS = {
    "byte-level": byte_level_tokenizer(),
    "fallback": fallback_tokenizer(),
    "trained": trained_byte_level(),
}


def bytes_of(tokenizer: Tokenizer, ids: list[int], skip: bool) -> bytes:
    return b"".join(tokenizer.token_bytes(i) for i in ids if not (skip and i in tokenizer.special_ids))


def slow_forbidden(tokenizer: Tokenizer, phrases: list[str], ids: list[int], skip: bool) -> list[int]:
    """Every token after which the text holds one phrase more often, by writing the text out."""

    def occurrences(text: bytes) -> int:
        return sum(text.startswith(p.encode(), at) for p in phrases for at in range(len(text)))

    before = bytes_of(tokenizer, ids, skip)
    alone = occurrences(before)
    every = range(tokenizer.vocab_size or 0)
    return [i for i in every if occurrences(before + bytes_of(tokenizer, [i], skip)) > alone]


PHRASES = st.lists(
    st.text(alphabet="al the<日é", min_size=1, max_size=4) | st.sampled_from(["ll", "日", "<|end", "cat", "A"]),
    min_size=1,
    max_size=3,
    unique=True,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@tries(40)
@given(phrases=PHRASES, text=st.text(alphabet="al the<日é", max_size=6), data=st.data(), skip=st.booleans())
def test_exactly_the_tokens_that_complete_a_phrase_are_forbidden(
    name: str, phrases: list[str], text: str, data: Any, skip: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    size = tokenizer.vocab_size or 0
    ids = tokenizer.encode(text) + data.draw(st.lists(st.integers(0, size - 1), max_size=4))
    words = BadWords(tokenizer, phrases, skip_special_tokens=skip)
    for token in ids:
        words.accept(token)
    expected = slow_forbidden(tokenizer, phrases, ids, skip)
    assert expected == words.forbidden().tolist()
    bits = np.unpackbits(words.mask(size + 5).view(np.uint8), bitorder="little")[: size + 5]
    assert expected == np.flatnonzero(bits == 0).tolist()


def test_a_sorted_vocabulary_finds_beginnings_and_parts() -> None:
    vocabulary = TextVocabulary([
        (b"ab", 3),
        (b"a", 1),
        (b"b\xff\xff", 7),
        (b"\xff", 0),
        (b"abc", 2),
        (b"", 9),
        (b"ab", 8),
    ])
    assert sorted(vocabulary.starting(b"ab")) == [2, 3, 8]
    assert sorted(vocabulary.starting(b"b\xff")) == [7]
    assert sorted(vocabulary.starting(b"\xff")) == [0]
    assert sorted(vocabulary.containing(b"b")) == [2, 3, 7, 8]
    assert vocabulary.starting(b"c").size == 0


def test_a_copy_goes_its_own_way() -> None:
    words = BadWords(TOKENIZERS["byte-level"], ["ab"])
    other = words.copy()
    words.accept(ord("a"))
    assert ord("b") in words.forbidden()
    assert ord("b") not in other.forbidden()


# In a generation.


@pytest.fixture(scope="module")
def babbler() -> LLM:
    """A random model that would say any of its tokens."""
    config = {**CONFIG, "vocab_size": 421, "max_position_embeddings": 200}
    model = build_llama(parse_config(config, Path("config.json")), random_tensors(config), Path("model"))
    return LLM(model, tokenizer=trained_byte_level())


def said(llm: LLM, **options: Any) -> list[Completion]:
    return llm.generate(["x"] * 6, [SamplingParams(seed=s, max_tokens=40, temperature=2, **options) for s in range(6)])


@pytest.mark.slow
def test_no_spelling_of_a_phrase_appears_at_the_level_of_text(babbler: LLM) -> None:
    # "cat" is a token of its own, but the model is made to spell it letter by letter.
    letters = [babbler.tokenizer.encode(letter)[0] for letter in "cat"]
    assert len(babbler.tokenizer.encode("cat")) == 1
    options: dict[str, Any] = {"logit_bias": dict.fromkeys(letters, 20.0), "bad_words": ["cat"]}
    by_sequence = "|".join(completion.text for completion in said(babbler, bad_words_level="sequence", **options))
    assert "cat" in by_sequence
    for level in ("text", "auto"):
        by_text = "|".join(completion.text for completion in said(babbler, bad_words_level=level, **options))
        assert "cat" not in by_text
        assert all(part in by_text for part in ("ca", "at", "tc"))


def test_words_of_one_request_do_not_reach_its_neighbours(babbler: LLM) -> None:
    plain = SamplingParams(seed=1, max_tokens=30)
    bad = plain.replace(bad_words=["e", "a", "1"], bad_words_level="text")
    alone = [babbler.generate("x", params)[0].samples for params in (plain, bad)]
    together = babbler.generate(["x", "x", "x"], [bad, plain, bad])
    assert [alone[1], alone[0], alone[1]] == [completion.samples for completion in together]
    assert alone[0] != alone[1]


def test_a_word_in_the_prompt_is_nothing_to_forbid(babbler: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=5, bad_words=["zzz"], bad_words_level="text")
    assert (
        babbler.generate("zzz", params)[0].token_ids
        == babbler.generate("zzz", params.replace(bad_words=()))[0].token_ids
    )


def test_a_request_that_may_say_nothing_ends_alone_with_an_error(babbler: LLM) -> None:
    a, b = (babbler.tokenizer.encode(letter)[0] for letter in "ab")
    params = SamplingParams(seed=3, bad_words=["a", "b"], bad_words_level="text", allowed_token_ids=[a, b])
    completion = babbler.generate("x", params)[0]
    assert (completion.finish_reason, completion.stop and completion.stop.kind) == ("error", "no_allowed_token")


def test_the_levels_agree_on_a_word_of_one_token(babbler: LLM) -> None:
    token = babbler.tokenizer.encode("日本")
    assert len(token) == 1
    one = SamplingParams(temperature=0, max_tokens=3, logit_bias={token[0]: 100.0})
    assert babbler.generate("x", one)[0].token_ids == (token[0],) * 3
    for level in ("sequence", "text"):
        assert (
            token[0] not in babbler.generate("x", one.replace(bad_words=["日本"], bad_words_level=level))[0].token_ids
        )


def test_an_explanation_shows_the_ban(babbler: LLM) -> None:
    params = SamplingParams(temperature=0, bad_words=["日本"], bad_words_level="text", logit_bias={300: 1.0})
    explanation = babbler.explain("x", params)
    token = babbler.tokenizer.encode("日本")[0]
    assert explanation.token_id != token
    assert "mask" in [stage.kind for stage in explanation.stages]


# What cannot be enforced.


def test_text_without_an_engine_is_refused_by_name() -> None:
    params = SamplingParams(bad_words=["a"], bad_words_level="text")
    with pytest.raises(ParamsError, match="bad_words_level 'text' must come with a mask"):
        tirage.sample(np.zeros(5, np.float32), params)
    mask = np.array([[0b00100]], np.int32)
    assert tirage.sample(np.zeros(5, np.float32), params, mask=mask).token_ids == [2]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["a\ufffd"], "must not hold U\\+FFFD"), (["ok", "\ufffd"], "must not hold U\\+FFFD")],
)
def test_a_phrase_that_broken_bytes_would_spell_is_refused(babbler: LLM, words: list[str], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        babbler.generate("x", SamplingParams(bad_words=words, bad_words_level="text"))


def test_a_tokenizer_whose_text_cannot_be_followed_is_refused() -> None:
    with pytest.raises(ParamsError, match="cannot be followed token by token"):
        BadWords(wrap_tokenizer(Letters()), ["a"])


def test_a_word_that_the_vocabulary_cannot_spell_is_refused() -> None:
    raw = FastTokenizer(WordLevel({"[UNK]": 0, "known": 1}, unk_token="[UNK]"))
    tokenizer = wrap_tokenizer(raw)
    assert SamplingParams(bad_words=["known"]).update_with_tokenizer(tokenizer).bad_words_token_ids == ((1,),)
    with pytest.raises(
        ParamsError,
        match=r"bad_words must be text that this tokenizer can spell, got 'other', for which it has no tokens",
    ):
        SamplingParams(bad_words=["known", "other"]).update_with_tokenizer(tokenizer)


def test_other_levels_are_refused() -> None:
    with pytest.raises(ParamsError, match="bad_words_level must be one of 'auto', 'sequence', 'text', got 'token'"):
        SamplingParams(bad_words_level="token")
