"""Drawing with plain tensor operations: every operator on any device, bit for bit what the NumPy path draws.

The rows may be whole or one shard's columns of them; then the token, and the report, are the same on every shard
(S-W5, S-L3 ... S-L5). No speed is claimed: a step exchanges some integers of each row with the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, asked_of, by_program, ranges, runs_only, taken
from tirage.backends.torch import edits, filters
from tirage.backends.torch.communicator import WHOLE, VocabShard
from tirage.backends.torch.edits import edited, not_finite, unpacked
from tirage.backends.torch.mixture import Mixture, Redraw, Weights, drawable
from tirage.backends.torch.report import LogitLaw, Report
from tirage.backends.torch.results import gathered_ids
from tirage.backends.torch.rule import floats, integers, keys
from tirage.backends.torch.sort_keys import ABSENT, id_of
from tirage.backends.torch.state import FilterState
from tirage.draw import Status
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.logs import ilog2, ln_fixed
from tirage.exact.philox import Domain, uniform64
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import Drawn, SamplingMetadata, View
from tirage.token_records import TokenRecords

OK, NON_FINITE, NO_TOKEN = 0, 1, 2


def supports(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that `draw_into` may be given, those whose operations all stand in the tables of steps."""
    return runs_only(rows, (*edits.STEPS, *filters.STEPS))


def draw_into(out: Drawn, logits: Tensor, rows: SamplingMetadata, which: Ids, *, shard: VocabShard = WHOLE) -> None:
    """Draw the rows `which` into `out`, from float32 logits [B, N] of the tokens that `shard` holds.

    N is 1, at -inf, for an empty shard. Bans, additions, counts, masks and protected ids in `rows` are counted from
    the first token of the shard, asked ids from the first of all.
    """
    for group in _groups(rows, which):
        everything = group.size == rows.count
        some = rows if everything else taken(rows, group)
        columns = logits if everything else logits[integers(group, logits)]
        RowGroup.of(shard, columns, some).write(out, group, asked_of(rows, group))
        if rows.records is not None and some.records is not None and not everything:
            rows.records.fill(group, some.records)


def _groups(rows: SamplingMetadata, which: Ids) -> Iterator[Ids]:
    """Of the rows `which` those that run one list of operations and all, or none, of which are drawn again."""
    for group in by_program(rows, which):
        again = rows.resample[group]
        yield from (some for some in (group[~again], group[again]) if some.size)


