"""All prompts of a call in one forward pass: JAX models whose cache is laid out as Gemma's.

The model is mapped over the rows of its cache, so each conversation fills its own slots from the first on, whatever
its neighbours' lengths: nothing is padded on the left and no slot lies idle between two turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.compat.gemma.forward import Never, Reading
from tirage.compat.gemma.images import Images, Vision, vision_of
from tirage.compat.gemma.media import Media
from tirage.errors import ParamsError
from tirage.models.transformer import first_leaf, has_end_index, is_jax, key_of, model_of

Cache = Any


@dataclass(frozen=True, slots=True)
class Part:
    """Ids of one conversation that fill its cache from `slots` on; no logits are wanted of them."""

    row: int
    ids: Sequence[int]
    slots: int
    images: Images | Media | None = None

    def after(self, count: int) -> Part:
        """What is left when so many ids are read."""
        return replace(self, ids=self.ids[count:], slots=self.slots + count)


class JoinedReader:
    """A TransformerLike with its parameters, for the prompts of one call.

    `buckets` are the lengths that prompts are padded to on the right, so that few lengths are compiled; what padding
    writes into a cache is never looked at and soon overwritten. A cache that nobody else holds is given to JAX to be
    written in place.
    """

    uses_jax: bool = True

    def __init__(self, model: Any, params: Any, *, length: int, buckets: Sequence[int], sharding: Any) -> None:
        self._model, self._params, self._sharding = model, params, check_sharding(sharding)
        self._calls, self._owned = calls_of(key_of(model)), False
        self._never: Any = None
        self._buckets, self.capacity = sorted(buckets), length
        self.vocab_size, self.vision = int(model.config.num_embed), vision_of(model)

    def start(self, count: int) -> Cache:
        """Empty caches for so many prompts; a model may have made several of one array, so they are not written."""
        self._check_parts(count)
        self._owned = False
        dtype = first_leaf(self._params).dtype
        return self._model.init_cache(
            batch_size=count, dtype=dtype, cache_length=self.capacity, sharding=self._sharding
        )

    def share(self, cache: Cache) -> Cache:
        """The caches, which the next reading leaves as they are."""
        self._check_parts(rows_of(cache))
        self._owned = False
        return cache

    def read(self, cache: Cache, readings: Sequence[Reading], never: Never) -> tuple[NDArray[np.float32], Cache]:
        """See Reader."""
        count, rows = rows_of(cache), [reading.row for reading in readings]
        # Nothing was ever written to the last slot of a conversation, so rows without a token may write there.
        tokens, slots = np.zeros(count, np.int32), np.full(count, self.capacity - 1, np.int32)
        parts = []
        for reading in readings:
            part, tokens[reading.row], slots[reading.row] = split(reading, self.vision)
            parts.append(part)
        cache = self._fill(cache, [part for part in parts if part.ids])
        logits, cache = self._run("step", cache, tokens, slots, self._on_device(never))
        drawn = np.asarray(logits)
        return drawn if len(rows) == count else drawn[rows], cache

    def _on_device(self, never: Never) -> Any:
        """The tokens of a call that are never drawn, which are the same at each of its steps."""
        if self._never is None:
            import jax

            self._never = jax.numpy.asarray(never)
        return self._never

    def _fill(self, cache: Cache, parts: list[Part]) -> Cache:
        """The caches with all parts read: texts together, and prompts with equally many images together.

        A prompt with Gemma 4's images or audio is read by itself, as no two need be of one size.
        """
        texts = [part for part in parts if part.images is None]
        while texts:
            cache, texts = self._fill_texts(cache, texts)
        alike: dict[int, list[Part]] = {}
        for part in parts:
            if isinstance(part.images, Media):
                cache = self._fill_media(cache, part, part.images)
            elif part.images is not None:
                alike.setdefault(len(part.images), []).append(part)
        for seeing in alike.values():
            cache = self._fill_seeing(cache, seeing)
        return cache

    def _fill_media(self, cache: Cache, part: Part, media: Media) -> Cache:
        """The caches with one prompt of Gemma 4 read, whose ids have the places of its images and audio."""
        length = self._bucket(len(part.ids), self.capacity - part.slots)
        return self._run_fill(cache, [part], length, (dict(media.inputs), None), length, heard=media.heard)

    def _fill_texts(self, cache: Cache, parts: list[Part]) -> tuple[Cache, list[Part]]:
        """The caches with texts read as far as the fullest of them has room, and what is left of the others."""
        room = self.capacity - max(part.slots for part in parts)
        longest = max(len(part.ids) for part in parts)
        length = self._bucket(min(longest, room), room)
        cache = self._run_fill(cache, parts, length, None, length)
        return cache, [part.after(length) for part in parts if len(part.ids) > length]

    def _fill_seeing(self, cache: Cache, parts: list[Part]) -> Cache:
        """The caches with prompts and their images read; an image's soft tokens all see each other."""
        vision = self.vision
        assert vision is not None
        room = self.capacity - max(part.slots for part in parts)
        longest = max(vision.slots(part.ids) for part in parts)
        if longest > room:
            for part in parts:
                cache = self._fill_seeing(cache, [part])
            return cache
        length = self._bucket(longest, room)
        written = length - (vision.slots(parts[0].ids) - len(parts[0].ids))
        images = np.stack([part.images for part in parts if isinstance(part.images, np.ndarray)])
        blocks = np.zeros((len(parts), length, length), bool)
        for part, sees in zip(parts, blocks, strict=True):
            for block in vision.blocks(part.ids):
                sees[block, block] = True
        return self._run_fill(cache, parts, written, ({"images": images}, blocks), length)

    def _run_fill(
        self, cache: Cache, parts: list[Part], written: int, seen: Any, length: int, heard: tuple[int, ...] = ()
    ) -> Cache:
        """One pass over the ids of these parts, at most `written` of each, which take `length` slots."""
        tokens = np.zeros((len(parts), written), np.int32)
        for part, out in zip(parts, tokens, strict=True):
            out[: len(part.ids)] = part.ids[:written]
        slots = np.array([part.slots for part in parts], np.int32)
        rows = None if len(parts) == rows_of(cache) else np.array([part.row for part in parts], np.int32)
        window = self._bucket(int(slots.max()) + length, self.capacity)
        return self._run("fill", cache, tokens, slots, rows, seen, window=window, heard=heard)

    def _run(self, call: str, cache: Cache, tokens: Any, slots: Any, *inputs: Any, **options: Any) -> Any:
        compiled, self._owned = self._calls[call, self._owned], True
        place = placement(self._sharding, len(slots))
        if place is not None:
            import jax

            tokens, slots = jax.device_put((tokens, slots), place)
        return compiled(self._params, cache, tokens, slots, *inputs, **options)

    def _bucket(self, length: int, room: int) -> int:
        """The smallest bucket that takes so many tokens and has room, or their number."""
        return next((bucket for bucket in self._buckets if length <= bucket <= room), length)

    def _check_parts(self, count: int) -> None:
        for parts, spec in splits(self._sharding):
            if count % parts:
                raise ParamsError(
                    f"sharding must split the prompts into equal parts, got {spec} with {parts} parts for {count} "
                    "prompts; add prompts, or leave sharding out"
                )


