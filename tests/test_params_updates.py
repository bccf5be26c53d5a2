"""`update_with_generation_config` and `update_with_tokenizer`: new objects, never repairs in silence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import decoders as token_decoders

from tirage.errors import ParamsError
from tirage.params import (
    SamplingParams,
    require_tokenized,
)


def refusal(**options: Any) -> str:
    with pytest.raises(ParamsError) as caught:
        SamplingParams(**options)
    return str(caught.value)


# --- generation config


def test_a_generation_config_adds_eos_tokens_to_a_new_object() -> None:
    params = SamplingParams(stop_token_ids=[5])
    updated = params.update_with_generation_config({"eos_token_id": [9, 2, 7]}, model_eos_token_id=2)
    assert updated.eos_token_ids == (2, 7, 9)
    assert updated.all_stop_token_ids == {2, 5, 7, 9}
    assert (params.eos_token_ids, updated.stop_token_ids) == ((), (5,))


@pytest.mark.parametrize("config", [{"eos_token_id": 4}, SimpleNamespace(eos_token_id=4)])
def test_a_generation_config_may_be_a_mapping_or_an_object(config: Any) -> None:
    assert SamplingParams().update_with_generation_config(config).eos_token_ids == (4,)


def test_a_generation_config_without_eos_changes_nothing() -> None:
    assert SamplingParams().update_with_generation_config({}) == SamplingParams()
    assert SamplingParams().update_with_generation_config({"eos_token_id": None}) == SamplingParams()


def test_ignore_eos_takes_only_the_models_own_eos() -> None:
    params = SamplingParams(ignore_eos=True)
    assert params.update_with_generation_config({"eos_token_id": [7, 2]}, 2).eos_token_ids == (2,)


@pytest.mark.parametrize("eos", ["12", -1, True, [1.5], ["1"], 1 << 20])
def test_an_eos_that_is_no_token_id_is_refused(eos: Any) -> None:
    with pytest.raises(ParamsError, match=r"^eos_token_id must be"):
        SamplingParams().update_with_generation_config({"eos_token_id": eos})
    with pytest.raises(ParamsError, match=r"^model_eos_token_id must be"):
        SamplingParams().update_with_generation_config({}, eos)


@pytest.mark.parametrize("config", [None, "eos", 5, [1]])
def test_something_that_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(ParamsError, match=r"^generation_config must be"):
        SamplingParams().update_with_generation_config(config)


def test_sampling_defaults_are_adopted_only_when_asked_and_only_where_unset() -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "repetition_penalty": None, "do_sample": True}
    params = SamplingParams(top_p=0.5)
    assert params.update_with_generation_config(config) == params
    adopted = params.update_with_generation_config(config, adopt_sampling=True)
    assert adopted == params.replace(temperature=0.6, top_k=40)


def test_do_sample_false_is_greedy_when_defaults_are_adopted() -> None:
    config = {"do_sample": False, "temperature": 0.6}
    assert SamplingParams().update_with_generation_config(config, adopt_sampling=True).temperature == 0.0
    set_by_hand = SamplingParams(temperature=0.3)
    assert set_by_hand.update_with_generation_config(config, adopt_sampling=True) == set_by_hand


def test_a_bad_default_in_a_config_is_refused_by_name() -> None:
    with pytest.raises(ParamsError, match=r"^top_p must be in \(0, 1\], got 7"):
        SamplingParams().update_with_generation_config({"top_p": 7}, adopt_sampling=True)


# --- tokenizers


class CharTokenizer:
    """Code points as ids: what any tokenizer with `encode`, `decode` and `len` looks like."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(char) for char in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i) for i in ids)

    def __len__(self) -> int:
        return 128


def word_tokenizer() -> Tokenizer:
    vocab = {"[UNK]": 0, "Ġ": 1, "dam": 2, "Ġdam": 3, "n": 4, "Ċ": 5, ":Ċ": 6, ":": 7}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = token_decoders.ByteLevel()
    tokenizer.add_tokens(["<pad>"])
    return tokenizer


