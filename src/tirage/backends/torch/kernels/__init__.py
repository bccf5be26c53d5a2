"""Triton kernels that draw rows of logits on CUDA, and report what they drew.

Each file of this folder holds one launch; the folders hold what several of them call:

    measure, edit    the first pass over the logits: ends, mass and histogram of each row; `edit` changes logits, too
    bound            runs a row's filters on its histogram, and leaves an open range of keys that holds every cut
    split_first      a pass more over rows of which sums are needed first, which are bounded again by these
    split            lists the tokens of the open range, and weighs what lies above it
    resolve          runs the filters on that list, exactly, and draws
    general          in the place of `resolve`: runs and draws rows whose sets are not prefixes, or which are smoothed
    append           moves a row on by its token
    views            logprobs, ranks and top lists
    shards           the same for logits in shards: what is measured of one, and what is left by XTC

    layout           where the numbers that launches pass on stand
    exact/           rules on integers, each from SPEC.md
    histogram/       what a histogram tells of a row
    open_range/      steps on the tokens of the open range
    sets/            steps on any set of tokens
    reports/         what was drawn from

The filters `plan.CUTS` keep a prefix of (key descending, id ascending), so a set is one pair (cut_key, cut_id): tokens
above that key, and tokens at it up to that id. Blocks below the open range are not read again, unless the mass of the
whole row matters. A threshold far below the last cut has a range of its own, and what lies between is only weighed. The
histogram also bounds the sums over a row that a threshold follows from, which `split` then makes exactly. XTC, the last
step where there is one, removes what stands before another such pair, the head, but for tokens that it spares, and so
does a typical, of which the row has two open ranges (`open_range.levels`). Rows without filters are read twice, greedy
ones once. Of a batch whose rows lie on the device, `edit` takes the place of `measure` where logits change, else
`measure_slots`. Of logits in shards `measure_shard` and `settle_shards` do together what `measure` does, and
`weigh_left` and `draw_left` draw anew what XTC leaves where that has weights of its own (`triton_shards`).
Where all rows are drawn as sets, two launches draw. Where rows carry a state from token to token, `general` also notes
what that is after the token (`exact.carry`), which `append` takes over.

Every sum and comparison that a result hangs on is on integers, so no order of the atomic additions can change it;
floats only bound the masses and averages that cuts are looked for by. Launch with `enable_fp_fusion=False`; the minima
around products keep the bits right even without it. SPEC.md rules S-N3, S-W, S-O1 ... S-O15, S-L1 ... S-L4.
"""

from tirage.backends.torch.kernels.append import append
from tirage.backends.torch.kernels.bound import bound
from tirage.backends.torch.kernels.edit import edit
from tirage.backends.torch.kernels.exact.rule import log_masses
from tirage.backends.torch.kernels.general import CHANCES, STATES, general
from tirage.backends.torch.kernels.layout import COUNTS, ENDS, PLANES, ROW
from tirage.backends.torch.kernels.measure import measure, measure_slots
from tirage.backends.torch.kernels.resolve import resolve
from tirage.backends.torch.kernels.sets.buckets import room
from tirage.backends.torch.kernels.sets.marks import marks
from tirage.backends.torch.kernels.sets.words import FEW, WORDS
from tirage.backends.torch.kernels.shards import draw_left, measure_shard, settle_shards, weigh_left
from tirage.backends.torch.kernels.split import split, weigh
from tirage.backends.torch.kernels.split_first import split_first
from tirage.backends.torch.kernels.views import view_ends, view_weigh
from tirage.backends.torch.plan import BINS, FILTERS, HEADER

__all__ = [
    "BINS",
    "CHANCES",
    "COUNTS",
    "ENDS",
    "FEW",
    "FILTERS",
    "HEADER",
    "PLANES",
    "ROW",
    "STATES",
    "WORDS",
    "append",
    "bound",
    "draw_left",
    "edit",
    "general",
    "log_masses",
    "marks",
    "measure",
    "measure_shard",
    "measure_slots",
    "resolve",
    "room",
    "settle_shards",
    "split",
    "split_first",
    "view_ends",
    "view_weigh",
    "weigh",
    "weigh_left",
]
