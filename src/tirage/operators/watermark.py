"""Watermarks: what all filters left is weighed anew, or drawn by keyed uniforms (SPEC.md S-M1 ... S-M6).

No stage of a semantics: whatever the order of the others, it comes last, and only where a request has one. The step
depends on the tokens so far; none is made where a context is too short or has marked a token already.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.exact.keys import keys
from tirage.exact.weights import weights
from tirage.fields.record import param
from tirage.fields.rules import Custom
from tirage.history import History
from tirage.operators.operator import Ids, Moment, Operation, Operator, Step, counted
from tirage.operators.row import RowState
from tirage.watermarks import Watermark, green_list, gumbel, synthid
from tirage.watermarks.config import read_watermark
from tirage.watermarks.masses import scaled, widened

_WORD = 1 << 32


# --- the rules ----------------------------------------------------------------------------------------------------


def green_ids(row: RowState, step: Step, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the tokens `ids` [n] are green if these are the ones still in, bool [n]."""
    context = row.edit_ids[step.a : step.b].astype(np.int64)
    count = green_list.green_count(row.x.size, _float64(step.d))
    if step.op in {GREEN_LEFT, GREEDY_GREEN_LEFT}:
        return green_list.left_green(step.c, int(context[-1]), row.x.size, count)[ids]
    return green_list.self_green(step.c, context, row.x, ids, count)[ids]


def red_factor(step: Step) -> float:
    """By what the weight of a token that is not green is multiplied, a little rounded: e^-bias."""
    return step.e / 2.0**30


def _favour(row: RowState, step: Step) -> None:
    """Red tokens lose the factor e^-bias, never all of their weight."""
    w = widened(row.w())
    less = np.maximum(scaled(w, np.full(w.size, step.e, np.uint64)), np.minimum(w, np.uint64(1)))
    row.reweighted = np.where(green_ids(row, step, row.ids), w, less)


def _favour_logits(row: RowState, step: Step) -> None:
    """Before greedy the bias is added to the logits themselves."""
    green = row.ids[green_ids(row, step, row.ids)]
    bias = numbers.from_bits(step.e)
    row.x = row.x.copy()
    row.write(green, lambda v: v + bias)
    row.key = keys(row.x)


