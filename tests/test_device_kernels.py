"""The steps of rows on a device as operators and kernels: checked by PyTorch, counted, and mistakes in them seen."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from kernel_keys import kernel_keys
from platforms import needs_newest_triton, needs_triton
from test_batch_torch import EVERYTHING, PLAIN, V, batch_of, logits, stepped_by_kernels
from test_triton_hostile import started

from tirage import SamplingParams
from tirage.backends.torch.device import ops
from tirage.backends.torch.plan import HEADER, SUMS

MISTAKES = {
    "a match is not made longer": ("tl.where(agrees, before + 1, 0)", "tl.where(agrees, before, 0)"),
    "the match at the ring's end is lost": ("turned = tl.load(ring_ptr + ring - 1) == token", "turned = token < 0"),
    "the token that leaves a window stays counted": ("leaves = (window > 0) & (at >= 0)", "leaves = window < 0"),
    "a free place is not used again": ("place = tl.minimum(place, tl.min(", "place = tl.maximum(place, tl.min("),
    "a penalty by the average is not divided": ("(penalty.to(tl.float64) /", "(penalty.to(tl.float64) * counted /"),
    "DRY takes the last penalty": (
        'tl.atomic_min(y_ptr + ids, new, mask=mine & (new < float("inf")), sem="relaxed")',
        'tl.store(y_ptr + ids, new, mask=mine & (new < float("inf")))',
    ),
    "DRY looks beyond its window": ("seen - 1 - ((length", "length - 1 - ((length"),
    "words of the prompt are those of the output": (
        "tl.where(is_own, own, length)",
        "tl.where(is_own, length, length)",
    ),
    "n-grams are a token too long": ("other=0) >= ngram - 1)", "other=0) >= ngram)"),
    "the second penalty is forgotten": ("            p += 1\n", "            p += 2\n"),
    "an edit that is not finite is forgotten": ("spoiled != 0, POS_INF", "spoiled < 0, POS_INF"),
    "the largest logit is that of the first block": (
        "tl.where(low < NEG_INF, low, top)",
        "tl.where(low < NEG_INF, low, tl.load(ends_ptr))",
    ),
    "a row is smoothed that is not finite": ("return is_spoiled(top).to(tl.int32)", "return tl.full((), 0, tl.int32)"),
    "edits before a smoothing run again": ("place += place_of_smoothing(edits_ptr, places)", "place += 0"),
    "edits behind a smoothing run before it": ("                end = places\n", "                end += 0\n"),
    "a histogram is not left empty": (
        "tl.store(bins_ptr + tl.arange(0, LANES), tl.where(left != 0, counts, 0))",
        "pass",
    ),
    "the smallest bfloat16 are zeros": (
        "x = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)",
        "x = cleaned((bits.to(tl.int32) << 16).to(tl.float32, bitcast=True))",
    ),
}
"""A piece of the kernels, and a wrong one in its place."""
VIEW_MISTAKES = {
    "ties are in no order": ("(ids ^ _LAST_ID)", "(ids & _LAST_ID)"),
    "the next candidate is forgotten": (
        "tl.where(order < best, order, _ABSENT)",
        "tl.where(order < 0, order, _ABSENT)",
    ),
    "a rank counts the ties": ("key_of(x) > key_of(drawn)", "key_of(x) >= key_of(drawn)"),
    "infinite logits count": ("tl.where(is_spoiled(key_of(given)), float", "tl.where(given != given, float"),
    "every view is raw": ("    if view == _RAW:\n        given", "    if view != _NONE:\n        given"),
    "a set has no end": (
        "inside = is_in(key, ids, last_key, last_id) &",
        "inside = (key > NEG_INF) &",
    ),
    "a set ends with all ties": ("key, ids, last_key, last_id) &", "key, ids, last_key, last_id | 0x7FFFFFFF) &"),
    "a dynamic temperature is forgotten": (
        "tl.where(given == given, given, tl",
        "tl.where(given == given, given, 0.5 * tl",
    ),
    "named tokens are those of another slot": ("asked_ptr + slot * width,", "asked_ptr + row * width,"),
    "named tokens have a scale of their own": (
        "view, m, inverse_t, total), float",
        "view, m, 1.0, total), float",
    ),
    "few tokens can be named": (
        "for begin in range(0, asked, NAMED):",
        "for begin in range(0, tl.minimum(asked, NAMED), NAMED):",
    ),
    "a row without a token has logprobs of others": ("mask=place < told, other", "mask=place < asked, other"),
}

MEETING_MISTAKES = {
    "the first program of a row goes on with it": ("return before == programs - 1", "return before == 0"),
    "the block with the last number goes on with a row": (
        "if is_last(meta_ptr + ARRIVED, (blocks + run - 1) // run):",
        "if tl.program_id(1) == (blocks + run - 1) // run - 1:",
    ),
    "a counter stays where it ended": ("        tl.store(arrived_ptr, 0)\n", "        pass\n"),
    "a counter of views begins anywhere": ("tl.store(arrived_ptr + row, 0, mask=block == 0)", "pass"),
}
"""The same of what the last program of a row does, which is seen where programs run one after the other."""

MOST_READ = {"mask": 4.1, "penalties": 3.4, "bias and penalties": 3.7, "DRY and bigrams": 3.6, "logprobs": 4.6,
             "logprobs of named tokens": 4.4}  # fmt: skip
"""Reads of a row of float32 logits without filters in one step, 2.0 of them the draw's own.

