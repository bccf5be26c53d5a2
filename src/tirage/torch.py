"""What PyTorch's users need besides `tirage.sample`: the slope of a law, and tokens straight from hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tirage.backends import torch as backend
from tirage.backends.groups import Ids
from tirage.backends.torch.dispatch import draw_packed
from tirage.laws.held_rows import HeldRows
from tirage.laws.token_laws import LawRequest, PlainLaw, TokenLaw, law_batch
from tirage.params import SamplingParams
from tirage.sample_hidden import sample_hidden as sample_hidden
from tirage.sampling import Counter, Pair, States, row_states

# From so many kept ids on, slopes of a row are made when they are asked for, by PyTorch in float32; and the values of
# how many such rows are found at once.
_WIDE, _AT_ONCE = 1024, 256


def log_law(
    logits: Tensor,
    params: SamplingParams | Sequence[SamplingParams],
    token_ids: Any,
    *,
    history: Sequence[Pair] | None = None,
    step: Counter | None = None,
    mask: Any = None,
    kept: Any = None,
    state: States | None = None,
) -> Tensor:
    """ln of the probability of each row's token under its law, a tensor [B], differentiable by `logits`.

    `logits` [B, V] or [V], `params`, `history`, `step`, `state` and `mask` int32 [B, ceil(V / 32)] as `tirage.sample`
    takes them; `token_ids` integers [B]. `kept`: the Draw of rows with `return_kept`, or its (kept_ids int [N],
    kept_offsets int [B + 1]): the law on these ids, whatever ids the logits would keep now; None: on those that they
    keep. The ids have no slope; penalties, temperature, dynamic temperature and mixtures have theirs.

    float32 for logits of at most 32 bits, and then the value is `Draw.sampled_logprobs` bit for bit where the logits
    are those of the draw, so that the ratio of two policies that agree is exactly 1. float64 for float64. -inf for a
    token outside the law, without slope; NaN for a row that draws nothing. Second derivatives are not defined. Raises
    ParamsError for custom processors, which have no known slope, and for arguments that do not fit. SPEC.md S-R5, S-R6.
    """
    matrix = backend.as_logits(logits)
    states = row_states(tuple(matrix.shape), params, history, step, 0, state)
    words = backend.as_mask(mask, tuple(matrix.shape))
    words = words.cpu().numpy() if isinstance(words, Tensor) else words
    batch = law_batch(states, matrix.shape[1])
    request = LawRequest.of(batch, words, _host(token_ids), _on_host(kept))
    rows = _RowLaws(request, matrix.detach(), logits.detach().reshape(matrix.shape))
    return _LogLaw.apply(logits if logits.ndim == 2 else logits[None], rows)


def _host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _on_host(kept: Any) -> Any:
    pair = (kept.kept_ids, kept.kept_offsets) if hasattr(kept, "kept_ids") else kept
    return tuple(map(_host, pair)) if isinstance(pair, (tuple, list)) and pair and pair[0] is not None else kept


class _RowLaws:
    """The rows of a call: `values` [B], and what their slopes are made of.

    `dense` [n] are rows that keep every token as it is, and those in `_held` keep int32 [n] ids as they are: their
    slopes follow from logits and `values`. The slopes of the others are listed.
    """

    def __init__(self, request: LawRequest, matrix: Tensor, given: Tensor) -> None:
        self._request, self._matrix, self._given = request, matrix, given
        self.wide = given.dtype == torch.float64
        self.dtype = torch.float64 if self.wide else torch.float32
        self.tokens = torch.from_numpy(request.tokens).to(matrix.device)
        self.values = torch.full((matrix.shape[0],), torch.nan, dtype=self.dtype, device=matrix.device)
        self.inverse_t = [1.0 if law is None else float(law.inverse_t) for law in request.plain]
        self._parts: list[tuple[int, Tensor, Tensor]] = []
        self._held: dict[int, Tensor] = {}
        plain = matrix.is_cpu and not self.wide and matrix.is_contiguous()
        self._kernels = HeldRows.of(matrix.shape[1]) if plain else None
        self.dense = self._by_draws()

    def _by_draws(self) -> list[int]:
        """Finds the values of all rows, and the slopes of those that are not dense; gives the dense ones."""
        request, size = self._request, self._matrix.shape[1]
        plain = [r for r, law in enumerate(request.plain) if law is not None]
        dense = [r for r in plain if request.kept is None and self._is_dense(r)]
        drawn = [r for r in plain if request.kept is None]
        own = self._draw(np.array(drawn, np.int64), size) if drawn else {}
        for r in dense if self.wide else ():
            x = (self._given[r] - self._given[r].amax()) * self.inverse_t[r]
            found = x[self._request.tokens[r]] - torch.logsumexp(x, 0)
            self.values[r] = torch.where(torch.isnan(self.values[r]), torch.nan, found)
        wide = {} if self.wide else {r: ids for r, ids in self._plain_ids(own).items() if ids.size >= _WIDE}
        self._hold(wide)
        for r in range(len(request.plain)):
            if r not in dense and r not in self._held:
                self._list(r, own.get(r))
        return dense

    def _plain_ids(self, own: Mapping[int, Any]) -> dict[int, Any]:
        """The ids of the rows whose laws are those of their logits as they are, without edits and masks."""
        request = self._request
        plain = [r for r, law in enumerate(request.plain) if law is not None and not law.edited]
        found = {r: own.get(r) if request.kept is None else request.kept[r] for r in plain}
        return {} if request.rows.masks.size else {r: ids for r, ids in found.items() if ids is not None}

    def _hold(self, wide: Mapping[int, Any]) -> None:
        """Takes the rows with these ids for those whose slopes follow from their values, and finds values not known.

        Left out are rows with a recorded id that is not finite, and those whose m a record does not hold.
        """
        held = {
            r: torch.from_numpy(ids.astype(np.int32, copy=False)).to(self._matrix.device) for r, ids in wide.items()
        }
        if self._request.kept is None:
            self._held = {r: ids for r, ids in held.items() if not bool(torch.isnan(self.values[r]))}
            for r in self._held:
                if not _holds(wide[r], int(self._request.tokens[r])):
                    self.values[r] = -torch.inf
            return
        if self._kernels is not None:
            self._hold_by_kernels(self._kernels, held)
            return
        which = np.array([*held], np.int64)
        for some in np.array_split(which, -(-which.size // _AT_ONCE)) if which.size else ():
            self._hold_recorded(some, held)

    def _hold_by_kernels(self, kernels: HeldRows, held: Mapping[int, Tensor]) -> None:
        for r, ids in held.items():
            law = self._request.plain[r]
            assert law is not None
            value = kernels.value(law, self._matrix[r].numpy(), ids.numpy(), int(self._request.tokens[r]))
            if value is not None:
                self._held[r], self.values[r] = ids, float(value)

    def _hold_recorded(self, which: Ids, held: Mapping[int, Tensor]) -> None:
        """`_hold` for the rows `which` [n], from the logits of their recorded ids alone."""
        sizes = [held[r].numel() for r in which.tolist()]
        logits = self._matrix.new_full((which.size, max(sizes)), -torch.inf)
        for at, r in enumerate(which.tolist()):
            torch.index_select(self._matrix[r], 0, held[r], out=logits[at, : sizes[at]])
        places = [int(np.searchsorted(held[r].cpu().numpy(), self._request.tokens[r])) for r in which.tolist()]
        drawn = draw_packed(logits, self._request.held_alone(which, np.array(places, np.int64)))
        found, support = cast("Tensor", drawn.asked_logprobs).to(self.dtype), drawn.support.tolist()
        whole = (logits.amax(1) == self._rows(which).amax(1)).tolist()
        for at, r in enumerate(which.tolist()):
            law = self._request.plain[r]
            # Ids without weight may be too far below the others, which is fine, or forbidden, which is not.
            finite = support[at] == sizes[at] or bool(logits[at, : sizes[at]].isfinite().all())
            if finite and law is not None and (whole[at] or not law.from_largest):
                self._held[r], self.values[r] = held[r], found[at]

    def _places(self, which: Ids) -> Tensor:
        return torch.from_numpy(which).to(self._matrix.device)

    def _rows(self, which: Ids) -> Tensor:
        """The logits of the rows `which` [n], without a copy where that is all of them."""
        return self._matrix if which.size == self._matrix.shape[0] else self._matrix[self._places(which)]

    def _is_dense(self, r: int) -> bool:
        law, rows = self._request.plain[r], self._request.rows
        return law is not None and not law.filtered and not law.edited and not rows.masks.size

    def _draw(self, which: Ids, size: int) -> dict[int, Any]:
        """Sets the values of the rows `which` [n], and gives the ids that they keep; None where that is all."""
        some = self._request.drawn(which, size)
        drawn = draw_packed(self._rows(which), some)
        self.values[self._places(which)] = cast("Tensor", drawn.asked_logprobs).to(self.dtype)
        kept = [None] * which.size if some.records is None else some.records.kept
        limits = np.zeros(which.size) if some.records is None else some.records.limits
        found = zip(which.tolist(), kept, limits, strict=True)
        return {r: None if ids is None or not limit else ids for r, ids, limit in found}

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
        logits, doubles = self._matrix[r].cpu(), self._given[r].cpu().to(torch.float64)
        found = request.of_row(r, logits.numpy(), doubles.numpy(), kept)
        self._take(r, found, torch.from_numpy(found.ids))

    def _list_held(self, r: int, law: PlainLaw, kept: Ids) -> None:
        """Lists a row of plain kept ids [n]: only their logits are looked at, where they are."""
        if not _holds(kept, int(self._request.tokens[r])):
            self.values[r] = -torch.inf
            return
        at = int(np.searchsorted(kept, self._request.tokens[r]))
        ids = torch.from_numpy(kept.astype(np.int64)).to(self._matrix.device)
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
        for r in set(range(out.shape[0])) - set(self.dense) - set(self._held):
            out[r].zero_()
        for r, ids, slopes in self._parts if listed else ():
            out[r].index_add_(0, ids, (slopes * scale[r]).to(out.dtype))
        for r, ids in self._held.items():
            self._write_held(r, ids, out[r], float(scale[r]))

    def _write_held(self, r: int, ids: Tensor, out: Tensor, scale: float) -> None:
        law = self._request.plain[r]
        if self._has_no_slope(r, scale):
            out.zero_()
        elif self._kernels is not None and law is not None and out.dtype == torch.float32:
            row, token = self._matrix[r].numpy(), int(self._request.tokens[r])
            self._kernels.write_slopes(law, row, ids.numpy(), out.numpy(), token=token, scale=scale)
        else:
            x, t = self._exact_row(r).index_select(0, ids), self.inverse_t[r]
            slopes = torch.zeros_like(out, dtype=self.dtype)
            slopes.index_copy_(0, ids.long(), _shares(x, t).mul_(-scale * t))
            self._write_row(r, slopes, out, scale)

    def _write_dense(self, r: int, out: Tensor, scale: float) -> None:
        if self._has_no_slope(r, scale):
            out.zero_()
            return
        t = self.inverse_t[r]
        slopes = _shares(self._exact_row(r), t, out=out if out.dtype == self.dtype else None)
        self._write_row(r, slopes.mul_(-scale * t), out, scale)

    def _has_no_slope(self, r: int, scale: float) -> bool:
        return scale == 0.0 or not bool(torch.isfinite(self.values[r]))

    def _exact_row(self, r: int) -> Tensor:
        """The logits of a row in the dtype of its value."""
        return self._given[r] if self.wide else self._matrix[r]

    def _write_row(self, r: int, slopes: Tensor, out: Tensor, scale: float) -> None:
        """Adds to `slopes` [V] what the token has of its own, and writes them to `out` [V], which they may be."""
        slopes[int(self._request.tokens[r])] += scale * self.inverse_t[r]
        if slopes is not out:
            out.copy_(slopes)


def _holds(ids: Any, token: int) -> bool:
    """Whether a token is among `ids` [n], which ascend."""
    at = int(np.searchsorted(ids, token))
    return at < ids.size and ids[at] == token


def _shares(x: Tensor, t: float, out: Tensor | None = None) -> Tensor:
    """softmax(x t) of logits [n], in `out` if it is given.

    By their own sum: ln Z as the logit of a token minus its rounded logprob has no bits left where both are large.
    """
    # The difference first: the product of large logits with 1 / T has lost what tells them apart.
    return torch.softmax(x if t == 1.0 else (x - x.amax()).mul_(t), 0, out=out)


class _LogLaw(torch.autograd.Function):
    """The values of `_RowLaws`, with their slopes by the logits [B, V]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: _RowLaws) -> Tensor:
        ctx.rows, ctx.shape, ctx.dtype = rows, logits.shape, logits.dtype
        ctx.save_for_backward(logits)
        return rows.values.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (scale,) = given
        # Raises where the logits, from which slopes are made only now, have been written to since.
        _ = ctx.saved_tensors
        out = torch.empty(ctx.shape, dtype=ctx.dtype, device=scale.device)
        ctx.rows.write(out, scale)
        return out, None