def layers_of(row: RowState, step: Step, ids: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """For each layer of a tournament which of the tokens `ids` [n] win their matches, bool [n]."""
    wins, layers = _wins(row, step, ids)
    return [(wins >> np.uint64(layer) & np.uint64(1)).astype(bool) for layer in range(layers)]


def _wins(row: RowState, step: Step, ids: NDArray[np.int64]) -> tuple[NDArray[np.uint64], int]:
    keys_ = _unpacked(row.edit_ids[step.a : step.b])
    return synthid.g_values(step.c, ids, keys_, seed=step.d, size=step.e), len(keys_)


def _tournament(row: RowState, step: Step) -> None:
    row.reweighted = synthid.tournament(widened(row.w()), *_wins(row, step, row.ids))


def _race(row: RowState, step: Step) -> None:
    row.race = step.a % (1 << 64), step.b % (1 << 64)


_KGW = "start:int end:int key:long ratio:long"
GREEN_LEFT = Operation("GREEN_LEFT", f"{_KGW} factor:int", run=_favour, lists=True)
GREEN_SELF = Operation("GREEN_SELF", f"{_KGW} factor:int", run=_favour, lists=True)
GREEDY_GREEN_LEFT = Operation("GREEDY_GREEN_LEFT", f"{_KGW} bias:int", run=_favour_logits, lists=True)
GREEDY_GREEN_SELF = Operation("GREEDY_GREEN_SELF", f"{_KGW} bias:int", run=_favour_logits, lists=True)
TOURNAMENT = Operation("TOURNAMENT", "start:int end:int context:long seed:long size:int", run=_tournament, lists=True)
RACE = Operation("RACE", "key:long context:long", run=_race)


# --- lowering: keys and contexts travel in the arrays that edits refer to -------------------------------------------


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _float64(pattern: int) -> float:
    return float(np.int64(pattern).view(np.float64))


def _packed(keys_: tuple[int, ...]) -> Ids:
    """64-bit keys as pairs of int32, low word first."""
    return np.array(keys_, np.uint64).view(np.int32)


def _unpacked(words: Ids) -> list[int]:
    return np.ascontiguousarray(words).view(np.uint64).tolist()


def _listed(op: Operation, ids: Ids, c: int, d: int, e: int) -> tuple[Step, Ids]:
    return Step(op, 0, ids.size, c, d, e), ids


def prepare(watermark: Watermark) -> None:
    """Makes what takes long and is needed for the first token: the table by which `selfhash` hashes tokens."""
    if watermark.scheme == "kgw" and watermark.seeding_scheme == "selfhash":
        green_list.prepare(watermark.keys[0])


def lower(watermark: Watermark, temperature: float, history: History) -> tuple[Step, Ids] | None:
    """The step of this moment and the ids int32 [n] that its a and b refer to; None for a token that is not marked."""
    if watermark.scheme == "kgw":
        return _lower_kgw(watermark, temperature, history)
    return _lower_synthid(watermark, history) if watermark.scheme == "synthid" else _lower_gumbel(watermark, history)


def _lower_kgw(mark: Watermark, temperature: float, history: History) -> tuple[Step, Ids] | None:
    if history.length < mark.width:
        return None
    left = mark.seeding_scheme == "lefthash"
    context = history.tokens()[-1:] if left else history.tokens()[history.length - mark.width + 1 :]
    if temperature == 0:
        op = GREEDY_GREEN_LEFT if left else GREEDY_GREEN_SELF
        strength = numbers.bits(numbers.operand(mark.bias))
    else:
        op = GREEN_LEFT if left else GREEN_SELF
        strength = _factor(mark.bias)
    ratio = int(np.float64(mark.greenlist_ratio).view(np.int64))
    return _listed(op, context.astype(np.int32), mark.keys[0], ratio, strength)


def _factor(bias: float) -> int:
    """e^-bias in units of 2^-30, by the weights of S-W2."""
    q = round(float(numbers.f32(bias)) * numbers.LOG2E_23)
    return int(weights(np.array([q], np.int32))[0]) >> 10


def _lower_synthid(mark: Watermark, history: History) -> tuple[Step, Ids] | None:
    if mark.skip_first_ngram_calls and history.step < mark.width:
        return None
    hashes = synthid.context_hashes(history.output(), mark.width)
    if mark.skip_first_ngram_calls:
        hashes = hashes[mark.width :]
    if synthid.is_repeated(hashes, mark.context_history_size):
        return None
    operands = _signed(int(hashes[-1])), mark.sampling_table_seed, mark.sampling_table_size
    return _listed(TOURNAMENT, _packed(mark.keys), *operands)


def _lower_gumbel(mark: Watermark, history: History) -> tuple[Step, Ids] | None:
    windows = gumbel.contexts(history.tokens(), history.prompt_length, mark.width)
    if gumbel.is_repeated(windows):
        return None
    context = gumbel.context_hash(mark.keys[0], windows[-1].tolist())
    return Step(RACE, _signed(mark.keys[0]), _signed(context)), np.zeros(0, np.int32)


# --- words ----------------------------------------------------------------------------------------------------------


def _note(moment: Moment) -> str:
    mark, left = moment.params.watermark, counted(moment.left, "token")
    if mark.scheme == "kgw":
        return f"green tokens of {left} favoured by a bias of {mark.bias:g}"
    if mark.scheme == "synthid":
        return f"{counted(len(mark.keys), 'round')} of matches between {left}"
    return f"a keyed race between {left} takes the place of the seed"


def dumped(watermark: Watermark | None) -> dict[str, object] | None:
    """The plain form of a parameter's value, with its key."""
    return None if watermark is None else watermark.to_dict()


OPERATOR = Operator(
    name="watermark",
    rule="S-M1",
    fields={
        "watermark": param(
            None,
            Custom("a Watermark, an object with its options, or None", read_watermark, dumped, read_watermark),
            "marks the text so that who has the key can detect it: a Watermark, or an object with its options",
            source="transformers",
            off=None,
            needs_history=lambda value: True,
        )
    },
    operations=(GREEN_LEFT, GREEN_SELF, GREEDY_GREEN_LEFT, GREEDY_GREEN_SELF, TOURNAMENT, RACE),
    note=_note,
)
