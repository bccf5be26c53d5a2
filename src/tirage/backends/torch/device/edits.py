"""Masks and edits of rows whose tables lie on a device: operations on whole tables, whatever they hold.

No shape here depends on a value, so nothing waits for the device; numbers are arguments of operations, never tensors
that would have to be sent. Tables of ids repeat their first entry to the end;
where an entry is written twice, both write the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tirage.backends.torch import rule
from tirage.backends.torch.device import past
from tirage.backends.torch.device.past import Tables
from tirage.backends.torch.device.row_form import AVERAGED, COMPLETED, COUNTING, EDIT, FIRST, PROLONGED, SCOPE, SECOND
from tirage.backends.torch.plan import HEADER, STEP
from tirage.backends.torch.rule import FLT_MAX, clamped, cleaned, keys
from tirage.exact.keys import NEG_INF_KEY, POS_INF_KEY
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.smoothing import SMOOTH

# Plain numbers: compiled by PyTorch 2.8, a comparison with a number of another class is always false.
_ADD, _REPETITION, _FREQUENCY, _PRESENCE, _SMOOTH = (int(op) for op in (ADD, REPETITION, FREQUENCY, PRESENCE, SMOOTH))


def allowed_words(tables: Tables, given: Tensor | None) -> Tensor | None:
    """The bitmask int32 [B, ceil(V / 32)] of each row now, together with a `given` one; None when none has any."""
    words = given
    if tables["words"].shape[1]:
        words = tables["words"] if words is None else words & tables["words"]
    if tables["early"].shape[1]:
        waits = tables["meta"][:, STEP] < tables["least"]
        early = tables["early"].masked_fill(~waits[:, None], -1)
        words = early if words is None else words & early
    return words


def masked(x: Tensor, words: Tensor) -> Tensor:
    """Logits float32 [B, V] with -inf where the bit of `words` int32 [B, ceil(V / 32)] is 0."""
    octets = words.contiguous().view(torch.uint8)
    bits = 1 << torch.arange(8, dtype=torch.uint8, device=x.device)
    flags = (octets[:, :, None] & bits).flatten(1)[:, : x.shape[1]]
    return x.masked_fill(flags == 0, -torch.inf)


def smoothed(x: Tensor, meta: Tensor) -> Tensor:
    """Logits float32 [B, V] after the smoothing of the rows that have one, by `meta` int64 [B, columns] of a plan."""
    is_smooth = meta[:, HEADER] == _SMOOTH
    square, cube = (meta[:, HEADER + at].to(torch.int32).view(torch.float32)[:, None] for at in (1, 2))
    return torch.where(is_smooth[:, None], rule.smoothed(x, square, cube), x)


def edited(x: Tensor, tables: Tables, order: Sequence[int], words: Tensor | None) -> tuple[Tensor, Tensor]:
    """(float32 logits [B, V] after the masks `words` and the edits in `order`, bool [B]: rows that are not finite).

    `x` itself does not change. Finiteness is judged by what an edit overwrites; who reads the result sees the rest.
    """
    bad = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    own = x if words is None else masked(x, words)
    has_bans = past.has_bans(tables)
    if (order or has_bans) and own is x:
        own = x.clone()
    if has_bans:
        ids, due = past.bans(tables)
        _put(own, ids, due, torch.full_like(ids, -torch.inf, dtype=torch.float32))
    place = 0
    while place < len(order):
        stages = [place + more for more in range(_together(order[place:]))]
        if order[place] == _ADD:
            bad = bad | _add(own, tables, place)
        elif order[place] == COMPLETED:
            bad = bad | _complete(own, tables, place)
        elif order[place] == PROLONGED:
            bad = bad | _prolong(own, tables, place)
        elif order[place] in COUNTING:
            bad = bad | _penalise(own, tables, [(at, order[at]) for at in stages])
        else:
            own, spoiled = (_smooth if order[place] == _SMOOTH else _scale)(own, tables, place)
            bad = bad | spoiled
        place += len(stages)
    return own, bad


def _together(order: Sequence[int]) -> int:
    """How many of the first stages run on the same entries: penalties that follow one another, else one."""
    count = 0
    while count < len(order) and order[count] in COUNTING:
        count += 1
    return max(1, count)


def _changed(old: Tensor, touched: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """(`old` with `new` where it is `touched` and not -inf, bool [B]: rows where what was touched is not finite)."""
    key = keys(old)
    bad = (touched & ((key >= POS_INF_KEY) | (key < NEG_INF_KEY))).any(1)
    return torch.where(touched & (key != NEG_INF_KEY), clamped(new), old), bad


def _put(x: Tensor, ids: Tensor, touched: Tensor, new: Tensor) -> None:
    """Writes `new` [B, n] to the `ids` that are `touched`; where one comes twice, both must bring the same.

    Entries that are not touched write once more what one that is writes, since their ids may be those of others.
    """
    one = touched.to(torch.int8).argmax(1, keepdim=True)
    value = torch.where(touched, new, x.gather(1, ids))
    x.scatter_(1, torch.where(touched, ids, ids.gather(1, one)), torch.where(touched, value, value.gather(1, one)))


def _operand(tables: Tables, place: int, which: int) -> Tensor:
    """A float32 operand [B, 1] of the edits in one place."""
    return tables["edits"][:, place, which, None].view(torch.float32)


def _runs(tables: Tables, place: int) -> Tensor:
    """bool [B, 1]: rows that have the edit in this place."""
    return tables["edits"][:, place, EDIT, None] != 0


def _add(x: Tensor, tables: Tables, place: int) -> Tensor:
    ids = tables["bias_ids"]
    old = x.gather(1, ids)
    new, bad = _changed(old, _runs(tables, place), cleaned(old) + tables["bias_values"])
    x.scatter_(1, ids, new)
    return bad


def _complete(x: Tensor, tables: Tables, place: int) -> Tensor:
    """The biases of the sequences that would be completed."""
    ids, due = past.completed(tables)
    touched = due & torch.isfinite(tables["phrase_bias"]) & _runs(tables, place)
    old = x.gather(1, ids)
    new, bad = _changed(old, touched, cleaned(old) + tables["phrase_bias"])
    _put(x, ids, touched, new)
    return bad


def _prolong(x: Tensor, tables: Tables, place: int) -> Tensor:
    """DRY's penalties; of a token that comes several times the largest, which leaves the least logit."""
    allowed, window = (tables["edits"][:, place, which, None].to(torch.int64) for which in (FIRST, SECOND))
    ids, ends, penalty = past.prolonging(tables, allowed, window)
    touched = ends & _runs(tables, place)
    old = x.gather(1, ids)
    new, bad = _changed(old, touched, cleaned(old) - penalty)
    # What is touched at all is cleaned, so that none of the new values lies above it.
    _put(x, ids, touched, cleaned(old))
    x.scatter_reduce_(1, ids, new.masked_fill(~touched, torch.inf), "amin")
    return bad


