"""Draws on a mesh of 8 CPU devices, each checked against NumPy; run as a program, it prints what each check said.

XLA must be told of the devices before JAX starts, so `test_sharded_mesh.py` runs this in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray
from odd_operator import NO_PAST, drawn, expected, registered
from odd_operator import logits as odd_logits
from odd_operator import requests as odd_requests

import tirage
from tirage import SamplingParams
from tirage.backends import sharded
from tirage.backends.sharded.mesh import _drawn
from tirage.draw import Draw
from tirage.errors import ParamsError

ARRAYS = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds")
REPORTS = ("logprobs", "ranks", "top_token_ids", "top_logprobs")
NOTHING = -float("inf")


def mesh_of(kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh((8,), ("vocab",), axis_types=(kind,))


def logits_of(rows: int, size: int, *, ties: bool = False) -> NDArray[np.float32]:
    logits = np.random.default_rng([rows, size]).standard_normal((rows, size)).astype(np.float32) * 3
    return np.round(logits) if ties else logits


def assert_same(expected: Draw, actual: Draw) -> None:
    for name in (*ARRAYS, *(REPORTS if expected.logprobs is not None else ())):
        np.testing.assert_array_equal(np.asarray(getattr(actual, name)), np.asarray(getattr(expected, name)), name)
    if expected.given_logprobs is not None:
        # Inside jit it is one array, with NaN past a row's own.
        assert actual.given_logprobs is not None
        for row, own in zip(actual.given_logprobs, expected.given_logprobs, strict=True):
            np.testing.assert_array_equal(np.asarray(row, np.float32)[: len(own)], np.asarray(own, np.float32))


def past(rows: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [((1, 2, 500, 2), (3, 500, 3))] * rows


# --- checks -------------------------------------------------------------------------------------------------------


def uneven_vocabulary_jitted_on_explicit_axes() -> None:
    params = [
        SamplingParams(seed=1, top_p=0.9, logprobs=3),
        SamplingParams(
            seed=2, top_k=5, temperature=0.7, logprobs=2, logprobs_mode="sampled", logprob_token_ids=[0, 900]
        ),
        SamplingParams(seed=3, min_p=0.1, logprobs=1, logprobs_mode="processed"),
        SamplingParams(seed=4, repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=0.3, top_k=7),
        SamplingParams(seed=5, logit_bias={3: 9.0, 500: -2.0, 700: NOTHING, 1000: 9.0}, top_p=0.5, epsilon_cutoff=0.01),
        SamplingParams(seed=6, top_p=0.4),
        SamplingParams(seed=7),
    ]
    logits = logits_of(len(params), 1001, ties=True)
    logits[5, 999], logits[6, :] = np.nan, -np.inf
    # What pads the vocabulary to 1008 columns must not matter, so it is poison.
    padded = np.pad(logits, ((0, 0), (0, 7)), constant_values=np.nan)
    mesh = mesh_of(AxisType.Explicit)
    laid = jax.device_put(padded, NamedSharding(mesh, PartitionSpec(None, "vocab")))

    @jax.jit
    def draw(x: Any) -> Draw:
        spread = sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab", vocab_size=1001)
        return tirage.sample(spread, params, history=past(len(params)))

    assert_same(tirage.sample(logits, params, history=past(len(params))), draw(laid))


def even_vocabulary_eagerly_on_auto_axes_of_a_larger_mesh() -> None:
    params = [
        SamplingParams(seed=1, top_p=0.8, top_k=300, semantics="sglang", logprobs=2),
        SamplingParams(seed=2, top_p=0.7, semantics="fastdeploy-base", logprobs=2, logprobs_mode="sampled"),
        SamplingParams(seed=3, min_p=0.3, semantics="easydel-strict"),
        SamplingParams(seed=4, temperature=0, logprobs=3),
    ]
    logits = logits_of(4, 1000)
    logits[0] = 1.5
    mesh = jax.make_mesh((2, 4), ("data", "vocab"), axis_types=(AxisType.Auto, AxisType.Auto))
    spread = sharded.MeshLogits(logits=jnp.asarray(logits), mesh=mesh, axis="vocab")
    assert_same(tirage.sample(logits, params), tirage.sample(spread, params))


def fewer_tokens_than_devices() -> None:
    params = [SamplingParams(seed=seed, top_p=0.9, top_k=300) for seed in range(6)]
    logits = logits_of(6, 5, ties=True)
    spread = sharded.MeshLogits(logits=jnp.asarray(logits), mesh=mesh_of(AxisType.Explicit), axis="vocab")
    assert_same(tirage.sample(logits, params), tirage.sample(spread, params))


def masks_concrete_and_traced() -> None:
    params = [SamplingParams(seed=seed, temperature=1.3) for seed in range(3)]
    logits, mesh = logits_of(3, 100), mesh_of()
    mask = np.random.default_rng(1).integers(-(2**31), 2**31, (3, 4)).astype(np.int32)
    mask[2] = 0
    expected = tirage.sample(logits, params, mask=mask)

    @jax.jit
    def draw(x: Any, words: Any) -> Draw:
        return tirage.sample(sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab"), params, mask=words)

    assert_same(expected, draw(jnp.asarray(logits), jnp.asarray(mask)))
    spread = sharded.MeshLogits(logits=jnp.asarray(logits), mesh=mesh, axis="vocab")
    assert_same(expected, tirage.sample(spread, params, mask=jnp.asarray(mask)))


def half_precision_logits() -> None:
    params = [SamplingParams(seed=1, top_p=0.9), SamplingParams(seed=2, top_p=0.5)]
    logits = jnp.asarray(logits_of(2, 64)).astype(jnp.bfloat16)
    spread = sharded.MeshLogits(logits=logits, mesh=mesh_of(), axis="vocab")
    assert_same(tirage.sample(np.asarray(logits), params), tirage.sample(spread, params))


def new_parameters_need_no_new_program() -> None:
    logits, mesh = logits_of(2, 64), mesh_of()
    spread = sharded.MeshLogits(logits=jnp.asarray(logits), mesh=mesh, axis="vocab")
    for seed, temperature, top_p in ((1, 0.7, 0.9), (2, 1.3, 0.4), (3, 0.2, 0.99)):
        params = [SamplingParams(seed=seed, temperature=temperature, top_p=top_p)] * 2
        assert_same(tirage.sample(logits, params), tirage.sample(spread, params))
        if seed == 1:
            programs = _drawn._cache_size()
    assert programs == _drawn._cache_size()


def devices_contribute_the_stated_bytes_whatever_the_vocabulary() -> None:
    costs = {
        "nothing": ({}, 44, 0),
        "top_k": ({"top_k": 40}, 8 + 8 * 40, 0),
        "top_k and more": ({"top_k": 40, "top_p": 0.9, "typical_p": 0.9, "top_h": 0.9}, 8 + 8 * 40, 0),
        "large top_k": ({"top_k": 257}, 44 + 48, 16),
        "top_p": ({"top_p": 0.9}, 44 + 64, 16),
        "min_p": ({"min_p": 0.1}, 44 + 4, 0),
        "greedy": ({"temperature": 0.0}, 44 + 8, 0),
        "typical": ({"typical_p": 0.9}, 44 + 88, 16),
        "epsilon": ({"epsilon_cutoff": 0.01}, 44 + 20, 0),
        "top_a": ({"top_a": 0.2}, 44 + 20, 0),
        "eta": ({"eta_cutoff": 0.01}, 44 + 44, 0),
        "top_n_sigma": ({"top_n_sigma": 1.0}, 44 + 56, 0),
        "top_h": ({"top_h": 0.5}, 44 + 800, 0),
        "dynamic temperature": ({"dynatemp_range": 0.3}, 44 + 44, 0),
        "xtc": ({"xtc_probability": 0.5}, 44 + 20, 16),
        "raw logprobs": ({"logprobs": 5}, 44 + 28 + 8 * 5, 0),
        "sampled logprobs": ({"logprobs": 5, "logprobs_mode": "sampled"}, 44 + 8 + 8 * 5, 0),
    }
    measured = {
        name: [traffic(SamplingParams(**fields, seed=1), size) for size in (512, 4096)]
        for name, (fields, *_) in costs.items()
    }
    expected = {name: [(once, looped)] * 2 for name, (_, once, looped) in costs.items()}
    assert measured == expected, measured


def traffic(params: SamplingParams | Sequence[SamplingParams], size: int) -> tuple[int, int]:
    """Bytes that a device contributes to collectives, the mean of three rows: outside loops, and in a round of them."""
    rows, mesh = 3, mesh_of()

    def draw(x: Any) -> Draw:
        return tirage.sample(sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab"), params)

    sizes = {True: 0, False: 0}
    for inside, array in collectives(jax.make_jaxpr(draw)(jnp.zeros((rows, size))).jaxpr):
        sizes[inside] += array.size * array.dtype.itemsize
    return sizes[False] // rows, sizes[True] // rows


def collectives(program: Any, inside: bool = False) -> Iterator[tuple[bool, Any]]:
    """What enters each collective of a program, and whether that is inside a loop."""
    for equation in program.eqns:
        if any(
            word in equation.primitive.name for word in ("psum", "pmax", "pmin", "all_gather", "all_to_all", "ppermute")
        ):
            yield from ((inside, operand.aval) for operand in equation.invars)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                nested = getattr(inner, "jaxpr", inner)
                if hasattr(nested, "eqns"):
                    yield from collectives(nested, inside or equation.primitive.name in {"while", "scan"})


def an_operator_that_no_backend_knows_is_drawn() -> None:
    with registered() as odd:
        alone = expected(odd)
        x, mesh = jnp.asarray(odd_logits()), mesh_of()

        def draw(x: Any) -> Any:
            spread = sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab")
            return tirage.sample(spread, odd_requests(odd), history=NO_PAST).token_ids

        assert drawn(sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab"), odd) == alone
        assert jax.jit(draw)(x).tolist() == alone


def wrong_arguments_are_refused_by_name() -> None:
    mesh, logits = mesh_of(), jnp.zeros((1, 16))

    def draw(params: SamplingParams, **changes: Any) -> Draw:
        given = {"logits": logits, "mesh": mesh, "axis": "vocab", **changes}
        return tirage.sample(sharded.MeshLogits(**given), params)

    seeded = SamplingParams(seed=1)
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("seed must be given inside jit", lambda: jax.jit(lambda x: draw(SamplingParams(), logits=x))(logits)),
        ("got 'vocal'; did you mean 'vocab'", lambda: draw(seeded, axis="vocal")),
        ("vocab_size must be in [1, 16], got 17", lambda: draw(seeded, vocab_size=17)),
        ("mesh must be a jax.sharding.Mesh, got str", lambda: draw(seeded, mesh="vocab")),
        ("logits must be a JAX array", lambda: draw(seeded, logits=np.zeros((1, 16), np.float32))),
    ]
    assert [refusal(call, text) for text, call in cases] == [text for text, _ in cases]


def rows_that_need_whole_logits_leave_their_neighbours_as_they_are() -> None:
    calls = []
    tirage.register_processor("mesh test: reversed", lambda x, args: calls.append(x.shape) or x[:, ::-1])
    tirage.register_processor("mesh test: broken", lambda x, args: 1 / 0)
    params = [
        SamplingParams(seed=1, top_p=0.9, logprobs=3),
        SamplingParams(
            seed=2, xtc_probability=0.6, xtc_threshold=0.05, typical_p=0.95, logprobs=5, logprobs_mode="sampled"
        ),
        SamplingParams(seed=3, semantics="llamacpp", logprobs=2, logprobs_mode="sampled", logprob_token_ids=[0, 7]),
        SamplingParams(seed=4, logits_processors=(("mesh test: reversed", {}),), logprobs=4, presence_penalty=0.5),
        SamplingParams(seed=5, logits_processors=(("mesh test: broken", {}),), logprobs=1),
        SamplingParams(seed=6),
    ]
    logits = logits_of(len(params), 501, ties=True)
    mask = np.full((len(params), 16), -1, np.int32)
    mask[2] = 0x0F0F0F0F
    expected = tirage.sample(logits, params, history=past(len(params)), mask=mask)
    assert np.asarray(expected.status).tolist() == [0, 0, 0, 0, tirage.Status.processor_failed, 0]
    calls.clear()
    spread = sharded.MeshLogits(logits=jnp.asarray(logits), mesh=mesh_of(), axis="vocab")
    assert_same(expected, tirage.sample(spread, params, history=past(len(params)), mask=mask))
    mesh = mesh_of(AxisType.Explicit)

    @jax.jit
    def draw(x: Any, words: Any) -> Draw:
        laid = sharded.MeshLogits(logits=x, mesh=mesh, axis="vocab")
        return tirage.sample(laid, params, history=past(len(params)), mask=words)

    found = draw(jnp.asarray(logits), jnp.asarray(mask))
    assert_same(expected, found)
    assert found.token_ids.sharding.is_fully_replicated
    # Once by the eager call, once by each device inside jit.
    assert calls == [(1, 501)] * (1 + 8)


def whole_logits_are_gathered_for_the_rows_that_need_them_alone() -> None:
    tirage.register_processor("mesh test: same", lambda x, args: x)
    processed = SamplingParams(seed=1, logits_processors=(("mesh test: same", {}),))
    assert traffic(processed, 512) == (4 * 512 // 8, 0)
    assert traffic([SamplingParams(seed=1), processed, SamplingParams(seed=2)], 1024) == ((44 + 512 + 44) // 3, 0)


def every_filter_is_worked_out_in_parts() -> None:
    each: list[dict[str, Any]] = [
        {"typical_p": 0.8},
        {"eta_cutoff": 0.02},
        {"top_n_sigma": 1.2},
        {"top_h": 0.6},
        {"dynatemp_range": 0.5, "top_p": 0.9},
        {"xtc_probability": 0.5, "xtc_threshold": 0.02, "xtc_protected_ids": (0, 130)},
        {"top_k": 300, "typical_p": 0.9},
        {"top_k": 30, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "top_h": 0.9, "min_p": 0.001},
        {"semantics": "llamacpp", "top_k": 40, "top_p": 0.95, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    ]
    for ties in (False, True):
        logits = logits_of(len(each), 1001, ties=ties)
        params = [
            SamplingParams(**fields, seed=i, logprobs=4, logprobs_mode="sampled", logprob_token_ids=(1, 999))
            for i, fields in enumerate(each)
        ]
        spread = sharded.MeshLogits(logits=jnp.asarray(logits), mesh=mesh_of(), axis="vocab")
        assert_same(tirage.sample(logits, params), tirage.sample(spread, params))


def refusal(call: Callable[[], Any], text: str) -> str:
    """`text` if the call is refused with a message that holds it, else the message."""
    try:
        call()
    except ParamsError as error:
        return text if text in str(error) else str(error)
    return "nothing was refused"


def results_are_on_every_device() -> None:
    spread = sharded.MeshLogits(logits=jnp.asarray(logits_of(2, 64)), mesh=mesh_of(), axis="vocab")
    token_ids = tirage.sample(spread, SamplingParams(seed=1, top_p=0.9)).token_ids
    assert token_ids.sharding.is_fully_replicated
    assert len(token_ids.devices()) == 8


CHECKS = (
    uneven_vocabulary_jitted_on_explicit_axes,
    even_vocabulary_eagerly_on_auto_axes_of_a_larger_mesh,
    fewer_tokens_than_devices,
    masks_concrete_and_traced,
    half_precision_logits,
    new_parameters_need_no_new_program,
    devices_contribute_the_stated_bytes_whatever_the_vocabulary,
    an_operator_that_no_backend_knows_is_drawn,
    wrong_arguments_are_refused_by_name,
    rows_that_need_whole_logits_leave_their_neighbours_as_they_are,
    whole_logits_are_gathered_for_the_rows_that_need_them_alone,
    every_filter_is_worked_out_in_parts,
    results_are_on_every_device,
)


def outcome(check: Callable[[], None]) -> str:
    """ "" when the check passes, else what went wrong."""
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""


def main(names: Sequence[str]) -> None:
    assert len(jax.devices()) == 8
    print(json.dumps({check.__name__: outcome(check) for check in CHECKS if not names or check.__name__ in names}))


if __name__ == "__main__":
    main(sys.argv[1:])