def test_bad_words_are_encoded_bare_and_after_a_space() -> None:
    params = SamplingParams(bad_words=["ab"]).update_with_tokenizer(CharTokenizer())
    # The sequence with the space ends with the one without, which forbids the same token at least as often.
    assert params.bad_words_token_ids == ((97, 98),)
    assert (params.bad_words, params.untokenized) == (("ab",), ())


def test_leading_spaces_of_a_bad_word_make_no_third_form() -> None:
    params = SamplingParams(bad_words=["  ab", "ab"]).update_with_tokenizer(CharTokenizer())
    assert params.bad_words_token_ids == ((97, 98),)


def test_a_bad_word_of_whitespace_stands_for_itself() -> None:
    assert SamplingParams(bad_words=["\n"]).update_with_tokenizer(CharTokenizer()).bad_words_token_ids == ((10,),)


def test_ids_given_by_hand_stay_before_those_of_the_words() -> None:
    params = SamplingParams(bad_words=["a"], bad_words_token_ids=[5, [97]])
    assert params.update_with_tokenizer(CharTokenizer()).bad_words_token_ids == ((5,), (97,))


def test_tokenising_twice_or_without_words_changes_nothing() -> None:
    once = SamplingParams(bad_words=["a"]).update_with_tokenizer(CharTokenizer())
    assert once.update_with_tokenizer(CharTokenizer()) == once
    assert SamplingParams().update_with_tokenizer(CharTokenizer()) == SamplingParams()


def test_new_bad_words_are_tokenised_again() -> None:
    once = SamplingParams(bad_words=["a"]).update_with_tokenizer(CharTokenizer())
    more = once.replace(bad_words=["a", "b"])
    assert more.untokenized == ("bad_words",)
    assert (98,) in more.update_with_tokenizer(CharTokenizer()).bad_words_token_ids


def test_a_tokenizers_object_is_a_tokenizer_and_added_tokens_count() -> None:
    params = SamplingParams(bad_words=["dam", "<pad>"]).update_with_tokenizer(word_tokenizer())
    assert params.bad_words_token_ids == ((2,), (3,), (8,))


def test_a_word_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"^bad_words must be text that this tokenizer encodes.*\[233\]"):
        SamplingParams(bad_words=["é"]).update_with_tokenizer(CharTokenizer())


def test_breakers_are_all_tokens_whose_text_contains_one() -> None:
    params = SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=["\n", "n"])
    assert params.untokenized == ("dry_sequence_breakers",)
    assert params.update_with_tokenizer(word_tokenizer()).dry_breaker_token_ids == (4, 5, 6)


def test_breakers_wait_until_dry_is_on() -> None:
    assert SamplingParams().untokenized == ()
    assert SamplingParams().update_with_tokenizer(word_tokenizer()).dry_breaker_token_ids == ()
    assert SamplingParams(dry_multiplier=0.8).untokenized == ()


def test_without_breakers_of_its_own_dry_takes_the_usual_ones_from_a_tokenizer() -> None:
    params = SamplingParams(dry_multiplier=0.8).update_with_tokenizer(word_tokenizer())
    assert params.dry_sequence_breakers == ("\n", ":", '"', "*")
    assert params.untokenized == ()


def test_text_without_ids_is_refused_by_name() -> None:
    with pytest.raises(ParamsError, match=r"^dry_sequence_breakers must be tokenised first"):
        require_tokenized(SamplingParams(dry_multiplier=0.5, dry_sequence_breakers="n"))
    require_tokenized(SamplingParams(dry_multiplier=0.5).update_with_tokenizer(word_tokenizer()))


def test_a_tokenizer_that_does_not_tell_its_size_is_refused() -> None:
    nameless: Any = SimpleNamespace(encode=lambda text, add_special_tokens: [1], decode=lambda ids: "a")
    with pytest.raises(ParamsError, match=r"^tokenizer must have get_vocab_size\(\)"):
        SamplingParams(bad_words=["a"]).update_with_tokenizer(nameless)
    del nameless.decode
    with pytest.raises(ParamsError, match=r"^tokenizer must have encode and decode, got SimpleNamespace; wrap it"):
        SamplingParams(bad_words=["a"]).update_with_tokenizer(nameless)
