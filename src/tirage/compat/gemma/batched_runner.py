"""All prompts of a call in one forward pass: JAX models whose cache has Gemma's layout.

The model is mapped over the rows of its cache, so each conversation fills its own slots from the first on, whatever
its neighbours' lengths: nothing is padded on the left and no slot stays empty between two turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.compat.gemma.images import Images, Vision, vision_of
from tirage.compat.gemma.media import Media
from tirage.compat.gemma.runner import ForbiddenMask, ForwardInput
from tirage.errors import ParamsError
from tirage.models.transformer import first_leaf, has_end_index, is_jax, key_of, model_of

Cache = Any


@dataclass(frozen=True, slots=True)
class Prefill:
    """Ids of one conversation that fill its cache from slot `slots` on, without logits."""

    row: int
    ids: Sequence[int]
    slots: int
    images: Images | Media | None = None

    def remaining(self, count: int) -> Prefill:
        """What is left to do after the first `count` ids."""
        return replace(self, ids=self.ids[count:], slots=self.slots + count)


class BatchedRunner:
    """A TransformerLike with its parameters, for the prompts of one call.

    `buckets` are the lengths that prompts are padded to on the right, so that few lengths are compiled; nothing attends
    to what padding writes into a cache, and later tokens overwrite it. A cache that nobody else holds is donated to
    JAX, which writes it in place.
    """

    uses_jax: bool = True

    def __init__(self, model: Any, params: Any, *, length: int, buckets: Sequence[int], sharding: Any) -> None:
        self._model, self._params, self._sharding = model, params, check_sharding(sharding)
        self._calls, self._owned = calls_of(key_of(model)), False
        self._forbidden_mask: Any = None
        self._buckets, self.capacity = sorted(buckets), length
        self.vocab_size, self.vision = int(model.config.num_embed), vision_of(model)

    def start(self, count: int) -> Cache:
        """Empty caches for `count` prompts; a model may share one array among them, so they are not donated."""
        self._check_parts(count)
        self._owned = False
        dtype = first_leaf(self._params).dtype
        return self._model.init_cache(
            batch_size=count, dtype=dtype, cache_length=self.capacity, sharding=self._sharding
        )

    def share(self, cache: Cache) -> Cache:
        """The caches, which the next call does not write in place."""
        self._check_parts(rows_of(cache))
        self._owned = False
        return cache

    def forward(
        self, cache: Cache, inputs: Sequence[ForwardInput], forbidden_mask: ForbiddenMask
    ) -> tuple[NDArray[np.float32], Cache]:
        """Logits [len(inputs), V] after the last id of each, -inf where `forbidden_mask` [V] is set, and the caches."""
        count, rows = rows_of(cache), [given.row for given in inputs]
        # The last slot of a conversation is never in use, so rows without a token write there.
        tokens, slots = np.zeros(count, np.int32), np.full(count, self.capacity - 1, np.int32)
        prefills = []
        for given in inputs:
            prefill, tokens[given.row], slots[given.row] = split(given, self.vision)
            prefills.append(prefill)
        cache = self._fill(cache, [prefill for prefill in prefills if prefill.ids])
        logits, cache = self._run("step", cache, tokens, slots, self._on_device(forbidden_mask))
        drawn = np.asarray(logits)
        return drawn if len(rows) == count else drawn[rows], cache

    def _on_device(self, forbidden_mask: ForbiddenMask) -> Any:
        """The forbidden tokens [V] as a JAX array; they are the same at each step of a call."""
        if self._forbidden_mask is None:
            import jax

            self._forbidden_mask = jax.numpy.asarray(forbidden_mask)
        return self._forbidden_mask

    def _fill(self, cache: Cache, prefills: list[Prefill]) -> Cache:
        """The caches after all prefills: texts run together, and prompts with equally many images run together.

        A prompt with Gemma 4's images or audio runs by itself, because its inputs have sizes of their own.
        """
        texts = [prefill for prefill in prefills if prefill.images is None]
        while texts:
            cache, texts = self._fill_texts(cache, texts)
        by_count: dict[int, list[Prefill]] = {}
        for prefill in prefills:
            if isinstance(prefill.images, Media):
                cache = self._fill_media(cache, prefill, prefill.images)
            elif prefill.images is not None:
                by_count.setdefault(len(prefill.images), []).append(prefill)
        for same_count in by_count.values():
            cache = self._fill_images(cache, same_count)
        return cache

    def _fill_media(self, cache: Cache, prefill: Prefill, media: Media) -> Cache:
        """The caches after one prompt of Gemma 4, whose ids have the places of its images and audio."""
        length = self._bucket(len(prefill.ids), self.capacity - prefill.slots)
        return self._run_fill(
            cache, [prefill], length, (dict(media.inputs), None), length, audio_token_counts=media.audio_token_counts
        )

    def _fill_texts(self, cache: Cache, prefills: list[Prefill]) -> tuple[Cache, list[Prefill]]:
        """The caches after as much of each text as the fullest cache has room for, and what is left of the others."""
        room = self.capacity - max(prefill.slots for prefill in prefills)
        longest = max(len(prefill.ids) for prefill in prefills)
        length = self._bucket(min(longest, room), room)
        cache = self._run_fill(cache, prefills, length, None, length)
        return cache, [prefill.remaining(length) for prefill in prefills if len(prefill.ids) > length]

    def _fill_images(self, cache: Cache, prefills: list[Prefill]) -> Cache:
        """The caches after prompts with images; the soft tokens of an image attend to each other."""
        vision = self.vision
        assert vision is not None
        room = self.capacity - max(prefill.slots for prefill in prefills)
        longest = max(vision.slots(prefill.ids) for prefill in prefills)
        if longest > room:
            for prefill in prefills:
                cache = self._fill_images(cache, [prefill])
            return cache
        length = self._bucket(longest, room)
        written = length - (vision.slots(prefills[0].ids) - len(prefills[0].ids))
        images = np.stack([prefill.images for prefill in prefills if isinstance(prefill.images, np.ndarray)])
        blocks = np.zeros((len(prefills), length, length), bool)
        for prefill, image_mask in zip(prefills, blocks, strict=True):
            for block in vision.blocks(prefill.ids):
                image_mask[block, block] = True
        return self._run_fill(cache, prefills, written, ({"images": images}, blocks), length)

    def _run_fill(
        self,
        cache: Cache,
        prefills: list[Prefill],
        written: int,
        media: Any,
        length: int,
        audio_token_counts: tuple[int, ...] = (),
    ) -> Cache:
        """One pass over at most `written` ids of each of these prefills, which take `length` slots."""
        tokens = np.zeros((len(prefills), written), np.int32)
        for prefill, out in zip(prefills, tokens, strict=True):
            out[: len(prefill.ids)] = prefill.ids[:written]
        slots = np.array([prefill.slots for prefill in prefills], np.int32)
        rows = None if len(prefills) == rows_of(cache) else np.array([prefill.row for prefill in prefills], np.int32)
        window = self._bucket(int(slots.max()) + length, self.capacity)
        return self._run(
            "fill", cache, tokens, slots, rows, media, window=window, audio_token_counts=audio_token_counts
        )

    def _run(self, call: str, cache: Cache, tokens: Any, slots: Any, *inputs: Any, **options: Any) -> Any:
        compiled, self._owned = self._calls[call, self._owned], True
        place = placement(self._sharding, len(slots))
        if place is not None:
            import jax

            tokens, slots = jax.device_put((tokens, slots), place)
        return compiled(self._params, cache, tokens, slots, *inputs, **options)

    def _bucket(self, length: int, room: int) -> int:
        """The smallest bucket that takes `length` tokens and has room, or `length` itself."""
        return next((bucket for bucket in self._buckets if length <= bucket <= room), length)

    def _check_parts(self, count: int) -> None:
        for parts, spec in splits(self._sharding):
            if count % parts:
                raise ParamsError(
                    f"sharding must split the prompts into equal parts, got {spec} with {parts} parts for {count} "
                    "prompts; add prompts, or leave sharding out"
                )


def split(given: ForwardInput, vision: Vision | None) -> tuple[Prefill, int, int]:
    """What fills the cache before the token whose logits are wanted, that token, and its slot."""
    if given.images is None or vision is None:
        head, last, end = given.ids[:-1], given.ids[-1], given.slots + len(given.ids) - 1
    else:
        head, last, rewound = vision.split(given.ids)
        end = given.slots + vision.slots(head) - rewound
    return Prefill(given.row, head, given.slots, given.images), last, end


# --- sharding ----------------------------------------------------------------------------------------------------


def check_sharding(sharding: Any) -> Any:
    """The sharding; ParamsError for one that JAX's `NamedSharding` does not describe."""
    import jax

    for leaf in jax.tree.leaves(sharding):
        if not isinstance(leaf, jax.sharding.NamedSharding):
            raise ParamsError(f"sharding must be a NamedSharding or a tree of them, got {type(leaf).__name__}")
    return sharding


