"""Hostile rows drawn by the Triton kernels under its interpreter are those of the plain path; mistakes there are seen.

The interpreter runs all programs of a launch at once here (`recorded_triton.py`); `test_torch_conformance.py` runs some
rows with one program after the other.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from platforms import needs_newest_triton, needs_triton

PROCESS = Path(__file__).parent / "triton_process.py"
pytestmark = [needs_triton, needs_newest_triton]

ROWS, JOBS = 1000, 16
"""Rows of a job, each with an order of filters of its own, and jobs of a process."""
PRESET_JOBS = 25
"""One job for each preset."""
SMALL_JOBS = (10, 31, 33, 40, 42, 60, 77, 85, 49, 100, 26, 66, 17, 32, 2000, 3000, 4002, 4013, 5000, 5001)
"""Jobs with each filter in some place, most of them with blocks of 4 and tiles of 8 tokens.

32 has a min-p below a top-k that parted ties, 17 is greedy, 66 has a top-p that keeps all ties and a least number of
tokens, 2000 an epsilon behind a top-k that parts the ties which most tokens are, 3000 a top-p whose row's mass is in
doubt, 4002 an eta and 4013 a top-n-sigma, run twice, whose thresholds stand at a token, 5000 and
5001 a min-p and a top-n-sigma far below the top-p behind them."""
FEW_JOBS = (*SMALL_JOBS[:14:2], 66, 2000, 3000, 4002, 4013, 5000, 5001)
AVERAGED_JOBS = (13, 15, 17, 20, 22, 36)
"""Jobs with an eta, p-less and top-n-sigma each, of more tokens than there are lanes for."""
FURTHER_JOBS = (1000, 1003, 1007, 1010, 1011, 1015, 1021, 1032, 6000, 6001, 6504, 7010, 7015, 7020, 8013, 8014)
"""Jobs with a dynamic temperature, alone, before and behind other filters, or with an XTC; 6000 and 6001 have a
top-k and a min-p that remove few tokens, or none, before such a temperature, 6504 a min-p behind it that removes none
at T = 1, those from 7000 on an XTC before a temperature, and those from 8000 on one that spares tokens."""
TOO_EARLY = ("end = tl.maximum(begin, from_lane), tl.minimum(end, to_lane)", "end = begin, begin")
TOO_LATE = (
    "begin, end = tl.maximum(begin, from_lane), tl.minimum(end, to_lane)",
    "begin = tl.minimum(tl.maximum(begin, to_lane), tl.minimum(end, NOT_COUNTED))",
)
"""A piece of the kernels, and one that takes top-p for likely to end at the earliest, or at the latest."""

MISTAKES = {
    "the draw takes the token before": ("+ before <= r", "+ before < r"),
    "a joint top-p takes its share of what is left": ("tl.where(tl.load(step_ptr + 4) > 0, base, total)", "total"),
    "tokens of the second block are listed as those of the first": (
        "tl.cumsum(one, 0) - one, ids, mask=is_open)",
        "tl.cumsum(one, 0) - one, ids % BLOCK, mask=is_open)",
    ),
    "the histogram forgets what a bin leaves open": (
        "end = tl.where(certain, first_lane(least",
        "end = tl.where(certain, first_lane(most",
    ),
    "a bin ends before its last key": (
        "(lane_of(value_of(middle), knots) <= lanes)",
        "(lane_of(value_of(middle), knots) < lanes)",
    ),
    "masses from a sample are taken for exact": ("for side in (-1, 1)", "for side in (0, 0)"),
    "a cut that is in doubt is kept": ("rest <= (needed - 1) * each", "rest < 0"),
    "blocks that are not read weigh nothing": ("        if read == 0:\n", "        if read < 0:\n"),
    "the greatest open key is forgotten": ("lowest, top = least, greatest + 1", "lowest, top = least, greatest"),
    "a range of one key counts its ties twice": (
        "tl.where(is_one, number, -1)",
        "tl.where(is_one, 2 * number, -1)",
    ),
    "top-p's target is rounded down": ("tl.where(part, floor + 1, floor)", "floor"),
    "min-p forgets which ties an earlier cut dropped": ("tl.where(key > cut_key, NO_ID, cut_id)", "NO_ID"),
    "minus zero is below zero": ("tl.where(bits >= 0, bits, -(bits", "tl.where(bits >= 0, bits, -1 - (bits"),
    "a coefficient of the weights is a little off": (
        "_B3 + tl.minimum(r * f, LARGEST)",
        "_B3 + tl.minimum(r * f, LARGEST) * 1.0001",
    ),
    "step and sample change places": ("(seed, step.to(tl.uint32), sample", "(seed, sample.to(tl.uint32), sample"),
    "a search misses the logits at its bounds": ("tl.where(key >= floor, each, 0)", "tl.where(key > floor, each, 0)"),
    "a search of a short list misses the logits at its bounds": (
        "tl.where(key >= least, each, 0)",
        "tl.where(key > least, each, 0)",
    ),
    "a part of a list counts without what stands above it": ("        goal -= more\n", ""),
    "tokens whose place another takes are lost": (
        "lanes, others, mask=lanes < moved)\n            tl.debug_barrier()",
        "lanes, others, mask=lanes < 0)\n            tl.debug_barrier()",
    ),
    "a search for a tie misses the ids at its bounds": ("(ids <= low + j * step)", "(ids < low + j * step)"),
    "eta forgets its distance from the mean": ("limit = found + tl.load(step_ptr + 3)", "limit = found"),
    "top-a squares half of the largest weight": ("(80 - tl.minimum(b, 72))", "(78 - tl.minimum(b, 72))"),
    "p-less has one threshold": ("if a > 0:\n            high", "if a < 0:\n            high"),
    "top-n-sigma halves the widest distances": ("tl.maximum(widest - exponent, 0)", "tl.maximum(widest - exponent, 1)"),
    "blocks sum only their mass": (
        "for j in range(number_of_sums(op)):\n        each",
        "for j in range(2):\n        each",
    ),
    "a cut set has the sums of the row": ("+ SUMMED)) & (cut_key == NEG_INF)", "+ SUMMED)) & (cut_key <= high)"),
    "what lies between two open ranges weighs nothing": (
        "total = tl.load(sums_ptr + tl.where(c ==",
        "total = 0 * tl.load(sums_ptr + tl.where(c ==",
    ),
    "all of the lower range is in the set": (
        "tl.where(key >= cut_key, weight_of(exponent_of(value_of",
        "tl.where(key > NEG_INF, weight_of(exponent_of(value_of",
    ),
    "a step that removes a few tokens is none": (
        "> tl.load(row_ptr + LOW), tl.max",
        "> tl.load(row_ptr + LOW) + (1 << 22), tl.max",
    ),
    "a step that is none is run": (
        "((tl.load(row_ptr + IDLE) >> s) & 1) != 0",
        "((tl.load(row_ptr + IDLE) >> s) & 1) > 1",
    ),
    "a top-p is none where a threshold cuts in the same lane": ("return lane < begin", "return lane <= begin"),
    "a list is summed without its last part": (
        "takes many registers.\n        for part in range(0, TILE, PART):",
        "takes many registers.\n        for part in range(0, TILE - PART, PART):",
    ),
    "an uncertain mass is the least that it can be": ("tl.where(low_total == high_total, 1, 2)", "1"),
    "a part of the largest logit is too small": (
        "clamped(constant(step_ptr, 1) *",
        "clamped(0.9 * constant(step_ptr, 1) *",
    ),
    "min_keep leaves one token less": (
        "tl.load(step_ptr + 1), least_number(op, step_ptr))",
        "tl.load(step_ptr + 1), least_number(op, step_ptr) - 1)",
    ),
    "min_keep counts ties once": ("tl.where(op == _TOP_K, tl.load(step_ptr + 2), 0)", "tl.load(step_ptr + 2)"),
    "all ties stay where a top-p needs none of them": ("(all_ties > 0) & (needed > 0)", "all_ties > 0"),
    "greedy takes the last block": ("tl.min(tl.where(maxima == high, at, NO_ID), 0)", "blocks - 1"),
}
"""A piece of the kernels, and a wrong one in its place."""

TAKEN = {
    "a deviation has no doubt": ("root - width - 8, 0), root + width + 8)", "root, 0), root)"),
    "all tokens of a lane weigh the same": (
        "(distance >= 0) == (side == 0), light, heavy)",
        "distance >= 0, heavy, heavy)",
    ),
    "the average weight is taken for that of the others": (
        "mean += (mean - mass) / others",
        "mean += 0.0 * (mean - mass)",
    ),
}
"""The same of bounds of averages."""

FURTHER_MISTAKES = {
    "the exponent of a dynamic temperature is doubled": ("(octaves * e)", "(octaves * e * 2)"),
    "weights behind a temperature that is not known yet are": ("mask=idle >= 0)", "mask=idle == idle)"),
    "tokens at -inf are in no list": ("tl.minimum(tl.load(meta_ptr + LISTED), size)", "tl.full((), 0, tl.int64)"),
    "a dynamic temperature leaves its set closed": ("(is_dynamic(op) & is_listed)", "(is_dynamic(op) & (op < 0))"),
    "a dynamic temperature is forgotten in the end": ("scale = scaled(step_ptr, 2, factor)", "scale = before"),
    "a dynamic temperature forgets thresholds before it": (
        "tl.where(key_of(x) >= least_entering(meta_ptr, op, m, c, high, steps), x,",
        "tl.where(key_of(x) > NEG_INF, x,",
    ),
    "a listed set that nothing cut is the row": (
        "& (cut_key == NEG_INF) & (tl.load(row_ptr + FACTOR) == 0)",
        "& (cut_key == NEG_INF) & (n < 0)",
    ),
    "XTC removes the last token too": ("(ids < head_id)", "(ids <= head_id)"),
    "XTC keeps all ties": ("tl.where(op == _TIES_KEPT, 0, last_id)", "last_id * 0"),
    "the coin of XTC is the uniform of the draw": ("SAMPLE), _XTC_DOMAIN", "SAMPLE), 0"),
    "the law of XTC has one set": ("lp = mixed_logprob(w, total, w_on,", "lp = mixed_logprob(w, total, w,"),
    "no threshold of XTC is strict": ("more | (tl.load(step_ptr + 4) > 0) |", "more |"),
    "what XTC always removes is counted": ("tl.where(is_always, gone, 0)", "tl.where(share < 0, gone, 0)"),
    "XTC leaves closed what it may remove": ("NOT_COUNTED)) < 2, LANES, 0)", "NOT_COUNTED)) < 9, LANES, 0)"),
    "XTC judges by the temperature behind it": (
        "row_ptr, total, lowest, cut_key, cut_id, m, c, size,\n                blocks",
        "row_ptr, total, lowest, cut_key, cut_id, m, constant(row_ptr, LAST), size,\n                blocks",
    ),
    "what XTC leaves counts from what it removes": ("tl.minimum(high, head))", "high)"),
    "what XTC leaves is drawn as it weighed before": (
        'each, from_m = others, value_of(tl.load(row_ptr + LEFT_HIGH, cache_modifier=".cg"))',
        "each, from_m = others, m",
    ),
    "a row without what XTC removes is read to its last part": (
        "range(0, size, TILE):\n            # Each",
        "range(0, size - TILE, TILE):\n            # Each",
    ),
    "a listed set without what XTC removes weighs one token less": (
        "tl.where(is_in(key, ids, cut_key, cut_id), weight_left",
        "tl.where(is_in(key, ids, cut_key, cut_id - 1), weight_left",
    ),
    "tokens that weigh something only without the head are not counted": ("support + number)", "support)"),
    "what XTC spares weighs nothing": (
        "head_id), w, 0)\n                tl",
        "head_id), 0 * w, 0)\n                tl",
    ),
    "what XTC spares is not drawn": ("(is_spared(ids, gone, row_ptr, spared_ptr, spares) == 0)", "(ids >= 0)"),
    "the law of XTC removes what it spares": (
        "spared = is_spared(token, token >= 0, row_ptr, spared_ptr, spares)",
        "spared = 0 * token",
    ),
    "weights count from the largest logit that XTC does not spare": (
        "most = tl.maximum(most, tl.max(key, 0))",
        "most = tl.maximum(most, tl.min(key, 0))",
    ),
    "what XTC spares is counted twice": ("return others, support + number", "return others, support + 2 * number"),
}
"""The same of what jobs of `FURTHER_JOBS` have."""
FIRST_JOBS = (8500, 8501, 8505, 8508)
"""Jobs with a top-h: alone, and among other filters."""
FIRST_MISTAKES = {
    "top-h keeps the token that passes its share": (
        "(lanes < number) & ((passes == 0) | (rank == 1))",
        "(lanes < number) & ((passes == 0) | (rank <= 2))",
    ),
    "the entropy of a token's prefix is without its own": ("(other_id <= ids)", "(other_id < ids)"),
    "the mass of the first tokens is that of one": ("tl.maximum(mass, 1)", "tl.maximum(mass >> 60, 1 << 40)"),
    "of ties top-h keeps one more": ("tl.maximum((most * share) >> 32, 1)", "((most * share) >> 32) + 1"),
    "top-h looks at fewer tokens": ("tl.maximum((most * share) >> 32, 1), _FIRST)",
                                    "tl.maximum((most * share) >> 32, 1), _FIRST - 5)"),
    "the list keeps its length without what is not in the set": ("return number, last_key,", "return n, last_key,"),
}  # fmt: skip
"""Mistakes that jobs of `FIRST_JOBS` see."""
WITHIN_JOBS = (9804, 9800, 9802, 9807, 9811)
"""Jobs with a top-k or a top-h behind cuts that keep all it looks at: a joint top-p, an XTC and others follow."""
WITHIN_MISTAKES = {
    "cuts are left out whose mass a joint top-p goes by": (
        "needs = needs | ((at > s) & is_top_p(op) & (tl.load(step_ptr + 4) > 0))",
        "needs = needs | ((at > s) & is_top_p(op) & (tl.load(step_ptr + 4) > 1))",
    ),
    "cuts within the first tokens are left out": ("(end < first) & (first < LANES)", "(first < LANES)"),
}
"""Mistakes that jobs of `WITHIN_JOBS` see."""
LEVEL_JOBS = (10000, 10002, 10003, 10006, 10033, 4000, 4001, 5001)
"""Rows with a typical that is the only cut, with both kinds of ties, and one that stands behind a top-k; and rows with
another cut behind a threshold by their sums."""
LEVEL_MISTAKES = {
    "the head of a typical stays": (
        "is_in(key, ids, cut_key, cut_id) & (key <= head)",
        "is_in(key, ids, cut_key, cut_id)",
    ),
    "what a typical by rank removes above the mean stays": ("(key > end) & (is_in", "(key < end) & (is_in"),
    "a row is summed again where it is split again": ("is_behind = added == TO_BE_SUMMED,", "is_behind = added != 0,"),
    "what a part of the levels adds up to counts without those before it": (
        "            above = tl.sum(tl.where(at == passed, sums, 0), 0)\n",
        "",
    ),
    "a row is split again that is split": ("(tl.load(row_ptr + ADDED) != IS_SPLIT)", "True"),
    "exact sums are of half the mass": (
        'widest_of(tl.load(row_ptr + LOW), m), tl.load(sums_ptr + 1, cache_modifier=".cg")',
        'widest_of(tl.load(row_ptr + LOW), m), tl.load(sums_ptr + 1, cache_modifier=".cg") >> 1',
    ),
}
"""Mistakes that jobs of `LEVEL_JOBS` see."""
NOT_LIKELY = ("holds = (lane >= begin) & (lane <= tl.load(row_ptr + HOLE_ID))", "holds = lane >= -1")
"""A threshold of top-n-sigma is where the histogram said that it likely is, whatever the exact sums say."""
LATER = (
    "        tl.store(row_ptr + HOLE_KEY, begin)\n",
    "        begin = tl.minimum(end + 3, NOT_COUNTED)\n        end = begin\n"
    "        tl.store(row_ptr + HOLE_KEY, begin)\n",
)
UNGUARDED = ('    needs = needs | (tl.load(row_ptr + HOLE_KEY, cache_modifier=".cg") >= 0)\n', "")
"""It is said to be likely later than it is; and filters before a top-k within what that leaves are not run then."""
BEHIND_JOBS = (1, 3, 12, 13, 20)
"""Rows with an eta or a p-less behind cuts that leave many tokens (`behind_rows.py`)."""
BEHIND_MISTAKES = {
    "of the tokens where a set ends none is in its sums": (
        "        sums += tl.load(sums_ptr + at, mask=at < ADDENDS",
        "        sums += 0 * tl.load(sums_ptr + at, mask=at < ADDENDS",
    ),
    "a set has the sums of what lies above its threshold's range": (
        "tl.where(lower < lower_top, lower_top, top)) | is_added",
        "top) | is_added",
    ),
    "cuts are run again that a threshold by sums takes the place of": (
        "tl.where(is_idle, kept | (one << at), (one << at) - 1))",
        "tl.where(is_idle, kept | (one << at), kept))",
    ),
    "filters behind a threshold that was put off are forgotten": (
        "(is_split & (filters_behind(at, meta_ptr, steps) == 0)).to(tl.int32)",
        "is_split.to(tl.int32)",
    ),
}
"""Mistakes that jobs of `BEHIND_JOBS` see."""
SET_JOBS = (
    *(19, 2, 3, 6, 10, 11, 22, 28, 36, 39, 43, 49, 51, 54, 113),
    *(6010, 6011, 6024, 6025, 8003, 8578, 9004, 9008, 9009, 9500, 9501, 9900, 9901),
    *(9950, 9955),
)
"""Rows that are drawn as sets: of each operation that no other rows have. Those from 6010 on begin with a typical, 8003
has no edits but smoothings, 8578 a Mirostat 1 that keeps more than 100 tokens, those from 9000 on have a tail-free
step, of 9500 often one that the first tokens of a row tell where it cuts, in those from 9900 on most tokens tie, and
those from 9950 on have an adaptive-p with its target at a token's share, behind a smoothing and a top-p."""
SET_MISTAKES = {
    "what a range ends with is not in it": (
        "return is_in(key, ids, last, last_id) &", "return is_in(key, ids, last, last_id - 1) &",
    ),
    "listed tokens that stay are in no segment": ("masses + tl.cumsum(parts, 0) - parts)", "masses + 0 * parts)"),
    "a hole of a typical is filled": ("put(state_ptr, IS_PARTED, number)", "put(state_ptr, IS_PARTED, number * 0)"),
    "tail-free takes its share of what weighs something": (
        "limit = share_of(state_ptr, total)", "limit = share_of(state_ptr, word(state_ptr, CURVED))",
    ),
    "tail-free ends where the share is reached": ("(after > limit)", "(after >= limit)"),
    "what stands behind the head bends nothing": ("total + rest))", "total))"),
    "the head holds the cut wherever it is": (
        "word(state_ptr, CUT_WEIGHT) > word(state_ptr, HEAD_LEAST)", "word(state_ptr, CUT_WEIGHT) >= 0",
    ),
    "the last key of the head goes": ("(key_of(x) >= word(", "(key_of(x) > word("),
    "buckets behind the head are taken for dealt out": ("mask=at < until, other", "mask=at < TILE, other"),
    "what is in order is put in order again": ("tl.where(fits & (ends > first), ends", "tl.where(fits, ends"),
    "the last of those that weigh the same stays": ("(found & NO_ID) - 1)", "found & NO_ID)"),
    "a tile forgets what is before it": ("tl.where(lanes > 0, last, next_to_last))", "one)"),
    "no weight stands twice": ("tl.cumsum(is_copy, 0) <= 2", "tl.cumsum(is_copy, 0) <= 1"),
    "what is dealt out anew begins behind its first": (
        "put(state_ptr, LARGE_LOW, first)", "put(state_ptr, LARGE_LOW, first + 1)",
    ),
    "top-h counts the mass as one token's": ("tl.maximum(tl.sum(w, 0), 1)", "tl.maximum(tl.max(w, 0), 1)"),
    "tokens nearer than the listed ones weigh nothing": ("before + word(state_ptr, UNLISTED), ", "before, "),
    "levels end where they do at the earliest": ("sure >= goal, far, end)", "most >= goal, far, end)"),
    "ties are counted to one less": ("(goal + each - 1) // each", "tl.maximum(goal // each, 1)"),
    "typical judges by less than the mean": ("mean = mean_of(state_ptr + SUMS_AT)", "mean = mean + 1000"),
    "all ties of the last level stay by rank": ("stages == 1, level, level - 1)", "stages >= 1, level, level)"),
    "Mirostat 1 begins at the second token": ("tl.maximum(tl.abs(slope - _OCTAVE), 1)", "tl.maximum(slope, 1)"),
    "Mirostat 2 lets nothing through": ("- mu\n", "+ mu\n"),
    "XTC takes the last of the top along": ("== 2, -1, last_id - 1)", "== 2, -1, last_id)"),
    "what both laws of XTC hold counts twice": ("((w > 0) & (marked == 0))", "(w > 0)"),
    "XTC removes what it spares": ("& before & (spared == 0)) == 0", "& before) == 0"),
    "what XTC spares is taken for drawn without it": (
        "return list_ptr + size + ((size + 31) >> 5)", "return list_ptr + size",
    ),
    "marks of neighbours are those of one of them": ("words = tl.sum(tl.reshape(", "words = tl.max(tl.reshape("),
    "marks of a list stand in its order": (
        "(marks_ptr + (ids >> 5), bits", "(marks_ptr + ((first + tl.arange(0, PART)) >> 5), bits",
    ),
    "what XTC is given is taken for kept where a step lists its own": (
        "if (cuts == 0) |", "if (cuts >= 0) |",
    ),
    "the draw begins at the first segment": ("at = tl.sum((masses <= r).to(tl.int32), 0) - 1", "at = number * 0"),
    "a step removes nothing if the largest weight stays": ("(weight_of(last) >= least)", "(weight_of(first) >= least)"),
    "the first token of a level is that of the set": (
        "(kind == BY_KEY) & (word(state_ptr, LEVEL) < 0)", "(kind == BY_KEY)",
    ),
    "a part that is one place takes others": ("tl.where(place == low + 1, 0, at)", "tl.where(place > low + 1, 0, at)"),
    "adaptive-p takes the largest weight for the mass": ("put(state_ptr, WHOLE, word(state_ptr, SUMS_AT + 1))",
                                                         "put(state_ptr, WHOLE, word(state_ptr, LARGEST))"),
    "logits before a smoothing tell what is nearest": (" | (word(state_ptr, IS_SMOOTHED) != 0)) == 0", ") == 0"),
    "blocks that are not read have no token near the target": (
        "tl.where(is_told & (highest > last), least, _NONE)", "_NONE",
    ),
    "the likeliest token is the nearest to any target": (
        "(share <= target * tl.full((), 2.0**-32, tl.float64))", "(share >= 0.0)",
    ),
    "Mirostat 1 goes on from the first tokens alone": (
        "put(state_ptr, IS_LISTED, was_listed)", "put(state_ptr, IS_LISTED, was_listed * 0 + 1)",
    ),
    "an id is looked for in the first segment alone": (
        "at = tl.sum((before < goal).to(tl.int64), 0) - 1", "at = goal * 0",
    ),
    "ties behind the cut are weighed": (
        "tl.minimum(tl.minimum(until, tied), stays)", "tl.minimum(until, tied)",
    ),
    "levels of the next lane are taken for those before it": (
        "(most_level > low), least_level, reached)", "(most_level > low), most_level + 1, reached)",
    ),
    "a least number is one more": ("goal = tl.where((floor < before) & (is_removed == 0), floor, 0)",
                                   "goal = tl.where((floor < before) & (is_removed == 0), floor + 1, 0)"),
    "a stage forgets what is before its place": (
        "STAGE_GOAL) - word(state_ptr, REACHED) *", "STAGE_GOAL) - 0 * word(state_ptr, REACHED) *",
    ),
    "steps before an XTC are taken again": (
        "(word(state_ptr, RESUMED) <= word(state_ptr, STEP))", "(word(state_ptr, STEP) >= 0)",
    ),
}  # fmt: skip
"""Mistakes that jobs of `SET_JOBS` see."""