def split(reading: Reading, vision: Vision | None) -> tuple[Part, int, int]:
    """What a reading fills the cache with, the token that follows, and the slot of that token."""
    if reading.images is None or vision is None:
        head, last, end = reading.ids[:-1], reading.ids[-1], reading.slots + len(reading.ids) - 1
    else:
        head, last, rewound = vision.split(reading.ids)
        end = reading.slots + vision.slots(head) - rewound
    return Part(reading.row, head, reading.slots, reading.images), last, end


# --- sharding ----------------------------------------------------------------------------------------------------


def check_sharding(sharding: Any) -> Any:
    """The sharding; ParamsError for one that JAX's `NamedSharding` does not describe."""
    import jax

    for leaf in jax.tree.leaves(sharding):
        if not isinstance(leaf, jax.sharding.NamedSharding):
            raise ParamsError(f"sharding must be a NamedSharding or a tree of them, got {type(leaf).__name__}")
    return sharding


def splits(sharding: Any) -> list[tuple[int, Any]]:
    """Into how many parts each leaf of a sharding splits the prompts, and its PartitionSpec."""
    import jax

    leaves = jax.tree.leaves(sharding)
    return [(math.prod(leaf.mesh.shape[axis] for axis in first_axes(leaf.spec)), leaf.spec) for leaf in leaves]


