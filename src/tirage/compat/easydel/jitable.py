"""SamplingParams as a JAX pytree: one request's, or those of a batch with one slot per request."""

from __future__ import annotations

import dataclasses
import functools
import json
import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tirage import params as host
from tirage.backends.jax import program
from tirage.compat.easydel import draw, plain, tables
from tirage.compat.easydel.arrays import SCALARS, STREAM, TABLES, SlotArrays
from tirage.compat.easydel.columns import PAD
from tirage.compat.easydel.processors import (
    AllowedTokensLogitsProcessor,
    BadWordsLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    LogitsProcessorList,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from tirage.compat.easydel.warpers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from tirage.draw import Draw
from tirage.errors import ParamsError
from tirage.fields.record import specs
from tirage.fields.rules import shown
from tirage.semantics import Semantics, resolve

SEMANTICS = ("canonical", "easydel")
"""The default, and EasyDeL's own order, which the lists of processors have. No other order can be kept here."""


@jax.tree_util.register_dataclass
class JitableSamplingParams(SlotArrays):
    """EasyDeL's 14 arrays, and the seed and step of their draws; new values of the same shapes do not recompile.

    The first ten are [] for one request, [B] for a batch, [B, 1] in its 2-d view. The tables of ids have the
    shapes in the comments, for a batch with B in front, and are padded with -100 (lengths with 0).
    `max_tokens` -1 is no limit, a row of `allowed_token_ids` without any id allows every token. What belongs
    to the loop around the logits (`n`, stop strings, logprobs) stays with the SamplingParams. The lists of processors
    have EasyDeL's order, and their penalties count prompt and output.

    `seed` uint32 [2], low word first, and `step`, the number of tokens drawn so far, key what `sample` draws; both are
    None without a seed. `semantics`, "canonical" or "easydel", says whose order `sample` has, and is compiled in.
    """

    __slots__ = ()

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        """Whether all arrays are concrete and have the same shapes and values."""
        if not isinstance(other, JitableSamplingParams):
            return NotImplemented
        mine, others = jax.tree.flatten(self), jax.tree.flatten(other)
        return mine[1] == others[1] and all(map(np.array_equal, mine[0], others[0]))

    @classmethod
    def from_host_params(
        cls,
        params: host.SamplingParams,
        *,
        stop_ids: int | None = None,
        bad_words: int | None = None,
        bad_word_len: int | None = None,
        allowed_ids: int | None = None,
    ) -> JitableSamplingParams:
        """One request's parameters: scalars [], tables as wide as needed, or as the widths given.

        With `ignore_eos` the stop ids are those of the request alone. Raises ParamsError for bad words that are not
        tokenised, and for a parameter that changes logits and has no array here, such as `logit_bias` or a grammar.
        """
        params = _checked(params)
        allowed = params.allowed_token_ids
        words, lengths = tables.tables_of(params.bad_words_token_ids, bad_words, bad_word_len)
        stops = params.stop_token_ids if params.ignore_eos else params.all_stop_token_ids
        return cls(
            **{name: _scalar(params, name) for name in SCALARS},
            all_stop_token_ids=tables.table_of("stop_ids", sorted(stops), stop_ids),
            bad_words_token_ids=words,
            bad_words_lengths=lengths,
            allowed_token_ids=None
            if allowed is None and not allowed_ids
            else tables.table_of("allowed_ids", allowed or (), allowed_ids),
            seed=None if params.seed is None else _words(params.seed),
            step=None if params.seed is None else jnp.int32(0),
            semantics=resolve(params.semantics).name,
        )

    @classmethod
    def init_empty(
        cls,
        batch_size: int,
        *,
        stop_ids: int = 8,
        bad_words: int = 8,
        bad_word_len: int = 8,
        allowed_ids: int = 0,
        seeded: bool = False,
        semantics: str = "canonical",
    ) -> JitableSamplingParams:
        """A batch whose slots all hold neutral values: they change no logits and end nothing.

        The widths limit the requests that are inserted inside `jax.jit`. With `allowed_ids=0` there is no
        `allowed_token_ids` at all. `seeded` slots have fresh seeds, each its own, until a request with one is inserted.
        Raises ParamsError for a size below 1, a negative width or other semantics.
        """
        widths = {"stop_ids": stop_ids, "bad_words": bad_words, "bad_word_len": bad_word_len}
        for name, size, low in (
            ("batch_size", batch_size, 1),
            *((name, size, 0) for name, size in (*widths.items(), ("allowed_ids", allowed_ids))),
        ):
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < low:
                raise ParamsError(f"{name} must be an integer >= {low}, got {shown(size)}; give a number of places")
        arrays: dict[str, Any] = {
            **{name: np.full(batch_size, value, dtype) for name, (dtype, value) in SCALARS.items()},
            "all_stop_token_ids": np.full((batch_size, stop_ids), PAD, np.int32),
            "bad_words_token_ids": np.full((batch_size, bad_words, bad_word_len), PAD, np.int32),
            "bad_words_lengths": np.zeros((batch_size, bad_words), np.int32),
            "allowed_token_ids": np.full((batch_size, allowed_ids), PAD, np.int32) if allowed_ids else None,
        }
        empty = cls(**jax.tree.map(jnp.asarray, arrays), semantics=_known(semantics))
        return empty._with_seeds() if seeded else empty

    def insert(self, second_sample: JitableSamplingParams, slot: int | jax.Array) -> JitableSamplingParams:
        """A batch whose slot `slot` holds `second_sample`, all of it: scalars, stop ids, bad words, allowed ids.

        A second sample of several slots is written to `slot` and those after it. Outside `jax.jit` a slot
        beyond the batch raises ParamsError and narrow tables grow; inside, where shapes are fixed, a table
        that is wider than its place raises ParamsError while tracing, and a slot beyond the batch is not
        written. A 2-d view stays one; parameters of one request become a batch of one slot. Where only one of the two
        has seeds, the other gets fresh ones outside `jax.jit`, and ParamsError is raised inside.
        """
        if not isinstance(second_sample, JitableSamplingParams):
            raise ParamsError(
                f"second_sample must be a JitableSamplingParams, got {shown(second_sample)}; call make_jitable()"
            )
        slots = _places(slot, second_sample.temperature.size, self.temperature.size)
        growing = not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((self, second_sample, slot)))
        mine, others = _alike(self, second_sample, growing)
        widths = tuple(
            tables.width_of(name, getattr(mine, name), getattr(others, name), rank, growing)
            for name, (rank, _) in TABLES.items()
        )
        return _merged(mine, others, slots, widths)

    def _with_seeds(self) -> JitableSamplingParams:
        """The same with a seed and a step for each slot: those it has, else fresh seeds and step 0."""
        shape = () if self.temperature.ndim == 0 else (self.temperature.size,)
        seed, step = self.seed, self.step
        if seed is None:
            fresh = np.frombuffer(secrets.token_bytes(8 * self.temperature.size), np.uint32)
            seed = jnp.asarray(fresh.reshape(*shape, 2))
        return dataclasses.replace(self, seed=seed, step=jnp.zeros(shape, jnp.int32) if step is None else step)

    def replace(self, **changes: Any) -> JitableSamplingParams:
        """The same with some arrays changed; an unknown name raises ParamsError.

        `seed` may be an integer where there is one slot; None removes seed and step.
        """
        plain.refuse_unknown(changes, (*SCALARS, *TABLES, *STREAM))
        if "seed" in changes:
            changes["seed"] = _seed_of(changes["seed"], self.temperature)
        return dataclasses.replace(self, **changes)

    def next_step(self) -> JitableSamplingParams:
        """The same with the next `step`, which keys the next draw; without a seed this object itself."""
        return self if self.step is None else dataclasses.replace(self, step=self.step + 1)

    def sample(
        self, logits: Any, *, history: Any = None, step: Any = None, mask: Any = None, sample_index: Any = 0
    ) -> Draw:
        """What `tirage.sample` draws for the SamplingParams of each slot, bit for bit, inside `jit` and `scan` too.

        `logits` [V] or [B, V], one row per slot. `history` is `(input_ids [B, T], cur_len [] or [B])` as the processors
        take them; of these ids the last `step` are the output. It is needed for penalties and bad words of several
        tokens: without it a slot that has any raises ParamsError for concrete arrays and gets status
        `history_missing` for traced ones. `step` and `sample_index` are integers, [] or [B]; `step` is this object's by
        default. `mask` as in `tirage.sample`. Inside `jit` a seed is needed, and `Draw.seeds` is uint32 [B, 2].
        """
        return draw.sample(self, logits, history=history, step=step, mask=mask, sample_index=sample_index)

    def to_host(self) -> list[host.SamplingParams]:
        """Each slot's parameters as a SamplingParams, for `tirage.law` or `explain`; ParamsError inside `jit`."""
        return draw.host_params(self)

    def make_jitable(self) -> JitableSamplingParams:
        """This object itself."""
        return self

    def get_logits_processor(self) -> LogitsProcessorList:
        """The processors for presence, frequency and repetition, then bad words and allowed ids where a table has any.

        They count prompt and output, `input_ids` up to `cur_len`. Those of one request take any batch, those of a batch
        logits of as many rows. `min_tokens` and stop ids belong to the loop, which knows the prompt's length.
        """
        processors = LogitsProcessorList([
            PresencePenaltyLogitsProcessor(self.presence_penalty),
            FrequencyPenaltyLogitsProcessor(self.frequency_penalty),
            RepetitionPenaltyLogitsProcessor(self.repetition_penalty),
        ])
        if self.bad_words_token_ids.size:
            processors.append(BadWordsLogitsProcessor(self.bad_words_token_ids, self.bad_words_lengths))
        if self.allowed_token_ids is not None:
            processors.append(AllowedTokensLogitsProcessor(self.allowed_token_ids))
        return processors

    def get_logits_warper(self) -> LogitsProcessorList:
        """The warpers for temperature, top-k, top-p and min-p; greedy rows pass unchanged."""
        greedy = ~self.random_sampling | (self.temperature <= 0)
        return LogitsProcessorList([
            TemperatureLogitsWarper(self.temperature, greedy),
            TopKLogitsWarper(self.top_k, greedy),
            TopPLogitsWarper(self.top_p, greedy),
            MinPLogitsWarper(self.min_p, greedy),
        ])

    @property
    def logits_processor(self) -> LogitsProcessorList:
        """The list of `get_logits_processor`."""
        return self.get_logits_processor()

    @property
    def logits_warper(self) -> LogitsProcessorList:
        """The list of `get_logits_warper`."""
        return self.get_logits_warper()

    def to_dict(self) -> dict[str, Any]:
        """Every array as its shape and a flat list of its numbers; None stays None.

        `seed`, `step` and `semantics` are left out where there is no seed or the semantics is "canonical".
        """
        named: dict[str, Any] = {name: plain.dumped(getattr(self, name)) for name in (*SCALARS, *TABLES)}
        if self.seed is not None:
            named |= {name: plain.dumped(getattr(self, name)) for name in STREAM}
        return named | ({} if self.semantics == "canonical" else {"semantics": self.semantics})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> JitableSamplingParams:
        """The object that `to_dict` described, bit for bit; anything else raises ParamsError."""
        plain.refuse_unknown(data, (*SCALARS, *TABLES, *STREAM, "semantics"))
        kinds = {name: dtype for name, (dtype, _) in SCALARS.items()} | STREAM
        optional = {"allowed_token_ids", *STREAM}
        arrays: dict[str, Any] = {
            name: plain.loaded(name, data.get(name), kinds.get(name, jnp.int32), optional=name in optional)
            for name in (*SCALARS, *TABLES, *STREAM)
        }
        return cls(**arrays, semantics=_known(data.get("semantics", "canonical")))

    def to_json(self, **options: Any) -> str:
        """JSON text of `to_dict`; `options` go to `json.dumps`."""
        return json.dumps(self.to_dict(), **options)

    @classmethod
    def from_json(cls, json_str: str) -> JitableSamplingParams:
        """The object that `to_json` wrote; other text raises ParamsError."""
        return cls.from_dict(plain.parsed(json_str))


