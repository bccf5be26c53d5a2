"""The draw of a batch some of whose rows the host draws, put together from both parts, as tensors of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tirage.backends.torch.device.rows import uploaded
from tirage.draw import Draw, Status

_COMMON = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds")
_BLANK = {
    "logprobs": (torch.nan, torch.float32),
    "ranks": (0, torch.int64),
    "top_token_ids": (-1, torch.int64),
    "top_logprobs": (-torch.inf, torch.float32),
    "given_logprobs": (torch.nan, torch.float32),
}
"""The fields of a view, what rows hold that asked for none, and the type of both."""


def mixed(there: Draw, here: Draw, is_here: Tensor) -> Draw:
    """The rows of `here` where `is_here` bool [B], those of `there` elsewhere, of draws of B rows each.

    Rows that the other part has drawn are empty slots in both. What is told of sets is that of `here`. Lists of first
    candidates, and of tokens that rows name, are as wide as the wider ones.
    """
    common = {name: torch.where(is_here, getattr(here, name), getattr(there, name)) for name in _COMMON}
    views = _views(there, here, is_here, common["status"])
    return replace(here, **common, **views, states=_states(there, here, is_here))


def _states(there: Draw, here: Draw, is_here: Tensor) -> Any:
    """The states [B] of both parts, NaN for rows that carry none; those of one part where the other has none."""
    if there.states is None or here.states is None:
        return here.states if there.states is None else there.states
    sent = uploaded({"states": here.states}, is_here.device)["states"]
    return torch.where(is_here, sent, there.states)


def _views(there: Draw, here: Draw, is_here: Tensor, status: Tensor) -> dict[str, Any]:
    """The fields of the views, none if neither part has any; a row without a token has NaN for all that it lists."""
    told = [as_tensors(each, is_here.device) for each in (here, there)]
    known = [each for each in told if each.logprobs is not None]
    if not known:
        return {}
    shapes = {name: _widest([getattr(each, name) for each in known]) for name in _BLANK}
    parts = [_widened(each, is_here, shapes) for each in told]
    found: dict[str, Any] = {
        name: torch.where(is_here if one.ndim == 1 else is_here[:, None], one, other)
        for name, one, other in zip(_BLANK, *parts, strict=True)
    }
    failed = (status != Status.ok) & (status != Status.empty_slot)
    found["top_logprobs"] = found["top_logprobs"].masked_fill(failed[:, None], torch.nan)
    return found


def as_tensors(draw: Draw, device: torch.device) -> Draw:
    """A draw of B rows whose `given_logprobs` are a tensor float32 [B, N] on the device, NaN past a row's own."""
    given = draw.given_logprobs
    if given is None or isinstance(given, Tensor):
        return draw
    wide = np.full((len(given), max(map(len, given), default=0)), np.nan, np.float32)
    for row, values in zip(wide, given, strict=True):
        row[: len(values)] = values
    sent: Any = uploaded({"given": wide}, device)["given"]
    return replace(draw, given_logprobs=sent)


def _widest(fields: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape, without B, that holds each of these tensors [B] or [B, n]."""
    return tuple(map(max, zip(*(each.shape[1:] for each in fields), strict=True)))


def _widened(draw: Draw, like: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> list[Tensor]:
    """The fields of a draw's views for rows `like` [B], in these shapes without B; blank ones where it has none."""
    found = []
    for name, (blank, dtype) in _BLANK.items():
        wide = torch.full((len(like), *shapes[name]), blank, dtype=dtype, device=like.device)
        if draw.logprobs is not None:
            values = getattr(draw, name)
            wide[(..., *(slice(0, n) for n in values.shape[1:]))] = values
        found.append(wide)
    return found