A word of a mask is counted for each of its tokens, which lie in one cache line."""


def given(*params: Any) -> tuple[Any, ...]:
    """Arguments of `ops.draw` for a batch."""
    there = batch_of(*params, history_capacity=32).device_rows()
    tables = [there.tables[name].clone() for name in ops.TABLES]
    layout = there.layout
    flags = (layout.draws, layout.filters, layout.sums, layout.set_needs, layout.changes, layout.keeps)
    return logits(3), None, torch.arange(4), there.tables["carry"].clone(), tables, layout.edits, 32, *flags


@pytest.mark.parametrize("params", [[PLAIN] * 4, [EVERYTHING] * 4, [SamplingParams(typical_p=0.5, seed=3)] * 4])
def test_pytorch_finds_nothing_wrong_with_the_draw(params: Sequence[Any]) -> None:
    # Rows without a token have NaN, which it takes for a difference: every slot holds a request.
    found = torch.library.opcheck(torch.ops.tirage.draw_slots.default, given(*params))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize(("most", "asked"), [(3, 4), (0, 2), (1, 0)])
def test_pytorch_finds_nothing_wrong_with_what_is_reported(most: int, asked: int) -> None:
    # Rows that name fewer tokens than others have NaN, which it takes for a difference.
    named = [SamplingParams(logprobs=3, logprob_token_ids=[at, 9, 3, V - 1], seed=at) for at in range(3)]
    there = batch_of(*named, PLAIN.replace(logprob_token_ids=range(4), logprobs_mode="sampled"), history_capacity=32)
    rows, x, slots = there.device_rows(), logits(3), torch.arange(4)
    drawn, _, edited, _, sets, kept = rows._drawn(x, None, slots)
    views = [rows.tables[name].clone() for name in ops.VIEWS]
    args = (x, edited.clone(), sets, kept, drawn[0], drawn[3], slots, *views, most, asked, rows.layout.mixes)
    found = torch.library.opcheck(torch.ops.tirage.report_slots.default, args)
    assert set(found.values()) == {"SUCCESS"}
    shapes = [tuple(each.shape) for each in torch.ops.tirage.report_slots(*args)]
    assert shapes == [(4,), (4,), (4, most), (4, most), (4, asked)]


def test_pytorch_finds_nothing_wrong_with_what_is_appended() -> None:
    there = batch_of(EVERYTHING, PLAIN, history_capacity=32).device_rows()
    tables = [there.tables[name].clone() for name in (*ops.WRITTEN, *ops.READ)]
    slots, token = torch.arange(4), torch.tensor([7, -1, 3, V])
    found = torch.library.opcheck(torch.ops.tirage.append.default, (token, slots, *tables, 32, V))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
@needs_triton
@needs_newest_triton
@pytest.mark.parametrize("steps", [6, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_what_follows_from_the_tokens_is_stepped_by_the_kernels(steps: int) -> None:
    """Float32, bfloat16 and float16 logits, among them NaN, -inf and numbers below 2^-126."""
    stepped_by_kernels("pasts", [], steps)


@pytest.mark.slow
@needs_triton
@needs_newest_triton
def test_programs_that_run_one_after_the_other_backwards_draw_and_report_the_same() -> None:
    done = started("in turn", [], 3, given=[])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"seen": False}]


@needs_triton
@needs_newest_triton
@pytest.mark.parametrize(
    ("kind", "steps", "given"),
    [
        pytest.param(kind, steps, given, id=name, marks=pytest.mark.exhaustive if at else pytest.mark.slow)
        for kind, steps, mistakes in (
            ("past mistake", 16, MISTAKES),
            ("view mistake", 25, VIEW_MISTAKES),
            ("in turn", 3, {name: [piece] for name, piece in MEETING_MISTAKES.items()}),
        )
        for at, (name, given) in enumerate(mistakes.items())
    ],
)
def test_a_mistake_in_the_kernels_is_seen(kind: str, steps: int, given: Any) -> None:
    done = started(kind, [], steps, given=given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"seen": True}]


@pytest.mark.slow
@needs_triton
@needs_newest_triton
@pytest.mark.parametrize("steps", [2, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_logprobs_are_told_by_the_kernels(steps: int) -> None:
    stepped_by_kernels("views", [], steps)


@pytest.mark.slow
@needs_triton
@needs_newest_triton
def test_what_a_step_with_edits_reads_and_launches() -> None:
    done = started("edited counts", [], 1)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    for name, counts in found.items():
        assert counts["launches"] <= (8 if "logprobs" in name else 6), name
        assert counts["reads"] <= MOST_READ[name], name
        assert counts["scratch"] <= 1.1, name
        assert counts["differences"] == 0, name


@needs_triton
@pytest.mark.skipif("TIRAGE_OLDEST" in os.environ, reason="reads how Triton 3.9 names a compiled kernel")
def test_another_layout_compiles_no_kernel_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.backends.torch.device import launches

    found = kernel_keys(monkeypatch)
    for rows in (1, 2, 16, 17):
        for width in (0, 1, 2, 16, 64):
            tables = _tables(rows, width)
            x, at = torch.empty(rows, 128_256, device="meta"), torch.empty(rows, dtype=torch.int64, device="meta")
            for copies in (True, False):
                needs = {"draws": True, "filters": True, "sums": True, "set_needs": 0, "keeps": width > 1}
                launches.draw(x, None, at, tables, room=width + 1, **needs, copies=copies)
            launches.append(at, at, tables, room=width + 1, size=128_256)
            sets, status = torch.empty(rows, SUMS, dtype=torch.int64, device="meta"), at.to(torch.int8)
            views = [tables[name] for name in ops.VIEWS]
            kept = torch.empty(rows, 128_256 if width > 1 else 0, dtype=torch.uint8, device="meta")
            wide = {"most": width, "asked": width, "mixes": width > 2}
            launches.report(x, x, sets, kept, at, status, at, views, **wide)
    names = ("edit", "measure_slots", "append", "view_ends", "view_weigh")
    assert [len(found[name]) for name in names] == [1] * len(names)


def _tables(rows: int, width: int) -> dict[str, Any]:
    """Tables without values whose rows are as wide as that."""
    made = {}
    for name, table in batch_of(EVERYTHING)._there.tables.items():
        shape = {1: (rows,), 2: (rows, width), 3: (rows, width, 4 if name == "edits" else width)}[table.ndim]
        shape = (rows, HEADER + 6 * (width or 1)) if name == "meta" else shape
        made[name] = torch.empty(shape, dtype=table.dtype, device="meta")
    return made
