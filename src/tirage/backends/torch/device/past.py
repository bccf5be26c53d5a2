"""The newest tokens of rows whose tables lie on a device: windows, n-grams, phrases and DRY as operations on tables.

`ahead` says of each token how many before it agree with the newest ones. A new token prolongs the matches that it goes
on with and ends the others, so a step costs one pass over the ring, however long matches are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tirage.backends.torch.device.past_form import ABSENT, ANY
from tirage.backends.torch.rule import cleaned

Tables = Mapping[str, Tensor]
"""Tables of B rows, by the names of `row_form.arrays_of`."""


def has_bans(tables: Tables) -> bool:
    """Whether some row may forbid tokens by what came before."""
    return bool(tables["ngram"].shape[1] or tables["phrases"].shape[1])


def bans(tables: Tables) -> tuple[Tensor, Tensor]:
    """(ids int64 [B, n], bool [B, n]: whether what came before forbids it now)."""
    found = []
    if tables["ngram"].shape[1]:
        found.append(_repeating(tables))
    if tables["phrases"].shape[1]:
        ids, due = completed(tables)
        found.append((ids, due & (tables["phrase_bias"] == -torch.inf)))
    ids, due = zip(*found, strict=True)
    return torch.cat(ids, 1), torch.cat(due, 1)


def _repeating(tables: Tables) -> tuple[Tensor, Tensor]:
    """(ids int64 [B, R], bool [B, R]: tokens that would complete a sequence of `ngram` tokens once more): S-H4."""
    size = tables["ngram"]
    is_there = _ages(tables) < tables["length"][:, None]
    return _tokens(tables), is_there & (size > 0) & (tables["ahead"] >= size - 1)


def completed(tables: Tables) -> tuple[Tensor, Tensor]:
    """(ids int64 [B, P], bool [B, P]: the phrases of which all tokens but the last are the newest ones): S-H3, S-H7."""
    phrases, ids = tables["phrases"], tables["phrase_ids"]
    back = torch.arange(phrases.shape[2], device=phrases.device)
    length, size = tables["length"][:, None], tables["ring"].shape[1]
    newest = tables["ring"].gather(1, (length - 1 - back) & (size - 1))
    newest = newest.masked_fill(back >= length, ABSENT)
    own = newest.masked_fill(back >= length - tables["prompt"], ABSENT)
    read = torch.where(tables["phrase_own"][:, :, None], own[:, None], newest[:, None])
    return ids.clamp(min=0), (ids != ABSENT) & ((phrases == ANY) | (phrases == read)).all(2)


def prolonging(tables: Tables, allowed: Tensor, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(ids int64 [B, R], bool [B, R]: tokens that would prolong a repetition, DRY's penalties float32 [B, R]): S-H5.

    `allowed` and `window` int64 [B, 1]: the longest repetition without a penalty, and how many tokens are looked at.
    """
    ids, powers = _tokens(tables), tables["powers"]
    # In the window lie as many tokens before each as are left of it.
    before = torch.minimum(tables["length"][:, None], window) - 1 - _ages(tables)
    length = torch.minimum(torch.minimum(tables["ahead"].to(torch.int64), before), tables["unbroken"])
    ends = (length >= allowed) & ~_breaks(tables, ids)
    return ids, ends, powers.gather(1, torch.minimum((length - allowed).clamp(min=0), tables["last_power"]))


def averaged(tables: Tables, penalty: Tensor, window: Tensor) -> Tensor:
    """`penalty` float32 [B, 1] divided by how many tokens count: those in `window` int32 [B, 1], or all where it is 0.

    The quotient of float64 numbers, rounded again, is that of the float32 ones.
    """
    length = tables["length"][:, None]
    counted = torch.where(window > 0, torch.minimum(length, window), length).clamp(min=1)
    return cleaned((penalty.to(torch.float64) / counted.to(torch.float64)).to(torch.float32))


def leaving(tables: Tables) -> Tensor:
    """The token int64 [B, 1] that leaves the window of penalties when another comes; ABSENT where none does."""
    at = tables["length"][:, None] - tables["window"]
    old = tables["ring"].gather(1, at & (tables["ring"].shape[1] - 1)).to(torch.int64)
    return old.masked_fill((tables["window"] == 0) | (at < 0), ABSENT)


def remember(tables: Tables, token: Tensor, new: Tensor) -> None:
    """Puts `token` int64 [B] behind the others in the rows that are `new` bool [B], before their length changes."""
    ring, ahead = tables["ring"], tables["ahead"]
    new, given = new[:, None], token[:, None]
    if ahead.shape[1]:
        longer = (ahead.roll(1, 1) + 1).masked_fill(ring.roll(1, 1) != given, 0)
        ahead.copy_(torch.where(new, longer, ahead))
    if tables["unbroken"].shape[1]:
        since = (tables["unbroken"] + 1).masked_fill(_breaks(tables, given.masked_fill(~new, 0)), 0)
        tables["unbroken"].copy_(torch.where(new, since, tables["unbroken"]))
    at = tables["length"][:, None] & (ring.shape[1] - 1)
    ring.scatter_(1, at, torch.where(new, given.to(torch.int32), ring.gather(1, at)))


def widened(old: Tensor, new: Tensor, length: Tensor) -> Tensor:
    """`new` [B, R'] with what the smaller rings `old` [B, R] of rows with `length` int64 [B] tokens hold."""
    places = torch.arange(new.shape[1], device=new.device)
    age = (length[:, None] - 1 - places) & (new.shape[1] - 1)
    kept = old.gather(1, (length[:, None] - 1 - age) & (old.shape[1] - 1))
    return torch.where(age < old.shape[1], kept, new)


def _ages(tables: Tables) -> Tensor:
    """How many tokens came after the one in each place of the ring, int64 [B, R]; `length` or more where none is."""
    size = tables["ring"].shape[1]
    places = torch.arange(size, device=tables["ring"].device)
    return (tables["length"][:, None] - 1 - places) & (size - 1)


def _tokens(tables: Tables) -> Tensor:
    """Ids int64 [B, R] in the rings, any legal one where there is none."""
    return tables["ring"].to(torch.int64).clamp(min=0)


def _breaks(tables: Tables, ids: Tensor) -> Tensor:
    """bool [B, n]: which `ids` int64 [B, n] DRY's matches do not cross."""
    return (tables["breaks"].gather(1, ids >> 5) >> (ids & 31).to(torch.int32)) & 1 == 1
