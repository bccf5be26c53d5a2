"""Asks the `gemma` package's own Gemma4Sampler and ours the same questions; prints both answers as one line of JSON.

Run by tests/test_gemma4.py in the interpreter that TIRAGE_TEST_GEMMA_PYTHON names. The model is a small Gemma 4 with
the package's own vision and audio encoders and random weights.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
from gemma import gm
from gemma.gm.nn.gemma4 import _config, _transformer
from gemma.gm.nn.gemma4.audio import _modules as audio_modules
from gemma.gm.nn.gemma4.vision import _encoder, _preprocessing
from gemma.gm.text import _tokenizer
from peer_gemma import Gemma4, Letters, random_params

from tirage.compat import gemma as ours

SPECIAL = _tokenizer.Gemma4Tokenizer.special_tokens
NAMES = {"<|image|>": int(SPECIAL.IMAGE_PLACEHOLDER), "<|audio|>": int(SPECIAL.AUDIO_PLACEHOLDER)}
# The ids of images and audio are Gemma 4's own, so the vocabulary is as wide.
V, SOFT = 262208, 12


class Numbers(Letters):
    """The letters and the places of images and audio; texts are ids, as most of these have none."""

    size, first, names = V, 200, NAMES

    def DecodeIds(self, ids: list[int]) -> str:  # noqa: N802
        return " ".join(str(i) for i in ids if i)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer(_tokenizer.Gemma4Tokenizer):
    path: str = "none"

    @functools.cached_property
    def _sp(self) -> Numbers:
        return Numbers()


class Tiny(Gemma4):
    config: _config.TransformerConfig = dataclasses.replace(
        Gemma4.config,
        num_embed=V,
        vision_encoder=_encoder.VisionEncoder(
            d_model=24, num_layers=1, num_heads=2, ffw_hidden=32, output_length=SOFT, pos_emb_shape_yx=(64, 2)
        ),
        audio_encoder=audio_modules.ConformerConfig(num_layers=1, model_dims=16, lm_model_dims=24, atten_num_heads=2),
    )
    INFO = _transformer.ModelInfo(tokenizer_version=4)


def params_of(model: Any, image: Any) -> Any:
    """Random parameters, of the shapes that an image and audio beside text need."""
    patches, places, counts = _preprocessing.preprocess_and_patchify([image], max_soft_tokens=SOFT)
    rows = (each.reshape(1, -1, each.shape[-1]) for each in (patches, places))
    ids = jnp.array([[2, 108, *[-2] * counts[0], 108, *[-4] * 3, 5]])
    return random_params(
        model,
        ids,
        images=_transformer.PreprocessedVisionInput(*rows, tuple(counts)),
        audio=jnp.zeros((1, 1, 3000)),
        audio_lengths=jnp.array([[3000]]),
        audio_soft_token_counts=(3,),
        return_last_only=True,
    )


def main() -> None:
    rng, model = np.random.RandomState(0), Tiny(dtype=jnp.float32)
    wide, tall = (rng.randint(0, 255, (*size, 3)).astype(np.uint8) for size in ((60, 100), (90, 40)))
    clips = [rng.normal(0, 0.1, size).astype(np.float32) for size in (5000, 3000)]
    shared: dict[str, Any] = {
        "model": model,
        "params": params_of(model, wide),
        "tokenizer": Tokenizer(),
        "cache_length": 128,
        "max_out_length": 6,
        "pad_length": 64,
        "max_soft_tokens": SOFT,
    }

    def said(door: Any, prompt: Any, **options: Any) -> Any:
        output = door.Gemma4Sampler(**shared).sample(prompt, return_state=True, **options)
        return np.asarray(output.tokens).tolist()

    def answers(door: Any) -> dict[str, Any]:
        chat = door.ChatSampler(**shared)
        return {
            "text": said(door, ["hello", "a longer prompt"]),
            "images": said(door, "see <|image|> and <|image|> now", images=[wide, tall]),
            "last": said(door, "see <|image|>", images=[tall]),
            "audio": said(door, "hear <|audio|>", audio=clips[:1], audio_lengths=[4000]),
            "both": said(door, "<|audio|> <|audio|> <|image|> now", audio=clips, images=[wide]),
            "first": said(door, ["see <|image|> x"], images=[wide]),
            "chat": chat.chat("see <|image|>", images=[wide]),
        }

    mine = ours.Gemma4Sampler(**shared)
    state = mine.sample("hi", max_new_tokens=3, return_state=True).state
    ids = [*state.rows[0].token_ids, *mine.tokenizer.encode("see <|image|>!")]
    prompts, images = ["see <|image|> x", "hi", "<|audio|><|image|>!"], [[wide], None, [tall]]
    alone = [said(ours, prompts[0], images=[wide]), said(ours, "hi")]
    found = {
        "theirs": answers(gm.text),
        "ours": answers(ours),
        "turn": said(ours, "see <|image|>!", images=[wide], last_state=state),
        "at once": said(ours, ids, images=[wide]),
        "together": said(ours, prompts, images=images, audio=[None, None, clips[1:]]),
        "alone": [*alone, said(ours, prompts[2], images=[tall], audio=clips[1:])],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
