"""Rows in shards drawn by the Triton kernels: each shard reads its own logits, and what it finds is put together.

Blocks of all shards are numbered in the order of token ids, each shard's from a block of its own on. What the kernels
pass on of blocks and of rows is exchanged between the launches, so that the two which read no logits run on every shard
with the same numbers. The last kernel reads a row of which a shard has its own logits and those that any shard lists;
the shard that holds the block of the token tells it. SPEC.md S-W5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from tirage.backends.groups import Ids, ranges, taken
from tirage.backends.torch import kernels
from tirage.backends.torch import triton as whole
from tirage.backends.torch.communicator import Communicator, VocabShard
from tirage.backends.torch.edits import edited
from tirage.backends.torch.kernels import layout
from tirage.backends.torch.kernels.histogram import lanes
from tirage.backends.torch.plan import AS_SET, CUTS, DYNAMIC, HEADER, IS_GREEDY, LAWS, SUMS, DrawPlan
from tirage.backends.torch.rule import integers, keys, values
from tirage.backends.torch.shard_reports import ToldRows
from tirage.exact.keys import NEG_INF_KEY
from tirage.operators import FIRST_FILTER
from tirage.operators.min_keep import FLOORED
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.top_p import TOP_P
from tirage.operators.xtc import COINS
from tirage.sampling_metadata import STEP_WIDTH, Drawn, SamplingMetadata, View

_MEASURE: Any = kernels.measure_shard
_SETTLE: Any = kernels.settle_shards
_BOUND: Any = kernels.bound
_SPLIT: Any = kernels.split
_RESOLVE: Any = kernels.resolve
_WEIGH: Any = kernels.weigh
_WEIGH_LEFT: Any = kernels.weigh_left
_DRAW_LEFT: Any = kernels.draw_left
_WHOLE, _LEAST, _GREATEST, _LOWER_LENGTH = (
    at.value for at in (layout.WHOLE, layout.LEAST, layout.GREATEST, layout.LOWER_LENGTH)
)
_FIRST_C, _LAST_C, _WEIGHTY, _SLOT, _SAMPLE = (
    at.value for at in (layout.FIRST_C, layout.LAST_C, layout.WEIGHTY, layout.SLOT, lanes.SAMPLED)
)
_LISTED, _SUMMED, _ALL_FIRST, _TERMS = (
    at.value for at in (layout.LISTED, layout.SUMMED, layout.ALL_FIRST, layout.ADDENDS)
)
_NO_KEY, _WORD = -(1 << 31), (1 << 32) - 1
_FILTERS = (GREEDY, TEMPERATURE, *DYNAMIC, *CUTS, *COINS)
_WEIGHED = (TOP_P, FLOORED[TOP_P])
"""Filters before which all blocks are weighed: no shard could read the others' logits where the mass was in doubt."""


