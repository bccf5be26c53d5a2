"""Random lives of a `Batch`: requests come, go, move and are copied, and each must draw what it draws alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np
import torch
from every_stage import bitmask, full_params, hashed_logits
from numpy.typing import NDArray
from random_rows import ON_JAX, PLAIN_ONLY, TENSORS_ONLY

import tirage
from tirage import Batch, Draw, SamplingParams, Status
from tirage.compiled_params import compiled
from tirage.history import History
from tirage.semantics import PRESETS

V = 24
LIBRARIES: dict[str, Callable[[NDArray], Any]] = {
    "numpy": np.asarray,
    "torch": torch.from_numpy,
    "jax": jnp.asarray,
}
"""How NumPy logits and masks become arrays of each library; a new backend adds its line."""

EVERY = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds")
REPORTED = ("logprobs", "ranks", "top_token_ids", "top_logprobs")

FEATURES: tuple[SamplingParams, ...] = (
    *(full_params(name, logprobs=i % 3 or None) for i, name in enumerate(PRESETS)),
    # The same without what a batch like a JAX array does not take.
    full_params("canonical", sequence_bias=None, min_keep=0, tfs=1.0, logprobs=1),
    full_params("llamacpp", min_keep=0),
    full_params("hf", sequence_bias=None, logprobs=2),
    SamplingParams(temperature=0, repetition_penalty=1.3),
    SamplingParams(allowed_token_ids=range(0, V, 2), frequency_penalty=1.5),
    SamplingParams(bad_words_token_ids=[3, (4, 5), (6, 6)], presence_penalty=-1.0),
    SamplingParams(min_tokens=3, stop_token_ids=[1, 2, 3], logit_bias={1: 8.0}, logprob_token_ids=[1, 9]),
    SamplingParams(dry_multiplier=2.0, dry_allowed_length=1, dry_sequence_breakers=(), dry_breaker_token_ids=[7]),
    SamplingParams(no_repeat_ngram_size=2, top_k=4, temperature=0.3),
    SamplingParams(xtc_probability=0.7, xtc_threshold=0.05, xtc_protected_ids=[1, 2], logprobs=2),
    SamplingParams(semantics="llamacpp", frequency_penalty=3.0, top_k=5, logprobs=1, logprobs_mode="sampled"),
)
"""Requests that use everything a row can use."""

PASTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()),
    ((3,), ()),
    ((4, 6, 5, 4), (6, 5)),
    ((0, 23, 7, 0), (1,)),
    ((), (2, 2, 9, 2)),
)
"""Prompts with the output that a request brings along."""

T = TypeVar("T")


class Pick(Protocol):
    """Where a schedule's decisions come from: Hypothesis, or a seeded generator."""

    def __call__(self, options: Sequence[T], /) -> T: ...


