"""Asks the `gemma` package's own sampler and ours the same questions; prints both answers as one line of JSON.

Run by tests/test_gemma.py in the interpreter that TIRAGE_TEST_GEMMA_PYTHON names, which has both packages.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import dialog
import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
from gemma import gm
from gemma.gm.nn import _transformer
from gemma.gm.nn import config as configs
from gemma.gm.nn.gemma4 import _config as config_4
from gemma.gm.nn.gemma4 import _modules as modules_4
from gemma.gm.nn.gemma4 import _transformer as transformer_4
from gemma.gm.nn.vision import _vision, _vision_utils
from gemma.gm.text import _tokenizer
from kauldron import kd

from tirage import LLM, SamplingParams
from tirage.compat import gemma as ours
from tirage.models.transformer import TransformerModel

V = 128


class Letters:
    """What the tokenizer asks of SentencePiece: an id for each letter, `first` above ASCII, and one for each name."""

    size, first = V, 0
    names: ClassVar[dict[str, int]] = {"<eos>": 1, "<bos>": 2, "<start_of_turn>": 105, "<end_of_turn>": 106}

    def GetPieceSize(self) -> int:  # noqa: N802
        return self.size

    def EncodeAsIds(self, text: str) -> list[int]:  # noqa: N802
        parts = re.split("(" + "|".join(map(re.escape, self.names)) + ")", text)
        return [i for part in parts for i in ([self.names[part]] if part in self.names else self.ids(part))]

    def DecodeIds(self, ids: list[int]) -> str:  # noqa: N802
        texts = {token: name for name, token in self.names.items()}
        return "".join(texts.get(i, chr(i)) for i in ids if i)

    def ids(self, text: str) -> list[int]:
        return [self.first + ord(letter) for letter in text]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LetterTokenizer(_tokenizer.Tokenizer):
    path: str = "none"
    special_tokens = _tokenizer._Gemma3SpecialTokens
    VERSION = 0

    @functools.cached_property
    def _sp(self) -> Letters:
        return Letters()


class Tiny(_transformer.Transformer):
    config: configs.TransformerConfig = configs.TransformerConfig(
        num_embed=V,
        embed_dim=32,
        hidden_dim=64,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        final_logit_softcap=None,
        attention_types=(configs.AttentionType.LOCAL_SLIDING, configs.AttentionType.GLOBAL),
        sliding_window_size=16,
        use_post_attn_norm=None,
        attn_logits_soft_cap=None,
        use_post_ffw_norm=None,
    )


class Best(ours.SamplingMethod):
    def get_next_tokens(self, logits: Any, rng: Any) -> Any:
        jax.random.uniform(rng)
        return jnp.argmax(logits, axis=-1)


def tokens(output: Any, count: int) -> list[Any]:
    return np.asarray(output.tokens)[..., :count].tolist()


class WideLetters(Letters):
    """The letters, and the image token where it is in Gemma 3's vocabulary."""

    size = 256128
    names: ClassVar[dict[str, int]] = {"<start_of_image>": 255999}


class WideTokenizer(LetterTokenizer):
    @property
    def _sp(self) -> WideLetters:
        return WideLetters()


ENCODER = _vision.SigLiPFromPatches(
    siglip_encoder=_vision_utils.ViTModel(patch_size=(14, 14), width=16, depth=1, mlp_dim=32, num_heads=2),
    siglip_exit=_vision.VisionExit(output_length=4),
    num_mm_tokens_per_image_prepool=16,
    num_mm_tokens_per_image=4,
    image_height=56,
    image_width=56,
)


class Seeing(Tiny):
    config: configs.TransformerConfig = dataclasses.replace(Tiny.config, num_embed=256128, vision_encoder=ENCODER)


def random_params(model: Any, *inputs: Any, **options: Any) -> Any:
    shapes = jax.eval_shape(functools.partial(model.init, **options), jax.random.PRNGKey(0), *inputs)["params"]
    rng = np.random.RandomState(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.35, leaf.shape), leaf.dtype), shapes)