def supports(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that `draw_into` may be given: filters that passes over split blocks run."""
    drawn = _without_views(rows)
    meta, ops = DrawPlan.of(drawn).meta, rows.programs[:, :, 0]
    known = np.isin(ops, _FILTERS) | (ops < FIRST_FILTER)
    return whole.supports(drawn) & known.all(axis=1) & (meta[:, IS_GREEDY] != AS_SET)


def _without_views(rows: SamplingMetadata) -> SamplingMetadata:
    """`rows` as if none reported anything: how they are drawn does not hang on it here."""
    return replace(rows, views=np.full_like(rows.views, View.NONE), memo={})


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of `size` logits of all shards: `firsts` and `counts` of each, and the token ids `starts`, by rank."""

    size: int
    starts: tuple[int, ...]
    firsts: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, bounds: Sequence[tuple[int, int]], size: int) -> Blocks:
        """Those of shards that hold the token ids [start, stop); one for a shard without any."""
        counts = [max(1, -(-(stop - start) // size)) for start, stop in bounds]
        firsts, end = [0] * len(bounds), 0
        for _, rank in sorted((span, rank) for rank, span in enumerate(bounds)):
            firsts[rank], end = end, end + counts[rank]
        return cls(size, tuple(start for start, _ in bounds), tuple(firsts), tuple(counts))

    @property
    def number(self) -> int:
        """How many blocks there are."""
        return sum(self.counts)

    @property
    def most(self) -> int:
        """How many the shard with the most has."""
        return max(self.counts)

    def places(self, ids: NDArray[np.int32], bounds: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Where tokens [n] lie among all blocks."""
        place = ids.astype(np.int64)
        for first, (start, stop) in zip(self.firsts, bounds, strict=True):
            place[(ids >= start) & (ids < stop)] += first * self.size - start
        return place

    def joined(self, each: Tensor) -> Tensor:
        """Numbers [B, blocks, ...] of all blocks from those of every shard [shards, B, `most`, ...]."""
        order = sorted(range(len(self.firsts)), key=self.firsts.__getitem__)
        return torch.cat([each[rank][:, : self.counts[rank]] for rank in order], 1).contiguous()


def draw_into(
    out: Drawn,
    logits: Tensor,
    rows: SamplingMetadata,
    own: SamplingMetadata,
    which: Ids,
    *,
    comm: Communicator,
    bounds: Sequence[tuple[int, int]],
    block: int = whole.BLOCK,
    tile: int = whole.TILE,
) -> None:
    """Draw the rows `which` [n] into `out`, the same on every shard, from this one's float32 logits [B, N].

    `own` are `rows` as this shard sees them, `bounds` the token ids of each by rank. `block` and `tile` are powers of
    two and change no result. Two rounds for greedy rows, three without filters; else four, or five where tokens are
    listed. One more with a dynamic temperature, and where XTC spares tokens or stands before a temperature; one or two
    where a top-p of a second temperature does not end where it likely would.
    """
    at, some = integers(which, logits), rows
    if which.size < rows.count:
        logits, some, own = logits[at], taken(rows, which), taken(own, which)
    state, plan, blocks = edited(logits, own), DrawPlan.of(_without_views(some)), Blocks.of(bounds, block)
    size = max(stop for _, stop in bounds)
    # Tokens that are no logits of the vocabulary lie among the blocks.
    plan.meta[:, _LISTED] = np.minimum(plan.meta[:, _LISTED], size)
    with torch.cuda.device_of(logits):
        shard = ShardPasses(
            x=state.x.contiguous(),
            meta=plan.on(logits.device),
            plan=plan,
            comm=comm,
            blocks=blocks,
            vocab_size=size,
            tile=tile,
            spared=_spared(some, bounds, blocks, logits),
        )
        found = shard.draw(state.bad)
    status = found.tables.status
    out.token_ids[at], out.sampled_logprobs[at], out.support[at] = found.token, found.logprob, found.support
    out.status[at] = status
    out.top_logprobs[at] = out.top_logprobs[at].masked_fill((status != 0)[:, None], torch.nan)
    if (some.views != View.NONE).any():
        ToldRows(
            shard=shard.vocab,
            home=shard.home.start,
            logits=logits,
            x=shard.x,
            token=found.token,
            status=status,
            row=found.tables.row,
            sums=found.tables.added,
        ).write_views(out, rows, own, which)


def _spared(rows: SamplingMetadata, bounds: Sequence[tuple[int, int]], blocks: Blocks, like: Tensor) -> Tensor:
    """Bits of what XTC never removes, by the places of tokens among all blocks: int32 [B, words], [B, 0] for none."""
    if not rows.protected_ids.size:
        return torch.empty(rows.count, 0, dtype=torch.int32, device=like.device)
    flags = np.zeros((rows.count, -(-blocks.number * blocks.size // 32) * 32), bool)
    row, position = ranges(rows.protected_start[:-1], rows.protected_start[1:])
    flags[row, blocks.places(rows.protected_ids[position], bounds)] = True
    return torch.from_numpy(np.packbits(flags, axis=1, bitorder="little").view(np.int32)).to(like.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the kernels pass on of B rows, whose blocks are those of one shard or of all: see `kernels.layout`."""

    ends: Tensor
    row: Tensor
    status: Tensor
    bins: Tensor
    added: Tensor
    length: Tensor
    mass: Tensor
    count: Tensor
    listed: Tensor

    @classmethod
    def of(cls, x: Tensor, blocks: int, *, listed: int) -> Tables:
        """Those of logits [B, N], in so many blocks, with lists of so many tokens."""
        b, device = x.shape[0], x.device
        return cls(
            ends=torch.empty(kernels.ENDS, b, blocks, dtype=torch.int32, device=device),
            row=torch.zeros(b, kernels.ROW, dtype=torch.int32, device=device),
            status=torch.empty(b, dtype=torch.int8, device=device),
            bins=torch.zeros(b, kernels.BINS, dtype=torch.int32, device=device),
            added=torch.zeros(b, SUMS, dtype=torch.int64, device=device),
            length=torch.zeros(b, dtype=torch.int32, device=device),
            mass=torch.zeros(b, blocks, kernels.PLANES, dtype=torch.int64, device=device),
            count=torch.zeros(b, blocks, kernels.COUNTS, dtype=torch.int32, device=device),
            listed=torch.empty(b, listed, dtype=torch.int32, device=device),
        )

    def taken(self, at: Tensor) -> Tables:
        """Those of the rows `at` int64 [n]."""
        each = {field.name: getattr(self, field.name) for field in fields(self)}
        ends = each.pop("ends")
        return Tables(ends=ends[:, at].contiguous(), **{name: table[at] for name, table in each.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was drawn, [B] each, and the tables that the draw left. Tokens are places among all blocks until `told`."""

    token: Tensor
    logprob: Tensor
    support: Tensor
    tables: Tables

    def put(self, at: Tensor, some: Found) -> None:
        """Writes what was found of the rows `at` int64 [n], but not their blocks and lists."""
        self.token[at], self.logprob[at], self.support[at] = some.token, some.logprob, some.support
        self.tables.row[at], self.tables.added[at] = some.tables.row, some.tables.added


@dataclass(frozen=True, kw_only=True)
class ShardPasses:
    """One draw of this shard: its edited logits x float32 [B, N], and what all shards know of the rows."""

    x: Tensor
    meta: Tensor
    plan: DrawPlan
    comm: Communicator
    blocks: Blocks
    vocab_size: int
    tile: int
    spared: Tensor

    @property
    def vocab(self) -> VocabShard:
        """This shard as tensor operations have it."""
        firsts, rank = self.blocks.firsts, self.comm.rank
        lower = tuple(other for other in range(self.comm.size) if firsts[other] < firsts[rank])
        return VocabShard(comm=self.comm, start=self.blocks.starts[rank], lower=lower)

    @property
    def steps(self) -> int:
        """Steps of a program."""
        return (self.meta.shape[1] - HEADER) // STEP_WIDTH

    @property
    def mine(self) -> int:
        """How many blocks this shard has."""
        return self.blocks.counts[self.comm.rank]

    @property
    def padded(self) -> int:
        """All blocks, rounded up to a power of two."""
        return triton.next_power_of_2(self.blocks.number)

    @property
    def places(self) -> int:
        """Logits of all blocks."""
        return self.blocks.number * self.blocks.size

    @cached_property
    def home(self) -> slice:
        """Where this shard's logits lie among those."""
        first = self.blocks.firsts[self.comm.rank] * self.blocks.size
        return slice(first, first + self.x.shape[1])

    @property
    def spares(self) -> int:
        """How many words of bits say what XTC never removes of a row."""
        return self.spared.shape[1]

    @cached_property
    def ops(self) -> NDArray[np.int64]:
        """The operations [B, S] of the rows."""
        return self.plan.meta[:, HEADER::STEP_WIDTH]

    @cached_property
    def is_likely(self) -> bool:
        """Whether a row has a top-p that may cut under a second temperature, looked for where it likely does."""
        meta = self.plan.meta
        is_second = (meta[:, _FIRST_C] != meta[:, _LAST_C]) | np.isin(self.ops, DYNAMIC).any(axis=1)
        return bool((np.isin(self.ops, _WEIGHED).any(axis=1) & is_second).any())

    @cached_property
    def leaves(self) -> bool:
        """Whether what XTC leaves of a row has to be weighed: it spares tokens, or a temperature follows."""
        has_left = np.cumsum(np.isin(self.ops, COINS), axis=1) > 0
        return bool(has_left.any() and (self.spares or (has_left & np.isin(self.ops, (TEMPERATURE, *DYNAMIC))).any()))

    @cached_property
    def is_tempered(self) -> NDArray[np.bool_]:
        """bool [B]: rows with a temperature that follows from sums over the whole of them."""
        return np.isin(self.plan.meta[:, _SUMMED], DYNAMIC)

    @cached_property
    def weighed(self) -> Tensor:
        """bool [B]: rows all of whose blocks are weighed, as the mass that a top-p needs would be in doubt."""
        return torch.from_numpy(np.isin(self.ops, _WEIGHED).any(axis=1) & ~self.is_tempered).to(self.x.device)

    def draw(self, bad: Tensor) -> Found:
        """The draw of all rows: `bad` bool [B] have no token."""
        rows, part = self.settled(bad)
        if not self.plan.draws:
            return self.told(self.resolved(rows, self.placed()))
        if self.is_tempered.any():
            self.weigh(rows, part)
        begun = replace(rows, row=rows.row.clone(), bins=rows.bins.clone(), added=rows.added.clone())
        found = self.passed(rows, part, self.weighed)
        if self.is_likely:
            self.pass_again(found, begun, part)
        if self.leaves:
            self.leave(found)
        return self.told(found)

    def passed(self, rows: Tables, part: Tables, weighed: Tensor, *, is_certain: bool = False) -> Found:
        """The draw of rows once they are settled; their open ranges are to hold every cut for certain, or likely."""
        self.bound(rows, weighed, is_certain=is_certain)
        return self.resolved(*self.joined(rows, self.split(rows, part)))

    def pass_again(self, found: Found, begun: Tables, part: Tables) -> None:
        """Draws those rows again, from the tables as they were, whose open ranges did not hold the cut of a top-p.

        All shards see that in the counts of the first block, which are the same on all of them.
        """
        at = torch.nonzero(found.tables.count[:, 0, _WEIGHTY] < 0)[:, 0]
        if at.numel():
            some = replace(self, x=self.x[at], meta=self.meta[at])
            found.put(at, some.passed(begun.taken(at), part.taken(at), self.weighed[at], is_certain=True))

    # --- what is exchanged ----------------------------------------------------------------------------------------

    def exchanged(self, *tables: Tensor) -> list[Tensor]:
        """Every shard's int32 `tables` [B, ...], each [shards, B, ...]: equal shapes on all shards. One round."""
        flat = torch.cat([table.reshape(table.shape[0], -1) for table in tables], 1)
        even = pad(flat, (0, flat.shape[1] % 2)).contiguous().view(torch.int64)
        found = self.comm.gather(even).view(torch.int32)
        sizes = [table[0].numel() for table in tables]
        each = found[:, :, : sum(sizes)].split(sizes, 2)
        return [part.reshape(self.comm.size, *table.shape) for part, table in zip(each, tables, strict=True)]

    def of_blocks(self, table: Tensor) -> Tensor:
        """Numbers of this shard's blocks [B, blocks, n] as int32, with room for as many as any shard has."""
        return pad(table.contiguous().view(torch.int32), (0, 0, 0, self.blocks.most - self.mine))

    def sample(self) -> Tensor:
        """float32 [B, 64]: logits at even distances of the whole vocabulary, -inf beyond it. One round."""
        start, size = self.blocks.starts[self.comm.rank], self.x.shape[1]
        ids = torch.arange(_SAMPLE, device=self.x.device) * max(self.vocab_size // _SAMPLE, 1)
        inside = (ids >= start) & (ids < min(start + size, self.vocab_size))
        own = keys(self.x[:, (ids - start).clamp(0, size - 1)].contiguous()).masked_fill(~inside, _NO_KEY)
        found = self.comm.max(own.to(torch.int64)).to(torch.int32)
        return values(found.masked_fill(found == _NO_KEY, NEG_INF_KEY)).contiguous()

    # --- the passes -----------------------------------------------------------------------------------------------

    def settled(self, bad: Tensor) -> tuple[Tables, Tables]:
        """The tables of rows whose ends and masses are known, and those of this shard's blocks.

        One round, and one before it where rows are filtered.
        """
        (b, size), (columns, filters) = self.x.shape, (self.meta.shape[1], int(self.plan.filters))
        part = Tables.of(self.x, self.mine, listed=size if filters else 0)
        sample = self.sample() if filters else self.x
        _MEASURE[b, triton.cdiv(self.mine, whole.RUN)](
            *(self.x, sample, self.meta, part.ends, part.row, part.bins),
            *(b * self.mine, columns, size, self.mine, whole.RUN, filters),
            BLOCK=self.blocks.size,
            **whole.FIRST,
        )
        ends, bins, spoiled = self.exchanged(
            self.of_blocks(part.ends.movedim(0, -1)),
            part.bins[:, : filters * kernels.BINS],
            bad.to(torch.int32)[:, None],
        )
        every = replace(
            Tables.of(self.x, self.blocks.number, listed=self.places if filters else 0),
            ends=self.blocks.joined(ends).movedim(-1, 0).contiguous(),
            row=part.row,
            bins=bins.sum(0, dtype=torch.int32) if filters else part.bins,
        )
        _SETTLE[b,](
            *(spoiled.amax(0), self.meta, every.ends, every.row, every.status, every.bins, every.added, every.length),
            *(b * self.blocks.number, columns, self.places, self.blocks.number, filters),
            PADDED=self.padded,
            **whole.FIRST,
        )
        every.row[:, _SLOT] = torch.arange(b, device=self.x.device)
        return every, part

    def weigh(self, rows: Tables, part: Tables) -> None:
        """Adds up the sums of rows whose temperature follows from them, and their masses. One round."""
        _WEIGH[self.x.shape[0], self.mine](
            *(self.x, self.meta, rows.row, rows.status, part.mass, part.count, part.added),
            *(self.meta.shape[1], self.x.shape[1], self.mine, self.steps),
            BLOCK=self.blocks.size,
            **whole.EXACT,
        )
        masses = part.mass[:, :, _ALL_FIRST].sum(1, keepdim=True)
        total = self.comm.sum(torch.cat([part.added[:, :_TERMS], masses], 1))
        rows.added[:, :_TERMS] += total[:, :_TERMS]
        # Of the blocks only the sum counts for now.
        rows.mass[:, 0, _ALL_FIRST] = total[:, _TERMS]

    def bound(self, rows: Tables, weighed: Tensor, *, is_certain: bool) -> None:
        """Finds the open range of each row; of `weighed` bool [B] rows all blocks will be weighed."""
        _BOUND[self.x.shape[0],](
            *(rows.bins, rows.added, self.meta, rows.row, rows.status, rows.mass),
            *(self.meta.shape[1], self.places, self.blocks.number, self.steps, 0),
            PADDED=self.padded,
            CERTAIN=is_certain,
            **whole.BINNED,
        )
        rows.row[:, _WHOLE] |= weighed.to(torch.int32)

    def split(self, rows: Tables, part: Tables) -> Tables:
        """What this shard's blocks weigh, its tokens of the open ranges, and what it adds to the sums of rows."""
        found = replace(part, row=rows.row.clone(), added=rows.added.clone(), length=torch.zeros_like(rows.length))
        _SPLIT[self.x.shape[0], self.mine](
            *(self.x, self.meta, found.row, rows.status, found.ends, found.mass, found.count, found.added),
            *(found.listed, found.length, found.length, self.x.shape[0] * self.mine),
            *(self.meta.shape[1], self.x.shape[1], self.mine, 0),
            BLOCK=self.blocks.size,
            **whole.EXACT,
        )
        return found

    def joined(self, rows: Tables, part: Tables) -> tuple[Tables, Tensor]:
        """The tables of all blocks, and the logits float32 [B, places] that this shard holds or any lists.

        One round, and one more where any shard lists tokens.
        """
        numbers = torch.stack([part.length, *(part.row[:, at] for at in (_LEAST, _GREATEST, _LOWER_LENGTH))], 1)
        mass, count, added, each = self.exchanged(
            self.of_blocks(part.mass),
            self.of_blocks(part.count),
            part.added[:, :LAWS].contiguous().view(torch.int32),
            numbers,
        )
        row, sums = rows.row, rows.added
        sums[:, :LAWS] += (added.contiguous().view(torch.int64) - sums[:, :LAWS]).sum(0)
        row[:, _LEAST], row[:, _GREATEST] = each[:, :, 1].amin(0), each[:, :, 2].amax(0)
        row[:, _LOWER_LENGTH] = each[:, :, 3].sum(0)
        every = replace(
            rows,
            length=each[:, :, 0].sum(0, dtype=torch.int32),
            mass=self.blocks.joined(mass).view(torch.int64),
            count=self.blocks.joined(count),
        )
        x = self.placed()
        if self.plan.filters:
            self.list_all(every, part, x, each[:, :, 0], each[:, :, 3])
        return every, x

    def placed(self) -> Tensor:
        """This shard's logits in their places among those of all blocks, float32 [B, places], the others at -inf."""
        x = self.x.new_full((self.x.shape[0], self.places), -torch.inf)
        x[:, self.home] = self.x
        return x

    def list_all(self, every: Tables, part: Tables, x: Tensor, lengths: Tensor, lower: Tensor) -> None:
        """Lists the tokens of all shards, whose `lengths` and those of `lower` ranges are int32 [shards, B].

        Their logits go to their places in `x`, the keys of lower ranges to the end of the list. One round, if any has
        some.
        """
        most, least = torch.stack([lengths.amax(), lower.amax()]).tolist()
        if not most + least:
            return
        room = (0, max(most, least))
        own = pad(part.listed, room)[:, :most].clamp(0, self.x.shape[1] - 1)
        logits = self.x.gather(1, own.to(torch.int64)).view(torch.int32)
        ends = pad(part.listed.flip(1), room)[:, :least]
        places, bits, low = self.exchanged(own + self.home.start, logits, ends)
        self.put(every.listed, places, lengths, self.places)
        is_there = torch.arange(most, device=x.device) < lengths[:, :, None]
        # What is no token goes to a place of the shard's own, with what stands there.
        anywhere = self.home.start
        at = torch.where(is_there, places, anywhere).movedim(0, 1).flatten(1).to(torch.int64)
        each = torch.where(is_there, bits, x[:, anywhere].view(torch.int32)[:, None]).movedim(0, 1).flatten(1)
        x.view(torch.int32).scatter_(1, at, each)
        self.put(every.listed, low, lower, self.places, from_end=True)

    @staticmethod
    def put(listed: Tensor, each: Tensor, lengths: Tensor, size: int, *, from_end: bool = False) -> None:
        """Writes numbers [shards, B, n], of which so many count [shards, B], one after the other into a list [B, size],
        or from its end on."""
        at = torch.arange(each.shape[2], device=each.device)
        before = lengths.cumsum(0) - lengths
        place = before[:, :, None] + at
        place = size - 1 - place if from_end else place
        is_there = at < lengths[:, :, None]
        shard, row, n = torch.nonzero(is_there, as_tuple=True)
        listed[row, place[shard, row, n]] = each[shard, row, n]

    def resolved(self, every: Tables, x: Tensor) -> Found:
        """The draw of rows once all tables are those of all blocks."""
        b, device = x.shape[0], x.device
        support = torch.empty(b, dtype=torch.int64, device=device)
        token, logprob = torch.empty_like(support), torch.empty(b, dtype=torch.float32, device=device)
        _RESOLVE[b,](
            *(x, every.ends, every.mass, every.count, every.added, every.listed, every.length, self.meta, every.row),
            *(every.status, self.spared, token, logprob, support),
            *(self.meta.shape[1], self.places, self.blocks.number, self.steps, self.spares),
            BLOCK=self.blocks.size,
            PADDED=self.padded,
            TILE=self.tile,
            LEVELED=False,
            **whole.WIDE,
        )
        return Found(token=token, logprob=logprob, support=support, tables=every)

    def leave(self, found: Found) -> None:
        """Draws the rows anew of which XTC removes tokens, from what it leaves of all shards. One round."""
        b, tables = self.x.shape[0], found.tables
        mass = torch.zeros(b, self.mine, 1, dtype=torch.int64, device=self.x.device)
        number = torch.zeros(b, 1, dtype=torch.int32, device=self.x.device)
        passed = self.meta, tables.row, tables.status, tables.added, self.spared
        _WEIGH_LEFT[b, self.mine](
            *(self.x, *passed, mass, number),
            *(self.home.start, self.meta.shape[1], self.x.shape[1], self.mine, self.steps, self.spares),
            BLOCK=self.blocks.size,
            **whole.EXACT,
        )
        masses, numbers = self.exchanged(self.of_blocks(mass), number)
        _DRAW_LEFT[b,](
            *(self.placed(), *passed, self.blocks.joined(masses).view(torch.int64), numbers.sum(0, dtype=torch.int32)),
            *(found.token, found.logprob, found.support),
            *(self.meta.shape[1], self.places, self.blocks.number, self.steps, self.spares),
            BLOCK=self.blocks.size,
            PADDED=self.padded,
            **whole.FIRST,
        )

    def told(self, found: Found) -> Found:
        """The same with token ids and logprobs of the shards that hold the tokens. One round."""
        token, logprob = found.token, found.logprob
        home, start = self.home, self.blocks.starts[self.comm.rank]
        mine = (token >= home.start) & (token < home.start + self.mine * self.blocks.size)
        own = (token - home.start + start << 32) | (logprob.view(torch.int32).to(torch.int64) & _WORD)
        best = self.comm.max(own.masked_fill(~mine, -1))
        bits = torch.where(best < 0, logprob.view(torch.int32), (best & _WORD).to(torch.int32))
        return replace(found, token=best >> 32, logprob=bits.view(torch.float32))
