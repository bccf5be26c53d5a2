"""What is known of a row that is drawn as a set: `WORDS` numbers, int64, in global memory.

What one reading of the tokens finds is written here between two barriers, and loops go on by it. Registers are left to
the tokens: what lives across a call would take some from all that is called.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORDS = 936
WORDS_OF_ROW = tl.constexpr(WORDS)
FEW = 128
"""Ids that a row has room for beside its list: the first tokens, of which some rules look at 100."""
ALL = tl.constexpr((1 << 31) - 1)
"""A level or an exponent that no token passes."""
NEVER = tl.constexpr(1 << 62)
"""A weight or a goal that nothing reaches; as a goal, the last token that weighs enough is looked for."""
_SAVED = tl.constexpr(32)

# --- the set, and what its tokens weigh: `save` copies these, and `reports.told` tells them ---------------------------

NUMBER = tl.constexpr(0)  # tokens of the set, -1 while they are not counted
IS_LISTED = tl.constexpr(1)  # whether their ids are listed, ascending; 2 where they are marked by bits (`buckets`)
TOP_KEY = tl.constexpr(2)  # the largest key
LOW_KEY = tl.constexpr(3)  # the least key, or one below it
BASIS = tl.constexpr(4)  # the key that weights count from
CONSTANT = tl.constexpr(5)  # c of the temperature, float32 bits
SCALE = tl.constexpr(6)  # 1 / T, float32 bits
TRIMMED = tl.constexpr(7)  # the token whose weight was cut, -1 for none
LEFT = tl.constexpr(8)  # the weight that it has left
REMOVED = tl.constexpr(9)  # tokens at -inf that are in llama.cpp's list
BASE = tl.constexpr(10)  # the mass of the set that the temperature saw
IS_ONE = tl.constexpr(11)  # whether the draw is greedy
TARGET = tl.constexpr(12)  # adaptive-p's target in units of 2^-32, -1 for none
WHOLE = tl.constexpr(13)  # the mass of the set before adaptive-p
NEAREST = tl.constexpr(14)  # the least exponent under adaptive-p
JOINT = tl.constexpr(15)  # whether a top-p judges the set that the temperature saw
IS_STALE = tl.constexpr(16)  # whether that set is still to be weighed
SUMS_AT = tl.constexpr(17)  # five sums over the set, as `thresholds.judged` takes them: its number, its mass, ...
LARGEST = tl.constexpr(22)  # the largest weight
UNCUT = tl.constexpr(23)  # the mass without what was cut of a weight
LAST_KEY = tl.constexpr(25)  # what is not listed ends with this token in the order of rank ...
LAST_ID = tl.constexpr(26)
FIRST_KEY = tl.constexpr(27)  # ... and begins with this one
FIRST_ID = tl.constexpr(28)
WITHOUT = tl.constexpr(32)
"""Where all of these stand of the row without XTC; at `BEFORE_XTC` those of the set that XTC is given."""

# --- what a step keeps: by what `keep` lists tokens, and what became of it --------------------------------------------

LEAST = tl.constexpr(64)  # a token stays that weighs at least so much, ...
LIMIT = tl.constexpr(65)  # ... or whose measure is at most this, ...
LEVEL = tl.constexpr(66)  # ... or at most this where it stands at the cut or before; of a search, -1 by rank alone
CUT_KEY = tl.constexpr(67)  # the cut in the order of rank
CUT_ID = tl.constexpr(68)
MEAN = tl.constexpr(69)  # the exponent that levels are measured from
IS_SIGMA = tl.constexpr(70)  # whether the measure is the distance of top-n-sigma
IS_REMOVED = tl.constexpr(71)  # whether tokens go that have the weight and stand before the cut (XTC)
CUT_TOKEN = tl.constexpr(79)  # the token whose weight the step cuts, -1 for none
CUT_LEFT = tl.constexpr(80)  # what it leaves of that
KEPT = tl.constexpr(81)  # tokens that stay, -1 while they are not counted
KEPT_TOP = tl.constexpr(82)  # their largest key
KEPT_LOW = tl.constexpr(83)  # their least key, or one below it
KEPT_MASS = tl.constexpr(96)  # their mass
KEPT_WEIGHTY = tl.constexpr(97)  # how many have a weight
ARE_KEPT = tl.constexpr(101)  # 0 where they are listed, 1 where all stay, `ranges.AS_RANGE` where a range does
IS_FRESH = tl.constexpr(95)  # whether `KEPT_MASS` and the masses of segments are those of the set
SPARES = tl.constexpr(89)  # whether XTC spares tokens

# --- what a search looks for ------------------------------------------------------------------------------------------

GOAL = tl.constexpr(72)  # the mass or the number that the first tokens must reach
IS_WEIGHED = tl.constexpr(73)  # whether that is a mass
IS_LEVELED = tl.constexpr(74)  # whether tokens are in the order of levels before that of rank
STAGES = tl.constexpr(75)  # stages of the search: 1 by level, 2 by key, 3 by id
LEAST_WEIGHT = tl.constexpr(76)  # what tokens weigh at least of which the last one is looked for
REACHING = tl.constexpr(77)  # how many these are
FLOOR = tl.constexpr(78)  # tokens that the step leaves at least
IS_PREFIX = tl.constexpr(90)  # whether just those before the cut stay; 2 once these are all listed
LOOKED = tl.constexpr(91)  # tokens that the next stage looks at
UNLISTED = tl.constexpr(102)  # what those before the places reach, which are not in the list

# --- the draw ---------------------------------------------------------------------------------------------------------

TOTAL = tl.constexpr(84)  # the mass of what is drawn from
TOTAL_WITHOUT = tl.constexpr(85)  # that of the row without XTC
SUPPORT = tl.constexpr(86)  # tokens that can be drawn
SHARE = tl.constexpr(87)  # how often XTC is on, in units of 2^-32, -1 without one
TOKEN = tl.constexpr(88)
LOGIT = tl.constexpr(311)  # the token's, float32 bits
SEGMENTED = tl.constexpr(98)  # segments that have a mass
SEGMENTS = tl.constexpr(64)
"""Parts of what is drawn from, at most."""
MASSES = tl.constexpr(128)  # the mass before each segment
PLACES = tl.constexpr(192)  # where each begins in the list, or in the row
BEFORE_XTC = tl.constexpr(256)

# --- the row before its first step, and its XTC -----------------------------------------------------------------------

ALL_TOP = tl.constexpr(92)  # the largest key of the row
ALL_LOW = tl.constexpr(93)  # its least key above -inf
ALL_NUMBER = tl.constexpr(94)  # its tokens, -1 while they are not counted
RESUMED = tl.constexpr(99)  # the step at which the second turn begins, -1 for the first one
IS_SAME = tl.constexpr(100)  # whether XTC removes nothing
CUTS_AFTER = tl.constexpr(103)  # steps behind the XTC that may remove tokens, -1 where another XTC is among them
STAYS_WHOLE = tl.constexpr(313)  # whether some step needs a list: 1 of sets of few tokens, 2 of any (`general`)
IS_SMOOTHED = tl.constexpr(314)  # whether its logits were changed after they were measured

# --- loops that call functions of their own ---------------------------------------------------------------------------

TURN = tl.constexpr(288)  # 0 without XTC, 1 with it
TURNS = tl.constexpr(289)
STEP = tl.constexpr(290)
OP = tl.constexpr(291)  # what the step is
READS = tl.constexpr(292)  # what has to be read for it (`reads`)
CUT_TURN = tl.constexpr(293)  # a step cuts twice where the first cut says what the second keeps
CUT_TURNS = tl.constexpr(294)
INTO_AT = tl.constexpr(295)  # where `keep` lists tokens
WRITES = tl.constexpr(296)  # whether it does
STAGE = tl.constexpr(297)  # what a search orders tokens by (`places`)
SET_NUMBER = tl.constexpr(298)  # tokens of the set before the search
WAS_LISTED = tl.constexpr(299)  # whether they were listed
STAGE_GOAL = tl.constexpr(300)
EACH = tl.constexpr(301)  # what each token of the stage weighs
PLACE_LOW = tl.constexpr(302)  # the tokens up to this place do not reach the goal, ...
PLACE_END = tl.constexpr(303)  # ... and those up to this one do
BETWEEN = tl.constexpr(304)  # tokens between both
AHEAD = tl.constexpr(305)  # tokens up to the first of them
REACHED = tl.constexpr(306)  # what these reach
COUNTINGS = tl.constexpr(307)  # how often a search by mass still counts by parts
IS_TOLD = tl.constexpr(308)  # whether `REACHED` is exact, or nobody asks
ORDER_AT = tl.constexpr(309)  # where in the place of the list tail-free puts its order
FEW_AT = tl.constexpr(310)  # where the few ids lie

# --- the row's histogram, and tokens that are listed by it ------------------------------------------------------------

HAS_LANES = tl.constexpr(312)  # whether the row was counted
LANES_AT = tl.constexpr(320)  # of each lane its last key, times 2^32, and how many tokens it has
HAS_LISTED = tl.constexpr(832)  # whether a search listed some tokens of a set that is not listed; or `ONLY_TIED`
LISTED_NUMBER = tl.constexpr(833)  # how many
SET_MASS = tl.constexpr(834)  # the mass of that set
PLACED_MASS = tl.constexpr(835)  # that of its tokens up to `PLACE_END`
IS_SCANNED = tl.constexpr(836)  # whether that is before the search; 2 from the first token on; or `ONLY_TIED`
ARE_SUMMED = tl.constexpr(837)  # whether the sums of the set are known from that
IS_WEIGHED_OUT = tl.constexpr(838)  # whether what stays is
IS_PARTED = tl.constexpr(839)  # whether that has a hole
MASS_LEAST = tl.constexpr(840)  # the mass of the row lies between these numbers ...
MASS_MOST = tl.constexpr(841)
MASS_CONSTANT = tl.constexpr(842)  # ... under the temperature with this c, float32 bits
SCAN_LOW = tl.constexpr(843)  # between which places a top-p likely cuts
SCAN_END = tl.constexpr(844)
SURE_AT = tl.constexpr(845)  # what is known of the tokens that are sure to stay, seven numbers (`listing`)
TIED = tl.constexpr(852)  # tokens at the last place of the search
PARTS_AT = tl.constexpr(872)  # the masses of the listed tokens, by segments, or how many at the last place are before
ONLY_TIED = tl.constexpr(3)
"""What stands for tokens that are not listed, as all have one key: they are counted by segments."""

# --- tail-free: weights in order, which are dealt out to buckets ------------------------------------------------------

OF_CURVATURE = tl.constexpr(315)  # the share of the curvature that the step asks for, ...
OF_CURVATURE_SHIFT = tl.constexpr(316)  # ... divided by 2 to the power of that
SORTED = tl.constexpr(104)  # exponents that are in order
LAST = tl.constexpr(105)  # the weight of the last of them, -1 for none
NEXT_TO_LAST = tl.constexpr(106)  # that of the one before
CURVED = tl.constexpr(107)  # the curvature up to there
TILED = tl.constexpr(108)  # tiles that it is made of
SPREAD = tl.constexpr(109)  # by how many octaves more than one of these make a segment
WINDOW_LOW = tl.constexpr(110)  # the least exponent of what is dealt out
WINDOW_HIGH = tl.constexpr(111)  # the greatest
INSIDE = tl.constexpr(112)  # tokens that weigh something, -1 while they are not counted
LARGE_LOW = tl.constexpr(113)  # the least exponent of a bucket that has too many tokens
LARGE_HIGH = tl.constexpr(114)  # the greatest
LARGE = tl.constexpr(115)  # how many it has, 0 without one
DEALING = tl.constexpr(116)  # in which turn of dealing it is
FIRST = tl.constexpr(117)  # what is dealt out and not in order begins here ...
DEALT = tl.constexpr(118)  # ... and ends here
IS_FOUND = tl.constexpr(119)  # whether the cut is found
HEAD = tl.constexpr(120)  # buckets of the head (`heads`)
HEADED = tl.constexpr(121)  # its tokens
HEAD_LEAST = tl.constexpr(122)  # the weight of the last of them in order; no other token has it
CUT_WEIGHT = tl.constexpr(123)  # the weight down to which tokens stay
IS_TIED = tl.constexpr(124)  # whether the next one weighs the same
TOTAL_CURVED = tl.constexpr(125)  # all curvature
PASSED = tl.constexpr(126)  # what is reached of it where the share of the step is passed


@triton.jit
def word(state_ptr, at: tl.constexpr):
    """One number of a row, int64."""
    return tl.load(state_ptr + at)


@triton.jit
def bits_in(state_ptr, at: tl.constexpr):
    """A float32 of a row, from its bits."""
    return tl.load(state_ptr + at).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def put(state_ptr, at: tl.constexpr, value):
    """Changes one number of a row. A barrier stands before and behind all that are changed together."""
    tl.store(state_ptr + at, value.to(tl.int64))


@triton.jit(noinline=True)
def count_on(state_ptr, at: tl.constexpr):
    """Adds 1 to a number of a row by which a loop goes on."""
    number = word(state_ptr, at)
    tl.debug_barrier()
    put(state_ptr, at, number + 1)
    tl.debug_barrier()


@triton.jit
def save(state_ptr, from_at: tl.constexpr, to_at: tl.constexpr):
    """Copies the numbers of a row."""
    at = tl.arange(0, _SAVED)
    tl.debug_barrier()
    tl.store(state_ptr + to_at + at, tl.load(state_ptr + from_at + at))
    tl.debug_barrier()