REQUESTS = len(PASTS) * len(FEATURES)
"""Every feature with every past: few enough that what each draws alone is worked out once, for all schedules."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request number `key`: its features, seed, past, sample and logits follow from that."""

    key: int

    @property
    def params(self) -> SamplingParams:
        return seeded(self.key)

    @property
    def prompt(self) -> tuple[int, ...]:
        return PASTS[self.key // len(FEATURES)][0]

    @property
    def brought(self) -> tuple[int, ...]:
        return PASTS[self.key // len(FEATURES)][1]

    @property
    def sample_index(self) -> int:
        return self.key // 2 % 3


@cache
def seeded(key: int) -> SamplingParams:
    return FEATURES[key % len(FEATURES)].replace(seed=key * 1000 - 3)


@cache
def compiled_by_jax() -> Sequence[int]:
    """The requests that a batch like a JAX array takes, which runs nothing that the plain path alone knows."""
    history = History.of((), (), vocab_size=V)
    steps = {key: compiled(seeded(key).unwrapped).lower(history, 0).steps for key in range(REQUESTS)}
    unknown = (PLAIN_ONLY - ON_JAX) | TENSORS_ONLY
    taken = [key for key, each in steps.items() if not unknown.intersection(step.op for step in each)]
    return [key for key in taken if not seeded(key).unwrapped.sequence_bias]


@cache
def logits_at(key: int, step: int) -> NDArray[np.float32]:
    """Logits that depend on the request and its step alone; now and then a row that cannot be drawn."""
    x = hashed_logits(key, step, size=V)
    if (key + step) % 17 == 16:
        x[3] = np.nan
    return np.round(x * 4) * np.float32(0.25)


@cache
def mask_at(key: int, step: int) -> NDArray[np.int32] | None:
    """The grammar mask of a request at a step, [1, 1]; None when it has none then."""
    if (key + step) % 3:
        return None
    return bitmask([t for t in range(V) if (t * 7 + key + step) % 5], size=V)


@dataclass(frozen=True, slots=True)
class Answer:
    """A row of a Draw, as bytes; `reports` is None when the request asks for no logprobs."""

    token: int
    fields: tuple[bytes, ...]
    reports: tuple[NDArray, ...] | None
    given: tuple[float, ...]


@cache
def alone(request: Request, output: tuple[int, ...]) -> Answer:
    """What a request draws by itself, by `tirage.sample` over NumPy, after the given output."""
    step = len(output)
    drawn = tirage.sample(
        logits_at(request.key, step),
        request.params,
        history=[(request.prompt, output)],
        mask=mask_at(request.key, step),
        sample_index=request.sample_index,
    )
    asks = drawn.logprobs is not None
    return Answer(
        int(drawn.token_ids[0]),
        tuple(getattr(drawn, name)[0].tobytes() for name in EVERY),
        tuple(np.atleast_1d(getattr(drawn, name)[0]) for name in REPORTED) if asks else None,
        (drawn.given_logprobs or ((),))[0],
    )


def on_host(array: Any) -> NDArray:
    """An array of any library in NumPy, with int64 where JAX has int32, and 64-bit seeds where it has two words."""
    host = np.asarray(array)
    if host.dtype == np.uint32:
        low, high = host.astype(np.int64).T
        return low | high << 32
    return host.astype(np.int64) if host.dtype == np.int32 else host


@dataclass(slots=True, eq=False)
class World:
    """A Batch of one library, and what each slot must hold: a request and its output so far."""

    library: str
    capacity: int
    batch: Batch = field(init=False)
    held: dict[int, tuple[Request, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batch = self._empty()

    def _empty(self) -> Batch:
        like = LIBRARIES[self.library](np.zeros((1, V), np.float32))
        return Batch(V, self.capacity, like=like)

    # --- what may happen -------------------------------------------------------------------------------------------

    def add(self, pick: Pick) -> None:
        new = self._request(pick)
        slot = self.batch.add(new.params, new.prompt, output_ids=new.brought, sample_index=new.sample_index)
        assert slot == min(set(range(self.capacity)) - set(self.held))
        self.held[slot] = new, new.brought

    def insert(self, pick: Pick) -> None:
        new, slot = self._request(pick), pick(range(self.capacity))
        self.batch.insert(new.params, new.prompt, slot=slot, output_ids=new.brought, sample_index=new.sample_index)
        self.held[slot] = new, new.brought

    def remove(self, pick: Pick) -> None:
        slot = pick(sorted(self.held))
        self.batch.remove(slot)
        del self.held[slot]

    def reorder(self, pick: Pick) -> None:
        places = [-1, *self.held]
        order = [pick(places) for _ in range(pick([self.capacity - 1, self.capacity]))]
        self.batch.reorder(order)
        self.held = {new: self.held[old] for new, old in enumerate(order) if old >= 0}

    def step(self, *, wide: bool, by_ids: bool) -> None:
        """Draw for every request, as rows by slot if `wide`, compare, and advance by the Draw or by its tokens."""
        rows = list(range(self.capacity)) if wide else sorted(self.held)
        convert = LIBRARIES[self.library]
        drawn = self._drawn(convert(self._logits(rows)), None if (m := self._masks(rows)) is None else convert(m))
        assert type(drawn.token_ids) is type(convert(np.zeros(1)))
        self._check(drawn, rows)
        self.batch.advance(drawn.token_ids.tolist() if by_ids else drawn)
        self.holds_what_was_put_in()

    def holds_what_was_put_in(self) -> None:
        assert self.batch.slots == tuple(sorted(self.held))
        for slot, (request, output) in self.held.items():
            assert self.batch.history(slot) == ([*request.prompt], [*output])

    # --- how -------------------------------------------------------------------------------------------------------

    def _drawn(self, x: Any, mask: Any) -> Draw:
        return self.batch.sample(x, mask)

    def _request(self, pick: Pick) -> Request:
        return Request(pick(compiled_by_jax() if self.library == "jax" else range(REQUESTS)))

    def _logits(self, rows: Sequence[int]) -> NDArray[np.float32]:
        x = np.full((len(rows), V), np.nan, np.float32)
        for row, slot in enumerate(rows):
            if slot in self.held:
                request, output = self.held[slot]
                x[row] = logits_at(request.key, len(output))
        return x

    def _masks(self, rows: Sequence[int]) -> NDArray[np.int32] | None:
        """The masks of the requests, all bits for a row without one; None when no row has one."""
        held = [self.held.get(slot) for slot in rows]
        masks = [None if h is None else mask_at(h[0].key, len(h[1])) for h in held]
        if all(mask is None for mask in masks):
            return None
        return np.concatenate([np.full((1, 1), -1, np.int32) if mask is None else mask for mask in masks])

    def _check(self, drawn: Draw, rows: Sequence[int]) -> None:
        host = {name: on_host(getattr(drawn, name)) for name in EVERY}
        for row, slot in enumerate(rows):
            if slot not in self.held:
                assert (host["status"][row], host["token_ids"][row]) == (Status.empty_slot, -1)
                continue
            request, output = self.held[slot]
            expected = alone(request, output)
            assert expected.fields == tuple(host[name][row].tobytes() for name in EVERY), (request, output)
            if expected.reports is not None:
                self._check_reports(drawn, row, expected)
            if expected.token >= 0:
                self.held[slot] = request, (*output, expected.token)

    def _check_reports(self, drawn: Draw, row: int, expected: Answer) -> None:
        for name, report in zip(REPORTED, expected.reports or (), strict=True):
            together = np.atleast_1d(on_host(getattr(drawn, name))[row])
            assert together[: report.size].tobytes() == report.tobytes(), name
        given = [] if drawn.given_logprobs is None else drawn.given_logprobs[row]
        np.testing.assert_array_equal(given[: len(expected.given)], expected.given)


def finish(world: World) -> None:
    """Every schedule ends with some steps, so that whatever went wrong before them shows."""
    for number in range(3):
        world.step(wide=number % 2 == 0, by_ids=number == 2)


def live(library: str, seed: int, kind: type[World] = World) -> None:
    """One whole schedule of a kind of world, its decisions made by a generator with this seed."""
    r = np.random.default_rng(seed)

    def pick(options: Sequence[T]) -> T:
        return options[int(r.integers(len(options)))]

    world = kind(library, pick([2, 3, 4, 6]))
    for _ in range(pick([4, 8, 12])):
        can: list[Callable[[Pick], None]] = [world.insert]
        can += [world.add] * (2 * (len(world.held) < world.capacity))
        can += [world.remove, world.reorder] if world.held else []
        pick(can)(pick)
        if pick([True, False]):
            world.step(wide=pick([True, False]), by_ids=pick([True, False]))
    finish(world)
