"""`Batch` like a JAX array: a pytree that draws what each request draws alone, eagerly, in jit and in scan."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every_stage import bitmask, hashed_logits
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from numpy.typing import NDArray
from preset_rows import requests
from schedules import Pick, Request, V, World, compiled_by_jax, on_host, seeded
from test_batch import Schedules, check_schedules, picking

import tirage
from tirage import Batch, Draw, ParamsError, SamplingParams, Status
from tirage.backends.jax import traced, traced_history
from tirage.backends.jax.filters import FILTERS
from tirage.backends.jax.slots import SlotLayout
from tirage.backends.jax.traced_history import BEYOND, TracedHistory
from tirage.compiled_params import compiled
from tirage.history import History
from tirage.operators import OPERATORS
from tirage.operators.bad_words import completing
from tirage.operators.dry import penalties as dry_penalties
from tirage.operators.no_repeat_ngram import repeating
from tirage.operators.top_h import TOP_H
from tirage.semantics import PRESETS

LIKE = jnp.zeros((1, V))
NUCLEUS = SamplingParams(
    temperature=0.7, top_p=0.9, top_k=9, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.4, seed=1
)
MOST_ORDERS = 8
"""Orders of stages that all presets need together; `docs/jax.md` says so."""
HISTORIES = (([1, 2, 3], [4]), ([5, 6, 5], []), ([7], [4, 4]))


def logits(rows: int, name: int | str = "jax") -> NDArray[np.float32]:
    return np.stack([hashed_logits(name, row, size=V) for row in range(rows)])


def filled(params: SamplingParams = NUCLEUS, capacity: int = 4, **options: Any) -> Batch:
    """A Batch with one request for each of HISTORIES, with seeds 1, 2, 3."""
    batch = Batch(V, capacity, like=LIKE, history_capacity=32, **options)
    for i, (prompt, output) in enumerate(HISTORIES):
        batch.add(params.replace(seed=i + 1), prompt, output_ids=output)
    return batch


def advanced(batch: Any, x: Any) -> tuple[Any, Draw]:
    """One step, for jit and scan."""
    drawn = batch.sample(x)
    batch.advance(drawn)
    return batch, drawn


# --- what is drawn ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eager_calls_and_scan_draw_what_each_request_draws_alone() -> None:
    steps = 4
    x = np.stack([logits(4, step) for step in range(steps)])
    histories = [(prompt, list(output)) for prompt, output in HISTORIES]
    expected = []
    for row in x:
        alone = tirage.sample(row[:3], [NUCLEUS.replace(seed=i + 1) for i in range(3)], history=histories)
        expected.append(alone.token_ids.tolist())
        for (_, output), token in zip(histories, expected[-1], strict=True):
            output.append(token)

    eager, drawn_eagerly = filled(), []
    for step in range(steps):
        drawn_eagerly.append(eager.sample(jnp.asarray(x[step])))
        eager.advance(drawn_eagerly[-1])
    scanned, drawn = jax.lax.scan(advanced, filled(), jnp.asarray(x))

    assert [[*row, -1] for row in expected] == drawn.token_ids.tolist()
    assert [[0, 0, 0, Status.empty_slot]] * steps == drawn.status.tolist()
    for step, one in enumerate(drawn_eagerly):
        assert one.token_ids.tolist() == drawn.token_ids[step].tolist()
        assert np.asarray(one.sampled_logprobs).tobytes() == np.asarray(drawn.sampled_logprobs[step]).tobytes()
    for batch in (eager, scanned):
        assert [batch.history(slot) for slot in batch.slots] == histories


@pytest.mark.slow
def test_a_new_value_compiles_nothing_anew_and_a_new_stage_does_once() -> None:
    traces = []

    def step(batch: Any, x: Any) -> tuple[Any, Draw]:
        traces.append(1)
        return advanced(batch, x)

    run, x = jax.jit(step), jnp.asarray(logits(4))
    batch, _ = run(filled(), x)
    changes: list[dict[str, Any]] = [
        {"temperature": 1.9},
        {"top_p": 0.3},
        {"top_k": 3},
        {"top_k": 20},
        {"min_p": 0.2},
        {"repetition_penalty": 0.8},
        {"frequency_penalty": -1.0},
        {"seed": -(2**63)},
        {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
    ]
    for number, change in enumerate(changes):
        params = NUCLEUS.replace(**change)
        batch.insert(params, [number, 3], slot=number % 4, sample_index=number)
        batch, drawn = run(batch, x)
        alone = tirage.sample(logits(4)[number % 4], params, history=[([number, 3], [])], sample_index=number)
        assert int(alone.token_ids[0]) == int(drawn.token_ids[number % 4])
    batch.remove(1)
    batch.reorder([3, 2, 0, 0])
    batch, _ = run(batch, x)
    assert len(traces) == 1
    batch.insert(SamplingParams(temperature=0.0, seed=0), slot=0)
    batch, _ = run(batch, x)
    batch.insert(NUCLEUS, slot=0)
    batch, _ = run(batch, x)
    assert len(traces) == 2
    # Top-k and top-p come before the temperature here: one more order, which then mixes with the others.
    for other in (NUCLEUS.replace(semantics="easydel"), NUCLEUS):
        batch.insert(other, slot=0)
        batch, drawn = run(batch, x)
        batch.insert(other.replace(top_k=4), slot=3)
        batch, _ = run(batch, x)
        alone = tirage.sample(logits(4)[0], other, history=[([], [])])
        assert int(alone.token_ids[0]) == int(drawn.token_ids[0])
    assert len(traces) == 3


@pytest.mark.slow
def test_all_presets_need_few_orders_of_stages_and_once_seen_no_other() -> None:
    """What is compiled in of the stages is the layout: of every parameter of every preset, in any order."""
    asked = [
        compiled(params)
        for semantics in PRESETS.values()
        for params in requests(semantics)
        if not params.logits_processors
    ]
    layout, seen = SlotLayout(), set()
    for one in asked:
        layout = layout.with_params(one, V)
        seen.add(layout.orders)
    assert len(layout.orders) <= MOST_ORDERS
    assert len(seen) <= len(FILTERS) * MOST_ORDERS
    for one in reversed(asked):
        assert layout.with_params(one, V) == layout


@pytest.mark.slow
def test_requests_come_go_and_move_inside_jit() -> None:
    @jax.jit
    def changed(batch: Any, slot: Any, order: Any) -> Any:
        added = batch.add(NUCLEUS.replace(seed=77), [9, 9], output_ids=[1])
        full = batch.add(NUCLEUS.replace(seed=78))
        batch.remove(slot)
        batch.reorder(order)
        batch.insert(NUCLEUS.replace(seed=79), [2], slot=slot)
        return batch, added, full

    batch, added, full = changed(filled(), jnp.int32(1), jnp.array([3, -1, 1, 0], jnp.int32))

    assert [int(added), int(full)] == [3, -1]
    assert batch.slots == (0, 1, 3)
    assert [batch.seed(slot) for slot in batch.slots] == [77, 79, 1]
    assert [batch.history(slot) for slot in batch.slots] == [([9, 9], [1]), ([2], []), ([1, 2, 3], [4])]


@pytest.mark.slow
def test_the_callers_batch_is_not_changed_by_a_compiled_step() -> None:
    batch = filled()
    after = jax.jit(lambda b: (b.advance(jnp.array([1, 2, 3, -1])), b.remove(0), b)[-1])(batch)
    assert [batch.history(slot) for slot in batch.slots] == [(prompt, output) for prompt, output in HISTORIES]
    assert [after.history(slot)[1] for slot in after.slots] == [[2], [4, 4, 3]]


@pytest.mark.slow
def test_masks_and_allowed_ids_hold_together_in_a_traced_batch() -> None:
    batch = Batch(V, 2, like=LIKE, history_capacity=8)
    batch.add(SamplingParams(seed=1, allowed_token_ids=[3, 4, 20]))
    batch.add(SamplingParams(seed=2))
    mask = jnp.asarray(bitmask([4, 21], [5], size=V))

    inside = jax.jit(lambda batch, words: batch.sample(jnp.zeros((2, V)), words))(batch, mask)

    assert [4, 5] == inside.token_ids.tolist() == batch.sample(jnp.zeros((2, V)), mask).token_ids.tolist()


@pytest.mark.slow
def test_a_history_that_outgrows_its_slot_is_told_not_forgotten() -> None:
    batch = Batch(V, 2, like=LIKE, history_capacity=5)
    batch.add(SamplingParams(seed=1), [1, 2, 3, 4])
    batch.add(SamplingParams(seed=2))
    step = jax.jit(advanced)

    seen = []
    for _ in range(3):
        batch, drawn = step(batch, jnp.asarray(logits(2)))
        seen.append(drawn.status.tolist())

    assert seen == [[0, 0], [0, 0], [Status.history_full, 0]]
    assert batch.sample(jnp.asarray(logits(2))).status.tolist() == [Status.history_full, 0]
    assert int(drawn.token_ids[0]) == -1


@pytest.mark.slow
def test_seeds_keep_all_their_64_bits_in_a_traced_batch() -> None:
    batch = Batch(V, 3, like=LIKE, history_capacity=4)
    seeds = [2**63 - 1, -(2**63), 2**40 + 7]
    for seed in seeds:
        batch.add(SamplingParams(seed=seed))
    inside = jax.jit(lambda batch: batch.sample(jnp.zeros((3, V))))(batch)
    assert seeds == [batch.seed(slot) for slot in range(3)] == on_host(inside.seeds).tolist()
    alone = tirage.sample(np.zeros((3, V), np.float32), [SamplingParams(seed=seed) for seed in seeds])
    assert alone.token_ids.tolist() == inside.token_ids.tolist()


# --- rules that read the history ----------------------------------------------------------------------------------


def histories(count: int, alphabet: int, room: int) -> tuple[list[tuple[list[int], list[int]]], Any]:
    """Random histories over few tokens, so that they repeat themselves, and the same as a Past."""
    rng = np.random.default_rng(alphabet)
    pairs = []
    for _ in range(count):
        said = rng.integers(0, alphabet, rng.integers(0, room + 1)).tolist()
        cut = int(rng.integers(0, len(said) + 1))
        pairs.append((said[:cut], said[cut:]))
    rows = [TracedHistory.of(History.of(*pair, vocab_size=V), room) for pair in pairs]
    return pairs, jax.tree.map(lambda *parts: jnp.concatenate(parts), *rows)


def kept(ids: Any) -> set[int]:
    return set(np.asarray(ids).tolist()) - {BEYOND}


@pytest.mark.slow
def test_tokens_are_counted_as_they_come() -> None:
    pairs, rows = histories(40, 5, 20)
    new = np.random.default_rng(1).integers(-1, 5, 40).astype(np.int32)
    new[[len(prompt) + len(output) == 20 for prompt, output in pairs]] = -1

    after = traced_history.appended(rows, jnp.asarray(new))

    for r, (prompt, output) in enumerate(pairs):
        output = [*output, *([int(new[r])] if new[r] >= 0 else [])]
        expected = History.of(prompt, output, vocab_size=V).counts().table
        found = np.asarray(after.counts[r])[:, : int(after.distinct[r])]
        assert sorted(expected.T.tolist()) == sorted(found.T.tolist())
        assert (prompt + output) == np.asarray(after.tokens[r])[: int(after.length[r])].tolist()


@pytest.mark.slow
def test_a_window_counts_the_last_tokens_as_the_host_does() -> None:
    pairs, rows = histories(40, 4, 20)
    windows = np.array([0, 1, 5, 20] * 10, np.int32)

    found = np.asarray(traced_history.windowed(rows, jnp.asarray(windows), 20))

    for r, (pair, window) in enumerate(zip(pairs, windows.tolist(), strict=True)):
        expected = History.of(*pair, vocab_size=V).counts(window or None).table
        assert sorted(expected.T.tolist()) == sorted(
            map(list, {tuple(c) for c in found[r].T.tolist() if c[0] != BEYOND})
        )


@pytest.mark.slow
def test_bad_words_ngrams_and_dry_are_those_of_the_host() -> None:
    pairs, rows = histories(200, 3, 24)
    words = [(1,), (2, 0), (0, 1, 2)]
    table = np.array([[[-1, -1, 1], [-1, 2, 0], [0, 1, 2]]] * 200, np.int32)
    only = np.arange(200) % 2 == 0
    sizes = np.arange(200).astype(np.int32) % 5
    last_n = np.array([-1, 0, 7, 100] * 50, np.int32)
    breakers = np.array([[-1, -1], [2, -1]] * 100, np.int32)

    by_words = traced_history.by_words(rows, jnp.asarray(table), jnp.asarray(only))
    by_ngrams = traced_history.by_ngrams(rows, jnp.asarray(sizes))
    followers, lengths = traced_history.dry_lengths(rows, jnp.asarray(last_n), jnp.asarray(breakers), V)

    for r, pair in enumerate(pairs):
        history = History.of(*pair, vocab_size=V)
        said = history.output() if only[r] else history.tokens()
        assert set(completing(words, said)) == kept(by_words[r])
        size = int(sizes[r])
        assert set(repeating(size, history.tokens()).tolist() if size else ()) == kept(by_ngrams[r])
        stops = frozenset(b for b in breakers[r].tolist() if b >= 0)
        options: dict[str, Any] = {"allowed_length": 1, "last_n": int(last_n[r]), "breakers": stops}
        # With multiplier 1 and base 2 the penalty is 2 ** (length - 1).
        expected = dry_penalties(history.tokens(), multiplier=1.0, base=2.0, **options)
        longest = dict(zip(np.asarray(followers[r]).tolist(), np.asarray(lengths[r]).tolist(), strict=True))
        assert {t: float(p) for t, p in expected.items()} == {t: 2.0 ** (n - 1) for t, n in longest.items() if n}


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_eager_batch_names_a_mistake_as_any_batch_does() -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: filled().add(NUCLEUS, [V]), "history prompt ids must lie in [0, 24), got 24"),
        (lambda: filled().add(SamplingParams(logit_bias={V: 1.0})), "logit_bias must lie in [0, 24), got 24"),
        (lambda: filled(capacity=3).add(NUCLEUS), "batch must have a free slot, got 3 requests in 3 slots"),
        (lambda: filled().remove(3), "slot must hold a request, got 3; in use: [0, 1, 2]"),
        (lambda: filled().reorder([0, 3]), "slot must hold a request, got 3; in use: [0, 1, 2]"),
        (lambda: filled().advance([1, 2, V]), "token must be an integer in [-1, 23], got 24"),
        (lambda: filled().advance([1]), "rows must be 4 (one per slot) or 3 (one per request), got 1"),
        (lambda: filled().add(NUCLEUS, [1] * 33), "history must hold at most 32 tokens in this batch, got 33"),
        (lambda: filled().sample(logits(4)), "logits must come from the library of the batch's `like`, got numpy"),
        (lambda: filled().sample(jnp.zeros((4, V + 1))), "logits must have 24 columns, got 25"),
        (lambda: filled().sample(jnp.zeros((4, V)), np.zeros((4, 2), np.int32)), "mask must have shape [4, 1]"),
        (lambda: Batch(V, 2, history_capacity=9), "history_capacity must be left out unless like is a JAX array"),
        (lambda: Batch(V, 2, like=LIKE, history_capacity=0), "history_capacity must be an integer in [1, 1048576]"),
        (lambda: filled().insert("greedy", slot=0), "params must be a SamplingParams, got str"),  # pyright: ignore
    ]
    for make, message in cases:
        with pytest.raises(ParamsError) as error:
            make()
        assert message == str(error.value)[: len(message)]


def test_a_history_may_not_grow_beyond_its_slot_eagerly() -> None:
    batch = Batch(V, 1, like=LIKE, history_capacity=2)
    batch.add(NUCLEUS, [1, 2])
    with pytest.raises(ParamsError, match="history must hold at most 2 tokens in this batch, got 3; truncate it"):
        batch.advance([5])
    assert batch.history(0) == ([1, 2], [])


@pytest.mark.slow
def test_what_a_trace_cannot_do_is_refused_by_name() -> None:
    tirage.register_processor("batch_jax_same", lambda x, args: x)
    with pytest.raises(ParamsError, match=r"logits_processors must be empty .* got \['batch_jax_same'\]"):
        filled().add(SamplingParams(logits_processors=(("batch_jax_same", {}),)))
    checked = filled(SamplingParams(semantics="llamacpp"))
    mask = jnp.full((4, 1), -1, jnp.int32)
    cases: list[tuple[Callable[[Any], Any], str]] = [
        (lambda b: b.add(SamplingParams()), "seed must be given inside jit, got None"),
        (lambda b: b.slots, "batch must be concrete here, got one inside jit"),
        (lambda b: b.history(0), "batch must be concrete here, got one inside jit"),
        (lambda b: b.sample(jnp.zeros((3, V))), r"rows must be 4 \(one per slot\) inside jit, got 3"),
        (lambda b: b.sample(jnp.zeros((4, V)), mask), "mask must be None inside jit when a request's semantics checks"),
        (lambda b: b.advance(jnp.zeros(3, jnp.int32)), r"tokens must have shape \[4\] inside jit, got \[3\]"),
    ]
    for use, message in cases:
        with pytest.raises(ParamsError, match=message):
            jax.jit(use)(checked)
    assert checked.sample(jnp.zeros((4, V)), mask).status.tolist() == [0, 0, 0, Status.empty_slot]


def test_a_filter_that_no_trace_knows_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FILTERS, TOP_H)
    with pytest.raises(ParamsError, match="top_h must be a filter that JAX compiles in a batch like a JAX array"):
        filled().add(SamplingParams(top_h=0.5))


@pytest.mark.parametrize("carried", [{"mirostat": 2}, {"adaptive_target": 0.2}], ids=str)
def test_what_carries_a_state_is_refused_at_temperature_zero_too(carried: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, seed=1, **carried)
    message = f"{next(iter(carried))} must be off in a batch like a JAX array, got it on"
    with pytest.raises(ParamsError, match=message):
        filled().add(params)
    assert tirage.Batch(V, 1).add(params) == 0


def refused(params: SamplingParams) -> bool:
    """Whether a batch like a JAX array refuses the request."""
    try:
        filled().add(params)
    except ParamsError as error:
        if "in a batch like a JAX array" not in str(error):
            raise
        return True
    return False


def accepted_params(name: str, value: Any) -> Iterator[SamplingParams]:
    """The parameter alone and with `min_keep`, under the semantics that has most stages and llama.cpp's."""
    for semantics in ("canonical", "llamacpp"):
        for others in ({}, {"min_keep": 3}):
            with contextlib.suppress(ParamsError):
                yield SamplingParams(semantics=semantics, seed=1, **{**others, name: value})