def started(kind: str, jobs: Iterable[int], rows: int, given: Any = None) -> subprocess.CompletedProcess[str]:
    """`triton_process.py` after jobs of a kind, with so many rows each."""
    command = [sys.executable, str(PROCESS), kind, str(rows), *map(str, jobs)]
    return subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)


def run(kind: str, jobs: Iterable[int], rows: int, given: Any = None) -> list[dict[str, int]]:
    """What each job compared."""
    done = started(kind, jobs, rows, given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CASES = [
    *(("programs", FEW_JOBS, 60), ("bounds", (10, 33), 80)),
    *(("programs", FURTHER_JOBS, 60), ("bounds", FURTHER_JOBS[1:5], 60), ("sets", SET_JOBS, 40)),
    *(("programs", FIRST_JOBS, 60), ("bounds", FIRST_JOBS[:2], 60), ("programs", WITHIN_JOBS, 60)),
    ("programs", LEVEL_JOBS, 60),
    ("behind", BEHIND_JOBS, 60),
]
"""Kinds of jobs, and how many rows each has. Every run takes each other job: the others are exhaustive."""


@pytest.mark.parametrize(
    ("kind", "jobs", "rows"),
    [
        pytest.param(kind, jobs[half::2], rows, marks=pytest.mark.exhaustive if half else pytest.mark.slow)
        for half in range(2)
        for kind, jobs, rows in CASES
    ],
)
def test_hundreds_of_hostile_rows_in_triton_are_those_of_the_plain_path(
    kind: str, jobs: Sequence[int], rows: int
) -> None:
    """Most of the time goes into the ways through the kernels that a job finds, not into rows."""
    found = run(kind, jobs, rows)
    assert [job["differences"] for job in found] == [0] * len(jobs)
    assert sum(job["by kernels"] for job in found) == rows * len(jobs)


@pytest.mark.slow
def test_a_threshold_that_lets_all_tokens_pass_where_no_logit_is_above_the_least_float32_is_drawn() -> None:
    # That is row 727.
    [found] = run("bounds", (2,), 1000)
    assert (found["differences"], found["by kernels"]) == (0, 1000)


@pytest.mark.slow
def test_masses_from_a_sample_bound_those_of_exact_weights() -> None:
    """Rows of every shape, with temperatures from 2^-24 on."""
    for found in run("masses", range(0, 60, 3), 200):
        assert found["wrong"] == 0
        assert found["narrow"] >= found["rows"] // 4


@pytest.mark.slow
def test_averages_from_a_histogram_bound_those_of_exact_weights() -> None:
    """Of thresholds that stand at a token, in rows of every shape, some with a few logits far below the others."""
    for found in run("averages", AVERAGED_JOBS, 200, []):
        assert found["wrong"] == 0
        assert found["few"] >= found["rows"] // 2


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive if at else pytest.mark.slow) for at, name in enumerate(TAKEN)],
)
def test_averages_that_are_taken_for_exact_are_seen(name: str) -> None:
    assert sum(found["wrong"] for found in run("averages", AVERAGED_JOBS, 200, [TAKEN[name]])) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [0, 1000, 8500])
