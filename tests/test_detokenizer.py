"""Streams of real vocabularies: trained, bundled, and written in Python; any ids, any cut, the decoder's own text."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_llama import CONFIG, random_tensors
from small_tokenizers import trained_byte_level
from tries import tries

from tirage import LLM, RequestOutputKind, SamplingParams
from tirage.models.checkpoint import build_llama
from tirage.models.config import parse_config
from tirage.text import Tokenizer, load_tokenizer, open_detokenizer, wrap_tokenizer
from tirage.text.detokenizer import WindowDetokenizer

TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)


@cache
def tokenizer_named(name: str) -> Tokenizer:
    if name == "trained":
        return trained_byte_level()
    if name == "bundled":
        return load_tokenizer(Path(str(resources.files("tirage.models") / "tiny" / "tokenizer.json")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import ByT5Tokenizer
    return wrap_tokenizer(ByT5Tokenizer())


def stream(tokenizer: Tokenizer, before: list[int], ids: list[int], *, skip: bool = True) -> str:
    detokenizer = open_detokenizer(tokenizer, before, skip_special_tokens=skip)
    return "".join(map(detokenizer.push, ids)) + detokenizer.finish()


def settled(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> str:
    """What is certain after these ids, an unfinished character left out."""
    return "".join(map(open_detokenizer(tokenizer, [], skip_special_tokens=skip).push, ids))


@pytest.mark.parametrize("name", ["trained", "bundled", "python"])
@tries(50)
@given(text=TEXTS, cut=st.integers(0, 30), skip=st.booleans())
def test_a_text_is_streamed_whole_from_any_place_on(name: str, text: str, cut: int, skip: bool) -> None:
    tokenizer = tokenizer_named(name)
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    shown = settled(tokenizer, ids[:cut], skip=skip)
    assert whole == shown + stream(tokenizer, ids[:cut], ids[cut:], skip=skip)


@tries()
@given(ids=st.lists(st.integers(0, 420), max_size=16), cut=st.integers(0, 16), skip=st.booleans())
def test_any_ids_of_a_trained_byte_level_vocabulary_have_the_decoders_text(
    ids: list[int], cut: int, skip: bool
) -> None:
    tokenizer = tokenizer_named("trained")
    shown = settled(tokenizer, ids[:cut], skip=skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == shown + stream(tokenizer, ids[:cut], ids[cut:], skip=skip)


@pytest.mark.slow
@tries()
@given(ids=st.lists(st.integers(0, 2) | st.integers(259, 1535), max_size=16), skip=st.booleans())
def test_any_pieces_of_the_bundled_vocabulary_have_the_decoders_text(ids: list[int], skip: bool) -> None:
    tokenizer = tokenizer_named("bundled")
    assert tokenizer.decode(ids, skip_special_tokens=skip) == stream(tokenizer, [], ids, skip=skip)


def test_a_tokenizer_written_in_python_has_its_special_tokens_skipped_or_shown() -> None:
    tokenizer = tokenizer_named("python")
    assert isinstance(open_detokenizer(tokenizer), WindowDetokenizer)
    assert {0, 1, 2} <= tokenizer.special_ids
    ids = [*tokenizer.encode("aé", add_special_tokens=False), 1, 0]
    assert stream(tokenizer, [], ids) == "aé"
    assert stream(tokenizer, [], ids, skip=False) == "aé</s><pad>"
    assert {"</s>", "<pad>"} <= tokenizer.special_spellings


class Spaced:
    """A tokenizer that decodes with spaces between its tokens, as old Python ones do between special ones."""

    all_special_ids = (0, 1)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        words = ["<>" if i < 2 else chr(i) for i in ids if i > 1 or not skip_special_tokens]
        return " ".join(words)


@pytest.mark.parametrize(("spaces", "text"), [(True, "a <> <> b"), (False, "a <><> b")])
def test_the_space_between_two_special_tokens_is_left_out_on_request(spaces: bool, text: str) -> None:
    detokenizer = open_detokenizer(
        wrap_tokenizer(Spaced()), [], skip_special_tokens=False, spaces_between_special_tokens=spaces
    )
    assert text == "".join(detokenizer.push(i) for i in (97, 0, 1, 98)) + detokenizer.finish()


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A random model over a trained byte-level vocabulary: it draws broken characters all the time."""
    config = {**CONFIG, "vocab_size": 421, "max_position_embeddings": 200}
    tensors = random_tensors(config)
    model = build_llama(parse_config(config, Path("config.json")), tensors, Path("model"))
    return LLM(model, tokenizer=trained_byte_level(), generation_config={"eos_token_id": 420})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop": ["e", "th"]},
        {"stop_pattern": r"\s\w|\ufffd{2}"},
        {"stop": ["e"], "stop_pattern": "[a-d]", "min_tokens": 9, "include_stop_str_in_output": True},
        {"stop_token_ids": list(range(97, 110)), "include_stop_str_in_output": True},
        {"skip_special_tokens": False, "ignore_eos": True, "spaces_between_special_tokens": False},
        {"output_kind": RequestOutputKind.FINAL_ONLY, "stop": ["e"]},
        {"output_kind": RequestOutputKind.DELTA, "n": 2},
    ],
)
def test_the_deltas_joined_are_the_text_under_every_option(babbler: LLM, options: dict) -> None:
    for seed in range(4):
        params = SamplingParams(seed=seed, max_tokens=24, **options)
        whole = babbler.generate("the cat é日", params)[0]
        parts = list(babbler.stream("the cat é日", params))
        for sample in whole.samples:
            assert sample.text == "".join(part.text for part in parts if part.index == sample.index)
        last = parts[-1].completion
        assert last is not None
        assert whole.samples == last.samples
