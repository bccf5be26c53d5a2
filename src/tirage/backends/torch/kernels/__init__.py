"""Triton kernels of the common steps: greedy, temperature and filters that cut, in any order, and the draw.

The filters `plan.CUTS` keep a prefix of (key descending, id ascending), so a set is one pair (cut_key, cut_id): tokens
above that key, and tokens at it up to that id. Two kernels read the logits, split over thread blocks: `measure` for the
ends of each row, a histogram of its logits and bounds of its mass, `split` for the weights that the steps need, and for
the tokens that the histogram leaves open. Two small ones run a row's steps: `bound` on the histogram alone, which gives
a range of keys that holds every cut, and `resolve` on the few tokens of that range, where it draws. Blocks below the
range are not read again, unless the mass of the whole row matters. A threshold far below the last cut has a range of
its own, and what lies between is only weighed. The histogram also bounds the sums over a row that a threshold follows
from, which `split` then makes exactly. `split_first` comes before it where more may have to be known: it sums rows for
a temperature, splits those with a typical, a cut behind such a threshold, or such a threshold behind a cut that leaves
many tokens (`behind`), and bounds them again by their sums where that tells more; `split` reads these once more. XTC,
the last step where there is one, removes what stands before another such pair, the head, but for tokens that it spares,
and so does a typical, of which the row has two open ranges (`levels`). Rows without filters are read twice,
greedy ones once. Of a batch whose rows lie on the device, `edit` takes the place of `measure` where logits change, else
`measure_slots`, and `append` moves rows on; `view_ends` and `view_weigh` report logprobs. Of logits in shards
`measure_shard` and `settle_shards` do together what `measure` does, and `weigh_left` and `draw_left` draw anew what XTC
leaves where that has weights of its own (`triton_shards`).
A row with any other list of filters (a typical of a cut row, tail-free, Mirostat, XTC before others, several
temperatures), or with smoothing, is one set in one thread block: `general`, which then takes the place of `resolve`,
reads it a few times and keeps which tokens are in it as a list, or as a range in the order of rank (`sets`, `steps`,
`reads`, `searches`, `places`, `ranges`, `ordered`, `curvature`, `buckets`, `heads`). Its histogram tells between which
tokens a search looks (`brackets`), and one reading lists these and weighs what is sure to stay (`listing`); a smoothing
counts the histogram anew (`smoothing`).
Where all rows are such, two launches draw. Where rows carry a state from token to token, it also notes what that is
after the token (`carry`), which `append` takes over.
Every sum and comparison that a result hangs on is on integers, so no order of the atomic additions can change it;
floats only bound the masses and averages that cuts are looked for by. Launch with `enable_fp_fusion=False`; the minima
around products keep the bits right even without it. SPEC.md rules S-N3, S-W, S-O1 ... S-O15, S-L1 ... S-L4.
"""

from tirage.backends.torch.kernels.advance import append
from tirage.backends.torch.kernels.bounds import bound
from tirage.backends.torch.kernels.buckets import room
from tirage.backends.torch.kernels.edits import edit
from tirage.backends.torch.kernels.ends import measure, measure_slots
from tirage.backends.torch.kernels.general import CHANCES, STATES, general
from tirage.backends.torch.kernels.layout import COUNTS, ENDS, PLANES, ROW
from tirage.backends.torch.kernels.passes import split, weigh
from tirage.backends.torch.kernels.resolve import resolve
from tirage.backends.torch.kernels.rule import log_masses
from tirage.backends.torch.kernels.sets import FEW, WORDS
from tirage.backends.torch.kernels.shards import draw_left, measure_shard, settle_shards, weigh_left
from tirage.backends.torch.kernels.twice import split_first
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