@pytest.mark.parametrize(("kind", "part"), [*(("programs", n) for n in range(8)), *(("bounds", n) for n in range(4))])
def test_hundreds_of_thousands_of_hostile_rows_in_triton_are_those_of_the_plain_path(
    kind: str, part: int, first: int
) -> None:
    """A third of them with a filter that only jobs from 1,000 on have, a third with a top-h."""
    jobs = run(kind, range(first + part * JOBS, first + (part + 1) * JOBS), ROWS)
    assert [job["differences"] for job in jobs] == [0] * JOBS
    assert sum(job["by kernels"] for job in jobs) == JOBS * ROWS


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_tens_of_thousands_of_rows_of_any_filters_are_those_of_the_plain_path(part: int) -> None:
    jobs = run("sets", range(part * JOBS, (part + 1) * JOBS), ROWS)
    assert [job["differences"] for job in jobs] == [0] * JOBS
    assert sum(job["by kernels"] for job in jobs) == JOBS * ROWS


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(3))
def test_every_parameter_of_every_preset_draws_the_same_with_triton(part: int) -> None:
    jobs = run("presets", range(part * PRESET_JOBS, (part + 1) * PRESET_JOBS), 12)
    assert [job["differences"] for job in jobs] == [0] * PRESET_JOBS
    assert sum(job["by kernels"] for job in jobs) > 2000


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        pytest.param(name, jobs, marks=pytest.mark.exhaustive if at else pytest.mark.slow)
        for mistakes, jobs in (
            (MISTAKES, SMALL_JOBS),
            (FURTHER_MISTAKES, FURTHER_JOBS),
            (FIRST_MISTAKES, FIRST_JOBS),
            (WITHIN_MISTAKES, WITHIN_JOBS),
            (LEVEL_MISTAKES, LEVEL_JOBS),
        )
        for at, name in enumerate(mistakes)
    ],
)
def test_a_mistake_in_the_kernels_is_seen(name: str, jobs: Sequence[int]) -> None:
    mistakes = MISTAKES | FURTHER_MISTAKES | FIRST_MISTAKES | WITHIN_MISTAKES | LEVEL_MISTAKES
    done = started("mistake", jobs, 60, given=mistakes[name])
    # A wrong token may lie beyond the logits, and the interpreter reads any address.
    if done.returncode != -signal.SIGSEGV:
        assert done.returncode == 0, done.stderr
        assert sum(job["differences"] for job in json.loads(done.stdout)) > 0