def images() -> dict[str, Any]:
    """Greedy tokens after two images of a model that sees, by both doors, and over turns by ours."""
    model = Seeing(dtype=jnp.float32)
    blank = jnp.zeros((1, 1, 56, 56, 3), jnp.uint8)
    params = random_params(model, jnp.zeros((1, 5), jnp.int32), images=blank)
    pictures = np.random.RandomState(1).randint(0, 255, (2, 56, 56, 3)).astype(np.uint8)
    prompt = "see <start_of_image> and <start_of_image> now"
    options: dict[str, Any] = {"max_new_tokens": 6, "return_state": True}
    shared: dict[str, Any] = {"model": model, "params": params, "tokenizer": WideTokenizer(), "cache_length": 64}
    mine = ours.Sampler(**shared, max_out_length=8)
    theirs = gm.text.Sampler(**shared, max_out_length=8, pad_length=None)
    state = mine.sample("hi", max_new_tokens=3, return_state=True).state
    turn = mine.sample(prompt, images=pictures, last_state=state, **options)
    row = turn.state.rows[0]
    last: dict[str, Any] = {"images": pictures[:1], **options}
    return {
        "their last": tokens(theirs.sample("see <start_of_image>", **last), 6),
        "our last": tokens(mine.sample("see <start_of_image>", **last), 6),
        "theirs": tokens(theirs.sample(prompt, images=pictures, **options), 6),
        "ours": tokens(mine.sample(prompt, images=pictures, **options), 6),
        "turns": tokens(turn, 6),
        "at once": tokens(mine.sample(list(row.token_ids[:-6]), images=pictures, **options), 6),
    }


def train_vocabulary(folder: Path) -> None:
    """A small SentencePiece vocabulary with Gemma 3's special tokens in their places, where the package seeks it."""
    words = re.findall("[a-z]+", Path(__file__).read_text(encoding="utf-8"))
    text = [" ".join(words[start : start + 20]) for start in range(len(words))]
    named = {4: "<mask>", 5: "[multimodal]", 50: "<begin_of_tool_response>", 105: "<start_of_turn>"}
    named[106] = "<end_of_turn>"
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=written,
        model_type="bpe",
        vocab_size=400,
        user_defined_symbols=[named.get(i, f"<unused{i - 6}>") for i in range(4, 107)],
        byte_fallback=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
    )
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer_gemma3.model").write_bytes(written.getvalue())


class Gemma3(Tiny):
    """Names its tokenizer, as the released models do."""

    config: configs.TransformerConfig = dataclasses.replace(Tiny.config, num_embed=400)
    INFO = SimpleNamespace(tokenizer_version=3, default_ckpt=None)


def words(door: Any) -> dict[str, Any]:
    """What a door says with the package's own tokenizer, found by the model's version."""
    model = Gemma3(dtype=jnp.float32)
    params = random_params(model, jnp.zeros((5,), jnp.int32))
    sampler = door.Sampler(model=model, params=params, cache_length=256, max_out_length=24, pad_length=64)
    talk = dialog.Conversation(dialog.User("a little dog"), dialog.Model("ran"), dialog.User("once"))
    banned = ["<unused7>", "o"]
    tokenizer = gm.text.Gemma3Tokenizer(custom_tokens={7: "<mine>"})
    return {
        "text": sampler.sample("once upon a \u00e9 time"),
        "conversation": sampler.sample(talk),
        "conversations": sampler.sample([talk, "the sun", dialog.Conversation(dialog.User("\u65e5"))]),
        "array": sampler.sample(np.array(["the sun", "a", "dog"])),
        "banned": dataclasses.replace(sampler, forbidden_tokens=banned, stop_tokens=["\n", 300]).sample("a"),
        "custom": dataclasses.replace(sampler, tokenizer=tokenizer).sample("<mine> dog"),
        "sharded": [sampler.sample("the sun", sharding=s) for s in (kd.sharding.REPLICATED, kd.sharding.FIRST_DIM)],
    }


def our_words() -> dict[str, Any]:
    """What only our door says: streams that join to the text, and chats."""
    model = Gemma3(dtype=jnp.float32)
    params = random_params(model, jnp.zeros((5,), jnp.int32))
    sampler = ours.Sampler(model=model, params=params, cache_length=256, max_out_length=24)
    llm = LLM(TransformerModel(model, params, max_length=256), tokenizer=sampler.tokenizer)
    greedy = SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[1, 106, 50])
    ids = sampler.tokenizer.encode("the sun", add_bos=True)
    chat = ours.ChatSampler(model=model, params=params, cache_length=256, max_out_length=8, multi_turn=True)
    replies = [chat.chat("a dog"), chat.chat(dialog.Conversation(dialog.User("the sun")))]
    their_chat = gm.text.ChatSampler(model=model, params=params, cache_length=256, max_out_length=8)
    return {
        "stream": "".join(sampler.sample("once upon a \u00e9 time", stream=True)),
        "llm": list(llm.generate([ids], greedy)[0].token_ids),
        "sampler": list(sampler.sample("the sun", return_state=True).state.rows[0].output_ids),
        "reply": replies[0],
        "their reply": their_chat.chat("a dog"),
        "turns": len(chat.conversation),
    }


