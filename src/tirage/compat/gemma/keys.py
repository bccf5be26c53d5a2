"""Every kind of `rng` as one seed per prompt."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError

RULE = "an int64, a JAX key, a uint32 array of shape (2,), one of these per prompt, or None"


@dataclass(frozen=True, slots=True)
class Source:
    """The randomness of one prompt: a 64-bit seed, and which of the call's prompts that share it this one is.

    An int and the JAX key made from it are the same seed.
    """

    seed: int
    index: int = 0

    @property
    def words(self) -> NDArray[np.uint32]:
        """The seed as the two words [2] of a JAX key, high word first."""
        unsigned = self.seed % (1 << 64)
        return np.array([unsigned >> 32, unsigned & 0xFFFFFFFF], np.uint32)

    def key(self, step: int) -> Any:
        """The `rng` of a user's own sampling method at a step.

        A JAX key where JAX is in use, else a NumPy Generator; a new one for each prompt and step.
        """
        if sys.modules.get("jax") is None:
            return np.random.default_rng([self.seed % (1 << 64), self.index, step])
        import jax

        key = jax.random.wrap_key_data(jax.numpy.asarray(self.words), impl="threefry2x32")
        return jax.random.fold_in(jax.random.fold_in(key, self.index), step)


def sources_of(rng: Any, count: int) -> list[Source]:
    """One Source per prompt.

    A single seed or key serves all prompts, told apart by their number in the call, so that a lone prompt equals
    prompt 0; a sequence has one for each. Keys are JAX's own kind, threefry, of two words. None takes a seed from
    Python's `random`. Raises ParamsError for any other kind and for a sequence of another length.
    """
    if isinstance(rng, Source):
        return [replace(rng, index=rng.index + row) for row in range(count)]
    if rng is None:
        rng = random.getrandbits(63)
    rng = key_data(rng)
    if is_seed(rng):
        return [Source(as_seed(rng), index) for index in range(count)]
    if not isinstance(rng, (Sequence, np.ndarray)) or isinstance(rng, (str, bytes)) or getattr(rng, "ndim", 1) == 0:
        raise ParamsError(f"rng must be {RULE}, got {type(rng).__name__} {rng!r:.60}")
    if len(rng) != count:
        raise ParamsError(f"rng must hold one seed per prompt, which is {count}, got {len(rng)}")
    return [Source(as_seed(key_data(each))) for each in rng]


def key_of_sources(sources: Sequence[Source], *, jax: bool) -> Any:
    """The `rng` that gives these sources: one key, or one per prompt where they do not share it.

    A JAX key array, or without `jax` the words of the keys, uint32 [2] or [B, 2].
    """
    shared = all(source.index == row for row, source in enumerate(sources)) and len({s.seed for s in sources}) == 1
    words = sources[0].words if shared else np.array([source.words for source in sources]).reshape(-1, 2)
    if not jax:
        return words
    from jax import numpy, random

    return random.wrap_key_data(numpy.asarray(words), impl="threefry2x32")


def key_data(rng: Any) -> Any:
    """A JAX array as NumPy words or numbers, anything else as it is; ParamsError for a key of another kind."""
    if sys.modules.get("jax") is None:
        return rng
    import jax

    if not isinstance(rng, jax.Array):
        return rng
    # Inside a trace, too, where JAX would leave even the words of a known key to the program.
    with jax.ensure_compile_time_eval():
        return np.asarray(key_words(rng))


def key_words(rng: Any) -> Any:
    """JAX keys [*K] as their words, uint32 [*K, 2], anything else as it is; ParamsError for keys of another kind."""
    import jax

    if not isinstance(rng, jax.Array) or not jax.numpy.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return rng
    if jax.random.key_impl(rng) != jax.random.key_impl(jax.random.key(0, impl="threefry2x32")):
        raise ParamsError(f"rng must be {RULE}, got a key of {jax.random.key_impl(rng)}; use threefry2x32")
    return jax.random.key_data(rng)


def is_seed(rng: Any) -> bool:
    """Whether `rng` is one seed: an integer, or the two words [2] of a key."""
    if isinstance(rng, np.ndarray):
        key = rng.shape == (2,) and rng.dtype == np.uint32
        return key or (rng.ndim == 0 and rng.dtype.kind in "iu")
    return isinstance(rng, (int, np.integer)) and not isinstance(rng, bool)


def as_seed(rng: Any) -> int:
    """The seed as an int64; raises ParamsError for anything else."""
    if not is_seed(rng):
        raise ParamsError(f"rng must be {RULE}, got {type(rng).__name__} {rng!r:.60}")
    if isinstance(rng, np.ndarray) and rng.ndim:
        words = int(rng[0]) << 32 | int(rng[1])
        return words - (1 << 64 if words >> 63 else 0)
    seed = int(rng)
    if not -(2**63) <= seed < 2**63:
        raise ParamsError(f"rng must be {RULE}, got {seed}")
    return seed