@pytest.mark.slow
def test_a_threshold_that_is_not_where_it_was_likely_is_looked_for_again() -> None:
    done = started("mistake", (4001,), 120, given=NOT_LIKELY)
    if done.returncode != -signal.SIGSEGV:
        assert done.returncode == 0, done.stderr
        assert sum(job["differences"] for job in json.loads(done.stdout)) > 0


@pytest.mark.slow
def test_a_top_k_takes_the_place_of_no_threshold_that_is_only_likely() -> None:
    assert [job["differences"] for job in run("behind", (1000, 1001), 60, [LATER])] == [0, 0]
    assert sum(job["differences"] for job in run("behind", (1000, 1001), 60, [LATER, UNGUARDED])) > 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.exhaustive if at else pytest.mark.slow)
        for at, each in enumerate(BEHIND_MISTAKES)
    ],
)
def test_a_mistake_in_thresholds_of_large_sets_is_seen(name: str) -> None:
    done = started("behind", BEHIND_JOBS, 60, given=[BEHIND_MISTAKES[name]])
    if done.returncode != -signal.SIGSEGV:
        assert done.returncode == 0, done.stderr
        assert sum(job["differences"] for job in json.loads(done.stdout)) > 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.exhaustive if at else pytest.mark.slow)
        for at, each in enumerate(SET_MISTAKES)
    ],
)
def test_a_mistake_in_rows_that_are_drawn_as_sets_is_seen(name: str) -> None:
    done = started("set mistake", SET_JOBS, 40, given=SET_MISTAKES[name])
    if done.returncode != -signal.SIGSEGV:
        assert done.returncode == 0, done.stderr
        assert sum(job["differences"] for job in json.loads(done.stdout)) > 0


@pytest.mark.slow
def test_where_a_top_p_does_not_end_where_it_was_likely_all_tokens_are_listed() -> None:
    """Without the mass of the row the histogram tells where a cut likely is, in the kernels a little around it."""
    below, above = ("if (reached < target) |", "if (reached < 0) |"), ("((above >= target) &", "((above < 0) &")
    right = ([], [TOO_EARLY], [TOO_LATE])
    for pieces, is_seen in (*((each, False) for each in right), ([TOO_EARLY, below], True), ([TOO_LATE, above], True)):
        done = started("likely", range(3), 100, given=pieces)
        assert done.returncode == 0, done.stderr
        assert (sum(job["differences"] for job in json.loads(done.stdout)) > 0) == is_seen
