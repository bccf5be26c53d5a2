"""One shard's share of a draw: the same token, and the same report, on every shard (S-W5, S-L3 ... S-L5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends import Drawn, Process, SamplingMetadata, View
from tirage.backends.groups import Ids, asked_of, by_program, has, taken
from tirage.backends.sharded.agreement import ShardLayout
from tirage.backends.sharded.communicate import Communicator
from tirage.backends.sharded.filters import run
from tirage.backends.sharded.local import localised
from tirage.backends.sharded.mixture import Mixture, Redraw, Weights, drawable
from tirage.backends.sharded.part import ShardState
from tirage.backends.sharded.places import NOWHERE, id_of
from tirage.backends.sharded.report import ShardLaw, ShardReport
from tirage.backends.sharded.whole import draw_whole
from tirage.backends.torch.eager import NO_TOKEN, NON_FINITE, OK, blank, protected_from_xtc, uniforms, write_rows
from tirage.backends.torch.edits import edited
from tirage.backends.torch.rule import floats, host, keys
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.philox import Domain
from tirage.stages import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Where one shard stands among the others."""

    comm: Communicator
    layout: ShardLayout

    @property
    def start(self) -> int:
        """The first token id of this shard."""
        return self.layout.bounds[self.comm.rank][0]

    def draw(self, logits: Tensor, rows: SamplingMetadata, processes: Sequence[Process | None] | None = None) -> Drawn:
        """One token for each of `rows` from this shard's float32 logits [B, N]; N is 1, at -inf, for an empty shard.

        `processes` are the custom processors of the rows, if any has some.
        """
        out = blank(rows, logits)
        whole = has(rows, Op.PROCESS)
        if whole.any():
            which = np.flatnonzero(whole)
            part, each = logits[host(which, logits)], processes and [processes[r] for r in which.tolist()]
            write_rows(out, draw_whole(self.comm, self.layout, part, taken(rows, which), each), rows, which)
        for part in _groups(rows, np.flatnonzero(~whole)):
            whole = part.size == rows.count
            some = rows if whole else taken(rows, part)
            group = _ShardGroup.of(self, logits if whole else logits[host(part, logits)], some)
            group.write(out, part, asked_of(rows, part))
        return out