def test_the_page_names_every_parameter_that_a_batch_refuses() -> None:
    tirage.register_processor("batch_jax_named", lambda x, args: x)
    values: dict[str, tuple[Any, ...]] = {name: each for op in OPERATORS.values() for name, each in op.examples.items()}
    values |= {
        "logits_processors": ((("batch_jax_named", {}),),), "sequence_bias": ({(1, 2): 1.0},), "return_kept": (True,),
        "watermark": ({"scheme": "gumbel", "key": 1}, {"scheme": "kgw", "key": 1}),
    }  # fmt: skip
    found = {name for name, each in values.items() if any(refused(p) for v in each for p in accepted_params(name, v))}
    page = (Path(__file__).parents[1] / "docs" / "jax.md").read_text(encoding="utf-8")
    rows = page.partition("| a `Batch` refuses |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert found == named - {"min_keep"}
    for name, op in OPERATORS.items():
        assert traced.operations().issuperset(op.operations) or named & set(op.fields), name


def test_guided_requests_must_have_a_mask_in_either_world() -> None:
    params = SamplingParams(seed=1, guided_decoding=tirage.GuidedDecodingParams(regex="a"))
    batch = filled(params)
    for use in (lambda b: b.sample(jnp.zeros((4, V))), jax.jit(lambda b: b.sample(jnp.zeros((4, V))))):
        with pytest.raises(ParamsError, match="guided_decoding must come with the mask of its grammar"):
            use(batch)


# --- any schedule -------------------------------------------------------------------------------------------------

CANONICAL = [
    key for key in compiled_by_jax() if seeded(key).semantics == "canonical" and not seeded(key).logits_processors
]
"""Requests whose stages stand in one order: one program for all of them."""


@cache
def template() -> Batch:
    """A batch that has seen every request of CANONICAL, and is empty again: its layout needs no growth."""
    batch = Batch(V, 4, like=LIKE, history_capacity=128)
    for key in CANONICAL:
        batch.insert(seeded(key), slot=0)
    batch.remove(0)
    return batch


@cache
def compiled_draw() -> Callable[..., Draw]:
    return jax.jit(lambda batch, x, mask: batch.sample(x, mask))


class TracedWorld(World):
    """All schedules drawn by one compiled program; the batch is changed outside of it."""

    def _empty(self) -> Batch:
        return jax.tree.map(lambda leaf: leaf, template())

    def _request(self, pick: Pick) -> Request:
        return Request(pick(CANONICAL))

    def _drawn(self, x: Any, mask: Any) -> Draw:
        everything = jnp.full((self.capacity, 1), -1, jnp.int32)
        return compiled_draw()(self.batch, x, everything if mask is None else mask)

    def step(self, *, wide: bool, by_ids: bool) -> None:
        super().step(wide=True, by_ids=by_ids)


class Traced(Schedules):
    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.world = TracedWorld("jax", 4)
        self.world.add(picking(data))


@pytest.mark.exhaustive
def test_any_schedule_of_a_traced_batch_gives_each_request_what_it_draws_alone() -> None:
    check_schedules("jax", 200, Traced)
