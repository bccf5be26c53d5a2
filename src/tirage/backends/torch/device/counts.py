"""What a token changes in the tables of its row, as operations on whole tables: histories, counts, state and length."""

from __future__ import annotations

import torch
from torch import Tensor

from tirage.backends.torch.device import carry, past
from tirage.backends.torch.device.past import Tables
from tirage.backends.torch.plan import STEP


def append(token: Tensor, tables: Tables, *, room: int, size: int) -> None:
    """Appends a token int64 [capacity] to each row, as `ops.append` describes it."""
    legal = (token >= 0) & (token < size) & tables["used"]
    wrong = (token != -1) & ~legal & (tables["fault"] == -1)
    tables["fault"].copy_(torch.where(wrong, token, tables["fault"]))
    new = legal & (tables["length"] < room)
    _say(tables, token, new)
    if tables["count_ids"].shape[1]:
        _count(tables, token, new)
    if tables["ring"].shape[1]:
        past.remember(tables, token, new)
    if tables["carry"].shape[1]:
        carry.move(tables["carry"], tables["meta"], token, new)
    tables["said"].add_(new)
    tables["length"].add_(legal)
    tables["meta"][:, STEP].add_(new)


def _say(tables: Tables, token: Tensor, new: Tensor) -> None:
    tail = tables["tail"]
    at = tables["said"].clamp(max=tail.shape[1] - 1)[:, None]
    tail.scatter_(1, at, torch.where(new[:, None], token[:, None].to(torch.int32), tail.gather(1, at)))


def _count(tables: Tables, token: Tensor, new: Tensor) -> None:
    ids, distinct = tables["count_ids"], tables["distinct"][:, None]
    places = torch.arange(ids.shape[1], device=token.device)
    # Entries past the last repeat the first one, so what comes first in a row fills all of them.
    place, here = distinct, (places == distinct) | (distinct == 0)
    if tables["window"].shape[1]:
        place, here = _freed(tables, places, new)
    same = (ids == token[:, None]) & (distinct > 0) & new[:, None]
    first = new & ~same.any(1)
    here = here & first[:, None]
    ids.copy_(torch.where(here, token[:, None], ids))
    tables["in_output"].add_(same).masked_fill_(here, 1)
    tables["in_prompt"].masked_fill_(here, 0)
    tables["distinct"].add_(first if place is distinct else first & (place == distinct)[:, 0])


def _freed(tables: Tables, places: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """(the place [B, 1] of a token not counted before, bool [B, n]: the entries that hold what is there).

    The token that leaves a window is counted once less; the place of one that is counted no more is free.
    """
    distinct = tables["distinct"][:, None]
    gone = (tables["count_ids"] == past.leaving(tables)) & (distinct > 0) & new[:, None]
    tables["in_output"].sub_(gone.to(torch.int32))
    is_free = (tables["in_output"] + tables["in_prompt"] == 0) & (places < distinct)
    place = torch.where(is_free, places, distinct).amin(1, keepdim=True)
    return place, (places == place) | ((place == 0) & (places >= distinct))