def _groups(rows: SamplingMetadata, which: Ids) -> Iterator[Ids]:
    """Of the rows `which` those that run one list of operations and all, or none, of which are drawn again."""
    for part in by_program(rows, which):
        again = rows.resample[part]
        yield from (some for some in (part[~again], part[again]) if some.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Rows whose edits are done: this shard's logits, and what all shards found in them."""

    shared: Shared
    x: Tensor
    first: Tensor
    status: Tensor
    protected: Tensor | None

    @classmethod
    def of(cls, shared: Shared, logits: Tensor, rows: SamplingMetadata) -> _Entry:
        """One round."""
        own = localised(rows, *shared.layout.bounds[shared.comm.rank])
        state = edited(logits, own)
        bad, x = state.spoiled(), state.x
        spoiled, first = shared.comm.max(torch.stack([bad.to(torch.int64), keys(x).amax(1).to(torch.int64)]))
        status = torch.where(first > NEG_INF_KEY, OK, NO_TOKEN).masked_fill(spoiled > 0, NON_FINITE)
        protected = protected_from_xtc(own, x)
        return cls(shared=shared, x=x, first=first.to(torch.int32), status=status, protected=protected)

    def branches(self, programs: NDArray[np.int64]) -> list[ShardState]:
        """The rows after their filters: without XTC and, where it occurs, with it."""
        coins = (False, True) if (programs[0, :, 0] == int(Op.XTC)).any() else (False,)
        return [run(self._entered(coin), programs) for coin in coins]

    def _entered(self, coin: bool) -> ShardState:
        return ShardState.of(
            self.shared.comm, self.x, self.shared.start, self.first, coin=coin, protected=self.protected
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardGroup:
    """Rows of one list of operations: this shard's logits, and the branches of their law.

    `masked` are the branches under the mask that is only checked, to be drawn from when it forbids the token.
    """

    shared: Shared
    logits: Tensor
    rows: SamplingMetadata
    status: Tensor
    branches: list[ShardState]
    masked: list[ShardState]
    shares: list[int]

    @classmethod
    def of(cls, shared: Shared, logits: Tensor, rows: SamplingMetadata) -> _ShardGroup:
        entry, masked = _Entry.of(shared, logits, rows), []
        status = entry.status
        if rows.resample.any():
            under_mask = _Entry.of(shared, logits, _with_checks(rows))
            status = torch.where(status == OK, under_mask.status, status)
            masked = under_mask.branches(rows.programs)
        xtc = np.flatnonzero(rows.programs[0, :, 0] == int(Op.XTC))
        return cls(
            shared=shared,
            logits=logits,
            rows=rows,
            status=status,
            branches=entry.branches(rows.programs),
            masked=masked,
            shares=rows.programs[:, xtc[0], 1].tolist() if xtc.size else [0] * rows.count,
        )

    def write(self, out: Drawn, part: Ids, asked: Ids) -> None:
        """Draw, and put what each row asked for into its place in `out`."""
        at = host(part, self.logits)
        ok = self.status == OK
        law, each, support = self._weighed()
        if law.redraw is None:
            place, lp = self._draw(law, each)
        else:
            place, lp = self._draw_again(law, law.redraw, each)
            support = self.shared.comm.sum(law.possible().sum(1))
        token = id_of(place)
        out.status[at] = self.status.to(torch.int8)
        out.token_ids[at] = torch.where(ok, token, -1)
        out.sampled_logprobs[at] = torch.where(ok, lp, torch.nan)
        out.support[at] = torch.where(ok, support, 0)
        out.top_logprobs[at] = torch.where(ok[:, None], out.top_logprobs[at], torch.nan)
        for view in np.unique(self.rows.views[self.rows.views != View.NONE]).tolist():
            self._report(out, self._view(View(view), law), View(view), token, at, host(asked, at))

    # --- the draw -------------------------------------------------------------------------------------------------

    def _weighed(self) -> tuple[Mixture, Tensor, Tensor]:
        """(the law, the masses of each shard [shards, K, G], how many tokens its branches hold [G]); one round."""
        weights, again = [part.w() for part in self.branches], [part.w() for part in self.masked]
        legal = self._legal() if again else None
        held = [w.sum(1) for w in (*weights, *again)]
        held += [] if legal is None else [(w * ~legal).sum(1) for w in weights]
        support = drawable([w > 0 for w in weights], self.shares).sum(1)
        each = self.shared.comm.gather(torch.stack([*held, support]))
        *totals, count = each.sum(0)
        n = len(weights)
        masses = [[max(total, 1) for total in mass.tolist()] for mass in totals]
        rejected = [mass.tolist() for mass in totals[2 * n :]]
        redraw = legal if legal is None else Redraw(again, masses[n : 2 * n], rejected, legal)
        return Mixture(weights=weights, masses=masses[:n], shares=self.shares, redraw=redraw), each, count

    def _draw(self, law: Mixture, each: Tensor) -> tuple[Tensor, Tensor]:
        """(place, logprob) of the token of each row; meaningless for bad rows. One round."""
        mine, at = self._located(law.weights, each, Domain.DRAW)
        place = self.branches[0].place.gather(1, at).T
        mixed = len(self.branches) > 1
        told = torch.cat([place, law.at(at)]) if mixed else place
        found = self.shared.comm.max(torch.where(mine, told, NOWHERE))
        if mixed:
            return found[0], self._logprobs(law, found[1:])
        return found[0], ShardLaw.drawn(self.branches[0], law.masses[0]).logprobs(found.T)[:, 0]

    def _draw_again(self, law: Mixture, redraw: Redraw, each: Tensor) -> tuple[Tensor, Tensor]:
        """`_draw` for rows whose token, when the mask forbids it, is drawn again under it (S-P5). Two rounds."""
        places = []
        for weights, first, domain in (
            (law.weights, 0, Domain.DRAW),
            (redraw.weights, len(law.weights), Domain.RESAMPLE),
        ):
            mine, at = self._located(weights, each[:, first:], domain)
            places.append(torch.where(mine, self.branches[0].place.gather(1, at)[:, 0], NOWHERE))
        free, under_mask = self.shared.comm.max(torch.stack(places))
        place = torch.where(self._allows(id_of(free)), free, under_mask)
        column = id_of(place) - self.shared.start
        mine = (column >= 0) & (column < self.logits.shape[1])
        told = law.at(column.clamp(0, self.logits.shape[1] - 1)[:, None])
        return place, self._logprobs(law, self.shared.comm.max(torch.where(mine, told, NOWHERE)))

    def _logprobs(self, law: Mixture, told: Tensor) -> Tensor:
        return floats([law.logprob(row, each) for row, each in enumerate(told.T.tolist())], self.logits)

    def _located(self, weights: Weights, each: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        """(whether this shard holds the token [G], its column [G, 1]) of each row, by the branch that XTC's coin takes.

        It is the first, in id order, whose running sum over all shards exceeds floor(U * W / 2^64): rule S-W5. `each`
        [shards, branches, G] are the masses of the branches' `weights` [G, N] on each shard.
        """
        w, held = weights[0], each[:, 0]
        if len(weights) > 1:
            coin = self._coin()
            w, held = torch.where(coin[:, None], weights[1], w), torch.where(coin, each[:, 1], held)
        r = [u * total >> 64 for u, total in zip(uniforms(self.rows, domain), held.sum(0).tolist(), strict=True)]
        rest = host(r, w) - held[self.shared.layout.before(self.shared.comm.rank)].sum(0)
        reached = w.cumsum(1)
        at = (reached <= rest[:, None]).sum(1).clamp(max=w.shape[1] - 1)[:, None]
        return (rest >= 0) & (rest < reached[:, -1]), at

    def _coin(self) -> Tensor:
        """Where XTC is on."""
        tossed = zip(uniforms(self.rows, Domain.XTC), self.shares, strict=True)
        return host([u >> 32 < share for u, share in tossed], self.logits) > 0

    def _legal(self) -> Tensor:
        """bool [G, N]: this shard's tokens that the checked mask allows."""
        start, stop = self.shared.layout.bounds[self.shared.comm.rank]
        bits = np.unpackbits(np.ascontiguousarray(self.rows.checks).view(np.uint8), axis=1, bitorder="little")
        legal = bits[:, start:stop].astype(bool)
        return host(legal if stop > start else np.zeros((self.rows.count, 1), bool), self.logits) > 0

    def _allows(self, token: Tensor) -> Tensor:
        """Whether the checked mask allows one token of each row, whichever shard holds it."""
        ids = token.cpu().numpy()
        words = self.rows.checks[np.arange(ids.size), ids // 32]
        return host((words >> (ids % 32)) & 1, self.logits) > 0

    # --- the report -----------------------------------------------------------------------------------------------

    def _view(self, view: View, law: Mixture) -> ShardReport:
        if view != View.SAMPLED or (len(self.branches) == 1 and not self.masked):
            return ShardReport.of(view, self.logits, self.shared.start, self.branches[0], law.masses[0])
        wanted = (host(self.rows.views == int(view), self.logits) > 0) & (self.status == OK)
        return ShardReport.ranked(self.shared.comm, self.shared.start, law.logprobs(wanted))

    def _report(self, out: Drawn, report: ShardReport, view: View, token: Tensor, at: Tensor, asked: Tensor) -> None:
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


def _with_checks(rows: SamplingMetadata) -> SamplingMetadata:
    """`rows` with the mask that is checked after a draw as a hard mask."""
    return replace(rows, masks=rows.masks & rows.checks if rows.masks.size else rows.checks, memo={})


def _write_top(out: Drawn, ids: Tensor, lp: Tensor, top_n: Tensor, good: Tensor, at: Tensor) -> None:
    """Put the first `top_n` [G] of the entries [G, n] where good rows report them."""
    n = ids.shape[1]
    inside = (torch.arange(n, device=ids.device) < top_n[:, None]) & good[:, None]
    row, column = torch.nonzero(inside, as_tuple=True)
    out.top_ids[at[row], column] = ids[inside]
    out.top_logprobs[at[row], column] = lp[inside]
