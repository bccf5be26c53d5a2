"""What the page of `gm.text.Sampler` says and prints, as it is printed there."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_transformers import IMAGE, LetterTokenizer, SeeingConfig, SmallTransformer, reply, slow_greedy

from tirage import ModelError, ParamsError
from tirage.compat.gemma import ChatSampler, Greedy, RandomSampling, Sampler, SamplerOutput, SamplingState


class Gemma3(SmallTransformer):
    """Names its tokenizer, as the models of the package do."""

    INFO = SimpleNamespace(tokenizer_version=3, default_ckpt=None)


class ImageTokenizer(LetterTokenizer):
    """Letters, and the token that stands for an image."""

    VERSION = 3

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        parts = text.split("<start_of_image>")
        found = super().encode(parts[0])
        for part in parts[1:]:
            found += [IMAGE, *super().encode(part)]
        return found


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's factory of tokenizers, whose own ones are downloaded."""
    tokenizers = SimpleNamespace(from_version=lambda version: {3: ImageTokenizer()}[version])
    gm = SimpleNamespace(text=SimpleNamespace(Tokenizer=tokenizers))
    monkeypatch.setitem(sys.modules, "gemma", SimpleNamespace(gm=gm))


def test_the_first_example() -> None:
    model = Gemma3(bonus=(6, 30.0))
    params, prompt = model.params(), "hello"

    sampler = Sampler(
        model=model,
        params=params,
    )

    output = sampler.sample(prompt)

    assert isinstance(sampler.tokenizer, ImageTokenizer)
    tokens = reply(sampler, prompt)
    assert tokens == slow_greedy(model, [2, *map(ord, prompt)], len(tokens))
    assert output == sampler.tokenizer.decode(tokens)
    assert tokens[-1] == 6


def test_the_example_with_images() -> None:
    model = Gemma3(config=SeeingConfig(), bonus=(6, 8.0))
    sampler = Sampler(model=model, params=model.params(), cache_length=250, max_out_length=20)
    images = np.stack([np.full((4, 4, 3), brightness, np.uint8) for brightness in (20, 240)])

    prompt = """<start_of_turn>user
    I'm hesitating between those two options:

    Option 1: <start_of_image>
    Option 2: <start_of_image>

    Any thoughts ?
    <end_of_turn>
    <start_of_turn>model
    """
    text = sampler.sample(prompt, images=images)

    assert isinstance(text, str)
    state = sampler.sample(prompt, images=images, return_state=True).state
    assert [token for token in state.rows[0].token_ids if token == IMAGE] == [IMAGE, IMAGE]
    swapped = sampler.sample(prompt, images=images[::-1], return_state=True).state
    assert state.rows[0].output_ids != swapped.rows[0].output_ids
    with pytest.raises(ParamsError, match="as many as the prompt has image tokens"):
        sampler.sample(prompt)


def test_the_example_of_a_chat() -> None:
    model = Gemma3(bonus=(6, 14.0))
    params = model.params()

    sampler = ChatSampler(
        model=model,
        params=params,
        multi_turn=True,
        cache_length=250,
        max_out_length=10,
    )

    output0 = sampler.chat("Write a poem about cats.")
    output1 = sampler.chat("And about dogs.")
    output2 = sampler.chat("Which one do you prefer?")

    said = ["Write a poem about cats.", "And about dogs.", "Which one do you prefer?"]
    assert sampler.turns == list(zip(said, [output0, output1, output2], strict=True))


def test_the_signatures_are_the_documented_ones() -> None:
    assert list(inspect.signature(Sampler).parameters) == [
        "model", "params", "tokenizer", "sampling", "forbidden_tokens", "stop_tokens", "cache_length",
        "max_out_length", "pad_length",
    ]  # fmt: skip
    assert {p.kind for p in inspect.signature(Sampler).parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    called = inspect.signature(Sampler.sample).parameters
    assert list(called) == [
        "self", "prompt", "images", "max_new_tokens", "stream", "sampling", "rng", "return_state", "last_state",
        "sharding",
    ]  # fmt: skip
    defaults = {name: p.default for name, p in called.items() if name not in {"self", "prompt"}}
    falses = {"stream": False, "return_state": False}
    assert defaults == {**dict.fromkeys(defaults), **falses}


def small(**options: Any) -> Sampler:
    model = Gemma3()
    return Sampler(model=model, params=model.params(), **{"cache_length": 64, "max_out_length": 8, **options})


def test_the_sampler_is_stateless_and_the_state_is_handed_over() -> None:
    sampler = small()
    assert sampler.sample("hi") == sampler.sample("hi")
    output = sampler.sample("hi", return_state=True)
    assert isinstance(output, SamplerOutput)
    assert isinstance(output.state, SamplingState)
    again = sampler.sample(" you", last_state=output.state, return_state=True)
    assert again.state.rows[0].token_ids[:11] == (*output.state.rows[0].token_ids,)
    assert sampler.sample(" you", last_state=output.state) == again.text


def test_every_kind_of_prompt_gives_its_kind_of_answer() -> None:
    sampler = small()
    alone, state = sampler.sample("hi"), sampler.sample("hi", return_state=True)
    assert sampler.sample(["hi"]) == [alone]
    assert sampler.sample(["hi"], return_state=True).text == [state.text]
    assert "".join(sampler.sample("hi", stream=True)) == alone
    steps = list(sampler.sample(["hi", "you"], stream=True, return_state=True))
    assert ["".join(parts) for parts in zip(*(step.text for step in steps), strict=True)] == sampler.sample([
        "hi",
        "you",
    ])
    assert steps[-1].tokens.shape == (2, 8)


def test_a_method_of_one_call_replaces_the_samplers_own() -> None:
    assert small(sampling=RandomSampling()).sample("hi", sampling=Greedy()) == small().sample("hi")
    assert small().sampling == Greedy()
    assert small(sampling=RandomSampling()).sample("hi", rng=1) == small().sample(
        "hi", sampling=RandomSampling(), rng=1
    )


def test_the_tokenizer_of_another_version_is_refused() -> None:
    with pytest.raises(ModelError, match="tokenizer must be of the model's version, which is 3, got 2"):
        small(tokenizer=type("Older", (LetterTokenizer,), {"VERSION": 2})())


def test_without_the_package_the_model_cannot_name_its_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gemma", None)
    with pytest.raises(ModelError, match="tokenizer 3 of the model needs the gemma package; pip install gemma"):
        small()


def test_the_tokenizer_is_the_users_own_and_stays_as_it_is() -> None:
    tokenizer = ImageTokenizer()
    sampler = small(tokenizer=tokenizer)
    assert sampler.tokenizer is tokenizer
    assert ChatSampler(model=sampler.model, params=sampler.params, tokenizer=tokenizer).tokenizer is tokenizer
    assert sampler.sample("hi") == tokenizer.decode(reply(sampler, "hi"))


class HighBytes(LetterTokenizer):
    def decode(self, ids: Any) -> str:
        return bytes(int(i) + 100 for i in ids if i).decode("utf-8", "replace")


def test_a_text_is_what_its_stream_joins_to_where_bytes_are_no_characters() -> None:
    options: dict[str, Any] = {"sampling": RandomSampling(), "rng": 3}
    for tokenizer in (HighBytes(), LetterTokenizer()):
        text = small(tokenizer=tokenizer).sample("hello", **options)
        assert text == "".join(small(tokenizer=tokenizer).sample("hello", stream=True, **options))
        assert ("\ufffd" in text) == isinstance(tokenizer, HighBytes)


# What the page does not have.


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    from tirage.compat import gemma

    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = gemma.Other
