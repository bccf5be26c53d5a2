"""The draw of a batch some of whose rows the host draws, put together from both parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tirage.backends.torch.device.rows import uploaded
from tirage.draw import Draw, Status

_COMMON = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds")
_BLANK = {"logprobs": torch.nan, "ranks": 0, "top_token_ids": -1, "top_logprobs": -torch.inf}
"""The fields of a view, and what rows hold that asked for none."""


def mixed(there: Draw, here: Draw, is_here: Tensor) -> Draw:
    """The rows of `here` where `is_here` bool [B], those of `there` elsewhere, of draws of B rows each.

    Rows that the other part has drawn are empty slots in both. What is told of sets is that of `here`. Lists of first
    candidates are as wide as the wider ones.
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
    widths = [each.top_token_ids.shape[1] for each in (there, here) if each.logprobs is not None]
    if not widths:
        return {}
    parts = [_widened(each, is_here, max(widths)) for each in (here, there)]
    found: dict[str, Any] = {
        name: torch.where(is_here if one.ndim == 1 else is_here[:, None], one, other)
        for name, one, other in zip(_BLANK, *parts, strict=True)
    }
    failed = (status != Status.ok) & (status != Status.empty_slot)
    found["top_logprobs"] = found["top_logprobs"].masked_fill(failed[:, None], torch.nan)
    given = here.given_logprobs or ((),) * len(status)
    return {**found, "given_logprobs": given}


def _widened(draw: Draw, like: Tensor, width: int) -> list[Tensor]:
    """The fields of a draw's views for rows `like` [B], with lists of a width; blank ones where it has none."""
    found = []
    for (name, blank), dtype in zip(_BLANK.items(), _DTYPES, strict=True):
        shape = (len(like), width) if name.startswith("top") else (len(like),)
        wide = torch.full(shape, blank, dtype=dtype, device=like.device)
        if draw.logprobs is not None:
            values = getattr(draw, name)
            wide[(..., *(slice(0, n) for n in values.shape[1:]))] = values
        found.append(wide)
    return found


_DTYPES = (torch.float32, torch.int64, torch.int64, torch.float32)
