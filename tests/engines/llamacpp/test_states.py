"""Mirostat and adaptive-p of llama.cpp, step by step: their laws in the state that their own tokens lead to here.

llama.cpp draws with another generator, and its state cannot be read: the token that it drew moves ours, and the next
law, which follows from the state alone, must be its law again. Its sums are binary32, so laws agree to four digits.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams
from tirage.compiled_params import compiled

SIZE, STEPS = 2000, 60
KINDS = [(5.0, 0.1), (2.0, 0.5), (3.0, 1.0), (0.7, 0.3)]


def sampler(version: int, tau: float, eta: float, seed: int) -> Any:
    if version == 1:
        return llama_cpp.llama_sampler_init_mirostat(SIZE, seed, tau, eta, 100)
    return llama_cpp.llama_sampler_init_mirostat_v2(seed, tau, eta)


def applied(chain: Any, logits: NDArray[np.float32]) -> tuple[int, NDArray[np.float64]]:
    """The token that llama.cpp draws, and its law [V]."""
    data = (llama_cpp.llama_token_data * SIZE)()
    for token, logit in enumerate(logits.tolist()):
        data[token].id, data[token].logit, data[token].p = token, logit, 0.0
    array = llama_cpp.llama_token_data_array(data=data, size=SIZE, selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    law = np.zeros(SIZE)
    for place in range(array.size):
        law[array.data[place].id] = array.data[place].p
    return int(array.data[array.selected].id), law


def rows(seed: int) -> Iterator[NDArray[np.float32]]:
    """Logits that fall as a language model's do: sharply at some steps, slowly at others."""
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        fall = rng.uniform(1.1, 2.6) * np.log(np.arange(1, SIZE + 1))
        yield rng.permutation(rng.normal(size=SIZE) * 0.3 - fall).astype(np.float32)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("tau", "eta"), KINDS)
def test_each_law_is_llamacpps_in_the_state_that_its_tokens_made(version: int, tau: float, eta: float) -> None:
    params = SamplingParams(mirostat=version, mirostat_tau=tau, mirostat_eta=eta, semantics="llamacpp")
    chain, ours, borders, sizes = sampler(version, tau, eta, 7), compiled(params), 0, set()
    state = ours.initial_state
    assert state is not None
    for x in rows(version * 10 + int(tau)):
        token, law = applied(chain, x)
        own = tirage.law(x, params, state=state)[0]
        if version == 1 and wanted(x, state) >= 2**31:
            # Its count overflows an int and becomes 1 (Semantics.differences, S-O14); ours keeps all.
            assert ((law > 0).sum(), (own > 0).sum()) == (1, SIZE)
            state = ours.next_state(state, 0.0)
            continue
        # A token whose surprise is mu in all digits of a float32 may fall on either side.
        borders += (different := ((own > 0) != (law > 0)).sum())
        assert different <= 1
        if not different:
            np.testing.assert_allclose(own, law, atol=1e-5, rtol=1e-4)
        state = ours.next_state(state, math.log(law[token]))
        sizes.add(int((law > 0).sum()))
    llama_cpp.llama_sampler_free(chain)
    assert borders <= 2
    assert max(sizes) > min(sizes)


@pytest.mark.parametrize(("target", "decay"), [(0.3, 0.9), (0.05, 0.5), (0.7, 0.0), (0.0, 0.99)])
def test_each_law_of_adaptive_p_is_llamacpps(target: float, decay: float) -> None:
    params = SamplingParams(adaptive_target=target, adaptive_decay=decay, semantics="llamacpp")
    chain, ours = llama_cpp.llama_sampler_init_adaptive_p(target, decay, 7), compiled(params)
    state = ours.initial_state
    assert state is not None
    for x in rows(int(100 * target)):
        token, law = applied(chain, x)
        llama_cpp.llama_sampler_accept(chain, token)
        np.testing.assert_allclose(tirage.law(x, params, state=state)[0], law, atol=1e-5, rtol=1e-4)
        state = ours.next_state(state, 0.0, float(softmax(x)[token]))
    llama_cpp.llama_sampler_free(chain)


def wanted(x: NDArray[np.float32], mu: float) -> float:
    """The k of version 1 before it is cut to the vocabulary."""
    p = np.sort(softmax(x))[::-1][:100]
    t = np.log(np.arange(2, p.size + 1) / np.arange(1, p.size))
    slope = (t * np.log(p[:-1] / p[1:])).sum() / (t * t).sum()
    return float(((slope - 1) * 2.0**mu / (1 - float(SIZE) ** (1 - slope))) ** (1 / slope))


def softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()
