"""`Gemma4Sampler`: images of any size and audio in their places, over turns and batches, and what is refused.

A small model under JAX takes the same inputs as Gemma 4's; the package's own is compared where it is installed.
"""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from small_transformers import Config, LetterTokenizer, SmallTransformer, reply, slow_greedy

from tirage import ModelError, ParamsError
from tirage.compat.gemma import ChatSampler, Gemma4Sampler, Sampler, gm
from tirage.compat.gemma.media import AUDIO_SOFT, IMAGE_SOFT


class Special(enum.IntEnum):
    PAD = 0
    EOS = 1
    BOS = 2
    IMAGE_PLACEHOLDER = 7
    START_OF_IMAGE = 8
    END_OF_IMAGE = 9
    AUDIO_PLACEHOLDER = 14
    START_OF_AUDIO = 11
    END_OF_AUDIO = 12


class Gemma4Letters(LetterTokenizer):
    special_tokens = Special  # type: ignore[assignment]
    VERSION = 4

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        named = text.replace("<|image|>", chr(Special.IMAGE_PLACEHOLDER)).replace(
            "<|audio|>", chr(Special.AUDIO_PLACEHOLDER)
        )
        return super().encode(named, add_bos=add_bos)


@dataclass(frozen=True)
class Gemma4Config(Config):
    vision_encoder: Any = "vision"
    audio_encoder: Any = "audio"
    use_bidirectional_attention: str | None = None


@dataclass(frozen=True)
class Gemma4(SmallTransformer):
    """Adds to the embedding of each soft token a number of its image, or of its piece of audio."""

    library: str = "jax"
    config: Config = Gemma4Config()
    INFO = SimpleNamespace(tokenizer_version=4)

    def apply(self, variables: Any, tokens: Any, *, images: Any = None, audio: Any = None, **options: Any) -> Any:
        lengths = options.pop("audio_lengths", None)
        counts = options.pop("audio_soft_token_counts", ())
        added = self.with_soft(tokens, images, audio, lengths, counts)
        return super().apply(variables, tokens, images=added, **options)

    def with_soft(self, tokens: Any, images: Any, audio: Any, lengths: Any, counts: tuple[int, ...]) -> Any:
        added = jnp.zeros(tokens.shape[1])
        if images is not None:
            seen = [images.patches[0, number] for number, n in enumerate(images.soft_token_counts) for _ in range(n)]
            added = added.at[jnp.nonzero(tokens[0] == IMAGE_SOFT, size=len(seen))[0]].add(jnp.stack(seen)[:, 0])
        if audio is not None:
            each = audio[0].sum(-1) / lengths[0]
            heard = [each[number] for number, n in enumerate(counts) for _ in range(n)]
            added = added.at[jnp.nonzero(tokens[0] == AUDIO_SOFT, size=len(heard))[0]].add(jnp.stack(heard))
        return added

    def look(self, w: Any, tokens: Any, images: Any) -> Any:
        return w["embed"][tokens] + w["q"][0] * 30 * images[None, :, None]


@dataclass(frozen=True)
class Seen:
    """Stands for the package's PreprocessedVisionInput."""

    patches: Any
    positions_xy: Any
    soft_token_counts: tuple[int, ...]


jax.tree_util.register_dataclass(Seen, ["patches", "positions_xy"], ["soft_token_counts"])