def splits(sharding: Any) -> list[tuple[int, Any]]:
    """The number of parts into which each leaf of a sharding splits the prompts, and its PartitionSpec."""
    import jax

    leaves = jax.tree.leaves(sharding)
    return [(math.prod(leaf.mesh.shape[axis] for axis in first_axes(leaf.spec)), leaf.spec) for leaf in leaves]


def first_axes(spec: Any) -> tuple[str, ...]:
    """The mesh axes that split the first axis of an array."""
    first = spec[0] if len(spec) else None
    return () if first is None else first if isinstance(first, tuple) else (first,)


def placement(sharding: Any, count: int) -> Any:
    """The sharding of `count` tokens beside a cache that one NamedSharding spreads; None where JAX may choose."""
    if not hasattr(sharding, "spec") or any(count % parts for parts, _ in splits(sharding)):
        return None
    import jax

    return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(first_axes(sharding.spec)))


# --- the model's calls ---------------------------------------------------------------------------------------------


def can_join(model: Any, params: Any) -> bool:
    """Whether a model's prompts can run in one pass: JAX parameters, and a cache of Gemma's layout."""
    return is_jax(params) and has_rows(key_of(model), str(first_leaf(params).dtype))


@lru_cache(maxsize=64)
def has_rows(key: Any, dtype: str) -> bool:
    """Whether each layer's arrays begin with the axes of prompts and slots, and `end_index` with that of prompts."""
    import jax

    model = model_of(key)
    cache = jax.eval_shape(lambda: model.init_cache(batch_size=2, dtype=jax.numpy.dtype(dtype), cache_length=3))
    if not has_end_index(cache):
        return False
    arrays = [(name == "end_index", leaf.shape) for layer in cache.values() for name, leaf in layer.items()]
    return all(shape[:2] == ((2,) if is_end else (2, 3)) for is_end, shape in arrays)


