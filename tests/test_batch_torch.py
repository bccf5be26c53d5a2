"""A batch whose rows lie on a device: the same tokens, nothing read by the host, and what was wrong found later."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from platforms import needs_newest_triton, needs_triton
from schedules import live
from steady_steps import HostReadError, Steps, counted
from test_triton_hostile import started
from torch_worlds import MixedWorld, TorchWorld, by_tensors, drawn_by, on_device

import tirage
from tirage import Batch, ParamsError, SamplingParams, Status
from tirage.backends.torch.device.rows import DeviceRows
from tirage.batch import host
from tirage.batch.torch import TorchBatch

V = 40
PLAIN = SamplingParams(temperature=0.8, top_k=9, top_p=0.9, seed=1)
EVERYTHING = SamplingParams(
    temperature=0.8,
    top_k=20,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    presence_penalty=0.1,
    logit_bias={3: 2.0, 4: -np.inf},
    min_tokens=3,
    stop_token_ids=[5],
    allowed_token_ids=range(V - 2),
    seed=2,
)
STEADY = {"tirage.draw_slots": 1, "tirage.append": 1}
"""What a steady step asks of PyTorch: five launches of kernels and one."""
HOSTED = SamplingParams(typical_p=0.6, seed=3, return_kept=True)


def batch_of(*params: SamplingParams, capacity: int = 4, **options: Any) -> TorchBatch:
    batch = TorchBatch(V, capacity, like=torch.zeros(1, V), **options)
    for each in params:
        batch.add(each, [1, 2, 3, 2])
    return batch


def stepped_by_kernels(kind: str, jobs: Iterable[int], steps: int) -> None:
    """Steps by the Triton kernels, each compared with tensor operations and with NumPy: eight launches at most."""
    done = started(kind, jobs, steps)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert min(found["draws"], found["appends"]) >= max(steps, 4)
    # Launches of kernels, and operations of PyTorch that would be some.
    assert found["launches of draw"] <= 5
    assert found["launches of append"] == 1
    assert found.get("launches of report", 0) <= 2


def logits(step: int, rows: int = 4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(step).standard_normal((rows, V)).astype(np.float32) * 2)


def test_a_batch_without_rows_draws_and_takes_nothing() -> None:
    batch = batch_of()

    assert batch.sample(logits(0, rows=0)).token_ids.tolist() == []
    batch.advance([])
    assert batch.add(PLAIN, [1, 2]) == 0
    batch.advance(batch.sample(logits(0, rows=1)))


# --- the same tokens ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_most_requests_have_a_form_on_the_device() -> None:
    assert len(on_device()) >= 500


@pytest.mark.slow
@pytest.mark.parametrize("world", [TorchWorld, MixedWorld])
@pytest.mark.parametrize("drawn", [None, by_tensors])
def test_many_lives_give_each_request_what_it_draws_alone(world: type[TorchWorld], drawn: Any) -> None:
    with nullcontext() if drawn is None else drawn_by(drawn):
        for seed in range(15):
            live("torch", seed, world)


@pytest.mark.exhaustive
@pytest.mark.parametrize("world", [TorchWorld, MixedWorld])
def test_hundreds_of_lives_give_each_request_what_it_draws_alone(world: type[TorchWorld]) -> None:
    for seed in range(1000, 1600):
        live("torch", seed, world)


@pytest.mark.slow
@needs_triton
@needs_newest_triton
@pytest.mark.parametrize("jobs", [range(3), pytest.param(range(100, 112), marks=pytest.mark.exhaustive)])
def test_lives_drawn_by_the_triton_kernels(jobs: range) -> None:
    stepped_by_kernels("lives", jobs, 1)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [lambda v: v * 0.999, lambda v: v])
def test_a_penalty_that_is_a_little_off_is_seen(
    rule: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirage.backends.torch.device import edits

    right = edits._penalised
    monkeypatch.setattr(edits, "_penalised", lambda op, v, n, a, b: rule(right(op, v, n, a, b)))
    differs = False
    for seed in range(30):
        try:
            live("torch", seed, TorchWorld)
        except AssertionError:
            differs = True
            break
    assert differs == (float(rule(torch.ones(()))) != 1.0)


# --- which batch it is --------------------------------------------------------------------------------------------


def test_tensors_on_cuda_have_their_rows_there_and_others_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(Batch(V, 2, like=torch.zeros(1, V))) is Batch
    assert type(Batch(V, 2, like=np.zeros((1, V), np.float32))) is Batch
    monkeypatch.setattr(host, "_is_on_cuda", lambda tensor: True)
    assert type(Batch(V, 2, like=torch.zeros(1, V))) is TorchBatch


# --- nothing is read by the host ------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [PLAIN, EVERYTHING, SamplingParams(temperature=0, seed=0)])
@pytest.mark.parametrize("requests", [3, 4])
def test_a_steady_step_asks_for_the_same_each_time_and_waits_for_nothing(params: SamplingParams, requests: int) -> None:
    batch, x = batch_of(*[params] * requests), logits(0)
    batch.advance(batch.sample(x))

    found = counted(lambda: batch.advance(batch.sample(x)), 20)
    assert all(each == found[0] for each in found)
    operations, _ = found[0]
    assert +operations == STEADY


def test_rows_without_values_can_be_drawn_and_moved_on() -> None:
    """On the meta device nothing can be read: whatever asks for a value fails."""
    known = batch_of(EVERYTHING, PLAIN, history_capacity=32).device_rows()
    rows = DeviceRows(4, V, torch.device("meta"), 32)
    rows.grow(known.layout)
    for _ in range(20):
        token, *_ = rows.step(torch.zeros(4, V, device="meta", dtype=torch.bfloat16))
        assert token.shape == (4,)
    with pytest.raises((RuntimeError, NotImplementedError)):
        rows.read_back()


def test_the_counter_sees_what_waits() -> None:
    batch, x = batch_of(PLAIN), logits(0)
    with Steps(), pytest.raises(HostReadError):
        _ = batch.sample(x).token_ids.tolist()[0] + int(x.sum())
    with Steps(), pytest.raises(HostReadError):
        _ = x[x > 0]
    with Steps(), pytest.raises(HostReadError):
        x.to("meta")


def test_a_change_of_requests_is_one_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.backends.torch.device import rows

    batch, x = batch_of(EVERYTHING, PLAIN), logits(0)
    batch.advance(batch.sample(x))
    sent: list[int] = []
    upload = rows.uploaded
    monkeypatch.setattr(
        rows, "uploaded", lambda arrays, device: sent.append(len(arrays["meta"])) or upload(arrays, device)
    )
    batch.remove(0)
    batch.add(PLAIN, [7])
    batch.add(EVERYTHING)
    for _ in range(3):
        batch.advance(batch.sample(x))
    assert sent == [2]


# --- what the host asks for, and finds late ---------------------------------------------------------------------------


def test_histories_are_read_when_they_are_asked_for() -> None:
    batch, alone = batch_of(EVERYTHING, PLAIN), batch_of(EVERYTHING, PLAIN)
    for step in range(5):
        batch.advance(batch.sample(logits(step, 2)))
        alone.advance(alone.sample(logits(step, 2)).token_ids.tolist())
        alone.history(0)
    for slot in (0, 1):
        assert batch.history(slot) == alone.history(slot)
        assert len(batch.history(slot)[1]) == 5
    batch.advance([7, -1])
    assert batch.history(0)[1][-1] == 7
    assert len(batch.history(1)[1]) == 5


@pytest.mark.parametrize(("token", "message"), [(V, "token in slot 1 must be"), (-2, "token in slot 1 must be")])
def test_a_token_that_cannot_be_one_is_found_when_the_host_reads(token: int, message: str) -> None:
    batch = batch_of(PLAIN, PLAIN)
    batch.advance(torch.tensor([5, token]))
    with pytest.raises(ParamsError, match=message):
        batch.history(0)
    assert batch.history(0)[1] == [5]
    assert batch.history(1)[1] == []


def test_a_token_for_an_empty_slot_is_found_when_the_host_reads() -> None:
    batch = batch_of(PLAIN)
    batch.advance(torch.tensor([5, -1, 3, -1]))
    with pytest.raises(ParamsError, match="slot must hold a request, got 2"):
        batch.history(0)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, V], "token must be an integer"),
        ([1, 2, 3], "rows must be 4"),
        (7, "tokens must be a Draw or a sequence of ids"),
        ([1, 2, 3, -1], "slot must hold a request, got 2"),
        (torch.zeros(2), "tokens must be integers"),
        (torch.zeros(2, 2, dtype=torch.int64), "tokens must be integers"),
    ],
)
def test_tokens_that_the_host_knows_are_checked_at_once(tokens: Any, message: str) -> None:
    batch = batch_of(PLAIN, PLAIN)
    with pytest.raises(ParamsError, match=message):
        batch.advance(tokens)
    assert batch.history(0)[1] == []


def test_a_history_that_is_full_says_so() -> None:
    batch = batch_of(EVERYTHING, history_capacity=6)
    statuses = []
    for step in range(5):
        drawn = batch.sample(logits(step))
        statuses.append(int(drawn.status[0]))
        batch.advance(drawn)
    assert statuses == [0, 0, 0, Status.history_full, Status.history_full]
    with pytest.raises(ParamsError, match="history must hold at most 6 tokens in this batch, got 7"):
        batch.add(PLAIN, range(7))


def test_tables_grow_for_a_request_that_says_more_than_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.backends.torch.device import row_form
    from tirage.batch import torch as batch_torch

    monkeypatch.setattr(batch_torch, "_TAIL", 4)
    monkeypatch.setattr(row_form, "_FEWEST", 2)
    batch = batch_of(EVERYTHING)
    plain = Batch(V, 4, like=torch.zeros(1, V))
    plain.add(EVERYTHING, [1, 2, 3, 2])
    for step in range(40):
        batch.advance(batch.sample(logits(step)))
        plain.advance(plain.sample(logits(step)))
    assert batch.history(0) == plain.history(0)
    assert len(batch.history(0)[1]) == 40


def test_logits_elsewhere_are_drawn_where_they_are() -> None:
    batch = batch_of(PLAIN)
    batch._there.device = torch.device("meta")  # where no logits can be
    assert int(batch.sample(logits(0, 1)).token_ids[0]) == int(batch_of(PLAIN).sample(logits(0, 1)).token_ids[0])


def test_a_batch_that_was_filled_under_inference_mode_goes_on_without_it() -> None:
    with torch.inference_mode():
        batch = batch_of(EVERYTHING)
        batch.advance(batch.sample(logits(0)))
    batch.advance(batch.sample(logits(1)))
    batch.reorder([-1, 0])
    batch.advance(batch.sample(logits(2)))
    assert len(batch.history(1)[1]) == 3


def test_requests_for_the_host_leave_the_others_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, alone = batch_of(EVERYTHING, PLAIN), batch_of(EVERYTHING, PLAIN)
    changed: list[set[int]] = []
    put = DeviceRows.put
    monkeypatch.setattr(DeviceRows, "put", lambda self, rows: changed.append({*rows}) or put(self, rows))
    for step in range(40):
        if step == 1:
            changed.clear()
            batch.add(HOSTED)
        if step == 30:
            batch.reorder([1, 2, 0, 2])
        x = logits(step) if step < 30 else logits(step)[[1, 2, 0, 3]]
        (drawn, expected) = batch.sample(x), alone.sample(logits(step)[:2])
        own = [drawn.token_ids[0 if step < 30 else 2], drawn.token_ids[1 if step < 30 else 0]]
        assert torch.stack(own).equal(expected.token_ids)
        batch.advance(drawn)
        alone.advance(expected)
    assert changed == [{2}]
    assert batch.history(2) == alone.history(0)
    assert batch._there.layout == alone._there.layout


def test_a_batch_of_requests_for_the_host_asks_nothing_of_the_device() -> None:
    batch = batch_of(HOSTED, PLAIN)
    batch.remove(1)
    with patch.object(DeviceRows, "draw", side_effect=AssertionError), patch.object(DeviceRows, "append"):
        for step in range(3):
            batch.advance(batch.sample(logits(step, 1)))
    assert len(batch.history(0)[1]) == 3


def test_a_token_that_a_request_for_the_host_cannot_take_moves_no_request() -> None:
    batch = batch_of(PLAIN, HOSTED)
    with pytest.raises(ParamsError, match="token must be an integer in"):
        batch.advance(torch.tensor([1, V]))
    assert [batch.history(slot)[1] for slot in (0, 1)] == [[], []]


# --- fixed rows ------------------------------------------------------------------------------------------------------


def test_rows_that_are_handed_out_stay_where_they_are_as_requests_come_and_go() -> None:
    batch = batch_of(EVERYTHING, PLAIN, history_capacity=32)
    rows = batch.device_rows()
    places = {name: table.data_ptr() for name, table in rows.tables.items()}
    alone = batch_of(EVERYTHING, PLAIN)
    for step in range(6):
        if step == 3:
            for each in (batch, alone):
                each.remove(1)
                each.add(EVERYTHING, [9])
        assert batch.device_rows() is rows
        token, *_ = rows.step(logits(step))
        drawn = alone.sample(logits(step))
        alone.advance(drawn)
        assert torch.equal(token, drawn.token_ids)
    assert places == {name: table.data_ptr() for name, table in rows.tables.items()}
    assert batch.history(1) == alone.history(1)
    assert len(batch.history(0)[1]) == 6


def test_a_graph_over_rows_that_grew_draws_nothing() -> None:
    batch = batch_of(PLAIN, history_capacity=32)
    rows = batch.device_rows()
    old, layout = rows.tables, rows.layout
    batch.add(EVERYTHING)
    assert batch.device_rows().layout != layout
    assert not old["used"].any()
    rows.tables, rows.layout = old, layout
    token, _, _, status = rows.step(logits(0))
    assert token.tolist() == [-1] * 4
    assert status.tolist() == [Status.empty_slot] * 4


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: batch_of(PLAIN), "history_capacity must be given for rows of fixed size"),
        (lambda: batch_of(PLAIN, HOSTED, history_capacity=9), "got one that needs the host in slot 1"),
        (lambda: batch_of(history_capacity=0), "history_capacity must be an integer in"),
    ],
)
def test_rows_of_fixed_size_are_refused_by_name(batch: Callable[[], TorchBatch], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        batch().device_rows()


def test_a_seed_is_known_without_the_device() -> None:
    batch = batch_of(PLAIN)
    batch.add(SamplingParams())
    drawn = batch.sample(logits(0))
    assert drawn.seeds.tolist() == [batch.seed(0), batch.seed(1), 0, 0]
    assert tirage.sample(logits(0)[0], PLAIN, step=0).token_ids[0] == drawn.token_ids[0]


def test_a_mask_elsewhere_is_refused_by_name_and_one_on_the_host_is_sent() -> None:
    batch = batch_of(PLAIN)
    with pytest.raises(ParamsError, match="mask must be on the device of the logits, cpu, got meta"):
        batch.sample(logits(0), torch.zeros(4, 2, dtype=torch.int32, device="meta"))
    mask = np.array([[1 << 7, 0]] * 4, np.int32)
    assert int(batch.sample(logits(0), mask).token_ids[0]) == 7


def test_other_batches_have_no_rows_on_a_device() -> None:
    with pytest.raises(ParamsError, match="like must be a CUDA tensor for rows on a device"):
        Batch(V, 2, like=torch.zeros(1, V)).device_rows()


# --- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_step_that_the_page_on_pytorch_compiles_and_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for the CPU; the calls of `torch.cuda` are only seen to be made, as nothing is captured here."""
    page = (Path(__file__).parents[1] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    replayed: list[str] = []
    compiled = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(tirage, "Batch", TorchBatch)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: replayed.append("once")))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: nullcontext())
    names: dict[str, Any] = {
        "tirage": tirage,
        "torch": torch,
        "vocab_size": V,
        "capacity": 4,
        "prompt_ids": [1, 2],
        "logits": logits(0),
    }
    exec(block, names)
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=7)
    alone = [tirage.sample(logits(0)[:1], params, step=step).token_ids.tolist() for step in (0, 1)]
    assert [names["token_ids"].tolist(), names["drawn"][0].tolist()] == [[*each, -1, -1, -1] for each in alone]
    assert replayed == ["once"]
