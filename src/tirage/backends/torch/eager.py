"""Drawing with plain tensor operations: every operator on any device, bit for bit what the NumPy path draws.

Left to the host are rows whose rules are Python or two draws in one: custom processors, masks that count only after
a draw (`resample`), and the sampled view of XTC's mixture; `on_device` says which. No speed is claimed: filters
sort, and a step exchanges B integers with the host.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends import Drawn, SamplingMetadata, View
from tirage.backends.groups import Ids, asked_of, by_program, has, ranges, taken
from tirage.backends.torch.chain import FilterState, run, sums
from tirage.backends.torch.edits import edited
from tirage.backends.torch.report import Report, mixed_logprob, sampled
from tirage.backends.torch.rule import floats, host
from tirage.exact.philox import Domain, uniform64
from tirage.stages import Op

OK, NON_FINITE, NO_TOKEN = 0, 1, 2


def on_device(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that tensor operations can draw."""
    return ~(has(rows, Op.PROCESS) | rows.resample | (has(rows, Op.XTC) & (rows.views == View.SAMPLED)))


def blank(rows: SamplingMetadata, like: Tensor) -> Drawn:
    """A Drawn of tensors where `like` lives, filled with the sentinels of rows that asked for nothing."""
    return Drawn.empty(rows).moved(lambda array: torch.from_numpy(array).to(like.device))


def write_rows(out: Drawn, drawn: Drawn, rows: SamplingMetadata, which: Ids) -> None:
    """Put `drawn`, a Drawn of the rows `which` alone, into their places in `out`."""
    status: Any = out.status
    at = host(which, status)
    n = drawn.top_ids.shape[1]
    for f in fields(Drawn):
        value, target = getattr(drawn, f.name), getattr(out, f.name)
        if f.name == "asked_logprobs":
            target[host(asked_of(rows, which), target)] = value
        elif f.name in {"top_ids", "top_logprobs"}:
            target[at, :n] = value
        else:
            target[at] = value
    out.top_logprobs[at] = out.top_logprobs[at].masked_fill((out.status[at] != 0)[:, None], torch.nan)


def draw(logits: Tensor, rows: SamplingMetadata) -> Drawn:
    """One token for each row of float32 logits [B, V]; every row must be `on_device`."""
    out = blank(rows, logits)
    draw_into(out, logits, rows, np.arange(rows.count))
    return out


def draw_into(out: Drawn, logits: Tensor, rows: SamplingMetadata, which: Ids) -> None:
    """Draw the rows `which` into `out`."""
    for part in by_program(rows, which):
        whole = part.size == rows.count
        some = rows if whole else taken(rows, part)
        _Group.of(logits if whole else logits[host(part, logits)], some).write(out, part, asked_of(rows, part))


