"""One shard's share of a draw: the same token, and the same report, on every shard (S-W5, S-L3 ... S-L5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tirage.backends import Drawn, Process, Rows, View
from tirage.backends.sharded.agreement import Layout
from tirage.backends.sharded.communicate import Communicator
from tirage.backends.sharded.filters import run
from tirage.backends.sharded.local import localised
from tirage.backends.sharded.part import Part
from tirage.backends.sharded.places import NOWHERE, id_of
from tirage.backends.sharded.report import Law, Report
from tirage.backends.torch.eager import NO_TOKEN, NON_FINITE, OK, blank, protected_from_xtc, uniforms
from tirage.backends.torch.edits import edited
from tirage.backends.torch.groups import Ids, asked_of, by_program, has, taken
from tirage.backends.torch.report import mixed_logprob
from tirage.backends.torch.rule import floats, host, keys
from tirage.errors import ParamsError
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.philox import Domain
from tirage.stages import Op


def check_supported(rows: Rows, processes: Sequence[Process | None] | None) -> None:
    """Raise ParamsError, by name, for what would need the whole logits in one place."""
    if processes is not None or has(rows, Op.PROCESS).any():
        raise ParamsError("logits_processors must see whole rows, got shards; gather the logits for these requests")
    if rows.resample.any():
        raise ParamsError(
            'mask_mode must be "first" over shards, got a mask with "resample"; gather the logits for these requests'
        )
    if (has(rows, Op.XTC) & (rows.views == View.SAMPLED)).any():
        raise ParamsError(
            'logprobs_mode must be "raw" or "processed" for XTC over shards, got "sampled"; its law is a mixture that '
            "only whole rows can rank"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Where one shard stands among the others."""

    comm: Communicator
    layout: Layout

    @property
    def start(self) -> int:
        """The first token id of this shard."""
        return self.layout.bounds[self.comm.rank][0]

    def draw(self, logits: Tensor, rows: Rows) -> Drawn:
        """One token for each of `rows` from this shard's float32 logits [B, N]; N is 1, at -inf, for an empty shard."""
        out = blank(rows, logits)
        for part in by_program(rows, np.arange(rows.count)):
            whole = part.size == rows.count
            some = rows if whole else taken(rows, part)
            group = _Group.of(self, logits if whole else logits[host(part, logits)], some)
            group.write(out, part, asked_of(rows, part))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Rows of one list of operations: this shard's logits, and the branches of their law."""

    shared: Shared
    logits: Tensor
    rows: Rows
    status: Tensor
    off: Part
    on: Part | None
    shares: list[int]

    @classmethod
    def of(cls, shared: Shared, logits: Tensor, rows: Rows) -> _Group:
        own = localised(rows, *shared.layout.bounds[shared.comm.rank])
        state = edited(logits, own)
        bad, x = state.spoiled(), state.x
        spoiled, first = shared.comm.max(torch.stack([bad.to(torch.int64), keys(x).amax(1).to(torch.int64)]))
        status = torch.where(first > NEG_INF_KEY, OK, NO_TOKEN).masked_fill(spoiled > 0, NON_FINITE)
        xtc = np.flatnonzero(rows.programs[0, :, 0] == int(Op.XTC))
        protected = protected_from_xtc(own, x)

        def branch(coin: bool) -> Part:
            entered = Part.of(shared.comm, x, shared.start, first.to(torch.int32), coin=coin, protected=protected)
            return run(entered, rows.programs)

        return cls(
            shared=shared,
            logits=logits,
            rows=rows,
            status=status,
            off=branch(False),
            on=branch(True) if xtc.size else None,
            shares=rows.programs[:, xtc[0], 1].tolist() if xtc.size else [0] * rows.count,
        )

    def write(self, out: Drawn, part: Ids, asked: Ids) -> None:
        """Draw, and put what each row asked for into its place in `out`."""
        at = host(part, self.logits)
        ok = self.status == OK
        place, lp, support, totals = self._draw()
        token = id_of(place)
        out.status[at] = self.status.to(torch.int8)
        out.token_ids[at] = torch.where(ok, token, -1)
        out.sampled_logprobs[at] = torch.where(ok, lp, torch.nan)
        out.support[at] = torch.where(ok, support, 0)
        out.top_logprobs[at] = torch.where(ok[:, None], out.top_logprobs[at], torch.nan)
        for view in np.unique(self.rows.views[self.rows.views != View.NONE]).tolist():
            report = Report.of(View(view), self.logits, self.shared.start, self.off, totals)
            self._report(out, report, View(view), token, at, host(asked, at))

    # --- the draw -------------------------------------------------------------------------------------------------

    def _draw(self) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """(place, sampled logprob, support, mass without XTC) of each row; meaningless for bad rows. Two rounds."""
        weights = [self.off.w()] if self.on is None else [self.off.w(), self.on.w()]
        # Rows that XTC always cuts cannot give what it removes.
        never = host([share == 1 << 32 for share in self.shares], weights[0])[:, None] > 0
        support = ((weights[-1] > 0) | ((weights[0] > 0) & ~never)).sum(1)
        each = self.shared.comm.gather(torch.stack([support, *[w.sum(1) for w in weights]]))
        support, *masses = each.sum(0)
        totals = [[max(total, 1) for total in mass.tolist()] for mass in masses]
        found = self.shared.comm.max(self._picked(weights, each[:, 1:]))
        if self.on is None:
            lp = Law.drawn(self.off, totals[0]).logprobs(found[:1].T)[:, 0]
        else:
            pairs = zip(*found[1:].tolist(), strict=True), zip(*totals, strict=True), self.shares
            lp = floats([mixed_logprob(*row) for row in zip(*pairs, strict=True)], self.logits)
        return found[0], lp, support, totals[0]

    def _picked(self, weights: list[Tensor], masses: Tensor) -> Tensor:
        """The token if this shard holds it, else NOWHERE: its place [1, G]; after XTC also its weights off and on.

        It is the first, in id order, whose running sum over all shards exceeds floor(U * W / 2^64): rule S-W5. `masses`
        [shards, branches, G] are those of the branches' `weights` [G, N] on each shard.
        """
        w, drawn = weights[0], masses[:, 0]
        if self.on is not None:
            coin = self._coin()
            w, drawn = torch.where(coin[:, None], weights[1], w), torch.where(coin, masses[:, 1], drawn)
        r = [u * total >> 64 for u, total in zip(uniforms(self.rows, Domain.DRAW), drawn.sum(0).tolist(), strict=True)]
        rest = host(r, w) - drawn[self.shared.layout.before(self.shared.comm.rank)].sum(0)
        reached = w.cumsum(1)
        at = (reached <= rest[:, None]).sum(1).clamp(max=w.shape[1] - 1)[:, None]
        mine = (rest >= 0) & (rest < reached[:, -1])
        told = [self.off.place, *weights] if self.on is not None else [self.off.place]
        return torch.where(mine, torch.cat([value.gather(1, at) for value in told], 1).T, NOWHERE)

    def _coin(self) -> Tensor:
        """Where XTC is on."""
        tossed = zip(uniforms(self.rows, Domain.XTC), self.shares, strict=True)
        return host([u >> 32 < share for u, share in tossed], self.logits) > 0

    # --- the report -----------------------------------------------------------------------------------------------

    def _report(self, out: Drawn, report: Report, view: View, token: Tensor, at: Tensor, asked: Tensor) -> None:
        """Fill in the rows of this group that ask for `view`."""
        good = (host(self.rows.views == int(view), at) > 0) & (self.status == OK)
        wants = host(np.repeat(np.arange(self.rows.count), np.diff(self.rows.asked_start)), at)
        row = torch.cat([torch.arange(self.rows.count, device=at.device), wants])
        place = report.of_tokens(row, torch.cat([token, host(self.rows.asked_ids, at)]))
        drawn, given = place[: self.rows.count], place[self.rows.count :]
        out.logprobs[at[good]] = report.law.logprobs(drawn[:, None])[good, 0]
        out.ranks[at[good]] = report.ranks(drawn)[good]
        out.asked_logprobs[asked[good[wants]]] = report.law.rows(wants).logprobs(given[:, None])[good[wants], 0]
        most = int(self.rows.top_n.max(initial=0))
        if most:
            _write_top(out, *report.top(most), host(self.rows.top_n, at), good, at)


def _write_top(out: Drawn, ids: Tensor, lp: Tensor, top_n: Tensor, good: Tensor, at: Tensor) -> None:
    """Put the first `top_n` [G] of the entries [G, n] where good rows report them."""
    n = ids.shape[1]
    inside = (torch.arange(n, device=ids.device) < top_n[:, None]) & good[:, None]
    row, column = torch.nonzero(inside, as_tuple=True)
    out.top_ids[at[row], column] = ids[inside]
    out.top_logprobs[at[row], column] = lp[inside]
