"""How the next token is chosen: Gemma's four methods, and the class that users derive their own from."""

from __future__ import annotations

import abc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.batch import Batch
from tirage.compat.gemma.keys import Source, sources_of
from tirage.draw import Status
from tirage.errors import ParamsError
from tirage.params import SamplingParams
from tirage.sampling import sample


class SamplingMethod(abc.ABC):
    """A rule for the next token; a user's own class needs `get_next_tokens` alone."""

    @abc.abstractmethod
    def get_next_tokens(self, logits: Any, rng: Any) -> Any:
        """The next token ids [*B] for logits [*B, V], drawn with this key.

        A sampler calls it once per prompt and step, with float32 [1, V] and a key that no other call is given.
        """


class _Exact(SamplingMethod):
    """A method that tirage draws itself: in float32 whatever the model's dtype, each row by itself."""

    @property
    def params(self) -> SamplingParams:
        """The same method as SamplingParams."""
        raise TypeError(f"{type(self).__name__} has no params")

    def get_next_tokens(self, logits: Any, rng: Any) -> Any:
        """The next token ids [*B] for logits [*B, V]; rows draw independently, -1 where a row has no legal token.

        The same inside `jax.jit`, `vmap` and `scan`, where `rng` may be a key that is not known yet. There None raises
        a ParamsError, as a fresh seed would be frozen into the program; a method that is greedy needs none.
        """
        if sys.modules.get("jax") is not None:
            from tirage.compat.gemma import traced

            if traced.needs_trace(logits, rng):
                return traced.next_tokens(self.params, logits, rng)
        x = float32(logits)
        rows = x.reshape(-1, x.shape[-1])
        seed = sources_of(rng, 1)[0].seed
        drawn = sample(rows, self.params.replace(seed=seed), sample_index=list(range(len(rows))))
        tokens = np.asarray(drawn.token_ids).reshape(x.shape[:-1])
        return like(logits, tokens)


@dataclass(frozen=True, kw_only=True)
class Greedy(_Exact):
    """The most likely token; of equal ones, the lowest id."""

    @property
    def params(self) -> SamplingParams:
        """The same method as SamplingParams."""
        return SamplingParams(temperature=0.0)


@dataclass(frozen=True, kw_only=True)
class RandomSampling(_Exact):
    """A draw from all tokens; `temperature` 0 is greedy, below 0 an error."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        _ = self.params

    @property
    def params(self) -> SamplingParams:
        """The same method as SamplingParams."""
        return SamplingParams(temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class TopkSampling(_Exact):
    """A draw from the `k` most likely tokens, ties cut by id; the default of 1 is greedy."""

    temperature: float = 1.0
    k: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise ParamsError(f"k must be an integer >= 1, got {self.k!r}; use RandomSampling for no limit")
        _ = self.params

    @property
    def params(self) -> SamplingParams:
        """The same method as SamplingParams."""
        if self.temperature == 0:
            return SamplingParams(temperature=0.0)
        return SamplingParams(temperature=self.temperature, top_k=int(self.k), semantics="gemma-topk")


@dataclass(frozen=True, kw_only=True)
class TopPSampling(_Exact):
    """A draw from the most likely tokens whose mass reaches `p`, all ties with the last one included.

    `p` of 1 or more is no limit; 0 or less is greedy.
    """

    p: float = 0.9
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, (int, float, np.number)) or self.p != self.p:
            raise ParamsError(f"p must be a number, got {self.p!r}; use 1.0 to turn it off")
        _ = self.params

    @property
    def params(self) -> SamplingParams:
        """The same method as SamplingParams."""
        checked = SamplingParams(temperature=self.temperature)
        if self.p <= 0 or checked.temperature == 0:
            return SamplingParams(temperature=0.0)
        if self.p >= 1:
            return checked
        return checked.replace(top_p=float(self.p), semantics="gemma-topp")


class Chooser:
    """A method that draws tokens for the prompts of a call, each with random numbers from its own source.

    With `jax`, a user's own method gets JAX arrays, as from the `gemma` package.
    """

    def __init__(self, method: SamplingMethod, sources: Sequence[Source], vocab_size: int, *, jax: bool) -> None:
        self._method, self._sources, self._jax = method, sources, jax
        self._batch = Batch(vocab_size, max(len(sources), 1)) if isinstance(method, _Exact) else None
        if self._batch is not None and isinstance(method, _Exact):
            params = method.params
            seeded = {seed: params.replace(seed=seed) for seed in {source.seed for source in sources}}
            for source in sources:
                self._batch.add(seeded[source.seed], sample_index=source.index)

    def choose(self, logits: NDArray[np.float32], rows: Sequence[int], step: int) -> list[int | Status]:
        """A token, or the Status of a row without one, for each of these prompts from float32 logits [n, V].

        Prompts that are not among `rows` are finished. Raises ParamsError for a user's method that returns no token.
        """
        if self._batch is None:
            return [self._ask(row[None], self._sources[at].key(step)) for row, at in zip(logits, rows, strict=True)]
        for slot in set(self._batch.slots).difference(rows):
            self._batch.remove(slot)
        drawn = self._batch.sample(logits)
        self._batch.advance(drawn)
        found = zip(drawn.token_ids.tolist(), drawn.status.tolist(), strict=True)
        return [token if status == Status.ok else Status(status) for token, status in found]

    def _ask(self, logits: Any, key: Any) -> int:
        """The token that a user's own method returns for float32 logits [1, V]."""
        count = logits.shape[-1]
        if self._jax:
            import jax.numpy as jnp

            logits = jnp.asarray(logits)
        answer = np.asarray(self._method.get_next_tokens(logits, key))
        if answer.size != 1 or answer.dtype.kind not in "iu" or not 0 <= int(answer.reshape(())) < count:
            raise ParamsError(
                f"get_next_tokens must return one token id in [0, {count}) per row, got {answer!r:.80} "
                f"from {type(self._method).__name__}"
            )
        return int(answer.reshape(()))


def check_method(method: Any) -> SamplingMethod:
    """The method; raises ParamsError for an object without `get_next_tokens`."""
    if not callable(getattr(method, "get_next_tokens", None)) or isinstance(method, type):
        raise ParamsError(f"sampling must be a SamplingMethod object, got {method!r:.60}; derive one from it")
    return method


def float32(logits: Any) -> NDArray[np.float32]:
    """NumPy or JAX logits of any shape as NumPy float32, exact for bfloat16 and float16."""
    return np.asarray(logits).astype(np.float32)


def like(logits: Any, tokens: NDArray[np.int64]) -> Any:
    """Token ids of any shape as an array of the library that the logits are of."""
    if sys.modules.get("jax") is not None:
        import jax

        if isinstance(logits, jax.Array):
            return jax.numpy.asarray(tokens.astype(np.int32))
    return tokens
