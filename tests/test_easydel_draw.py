"""JitableSamplingParams draw for themselves: the tokens of `tirage.sample`, on the host, in `jit` and in `scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tirage
from tirage import ParamsError, Status
from tirage.compat.easydel import JitableSamplingParams, SamplingParams, operands
from tirage.exact import numbers

V, T = 50, 9
HOSTS = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.7, top_p=0.8),
    SamplingParams(seed=-3 + 2**40, top_k=5, temperature=1.3),
    SamplingParams(seed=4, min_p=0.1),
    SamplingParams(seed=5, temperature=0.0, presence_penalty=2.0),
    SamplingParams(seed=6, temperature=0.9, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.3),
    SamplingParams(seed=7, frequency_penalty=0.3, presence_penalty=-0.5),
    SamplingParams(seed=8, bad_words_token_ids=[[3, 4], [5]], allowed_token_ids=[3, 4, 5, 6, 7]),
    SamplingParams(seed=9, min_tokens=3, stop_token_ids=[1, 2], allowed_token_ids=[1, 2, 3]),
]


def batch_of(hosts: list[SamplingParams], **options: Any) -> JitableSamplingParams:
    batch = JitableSamplingParams.init_empty(len(hosts), allowed_ids=8, seeded=True, **options)
    for slot, params in enumerate(hosts):
        batch = batch.insert(params.make_jitable(), slot)
    return batch


def moment(step: int) -> tuple[Any, Any, Any]:
    """Logits, token ids that end with 3, and how many ids are known."""
    rng = np.random.default_rng(step)
    ids = rng.integers(0, V, (len(HOSTS), T)).astype(np.int32)
    ids[:, T - 1] = 3
    lengths = np.array([4, *[T] * (len(HOSTS) - 1)])
    return rng.normal(0, 2, (len(HOSTS), V)).astype(np.float32), ids, lengths


def pairs(ids: Any, lengths: Any, step: int) -> list[tuple[list[int], list[int]]]:
    return [
        (row[: max(n - step, 0)].tolist(), row[max(n - step, 0) : n].tolist())
        for row, n in zip(ids, lengths, strict=True)
    ]


def told(draw: Any) -> list[Any]:
    """Everything about a Draw but its seeds, bit for bit."""
    named = (draw.token_ids, draw.support_sizes, draw.status)
    return [np.asarray(array).tolist() for array in named] + [np.asarray(draw.sampled_logprobs).tobytes()]


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["canonical", "easydel"])
def test_concrete_arrays_draw_what_the_host_draws(semantics: str) -> None:
    hosts = [params.replace(semantics=semantics) for params in HOSTS]
    batch = batch_of(hosts, semantics=semantics)
    for step in range(3):
        x, ids, lengths = moment(step)
        drawn = tirage.sample(jnp.asarray(x), batch, history=(ids, lengths))
        expected = tirage.sample(x, hosts, history=pairs(ids, lengths, step), step=[step] * len(hosts))
        assert told(drawn) == told(expected)
        assert drawn.seeds.tolist() == [params.seed for params in hosts]
        batch = batch.next_step()


@pytest.mark.slow
def test_a_compiled_step_draws_what_the_host_draws_and_is_compiled_once() -> None:
    traces = []

    @jax.jit
    def drawn(params: Any, x: Any, ids: Any, lengths: Any) -> Any:
        traces.append(1)
        return tirage.sample(x, params, history=(ids, lengths))

    for step in range(8):
        turned = HOSTS[step:] + HOSTS[:step]
        batch = batch_of(turned).replace(step=jnp.full(len(turned), step))
        x, ids, lengths = moment(step)
        expected = tirage.sample(x, turned, history=pairs(ids, lengths, step), step=[step] * len(turned))
        found = drawn(batch, x, ids, lengths)
        assert told(found) == told(expected)
        assert found.seeds[:, 0].tolist() == [(params.seed or 0) % 2**32 for params in turned]
    assert len(traces) == 1


@pytest.mark.slow
def test_a_scan_writes_the_text_that_a_loop_on_the_host_writes() -> None:
    hosts = [
        SamplingParams(seed=1, temperature=0.8, repetition_penalty=1.5),
        SamplingParams(seed=2, top_k=4, presence_penalty=1.0),
    ]
    table = np.random.default_rng(3).normal(0, 2, (V, V)).astype(np.float32)
    prompts, steps = [[7, 8], [9, 7]], 6

    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        params, ids, length = carry
        x = jnp.asarray(table)[jnp.take_along_axis(ids, length[:, None] - 1, 1)[:, 0]]
        drawn = tirage.sample(x, params, history=(ids, length))
        ids = ids.at[jnp.arange(2), length].set(drawn.token_ids)
        return (params.next_step(), ids, length + 1), drawn.token_ids

    room = np.pad(np.array(prompts, np.int32), ((0, 0), (0, steps)), constant_values=7)
    start = (batch_of(hosts), jnp.asarray(room), jnp.array([2, 2]))
    (final, _, _), written = jax.lax.scan(body, start, None, length=steps)
    outputs: list[list[int]] = [[], []]
    for _ in range(steps):
        x = table[[(p + o)[-1] for p, o in zip(prompts, outputs, strict=True)]]
        drawn = tirage.sample(x, hosts, history=list(zip(prompts, outputs, strict=True)))
        outputs = [[*said, token] for said, token in zip(outputs, drawn.token_ids.tolist(), strict=True)]
    assert written.T.tolist() == outputs
    assert final.step.tolist() == [steps, steps]


@pytest.mark.slow
def test_a_traced_slot_that_needs_a_history_and_has_none_gets_a_status_and_its_neighbours_a_token() -> None:
    hosts = [params.replace(semantics="easydel") for params in HOSTS]
    hosts.append(SamplingParams(seed=3, bad_words_token_ids=[[5]], temperature=0.0, semantics="easydel"))
    needing = {4, 5, 6, 7}
    x = np.random.default_rng(5).normal(0, 2, (len(hosts), V)).astype(np.float32)
    x[-1, 5] = 9.0
    found = jax.jit(lambda params, logits: tirage.sample(logits, params))(batch_of(hosts, semantics="easydel"), x)
    missing, expected = int(Status.history_missing), tirage.sample(x, hosts, history=[((), ())] * len(hosts))
    for slot, token in enumerate(expected.token_ids.tolist()):
        lost = slot in needing
        assert (found.status[slot], found.token_ids[slot]) == ((missing, -1) if lost else (0, token))
        assert bool(np.isnan(found.sampled_logprobs[slot])) == lost
        assert found.support_sizes[slot] == (0 if lost else expected.support_sizes[slot])


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0},
        {"frequency_penalty": -1.0},
        {"bad_words_token_ids": [[1, 2]]},
    ],
)
def test_concrete_arrays_that_need_a_history_are_refused_by_name(options: dict[str, Any]) -> None:
    params = SamplingParams(seed=1, **options).make_jitable()
    with pytest.raises(ParamsError, match=rf"history must be given with {next(iter(options))} .* pass history="):
        tirage.sample(jnp.zeros((1, V)), params)


@pytest.mark.slow
def test_a_mask_a_step_and_a_sample_index_mean_what_they_mean_elsewhere() -> None:
    params = SamplingParams(seed=11, temperature=3.0)
    x = np.random.default_rng(1).normal(0, 1, (40, V)).astype(np.float32)
    mask = np.full((40, 2), 0b1011, np.int32)
    for options in ({"step": 2**31 + 5}, {"step": 5, "sample_index": 2}, {"mask": mask}, {"step": list(range(40))}):
        drawn = tirage.sample(jnp.asarray(x), params.make_jitable(), **{"step": 0, **options})
        assert told(drawn) == told(tirage.sample(x, params, **{"step": 0, **options}))
    moved = params.make_jitable().next_step().next_step()
    assert told(tirage.sample(jnp.asarray(x), moved)) == told(tirage.sample(x, params, step=2))


def test_unseeded_parameters_draw_freshly_outside_jit_and_are_refused_inside() -> None:
    params, x = SamplingParams(temperature=5.0).make_jitable(), jnp.zeros((64, 1000))
    assert (params.seed, params.step, params.next_step() is params) == (None, None, True)
    first, second = (tirage.sample(x, params) for _ in range(2))
    assert first.token_ids.tolist() != second.token_ids.tolist()
    with pytest.raises(ParamsError, match=r"seed must be given inside jit, got None.*SamplingParams\(seed=...\)"):
        jax.jit(lambda p, logits: tirage.sample(logits, p))(params, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, x: p.sample(x, history=[([1], [2])]), r"history must be \(input_ids, cur_len\)"),
        (lambda p, x: p.sample(x, history=(np.zeros((3, 4), int), 1)), "must be .B, V. and .B, T. with the same B"),
        (lambda p, x: p.sample(x, history=[([1], [2]), ([1], [2])]), r"history must be \(input_ids, cur_len\)"),
        (
            lambda p, x: p.sample(x, history=(np.zeros((2, 4), int), -1)),
            r"cur_len must be integers in \[0, 2147483647\]",
        ),
        (lambda p, x: p.sample(x, step=1.5), "step must be 1 or 2 integers"),
        (lambda p, x: p.sample(x, step=-1), r"step must be integers in \[0, 4294967295\], got -1"),
        (lambda p, x: p.sample(x, sample_index=2**32), r"sample_index must be integers in \[0, 4294967295\]"),
        (lambda p, x: p.sample(x, sample_index=[1, 2, 3]), "sample_index must be 1 or 2 integers"),
        (lambda p, x: p.sample(x[:, :0]), "logits must have 1 to"),
        (lambda p, x: p.insert(p, 0).view_2d().sample(jnp.zeros((2, 4)), mask=np.zeros((1, 1))), "mask must be"),
        (lambda p, x: batch_of(HOSTS).sample(x), "logits must have 9 rows, one per slot, got 2"),
    ],
)
def test_a_wrong_call_is_refused(call: Callable[[Any, Any], Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        call(SamplingParams(seed=1).make_jitable(), jnp.zeros((2, 4)))


# --- seeds and semantics in a batch -----------------------------------------------------------------------------


@pytest.mark.slow
def test_seeds_are_inserted_with_the_rest_and_free_slots_have_their_own() -> None:
    batch = JitableSamplingParams.init_empty(3, seeded=True)
    assert len({tuple(row) for row in batch.seed.tolist()}) == 3
    inserted = batch.replace(step=jnp.array([4, 5, 6])).insert(SamplingParams(seed=2**33 + 7).make_jitable(), 1)
    assert inserted.seed.tolist() == [batch.seed.tolist()[0], [7, 2], batch.seed.tolist()[2]]
    assert inserted.step.tolist() == [4, 0, 6]
    traced = jax.jit(lambda b, second: b.insert(second, 1))(batch, SamplingParams(seed=-1 - 1).make_jitable())
    assert traced.seed.tolist()[1] == [2**32 - 2, 2**32 - 1]


@pytest.mark.slow
def test_where_one_side_has_no_seed_it_gets_a_fresh_one_eagerly_and_is_refused_when_traced() -> None:
    bare, seeded = SamplingParams(top_k=3).make_jitable(), SamplingParams(seed=5).make_jitable()
    batch = JitableSamplingParams.init_empty(2).insert(bare, 0)
    assert batch.seed is None
    grown = batch.insert(seeded, 1)
    assert grown.seed.shape == (2, 2)
    assert grown.seed.tolist()[1] == [5, 0]
    assert grown.insert(bare, 1).seed.tolist()[1] != [5, 0]
    for into, second in ((batch, seeded), (grown, bare)):
        with pytest.raises(ParamsError, match="must have a seed if and only if the batch has seeds when traced"):
            jax.jit(lambda b, s: b.insert(s, 0))(into, second)


def test_a_seed_can_be_replaced() -> None:
    params = SamplingParams(temperature=2.0).make_jitable()
    x = np.random.default_rng(2).normal(0, 1, V).astype(np.float32)
    for given, seed in ((-9, -9), (2**40, 2**40), (jnp.array([5, 1], jnp.uint32), 2**32 + 5)):
        again = params.replace(seed=given)
        assert again.to_host()[0].seed == seed
        assert told(tirage.sample(jnp.asarray(x), again)) == told(
            tirage.sample(x, SamplingParams(temperature=2.0, seed=seed))
        )
    assert JitableSamplingParams.init_empty(2).insert(params.replace(seed=3), 1).step.tolist() == [0, 0]
    batch = JitableSamplingParams.init_empty(2)
    assert batch.replace(seed=np.array([[1, 0], [2, 0]], np.uint32)).seed.tolist() == [[1, 0], [2, 0]]
    assert params.replace(seed=None) == params
    for owner, wrong in ((params, 2**63), (params, 1.5), (params, True), (batch, 3), (params, jnp.zeros(2))):
        with pytest.raises(ParamsError, match="seed must be uint32"):
            owner.replace(seed=wrong)


@pytest.mark.slow
def test_a_batch_has_one_semantics() -> None:
    easydel = SamplingParams(seed=1, semantics="easydel").make_jitable()
    with pytest.raises(ParamsError, match="semantics of the batch, 'canonical', got 'easydel'"):
        JitableSamplingParams.init_empty(2).insert(easydel, 0)
    with pytest.raises(ParamsError, match="semantics must be one of canonical, easydel"):
        JitableSamplingParams.init_empty(2, semantics="vllm")
    assert batch_of([SamplingParams(seed=1, semantics="easydel")], semantics="easydel").semantics == "easydel"


def test_json_and_to_host_keep_seed_step_and_semantics() -> None:
    for params in (SamplingParams(seed=-5).make_jitable().next_step(), batch_of(HOSTS)):
        assert JitableSamplingParams.from_json(params.to_json()) == params
    assert "seed" not in SamplingParams().make_jitable().to_dict()
    hosts = [HOSTS[0], HOSTS[7], HOSTS[8].replace(max_tokens=None), SamplingParams(seed=3, semantics="easydel")]
    for host in hosts:
        given = host.replace(temperature=0.5)
        assert given.make_jitable().to_host() == [given]
        assert JitableSamplingParams.from_json(given.make_jitable().to_json()).to_host() == [given]


# --- the integers of the draw -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_integers_found_in_a_program_are_those_of_the_host() -> None:
    rng = np.random.default_rng(0)
    mantissas = np.concatenate([[0, 1, 0x7FFFFF, 0x400000], rng.integers(0, 1 << 23, 60)])
    exponents = np.concatenate([[127, 61, 193, 126], rng.integers(61, 194, 60)])
    values = (mantissas | exponents << 23).astype(np.uint32).view(np.float32)
    found = np.asarray(jax.jit(operands.temperature_constant)(values)).tolist()
    assert found == [float(numbers.temperature_constant(float(v))) for v in values]
    found = np.asarray(jax.jit(operands.reciprocal)(values)).tolist()
    assert found == [float(numbers.reciprocal(float(v))) for v in values]
    shares = (mantissas | rng.integers(80, 127, 64) << 23).astype(np.uint32).view(np.float32)
    shares[:3] = (0.5, np.float32(1 - 2.0**-24), np.float32(2.0**-41))
    assert np.asarray(operands.mass_fraction(shares)).tolist() == [numbers.mass_fraction(float(v)) for v in shares]
    ratios = np.append(shares, np.float32(1.0))
    found = np.asarray(jax.jit(operands.ratio_threshold)(ratios)).tolist()
    assert found == [numbers.ratio_threshold(float(v)) for v in ratios]