def first_axes(spec: Any) -> tuple[str, ...]:
    """The mesh axes that split the first axis of an array."""
    first = spec[0] if len(spec) else None
    return () if first is None else first if isinstance(first, tuple) else (first,)


def placement(sharding: Any, count: int) -> Any:
    """Where so many tokens go: beside the rows of a cache that one NamedSharding spreads; None where JAX may choose."""
    if not hasattr(sharding, "spec") or any(count % parts for parts, _ in splits(sharding)):
        return None
    import jax

    return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(first_axes(sharding.spec)))


# --- the model's calls ---------------------------------------------------------------------------------------------


def can_join(model: Any, params: Any) -> bool:
    """Whether a model's prompts can be read together: JAX parameters, and a cache of Gemma's layout."""
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
    """A model's compiled calls, each for a cache that stays as it is and for one that may be written in place."""
    import jax

    model = model_of(key)
    fill, step = partial(fill_rows, model), partial(step_rows, model)
    return {
        ("fill", False): jax.jit(fill, static_argnames=("window", "heard")),
        ("fill", True): jax.jit(fill, static_argnames=("window", "heard"), donate_argnums=1),
        ("step", False): jax.jit(step),
        ("step", True): jax.jit(step, donate_argnums=1),
    }


def step_rows(model: Any, params: Any, cache: Cache, tokens: Any, slots: Any, never: Any) -> tuple[Any, Cache]:
    """Float32 logits [B, V] after one more token for each row, and the cache with it."""
    import jax.numpy as jnp

    logits, grown = each_row(model, params, cache, tokens[:, None], slots, None)
    return jnp.where(never, -jnp.inf, logits.reshape(-1, len(never)).astype(jnp.float32)), grown


def fill_rows(
    model: Any,
    params: Any,
    cache: Cache,
    tokens: Any,
    slots: Any,
    rows: Any,
    seen: Any,
    *,
    window: int,
    heard: tuple[int, ...],
) -> Cache:
    """The cache with tokens [n, L] read by these rows, which need no more than the first `window` slots of it.

    `rows` None are all. `seen`: what the model takes beside them, such as images, and which of the new slots see each
    other beside those before them. `heard`: soft tokens of each piece of audio.
    """
    picked = cache if rows is None else over(lambda leaf: leaf[rows], cache)
    narrow = over(lambda leaf: leaf if leaf.ndim < 2 else leaf[:, :window], picked)
    grown = each_row(model, params, narrow, tokens, slots, seen, heard)[1]
    wide = over(lambda leaf, new: new if leaf.ndim < 2 else leaf.at[:, :window].set(new), picked, grown)
    return wide if rows is None else over(lambda leaf, new: leaf.at[rows].set(new), cache, wide)


def each_row(
    model: Any, params: Any, cache: Cache, tokens: Any, slots: Any, seen: Any, heard: tuple[int, ...] = ()
) -> tuple[Any, Cache]:
    """Logits [B, L, V] and the grown cache: the model mapped over rows, each of which writes from its own slot on."""
    import jax
    import jax.numpy as jnp

    counts = {"audio_soft_token_counts": heard} if heard else {}

    def row(ids: Any, slot: Any, seen: Any, layers: Cache) -> tuple[Any, Cache]:
        inputs, sees = ({}, None) if seen is None else seen
        length = len(ids) if sees is None else len(sees)
        positions = slot + jnp.arange(length, dtype=jnp.int32)
        width = next(leaf.shape[0] for leaf in next(iter(layers.values())).values() if leaf.ndim)
        mask = jnp.arange(width) <= positions[:, None]
        if sees is not None:
            mask |= jax.lax.dynamic_update_slice(jnp.zeros_like(mask), sees, (0, slot))
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

    return jax.vmap(row)(tokens, slots, seen, cache)


def over(function: Callable[..., Any], cache: Cache, *others: Cache) -> Cache:
    """A cache made of another's arrays, layer by layer."""
    return {
        name: {part: function(leaf, *(other[name][part] for other in others)) for part, leaf in layer.items()}
        for name, layer in cache.items()
    }