def _checked(params: host.SamplingParams) -> host.SamplingParams:
    """The parameters as tirage's own class; ParamsError when the arrays cannot hold them."""
    if not isinstance(params, host.SamplingParams):
        raise ParamsError(f"params must be a SamplingParams, got {shown(params)}; build one first")
    params = params.unwrapped
    host.require_tokenized(params)
    _known(params.semantics)
    for name, spec in specs(type(params)).items():
        shapes_logits = spec.stage is not None or name in {"guided_decoding", "extra_args", "watermark"}
        if shapes_logits and name not in SCALARS and not spec.is_off(getattr(params, name)):
            raise ParamsError(
                f"{name} must be off in a JitableSamplingParams, which has no array for it, "
                f"got {shown(getattr(params, name))}; use tirage.Batch"
            )
    return params


def _words(seed: int) -> jax.Array:
    return jnp.asarray(program.words(np.array(seed, np.int64)))


def _seed_of(value: Any, slots: jax.Array) -> jax.Array | None:
    """A seed as `replace` takes it, as uint32 [2] or [B, 2]."""
    if value is None:
        return None
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and slots.size == 1:
        if -(1 << 63) <= value < 1 << 63:
            return jnp.reshape(_words(int(value)), (*[1] * min(slots.ndim, 1), 2))
    elif jnp.shape(value) == (*slots.shape[:1], 2) and jnp.result_type(value) == jnp.uint32:
        return jnp.asarray(value)
    raise ParamsError(
        f"seed must be uint32 {[*slots.shape[:1], 2]}, low word first, or an int64 where there is one slot, "
        f"got {shown(value)}; insert SamplingParams(seed=...)"
    )