class Gemma4(transformer_4.Transformer):
    """The newest layers: shared caches, embeddings for every layer, sliding windows."""

    config: config_4.TransformerConfig = config_4.TransformerConfig(
        num_embed=V,
        embed_dim=32,
        hidden_dim=64,
        num_heads=2,
        head_dim=16,
        num_kv_heads=1,
        final_logit_softcap=30.0,
        use_post_attn_norm=True,
        use_post_ffw_norm=True,
        attention_types=(modules_4.AttentionType.LOCAL_SLIDING, modules_4.AttentionType.GLOBAL) * 2,
        sliding_window_size=16,
        per_layer_input_dim=8,
        local_rope_proportion=1.0,
        global_rope_proportion=0.5,
        kv_cache_sharing_config=config_4.KVCacheSharingConfig(0.5, share_global=True, share_local=True),
    )


def newest() -> dict[str, Any]:
    """Greedy tokens of Gemma 4's text model over two turns, and when everything is read anew for each."""
    model = Gemma4(dtype=jnp.float32)
    params = random_params(model, jnp.zeros((1, 5), jnp.int32))
    sampler = ours.Sampler(model=model, params=params, tokenizer=LetterTokenizer(), cache_length=96, pad_length=(8, 32))
    prompts = ["hello", "a prompt that is longer than a window"]
    state = sampler.sample(prompts, return_state=True, max_new_tokens=4).state
    state = sampler.sample([" x", "yy"], last_state=state, return_state=True, max_new_tokens=4).state

    rows = [list(row.token_ids) for row in state.rows]
    anew = [model.apply({"params": params}, jnp.array([row[:-1]])).logits[0, -4:].argmax(-1).tolist() for row in rows]
    return {"ours": [row[-4:] for row in rows], "anew": anew}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GEMMA_CACHE_DIR"] = folder
        train_vocabulary(Path(folder))
        answer()


def answer() -> None:
    model = Tiny(dtype=jnp.float32)
    params = random_params(model, jnp.zeros((5,), jnp.int32))

    def sampler(door: Any, **options: Any) -> Any:
        defaults: dict[str, Any] = {"cache_length": 64, "max_out_length": 16, "pad_length": None}
        return door.Sampler(model=model, params=params, tokenizer=LetterTokenizer(), **{**defaults, **options})

    def answers(door: Any) -> dict[str, Any]:
        def said(prompt: Any, count: int = 8, **options: Any) -> list[Any]:
            output = sampler(door, **options).sample(prompt, max_new_tokens=count, return_state=True)
            return tokens(output, count)

        greedy = said("hello")
        return {
            "greedy": greedy,
            "long": said("a prompt that is longer than the window of the local layer", 5, cache_length=128),
            "batch": said(["hello", "a", "some other prompt"]),
            "padded": said("hello", pad_length=(16, 32)),
            "forbidden": said("hello", forbidden_tokens=[greedy[0], chr(greedy[2])]),
            "stop": said("hello", stop_tokens=[chr(greedy[2])]),
            "stream": list(sampler(door).sample("hello", stream=True, max_new_tokens=6)),
            "text": sampler(door).sample("hello", max_new_tokens=6),
        }

    mine = sampler(ours, pad_length=(8, 16))
    first = mine.sample("hello", max_new_tokens=4, return_state=True)
    second = mine.sample(" again", last_state=first.state, max_new_tokens=6, return_state=True)
    row = second.state.rows[0]
    at_once = mine.sample(list(row.token_ids[: -len(row.output_ids)]), max_new_tokens=6, return_state=True)
    chat = ours.ChatSampler(
        model=model, params=params, tokenizer=LetterTokenizer(), cache_length=128, max_out_length=4, multi_turn=True
    )
    chat.chat("hi")
    chat.chat("you")
    assert len(chat.conversation) == 4
    found = {
        "theirs": answers(gm.text),
        "ours": answers(ours),
        "images": images(),
        "their words": words(gm.text),
        "our words": words(ours),
        "more": our_words(),
        "newest": newest(),
        "turns": tokens(second, 6),
        "at once": tokens(at_once, 6),
        "conversation": chat.sampler._tokenizer.text(dialog.Conversation(dialog.User("hi"))),
        "user method": tokens(mine.sample("hello", sampling=Best(), max_new_tokens=8, return_state=True), 8),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
