"""Asks the `gemma` package's own Gemma4Sampler and ours the same questions; prints both answers as one line of JSON.

Run by tests/test_gemma4.py in the interpreter that TIRAGE_TEST_GEMMA_PYTHON names. The model is a small Gemma 4 with
the package's own vision and audio encoders and random weights.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gemma import gm
from gemma.gm.nn.gemma4 import _config, _modules, _transformer
from gemma.gm.nn.gemma4.audio import _modules as audio_modules
from gemma.gm.nn.gemma4.vision import _encoder, _preprocessing
from gemma.gm.text import _tokenizer

from tirage.compat import gemma as ours

SPECIAL = _tokenizer.Gemma4Tokenizer.special_tokens
NAMES = {"<|image|>": int(SPECIAL.IMAGE_PLACEHOLDER), "<|audio|>": int(SPECIAL.AUDIO_PLACEHOLDER)}
# The ids of images and audio are Gemma 4's own, so the vocabulary is as wide.
V, SOFT = 262208, 12
LOCAL, GLOBAL = _modules.AttentionType.LOCAL_SLIDING, _modules.AttentionType.GLOBAL


class Letters:
    """What the tokenizer asks of SentencePiece: one id per letter, and the places of images and audio."""

    def GetPieceSize(self) -> int:  # noqa: N802
        return V

    def EncodeAsIds(self, text: str) -> list[int]:  # noqa: N802
        parts = re.split(r"(<\|[a-z]+\|>)", text)
        return [i for p in parts for i in ([NAMES[p]] if p in NAMES else [200 + ord(letter) for letter in p])]

    def DecodeIds(self, ids: list[int]) -> str:  # noqa: N802
        return " ".join(str(i) for i in ids if i)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer(_tokenizer.Gemma4Tokenizer):
    path: str = "none"

    @functools.cached_property
    def _sp(self) -> Letters:
        return Letters()


class Tiny(_transformer.Transformer):
    config: _config.TransformerConfig = _config.TransformerConfig(
        num_embed=V,
        embed_dim=32,
        hidden_dim=64,
        num_heads=2,
        head_dim=16,
        num_kv_heads=1,
        final_logit_softcap=30.0,
        use_post_attn_norm=True,
        use_post_ffw_norm=True,
        attention_types=(LOCAL, GLOBAL) * 2,
        sliding_window_size=16,
        per_layer_input_dim=8,
        local_rope_proportion=1.0,
        global_rope_proportion=0.5,
        kv_cache_sharing_config=_config.KVCacheSharingConfig(0.5, share_global=True, share_local=True),
        vision_encoder=_encoder.VisionEncoder(
            d_model=24, num_layers=1, num_heads=2, ffw_hidden=32, output_length=SOFT, pos_emb_shape_yx=(64, 2)
        ),
        audio_encoder=audio_modules.ConformerConfig(num_layers=1, model_dims=16, lm_model_dims=24, atten_num_heads=2),
    )
    INFO = _transformer.ModelInfo(tokenizer_version=4)


def random_params(model: Any, image: Any, rng: Any) -> Any:
    patches, places, counts = _preprocessing.preprocess_and_patchify([image], max_soft_tokens=SOFT)
    rows = (each.reshape(1, -1, each.shape[-1]) for each in (patches, places))
    options: dict[str, Any] = {
        "images": _transformer.PreprocessedVisionInput(*rows, tuple(counts)),
        "audio": jnp.zeros((1, 1, 3000)),
        "audio_lengths": jnp.array([[3000]]),
        "audio_soft_token_counts": (3,),
        "return_last_only": True,
    }
    ids = jnp.array([[2, 108, *[-2] * counts[0], 108, *[-4] * 3, 5]])
    shapes = jax.eval_shape(functools.partial(model.init, **options), jax.random.PRNGKey(0), ids)["params"]
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.35, leaf.shape), leaf.dtype), shapes)


def main() -> None:
    rng, model = np.random.RandomState(0), Tiny(dtype=jnp.float32)
    wide, tall = (rng.randint(0, 255, (*size, 3)).astype(np.uint8) for size in ((60, 100), (90, 40)))
    clips = [rng.normal(0, 0.1, size).astype(np.float32) for size in (5000, 3000)]
    shared: dict[str, Any] = {
        "model": model,
        "params": random_params(model, wide, rng),
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