def _known(semantics: Any) -> str:
    """The name of the semantics; ParamsError for one whose order the arrays cannot have."""
    found = resolve(semantics) if isinstance(semantics, (str, Semantics)) else None
    if found is not None and found in map(resolve, SEMANTICS):
        return found.name
    raise ParamsError(
        f"semantics must be one of {', '.join(SEMANTICS)} for a JitableSamplingParams, whose order is "
        f"EasyDeL's, got {shown(semantics)}; use tirage.Batch"
    )


def _alike(
    self: JitableSamplingParams, second: JitableSamplingParams, growing: bool
) -> tuple[JitableSamplingParams, JitableSamplingParams]:
    """Both with seeds or both without, as one batch holds them."""
    if self.semantics != second.semantics:
        raise ParamsError(
            f"second_sample must have the semantics of the batch, {self.semantics!r}, got {second.semantics!r}; "
            "give init_empty the same"
        )
    if self.seed is None and second.seed is None:
        return self, second
    if not growing and (self.seed is None or second.seed is None):
        raise ParamsError(
            "second_sample must have a seed if and only if the batch has seeds when traced; "
            "give init_empty seeded=True and the parameters a seed, or insert outside jit"
        )
    return self._with_seeds(), second._with_seeds()


def _scalar(params: host.SamplingParams, name: str) -> jax.Array:
    if name == "random_sampling":
        return jnp.asarray(np.asarray(params.sampling_type is host.SamplingType.RANDOM))
    value = getattr(params, name)
    dtype, neutral = SCALARS[name]
    return jnp.asarray(np.asarray(neutral if value is None else value, dtype))


