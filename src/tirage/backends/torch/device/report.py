"""Logprobs, ranks and top lists of rows whose tables lie on a device, as tensor operations that read nothing back.

A view is `raw`, the model's own law, `processed`, that of the edited logits, or `sampled`, that of what a row was drawn
from (S-L5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tirage.backends.torch.device import laws
from tirage.backends.torch.log_op import log_mass
from tirage.backends.torch.rule import FLT_MAX, exponents, keys, scaled, values, weights
from tirage.backends.torch.sort_keys import ABSENT, id_of, key_of, sort_keys
from tirage.backends.torch.state import logit_of
from tirage.backends.torch.told import BASIS, CONSTANT, SCALE, TOTAL
from tirage.draw import Status
from tirage.exact.keys import NEG_INF_KEY
from tirage.sampling_metadata import View


@dataclass(frozen=True, slots=True)
class Reported:
    """What B rows report in their views, as `Draw` describes it: `logprobs` float32 [B] and `ranks` int64 [B] of the
    token, `top_ids` int64 [B, N] and `top_logprobs` float32 [B, N], `asked_logprobs` float32 [B, A] of the ids that a
    row names, NaN past its own."""

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    asked_logprobs: Tensor

    def spread(self, which: Tensor, status: Tensor) -> Reported:
        """What all rows report when these are the rows `which` int64 [n], and `status` int8 [B] is that of all."""
        b, most = status.numel(), self.top_ids.shape[1]
        ids, ranks = which.new_full((b, most), -1), which.new_zeros(b)
        none = self.logprobs.new_full((b,), torch.nan)
        asked = none[:, None].repeat(1, self.asked_logprobs.shape[1])
        top = self.logprobs.new_full((b, most), -torch.inf).masked_fill_(_has_failed(status), torch.nan)
        return Reported(
            none.index_copy_(0, which, self.logprobs),
            ranks.index_copy_(0, which, self.ranks),
            ids.index_copy_(0, which, self.top_ids),
            top.index_copy_(0, which, self.top_logprobs),
            asked.index_copy_(0, which, self.asked_logprobs),
        )


def _has_failed(status: Tensor) -> Tensor:
    """bool [B, 1]: rows that hold a request without a token."""
    return ((status != int(Status.ok)) & (status != int(Status.empty_slot)))[:, None]


@dataclass(frozen=True, slots=True)
class _ViewedRows:
    """One view of each row: logits `x` float32 [B, V] with their keys; the largest, 1 / T and ln of the mass [B].

    `told` bool [B] are rows whose `x` are logprobs. `cut` int64 [B] are the tokens whose logprobs are `of_cut` float32
    [B], -1 for none.
    """

    x: Tensor
    key: Tensor
    m: Tensor
    inverse_t: Tensor
    ln_z: Tensor
    told: Tensor
    cut: Tensor
    of_cut: Tensor

    @classmethod
    def of(
        cls,
        given: Tensor,
        edited: Tensor,
        sets: Tensor,
        kept: Tensor,
        tables: Mapping[str, Tensor],
        *,
        mixes: bool,
    ) -> _ViewedRows:
        """The views that rows ask for of logits [B, V] as they came and after their edits, of what their draws told."""
        is_raw, is_sampled = (tables["view"] == int(view) for view in (View.RAW, View.SAMPLED))
        x = torch.where(is_raw, given.masked_fill(~given.isfinite(), -torch.inf), edited)
        law, by_logprob = laws.law_of(sets, 0), is_sampled[:, 0] & laws.goes_by_logprob(sets)
        seen = x.masked_fill(is_sampled & ~laws.is_in(keys(x), sets, kept, 0), -torch.inf)
        if mixes:
            seen = torch.where(by_logprob[:, None], laws.logprobs(x, sets, kept), seen)
        key = keys(seen)
        scale = tables["view_scale"]
        told = law[:, CONSTANT : SCALE + 1].to(torch.int32).view(torch.float32)
        c, inverse_t = torch.where(scale.isnan(), told, scale).T
        m = logit_of(torch.where(is_sampled[:, 0], law[:, BASIS], key.amax(1)))
        mass = torch.where(is_sampled[:, 0], law[:, TOTAL], weights(exponents(x, m, c)).sum(1)).clamp(min=1)
        cut, of_cut = laws.cut_logprobs(sets)
        cut = cut.masked_fill(~is_sampled[:, 0] | by_logprob, -1)
        return cls(seen, key, m, inverse_t, log_mass(mass), by_logprob, cut, of_cut)

    def logprobs(self, x: Tensor, ids: Tensor) -> Tensor:
        """ln p float32 of tokens `ids` [B, n] with the logits [B, n]; -inf for -inf (S-L2)."""
        distance = scaled(x, self.m, self.inverse_t, limit=FLT_MAX)
        lp = 0.0 - (distance + self.ln_z[:, None])
        lp = torch.where(ids == self.cut[:, None], self.of_cut[:, None], lp).masked_fill(
            keys(x) == NEG_INF_KEY, -torch.inf
        )
        return torch.where(self.told[:, None], x, lp)

    def top(self, most: int) -> Tensor:
        """The sort keys int64 [B, most] of the first candidates in order; ABSENT past the last."""
        ids = torch.arange(self.x.shape[1], device=self.x.device)
        inside = sort_keys(self.key, ids).masked_fill_(self.key <= NEG_INF_KEY, ABSENT)
        # No two tokens have the same sort key, so the order is that of the rule on every device.
        return torch.topk(inside, most, dim=1).values


def reported(
    given: Tensor,
    edited: Tensor,
    sets: Tensor,
    kept: Tensor,
    token: Tensor,
    status: Tensor,
    tables: Mapping[str, Tensor],
    *,
    most: int,
    asked: int,
    mixes: bool,
) -> Reported:
    """What rows report of their `token` int64 [B], of at most `most` first candidates and of the first `asked` ids of
    those that each names.

    `given` and `edited` float32 [B, V] are their logits, `sets` int64 [B, `plan.SUMS`] and `kept` uint8 [B, V or 0]
    what was told of their draws; `mixes` is whether the tokens of some may be ordered by their logprobs. `status` int8
    [B] says which have a token. The `tables` are those of the rows, by the names of `row_form.arrays_of`.
    """
    rows = _ViewedRows.of(given, edited, sets, kept, tables, mixes=mixes)
    at = token.clamp(min=0)[:, None]
    ok = status == int(Status.ok)
    good = ok[:, None] & (tables["view"] != int(View.NONE))
    rank = 1 + (rows.key > rows.key.gather(1, at)).sum(1, keepdim=True)
    best = rows.top(most)
    listed = (torch.arange(most, device=token.device) < tables["top_n"]) & good & (best != ABSENT)
    named = tables["asked_ids"][:, :asked].to(torch.int64)
    there = named.clamp(min=0)
    lp = rows.logprobs(values(key_of(best).masked_fill(best == ABSENT, 0)), id_of(best))
    return Reported(
        logprobs=rows.logprobs(rows.x.gather(1, at), at).masked_fill(~good, torch.nan)[:, 0],
        ranks=rank.masked_fill(~good, 0)[:, 0],
        top_ids=id_of(best).masked_fill(~listed, -1),
        top_logprobs=lp.masked_fill(~listed, -torch.inf).masked_fill(_has_failed(status), torch.nan),
        asked_logprobs=rows.logprobs(rows.x.gather(1, there), there).masked_fill(~good | (named < 0), torch.nan),
    )
