"""What PyTorch's users need besides `tirage.sample`: the slope of a law, and tokens straight from hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tirage.backends import torch as backend
from tirage.backends.groups import Ids
from tirage.backends.torch.dispatch import draw_packed
from tirage.errors import ParamsError
from tirage.params import SamplingParams
from tirage.sample_hidden import sample_hidden as sample_hidden
from tirage.sampling import Counter, Pair, row_states
from tirage.sampling_batch import SamplingBatch
from tirage.token_laws import LawRequest, PlainLaw, TokenLaw


def log_law(
    logits: Tensor,
    params: SamplingParams | Sequence[SamplingParams],
    token_ids: Any,
    *,
    history: Sequence[Pair] | None = None,
    step: Counter | None = None,
    mask: Any = None,
    kept: Any = None,
) -> Tensor:
    """ln of the probability of each row's token under its law, a tensor [B], differentiable by `logits`.

    `logits` [B, V] or [V], `params`, `history`, `step` and `mask` int32 [B, ceil(V / 32)] as `tirage.sample` takes
    them; `token_ids` integers [B]. `kept`: the Draw of rows with `return_kept`, or its (kept_ids int [N], kept_offsets
    int [B + 1]): the law on these ids, whatever ids the logits would keep now; None: on those that they keep. The ids
    have no slope; penalties, temperature, dynamic temperature and mixtures have theirs.

    float32 for logits of at most 32 bits, and then the value is `Draw.sampled_logprobs` bit for bit where the logits
    are those of the draw, so that the ratio of two policies that agree is exactly 1. float64 for float64. -inf for a
    token outside the law, without slope; NaN for a row that draws nothing. Second derivatives are not defined. Raises
    ParamsError for custom processors, which have no known slope, and for arguments that do not fit. SPEC.md S-R5, S-R6.
    """
    matrix = backend.as_logits(logits)
    states = row_states(tuple(matrix.shape), params, history, step, 0)
    words = backend.as_mask(mask, tuple(matrix.shape))
    words = words.cpu().numpy() if isinstance(words, Tensor) else words
    batch = SamplingBatch.of(states, matrix.shape[1])
    if batch.processes is not None:
        raise ParamsError(
            "logits_processors must be empty in log_law, got some; their slope is not known: change the logits before"
        )
    request = LawRequest.of(batch, words, _host(token_ids), _on_host(kept))
    rows = _RowLaws(request, matrix.detach(), logits.detach().reshape(matrix.shape))
    return _LogLaw.apply(logits if logits.ndim == 2 else logits[None], rows)


def _host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _on_host(kept: Any) -> Any:
    pair = (kept.kept_ids, kept.kept_offsets) if hasattr(kept, "kept_ids") else kept
    return tuple(map(_host, pair)) if isinstance(pair, (tuple, list)) and pair[0] is not None else kept


class _RowLaws:
    """The rows of a call: `values` [B], and what their slopes are made of.

    `dense` [n] are rows that keep every token as it is: their slopes follow from logits and `values`. The slopes of
    the others are listed: `flat` int64 [N] places in [B, V], `slopes` [N] and the row of each, int64 [N].
    """

    def __init__(self, request: LawRequest, matrix: Tensor, given: Tensor) -> None:
        self._request, self._matrix, self._given = request, matrix, given
        self.wide = given.dtype == torch.float64
        self.dtype = torch.float64 if self.wide else torch.float32
        self.tokens = torch.from_numpy(request.tokens).to(matrix.device)
        self.values = torch.full((matrix.shape[0],), torch.nan, dtype=self.dtype, device=matrix.device)
        self.inverse_t = [1.0 if law is None else float(law.inverse_t) for law in request.plain]
        self._parts: list[tuple[int, Tensor, Tensor]] = []
        self.dense = self._by_draws()

    def _by_draws(self) -> list[int]:
        """Finds the values of all rows, and the slopes of those that are not dense; gives the dense ones."""
        request, size = self._request, self._matrix.shape[1]
        plain = [r for r, law in enumerate(request.plain) if law is not None]
        dense = [r for r in plain if request.kept is None and self._is_dense(r)]
        drawn = [r for r in plain if request.kept is None]
        own = self._draw(np.array(drawn, np.int64), size) if drawn else {}
        for r in dense if self.wide else ():
            x = self._given[r] * self.inverse_t[r]
            found = x[self._request.tokens[r]] - torch.logsumexp(x, 0)
            self.values[r] = torch.where(torch.isnan(self.values[r]), torch.nan, found)
        for r in range(len(request.plain)):
            if r not in dense:
                self._list(r, own.get(r))
        return dense

    def _is_dense(self, r: int) -> bool:
        law, rows = self._request.plain[r], self._request.rows
        return law is not None and not law.filtered and not law.edited and not rows.masks.size

    def _draw(self, which: Ids, size: int) -> dict[int, Ids | None]:
        """Sets the values of the rows `which` [n], and gives the ids that they keep; None where that is all."""
        some = self._request.drawn(which, size)
        everything = which.size == self._matrix.shape[0]
        at = torch.from_numpy(which).to(self._matrix.device)
        drawn = draw_packed(self._matrix if everything else self._matrix[at], some)
        self.values[at] = cast("Tensor", drawn.asked_logprobs).to(self.dtype)
        kept = [None] * which.size if some.records is None else some.records.kept
        limits = np.zeros(which.size) if some.records is None else some.records.limits
        found = zip(which.tolist(), kept, limits, strict=True)
        return {r: None if ids is None or not limit else ids.astype(np.int64) for r, ids, limit in found}

    def _list(self, r: int, own: Ids | None) -> None:
        request, law = self._request, self._request.plain[r]
        kept = own if request.kept is None else request.kept[r]
        bad = law is not None and request.kept is None and bool(torch.isnan(self.values[r]))
        if bad:
            return
        if law is not None and kept is not None and not law.edited and not request.rows.masks.size:
            self._list_held(r, law, kept)
            return
        if law is not None and kept is None:
            kept = np.arange(self._matrix.shape[1])
        logits, doubles = (x[r].cpu() for x in (self._matrix, self._given.to(torch.float64)))
        found = request.of_row(r, logits.numpy(), doubles.numpy(), kept)
        self._take(r, found, torch.from_numpy(found.ids))

    def _list_held(self, r: int, law: PlainLaw, kept: Ids) -> None:
        """Lists a row of plain kept ids [n]: only their logits are looked at, where they are."""
        at = int(np.searchsorted(kept, self._request.tokens[r]))
        if at == kept.size or kept[at] != self._request.tokens[r]:
            self.values[r] = -torch.inf
            return
        ids = torch.from_numpy(kept).to(self._matrix.device)
        held = self._matrix[r, ids].cpu().numpy()
        doubles = self._given[r, ids].cpu().numpy() if self.wide else held.astype(np.float64)
        if not np.isfinite(held).all():
            self._take(r, TokenLaw(np.nan), ids[:0])
            return
        value, slopes = law.slopes(doubles, at)
        exact = None
        if self._request.kept is not None:
            exact = law.exact(held, at, np.float32(self._matrix[r].max().item()))
        elif not self.wide:
            exact = np.float32(self.values[r].item())
        self._take(r, TokenLaw(value, kept, slopes, exact), ids)

    def _take(self, r: int, found: TokenLaw, ids: Tensor) -> None:
        """Takes over the value of a row and its slopes at `ids` int64 [n]."""
        self.values[r] = found.value if self.wide else float(found.reported)
        if ids.numel():
            slopes = torch.from_numpy(np.asarray(found.slopes)).to(self.values)
            self._parts.append((r, ids.to(self.values.device), slopes))

    def write(self, out: Tensor, scale: Tensor) -> None:
        """Writes the slopes of all rows, each times its `scale` [B], into `out` [B, V]."""
        for r in self.dense:
            self._write_dense(r, out[r], float(scale[r]))
        listed = {r for r, _, _ in self._parts}
        for r in set(range(out.shape[0])) - set(self.dense):
            out[r].zero_()
        for r, ids, slopes in self._parts if listed else ():
            out[r].index_add_(0, ids, (slopes * scale[r]).to(out.dtype))

    def _write_dense(self, r: int, out: Tensor, scale: float) -> None:
        t, token = self.inverse_t[r], int(self._request.tokens[r])
        x, value = self._given[r], self.values[r]
        if not bool(torch.isfinite(value)) or scale == 0.0:
            out.zero_()
            return
        # ln Z without another pass: the value is x / T - ln Z.
        log_z = float(x[token]) * t - float(value)
        shares = torch.sub(x if t == 1.0 else x * t, log_z, out=out) if out.dtype == x.dtype else x * t - log_z
        out.copy_(shares.exp_().mul_(-scale * t)) if shares is not out else out.exp_().mul_(-scale * t)
        out[token] += scale * t


class _LogLaw(torch.autograd.Function):
    """The values of `_RowLaws`, with their slopes by the logits [B, V]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: _RowLaws) -> Tensor:
        ctx.rows, ctx.shape, ctx.dtype = rows, logits.shape, logits.dtype
        return rows.values.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (scale,) = given
        out = torch.empty(ctx.shape, dtype=ctx.dtype, device=scale.device)
        ctx.rows.write(out, scale)
        return out, None
