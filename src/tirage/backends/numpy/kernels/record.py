"""What a row records beside its token: the kept ids, their share of the mass, and the token's logprobs (S-R)."""

from __future__ import annotations

from tirage.backends.numpy.kernels.bits import UNIT_LOG, f32, i64, inline, ln_of, log2_fixed, logprob
from tirage.backends.numpy.kernels.kept_ids import write_ids, write_noted
from tirage.backends.numpy.kernels.program import branch_logprob, support_end
from tirage.backends.numpy.kernels.report import take_whole
from tirage.backends.numpy.kernels.state import UNIT
from tirage.sampling_metadata import View

_RAW, _PROCESSED = int(View.RAW), int(View.PROCESSED)


@inline
def _list_kept(x, s, work, kept, support):
    """Write the `support` ids that have weight, ascending; `kept` has room for them. The window stays as it is."""
    low, low_id = support_end(s)
    if not s.compact:
        # A token without weight is noted, but not listed.
        if s.noted and s.members == support:
            write_noted(work.kept, support, kept)
        else:
            write_ids(x, work.block_max, low, low_id, s.high_key, s.high_id, kept)
        return
    if s.n == support:
        for i in range(s.n):
            kept[i] = work.ids[i]
        return
    held = i64(0)
    for i in range(s.n):
        if work.keys[i] >= low:
            kept[held] = work.ids[i]
            held += 1


@inline
def _kept_logmass(s):
    """ln of the share that the window holds of what the last temperature stage saw (S-R2)."""
    if s.greedy:
        return f32(0)
    return f32(ln_of(log2_fixed(s.total) - log2_fixed(s.seen)) + f32(0))


@inline
def _processed_logprob(x, s, work, token):
    """The token's logprob after edits and temperature, as in the processed view (S-L5)."""
    if s.greedy or not s.undivided:
        whole = work.states[2]
        take_whole(x, x, s, whole, work, False, _PROCESSED)
        return branch_logprob(whole, x[token], token)
    return logprob(x[token], s.m, s.inverse_t, ln_of(log2_fixed(s.seen) - UNIT_LOG))


@inline
def record(x, s, work, token, kept, at, room, support, numbers):
    """Where the next row's ids go; writes the `support` kept ids from `at` on, and two `numbers` [3].

    These are their mass and the processed logprob of the token. What lies between these ids and `room` is overwritten.
    """
    _list_kept(x, s, work, kept[at:room], support)
    numbers[0] = _kept_logmass(s)
    numbers[2] = _processed_logprob(x, s, work, token)
    return at + support


@inline
def record_raw(logits, x, s, work, copied, token, numbers):
    """Write the token's logprob under the model's own law, as in the raw view (S-L5), into `numbers` [3]."""
    numbers[1] = numbers[2]
    if copied or s.c != UNIT:
        whole = work.states[2]
        shown = take_whole(logits, x, s, whole, work, copied, _RAW)
        numbers[1] = branch_logprob(whole, shown[token], token)