def _places(slot: Any, count: int, slots: int) -> Any:
    """The `count` slots from `slot` on; ParamsError when they are known and not all among `slots`."""
    first = slot if isinstance(slot, Tracer) else np.asarray(slot)
    if first.size != 1 or not jnp.issubdtype(first.dtype, jnp.integer):
        raise ParamsError(f"slot must be one integer, got {shown(slot)}; give the first slot")
    first = first.reshape(())
    if isinstance(first, np.ndarray) and not 0 <= int(first) <= slots - count:
        raise ParamsError(
            f"slot must be in [0, {slots - count}], got {int(first)}; {count} of the batch's {slots} are written"
        )
    return first + np.arange(count, dtype=np.int32)


@functools.partial(jax.jit, static_argnums=3)
def _merged(
    self: JitableSamplingParams, second: JitableSamplingParams, slots: jax.Array, widths: tuple[Any, ...]
) -> JitableSamplingParams:
    """`self` per slot, its tables padded to `widths`, with the rows of `second` written at `slots`."""
    into, new = self.view_1d(), second.view_1d()
    arrays: dict[str, Any] = {
        name: tables.with_rows(getattr(into, name), getattr(new, name), slots) for name in SCALARS
    }
    for (name, (_, fill)), width in zip(TABLES.items(), widths, strict=True):
        if width is not None:
            mine = tables.per_slot(getattr(into, name), into.temperature.size, width, fill)
            others = tables.per_slot(getattr(new, name), new.temperature.size, width, fill)
            arrays[name] = tables.with_rows(mine, others, slots)
    if into.seed is not None:
        arrays |= {name: _stream(name, into, new, slots) for name in STREAM}
    merged = JitableSamplingParams(**arrays, semantics=self.semantics)
    return merged.view_2d() if self.temperature.ndim == 2 else merged


def _stream(name: str, into: JitableSamplingParams, new: JitableSamplingParams, slots: jax.Array) -> jax.Array:
    """Seeds or steps of every slot, with those of `new` at `slots`."""
    shape = (2,) if name == "seed" else ()
    mine, others = (jnp.reshape(getattr(each, name), (-1, *shape)) for each in (into, new))
    return tables.with_rows(mine, others, slots)