def _start(shard: VocabShard, logits: Tensor, rows: SamplingMetadata) -> tuple[FilterState, Tensor]:
    """(the state that the filters of `rows` start from, their status int64 [G]), from `logits` [G, N]. One round."""
    done = edited(logits, rows)
    key = keys(done.x)
    first = key.amax(1)
    bad = done.bad | not_finite(first) | not_finite(key.amin(1))
    bad, first = shard.comm.max(torch.stack([bad, first]).to(torch.int64))
    status = torch.where(first > NEG_INF_KEY, OK, NO_TOKEN).masked_fill(bad > 0, NON_FINITE)
    protected = protected_from_xtc(rows, done.x)
    return FilterState.of(shard, done.x, key=key, first=first.to(torch.int32), protected=protected), status


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows of one list of operations: logits [G, N] as they came, and the branches of their law.

    `masked` are the branches under the mask that is only checked, to be drawn from when it forbids the token.
    `shares` [G] is how often XTC is on, in units of 2^-32.
    """

    shard: VocabShard
    logits: Tensor
    rows: SamplingMetadata
    status: Tensor
    branches: list[FilterState]
    masked: list[FilterState]
    shares: list[int]

    @classmethod
    def of(cls, shard: VocabShard, logits: Tensor, rows: SamplingMetadata) -> RowGroup:
        """The rows of `logits` [G, N] after their edits and filters."""
        state, status = _start(shard, logits, rows)
        masked: list[FilterState] = []
        if rows.resample.any():
            under_mask, status_under_mask = _start(shard, logits, _with_checks(rows))
            status = torch.where(status == OK, status_under_mask, status)
            masked = filters.run(under_mask, rows.programs)
        xtc = np.flatnonzero(rows.programs[0, :, 0] == XTC)
        return cls(
            shard=shard,
            logits=logits,
            rows=rows,
            status=status,
            branches=filters.run(state, rows.programs),
            masked=masked,
            shares=rows.programs[:, xtc[0], 1].tolist() if xtc.size else [0] * rows.count,
        )

    def write(self, out: Drawn, group: Ids, asked: Ids) -> None:
        """Draw, and put what each row asked for into its place in `out`: rows `group` [G], asked ids `asked` [A]."""
        at = integers(group, self.logits)
        law, held, support = self._weighed()
        if law.redraw is None:
            token, lp = self._draw(law, held)
        else:
            token, lp = self._draw_again(law, law.redraw, held)
            support = self.shard.comm.sum(law.possible.sum(1))
        status = self._judged(support)
        ok = status == OK
        out.status[at] = status.to(torch.int8)
        out.token_ids[at] = torch.where(ok, token, -1)
        out.sampled_logprobs[at] = torch.where(ok, lp, torch.nan)
        out.support[at] = torch.where(ok, support, 0)
        out.top_logprobs[at] = torch.where(ok[:, None], out.top_logprobs[at], torch.nan)
        self.write_views(out, law, token, at, integers(asked, at), ok)
        if self.rows.records is not None:
            self._record(self.rows.records, law, token, support, ok)

    def _judged(self, support: Tensor) -> Tensor:
        """The status int64 [G], with that of rows whose `support` [G] is wider than the record they ask for."""
        if self.rows.records is None:
            return self.status
        limits = integers(self.rows.records.limits, support)
        wide = (self.status == OK) & (limits > 0) & (support > limits)
        return self.status.masked_fill(wide, int(Status.kept_too_wide))

    # --- the draw -------------------------------------------------------------------------------------------------

    def _weighed(self) -> tuple[Mixture, Tensor, Tensor]:
        """(the law, the masses on each shard [shards, K, G], how many tokens its branches hold [G]); one round."""
        weights, again = [branch.w() for branch in self.branches], [branch.w() for branch in self.masked]
        legal = unpacked(self.rows.checks, self.logits) if again else None
        sums = [w.sum(1) for w in (*weights, *again)]
        sums += [] if legal is None else [(w * ~legal).sum(1) for w in weights]
        support = drawable([w > 0 for w in weights], self.shares).sum(1)
        held = self.shard.comm.gather(torch.stack([*sums, support]))
        *totals, count = held.sum(0)
        n = len(weights)
        masses = [[max(total, 1) for total in mass.tolist()] for mass in totals]
        rejected = [mass.tolist() for mass in totals[2 * n :]]
        redraw = legal if legal is None else Redraw(again, masses[n : 2 * n], rejected, legal)
        return Mixture(weights=weights, masses=masses[:n], shares=self.shares, redraw=redraw), held, count

    def _draw(self, law: Mixture, held: Tensor) -> tuple[Tensor, Tensor]:
        """(token, logprob) of each row, [G]; meaningless for bad rows. One round."""
        state = self.branches[0]
        mine, column = self._located(law.weights, held, Domain.DRAW)
        sort_key = state.sort_key_at(column).T
        mixed = len(self.branches) > 1
        known = torch.cat([sort_key, law.terms(column)]) if mixed else sort_key
        found = self.shard.comm.max(torch.where(mine, known, ABSENT))
        if mixed:
            return id_of(found[0]), self._logprobs(law, found[1:])
        return id_of(found[0]), LogitLaw.of(state, law.masses[0]).logprobs(found.T)[:, 0]

    def _draw_again(self, law: Mixture, redraw: Redraw, held: Tensor) -> tuple[Tensor, Tensor]:
        """`_draw` for rows whose token, when the mask forbids it, is drawn again under it (S-P5). Two rounds."""
        mine, column = self._located(law.weights, held, Domain.DRAW)
        free = torch.where(mine & redraw.legal.gather(1, column)[:, 0], self._ids(column), ABSENT)
        mine, column = self._located(redraw.weights, held[:, len(law.weights) :], Domain.RESAMPLE)
        free, again = self.shard.comm.max(torch.stack([free, torch.where(mine, self._ids(column), ABSENT)]))
        token = torch.where(free == ABSENT, again, free)
        column = token - self.shard.start
        mine = (column >= 0) & (column < self.logits.shape[1])
        terms = law.terms(column.clamp(0, self.logits.shape[1] - 1)[:, None])
        return token, self._logprobs(law, self.shard.comm.max(torch.where(mine, terms, ABSENT)))

    def _ids(self, column: Tensor) -> Tensor:
        """Token ids int64 [G] of one column [G, 1] of each row."""
        return column[:, 0] + self.shard.start

    def _logprobs(self, law: Mixture, terms: Tensor) -> Tensor:
        """Logprobs float32 [G] of a token of each row, from its `terms` [K, G]."""
        return floats([law.logprob(row, each) for row, each in enumerate(terms.T.tolist())], self.logits)

    def _located(self, weights: Weights, held: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        """(whether this shard holds the token [G], its column [G, 1]) of each row, by the branch that XTC's coin takes.

        It is the first, in id order, whose running sum over all shards exceeds floor(U * W / 2^64): rule S-W5. `held`
        [shards, branches, G] are the masses of the branches' `weights` [G, N] on each shard.
        """
        w, masses = weights[0], held[:, 0]
        if len(weights) > 1:
            on = self._xtc_on()
            w, masses = torch.where(on[:, None], weights[1], w), torch.where(on, held[:, 1], masses)
        r = [u * total >> 64 for u, total in zip(uniforms(self.rows, domain), masses.sum(0).tolist(), strict=True)]
        rest = integers(r, w) - masses[list(self.shard.lower)].sum(0)
        reached = w.cumsum(1)
        column = torch.searchsorted(reached, rest[:, None], right=True).clamp_(max=w.shape[1] - 1)
        return (rest >= 0) & (rest < reached[:, -1]), column

    def _xtc_on(self) -> Tensor:
        """bool [G]: rows whose coin says that XTC is on (S-O8)."""
        coins = zip(uniforms(self.rows, Domain.XTC), self.shares, strict=True)
        return integers([u >> 32 < share for u, share in coins], self.logits) > 0

    # --- the report -----------------------------------------------------------------------------------------------

    def _report(self, view: View, law: Mixture) -> Report:
        if view != View.SAMPLED or (len(self.branches) == 1 and not self.masked):
            return Report.of(view, self.logits, self.branches[0], law.masses[0])
        wanted = (integers(self.rows.views == int(view), self.logits) > 0) & (self.status == OK)
        return Report.of_mixture(self.shard, law.logprobs(wanted))

    def _record(self, records: TokenRecords, law: Mixture, token: Tensor, support: Tensor, ok: Tensor) -> None:
        """Leave the records of the rows that ask for one and have a token, `ok` bool [G]; the same on every shard."""
        wanted = ok & (integers(records.limits, token) > 0)
        raw, processed = (self._logprob_in(view, law, token) for view in (View.RAW, View.PROCESSED))
        held, seen = self._masses(law)
        kept = gathered_ids(self.shard, law.possible & wanted[:, None], int((support * wanted).max()))
        for row in torch.nonzero(wanted)[:, 0].tolist():
            greedy = self.branches[0].greedy and len(self.branches) == 1
            logmass = np.float32(0) if greedy else ln_fixed(ilog2(max(held[row], 1)) - ilog2(seen[row])) + np.float32(0)
            records.put(
                row, kept=kept[row], logmass=logmass, raw=np.float32(raw[row]), processed=np.float32(processed[row])
            )

    def _logprob_in(self, view: View, law: Mixture, token: Tensor) -> NDArray[np.float32]:
        """Logprobs float32 [G] of `token` [G] in one view of the whole rows."""
        report = Report.of(view, self.logits, self.branches[0], law.masses[0])
        row = torch.arange(self.rows.count, device=token.device)
        found = report.law.logprobs(report.of_tokens(row, token.clamp(min=0))[:, None])
        return found[:, 0].cpu().numpy()

    def _masses(self, law: Mixture) -> tuple[list[int], list[int]]:
        """Of each row the mass of the kept ids, and of what the last temperature stage saw (S-R2). One round."""
        state = self.branches[0]
        seen = state.all_weights * state.base
        mixed = len(self.branches) > 1 or law.redraw is not None
        held = seen * law.possible if mixed else law.weights[0]
        both = self.shard.comm.sum(torch.stack([held.sum(1), seen.sum(1)]))
        held, seen = both.tolist()
        return held, [max(mass, 1) for mass in seen]

    def write_views(self, out: Drawn, law: Mixture, token: Tensor, at: Tensor, asked: Tensor, ok: Tensor) -> None:
        """Put what the rows report into their places in `out`, at `at` [G], and asked logprobs at `asked` [A].

        `token` [G] was drawn; `ok` bool [G] says which rows have one.
        """
        for view in np.unique(self.rows.views[self.rows.views != View.NONE]).tolist():
            self._write_view(out, View(view), law, token, at, asked, ok)

    def _write_view(
        self, out: Drawn, view: View, law: Mixture, token: Tensor, at: Tensor, asked: Tensor, ok: Tensor
    ) -> None:
        """Fill in the rows of this group, at `at` [G], that ask for `view`; `token` [G] was drawn, `asked` [A] is where
        asked logprobs go, `ok` bool [G] says which rows have a token."""
        report = self._report(view, law)
        good = (integers(self.rows.views == int(view), at) > 0) & ok
        wants = integers(np.repeat(np.arange(self.rows.count), np.diff(self.rows.asked_start)), at)
        row = torch.cat([torch.arange(self.rows.count, device=at.device), wants])
        sort_key = report.of_tokens(row, torch.cat([token, integers(self.rows.asked_ids, at)]))
        drawn, given = sort_key[: self.rows.count], sort_key[self.rows.count :]
        out.logprobs[at[good]] = report.law.logprobs(drawn[:, None])[good, 0]
        out.ranks[at[good]] = report.ranks(drawn)[good]
        out.asked_logprobs[asked[good[wants]]] = report.law.rows(wants).logprobs(given[:, None])[good[wants], 0]
        most = int(self.rows.top_n.max(initial=0))
        if most:
            _write_top(out, *report.top(most), integers(self.rows.top_n, at), good, at)


def _with_checks(rows: SamplingMetadata) -> SamplingMetadata:
    """`rows` with the mask that is checked after a draw as a hard mask."""
    return replace(rows, masks=rows.masks & rows.checks if rows.masks.size else rows.checks, memo={})


def _write_top(out: Drawn, ids: Tensor, lp: Tensor, top_n: Tensor, good: Tensor, at: Tensor) -> None:
    """Put the first `top_n` [G] of the entries `ids`, `lp` [G, n] into the rows `at` [G] of `out` that are `good`."""
    n = ids.shape[1]
    inside = (torch.arange(n, device=ids.device) < top_n[:, None]) & good[:, None]
    row, column = torch.nonzero(inside, as_tuple=True)
    out.top_ids[at[row], column] = ids[inside]
    out.top_logprobs[at[row], column] = lp[inside]


def uniforms(rows: SamplingMetadata, domain: Domain) -> list[int]:
    """The uniform of each row, a whole number below 2^64 (S-W7)."""
    each = zip(rows.seeds.tolist(), rows.steps.tolist(), rows.samples.tolist(), strict=True)
    return [uniform64(seed, step, sample, domain) for seed, step, sample in each]


def protected_from_xtc(rows: SamplingMetadata, x: Tensor) -> Tensor | None:
    """bool [B, N] like `x`: the tokens that XTC must spare; None when no row has any."""
    if not rows.protected_ids.size:
        return None
    row, at = ranges(rows.protected_start[:-1], rows.protected_start[1:])
    mask = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    mask[integers(row, x), integers(rows.protected_ids[at], x)] = True
    return mask
