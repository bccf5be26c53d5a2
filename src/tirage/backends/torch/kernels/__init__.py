"""Triton kernels of the common steps: greedy, temperature and filters that cut, in any order, and the draw.

The filters `plan.CUTS` keep a prefix of (key descending, id ascending), so a set is one pair (cut_key, cut_id):
tokens above that key, and tokens at it up to that id. Three kernels read the logits, split over thread blocks:
`measure` for the ends of each row, `weigh` for the mass, a histogram of exponents and the sums that a threshold follows
from, `split` for what the histogram leaves open. Two small ones between them run a row's steps: `bound` on the
histogram alone, which gives a range of keys that holds every cut, and `resolve` on the few tokens of that range, where
it draws; a dynamic temperature is found by the first of them, or where its set is cut by the other. XTC, the last step
where there is one, removes what stands before another such pair, the head. Rows without filters are read twice, greedy
ones once. Of a batch whose rows lie on the device, `edit` takes the place of `measure` where logits change, else
`measure_slots`, and `append` moves rows on; `view_ends` and `view_weigh` report logprobs.
Every sum and comparison is on integers, so no order of the atomic additions can change a result. Launch with
`enable_fp_fusion=False`; the minima around products keep the bits right even without it. SPEC.md rules S-N3, S-W,
S-O1 ... S-O3, S-O5, S-O6, S-O8 ... S-O12, S-L1 ... S-L4.
"""

from tirage.backends.torch.kernels.advance import append
from tirage.backends.torch.kernels.bounds import bound
from tirage.backends.torch.kernels.edits import edit
from tirage.backends.torch.kernels.ends import measure, measure_slots
from tirage.backends.torch.kernels.layout import BINS, COUNTS, PLANES, ROW, SUMS
from tirage.backends.torch.kernels.passes import split, weigh
from tirage.backends.torch.kernels.resolve import resolve
from tirage.backends.torch.kernels.rule import log_masses
from tirage.backends.torch.kernels.views import view_ends, view_weigh
from tirage.backends.torch.plan import FILTERS, HEADER

__all__ = [
    "BINS",
    "COUNTS",
    "FILTERS",
    "HEADER",
    "PLANES",
    "ROW",
    "SUMS",
    "append",
    "bound",
    "edit",
    "log_masses",
    "measure",
    "measure_slots",
    "resolve",
    "split",
    "view_ends",
    "view_weigh",
    "weigh",
]
