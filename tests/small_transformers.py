"""A model of Gemma's TransformerLike shape in NumPy or JAX, and a tokenizer of Gemma's shape: letters and names."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tirage.compat.gemma import Sampler

V = 128
WIDTH = 16
IMAGE = 7


class Special(enum.IntEnum):
    PAD = 0
    EOS = 1
    BOS = 2
    START_OF_TURN = 5
    END_OF_TURN = 6


NAMES = {Special.EOS: "<eos>", Special.BOS: "<bos>", Special.START_OF_TURN: "<start_of_turn>"}
NAMES |= {Special.END_OF_TURN: "<end_of_turn>"}


class LetterTokenizer:
    """One id per ASCII letter, and Gemma's special tokens under their names."""

    special_tokens = Special
    FORBIDDEN_TOKENS = (3,)
    VERSION = 0
    FORMAT = None

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        ids = {name: int(token) for token, name in NAMES.items()}
        parts = re.split("(<[a-z_]+>)", text)
        found = [i for part in parts for i in ([ids[part]] if part in ids else map(ord, part))]
        return [int(Special.BOS), *found] if add_bos else list(found)

    def decode(self, ids: Any) -> str:
        return "".join(NAMES.get(i, chr(i)) for i in map(int, ids) if i)


@dataclass(frozen=True)
class Config:
    num_embed: int = V


@dataclass(frozen=True)
class SeeingConfig(Config):
    """Of a model that sees: two soft tokens for each image."""

    @property
    def input_config(self) -> Any:
        special = SimpleNamespace(IMAGE_PLACEHOLDER=IMAGE)
        return SimpleNamespace(support_images=True, num_tokens_per_image=2, special_tokens=special)


@dataclass(frozen=True)
class SmallTransformer:
    """One attention layer with a cache laid out as Gemma's; `library` is "numpy" or "jax".

    `bonus` is added to the logit of one id, to make an end likely.
    """

    library: str = "numpy"
    bonus: tuple[int, float] = (0, 0.0)
    config: Config = Config()
    INFO = SimpleNamespace(tokenizer_version=None)

    @property
    def xp(self) -> Any:
        if self.library == "numpy":
            return np
        import jax.numpy

        return jax.numpy

    def params(self, seed: int = 0, dtype: str = "float32") -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        shapes = {"embed": (V, WIDTH), "place": (256, WIDTH), "out": (WIDTH, V)}
        shapes |= dict.fromkeys(("q", "k", "v"), (WIDTH, WIDTH))
        return {"layer": {name: self.xp.asarray(rng.normal(0, 1, shape), dtype) for name, shape in shapes.items()}}

    def init_cache(self, *, batch_size: int, dtype: Any, cache_length: int, sharding: Any = None) -> dict[str, Any]:
        rows = {name: self.xp.zeros((batch_size, cache_length, WIDTH), dtype) for name in ("k", "v")}
        return {"layer_0": {**rows, "end_index": self.xp.zeros((batch_size,), "int32")}}

    def apply(
        self,
        variables: Any,
        tokens: Any,
        *,
        cache: Any = None,
        positions: Any = None,
        attention_mask: Any = None,
        images: Any = None,
    ) -> Any:
        xp, w, layer = self.xp, variables["params"]["layer"], cache["layer_0"]
        x = (w["embed"][tokens] if images is None else self.look(w, tokens, images)) + w["place"][positions]
        end = layer["end_index"][0]
        new = {name: self.write(layer[name], x @ w[name], end) for name in ("k", "v")}
        scores = x @ w["q"] @ xp.swapaxes(new["k"], 1, 2) / WIDTH**0.5
        scores = xp.where(attention_mask, scores, -1e9)
        weights = xp.exp(scores - scores.max(-1, keepdims=True))
        mixed = x + weights / weights.sum(-1, keepdims=True) @ new["v"]
        row = np.zeros(V)
        row[self.bonus[0]] = self.bonus[1]
        logits = mixed @ w["out"] + xp.asarray(row, mixed.dtype)
        cache = {"layer_0": {**new, "end_index": layer["end_index"] + x.shape[1]}}
        return SimpleNamespace(logits=logits, cache=cache, hidden_states=None)

    def look(self, w: Any, tokens: Any, images: Any) -> Any:
        """Embeddings with every image written out: break, start, two soft tokens of its brightness, end, break."""
        if self.library == "jax":
            return self.look_traced(w, tokens[0], images[0])
        written, left = [], list(images[0])
        for token in tokens[0]:
            if token != IMAGE:
                written.append(w["embed"][token])
                continue
            bright = left.pop(0).mean() / 255
            soft = [w["q"][0] * bright, w["q"][1] * bright]
            written += [w["embed"][108], w["embed"][IMAGE], *soft, w["embed"][8], w["embed"][108]]
        return np.stack(written)[None]

    def look_traced(self, w: Any, ids: Any, images: Any) -> Any:
        """The same where neither ids nor images have values yet."""
        import jax
        from jax import numpy as jnp

        is_image = ids == IMAGE
        places = jnp.arange(len(ids)) + 5 * (jnp.cumsum(is_image) - is_image)
        out = jnp.zeros((len(ids) + 5 * len(images), WIDTH)).at[places].set(w["embed"][ids])
        for place, image in zip(places[jnp.nonzero(is_image, size=len(images))[0]], images, strict=True):
            soft = w["q"][:2] * image.mean() / 255
            around = w["embed"][jnp.array([108, IMAGE, 8, 108])]
            block = jnp.concatenate([around[:2], soft, around[2:]])
            out = jax.lax.dynamic_update_slice(out, block, (place, 0))
        return out[None]

    def write(self, rows: Any, new: Any, end: Any) -> Any:
        if self.library == "numpy":
            assert end + new.shape[1] <= rows.shape[1], "the cache overflows"
            copy = rows.copy()
            copy[:, end : end + new.shape[1]] = new
            return copy
        import jax

        return jax.lax.dynamic_update_slice(rows, new, (0, end, 0))


HELLO = [2, *map(ord, "hello")]


def small(**options: Any) -> Sampler:
    model = options.pop("model", SmallTransformer())
    defaults: dict[str, Any] = {"cache_length": 64, "max_out_length": 16, "tokenizer": LetterTokenizer()}
    return Sampler(model=model, params=model.params(), **{**defaults, **options})


def reply(sampler: Sampler, prompt: Any = "hello", **options: Any) -> list[Any]:
    """New tokens, without the zeros after them."""
    output = sampler.sample(prompt, return_state=True, **options)
    rows = [list(row.output_ids) for row in output.state.rows]
    return rows if isinstance(output.text, list) else rows[0]


def slow_greedy(model: SmallTransformer, ids: list[int], count: int, banned: tuple[int, ...] = (3,)) -> list[int]:
    """The model asked for every token anew, without a cache of earlier calls."""
    ids = list(ids)
    start = len(ids)
    for _ in range(count):
        n = len(ids)
        cache = model.init_cache(batch_size=1, dtype="float32", cache_length=n)
        mask = np.tril(np.ones((n, n), bool))[None]
        out = model.apply(
            {"params": model.params()},
            np.array([ids]),
            cache=cache,
            positions=np.arange(n)[None],
            attention_mask=mask,
        )
        row = np.array(out.logits)[0, -1]
        row[list(banned)] = -np.inf
        ids.append(int(row.argmax()))
    return ids[start:]