def _penalise(x: Tensor, tables: Tables, stages: Sequence[tuple[int, int]]) -> Tensor:
    ids = tables["count_ids"]
    v = x.gather(1, ids)
    bad = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    for place, op in stages:
        scope = tables["edits"][:, place, SCOPE, None]
        n = tables["in_prompt"] * (scope != 1) + tables["in_output"] * (scope != 2)
        first, second = _operand(tables, place, FIRST), _operand(tables, place, SECOND)
        if op == AVERAGED:
            first = past.averaged(tables, first, tables["edits"][:, place, SECOND, None])
        new = _penalised(op, cleaned(v), n, first, second)
        v, spoiled = _changed(v, _runs(tables, place) & (n > 0), new)
        bad = bad | spoiled
    x.scatter_(1, ids, v)
    return bad


def _penalised(op: int, v: Tensor, n: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Logits [B, n] after a penalty whose operands are `first` and `second` [B, 1]; every product rounded once."""
    if op == _REPETITION:
        return (v * torch.where(keys(v) > 0, second, first)).clamp(max=FLT_MAX)
    if op in (_FREQUENCY, AVERAGED):
        return v - (first * n.to(torch.float32)).clamp(max=FLT_MAX)
    assert op == _PRESENCE
    return v - first


def _scale(x: Tensor, tables: Tables, place: int) -> tuple[Tensor, Tensor]:
    new = (cleaned(x) * _operand(tables, place, FIRST)).clamp(max=FLT_MAX)
    return _changed(x, _runs(tables, place), new)


def _smooth(x: Tensor, tables: Tables, place: int) -> tuple[Tensor, Tensor]:
    new = rule.smoothed(x, _operand(tables, place, FIRST), _operand(tables, place, SECOND))
    return _changed(x, _runs(tables, place), new)