def patchify(images: Any, *, patch_size: int, max_soft_tokens: int, pooling_kernel_size: int) -> Any:
    """Each image as one patch, its brightness; as many soft tokens as it has rows."""
    assert (patch_size, pooling_kernel_size) == (16, 3)
    counts = [min(len(image), max_soft_tokens) for image in images]
    patches = jnp.array([[[np.asarray(image).mean() / 255]] for image in images], jnp.float32)
    return patches, jnp.zeros((len(images), 1, 2), jnp.int32), counts


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two functions of the package that prepare images."""
    for name, members in {
        "gemma.gm.nn.gemma4": {"_transformer": SimpleNamespace(PreprocessedVisionInput=Seen)},
        "gemma.gm.nn.gemma4.vision": {"_preprocessing": SimpleNamespace(preprocess_and_patchify=patchify)},
    }.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)


def sampler(model: Any = None, **options: Any) -> Gemma4Sampler:
    model = Gemma4() if model is None else model
    shared = {"tokenizer": Gemma4Letters(), "cache_length": 64, "max_out_length": 5, "pad_length": (16, 32), **options}
    return Gemma4Sampler(model=model, params=model.params(), **shared)


LIGHT, DARK = np.full((3, 5, 3), 240, np.uint8), np.full((2, 4), 9, np.uint8)
HIGH, LOW = np.full(1600, 0.9, np.float32), np.full(2000, -0.9, np.float32)


@pytest.mark.slow
def test_text_is_what_any_sampler_says() -> None:
    prompt = [2, *map(ord, "hello")]
    assert reply(sampler()) == slow_greedy(SmallTransformer(), prompt, 5)
    assert reply(sampler(), images=[], audio=[]) == reply(sampler())
    assert "".join(sampler().sample("hello", stream=True)) == sampler().sample("hello")
    assert gm.text.Gemma4Sampler is Gemma4Sampler


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_images_and_audio_take_their_places_in_a_prompt() -> None:
    state = sampler().sample("a<|image|>b<|audio|>", images=[LIGHT], audio=[HIGH], return_state=True).state
    ids = list(state.rows[0].token_ids)[:-5]
    seen, heard = [108, 8, -2, -2, -2, 9, 108], [11, -4, -4, 12]
    # 1600 samples have 8 spectra of 320 samples, 160 apart; halved twice they are two tokens.
    assert ids == [2, 97, *seen, 98, *heard]
    said = [reply(sampler(), "a<|image|><|image|>", images=each) for each in ([LIGHT, DARK], [DARK, LIGHT])]
    assert said[0] != said[1]
    heard_first = reply(sampler(), "a<|audio|>", audio=[HIGH])
    assert heard_first != reply(sampler(), "a<|audio|>", audio=[LOW[:1600]])
    assert heard_first == reply(sampler(), "a<|audio|>", audio=[np.append(HIGH, 0)], audio_lengths=[1600])


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_a_later_turn_and_several_prompts_are_read_as_if_alone_and_at_once() -> None:
    one = sampler()
    first = one.sample("hi", return_state=True, max_new_tokens=3).state
    said = list(first.rows[0].token_ids)
    turn = reply(one, "<|image|>b<|audio|>c", images=[DARK], audio=[HIGH], last_state=first)
    assert turn == reply(one, [*said, 7, 98, 14, 99], images=[DARK], audio=[HIGH])
    images, audio = [[LIGHT, DARK], None, [DARK]], [None, None, [LOW]]
    together = reply(one, ["<|image|>a<|image|>", "hi", "<|audio|><|image|>!"], images=images, audio=audio)
    alone = [reply(one, "<|image|>a<|image|>", images=images[0]), reply(one, "hi")]
    assert together == [*alone, reply(one, "<|audio|><|image|>!", images=images[2], audio=audio[2])]
    assert reply(one, ["a<|image|>"], images=[LIGHT]) == [reply(one, "a<|image|>", images=[LIGHT])]


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_a_chat_with_a_gemma_4_takes_images_and_audio() -> None:
    model = Gemma4()
    tokenizer = type("Turns", (Gemma4Letters,), {})()
    chat = ChatSampler(
        model=model, params=model.params(), tokenizer=tokenizer, cache_length=256, max_out_length=4, max_soft_tokens=2
    )
    assert chat.gemma4_sampler.max_soft_tokens == 2
    with pytest.raises(AttributeError, match="use gemma4_sampler"):
        _ = chat.sampler
    replies = {chat.chat("what is <|image|>", images=[image]) for image in (LIGHT, DARK)}
    assert len(replies | {chat.chat("what is <|audio|>", audio=[HIGH])}) == 3
    with pytest.raises(ParamsError, match=r"prompt must name images <\|image\|> with a Gemma 4, got <start_of_image>"):
        chat.chat("<start_of_image>")


def test_a_chat_with_another_model_refuses_audio() -> None:
    model = SmallTransformer()
    chat = ChatSampler(model=model, params=model.params(), tokenizer=LetterTokenizer(), cache_length=64)
    with pytest.raises(AttributeError, match="use sampler"):
        _ = chat.gemma4_sampler
    for options in ({"audio": [HIGH]}, {"audio_lengths": [3]}):
        with pytest.raises(ParamsError, match=r"audio\w* must be None with this model, which is no Gemma 4"):
            chat.chat("hello", **options)
    with pytest.raises(ParamsError, match=r"prompt must be without <\|audio\|>"):
        chat.chat("hear <|audio|>")


def test_a_chat_has_every_field_of_its_sampler_with_the_same_default() -> None:
    chat = {one.name: (one.default, one.default_factory) for one in fields(ChatSampler)}
    taken = {one.name: (one.default, one.default_factory) for one in fields(Gemma4Sampler) if one.init}
    assert {name: chat.get(name) for name in taken} == taken
    assert len(taken) > 12


def test_the_fields_are_the_packages_own() -> None:
    names = [one.name for one in fields(Gemma4Sampler) if one.init]
    assert names[-5:] == [
        "patch_size", "max_soft_tokens", "pooling_kernel_size", "audio_sample_rate", "audio_seq_length",
    ]  # fmt: skip
    one = sampler()
    assert [getattr(one, name) for name in names[-5:]] == [16, 1120, 3, 16000, 750]
    for name in names[-5:]:
        with pytest.raises(ParamsError, match=f"{name} must be an integer >= 1, got 0"):
            sampler(**{name: 0})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"images": LIGHT}, r"images must be a list of uint8 arrays .*; put one image into a list"),
    ({"images": [LIGHT.astype(float)]}, r"images must be a list of uint8 arrays .* got float64 of shape \[3, 5, 3\]"),
    ({"images": [LIGHT, DARK]}, r"images must be as many as the prompt has tokens for them \(7\), which is 1, got 2"),
    ({}, r"which is 1, got 0"),
    ({"audio": HIGH}, "audio must be a list of float arrays .*; put one piece into a list"),
    ({"audio": [HIGH.astype(np.int16)]}, "audio must be finite floats .* got int16 .*; divide int16 by 32768"),
    ({"audio": [HIGH * np.nan]}, "audio must be finite floats"),
    ({"audio": [HIGH[:320]]}, "audio_lengths must be samples .* enough for one token, got 320 at 16000"),
    ({"audio": [HIGH], "audio_lengths": [1601]}, "audio_lengths must be samples that the piece has, which is 1600"),
    ({"audio": [HIGH], "audio_lengths": [1, 2]}, "audio_lengths must hold one length per piece, which is 1, got 2"),
    ({"audio_lengths": [5]}, "audio_lengths must hold one length per piece, which is 0, got 1"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_image_or_audio_is_refused(options: dict[str, Any], message: str) -> None:
    prompt = "a<|audio|>" if "audio" in options else "a<|image|>" if "audio_lengths" not in options else "a"
    with pytest.raises(ParamsError, match=message):
        sampler().sample(prompt, **options)


def test_batches_want_an_entry_for_each_prompt() -> None:
    with pytest.raises(ParamsError, match="images must hold one entry per prompt, which is 2, got 1"):
        sampler().sample(["a<|image|>", "b"], images=[LIGHT])


@pytest.mark.slow
def test_models_that_take_no_images_refuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = Gemma4(config=Gemma4Config(vision_encoder=None, audio_encoder=None))
    with pytest.raises(ParamsError, match="has no vision_encoder; make it text_only=False"):
        sampler(blind).sample("a<|image|>", images=[LIGHT])
    with pytest.raises(ParamsError, match="has no audio_encoder"):
        sampler(blind).sample("a<|audio|>", audio=[HIGH])
    with pytest.raises(ParamsError, match="which is no Gemma 4"):
        sampler(SmallTransformer("jax"), tokenizer=LetterTokenizer()).sample("a", images=[LIGHT])
    with pytest.raises(ParamsError, match="images must be None unless params are JAX arrays"):
        sampler(Gemma4("numpy")).sample("a<|image|>", images=[LIGHT])
    plain = Sampler(model=Gemma4(), params=Gemma4().params(), tokenizer=Gemma4Letters(), cache_length=64)
    with pytest.raises(ParamsError, match=r"is a Gemma 4 and takes images of any size \(use Gemma4Sampler\)"):
        plain.sample("a", images=LIGHT)
    both_ways = sampler(Gemma4(config=Gemma4Config(use_bidirectional_attention="vision")))
    state = both_ways.sample("hi", return_state=True).state
    with pytest.raises(ParamsError, match="images must come with the first prompt of a conversation with this model"):
        both_ways.sample("a<|image|>", images=[LIGHT], last_state=state)
    monkeypatch.setitem(sys.modules, "gemma", None)
    with pytest.raises(ModelError, match="images of Gemma 4 are prepared by the gemma package"):
        sampler().sample("a<|image|>", images=[LIGHT])


PEER = os.environ.get("TIRAGE_TEST_GEMMA_PYTHON", "")


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_the_packages_own_sampler_says_the_same_of_images_and_audio() -> None:
    script = Path(__file__).with_name("peer_gemma4.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run([PEER, str(script)], capture_output=True, text=True, env=environment, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["theirs"] == found["ours"]
    assert set(found["ours"]) >= {"text", "images", "audio", "both", "last", "first", "chat"}
    assert found["turn"] == found["at once"]
    assert found["together"] == found["alone"]
