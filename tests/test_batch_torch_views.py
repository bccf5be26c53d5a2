"""Logprobs, ranks and top lists of rows on a device: those of NumPy, bit for bit, and nothing read by the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from platforms import needs_newest_triton, needs_triton
from steady_steps import counted

from tirage import Batch, SamplingParams, Status
from tirage.backends.torch.device import report
from tirage.backends.torch.log_op import log_mass
from tirage.backends.torch.plan import REWRITES
from tirage.batch.torch import TorchBatch
from tirage.exact import logs

V, CAPACITY = 40, 9
ASKED = (
    SamplingParams(temperature=0.7, top_p=0.8, logprobs=3),
    SamplingParams(temperature=0.7, top_k=6, logprobs=5, logprobs_mode="processed", repetition_penalty=1.3),
    SamplingParams(temperature=0, logprobs=2, logprobs_mode="processed"),
    SamplingParams(temperature=1.3, logprobs=0),
    SamplingParams(min_p=0.1),
    SamplingParams(semantics="vllm", temperature=0.4, logprobs=V, allowed_token_ids=range(7), logit_bias={3: 2.0}),
    SamplingParams(semantics="gemma-topk", temperature=2.0, top_k=3, logprobs=1, logprobs_mode="processed"),
    SamplingParams(no_repeat_ngram_size=1, logprobs=4, logprobs_mode="processed"),
)
OF_DRAWS = (
    SamplingParams(temperature=0.7, top_p=0.8, logprobs=7),
    SamplingParams(top_k=6, logprobs=9),
    SamplingParams(temperature=0, logprobs=3, logit_bias={5: 4.0}),
    SamplingParams(temperature=1.6, logprobs=V),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2, top_k=4, temperature=0.4, semantics="llamacpp", logprobs=6, presence_penalty=0.5),
    SamplingParams(dynatemp_range=0.5, top_p=0.9, logprobs=3, semantics="llamacpp"),
    SamplingParams(temperature=1e-3, min_keep=3, top_p=0.3, logprobs=5, semantics="llamacpp"),
    SamplingParams(eta_cutoff=0.02, epsilon_cutoff=0.01, logprobs=8),
    SamplingParams(dynatemp_range=0.5, logprobs=4, semantics="llamacpp"),
)
"""What is told of the set that a row was drawn from: no more tokens than that holds, those without weight too."""
AS_SETS = (
    SamplingParams(typical_p=0.7),
    SamplingParams(top_p=0.8, logprobs=2),
    SamplingParams(
        smoothing_factor=0.3, smoothing_curve=2.0, logprobs=5, logprobs_mode="processed", frequency_penalty=0.4
    ),
    SamplingParams(temperature=0.7, tfs=0.9, top_h=0.8, logprobs=3),
    SamplingParams(temperature=0.8, xtc_probability=0.5, xtc_threshold=0.05, min_keep=2, semantics="llamacpp"),
    SamplingParams(xtc_probability=0.7, xtc_threshold=0.03, xtc_protected_ids=[*range(0, V, 3)], top_p=0.9, logprobs=1),
    SamplingParams(temperature=0, typical_p=0.5),
    SamplingParams(top_n_sigma=1.5, dynatemp_range=0.5, typical_p=0.8, min_keep=4, semantics="llamacpp"),
)
"""What the kernels draw as sets, beside a row that they do not; with smoothing, whose logits are told."""
HOSTED = (
    SamplingParams(typical_p=0.7, return_kept=True),
    SamplingParams(typical_p=0.7, logprobs=7, return_kept=True),
    SamplingParams(top_k=5, logprob_token_ids=[1, 3], logprobs=1, logprobs_mode="sampled"),
    SamplingParams(top_h=0.4, return_kept=True),
    SamplingParams(mirostat=2, return_kept=True),
)
"""What needs the host: without and with logprobs, longer lists than others have, single tokens, a record, a state."""
FIELDS = ("token_ids", "sampled_logprobs", "status", "logprobs", "ranks", "top_token_ids", "top_logprobs")
OF_SETS = ("kept_ids", "kept_offsets", "kept_logmass", "raw_logprobs", "processed_logprobs", "states")
MASSES = (1, 2, 3, (1 << 31) - 1, 1 << 31, (1 << 32) + 1, 1 << 40, (1 << 40) + 12345, (1 << 55) - 1, (1 << 62) - 7)


def _batches(params: tuple[SamplingParams, ...] = ASKED) -> tuple[Any, Any]:
    like = torch.zeros(1, V)
    batches = TorchBatch(V, CAPACITY, like=like), Batch(V, CAPACITY, like=like)
    for batch in batches:
        for seed, each in enumerate(params):
            batch.add(each.replace(seed=seed), (1, 2, 3))
    return batches


def _logits(step: int, rows: int) -> torch.Tensor:
    """Logits with many ties, zeros of both signs, some at -inf, now and then NaN."""
    r = np.random.default_rng(step)
    x = np.round(r.standard_normal((rows, V)) * 3).astype(np.float32)
    x[r.random(x.shape) < 0.1] = -np.inf
    x[r.random(x.shape) < 0.05] = np.float32(-0.0)
    x[r.random(x.shape) < 0.003] = np.nan
    x[r.random(x.shape) < 0.003] = np.inf
    return torch.from_numpy(x)


def same(steps: int = 25, params: tuple[SamplingParams, ...] = ASKED, fields: tuple[str, ...] = FIELDS) -> Any:
    """The batch on the device, after so many steps that are those of NumPy."""
    there, here = _batches(params)
    for step in range(steps):
        rows = (len(there), CAPACITY)[step % 2]
        drawn, expected = there.sample(_logits(step, rows)), here.sample(_logits(step, rows))
        for field in fields:
            if getattr(expected, field) is None:
                assert getattr(drawn, field) is None, field
                continue
            found, wanted = (np.asarray(getattr(each, field)) for each in (drawn, expected))
            assert found.dtype == wanted.dtype
            assert found.tobytes() == wanted.tobytes() or np.array_equal(found, wanted, equal_nan=True), (step, field)
        assert repr(drawn.given_logprobs) == repr(expected.given_logprobs)
        for batch in (there, here):
            batch.advance(drawn)
            if step == 12:
                batch.remove(min(5, len(params) - 1))
    return there


@pytest.mark.parametrize("first", range(len(HOSTED)))
def test_a_batch_with_requests_for_the_host_gives_what_numpy_gives(first: int) -> None:
    """Each beside others that report something, and beside others that do not."""
    fields = (*FIELDS, *OF_SETS, "seeds", "support_sizes")
    for others in (ASKED[:4], ASKED[4:5] * 2):
        there = same(26, (others[0], HOSTED[first], *others[1:], HOSTED[first - 1]), fields)
        assert there._hosted


def test_views_are_those_of_numpy() -> None:
    assert not same()._hosted


def test_views_of_what_was_drawn_from_are_those_of_numpy() -> None:
    asked = tuple(each.replace(logprobs_mode="sampled") for each in OF_DRAWS)
    for params in (asked[:8], (*asked[:2], *ASKED[:2], AS_SETS[0], *asked[6:])):
        assert not same(40, params)._hosted


def test_processed_views_of_a_dynamic_temperature_are_those_of_numpy() -> None:
    asked = tuple(each.replace(logprobs_mode="processed") for each in (*OF_DRAWS[6:7], *OF_DRAWS[9:]))
    assert not same(40, (*asked, ASKED[1], AS_SETS[0]))._hosted


def test_rows_of_any_filters_stay_on_the_device() -> None:
    there = same(30, AS_SETS, (*FIELDS, "support_sizes", "seeds"))
    assert not there._hosted
    assert there._there.layout.planes == 4 + REWRITES


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("log_mass", lambda right: lambda mass: right(mass) * 1.0001),
        ("sort_keys", lambda right: lambda key, ids: right(key, ids.flip(0))),
        ("logit_of", lambda right: lambda top: right(top) + 1),
    ],
    ids=["logarithm", "ties", "largest"],
)
def test_a_view_that_is_a_little_off_is_seen(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, name, wrong(getattr(report, name)))
    with pytest.raises(AssertionError):
        same()


def test_requests_that_ask_for_nothing_get_nothing() -> None:
    there, _ = _batches((SamplingParams(), SamplingParams(logprobs=2)))
    assert there.sample(_logits(0, 2)).top_logprobs.shape == (2, 2)
    there.remove(1)
    drawn = there.sample(_logits(0, 1))
    assert drawn.logprobs is None
    assert drawn.given_logprobs is None


def test_a_row_without_a_token_reports_none() -> None:
    there, here = _batches((SamplingParams(logprobs=1),))
    x = torch.full((1, V), -torch.inf)
    drawn, expected = there.sample(x), here.sample(x)
    assert drawn.status.tolist() == [Status.no_allowed_token]
    assert np.isnan(drawn.top_logprobs.numpy()).all()
    assert drawn.top_token_ids.tolist() == expected.top_token_ids.tolist()


@pytest.mark.parametrize(
    "asked",
    [
        {"logprob_token_ids": [1]},
        {"xtc_probability": 0.5, "xtc_threshold": 0.1},
        {"typical_p": 0.9},
        {"top_p": 0.9, "semantics": "fastdeploy-base"},
    ],
)
def test_what_is_read_of_a_mixture_or_of_a_cut_weight_needs_the_host(asked: dict[str, Any]) -> None:
    params = SamplingParams(logprobs=1, logprobs_mode="sampled", **asked)
    there = same(12, (params, ASKED[0]))
    assert there._hosted == {0}


def test_a_steady_step_asks_for_the_same_each_time_and_waits_for_nothing() -> None:
    there, _ = _batches((*ASKED, ASKED[0]))
    x = _logits(0, CAPACITY).nan_to_num(0.0)
    for _ in range(2):
        there.advance(there.sample(x))
    found = counted(lambda: there.advance(there.sample(x)), 8)
    assert all(each == found[0] for each in found)
    assert +found[0][0] == {"tirage.draw_slots": 1, "tirage.report_slots": 1, "tirage.append": 1}


def test_rows_that_report_nothing_cost_nothing() -> None:
    """The memory that a step asks for grows with the rows that want long lists."""
    asked = []
    for count in (0, 1, 4):
        batch: Any = TorchBatch(4000, 4, like=torch.zeros(1, 4000))
        for seed in range(4):
            batch.add(SamplingParams(seed=seed, logprobs=65 if seed < count else None))
        x = torch.randn(4, 4000)
        batch.advance(batch.sample(x))
        ((_, nbytes),) = counted(lambda batch=batch, x=x: batch.sample(x), 1)
        asked.append(nbytes)
    none, one, every = asked
    assert none < 4 * 4000
    assert one - none < 0.35 * (every - none)


def test_rows_of_fixed_size_report_thesame() -> None:
    there: Any = TorchBatch(V, CAPACITY, like=torch.zeros(1, V), history_capacity=32)
    alone, _ = _batches()
    for seed, each in enumerate(ASKED):
        there.add(each.replace(seed=seed), (1, 2, 3))
    rows = there.device_rows()
    for step in range(6):
        (token, *_), told = rows.step_reported(_logits(step, CAPACITY), most=V)
        drawn = alone.sample(_logits(step, CAPACITY))
        alone.advance(drawn)
        assert torch.equal(token, drawn.token_ids)
        assert torch.equal(told.top_ids, drawn.top_token_ids)
        np.testing.assert_array_equal(told.logprobs, drawn.logprobs)


# --- the logarithm ----------------------------------------------------------------------------------------------------


def test_pytorch_finds_nothing_wrong_with_the_logarithm() -> None:
    mass = torch.tensor(MASSES)
    found = torch.library.opcheck(torch.ops.tirage.log_mass.default, (mass,))
    assert set(found.values()) == {"SUCCESS"}
    assert log_mass(mass).tolist() == [float(logs.log_mass(each)) for each in MASSES]


_KERNEL = """
import json, sys, torch
from tirage.backends.torch.triton import log_masses
print(json.dumps(log_masses(torch.tensor(json.loads(sys.argv[1]))).tolist()))
"""


@needs_triton
@needs_newest_triton
def test_the_kernel_of_the_logarithm_has_the_bits_of_the_rule() -> None:
    masses = [*MASSES, *np.random.default_rng(0).integers(1, 1 << 62, 40).tolist()]
    done = subprocess.run(
        [sys.executable, "-c", _KERNEL, json.dumps(masses)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [float(logs.log_mass(each)) for each in masses]