@dataclass(slots=True, kw_only=True)
class _Group:
    """Rows of one list of operations: logits, edited logits, and the branches of their law."""

    logits: Tensor
    rows: SamplingMetadata
    x: Tensor
    status: Tensor
    off: FilterState
    on: FilterState | None
    shares: list[int]

    @classmethod
    def of(cls, logits: Tensor, rows: SamplingMetadata) -> _Group:
        state = edited(logits, rows)
        bad, x = state.spoiled(), state.x
        protected = protected_from_xtc(rows, x)
        xtc = np.flatnonzero(rows.programs[0, :, 0] == int(Op.XTC))
        off = FilterState.of(x)
        status = torch.where(off.kept.any(1), OK, NO_TOKEN).masked_fill(bad, NON_FINITE)
        on = run(FilterState.of(x, coin=True, protected=protected), rows.programs) if xtc.size else None
        shares = rows.programs[:, xtc[0], 1].tolist() if xtc.size else [0] * rows.count
        return cls(logits=logits, rows=rows, x=x, status=status, off=run(off, rows.programs), on=on, shares=shares)

    def write(self, out: Drawn, part: Ids, asked: Ids) -> None:
        """Draw, and put what each row asked for into its place in `out`."""
        at = host(part, self.x)
        ok = self.status == OK
        token, lp, support = self._draw()
        out.status[at] = self.status.to(torch.int8)
        out.token_ids[at] = torch.where(ok, token, -1)
        out.sampled_logprobs[at] = torch.where(ok, lp, torch.nan)
        out.support[at] = torch.where(ok, support, 0)
        out.top_logprobs[at] = torch.where(ok[:, None], out.top_logprobs[at], torch.nan)
        for view in np.unique(self.rows.views[self.rows.views != View.NONE]).tolist():
            self._report(out, View(view), token, at, host(asked, self.x))

    # --- the draw -------------------------------------------------------------------------------------------------

    def _draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """(token, sampled logprob, support) of each row; meaningless for bad rows."""
        w_off = self.off.by_id(self.off.w())
        if self.on is None:
            token = self._pick(w_off)
            lp = self.off.by_id(sampled(self.off)).gather(1, token[:, None])[:, 0]
            return token, lp, (w_off > 0).sum(1)
        w_on = self.on.by_id(self.on.w())
        tossed = zip(uniforms(self.rows, Domain.XTC), self.shares, strict=True)
        coin = host([u >> 32 < share for u, share in tossed], w_on)
        token = self._pick(torch.where(coin[:, None] > 0, w_on, w_off))
        at = token[:, None]
        each = zip(
            zip(w_off.gather(1, at)[:, 0].tolist(), w_on.gather(1, at)[:, 0].tolist(), strict=True),
            zip(sums(w_off), sums(w_on), strict=True),
            self.shares,
            strict=True,
        )
        lp = floats([mixed_logprob(*row) for row in each], self.x)
        never = host([share == 1 << 32 for share in self.shares], w_on)[:, None] > 0
        return token, lp, ((w_on > 0) | ((w_off > 0) & ~never)).sum(1)

    def _pick(self, w: Tensor) -> Tensor:
        """First token, in id order, whose running sum exceeds floor(U * W / 2^64): rule S-W5."""
        reached = w.cumsum(1)
        r = [u * total >> 64 for u, total in zip(uniforms(self.rows, Domain.DRAW), sums(w), strict=True)]
        return (reached <= host(r, w)[:, None]).sum(1).clamp(max=w.shape[1] - 1)

    # --- the report -----------------------------------------------------------------------------------------------

    def _report(self, out: Drawn, view: View, token: Tensor, at: Tensor, asked: Tensor) -> None:
        """Fill in the rows of this group that ask for `view`."""
        report = Report.of(view, self.logits, self.x, self.off)
        mine = host(self.rows.views == int(view), at) > 0
        good = mine & (self.status == OK)
        lp, rank = report.of_tokens(token)
        out.logprobs[at[good]] = lp[good]
        out.ranks[at[good]] = rank[good]
        wants = host(np.repeat(np.arange(self.rows.count), np.diff(self.rows.asked_start)), at)
        out.asked_logprobs[asked[good[wants]]] = report.asked(self.rows)[good[wants]]
        most = int(self.rows.top_n.max(initial=0))
        if most:
            ids, values = report.top(most)
            place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
            inside = (place < host(self.rows.top_n, at)[:, None]) & good[:, None]
            to = at[:, None].expand_as(ids)[inside], place[inside]
            out.top_ids[to], out.top_logprobs[to] = ids[inside], values[inside]


def uniforms(rows: SamplingMetadata, domain: Domain) -> list[int]:
    """The uniform of each row, a whole number below 2^64 (S-W7)."""
    each = zip(rows.seeds.tolist(), rows.steps.tolist(), rows.samples.tolist(), strict=True)
    return [uniform64(seed, step, sample, domain) for seed, step, sample in each]


def protected_from_xtc(rows: SamplingMetadata, x: Tensor) -> Tensor | None:
    """Boolean [B, V] like `x`: the tokens that XTC must spare; None when no row has any."""
    if not rows.protected_ids.size:
        return None
    row, at = ranges(rows.protected_start[:-1], rows.protected_start[1:])
    mask = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    mask[host(row, x), host(rows.protected_ids[at], x)] = True
    return mask
