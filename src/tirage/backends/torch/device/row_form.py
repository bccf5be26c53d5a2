"""A request as arrays for a device: what of it can be drawn there, and the layout that the rows of a batch share.

A request has such a form when its steps follow from its tokens as tensors can tell (`past_form`), and when its filters
are among the kernels'. Others are drawn by the host path, with the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends.groups import runs_only
from tirage.backends.torch.device.carry import CarryForm, blank_carry, fill_carry
from tirage.backends.torch.device.past_form import (
    NO_PAST,
    PastForm,
    PastSizes,
    blank_past,
    fill_past,
    past_form,
    rounded,
)
from tirage.backends.torch.plan import (
    AS_SET,
    BINS,
    DYNAMIC,
    HEADER,
    IS_GREEDY,
    LISTS,
    REWRITES,
    SAMPLE,
    SEED,
    SETS,
    STEP,
    DrawPlan,
    metadata_of,
)
from tirage.compiled_params import CompiledParams, Program, compiled
from tirage.exact import numbers
from tirage.history import MAX_HISTORY, History
from tirage.operators import END, FIRST_FILTER, Step
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.bad_words import enforced
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.penalties import scope
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.xtc import COINS
from tirage.params import SamplingParams
from tirage.sampling_batch import SamplingRow, view_of
from tirage.sampling_metadata import STEP_WIDTH, SamplingMetadata, View

AVERAGED, COMPLETED, PROLONGED = -1, -2, -3
"""Edits that follow from the tokens: a frequency penalty divided by how many there are, biases of sequences, DRY."""
COUNTING = (int(REPETITION), int(FREQUENCY), int(PRESENCE), AVERAGED)
"""The edits that read counts."""
EDITS = (ADD, REPETITION, FREQUENCY, PRESENCE, SCALE)
"""The edits that rows on a device run, beside bans, which are bits of their masks."""
EDIT, SCOPE, FIRST, SECOND = range(4)
"""What the table of edits holds of a row and a place: the edit that runs there, or 0, whose tokens it counts, and two
operands, mostly float32 as bits."""
_FEWEST = 256
"""Tokens that a table of counts has room for beyond those that a request brings along."""
_NOTHING = History.of((), (), vocab_size=1)
_Change = tuple[str, int, tuple[int, int, int]]
"""(stage, edit, its scope and operands)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLayout:
    """What the rows of a batch share: which stages run, and how wide their tables are. It grows and never shrinks.

    `steps`: filters of a row at most. `edits`: the operations that change logits, in an order that holds each row's.
    `bias`, `counts`: the most tokens that a row biases, and counts, 0 where none does. `masks`, `early`: whether some
    row forbids tokens always, or before its `min_tokens`. `draws`, `filters`, `sums`, `set_needs`: as in a DrawPlan of
    all. `tail`: how many tokens a row may say until they are read back. `past`: what the order of the tokens needs.
    `views`: whether some row reports logprobs, `keeps` those of a set that is no prefix, `mixes` those of a law whose
    tokens are ordered by them, and `asked` of how many tokens that it names, at most. `carries`: whether some row
    carries a state from token to token. `spares`: whether there are tokens that XTC of some row never removes.
    """

    steps: int = 1
    edits: tuple[int, ...] = ()
    bias: int = 0
    counts: int = 0
    masks: bool = False
    early: bool = False
    draws: bool = False
    filters: bool = False
    sums: bool = False
    set_needs: int = 0
    tail: int = 0
    past: PastSizes = NO_PAST
    views: bool = False
    keeps: bool = False
    mixes: bool = False
    asked: int = 0
    carries: bool = False
    spares: bool = False

    @property
    def changes(self) -> bool:
        """Whether some row's logits may be masked or edited."""
        changed = self.edits or self.masks or self.early or self.past.ngrams or self.past.phrases
        return bool(changed or self.set_needs & REWRITES)

    def joined(self, form: RowForm, *, counted: int, length: int, room: int | None) -> RowsLayout:
        """The least layout, in powers of two, that also holds a request with `length` tokens so far, of which
        `counted` distinct ones are counted.

        `room` is the most tokens that a request may have, None without a limit.
        """
        wanted = min(form.counted, room or counted + _FEWEST)
        return replace(
            self,
            steps=max(self.steps, form.steps),
            edits=placed(self.edits, form.ops)[0],
            bias=max(self.bias, rounded(form.bias_ids.size)),
            counts=max(self.counts, rounded(wanted)),
            masks=self.masks or form.allowed is not None or bool(form.banned.size),
            early=self.early or bool(form.least),
            draws=self.draws or form.draws,
            filters=self.filters or form.filters,
            sums=self.sums or form.sums,
            set_needs=self.set_needs | form.set_needs,
            past=self.past.joined(form.past, room or length + _FEWEST),
            views=self.views or form.view != View.NONE,
            keeps=self.keeps or form.keeps,
            mixes=self.mixes or form.mixes,
            asked=max(self.asked, rounded(form.asked_ids.size)),
            carries=self.carries or form.carry is not None,
            spares=self.spares or bool(form.spared.size),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowForm:
    """What a device is given of a request, apart from its tokens, seed and position; the same for all that ask alike.

    `meta` int64 [columns] is its row of a DrawPlan, where seed, step and sample are still to come. `ops` are its
    edits with `operands` int32 [P, 4] as `EDIT` to `SECOND` name them. `bias_ids` int64 [n] and `bias_values` float32
    [n]; `banned` ids int32 [n], `allowed` ids or None, and `stop_ids` int32 [n], banned before `least` tokens. `past`
    is what it asks of the order of its tokens. `view` is whose logprobs it reports, `keeps` and `mixes` as in
    RowsLayout, `view_scale` float32 [2] c and
    1 / T of that law, `top_n` how many first candidates and `asked_ids` int32 [n] further tokens. `carry` is how its
    state moves, None without one; `spared` int32 [n] what XTC never removes.
    """

    meta: NDArray[np.int64]
    ops: tuple[int, ...]
    operands: NDArray[np.int32]
    bias_ids: NDArray[np.int64]
    bias_values: NDArray[np.float32]
    banned: NDArray[np.int32]
    allowed: NDArray[np.int32] | None
    stop_ids: NDArray[np.int32]
    least: int
    counts: bool
    draws: bool
    filters: bool
    sums: bool
    set_needs: int
    resamples: bool
    past: PastForm
    view: View
    keeps: bool
    mixes: bool
    view_scale: NDArray[np.float32]
    top_n: int
    asked_ids: NDArray[np.int32]
    carry: CarryForm | None
    spared: NDArray[np.int32]

    @property
    def counted(self) -> int:
        """How many distinct tokens its penalties count at most."""
        return (self.past.window or MAX_HISTORY) if self.counts else 0

    @property
    def steps(self) -> int:
        """How many filters it has, with the end behind them."""
        return (self.meta.size - HEADER) // STEP_WIDTH


def form_of(row: SamplingRow) -> RowForm | None:
    """The form of a request, or None when it needs the host."""
    params = row.params
    if params.logits_processors or params.return_kept or row.step is not None:
        return None
    return _form(row.compiled)


def _form(compiled_params: CompiledParams) -> RowForm | None:
    params, semantics = compiled_params.params, compiled_params.semantics
    past = past_form(compiled_params)
    if past is None or params.watermark is not None:
        return None
    # Without what the tokens decide, and words that are always banned, steps must be the same at each token.
    still = compiled_params
    if still.fixed is None or params.sequence_bias:
        still = compiled(params.replace(**_off(params, averages=past.averages)))
    fixed = still.lower(_NOTHING, 0)
    smooth = [step for step in fixed.steps if step.op == SMOOTH]
    edits = [step for step in fixed.steps if step.op < FIRST_FILTER and step.op != SMOOTH]
    filters = [step for step in fixed.steps if step.op >= FIRST_FILTER]
    changes = [(step.stage, int(step.op), _operands(step)) for step in edits if step.op != BAN]
    changes = _ordered([*changes, *_following(compiled_params, past)], smooth, semantics.stages)
    program = np.array([*(step[:STEP_WIDTH] for step in (*smooth, *filters)), [END] * STEP_WIDTH], np.int64)
    spared = np.array(params.xtc_protected_ids if compiled_params.coin else (), np.int32)
    rows = metadata_of(np.concatenate([np.zeros(HEADER, np.int64), program.reshape(-1)])[None])
    views = np.array([view_of(params)], np.int8)
    rows = replace(rows, protected_start=np.array([0, spared.size]), protected_ids=spared, views=views)
    if not _runs(edits, rows):
        return None
    plan = DrawPlan.of(rows)
    if any(op == SMOOTH for _, op, _ in changes):
        meta = np.delete(plan.meta, np.s_[HEADER : HEADER + STEP_WIDTH], axis=1)
        plan, smooth = replace(plan, meta=meta, set_needs=plan.set_needs & ~REWRITES), []
    carry = CarryForm.of(still, [*smooth, *filters])
    found = _found(still, fixed, edits, filters, plan, past)
    words = enforced(params.bad_words_token_ids, params.eos_token_ids, semantics.bad_words_eos)
    banned = [*found.banned, *(word[0] for word in words if len(word) == 1)]
    return replace(
        found,
        ops=tuple(int(op) for _, op, _ in changes),
        operands=np.array([(op, *operands) for _, op, operands in changes], np.int32).reshape(-1, 4),
        banned=np.array(banned, np.int32),
        least=params.min_tokens,
        counts=compiled_params.needs_counts,
        # What a row carries is noted by the kernel that draws any steps.
        set_needs=found.set_needs | (LISTS if carry is not None else 0),
        carry=carry,
        spared=spared,
    )


def _off(params: SamplingParams, *, averages: bool) -> dict[str, Any]:
    """The off values of the parameters whose steps change with the tokens."""
    return {
        "min_tokens": 0,
        "bad_words": (),
        "bad_words_token_ids": (),
        "no_repeat_ngram_size": 0,
        "sequence_bias": None,
        "dry_multiplier": 0.0,
        "frequency_penalty": 0.0 if averages else params.frequency_penalty,
    }


def _ordered(changes: Sequence[_Change], smooth: Sequence[Step], stages: Sequence[str]) -> list[_Change]:
    """The changes in the order of their stages, and a smoothing that does not stand behind all of them."""
    found = sorted(changes, key=lambda each: stages.index(each[0]))
    for step in smooth:
        at = sum(stages.index(stage) < stages.index("smoothing") for stage, *_ in found)
        if at < len(found):
            found.insert(at, ("smoothing", int(SMOOTH), (0, step.a, step.b)))
    return found


def _following(given: CompiledParams, past: PastForm) -> Iterator[_Change]:
    """What follows from the tokens."""
    params, semantics = given.params, given.semantics
    if past.averages:
        scope_of = scope(semantics.frequency_history, semantics.penalty_window)
        yield "frequency", AVERAGED, (scope_of, numbers.bits(numbers.operand(params.frequency_penalty)), past.window)
    if past.phrases.biases:
        yield "sequence_bias", COMPLETED, (0, 0, 0)
    if past.powers.size:
        yield "dry", PROLONGED, (0, past.allowed, past.dry_window)


def _runs(edits: Sequence[Step], rows: SamplingMetadata) -> bool:
    """Whether tensors and kernels run these steps, of which at most one is a bias."""
    known = all(step.op in (*EDITS, BAN) for step in edits) and sum(step.op == ADD for step in edits) <= 1
    return known and bool(runs_only(rows, (SMOOTH, *SETS))[0])


def _is_told(view: View, filters: Sequence[Step]) -> bool:
    """Whether the view's law follows from the draw: that of its set, or of a temperature that follows from one."""
    is_dynamic = any(step.op in DYNAMIC for step in filters) and all(step.op != GREEDY for step in filters)
    return view == View.SAMPLED or (view == View.PROCESSED and is_dynamic)


def _found(
    given: CompiledParams,
    fixed: Program,
    edits: Sequence[Step],
    filters: Sequence[Step],
    plan: DrawPlan,
    past: PastForm,
) -> RowForm:
    """The form of what does not follow from the tokens."""
    view = view_of(given.params)
    return RowForm(
        meta=plan.meta[0],
        ops=(),
        operands=np.zeros((0, 4), np.int32),
        bias_ids=_listed(fixed, edits, ADD, fixed.edit_ids).astype(np.int64),
        bias_values=_listed(fixed, edits, ADD, fixed.edit_values),
        banned=_listed(fixed, edits, BAN, fixed.edit_ids),
        allowed=given.allowed,
        stop_ids=given.stop_ids,
        least=0,
        counts=False,
        draws=plan.draws,
        filters=plan.filters,
        sums=plan.sums,
        set_needs=plan.set_needs,
        resamples=given.semantics.mask_mode == "resample",
        past=past,
        view=view,
        keeps=view == View.SAMPLED and bool(plan.meta[0, IS_GREEDY] == AS_SET),
        mixes=view == View.SAMPLED and any(step.op.base in (*COINS, ADAPTIVE_P) for step in filters),
        view_scale=_scale_of(view, filters),
        top_n=given.params.logprobs or 0,
        asked_ids=np.array(given.params.logprob_token_ids, np.int32),
        carry=None,
        spared=np.zeros(0, np.int32),
    )


def _scale_of(view: View, filters: Sequence[Step]) -> NDArray[np.float32]:
    """c and 1 / T of the law that a view tells, float32 [2]: those of the last temperature, or of T = 1 (S-L5).

    They are NaN where the draw tells them.
    """
    if _is_told(view, filters):
        return np.full(2, np.nan, np.float32)
    last = [step for step in filters if step.op == TEMPERATURE]
    if view != View.PROCESSED or not last or any(step.op == GREEDY for step in filters):
        return np.array([numbers.temperature_constant(1.0), 1.0], np.float32)
    return np.array(last[-1][1:3], np.int32).view(np.float32)


def _operands(step: Step) -> tuple[int, int, int]:
    """Scope and operands of a penalty, or the factor of a scale."""
    if step.op == SCALE:
        return 0, step.a, 0
    return (0, 0, 0) if step.op == ADD else (step.a, step.b, step.c)


def _listed(fixed: Program, edits: Sequence[Step], op: int, values: NDArray[Any]) -> NDArray[Any]:
    parts = [values[step.a : step.b] for step in edits if step.op == op]
    return np.concatenate(parts) if parts else values[:0]


def placed(order: tuple[int, ...], ops: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """(`order` with what `ops` need of it appended, the places of `ops` in it, ascending)."""
    joined, places, at = list(order), [], 0
    for op in ops:
        at = next((place for place in range(at, len(joined)) if joined[place] == op), len(joined))
        if at == len(joined):
            joined.append(op)
        places.append(at)
        at += 1
    return tuple(joined), places


def bits_of(vocab_size: int, *, allowed: NDArray[np.int32] | None, banned: NDArray[np.int32]) -> NDArray[np.int32]:
    """The bitmask int32 [ceil(V / 32)] of ids that are `allowed`, all where that is None, and not `banned`."""
    flags = np.full(-(-vocab_size // 32) * 32, allowed is None, bool)
    if allowed is not None:
        flags[allowed] = True
    flags[banned] = False
    return np.packbits(flags, bitorder="little").view(np.int32)


def arrays_of(
    row: SamplingRow | None, form: RowForm | None, layout: RowsLayout, vocab_size: int
) -> dict[str, NDArray[Any]]:
    """One row, of any shape, of each table of `DeviceRows`; of an empty slot where there is no request."""
    out = _blank(layout, vocab_size)
    if row is None or form is None:
        return out
    history = row.history
    out["meta"][: form.meta.size] = form.meta
    out["meta"][[SEED, STEP, SAMPLE]] = row.seed, history.step, row.sample_index
    out["used"][...], out["length"][...], out["least"][...] = True, history.length, form.least
    out["edits"][placed(layout.edits, form.ops)[1]] = form.operands
    _fill(out["bias_ids"], form.bias_ids)
    _fill(out["bias_values"], form.bias_values)
    if layout.masks:
        out["words"][:] = bits_of(vocab_size, allowed=form.allowed, banned=form.banned)
    if layout.early and form.least:
        out["early"][:] = bits_of(vocab_size, allowed=None, banned=form.stop_ids)
    if form.counts:
        _count(out, row)
    if layout.spares:
        out["spared"][:] = bits_of(vocab_size, allowed=form.spared, banned=form.spared[:0])
    if form.carry is not None:
        fill_carry(out, form.carry, row)
    fill_past(out, form.past, history)
    out["view"][:], out["top_n"][:] = int(form.view), min(form.top_n, vocab_size)
    out["asked_ids"][: form.asked_ids.size] = form.asked_ids
    out["view_scale"][:] = form.view_scale[: out["view_scale"].size]
    if form.past.powers.size:
        out["breaks"][:] = bits_of(vocab_size, allowed=form.past.breakers, banned=form.banned[:0])
    return out


def _count(out: dict[str, NDArray[Any]], row: SamplingRow) -> None:
    counts = row.compiled.counts(row.history)
    assert counts is not None
    table = counts.table
    for name, values in zip(("count_ids", "in_prompt", "in_output"), table, strict=True):
        _fill(out[name], values)
    out["distinct"][...] = table.shape[1]


def _fill(out: NDArray[Any], values: NDArray[Any]) -> None:
    """Puts `values` [n] first and repeats the first of them: what is written twice is written alike."""
    if values.size:
        out[: values.size], out[values.size :] = values, values[0]


def _blank(layout: RowsLayout, vocab_size: int) -> dict[str, NDArray[Any]]:
    words = -(-vocab_size // 32)
    counts = layout.counts
    return {
        "meta": np.zeros(HEADER + layout.steps * STEP_WIDTH, np.int64),
        "used": np.zeros((), bool),
        "arrived": np.zeros((), np.int32),
        "bins": np.zeros(BINS if layout.draws or layout.set_needs else 0, np.int32),
        "length": np.zeros((), np.int64),
        "least": np.zeros((), np.int64),
        "edits": np.zeros((len(layout.edits), 4), np.int32),
        "bias_ids": np.zeros(layout.bias, np.int64),
        "bias_values": np.zeros(layout.bias, np.float32),
        "words": np.full(words if layout.masks else 0, -1, np.int32),
        "early": np.full(words if layout.early else 0, -1, np.int32),
        "count_ids": np.zeros(counts, np.int64),
        "in_prompt": np.zeros(counts, np.int32),
        "in_output": np.zeros(counts, np.int32),
        "distinct": np.zeros((), np.int64),
        "said": np.zeros((), np.int64),
        "fault": np.full((), -1, np.int64),
        "tail": np.zeros(layout.tail, np.int32),
        **blank_past(layout.past, vocab_size),
        "carry": blank_carry(carries=layout.carries),
        "spared": np.zeros(words if layout.spares else 0, np.int32),
        "view": np.zeros(int(layout.views), np.int64),
        "view_scale": np.ones(2 * int(layout.views), np.float32),
        "top_n": np.zeros(int(layout.views), np.int64),
        "asked_ids": np.full(layout.asked, -1, np.int32),
    }