def rows_of(cache: Cache) -> int:
    """The number of conversations in a cache."""
    return len(next(iter(cache.values()))["end_index"])


@lru_cache(maxsize=16)
def calls_of(key: Any) -> dict[tuple[str, bool], Callable[..., Any]]:
    """A model's compiled calls by name and by whether the cache is donated."""
    import jax

    model = model_of(key)
    fill, step = partial(fill_rows, model), partial(step_rows, model)
    return {
        ("fill", False): jax.jit(fill, static_argnames=("window", "audio_token_counts")),
        ("fill", True): jax.jit(fill, static_argnames=("window", "audio_token_counts"), donate_argnums=1),
        ("step", False): jax.jit(step),
        ("step", True): jax.jit(step, donate_argnums=1),
    }


def step_rows(model: Any, params: Any, cache: Cache, tokens: Any, slots: Any, forbidden_mask: Any) -> tuple[Any, Cache]:
    """Float32 logits [B, V] after one more token for each row, and the cache with it."""
    import jax.numpy as jnp

    logits, grown = each_row(model, params, cache, tokens[:, None], slots, None)
    return jnp.where(forbidden_mask, -jnp.inf, logits.reshape(-1, len(forbidden_mask)).astype(jnp.float32)), grown


def fill_rows(
    model: Any,
    params: Any,
    cache: Cache,
    tokens: Any,
    slots: Any,
    rows: Any,
    media: Any,
    *,
    window: int,
    audio_token_counts: tuple[int, ...],
) -> Cache:
    """The cache after tokens [n, L] of these rows (None: all), which need no more than its first `window` slots.

    `media`: other inputs of the model, such as images, and which of the new slots attend to later ones of the same
    image. `audio_token_counts`: soft tokens of each piece of audio.
    """
    picked = cache if rows is None else over(lambda leaf: leaf[rows], cache)
    narrow = over(lambda leaf: leaf if leaf.ndim < 2 else leaf[:, :window], picked)
    grown = each_row(model, params, narrow, tokens, slots, media, audio_token_counts)[1]
    wide = over(lambda leaf, new: new if leaf.ndim < 2 else leaf.at[:, :window].set(new), picked, grown)
    return wide if rows is None else over(lambda leaf, new: leaf.at[rows].set(new), cache, wide)


def each_row(
    model: Any, params: Any, cache: Cache, tokens: Any, slots: Any, media: Any, audio_token_counts: tuple[int, ...] = ()
) -> tuple[Any, Cache]:
    """Logits [B, L, V] and the new cache: the model mapped over rows, each of which writes from its own slot on."""
    import jax
    import jax.numpy as jnp

    counts = {"audio_soft_token_counts": audio_token_counts} if audio_token_counts else {}

    def row(ids: Any, slot: Any, media: Any, layers: Cache) -> tuple[Any, Cache]:
        inputs, image_mask = ({}, None) if media is None else media
        length = len(ids) if image_mask is None else len(image_mask)
        positions = slot + jnp.arange(length, dtype=jnp.int32)
        width = next(leaf.shape[0] for leaf in next(iter(layers.values())).values() if leaf.ndim)
        mask = jnp.arange(width) <= positions[:, None]
        if image_mask is not None:
            mask |= jax.lax.dynamic_update_slice(jnp.zeros_like(mask), image_mask, (0, slot))
        out = model.apply(
            {"params": params},
            ids[None],
            cache=over(lambda leaf: leaf[None] if leaf.ndim else slot[None], layers),
            positions=positions[None],
            attention_mask=mask[None],
            **jax.tree.map(lambda leaf: leaf[None], inputs),
            **counts,
        )
        return out.logits[0], over(lambda leaf: leaf[0], out.cache)

    return jax.vmap(row)(tokens, slots, media, cache)


def over(function: Callable[..., Any], cache: Cache, *others: Cache) -> Cache:
    """A cache of what a function makes of another's arrays, layer by layer."""
    return {
        name: {key: function(leaf, *(other[name][key] for other in others)) for key, leaf in layer.items()}
        for name, layer in cache.items()
    }
