"""Rows on a device that carry a state from token to token draw what NumPy draws: Mirostat and adaptive-p."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from platforms import needs_newest_triton, needs_triton
from steady_steps import counted
from test_batch_torch import STEADY, stepped_by_kernels
from test_triton_hostile import started
from torch._dynamo.testing import CompileCounterWithBackend

import tirage
from tirage import Batch, SamplingParams
from tirage.backends.torch.device import carry, counts, ops
from tirage.batch.torch import TorchBatch
from tirage.semantics import PRESETS

V = 40
PROMPT = (1, 2, 3, 1, 2)
_ALONE = replace(PRESETS["canonical"], name="alone", mirostat_with="temperature")
ASKED: dict[str, SamplingParams] = {
    "version 1": SamplingParams(mirostat=1, mirostat_tau=3.0, temperature=0.8),
    "version 2": SamplingParams(mirostat=2, mirostat_tau=2.3, mirostat_eta=0.7),
    "behind filters": SamplingParams(
        mirostat=2, mirostat_tau=1.5, top_k=9, repetition_penalty=1.3, logit_bias={3: 2.0}
    ),
    "high": SamplingParams(mirostat=2, mirostat_tau=100.0, temperature=1.5),
    "below zero": SamplingParams(mirostat=2, mirostat_tau=0.4, mirostat_eta=10.0, temperature=1.5),
    "greedy": SamplingParams(mirostat=2, mirostat_tau=1.0, temperature=0.0),
    "alone": SamplingParams(
        semantics=_ALONE,
        mirostat=2,
        mirostat_tau=4.0,
        dry_multiplier=2.0,
        dry_allowed_length=1,
        dry_sequence_breakers=(),
        frequency_penalty=2.0,
        smoothing_factor=0.3,
        sequence_bias=[((1,), 9.0), ((2,), -np.inf)],
        min_p=0.3,
    ),
    "with XTC": SamplingParams(mirostat=1, mirostat_tau=2.0, xtc_probability=0.5, xtc_threshold=0.05),
    "adaptive": SamplingParams(adaptive_target=0.3, adaptive_decay=0.5, min_p=0.02),
    "adaptive, smoothed": SamplingParams(adaptive_target=0.1, adaptive_decay=0.99, smoothing_factor=0.1),
    "adaptive, greedy": SamplingParams(adaptive_target=0.3, temperature=0.0),
    "adaptive with XTC": SamplingParams(adaptive_target=0.2, xtc_probability=0.5, xtc_threshold=0.05, logprobs=2),
    "adaptive, top-p": SamplingParams(adaptive_target=0.6, top_p=0.7, temperature=0.7),
    "adaptive, no memory": SamplingParams(adaptive_target=1.0, adaptive_decay=0.0),
    "plain": SamplingParams(top_p=0.9),
    "set": SamplingParams(typical_p=0.8),
}
"""Requests that carry a state, and two neighbours that carry none."""
HOSTED = SamplingParams(mirostat=2, mirostat_tau=2.0, seed=3, return_kept=True)


def _logits(step: int, rows: int) -> torch.Tensor:
    r = np.random.default_rng(step)
    x = r.standard_normal((rows, V)).astype(np.float32) * 2
    x[r.random(x.shape) < 0.05] = -np.inf
    x[r.random(x.shape) < 0.002] = np.nan
    x[r.random(x.shape) < 0.02] = np.float32(-1e-40)
    return torch.from_numpy(x)


def _filled(kind: Callable[..., Any], **options: Any) -> Any:
    batch = kind(V, len(ASKED), like=torch.zeros(1, V), **options)
    for at, (name, params) in enumerate(ASKED.items()):
        batch.add(params.replace(seed=len(name)), PROMPT[: at % 5])
    return batch


def _plain(*args: Any, history_capacity: int | None = None, **options: Any) -> Batch:
    return Batch(*args, **options)


def _agree(there: TorchBatch, here: Batch, x: torch.Tensor, mask: Any = None, *, at: str = "") -> Any:
    """What both draw of logits, with the states after it."""
    drawn, expected = there.sample(x, mask), here.sample(x, mask)
    for field in ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds", "states"):
        np.testing.assert_array_equal(getattr(drawn, field), getattr(expected, field), f"{field} {at}")
    return drawn


def _change(batch: Any, step: int, steps: int) -> None:
    """Requests come, go, change places and are copied as steps pass."""
    if step == steps // 4:
        batch.remove(1)
        batch.remove(7)
    if step == steps // 3:
        batch.insert(ASKED["adaptive"].replace(seed=77), PROMPT, slot=1, output_ids=[4])
        batch.add(ASKED["version 1"].replace(seed=78), PROMPT)
    if step == steps // 2:
        batch.reorder([*range(len(batch) - 1, 0, -1), 3])


def same(steps: int, **options: Any) -> None:
    """Draws from two batches, one on a device; in some steps other tokens join the rows than those that were drawn."""
    there, here = _filled(TorchBatch, **options), _filled(_plain, **options)
    for step in range(steps):
        drawn = _agree(there, here, _logits(step, len(there)), at=f"of step {step}")
        tokens = drawn.token_ids.clone()
        if step % 5 == 3:
            tokens[::3] = 6
            tokens[1::3] = -1
        for batch in (there, here):
            batch.advance(tokens)
            _change(batch, step, steps)
    assert not there._hosted
    assert [there.history(slot) for slot in there.slots] == [here.history(slot) for slot in here.slots]
    assert [there._row(slot).state for slot in there.slots] == [here._row(slot).state for slot in here.slots]


# --- the same tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"history_capacity": 100}])
def test_states_move_as_in_numpy(options: dict[str, Any]) -> None:
    same(40, **options)


def test_the_states_are_those_of_a_loop_of_ones_own() -> None:
    batch, params = TorchBatch(V, 1, like=torch.zeros(1, V)), ASKED["version 2"].replace(seed=5)
    batch.add(params)
    state: Any = None
    for step in range(8):
        x = _logits(step, 1).nan_to_num(0.0)
        drawn, expected = batch.sample(x), tirage.sample(x, params, step=step, state=state)
        assert drawn.states.tolist() == expected.states.tolist()
        batch.advance(drawn)
        # A tensor is a state as well.
        state = drawn.states


@pytest.mark.parametrize(
    ("home", "name", "wrong"),
    [
        (ops, "follow", lambda right: lambda carry, token, lp, chance: right(carry, token, lp * 1.001, chance)),
        (ops, "follow", lambda right: lambda carry, token, lp, chance: right(carry, token, lp, chance * 1.001)),
        (counts.carry, "move", lambda right: lambda carry, meta, token, new: right(carry, meta, carry[:, 5], new)),
        (carry, "_operand", lambda right: lambda table: right(table) + 64),
        (carry, "_operand", lambda right: right),
    ],
    ids=["surprise", "chance", "any token moves it", "operand", "nothing"],
)
def test_a_rule_that_is_a_little_off_is_seen(home: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(home, name)
    monkeypatch.setattr(home, name, wrong(right))
    if wrong(right) is right:
        return same(40)
    with pytest.raises(AssertionError, match=r"of step|not equal"):
        same(40)
    return None


def test_a_token_drawn_by_the_host_moves_the_state_on_the_device() -> None:
    """Masks that are checked after the draw take a step to the host."""
    there, here = (kind(V, 3, like=torch.zeros(1, V)) for kind in (TorchBatch, Batch))
    for batch in (there, here):
        batch.add(SamplingParams(semantics="llamacpp", mirostat=2, mirostat_tau=2.0, seed=1))
        batch.add(SamplingParams(adaptive_target=0.4, seed=2))
        batch.add(SamplingParams(mirostat=1, seed=3))
    for step in range(12):
        mask = np.full((3, 2), 0x0FFFFFFF, np.int32) if step % 3 == 1 else None
        drawn = _agree(there, here, _logits(step, 3), mask, at=f"of step {step}")
        for batch in (there, here):
            batch.advance(drawn)
            if step % 4 == 2:
                batch.history(0)


def test_rows_of_the_host_carry_theirs_beside_those_of_the_device() -> None:
    there, here = (kind(V, 3, like=torch.zeros(1, V)) for kind in (TorchBatch, Batch))
    for step in range(9):
        for batch in (there, here):
            if step == 0:
                batch.add(SamplingParams(seed=1))
                batch.add(HOSTED)
            if step == 3:
                batch.add(ASKED["adaptive"].replace(seed=5))
            if step == 6:
                batch.remove(1)
        drawn = _agree(there, here, _logits(step, len(there)), at=f"of step {step}")
        for batch in (there, here):
            batch.advance(drawn)
    assert not there._hosted


def test_a_batch_without_states_tells_none() -> None:
    batch = TorchBatch(V, 2, like=torch.zeros(1, V))
    batch.add(SamplingParams(seed=1))
    assert batch.sample(_logits(0, 1)).states is None
    batch.add(ASKED["adaptive"])
    assert [math.isnan(state) for state in batch.sample(_logits(0, 2)).states.tolist()] == [True, False]
    batch.remove(1)
    assert batch.sample(_logits(0, 1)).states is None


# --- nothing is read by the host ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["version 1", "greedy", "adaptive"])
def test_a_steady_step_asks_for_the_same_each_time(name: str) -> None:
    batch, x = TorchBatch(V, 4, like=torch.zeros(1, V)), _logits(0, 4)
    for _ in range(4):
        batch.add(ASKED[name].replace(seed=1), PROMPT)
    batch.advance(batch.sample(x))
    found = counted(lambda: batch.advance(batch.sample(x)), 12)
    assert all(each == found[0] for each in found)
    assert +found[0][0] == STEADY


def test_pytorch_finds_nothing_wrong_with_a_draw_that_notes_states() -> None:
    there = _filled(TorchBatch, history_capacity=32).device_rows()
    tables = [there.tables[name].clone() for name in ops.TABLES]
    layout = there.layout
    flags = (layout.draws, layout.filters, layout.sums, layout.set_needs, layout.changes, layout.keeps)
    given = (_logits(1, len(ASKED)).nan_to_num(0.0), None, torch.arange(len(ASKED)), there.tables["carry"].clone())
    kept = {"test_schema", "test_faketensor"}
    found = torch.library.opcheck(
        torch.ops.tirage.draw_slots.default, (*given, tables, layout.edits, 32, *flags), test_utils=tuple(kept)
    )
    assert found == dict.fromkeys(kept, "SUCCESS")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_step_that_notes_states_is_compiled_whole_and_draws_the_same() -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    rows, alone = (_filled(TorchBatch, history_capacity=64) for _ in range(2))
    fixed = rows.device_rows()
    step = torch.compile(lambda x: fixed.step_reported(x, most=2), fullgraph=True, backend=counter)
    for number in range(8):
        (token, *_), _ = step(_logits(number, len(ASKED)))
        drawn = alone.sample(_logits(number, len(ASKED)))
        alone.advance(drawn)
        assert torch.equal(token, drawn.token_ids)
    assert counter.frame_count == 1
    assert rows.history(0) == alone.history(0)
    assert [rows._row(slot).state for slot in (0, 1)] == [alone._row(slot).state for slot in (0, 1)]


# --- the kernels ------------------------------------------------------------------------------------------------------

MISTAKES = {
    "the surprise is in nats": ("(-LOG2E, OCTAVE, LIMIT, ONE)", "(-1.0, OCTAVE, LIMIT, ONE)"),
    "what is known decays like what is new": ("rounded(chance * (one - rate))", "rounded(chance * rate)"),
    "a row without a chance forgets": ("tl.where(chance == chance,", "tl.where(token >= 0,"),
    "a row without a token moves": ("after = tl.where(token >= 0, after, state)", "after = after + 0.0"),
    "any token moves the state": ("move(carry_ptr, meta_ptr + slot * columns, drawn == token)",
                                  "move(carry_ptr, meta_ptr + slot * columns, token == token)"),
    "mu is rounded towards 0": ("whole - (whole.to(tl.float64) > found).to(tl.int64)", "whole"),
    "a target is rounded down": ("whole + ((rest > half)", "whole + 0 * ((rest > half)"),
    "the step stays as it was": ("operand, mask=column > 0)", "operand, mask=column < 0)"),
    "the chance is that of the other set": ("(drawn_turn(meta_ptr, share) == 0), WITHOUT, 0)",
                                            "(drawn_turn(meta_ptr, share) != 0), WITHOUT, 0)"),
}  # fmt: skip
"""A piece of the kernels, and a wrong one in its place."""


@pytest.mark.slow
@needs_triton
@needs_newest_triton
@pytest.mark.parametrize("steps", [4, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_states_are_moved_by_the_kernels(steps: int) -> None:
    stepped_by_kernels("carried", [], steps)


@needs_triton
@needs_newest_triton
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.exhaustive if at else pytest.mark.slow) for at, each in enumerate(MISTAKES)],
)
def test_a_mistake_in_the_kernels_is_seen(name: str) -> None:
    done = started("carry mistake", [], 12, given=MISTAKES[name])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"seen": True}]
